"""Which detectors there are, by name."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from rejex_stream.detectors.pyod import FITTERS, REFUSED, check_names, pyod_detector, refusal
from rejex_stream.errors import ConfigError, DetectorError
from rejex_stream.protocols import BatchDetector, IncrementalDetector, IncrementalScorer, Scorer
from rejex_stream.types import FloatArray

Detector = BatchDetector | IncrementalDetector
Factory = Callable[..., Detector]


def _of_path(path: str, /, **params: Any) -> Detector:  # noqa: ANN401 - whatever the class takes
    name = path.rpartition(".")[2].replace("AutoEncoder", "AE")
    return pyod_detector(f"pyod:{name}", path, **params)


def _river(name: str, /, **params: Any) -> Detector:  # noqa: ANN401 - whatever River's class takes
    from rejex_stream.detectors.river import named_detector  # imported when it is used

    return named_detector(name, params)


PYOD: Final[dict[str, Factory]] = {
    path.rpartition(".")[2].replace("AutoEncoder", "AE"): partial(_of_path, path)
    for path in FITTERS
}
"""PyOD's detectors, fitted on a table of rows: the twelve of the RejEx paper."""

RIVER: Final[dict[str, Factory]] = {
    name: partial(_river, name)
    for name in (
        "GaussianScorer", "HalfSpaceTrees", "LODA", "LocalOutlierFactor", "OneClassSVM",
        "PredictiveAnomalyDetection", "StandardAbsoluteDeviation",
    )
}  # fmt: skip
"""River's detectors, which learn one row at a time."""


def _sensor(word: str, made_by: str, fixed: Mapping[str, Any], /, **params: Any) -> Detector:  # noqa: ANN401
    from rejex_stream.detectors import sensor  # scikit-learn is imported when it is used

    make = getattr(sensor, made_by)
    known = [key for key in inspect.signature(make).parameters if key not in _NOT_GIVEN]
    check_names(f"rejex:{word}", params, known)
    if "members" in params:
        params["members"] = tuple(map(as_detector, params["members"]))
    made: Detector = make(**fixed, **params)
    return made


_NOT_GIVEN: Final = {"name", "preset", "layout"}

SENSOR: Final[dict[str, Factory]] = {
    word: partial(_sensor, word, made_by, fixed)
    for word, made_by, fixed in (
        ("Ensemble", "ensemble", {}),
        ("Mahalanobis", "Mahalanobis", {}),
        ("Sensor", "Mahalanobis", {"name": "rejex:Sensor", "preset": "sensor"}),
        ("SeasonalSensor", "seasonal_sensor", {}),
        ("SensorEnsemble", "sensor_ensemble", {}),
        ("StateSensor", "state_sensor", {}),
        ("States", "States", {}),
        ("Subsequence", "Subsequence", {}),
        ("VARResidual", "VARResidual", {}),
    )
}
"""Detectors for sensors, fitted on rows that know what happened a moment ago."""

DEFAULT: Final = "Sensor"
"""What scores where nothing else is said."""

_REGISTRIES: Final = (("pyod", PYOD), ("river", RIVER), ("rejex", SENSOR))


def make_detector(name: str, **params: Any) -> Detector:  # noqa: ANN401 - the detector's own
    """Make a detector from its name and parameters.

    Parameters
    ----------
    name
        A name from :data:`SENSOR`, :data:`PYOD` or :data:`RIVER`, in any case; ``pyod:LODA`` or
        ``river:LODA`` where both have it; or the dotted name of any other PyOD class, of a River
        class, of a function that returns a River model, or of a River model itself.
    params
        Parameters of that class or function, and the recipe's own: ``scale`` (both kinds),
        ``scale_events`` and ``warm_up_events`` (River).

    Raises
    ------
    DetectorError
        The name is unknown, ambiguous or refused, or needs an extra that is not installed.
    ConfigError
        A parameter is unknown, or its value cannot work.

    Examples
    --------
    >>> make_detector("knn", n_neighbors=10).name
    'pyod:KNN'
    >>> make_detector("HalfSpaceTrees", n_trees=25).warm_up_events
    250
    >>> make_detector("LODA")
    Traceback (most recent call last):
    ...
    rejex_stream.errors.DetectorError: 'LODA' is both PyOD's and River's; say pyod:LODA or ...
    """
    factories = _by_name(name)
    if len(factories) == 1:
        return next(iter(factories.values()))(**params)
    if len(factories) > 1:
        raise DetectorError(f"{name!r} is both PyOD's and River's; say {' or '.join(factories)}.")
    if "." in name:
        return _dotted(name, params)
    raise DetectorError(_unknown(name))


def as_detector(detector: object, params: Mapping[str, Any] | None = None) -> Detector:
    """Make a detector of whatever stands for one.

    Parameters
    ----------
    detector
        A name for :func:`make_detector`; an object that meets
        :class:`~rejex_stream.protocols.BatchDetector` or
        :class:`~rejex_stream.protocols.IncrementalDetector` (one without a `name` goes by that of
        its class); a PyOD or scikit-learn detector, or a scikit-learn pipeline that ends in one
        (class and parameters count, not what it has learnt); a River anomaly detector or a pipeline
        that ends in one (cloned; taken as it is, without the scaling that registry names add).
    params
        Parameters of a detector that is given by name.

    Examples
    --------
    >>> from pyod.models.knn import KNN
    >>> as_detector(KNN(n_neighbors=3)).params
    (('algorithm', 'kd_tree'), ('n_neighbors', 3))
    >>> as_detector("KNN", {"n_neighbors": 3}) == as_detector(KNN(n_neighbors=3))
    True
    """
    if isinstance(detector, str):
        return make_detector(detector, **(params or {}))
    if params:
        raise ConfigError(
            f"params = {dict(params)!r} go with a detector that is given by name; give "
            f"{type(detector).__name__} its parameters when you make it."
        )
    if not inspect.isclass(detector):
        if isinstance(detector, BatchDetector | IncrementalDetector):
            return detector
        made = _of_library(detector, type(detector).__name__, {})
        if made is not None:
            return made
        if hasattr(detector, "start"):
            if lacks := [n for n in ("restore", "warm_up_events") if not hasattr(detector, n)]:
                raise DetectorError(
                    f"{type(detector).__name__} has start() and lacks {' and '.join(lacks)}: see "
                    f"rejex_stream.protocols.IncrementalDetector for what a detector that learns "
                    f"one row at a time has to have."
                )
            return _Incremental(detector)
        if callable(getattr(detector, "fit", None)):
            return _Batch(detector)
    raise DetectorError(
        f"{detector!r} is no detector; give a name, a PyOD or scikit-learn detector, a River "
        f"anomaly detector (not its class), or an object of your own: with fit(X, seed=...), or "
        f"with start(names, seed=...), restore(names, state) and warm_up_events."
    )


@dataclass(frozen=True, slots=True)
class _Own:
    """A user's detector without a name: it goes by that of its class."""

    detector: Any

    @property
    def name(self) -> str:
        return f"own:{type(self.detector).__qualname__}"


class _Batch(_Own):
    __slots__ = ()

    def fit(self, X: FloatArray, *, seed: int) -> Scorer:
        scorer: Scorer = self.detector.fit(X, seed=seed)
        return scorer


class _Incremental(_Own):
    __slots__ = ()

    @property
    def warm_up_events(self) -> int:
        return int(self.detector.warm_up_events)

    def start(self, feature_names: Sequence[str], *, seed: int) -> IncrementalScorer:
        scorer: IncrementalScorer = self.detector.start(feature_names, seed=seed)
        return scorer

    def restore(self, feature_names: Sequence[str], state: bytes) -> IncrementalScorer:
        scorer: IncrementalScorer = self.detector.restore(feature_names, state)
        return scorer


def _by_name(name: str) -> dict[str, Factory]:
    wanted = name.casefold()
    return {
        full: factory
        for package, registry in _REGISTRIES
        for short, factory in registry.items()
        if wanted in (short.casefold(), (full := f"{package}:{short}").casefold())
    }


def _unknown(name: str) -> str:
    short = name.rpartition(":")[2]
    if (refused := {key.casefold(): key for key in REFUSED}.get(short.casefold())) is not None:
        return refusal(f"pyod:{refused}", REFUSED[refused])
    names = {
        key.casefold(): f"{package}:{key}" for package, registry in _REGISTRIES for key in registry
    }
    near = [names[key] for key in difflib.get_close_matches(short.casefold(), names, 3, 0.5)]
    nearest = (
        f"the nearest are {', '.join(near)}"
        if near
        else (f"there are {', '.join([*SENSOR, *PYOD, *RIVER])}")
    )
    return (
        f"There is no detector {name!r}; {nearest}. Any other PyOD or River class goes by its "
        f"dotted name, e.g. pyod.models.pca.PCA."
    )


def _dotted(path: str, params: dict[str, Any]) -> Detector:
    path = path.removeprefix("pyod:").removeprefix("river:")
    if path.startswith("pyod."):
        return _of_path(path, **params)
    imported = _import(path)
    if inspect.isclass(imported) and _package(imported) == "pyod":
        return pyod_detector(f"pyod:{path}", path, **params)
    options = {key: params.pop(key) for key in _RIVER_OPTIONS & params.keys()}
    if callable(imported):
        accepted = inspect.signature(imported).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values()):
            check_names(path, params, accepted)
        try:
            imported = imported(**params)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path} refuses its parameters {params!r}: {error}") from error
    elif params:
        raise ConfigError(
            f"{path} is an object, so it takes no parameters, got {', '.join(params)}."
        )
    if isinstance(imported, BatchDetector | IncrementalDetector):
        return imported
    name = path.removeprefix("river.anomaly.")
    made = _of_library(imported, name, options)
    return _from_river(imported, name, options) if made is None else made


_RIVER_OPTIONS: Final = {"scale", "scale_events", "warm_up_events", "sign"}


def _import(path: str) -> Any:  # noqa: ANN401
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the user's module may fail in any way
        raise DetectorError(
            f"{path!r} cannot be imported: {error}. Is its folder on the Python path?"
        ) from error
    try:
        return getattr(module, name)
    except AttributeError:
        near = difflib.get_close_matches(name, dir(module), 3)
        hint = f"; did you mean {', '.join(near)}?" if near else "."
        raise DetectorError(f"The module {module_name} has no {name!r}{hint}") from None


def _package(cls: type) -> str:
    """Tell whether a class descends from one of a library's, without importing any."""
    roots = {base.__module__.partition(".")[0] for base in cls.__mro__}
    return next((package for package in ("pyod", "river", "sklearn") if package in roots), "")


def _of_library(model: Any, name: str, options: dict[str, Any]) -> Detector | None:  # noqa: ANN401
    package = _package(type(model))
    if package == "pyod":
        return _from_pyod(model)
    if package == "river":
        return _from_river(model, name, options)
    if package == "sklearn":
        from rejex_stream.detectors.scikit import scikit_detector

        return scikit_detector(model, **options)
    return None


def _from_pyod(model: Any) -> Detector:  # noqa: ANN401
    cls = type(model)
    defaults = inspect.signature(cls).parameters
    params = {
        key: value
        for key, value in model.get_params(deep=False).items()
        if value is not defaults[key].default and value != defaults[key].default
    }
    return _dotted(f"{cls.__module__}.{cls.__qualname__}", params)


def _from_river(model: Any, name: str, options: dict[str, Any]) -> Detector:  # noqa: ANN401
    from rejex_stream.detectors.river import river_detector

    return river_detector(f"river:{name}", model, **options)
