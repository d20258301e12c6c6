"""The notebook faces: scikit-learn's conventions, PyOD's verdicts, River's conventions."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
from pyod.models.iforest import IForest
from pyod.models.knn import KNN
from river import compose, preprocessing
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from rejex_stream.errors import ConfigError
from rejex_stream.facade import RejectingDetector, RejectingStream
from rejex_stream.rejection.bounds import expected_rejection_rate


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    return np.vstack([rng.normal(size=(1800, 3)), rng.normal(4, 1, size=(200, 3))])


@pytest.mark.parametrize("tolerance", [4, 8, 32])
def test_verdicts_equal_those_of_pyod(table, tolerance):
    fresh = np.random.default_rng(1).normal(1, 2, size=(500, 3))
    pyod = KNN(contamination=0.1).fit(table)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = pyod.predict_with_rejection(fresh, T=tolerance)
    ours = RejectingDetector("KNN", 0.1, tolerance).fit(table).predict(fresh)
    assert ours.tolist() == theirs.tolist()
    assert set(ours.tolist()) == {-2, 0, 1}


def test_scikit_learns_conventions_hold(table):
    model = RejectingDetector(IForest(n_estimators=10), 0.1, 8, seed=4)
    copy = clone(model)
    assert copy.get_params()["seed"] == 4
    assert copy.set_params(tolerance=4.0).tolerance == 4.0
    with pytest.raises(NotFittedError):
        model.predict(table)
    assert model.fit(table) is model
    assert model.predict(table).shape == model.confidence(table).shape == (2000,)
    assert ((model.confidence(table) >= 0) & (model.confidence(table) <= 1)).all()
    assert np.array_equal(model.predict(table), clone(model).fit(table).predict(table))
    with pytest.raises(ValueError, match="2 features, but RejectingDetector is expecting 3"):
        model.predict(table[:, :2])


@pytest.mark.thorough
def test_held_out_ranks_reject_what_theory_expects_even_where_training_ranks_do_not(table):
    rng = np.random.default_rng(2)
    rows, fresh = rng.normal(size=(2000, 10)), rng.normal(size=(4000, 10))
    own = RejectingDetector("KDE", 0.1, 8).fit(rows)
    held = RejectingDetector("KDE", 0.1, 8, calibration="holdout").fit(rows)
    assert held.predict(fresh).tolist().count(-2) / 4000 == pytest.approx(
        expected_rejection_rate(held.band_), rel=0.35
    )
    assert held.predict(fresh).tolist().count(1) / 4000 < 0.1
    assert own.predict(fresh).tolist().count(1) / 4000 > 0.15  # fitted too closely


def test_a_window_that_can_never_say_anomaly_warns(table):
    with pytest.warns(UserWarning, match="can ever be called an anomaly"):
        model = RejectingDetector("KNN", 0.1, 32).fit(table[:100])
    assert 1 not in model.predict(table)


def test_a_rate_does_what_a_tolerance_does(table):
    model = RejectingDetector("KNN", 0.1, rate=0.05).fit(table)
    assert 0.04 < expected_rejection_rate(model.band_) <= 0.05


def test_a_rate_and_a_tolerance_are_one_too_many(table):
    with pytest.raises(ConfigError, match="give exactly one"):
        RejectingDetector("KNN", 0.1, 8, rate=0.05).fit(table)
    with pytest.raises(ConfigError, match="give exactly one"):
        RejectingStream(contamination=0.1, tolerance=8, rate=0.05)
    assert RejectingStream(contamination=0.1, rate=0.05)._policy.tolerance is None
    assert RejectingDetector("KNN", 0.1).fit(table).band_.tolerance == 32


def test_one_repeated_score_rejects_everything():
    with pytest.warns(UserWarning, match="tells no row from another"):
        model = RejectingDetector("KNN", 0.1, 4).fit(np.ones((200, 2)))
    assert set(model.predict(np.ones((5, 2)))) == set(model.labels_) == {-2}
    assert model.predict_proba(np.ones((1, 2))).tolist() == [[0.5, 0.5]]
    assert model.confidence(np.ones((1, 2))).tolist() == [0.0]


def test_the_stream_face_is_a_river_estimator():
    rng = random.Random(0)
    model = compose.Pipeline(
        preprocessing.StandardScaler(),
        RejectingStream("GaussianScorer", contamination=0.1, tolerance=4, window=200),
    )
    for _ in range(500):
        model.learn_one({"flow": rng.gauss(100, 1)})
    assert model.score_one({"flow": 120.0}) > model.score_one({"flow": 100.0})
    stream = model["RejectingStream"]
    before = stream.score_one({"flow": 2.0})
    assert stream.predict_one({"flow": 2.0}) == stream.predict_one({"flow": 2.0})
    assert stream.score_one({"flow": 2.0}) == before
    fresh = model.clone()
    assert fresh["RejectingStream"].predict_one({"flow": 1.0}) == "rejected"
    with pytest.raises(ConfigError, match="no feature 'flow'"):
        stream.learn_one({"pressure": 1.0})


def test_the_two_faces_refuse_each_others_detectors():
    with pytest.raises(ConfigError, match="use RejectingStream"):
        RejectingDetector("HalfSpaceTrees").fit(np.zeros((10, 2)))
    with pytest.raises(ConfigError, match="use RejectingDetector"):
        RejectingStream("KNN")
