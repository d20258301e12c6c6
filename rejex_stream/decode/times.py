"""Local times: zones by name or offset, and the two hours a year that a clock cannot say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from rejex_stream.errors import ConfigError

__all__ = ["Skipped", "as_usual", "in_zone", "is_repeated", "joined", "zone_of"]

_MIDNIGHT = re.compile(r"[T ]00:00(:00(\.0+)?)?$")
_OFFSET = re.compile(r"(?:UTC)?([+-])(\d{1,2}):?([0-5]\d)?")
_HOUR_24 = re.compile(r"(?<=[T ,])24(?=([:.]?00([:.]?00([.,]0+)?)?)?( ?(?:Z|[+-]\d{2}:?\d{2}))?$)")
_HALF_DAY = re.compile(r"(?<=\d)( ?)([aApP])$")
_NAMED_ZONE = re.compile(r" ?([A-Z]{3,4})$")
_OFFSET_AT_END = re.compile(r"(?<=\d) ?[+-]\d{2}:?\d{2}$")
_ZONES = {
    "UTC": "+00:00", "GMT": "+00:00", "WET": "+00:00", "WEST": "+01:00", "CET": "+01:00",
    "MEZ": "+01:00", "CEST": "+02:00", "MESZ": "+02:00", "EET": "+02:00", "EEST": "+03:00",
}  # fmt: skip
"""Abbreviations that mean one offset everywhere."""


class Skipped(ValueError):  # noqa: N818 - it says what happened to the hour
    """A local time that no clock of the zone has shown."""


@lru_cache(maxsize=64)
def zone_of(name: str) -> tzinfo:
    """Return the time zone of a name such as ``Europe/Berlin``, or of an offset such as ``+01:00``.

    Examples
    --------
    >>> zone_of("+05:30").utcoffset(None)
    datetime.timedelta(seconds=19800)
    """
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


def as_usual(text: str) -> tuple[str, int] | None:
    """Write a time as parsers know it, and how many days to add; ``None`` where it is already.

    ``24:00`` is the midnight of the next day; ``UTC`` and the like are offsets; ``1:00p`` is pm.

    Examples
    --------
    >>> as_usual("2024-03-04 24:00"), as_usual("2024-03-04 13:00:00 UTC"), as_usual("4 May 1:00p")
    (('2024-03-04 00:00', 1), ('2024-03-04 13:00:00+00:00', 0), ('4 May 1:00pm', 0))
    """
    found, days = _HALF_DAY.sub(r"\1\2m", text), 0
    if (zone := _NAMED_ZONE.search(found)) and zone[1] in _ZONES:
        before = found[: zone.start()]
        found = before if _OFFSET_AT_END.search(before) else before + _ZONES[zone[1]]
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
    """Whether a naive local time comes twice.

    Examples
    --------
    >>> is_repeated(datetime(2024, 10, 27, 2, 30), zone_of("Europe/Berlin"))
    True
    """
    first, second = (moment.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1))
    return first is not None and second is not None and first > second


def joined(parts: object) -> str | None:
    """Join the texts of a day and a time of day with a space; ``None`` where one is not there.

    Spreadsheets write a day as its midnight, which is left out.

    Examples
    --------
    >>> joined(["06.01.2024 00:00", "8:15"]), joined([2024, 1, 6]), joined(["06.01.2024", ""])
    ('06.01.2024 8:15', '2024 1 6', None)
    """
    assert isinstance(parts, Sequence)
    texts = ["" if part is None else str(part).strip() for part in parts]
    texts[0] = _MIDNIGHT.sub("", texts[0])
    return " ".join(texts) if all(texts) else None
