"""How much reviewers agree, beyond what chance alone would bring.

References
----------
.. [1] J. Cohen: A Coefficient of Agreement for Nominal Scales. Educational and Psychological
   Measurement 20, 1960.
.. [2] K. Krippendorff: Content Analysis, chapter 11 (nominal data). Sage, 2004.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["Interval", "bootstrap", "cohen_kappa", "krippendorff_alpha", "percent_agreement"]

Unit = Sequence[str]
"""What the reviewers of one episode said, one entry a reviewer."""


class Interval(NamedTuple):
    """An estimate with a 95 % interval; ``None`` where there is nothing to estimate from."""

    value: float | None
    low: float | None
    high: float | None


def percent_agreement(units: Sequence[Unit]) -> float | None:
    """Return the share of agreeing pairs of reviewers; ``None`` without a pair.

    Examples
    --------
    >>> percent_agreement([("normal", "normal"), ("normal", "anomaly")])
    0.5
    """
    pairs = [pair for unit in units for pair in itertools.combinations(unit, 2)]
    if not pairs:
        return None
    return sum(a == b for a, b in pairs) / len(pairs)


def cohen_kappa(pairs: Sequence[tuple[str, str]]) -> float | None:
    """Return Cohen's kappa of two reviewers over the units both judged.

    ``None`` without a pair, or when both always said the same one word: chance explains everything.

    Examples
    --------
    >>> yes_no = [("y", "y")] * 20 + [("y", "n")] * 5 + [("n", "y")] * 10 + [("n", "n")] * 15
    >>> round(cohen_kappa(yes_no), 3)
    0.4
    """
    n = len(pairs)
    if not n:
        return None
    observed = sum(a == b for a, b in pairs) / n
    first, second = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    chance = sum(first[word] * second[word] for word in first) / n**2
    return None if chance == 1 else (observed - chance) / (1 - chance)


def krippendorff_alpha(units: Sequence[Unit]) -> float | None:
    """Return Krippendorff's alpha for nominal data; any number of reviewers, some missing.

    Units with fewer than two reviewers say nothing and are left out.

    Examples
    --------
    >>> krippendorff_alpha([("a", "a"), ("b", "b"), ("a", "a", "a")])
    1.0
    """
    useful = [unit for unit in units if len(unit) > 1]
    total = sum(len(unit) for unit in useful)
    if not total:
        return None
    disagreement, margin = 0.0, Counter[str]()
    for unit in useful:
        words = Counter(unit)
        margin.update(words)
        m = len(unit)
        disagreement += sum(count * (m - count) for count in words.values()) / (m - 1)
    chance = sum(count * (total - count) for count in margin.values()) / (total - 1)
    return None if chance == 0 else 1 - disagreement / chance


def bootstrap(
    units: Sequence[Unit],
    statistic: Callable[[Sequence[Unit]], float | None],
    *,
    rounds: int = 1000,
    seed: int = 0,
) -> Interval:
    """Return a statistic with its 95 % percentile interval over resampled units.

    Examples
    --------
    >>> found = bootstrap([("a", "a")] * 45 + [("a", "b")] * 5, percent_agreement)
    >>> found.value, found.low < 0.9 < found.high
    (0.9, True)
    """
    value = statistic(units)
    if value is None or len(units) < 2:
        return Interval(value, None, None)
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(units), size=(rounds, len(units)))
    drawn = [statistic([units[i] for i in pick]) for pick in picks]
    known = [one for one in drawn if one is not None]
    if not known:
        return Interval(value, None, None)
    low, high = np.quantile(known, [0.025, 0.975])
    return Interval(value, float(low), float(high))


def by_pair(units: Sequence[Mapping[str, str]]) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Return what each pair of reviewers said about the units both judged.

    Examples
    --------
    >>> by_pair([{"ada": "normal", "bob": "anomaly"}, {"ada": "normal"}])
    {('ada', 'bob'): [('normal', 'anomaly')]}
    """
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for unit in units:
        for a, b in itertools.combinations(sorted(unit), 2):
            found.setdefault((a, b), []).append((unit[a], unit[b]))
    return found
