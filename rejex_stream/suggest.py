"""Settings that suit a table of a given length, for a quick look; each choice is said aloud."""

from __future__ import annotations

from dataclasses import dataclass

from rejex_stream.config.deciding import Refit
from rejex_stream.engine import EngineSpec
from rejex_stream.errors import ConfigError
from rejex_stream.features import Feature, FeatureSpec
from rejex_stream.policy import RejectionPolicy

__all__ = ["Suggestion", "suggest"]

_LARGEST = 2000


@dataclass(frozen=True, slots=True)
class Suggestion:
    """An engine for a table.

    Attributes
    ----------
    spec
        What decides.
    pooled
        Whether the sensors share one model, because each alone has too few rows.
    notes
        What was chosen and why, a sentence each.
    """

    spec: EngineSpec
    pooled: bool
    notes: tuple[str, ...]


def suggest(
    n_rows: int,
    n_sensors: int,
    channels: tuple[str, ...],
    *,
    contamination: float = 0.05,
    tolerance: float | None = None,
    rate: float | None = None,
    window: int | None = None,
    detector: str = "IForest",
    seed: int = 0,
) -> Suggestion:
    """Choose window, budget, features and refits for a table, where they are not given.

    Parameters
    ----------
    n_rows, n_sensors, channels
        The table.
    contamination
        γ.
    tolerance, rate
        At most one; without either, as many events may be rejected as anomalies are expected.
    window
        n; without one, a quarter of a sensor's rows, at most 2,000.
    detector
        Name of the detector.
    seed
        Root of every seed.

    Raises
    ------
    ConfigError
        If the table is too short for any window that can say both labels.

    Examples
    --------
    >>> choice = suggest(1268, 1, ("flow",))
    >>> choice.spec.window, choice.spec.features.names
    (310, ('flow', 'flow_difference_1'))
    """
    from rejex_stream.detectors import make_detector

    notes: list[str] = []
    if tolerance is None and rate is None:
        rate = contamination
        notes.append(f"budget: {rate:.3g} of the events may be rejected, as γ = {contamination:g}")
    policy = RejectionPolicy(contamination, tolerance=tolerance, rate=rate)
    least = policy.first_window
    per_sensor, pooled = n_rows // n_sensors, False
    if window is None:
        if n_sensors > 1 and per_sensor // 4 < least:
            per_sensor, pooled = n_rows, True
            notes.append(f"pooled: {n_sensors} sensors share one model, each alone is too short")
        window = max(least, min(_LARGEST, _round(per_sensor // 4)))
        while window < _LARGEST and not _reachable(policy, window):
            window += 1
        notes.append(f"window: n = {window:,}, for {per_sensor:,} rows a stream")
    if per_sensor < 2 * window:
        raise ConfigError(
            f"{per_sensor:,} rows a stream are too few: γ = {contamination:g} needs a window of at "
            f"least {least:,}, and {2 * max(window, least):,} rows to fill it and go on. Give more "
            "rows, a larger contamination, or a smaller tolerance or rate."
        )
    features = FeatureSpec(channels)
    if len(channels) == 1:
        columns = Feature("raw", channels[0]), Feature("difference", channels[0], events=1)
        features = FeatureSpec(channels, columns)
        notes.append("features: the one channel and its change since the event before")
    schedule = Refit().schedule(window)
    spec = EngineSpec(make_detector(detector), features, policy, window, schedule, seed)
    notes.append(f"detector: {spec.detector.name}")
    if spec.is_batch:
        notes.append(
            f"fits: after {schedule.first_fit_events:,} rows, then every "
            f"{schedule.refit_every_events:,}"
        )
    return Suggestion(spec, pooled, tuple(notes))


def _reachable(policy: RejectionPolicy, window: int) -> bool:
    try:
        policy.require(window)
    except ConfigError:
        return False
    return True


def _round(n: int) -> int:
    """Round down to two digits that mean something."""
    step = int(10 ** max(0, len(str(n)) - 2))
    return max(1, n // step * step)
