"""What a notebook expects: scikit-learn's rules, PyOD's names, and pictures."""

import sys
import warnings
from datetime import datetime

import numpy as np
import pytest
from pyod.models.iforest import IForest
from pyod.models.knn import KNN
from sklearn.base import OutlierMixin, clone
from sklearn.covariance import EllipticEnvelope
from sklearn.ensemble import IsolationForest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import ParameterGrid
from sklearn.neighbors import LocalOutlierFactor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import rejex_stream
from rejex_stream import RejectingDetector, check_detector, load_dataset
from rejex_stream.detectors import as_detector
from rejex_stream.errors import ConfigError, DetectorError
from rejex_stream.facade import REJECTED
from rejex_stream.rejection.bounds import expected_rejection_rate
from tests.program import ended


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    return np.vstack([rng.normal(size=(1800, 3)), rng.normal(4, 1, size=(200, 3))])


def frame(rows, names):
    """A table with named columns: pyarrow's, which scikit-learn reads as it reads pandas'."""
    pyarrow = pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    return pyarrow.table(dict(zip(names, rows.T, strict=True)))


# ------------------------------------------------------------------------- scikit-learn
EXCEPTIONS: dict[str, str] = {}  # check of scikit-learn that need not hold: why. Today none.


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [RejectingDetector("KNN", 0.1, 4), RejectingDetector("HBOS", 0.4, 1, calibration="holdout")],
    expected_failed_checks=lambda _: EXCEPTIONS,
)
def test_scikit_learns_rules_hold(estimator, check):
    check(estimator)


def test_it_says_that_its_codes_are_not_those_of_scikit_learns_outlier_detectors():
    assert not issubclass(RejectingDetector, OutlierMixin)
    assert "**not** an ``OutlierMixin``" in RejectingDetector.__doc__


def test_columns_are_known_by_their_names(table):
    model = RejectingDetector("KNN", 0.1, 8).fit(frame(table, ["a", "b", "c"]))
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    fresh = table[:5]
    assert len(model.predict(frame(fresh, ["a", "b", "c"]))) == 5
    with pytest.raises(ValueError, match="must be in the same order"):
        model.predict(frame(fresh[:, ::-1], ["c", "b", "a"]))
    with pytest.raises(ValueError, match="unseen at fit time"):
        model.predict(frame(fresh, ["a", "b", "d"]))


def test_rows_that_are_not_finite_are_named_in_a_fit_and_rejected(table):
    holed = table.copy()
    holed[[3, 700], [0, 2]] = np.nan, np.inf
    with pytest.warns(UserWarning, match="2 of 2,000 rows hold a value that is not finite"):
        model = RejectingDetector("KNN", 0.1, 8).fit(holed)
    assert model.labels_[[3, 700]].tolist() == model.predict(holed[[3, 700]]).tolist() == [-2, -2]
    assert np.isnan(model.decision_scores_[[3, 700]]).all()
    assert len(model.reference_scores_) == np.isfinite(model.decision_scores_).sum() == 1998
    assert model.predict_proba(holed[[3]]).tolist() == [[0.5, 0.5]]
    kept = np.delete(np.arange(2000), [3, 700])
    same = RejectingDetector("KNN", 0.1, 8).fit(table[kept])
    assert np.array_equal(same.labels_, model.labels_[kept])


# --------------------------------------------------------------------------------- PyOD
def test_pyods_names_hold_what_pyod_has_in_them(table):
    theirs = KNN(contamination=0.1).fit(table)
    ours = RejectingDetector("KNN", 0.1, 8).fit(table)
    assert ours.decision_scores_ == pytest.approx(theirs.decision_scores_)
    accepted = ours.labels_ != REJECTED
    assert np.array_equal(ours.labels_[accepted], theirs.labels_[accepted])
    assert 0 < np.count_nonzero(~accepted) < 200
    assert np.array_equal(ours.fit_predict(table), ours.labels_)
    fresh = np.random.default_rng(1).normal(1, 2, size=(300, 3))
    assert ours.decision_function(fresh) == pytest.approx(theirs.decision_function(fresh))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        confidence = theirs.predict_confidence(fresh)
    sure = ours.predict(fresh) != REJECTED
    assert ours.predict_confidence(fresh)[sure] == pytest.approx(confidence[sure], abs=1e-9)
    proba = ours.predict_proba(fresh)
    assert proba.shape == (300, 2)
    assert proba.sum(axis=1) == pytest.approx(1.0)
    assert (proba[ours.predict(fresh) == 1, 1] > 0.99).all()
    assert (proba[ours.predict(fresh) == 0, 1] < 0.01).all()


def test_held_out_rows_are_judged_by_their_held_out_scores(table):
    rng = np.random.default_rng(3)
    mixed = rng.permutation(table)
    model = RejectingDetector("KNN", 0.1, 8, calibration="holdout").fit(mixed)
    assert np.array_equal(np.sort(model.decision_scores_[1400:]), model.reference_scores_)
    assert np.array_equal(model.labels_[1400:], model.predict(mixed[1400:]))


# ------------------------------------------------------------------------------- rejection
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
    assert RejectingDetector("KNN", 0.1).fit(table).band_.tolerance == 32


def test_one_repeated_score_rejects_everything():
    with pytest.warns(UserWarning, match="tells no row from another"):
        model = RejectingDetector("KNN", 0.1, 4).fit(np.ones((200, 2)))
    assert set(model.predict(np.ones((5, 2)))) == set(model.labels_) == {-2}
    assert model.predict_proba(np.ones((1, 2))).tolist() == [[0.5, 0.5]]
    assert model.confidence(np.ones((1, 2))).tolist() == [0.0]


def test_a_detector_that_learns_row_by_row_is_refused():
    with pytest.raises(ConfigError, match=r"use rejex_stream\.Pipeline"):
        RejectingDetector("HalfSpaceTrees").fit(np.zeros((10, 2)))


# ------------------------------------------------------------- objects taken as they are
@pytest.mark.thorough
@pytest.mark.parametrize("detector", [
    IsolationForest(n_estimators=20),
    make_pipeline(StandardScaler(), IsolationForest(n_estimators=20, random_state=3)),
    LocalOutlierFactor(novelty=True), "sklearn.ensemble.IsolationForest",
], ids=["IsolationForest", "Pipeline", "LocalOutlierFactor", "dotted"])  # fmt: skip
def test_scikit_learns_detectors_are_taken_as_they_are(table, detector):
    model = RejectingDetector(detector, 0.1, 4, seed=5).fit(table[::4])
    far = model.predict([[0.0, 0.0, 0.0], [9.0, 9.0, 9.0]])
    assert far.tolist() == [0, 1]
    again = RejectingDetector(detector, 0.1, 4, seed=5).fit(table[::4])
    assert np.array_equal(again.decision_scores_, model.decision_scores_)
    if not isinstance(detector, str):
        assert not hasattr(detector, "offset_")  # the user's object learns nothing


@pytest.mark.thorough
def test_a_seed_reaches_the_steps_that_have_none(table):
    def scores(seed, **params):
        forest = make_pipeline(StandardScaler(), IsolationForest(n_estimators=5, **params))
        return RejectingDetector(forest, 0.1, 4, seed=seed).fit(table[::20]).decision_scores_

    assert not np.array_equal(scores(1), scores(2))
    assert np.array_equal(scores(1, random_state=7), scores(2, random_state=7))


@pytest.mark.thorough
def test_scikit_learns_detectors_keep_the_laws_of_the_stream():
    check_detector(IsolationForest(n_estimators=10))
    check_detector(EllipticEnvelope())  # scored row by row


@pytest.mark.parametrize(("detector", "sentence"), [
    (LocalOutlierFactor(), "give it novelty=True"),
    (LinearRegression(), "sklearn:LinearRegression gives no anomaly score"),
    ("sklearn.linear_model.LinearRegression", "gives no anomaly score: give a detector with"),
], ids=["novelty", "object", "dotted"])  # fmt: skip
def test_what_cannot_score_new_rows_is_refused_for_what_it_is(detector, sentence):
    with pytest.raises(DetectorError, match=sentence):
        as_detector(detector)


def test_a_generator_as_a_seed_is_refused():
    with pytest.raises(ConfigError, match="random_state of sklearn:IsolationForest is a Random"):
        as_detector(IsolationForest(random_state=np.random.RandomState(0)))


def test_parameters_go_with_a_name(table):
    named = RejectingDetector("KNN", 0.1, 8, params={"n_neighbors": 3}).fit(table)
    as_object = RejectingDetector(KNN(n_neighbors=3), 0.1, 8).fit(table)
    assert np.array_equal(named.decision_scores_, as_object.decision_scores_)
    with pytest.raises(ConfigError, match="no parameter 'neighbours'"):
        RejectingDetector("KNN", params={"neighbours": 3}).fit(table)
    with pytest.raises(ConfigError, match="give KNN its parameters when you make it"):
        RejectingDetector(KNN(), params={"n_neighbors": 3}).fit(table)
    grid = ParameterGrid({"params": [{"n_neighbors": 3}, {"n_neighbors": 9}]})
    assert [RejectingDetector("KNN").set_params(**one).params for one in grid]


class Far:
    """The least that the message about what is no detector asks for."""

    def fit(self, X, seed):
        return Near(X.mean(axis=0))

    def __repr__(self):
        return "Far()"


class Near:
    def __init__(self, centre):
        self.centre = centre

    def score(self, X):
        return abs(X - self.centre).max(axis=1, initial=0.0)


@pytest.mark.thorough
def test_a_detector_of_ones_own_needs_no_more_than_the_message_says(table):
    model = RejectingDetector(Far(), 0.1, 8).fit(table)
    assert model.predict([[0.0, 0.0, 0.0], [30.0, 0.0, 0.0]]).tolist() == [0, 1]
    assert as_detector(Far()).name == "own:Far"
    check_detector(Far())


class Scoreless(Far):
    def fit(self, X, seed):
        return X


class Unseeded(Far):
    def fit(self, X):
        return Near(X)


class Breaking(Far):
    def fit(self, X, seed):
        return self.no_such_thing


class Forgetful:
    def start(self, names, seed):
        return None


@pytest.mark.parametrize(("detector", "error", "sentence"), [
    (Scoreless(), AssertionError, r"gave ndarray, which has no score\(\)"),
    (Unseeded(), AssertionError, "own:Unseeded failed in check_it_gives_a_scorer.*'seed'"),
    (Breaking(), AssertionError, "AttributeError: .*no_such_thing"),
    (Forgetful(), DetectorError, r"has start\(\) and lacks restore and warm_up_events"),
    (object(), DetectorError, "is no detector; give a name"),
    (KNN, DetectorError, "is no detector"),
], ids=lambda value: getattr(value, "__name__", type(value).__name__))  # fmt: skip
def test_what_breaks_a_law_is_told_which_and_never_by_an_attribute_error(detector, error, sentence):
    with pytest.raises(error, match=sentence):
        check_detector(detector)


@pytest.mark.parametrize("value", ["on", datetime(2024, 3, 1)], ids=["text", "datetime"])
def test_what_is_no_number_is_named_with_its_column(value):
    pyarrow = pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    rows = pyarrow.table({"a": [1.0, 2.0] * 50, "b": [str(value)] * 100})
    with pytest.raises(ConfigError, match=r"^b is .*: expected a number"):
        RejectingDetector("HBOS", 0.1, 8).fit(rows)


def test_a_column_of_times_is_named_and_not_read_as_a_count(table):
    pyarrow = pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    times = [datetime(2024, 3, 1 + i % 20) for i in range(len(table))]
    rows = pyarrow.table({"a": table[:, 0], "t": pyarrow.array(times)})
    with pytest.raises(ConfigError, match=r"^t is '2024-03-01.*: expected a number"):
        RejectingDetector("HBOS", 0.1, 8).fit(rows)


def test_scores_that_tell_nothing_are_said_before_all_is_rejected(table):
    with pytest.warns(UserWarning, match="tells no row from another, and all are rejected"):
        model = RejectingDetector("IForest", 0.1, 8).fit(table * 1e-300)
    assert set(model.labels_) == {REJECTED}


# ------------------------------------------------------------------------------ pictures
@pytest.fixture
def axes():
    figure = pytest.importorskip("matplotlib.figure")
    return figure.Figure().add_subplot()


def drawn(ax):
    return {text.get_text() for text in ax.get_legend().get_texts()}


def test_a_picture_shows_every_score_with_its_verdict(table, axes):
    model = RejectingDetector("KNN", 0.1, 8).fit(table)
    assert model.plot(table[::10], ax=axes) is axes
    labels = model.predict(table[::10])
    kinds = {"normal": 0, "rejected": REJECTED, "anomaly": 1}
    counts = {kind: np.count_nonzero(labels == code) for kind, code in kinds.items()}
    assert drawn(axes) == {"rejection band", "threshold λ"} | {
        f"{kind} ({n})" for kind, n in counts.items()
    }
    heights = [y for marks in axes.collections for _, y in marks.get_offsets().data.tolist()]
    assert sorted(heights) == pytest.approx(sorted(model.decision_function(table[::10])))


def test_rejected_scores_lie_in_the_drawn_band(table, axes):
    model = RejectingDetector("KNN", 0.1, 8).fit(table)
    model.plot(ax=axes)
    (band,) = [patch for patch in axes.patches if patch.get_label() == "rejection band"]
    low, high = band.get_y(), band.get_y() + band.get_height()
    rejected = model.decision_scores_[model.labels_ == REJECTED]
    assert low <= rejected.min() <= rejected.max() <= high
    # The edges are reference scores: the first rank of the band is in it, and λ is the threshold.
    reference, first = model.reference_scores_, model.band_.edges[0]
    assert low == reference[first - 1]
    (line,) = [one for one in axes.lines if one.get_label() == "threshold λ"]
    assert line.get_ydata()[0] == model.threshold_
    outside = model.decision_scores_[model.labels_ != REJECTED]
    assert not ((low < outside) & (outside < high)).any()


def test_a_row_without_a_score_is_counted(axes):
    with pytest.warns(UserWarning, match="1 of 101 rows"):
        model = RejectingDetector("HBOS", 0.3, 1).fit([[float(i)] for i in range(100)] + [[np.nan]])
    assert any("1 without a score" in text for text in drawn(model.plot(ax=axes)))


def test_without_matplotlib_a_picture_says_what_to_install(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match="pip install matplotlib"):
        RejectingDetector("HBOS", 0.1, 8).fit(table).plot()


# ----------------------------------------------------------------------- names and data
def test_completion_finds_every_public_name():
    code = "import rejex_stream; print(*dir(rejex_stream))"
    done = ended([sys.executable, "-c", code])
    assert set(rejex_stream.__all__) <= set(done.stdout.split())


def test_data_sets_need_no_network_and_say_what_is_wrong_in_them():
    water = load_dataset()
    assert water.X.shape == (1268, 1)
    assert 0.02 < water.is_fault.mean() < 0.05
    turbines = load_dataset("turbines")
    assert turbines.X.shape == (16_128, 4) == (len(turbines.times), len(turbines.channels))
    assert (np.diff(turbines.times) > np.timedelta64(0, "ns")).all()
    assert np.isnan(turbines.X).any()
    one = turbines.for_sensor("WT-02")
    assert len(one.X) == 4032
    assert np.count_nonzero(one.is_fault) == 288
    with pytest.raises(ConfigError, match="there are WT-01, WT-02, WT-03, WT-04"):
        turbines.for_sensor("WT-05")
    with pytest.raises(ConfigError, match="use 'water' or 'turbines'"):
        load_dataset("iris")
