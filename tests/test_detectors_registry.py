"""Names, parameters, and the sentences for wrong ones."""

import importlib.util
import pickle
import sys
import types

import numpy as np
import pytest
from pyod.models.cof import COF
from pyod.models.ecod import ECOD
from pyod.models.knn import KNN
from pyod.models.pca import PCA
from river import anomaly, preprocessing

from rejex_stream.detectors import PYOD, REFUSED, RIVER, SENSOR, as_detector, make_detector
from rejex_stream.detectors import pyod as pyod_module
from rejex_stream.errors import ConfigError, DetectorError
from rejex_stream.protocols import BatchDetector, IncrementalDetector
from tests.program import ended


def test_the_registries_hold_the_twelve_of_the_paper_and_rivers_seven():
    assert len(PYOD) == 12
    assert len(RIVER) == 7
    assert all(callable(factory) for factory in [*PYOD.values(), *RIVER.values()])
    assert {"Sensor", "SensorEnsemble"} < SENSOR.keys()


@pytest.mark.parametrize("name", ["KNN", "knn", "pyod:KNN", "PYOD:knn", "pyod.models.knn.KNN"])
def test_a_name_is_found_in_any_case_and_with_its_package(name):
    assert make_detector(name).name == "pyod:KNN"


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["HalfSpaceTrees", "halfspacetrees", "river:HALFSPACETREES"])
def test_rivers_names_too(name):
    detector = make_detector(name)
    assert detector.name == "river:HalfSpaceTrees"
    assert isinstance(detector, IncrementalDetector)


def test_a_name_that_both_have_must_say_whose():
    with pytest.raises(DetectorError, match="pyod:LODA or river:LODA"):
        make_detector("loda")
    assert isinstance(make_detector("pyod:LODA"), BatchDetector)
    assert isinstance(make_detector("river:LODA"), IncrementalDetector)


@pytest.mark.parametrize(("name", "says"), [
    ("KNM", "nearest are pyod:KNN"), ("IsolationForest", "no detector 'IsolationForest'"),
    ("HalfSpaceTree", "nearest are river:HalfSpaceTrees"),
    ("xyzzy", "there are Ensemble, .*AE, COPOD"), ("", "no detector ''"),
    ("pyod.models.pca.PCAA", "no class 'PCAA'"),
    ("pyod.models.nothing.X", "No module named 'pyod.models.nothing'"),
    ("river.anomaly.HalfSpaceTree", "did you mean HalfSpaceTrees"),
    ("no_such_module.thing", "No module named 'no_such_module'"),
    ("math.pi", "gives no anomaly score"), ("river.stats.Mean", "gives no anomaly score"),
])  # fmt: skip
def test_an_unknown_name_says_what_is_near(name, says):
    with pytest.raises(DetectorError, match=says):
        make_detector(name)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_on_a_stream_is_refused_with_the_reason(name):
    for spelling in (name, name.lower(), f"pyod:{name}", f"pyod.models.{name.lower()}.{name}"):
        with pytest.raises(DetectorError, match=f"pyod:{name} is refused: it.* row"):
            make_detector(spelling)


def test_a_refused_object_is_refused_too():
    with pytest.raises(DetectorError, match="cannot score a single row"):
        as_detector(COF())


@pytest.mark.parametrize(("name", "params", "says"), [
    ("KNN", {"n_neighbours": 3}, "no parameter 'n_neighbours'; it accepts: .*n_neighbors"),
    ("KNN", {"contamination": 0.1}, "the pipeline has one contamination"),
    ("KNN", {"scale": "big"}, "scale = 'big' is unknown; use one of none"),
    ("ECOD", {"n_jobs": 2}, "it accepts: scale"), ("HBOS", {"alpha": 4}, "alpha is set to 4"),
    ("IForest", {"random_state": np.random.RandomState(1)}, "give an int, or nothing"),
    ("HalfSpaceTrees", {"trees": 3}, "it accepts: n_trees, height"),
    ("HalfSpaceTrees", {"scale_events": 1}, "too few"),
    ("HalfSpaceTrees", {"warm_up_events": 3}, "below scale_events = 250"),
    ("river.anomaly.LODA", {"cuts": 3}, "it accepts: n_bins, n_random_cuts, seed"),
])  # fmt: skip
def test_a_wrong_parameter_is_named_beside_the_right_ones(name, params, says):
    with pytest.raises(ConfigError, match=says):
        make_detector(name, **params)


def test_a_missing_extra_is_named(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        pyod_module.importlib.util,
        "find_spec",
        lambda name: None if name == "torch" else real(name),
    )
    with pytest.raises(DetectorError, match=r"needs torch.*pip install 'rejex-stream\[deep\]'"):
        make_detector("AE")


@pytest.mark.parametrize("name", [*(f"pyod:{n}" for n in PYOD), *(f"river:{n}" for n in RIVER)])
def test_a_recipe_is_immutable(name):
    if name == "pyod:AE" and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed (extra `deep`); `make test-deep` runs this")
    detector = make_detector(name)
    with pytest.raises(AttributeError):
        detector.name = "other"


def test_another_pyod_class_goes_by_its_dotted_name():
    detector = make_detector("pyod.models.pca.PCA", n_components=2)
    assert detector.name == "pyod:PCA"
    assert detector.params == (("n_components", 2),)


def test_an_object_of_pyod_becomes_a_recipe_of_what_was_set():
    detector = as_detector(KNN(n_neighbors=9))
    assert detector == make_detector("KNN", n_neighbors=9)
    assert as_detector(ECOD(n_jobs=1)).name == "pyod:ECOD"
    assert as_detector(PCA(n_components=2)).params == (("n_components", 2),)


def test_an_object_of_pyod_with_its_own_contamination_is_refused():
    with pytest.raises(ConfigError, match="one contamination"):
        as_detector(KNN(contamination=0.3))


def test_an_object_of_river_is_taken_as_it_is():
    detector = as_detector(anomaly.HalfSpaceTrees(n_trees=3, seed=1))
    assert detector.name == "river:HalfSpaceTrees"
    assert detector.scale == "none"
    assert detector.model.n_trees == 3


def test_a_pipeline_of_river_is_cloned():
    pipeline = preprocessing.StandardScaler() | anomaly.HalfSpaceTrees()
    detector = as_detector(pipeline)
    scorer = detector.start(["a"], seed=1)
    for i in range(300):
        scorer.learn_one(np.array([float(i)]))
    assert pipeline["HalfSpaceTrees"].counter == 0
    assert detector.model["HalfSpaceTrees"].counter == 0


@pytest.mark.parametrize("thing", [
    3, None, KNN, anomaly.HalfSpaceTrees, preprocessing.StandardScaler(),
    preprocessing.StandardScaler() | anomaly.GaussianScorer(),
])  # fmt: skip
def test_what_is_no_detector_is_refused(thing):
    with pytest.raises(DetectorError):
        as_detector(thing)


@pytest.fixture
def user_module(monkeypatch):
    source = """
import numpy as np
from river import anomaly, compose, preprocessing
from pyod.models.knn import KNN

def build(n_trees=5):
    return preprocessing.MinMaxScaler() | anomaly.HalfSpaceTrees(n_trees=n_trees)

MODEL = preprocessing.StandardScaler() | anomaly.OneClassSVM()

class Near(KNN):
    pass

class Distance:
    name = "mine:Distance"
    def __init__(self, power=2.0):
        self.power = power
    def fit(self, X, *, seed):
        return Fitted(X.mean(axis=0), self.power)

class Fitted:
    def __init__(self, centre, power):
        self.centre, self.power = centre, power
    def score(self, X):
        return (abs(X - self.centre) ** self.power).max(axis=1)
"""
    module = types.ModuleType("plant_models")
    exec(source, vars(module))
    monkeypatch.setitem(sys.modules, "plant_models", module)
    return module


def test_a_dotted_name_may_be_a_factory_an_object_or_a_class_of_the_user(user_module):
    built = make_detector("plant_models.build", n_trees=3, warm_up_events=400)
    assert built.model["HalfSpaceTrees"].n_trees == 3
    assert built.warm_up_events == 400
    assert make_detector("plant_models.MODEL").name == "river:plant_models.MODEL"
    assert make_detector("plant_models.Near", n_neighbors=4).name == "pyod:plant_models.Near"
    own = make_detector("plant_models.Distance", power=3.0)
    assert own.power == 3.0
    assert as_detector(own) is own


def test_parameters_for_an_object_are_refused(user_module):
    with pytest.raises(ConfigError, match="takes no parameters, got nu"):
        make_detector("plant_models.MODEL", nu=0.2)


def test_a_recipe_equals_another_with_the_same_parameters():
    assert make_detector("KNN", n_neighbors=3) == make_detector("knn", n_neighbors=3)
    assert pickle.loads(pickle.dumps(make_detector("GMM"))) == make_detector("GMM")


def test_asking_for_names_or_one_with_its_defaults_imports_neither_pyod_nor_river():
    code = (
        "import sys; import rejex_stream.detectors as d; list(d.PYOD), list(d.RIVER); "
        "d.make_detector('HBOS'), d.make_detector('KNN'); "
        "print([m for m in ('pyod', 'river', 'sklearn', 'torch') if m in sys.modules])"
    )
    done = ended([sys.executable, "-c", code])
    assert done.stdout.strip() == "[]"
