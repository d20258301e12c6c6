"""The review store: everything people and pipelines do to the queue, one transaction each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from rejex_stream.encode import decode_review, decode_verdict
from rejex_stream.errors import ConnectorError
from rejex_stream.review import decisions, expiry, ingest, leases, outbox, series, similar
from rejex_stream.review import snooze as snoozing
from rejex_stream.review import undo as undoing
from rejex_stream.review.actions import Done
from rejex_stream.review.database import SqliteDatabase
from rejex_stream.review.decisions import Decision
from rejex_stream.review.ingest import Intake, IntakeCounts
from rejex_stream.review.leases import Lease
from rejex_stream.review.queue import QueueFilter, Viewer
from rejex_stream.review.settings import ReviewSettings
from rejex_stream.review.storage import Database
from rejex_stream.types import Partition, ReviewItem, Verdict

__all__ = ["ReviewStore", "wall_clock_ms"]


def wall_clock_ms() -> int:
    """Return UTC milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class ReviewStore:
    """A review queue in one database.

    Safe for several threads and processes. Methods that change something are one transaction each;
    pages read through :attr:`database`.

    Parameters
    ----------
    place
        The SQLite file, made if missing, on a local disk; or a database that is open, which is
        closed with the store.
    settings
        How the queue works.
    clock_ms
        Wall clock, for leases and ages; replaced in tests.

    Examples
    --------
    >>> import tempfile
    >>> from rejex_stream.types import Label, Position, Reason
    >>> verdict = Verdict(position=Position("feed", 0, 0), stream_key="T07", sensor="T07/vib",
    ...     event_time_ms=0, seq=0, label=Label.REJECTED, reason=Reason.AMBIGUOUS)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = ReviewStore(Path(folder) / "review.db")
    ...     counts = store.add([ReviewItem(verdict=verdict, channels=("vib",), values=(0.4,))])
    ...     lease = store.claim_next(QueueFilter(), Viewer("ada"))
    ...     target = decisions.Target(lease.episode_id, 1, "open")
    ...     done = store.decide(
    ...         Decision(request_id="1", verdict="normal", targets=(target,)), Viewer("ada"))
    ...     store.close()
    >>> counts.items, done.message
    (1, '1 episode (1 event) marked normal')
    """

    def __init__(
        self,
        place: Path | Database,
        settings: ReviewSettings | None = None,
        *,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.settings = settings or ReviewSettings()
        self.database: Database = SqliteDatabase(place) if isinstance(place, Path) else place
        self.now_ms = clock_ms

    # ------------------------------------------------------------------------------ coming in
    def take(
        self,
        kind: Literal["review", "verdicts"],
        lines: Iterable[bytes],
        positions: Mapping[Partition, int] | None = None,
        *,
        pipeline: str = "",
    ) -> IntakeCounts:
        """Take encoded records, and with them where to go on; unreadable ones are only counted."""
        read: list[tuple[ReviewItem | Verdict, bytes]] = []
        refused = IntakeCounts()
        for line in lines:
            try:
                one = decode_review(line) if kind == "review" else decode_verdict(line)
            except ConnectorError as error:
                refused.refuse(str(error))
            else:
                read.append((one, line))
        with self.database.write() as connection:
            intake = Intake(connection, self.settings, self.now_ms(), pipeline)
            for one, line in read:
                if isinstance(one, ReviewItem):
                    intake.item(one, line)
                else:
                    intake.verdict(one)
            counts = intake.finish(positions)
        counts += refused
        return counts

    def add(
        self, items: Iterable[ReviewItem] = (), verdicts: Iterable[Verdict] = ()
    ) -> IntakeCounts:
        """Take review items and verdicts that are already decoded."""
        from rejex_stream.encode import encode_review

        with self.database.write() as connection:
            intake = Intake(connection, self.settings, self.now_ms())
            for verdict in verdicts:
                intake.verdict(verdict)
            for item in items:
                intake.item(item, encode_review(item))
            return intake.finish()

    def add_readings(
        self,
        stream_key: str,
        sensor: str,
        channels: Sequence[str],
        points: Iterable[tuple[int, tuple[float | None, ...]]],
        *,
        pipeline: str = "",
    ) -> None:
        """Add plain readings (event time in ms, values), so that plots show them."""
        with self.database.write() as connection:
            intake = Intake(connection, self.settings, self.now_ms(), pipeline)
            intake.readings(stream_key, sensor, channels, points)
            intake.finish()

    def next_offset(self, partition: Partition) -> int | None:
        """Return where to go on reading an input; ``None`` if it was never read."""
        with self.database.read() as connection:
            return ingest.next_offset(connection, partition)

    # --------------------------------------------------------------------------------- people
    def claim(self, episode: str, viewer: Viewer) -> Lease:
        """Claim one episode."""
        with self.database.write() as connection:
            return leases.claim(
                connection,
                episode,
                viewer.reviewer,
                now_ms=self.now_ms(),
                lease_ms=self.settings.lease_ms,
            )

    def claim_next(self, chosen: QueueFilter, viewer: Viewer) -> Lease:
        """Claim the first episode of a view that nobody holds."""
        with self.database.write() as connection:
            return leases.claim_next(
                connection,
                chosen,
                viewer,
                now_ms=self.now_ms(),
                lease_ms=self.settings.lease_ms,
            )

    def renew(self, episode: str, viewer: Viewer) -> Lease:
        """Extend one's claim."""
        with self.database.write() as connection:
            return leases.renew(
                connection,
                episode,
                viewer.reviewer,
                now_ms=self.now_ms(),
                lease_ms=self.settings.lease_ms,
            )

    def release(self, episode: str, viewer: Viewer) -> bool:
        """Give up one's claim."""
        with self.database.write() as connection:
            return leases.release(connection, episode, viewer.reviewer, now_ms=self.now_ms())

    def decide(self, decision: Decision, viewer: Viewer) -> Done:
        """Give a verdict to one or several episodes, all or none."""
        with self.database.write() as connection:
            done = decisions.decide(connection, decision, viewer, self.settings, self.now_ms())
            for episode in done.episodes:
                similar.remember(connection, episode)
            return done

    def snooze(
        self,
        request_id: str,
        episodes: Sequence[str],
        viewer: Viewer,
        *,
        until_ms: int,
        growth: bool = False,
    ) -> Done:
        """Put episodes off until a time, with `growth` at most until they grow."""
        with self.database.write() as connection:
            return snoozing.snooze(
                connection,
                request_id,
                episodes,
                viewer,
                until_ms=until_ms,
                growth=growth,
                now_ms=self.now_ms(),
            )

    def undo(self, request_id: str, viewer: Viewer) -> Done:
        """Take back one's latest action that still stands."""
        with self.database.write() as connection:
            return undoing.undo(connection, request_id, viewer, self.settings, self.now_ms())

    # ------------------------------------------------------------------------------ upkeep
    def expire_due(self) -> list[str]:
        """Let episodes that nobody looked at in time go with the fallback."""
        with self.database.write() as connection:
            return expiry.expire_due(connection, self.settings, self.now_ms())

    def relay(self, sink: outbox.LabelSink) -> int:
        """Send the labels that wait; returns how many."""
        return outbox.relay(self.database, sink, self.now_ms())

    def forget_old_points(self) -> None:
        """Drop full-resolution points beyond what a sensor keeps."""
        with self.database.write() as connection:
            series.forget(connection, self.settings.points_per_sensor)

    def close(self) -> None:
        """Close the database."""
        self.database.close()
