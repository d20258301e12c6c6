"""Which partitions are ours, and the state and outcomes we hold for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rejex_stream.fit_scope import ScopedExecutor
from rejex_stream.lane import Lane, starting_point
from rejex_stream.progress import LaneClosed, LaneOpened, Replay, RunEvent, RunSummary
from rejex_stream.protocols import Assigned, FitExecutor, Revoked, SnapshotStore, Source
from rejex_stream.types import Outcome, Partition

__all__ = ["OwnedLane", "Ownership"]


@dataclass(slots=True)
class OwnedLane:
    """A partition of ours: its lane, and what of it is durable.

    Attributes
    ----------
    lane, fits
        The state, and its share of the executor.
    committed
        Outcomes before this offset are durable.
    live_from
        Outcomes before this offset were durable when we took over: replay is silent up to here.
    replay_begun, snapshot_at
        Event count and clock when the replay began, and at the last snapshot.
    held
        Outcomes since `committed`, in order.
    """

    lane: Lane
    fits: ScopedExecutor
    committed: int
    live_from: int
    begun_at: int
    replay_begun: tuple[int, float]
    snapshot_at: tuple[int, float]
    held: list[Outcome] = field(default_factory=list)

    @property
    def replaying(self) -> bool:
        """Whether the committed offset is still ahead."""
        return self.lane.next_offset < self.live_from

    def stands_at(self, committed: int | None) -> bool:
        """Whether this state and the held outcomes can go on from there."""
        committed = self.live_from if committed is None else committed
        if self.replaying:
            return committed == self.live_from
        return self.committed <= committed <= self.lane.next_offset

    def settle(self, committed: int | None) -> list[Outcome]:
        """Let go of the outcomes that turned out to be durable, and return them."""
        self.committed = self.live_from if committed is None else committed
        held, self.held = self.held, []
        durable: list[Outcome] = []
        for outcome in held:
            known = outcome.record.position.offset < self.committed
            (durable if known else self.held).append(outcome)
        return durable


class Ownership:
    """Opens a lane for every partition the source assigns, and drops it when it is revoked.

    Parameters
    ----------
    source, store
        The edges.
    make_lane
        Makes an empty lane for a partition whose fits go to the given executor.
    executor
        Shared by all lanes.
    restart_if_lost
        Whether a state that cannot be rebuilt is given up instead of refused.
    summary, tell, clock
        Where counts and events go; monotonic seconds.

    Attributes
    ----------
    owned
        The lanes, by partition.
    """

    def __init__(
        self,
        source: Source,
        store: SnapshotStore | None,
        make_lane: Callable[[Partition, FitExecutor], Lane],
        executor: FitExecutor,
        *,
        restart_if_lost: bool,
        summary: RunSummary,
        tell: Callable[[RunEvent], None],
        clock: Callable[[], float],
    ) -> None:
        self.owned: dict[Partition, OwnedLane] = {}
        self._parked: dict[Partition, OwnedLane] = {}
        self._source = source
        self._store = store
        self._make_lane = make_lane
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
        for change in changes:
            self._drop(change.partition)
            if not isinstance(change, Revoked):
                self._open(change)
        return {change.partition for change in changes}

    def n_held(self) -> int:
        """Count the outcomes that are not durable yet."""
        return sum(len(lane.held) for lane in self.owned.values())

    def held(self) -> list[Outcome]:
        """Return the outcomes that are not durable yet."""
        return [outcome for lane in self.owned.values() for outcome in lane.held]

    def replays(self) -> dict[Partition, Replay]:
        """Say how far each silent replay has come."""
        return {
            partition: Replay(lane.begun_at, lane.lane.next_offset, lane.live_from)
            for partition, lane in self.owned.items()
            if lane.replaying
        }

    def park(self) -> None:
        """Set every lane aside: of use if its partition comes back where the lane stands."""
        self._parked.update(self.owned)
        self.owned.clear()

    def forget_parked(self) -> None:
        """Give up the lanes whose partitions did not come back."""
        for lane in self._parked.values():
            self._retire(lane)
        self._parked.clear()

    def close(self) -> None:
        """Give up every lane."""
        for partition in list(self.owned):
            self._drop(partition)
        self.forget_parked()

    def _open(self, assigned: Assigned) -> None:
        partition, committed, _ = assigned
        parked = self._parked.get(partition)
        if parked is not None and parked.stands_at(committed):
            # State is a function of the input: whoever committed, this is the state.
            self._source.seek(partition, parked.lane.next_offset)
            self._summary.add(parked.settle(committed))
            self.owned[partition] = self._parked.pop(partition)
            return
        if parked is not None:
            self._retire(self._parked.pop(partition))
        start = starting_point(assigned, self._store, restart_if_lost=self._restart_if_lost)
        fits = ScopedExecutor(self._executor, partition, clock=self._clock)
        lane = self._make_lane(partition, fits)
        if start.blob is not None:
            lane.restore(start.blob)
        else:
            lane.next_offset = start.offset
            if self._store is not None:
                # A later restore must know where this state began, whatever is trimmed by then.
                self._store.save(partition, start.offset, lane.snapshot())
        now = (lane.n_events, self._clock())
        self._source.seek(partition, start.offset)
        self.owned[partition] = OwnedLane(
            lane,
            fits,
            committed=start.live_from,
            live_from=start.live_from,
            begun_at=start.offset,
            replay_begun=now,
            snapshot_at=now,
        )
        snapshot_offset = None if start.blob is None else start.offset
        self._tell(LaneOpened(partition, snapshot_offset, start.offset, start.live_from))

    def _drop(self, partition: Partition) -> None:
        owned = self.owned.pop(partition, None)
        if owned is not None:
            self._retire(owned)

    def _retire(self, owned: OwnedLane) -> None:
        owned.fits.cancel_all()
        summary, fits = self._summary, owned.fits
        summary.fit_waits += fits.waits
        summary.fit_wait_s += fits.wait_s
        summary.longest_fit_wait_s = max(summary.longest_fit_wait_s, fits.longest_wait_s)
        self._tell(LaneClosed(owned.lane.partition))
