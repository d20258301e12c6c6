"""The state of each stream on Spark: restored where it is not at hand, judged on, kept in parts."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from rejex_connectors.files.sink import lines_of

from rejex_stream.config import Config
from rejex_stream.config.assembly import DecodedBefore, Judging, kafka_settings
from rejex_stream.run.partition import PartitionState
from rejex_stream.spark.commands import JobJournal
from rejex_stream.threads import one_thread
from rejex_stream.types import Invalid, Outcome, Partition, Reading, Record

if TYPE_CHECKING:
    import pandas as pd
    from rejex_connectors.kafka.clients import Message

__all__ = ["KeyedStates", "Recipe", "Taken"]

_LIVE = 2_000
"""So many states stay at hand in a worker's process."""
_COLUMNS = ("topic", "partition", "offset", "place", "output", "to", "key", "value", "headers")


class Taken(NamedTuple):
    """A record on its way from one executor to another, and what was read in it."""

    record: Record
    reading: Reading | None
    invalid: Invalid | None


@dataclass(frozen=True)
class Recipe:
    """What a worker's process needs to judge.

    Attributes
    ----------
    id
        Of this job; live states are never taken from one job into another.
    config
        What decides.
    partitions
        How many partitions each output topic has; ``None``: outputs are lines of files.
    journal
        Where people tell the pipeline things; ``None``: nowhere.
    """

    id: str
    config: Config
    partitions: Mapping[str, int] | None
    journal: JobJournal | None = None


class _Live(NamedTuple):
    """A state that is at hand, and the mark under which it was kept."""

    mark: bytes
    state: PartitionState
    read: DecodedBefore


class _Bench:
    """What one process keeps from task to task: recipes made ready, and states at hand."""

    def __init__(self, recipe: Recipe) -> None:
        self.judging = Judging(recipe.config)
        self.live: OrderedDict[tuple[str, int, str], _Live] = OrderedDict()
        self.messages = _messages(recipe)
        self._journal = recipe.journal

    def fresh(self, partition: Partition) -> tuple[PartitionState, DecodedBefore]:
        read = DecodedBefore(self.judging.channels)
        inputs = None if self._journal is None else self._journal.inputs
        return self.judging.state(partition, read, inputs), read

    def listen(self, state: PartitionState) -> None:
        """Have the state obey what is durable by now, from where it stands."""
        if self._journal is not None:
            state.keep_to(self._journal.decided(state.partition), decided_until=state.next_offset)
            state.decisions.begin_at(state.next_offset, whatever_is_lost=False)


def _messages(
    recipe: Recipe,
) -> Callable[[Outcome], Iterable[tuple[str, int, bytes | None, bytes | None, bytes]]]:
    """Return what makes of an outcome its messages: output, partition, key, value, headers."""
    if recipe.partitions is None:
        nothing = msgspec.msgpack.encode([])
        form = recipe.config.output.form
        return lambda outcome: [
            (role, 0, None, line, nothing) for role, line in lines_of([outcome], form=form)
        ]
    from rejex_connectors.kafka.messages import OutcomeMessages

    settings = kafka_settings(recipe.config)
    roles = {
        getattr(settings.topics, role): role
        for role in ("verdicts", "review", "deadletter", "incidents")
    }
    of = OutcomeMessages(settings, recipe.partitions.__getitem__).of
    encode = msgspec.msgpack.Encoder().encode

    def message(m: Message) -> tuple[str, int, bytes | None, bytes | None, bytes]:
        return roles[m.topic], m.partition, m.key, m.value, encode(m.headers)

    return lambda outcome: map(message, of([outcome]))


_benches: dict[str, _Bench] = {}


class KeyedStates:
    """A ``StatefulProcessor`` of Spark: judges the records of one stream, or of one partition.

    Its state is the parts of a worker's snapshot, each a value of its own that is written where it
    has moved: the window with every micro-batch, the model where it was fitted anew. States stay at
    hand in the worker's process as well, and are used where their mark is the one in Spark's state;
    so a batch that is repeated, on whatever machine, begins with what is durable.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    def init(self, handle: Any) -> None:  # noqa: ANN401 - Spark's
        """Open the state."""
        bench = _benches.get(self._recipe.id)
        if bench is None:
            _benches.clear()  # of an earlier job in this process
            bench = _benches[self._recipe.id] = _Bench(self._recipe)
        self._bench = bench
        self._mark = handle.getValueState("mark", "mark binary")
        self._parts = handle.getMapState("parts", "name string", "body binary")
        self._taken = msgspec.msgpack.Decoder(Taken)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: tuple[str, int, str],
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: ANN401
    ) -> Iterator[pd.DataFrame]:
        """Judge what a micro-batch holds of one key."""
        import pandas as pd

        taken = [self._taken.decode(body) for frame in rows for body in frame["taken"]]
        taken.sort(key=lambda one: one.record.position.offset)  # map tasks came in any order
        topic, partition, _ = key
        live = self._live(key, Partition(str(topic), int(partition)))
        state, read = live.state, live.read
        self._bench.listen(state)
        read.items = {one.record.position: one.reading or one.invalid for one in taken}  # type: ignore[misc] # one of both
        with one_thread():
            outcomes = state.process([one.record for one in taken])
        read.items = {}
        self._keep(key, live)
        out = [
            (*outcome.record.position[:3], place, *message)
            for outcome in outcomes
            for place, message in enumerate(self._bench.messages(outcome))
        ]
        yield pd.DataFrame(out, columns=list(_COLUMNS))

    def _live(self, key: tuple[str, int, str], partition: Partition) -> _Live:
        known = self._mark.get()
        live = self._bench.live.pop(key, None)
        if live is not None and known is not None and live.mark == bytes(known[0]):
            return live
        state, read = self._bench.fresh(partition)
        if known is not None:
            parts = {str(name[0]): bytes(body[0]) for name, body in self._parts.iterator()}
            state.restore(parts)
            state.decide()
        return _Live(b"", state, read)

    def _keep(self, key: tuple[str, int, str], live: _Live) -> None:
        state = live.state
        for name, body in state.snapshot().encoded().parts.items():
            if body is not None:
                self._parts.updateValue((name,), (body,))
            elif self._parts.containsKey((name,)):
                self._parts.removeKey((name,))
        state.parts.keep()
        mark = uuid.uuid4().bytes
        self._mark.update((mark,))
        self._bench.live[key] = live._replace(mark=mark)
        while len(self._bench.live) > _LIVE:
            self._bench.live.popitem(last=False)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,  # noqa: ANN401
        timerValues: Any,  # noqa: ANN401
        expiredTimerInfo: Any,  # noqa: ANN401
    ) -> Iterator[pd.DataFrame]:
        """Nothing here goes by time."""
        return iter(())

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: ANN401, N802
        """Take over parts of a worker's snapshot, before the first micro-batch."""
        for name, body in zip(initialState["name"], initialState["body"], strict=True):
            self._parts.updateValue((name,), (body,))
        self._mark.update((uuid.uuid4().bytes,))

    def close(self) -> None:
        """Let go of nothing: states stay at hand for the next micro-batch."""
