"""γ from the data: the posterior of the contamination from several detectors' scores, no labels.

γGMM [1]_: each detector's scores on a logarithmic scale, a Dirichlet process mixture of Gaussians
over them, its components in the order of how anomalous they are to all detectors, and two prior
beliefs that say how far down that order anomalies reach: γ is zero with probability `P_ZERO`, and
above `HIGH` with probability `P_HIGH`. Hyperparameters are the paper's, and none was chosen here.

The two beliefs are strong ones: γ above `HIGH` is nearly ruled out before a row is seen, and above
`MOST` altogether. Where anomalies are as common as that, the answer is wrong, and cannot know it.
Measured (``benchmarks/results/contamination.md``): the posterior's 90 % interval held the truth in
9 of the 24 public tables that it spoke of. It counts how sure the model is, and not how wrong.

So the interval that is told is another one: data sets are taken as exchangeable, and the median of
a new one is as wrong, in log odds, as it was in those 24 tables, of which the labels are known
[2]_. No score, no detector and no median depends on those labels. It is wide, and that is what can
be told of γ without labels: on 99 labelled streams, which had no part in it, it held the truth in
79.

References
----------
.. [1] L. Perini, P.-C. Bürkner, A. Klami: Estimating the Contamination Factor's Distribution in
   Unsupervised Anomaly Detection. ICML 2023.
.. [2] V. Vovk, A. Gammerman, G. Shafer: Algorithmic Learning in a Random World. 2005. Conformal
   prediction; here a case is a data set.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rejex_stream.detectors import make_detector
from rejex_stream.detectors.sensor.layout import Layout
from rejex_stream.errors import ConfigError, DetectorError
from rejex_stream.features import FeatureSpec, MissingChannelError, SensorFeatures
from rejex_stream.threads import one_thread
from rejex_stream.types import FloatArray, Reading

__all__ = [
    "DETECTORS",
    "KNOWN_SETS",
    "MOST",
    "MOST_ROWS",
    "WRONG_BY",
    "Contamination",
    "contamination",
    "contamination_of_scores",
    "rows_of",
]

DETECTORS: Final = ("KNN", "LOF", "IForest", "OCSVM", "HBOS", "pyod:LODA", "COPOD")
"""Of the paper's ten those that need neither a neural network nor another detector's list."""
P_ZERO: Final = 0.01
"""p_0: probability that there is no anomaly."""
HIGH: Final = 0.15
P_HIGH: Final = 0.01
"""p_high: probability that more than `HIGH` of the rows are anomalies."""
MOST: Final = 0.25
"""γ is never found above this."""
KNOWN_SETS: Final = 24
WRONG_BY: Final = (-5.77, 2.33)
"""logit(γ) - logit(median) in `KNOWN_SETS` public tables: least and largest, outwards.

``python -m benchmarks.contamination`` prints them again.
"""
MOST_ROWS: Final = 2000
"""Rows that are looked at, spread evenly over what there is; more make the mixture slow."""

_COMPONENTS = 100
_CONCENTRATION = 0.01
_FIT_STEPS = 1500
_LEAST_CONCENTRATION = 2.0
_SHIFT = 0.01
_SEED = 331
_TRIES = 5
_DRAWS, _SAMPLE = 1000, 10_000
_LEAST_AGREEMENT = 0.5
_FARTHEST = 1e4


@dataclass(frozen=True, slots=True)
class Contamination:
    """What the data say of γ.

    Attributes
    ----------
    median, low, high
        Of the posterior; between `low` and `high` lies γ with probability `level` if the method's
        model is right, which it hardly is (:attr:`interval`). ``None`` where nothing can be said.
    level
        Of the interval.
    rows
        How many were looked at.
    detectors
        Whose scores counted.
    agreement
        In [0, 1]: the share of all ranks' variance that one common order of the rows explains.
    refusal
        Why nothing can be said; ``None`` where something can.
    """

    median: float | None
    low: float | None
    high: float | None
    level: float
    rows: int
    detectors: tuple[str, ...]
    agreement: float | None = None
    refusal: str | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """Where γ lies if the median is as wrong as it was in the public tables; shape (2,).

        Raises
        ------
        ConfigError
            If nothing can be said.

        Notes
        -----
        If the data set is exchangeable with those `KNOWN_SETS`, it holds γ with a probability of
        at least 1 - 2 / (`KNOWN_SETS` + 1), 92 %: its error is the least or the largest of 25 that
        rarely. No more than 23 in 25 can be told from 24 sets. O(1).

        Examples
        --------
        >>> found = Contamination(0.05, 0.03, 0.08, 0.9, 200, ("a", "b"))
        >>> least, most = found.interval
        >>> f"{least:.4f} to {most:.2f}"
        '0.0002 to 0.35'
        """
        if self.median is None:
            raise ConfigError(f"no interval: {self.refusal}")
        if not 0 < self.median < 1:
            return (0.0, 1.0)
        odds = math.log(self.median / (1 - self.median))
        least, most = (1 / (1 + math.exp(-odds - wrong)) for wrong in WRONG_BY)
        return least, most


def contamination(
    X: npt.ArrayLike,
    *,
    detectors: Sequence[str] = DETECTORS,
    level: float = 0.9,
    most_rows: int = MOST_ROWS,
    seed: int = 0,
) -> Contamination:
    """Estimate which share of the rows are anomalies, and how sure that is, without labels.

    Parameters
    ----------
    X
        Rows of features, shape (n, d), finite; columns that never change are left out, the others
        are scaled to [0, 1].
    detectors
        Names of two or more batch detectors; those whose scores cannot tell rows apart are left
        out.
    level
        Of the interval, in (0, 1).
    most_rows
        Of more rows, so many are taken, evenly spread.
    seed
        Equal rows and seed give an equal answer.

    Raises
    ------
    ConfigError
        If X is no table of finite numbers, or `level` is no probability.

    Notes
    -----
    Seconds for 2,000 rows, of which the mixture takes nine tenths: O(steps · rows · 100 · m²) for m
    detectors. The answer *cannot tell* where there are fewer rows than the mixture may have
    components, where fewer than two detectors can tell rows apart, where their orders have less
    than half of their variance in common, and where the beliefs cannot be met: when the component
    that all call the most anomalous alone holds more than `HIGH` of the rows. These criteria look
    at no label.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> rows = np.vstack([rng.normal(size=(190, 3)), rng.normal(6, 1, size=(10, 3))])
    >>> found = contamination(rows)
    >>> found.low <= 0.05 <= found.high
    True
    >>> contamination(rows[:50]).refusal
    'cannot tell: 50 rows are fewer than the 100 that a mixture of scores needs.'
    """
    rows = np.asarray(X, dtype=np.float64)
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise ConfigError(
            f"X has the shape {rows.shape}"
            + ("" if rows.ndim != 2 else " and holds values that are not finite")
            + ": expected rows of finite features, shape (n, d)."
        )
    if len(rows) > most_rows:
        rows = rows[np.arange(most_rows) * len(rows) // most_rows]
    low, spread = rows.min(axis=0, initial=np.inf), np.zeros(rows.shape[1])
    if len(rows):
        spread = np.ptp(rows, axis=0)
    moving = np.isfinite(spread) & (spread > 0)
    rows = (rows[:, moving] - low[moving]) / spread[moving]
    names: list[str] = []
    scores: list[FloatArray] = []
    if len(rows) >= _COMPONENTS and rows.shape[1]:
        for name in detectors:
            found = _scores(name, rows, seed)
            if found is not None:
                names.append(name.rpartition(":")[2])
                scores.append(found)
    table = np.stack(scores, axis=1) if scores else np.empty((len(rows), 0))
    return contamination_of_scores(table, names, level=level, seed=seed)


def contamination_of_scores(
    scores: npt.ArrayLike,
    detectors: Sequence[str],
    *,
    level: float = 0.9,
    seed: int = 0,
) -> Contamination:
    """Estimate the share of anomalies from scores that several detectors gave to the same rows.

    Parameters
    ----------
    scores
        Shape (n, m), high = anomalous, no column constant.
    detectors
        m names.
    level, seed
        As for :func:`contamination`, which has the rest.

    Examples
    --------
    >>> noise = np.random.default_rng(1).normal(size=(200, 4))
    >>> contamination_of_scores(noise, ("a", "b", "c", "d")).refusal[:57]
    'cannot tell: the detectors do not see the same order: 28%'
    """
    if not 0 < level < 1:
        raise ConfigError(f"level = {level!r}: give the probability of the interval, in (0, 1).")
    table = np.asarray(scores, dtype=np.float64)
    n, m = table.shape
    known: dict[str, Any] = {"level": level, "rows": n, "detectors": tuple(detectors)}

    def refused(why: str) -> Contamination:
        return Contamination(None, None, None, **known, refusal=f"cannot tell: {why}")

    if n < _COMPONENTS:
        return refused(f"{n} rows are fewer than the {_COMPONENTS} that a mixture of scores needs.")
    if m < 2:
        return refused(f"{m} of the detectors can tell these rows apart; two have to.")
    known["agreement"] = _agreement(table)
    if known["agreement"] < _LEAST_AGREEMENT:
        return refused(
            f"the detectors do not see the same order: {known['agreement']:.0%} of the variance of "
            f"their ranks is in common, {_LEAST_AGREEMENT:.0%} is needed."
        )
    logs = np.log(table - table.min(axis=0) + _SHIFT)
    logs = (logs - logs.mean(axis=0)) / logs.std(axis=0)
    for attempt in range(_TRIES):  # another start of the mixture may find other components
        sample = _posterior(logs, _SEED + seed + 100 * attempt)
        if sample is not None:
            low, median, high = np.quantile(sample, [(1 - level) / 2, 0.5, (1 + level) / 2])
            return Contamination(float(median), float(low), float(high), **known)
    return refused(
        f"the rows that all detectors call the most anomalous are one group of more than {HIGH:.0%}"
        ": another regime, or more anomalies than the method can count."
    )


def rows_of(
    readings: Iterable[Reading], features: FeatureSpec, most_rows: int = MOST_ROWS
) -> tuple[FloatArray, int]:
    """Make rows of features of a history, evenly spread over it; and say how many rows it has.

    Columns of channels with at most two values (switches, commands) and of the calendar are left
    out, as the detectors for sensors do.

    Parameters
    ----------
    readings
        In order, of any number of sensors; those that cannot be scored are left out.
    features
        What rows are made of.
    most_rows
        At most twice as many are held and returned, however long the history is.

    Examples
    --------
    >>> from rejex_stream.types import Position
    >>> spec = FeatureSpec(("flow",))
    >>> history = [Reading("p", "p", i, (float(i),), Position("t", 0, i)) for i in range(10)]
    >>> rows, count = rows_of(history, spec, 3)
    >>> rows[:, 0].tolist(), count
    ([0.0, 2.0, 4.0, 6.0, 8.0], 10)
    """
    states: dict[str, SensorFeatures] = {}
    kept: list[list[float]] = []
    step, count = 1, 0
    for reading in readings:
        if reading.sensor not in states:
            states[reading.sensor] = features.start()
        try:
            row = states[reading.sensor].extract(reading.event_time_ms, reading.values)
        except MissingChannelError:
            continue
        if row is None or not math.isfinite(sum(row)):
            continue
        if count % step == 0:
            kept.append(row)
            if len(kept) > 2 * most_rows:
                kept, step = kept[::2], 2 * step
        count += 1
    rows = np.array(kept, dtype=np.float64).reshape(len(kept), len(features.names))
    return rows[:, Layout.of(features).measured(rows, "apart")] if kept else rows, count


def _scores(name: str, rows: FloatArray, seed: int) -> FloatArray | None:
    """Return a detector's scores of the rows that it was fitted on; ``None`` if they say nothing.

    Own scores, as the paper's: what a detector gives the rows that it has seen.
    """
    detector: Any = make_detector(name)
    try:
        with one_thread(), warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found: FloatArray = np.asarray(detector.fit(rows, seed=seed).training_scores, float)
    except (DetectorError, ValueError):  # too few distinct rows for it
        return None
    return found if np.isfinite(found).all() and np.ptp(found) > 0 else None


def _agreement(scores: FloatArray) -> float:
    """Return the largest eigenvalue of Spearman's correlations, as a share of them all."""
    from scipy.stats import rankdata

    ranks = rankdata(scores, axis=0)
    return float(np.linalg.eigvalsh(np.corrcoef(ranks, rowvar=False))[-1] / scores.shape[1])


def _posterior(logs: FloatArray, seed: int) -> FloatArray | None:
    """Draw γ, shape (<= 10,000,); ``None`` where the two beliefs cannot be met."""
    from scipy.special import expit
    from sklearn.mixture import BayesianGaussianMixture

    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the bound still moves after so many steps
        mixture = BayesianGaussianMixture(
            n_components=min(_COMPONENTS, len(logs) - 1),
            weight_concentration_prior_type="dirichlet_process",
            weight_concentration_prior=_CONCENTRATION,
            max_iter=_FIT_STEPS,
            random_state=seed,
        ).fit(logs)
        rng = np.random.default_rng(seed)
        mass = mixture.weight_concentration_[0]
        there = np.flatnonzero(mass >= _LEAST_CONCENTRATION)
        how = np.stack([_anomalousness(mixture, int(k), rng) for k in there], axis=1)
    order = np.argsort(-how.mean(axis=0), kind="stable")
    how = how[:, order]
    # What the components that are left out held is shared out among the others.
    alpha = mass[there][order] + (mass.sum() - mass[there].sum()) / len(there)
    beliefs = _beliefs(how.mean(axis=0), alpha)
    if beliefs is None:
        return None
    delta, tau = beliefs
    until = _exactly_the_first(expit(-(tau + delta * how)))
    share = np.cumsum(rng.dirichlet(alpha, size=_DRAWS), axis=1)
    some = rng.choice(until.size, size=round(_SAMPLE * (1 - P_ZERO)), p=until.ravel() / until.sum())
    sample = np.concatenate([share.ravel()[some], np.zeros(_SAMPLE - len(some))])
    sample = sample[sample < MOST]
    return sample if np.median(sample) > 0 else None


def _anomalousness(mixture: Any, k: int, rng: np.random.Generator) -> FloatArray:  # noqa: ANN401
    """Draw mean over 1 + deviation of a component, averaged over detectors; shape (draws,).

    Mean and covariance come from their normal-inverse-Wishart posterior.
    """
    from scipy.stats import invwishart

    freedom, centre = mixture.degrees_of_freedom_[k], mixture.means_[k]
    scale = freedom * mixture.covariances_[k]
    spread = invwishart.rvs(freedom, scale, size=_DRAWS, random_state=rng)
    around = np.linalg.cholesky(spread) @ rng.normal(size=(_DRAWS, len(centre), 1))
    mean = centre + around[..., 0] / math.sqrt(mixture.mean_precision_[k])
    deviation = np.sqrt(np.diagonal(spread, axis1=1, axis2=2))
    result: FloatArray = (mean / (1 + deviation)).mean(axis=1)
    return result


def _exactly_the_first(p: FloatArray) -> FloatArray:
    """Return the probability that the first k components are anomalous and the next one is not.

    Of shape (..., components), as `p`, the probability of each where those before it are.
    """
    ends = np.concatenate([1 - p[..., 1:], np.ones_like(p[..., :1])], axis=-1)
    result: FloatArray = np.cumprod(p, axis=-1) * ends
    return result


def _beliefs(how: FloatArray, alpha: FloatArray) -> tuple[float, float] | None:
    """Return (δ, τ) of P(anomalous) = 1 / (1 + exp(τ + δ how)) that meet both beliefs.

    The first, P(γ = 0) = `P_ZERO`, is met by δ as a function of τ. P(γ > `HIGH`) then falls with τ,
    from nearly 1 where the sigmoid is flat to what the first component alone gives.
    """
    from scipy.optimize import brentq
    from scipy.special import expit
    from scipy.stats import beta

    if how[0] <= 0:
        return None
    zero = math.log(P_ZERO / (1 - P_ZERO))
    held = np.cumsum(alpha)
    above = np.ones(len(alpha))
    above[:-1] = beta.sf(HIGH, held[:-1], held[-1] - held[:-1])

    def excess(tau: float) -> float:
        p = expit(-(tau + (zero - tau) / how[0] * how))
        return float(above @ _exactly_the_first(p)) - P_HIGH

    if excess(zero) <= 0 or excess(_FARTHEST) >= 0:
        return None
    tau = float(brentq(excess, zero, _FARTHEST))
    return (zero - tau) / float(how[0]), tau
