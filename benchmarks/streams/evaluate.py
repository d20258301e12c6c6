"""One stream and one detector as a row of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.metrics import average_precision_score

from benchmarks.paper.costs import CASES, Counts, cost, costs, count
from benchmarks.streams.events import found, lasting, recall_at
from benchmarks.streams.prequential import CONTAMINATION, RATE, window_for
from benchmarks.streams.sources import Stream
from benchmarks.streams.vus import vus_pr
from rejex_stream.rejection.policy import RejectionPolicy

__all__ = [
    "FALSE_ALARMS",
    "SEVERITIES",
    "autocorrelation",
    "evaluate",
    "evaluate_score",
    "reached",
    "rejections_at",
    "trivial_scores",
]

FALSE_ALARMS = 1 / 1000
"""Runs of false alarms an event at which recall is told."""
SEVERITIES = (1, 2, 3)
"""Each x should come 10^-x times among normal events."""

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def evaluate(stream: Stream, said: dict[str, Array]) -> dict[str, Any]:
    """Judge what the engine said from the end of the warm-up on, where labels are known."""
    use = _evaluated(stream)
    y = stream.y[use]
    part = {key: values[use] for key, values in said.items()}
    ranked = np.isfinite(part["rank"])
    shipped = part["label"].astype(np.int64)
    hard = hard_labels(part)
    rejected = shipped == -1
    constant = part["constant"] == 1  # a state of the sensor, not a question an event
    ambiguous = rejected & ranked & ~constant
    row: dict[str, Any] = {
        "events": len(y),
        "anomalies": int(y.sum()),
        "days": None if stream.interval_s is None else len(y) * stream.interval_s / 86400,
        "unranked": float(np.mean(~ranked)),
        "rejection_rate": float(rejected.mean()),
        "ambiguous_rate": float(ambiguous.mean()),
        "constant_rate": float(constant.mean()),
        "held_rate": float((part["held"] == 1).mean()),
        "policies": {
            "as shipped": verdict_numbers(shipped, y),
            "NoReject": verdict_numbers(hard, y),
        },
    }
    for name, verdicts in rejections_at(int(ambiguous.sum()), part, hard, y, ranked).items():
        row["policies"][name] = verdict_numbers(verdicts, y)
    row["policies"]["Random"] = {"counts": list(_random(hard, y, ranked, int(ambiguous.sum())))}
    row["policies"]["T = 32"] = verdict_numbers(
        policy_labels(part, RejectionPolicy(CONTAMINATION, tolerance=32.0)), y
    )
    for case in CASES:
        for numbers in row["policies"].values():
            prices = costs(case, CONTAMINATION)
            numbers.setdefault("cost", {})[case] = cost(Counts(*numbers["counts"]), prices)
    ranked &= ~constant & (part["held"] == 0)  # a reference that stands still follows another law
    normal = ranked & (y == 0)
    width = _widths(part["window"][ranked])
    row["rate"] = {
        "expected": float(np.mean(width / (part["window"][ranked] + 1))) if ranked.any() else None,
        "measured": float(ambiguous[ranked].mean()) if ranked.any() else None,
        "measured_normal": float(ambiguous[normal].mean()) if normal.any() else None,
        "flagged_normal": float(hard[normal].mean()) if normal.any() else None,
    }
    with np.errstate(invalid="ignore"):
        first = part["epoch"] <= np.nanmin(said["epoch"], initial=np.inf)
    row["severity"] = {
        name: reached(part["severity"][normal & which])
        for name, which in (("first", first), ("later", ~first))
    }
    psi = (part["rank"] / np.maximum(part["window"], 1))[normal]
    row["autocorrelation"] = autocorrelation(psi)
    own = {"detector": _lowest_where_missing(part["severity"])}
    own["raw score"] = _lowest_where_missing(part["score"])
    row["ranking"] = _ranking(stream, own, use, y)
    late, faults = lasting(y, first_filled(stream))
    row["lasting"] = {
        "faults": faults,
        "events": int(late.sum()),
        "flagged": int((shipped[late] == 1).sum()),
        "rejected": int(rejected[late].sum()),
    }
    return row


def evaluate_score(stream: Stream, score: Array) -> dict[str, Any]:
    """Judge a score without an engine: how it orders events, and what lasts above a threshold.

    The threshold is that of a reference that never moves: the 1 - γ quantile over the warm-up.
    """
    use = _evaluated(stream)
    y, part = stream.y[use], score[use]
    row: dict[str, Any] = {"events": len(y), "anomalies": int(y.sum())}
    row["ranking"] = _ranking(stream, {"detector": part}, use, y)
    late, faults = lasting(y, first_filled(stream))
    above = part > np.quantile(score[: stream.warm_up], 1 - CONTAMINATION)
    row["lasting"] = {
        "faults": faults,
        "events": int(late.sum()),
        "flagged": int(above[late].sum()),
        "rejected": 0,
    }
    row["rate"] = {"flagged_normal": float(above[y == 0].mean()) if (y == 0).any() else None}
    return row


def reached(severities: Array) -> list[int]:
    """Return how many there are, and how many reach each of `SEVERITIES`."""
    said = severities[np.isfinite(severities)]
    return [len(said), *(int(np.count_nonzero(said >= x)) for x in SEVERITIES)]


def first_filled(stream: Stream) -> int:
    """Return how many events of a fault fill all places of anomalies in a full window: ⌊n γ⌋."""
    return int(window_for(stream) * CONTAMINATION + 1e-9)


def _evaluated(stream: Stream) -> npt.NDArray[np.bool_]:
    """Return which events are: after the warm-up, with a label; shape (n,)."""
    use: npt.NDArray[np.bool_] = np.arange(len(stream.y)) >= stream.warm_up
    return use & (stream.y >= 0)


def hard_labels(part: dict[str, Array]) -> Ints:
    """Label by threshold alone; without a threshold yet, no alarm."""
    r = np.floor(part["window"] * CONTAMINATION + 1e-9)
    with np.errstate(invalid="ignore"):
        return (part["rank"] > part["window"] - r).astype(np.int64)


def policy_labels(part: dict[str, Array], policy: RejectionPolicy) -> Ints:
    """Verdicts that another policy would have given: windows do not depend on verdicts."""
    labels = np.full(len(part["rank"]), -1, dtype=np.int64)
    first = policy.first_window
    for i, (rank, window) in enumerate(zip(part["rank"], part["window"], strict=True)):
        if np.isfinite(rank) and window >= first:
            label = str(policy.band(int(window)).label(int(rank)))
            labels[i] = {"normal": 0, "anomaly": 1, "rejected": -1}[label]
    return labels


def rejections_at(
    number: int, part: dict[str, Array], hard: Ints, y: Ints, ranked: npt.NDArray[np.bool_]
) -> dict[str, Ints]:
    """Return the verdicts of yardsticks that reject exactly `number` ranked events.

    ``Margin`` rejects those nearest to the threshold in score units, ``Oracle`` wrong labels
    first. Both choose with the whole stream in view, which no method could: they are bounds.
    What has no rank is rejected by all.
    """
    with np.errstate(invalid="ignore"):
        distance = np.abs(part["score"] - part["threshold"])
    by = {"Margin": np.where(ranked, distance, np.inf)}
    by["Oracle"] = np.where(ranked, (hard == y).astype(np.float64), np.inf)
    result = {}
    for name, key in by.items():
        verdicts = np.where(ranked, hard, -1)
        verdicts[np.argsort(key, kind="stable")[:number]] = -1
        result[name] = verdicts
    return result


def _random(hard: Ints, y: Ints, ranked: npt.NDArray[np.bool_], number: int) -> Counts:
    """Return the expected counts when `number` of the ranked events are rejected blindly."""
    rate = number / max(int(ranked.sum()), 1)
    kept = count(hard[ranked], y[ranked])
    lost = count(np.full(int((~ranked).sum()), -1), y[~ranked])
    return Counts(
        *(kept.tn * (1 - rate), kept.fp * (1 - rate), kept.fn * (1 - rate), kept.tp * (1 - rate)),
        (kept.tn + kept.fp) * rate + lost.rejected_normal,
        (kept.fn + kept.tp) * rate + lost.rejected_anomaly,
    )


def verdict_numbers(verdicts: Ints, y: Ints) -> dict[str, Any]:
    """Count events and points."""
    events = found(verdicts, y)
    return {
        "counts": list(count(verdicts, y)),
        "events": events.events,
        "alarmed": events.alarmed,
        "alarmed_or_reviewed": events.alarmed_or_reviewed,
        "false_alarms": events.false_alarms,
        "delays": list(events.delays),
    }


def _widths(windows: Array) -> Array:
    policy = RejectionPolicy(CONTAMINATION, rate=RATE)
    sizes, where = np.unique(windows.astype(np.int64), return_inverse=True)
    result: Array = np.array([policy.band(int(n)).width for n in sizes], dtype=np.float64)[where]
    return result


def autocorrelation(values: Array) -> float | None:
    """Lag-1 autocorrelation; ``None`` where the values never change."""
    if len(values) < 3 or np.ptp(values) == 0:
        return None
    centred = values - values.mean()
    return float((centred[1:] @ centred[:-1]) / (centred @ centred))


def trivial_scores(stream: Stream) -> dict[str, Array]:
    """Scores that need no detector: ``random``, ``|Δx|`` and ``max |z|`` over channels.

    Mean and standard deviation come from the warm-up; channels that never move in it are left out.
    """
    base = stream.X[: stream.warm_up]
    mean, sd = np.nanmean(base, axis=0), np.nanstd(base, axis=0)
    moving = sd > 1e-12
    z = np.nan_to_num((stream.X[:, moving] - mean[moving]) / sd[moving])
    change = np.abs(np.diff(z, axis=0, prepend=z[:1]))
    return {
        "random": np.random.default_rng(0).random(len(stream.y)),
        "|Δx|": change.max(axis=1, initial=0.0),
        "max |z|": np.abs(z).max(axis=1, initial=0.0),
    }


def _ranking(
    stream: Stream, own: dict[str, Array], use: npt.NDArray[np.bool_], y: Ints
) -> dict[str, dict[str, float]] | None:
    """AUC-PR, VUS-PR and recall of the detector and of the trivial scores.

    A detector is ordered by severity, which goes on where ranks in a sliding window end, and a
    trivial score by its value: who orders the one by rank and the other by value compares two
    orders, not two scores.
    """
    if not y.any():
        return None
    if _TRIVIAL.get("stream") is not stream:  # the next detector comes to the same one
        trivial = trivial_scores(stream).items()
        _TRIVIAL.update(
            stream=stream, of={name: _numbers(y, values[use]) for name, values in trivial}
        )
    return {name: _numbers(y, values) for name, values in own.items()} | _TRIVIAL["of"]


def _lowest_where_missing(values: Array) -> Array:
    """Return the values with the smallest of them where there is none."""
    lowest = np.nanmin(values) if np.isfinite(values).any() else 0.0
    return np.nan_to_num(values, nan=lowest)


_TRIVIAL: dict[str, Any] = {}


def _numbers(y: Ints, score: Array) -> dict[str, float]:
    return {
        "auc_pr": float(average_precision_score(y, score)),
        "vus_pr": vus_pr(y, score),
        "recall": recall_at(y, score, FALSE_ALARMS),
    }
