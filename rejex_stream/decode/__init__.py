"""Bytes to readings: one record in, one :class:`Reading` or one :class:`Invalid` out.

Nothing a record holds makes a decoder raise. Each format finds the fields; what they mean, and the
sentence about what is wrong, is :meth:`FieldMapping.reading`. Open `mapping` first.
"""

from rejex_stream.decode.csv import CsvDecoder, parse_csv_header
from rejex_stream.decode.json import JsonDecoder
from rejex_stream.decode.mapping import DecidingDecoder, Decoder, decode_records

__all__ = [
    "CsvDecoder", "DecidingDecoder", "Decoder", "JsonDecoder", "decode_records", "parse_csv_header",
]  # fmt: skip
