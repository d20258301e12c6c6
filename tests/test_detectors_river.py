"""River's detectors on rows: warm-up, scale, one model a column, states, wild values."""

import numpy as np
import pytest
from river import anomaly, linear_model, preprocessing, time_series
from sklearn.metrics import roc_auc_score

from rejex_stream.checks import check_detector
from rejex_stream.detectors import RIVER, as_detector, make_detector
from rejex_stream.errors import CheckpointError, DetectorError

NAMES = [f"river:{name}" for name in RIVER]
COLUMNS = ["flow", "pressure", "kW"]


def rows(n, seed=0):
    """Three correlated channels in units as far apart as sensors' are."""
    rng = np.random.default_rng(seed)
    X = 0.8 * rng.normal(size=(n, 1)) + 0.6 * rng.normal(size=(n, 3))
    return X * [1.0, 0.01, 2000.0] + [10.0, 1.0, 9000.0]


def fed(detector, n=None, seed=5, columns=COLUMNS):
    scorer = detector.start(columns, seed=seed)
    for x in rows(detector.warm_up_events + 50 if n is None else n):
        scorer.learn_one(x[: len(columns)])
    return scorer


def scores(scorer, X):
    return np.array([scorer.score_one(x) for x in X])


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_after_warm_up_no_score_is_the_zero_of_one(name):
    detector = make_detector(name)
    scorer = detector.start(COLUMNS, seed=1)
    X = rows(detector.warm_up_events + 60, seed=2)
    seen = []
    for x in X:
        seen.append(scorer.score_one(x) if len(seen) % 5 == 0 else 0.0)
        scorer.learn_one(x)
    late = np.array(seen[detector.warm_up_events :])[::5]
    assert np.isfinite(late).all()
    assert np.count_nonzero(late) > 0.8 * len(late)


def test_half_space_trees_score_nothing_before_their_first_window():
    detector = make_detector("HalfSpaceTrees")
    scorer = detector.start(COLUMNS, seed=1)
    X = rows(252)
    early = []
    for x in X:
        early.append(scorer.score_one(x))
        scorer.learn_one(x)
    assert detector.warm_up_events == 250
    assert early[:250] == [0.0] * 250
    assert 0.0 < early[250] < 1.0


def test_a_longer_window_means_a_longer_warm_up():
    assert make_detector("HalfSpaceTrees", window_size=600).warm_up_events == 600
    assert as_detector(anomaly.GaussianScorer(grace_period=300)).warm_up_events == 300
    assert as_detector(anomaly.LODA()).warm_up_events == 100
    assert make_detector("OneClassSVM").warm_up_events == 1000
    assert make_detector("OneClassSVM", nu=0.2).warm_up_events == 500
    assert as_detector(anomaly.OneClassSVM()).warm_up_events == 5000


def test_rows_that_waited_for_the_scale_are_learnt_in_their_order():
    detector = make_detector("HalfSpaceTrees", n_trees=3, seed=4)
    scorer = fed(detector, 300)
    scale = scorer.scale.scale
    by_hand = anomaly.HalfSpaceTrees(n_trees=3, seed=4)
    for x in rows(300):
        by_hand.learn_one(dict(zip(COLUMNS, scale.apply(x).tolist(), strict=True)))
    for x in rows(20, seed=1):
        z = dict(zip(COLUMNS, scale.apply(x).tolist(), strict=True))
        assert scorer.score_one(x) == by_hand.score_one(z)


def test_a_frozen_scale_never_moves_again():
    scorer = fed(make_detector("HalfSpaceTrees"), 260)
    before = scorer.scale.scale
    for x in 100 * rows(300, seed=1):
        scorer.learn_one(x)
    assert scorer.scale.scale is before


def test_each_seed_has_its_own_trees_and_the_same_seed_the_same():
    fresh = rows(30, seed=1)
    detector = make_detector("HalfSpaceTrees")
    a, b, c = (scores(fed(detector, seed=seed), fresh) for seed in (1, 1, 2))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


def test_seeds_reach_into_pipelines():
    detector = as_detector(preprocessing.StandardScaler() | anomaly.HalfSpaceTrees())
    assert detector.start(["a"], seed=9).feed.models[0]["HalfSpaceTrees"].seed == 9
    kept = as_detector(preprocessing.StandardScaler() | anomaly.HalfSpaceTrees(seed=3))
    assert kept.start(["a"], seed=9).feed.models[0]["HalfSpaceTrees"].seed == 3


@pytest.mark.parametrize("name", ["GaussianScorer", "StandardAbsoluteDeviation"])
def test_a_univariate_detector_watches_each_column_and_the_worst_speaks(name):
    scorer = fed(as_detector(getattr(anomaly, name)()), 200)
    by_hand = [getattr(anomaly, name)() for _ in COLUMNS]
    for x in rows(200):
        for model, value in zip(by_hand, x.tolist(), strict=True):
            model.learn_one(None, value)
    for x in rows(20, seed=1):
        pairs = zip(by_hand, x.tolist(), strict=True)
        expected = max(model.score_one(None, value) for model, value in pairs)
        assert scorer.score_one(x) == expected


def test_the_predictive_detector_agrees_with_rivers_below_its_threshold():
    """River caps the score at 1 and learns while it scores; ours does neither."""
    model = anomaly.PredictiveAnomalyDetection(linear_model.LinearRegression())
    scorer = as_detector(model).start(["a"], seed=1)
    by_hand = model.clone()
    rng = np.random.default_rng(0)
    before, above = 0.0, 0
    for i, value in enumerate(rng.normal(size=400).tolist()):
        mine = scorer.score_one(np.array([value]))
        assert mine == scorer.score_one(np.array([value]))
        rivers = by_hand.score_one({"a before": before}, value)
        by_hand.learn_one({"a before": before}, value)
        scorer.learn_one(np.array([value]))
        before = value
        if i < 3:  # no threshold yet
            continue
        if rivers < 1.0:
            assert mine == rivers
        else:
            above += 1
            assert mine >= 1.0
    assert above > 1


def test_a_forecaster_predicts_each_column_from_its_past():
    model = anomaly.PredictiveAnomalyDetection(time_series.SNARIMAX(p=2, d=0, q=0))
    scorer = as_detector(model).start(["a", "b"], seed=1)
    t = np.arange(600)
    X = np.column_stack([np.sin(t / 9), np.cos(t / 5)]) + 0.01 * np.random.default_rng(0).normal(
        size=(600, 2)
    )
    for x in X[:-1]:
        scorer.learn_one(x)
    usual = scorer.score_one(X[-1])
    assert scorer.score_one(X[-1] + [0.0, 1.0]) > 10 * usual


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["OneClassSVM", "PredictiveAnomalyDetection", "LocalOutlierFactor"]
)
def test_the_multivariate_ones_see_a_channel_leave_the_others(name):
    rng = np.random.default_rng(3)
    ordinary = rows(150, seed=1)
    broken = ordinary.copy()
    broken[:, 2] = rng.permutation(broken[:, 2])
    broken[:, 2] += np.sign(rng.normal(size=150)) * 4000
    scorer = fed(make_detector(name))
    found = scores(scorer, np.concatenate([ordinary, broken]))
    assert roc_auc_score(np.arange(300) >= 150, found) > 0.8


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_a_row_that_is_not_finite_scores_nan_and_is_not_learnt(name):
    scorer = fed(make_detector(name))
    before = scorer.state()
    row = np.array([1.0, np.nan, 2.0])
    assert np.isnan(scorer.score_one(row))
    scorer.learn_one(row)
    assert scorer.state() == before


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_wild_values_do_not_throw_a_model_off_for_good(name):
    detector = make_detector(name)
    calm, shaken = fed(detector), fed(detector)
    for value in (1e12, -1e15, 1e30, 1e200, -1e308):
        assert isinstance(shaken.score_one(np.full(3, value)), float)
        shaken.learn_one(np.full(3, value))
    for x in rows(400, seed=7):
        calm.learn_one(x)
        shaken.learn_one(x)
    fresh = rows(200, seed=8)
    fresh[100:] += [4.0, -0.04, 8000.0]
    truth = np.arange(200) >= 100
    found = roc_auc_score(truth, scores(shaken, fresh))
    assert found > roc_auc_score(truth, scores(calm, fresh)) - 0.15


def test_rows_of_another_width_are_refused():
    scorer = make_detector("HalfSpaceTrees").start(COLUMNS, seed=1)
    with pytest.raises(DetectorError, match=r"for 3 columns and got a row of shape \(2,\)"):
        scorer.score_one(np.ones(2))
    with pytest.raises(DetectorError, match="for 3 columns"):
        scorer.learn_one(np.ones((1, 3)))


@pytest.mark.parametrize("columns", [[], ["a", "a"]])
def test_columns_must_have_names_that_differ(columns):
    with pytest.raises(DetectorError, match="names that differ"):
        make_detector("LocalOutlierFactor").start(columns, seed=1)


def test_a_state_is_for_its_columns_and_its_detector_only():
    detector = make_detector("HalfSpaceTrees")
    state = fed(detector).state()
    with pytest.raises(CheckpointError, match="columns flow, pressure, kW, the features are a, b"):
        detector.restore(["a", "b"], state)
    with pytest.raises(CheckpointError, match="not the state of river:LODA"):
        make_detector("river:LODA").restore(COLUMNS, state)
    pipeline = as_detector(preprocessing.StandardScaler() | anomaly.OneClassSVM())
    other = as_detector(preprocessing.MinMaxScaler() | anomaly.OneClassSVM())
    with pytest.raises(CheckpointError, match="a model of another make; configure the one that"):
        other.restore(["a"], pipeline.start(["a"], seed=1).state())


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_a_state_in_the_middle_of_the_warm_up_round_trips(name):
    detector = make_detector(name)
    scorer = fed(detector, 120)
    copy = detector.restore(COLUMNS, scorer.state())
    for x in rows(detector.warm_up_events, seed=3):
        scorer.learn_one(x)
        copy.learn_one(x)
    fresh = rows(10, seed=4)
    assert np.array_equal(scores(scorer, fresh), scores(copy, fresh))


@pytest.mark.thorough
@pytest.mark.parametrize("model", [
    preprocessing.MinMaxScaler() | anomaly.HalfSpaceTrees(n_trees=15),
    anomaly.QuantileFilter(anomaly.LODA(n_random_cuts=20), q=0.95),
    anomaly.PredictiveAnomalyDetection(linear_model.LinearRegression(), n_std=4.0),
    *(pytest.param(model, marks=pytest.mark.long) for model in (
        anomaly.ThresholdFilter(anomaly.LODA(n_random_cuts=20), threshold=50.0),
        preprocessing.StandardScaler() | anomaly.LODA(n_random_cuts=20),
        anomaly.GaussianScorer(window_size=200),
    )),
], ids=lambda model: type(model).__name__)  # fmt: skip
def test_models_of_the_users_keep_every_law(model):
    detector = as_detector(model)
    check_detector(detector)
