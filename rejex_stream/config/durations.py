"""Times in place of counts of events: at one reading in 10 minutes a window of "14 d" is 2,016.

A pipeline counts events, so that its verdicts are a function of the records alone. People think in
hours and days. What they write becomes a count once, when the config is read, by the interval that
stands beside it: the same file gives the same counts for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel

from rejex_stream.settings import Problem, extra_of, section_of

DURATION = r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|min|h|d|w)\s*$"
"""A number and its unit: milliseconds, seconds, minutes, hours, days, weeks."""
_UNIT_MS = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}

Durations = dict[str, tuple[str, int]]
"""By setting: the time that was written, and the events that it is."""


def counts_of(root: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yield section and name of every setting that counts events: where a time may stand."""
    for section, field in root.model_fields.items():
        declared = section_of(field.annotation)
        for name, inner in (declared.model_fields if declared else {}).items():
            counts = (
                extra_of(inner).get("unit") == "events" and section_of(inner.annotation) is None
            )
            if counts and int in (inner.annotation, *get_args(inner.annotation)):
                yield section, name


def with_counts(
    given: Mapping[str, Any], root: type[BaseModel], variables: Mapping[str, str]
) -> tuple[dict[str, Any], Durations, list[Problem]]:
    """Return sections with counts in place of times, what was replaced, and what could not be.

    Examples
    --------
    >>> from rejex_stream.config import Config
    >>> sections = {"input": {"sample_interval_ms": 600_000}, "rejection": {"window": "14 d"}}
    >>> counted, durations, problems = with_counts(sections, Config, {})
    >>> counted["rejection"], durations, problems
    ({'window': 2016}, {'rejection.window': ('14 d', 2016)}, [])
    """
    counted, durations, problems = dict(given), Durations(), []
    interval_ms = _interval_ms(given)
    for section, name in counts_of(root):
        table = counted.get(section)
        if not isinstance(table, Mapping) or not isinstance(written := table.get(name), str):
            continue
        if (match := re.match(DURATION, written)) is None:
            continue
        key, rest = f"{section}.{name}", {k: v for k, v in table.items() if k != name}
        if interval_ms is None:
            fix = (
                "a time becomes a count by the interval of the readings: give "
                "input.sample_interval_ms (`rejex-stream init` finds it), or a number of events"
            )
            problems.append(Problem(key, repr(written), "", fix, variables.get(key)))
        else:
            rest[name] = count = round(float(match[1]) * _UNIT_MS[match[2]] / interval_ms)
            durations[key] = (written.strip(), count)
        counted[section] = rest
    return counted, durations, problems


def in_days(events: int, interval_ms: object) -> int | str:
    """Return a count as people write it, in days, where these are whole.

    Examples
    --------
    >>> in_days(720, 600_000), in_days(700, 600_000), in_days(720, None)
    ('5 d', 700, 720)
    """
    if not isinstance(interval_ms, int):
        return events
    days, rest = divmod(events * interval_ms, _UNIT_MS["d"])
    return events if rest else f"{days} d"


def _interval_ms(given: Mapping[str, Any]) -> float | None:
    table = given.get("input")
    interval = table.get("sample_interval_ms") if isinstance(table, Mapping) else None
    try:
        return float(interval) if interval is not None and float(interval) > 0 else None
    except (TypeError, ValueError):
        return None  # refused by its own check
