"""PyOD's detectors: the same scores as PyOD's, whatever the batch, the thread or the process."""

import importlib
import importlib.util
import inspect
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
from pyod.models import hbos
from pyod.models.base import BaseDetector
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

from rejex_stream.checks import check_detector
from rejex_stream.detectors import PYOD, as_detector, make_detector, scorers
from rejex_stream.detectors.pyod import contained
from rejex_stream.detectors.rowwise import RowByRow
from rejex_stream.detectors.scorers import NeighbourDistance
from rejex_stream.errors import ConfigError, DetectorError

FAST = [f"pyod:{name}" for name in PYOD if name != "AE"]
CLASS_OF = {
    "pyod:COPOD": "pyod.models.copod.COPOD", "pyod:ECOD": "pyod.models.ecod.ECOD",
    "pyod:GMM": "pyod.models.gmm.GMM", "pyod:HBOS": "pyod.models.hbos.HBOS",
    "pyod:IForest": "pyod.models.iforest.IForest", "pyod:INNE": "pyod.models.inne.INNE",
    "pyod:KDE": "pyod.models.kde.KDE", "pyod:KNN": "pyod.models.knn.KNN",
    "pyod:LODA": "pyod.models.loda.LODA", "pyod:LOF": "pyod.models.lof.LOF",
    "pyod:OCSVM": "pyod.models.ocsvm.OCSVM",
}  # fmt: skip
TORCH = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="PyTorch is not installed (extra `deep`); `make test-deep` runs this",
)


def rows(n, d, seed=0):
    """Skewed enough that one row more cannot turn the sign of the skewness."""
    rng = np.random.default_rng(seed)
    return rng.gamma(2.0, size=(n, d)) + rng.normal(size=(n, 1))


@pytest.fixture(autouse=True)
def no_compilation(monkeypatch):
    """PyOD's HBOS compiles one loop for five seconds; the loop itself does as well here."""
    loop = hbos._calculate_outlier_scores
    monkeypatch.setattr(hbos, "_calculate_outlier_scores", getattr(loop, "py_func", loop))


def pyod_itself(name, X, seed, **params):
    module, _, cls = CLASS_OF[name].rpartition(".")
    cls = getattr(importlib.import_module(module), cls)
    if "random_state" in inspect.signature(cls).parameters:
        params["random_state"] = seed
    with contained(seed):
        return cls(**params).fit(X)


@pytest.mark.thorough
@pytest.mark.parametrize("d", [1, 6])
@pytest.mark.parametrize("name", FAST)
def test_scores_are_pyods_own(name, d):
    X, fresh = rows(300, d), 1.5 * rows(25, d, seed=1)
    scorer = make_detector(name).fit(X, seed=3)
    model = pyod_itself(name, X, 3)
    training = model.decision_scores_
    if name == "pyod:IForest":  # PyOD subtracts an offset that differs between fits
        expected = -model.detector_.score_samples(fresh)
        training = training - model.detector_.offset_
    elif name in ("pyod:ECOD", "pyod:COPOD"):  # PyOD ranks a row among its whole batch
        expected = [model.decision_function(x[None])[0] for x in fresh]
    else:
        expected = model.decision_function(fresh)
    assert np.allclose(scorer.score(fresh), expected, rtol=1e-9, atol=1e-12)
    assert np.allclose(scorer.training_scores, training, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "params"), [
    ("pyod:KNN", {"method": "mean", "n_neighbors": 7}),
    ("pyod:KNN", {"method": "median", "n_neighbors": 4}), ("pyod:KNN", {"p": 1}),
    ("pyod:KNN", {"metric": "chebyshev"}), ("pyod:KNN", {"metric": "cosine"}),
    ("pyod:LOF", {"n_neighbors": 5, "metric": "cosine"}), ("pyod:HBOS", {"n_bins": "auto"}),
    ("pyod:HBOS", {"n_bins": 3, "alpha": 0.4, "tol": 0.1}),
    ("pyod:LODA", {"n_bins": "auto", "n_random_cuts": 13}), ("pyod:GMM", {"n_components": 3}),
    ("pyod:GMM", {"n_components": 2, "covariance_type": "tied"}),
    ("pyod:GMM", {"n_components": 2, "covariance_type": "diag"}),
    ("pyod:GMM", {"n_components": 2, "covariance_type": "spherical"}),
    ("pyod:IForest", {"n_estimators": 9, "max_features": 0.5, "bootstrap": True}),
    ("pyod:IForest", {"max_samples": 17}), ("pyod:INNE", {"n_estimators": 11, "max_samples": 5}),
    ("pyod:OCSVM", {"kernel": "poly", "nu": 0.2}),
    ("pyod:KDE", {"bandwidth": 0.3, "metric": "manhattan"}),
], ids=str)  # fmt: skip
def test_parameters_mean_what_they_mean_in_pyod(name, params):
    X, fresh = rows(200, 4), 1.3 * rows(20, 4, seed=1)
    scorer = make_detector(name, **params).fit(X, seed=3)
    model = pyod_itself(name, X, 3, **params)
    if name == "pyod:IForest":
        expected = -model.detector_.score_samples(fresh)
    else:
        expected = model.decision_function(fresh)
    assert np.allclose(scorer.score(fresh), expected, rtol=1e-9, atol=1e-12)
    alone = np.concatenate([scorer.score(x[None]) for x in fresh])
    assert np.array_equal(alone, scorer.score(fresh))


@pytest.mark.parametrize("name", FAST)
def test_sixty_four_columns_are_exact_in_any_batch(name):
    X, fresh = rows(150, 64), 1.5 * rows(60, 64, seed=1)
    scorer = make_detector(name).fit(X, seed=3)
    whole = scorer.score(fresh)
    for size in (1, 2, 7, 32):
        pieces = [scorer.score(fresh[i : i + size]) for i in range(0, 60, size)]
        assert np.array_equal(np.concatenate(pieces), whole)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["pyod:IForest", "pyod:INNE"])
def test_a_batch_beyond_the_inner_chunk_is_exact_too(name):
    scorer = make_detector(name).fit(rows(100, 2), seed=3)
    fresh = rows(3000, 2, seed=1)
    whole = scorer.score(fresh)
    assert np.array_equal(whole[1990:2010], scorer.score(fresh[1990:2010]))


def test_neighbours_are_asked_of_a_tree_at_any_number_of_columns(monkeypatch):
    X = rows(100, 30)
    found = make_detector("KNN").fit(X, seed=1).inner
    assert isinstance(found, NeighbourDistance)
    assert found.columns is not None, "one row is compared with all, to the bits of the tree"
    with monkeypatch.context() as other:  # a tree that adds otherwise is asked each time
        other.setattr(scorers, "nearest", lambda x, columns, k: np.zeros((1, k)))
        assert make_detector("KNN").fit(X, seed=1).inner.columns is None
    assert isinstance(make_detector("KNN", metric="cosine").fit(X, seed=1).inner, RowByRow)


@pytest.mark.parametrize("name", ["pyod:KNN", "pyod:LOF", "pyod:ECOD", "pyod:COPOD"])
def test_training_scores_leave_the_row_itself_out(name):
    X = rows(60, 3)
    scorer = make_detector(name).fit(X, seed=1)
    for i in (0, 17, 59):
        without = make_detector(name).fit(np.delete(X, i, axis=0), seed=1)
        assert np.isclose(scorer.training_scores[i], without.score(X[i : i + 1])[0], rtol=0.05)


# --------------------------------------------------------------------------- where a fit runs
def fit_all(X, seed):
    return [make_detector(name).fit(X, seed=seed) for name in FAST]


@pytest.mark.thorough
def test_a_fit_is_the_same_in_threads_in_a_process_and_here():
    X, fresh = rows(100, 4), rows(30, 4, seed=1)
    here = [scorer.score(fresh) for scorer in fit_all(X, 11)]
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(make_detector(n).fit, X, seed=11) for n in FAST]
        threads = [job.result().score(fresh) for job in jobs]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        process = [scorer.score(fresh) for scorer in pool.submit(fit_all, X, 11).result()]
    for i, name in enumerate(FAST):
        assert np.array_equal(here[i], threads[i]), name
        assert np.array_equal(here[i], process[i]), name


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["pyod:GMM", "pyod:KNN", "pyod:OCSVM", "pyod:INNE"])
def test_the_number_of_blas_threads_changes_nothing(name):
    X, fresh = rows(600, 40), rows(50, 40, seed=1)
    scores = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            scores.append(make_detector(name).fit(X, seed=5).score(fresh))
    assert np.array_equal(*scores)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, -1, 2**40])
def test_any_integer_is_a_seed(seed):
    X = rows(60, 3)
    a, b = (make_detector("IForest").fit(X, seed=seed).score(X) for _ in range(2))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, make_detector("IForest").fit(X, seed=seed + 1).score(X))


@pytest.mark.parametrize("name", FAST)
def test_a_fit_says_nothing(name, capfd):
    X = rows(80, 3)
    make_detector(name).fit(X, seed=1).score(X)
    assert capfd.readouterr() == ("", "")


# ------------------------------------------------------------------------------- hostile rows
@pytest.mark.parametrize("name", FAST)
def test_a_row_that_is_not_finite_scores_nan_and_disturbs_no_other(name):
    fresh = rows(6, 3, seed=1)
    scorer = make_detector(name).fit(rows(80, 3), seed=1)
    clean = scorer.score(fresh)
    fresh[1, 2], fresh[4, 0] = np.nan, np.inf
    scores = scorer.score(fresh)
    assert np.isnan(scores[[1, 4]]).all()
    assert np.array_equal(scores[[0, 2, 3, 5]], clean[[0, 2, 3, 5]])


@pytest.mark.thorough
@pytest.mark.parametrize("value", [1e39, -1e39, 1e160, 1e300])
@pytest.mark.parametrize("name", FAST)
def test_an_enormous_value_scores_without_an_error(name, value):
    scorer = make_detector(name).fit(rows(80, 3), seed=1)
    assert scorer.score(np.full((2, 3), value)).shape == (2,)


@pytest.mark.parametrize("name", FAST)
def test_a_column_that_never_changes_is_no_obstacle(name):
    X = rows(100, 3)
    X[:, 1] = 5.0
    scorer = make_detector(name).fit(X, seed=1)
    assert np.isfinite(scorer.score(X[:10])).all()


@pytest.mark.parametrize("name", FAST)
def test_rows_that_are_all_the_same_fit_or_say_why_not(name):
    X = np.full((50, 2), 3.0)
    try:
        scorer = make_detector(name).fit(X, seed=1)
    except DetectorError as error:
        assert "Columns [0, 1] never change" in str(error)  # noqa: PT017
    else:
        assert scorer.score(X[:3]).shape == (3,)


def test_a_fit_that_fails_says_why_and_on_how_many_rows():
    with pytest.raises(DetectorError, match=r"pyod:KNN could not be fitted on 4 rows of 2 columns"):
        make_detector("KNN").fit(rows(4, 2), seed=1)
    X = rows(50, 2)
    X[7, 1] = np.nan
    with pytest.raises(DetectorError, match="1 of 50 rows hold a value that is not finite"):
        make_detector("KNN").fit(X, seed=1)
    with pytest.raises(DetectorError, match=r"needs rows of shape \(n, d\), got shape \(5,\)"):
        make_detector("KNN").fit(np.ones(5), seed=1)


def test_rows_of_another_width_are_refused():
    scorer = make_detector("KNN").fit(rows(50, 3), seed=1)
    with pytest.raises(DetectorError, match=r"fitted on 3 columns .* shape \(2, 4\)"):
        scorer.score(np.ones((2, 4)))


# ------------------------------------------------------------------------------------- scale
@pytest.mark.parametrize("scale", ["standard", "robust", "unit"])
def test_a_scale_takes_units_out(scale):
    X, fresh = rows(200, 3), rows(20, 3, seed=1)
    units = np.array([1.0, 1e4, 1e-3])
    detector = make_detector("KNN", scale=scale)
    plain = detector.fit(X, seed=1).score(fresh)
    assert np.allclose(plain, detector.fit(X * units, seed=1).score(fresh * units))


def test_without_a_scale_the_widest_column_decides():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 2)) * [1.0, 1000.0]
    fresh = np.concatenate([rng.normal(size=(100, 2)), np.full((5, 2), [8.0, 0.0])])
    fresh[:, 1] *= 1000.0
    truth = np.arange(105) >= 100
    auc = {
        scale: roc_auc_score(truth, make_detector("KNN", scale=scale).fit(X, seed=1).score(fresh))
        for scale in ("none", "robust")
    }
    assert auc["robust"] > 0.99
    assert auc["none"] < 0.9


# ----------------------------------------------------------------------- PyOD's other classes
@pytest.mark.thorough
def test_another_class_keeps_every_law_row_by_row():
    detector = make_detector("pyod.models.pca.PCA")
    assert isinstance(detector.fit(rows(60, 3), seed=1).inner, RowByRow)
    check_detector(detector)


class Moody(BaseDetector):
    """Gives another score each time."""

    def __init__(self, contamination=0.1):
        super().__init__(contamination=contamination)

    def fit(self, X, y=None):
        self.decision_scores_ = np.zeros(len(X))
        self.calls = 0
        return self

    def decision_function(self, X):
        self.calls += 1
        return np.full(len(X), float(self.calls))


class Sociable(Moody):
    """Needs company."""

    def decision_function(self, X):
        if len(X) < 2:
            raise ValueError("at least two rows")
        return np.zeros(len(X))


def test_a_class_whose_score_changes_by_itself_is_refused():
    with pytest.raises(DetectorError, match="gave one row two scores"):
        as_detector(Moody()).fit(rows(30, 2), seed=1)


def test_a_class_that_cannot_score_one_row_is_refused():
    with pytest.raises(DetectorError, match="cannot score a single row"):
        as_detector(Sociable()).fit(rows(30, 2), seed=1)


# ------------------------------------------------------------------------------- autoencoder
@TORCH
@pytest.mark.deep
def test_an_autoencoder_is_scored_by_pyod_row_by_row():
    from pyod.models.auto_encoder import AutoEncoder

    X, fresh = rows(200, 5), rows(30, 5, seed=1)
    scorer = make_detector("AE", epoch_num=2).fit(X, seed=3)
    assert isinstance(scorer.inner, RowByRow)
    with contained(3):
        model = AutoEncoder(epoch_num=2, random_state=3, verbose=0).fit(X)
    assert np.allclose(scorer.score(fresh), model.decision_function(fresh), atol=1e-4)


@TORCH
@pytest.mark.deep
def test_an_autoencoder_needs_a_batch_of_rows():
    with pytest.raises(DetectorError, match="batch_size = 32 learns nothing from 10 rows"):
        make_detector("AE").fit(rows(10, 3), seed=1)


@TORCH
@pytest.mark.deep
def test_an_autoencoder_refuses_what_it_does_not_know():
    with pytest.raises(ConfigError, match=r"accepts: .*hidden_neuron_list"):
        make_detector("AE", neurons=[3])
