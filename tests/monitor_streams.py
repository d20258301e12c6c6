"""Verdicts with known statistics, for the tests of the monitors."""

import math

import numpy as np
from scipy.signal import lfilter

from rejex_stream.monitor import MonitorConfig
from rejex_stream.rejection import rejection_band
from rejex_stream.types import Label, Position, Reason, Verdict

N = 200
CONTAMINATION, TOLERANCE = 0.1, 8.0
BAND = rejection_band(N, CONTAMINATION, TOLERANCE)
CONFIG = MonitorConfig(window=N, contamination=CONTAMINATION, tolerance=TOLERANCE)


def verdict(rank, i=0, *, n=N, band=BAND, score=None, ties=0, epoch=0, key="s", time_ms=None):
    label = band.label(rank)
    return Verdict(
        position=Position("scores", 0, i), stream_key=key, sensor=key,
        event_time_ms=i * 1_000 if time_ms is None else time_ms, seq=i, label=label,
        reason=Reason.AMBIGUOUS if label is Label.REJECTED else None,
        score=float(rank) + i % 997 / 1000 if score is None else score, rank=rank, ties=ties,
        window_len=n, n_anomalies=band.n_anomalies, band_lower=band.lower, band_upper=band.upper,
        model_epoch=epoch,
    )  # fmt: skip


def unranked(reason, i=0, *, key="s"):
    return Verdict(
        position=Position("scores", 0, i), stream_key=key, sensor=key, event_time_ms=i * 1_000,
        seq=i, label=Label.REJECTED, reason=reason,
    )  # fmt: skip


def scores(kind, size, seed):
    """Scores without anything wrong: iid, AR(.9), season, rounded."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal(size)
    if kind == "autocorrelated":
        return lfilter([math.sqrt(1 - 0.81)], [1, -0.9], z)
    if kind == "seasonal":
        return z + np.sin(2 * np.pi * np.arange(size) / N)
    if kind == "rounded":
        return np.round(z)
    return z


def stream(values, *, n=N, band=BAND, first=0, epoch=0, key="s"):
    windows = np.lib.stride_tricks.sliding_window_view(values, n)[:-1]
    new = values[n:]
    below = (windows < new[:, None]).sum(axis=1)
    upto = (windows <= new[:, None]).sum(axis=1)
    return [
        verdict(
            (lt + le) // 2, first + i, n=n, band=band, score=score, ties=le - lt, epoch=epoch,
            key=key,
        )
        for i, (score, lt, le) in enumerate(
            zip(new.tolist(), below.tolist(), upto.tolist(), strict=True)
        )
    ]  # fmt: skip


def observe_all(monitor, verdicts):
    """Return (index of the verdict, alarm) of every alarm."""
    return [(i, alarm) for i, v in enumerate(verdicts) for alarm in monitor.observe(v)]


def kinds(alarms):
    return {alarm.kind for _, alarm in alarms}
