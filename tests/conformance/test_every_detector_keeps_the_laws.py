"""Every registry entry, law by law; ids read ``pyod:KNN:check_batch_invariance``."""

import importlib.util

import pytest

from rejex_stream.checks import yield_checks
from rejex_stream.detectors import PYOD, RIVER, SENSOR, make_detector

HAS_TORCH = importlib.util.find_spec("torch") is not None
NEEDS_TORCH = [
    pytest.mark.deep,
    pytest.mark.skipif(
        not HAS_TORCH, reason="PyTorch is not installed (extra `deep`); `make test-deep` runs this"
    ),
]
# Fewer of the same: the laws are about the kind, and 200 ensembles take seconds to draw.
SMALLER = {
    "pyod:INNE": {"n_estimators": 40},
    "pyod:IForest": {"n_estimators": 40},
    "rejex:Ensemble": {"members": ["Sensor", "KNN"]},
}
BATCH_LAWS = [check.__name__ for check in yield_checks(make_detector("ECOD"))]
INCREMENTAL_LAWS = [check.__name__ for check in yield_checks(make_detector("HalfSpaceTrees"))]

QUICK = {"HBOS", "HalfSpaceTrees", "SensorEnsemble"}


def every_law():
    for package, registry, laws in (
        ("pyod", PYOD, BATCH_LAWS),
        ("river", RIVER, INCREMENTAL_LAWS),
        ("rejex", SENSOR, BATCH_LAWS),
    ):
        for name in registry:
            needs = NEEDS_TORCH if name == "AE" else []
            for law in laws:
                full = f"{package}:{name}"
                # One of a kind will do for `make test`; `make test-all` takes every entry.
                marks = needs if name in QUICK else [*needs, pytest.mark.long]
                yield pytest.param(full, law, id=f"{full}:{law}", marks=marks)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "law"), list(every_law()))
def test_law(name, law):
    detector = make_detector(name, **SMALLER.get(name, {}))
    (check,) = [check for check in yield_checks(detector) if check.__name__ == law]
    check(detector)
