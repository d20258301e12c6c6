"""Makes outcomes and state durable while the loop goes on judging."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from rejex_stream.ownership import OwnedLane, Ownership
from rejex_stream.progress import Committed, RunEvent, RunSummary, SnapshotSaved
from rejex_stream.protocols import Sink, SnapshotStore
from rejex_stream.settings import RunSettings
from rejex_stream.types import Outcome, Partition

__all__ = ["Durability"]


@dataclass(slots=True)
class _Snapshot:
    """State of a lane at an offset before which everything is durable, or about to be."""

    next_offset: int
    n_events: int
    blob: bytes
    encoded_s: float


@dataclass(slots=True)
class _Work:
    """What becomes durable together; after it, the snapshots."""

    outcomes: dict[Partition, list[Outcome]] = field(default_factory=dict)
    offsets: dict[Partition, int] = field(default_factory=dict)
    snapshots: dict[Partition, _Snapshot] = field(default_factory=dict)
    begun: float = 0.0
    committed: float | None = None
    saved_s: dict[Partition, float] = field(default_factory=dict)


class Durability:
    """Commits what lanes hold and keeps their snapshots, one commit at a time.

    1. **Begin** (the loop's thread): take note of the outcomes each lane holds, and encode the
       state of the lanes whose snapshot is due.
    2. **Write** (a thread of its own): the outcomes; the commit with the offsets; the snapshots,
       each at an offset that is committed by now.
    3. **Finish** (the loop's thread): wait for that; let go of what is durable, and tell.

    Between 1 and 3 the loop may judge records and nothing else: source, sink and store belong to
    the writing thread, so ownership cannot change under a commit. A lane that moves on meanwhile
    holds its new outcomes behind those being written. If the commit fails, nothing is let go.

    Parameters
    ----------
    ours
        The lanes.
    sink, store
        The edges; without a store there are no snapshots.
    settings
        When a commit and when a snapshot is due.
    summary, tell, clock
        Where counts and events go; monotonic seconds.
    """

    def __init__(
        self,
        ours: Ownership,
        sink: Sink,
        store: SnapshotStore | None,
        settings: RunSettings,
        *,
        summary: RunSummary,
        tell: Callable[[RunEvent], None],
        clock: Callable[[], float],
    ) -> None:
        self._ours = ours
        self._sink = sink
        self._store = store
        self._settings = settings
        self._summary = summary
        self._tell = tell
        self._clock = clock
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="commit")
        self._under_way: tuple[_Work, Future[None]] | None = None
        self._committed_at = clock()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    # ------------------------------------------------------------------------------ what is due
    def poll_wait_s(self) -> float:
        """Return how long a poll may wait: no longer than the outcomes that are held."""
        if not self._ours.n_held():
            return self._settings.poll_timeout_s
        left = self._committed_at + self._settings.commit_interval_s - self._clock()
        return min(max(left, 0.0), self._settings.poll_timeout_s)

    def _commit_is_due(self, now: float) -> bool:
        interval_s, n_held = self._settings.commit_interval_s, self._ours.n_held()
        if not n_held:  # the interval begins with the first outcome
            self._committed_at = max(self._committed_at, now - interval_s)
            return False
        waited = now - self._committed_at >= interval_s
        return waited or n_held >= self._settings.commit_every_events

    def _snapshot_is_due(self, owned: OwnedLane, now: float) -> bool:
        events, at = owned.snapshot_at
        many = owned.lane.n_events - events >= self._settings.snapshot_every_events
        return many or now - at >= self._settings.snapshot_interval_s

    # ---------------------------------------------------------------------------------- commit
    def begin(self, *, everything: bool = False) -> None:
        """Begin to write what is due; with `everything` all that is not durable yet.

        O(bytes of the snapshots that are due); waits for no edge.
        """
        now = self._clock()
        commits = self._commit_is_due(now) or everything
        work = _Work(begun=now)
        for partition, owned in self._ours.owned.items():
            if owned.held and not commits:
                continue
            if owned.held:
                work.outcomes[partition] = list(owned.held)
                self._sink.write(owned.held)
                work.offsets[partition] = owned.lane.next_offset
            moved = owned.lane.n_events > owned.snapshot_at[0]
            if (
                self._store is not None
                and moved
                and (everything or self._snapshot_is_due(owned, now))
            ):
                work.snapshots[partition] = self._encode(owned)
        if work.offsets or work.snapshots:
            self._under_way = work, self._thread.submit(self._write, work)

    def _encode(self, owned: OwnedLane) -> _Snapshot:
        begun = self._clock()
        blob = owned.lane.snapshot()
        took = self._clock() - begun
        return _Snapshot(owned.lane.next_offset, owned.lane.n_events, blob, took)

    def _write(self, work: _Work) -> None:
        if work.offsets:
            self._sink.commit(work.offsets)
            work.committed = self._clock()
        for partition, snapshot in work.snapshots.items():
            assert self._store is not None
            begun = self._clock()
            self._store.save(partition, snapshot.next_offset, snapshot.blob)
            work.saved_s[partition] = self._clock() - begun

    def finish(self) -> bool:
        """Wait for what was begun; returns whether outcomes became durable.

        Raises
        ------
        ConnectorError
            If the commit failed, or after it a snapshot.
        """
        if self._under_way is None:
            return False
        work, writing = self._under_way
        self._under_way = None
        try:
            writing.result()
        finally:
            self._let_go(work)
        return work.committed is not None

    def _let_go(self, work: _Work) -> None:
        lanes = self._ours.owned
        if work.committed is not None:
            self._committed_at = work.committed
            for partition, outcomes in work.outcomes.items():
                owned = lanes[partition]
                owned.committed = work.offsets[partition]
                del owned.held[: len(outcomes)]
                self._summary.add(outcomes)
            self._summary.n_commits += 1
            n_events = sum(map(len, work.outcomes.values()))
            self._tell(Committed(n_events, work.committed - work.begun, work.offsets))
        for partition, took in work.saved_s.items():
            kept = work.snapshots[partition]
            lanes[partition].snapshot_at = (kept.n_events, self._clock())
            self._summary.n_snapshots += 1
            self._tell(
                SnapshotSaved(partition, kept.next_offset, len(kept.blob), kept.encoded_s + took)
            )
