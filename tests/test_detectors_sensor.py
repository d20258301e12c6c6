"""Detectors for sensors: what each of them sees, and what it must not be drowned by."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from sklearn.covariance import LedoitWolf, ledoit_wolf

from rejex_stream.detectors import make_detector
from rejex_stream.detectors.sensor.distance import (
    _MAX_KNOWN,
    PredictionErrorDistance,
    Steps,
    _Folds,
    _rescaled_sum,
    _tail,
    _with_logarithms,
    fit_distance,
    fit_max_distance,
    fit_scale,
)
from rejex_stream.detectors.sensor.ensemble import LogTail
from rejex_stream.detectors.sensor.recipes import Layout
from rejex_stream.engine import EngineSpec
from rejex_stream.errors import ConfigError, DetectorError
from rejex_stream.features import Feature, FeatureSpec
from rejex_stream.features.columns import phases_of
from rejex_stream.rejection.policy import RejectionPolicy
from tests.test_any_float import any_value

POLICY = RejectionPolicy(0.05, tolerance=8)
NAMES = ("Sensor", "SensorEnsemble", "VARResidual", "Subsequence", "SeasonalSensor")
HOUR = 3_600_000


def partly(model, row):
    return float(model.score_without(row[None], [np.empty(0, dtype=np.intp)])[0, 0])


def fitted(name, values, step_ms=HOUR, seed=0, **params):
    names = tuple(f"c{i}" for i in range(values.shape[1]))
    spec = EngineSpec(make_detector(name, **params), FeatureSpec(names), POLICY)

    def rows(series, start=0):
        if spec.features.is_at_once:
            made, which = spec.features.start_recent().extract(series.tolist())
            if spec.features.preset != "sensor_seasonal":
                return made
            times = [(start + i) * step_ms for i, row in enumerate(which) if row >= 0]
            return np.hstack([made, phases_of(times)])
        sensor = spec.features.start()
        made = [sensor.extract((start + i) * step_ms, x) for i, x in enumerate(series.tolist())]
        return np.array([row for row in made if row is not None])

    return spec.detector.fit(rows(values), seed=seed), rows


def noise(n, d=1, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def ar(n, phi, d=1, seed=0):
    x, e = np.zeros((n, d)), noise(n, d, seed)
    for i in range(1, n):
        x[i] = phi * x[i - 1] + e[i]
    return x


def several(scorer):
    return scorer.inner.inner


# ---------------------------------------------------------------------------- the distance
def test_the_distance_is_the_formula_with_scikit_learns_shrunk_covariance():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(400, 3)) @ rng.normal(size=(3, 3)) * [1.0, 1e6, 1e-6] + [5.0, -1e7, 0.0]
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    model = LedoitWolf().fit(Z)
    assert fit_distance(X).score(X) == pytest.approx(model.mahalanobis(Z), rel=1e-9)


@pytest.mark.parametrize("d", [1, 2, 9])
@pytest.mark.parametrize("name", ["Sensor", "VARResidual", "Subsequence"])
def test_no_cut_of_a_batch_changes_a_bit(name, d):
    scorer, rows = fitted(name, ar(500, 0.7, d))
    X = rows(np.concatenate((ar(60, 0.7, d, seed=1), 1e4 * noise(5, d), np.zeros((40, d)))))
    whole = scorer.score(X).tolist()
    for cut in (1, 3, 17):
        parts = [scorer.score(X[i : i + cut]) for i in range(0, len(X), cut)]
        assert np.concatenate(parts).tolist() == whole
    assert [*map(scorer.by_row(), X.tolist())] == whole


def test_the_distance_of_some_columns_is_the_least_that_any_values_of_the_others_give():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(400, 4)) @ rng.normal(size=(4, 4))
    model = fit_distance(X)
    row, lacking = X[7] + 1.0, [1, 3]
    there = [0, 2]
    precision = model.root @ model.root.T
    z = (row - model.scale.centre) / model.scale.spread - model.mean
    z[lacking] = -np.linalg.solve(
        precision[np.ix_(lacking, lacking)], precision[np.ix_(lacking, there)] @ z[there]
    )
    row[lacking] = np.nan
    assert float(z @ precision @ z) == pytest.approx(
        float(chi2.ppf(chi2.cdf(partly(model, row), 4), 2)), rel=0.02
    )


@pytest.mark.parametrize(("n", "of"), [(1, 2), (3, 6), (14, 21), (20, 21), (21, 21)])
def test_a_sum_of_squares_is_about_as_rare_as_the_sum_of_fewer_that_it_stands_for(n, of):
    for rare in (0.5, 0.1, 1e-2, 1e-3, 1e-4):
        found = _rescaled_sum(float(chi2.isf(rare, n)), n, of)
        assert 0.75 < chi2.sf(found, of) / rare < 1.4
    assert _rescaled_sum(0.0, n, of) >= 0.0


@pytest.mark.parametrize("name", ["Sensor", "SensorEnsemble", "Subsequence"])
def test_a_row_that_lacks_a_channel_is_scored_by_the_others(name):
    scorer, rows = fitted(name, ar(900, 0.7, 3))
    X = rows(ar(300, 0.7, 3, seed=1))
    whole, partial = scorer.score(X), X.copy()
    partial[:, 1::3] = np.nan
    found = scorer.score(partial)
    assert np.isfinite(found).all()
    assert 0.6 < np.quantile(found, 0.9) / np.quantile(whole, 0.9) < 1.5
    assert [scorer.score(row[None])[0] for row in partial[:3]] == found[:3].tolist()
    partial[:, 0] += 20.0
    assert scorer.score(partial).min() > found.max()
    partial[0], partial[1, 0] = np.nan, np.inf
    assert np.isnan(scorer.score(partial)[:2]).all(), "nothing is there, or something absurd"


def test_without_a_flag_a_row_scores_what_it_scores_though_a_forecast_errs():
    series = ar(1500, 0.97, 3)
    series[:, 2] = np.arange(1500) // 40 % 2
    scorer, rows = fitted("Sensor", series[:1200])
    series[1300::60, 0] += 3.0  # ordinary by itself
    found = rows(series)[-190:]
    columns = Layout.of(FeatureSpec(("c0", "c1", "c2"), preset="sensor")).channels
    flag = [np.flatnonzero(np.array(columns) == columns[2])]
    assert not np.isin(flag[0], scorer.inner.which).any(), "it is out of the distance"
    whole = scorer.score(found)
    nothing = several(scorer).score_without(found.take(scorer.inner.which, axis=1), [flag[0][:0]])
    assert (whole > nothing[:, 0]).any(), "a forecast erred more than all else"
    assert scorer.score_without(found, flag)[:, 0].tolist() == whole.tolist()


def test_what_is_there_of_a_row_may_be_quiet():
    scorer, rows = fitted("Sensor", ar(900, 0.7, 3))
    still = np.median(rows(ar(300, 0.7, 3, seed=1)), axis=0)
    spreads = Layout.of(FeatureSpec(("c0", "c1", "c2"), preset="sensor")).spreads
    still[list(spreads)], still[1::3] = 0.0, np.nan
    assert np.isfinite(still[list(spreads)]).sum() == len(spreads) * 2 // 3
    plain = partly(several(scorer).plain, still[scorer.inner.which])
    assert scorer.score(still[None])[0] > 1.5 * plain


@pytest.mark.parametrize("name", ["VARResidual", "KNN"])
def test_other_detectors_say_that_they_want_whole_rows(name):
    assert not getattr(make_detector(name), "allow_nan", False)
    assert not make_detector("Ensemble", members=("Sensor", name)).allow_nan


@pytest.mark.parametrize("kind", ["frozen", "clipped"])
@pytest.mark.parametrize("name", ["Sensor", "SensorEnsemble"])
def test_what_goes_quiet_is_far_from_ordinary(name, kind):
    x = np.sin(2 * np.pi * np.arange(3000) / 50) + 0.1 * noise(3000)[:, 0]
    scorer, rows = fitted(name, x[:2000, None])
    odd, at = x[2000:].copy(), slice(500, 700)
    odd[at] = odd[500] if kind == "frozen" else np.clip(odd[at], -0.35, 0.35)
    scores = scorer.score(rows(odd[:, None]))  # a row for every value but the first ones
    within = np.median(scores[len(scores) - 470 : len(scores) - 310])  # once 30 are in
    assert within > 2 * np.quantile(scorer.score(rows(x[2000:, None])), 0.99)


def test_the_quiet_side_counts_where_it_is_rarer_and_nowhere_else():
    X = np.abs(noise(2000, 3, seed=4)) + 0.5
    spreads = np.array([False, True, False])
    both, plain = fit_max_distance(X, spreads), fit_distance(X)
    wild, still = X[:50].copy(), X[:50].copy()
    wild[:, 1] *= 20
    still[:, 1] = 0.0
    assert both.score(wild).tolist() == both.plain.score(wild).tolist()
    assert both.score(wild) == pytest.approx(plain.score(wild), rel=1e-9)
    assert np.all(both.score(still) > 3 * plain.score(still))
    share = np.mean(both.score(X) > np.quantile(plain.score(X), 0.98))
    assert 0.02 <= share <= 0.035, "at most as often again as one alone"
    assert fit_max_distance(X, np.zeros(3, dtype=bool)).score(X).tolist() == plain.score(X).tolist()
    X[:1500, 1] = 0.0  # a deviation that is mostly 0 is quiet by nature
    assert fit_max_distance(X, spreads).score(X).tolist() == fit_distance(X).score(X).tolist()


def test_a_deviation_is_quiet_below_what_is_usual_and_from_no_other_value_on():
    X = np.abs(noise(2000, 3, seed=4)) + 0.5
    both = fit_max_distance(X, np.array([False, True, False]))
    quiet = both.low_variance
    edge = float(np.exp(quiet.usual[0]) - quiet.floors[0])
    rows = np.tile(np.median(X, axis=0), (41, 1))
    rows[:, 1] = edge * np.linspace(0.8, 1.2, 41)
    logs = _with_logarithms(rows, quiet.logs, quiet.floors)
    own = np.where(logs[:, 1] < quiet.usual, quiet.knots.rescaled(quiet.inner.score(logs)), 0.0)
    plain = both.plain.score(rows)
    assert 10 < np.sum(own > plain) < 30
    assert both.score(rows).tolist() == np.maximum(plain, own).tolist()
    assert [both.score(row[None])[0] for row in rows] == both.score(rows).tolist()
    assert [*map(both.score_row, rows)] == both.score(rows).tolist()


def of_stretches(X, Y, steps):
    """Return what stretches score by a fit on the others, each made from its rows."""
    fold, found = np.arange(len(X)) // (len(X) // 40) % 5, np.empty((3, len(X)))
    for out in [fold == k for k in range(5)]:
        fitted = fit_distance(X[~out])
        Z = fitted.scale.apply(X[~out]) - fitted.mean
        changes, before = (fitted.scale.spread[:, None] * sums for sums in steps)
        before /= np.abs(Z @ before).max(axis=0)  # so that no square overflows
        before /= (Z @ before).std(axis=0)
        past, size = Z @ before, np.array([fit_scale(Z @ changes).spread])
        ridge = np.linalg.solve(past.T @ past + np.eye(past.shape[1]), past.T @ Z @ changes)
        made = (changes - before @ ridge) / size
        inverse = np.linalg.inv(
            ledoit_wolf(Z @ made, assume_centered=True)[0] + 1e-6 * np.eye(len(made.T))
        )
        error = PredictionErrorDistance(made @ inverse / np.sqrt(inverse.diagonal()))
        found[0, out] = fitted.score(X[out])
        found[1, out] = fit_distance(Y[~out]).score(Y[out])
        found[2, out] = error.squared(fitted.turned(X[out], error.root))
    return found


@pytest.mark.parametrize("spreads", [[1], [0, 3], [1, 2, 3]])
@pytest.mark.parametrize(
    "wild", [None, (40, 1e9), (40, 1e200), (slice(17), 7.0), (slice(17, 700), 7.0)]
)
def test_what_stretches_have_in_common_is_fitted_once(spreads, wild):
    X, logs = np.abs(noise(700, 4, seed=4)), np.array(spreads)
    X += np.array([0.5, 0.5, 1e5, 1e-5])
    X[:, 0] = 1.5 * X[:, 1] + 0.2 * X[:, 0]
    if wild is not None:
        X[wild[0], 3] = wild[1]
    Y = _with_logarithms(X, logs, np.full(len(logs), 0.01))
    steps = Steps(np.array([[1.0, 0, 0, 0], [0, 1, 0, 0]]).T, np.array([[0, 0, 1.0, -1]]).T)
    found, wanted = _Folds(X, Y[:, logs], logs, 5).unseen(steps), of_stretches(X, Y, steps)
    for own, by_rows in zip(found, wanted, strict=True):
        np.testing.assert_allclose(own, by_rows, rtol=1e-7, atol=1e-9)


def test_of_rows_that_never_moved_no_stretch_is_far():
    X, none = np.full((100, 2), 3.0), np.empty(0, dtype=np.intp)
    steps = Steps(np.array([[1.0, 0.0]]).T, np.array([[0.0, 1.0]]).T)
    first, _, errors = _Folds(X, X[:, none], none, 5).unseen(steps)
    assert not first.any()
    assert not errors.any()


def test_a_distance_keeps_few_of_its_parts_and_makes_them_again_to_the_same_bits():
    X = noise(300, 5, seed=7)
    model, found = fit_distance(X), []
    for _ in "ab":
        for lacking in range(1, 31):
            row = X[lacking].copy()
            row[[j for j in range(5) if lacking >> j & 1]] = np.nan
            found.append(partly(model, row))
            assert len(model._known) <= _MAX_KNOWN
    assert found[:30] == found[30:]


@pytest.mark.thorough
@pytest.mark.parametrize("d", [3, 12, 38])
def test_a_change_that_nobody_would_have_forecast_counts_where_every_value_is_ordinary(d):
    X = ar(4000, 0.95, d, seed=3)
    scorer, rows = fitted("Sensor", X[:2000])
    plain, which = several(scorer).plain, scorer.inner.which
    usual = rows(X[2000:])
    limit, of_plain = (np.quantile(s, 0.9975) for s in (
        scorer.score(usual), plain.score(usual[:, which]),
    ))  # fmt: skip
    seen, by_plain = 0, 0
    for at in range(2100, 3900, 60):
        odd = X[2000:].copy()
        odd[at - 2000, 1] -= np.sign(odd[at - 2000, 1]) * 5.5  # of 3.2 sd, and shocks of 1
        row = rows(odd)[at - 4000 + len(usual)][None]
        near = rows(odd[at - 2040 : at - 1980])
        assert [scorer.score(x[None])[0] for x in near] == scorer.score(near).tolist()
        assert [*map(scorer.by_row(), near.tolist())] == scorer.score(near).tolist()
        seen += bool(scorer.score(row)[0] > limit)
        by_plain += bool(plain.score(row[:, which])[0] > of_plain)
    assert seen >= 20
    assert seen > by_plain + 5


def test_a_forecast_is_the_same_in_other_units_and_has_errors_of_variance_one():
    X = ar(2000, 0.9, 2, seed=5)
    X[:, 1] += X[:, 0]  # which explains the half of it
    scorer, rows = fitted("Sensor", X)
    other, _ = fitted("Sensor", X * [1e6, 1e-6] + [1e9, -3.0])
    R, which = rows(X), scorer.inner.which
    ours, theirs = several(scorer), several(other)
    errors = ours.plain.turned(R[:, which], ours.prediction_error.root)
    in_units = rows(X * [1e6, 1e-6] + [1e9, -3.0])[:, which]
    same = theirs.plain.turned(in_units, theirs.prediction_error.root)
    assert same == pytest.approx(errors, rel=1e-3, abs=1e-4)
    assert errors.std(axis=0) == pytest.approx([1.0, 1.0], rel=0.1)
    assert abs(np.corrcoef(errors[1:, 0], errors[:-1, 0])[0, 1]) < 0.1, (
        "nothing is left to forecast"
    )
    assert np.mean(scorer.score(R) > np.quantile(ours.plain.score(R[:, which]), 0.98)) < 0.06


@pytest.mark.parametrize(("d", "n"), [(3, 2000), (12, 600)])
def test_a_forecast_raises_few_rows_in_which_nothing_is_wrong(d, n):
    X = ar(n + 4000, 0.9, d, seed=11)
    scorer, rows = fitted("Sensor", X[:n])
    unseen = rows(X)[n:][:, scorer.inner.which]
    ours = replace(several(scorer), low_variance=None)
    share = np.mean(ours.score(unseen) > ours.plain.score(unseen))
    assert 0.001 < share < 0.011, "one row in 200 is beyond the .995 quantile of rows not fitted on"


def test_a_jump_that_the_other_channels_do_not_make_is_a_larger_error_than_one_that_they_make():
    X = ar(2000, 0.9, 1, seed=12) + 0.1 * noise(2000, 2, seed=13)  # one shock, two sensors
    scorer, rows = fitted("Sensor", X)
    ours, which = several(scorer), scorer.inner.which

    def errors(of):
        last = []
        for at in range(200, 1900, 40):
            x = X[at - 30 : at].copy()
            x[-1, of] += 1.5
            last.append(rows(x)[-1][which])
        return ours.prediction_error.squared(
            ours.plain.turned(np.array(last), ours.prediction_error.root)
        )

    assert np.median(errors([0])) > 5 * np.median(errors([0, 1]))


def test_no_error_of_a_forecast_is_too_wild():
    scorer, _ = fitted("Sensor", ar(900, 0.9, 2, seed=14))
    squared = several(scorer).prediction_error.squared
    sizes = [0.5, 3.0, 6.0, 7.0, 1e3, 1e9]
    found = squared(np.array([[0.1, size] for size in sizes]))
    assert found[:3] == pytest.approx(np.square(sizes[:3]), rel=1e-6)
    assert (np.diff(found) > 0).all()
    assert found[-1] < 1000


def test_what_came_before_a_change_is_in_no_sum_of_columns_that_forecasts_it():
    spec = FeatureSpec(("a", "b"), preset="sensor")
    which = np.arange(len(Layout.of(spec).channels))
    steps = Layout.of(spec).steps(which)
    series = noise(60, 2, seed=9)
    row = spec.start_recent().extract(series.tolist())[0][-1]
    before = np.sort(np.concatenate([
        series[-2], series[-10:-1].mean(axis=0), series[-24:-1].mean(axis=0) - series[-2],
    ]))  # fmt: skip
    assert row @ steps.changes == pytest.approx(series[-1] - series[-2])
    assert np.sort(row @ steps.before) == pytest.approx(before)
    assert Layout.plain(3).steps(np.arange(3)) is None
    lags = FeatureSpec(("a",), preset="lags")
    assert Layout.of(lags).steps(np.arange(len(Layout.of(lags).channels))) is None


@pytest.mark.parametrize("n", [1000, 2000])
def test_a_channel_without_a_level_is_judged_by_its_changes(n):
    walk = np.cumsum(noise(n + 1500, seed=8), axis=0)
    walk += np.abs(walk[:n]).max() * np.arange(len(walk))[:, None] / n  # goes where it never was
    X = np.hstack((walk, ar(n + 1500, 0.9, 1, seed=9)))
    scorer, rows = fitted("Sensor", X[:n])
    usual = np.quantile(scorer.score(rows(X[:n])), 0.98)
    assert np.mean(scorer.score(rows(X[n:])) > usual) < 0.1
    X[n + 500 :, 0] += 30.0
    assert scorer.score(rows(X[: n + 530])).argmax() >= n + 450, "a step is a change"
    X[n:, 1] += 12.0  # the other one has a level
    assert np.mean(scorer.score(rows(X[n:])) > usual) > 0.9


def test_few_rows_and_seasons_say_nothing_against_a_level():
    spec = FeatureSpec(("a",), preset="sensor")
    layout = Layout.of(spec)
    season = np.sin(2 * np.pi * np.arange(2000) / 288)[:, None]

    def wanders(x):
        return layout.wandering(np.tile(x, (1, len(layout.channels)))).any()

    walk = np.cumsum(noise(2000, seed=8), axis=0)
    assert wanders(walk)
    assert not wanders(walk[:500])
    assert not wanders(season + 0.1 * noise(2000))
    assert not wanders(ar(2000, 0.97, 1))
    assert not Layout.plain(3).wandering(np.tile(walk, (1, 3))).any(), "nothing else shows it"


def test_a_loud_row_is_not_judged_on_the_scale_of_quiet_ones():
    X = np.abs(noise(2000, 3, seed=5)) + 0.5
    X[:, 1] = np.exp(0.3 * noise(2000, seed=6)[:, 0])  # its logarithm has the lighter tail
    both = fit_max_distance(X, np.array([False, True, False]))
    plain = both.plain
    loud = np.tile(np.median(X, axis=0), (20, 1))
    loud[:, 0] = np.linspace(8.0, 20.0, 20)
    assert both.score(loud).tolist() == plain.score(loud).tolist()
    assert [*map(both.score_row, loud)] == plain.score(loud).tolist()
    loud[:, 1] = 0.01
    assert np.all(both.score(loud) > plain.score(loud)), "loud and quiet at once: quiet counts"


def test_a_regime_that_comes_back_makes_no_ordinary_row_wild():
    hours = np.arange(24 * 60)
    closed = hours // 24 % 7 >= 5  # at the end of each week; what would be below 0 is 0
    power = 20 + 15 * np.sin(2 * np.pi * (hours % 24 - 8) / 24) - 10 * closed
    power = np.maximum(power + 1.5 * noise(len(hours), seed=4)[:, 0], 0.0)
    values = np.column_stack([power.round(2), 230 + noise(len(hours), seed=5)[:, 0]])
    for n in 180, 720:  # by what a first and a second model of hourly readings are fitted
        scorer, rows = fitted("Sensor", values[:n])
        seen, made = several(scorer), rows(values[:n])
        ordinary = np.quantile(seen.plain.score(made), 0.98)
        assert seen.prediction_error.knots.start < 2 * ordinary
        assert seen.low_variance.knots.start < 2 * ordinary


def test_a_wilder_value_scores_higher_and_no_value_is_too_wild():
    model = fit_distance(noise(500, 2))
    far = np.array([[10.0**k, 0.0] for k in range(150)])
    scores = model.score(far)
    assert scores.max() < 5000  # sixty deviations in one column, however wild
    assert (np.diff(scores[:14]) > 0).all()
    assert (np.diff(scores) >= 0).all()


def test_one_wild_training_row_does_not_blind_the_distance():
    X = noise(1000, 2)
    X[500, 0] = 1e9
    assert fit_distance(X).score(np.array([[0.0, 8.0]]))[0] > 30


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(any_value, any_value), min_size=4, max_size=40))
def test_a_fit_on_any_floats_that_can_be_scored_gives_finite_scores(rows):
    X = np.clip(np.array(rows), -1e150, 1e150)
    scores = make_detector("Mahalanobis").fit(X, seed=0).score(X)
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("name", [*NAMES, "Mahalanobis"])
def test_a_constant_stream_is_scored_and_its_first_move_stands_out(name):
    score, rows = fitted(name, np.full((300, 1), 0.1))
    calm, moved = np.full((60, 1), 0.1), np.full((60, 1), 0.1)
    moved[-1] = 5.0
    assert np.isfinite(score.score(rows(calm))).all()
    assert score.score(rows(moved))[-1] > score.score(rows(calm))[-1]


# ---------------------------------------------------------------------------- flags apart
@pytest.mark.parametrize("name", ["Sensor", "VARResidual", "Subsequence", "SeasonalSensor"])
def test_a_switch_is_kept_out_of_the_distance(name):
    sensor, switch = ar(600, 0.5), np.zeros((600, 1))
    switch[50:53] = 1.0
    values = np.hstack([sensor, switch])
    still, flipped = values[-80:].copy(), values[-80:].copy()
    flipped[-1, 1] = 1.0
    score, rows = fitted(name, values)
    assert score.score(rows(still))[-1] == score.score(rows(flipped))[-1]
    score, rows = fitted(name, values, flags="in")
    assert score.score(rows(still))[-1] < score.score(rows(flipped))[-1]


def test_a_switch_counts_where_there_is_nothing_else():
    values = np.zeros((300, 2))
    values[::50, 0] = 1.0
    score, rows = fitted("Sensor", values)
    flipped = np.zeros((60, 2))
    flipped[-1] = 1.0
    assert score.score(rows(flipped))[-1] > 10 * score.score(rows(np.zeros((60, 2))))[-1]


# --------------------------------------------------------------------- what each of them sees
def test_the_forecast_sees_a_step_that_the_level_hides():
    series = 30 * ar(2000, 0.999, seed=3)
    score, rows = fitted("VARResidual", series[:1500])
    calm = rows(series[1400:1500])
    jump = series[1400:1500].copy()
    jump[-1] -= 300 * np.sign(jump[-1] - series[:1500].mean())  # ten steps at once, inward
    assert series[:1500].min() < jump[-1] < series[:1500].max()  # a level as any other
    ordinary = np.quantile(score.score(calm), 0.99)
    assert score.score(rows(jump))[-1] > 8 * ordinary


def test_a_stretch_sees_a_shape_that_is_wrong_where_no_value_is():
    t = np.arange(2000)
    wave = np.sin(t / 3)[:, None] + 0.05 * noise(2000)
    score, rows = fitted("Subsequence", wave[:1500])
    flat = wave[1500:1600].copy()
    flat[-12:] = 0.0  # in the middle of the range
    assert score.score(rows(flat))[-1] > 3 * score.score(rows(wave[1500:1600])).max()


def test_a_season_sees_noon_at_midnight():
    t = np.arange(24 * 40)
    day = 10 * np.sin(2 * math.pi * t / 24)[:, None] + noise(len(t), seed=4)
    score, rows = fitted("SeasonalSensor", day)
    ordinary = score.score(rows(day))
    day[24 * 30 + 18] = 10.0  # the height of the day, at its depth
    assert score.score(rows(day))[24 * 30 + 18 - 23] > 1.5 * ordinary.max()


@pytest.mark.parametrize("name", ["Sensor", "SensorEnsemble"])
def test_spikes_steps_and_broken_correlations_stand_out(name):
    common = ar(2000, 0.9, seed=7)
    values = np.hstack([common, common]) + 0.2 * noise(2000, 2, seed=8)
    score, rows = fitted(name, values)
    high = np.quantile(score.score(rows(values)), 0.995)
    for broken in ([15.0, 15.0], [4.0, -4.0], [3.0, 0.0]):
        tail = values[:60].copy()
        tail[-1] = broken
        assert score.score(rows(tail))[-1] > high, broken


# ------------------------------------------------------------------------------- one scale
def test_a_log_tail_happens_as_often_as_it_says():
    rng = np.random.default_rng(9)
    tail, fresh = LogTail.of(rng.chisquare(4, 2000)), rng.chisquare(4, 200_000)
    # Two thousand scores hold forty of the tail: three decades are known to a factor of two.
    for decades, factor in ((1, 1.1), (2, 1.3), (3, 2.2)):
        often = np.mean(tail(fresh) >= decades) / 10.0**-decades
        assert 1 / factor <= often <= factor, decades


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(0, 1e6), min_size=4, max_size=60), st.lists(st.floats(0, 1e12), min_size=2)
)
def test_a_log_tail_keeps_the_order_and_never_ends(scores, fresh):
    tail, fresh = LogTail.of(np.array(scores)), np.sort(fresh)
    said = tail(fresh)
    assert np.isfinite(said).all()
    assert (said >= 0).all()
    assert (np.diff(said) >= 0).all()


def test_an_ensemble_takes_members_by_name():
    made = make_detector("Ensemble", members=["Sensor", "KNN"])
    assert [member.name for member in made.members] == ["rejex:Sensor", "pyod:KNN"]
    X = noise(300, 2)
    scores = made.fit(X, seed=0).score(np.array([[0.0, 0.0], [9.0, 9.0]]))
    assert scores[0] < scores[1]
    with pytest.raises(ConfigError, match="members is empty"):
        make_detector("Ensemble", members=[])
    with pytest.raises(ConfigError, match="HalfSpaceTrees learns one row at a time"):
        make_detector("Ensemble", members=["HalfSpaceTrees"])
    with pytest.raises(DetectorError, match="cannot be fitted on 7 rows: give at least 8"):
        made.fit(X[:7], seed=0)


# ------------------------------------------------------------------------ one word for users
def test_a_detector_brings_its_columns_where_none_are_named():
    channels = FeatureSpec(("a", "b"), carry_forward_events=3)
    spec = EngineSpec(make_detector("Sensor"), channels, POLICY)
    assert spec.features == FeatureSpec(("a", "b"), preset="sensor", carry_forward_events=3)
    assert EngineSpec(spec.detector, channels, POLICY) == spec
    for own in (
        FeatureSpec(("a", "b"), (Feature("raw", "a"),)),
        FeatureSpec(("a", "b"), preset="raw"),
    ):
        assert EngineSpec(make_detector("Sensor"), own, POLICY).features == own
    assert EngineSpec(make_detector("KNN"), channels, POLICY).features == channels
    assert EngineSpec(make_detector("SensorEnsemble"), channels, POLICY).features.preset == (
        "sensor_lags"
    )


def test_rows_of_other_features_are_refused():
    spec = EngineSpec(make_detector("Sensor"), FeatureSpec(("a", "b")), POLICY)
    with pytest.raises(DetectorError, match="was made for 14 columns and got rows of shape"):
        spec.detector.fit(noise(30, 2), seed=0)


@pytest.mark.parametrize(("params", "says"), [
    ({"flag": "in"}, "rejex:Sensor has no parameter 'flag'; it accepts: flags"),
    ({"flags": "out"}, "flags = 'out' is unknown to rejex:Sensor: use one of apart, in"),
])  # fmt: skip
def test_a_wrong_parameter_says_what_would_be_right(params, says):
    with pytest.raises(ConfigError, match=says):
        make_detector("Sensor", **params)


@pytest.mark.parametrize("shape", [(2, 1), (3, 2), (50, 1), (400, 7), (2000, 38), (30, 60)])
def test_the_covariance_is_scikit_learns(shape):
    rng = np.random.default_rng(len(shape) + shape[0])
    for scale in (1.0, 1e-9, 1e6):
        X = rng.standard_t(3, size=shape) * scale
        X[:, 0] += X[:, -1]
        made = fit_distance(X)
        wanted, share = ledoit_wolf(made.scale.apply(X) - made.mean, assume_centered=True)
        assert made.shrunk == pytest.approx((share, share * np.trace(wanted) / len(wanted)))
        assert made.root @ made.root.T @ wanted == pytest.approx(np.eye(len(wanted)), abs=1e-9)
    assert not fit_distance(np.zeros(shape)).score(np.zeros(shape)).any()


def test_a_mean_excess_is_known_by_ten_rows_at_least():
    scores = np.random.default_rng(3).permutation(np.arange(200.0))
    middle, start, excess = _tail(scores, 0.995)
    assert (middle, start) == (99.5, pytest.approx(198.005))
    assert excess == 4.5  # of 190 to 199 above 190, and not of 199 alone
    assert _tail(scores, 0.9)[2] == pytest.approx(np.mean(scores[scores >= 179.1] - 179.1))
