"""Where review items and verdicts come from: JSON Lines files that grow, or any source.

Both kinds of input remember where to go on in the same transaction that stores what was read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeAlias

from rejex_stream.errors import ConnectorError
from rejex_stream.protocols import Assigned, Source
from rejex_stream.review.ingest import IntakeCounts
from rejex_stream.review.store import ReviewStore
from rejex_stream.types import Partition

__all__ = ["Feed", "FeedKind", "FileFeed", "SourceFeed", "Stop", "Tap", "own_partition"]

FeedKind: TypeAlias = Literal["review", "verdicts"]
Tap: TypeAlias = Callable[[list[bytes]], None] | None
Stop: TypeAlias = Callable[[], bool] | None
_log = logging.getLogger(__name__)
_CHUNK_BYTES = 1 << 20
_MAX_RECORDS = 500
_LONGEST_LINE_BYTES = 64 << 20


class Feed(Protocol):
    """Where review items or verdicts come from; remembers in the store how far it was read."""

    kind: FeedKind
    pipeline: str

    def pump(self, store: ReviewStore, *, tap: Tap = None, stop: Stop = None) -> IntakeCounts:
        """Take what is there; `tap` also gets the lines, once stored; `stop` is asked often."""
        ...

    def close(self) -> None:
        """Let go of the input."""
        ...


class _Chunk(NamedTuple):
    lines: list[bytes]
    next_offset: int


class FileFeed:
    """A JSON Lines file that may still grow; every call of :meth:`pump` takes what is new.

    Parameters
    ----------
    path
        Need not exist yet.
    kind
        What a line holds: review items or verdicts.
    pipeline
        Whose they are.
    """

    def __init__(self, path: Path, kind: FeedKind, pipeline: str = "") -> None:
        self.path = path
        self.kind = kind
        self.pipeline = pipeline
        # The place in the file is kept under the file's name, apart from the topics inside.
        self._partition = Partition(f"file:{kind}:{path.resolve()}", 0)

    def pump(self, store: ReviewStore, *, tap: Tap = None, stop: Stop = None) -> IntakeCounts:
        """Take every whole line that is there; returns what became of them.

        Parameters
        ----------
        tap
            Also gets every chunk of lines, once it is stored.
        stop
            Asked between chunks.
        """
        total = IntakeCounts()
        while stop is None or not stop():
            offset = store.next_offset(self._partition) or 0
            chunk = self._read(offset)
            if not chunk.lines and chunk.next_offset == offset:
                return total
            total += store.take(
                self.kind,
                chunk.lines,
                {self._partition: chunk.next_offset},
                pipeline=self.pipeline,
            )
            if tap is not None:
                tap(chunk.lines)
        return total

    def _read(self, offset: int) -> _Chunk:
        try:
            size = self.path.stat().st_size
            if size < offset:  # a new file under the old name; known events are recognised
                offset = 0
            with self.path.open("rb") as file:
                file.seek(offset)
                data = file.read(_CHUNK_BYTES)
                while data and b"\n" not in data:
                    more = file.read(_CHUNK_BYTES)
                    if not more:
                        break
                    data += more
                    if len(data) > _LONGEST_LINE_BYTES:
                        raise ConnectorError(
                            f"A line of {str(self.path)!r} is longer than 64 MiB: "
                            f"give a file of {self.kind} as JSON Lines."
                        )
        except FileNotFoundError:
            return _Chunk([], offset)
        except OSError as error:
            raise ConnectorError(
                f"{str(self.path)!r} cannot be read ({error.strerror}): check the path.",
                retriable=True,
            ) from error
        end = data.rfind(b"\n") + 1
        return _Chunk([line for line in data[:end].split(b"\n") if line.strip()], offset + end)

    def close(self) -> None:
        """Nothing is held open between two calls."""


class SourceFeed:
    """Any :class:`~rejex_stream.protocols.Source`, such as the review topic.

    Parameters
    ----------
    open_source
        Opens a source of encoded review items or verdicts; this feed seeks to where the store
        stopped. Called at the first pump, and anew after a failure: a console outlives its broker.
    kind
        What a record holds.
    pipeline
        Whose they are.
    """

    def __init__(
        self, open_source: Callable[[], Source], kind: FeedKind, pipeline: str = ""
    ) -> None:
        self._open_source = open_source
        self._source: Source | None = None
        self.kind = kind
        self.pipeline = pipeline

    def pump(self, store: ReviewStore, *, tap: Tap = None, stop: Stop = None) -> IntakeCounts:
        """Take what the source has; returns at the first empty poll, or when `stop` says so."""
        try:
            if self._source is None:
                self._source = self._open_source()
            return self._pump(self._source, store, tap, stop)
        except ConnectorError:
            self.close()
            raise

    def _pump(self, source: Source, store: ReviewStore, tap: Tap, stop: Stop) -> IntakeCounts:
        total = IntakeCounts()
        while stop is None or not stop():
            records = source.poll(_MAX_RECORDS, 0.2)
            for change in source.changes():
                if isinstance(change, Assigned):
                    source.seek(change.partition, _start(store, change))
            if not records:
                return total
            positions: dict[Partition, int] = {}
            lines: list[bytes] = []
            for record in records:
                topic, partition, offset = record.position
                positions[own_partition(Partition(topic, partition))] = offset + 1
                if record.value is not None:
                    lines.append(record.value)
            total += store.take(self.kind, lines, positions, pipeline=self.pipeline)
            if tap is not None:
                tap(lines)
        return total

    def close(self) -> None:
        """Let go of the source."""
        if self._source is not None:
            self._source.close()
            self._source = None


def _start(store: ReviewStore, change: Assigned) -> int:
    known = store.next_offset(own_partition(change.partition))
    if known is None:
        return change.earliest
    if known < change.earliest:
        _log.warning(
            "%s-%d: records %d to %d were deleted by the broker before the console read them; "
            "keep the topic for longer than the console may be away",
            *change.partition,
            known,
            change.earliest - 1,
        )
    return max(known, change.earliest)


def own_partition(partition: Partition) -> Partition:
    """Return the name under which the store keeps how far a topic's partition was read."""
    return Partition(f"source:{partition.topic}", partition.partition)
