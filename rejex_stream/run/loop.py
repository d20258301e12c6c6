"""The loop around the engine: everything that waits, writes, fails and tries again.

:meth:`_Loop.run_once` is one turn: poll; take over ownership changes and commands; judge the
records of each partition in order, while the outcomes of earlier turns are committed; end, report.
Records before the committed offset are *replayed silently*: they rebuild the state and write
nothing. Where the next event needs a fit that is not done, a partition holds its records, up to a
bound, and the loop goes on with the others.

When the edge fails for the moment (a retriable :class:`ConnectorError`), what was not committed is
aborted and the source is asked what *is* durable: a commit that timed out may have happened. The
run goes on from there; since all state is a function of the input, nothing is lost or repeated. A
crash at any point is the same with a new process.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from rejex_stream.decode import Decoder
from rejex_stream.engine import Engine
from rejex_stream.errors import ConnectorError, RejexError
from rejex_stream.monitor import Alarm, AlarmKind, Alternative
from rejex_stream.native_core import native
from rejex_stream.protocols import ControlLog, FitExecutor, Sink, SnapshotStore, Source
from rejex_stream.run.command_journal import CommandReader
from rejex_stream.run.commit import Commits, OwnedPartition, Ownership
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.run.partition import OnJudged, PartitionMonitor, PartitionState, make_state
from rejex_stream.run.run_events import (
    FitFailure,
    NothingScorable,
    Outbox,
    OutcomeObserver,
    PartitionLive,
    Progress,
    Retrying,
    RunEvent,
    RunObserver,
    RunSummary,
    SensorsForgotten,
)
from rejex_stream.run.run_settings import RunSettings
from rejex_stream.threads import one_thread, quick_switching, seldom_collecting
from rejex_stream.types import Invalid, Outcome, Partition, Reason, Record, Verdict

_FLUSH_S = 2.0
"""Seconds that the end of a run waits for the delivery of notifications."""

_FEW_READ = 10  # what a run found at the end of a file that others had read before
_KINDS_SHOWN = 3
_MAX_CHARS = 160  # of one kind in the sentence
_DIGITS = re.compile(r"('[^']*')|\d+")
_LONG = 100
_FEW_SCORED = 10  # a handful of new rows may all have gaps

_log = logging.getLogger(__name__)


def run(
    source: Source,
    sink: Sink,
    store: SnapshotStore | None,
    make_engine: Callable[[Partition, FitExecutor], Engine],
    decoder: Decoder,
    *,
    settings: RunSettings | None = None,
    make_monitor: Callable[[Partition], PartitionMonitor] | None = None,
    control: ControlLog | None = None,
    outbox: Outbox | None = None,
    observers: Sequence[RunObserver] = (),
    on_judged: OnJudged | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    executor: FitExecutor | None = None,
    stop: threading.Event | None = None,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] | None = None,
) -> RunSummary:
    """Read, judge and write until the input ends or `stop` is set; closes source and sink.

    For as long as it runs it changes three things of its whole process, and sets them back: BLAS
    computes in one thread (the last bit of a score may depend on their number), the garbage
    collector is asked seldom, and threads are switched every 1 ms
    (:mod:`~rejex_stream.threads`).

    Without a `store`, state can only be rebuilt from the input's first record; without an
    `executor`, which the caller closes, fits run in the loop itself. `outbox` is what people are
    still to be told of incidents, kept with the commits. Observers see what happens, those with a
    method for it all outcomes; `on_judged` sees the readings of a batch, and how long it took.
    Whoever sets `stop` (a signal handler, say) has the batch finished, committed and a snapshot
    taken. `wait` waits for so many seconds, by default until `stop`. The run fails where state
    cannot be rebuilt, where the edge fails for good, and where too much cannot be read or scored.
    """
    stop = stop or threading.Event()
    loop = _Loop(
        source, sink, store, make_engine, make_monitor, decoder, control, outbox,
        settings or RunSettings(), observers, on_judged, on_progress,
        executor or InlineExecutor(), stop, clock, wait or stop.wait,
    )  # fmt: skip
    with ExitStack() as exits:
        exits.callback(source.close)
        if store is not None:
            exits.callback(store.close)
        exits.callback(sink.close)  # first, while the source still answers for its offsets
        exits.callback(loop.ownership.close)
        exits.callback(loop.commits.close)
        exits.callback(loop.commands.close)
        exits.enter_context(one_thread())
        exits.enter_context(seldom_collecting())
        exits.enter_context(quick_switching())
        return loop.run()


@contextmanager
def _logging_after(cause: BaseException) -> Iterator[None]:
    try:
        yield
    except RejexError as error:
        _log.warning("after %s: %s", type(cause).__name__, error)


@dataclass(slots=True)
class _Loop:
    source: Source
    sink: Sink
    store: SnapshotStore | None
    make_engine: Callable[[Partition, FitExecutor], Engine]
    make_monitor: Callable[[Partition], PartitionMonitor] | None
    decoder: Decoder
    control: ControlLog | None
    outbox: Outbox | None
    settings: RunSettings
    observers: Sequence[RunObserver]
    on_judged: OnJudged | None
    on_progress: Callable[[Progress], None] | None
    executor: FitExecutor
    stop: threading.Event
    clock: Callable[[], float]
    wait: Callable[[float], object]

    ownership: Ownership = field(init=False)
    commits: Commits = field(init=False)
    commands: CommandReader = field(init=False)
    outcome_observers: Sequence[OutcomeObserver] = field(init=False)
    summary: RunSummary = field(default_factory=lambda: RunSummary(plain=native("plain")))
    unreadable: UnreadableShare = field(init=False)
    unscorable: UnscorableStreak = field(init=False)
    retries: Retries = field(init=False)
    max_records: int = 1
    began: float = 0.0
    progress_at: float = 0.0
    to_rewind: bool = False

    def __post_init__(self) -> None:
        self.retries = Retries(self.settings)
        self.outcome_observers = [o for o in self.observers if isinstance(o, OutcomeObserver)]
        self.unreadable = UnreadableShare(
            self.settings.invalid_limit, self.settings.invalid_window_events
        )
        self.unscorable = UnscorableStreak(self.decoder)
        self.commands = CommandReader(self.control, self._emit)
        self.ownership = Ownership(
            self.source,
            self.store,
            self._make_state,
            self.executor,
            restart_if_lost=self.settings.lost_state == "restart",
            summary=self.summary,
            emit=self._emit,
            clock=self.clock,
        )
        self.commits = Commits(self.ownership, self.sink, self.store, self.settings, self.outbox)

    def _make_state(self, partition: Partition, fits: FitExecutor) -> PartitionState:
        engine, monitor = self.make_engine(partition, fits), self.make_monitor
        return make_state(
            self.settings,
            partition,
            self.decoder,
            engine,
            monitor=monitor(partition) if monitor else None,
            inputs=None if self.control is None else self.control.inputs,
            on_judged=self.on_judged,
        )

    # ------------------------------------------------------------------------------ the loop
    def run(self) -> RunSummary:
        self.began = self.progress_at = self.clock()
        self.max_records = min(100, self.settings.max_poll_records)
        going = True
        while going:
            try:
                going = self.run_once()
            except ConnectorError as error:
                if not error.retriable:
                    raise
                going = self._recover(error)
        self.summary.seconds = self.clock() - self.began
        self.summary.stopped = self.to_rewind or not self._at_the_end()
        self._report()
        return self.summary

    def run_once(self) -> bool:
        if self.to_rewind:  # after a failure: from what is durable
            self.sink.abort()
            self.source.rewind()
            self.to_rewind = False
        wait_s = self.commits.poll_wait_s(self.wait)
        try:
            records = self.source.poll(self.max_records, wait_s)
        except ConnectorError as error:
            if not error.retriable:  # the input broke off; what came before it counts
                with _logging_after(error):
                    self._commit_and_judge(everything=True)
            raise
        changes = self.source.changes()
        if changes:  # what was polled of these partitions belongs to the time before
            changed = self.ownership.apply(changes)
            records = [record for record in records if record.position[:2] not in changed]
        self.commands.ingest([owned.state.journal for owned in self.ownership.owned.values()])
        self._commit_and_judge(records)
        # At the end, at a stop, and where the input cannot be read, all becomes durable.
        ended = self._at_the_end()
        complaint = self.unreadable.complaint(ended=ended)
        if complaint is None and ended:
            complaint = self.unscorable.complaint()
        done = self.stop.is_set() or ended or complaint is not None
        if done:
            self._commit_and_judge(everything=True)
            if self.outbox is not None:  # what is delivered now is not repeated after a restart
                self.outbox.flush(_FLUSH_S)
                self._commit_and_judge(everything=True)
        now = self.clock()
        if self.retries.is_old(now) and not self.ownership.n_held():
            self.retries.succeeded()
            self.ownership.drop_suspended()
        if now - self.progress_at >= self.settings.progress_interval_s:
            self.progress_at = now
            self._report()
        if complaint is not None:
            raise complaint
        return not done

    def _commit_and_judge(
        self, records: Sequence[Record] = (), *, everything: bool = False
    ) -> None:
        self.commits.begin(everything=everything)
        try:
            self._process(records)
        except BaseException as error:
            with _logging_after(error):
                self.commits.finish()
            raise
        if self.commits.finish():
            self.retries.succeeded()
            if self.ownership.suspended:
                self.ownership.drop_suspended()

    # ----------------------------------------------------------------------------- processing
    def _process(self, records: Sequence[Record]) -> None:
        if not records and not self.ownership.waiting():
            return
        by_partition: dict[tuple[str, int], list[Record]] = {}
        last: tuple[str, int] | None = None
        for record in records:
            topic, number = record.position[:2]
            if last is None or number != last[1] or topic != last[0]:
                last = topic, number
                into = by_partition.setdefault(last, [])
            into.append(record)
        begun = self.clock()
        for partition, owned in self.ownership.owned.items():
            batch = by_partition.get(partition, [])
            if batch or owned.state.ahead:
                self._advance(owned, batch)
        took = self.clock() - begun
        # Batches are cut to a length in time: a stop, a commit or a rebalance need not wait long.
        # By batch invariance that changes no verdict.
        if took > self.settings.batch_s:
            self.max_records = max(1, self.max_records // 2)
        elif took < self.settings.batch_s / 4 and len(records) >= self.max_records:
            self.max_records = min(2 * self.max_records, self.settings.max_poll_records)

    def _advance(self, owned: OwnedPartition, batch: list[Record]) -> None:
        """Judge the records that need not wait for a fit; the others go first in a later turn."""
        state = owned.state
        if state.next_offset < owned.live_from:  # replaying
            # Nobody waits for what is replayed: in long blocks an event costs less.
            at_once = self.settings.max_poll_records * 4 // 5  # where the source has to pause
            outcomes = state.process(batch, replay_to=owned.live_from, at_once=at_once)
            self.summary.n_replayed += len(outcomes)
            self._show(state, outcomes, replaying=True)
            if state.judged_next < owned.live_from:
                self.ownership.record_fit_wait(owned, progressed=bool(outcomes))
                return
            events, at = owned.replay_begun
            self._emit(PartitionLive(state.partition, state.n_events - events, self.clock() - at))
            batch = []
            self.ownership.go_live(owned)
            if state.journal.can_assign:  # in effect from the first live record
                return
        outcomes = state.process(batch)
        owned.held += outcomes
        self.unreadable.update(outcomes)
        before = self.unscorable.alarm
        self.unscorable.update(outcomes)
        if self.unscorable.alarm is not before:
            self._emit(NothingScorable(state.partition, self.unscorable.alarm))
        self._show(state, outcomes, replaying=False)
        self.ownership.record_fit_wait(owned, progressed=bool(outcomes))

    def _show(self, state: PartitionState, outcomes: Sequence[Outcome], *, replaying: bool) -> None:
        if outcomes:
            for observer in self.outcome_observers:
                observer.outcomes(state.partition, outcomes, replaying=replaying)
        if state.forgotten:
            self._emit(SensorsForgotten(state.partition, state.take_forgotten(), replaying))
        if state.failures:
            for failed in state.take_failures():
                self.summary.n_fit_failures += 1
                self._emit(FitFailure(state.partition, failed))

    def _at_the_end(self) -> bool:
        return self.source.exhausted and not self.ownership.waiting()

    # ------------------------------------------------------------------------------ recovery
    def _recover(self, error: ConnectorError) -> bool:
        self.summary.n_retries += 1
        self.to_rewind = True
        self.ownership.suspend_all()
        if self.stop.is_set():
            _log.warning("stopping without a last commit: %s", error)
            return False
        delay_s = self.retries.failed(error, self.clock())
        self._emit(Retrying(error, delay_s, self.retries.attempts))
        self.wait(delay_s)
        return True

    # ------------------------------------------------------------------------------- reporting
    def _emit(self, event: RunEvent) -> None:
        for observer in self.observers:
            observer.event(event)

    def _report(self) -> None:
        if self.on_progress is None:
            return
        held = [outcome for owned in self.ownership.owned.values() for outcome in owned.held]
        self.on_progress(
            Progress(
                self.summary.n_events + len(held),
                self.summary.n_invalid
                + sum(o.invalid is not None and not o.invalid.silent for o in held),
                self.clock() - self.began,
                len(held),
                self.ownership.replays(),
            )
        )


class Retries:
    """Counts failures in a row and says how long to wait after each.

    ``retry_first_s``, then twice as long each time, at most ``retry_longest_s``; no longer than
    ``retry_for_s`` since the first. :meth:`succeeded` begins again.
    """

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self.attempts = 0
        self._first_s = 0.0
        self._last_s = 0.0

    def failed(self, error: ConnectorError, now: float) -> float:
        self.attempts += 1
        if self.attempts == 1:
            self._first_s = now
        self._last_s = now
        settings = self._settings
        doubled_s = settings.retry_first_s * 2.0 ** min(self.attempts - 1, 60)
        delay_s = min(settings.retry_longest_s, doubled_s)
        if now + delay_s - self._first_s > settings.retry_for_s:
            raise ConnectorError(
                f"gave up after {self.attempts} attempts in {now - self._first_s:.0f} s: {error}"
            ) from error
        return delay_s

    def succeeded(self) -> None:
        self.attempts = 0

    def is_old(self, now: float) -> bool:
        """Whether the last failure is long past, so that the next one is the first again."""
        return self.attempts > 0 and now - self._last_s > self._settings.retry_longest_s


class UnreadableShare:
    """Watches the share of invalid records among the last so many."""

    def __init__(self, limit: float, window_events: int) -> None:
        self._limit = limit
        self._window: deque[Invalid | None] = deque(maxlen=window_events)
        self._window_events = window_events
        self._newest: Invalid | None = None

    def update(self, outcomes: Sequence[Outcome]) -> None:
        invalids = [outcome.invalid for outcome in outcomes]
        if invalids.count(None) == len(invalids):
            self._window.extend(invalids)
            return
        for invalid in invalids:
            failed = invalid is not None and not invalid.silent
            self._window.append(invalid if failed else None)
            self._newest = invalid if failed else self._newest

    def complaint(self, *, ended: bool = False) -> ConnectorError | None:
        """Return an error to raise if too many records could not be read. O(window)."""
        seen = len(self._window)
        if self._newest is None or not seen:
            return None
        unread = seen - self._window.count(None)
        judged_by = seen if ended and seen >= _FEW_READ else self._window_events
        if unread / judged_by <= self._limit:
            return None
        kinds = Counter(_kind(invalid.reason) for invalid in self._window if invalid)
        common = kinds.most_common(_KINDS_SHOWN)
        reasons = [f"{count} × {kind}" for kind, count in common]
        if others := unread - sum(count for _, count in common):
            reasons.append(f"{others} × other reasons")
        return ConnectorError(
            f"{unread / seen:.0%} of the last {seen} records could not be read (the limit is "
            f"{self._limit:.0%}): {', '.join(reasons)}. The newest is {self._newest.position}: "
            f"{self._newest.reason}. Compare the field mapping with the input; everything up to "
            "here is committed"
        )


def _kind(reason: str) -> str:
    kind = _DIGITS.sub(lambda match: match[1] or "…", reason.partition(", got ")[0])
    return kind if len(kind) <= _MAX_CHARS else f"{kind[: _MAX_CHARS - 1]}…"


class UnscorableStreak:
    """Watches for events in a row of which none could be scored, over all sensors."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        # what is wrong, from the hundredth event of a streak to its end
        self.alarm: Alarm | None = None
        self._length = 0
        self._newest: tuple[Record, Verdict] | None = None
        self._any_scorable = False

    def update(self, outcomes: Sequence[Outcome]) -> None:
        """Count outcomes in order. O(1) for a batch whose last event could be scored."""
        length, newest = 0, None
        for record, verdict, *_ in reversed(outcomes):
            if verdict is None:
                continue
            known = verdict.limited or verdict  # by its score alone
            if known.reason is not Reason.UNSCORABLE:
                self._length, self.alarm, self._any_scorable = 0, None, True
                break
            newest, length = newest or (record, verdict), length + 1
        self._length += length
        self._newest = newest or self._newest
        if self.alarm is None and self._length >= _LONG:
            self.alarm = self._alarm()

    def complaint(self) -> ConnectorError | None:
        """Return an error to raise at the end of an input of which nothing could be scored."""
        if self._any_scorable or self._length < _FEW_SCORED:
            return None
        return ConnectorError(
            f"nothing could be scored; fix input.channels, and judge this input again under "
            f"another pipeline name: {self._sentence()}"
        )

    def _alarm(self) -> Alarm:
        assert self._newest is not None
        _, verdict = self._newest
        return Alarm(
            kind=AlarmKind.NOTHING_SCORABLE,
            alternative=Alternative.MORE_REJECTS,
            stream_key=None,
            position=verdict.position,
            seq=verdict.seq,
            event_time_ms=verdict.event_time_ms,
            model_epoch=verdict.model_epoch,
            evidence=self._length,
            threshold=_LONG,
            unit="events",
            guarantee="a fact, not a test",
            message=self._sentence(),
        )

    def _sentence(self) -> str:
        assert self._newest is not None
        record, _ = self._newest
        lacking = getattr(self._decoder, "lacking", None)  # decoders of one's own need not know
        why = "" if lacking is None else f": in {record.position} {lacking(record)}"
        return f"the last {self._length} events could not be scored{why}"
