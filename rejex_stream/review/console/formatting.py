"""Numbers and times as people read them, and lines small enough for a table cell."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache

from markupsafe import Markup, escape

from rejex_stream.operate.incident_text import how_ended
from rejex_stream.readable import number, percent, span, utc
from rejex_stream.rejection.window import grade

_WIDTH, _HEIGHT, _PAD = 132, 30, 3
# Soft hyphen, fillers, joiners and other zero widths, marks and overrides of direction, tags.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufeff\uffa0\U000e0000-\U000e007f]"
)


def seen(value: object) -> object:
    """Return text with a sign for every character that hides or turns its neighbours."""
    # Such a name could pass for another one. Markup is left as it is: whoever made it knows.
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return _UNSEEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", value).replace("\n", "↵")


def age(ms: float | None) -> str:
    """Return a duration in one unit, for narrow cells."""
    if ms is None:
        return "–"
    minutes = ms / 60_000
    if minutes < 1:
        return "<1 min"
    if minutes < 100:
        return f"{minutes:.0f} min"
    if minutes < 48 * 60:
        return f"{minutes / 60:.0f} h"
    return f"{minutes / 1440:.0f} d"


def clock(ms: int | None) -> str:
    return "–" if ms is None else utc(ms).strftime("%H:%M:%S")


# A page shows the same few times for many sensors.
@lru_cache(maxsize=1024)
def day(ms: int | None) -> str:
    return "–" if ms is None else utc(ms).strftime("%Y-%m-%d %H:%M:%S")


def spark_svg(  # noqa: PLR0917
    t: Sequence[float], v: Sequence[float], low_ms: int, high_ms: int, start_ms: int, end_ms: int
) -> Markup:
    """Return a small line as SVG, with the episode's stretch shaded; nothing but numbers goes in.

    An empty line gives an empty picture, which screen readers skip.
    """
    width = high_ms - low_ms or 1

    def x(ms: float) -> float:
        return _PAD + (ms - low_ms) / width * (_WIDTH - 2 * _PAD)

    finite = [value for value in v if math.isfinite(value)]
    parts = [
        f'<svg class="spark" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" aria-hidden="true" focusable="false">'
    ]
    left, right = x(start_ms), x(end_ms)
    if right - left < 3:
        left, right = left - 1.5, right + 1.5
    parts.append(
        f'<rect class="spark-episode" x="{left:.1f}" y="0" width="{right - left:.1f}" '
        f'height="{_HEIGHT}"/>'
    )
    if finite:
        low, high = min(finite), max(finite)
        height = high - low or 1.0

        def y(value: float) -> float:
            if high == low:
                return _HEIGHT / 2
            return _HEIGHT - _PAD - (value - low) / height * (_HEIGHT - 2 * _PAD)

        # A line for each part: none over what is not known; one reading alone is a dot.
        part: list[str] = []
        for at, value in [*zip(t, v, strict=True), (0.0, math.nan)]:
            if math.isfinite(value):
                part.append(f"{x(at):.1f},{y(value):.1f}")
            elif part:
                points = " ".join(part if len(part) > 1 else part * 2)
                parts.append(f'<polyline class="spark-line" points="{points}"/>')
                part = []
    parts.append("</svg>")
    return Markup("".join(parts))


FILTERS = {
    "age": age,
    "clock": clock,
    "day": day,
    "exact": escape,  # as it is, for what a form sends back
    "grade": grade,
    "how_ended": how_ended,
    "number": number,
    "percent": lambda *of: percent(*of).replace(" ", "\u00a0"),
    "span": span,
    "state": lambda state: "becoming normal" if state == "adopting" else state,
}
