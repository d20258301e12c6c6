"""Readings around an event, read from the input itself by position; bounded in all it does.

The store has what review items carry, and a clear fault sends few. Each step reads so many records
before the event and after it, of all sensors of its partition. What was not read stays unknown, and
is drawn so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from typing import NamedTuple

from rejex_connectors.files.sink import read_input

from rejex_stream.config import Config
from rejex_stream.config.assembly import (
    file_decoder,
    file_places,
    kafka_decoder,
    kafka_settings,
    open_source,
)
from rejex_stream.decode import Decoder, decode_records
from rejex_stream.errors import ConfigError
from rejex_stream.types import Partition, Position, Reading, Record

RECORDS = 5_000  # read by one step on either side of the event
_MAX_BYTES = 32 << 20
_PATIENCE_S = 6.0


def _elsewhere(position: Position, topic: str) -> str:
    return (
        f"Readings of incident {position} cannot be shown: the config reads {topic}, and its input "
        "no more. Nothing else is affected."
    )


class Found(NamedTuple):
    """What one step has read."""

    channels: tuple[str, ...]
    # (event time in ms, values) of the sensor; `None` where a channel is missing
    points: tuple[tuple[int, tuple[float | None, ...]], ...]
    cut: str  # why not everything that was asked for was read, or empty


class ContextLoader:
    """Reads the input of a pipeline around positions, for one asker at a time."""

    def __init__(
        self, config: Config, *, records: int = RECORDS, patience_s: float = _PATIENCE_S
    ) -> None:
        if config.input.kind == "file" and config.input.path == "-":
            raise ConfigError("standard input cannot be read twice: readings wait for a file.")
        self._config = config
        self._records, self._patience_s = records, patience_s
        self._busy = threading.Lock()

    def around(self, position: Position, stream_key: str, sensor: str, step: int) -> Found:
        """Read the records that lie `step - 1` to `step` times the width before and after."""
        if not self._busy.acquire(blocking=False):
            raise ConfigError("The input is being read for somebody else: try again in a moment.")
        try:
            near, far = (step - 1) * self._records, step * self._records
            at = position.offset
            stretches = [(max(0, at - far), max(0, at - near)), (at + near, at + far)]
            opened = self._topic if self._config.input.kind == "kafka" else self._file
            decoder, records = opened(position, stretches)
            return self._read(decoder, records, stream_key, sensor)
        finally:
            self._busy.release()

    def _read(
        self, decoder: Decoder, records: Iterator[Record | None], stream_key: str, sensor: str
    ) -> Found:
        until_s = time.monotonic() + self._patience_s
        points, n_bytes, cut = list[tuple[int, tuple[float | None, ...]]](), 0, ""
        for record in records:
            if time.monotonic() > until_s:
                cut = f"reading took longer than {self._patience_s:g} s"
                break
            if record is None or record.value is None:
                continue
            n_bytes += len(record.value)
            for outcome in decode_records(decoder, [record])[1]:
                if isinstance(outcome, Reading) and (outcome.stream_key, outcome.sensor) == (
                    stream_key,
                    sensor,
                ):
                    values = tuple(None if v != v else v for v in outcome.values)  # noqa: PLR0124
                    points.append((outcome.event_time_ms, values))
            if n_bytes > _MAX_BYTES:
                cut = f"the records hold more than {_MAX_BYTES >> 20} MiB"
                break
        return Found(tuple(decoder.channels), tuple(points), cut)

    def _topic(
        self, position: Position, stretches: list[tuple[int, int]]
    ) -> tuple[Decoder, Iterator[Record | None]]:
        from rejex_connectors.kafka.partition_reader import read_partition

        settings = kafka_settings(self._config)
        if position.topic not in settings.topics.input:
            raise ConfigError(_elsewhere(position, ", ".join(settings.topics.input)))
        partition = Partition(position.topic, position.partition)
        return kafka_decoder(self._config), chain.from_iterable(
            read_partition(settings, partition, low, high) for low, high in stretches if low < high
        )

    def _file(
        self, position: Position, stretches: list[tuple[int, int]]
    ) -> tuple[Decoder, Iterator[Record | None]]:
        config = self._config.without_follow()
        state = file_places(config).state
        source = open_source(config)  # without its state folder, into which it would write
        if position.topic != source.partition.topic:
            source.close()
            raise ConfigError(_elsewhere(position, source.partition.topic))
        known = None if state is None else read_input(state, position.topic)
        first = 0 if known is None else known.first_offset
        if position.offset < first:
            source.close()
            raise ConfigError(f"{position} stood in a file that was rotated away.")

        def records() -> Iterator[Record | None]:
            with closing(source):
                source.changes()
                source.seek(source.partition, 0)
                last = max(high for _, high in stretches)
                while not source.exhausted:
                    batch = source.poll(1000, timeout_s=0.2)
                    yield None  # a long way to the item is bounded, too
                    for record in batch:
                        offset = record.position.offset + first
                        if offset >= last:
                            return
                        if any(low <= offset < high for low, high in stretches):
                            yield record

        return file_decoder(config, source), records()
