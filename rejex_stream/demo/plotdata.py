"""What the plots of the report are drawn from: one small JSON object a pipeline."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from rejex_stream.demo.evaluate import Event, Findings, Stream
from rejex_stream.demo.words import in_words
from rejex_stream.types import Label, Reason, Verdict

__all__ = ["plot_data"]

_DAY_MS = 86_400_000


def plot_data(findings: Findings) -> dict[str, Any]:
    """Return times, values, verdicts and theory lines of all streams as plain JSON values.

    Lines that seldom change (λ, band, theory) are run-length encoded as [first index, value].
    """
    pipeline = findings.pipeline
    return {
        "name": pipeline.name,
        "channels": [
            {"name": channel.name, "title": channel.title, "unit": channel.unit}
            for channel in pipeline.channels
        ],
        "budget": _budget(findings),
        "streams": [_stream(findings, stream) for stream in findings.streams],
    }


def _budget(findings: Findings) -> float | None:
    """Reviews a day and stream that were planned."""
    budget = findings.pipeline.config.rejection.review_budget
    return None if budget is None else budget.share * findings.pipeline.feed.events_per_day


def _stream(findings: Findings, stream: Stream) -> dict[str, Any]:
    # Plots are over event time; the order of arrival differs where a clock stepped back.
    events = sorted(stream.events, key=lambda event: event.reading.event_time_ms)
    start_ms = events[0].reading.event_time_ms
    times_s = [(event.reading.event_time_ms - start_ms) // 1000 for event in events]
    steps = [b - a for a, b in pairwise(times_s)]
    verdicts = [event.verdict for event in events]
    return {
        "key": stream.key,
        "start_ms": start_ms,
        "step_s": statistics.median(steps) if steps else 1,
        "time": [times_s[0], *steps],
        "values": [
            [_short(event.reading.values[channel], 5) for event in events]
            for channel in range(len(findings.pipeline.channels))
        ],
        "code": "".join(map(_code, verdicts)),
        "score": [_short(verdict.score) for verdict in verdicts],
        "rank": [-1 if verdict.rank is None else verdict.rank for verdict in verdicts],
        "n": _runs(verdicts, lambda verdict: verdict.window_len),
        "lambda": _runs(verdicts, lambda verdict: _short(verdict.threshold)),
        "lower": _runs(verdicts, lambda verdict: _short(verdict.score_lower)),
        "upper": _runs(verdicts, lambda verdict: _short(verdict.score_upper)),
        "epoch": _runs(verdicts, lambda verdict: verdict.model_epoch),
        "rate": [_short(event.rolling_rate) for event in events],
        "expected": _theory(events, lambda theory: theory.expected_rate),
        "exact": _theory(events, lambda theory: theory.exact_bound),
        "paper": _theory(events, lambda theory: theory.paper_bound),
        "why": {
            str(index): in_words(verdict)
            for index, verdict in enumerate(verdicts)
            if verdict.label is not Label.NORMAL and verdict.reason is not Reason.WARM_UP
        },
        "faults": [
            {
                "from_s": (found.segment.first_ms - start_ms) // 1000,
                "to_s": (found.segment.last_ms - start_ms) // 1000,
                "title": found.segment.title,
                "outcome": found.outcome,
            }
            for found in findings.segments
            if found.segment.sensor == stream.key
        ],
        "days": _days(events, start_ms),
    }


def _code(verdict: Verdict) -> str:
    if verdict.reason is None:
        return "a" if verdict.label is Label.ANOMALY else "n"
    return {
        Reason.AMBIGUOUS: "r",
        Reason.WARM_UP: "w",
        Reason.UNSCORABLE: "u",
        Reason.CONSTANT_WINDOW: "c",
    }[verdict.reason]


def _days(events: Sequence[Event], start_ms: int) -> list[list[int]]:
    """Per UTC day: [seconds from the start, anomalies, rejected, without a score]."""
    days: dict[int, list[int]] = {}
    for event in events:
        day_ms = event.reading.event_time_ms // _DAY_MS * _DAY_MS
        row = days.setdefault(day_ms, [(day_ms - start_ms) // 1000, 0, 0, 0])
        column = {"a": 1, "r": 2, "u": 3, "c": 3}.get(_code(event.verdict))
        if column is not None:
            row[column] += 1
    return list(days.values())


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
