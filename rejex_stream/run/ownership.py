"""Which partitions are ours: how their state is rebuilt, and what of it is durable."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rejex_stream.errors import AnotherLogError, CheckpointError
from rejex_stream.protocols import Assigned, FitExecutor, Revoked, SnapshotStore, Source
from rejex_stream.run.executors import ScopedExecutor
from rejex_stream.run.partition import PartitionState
from rejex_stream.run.progress import (
    DecisionChanged,
    EnvironmentChanged,
    IncidentsDurable,
    PartitionClosed,
    PartitionOpened,
    Replay,
    RunEvent,
    RunSummary,
)
from rejex_stream.types import Outcome, Partition, reached

__all__ = ["OwnedPartition", "Ownership", "Start", "starting_point"]

_ANY_OFFSET = 2**63 - 1
_log = logging.getLogger(__name__)


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
       on from it, unless the input ends before it and so was made anew.
    2. There is a snapshot at or before the committed offset, and every record since can still be
       read: restore it and replay from there.
    3. The input still has its first record: replay all of it.
    4. The snapshot is of a log that is gone, and this one was made anew: refuse; or, with
       `restart_if_lost`, begin at its earliest record, whatever is committed.
    5. Otherwise the state cannot be rebuilt, and the user has to choose: refuse; or, with
       `restart_if_lost`, begin anew at the earliest record, replaying silently what is left
       before the committed offset.

    Raises
    ------
    CheckpointError
        In cases 4 and 5, naming the offsets and the ways out.
    """
    try:
        return _starting_point(assigned, store, restart_if_lost=restart_if_lost)
    except AnotherLogError as error:
        if restart_if_lost:
            return Start(assigned.earliest, None, assigned.earliest, anew=True)
        raise CheckpointError(
            f"{_name(assigned.partition)}: {error}. Drop the state (`rejex-stream state drop "
            '--all`) to begin at its first record, or allow that with state.lost = "restart" '
            "(models warm up again). A new pipeline.version keeps its verdicts apart from those of "
            "the log before: their ids name offsets"
        ) from None


def _starting_point(
    assigned: Assigned, store: SnapshotStore | None, *, restart_if_lost: bool
) -> Start:
    partition, committed, earliest, end = assigned
    anew = Start(earliest, None, max(earliest, committed or 0))
    if committed is None:
        stray = store.load(partition, _ANY_OFFSET) if store is not None else None
        if stray is None or stray[0] <= earliest:
            return anew
        if restart_if_lost:
            made_anew = end is not None and end < stray[0]
            # A snapshot stands at an offset that was committed: what is before it is written.
            return anew if made_anew else Start(stray[0], stray[1], stray[0])
        problem = (
            f"has a snapshot at offset {stray[0]} but no committed offset: it expired or was reset"
        )
        mend = (
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
        mend = "lengthen the retention of the input"
    else:
        found = store.load(partition, committed) if store is not None else None
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
        mend = "bring a snapshot back (`rejex-stream state import`)"
    raise CheckpointError(
        f"{_name(partition)} {problem}. Either {mend}, or allow a restart without the old state "
        '(lost_state = "restart"; models warm up again).'
    )


def _name(partition: Partition) -> str:
    return f"{partition.topic}-{partition.partition}"


@dataclass(slots=True)
class OwnedPartition:
    """A partition of ours: its state, and what of it is durable.

    Attributes
    ----------
    state, fits
        What its records made of it, and its share of the executor.
    committed
        Outcomes before this offset are durable.
    live_from
        Outcomes before this offset were durable when we took over: replay is silent up to here.
    replay_begun, snapshot_at
        Event count and clock when the replay began, and at the last snapshot.
    saving
        Bytes and seconds of the snapshot under way, as far as it is saved.
    held
        Outcomes since `committed`, in order.
    waits_since
        Clock when it met a fit that it has to wait for, if it waits.
    paused
        Whether the source holds its records back.
    idle
        Whether it waits with nothing to commit, as the source knows.
    decided
        What was decided, as far as it is known to be durable.
    """

    state: PartitionState
    fits: ScopedExecutor
    committed: int
    live_from: int
    begun_at: int
    replay_begun: tuple[int, float]
    snapshot_at: tuple[int, float]
    held: list[Outcome] = field(default_factory=list)
    waits_since: float | None = None
    paused: bool = False
    idle: bool = False
    decided: bytes | None = None
    saving: tuple[int, float] = (0, 0.0)

    @property
    def replaying(self) -> bool:
        """Whether the committed offset is still ahead."""
        return self.state.next_offset < self.live_from

    @property
    def to_decide(self) -> bool:
        """Whether people have said something that a commit can record."""
        return self.state.decisions.waiting and not self.replaying

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


class Ownership:
    """Rebuilds the state of every partition the source assigns, and drops it when it is revoked.

    Parameters
    ----------
    source, store
        The edges.
    make_state
        Makes the empty state of a partition whose fits go to the given executor.
    executor
        Shared by all partitions.
    restart_if_lost
        Whether a state that cannot be rebuilt is given up instead of refused.
    summary, tell, clock
        Where counts and events go; monotonic seconds.

    Attributes
    ----------
    owned
        What we own.
    """

    def __init__(
        self,
        source: Source,
        store: SnapshotStore | None,
        make_state: Callable[[Partition, FitExecutor], PartitionState],
        executor: FitExecutor,
        *,
        restart_if_lost: bool,
        summary: RunSummary,
        tell: Callable[[RunEvent], None],
        clock: Callable[[], float],
    ) -> None:
        self.owned: dict[Partition, OwnedPartition] = {}
        self._parked: dict[Partition, OwnedPartition] = {}
        self._source = source
        self._store = store
        self._make_state = make_state
        self._executor = executor
        self._restart_if_lost = restart_if_lost
        self._summary = summary
        self._tell = tell
        self._clock = clock

    def take_changes(self) -> set[Partition]:
        """Act on what the source gave and took; returns the partitions it concerns.

        Raises
        ------
        CheckpointError
            If the state of an assigned partition cannot be rebuilt.
        """
        changes = self._source.changes()
        dropped: set[Partition] = set()
        for change in changes:
            if change.partition in self.owned:
                dropped.add(change.partition)
                self._set_aside(change.partition)
            if not isinstance(change, Revoked):
                self._open(change)
        for partition in dropped & self._parked.keys():
            self._retire(self._parked.pop(partition))
        return {change.partition for change in changes}

    def decide(self, owned: OwnedPartition) -> None:
        """Have a partition that is live decide by what is configured now, and tell if it is new."""
        changed = owned.state.decide()
        if changed is not None:
            # The next commit is the first by it: a snapshot remembers from where it holds.
            owned.snapshot_at = (owned.state.n_events, -math.inf)
            partition, offset = owned.state.partition, owned.live_from
            self._tell(DecisionChanged(partition, offset, changed.was, changed.now))

        left = [
            change
            for change in owned.state.decisions.untold
            if change.position.offset < owned.live_from  # else its commit did not come to be
        ]
        if left:
            self._tell(IncidentsDurable(owned.state.partition, left, again=True))

    def tell_incidents(self, partition: Partition, durable: Iterable[Outcome]) -> None:
        """Tell which incidents changed in outcomes that became durable."""
        changes = [change for outcome in durable for change in outcome.incidents]
        if changes:
            self._tell(IncidentsDurable(partition, changes))

    def waiting(self) -> list[OwnedPartition]:
        """Return the partitions that wait for a fit."""
        return [owned for owned in self.owned.values() if owned.state.n_ahead]

    def hold_back(self, limit: int) -> None:
        """Keep what waits for a fit bounded: have the source pause beyond `limit` records.

        A partition goes on once half of that is left: what the source has read ahead is lost at
        every pause.
        """
        for partition, owned in self.owned.items():
            n_ahead = owned.state.n_ahead
            if not owned.paused and n_ahead >= limit:
                owned.paused = True
                self._source.pause(partition)
            elif owned.paused and n_ahead <= limit // 2:
                owned.paused = False
                self._source.seek(partition, owned.state.taken_next)

    def note_waits(self) -> None:
        """Have the source know which partitions wait for a fit, with all else made durable.

        What is idle is judged only after this was asked again, when it need not wait any longer.
        """
        for partition, owned in self.owned.items():
            idle = bool(owned.state.n_ahead and not owned.held and not owned.state.goes_on)
            if idle != owned.idle:
                self._source.note_waiting(partition, waits=idle)
                owned.idle = idle

    def n_held(self) -> int:
        """Count the outcomes that are not durable yet."""
        return sum(len(owned.held) for owned in self.owned.values())

    def to_decide(self) -> bool:
        """Whether people have said something that a commit can record."""
        return any(owned.to_decide for owned in self.owned.values())

    def held(self) -> list[Outcome]:
        """Return the outcomes that are not durable yet."""
        return [outcome for owned in self.owned.values() for outcome in owned.held]

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
        for owned in self._parked.values():
            self._retire(owned)
        self._parked.clear()

    def close(self) -> None:
        """Give up every partition."""
        for partition in list(self.owned):
            self._drop(partition)
        self.forget_parked()

    def _open(self, assigned: Assigned) -> None:
        partition, committed = assigned[:2]
        parked = self._parked.get(partition)
        if parked is not None and self._stands(parked, committed):
            # State is a function of the input: whoever committed, this is the state.
            self._source.seek(partition, parked.state.taken_next)
            parked.paused = parked.idle = False
            parked.decided = None  # others may have decided without an outcome: ours is written
            durable = parked.settle(committed)
            self._summary.add(durable)
            self.tell_incidents(partition, durable)
            self.owned[partition] = self._parked.pop(partition)
            return
        if parked is not None:
            self._retire(self._parked.pop(partition))
        start = starting_point(assigned, self._store, restart_if_lost=self._restart_if_lost)
        fits = ScopedExecutor(self._executor, partition)
        state = self._make_state(partition, fits)
        decided = None if start.anew else self._decided(state)
        if start.anew:
            _log.warning(
                "%s was made anew: it is begun at its first record, %d, and nothing of the state "
                "of the log before is used",
                _name(partition),
                start.offset,
            )
        state.keep_to(decided, decided_until=start.live_from)
        state.decisions.begin_at(start.offset, whatever_is_lost=self._restart_if_lost)
        environment_changes: tuple[str, ...] = ()
        if start.parts is not None:
            try:
                environment_changes = state.restore(start.parts)
            except CheckpointError as error:
                where = f"{_name(partition)}, from its snapshot at offset {start.offset}"
                raise CheckpointError(f"{where}: {error}") from error
        else:
            state.next_offset = start.offset
            if self._store is not None:
                # A later restore must know where this state began, whatever is trimmed by then.
                if self._store.save(partition, state.snapshot().encoded()):
                    state.parts.keep()
                else:
                    state.parts.abandon()
        now = (state.n_events, self._clock())
        self._source.seek(partition, start.offset)
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
        self._tell(PartitionOpened(partition, snapshot_offset, start.offset, start.live_from))
        if environment_changes:
            self._tell(EnvironmentChanged(partition, environment_changes))
        if not self.owned[partition].replaying:
            self.decide(self.owned[partition])

    def _set_aside(self, partition: Partition) -> None:
        owned = self._parked[partition] = self.owned.pop(partition)
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
        if self._store is None or state.decided is None:
            return None
        return self._store.load_decisions(state.partition)

    def _drop(self, partition: Partition) -> None:
        owned = self.owned.pop(partition, None)
        if owned is not None:
            self._retire(owned)

    def _retire(self, owned: OwnedPartition) -> None:
        owned.fits.cancel_all()
        self._tell(PartitionClosed(owned.state.partition))
