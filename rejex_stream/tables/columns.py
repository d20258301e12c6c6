"""A sample of a table by column: each is walked once, and what is guessed asks its profile."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rejex_stream.decode.mapping import printable
from rejex_stream.decode.written import MISSING_TEXTS, number_reader


@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """What one walk over a column finds: what its cells are as numbers."""

    numbers: Sequence[float]  # nan where there is none
    measured: Sequence[float]  # those that are there
    given: Sequence[str]  # cells with more than a word for nothing in them
    unread: Sequence[str]  # cells that are no number and no word for nothing

    def why_no_measurement(self) -> str | None:
        """Say why no column of such values is measured; ``None``: it may be. O(rows)."""
        if not self.given:
            return "empty"
        if len(self.unread) > 0.05 * len(self.given) or not self.measured:
            some = "numbers in part" if 2 * len(self.measured) > len(self.given) else "not numbers"
            return f"{some}, such as {printable((*self.unread, *self.given)[0], 30)}"
        if len(set(self.measured)) == 1:
            return "never changes"
        steps = {round(b - a, 9) for a, b in itertools.pairwise(self.measured)}
        if steps == {1.0} and self.measured[0] in (0.0, 1.0) and len(self.measured) > 10:
            return "counts the rows"
        return None


def profile(
    cells: Sequence[str], read: Callable[[str], float | None], good: Sequence[object] | None = None,
    none: Collection[float] = (),
) -> ColumnProfile:  # fmt: skip
    """Walk over a column; of `good`, its cells with ``None`` where a value is `none`. O(rows)."""
    numbers, measured, unread = list[float](), list[float](), list[str]()
    for cell in cells if good is None else good:
        x = read(str(cell or ""))
        x = math.nan if x in none else x
        if x is None:
            unread.append(str(cell))
        elif not math.isnan(x):
            measured.append(x)
        numbers.append(math.nan if x is None else x)
    given = [cell for cell in cells if cell.lower() not in MISSING_TEXTS]
    return ColumnProfile(numbers, measured, given, unread)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Some records in their order, by column."""

    numbers: Mapping[str, Sequence[float]]  # nan where there is none
    cells: Mapping[str, Sequence[str]] = field(default_factory=dict)  # all columns, as written
    series: Sequence[object] = ()  # whose each row is; empty: all are of one
    moments_ms: Sequence[int | None] = ()
    time: str = "the record"
    time_unit: str = "iso8601"

    def runs(self, name: str) -> list[list[float]]:
        """Return the values of a column that are there, a list a series. O(rows)."""
        values = self.numbers[name]
        if not self.series:
            return [[x for x in values if not math.isnan(x)]]
        by_series: dict[object, list[float]] = {}
        for whose, x in zip(self.series, values, strict=True):
            if not math.isnan(x):
                by_series.setdefault(whose, []).append(x)
        return list(by_series.values())


def is_text(cells: Sequence[str], decimal: str = ".") -> bool:
    """Whether a column holds texts, and no numbers."""
    read = number_reader(decimal)
    given = [cell for cell in cells[:200] if cell.lower() not in MISSING_TEXTS]
    return bool(given) and sum(read(cell) is None for cell in given) > 0.95 * len(given)
