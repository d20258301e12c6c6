"""Bytes to readings: one record in, one :class:`Reading` or one :class:`Invalid` out.

Nothing a record holds makes a decoder raise. Each decoder has two ways: a quick one for what
almost every record looks like, and a thorough one (:meth:`FieldMapping.reading`) that says in a
sentence what is wrong. Where the quick way succeeds both give the same reading, which is a test.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from rejex_stream.decode.csv import CsvDecoder, parse_csv_header
from rejex_stream.decode.json import JsonDecoder
from rejex_stream.types import Invalid, Reading, Record

__all__ = ["CsvDecoder", "DecidingDecoder", "Decoder", "JsonDecoder", "parse_csv_header"]


class Decoder(Protocol):
    """Turns records into readings for one mapping."""

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels, in the order of ``Reading.values``."""
        ...

    def decode(self, record: Record) -> Reading | Invalid:
        """Decode one record; never raises on what the record holds."""
        ...


@runtime_checkable
class DecidingDecoder(Decoder, Protocol):
    """A decoder that asks others, so that what it decided must become durable with the outcomes."""

    def of_partition(self, decisions: bytes | None, *, decided_until: int) -> DecidingDecoder:
        """Return a decoder of one partition, for which what lies before `decided_until` stands."""
        ...

    def decisions(self) -> bytes:
        """Return what was decided so far; the same object while nothing was added."""
        ...
