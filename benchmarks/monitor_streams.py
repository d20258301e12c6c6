"""Streams with known statistics for the benchmark of the monitors: nothing wrong, or one change."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.signal import lfilter

from rejex_stream.monitor.theory import rank_law
from rejex_stream.rejection import rejection_band
from rejex_stream.types import Label, Position, Reason, Verdict

N, CONTAMINATION, TOLERANCE = 1_000, 0.05, 32.0
BAND = rejection_band(N, CONTAMINATION, TOLERANCE)
LAW = rank_law(N, BAND.n_anomalies, BAND.lower, BAND.upper)
REFIT = 2 * N  # events between two models, as shipped
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


def refitted(scores: Floats, agreement: float, rng: np.random.Generator) -> Events:
    """Rank scores[N:] by a new model every 2 N rows, calibrated as the engine's shadows are.

    Every model has a scale of its own, and ranks each event among *its* scores of the N rows
    before. `agreement` is the correlation of two models' scores of one row: what they do not agree
    on is noise that is drawn again for each row and model. At 1 all models order rows alike.
    """
    noise = math.sqrt(1.0 / agreement - 1.0)
    parts = []
    for epoch, start in enumerate(range(N, scores.size, REFIT)):
        rows = scores[start - N : start + REFIT]
        own = rows + noise * rng.standard_normal(rows.size) if noise else rows
        part = sliding(rng.normal(0.0, 5.0) + rng.uniform(0.5, 2.0) * own)
        parts.append(part._replace(epoch=part.epoch + epoch))
    return Events(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def ramped(
    base: str, agreement: float | None, over: int, before: int, after: int, rng: np.random.Generator
) -> Events:
    """Return events of which those from `before` on rise by one sd over `over` windows."""
    scores = base_scores(base, N + before + after, rng)
    scores[N + before :] += np.minimum(1.0, np.arange(after) / (over * N))
    return sliding(scores) if agreement is None else refitted(scores, agreement, rng)


def null_stream_with_refits(name: str, agreement: float, rng: np.random.Generator) -> Events:
    if name.startswith("frozen"):  # a window that never moves has no refits but the swaps it has
        return null_stream(name, rng)
    return refitted(base_scores(name, N + LENGTH, rng), agreement, rng)


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
    return np.isin(BAND.cells(rank), (1, 2))


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
    "ramp +1 sd over 10n": ramp(10),
    "ramp +1 sd over 20n": ramp(20),
    "stuck sensor": lambda scores, _: np.full_like(scores, scores[0]),
}


def cells_after_change(what: str, factor: float, rng: np.random.Generator, size: int) -> Ints:
    """Draw ranks whose rejected (or flagged) cells are `factor` times as likely as planned."""
    inside = (1, 2) if what == "rejects" else (2, 3)
    share = sum(LAW.null[cell] for cell in inside)
    weights = [
        p * (factor if cell in inside else (1 - factor * share) / (1 - share))
        for cell, p in enumerate(LAW.null)
    ]
    edges = [0, *BAND.edges, N + 1]
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
