"""Numbers and times as people and programs write them.

Decimal and thousands marks, units, texts that stand for no value; zones by name or offset, and the
two hours a year that a clock cannot say.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from ctypes import c_float
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from rejex_stream.errors import ConfigError

DECIMALS = (".", ",")
THOUSANDS = (",", ".", " ", "'")

MISSING_TEXTS = frozenset(("", "nan", "na", "n/a", "null", "none"))
"""What stands in a cell without a value."""

_LIKE_A_NUMBER = re.compile(r"[+-]?[.,]?\d")
_SIGNED = re.compile(r"([+\-\u2212])\s*([.,]?\d.*)|([.,]?\d.*)-")

# Spreadsheets write several characters where people see one.
_LOOKALIKES = {" ": " \u00a0\u2009\u202f", "'": "'’"}


ANY_TEXT = "*"
"""In the place of texts that stand for no value: all that do not begin as a number does."""


def number_reader(
    decimal: str = ".",
    thousands: str | None = None,
    missing: Iterable[str] = (),
    units: Iterable[str] = (),
) -> Callable[[str], float | None]:
    """Make what reads a text as a number, strictly: ``None`` where it is none.

    A thousands mark must stand between groups of three digits, the first no zero, so ``1,5`` is
    never fifteen and ``0,038`` never 38. An empty cell and ``nan``, ``na``, ``n/a``, ``null`` and
    ``none`` are nan, and so is infinity; and the texts of `missing` in any case, of which a number
    such as ``-999`` counts however it is written, and ``*`` is any text that does not begin as a
    number does. `units` may stand behind a number.
    """
    if decimal not in DECIMALS:
        raise ConfigError(f"decimal is {decimal!r}: expected '.' or ','")
    if thousands is not None and thousands not in THOUSANDS:
        raise ConfigError(
            f"thousands is {thousands!r}: expected one of ',', '.', ' ' and \"'\", or leave it out"
        )
    if thousands == decimal:
        raise ConfigError(f"decimal and thousands are both {decimal!r}: expected two marks")
    point = re.escape(decimal)
    shape = rf"[+-]?(?:\d+(?:{point}\d*)?|{point}\d+)(?:[eEdD][+-]?\d+)?"
    marks = "" if thousands is None else _LOOKALIKES.get(thousands, thousands)
    if marks:
        shape += rf"|[+-]?[1-9]\d{{0,2}}(?:[{re.escape(marks)}]\d{{3}})+(?:{point}\d*)?"
    fits = re.compile(shape, re.ASCII).fullmatch
    plain = str.maketrans({**dict.fromkeys(marks), decimal: ".", "d": "e", "D": "e"})

    is_usual = decimal == "." and not marks
    endings = "|".join(map(re.escape, sorted(units, key=len, reverse=True)))
    cut = re.compile(rf"(?<=[\d.,])\s*(?:{endings})$").sub if endings else None
    absent = MISSING_TEXTS.union(text.strip().lower() for text in missing)
    values = frozenset(
        float(text.translate(plain)) for text in absent if fits(text)
    )  # what a table calls -999 may come as -999.0
    any_text = ANY_TEXT in absent

    def read(text: str) -> float | None:
        text = text.strip()
        if not fits(text):
            signed = text[-1:] == "-" or text[:1] in "+-\u2212"
            if signed and (sign := _SIGNED.fullmatch(text)):  # of typesetters, apart, or behind
                text = f"{'+' if sign[1] == '+' else '-'}{sign[2] or sign[3]}"
            if cut is not None:
                text = cut("", text)
            if not fits(text):
                lower = text.lower()
                if lower in absent or lower.lstrip("+-") in ("inf", "infinity", "nan"):
                    return math.nan
                return math.nan if any_text and not _LIKE_A_NUMBER.match(text) else None
        as_is = is_usual and "d" not in text and "D" not in text
        value = float(text if as_is else text.translate(plain))
        return value if math.isfinite(value) and value not in values else math.nan

    return read


def missing_numbers(missing: Iterable[str]) -> frozenset[float]:
    """Return those of the texts that are numbers, and stand for none; also in four bytes."""
    texts = map(number_reader(), missing)
    found = [x for x in texts if x is not None and not math.isnan(x)]
    return frozenset((*found, *(c_float(x).value for x in found)))


# --------------------------------------------------------------------------------------- times
_MIDNIGHT = re.compile(r"[T ]00:00(:00(\.0+)?)?$")
_OFFSET = re.compile(r"(?:UTC)?([+-])(\d{1,2}):?([0-5]\d)?")
_HOUR_24 = re.compile(r"(?<=[T ,])24(?=([:.]?00([:.]?00([.,]0+)?)?)?( ?(?:Z|[+-]\d{2}:?\d{2}))?$)")
_OF_JAVA = re.compile(r"(?<=[\dZ])\[[\w/+-]+\]$")  # the zone's name behind its offset
_HALF_DAY = re.compile(r"(?<=\d)( ?)([aApP])(?:\.\s?[mM]\.)?$")
_EAST = str.maketrans("年月日時时分秒", "-- ::: ")
_HALF_OF_EAST = re.compile(r"(오전|上午|午前|(오후|下午|午後))\s*([\d:.]*\d)")
_YEAR = r"((?:19|20)\d\d)"
_PERIOD = re.compile(rf"{_YEAR}(?:-(\d\d)|[- ]?Q([1-4]))?|Q([1-4])[- /]?{_YEAR}", re.I)
_INTERVAL = re.compile(r"(?<=[\dZ])(/(?=\d{4}-)| [-\u2013] (?=\d+[-./]\d)).*$")
_WORD = re.compile(r"[^\W\d_]{3,10}\.?")
_MONTHS = {
    name: month
    for month, names in {
        "Jan": "januar january janvier enero ene gennaio gen januari", "Feb": "februar february "
        "février févr fév febrero febbraio februari", "Mar": "märz mär mrz march mars marzo maart "
        "mrt", "Apr": "april avril avr abril abr aprile", "May": "mai mayo maggio mag mei",
        "Jun": "juni june juin junio giugno giu", "Jul": "juli july juillet juil julio luglio lug",
        "Aug": "august août aou agosto ago augustus", "Sep": "september septembre sept septiembre "
        "settembre set", "Oct": "oktober october octobre octubre ottobre okt ott",
        "Nov": "november novembre noviembre", "Dec": "dezember december décembre diciembre "
        "dicembre dez déc dic",
    }.items()
    for name in names.split()
}  # fmt: skip
_NAMED_ZONE = re.compile(r" ?([A-Z]{3,4})(?=$| \d{4}$)")
_OFFSET_AT_END = re.compile(r"(?<=\d) ?[+-]\d{2}:?\d{2}$")
ZONES = {
    "UTC": "+00:00", "GMT": "+00:00", "WET": "+00:00", "WEST": "+01:00", "CET": "+01:00",
    "MEZ": "+01:00", "CEST": "+02:00", "MESZ": "+02:00", "EET": "+02:00", "EEST": "+03:00",
    "EST": "-05:00", "EDT": "-04:00", "MST": "-07:00", "MDT": "-06:00", "PST": "-08:00",
    "PDT": "-07:00", "JST": "+09:00", "KST": "+09:00", "AEST": "+10:00", "AEDT": "+11:00",
}  # fmt: skip
"""Abbreviations, each with the offset that is meant by it nearly everywhere."""


def require_encoding(name: str, called: str) -> None:
    """Refuse a name that is of no encoding of text, `called` as the setting or the option is."""
    try:
        "".encode(name)
    except LookupError:
        raise ConfigError(
            f"{called} {name!r}: expected the name of a text encoding, such as 'cp1252', 'latin-1' "
            "or 'utf-16'."
        ) from None


class Skipped(ValueError):  # noqa: N818 - it says what happened to the hour
    """A local time that no clock of the zone has shown."""


@lru_cache(maxsize=64)
def zone_of(name: str) -> tzinfo:
    """Return the time zone of a name (``Europe/Berlin``), or of an offset (``+01:00``)."""
    if name.upper() in ("UTC", "Z"):
        return UTC
    if found := _OFFSET.fullmatch(name):
        sign, hours, minutes = found.groups()
        length = timedelta(hours=int(hours), minutes=int(minutes or 0))
        if length < timedelta(days=1):
            return timezone(length if sign == "+" else -length)
    else:
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            pass
    raise ConfigError(
        f"time_zone is {name!r}: expected a name such as 'Europe/Berlin' or an offset such as "
        "'+01:00' (a machine without zones of its own needs the package tzdata)"
    )


def canonical_time(text: str) -> tuple[str, int] | None:
    """Write a time as parsers know it, and how many days to add; ``None`` where it is already.

    ``24:00`` is the midnight of the next day; ``UTC`` and the like are offsets; ``1:00p`` is pm,
    ``März`` is Mar, and ``2025年3月1日`` a date. Of an interval, a year, a month or a
    quarter (``2025Q3``) it is the beginning.
    """
    if period := _PERIOD.fullmatch(text):
        year, month, quarter = period[1] or period[5], period[2], period[3] or period[4]
        return f"{year}-{month or 3 * int(quarter or 1) - 2:0>2}-01", 0
    found = _INTERVAL.sub("", _OF_JAVA.sub("", text.translate(_EAST).strip(": ")))
    found = _HALF_OF_EAST.sub(lambda half: f"{half[3]} {'PM' if half[2] else 'AM'}", found)
    found, days = _HALF_DAY.sub(r"\1\2m", found), 0
    found = _WORD.sub(lambda word: _MONTHS.get(word[0].lower().rstrip("."), word[0]), found)
    if (zone := _NAMED_ZONE.search(found)) and zone[1] in ZONES:
        before, year = found[: zone.start()], found[zone.end() :]
        known = _OFFSET_AT_END.search(before) is not None
        found = before + ("" if known else " " * bool(year) + ZONES[zone[1]]) + year
    if (offset := _OFFSET_AT_END.search(found)) and found[offset.start()] == " ":
        found = found[: offset.start()] + offset[0].strip()
    if _HOUR_24.search(found):
        found, days = _HOUR_24.sub("00", found), 1
    return None if found == text else (found, days)


def in_zone(moment: datetime, zone: tzinfo) -> datetime:
    """Return a naive local time as one with its zone.

    Of the hour that comes twice when summer ends, the first is meant: alone, a row cannot say.
    """
    local = moment.replace(tzinfo=zone)
    if isinstance(zone, ZoneInfo) and local.utcoffset() != local.replace(fold=1).utcoffset():
        back = local.astimezone(UTC).astimezone(zone)
        if back.replace(tzinfo=None) != moment:
            raise Skipped(f"{moment} does not exist in {zone}")
    return local


def is_repeated(moment: datetime, zone: tzinfo) -> bool:
    """Whether a naive local time comes twice."""
    first, second = (moment.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1))
    return first is not None and second is not None and first > second


def joined(parts: object) -> str | None:
    """Join the texts of a day and a time of day with a space; ``None`` where one is not there.

    Spreadsheets write a day as its midnight, which is left out.
    """
    assert isinstance(parts, Sequence)
    texts = ["" if part is None else str(part).strip() for part in parts]
    texts[0] = _MIDNIGHT.sub("", texts[0])
    return " ".join(texts) if all(texts) else None
