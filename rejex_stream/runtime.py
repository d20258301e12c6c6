"""The loop around the engine: everything that waits, writes, fails and tries again.

One turn of :func:`run`:

1. **Poll** the source for raw records.
2. **Take ownership changes.** Assigned: rebuild the partition's state as it was at its committed
   offset (:func:`~rejex_stream.lane.starting_point`) and seek. Revoked: drop the state, write
   nothing more for it.
3. **Process** the records of each partition in order: decode, engine, one outcome a record.
   Before the committed offset this is *silent replay*: state comes of it and nothing else.
4. **Show** the outcomes to the observers and hold them.
   Meanwhile, when it is time:
5. **Commit**: write the outcomes held before this turn, then make them durable together with the
   offsets to go on from, all or nothing.
6. **Snapshot** the partitions that are due, each at a committed offset. Both are the work of
   :class:`~rejex_stream.durability.Durability`; they end before the next poll.

When the edge fails for the moment (a retriable :class:`ConnectorError` anywhere above), what was
not committed is aborted and the source is asked what *is* durable: a commit that timed out may
have happened. From there the run goes on; since all state is a function of the input, nothing is
lost or doubled. A crash at any point is the same with a new process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from threadpoolctl import threadpool_limits

from rejex_stream.collector import seldom_collecting
from rejex_stream.context import ReviewContext
from rejex_stream.decode import Decoder
from rejex_stream.durability import Durability
from rejex_stream.errors import ConnectorError
from rejex_stream.executors import InlineExecutor
from rejex_stream.lane import Lane, LaneEngine, LaneMonitor
from rejex_stream.ownership import OwnedLane, Ownership
from rejex_stream.patience import Patience
from rejex_stream.progress import (
    FitFailure,
    LaneLive,
    Progress,
    Retrying,
    RunEvent,
    RunObserver,
    RunSummary,
)
from rejex_stream.protocols import FitExecutor, Sink, SnapshotStore, Source
from rejex_stream.settings import RunSettings
from rejex_stream.threads import quick_switching
from rejex_stream.types import Outcome, Partition, Record
from rejex_stream.validity import ValidityWatch

__all__ = ["RunSettings", "run"]

_log = logging.getLogger(__name__)


def run(
    source: Source,
    sink: Sink,
    store: SnapshotStore | None,
    make_engine: Callable[[Partition, FitExecutor], LaneEngine],
    decoder: Decoder,
    *,
    settings: RunSettings | None = None,
    make_monitor: Callable[[Partition], LaneMonitor] | None = None,
    observers: Sequence[RunObserver] = (),
    on_progress: Callable[[Progress], None] | None = None,
    executor: FitExecutor | None = None,
    stop: threading.Event | None = None,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] | None = None,
) -> RunSummary:
    """Read, judge and write until the input ends or `stop` is set; closes source and sink.

    Parameters
    ----------
    source, sink, store
        The edges; without a store, state can only be rebuilt from the input's first record.
    make_engine
        Makes a fresh engine for a partition; its fits go to the executor it is given.
    decoder
        Bytes to readings.
    settings
        How often, how much, how long.
    make_monitor
        Makes a fresh monitor for a partition; its state travels with the partition.
    observers
        See every outcome and event.
    on_progress
        Called every ``settings.progress_interval_s``, and once at the end.
    executor
        Where fits run; the caller closes it. Default: in the loop itself.
    stop
        Set it (from a signal handler, say) to finish the batch, commit, snapshot and return.
    clock, wait
        Monotonic seconds; how to wait for so many seconds (default: until `stop`).

    Raises
    ------
    CheckpointError
        If a partition's state cannot be rebuilt.
    ConnectorError
        If the edge fails for good, longer than ``settings.retry_for_s``, or if more of the input
        than ``settings.invalid_limit`` cannot be read.

    Examples
    --------
    >>> from rejex_stream.decode import JsonDecoder
    >>> from rejex_stream.detectors import make_detector
    >>> from rejex_stream.engine import Engine, EngineSpec
    >>> from rejex_stream.features import FeatureSpec
    >>> from rejex_stream.mapping import FieldMapping
    >>> from rejex_stream.policy import RejectionPolicy
    >>> from rejex_stream.testing import ListSink, ListSource, MemorySnapshotStore
    >>> spec = EngineSpec(
    ...     make_detector("HalfSpaceTrees"), FeatureSpec(("flow",)),
    ...     RejectionPolicy(0.1, tolerance=4), window=100)
    >>> lines = [b'{"t": %d, "flow": %d}' % (i, i % 17) for i in range(1000)]
    >>> sink = ListSink()
    >>> summary = run(
    ...     ListSource(lines), sink, MemorySnapshotStore(),
    ...     lambda partition, fits: Engine(spec, fits),
    ...     JsonDecoder(FieldMapping(["flow"], fixed_sensor="meter", time="t")))
    >>> summary.n_events, len(sink.outcomes), sink.offsets
    (1000, 1000, {Partition(topic='input', partition=0): 1000})
    """
    stop = stop or threading.Event()
    loop = _Loop(
        source=source,
        sink=sink,
        store=store,
        make_engine=make_engine,
        make_monitor=make_monitor,
        decoder=decoder,
        settings=settings or RunSettings(),
        observers=observers,
        on_progress=on_progress,
        executor=executor or InlineExecutor(),
        stop=stop,
        clock=clock,
        wait=wait or stop.wait,
    )
    with ExitStack() as exits:
        exits.callback(source.close)
        exits.callback(sink.close)  # first, while the source still answers for its offsets
        exits.callback(loop.ours.close)
        exits.callback(loop.durability.close)
        # The last bit of a score may depend on the number of BLAS threads.
        exits.enter_context(threadpool_limits(limits=1))
        exits.enter_context(seldom_collecting())
        exits.enter_context(quick_switching())
        return loop.run()


@dataclass(slots=True, kw_only=True)
class _Loop:
    source: Source
    sink: Sink
    store: SnapshotStore | None
    make_engine: Callable[[Partition, FitExecutor], LaneEngine]
    make_monitor: Callable[[Partition], LaneMonitor] | None
    decoder: Decoder
    settings: RunSettings
    observers: Sequence[RunObserver]
    on_progress: Callable[[Progress], None] | None
    executor: FitExecutor
    stop: threading.Event
    clock: Callable[[], float]
    wait: Callable[[float], object]

    ours: Ownership = field(init=False)
    durability: Durability = field(init=False)
    summary: RunSummary = field(default_factory=RunSummary)
    validity: ValidityWatch = field(init=False)
    patience: Patience = field(init=False)
    max_records: int = 1
    began: float = 0.0
    progress_at: float = 0.0
    to_rewind: bool = False

    def __post_init__(self) -> None:
        self.patience = Patience(self.settings)
        self.validity = ValidityWatch(
            self.settings.invalid_limit, self.settings.invalid_window_events
        )
        self.ours = Ownership(
            self.source,
            self.store,
            self._make_lane,
            self.executor,
            restart_if_lost=self.settings.lost_state == "restart",
            summary=self.summary,
            tell=self._tell,
            clock=self.clock,
        )
        self.durability = Durability(
            self.ours,
            self.sink,
            self.store,
            self.settings,
            summary=self.summary,
            tell=self._tell,
            clock=self.clock,
        )

    def _make_lane(self, partition: Partition, fits: FitExecutor) -> Lane:
        settings = self.settings
        return Lane(
            partition,
            decoder=self.decoder,
            engine=self.make_engine(partition, fits),
            context=ReviewContext(
                self.decoder.channels,
                points=settings.review_context_events,
                reasons=settings.review_reasons,
                audit_rate=settings.audit_rate,
            ),
            monitor=self.make_monitor(partition) if self.make_monitor else None,
        )

    # ------------------------------------------------------------------------------ the loop
    def run(self) -> RunSummary:
        self.began = self.progress_at = self.clock()
        self.max_records = min(100, self.settings.max_poll_records)
        going = True
        while going:
            try:
                going = self._turn()
            except ConnectorError as error:
                if not error.retriable:
                    raise
                going = self._recover(error)
        self.summary.seconds = self.clock() - self.began
        self.summary.stopped = self.to_rewind or not self.source.exhausted
        self._report()
        return self.summary

    def _turn(self) -> bool:
        if self.to_rewind:
            self.sink.abort()
            self.source.rewind()
            self.to_rewind = False
        try:
            records = self.source.poll(self.max_records, self.durability.poll_wait_s())
        except ConnectorError as error:
            if not error.retriable:  # the input broke off; what came before it counts
                self._keep(everything=True)
            raise
        changed = self.ours.take_changes()
        if changed:  # what was polled for them belongs to the time before
            records = [record for record in records if record.position[:2] not in changed]
        self._keep(while_judging=records)
        complaint = self.validity.complaint()
        done = self.stop.is_set() or self.source.exhausted or complaint is not None
        if done:
            self._keep(everything=True)
        now = self.clock()
        if self.patience.is_old(now) and not self.ours.n_held():
            self.patience.succeeded()
            self.ours.forget_parked()
        if now - self.progress_at >= self.settings.progress_interval_s:
            self.progress_at = now
            self._report()
        if complaint is not None:
            raise complaint
        return not done

    def _keep(self, *, while_judging: Sequence[Record] = (), everything: bool = False) -> None:
        """Make durable what is due, while the records polled last are judged."""
        self.durability.begin(everything=everything)
        try:
            self._process(while_judging)
        finally:
            committed = self.durability.finish()
        if committed:
            self.patience.succeeded()
            self.ours.forget_parked()

    # ----------------------------------------------------------------------------- processing
    def _process(self, records: Sequence[Record]) -> None:
        if not records:
            return
        by_partition: dict[tuple[str, int], list[Record]] = {}
        for record in records:
            by_partition.setdefault(record.position[:2], []).append(record)
        begun = self.clock()
        for key, batch in by_partition.items():
            owned = self.ours.owned.get(Partition(*key))
            if owned is not None:
                self._advance(owned, batch)
        took = self.clock() - begun
        # Batches are cut to a length in time: a stop, a commit or a rebalance need not wait long.
        # By batch invariance that changes no verdict.
        if took > self.settings.batch_s:
            self.max_records = max(1, self.max_records // 2)
        elif took < self.settings.batch_s / 4 and len(records) >= self.max_records:
            self.max_records = min(2 * self.max_records, self.settings.max_poll_records)

    def _advance(self, owned: OwnedLane, batch: list[Record]) -> None:
        lane = owned.lane
        if owned.replaying:
            silent = [record for record in batch if record.position.offset < owned.live_from]
            outcomes = lane.process(silent, replaying=True)
            self.summary.n_replayed += len(outcomes)
            self._show(lane, outcomes, replaying=True)
            if len(silent) == len(batch) and owned.replaying:
                return
            events, at = owned.replay_begun
            self._tell(LaneLive(lane.partition, lane.n_events - events, self.clock() - at))
            batch = batch[len(silent) :]
        outcomes = lane.process(batch)
        owned.held += outcomes
        self.validity.see(outcomes)
        self._show(lane, outcomes, replaying=False)

    def _show(self, lane: Lane, outcomes: Sequence[Outcome], *, replaying: bool) -> None:
        if outcomes:
            for observer in self.observers:
                observer.outcomes(lane.partition, outcomes, replaying=replaying)
        for failed in lane.take_failures():
            self.summary.n_fit_failures += 1
            self._tell(FitFailure(lane.partition, failed))

    # ------------------------------------------------------------------------------ recovery
    def _recover(self, error: ConnectorError) -> bool:
        """Set all lanes aside, wait, and have the next turn begin from what is durable."""
        self.summary.n_retries += 1
        self.to_rewind = True
        self.ours.park()
        if self.stop.is_set():
            _log.warning("stopping without a last commit: %s", error)
            return False
        delay_s = self.patience.failed(error, self.clock())
        self._tell(Retrying(error, delay_s, self.patience.attempts))
        self.wait(delay_s)
        return True

    # --------------------------------------------------------------------------------- telling
    def _tell(self, event: RunEvent) -> None:
        for observer in self.observers:
            observer.event(event)

    def _report(self) -> None:
        if self.on_progress is None:
            return
        held = self.ours.held()
        self.on_progress(
            Progress(
                self.summary.n_events + len(held),
                self.summary.n_invalid + sum(outcome.invalid is not None for outcome in held),
                self.clock() - self.began,
                len(held),
                self.ours.replays(),
            )
        )
