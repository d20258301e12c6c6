"""What the plots of the report are drawn from: one small JSON object a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from rejex_stream.report.findings import Event, Findings, Series
from rejex_stream.report.plain_words import in_words
from rejex_stream.types import Label, Reason, Verdict

__all__ = ["plot_data"]

_BUCKETS = ((86_400, "day"), (3_600, "hour"), (60, "minute"))
_CODES = {
    Reason.AMBIGUOUS: "r",
    Reason.WARM_UP: "w",
    Reason.UNSCORABLE: "u",
    Reason.CONSTANT_WINDOW: "c",
    Reason.TOO_MANY_SENSORS: "w",  # as one that has no model yet
}


def plot_data(findings: Findings) -> dict[str, Any]:
    """Return times, values, verdicts and theory lines of all series as plain JSON values.

    Lines that seldom change (λ, band, theory) are run-length encoded as [first index, value].
    """
    run = findings.run
    return {
        "name": run.name,
        "channels": [channel._asdict() for channel in run.channels],
        "window": run.monitors.window,
        "first": _first_shown(findings),
        "series": [_series(findings, series) for series in findings.series],
    }


def _first_shown(findings: Findings) -> int:
    """Pick the series with most to see: in its faults, or in all of it where none is known."""

    def flagged(series: Series) -> tuple[int, int]:
        faults = [found for found in findings.faults if found.fault.sensor == series.sensor]
        return (
            sum(found.n_anomaly + found.n_rejected for found in faults),
            sum(_code(event.verdict) in "ar" for event in series.events),
        )

    return max(range(len(findings.series)), key=lambda k: flagged(findings.series[k]))


def _series(findings: Findings, series: Series) -> dict[str, Any]:
    # Plots are over event time; the order of arrival differs where a clock stepped back.
    events = sorted(series.events, key=lambda event: event.reading.event_time_ms)
    times_ms = [event.reading.event_time_ms for event in events]
    verdicts = [event.verdict for event in events]
    return {
        "sensor": series.sensor,
        "step_s": series.step_s,
        "time_ms": [times_ms[0], *(later - earlier for earlier, later in pairwise(times_ms))],
        "values": [
            [_short(event.reading.values[channel], 5) for event in events]
            for channel in range(len(findings.run.channels))
        ],
        "code": "".join(map(_code, verdicts)),
        "score": [_short(verdict.score) for verdict in verdicts],
        "rank": [verdict.rank for verdict in verdicts],
        "n": _runs(verdicts, lambda verdict: verdict.window_len),
        "lambda": _runs(verdicts, lambda verdict: _short(verdict.threshold)),
        "lower": _runs(verdicts, lambda verdict: _short(verdict.score_lower)),
        "upper": _runs(verdicts, lambda verdict: _short(verdict.score_upper)),
        "epoch": _runs(verdicts, lambda verdict: verdict.model_epoch),
        "rate": [_short(event.rolling_rate) for event in events],
        "expected": _theory(events, lambda theory: theory.expected_rate),
        "exact": _theory(events, lambda theory: theory.frozen_bound),
        "paper": _theory(events, lambda theory: theory.paper_bound),
        "why": {
            str(index): in_words(verdict)
            for index, verdict in enumerate(verdicts)
            if verdict.label is not Label.NORMAL and verdict.reason is not Reason.WARM_UP
        },
        "faults": [
            {
                "from": found.fault.first_ms / 1000,
                "to": found.fault.last_ms / 1000,
                "title": found.fault.title,
                "outcome": found.outcome,
            }
            for found in findings.faults
            if found.fault.sensor == verdicts[0].sensor
        ],
        **_counts(findings, times_ms, verdicts),
    }


def _code(verdict: Verdict) -> str:
    if verdict.reason is None:
        return "a" if verdict.label is Label.ANOMALY else "n"
    return _CODES[verdict.reason]


def _counts(
    findings: Findings, times_ms: Sequence[int], verdicts: Sequence[Verdict]
) -> dict[str, Any]:
    """Count per UTC day, or less in a short run: [start in s, rejected, no score, anomalies]."""
    span_s = (times_ms[-1] - times_ms[0]) / 1000
    length_s, unit = next((b for b in _BUCKETS if span_s >= 3 * b[0]), _BUCKETS[-1])
    rows: dict[int, list[int]] = {}
    for time_ms, verdict in zip(times_ms, verdicts, strict=True):
        start_s = time_ms // 1000 // length_s * length_s
        row = rows.setdefault(start_s, [start_s, 0, 0, 0])
        column = {"r": 1, "u": 2, "c": 2, "a": 3}.get(_code(verdict))
        if column is not None:
            row[column] += 1
    budget = findings.run.budget
    return {
        "unit": unit,
        "counts": list(rows.values()),
        "planned": None if budget is None else budget * findings.events_per_day * length_s / 86_400,
    }


def _theory(events: Iterable[Event], pick: Callable[[Any], float | None]) -> list[list[Any]]:
    return _runs(events, lambda event: None if event.theory is None else _short(pick(event.theory)))


def _runs(items: Iterable[Any], value_of: Callable[[Any], Any]) -> list[list[Any]]:
    runs: list[list[Any]] = []
    for index, item in enumerate(items):
        value = value_of(item)
        if not runs or runs[-1][1] != value:
            runs.append([index, value])
    return runs


def _short(value: float | None, digits: int = 4) -> float | None:
    """Round to so many digits that matter; what is not finite becomes ``None``."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")
