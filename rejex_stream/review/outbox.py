"""Labels on their way out: written with the decision, sent afterwards, never lost.

A crash between sending and noting that it was sent publishes a label twice, with the same id both
times; readers keep the first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from rejex_stream.errors import ConnectorError
from rejex_stream.review.labels import LabelRecord, decode_label
from rejex_stream.review.storage import Database

__all__ = ["LabelFile", "LabelSink", "OutboxRow", "pending", "read_labels", "relay"]


class OutboxRow(NamedTuple):
    """One encoded label record that waits to be sent."""

    seq: int
    label_id: str
    key: bytes
    value: bytes


class LabelSink(Protocol):
    """Where labels go: a file, a topic. Order within a key must be kept."""

    def publish(self, rows: Sequence[OutboxRow]) -> Sequence[str]:
        """Make all rows durable, then return where each went (``labels-0@553``); or raise."""
        ...

    def close(self) -> None:
        """Let go of the output."""
        ...


class LabelFile:
    """Appends label records to a JSON Lines file, synced to disk before they count as sent.

    Parameters
    ----------
    path
        Made if missing. A line that a crash cut short is dropped: its label is still in the outbox.

    Raises
    ------
    ConnectorError
        If the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab+")
        except OSError as error:
            raise ConnectorError(
                f"The labels file {str(path)!r} cannot be written ({error.strerror}): "
                "give a path that can."
            ) from error
        self._lines = self._mend()

    def _mend(self) -> int:
        self._file.seek(0)
        whole, lines = 0, 0
        while chunk := self._file.read(1 << 20):
            lines += chunk.count(b"\n")
            if b"\n" in chunk:
                whole = self._file.tell() - len(chunk) + chunk.rindex(b"\n") + 1
        self._file.truncate(whole)
        return lines

    def publish(self, rows: Sequence[OutboxRow]) -> Sequence[str]:
        """Append the rows and sync them to disk."""
        places = [f"{self.path.name}@{self._lines + i}" for i in range(len(rows))]
        try:
            self._file.write(b"".join(row.value + b"\n" for row in rows))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ConnectorError(
                f"The labels file {str(self.path)!r} cannot be written ({error.strerror}); "
                "the labels wait in the store.",
                retriable=True,
            ) from error
        self._lines += len(rows)
        return places

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def pending(database: Database) -> int:
    """Return how many labels wait to be sent."""
    with database.read() as connection:
        query = "SELECT count(*) FROM outbox WHERE sent_ms IS NULL"
        return int(connection.execute(query).fetchone()[0])


def relay(database: Database, sink: LabelSink, now_ms: int, *, batch: int = 500) -> int:
    """Send what waits, oldest first, and note that it was sent; returns how many."""
    sent = 0
    while True:
        with database.read() as connection:
            rows = [
                OutboxRow(*tuple(row))
                for row in connection.execute(
                    "SELECT seq, label_id, key, value FROM outbox WHERE sent_ms IS NULL "
                    "ORDER BY seq LIMIT ?",
                    (batch,),
                )
            ]
        if not rows:
            return sent
        places = sink.publish(rows)
        with database.write() as connection:
            connection.executemany(
                "UPDATE outbox SET sent_ms = ?, place = ? WHERE seq = ?",
                [(now_ms, place, row.seq) for row, place in zip(rows, places, strict=True)],
            )
        sent += len(rows)


def read_labels(path: Path) -> Iterator[LabelRecord]:
    """Yield the records of a labels file in order, each once; an unfinished last line is left out.

    Raises
    ------
    ConnectorError
        If the file cannot be read, or a whole line is no label record.
    """
    seen: set[str] = set()
    try:
        with path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n") or not line.strip():
                    continue
                record = decode_label(line)
                if record.label_id not in seen:
                    seen.add(record.label_id)
                    yield record
    except OSError as error:
        raise ConnectorError(
            f"The labels file {str(path)!r} cannot be read ({error.strerror}): check the path."
        ) from error
