"""Which detectors there are, by name."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable
from typing import Any, Final

from rejex_stream.detectors.pyod import REFUSED, pyod_detector, refusal
from rejex_stream.errors import ConfigError, DetectorError
from rejex_stream.protocols import BatchDetector, IncrementalDetector

__all__ = ["PYOD", "RIVER", "Detector", "as_detector", "make_detector"]

Detector = BatchDetector | IncrementalDetector
Factory = Callable[..., Detector]


def _pyod(name: str, class_path: str) -> Factory:
    def factory(**params: Any) -> Detector:  # noqa: ANN401 - whatever the PyOD class takes
        return pyod_detector(f"pyod:{name}", class_path, **params)

    return factory


def _river(name: str) -> Factory:
    def factory(**params: Any) -> Detector:  # noqa: ANN401 - whatever the River class takes
        from rejex_stream.detectors import rivernamed  # River is imported when it is used

        return rivernamed.make(name, params)

    return factory


PYOD: Final[dict[str, Factory]] = {
    "AE": _pyod("AE", "pyod.models.auto_encoder.AutoEncoder"),
    "COPOD": _pyod("COPOD", "pyod.models.copod.COPOD"),
    "ECOD": _pyod("ECOD", "pyod.models.ecod.ECOD"),
    "GMM": _pyod("GMM", "pyod.models.gmm.GMM"),
    "HBOS": _pyod("HBOS", "pyod.models.hbos.HBOS"),
    "IForest": _pyod("IForest", "pyod.models.iforest.IForest"),
    "INNE": _pyod("INNE", "pyod.models.inne.INNE"),
    "KDE": _pyod("KDE", "pyod.models.kde.KDE"),
    "KNN": _pyod("KNN", "pyod.models.knn.KNN"),
    "LODA": _pyod("LODA", "pyod.models.loda.LODA"),
    "LOF": _pyod("LOF", "pyod.models.lof.LOF"),
    "OCSVM": _pyod("OCSVM", "pyod.models.ocsvm.OCSVM"),
}
"""PyOD's detectors, fitted on a table of rows: the twelve of the RejEx paper."""

RIVER: Final[dict[str, Factory]] = {
    "GaussianScorer": _river("GaussianScorer"),
    "HalfSpaceTrees": _river("HalfSpaceTrees"),
    "LODA": _river("LODA"),
    "LocalOutlierFactor": _river("LocalOutlierFactor"),
    "OneClassSVM": _river("OneClassSVM"),
    "PredictiveAnomalyDetection": _river("PredictiveAnomalyDetection"),
    "StandardAbsoluteDeviation": _river("StandardAbsoluteDeviation"),
}
"""River's detectors, which learn one row at a time."""


def make_detector(name: str, **params: Any) -> Detector:  # noqa: ANN401 - the detector's own
    """Make a detector from its name and parameters.

    Parameters
    ----------
    name
        A name from :data:`PYOD` or :data:`RIVER`, in any case; ``pyod:LODA`` or ``river:LODA``
        where both have it; or the dotted name of any other PyOD class, of a River class, of a
        function that returns a River model, or of a River model itself.
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
    found = _by_name(name)
    if len(found) == 1:
        return next(iter(found.values()))(**params)
    if len(found) > 1:
        raise DetectorError(f"{name!r} is both PyOD's and River's; say {' or '.join(found)}.")
    if "." in name:
        return _dotted(name, params)
    raise DetectorError(_unknown(name))


def as_detector(detector: object) -> Detector:
    """Make a detector of whatever stands for one.

    Parameters
    ----------
    detector
        A name for :func:`make_detector`; an object that meets
        :class:`~rejex_stream.protocols.BatchDetector` or
        :class:`~rejex_stream.protocols.IncrementalDetector`; a PyOD detector (its class and
        parameters count, not what it has learnt); a River anomaly detector or a pipeline that ends
        in one (cloned; taken as it is, without the scaling that registry names add).

    Examples
    --------
    >>> from pyod.models.knn import KNN
    >>> as_detector(KNN(n_neighbors=3)).params
    (('algorithm', 'kd_tree'), ('n_neighbors', 3))
    """
    if isinstance(detector, str):
        return make_detector(detector)
    if not inspect.isclass(detector):
        if isinstance(detector, BatchDetector | IncrementalDetector):
            return detector
        package = _package(type(detector))
        if package == "pyod":
            return _from_pyod(detector)
        if package == "river":
            return _from_river(detector, type(detector).__name__, {})
    raise DetectorError(
        f"{detector!r} is no detector; give a name, an object with fit(X, seed=...) or "
        f"start(names, seed=...), a PyOD detector, or a River anomaly detector (not its class)."
    )


def _by_name(name: str) -> dict[str, Factory]:
    wanted = name.casefold()
    return {
        full: factory
        for package, registry in (("pyod", PYOD), ("river", RIVER))
        for short, factory in registry.items()
        if wanted in (short.casefold(), (full := f"{package}:{short}").casefold())
    }


def _unknown(name: str) -> str:
    short = name.rpartition(":")[2]
    if (refused := {key.casefold(): key for key in REFUSED}.get(short.casefold())) is not None:
        return refusal(f"pyod:{refused}", REFUSED[refused])
    names = {
        key.casefold(): f"{package}:{key}"
        for package, registry in (("pyod", PYOD), ("river", RIVER))
        for key in registry
    }
    near = [names[key] for key in difflib.get_close_matches(short.casefold(), names, 3, 0.5)]
    nearest = (
        f"the nearest are {', '.join(near)}"
        if near
        else (f"there are {', '.join([*PYOD, *RIVER])}")
    )
    return (
        f"There is no detector {name!r}; {nearest}. Any other PyOD or River class goes by its "
        f"dotted name, e.g. pyod.models.pca.PCA."
    )


def _dotted(path: str, params: dict[str, Any]) -> Detector:
    path = path.removeprefix("pyod:").removeprefix("river:")
    class_name = path.rpartition(".")[2]
    if path.startswith("pyod."):
        named = {"AutoEncoder": "AE"}.get(class_name, class_name)
        return pyod_detector(f"pyod:{named}", path, **params)
    found = _import(path)
    if inspect.isclass(found) and _package(found) == "pyod":
        return pyod_detector(f"pyod:{path}", path, **params)
    options = {key: params.pop(key) for key in _RIVER_OPTIONS & params.keys()}
    if callable(found):
        _check_call(path, found, params)
        try:
            found = found(**params)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path} refuses its parameters {params!r}: {error}") from error
    elif params:
        raise ConfigError(
            f"{path} is an object, so it takes no parameters, got {', '.join(params)}."
        )
    if isinstance(found, BatchDetector | IncrementalDetector):
        return found
    return _from_river(found, path.removeprefix("river.anomaly."), options)


_RIVER_OPTIONS: Final = {"scale", "scale_events", "warm_up_events", "sign", "trusted_modules"}


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


def _check_call(path: str, function: Callable[..., Any], params: dict[str, Any]) -> None:
    accepted = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values()):
        return
    for key in params:
        if key not in accepted:
            known = ", ".join(accepted) or "none"
            raise ConfigError(f"{path} has no parameter {key!r}; it accepts: {known}.")


def _package(cls: type) -> str:
    """Tell whether a class descends from PyOD's or River's, without importing either."""
    roots = {base.__module__.partition(".")[0] for base in cls.__mro__}
    return next((package for package in ("pyod", "river") if package in roots), "")


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
