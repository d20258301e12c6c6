"""Numbers, times and readings as people read them: the same on a page, in an alert, in a table."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np

_YEAR_S = 31_557_600
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def number(value: float | None, digits: int = 4) -> str:
    """Return a number with thousands separated and so many digits that count.

    Examples
    --------
    >>> [number(one) for one in (12345.6, 3.14159, 0.00012345, None)]
    ['12,346', '3.142', '0.0001234', '–']
    >>> [number(one, digits=3) for one in (123.45, 0.0000123, 1e-12)]
    ['123', '0.0000123', '1e-12']
    """
    if value is None or not math.isfinite(value):
        return "–"
    if abs(value) < 1e15 and (abs(value) >= 10 ** (digits - 1) or value == int(value)):
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    return f"{float(text):.12f}".rstrip("0") if "e-" in text and abs(value) >= 1e-9 else text


def alike(values: Sequence[float], step: float = math.inf) -> list[str]:
    """Return numbers with equally many decimals: as many as tell two that are a step apart.

    Examples
    --------
    >>> alike((9.0, 4.348, 18.3), step=0.47)
    ['9.0', '4.3', '18.3']
    >>> alike((1500.4, 1499.6, 1500.0), step=0.02)
    ['1,500.4', '1,499.6', '1,500.0']
    """
    places = max(0, math.ceil(-math.log10(step))) if 0 < step < math.inf else 10
    if places > 9 or not all(abs(value) < 1e15 for value in values):
        return [number(value) for value in values]
    texts = [f"{round(value, places) + 0.0:,.{places}f}" for value in values]  # of -0.0, too
    while "." in texts[0] and all(text.endswith("0") for text in texts):
        texts = [text[:-1].removesuffix(".") for text in texts]
    return texts


def percent(value: float | None, digits: int | None = None) -> str:
    """Return a share as percent."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0 %"
    places = digits if digits is not None else (1 if abs(value) >= 0.01 else 2)
    return f"{100 * value:.{places}f} %"


def how_often(log_p: float, what: str = "cases") -> str:
    """Return a probability, given as its logarithm, as people say it.

    Examples
    --------
    >>> how_often(math.log(0.31)), how_often(math.log(0.002), "models")
    ('31 % of cases', '1 in 500 models')
    """
    p = math.exp(log_p)
    if p >= 0.01:
        return f"{100 * p:.{0 if p < 0.995 else 1}f} % of {what}"
    exponent = min(-log_p / math.log(10), 300)
    return f"1 in {10**exponent:{',.0f' if exponent < 6 else '.0e'}} {what}"


def span(ms: float | None) -> str:
    """Return a duration in at most two units; from two years on in years alone."""
    if ms is None:
        return "–"
    seconds = round(abs(ms) / 1000)
    if seconds >= 2 * _YEAR_S:
        return f"{seconds / _YEAR_S:.0f} years"
    for index, (name, size) in enumerate(_UNITS):
        if seconds >= size:
            whole, rest = divmod(seconds, size)
            smaller = _UNITS[index + 1] if index + 1 < len(_UNITS) else None
            part = rest // smaller[1] if smaller and whole < 100 else 0
            return f"{whole} {name}" + (f" {part} {smaller[0]}" if smaller and part else "")
    return "0 s"


def utc(ms: float) -> datetime:
    """Return a time in UTC; an end of the calendar for one beyond it, of a very wrong clock."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return (datetime.max if ms > 0 else datetime.min).replace(tzinfo=UTC)


# ------------------------------------------------------------------ what reads what, and usually
class Expected(msgspec.Struct, frozen=True):
    """What the other channels, or the hour, made one expect of a channel, in its own unit."""

    read: float
    """What it read instead."""
    value: float
    low: float
    high: float
    """What was likely, and between which values nineteen of twenty readings would lie."""
    by: Literal["hour", "siblings"] | msgspec.UnsetType = msgspec.UNSET
    """``hour``: the season made one expect it; ``siblings``: what its siblings read at the same
    time; left out: the other channels."""

    @property
    def departure(self) -> float:
        """How far from it the channel read, in half widths of the range."""
        width = (self.high - self.low) / 2 or abs(self.value) * 1e-3 or 1.0
        return abs(self.read - self.value) / width

    def as_reading(self, channel: str) -> ChannelReading:
        """Return it as a reading of the channel."""
        return ChannelReading(channel, self.read, None, self)


@dataclass(frozen=True, slots=True)
class ChannelReading:
    """What a channel reads, and between which values nineteen of twenty normal events lie."""

    channel: str
    value: float  # nan: missing
    usual: tuple[float, float] | None  # `None`: nobody knows yet
    expected: Expected | None = None

    def describe(self, name: str = "", unit: str = "", *, speaks: bool = False) -> tuple[str, str]:
        """Return what it reads, by the name that people use, and what is usual, if anybody knows.

        Of a channel that `speaks` in an incident no reading is called within its usual.

        Examples
        --------
        >>> ChannelReading("oil", 1.2, (3.4, 4.0)).describe("Oil pressure", "bar")
        ('Oil pressure 1.2 bar', 'usually 3.4 to 4.0 bar')
        >>> ChannelReading("speed", 1500.4, (1486.348, 1500.3)).describe()
        ('speed 1,500.4', 'usually 1,486.3 to 1,500.3')
        >>> expected = Expected(0.0, 128.0, 96.0, 160.0)
        >>> ChannelReading("power", 0.0, (40.0, 900.0), expected).describe()
        ('power 0', 'expected 128 from the others; usually 40 to 900')
        >>> ChannelReading("flow", 57, None, Expected(57, 45, 41, 49, "hour")).describe("", "l/s")
        ('flow 57 l/s', 'expected 45 ± 4 l/s at this hour')
        >>> siblings = Expected(68.2, 64.1, 63.9, 64.4, "siblings")
        >>> ChannelReading("gearbox", 68.2, None, siblings).describe()
        ('gearbox 68.2', 'its siblings 63.9 to 64.4')
        """
        name, unit, parts = name or self.channel, unit and f" {unit}", []
        given, (low, high) = self.expected, self.usual or (math.nan, math.nan)
        told: tuple[float, ...] = ()
        if given is not None:
            told = given.low, given.high
            if given.by != "siblings":
                told = given.value, (given.high - given.low) / 2
        shown = [self.value, *(self.usual or ()), *told]
        shown = [value for value in shown if not math.isnan(value)]
        text = dict(zip(shown, alike(shown, self._step()), strict=True))
        now = f"{name} {text.get(self.value, 'missing')}" + unit * (self.value in text)
        if given is not None:
            first, second = (text[value] for value in told)
            if given.by == "siblings":
                parts.append(f"its siblings {first} to {second}{unit}")
            elif given.by == "hour":
                parts.append(f"expected {first} ± {second}{unit} at this hour")
            else:
                parts.append(f"expected {first}{unit} from the others")
        if self.usual is not None:
            within = "usually"
            if low <= self.value <= high:  # which others, or the hour, show not to be right
                is_told = speaks or given is not None
                within = "by itself it may be" if is_told else "within its usual"
            parts.append(f"{within} {' to '.join(dict.fromkeys((text[low], text[high])))}{unit}")
        return now, "; ".join(parts)

    def _step(self) -> float:
        """Return a thirtieth of a range, or by how much the reading is outside, if that is less."""
        ranges = [self.usual] if self.usual else []
        ranges += [(self.expected.low, self.expected.high)] if self.expected else []
        steps = [(high - low) / 30 for low, high in ranges]
        outside = [max(low - self.value, self.value - high) for low, high in ranges]
        steps += [by if any(steps) else by / 30 for by in outside]
        return min((step for step in steps if step > 0), default=math.inf)


RowsState: TypeAlias = tuple[
    Annotated[int, msgspec.Meta(ge=1)], Annotated[int, msgspec.Meta(ge=0)], Sequence[bytes]
]


class TypicalRows:
    """What `max_rows` normal events read, evenly spread over all or over the newest.

    With `max_step` at most so many events lie between two of them, and the oldest are dropped. Each
    step is three times the one before: twice would meet three hours of a day.
    """

    def __init__(
        self, max_rows: int, max_step: int | None = None, state: RowsState = (1, 0, ())
    ) -> None:
        self._max_rows, self._max_step = max_rows, max_step
        self._step, self.skip, rows = state
        self._rows = [array("d", row) for row in rows]

    def state(self) -> RowsState:
        """Return what another begins with to go on as this one."""
        return self._step, self.skip, [row.tobytes() for row in self._rows]

    @property
    def seen(self) -> int:
        """How many events its rows stand for."""
        return len(self._rows) * self._step

    def update(self, values: Iterable[float]) -> None:
        """Store what an event reads, or skip it."""
        if self.skip:
            self.skip -= 1
            return
        if len(self._rows) >= self._max_rows:
            if self._step == self._max_step:
                del self._rows[0]
            else:
                self._rows = self._rows[::3]
                self._step = min(3 * self._step, self._max_step or self._step * 3)
        self._rows.append(array("d", values))
        self.skip = self._step - 1

    def range(self, channel: int) -> tuple[float, float] | None:
        """Return between which values a channel mostly lies; ``None`` where none is known."""
        return middle(row[channel] for row in self._rows)


_USUAL = 0.025, 0.975


def middle(values: Iterable[float]) -> tuple[float, float] | None:
    """Return the middle 95 % of the values that are finite; ``None`` of none. O(n log n)."""
    known = np.fromiter(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    if not len(known):
        return None
    low, high = np.quantile(known, _USUAL).tolist()
    return low, high
