"""Why an event was rejected, in plain words and in the numbers behind them."""

from __future__ import annotations

import math
from typing import NamedTuple

from rejex_stream.exceed import Stability, stability
from rejex_stream.review.expiry import model_leaning
from rejex_stream.types import Label, Reason, Verdict

__all__ = ["Explanation", "count_as_contamination", "explain", "in_short", "share"]


class Explanation(NamedTuple):
    """What the reviewer reads.

    Attributes
    ----------
    headline
        One sentence; never says which way the model leans.
    sentences
        What it means. The last one names the leaning, unless it is hidden.
    facts
        (name, value) pairs for the table beside it.
    """

    headline: str
    sentences: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]


def count_as_contamination(n: int, n_anomalies: int) -> float:
    """Return a γ with floor(n γ) = r, for functions that take γ.

    Examples
    --------
    >>> math.floor(3 * count_as_contamination(3, 1))
    1
    """
    return min((n_anomalies + 0.5) / n, math.nextafter(0.5, 0))


def share(log_p: float) -> str:
    """Return a probability, given as its logarithm, as people say it.

    Examples
    --------
    >>> share(math.log(0.44)), share(math.log(0.002)), share(-32.0)
    ('44 %', '1 in 500', '1 in 8e+13')
    """
    p = math.exp(log_p)
    if p >= 0.01:
        return f"{100 * p:.0f} %" if p < 0.995 else f"{100 * p:.1f} %"
    exponent = -log_p / math.log(10)
    if exponent < 6:
        return f"1 in {10**exponent:,.0f}"
    return f"1 in {10 ** min(exponent, 300):.0e}"


_NO_RANK = {
    Reason.UNSCORABLE: "no usable score",
    Reason.CONSTANT_WINDOW: "reference scores all equal",
    Reason.WARM_UP: "still warming up",
}
_RARELY = 1e-12
"""Flips less likely than this are lost in the rounding of 1 - p."""


def in_short(verdict: Verdict, why: str, *, blind: bool = False) -> str:
    """Return the reason in a few words, for a row of the queue.

    Examples
    --------
    >>> from rejex_stream.types import Position
    >>> in_short(Verdict(position=Position("t", 0, 0), stream_key="a", sensor="a", seq=0,
    ...     event_time_ms=0, label=Label.REJECTED, reason=Reason.AMBIGUOUS, rank=962,
    ...     window_len=1000, n_anomalies=50, stability=0.94), "rejected")
    'leans to anomaly, would flip in 6 % of redraws'
    """
    if why == "audit":
        return "audit: accepted, drawn for a check"
    if verdict.reason in _NO_RANK:
        return _NO_RANK[verdict.reason]
    p, leaning = verdict.stability, model_leaning(verdict)
    if blind or p is None or leaning is None:
        return "inside the rejection band"
    flip = 1 - p if leaning == "anomaly" else p
    if flip < _RARELY:
        return f"leans to {leaning}, would hardly ever flip"
    often = share(math.log(flip))
    return f"leans to {leaning}, would flip in {often}{' of' if '%' in often else ''} redraws"


def explain(verdict: Verdict, why: str, *, blind: bool = False) -> Explanation:
    """Return why this event is here; with `blind`, nothing that tells which way the model leans."""
    if why == "audit":
        return _audit(verdict, blind=blind)
    if verdict.reason is Reason.UNSCORABLE:
        return Explanation(
            "No score could be computed for this event.",
            (
                "A channel has been missing for longer than the last value may be carried "
                "forward, or the detector returned no finite number.",
                "Look at the gaps in the channels: the question is whether the sensor failed.",
            ),
            _facts(verdict, blind=blind),
        )
    if verdict.reason is Reason.CONSTANT_WINDOW:
        return Explanation(
            f"All {verdict.window_len:,} reference scores are the same number.",
            (
                "Ranks hold no information then: nothing can be called unusual or usual.",
                "Most often the sensor is stuck, or switched off.",
            ),
            _facts(verdict, blind=blind),
        )
    if verdict.reason is Reason.WARM_UP:
        return Explanation(
            "The model was still warming up.",
            ("There were too few reference scores to accept any label.",),
            _facts(verdict, blind=blind),
        )
    return _ambiguous(verdict, blind=blind)


def _ambiguous(verdict: Verdict, *, blind: bool) -> Explanation:
    rank, lower, upper = verdict.rank, verdict.band_lower, verdict.band_upper
    n, r = verdict.window_len, verdict.n_anomalies
    if rank is None or lower is None or upper is None or not 1 <= r < n / 2:
        return Explanation(
            "The label could flip under slightly different training data.",
            (),
            _facts(verdict, blind=blind),
        )
    if blind:
        return Explanation(
            f"The rank lies inside the rejection band {lower:,}–{upper:,} of {n:,}.",
            (
                "Slightly different reference data could flip the label, so the model abstained.",
                "Which way it leans is hidden until you have decided.",
            ),
            _facts(verdict, blind=True),
        )
    at = stability(rank, n, count_as_contamination(n, r))
    leaning = model_leaning(verdict)
    side = (
        f"among the top {r:,} of {n:,} scores"
        if leaning == "anomaly"
        else (f"below the top {r:,} of {n:,} scores")
    )
    return Explanation(
        f"Rank {rank:,} of {n:,}: inside the rejection band {lower:,}–{upper:,}.",
        (
            f"Below rank {lower:,} it would be normal, above {upper:,} an anomaly. In between, "
            "slightly different reference data could flip the label, so the model abstained.",
            f"It leans to {leaning}: the score is {side}, and with the reference scores drawn "
            f"anew it would be called an anomaly {_how_often(at)}.",
        ),
        _facts(verdict, blind=False),
    )


def _how_often(at: Stability) -> str:
    log_p1, log_p0 = float(at.log_p_anomaly), float(at.log_p_normal)
    if log_p1 > math.log(0.99):
        return f"in all but {share(log_p0)} cases"
    if log_p1 < math.log(0.01):
        return f"only in {share(log_p1)} cases"
    return f"in {share(log_p1)} of cases"


def _audit(verdict: Verdict, *, blind: bool) -> Explanation:
    said = "anomaly" if verdict.label is Label.ANOMALY else "normal"
    return Explanation(
        "The model was sure about this one. Is it right?",
        (
            "Drawn at random from accepted events: labels from the rejection band alone say "
            "nothing about the rest.",
            "What the model said is hidden until you have decided."
            if blind
            else f"The model said {said}.",
        ),
        _facts(verdict, blind=blind),
    )


def _number(value: float) -> str:
    return f"{value:.4g}"


def _facts(verdict: Verdict, *, blind: bool) -> tuple[tuple[str, str], ...]:
    facts: list[tuple[str, str]] = []
    if not blind:
        if verdict.score is not None:
            facts.append(("score", _number(verdict.score)))
        if verdict.threshold is not None:
            facts.append(("threshold λ", _number(verdict.threshold)))
        if verdict.score_lower is not None and verdict.score_upper is not None:
            facts.append(
                (
                    "rejected between",
                    f"{_number(verdict.score_lower)} and {_number(verdict.score_upper)}",
                )
            )
        if verdict.psi is not None:
            facts.append(("ψ, share of scores at or below", f"{verdict.psi:.3f}"))
        if verdict.stability is not None:
            facts.append(("stability, P(anomaly)", f"{verdict.stability:.4g}"))
        if verdict.confidence is not None:
            facts.append(("confidence", f"{verdict.confidence:.4g}"))
    if verdict.tolerance is not None:
        flip = share(-verdict.tolerance)
        facts.append(("tolerance T", f"{verdict.tolerance:.3g}: flips below {flip} are accepted"))
    if verdict.window_len:
        facts.append(("reference scores n", f"{verdict.window_len:,}"))
        facts.append(("counted as anomalies r", f"{verdict.n_anomalies:,}"))
    if verdict.model_epoch is not None:
        facts.append(("model", f"epoch {verdict.model_epoch}"))
    facts.append(("event", f"number {verdict.seq:,} of this stream"))
    return tuple(facts)
