"""Twenty kinds of faults on four bases: what is found by order, by verdict and by incident.

python -m benchmarks.kinds [--quick] [--bases sine season] [--kinds frozen] [--detectors Sensor]

A base is a stream in which nothing is wrong; a kind is put into it at the same places, 200 rows
every 2,613 (`slow ramp`: 1,000; `spike`: 1); the 50 rows after a fault count neither way.
Detectors go through the engine with its defaults, rivals are fitted on the same rows at the same
counts. That a channel is missing is said in any case, so such rows come first in our order; rivals
carry the last value forward. Nothing is chosen by what comes out here: kinds that somebody invented
choose the wrong detector, so labelled streams stand beside them.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.signal import lfilter

from benchmarks.harness import write
from benchmarks.streams.events import recall_at
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.features import FeatureSpec
from rejex_stream.rejection import RejectionPolicy
from rejex_stream.rejection.window import LARGEST_SEVERITY
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Incident, Label, Position, Reading, Reason, Verdict

Floats = np.ndarray[Any, np.dtype[np.float64]]
FIRST, EVERY, LONG, SLOW, TAIL = 6_007, 2_613, 200, 1_000, 50
FALSE_ALARMS = 1 / 4_000
N, REFIT = 2_000, 4_000
PERIOD, DAY = 50, 288
OURS = {
    "Sensor": ("Sensor", {}),
    "SensorEnsemble": ("SensorEnsemble", {}),
    "VARResidual": ("VARResidual", {}),
    "SeasonalSensor": ("SeasonalSensor", {}),
    "GMM": ("pyod:GMM", {"scale": "standard"}),
}


# --------------------------------------------------------------------------------- bases
def ar(phi: float, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    shocks = rng.standard_normal(shape) * np.sqrt(1 - phi * phi)
    shocks[0] /= np.sqrt(1 - phi * phi)
    return np.asarray(lfilter([1.0], [1.0, -phi], shocks, axis=0))


def sine(n: int, rng: np.random.Generator) -> Floats:
    return (np.sin(2 * np.pi * np.arange(n) / PERIOD) + 0.1 * rng.standard_normal(n))[:, None]


def season(n: int, rng: np.random.Generator) -> Floats:
    """Make a plant of five channels with a day: load, and what follows from it at its own pace."""
    phase = 2 * np.pi * np.arange(n) / DAY
    load = np.sin(phase) + 0.4 * np.sin(2 * phase + 1.0) + 0.3 * ar(0.9, (n,), rng)
    slow = lfilter([0.1], [1.0, -0.9], load)
    X = np.column_stack([load, 0.8 * load, slow, load - slow, 0.5 * np.cos(phase)])
    return np.asarray(X + 0.1 * rng.standard_normal(X.shape))


def ar3(n: int, rng: np.random.Generator) -> Floats:
    """Three channels that share the half of what they do."""
    return np.sqrt(0.5) * (ar(0.9, (n, 1), rng) + ar(0.9, (n, 3), rng))


def servers(n: int, rng: np.random.Generator) -> Floats:
    """38 channels under one load."""
    weights = rng.uniform(0.3, 1.0, 38)
    return ar(0.95, (n, 1), rng) * weights + 0.5 * ar(0.7, (n, 38), rng)


BASES: dict[str, Callable[[int, np.random.Generator], Floats]] = {
    "sine": sine, "season": season, "ar3": ar3, "servers": servers,
}  # fmt: skip
PLAIN = ("sine", "season", "ar3")


# --------------------------------------------------------------------------------- kinds
class Place(NamedTuple):
    """Where a fault is put: one channel, and what is ordinary for it."""

    x: Floats
    sd: float
    mean: float
    rng: np.random.Generator


def _smooth(place: Place) -> Floats:
    """Return the signal without its noise, for kinds that change the one and leave the other."""
    return np.convolve(np.pad(place.x, 4, mode="edge"), np.ones(9) / 9, mode="valid")


def _noise(place: Place, factor: float) -> Floats:
    clean = _smooth(place)
    return np.asarray(clean + factor * (place.x - clean))


def _shift(place: Place, by: float) -> Floats:
    return place.x + by * place.sd


def _ramp(place: Place, by: float) -> Floats:
    return place.x + np.linspace(0.0, by, len(place.x)) * place.sd


def _other_time(place: Place, index: Floats) -> Floats:
    return np.interp(index % len(place.x), np.arange(len(place.x)), place.x)


def _intermittent(place: Place) -> Floats:
    on = (np.arange(len(place.x)) // 5) % 4 == 0
    return place.x + 4.0 * place.sd * on


def _swing(place: Place) -> Floats:
    return place.x + 2.0 * place.sd * np.sin(2 * np.pi * np.arange(len(place.x)) / 7)


def _missing(place: Place) -> Floats:
    return np.full_like(place.x, np.nan)


KINDS: dict[str, Callable[[Place], Floats]] = {
    "spike": lambda p: _shift(p, 8.0),
    "spike in range": lambda p: np.full_like(p.x, 2 * p.mean - p.x[0]),
    "level 3 sd": lambda p: _shift(p, 3.0),
    "level 1.5 sd": lambda p: _shift(p, 1.5),
    "drop": lambda p: 0.3 * (p.x - p.mean) + p.mean - 4.0 * p.sd,
    "ramp": lambda p: _ramp(p, 4.0),
    "slow ramp": lambda p: _ramp(p, 4.0),
    "noise x3": lambda p: _noise(p, 3.0),
    "noise gone": _smooth,
    "frozen": lambda p: np.full_like(p.x, p.x[0]),
    "correlation break": lambda p: p.mean + p.sd * _normal(ar(0.9, p.x.shape, p.rng)),
    "sign flip": lambda p: 2 * p.mean - p.x,
    "frequency x2": lambda p: _other_time(p, 2.0 * np.arange(len(p.x))),
    "phase shift": lambda p: np.roll(p.x, len(p.x) // 3),
    "season missing": lambda p: p.mean + (p.x - _smooth(p)),
    "clipped": lambda p: np.clip(p.x, p.mean - 0.5 * p.sd, p.mean + 0.5 * p.sd),
    "intermittent": _intermittent,
    "oscillation": _swing,
    "gain": lambda p: p.mean + 1.8 * (p.x - p.mean),
    "missing": _missing,
}
ONE_ROW = ("spike", "spike in range")


def _normal(x: Floats) -> Floats:
    return np.asarray((x - x.mean()) / x.std())


def made(base: str, kind: str, faults: int) -> tuple[Floats, list[tuple[int, int]]]:
    """Return a stream with a kind in it, and where."""
    rng = np.random.default_rng([sorted(BASES).index(base), 7])
    X = BASES[base](FIRST + faults * EVERY, rng)
    own = np.random.default_rng([list(KINDS).index(kind), 11])
    length = 1 if kind in ONE_ROW else SLOW if kind == "slow ramp" else LONG
    places = [(FIRST + i * EVERY, FIRST + i * EVERY + length) for i in range(faults)]
    x = X[:, -1 if base == "servers" else 0]
    ordinary = x[:FIRST]
    for start, stop in places:
        x[start:stop] = KINDS[kind](
            Place(x[start:stop].copy(), float(ordinary.std()), float(ordinary.mean()), own)
        )
    return X, places


# ----------------------------------------------------------------------------- detectors
class Result(NamedTuple):
    """What a detector made of a stream: an order of its rows, and for ours also what was said."""

    order: Floats
    verdicts: Sequence[Verdict] = ()
    incidents: Sequence[Incident] = ()


def ours(name: str, X: Floats) -> Result:
    recipe, params = OURS[name]
    channels = tuple(f"c{j}" for j in range(X.shape[1]))
    spec = EngineSpec(
        make_detector(recipe, **params), FeatureSpec(channels), RejectionPolicy(0.02, rate=0.02),
        window=N, evidence=False,
    )  # fmt: skip
    engine, verdicts = Engine(spec, InlineExecutor()), list[Verdict]()
    for start in range(0, len(X), 500):
        verdicts += engine.process([
            Reading("s", "s", 60_000 * i, tuple(row), Position("t", 0, i))
            for i, row in enumerate(X[start : start + 500].tolist(), start)
        ])  # fmt: skip
    return Result(np.array([_order(v) for v in verdicts]), verdicts, engine.take_incidents())


def _order(verdict: Verdict) -> float:
    if verdict.reason in (Reason.LIMIT, Reason.UNSCORABLE):
        return LARGEST_SEVERITY  # a channel is missing: somebody is told, whatever the others say
    return -1.0 if verdict.severity is None else verdict.severity


def filled(X: Floats) -> Floats:
    """Carry the last value forward, as our features do for ten rows."""
    at = np.where(np.isfinite(X), np.arange(len(X))[:, None], 0)
    return np.take_along_axis(X, np.maximum.accumulate(at, axis=0), axis=0)


def refitted(X: Floats, fit: Callable[[Floats], Callable[[Floats], Floats]]) -> Floats:
    """Score rows by models fitted on the newest 2,000 at the counts at which ours are."""
    starts = [N // 2, *range(N // 2 + REFIT, len(X), REFIT)]
    scores = np.zeros(len(X))
    for start, stop in zip(starts, [*starts[1:], len(X)], strict=True):
        score = fit(X[max(0, start - N) : start])
        scores[start:stop] = score(X[start:stop])
    return scores


def largest_z(X: Floats) -> Floats:
    def fit(rows: Floats) -> Callable[[Floats], Floats]:
        mean, sd = rows.mean(axis=0), np.maximum(rows.std(axis=0), 1e-9)
        return lambda new: np.abs((new - mean) / sd).max(axis=1)

    return refitted(filled(X), fit)


def windows_of(X: Floats, length: int = 20) -> Floats:
    X = np.concatenate((np.repeat(X[:1], length - 1, axis=0), X))
    return np.lib.stride_tricks.sliding_window_view(X, length, axis=0).reshape(
        len(X) - length + 1, -1
    )


def kmeans(X: Floats) -> Floats:
    """KMeansAD: the distance of the last 20 rows from the nearest of 20 centres."""
    from sklearn.cluster import KMeans

    def fit(rows: Floats) -> Callable[[Floats], Floats]:
        mean, sd = rows.mean(axis=0), np.maximum(rows.std(axis=0), 1e-9)
        model = KMeans(20, n_init=1, random_state=0).fit((rows - mean) / sd)
        return lambda new: model.transform((new - mean) / sd).min(axis=1)

    return refitted(windows_of(filled(X)), fit)


def matrix_profile(X: Floats, length: int = 25) -> Floats:
    """Return the left matrix profile of each channel, 2,000 rows back; the largest counts."""
    found = np.zeros(len(X))
    for x in filled(X).T:
        total = np.concatenate(([0.0], np.cumsum(x)))
        squares = np.concatenate(([0.0], np.cumsum(x * x)))
        mean = (total[length:] - total[:-length]) / length
        sd = np.sqrt(np.maximum((squares[length:] - squares[:-length]) / length - mean**2, 1e-9))
        best = np.full(len(mean), -1.0)
        for lag in range(length, N):
            product = np.concatenate(([0.0], np.cumsum(x[lag:] * x[:-lag])))
            dot = (product[length:] - product[:-length]) / length
            r = (dot - mean[lag:] * mean[:-lag]) / (sd[lag:] * sd[:-lag])
            np.maximum(best[lag:], r, out=best[lag:])
        apart = np.sqrt(np.maximum(2 * length * (1 - best), 0.0))
        found[length - 1 :] = np.maximum(found[length - 1 :], apart)
    found[: N // 2] = 0.0
    return found


RIVALS = {"max |z|": largest_z, "KMeansAD": kmeans, "left MP": matrix_profile}
_MOST_PROFILED = 1  # channels


# ------------------------------------------------------------------------------- figures
class Figures(NamedTuple):
    """Shares of the faults, but for `normal` (of their rows) and `false` (runs per 1,000)."""

    recall: float
    first: float
    anomaly: float | None = None
    incident: float | None = None
    either: float | None = None
    delay: float | None = None
    normal: float | None = None
    false: float | None = None
    held: float | None = None


def figures(result: Result, places: Sequence[tuple[int, int]]) -> Figures:
    y = np.zeros(len(result.order), dtype=int)
    for start, stop in places:
        y[start:stop] = 1
    judged = np.arange(len(y)) >= FIRST - N // 2
    for _, stop in places:
        judged[stop : stop + TAIL] = False
    recall = recall_at(y[judged], result.order[judged], FALSE_ALARMS)
    early = judged & (np.arange(len(y)) < places[0][1] + EVERY // 2)
    first = recall_at(y[early], result.order[early], FALSE_ALARMS)
    if not result.verdicts:
        return Figures(recall, first)
    alarm = np.array([v.label is Label.ANOMALY for v in result.verdicts])
    held = np.array([v.held for v in result.verdicts])
    first_of = {i.id: i for i in reversed(result.incidents)}
    opened = [i.opened_seq for i in first_of.values()]
    delays, hits = [], []
    for start, stop in places:
        after = [seq - start for seq in opened if start <= seq < stop + LONG]
        hits.append((bool(alarm[start:stop].any()), bool(after)))
        delays += after[:1]
    edges = np.diff(np.concatenate(([0], (alarm & (y == 0))[judged].astype(int))))
    labels = [v.label is Label.NORMAL for v in result.verdicts]
    return Figures(
        recall, first,
        statistics.mean(a for a, _ in hits), statistics.mean(i for _, i in hits),
        statistics.mean(a or i for a, i in hits),
        statistics.median(delays) if delays else None,
        float(np.mean(np.array(labels)[y == 1])),
        1000 * np.count_nonzero(edges == 1) / np.count_nonzero(y[judged] == 0),
        float(np.mean(held[judged][y[judged] == 0])),
    )  # fmt: skip


def run(bases: Sequence[str], kinds: Sequence[str], detectors: Sequence[str], faults: int) -> Any:
    """Return by kind, base and detector what was found."""
    found: dict[tuple[str, str, str], Figures] = {}
    for base in bases:
        for kind in kinds:
            X, places = made(base, kind, faults)
            for name in detectors:
                if name == "left MP" and X.shape[1] > _MOST_PROFILED:
                    continue
                result = ours(name, X) if name in OURS else Result(RIVALS[name](X))
                found[kind, base, name] = figures(result, places)
        print(f"{base}: done", flush=True)
    return found


def _mean(values: Sequence[float | None]) -> float | str:
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else "-"


def tables(found: dict[tuple[str, str, str], Figures]) -> list[tuple[str, list[str], Any]]:
    detectors = [*dict.fromkeys(name for _, _, name in found)]
    kinds = [*dict.fromkeys(kind for kind, _, _ in found)]
    bases = [*dict.fromkeys(base for _, base, _ in found)]
    plain = [base for base in bases if base in PLAIN]
    made_of = defaultdict(list)
    for (kind, base, name), figure in found.items():
        made_of[kind, name] += [figure] if base in plain else []
    rows = [
        [kind, *(_mean([f.recall for f in made_of[kind, name]]) for name in detectors)]
        for kind in kinds
    ]
    all_of = [[f for kind in kinds for f in made_of[kind, name]] for name in detectors]
    rows += [
        ["mean", *(_mean([f.recall for f in each]) for each in all_of)],
        ["first fault alone", *(_mean([f.first for f in each]) for each in all_of)],
    ]
    out = [(
        f"Share of faults found at one run of false alarms per {round(1 / FALSE_ALARMS):,} events "
        f"and 1 % of the normal rows, mean of {', '.join(plain)}; that a channel "
        "is missing is said in any case, and comes first in our order",
        ["kind", *detectors], rows,
    )]  # fmt: skip
    for name in [name for name in detectors if name in OURS]:
        for base in bases:
            of = {kind: found[kind, base, name] for kind in kinds if (kind, base, name) in found}
            each = [[kind, *("-" if x is None else x for x in f)] for kind, f in of.items()]
            each.append(["mean", *(_mean(column) for column in zip(*of.values(), strict=True))])
            out.append((
                f"{name} on {base}: found by order (all, and the first alone); shares of faults "
                "with an anomaly, an incident, either; events until the incident; of the rows of "
                "faults those called normal; false runs of anomalies per 1,000 events and share "
                "of time held where nothing is wrong",
                ["kind", "by order", "first", "anomaly", "incident", "either", "delay", "normal",
                 "false runs", "held"], each,
            ))  # fmt: skip
    return out


def main(arguments: list[str] | None = None) -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kinds", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three faults a kind, Sensor alone")
    parser.add_argument("--bases", nargs="+", choices=BASES, default=[*BASES])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    parser.add_argument("--detectors", nargs="+", choices=[*OURS, *RIVALS])
    parser.add_argument("--name", help="of the result; default: kinds, with --quick none is kept")
    options = parser.parse_args(arguments)
    detectors = options.detectors or (["Sensor"] if options.quick else [*OURS, *RIVALS])
    made_of = tables(run(options.bases, options.kinds, detectors, 3 if options.quick else 7))
    if options.quick and not options.name:
        for caption, columns, rows in made_of:
            print(f"\n{caption}\n{' | '.join(columns)}")
            for row in rows:
                print(" | ".join(f"{x:.2f}" if isinstance(x, float) else str(x) for x in row))
        return
    write(options.name or "kinds", "Kinds of faults", made_of, note="")


if __name__ == "__main__":
    main()
