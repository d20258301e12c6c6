"""A file for Spark: its records with the offsets of `FileSource`, laid out in chunks.

Spark gives rows of a file no place in its order. So the driver reads it as a worker does and lays
the records, a micro-batch a chunk, into a folder that executors read. A Python data source would do
without the folder; Spark gives each of its processes ten seconds to start, which a busy machine
does not keep.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path

from rejex_connectors.durable import sync_folder
from rejex_connectors.files import FileSource
from rejex_stream.types import Record

COLUMNS = "topic string, partition int, offset long, key binary, value binary, timestamp_ms long"
_POLL = 10_000  # records of a poll, and of a piece of a chunk: pieces are decoded side by side
_NAME = re.compile(r"(\d+)-(\d+)\.parquet")
_FIRST_S = 1_000_000_000


class Chunks:
    """Lays the records of a file into a folder, in order; goes on where it was killed."""

    def __init__(self, folder: Path, batch_events: int) -> None:
        self.folder, self._batch = folder, batch_events
        folder.mkdir(parents=True, exist_ok=True)

    def lay(self, source: FileSource, stop: threading.Event) -> None:
        """Lay out what the file holds beyond what is laid out already. O(records)."""
        there = self._there()
        number, first = len(there), there[-1][1] if there else 0
        source.changes()
        source.seek(source.partition, first)
        while not stop.is_set():
            records: list[Record] = []
            while len(records) < self._batch and not source.exhausted:
                records += source.poll(min(_POLL, self._batch - len(records)), 0.2)
            if not records:
                return
            self._write(number, first, records)
            number, first = number + 1, first + len(records)

    def forget(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()

    def done(self) -> None:
        """Empty the chunks, which Spark has read; their names stay."""
        for path in self.folder.glob("*.parquet"):
            at = path.stat()
            os.truncate(path, 0)
            os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))

    def _there(self) -> list[tuple[int, int]]:
        names = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted((int(name[1]), int(name[2])) for name in names if name)

    def _write(self, number: int, first: int, records: Sequence[Record]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {
            "topic": pa.array([r.position.topic for r in records], pa.string()),
            "partition": pa.array([r.position.partition for r in records], pa.int32()),
            "offset": pa.array([r.position.offset for r in records], pa.int64()),
            "key": pa.array([r.key for r in records], pa.binary()),
            "value": pa.array([r.value for r in records], pa.binary()),
            "timestamp_ms": pa.array([r.timestamp_ms for r in records], pa.int64()),
        }
        path = self.folder / f"{first:015d}-{first + len(records):015d}.parquet"
        draft = self.folder / ".draft"  # Spark passes over names with a dot
        pq.write_table(pa.table(columns), draft, row_group_size=_POLL)
        # Spark takes files by their age, and those of one millisecond in any order.
        os.utime(draft, (_FIRST_S + number, _FIRST_S + number))
        with draft.open("rb") as written:
            os.fsync(written.fileno())
        draft.replace(path)
        sync_folder(self.folder)
