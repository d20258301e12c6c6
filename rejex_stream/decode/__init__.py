"""Bytes to readings: one record in, one :class:`Reading` or one :class:`Invalid` out.

Nothing a record holds makes a decoder raise. Each decoder has two ways: a quick one for what
almost every record looks like, and a thorough one (:meth:`FieldMapping.reading`) that says in a
sentence what is wrong. Where the quick way succeeds both give the same reading, which is a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from rejex_stream.decode.csv import CsvDecoder, parse_csv_header
from rejex_stream.decode.json import JsonDecoder
from rejex_stream.types import Invalid, Reading, Record

__all__ = [
    "CsvDecoder",
    "DecidingDecoder",
    "Decoder",
    "JsonDecoder",
    "decode_all",
    "parse_csv_header",
]


class Decoder(Protocol):
    """Turns records into readings for one mapping."""

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels, in the order of ``Reading.values``."""
        ...

    def decode(self, record: Record) -> Reading | Invalid:
        """Decode one record; never raises on what the record holds."""
        ...


def decode_all(decoder: Decoder, records: Sequence[Record]) -> list[Reading | Invalid]:
    """Decode records in order, at once where the decoder can."""
    at_once = getattr(decoder, "decode_all", None)  # decoders of one's own need not know
    if at_once is None:
        return [decoder.decode(record) for record in records]
    found: list[Reading | Invalid] = at_once(records)
    return found


@runtime_checkable
class DecidingDecoder(Decoder, Protocol):
    """A decoder that asks others, so that what it decided must become durable with the outcomes."""

    def of_partition(self, decisions: bytes | None, *, decided_until: int) -> DecidingDecoder:
        """Return a decoder of one partition, for which what lies before `decided_until` stands."""
        ...

    def decisions(self) -> bytes:
        """Return what was decided so far; the same object while nothing was added."""
        ...
