"""Which partitions are ours, how their state is rebuilt, and how outcomes become durable.

Open :class:`Commits` first: a commit from `begin` to `finish`, beside the loop that judges.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from rejex_stream.errors import AnotherLogError, CheckpointError
from rejex_stream.protocols import Assigned, FitExecutor, Revoked, Sink, SnapshotStore, Source
from rejex_stream.run import run_events
from rejex_stream.run.executors import ScopedExecutor
from rejex_stream.run.partition import PartitionState, Piece
from rejex_stream.run.run_settings import RunSettings
from rejex_stream.types import Incident, Outcome, Partition, last_offset

_ANY_OFFSET = 2**63 - 1
_log = logging.getLogger(__name__)
_LONGEST_PAUSE_S = 0.05
"""Between two looks whether an awaited fit is done; other partitions wait as long for a poll."""
VIEW_S = 0.02
"""Seconds of each turn of the loop in which streams are viewed for a snapshot."""


class Start(NamedTuple):
    """Where a partition begins to read, from what state, and where its outcomes begin to count."""

    offset: int
    parts: Mapping[str, bytes] | None
    live_from: int
    is_new_log: bool = False
    """Whether the log is another one, so that no journal of before counts."""


def starting_point(
    assigned: Assigned, store: SnapshotStore | None, *, restart_if_lost: bool = False
) -> Start:
    """Decide how to rebuild a partition's state as it was at its committed offset.

    1. Nothing was ever committed, and there is no snapshot: begin at the earliest record. With a
       snapshot the offsets expired, or were reset: refuse; or, with `restart_if_lost`, go on from
       it. An input that ends before it was recreated: 4.
    2. There is a snapshot at or before the committed offset, and every record since can still be
       read: restore it and replay from there.
    3. The input still has its first record: replay all of it.
    4. The snapshot is of a log that is gone, and this one was recreated: refuse; or, with
       `restart_if_lost`, begin at its earliest record, whatever is committed.
    5. Otherwise the state cannot be rebuilt, and the user has to choose: refuse; or, with
       `restart_if_lost`, begin at the earliest record, replaying silently what is left before the
       committed offset.

    In cases 1 to 3, where an output holds verdicts beyond what is committed, the state that goes
    with them is elsewhere: refuse, unless `restart_if_lost`.
    """
    try:
        return _starting_point(assigned, store, restart_if_lost=restart_if_lost)
    except AnotherLogError as error:
        if restart_if_lost:
            return Start(assigned.earliest, None, assigned.earliest, is_new_log=True)
        raise CheckpointError(
            f"{assigned.partition}: {error}. Drop the state (`rejex-stream state "
            "drop --all`) to begin at its first record, or allow that with state.lost_state = "
            '"restart" (models warm up again). A new pipeline.version keeps its verdicts apart '
            "from those of the log before: their ids name offsets"
        ) from None


def _starting_point(
    assigned: Assigned, store: SnapshotStore | None, *, restart_if_lost: bool
) -> Start:
    partition, committed, earliest, end = assigned[:4]
    at_earliest = Start(earliest, None, max(earliest, committed or 0))
    if committed is None:
        stray = store.load(partition, _ANY_OFFSET) if store is not None else None
        if stray is None or stray[0] <= earliest:
            _refuse_to_write_again(assigned, restart_if_lost=restart_if_lost)
            return at_earliest
        if end is not None and end < stray[0]:
            raise AnotherLogError(
                f"its state goes to offset {stray[0]} and the log ends at {end}: it was recreated"
            )
        if restart_if_lost:
            # Everything before a snapshot's offset has been output.
            return Start(stray[0], stray[1], stray[0])
        problem = (
            f"has a snapshot at offset {stray[0]} but no committed offset: it expired or was reset"
        )
        fix = (
            f"commit offset {stray[0]} to go on from the snapshot, or drop it (`rejex-stream state "
            "drop`) to begin at the earliest record"
        )
    elif committed < earliest:
        if restart_if_lost:
            return at_earliest
        problem = (
            f"was processed up to offset {committed}, but its earliest record is {earliest}: "
            f"{earliest - committed} record(s) expired unread"
        )
        fix = "lengthen the retention of the input"
    else:
        snapshot = store.load(partition, committed) if store is not None else None
        _refuse_to_write_again(assigned, restart_if_lost=restart_if_lost)
        if snapshot is not None and (snapshot[0] >= earliest or snapshot[0] == committed):
            return Start(snapshot[0], snapshot[1], committed)
        if earliest == 0 and snapshot is None:
            return Start(0, None, committed)
        if restart_if_lost:
            return at_earliest
        what = "no snapshot"
        if snapshot is not None:
            what = f"its newest snapshot at offset {snapshot[0]}"
        problem = (
            f"is committed up to offset {committed}, with {what} and the earliest record at "
            f"{earliest}: the state in between cannot be rebuilt"
        )
        fix = "bring a snapshot back (`rejex-stream state import`)"
    raise CheckpointError(
        f"{partition} {problem}. Either {fix}, or allow a restart without the old "
        'state (state.lost_state = "restart"; models warm up again).'
    )


def _refuse_to_write_again(assigned: Assigned, *, restart_if_lost: bool) -> None:
    partition, committed, earliest, _, written = assigned
    first = earliest if committed is None else committed
    if written <= first:
        return
    stands = "nothing is committed" if committed is None else f"it is committed up to {committed}"
    problem = (
        f"{partition}: the output holds this pipeline's verdicts up to offset "
        f"{written - 1}, and here {stands}: {written - first} record(s) from offset {first} on "
        "would get a second verdict under the same id"
    )
    if restart_if_lost:
        _log.warning("%s; state.lost_state allows it", problem)
        return
    raise CheckpointError(
        f"{problem}. If kafka.group or [state] was changed, bring the state along: `rejex-stream "
        "state export OLD moved.state`, then `rejex-stream state import NEW moved.state`, with the "
        "config as it was and as it is. To judge these records again, give a new pipeline.version: "
        "it is a part of each id"
    )


@dataclass(slots=True)
class OwnedPartition:
    """A partition of ours: its state, and what of it is durable."""

    state: PartitionState
    fits: ScopedExecutor  # its share of the executor
    committed: int  # outcomes before this offset are durable
    live_from: int  # those before this one were when we took over: replay is silent up to here
    begun_at: int
    replay_begun: tuple[int, float]  # event count and clock
    snapshot_at: tuple[int, float]  # of the last one: event count and clock
    held: list[Outcome] = field(default_factory=list)  # since `committed`, in order
    waits_since: float | None = None  # clock when it met a fit that it has to wait for
    paused: bool = False  # whether the source holds its records back
    durable_journal: bytes | None = None  # as far as it is known
    saving: tuple[int, float] = (0, 0.0)  # bytes and seconds of the snapshot under way

    @property
    def replaying(self) -> bool:
        return self.state.next_offset < self.live_from

    @property
    def has_commands(self) -> bool:
        journal = self.state.journal  # asked at every turn, and mostly there are none
        return bool(journal.unassigned) and journal.can_assign and not self.replaying

    def can_continue_from(self, committed: int | None) -> bool:
        """Whether this state and the held outcomes continue from there."""
        committed = self.live_from if committed is None else committed
        if self.replaying:
            return committed == self.live_from
        return self.committed <= committed <= self.state.next_offset

    def drop_durable(self, committed: int | None) -> list[Outcome]:
        """Drop the held outcomes that turned out to be durable, and return them."""
        self.committed = self.live_from if committed is None else committed
        held, self.held = self.held, []
        durable: list[Outcome] = []
        for outcome in held:
            is_durable = last_offset(outcome.record) < self.committed
            (durable if is_durable else self.held).append(outcome)
        return durable


@dataclass(slots=True)
class Ownership:
    """Rebuilds the state of every partition the source assigns, and drops it when it is revoked."""

    source: Source
    store: SnapshotStore | None
    make_state: Callable[[Partition, FitExecutor], PartitionState]
    executor: FitExecutor
    restart_if_lost: bool  # whether a state that cannot be rebuilt is given up, not refused
    summary: run_events.RunSummary
    emit: Callable[[run_events.RunEvent], None]
    clock: Callable[[], float]
    owned: dict[Partition, OwnedPartition] = field(default_factory=dict)
    suspended: dict[Partition, OwnedPartition] = field(default_factory=dict)

    def apply(self, changes: Sequence[Assigned | Revoked]) -> set[Partition]:
        """Take over and give up partitions; returns those that changed."""
        dropped: set[Partition] = set()
        for change in changes:
            if change.partition in self.owned:
                dropped.add(change.partition)
                self._suspend(change.partition)
            if not isinstance(change, Revoked):
                self._open(change)
        for partition in dropped & self.suspended.keys():
            self._dispose(self.suspended.pop(partition))
        return {change.partition for change in changes}

    def go_live(self, owned: OwnedPartition) -> None:
        """Judge by the config of now, once replayed; emit what changed and what is undelivered."""
        changed = owned.state.apply_config()
        if changed is not None:
            # The next commit is the first by it: a snapshot remembers from where it holds.
            owned.snapshot_at = (owned.state.n_events, -math.inf)
            partition, offset = owned.state.partition, owned.live_from
            self.emit(run_events.DecisionChanged(partition, offset, changed.was, changed.now))

        undelivered = [
            change
            for change in owned.state.journal.outbox
            if change.position.offset < owned.live_from  # else its commit did not come to be
        ]
        self.emit(run_events.IncidentsDurable(owned.state.partition, undelivered, again=True))

    def waiting(self) -> list[OwnedPartition]:
        return [owned for owned in self.owned.values() if owned.state.ahead]

    def apply_backpressure(self, limit: int) -> None:
        """Pause the partitions of which more than `limit` records wait for a fit.

        One is resumed at half of that: what the source has read ahead is lost at every pause.
        """
        for partition, owned in self.owned.items():
            n_ahead = len(owned.state.ahead)
            if not owned.paused and n_ahead >= limit:
                owned.paused = True
                self.source.pause(partition)
            elif owned.paused and n_ahead <= limit // 2:
                owned.paused = False
                self.source.seek(partition, owned.state.taken_next)

    def record_fit_wait(self, owned: OwnedPartition, *, progressed: bool) -> None:
        """Remember since when a partition waits for a fit; count the wait when it is over."""
        if progressed and owned.waits_since is not None:
            waited = self.clock() - owned.waits_since
            self.summary.fit_waits += 1
            self.summary.fit_wait_s += waited
            self.summary.longest_fit_wait_s = max(self.summary.longest_fit_wait_s, waited)
            owned.waits_since = None
        if owned.state.ahead and owned.waits_since is None and not owned.state.can_progress:
            owned.waits_since = self.clock()

    def n_held(self) -> int:
        return sum(len(owned.held) for owned in self.owned.values())

    def replays(self) -> dict[Partition, run_events.Replay]:
        return {
            partition: run_events.Replay(owned.begun_at, owned.state.next_offset, owned.live_from)
            for partition, owned in self.owned.items()
            if owned.replaying
        }

    def suspend_all(self) -> None:
        for partition in list(self.owned):
            self._suspend(partition)

    def drop_suspended(self) -> None:
        for owned in self.suspended.values():
            self._dispose(owned)
        self.suspended.clear()

    def close(self) -> None:
        self.suspend_all()
        self.drop_suspended()

    def _open(self, assigned: Assigned) -> None:
        partition, committed = assigned[:2]
        suspended = self.suspended.get(partition)
        if suspended is not None and self._can_continue(suspended, committed):
            # State is a function of the input: whoever committed, this is the state.
            self.source.seek(partition, suspended.state.taken_next)
            suspended.paused = False
            suspended.durable_journal = None  # written again: others may have changed it
            durable = suspended.drop_durable(committed)
            self.summary.add(durable)
            if changes := _changes_in(durable):
                self.emit(run_events.IncidentsDurable(partition, changes))
            self.owned[partition] = self.suspended.pop(partition)
            return
        if suspended is not None:
            self._dispose(self.suspended.pop(partition))
        start = starting_point(assigned, self.store, restart_if_lost=self.restart_if_lost)
        fits = ScopedExecutor(self.executor, partition)
        state = self.make_state(partition, fits)
        journal = None if start.is_new_log else self._durable_journal(state)
        if start.is_new_log:
            _log.warning(
                "%s was recreated: it begins at its first record, %d, and nothing of the state "
                "of the log before is used",
                partition,
                start.offset,
            )
        state.load_journal(journal, decided_until=start.live_from)
        state.journal.rewind_to(start.offset, allow_gaps=self.restart_if_lost)
        environment_changes: tuple[str, ...] = ()
        if start.parts is not None:
            try:
                environment_changes = state.restore(start.parts)
            except CheckpointError as error:
                where = f"{partition}, from its snapshot at offset {start.offset}"
                raise CheckpointError(f"{where}: {error}") from error
        else:
            state.next_offset = start.offset
            if self.store is not None:
                # A later restore must know where this state began, whatever is trimmed by then.
                if self.store.save(partition, state.snapshot().encoded()):
                    state.parts.commit()
                else:
                    state.parts.abandon()
        now = (state.n_events, self.clock())
        self.source.seek(partition, start.offset)
        self.owned[partition] = OwnedPartition(
            state,
            fits,
            committed=start.live_from,
            live_from=start.live_from,
            begun_at=start.offset,
            replay_begun=now,
            snapshot_at=now,
            durable_journal=journal,
        )
        snapshot_offset = None if start.parts is None else start.offset
        self.emit(
            run_events.PartitionOpened(partition, snapshot_offset, start.offset, start.live_from)
        )
        if environment_changes:
            self.emit(run_events.EnvironmentChanged(partition, environment_changes))
        if not self.owned[partition].replaying:
            self.go_live(self.owned[partition])

    def _suspend(self, partition: Partition) -> None:
        owned = self.suspended[partition] = self.owned.pop(partition)
        owned.state.parts.abandon()

    def _can_continue(self, suspended: OwnedPartition, committed: int | None) -> bool:
        if not suspended.can_continue_from(committed):
            return False
        if committed is None or committed == suspended.committed:
            return True
        # Another worker may have applied other commands: then its outcomes are not ours.
        return self._durable_journal(suspended.state) == suspended.state.journal_bytes

    def _durable_journal(self, state: PartitionState) -> bytes | None:
        if self.store is None or state.journal_bytes is None:
            return None
        return self.store.load_journal(state.partition)

    def _dispose(self, owned: OwnedPartition) -> None:
        owned.fits.cancel_all()
        self.emit(run_events.PartitionClosed(owned.state.partition))


class _Saved(NamedTuple):
    is_kept: bool
    n_bytes: int
    seconds: float


@dataclass(slots=True)
class CommitBatch:
    """What one commit makes durable, and the pieces of snapshots that follow it."""

    begun: float
    everything: bool
    outcomes: dict[Partition, list[Outcome]] = field(default_factory=dict)
    offsets: dict[Partition, int] = field(default_factory=dict)
    incidents: dict[Partition, Sequence[Incident]] = field(default_factory=dict)
    journals: dict[Partition, bytes] = field(default_factory=dict)  # those that have changed
    pieces: dict[Partition, Piece] = field(default_factory=dict)
    committed: float | None = None  # clock when outcomes and offsets were durable
    saved: dict[Partition, _Saved] = field(default_factory=dict)


@dataclass(slots=True)
class Commits:
    """Makes outcomes durable, and then snapshots of the state: one commit at a time.

    :meth:`begin`, on the loop's thread, writes the held outcomes to the sink, assigns offsets to
    commands and records the outbox of incidents; of the partitions whose snapshot is due it views
    the streams that have changed, for :data:`VIEW_S`. A thread of its own then commits journals,
    outcomes and offsets, all or nothing, and saves the views, each at an offset that is committed
    by now: a snapshot is there once its last piece is saved. :meth:`finish`, on the loop's thread
    again, drops the outcomes that are durable and emits what happened.

    Between the two the loop judges records and does nothing else: source, sink and store belong to
    the other thread, so ownership cannot change under a commit. Outcomes that come meanwhile are
    held behind those under way. If the commit fails, no outcome is dropped.
    """

    ownership: Ownership
    sink: Sink
    store: SnapshotStore | None  # without it there are no snapshots
    settings: RunSettings
    outbox: run_events.Outbox | None = None  # notifications to deliver; ``None``: there are none
    _thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(max_workers=1, thread_name_prefix="commit")
    )
    _under_way: tuple[CommitBatch, Future[None]] | None = None
    _committed_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._committed_at = self.ownership.clock()

    def close(self) -> None:
        self._thread.shutdown()

    # ------------------------------------------------------------------------------ what is due
    def poll_wait_s(self, wait: Callable[[float], object]) -> float:
        """Return how long a poll may wait: no longer than the outcomes that are held.

        Where partitions wait for a fit this waits a little itself, a share of what they have
        waited by now: a quick fit is not delayed, and a slow one does not cost the processor.
        """
        self.ownership.apply_backpressure(self.settings.max_poll_records)
        since = [owned.waits_since or 0.0 for owned in self.ownership.waiting()]
        if since:
            wait(min(_LONGEST_PAUSE_S, (self.ownership.clock() - max(since)) / 4))
            return 0.0
        if not self.ownership.n_held():
            return self.settings.poll_timeout_s
        remaining_s = self._committed_at + self.settings.commit_interval_s - self.ownership.clock()
        return min(max(remaining_s, 0.0), self.settings.poll_timeout_s)

    def _commit_is_due(self, now: float) -> bool:
        interval_s, n_held = self.settings.commit_interval_s, self.ownership.n_held()
        partitions = self.ownership.owned.values()
        if not n_held:
            # The interval begins with the first outcome; a command need not wait for it.
            has_changes = any(o.has_commands or self._outbox_shrank(o) for o in partitions)
            if not has_changes:
                self._committed_at = max(self._committed_at, now - interval_s)
            return has_changes
        waited = now - self._committed_at >= interval_s
        return waited or n_held >= self.settings.commit_every_events

    def _outbox_shrank(self, owned: OwnedPartition) -> bool:
        recorded = owned.state.journal.outbox
        if not recorded or owned.replaying or self.outbox is None:
            return False
        return len(self.outbox.pending(owned.state.partition)) < len(recorded)

    def _snapshot_is_due(self, owned: OwnedPartition, now: float) -> bool:
        events, at = owned.snapshot_at
        many = owned.state.n_events - events >= self.settings.snapshot_every_events
        waits = owned.state.journal.awaits_snapshot
        return waits or many or now - at >= self.settings.snapshot_interval_s

    # ---------------------------------------------------------------------------------- commit
    def begin(self, *, everything: bool = False) -> None:
        """Begin to commit what is due; with `everything` all that is not durable yet.

        O(outcomes), and :data:`VIEW_S` for snapshots; waits for no edge.
        """
        now = self.ownership.clock()
        is_due = self._commit_is_due(now) or everything
        batch = CommitBatch(now, everything)
        for partition, owned in self.ownership.owned.items():
            if is_due:
                self._write(batch, partition, owned)
            elif owned.held and owned.state.parts.begun is None:
                continue  # a snapshot begins where outcomes are durable
            if self._snapshot_goes_on(owned, now, everything=everything):
                batch.pieces[partition] = owned.state.parts.next_piece(VIEW_S)
        if batch.offsets or batch.pieces:
            self._under_way = batch, self._thread.submit(self._make_durable, batch)

    def _write(self, batch: CommitBatch, partition: Partition, owned: OwnedPartition) -> None:
        state, journal = owned.state, owned.state.journal
        has_commands = owned.has_commands
        if has_commands:
            journal.assign_offset(state.next_offset)
        elif not owned.held and not self._outbox_shrank(owned):
            return
        if state.next_offset < owned.committed:
            raise CheckpointError(
                f"{partition} is committed up to offset {owned.committed}, and its state stands at "
                f"{state.next_offset}: committing that would have records judged twice. Nothing of "
                "it was written; start the run again, it begins at what is committed."
            )
        if changes := _changes_in(owned.held):
            batch.incidents[partition] = changes
        outbox = () if self.outbox is None else self.outbox.pending(partition, changes)
        if outbox or journal.outbox:
            journal.set_outbox(outbox)
        self.sink.write(owned.held)
        batch.outcomes[partition] = list(owned.held)
        batch.offsets[partition] = state.next_offset
        encoded = state.journal_bytes
        if encoded is not None and encoded is not owned.durable_journal:
            batch.journals[partition] = encoded

    def _snapshot_goes_on(self, owned: OwnedPartition, now: float, *, everything: bool) -> bool:
        if self.store is None:
            return False
        state = owned.state
        if state.parts.begun is not None and everything:
            state.parts.abandon()  # one that is older than what is durable
        if state.parts.begun is None:
            if state.replies or state.n_events <= owned.snapshot_at[0]:
                return False
            if not everything and not self._snapshot_is_due(owned, now):
                return False
            state.begin_snapshot()
            owned.saving = (0, 0.0)
        return True

    def _make_durable(self, batch: CommitBatch) -> None:
        if batch.offsets:
            if self.store is not None:
                for partition, journal in batch.journals.items():
                    self.store.save_journal(partition, journal)
            self.sink.commit(batch.offsets)
            batch.committed = self.ownership.clock()
        for partition in batch.pieces:
            self._save(batch, partition)

    def _save(self, batch: CommitBatch, partition: Partition) -> None:
        assert self.store is not None
        begun, n_bytes, is_kept = self.ownership.clock(), 0, True
        views = batch.pieces[partition]
        while is_kept:
            piece = views.encoded()
            is_kept = self.store.save(partition, piece)
            n_bytes += sum(len(body) for body in piece.parts.values() if body is not None)
            if not batch.everything or views.last:
                break
            # Nothing is judged meanwhile.
            views = self.ownership.owned[partition].state.parts.next_piece(VIEW_S)
        batch.pieces[partition] = views
        batch.saved[partition] = _Saved(is_kept, n_bytes, self.ownership.clock() - begun)

    def finish(self) -> bool:
        """Wait for what was begun; returns whether outcomes became durable."""
        if self._under_way is None:
            return False
        batch, writing = self._under_way
        self._under_way = None
        try:
            writing.result()
        finally:
            if batch.committed is not None:
                self._finish_commit(batch, batch.committed)
            for partition, piece in batch.pieces.items():
                self._finish_piece(partition, piece, batch.saved.get(partition))
        return batch.committed is not None

    def _finish_commit(self, batch: CommitBatch, committed: float) -> None:
        ownership = self.ownership
        self._committed_at = committed
        states = {partition: owned.state for partition, owned in ownership.owned.items()}
        waiting = {p: len(state.journal.unassigned) for p, state in states.items()}
        clocks = {p: state.registry.n_untrusted for p, state in states.items()}
        for partition, outcomes in batch.outcomes.items():
            owned = ownership.owned[partition]
            owned.committed = batch.offsets[partition]
            owned.durable_journal = batch.journals.get(partition, owned.durable_journal)
            del owned.held[: len(outcomes)]
            ownership.summary.add(outcomes)
        ownership.summary.n_commits += 1
        n_events = sum(map(len, batch.outcomes.values()))
        ownership.emit(
            run_events.Committed(n_events, committed - batch.begun, batch.offsets, waiting, clocks)
        )
        for partition, changes in batch.incidents.items():
            ownership.emit(run_events.IncidentsDurable(partition, changes))

    def _finish_piece(self, partition: Partition, piece: Piece, saved: _Saved | None) -> None:
        owned = self.ownership.owned[partition]
        if saved is None or not saved.is_kept:
            owned.state.parts.abandon(base_is_gone=saved is not None)
            return
        n_bytes, seconds = owned.saving
        owned.saving = n_bytes, seconds = n_bytes + saved.n_bytes, seconds + saved.seconds
        if piece.last:
            owned.state.parts.commit()
            owned.state.journal.snapshot_saved(piece.next_offset)
            owned.snapshot_at = (piece.n_events, self.ownership.clock())
            self.ownership.summary.n_snapshots += 1
            self.ownership.emit(
                run_events.SnapshotSaved(partition, piece.next_offset, n_bytes, seconds)
            )


def _changes_in(outcomes: Iterable[Outcome]) -> list[Incident]:
    return [change for outcome in outcomes for change in outcome.incidents]
