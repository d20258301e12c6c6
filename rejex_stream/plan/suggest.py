"""Settings that suit a table of a given length, for a quick look; each choice is reported."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from rejex_stream.detectors import DEFAULT, make_detector
from rejex_stream.detectors.sensor.states import find_states
from rejex_stream.engine import EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.errors import ConfigError
from rejex_stream.features import Circle, Feature, FeatureSpec
from rejex_stream.rejection.policy import CONTAMINATION, MIN_BURST, RejectionPolicy
from rejex_stream.types import FloatArray

_SEASONAL, _OF_STATES = "SeasonalSensor", "StateSensor"
_STATES_FOUND = "states: rows are in one of several, which StateSensor looks for at each fit"
_LARGEST = 2000
_DAY_MS, _MAX_ROWS_A_DAY = 86_400_000, 1_440
_OFTEN, _DAYS, _WEEKS = 12, 5, 28
"""Rows a day from which on they show its hours, days of rows that show them, and the week's."""
_WIDE = 60
"""Of more channels the levels alone are judged: with five columns each, 300 take minutes."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """An engine for a table, with what was chosen and why: a sentence each."""

    spec: EngineSpec
    detector: str
    """By the name under which a config knows it."""
    pooled: bool
    """Whether the sensors share one model, because each alone has too few rows."""
    notes: tuple[str, ...]


def suggest(
    n_rows: int, n_sensors: int, channels: tuple[str, ...], *, contamination: float = CONTAMINATION,
    tolerance: float | None = None, rate: float | None = None, window: int | None = None,
    detector: str | None = None, seed: int = 0, flags: tuple[str, ...] = (),
    n_modes: int | None = None, carry: int = 0,
    angles: tuple[Circle, ...] = (), step_ms: float | None = None,
    levels: FloatArray | None = None,
) -> Suggestion:  # fmt: skip
    """Choose window, budget, detector, features and refits for a table, where they are not given.

    Rows every minute to every two hours that fill two and a half windows of five days, and those up
    to every day that fill as many of four weeks, are judged by the hour, the weekday and the day of
    the month as well, where held-back rows show that it explains something. `levels` of shape
    (m, c) are the first rows of one sensor: where these show states, as of a machine that is on or
    off, rows are judged by the nearest state as well.

    Examples
    --------
    >>> choice = suggest(1268, 1, ("flow",))
    >>> choice.spec.window, choice.spec.features.preset
    (310, 'sensor')
    """
    policy, notes = _policy(contamination, tolerance, rate)
    min_window = policy.first_window
    n_rows //= n_modes or 1
    per_sensor, pooled = n_rows // n_sensors, False
    may_be_seasonal = detector in (None, _SEASONAL) and len(channels) <= _WIDE
    season = _window_of_season(step_ms) if may_be_seasonal else None
    if season is not None and (per_sensor < 2.5 * season or (window or season) < season):
        notes.append(
            f"season: a window of {season:,} rows, and two and a half times as many in all, let "
            "SeasonalSensor judge by the hour, the weekday and the day of the month"
        )
        season = None
    if window is None:
        if n_sensors > 1 and per_sensor // 4 < min_window:
            per_sensor, pooled = n_rows, True
            notes.append(f"pooled: {n_sensors} sensors share one model, each alone is too short")
        quarter = per_sensor // 4
        step = int(10 ** max(0, len(str(quarter)) - 2))  # two digits of it
        window = max(min_window, min(_LARGEST, quarter // step * step), season or 0)
        while window < _LARGEST and not policy.works(window):
            window += 1
        notes.append(f"window: n = {window:,}, for {per_sensor:,} rows a stream")
    if per_sensor < 2 * window:
        raise ConfigError(
            f"{per_sensor:,} rows a stream are too few: γ = {contamination:g} needs a window of at "
            f"least {min_window:,}, and {2 * max(window, min_window):,} rows to fill it and go on. "
            "Give more rows, a larger contamination, or a smaller tolerance or rate."
        )
    if detector is None and season is not None:
        detector = _SEASONAL
    elif detector is None and may_be_seasonal and not pooled and _have_states(levels, window):
        detector = _OF_STATES
        notes.append(_STATES_FOUND)
    detector = detector or DEFAULT
    made = make_detector(detector)
    features = FeatureSpec(channels, flags=flags, carry_forward_events=carry, angles=angles)
    if len(features.measured) == 1 and getattr(made, "preset", None) is None:
        (channel,) = features.measured
        pair = Feature("raw", channel), Feature("difference", channel, events=1)
        features = replace(features, features=pair)
        notes.append("features: the one channel and its change since the event before")
    elif len(features.measured) > _WIDE and getattr(made, "preset", None) == "sensor":
        features = replace(features, preset="raw")
        notes.append(
            f"wide: of {len(features.measured)} channels, more than {_WIDE}, the levels alone are "
            'judged, as that takes seconds, not minutes; features.preset = "sensor" judges their '
            "changes, means and deviations too"
        )
    schedule = RefitSchedule.for_window(window)
    modes = n_modes is not None
    spec = EngineSpec(made, features, policy, window, schedule, seed, evidence=False, modes=modes)
    if spec.features.preset is not None:
        notes.append(
            f"features: {spec.features.preset}, {len(spec.features.names)} columns; channels of at "
            "most two values (switches, commands) stay out of the distance"
        )
    notes.append(f"detector: {spec.detector.name}")
    if spec.is_batch:
        notes.append(
            f"fits: after {schedule.first_fit_events:,} rows, then every "
            f"{schedule.refit_every_events:,}"
        )
    return Suggestion(spec, detector, pooled, tuple(notes))


def _policy(
    contamination: float, tolerance: float | None, rate: float | None
) -> tuple[RejectionPolicy, list[str]]:
    notes: list[str] = []
    if tolerance is None and rate is None:
        rate = contamination
        notes.append(f"budget: {rate:.3g} of the events may be rejected, as γ = {contamination:g}")
    if rate is not None:
        notes.append(f"burst: a stream may have {MIN_BURST} rejected beyond its budget, never more")
    burst = None if rate is None else MIN_BURST
    return RejectionPolicy(contamination, tolerance=tolerance, rate=rate, burst=burst), notes


def _have_states(levels: FloatArray | None, window: int) -> bool:
    if levels is None:
        return False
    rows = levels[:window]
    rows = rows[np.isfinite(rows).all(axis=1)]
    moving = [j for j, column in enumerate(rows.T) if len(np.unique(column)) > 2]
    return find_states(rows[:, moving]) > 1


def _window_of_season(step_ms: float | None) -> int | None:
    rows_a_day = 0 if step_ms is None else round(_DAY_MS / step_ms)
    if step_ms is None or not 1 <= rows_a_day <= _MAX_ROWS_A_DAY:
        return None
    return math.ceil((_DAYS if rows_a_day >= _OFTEN else _WEEKS) * _DAY_MS / step_ms)
