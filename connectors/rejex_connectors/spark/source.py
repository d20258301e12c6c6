"""A file as a streaming source of Spark, with the offsets that `FileSource` gives its records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rejex_connectors.files import FileSource
from rejex_stream.types import Record

__all__ = ["RECORDS", "file_records"]

RECORDS = "topic string, partition int, offset long, key binary, value binary, timestamp_ms long"
_POLL = 10_000


class _Reader:
    """Reads on where it stands; goes back where Spark repeats a batch. The driver's alone.

    Parameters
    ----------
    open_source
        Opens the file at its beginning.
    batch_events
        Records of a micro-batch.
    """

    def __init__(self, open_source: Callable[[], FileSource], batch_events: int) -> None:
        self._open, self._batch = open_source, batch_events
        self._source: FileSource | None = None
        self._next = -1

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"next": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[Any, ...]], dict[str, int]]:
        rows = self._rows(start["next"], self._batch)
        return iter(rows), {"next": start["next"] + len(rows)}

    def readBetweenOffsets(  # noqa: N802
        self, start: dict[str, int], end: dict[str, int]
    ) -> Iterator[tuple[Any, ...]]:
        return iter(self._rows(start["next"], end["next"] - start["next"]))

    def commit(self, end: dict[str, int]) -> None:
        pass

    def _rows(self, first: int, most: int) -> list[tuple[Any, ...]]:
        source = self._source
        if source is None:
            source = self._source = self._open()
        if first != self._next:
            source.seek(source.partition, first)
        rows: list[tuple[Any, ...]] = []
        while len(rows) < most and not source.exhausted:
            rows += map(_row, source.poll(min(_POLL, most - len(rows)), 0.2))
        self._next = first + len(rows)
        return rows


def _row(record: Record) -> tuple[Any, ...]:
    position, key, value, _, time_ms = record
    return (*position, key, value, time_ms)


def file_records(open_source: Callable[[], FileSource], batch_events: int) -> type:
    """Return a data source of Spark for one file, to be registered with a session.

    Parameters
    ----------
    open_source
        Opens the file at its beginning; called in a process of Spark's driver.
    batch_events
        Records of a micro-batch.

    Notes
    -----
    One process of the driver reads: about 10⁵ records a second. Topics are read by executors.
    """
    from pyspark.sql.datasource import DataSource

    class FileRecords(DataSource):  # type: ignore[misc] # without the extra it is Any
        @classmethod
        def name(cls) -> str:
            return "rejex_file"

        def schema(self) -> str:
            return RECORDS

        def simpleStreamReader(self, schema: Any) -> Any:  # noqa: ANN401, N802
            return _Reader(open_source, batch_events)

    return FileRecords
