"""Verdicts, numbers and spans of time in plain words."""

from __future__ import annotations

import math

from rejex_stream.types import Label, Reason, Verdict

__all__ = ["after", "in_words", "number", "percent", "span"]

_NO_RANK = {
    Reason.WARM_UP: "still learning what is usual",
    Reason.UNSCORABLE: "a channel is missing for too long, so there is no score",
    Reason.CONSTANT_WINDOW: "all recent scores are the same number: the sensor may be stuck",
    Reason.TOO_MANY_SENSORS: "one sensor more than state.max_keys allows, so it has no model",
}


def in_words(verdict: Verdict) -> str:
    """Say why this verdict, for somebody who knows the machine and not the method.

    Examples
    --------
    >>> from rejex_stream.types import Position
    >>> def verdict(label, reason, rank):
    ...     return Verdict(position=Position("t", 0, 0), stream_key="a", sensor="a", seq=0,
    ...         event_time_ms=0, label=label, reason=reason, score=3.25, rank=rank,
    ...         window_len=1000, n_anomalies=50, band_lower=882, band_upper=987, threshold=2.5,
    ...         stability=0.3)
    >>> in_words(verdict(Label.ANOMALY, None, 1000))
    'score 3.25 is above all of the last 1,000'
    >>> in_words(verdict(Label.REJECTED, Reason.AMBIGUOUS, 930))
    'other training data would flip the label in 30 % of cases; above 930 of the last 1,000'
    """
    if verdict.reason in _NO_RANK:
        return _NO_RANK[verdict.reason]
    if verdict.rank is None or verdict.score is None or verdict.stability is None:
        return ""
    n = verdict.window_len
    above = "all" if verdict.rank >= n else f"{verdict.rank:,}"
    if verdict.label is Label.REJECTED:
        flip = min(verdict.stability, 1 - verdict.stability)
        return (
            f"other training data would flip the label {_how_often(flip)}; "
            f"above {above} of the last {n:,}"
        )
    return f"score {number(verdict.score)} is above {above} of the last {n:,}"


def number(value: float) -> str:
    """Write a number with three to four digits that matter."""
    if not math.isfinite(value):
        return "–"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 0.01 or value == 0:
        return f"{value:.4g}"
    return f"{value:.3g}"


def percent(share: float, digits: int = 1) -> str:
    """Write a share as a percentage."""
    return f"{100 * share:.{digits}f} %"


def _how_often(share: float) -> str:
    if share >= 0.01:
        return f"in {share:.0%} of cases".replace("%", " %")
    return f"in 1 of {number(1 / max(share, 1e-300))} cases"


def span(seconds: float) -> str:
    """Write a length of time in its two largest units."""
    rest, parts = round(seconds), []
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


def after(seconds: float | None) -> str:
    """Say how long after its beginning something was noticed, if it was."""
    if seconds is None:
        return "none"
    return "at once" if seconds <= 0 else f"after {span(seconds)}"
