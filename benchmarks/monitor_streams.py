"""Streams with known statistics for the benchmark of the monitors: nothing wrong, or one change."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.signal import lfilter

from rejex_stream.monitor.cells import cell_table
from rejex_stream.rejection import rejection_band
from rejex_stream.types import Label, Position, Reason, Verdict

N, CONTAMINATION, TOLERANCE = 1_000, 0.05, 32.0
BAND = rejection_band(N, CONTAMINATION, TOLERANCE)
TABLE = cell_table(N, BAND.n_anomalies, BAND.lower, BAND.upper)
LENGTH = 100_000  # events of one null stream, warm-up of the monitors included

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


class Events(NamedTuple):
    """Scores with their ranks; `epoch` counts the models."""

    scores: Floats
    below: Ints
    upto: Ints
    epoch: Ints


# ------------------------------------------------------------------------------------ streams
TARGETS = ("iid", "AR(.5)", "AR(.9)", "AR(.99)", "season 100", "season 1000 (= n)",
           "season 5000", "season 20000", "frozen window, 10k events each",
           "frozen window, 100k events each")  # fmt: skip
UNSEEN = ("AR(.97)", "AR(.999)", "season 300", "season 2500", "iid, rounded to 0.5 sd",
          "iid, 90 % zeros")  # fmt: skip


def base_scores(name: str, size: int, rng: np.random.Generator) -> Floats:
    z = rng.standard_normal(size)
    if name.startswith("AR("):
        phi = float(name[3:-1])
        start = rng.standard_normal(1) * phi
        return np.asarray(lfilter([math.sqrt(1 - phi * phi)], [1, -phi], z, zi=start)[0])
    if name.startswith("season"):
        period = int(name.split()[1])
        return z + np.sin(2 * np.pi * (np.arange(size) + rng.integers(period)) / period)
    if "rounded" in name:
        return np.round(z * 2) / 2
    if "zeros" in name:
        return np.maximum(0.0, z - 1.2815515655446004)
    return z


def sliding(scores: Floats, *, tied: bool = True) -> Events:
    """Rank scores[N:] among the N before each; `tied` says whether any could be equal."""
    windows = np.lib.stride_tricks.sliding_window_view(scores, N)[:-1]
    new = scores[N:]
    below, upto = np.empty(new.size, np.int64), np.empty(new.size, np.int64)
    for i in range(0, new.size, 2_000):
        part, x = windows[i : i + 2_000], new[i : i + 2_000, None]
        np.sum(part <= x, axis=1, out=upto[i : i + 2_000])
        if tied:
            np.sum(part < x, axis=1, out=below[i : i + 2_000])
    return Events(new, below if tied else upto, upto, np.zeros(new.size, np.int64))


def frozen(size: int, each: int, rng: np.random.Generator) -> Events:
    """Rank iid scores against windows that never move; a new window, and epoch, every `each`."""
    scores, ranks = rng.standard_normal(size), []
    for i in range(0, size, each):
        ranks.append(np.searchsorted(np.sort(rng.standard_normal(N)), scores[i : i + each]))
    rank = np.concatenate(ranks)
    return Events(scores, rank, rank, np.arange(size) // each)


def null_stream(name: str, rng: np.random.Generator) -> Events:
    if name.startswith("frozen"):
        return frozen(LENGTH, 10_000 if "10k" in name else LENGTH, rng)
    return sliding(base_scores(name, N + LENGTH, rng), tied=name.startswith("iid,"))


def verdicts(events: Events, first: int = 0, stream_key: str = "s") -> Iterator[Verdict]:
    lower, upper, r = BAND.lower, BAND.upper, BAND.n_anomalies
    for i, (score, below, upto, epoch) in enumerate(
        zip(*(column.tolist() for column in events), strict=True), first
    ):
        rank = (below + upto) // 2
        label = BAND.label(rank)
        yield Verdict(
            position=Position("scores", 0, i),
            stream_key=stream_key,
            sensor=stream_key,
            event_time_ms=i * 1_000,
            seq=i,
            label=label,
            reason=Reason.AMBIGUOUS if label is Label.REJECTED else None,
            score=score,
            rank=rank,
            ties=upto - below,
            window_len=N,
            n_anomalies=r,
            band_lower=lower,
            band_upper=upper,
            model_epoch=epoch,
        )


def rejected(events: Events) -> np.ndarray[Any, np.dtype[np.bool_]]:
    rank = (events.below + events.upto) // 2
    return (rank >= BAND.lower) & (rank <= BAND.upper)


# ------------------------------------------------------------------------------------- changes
def shift(size: float) -> Callable[[Floats, Floats], Floats]:
    return lambda scores, _: scores + size


def ramp(windows: float) -> Callable[[Floats, Floats], Floats]:
    return lambda scores, time: scores + np.minimum(1.0, time / (windows * N))


CHANGES: dict[str, Callable[[Floats, Floats], Floats] | tuple[str, float]] = {
    "rejects x2, frozen window": ("rejects", 2.0),
    "anomalies x3, frozen window": ("flagged", 3.0),
    "mean +0.5 sd": shift(0.5),
    "mean +1 sd": shift(1.0),
    "mean +3 sd": shift(3.0),
    "mean -1 sd": shift(-1.0),
    "scale x1.5": lambda scores, _: scores * 1.5,
    "ramp +1 sd over 5n": ramp(5),
    "ramp +1 sd over 20n": ramp(20),
    "stuck sensor": lambda scores, _: np.full_like(scores, scores[0]),
}


def cells_after_change(what: str, factor: float, rng: np.random.Generator, size: int) -> Ints:
    """Draw ranks whose rejected (or flagged) cells are `factor` times as likely as planned."""
    inside = (1, 2) if what == "rejects" else (2, 3)
    share = sum(TABLE.null[cell] for cell in inside)
    weights = [
        p * (factor if cell in inside else (1 - factor * share) / (1 - share))
        for cell, p in enumerate(TABLE.null)
    ]
    edges = [0, BAND.lower, N - BAND.n_anomalies + 1, BAND.upper + 1, N + 1]
    cell = rng.choice(4, size, p=np.array(weights) / sum(weights))
    low, high = np.array(edges)[cell], np.array(edges)[cell + 1]
    return np.asarray(low + np.floor(rng.random(size) * (high - low)), dtype=np.int64)


def changed(
    base: str, change: str, past: Floats, rng: np.random.Generator, after: int
) -> tuple[Events, Events]:
    """Return (before, after): the last events of the warm-up and those after the change."""
    how = CHANGES[change]
    if isinstance(how, tuple):
        ranks = cells_after_change(*how, rng, after)
        old = rng.integers(0, N + 1, past.size - N)
        make = lambda k: Events(k + rng.random(k.size), k, k, np.zeros(k.size, np.int64))  # noqa: E731
        return make(old), make(ranks)
    if base.startswith("AR("):  # goes on from where the past ended
        phi = float(base[3:-1])
        noise = rng.standard_normal(after) * math.sqrt(1 - phi * phi)
        future = lfilter([1], [1, -phi], noise, zi=past[-1:] * phi)[0]
    else:
        future = rng.standard_normal(after)
    everything = sliding(np.concatenate([past, how(future, np.arange(after, dtype=float))]))
    cut = past.size - N
    return (
        Events(*(column[:cut] for column in everything)),
        Events(*(column[cut:] for column in everything)),
    )
