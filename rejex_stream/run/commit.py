"""Makes outcomes and state durable while the loop goes on judging."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from rejex_stream.errors import CheckpointError
from rejex_stream.protocols import Sink, SnapshotStore
from rejex_stream.run.incremental_snapshot import Piece
from rejex_stream.run.ownership import OwnedPartition, Ownership
from rejex_stream.run.progress import Committed, Outbox, RunEvent, RunSummary, SnapshotSaved
from rejex_stream.run.settings import RunSettings
from rejex_stream.types import Incident, Outcome, Partition

__all__ = ["Commits"]

VIEW_S = 0.02
"""For so long in each turn streams are viewed for a snapshot."""


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
    decided: dict[Partition, bytes] = field(default_factory=dict)
    pieces: dict[Partition, Piece] = field(default_factory=dict)
    begun: float = 0.0
    everything: bool = False
    committed: float | None = None
    saved: dict[Partition, _Saved] = field(default_factory=dict)


class Commits:
    """Makes what partitions hold durable, and keeps their snapshots: one commit at a time.

    The effects, in their order; each is a comment with its number in the code:

    1. **Write**, the loop's thread: the sink takes the outcomes and encodes them. What people
       said since is decided: it holds from the offset of this commit on. What people are to be
       told once it is durable is recorded with it, and what they were told is struck out.
    2. **View**, the loop's thread, for :data:`VIEW_S` a turn: the streams that have moved, of the
       partitions whose snapshot is due.
    3. **Commit**, a thread of its own: outcomes and offsets become durable, all or nothing; what
       was decided with them, or just before.
    4. **Snapshot**, that thread: what was viewed is encoded and saved, each at an offset that is
       committed by now; there is a snapshot once its last piece is saved.
    5. **Let go**, the loop's thread: of what is durable, and tell.

    Steps 1 and 2 take the loop's time, by the outcomes and by the streams that are viewed; while
    3 and 4 wait for the edges, the loop judges records and does nothing else: source, sink and
    store belong to the other thread, so ownership cannot change under a commit. Outcomes that
    come meanwhile are held behind those under way. If the commit fails, nothing is let go.

    Parameters
    ----------
    ours
        The partitions.
    sink, store
        The edges; without a store there are no snapshots.
    settings
        When a commit and when a snapshot is due.
    outbox
        What people are still to be told of incidents; ``None``: nobody is.
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
        outbox: Outbox | None = None,
        summary: RunSummary,
        tell: Callable[[RunEvent], None],
        clock: Callable[[], float],
    ) -> None:
        self._outbox = outbox
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
        decides = self._ours.to_decide() or any(map(self._strikes_out, self._ours.owned.values()))
        if not n_held and not decides:  # the interval begins with the first outcome
            self._committed_at = max(self._committed_at, now - interval_s)
            return False
        if not n_held:  # what people said holds from here on: nothing has to be waited for
            return True
        waited = now - self._committed_at >= interval_s
        return waited or n_held >= self._settings.commit_every_events

    def _strikes_out(self, owned: OwnedPartition) -> bool:
        """Whether people were told of what is kept as untold."""
        kept = owned.state.decisions.untold
        if not kept or owned.replaying or self._outbox is None:
            return False
        return len(self._outbox.left(owned.state.partition)) < len(kept)

    def _untold(self, owned: OwnedPartition) -> Sequence[Incident]:
        """Return what people are to be told once all that is held is durable."""
        if self._outbox is None:
            return ()
        coming = [change for outcome in owned.held for change in outcome.incidents]
        return self._outbox.left(owned.state.partition, coming)

    def _snapshot_is_due(self, owned: OwnedPartition, now: float) -> bool:
        events, at = owned.snapshot_at
        many = owned.state.n_events - events >= self._settings.snapshot_every_events
        return many or now - at >= self._settings.snapshot_interval_s

    # ---------------------------------------------------------------------------------- commit
    def begin(self, *, everything: bool = False) -> None:
        """Begin to write what is due; with `everything` all that is not durable yet.

        O(outcomes), and :data:`VIEW_S` for snapshots; waits for no edge.

        Raises
        ------
        CheckpointError
            If a partition's offset would go back: others may have gone on from where it stands.
        """
        now = self._clock()
        commits = self._commit_is_due(now) or everything
        work = _Work(begun=now, everything=everything)
        for partition, owned in self._ours.owned.items():
            if owned.held and not commits and not owned.state.parts.under_way:
                continue
            decides = owned.to_decide and commits
            if decides:
                owned.state.decisions.decide(owned.state.next_offset)
            if decides or (commits and (owned.held or self._strikes_out(owned))):  # 1. Write
                _refuse_to_go_back(partition, owned)
                owned.state.decisions.keep_untold(self._untold(owned))
                work.outcomes[partition] = list(owned.held)
                work.offsets[partition] = owned.state.next_offset
                self._sink.write(owned.held)
                decided = owned.state.decided
                if decided is not None and decided is not owned.decided:
                    work.decided[partition] = decided
            if self._store is not None and self._snapshot_goes_on(  # 2. View
                owned, now, everything=everything
            ):
                work.pieces[partition] = owned.state.parts.next_piece(VIEW_S)
        if work.offsets or work.pieces:
            self._under_way = work, self._thread.submit(self._make_durable, work)

    def _snapshot_goes_on(self, owned: OwnedPartition, now: float, *, everything: bool) -> bool:
        """Whether a snapshot is under way, or due and begun."""
        state = owned.state
        if state.parts.under_way and everything:
            state.parts.abandon()  # one that is older than what is durable
        if not state.parts.under_way:
            if state.between or state.n_events <= owned.snapshot_at[0]:
                return False
            if not everything and not self._snapshot_is_due(owned, now):
                return False
            state.begin_snapshot()
            owned.saving = (0, 0.0)
        return True

    def _make_durable(self, work: _Work) -> None:
        if work.offsets:  # 3. Commit
            if self._store is not None:
                for partition, decided in work.decided.items():
                    self._store.save_decisions(partition, decided)
            self._sink.commit(work.offsets)
            work.committed = self._clock()
        for partition in work.pieces:  # 4. Snapshot
            self._save(work, partition)

    def _save(self, work: _Work, partition: Partition) -> None:
        assert self._store is not None
        begun, n_bytes, kept, views = self._clock(), 0, True, work.pieces[partition]
        while kept:
            piece = views.encoded()
            kept = self._store.save(partition, piece)
            n_bytes += sum(len(body) for body in piece.parts.values() if body is not None)
            if not work.everything or views.last:
                break
            # Nothing is judged meanwhile.
            views = self._ours.owned[partition].state.parts.next_piece(VIEW_S)
        work.pieces[partition] = views
        work.saved[partition] = _Saved(kept, n_bytes, self._clock() - begun)

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
        finally:  # 5. Let go
            self._let_go(work)
        return work.committed is not None

    def _let_go(self, work: _Work) -> None:
        ours = self._ours.owned
        if work.committed is not None:
            self._committed_at = work.committed
            for partition, outcomes in work.outcomes.items():
                owned = ours[partition]
                owned.committed = work.offsets[partition]
                owned.decided = work.decided.get(partition, owned.decided)
                del owned.held[: len(outcomes)]
                self._summary.add(outcomes)
            self._summary.n_commits += 1
            n_events = sum(map(len, work.outcomes.values()))
            self._tell(Committed(n_events, work.committed - work.begun, work.offsets))
            for partition, outcomes in work.outcomes.items():
                self._ours.tell_incidents(partition, outcomes)
        for partition, piece in work.pieces.items():
            owned, saved = ours[partition], work.saved.get(partition)
            if saved is None or not saved.kept:
                owned.state.parts.abandon(base_is_gone=saved is not None)
                continue
            n_bytes, seconds = owned.saving
            owned.saving = n_bytes + saved.n_bytes, seconds + saved.seconds
            if piece.last:
                owned.state.parts.keep()
                owned.state.decisions.snapshot_kept(piece.next_offset)
                owned.snapshot_at = (piece.n_events, self._clock())
                self._summary.n_snapshots += 1
                n_bytes, seconds = owned.saving
                self._tell(SnapshotSaved(partition, piece.next_offset, n_bytes, seconds))


def _refuse_to_go_back(partition: Partition, owned: OwnedPartition) -> None:
    if owned.state.next_offset < owned.committed:
        raise CheckpointError(
            f"{partition.topic}-{partition.partition} is committed up to offset {owned.committed}, "
            f"and its state stands at {owned.state.next_offset}: committing that would have "
            "records judged twice. Nothing of it was written; start the run again, it begins at "
            "what is committed."
        )
