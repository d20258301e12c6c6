"""What a check finds, and the findings that both kinds of input have in common."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from rejex_stream.config import Config
from rejex_stream.decode import Decoder
from rejex_stream.decode.written import number_reader
from rejex_stream.settings import toml
from rejex_stream.tables.dialect import find_marks, find_times
from rejex_stream.tables.suspicions import suspect_readings
from rejex_stream.types import Invalid, Reading, Record

__all__ = [
    "Check",
    "Finding",
    "Level",
    "clock_finding",
    "doubt_findings",
    "duration",
    "sample_findings",
]

Level = Literal["ok", "warning", "error", "skipped"]
_FUTURE_S = 300.0
_GOT = re.compile(r"'([^']+)'(?: lies outside|;|$)")


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at.

    Attributes
    ----------
    number, name
        In the order of the checks; one name may have several findings.
    level
        ``error``: the pipeline will not run, or not as promised.
    message
        What was found.
    fix
        What to do; empty where nothing is wrong.
    """

    number: int
    name: str
    level: Level
    message: str
    fix: str = ""


class Finding(msgspec.Struct, frozen=True):
    """What one check found, before it is numbered."""

    level: Level
    message: str
    fix: str = ""


def duration(seconds: float) -> str:
    """Return a length of time in the unit that fits."""
    units = (("years", 31_557_600), ("days", 86_400), ("h", 3600), ("min", 60))
    for unit, length in units:
        if abs(seconds) >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.2g} s"


def clock_finding(readings: list[Reading], now_s: float) -> Finding:
    """Compare the newest event time with this machine's clock."""
    newest = max(reading.event_time_ms for reading in readings) / 1000
    ahead = newest - now_s
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(newest))
    if ahead > _FUTURE_S:
        return Finding(
            "warning",
            f"the newest event is of {when}, {duration(ahead)} ahead of this clock",
            "check input.time_unit, the sensor's clock and this machine's",
        )
    return Finding("ok", f"the newest event is of {when}, {duration(-ahead)} ago")


def sample_findings(
    records: Sequence[Record],
    decoded: Sequence[Reading | Invalid],
    decoder: Decoder,
    flags: Sequence[str] = (),
) -> Iterator[Finding]:
    """Say how many of the sample can be read, the first that cannot, and channels nobody has."""
    readings = [item for item in decoded if isinstance(item, Reading)]
    invalid = [item for item in decoded if isinstance(item, Invalid)]
    if not decoded:
        yield Finding("warning", "there is no record yet", "send one, then look again")
        return
    sensors = len({reading.sensor for reading in readings})
    if invalid:
        first = invalid[0]
        yield Finding(
            "error" if not readings else "warning",
            f"{len(invalid)} of {len(decoded)} records cannot be read; {first.position}: "
            f"{first.reason}",
            _mend_of(first.reason),
        )
    if readings:
        yield Finding("ok", f"{len(readings)} records of {sensors} sensor(s) can be read")
    missing = [
        sum(value != value for value in column)  # noqa: PLR0124 - nan
        for column in zip(*(reading.values for reading in readings), strict=True)
    ]
    if readings and max(missing, default=0) == len(readings):
        lost = [
            n for n, count in zip(decoder.channels, missing, strict=True) if count == len(readings)
        ]
        names = [name for name in lost if name not in flags] or lost
        newest = decoded.index(readings[-1])
        lacking = getattr(decoder, "lacking", None)
        why = "" if lacking is None else f"; in {readings[-1].position} {lacking(records[newest])}"
        in_score = names[0] not in flags
        yield Finding(
            "error" if in_score else "warning",
            f"missing everywhere: {', '.join(map(repr, names))}{why}",
            ("no event can be scored without" if in_score else "the reviewer will not see it")
            + "; mend the field in input.channels",
        )


def doubt_findings(
    config: Config,
    records: Sequence[Record],
    decoded: Sequence[Reading | Invalid],
    decoder: Decoder,
) -> Iterator[Finding]:
    """Ask the table of suspicions about what can be read of the sample."""
    pairs = zip(decoded, records, strict=True)
    read = [(item, record) for item, record in pairs if isinstance(item, Reading)]
    fields = getattr(decoder, "fields", None)  # Avro and Protobuf have none that are texts alone
    rows = [] if fields is None else [fields(record) for _, record in read]
    for one in suspect_readings(config, [item for item, _ in read], rows):
        yield Finding("warning", one.seen, one.setting)


def _mend_of(reason: str) -> str:
    """Say what to write, where what stands in the record tells it."""
    got = _GOT.search(reason)
    text = got[1] if got else ""
    if "UTF-8" in reason:
        return 'give input.encoding, such as "cp1252"'
    if reason.startswith("time: "):
        written = find_times([text])
        if written is None:
            return "mend input.time, or give input.time_format"
        key, value = (
            ("unit", written.unit) if written.format is None else ("format", written.format)
        )
        return f'give input.time_{key} = "{value}"'
    marks = find_marks([text])
    if "expected a number" in reason and number_reader(*marks)(text) is not None:
        marked = [f'input.thousands = "{marks.thousands}"'] if marks.thousands else []
        marked += [f'input.decimal = "{marks.decimal}"'] if marks.decimal != "." else []
        return "give " + ", ".join(marked or ['input.numbers = "text"'])
    if "expected a number" in reason and text and not any(map(str.isdigit, text)):
        return f"if it stands for no value, give input.missing = [{toml(text)}]"
    return "compare [input] with the records; `rejex-stream init` guesses it"
