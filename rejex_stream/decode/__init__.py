"""Bytes to readings: one record in, one :class:`Reading` or one :class:`Invalid` out.

Nothing a record holds makes a decoder raise. Each decoder has two ways: a quick one for what
almost every record looks like, and a thorough one (:meth:`FieldMapping.reading`) that says in a
sentence what is wrong. Where the quick way succeeds both give the same reading, which is a test.
Open `mapping` first.
"""

from rejex_stream.decode.csv import CsvDecoder, parse_csv_header
from rejex_stream.decode.json import JsonDecoder
from rejex_stream.decode.mapping import DecidingDecoder, Decoder, decode_records

__all__ = [
    "CsvDecoder", "DecidingDecoder", "Decoder", "JsonDecoder", "decode_records", "parse_csv_header",
]  # fmt: skip
