"""The metrics of the baselines against hand-worked cases and plain re-implementations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta, spearmanr

from benchmarks.paper.costs import Costs, Counts, conditional_cost, cost, costs, count
from benchmarks.paper.methods.best_threshold import best_threshold
from benchmarks.paper.metrics import (
    excess_mass,
    instability_weights,
    mass_volume,
    point_instability,
    spearman,
)
from benchmarks.paper.search import maximise
from benchmarks.paper.unify import Unifier


def goix_excess_mass(scores, uniform, t_end=100.0, step=0.001, least=0.9):
    """Goix's algorithm as published: the curve on a grid of t, level by level."""
    s, u = -np.asarray(scores), -np.asarray(uniform)  # his scores are high for normal
    t = np.arange(0, t_end, step)
    curve = np.zeros(len(t))
    curve[0] = 1.0
    for level in np.unique(s):
        mass = np.mean(s >= level)
        volume = np.mean(u >= level)
        curve = np.maximum(curve, mass - t * volume)
    below = np.flatnonzero(curve <= least)
    end = below[0] + 1 if len(below) else len(t)
    return np.trapezoid(curve[:end], t[:end])


def goix_mass_volume(scores, uniform, first=0.9, last=0.999, step=1e-5):
    s, u = -np.asarray(scores), -np.asarray(uniform)
    alphas = np.arange(first, last, step)
    ordered = np.sort(s)[::-1]
    # The level that holds at least alpha of the mass.
    counts = np.ceil(np.round(alphas * len(s), 9)).astype(int)
    volumes = [np.mean(u >= ordered[min(c, len(s)) - 1]) for c in counts]
    return np.trapezoid(volumes, alphas)


@pytest.mark.parametrize("seed", range(6))
def test_excess_mass_and_mass_volume_are_goixs_on_a_fine_grid(seed):
    rng = np.random.default_rng(seed)
    scores = np.abs(rng.normal(size=80)) ** (1 + seed % 3)
    uniform = np.abs(rng.uniform(-6, 6, size=500)) ** (1 + seed % 3)
    expected = goix_excess_mass(scores, uniform)
    assert excess_mass(scores, uniform) == pytest.approx(expected, abs=2e-3)
    scores = np.round(rng.gamma(2.0, size=173), 1 + seed % 3)
    uniform = rng.uniform(0, 10, size=400)
    expected = goix_mass_volume(scores, uniform)
    assert mass_volume(scores, uniform) == pytest.approx(expected, abs=2e-4)


def test_excess_mass_by_hand_with_two_level_sets():
    # 95 % of the mass in a tenth of the box, the rest in all of it:
    # EM(t) = max(1 - t, 0.95 - 0.1 t) until 0.9. They cross at t = 1/18; 0.9 is reached at t = 1/2.
    scores = np.array([0.0] * 95 + [1.0] * 5)
    uniform = np.array([0.0] * 10 + [1.0] * 90)
    cross, end = 1 / 18, 1 / 2
    by_hand = cross * (1 - cross / 2) + (end - cross) * (0.95 - 0.1 * (end + cross) / 2)
    assert excess_mass(scores, uniform) == pytest.approx(by_hand)


def test_excess_mass_of_a_set_without_volume_ends_where_the_grid_ends():
    assert excess_mass(np.zeros(3), np.ones(10)) == pytest.approx(100.0)


@pytest.mark.parametrize("gamma", [0.01, 0.05, 0.2, 0.35])
def test_the_beta_law_has_its_mode_at_the_threshold_and_its_mass_near_it(gamma):
    a, b = instability_weights(gamma)
    assert (a - 1) / (a + b - 2) == pytest.approx(1 - gamma, abs=1e-3)
    assert beta.cdf(1 - 2 * gamma, a, b) == pytest.approx(0.2, abs=1e-6)


def test_instability_by_hand():
    ranks = np.array([[1.0, 2.0], [2.0, 1.0], [3.0, 3.0], [4.0, 4.0]])
    a, b = instability_weights(0.25)
    random = np.sqrt(5 * 3 / (12 * 16))
    swapped = (beta.cdf(0.5, a, b) - beta.cdf(0.25, a, b)) * 0.125 / random
    assert point_instability(ranks, 0.25) == pytest.approx([swapped, swapped, 0, 0])


@pytest.mark.parametrize("digits", [0, 1, 9])
def test_spearman_is_scipys(digits):
    rng = np.random.default_rng(1)
    a = np.round(rng.normal(size=60), digits)
    b = np.round(a + rng.normal(size=60), digits)
    assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert spearman(np.ones(5), np.arange(5.0)) == 0.0


def test_unification_is_pyods():
    from pyod.models.hbos import HBOS

    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(200, 3)), rng.normal(size=(50, 3)) * 2
    model = HBOS().fit(X)
    expected = model.predict_proba(Z, method="unify")[:, 1]
    got = Unifier.fit(model.decision_scores_).probability(model.decision_function(Z))
    assert got == pytest.approx(expected)


def test_the_search_finds_the_top_of_a_bump_in_50_calls():
    calls = []

    def bump(t):
        calls.append(t)
        return -((t - 0.73) ** 2)

    best, value = maximise(bump, 0.5, 1.0, seed=3)
    assert len(calls) == 50
    assert best == pytest.approx(0.73, abs=0.02)
    assert value == pytest.approx(bump(best))
    assert maximise(bump, 0.5, 1.0, seed=3) == (best, value)


# ------------------------------------------------------------------------------ costs
def test_costs_of_rejection_are_the_papers():
    assert costs("1-1", 0.2) == Costs(1, 1, 0.2)
    assert costs("10-1", 0.2) == Costs(10, 1, 0.2)
    assert costs("1-10", 0.2) == Costs(1, 10, 0.8)
    assert costs("1-10", 0.05) == Costs(1, 10, 0.5)
    assert costs("5-5", 0.2) == Costs(5, 5, 0.2)
    with pytest.raises(ValueError, match="unknown"):
        costs("2-2", 0.1)


def test_joint_and_conditional_cost_by_hand():
    verdicts = [0, 0, 1, -1, 0, 1, -1, 0, 0, 0]
    truth = [0, 0, 0, 0, 1, 1, 1, 0, 0, 0]
    counts = count(verdicts, truth)
    assert counts == Counts(5, 1, 1, 1, 1, 1)
    prices = Costs(10, 1, 0.3)
    assert cost(counts, prices) == pytest.approx((10 + 1 + 0.6) / 10)
    assert conditional_cost(counts, prices) == pytest.approx(10 / 7 + 1 / 3 + 0.3 * 0.2)


def test_the_best_threshold_is_the_one_an_exhaustive_search_finds():
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = int(rng.integers(2, 12))
        confidence = np.round(rng.random(n), 1)
        labels, truth = rng.integers(0, 2, n), rng.integers(0, 2, n)
        prices = Costs(*rng.choice([0.1, 0.5, 1.0, 3.0], 3))
        most = float(rng.choice([np.inf, 0.5]))

        loss = np.where(labels == truth, 0, np.where(labels == 1, prices.fp, prices.fn))
        totals = {
            t: round(loss[confidence > t].sum() + prices.r * np.sum(confidence <= t), 9)
            for t in [-np.inf, *sorted(c for c in set(confidence) if c <= most)]
        }
        best = min(totals, key=lambda t: (totals[t], t))
        assert best_threshold(confidence, labels, truth, prices, most=most) == best
