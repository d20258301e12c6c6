"""Which partitions are ours, how their state is rebuilt, and how what they hold becomes durable.

Open :class:`Commits` first: one commit, step by step, beside the loop that judges.
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
from rejex_stream.run.executors import ScopedExecutor
from rejex_stream.run.partition import PartitionState, Piece, partition_name
from rejex_stream.run.run_events import (
    Committed,
    DecisionChanged,
    EnvironmentChanged,
    IncidentsDurable,
    Outbox,
    PartitionClosed,
    PartitionOpened,
    Replay,
    RunEvent,
    RunSummary,
    SnapshotSaved,
)
from rejex_stream.run.run_settings import RunSettings
from rejex_stream.types import Incident, Outcome, Partition, reached

__all__ = ["Commits", "OwnedPartition", "Ownership", "Start", "starting_point"]

_ANY_OFFSET = 2**63 - 1
_log = logging.getLogger(__name__)
_LONGEST_PAUSE_S = 0.05
"""Between two looks whether an awaited fit is done; other partitions wait as long for a poll."""
VIEW_S = 0.02
"""For so long in each turn streams are viewed for a snapshot."""


class Start(NamedTuple):
    """Where a partition begins to read, from what state, and where its outcomes begin to count."""

    offset: int
    parts: Mapping[str, bytes] | None
    live_from: int
    anew: bool = False
    """Whether nothing that was decided before counts: the log is another one."""


def starting_point(
    assigned: Assigned, store: SnapshotStore | None, *, restart_if_lost: bool = False
) -> Start:
    """Decide how to rebuild a partition's state as it was at its committed offset.

    1. Nothing was ever committed, and there is no snapshot: begin anew at the earliest record.
       With a snapshot the offsets expired, or were reset: refuse; or, with `restart_if_lost`, go
       on from it. An input that ends before it was made anew: 4.
       In this and in any other case outputs may hold verdicts beyond what is committed: the state
       that goes with them is elsewhere. Refuse, unless `restart_if_lost`.
    2. There is a snapshot at or before the committed offset, and every record since can still be
       read: restore it and replay from there.
    3. The input still has its first record: replay all of it.
    4. The snapshot is of a log that is gone, and this one was made anew: refuse; or, with
       `restart_if_lost`, begin at its earliest record, whatever is committed.
    5. Otherwise the state cannot be rebuilt, and the user has to choose: refuse; or, with
       `restart_if_lost`, begin anew at the earliest record, replaying silently what is left
       before the committed offset.
    """
    try:
        return _starting_point(assigned, store, restart_if_lost=restart_if_lost)
    except AnotherLogError as error:
        if restart_if_lost:
            return Start(assigned.earliest, None, assigned.earliest, anew=True)
        raise CheckpointError(
            f"{partition_name(assigned.partition)}: {error}. Drop the state (`rejex-stream state "
            "drop --all`) to begin at its first record, or allow that with state.lost_state = "
            '"restart" (models warm up again). A new pipeline.version keeps its verdicts apart '
            "from those of the log before: their ids name offsets"
        ) from None


def _starting_point(
    assigned: Assigned, store: SnapshotStore | None, *, restart_if_lost: bool
) -> Start:
    partition, committed, earliest, end, written = assigned
    anew = Start(earliest, None, max(earliest, committed or 0))
    if committed is None:
        stray = store.load(partition, _ANY_OFFSET) if store is not None else None
        if stray is None or stray[0] <= earliest:
            _refuse_to_write_again(assigned, restart_if_lost=restart_if_lost)
            return anew
        if end is not None and end < stray[0]:
            raise AnotherLogError(
                f"its state goes to offset {stray[0]} and the log ends at {end}: made anew"
            )
        if restart_if_lost:
            # A snapshot stands at an offset that was committed: what is before it is written.
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
            return anew
        problem = (
            f"was processed up to offset {committed}, but its earliest record is {earliest}: "
            f"{earliest - committed} record(s) expired unread"
        )
        fix = "lengthen the retention of the input"
    else:
        found = store.load(partition, committed) if store is not None else None
        _refuse_to_write_again(assigned, restart_if_lost=restart_if_lost)
        if found is not None and (found[0] >= earliest or found[0] == committed):
            return Start(found[0], found[1], committed)
        if earliest == 0 and found is None:
            return Start(0, None, committed)
        if restart_if_lost:
            return anew
        what = "no snapshot" if found is None else f"its newest snapshot at offset {found[0]}"
        problem = (
            f"is committed up to offset {committed}, with {what} and the earliest record at "
            f"{earliest}: the state in between cannot be rebuilt"
        )
        fix = "bring a snapshot back (`rejex-stream state import`)"
    raise CheckpointError(
        f"{partition_name(partition)} {problem}. Either {fix}, or allow a restart without the old "
        'state (state.lost_state = "restart"; models warm up again).'
    )


def _refuse_to_write_again(assigned: Assigned, *, restart_if_lost: bool) -> None:
    partition, committed, earliest, _, written = assigned
    first = earliest if committed is None else committed
    if written <= first:
        return
    stands = "nothing is committed" if committed is None else f"it is committed up to {committed}"
    problem = (
        f"{partition_name(partition)}: the output holds this pipeline's verdicts up to offset "
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
    idle: bool = False  # whether it waits with nothing to commit, as the source knows
    decided: bytes | None = None  # what was decided, as far as it is known to be durable
    saving: tuple[int, float] = (0, 0.0)  # bytes and seconds of the snapshot under way

    @property
    def replaying(self) -> bool:
        """Whether the committed offset is still ahead."""
        return self.state.next_offset < self.live_from

    @property
    def to_decide(self) -> bool:
        """Whether people have said something that a commit can record."""
        decisions = self.state.decisions
        return bool(decisions.undecided) and decisions.waiting and not self.replaying

    def stands_at(self, committed: int | None) -> bool:
        """Whether this state and the held outcomes can go on from there."""
        committed = self.live_from if committed is None else committed
        if self.replaying:
            return committed == self.live_from
        return self.committed <= committed <= self.state.next_offset

    def settle(self, committed: int | None) -> list[Outcome]:
        """Let go of the outcomes that turned out to be durable, and return them."""
        self.committed = self.live_from if committed is None else committed
        held, self.held = self.held, []
        durable: list[Outcome] = []
        for outcome in held:
            known = reached(outcome.record) < self.committed
            (durable if known else self.held).append(outcome)
        return durable


@dataclass(slots=True)
class Ownership:
    """Rebuilds the state of every partition the source assigns, and drops it when it is revoked."""

    source: Source
    store: SnapshotStore | None
    make_state: Callable[[Partition, FitExecutor], PartitionState]
    executor: FitExecutor
    restart_if_lost: bool  # whether a state that cannot be rebuilt is given up, not refused
    summary: RunSummary
    emit: Callable[[RunEvent], None]
    clock: Callable[[], float]
    owned: dict[Partition, OwnedPartition] = field(default_factory=dict)
    parked: dict[Partition, OwnedPartition] = field(default_factory=dict)

    def apply(self, changes: Sequence[Assigned | Revoked]) -> set[Partition]:
        """Act on what the source gave and took; returns the partitions it concerns."""
        dropped: set[Partition] = set()
        for change in changes:
            if change.partition in self.owned:
                dropped.add(change.partition)
                self._set_aside(change.partition)
            if not isinstance(change, Revoked):
                self._open(change)
        for partition in dropped & self.parked.keys():
            self._retire(self.parked.pop(partition))
        return {change.partition for change in changes}

    def decide(self, owned: OwnedPartition) -> None:
        """Have a partition that is live decide by what is configured now, and tell if it is new."""
        changed = owned.state.decide()
        if changed is not None:
            # The next commit is the first by it: a snapshot remembers from where it holds.
            owned.snapshot_at = (owned.state.n_events, -math.inf)
            partition, offset = owned.state.partition, owned.live_from
            self.emit(DecisionChanged(partition, offset, changed.was, changed.now))

        left = [
            change
            for change in owned.state.decisions.pending
            if change.position.offset < owned.live_from  # else its commit did not come to be
        ]
        if left:
            self.emit(IncidentsDurable(owned.state.partition, left, again=True))

    def waiting(self) -> list[OwnedPartition]:
        """Return the partitions that wait for a fit."""
        return [owned for owned in self.owned.values() if owned.state.ahead]

    def hold_back(self, limit: int) -> None:
        """Keep what waits for a fit bounded: have the source pause beyond `limit` records.

        A partition goes on once half of that is left: what the source has read ahead is lost at
        every pause.
        """
        for partition, owned in self.owned.items():
            n_ahead = len(owned.state.ahead)
            if not owned.paused and n_ahead >= limit:
                owned.paused = True
                self.source.pause(partition)
            elif owned.paused and n_ahead <= limit // 2:
                owned.paused = False
                self.source.seek(partition, owned.state.taken_next)

    def note_wait(self, owned: OwnedPartition, *, went_on: bool) -> None:
        """Remember since when a partition waits for a fit; count the wait when it is over."""
        if went_on and owned.waits_since is not None:
            waited = self.clock() - owned.waits_since
            self.summary.fit_waits += 1
            self.summary.fit_wait_s += waited
            self.summary.longest_fit_wait_s = max(self.summary.longest_fit_wait_s, waited)
            owned.waits_since = None
        if owned.state.ahead and owned.waits_since is None and not owned.state.goes_on:
            owned.waits_since = self.clock()

    def note_waits(self) -> None:
        """Have the source know which partitions wait for a fit, with all else made durable.

        What is idle is judged only after this was asked again, when it need not wait any longer.
        """
        for partition, owned in self.owned.items():
            idle = bool(owned.state.ahead and not owned.held and not owned.state.goes_on)
            if idle != owned.idle:
                self.source.note_waiting(partition, waits=idle)
                owned.idle = idle

    def n_held(self) -> int:
        """Count the outcomes that are not durable yet."""
        return sum(len(owned.held) for owned in self.owned.values())

    def replays(self) -> dict[Partition, Replay]:
        """Say how far each silent replay has come."""
        return {
            partition: Replay(owned.begun_at, owned.state.next_offset, owned.live_from)
            for partition, owned in self.owned.items()
            if owned.replaying
        }

    def park(self) -> None:
        """Set all we own aside: of use for a partition that comes back where its state stands."""
        for partition in list(self.owned):
            self._set_aside(partition)

    def forget_parked(self) -> None:
        """Give up the partitions that did not come back."""
        for owned in self.parked.values():
            self._retire(owned)
        self.parked.clear()

    def close(self) -> None:
        """Give up every partition."""
        self.park()
        self.forget_parked()

    def _open(self, assigned: Assigned) -> None:
        partition, committed = assigned[:2]
        parked = self.parked.get(partition)
        if parked is not None and self._stands(parked, committed):
            # State is a function of the input: whoever committed, this is the state.
            self.source.seek(partition, parked.state.taken_next)
            parked.paused = parked.idle = False
            parked.decided = None  # others may have decided without an outcome: ours is written
            durable = parked.settle(committed)
            self.summary.add(durable)
            if changes := _changes_in(durable):
                self.emit(IncidentsDurable(partition, changes))
            self.owned[partition] = self.parked.pop(partition)
            return
        if parked is not None:
            self._retire(self.parked.pop(partition))
        start = starting_point(assigned, self.store, restart_if_lost=self.restart_if_lost)
        fits = ScopedExecutor(self.executor, partition)
        state = self.make_state(partition, fits)
        decided = None if start.anew else self._decided(state)
        if start.anew:
            _log.warning(
                "%s was made anew: it is begun at its first record, %d, and nothing of the state "
                "of the log before is used",
                partition_name(partition),
                start.offset,
            )
        state.keep_to(decided, decided_until=start.live_from)
        state.decisions.begin_at(start.offset, whatever_is_lost=self.restart_if_lost)
        environment_changes: tuple[str, ...] = ()
        if start.parts is not None:
            try:
                environment_changes = state.restore(start.parts)
            except CheckpointError as error:
                where = f"{partition_name(partition)}, from its snapshot at offset {start.offset}"
                raise CheckpointError(f"{where}: {error}") from error
        else:
            state.next_offset = start.offset
            if self.store is not None:
                # A later restore must know where this state began, whatever is trimmed by then.
                if self.store.save(partition, state.snapshot().encoded()):
                    state.parts.keep()
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
            decided=decided,
        )
        snapshot_offset = None if start.parts is None else start.offset
        self.emit(PartitionOpened(partition, snapshot_offset, start.offset, start.live_from))
        if environment_changes:
            self.emit(EnvironmentChanged(partition, environment_changes))
        if not self.owned[partition].replaying:
            self.decide(self.owned[partition])

    def _set_aside(self, partition: Partition) -> None:
        owned = self.parked[partition] = self.owned.pop(partition)
        owned.state.parts.abandon()

    def _stands(self, parked: OwnedPartition, committed: int | None) -> bool:
        """Whether a partition that comes back can go on with the state it had."""
        if not parked.stands_at(committed):
            return False
        if committed is None or committed == parked.committed:
            return True
        # Another worker may have decided otherwise: then its outcomes are not ours.
        return self._decided(parked.state) == parked.state.decided

    def _decided(self, state: PartitionState) -> bytes | None:
        """Return what is durable of the decisions."""
        if self.store is None or state.decided is None:
            return None
        return self.store.load_decisions(state.partition)

    def _retire(self, owned: OwnedPartition) -> None:
        owned.fits.cancel_all()
        self.emit(PartitionClosed(owned.state.partition))


class _Saved(NamedTuple):
    """What became of a piece of a snapshot."""

    kept: bool
    n_bytes: int
    seconds: float


@dataclass(slots=True)
class _Work:
    """What becomes durable together; after it, the snapshots."""

    outcomes: dict[Partition, list[Outcome]] = field(default_factory=dict)
    offsets: dict[Partition, int] = field(default_factory=dict)
    incidents: dict[Partition, Sequence[Incident]] = field(default_factory=dict)
    decided: dict[Partition, bytes] = field(default_factory=dict)
    pieces: dict[Partition, Piece] = field(default_factory=dict)
    begun: float = 0.0
    everything: bool = False
    committed: float | None = None
    saved: dict[Partition, _Saved] = field(default_factory=dict)


@dataclass(slots=True)
class Commits:
    """Makes what partitions hold durable, and keeps their snapshots: one commit at a time.

    The effects, in their order; each is a comment with its number in the code:

    1. **Write**, the loop's thread: the sink takes the outcomes. What people said since is
       decided: it holds from the offset of this commit on. What people are to be told once it is
       durable is recorded with it, and what they were told is struck out.
    2. **View**, the loop's thread, for :data:`VIEW_S` a turn: the streams that have moved, of the
       partitions whose snapshot is due.
    3. **Commit**, a thread of its own: outcomes, which Kafka's sink encodes as it sends them, and
       offsets become durable, all or nothing; what was decided with them, or just before.
    4. **Snapshot**, that thread: what was viewed is encoded and saved, each at an offset that is
       committed by now; there is a snapshot once its last piece is saved.
    5. **Let go**, the loop's thread: of what is durable, and tell.

    Steps 1 and 2 take the loop's time, by the outcomes and by the streams that are viewed; while
    3 and 4 wait for the edges, the loop judges records and does nothing else: source, sink and
    store belong to the other thread, so ownership cannot change under a commit. Outcomes that
    come meanwhile are held behind those under way. If the commit fails, nothing is let go.
    """

    ours: Ownership
    sink: Sink
    store: SnapshotStore | None  # without it there are no snapshots
    settings: RunSettings
    outbox: Outbox | None = None  # what people are still to be told; ``None``: nobody is
    _thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(max_workers=1, thread_name_prefix="commit")
    )
    _under_way: tuple[_Work, Future[None]] | None = None
    _committed_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._committed_at = self.ours.clock()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    # ------------------------------------------------------------------------------ what is due
    def poll_wait_s(self, wait: Callable[[float], object]) -> float:
        """Return how long a poll may wait: no longer than the outcomes that are held.

        Partitions that wait for a fit are held back, noted with the source, and given a little
        time: a share of what they have waited by now, so that neither is a quick fit held up, nor
        does a slow one cost the processor.
        """
        self.ours.hold_back(self.settings.max_poll_records)
        since = [owned.waits_since or 0.0 for owned in self.ours.waiting()]
        if since:
            wait(min(_LONGEST_PAUSE_S, (self.ours.clock() - max(since)) / 4))
        self.ours.note_waits()
        if since:
            return 0.0
        if not self.ours.n_held():
            return self.settings.poll_timeout_s
        left = self._committed_at + self.settings.commit_interval_s - self.ours.clock()
        return min(max(left, 0.0), self.settings.poll_timeout_s)

    def _commit_is_due(self, now: float) -> bool:
        interval_s, n_held = self.settings.commit_interval_s, self.ours.n_held()
        every = self.ours.owned.values()
        decides = any(owned.to_decide or self._strikes_out(owned) for owned in every)
        if not n_held and not decides:  # the interval begins with the first outcome
            self._committed_at = max(self._committed_at, now - interval_s)
            return False
        if not n_held:  # what people said holds from here on: nothing has to be waited for
            return True
        waited = now - self._committed_at >= interval_s
        return waited or n_held >= self.settings.commit_every_events

    def _strikes_out(self, owned: OwnedPartition) -> bool:
        """Whether people were told of what is kept as pending."""
        kept = owned.state.decisions.pending
        if not kept or owned.replaying or self.outbox is None:
            return False
        return len(self.outbox.left(owned.state.partition)) < len(kept)

    def _snapshot_is_due(self, owned: OwnedPartition, now: float) -> bool:
        events, at = owned.snapshot_at
        many = owned.state.n_events - events >= self.settings.snapshot_every_events
        return many or now - at >= self.settings.snapshot_interval_s

    # ---------------------------------------------------------------------------------- commit
    def begin(self, *, everything: bool = False) -> None:
        """Begin to write what is due; with `everything` all that is not durable yet.

        O(outcomes), and :data:`VIEW_S` for snapshots; waits for no edge.
        """
        now = self.ours.clock()
        commits = self._commit_is_due(now) or everything
        work = _Work(begun=now, everything=everything)
        for partition, owned in self.ours.owned.items():
            if owned.held and not commits and owned.state.parts.begun is None:
                continue
            decides = owned.to_decide and commits
            if decides:
                owned.state.decisions.decide(owned.state.next_offset)
            if decides or (commits and (owned.held or self._strikes_out(owned))):  # 1. Write
                _refuse_to_go_back(partition, owned)
                if coming := _changes_in(owned.held):
                    work.incidents[partition] = coming
                pending = () if self.outbox is None else self.outbox.left(partition, coming)
                if pending or owned.state.decisions.pending:
                    owned.state.decisions.set_pending(pending)
                work.outcomes[partition] = list(owned.held)
                work.offsets[partition] = owned.state.next_offset
                self.sink.write(owned.held)
                decided = owned.state.decided
                if decided is not None and decided is not owned.decided:
                    work.decided[partition] = decided
            if self.store is not None and self._snapshot_goes_on(  # 2. View
                owned, now, everything=everything
            ):
                work.pieces[partition] = owned.state.parts.next_piece(VIEW_S)
        if work.offsets or work.pieces:
            self._under_way = work, self._thread.submit(self._make_durable, work)

    def _snapshot_goes_on(self, owned: OwnedPartition, now: float, *, everything: bool) -> bool:
        """Whether a snapshot is under way, or due and begun."""
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

    def _make_durable(self, work: _Work) -> None:
        if work.offsets:  # 3. Commit
            if self.store is not None:
                for partition, decided in work.decided.items():
                    self.store.save_decisions(partition, decided)
            self.sink.commit(work.offsets)
            work.committed = self.ours.clock()
        for partition in work.pieces:  # 4. Snapshot
            self._save(work, partition)

    def _save(self, work: _Work, partition: Partition) -> None:
        assert self.store is not None
        begun, n_bytes, kept, views = self.ours.clock(), 0, True, work.pieces[partition]
        while kept:
            piece = views.encoded()
            kept = self.store.save(partition, piece)
            n_bytes += sum(len(body) for body in piece.parts.values() if body is not None)
            if not work.everything or views.last:
                break
            # Nothing is judged meanwhile.
            views = self.ours.owned[partition].state.parts.next_piece(VIEW_S)
        work.pieces[partition] = views
        work.saved[partition] = _Saved(kept, n_bytes, self.ours.clock() - begun)

    def finish(self) -> bool:
        """Wait for what was begun; returns whether outcomes became durable."""
        if self._under_way is None:
            return False
        work, writing = self._under_way
        self._under_way = None
        try:
            writing.result()
        finally:  # 5. Let go
            self._let_go(work)
        return work.committed is not None

    def _let_go(self, work: _Work) -> None:
        ours = self.ours.owned
        if work.committed is not None:
            self._committed_at = work.committed
            states = {partition: owned.state for partition, owned in ours.items()}
            waiting = {p: len(state.decisions.undecided) for p, state in states.items()}
            clocks = {p: state.registry.n_untrusted for p, state in states.items()}
            for partition, outcomes in work.outcomes.items():
                owned = ours[partition]
                owned.committed = work.offsets[partition]
                owned.decided = work.decided.get(partition, owned.decided)
                del owned.held[: len(outcomes)]
                self.ours.summary.add(outcomes)
            self.ours.summary.n_commits += 1
            n_events = sum(map(len, work.outcomes.values()))
            took_s = work.committed - work.begun
            self.ours.emit(Committed(n_events, took_s, work.offsets, waiting, clocks))
            for partition, changes in work.incidents.items():
                self.ours.emit(IncidentsDurable(partition, changes))
        for partition, piece in work.pieces.items():
            owned, saved = ours[partition], work.saved.get(partition)
            if saved is None or not saved.kept:
                owned.state.parts.abandon(base_is_gone=saved is not None)
                continue
            n_bytes, seconds = owned.saving
            owned.saving = n_bytes + saved.n_bytes, seconds + saved.seconds
            if piece.last:
                owned.state.parts.keep()
                owned.state.decisions.snapshot_saved(piece.next_offset)
                owned.snapshot_at = (piece.n_events, self.ours.clock())
                self.ours.summary.n_snapshots += 1
                n_bytes, seconds = owned.saving
                self.ours.emit(SnapshotSaved(partition, piece.next_offset, n_bytes, seconds))


def _changes_in(outcomes: Iterable[Outcome]) -> list[Incident]:
    """Return the changes of incidents that outcomes carry, in order."""
    return [change for outcome in outcomes for change in outcome.incidents]


def _refuse_to_go_back(partition: Partition, owned: OwnedPartition) -> None:
    if owned.state.next_offset < owned.committed:
        raise CheckpointError(
            f"{partition_name(partition)} is committed up to offset {owned.committed}, "
            f"and its state stands at {owned.state.next_offset}: committing that would have "
            "records judged twice. Nothing of it was written; start the run again, it begins at "
            "what is committed."
        )
