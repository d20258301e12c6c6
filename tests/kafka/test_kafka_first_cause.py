"""What ended a run is told as it was told first, whatever fails after it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

import pytest
from kafka_harness import MAPPING, RUN, ChainEngine, feed
from rejex_connectors.kafka.clients import Consumer, Edge, Gained, Lost, Message
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.messages import OutcomeMessages
from rejex_connectors.kafka.sink import KafkaSink
from rejex_connectors.kafka.source import KafkaSource

from rejex_stream.decode import JsonDecoder
from rejex_stream.errors import ConnectorError
from rejex_stream.run.loop import run
from rejex_stream.types import Outcome, Partition, Reading, Record, Verdict

LATE = ConnectorError("Kafka did not answer in time", retriable=True)
REFUSED = ConnectorError("Kafka does not allow NAME to WRITE on topic verdicts")


class Member:
    """A consumer that is given one partition and keeps it."""

    def __init__(
        self, records: Sequence[Record], script: Broker, ends: ConnectorError | None
    ) -> None:
        self._records, self._script, self._ends = records, script, ends
        self._next: int | None = None
        self._news: list[Gained | Lost] = [Gained(Partition(*records[0].position[:2]))]

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        if self._next is None:
            return []
        found = list(self._records[self._next : self._next + max_records])
        if not found and self._ends is not None:
            raise self._ends
        self._next += len(found)
        return found

    def changes(self) -> list[Gained | Lost]:
        news, self._news = self._news, []
        return news

    def joined(self) -> bool:
        return True

    def committed(self, partition: Partition, timeout_s: float) -> int | None:
        return self._script.committed

    def edge(self, partition: Partition, which: Edge, timeout_s: float) -> int:
        return 0

    def take_stuck(self) -> Mapping[Partition, int]:
        return {}

    def end(self, partition: Partition) -> int | None:
        return len(self._records)

    def start(self, partition: Partition, offset: int) -> None:
        self._next = offset

    def stop(self, partition: Partition) -> None:
        self._next = None

    def membership(self) -> object:
        return object()

    def commit(self, offsets: Mapping[Partition, int], timeout_s: float) -> None:
        raise AssertionError("the offsets go with the transaction")

    def close(self) -> None:
        pass


class Broker:
    """Takes what is published, or says what the script says: first of all, or of outcomes."""

    def __init__(self, *script: ConnectorError | None) -> None:
        self.committed: int | None = None
        self.n_taken = 0
        self._script = list(script)

    def partitions(self, topic: str) -> int:
        return 1

    def publish(
        self, messages: Iterable[Message], offsets: Mapping[Partition, int], consumer: Consumer
    ) -> None:
        sent = list(messages)
        failure = self._script.pop(0) if self._script else None
        if failure is not None:
            raise failure
        (self.committed,) = offsets.values()
        self.n_taken += len(sent)

    def close(self) -> None:
        pass


class Saying:
    """Says in which order things were tried again, and ends the run once all is committed."""

    def __init__(self, broker: Broker, end: int) -> None:
        self.stop = threading.Event()
        self._broker, self._end = broker, end

    def outcomes(
        self, partition: Partition, outcomes: Sequence[Outcome], *, replaying: bool
    ) -> None:
        pass

    def event(self, event: object) -> None:
        if self._broker.committed is not None and self._broker.committed >= self._end:
            self.stop.set()


def play(
    broker: Broker, engine: ChainEngine | None = None, *, ends: ConnectorError | None = None,
    commit_interval_s: float = 0.0,
) -> None:  # fmt: skip
    settings = KafkaSettings()
    records = feed(settings, 200, sensors=1, partitions=1, poison_share=0)
    source = KafkaSource(Member(records, broker, ends), settings)
    sink = KafkaSink(source, broker, lambda: broker, OutcomeMessages(settings, lambda _: 1))
    watching = Saying(broker, len(records))
    run(
        source, sink, None, lambda partition, fits: engine or ChainEngine(), JsonDecoder(MAPPING),
        settings=RUN.replace(
            commit_interval_s=commit_interval_s, retry_first_s=0.01, max_poll_records=50
        ),
        observers=[watching], stop=watching.stop,
    )  # fmt: skip


@pytest.mark.parametrize("failures", [1, 2, 5])
def test_a_commit_that_fails_again_and_again_is_tried_again(failures: int) -> None:
    broker = Broker(*[LATE] * failures)
    play(broker)
    assert broker.committed == 200
    assert broker.n_taken >= 200


@pytest.mark.parametrize("failures", [0, 1, 2, 5])
def test_a_refusal_is_told_after_any_number_of_failures(failures: int) -> None:
    with pytest.raises(ConnectorError) as told:
        play(Broker(*[LATE] * failures, REFUSED))
    assert told.value is REFUSED


def test_an_input_that_may_not_be_read_any_more_is_told_though_the_last_commit_fails() -> None:
    unreadable = ConnectorError("Kafka does not allow NAME to READ on topic in")
    with pytest.raises(ConnectorError) as told:
        play(Broker(REFUSED), ends=unreadable, commit_interval_s=60.0)
    assert told.value is unreadable


@pytest.mark.parametrize("commit", [LATE, REFUSED])
def test_a_defect_of_the_engine_is_told_though_the_commit_fails_meanwhile(
    commit: ConnectorError,
) -> None:
    class BreaksOnce(ChainEngine):
        broken = False

        def process(self, readings: Sequence[Reading]) -> list[Verdict]:
            if self.streams() and not self.broken:
                self.broken = True
                raise ValueError("a defect")
            return super().process(readings)

    with pytest.raises(ValueError, match="a defect"):
        play(Broker(commit), BreaksOnce())
