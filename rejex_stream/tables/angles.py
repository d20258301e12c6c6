"""Which columns of a table go round, as directions in degrees do, and which is turned after which.

A value that falls from 359 to 2 has hardly moved; as a number it has jumped, and a channel that
lives near north looks like a fault whenever it passes it.
"""

from __future__ import annotations

import cmath
import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from rejex_stream.features import Circle
from rejex_stream.tables.columns import Sample

_TURN = 360.0
_CALLED = re.compile(
    r"(^|[\W_\d])(wd|dir|direction|yaw|heading|azimuth|nacelle|course)($|[\W_\d])", re.IGNORECASE
)
_ENOUGH = 50  # values
_SECTORS, _MOST = 12, 8  # parts of the circle, and how many of them are most of it
_FEWEST_JUMPS = 3  # of a column that is not called a direction
_SMOOTH = 45.0  # degrees a step, in the middle, up to which a column moves rather than scatters
_TOGETHER, _LEFT = 0.9, 0.25
"""Two angles go together where their difference stays within about 25 degrees, and has at most so
much of the circular variance of either."""


def in_degrees(values: Sequence[float]) -> bool:
    """Whether values lie where degrees are written: from 0 to 360, or from -180 to 180."""
    low, high = min(values), max(values)
    return (low >= 0 and high <= _TURN) or (low >= -_TURN / 2 and high <= _TURN / 2)


def find_angles(sample: Sample, names: Sequence[str]) -> list[str]:
    """Return the columns of a sample that go round. O(rows) a column."""
    return [name for name in names if _goes_round(sample.runs(name), bool(_CALLED.search(name)))]


def _goes_round(runs: Sequence[Sequence[float]], called: bool) -> bool:
    values = list(itertools.chain.from_iterable(runs))
    if len(values) < _ENOUGH or not in_degrees(values):
        return False
    if len({int(x % _TURN * _SECTORS / _TURN) for x in values}) < _MOST:
        return False
    pairs = [pair for run in runs for pair in itertools.pairwise(run)]
    jumps = [pair for pair in pairs if abs(pair[1] - pair[0]) > _TURN * 3 / 4]
    if called or len(jumps) < _FEWEST_JUMPS:
        return called and bool(jumps)
    moves = sorted(abs(b - a) for a, b in pairs if a != b and abs(b - a) <= _TURN / 2)
    over = sorted(abs(math.remainder(b - a, _TURN)) for a, b in jumps)
    if not moves or moves[len(moves) // 2] > _SMOOTH:
        return False
    # A machine that goes off and on jumps from one value and back to it, or by more than it moves.
    rests = max(Counter(min(pair) for pair in jumps).values())
    largest = moves[int(0.95 * (len(moves) - 1))]
    return 2 * rests <= len(jumps) and over[len(over) // 2] <= 2 * largest


def followed(sample: Sample, names: Sequence[str]) -> tuple[Circle, ...]:
    """Return angles, each with the one that it is turned after, if any. O(rows) a pair."""
    leaders: dict[str, tuple[float, str]] = {}
    for first, second in itertools.combinations(names, 2):
        pairs = _pairs(sample, first, second)
        found = _together(pairs)
        if not found:
            continue
        # Who follows is where the other was before.
        steps = [two for run in pairs.values() for two in itertools.pairwise(run)]
        second_after = _length([b[1] - a[0] for a, b in steps])
        first_after = _length([b[0] - a[1] for a, b in steps])
        one, other = (second, first) if second_after >= first_after else (first, second)
        leaders[one] = max(leaders.get(one, (0.0, "")), (found, other))
    return tuple(Circle(name, _TURN, leaders.get(name, (0.0, ""))[1]) for name in names)


def _pairs(sample: Sample, first: str, second: str) -> Mapping[object, list[tuple[float, float]]]:
    numbers = zip(sample.numbers[first], sample.numbers[second], strict=True)
    pairs: dict[object, list[tuple[float, float]]] = {}
    for whose, (a, b) in zip(sample.series or itertools.repeat(None), numbers, strict=False):
        if not (math.isnan(a) or math.isnan(b)):
            pairs.setdefault(whose, []).append((a, b))
    return pairs


def _together(pairs: Mapping[object, Sequence[tuple[float, float]]]) -> float:
    """Return how closely two angles go together, in (0, 1]; 0 where they do not."""
    both = list(itertools.chain.from_iterable(pairs.values()))
    if len(both) < _ENOUGH:
        return 0.0
    apart = _length([b - a for a, b in both])
    own = max(_length([pair[i] for pair in both]) for i in (0, 1))
    return apart if apart >= _TOGETHER and 1 - apart <= _LEFT * (1 - own) else 0.0


def _length(degrees: Sequence[float]) -> float:
    """Return the mean resultant length: 1 where all angles are equal, 0 where they cancel."""
    places = [cmath.rect(1.0, 2 * math.pi * x / _TURN) for x in degrees]
    mean = complex(math.fsum(z.real for z in places), math.fsum(z.imag for z in places))
    return abs(mean) / max(1, len(places))
