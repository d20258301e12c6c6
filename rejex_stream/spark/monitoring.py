"""The driver sees what a micro-batch has made durable as a run's observers see its outcomes.

Whoever watches a worker watches a job: monitors, metrics, health and alerts are fed from the
messages that were written, partition by partition in the order of offsets.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, islice
from operator import attrgetter

import msgspec
from rejex_connectors.kafka.clients import Message
from rejex_connectors.spark.sink import Written

from rejex_stream.config import Config
from rejex_stream.config.assembly import DecodedBefore
from rejex_stream.encode import (
    LeanVerdictRecord,
    decode_dead_letter,
    decode_reviewed,
    decode_verdict,
)
from rejex_stream.encode.schemas import CONNECT_PREFIX
from rejex_stream.errors import ConnectorError
from rejex_stream.operate.run_monitor import RunMonitor
from rejex_stream.run.loop import UnscorableStreak
from rejex_stream.run.partition import PartitionMonitor
from rejex_stream.run.run_events import IncidentsDurable, NothingScorable, PartitionOpened, Progress
from rejex_stream.spark.job_journal import AtCommit, JobJournal, changes_in
from rejex_stream.threads import seldom_collecting
from rejex_stream.types import (
    Incident,
    IncidentState,
    Invalid,
    Outcome,
    Partition,
    Position,
    Reason,
    Record,
    ReviewItem,
    Verdict,
    in_mode,
)

OUTPUTS = ("verdicts", "review", "deadletter", "incidents")
_SOME = 2_000  # outcomes are in hand at once
_TURN_S = 0.5
_TELLING_S = 2.0
_log = logging.getLogger(__name__)


class JobMonitoring:
    """Shows a job to whoever watches; a :class:`~rejex_connectors.spark.sink.Watcher`.

    What is durable is seen once: what a partition held when the job took it over, and what a
    micro-batch repeats, was seen before. Monitors begin again with the driver.
    """

    def __init__(
        self,
        run_monitor: RunMonitor,
        config: Config,
        journal: JobJournal | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_monitor, self._journal, self._clock = run_monitor, journal, clock
        self._lean = config.output.form == "lean"
        self._monitored = config.monitor.enabled and not self._lean
        if self._lean:
            run_monitor.metrics.of_lean_verdicts()
        if config.monitor.enabled and self._lean:
            _log.warning(
                "the monitors do not run: on Spark they read what is written, and with output.form "
                '= "lean" that has no ranks; write full verdicts, or give monitor.enabled = false'
            )
        self._looks = self._monitored or config.metrics.port > 0
        # outputs that have to be shown: what is not looked at need not come to the driver
        self.wanted: Collection[str] = OUTPUTS if self._looks else ("incidents",)
        self._turned_at = clock()
        self._at: dict[Partition, int] = {}
        self._kept: dict[Partition, Sequence[Incident]] = {}
        self._monitors: dict[Partition, PartitionMonitor] = {}
        self._unscorable = UnscorableStreak(DecodedBefore(()))  # no record to look into
        self._under_way: AtCommit | None = None
        self._lock = threading.Lock()  # micro-batches come on a thread of Spark's

    # ------------------------------------------------------------------------------ the beginning
    def begin(self, at: Mapping[Partition, int], were_open: Iterable[Incident]) -> None:
        """Take partitions over where they stand; tell of what nobody has been told of yet."""
        self._at = dict(at)
        for partition, offset in at.items():
            self._event(PartitionOpened(partition, None, offset, offset))
            self._monitor(partition)
        self._run_monitor.register_open(were_open)
        if self._journal is not None:
            for partition, offset in at.items():
                left = self._journal.pending(partition, offset)
                if left:
                    self._kept[partition] = left
                self._event(IncidentsDurable(partition, left, again=True))

    def _event(self, event: PartitionOpened | IncidentsDurable | NothingScorable) -> None:
        for observer in self._run_monitor.observers:
            observer.event(event)

    def _monitor(self, partition: Partition) -> PartitionMonitor | None:
        if self._monitored and partition not in self._monitors:
            self._monitors[partition] = self._run_monitor.make_monitor(partition)
        return self._monitors.get(partition)

    # ------------------------------------------------------------------------------ micro-batches
    def begun(self) -> AtCommit:
        """Return what takes part in the commits of a micro-batch that begins."""
        with self._lock:
            self._under_way = self._at_commit()
            return self._under_way

    def _at_commit(self) -> AtCommit:
        outbox, left = self._run_monitor.outbox, None
        if outbox is not None:
            left = {partition: outbox.pending(partition) for partition in self._at}
        return AtCommit(self._journal, dict(self._at), left, dict(self._kept))

    def durable(
        self, written: Mapping[Partition, Sequence[Written]], ends: Mapping[Partition, int]
    ) -> None:
        """See a micro-batch that is durable; tell of it. O(messages), some 15 µs a verdict."""
        with self._lock, seldom_collecting():
            recorded, self._under_way = self._under_way, None
            for partition, end in ends.items():
                every, at = written.get(partition, ()), self._at.get(partition, 0)
                if end > at:
                    pending = recorded and recorded.pending(partition, _incidents(every))
                    self._kept[partition] = pending or ()
                    self._at[partition] = end
                self._see(partition, every, at)
            self._run_monitor.metrics.committed(self._at)

    def _see(self, partition: Partition, written: Sequence[Written], at: int) -> None:
        if self._looks:
            monitor = self._monitor(partition)
            every = outcomes_in(partition, written, lean=self._lean)
            while batch := list(islice(every, _SOME)):
                outcomes = [outcome for outcome in batch if outcome.record.position.offset >= at]
                if monitor is not None:
                    _observe(monitor, outcomes)
                self._show(partition, outcomes)
        changes = changes_in(
            message.value for message in _incidents(written) if message.offset >= at
        )
        if changes:
            self._event(IncidentsDurable(partition, changes))

    def _show(self, partition: Partition, outcomes: Sequence[Outcome]) -> None:
        self._run_monitor.metrics.outcomes(partition, outcomes, replaying=False)
        before = self._unscorable.alarm
        self._unscorable.update(outcomes)
        if self._unscorable.alarm is not before:
            self._event(NothingScorable(partition, self._unscorable.alarm))

    def turn(self) -> None:
        """Renew what others see, now and then; the driver waits meanwhile."""
        now = self._clock()
        if now - self._turned_at >= _TURN_S and self._lock.acquire(blocking=False):
            try:
                self._turned_at = now
                self._run_monitor.progress(Progress(0, 0, 0.0, 0, {}))
            finally:
                self._lock.release()

    def lag(self, ends: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return how many records are not durable yet, of an input that ends there."""
        return {p: max(0, end - self._at.get(p, 0)) for p, end in ends.items()}

    # ------------------------------------------------------------------------------------ the end
    def end(self, write: Callable[[Partition, Sequence[Message]], object]) -> None:
        """Let people be told, for a while; keep what is pending after that."""
        outbox = self._run_monitor.outbox
        if outbox is not None:
            outbox.flush(_TELLING_S)
        with self._lock:
            at_commit = self._at_commit()
            # A micro-batch that broke off may be durable, and what it recorded is then right.
            for partition, next_offset in self._at.items() if self._under_way is None else ():
                messages = at_commit(partition, next_offset, (), False)
                if messages:
                    write(partition, messages)


def still_open(lines: Iterable[bytes], at: Mapping[Partition, int]) -> list[Incident]:
    """Return the incidents that are open, of all that was written of incidents. O(lines).

    Those of other inputs, and of what is not durable, are nobody's. So is what is no incident.
    """
    newest: dict[str, Incident] = {}
    for line in lines:
        with suppress(ConnectorError):
            for change in changes_in([line]):
                if change.position.offset < at.get(Partition(*change.position[:2]), 0):
                    newest[change.id] = change
    return [change for change in newest.values() if change.state is not IncidentState.CLOSED]


def outcomes_in(
    partition: Partition, written: Sequence[Written], *, lean: bool = False
) -> Iterator[Outcome]:
    """Yield the outcomes of which messages were made, as far as they say. O(messages).

    Values and keys of records are not there; of a `lean` verdict most is missing.
    """
    for at, of_reading in groupby(written, key=attrgetter("offset", "reading")):
        position = Position(partition.topic, partition.partition, *at)
        verdict: Verdict | None = None
        invalid: Invalid | None = None
        review: ReviewItem | None = None
        incidents: tuple[Incident, ...] = ()
        for message in of_reading:
            if message.output == "verdicts":
                verdict = _lean(position, message.value) if lean else decode_verdict(message.value)
            elif message.output == "deadletter" and verdict is None:
                invalid = _invalid(position, message)
            elif message.output == "review":
                item = decode_reviewed(message.value)
                review = item if isinstance(item, ReviewItem) else review
            elif message.output == "incidents":
                incidents = (*incidents, *changes_in([message.value]))
        yield Outcome(Record(position, None, None), verdict, invalid, review, incidents)


def _lean(position: Position, line: bytes) -> Verdict:
    lean = msgspec.json.decode(line, type=LeanVerdictRecord)
    return Verdict(
        position, lean.stream_key, lean.sensor, lean.event_time_ms, 0, lean.label, lean.reason,
        severity=lean.severity, mode=lean.mode,
    )  # fmt: skip


def _invalid(position: Position, letter: Written) -> Invalid:
    """Say why a record is a dead letter: on topics its headers do."""
    if not letter.headers:
        return decode_dead_letter(letter.value)[1]
    from rejex_connectors.kafka.messages import split_headers

    headers = split_headers(msgspec.msgpack.decode(letter.headers)).ours
    stage = (headers.get(f"{CONNECT_PREFIX}stage") or b"").decode()
    reason = (headers.get(f"{CONNECT_PREFIX}exception.message") or b"").decode()
    return Invalid(position, stage, reason)


def _incidents(written: Iterable[Written]) -> list[Written]:
    return [message for message in written if message.output == "incidents"]


def _observe(monitor: PartitionMonitor, outcomes: Sequence[Outcome]) -> None:
    # That nobody knows a sensor is no verdict of its stream. One that begins again was forgotten.
    known: list[Outcome] = []
    for outcome in outcomes:
        verdict = outcome.verdict
        if verdict is None or verdict.reason is Reason.TOO_MANY_SENSORS:
            continue
        if verdict.seq == 0:
            monitor.observe(known, replaying=False)
            known = []
            monitor.bank.forget(in_mode(verdict.stream_key, verdict.mode))
        known.append(outcome)
    monitor.observe(known, replaying=False)
