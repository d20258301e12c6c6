"""Bytes to readings: one record in, one :class:`Reading` or one :class:`Invalid` out.

Nothing a record holds makes a decoder raise. Each decoder has two ways: a quick one for what
almost every record looks like, and a thorough one (:meth:`FieldMapping.reading`) that says in a
sentence what is wrong. Where the quick way succeeds both give the same reading, which is a test.
Open `mapping` first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from rejex_stream.decode.csv import CsvDecoder, parse_csv_header
from rejex_stream.decode.json import JsonDecoder
from rejex_stream.types import Invalid, Reading, Record, SelectedRecord, UnreadRecord

__all__ = [
    "CsvDecoder",
    "DecidingDecoder",
    "Decoder",
    "JsonDecoder",
    "decode_records",
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


def decode_records(
    decoder: Decoder, records: Sequence[Record]
) -> tuple[Sequence[Record], list[Reading | Invalid]]:
    """Decode records in order, at once where the decoder can.

    Returns the records, each as often as it holds readings, at least once, and what they are.
    """
    expand = getattr(decoder, "expand", None)  # decoders of one's own need neither of these
    at_once = getattr(decoder, "decode_all", None)
    if expand is not None:
        records = expand(records)
    refused = [_refused(record) for record in records]
    good = records
    if refused.count(None) < len(refused):
        good = [record for record, why in zip(records, refused, strict=True) if why is None]
    found: list[Reading | Invalid] = (
        [decoder.decode(record) for record in good] if at_once is None else at_once(good)
    )
    if good is not records:
        rest = iter(found)
        found = [next(rest) if why is None else why for why in refused]
    return records, found


def _refused(record: Record) -> Invalid | None:
    """Return why there is nothing to decode, where that is known."""
    if type(record) is Record:
        return None
    if isinstance(record, UnreadRecord):
        return Invalid(record.position, record.stage, record.reason)
    return record.invalid if isinstance(record, SelectedRecord) else None


@runtime_checkable
class DecidingDecoder(Decoder, Protocol):
    """A decoder that asks others, so that what it decided must become durable with the outcomes."""

    def of_partition(self, decisions: bytes | None, *, decided_until: int) -> DecidingDecoder:
        """Return a decoder of one partition, for which what lies before `decided_until` stands."""
        ...

    def decisions(self) -> bytes:
        """Return what was decided so far; the same object while nothing was added."""
        ...
