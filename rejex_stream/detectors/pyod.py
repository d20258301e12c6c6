"""PyOD detectors as recipes that fit, and scorers whose verdicts no batch can change.

PyOD's detectors draw from numpy's global generator, set ``PYTHONHASHSEED``, warn about what the
user cannot change, and sum in an order that depends on the number of threads. All of that is
process-wide, so fits are contained, and those of one process run one after another; for fits side
by side use processes.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import random
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np

from rejex_stream.detectors import scorers
from rejex_stream.detectors.rowwise import fit_apart, fit_row_by_row
from rejex_stream.detectors.scaling import check_scale, measure_scale
from rejex_stream.detectors.table import TableScorer, training_table
from rejex_stream.errors import ConfigError, DetectorError
from rejex_stream.protocols import Scorer
from rejex_stream.threads import one_thread
from rejex_stream.types import FloatArray

Fitter = Callable[[Callable[[], Any], FloatArray], Scorer]

FITTERS: Final[dict[str, Fitter]] = {
    "pyod.models.auto_encoder.AutoEncoder": scorers.fit_autoencoder,
    "pyod.models.copod.COPOD": partial(scorers.fit_tails, joint=True),
    "pyod.models.ecod.ECOD": partial(scorers.fit_tails, joint=False),
    "pyod.models.gmm.GMM": scorers.fit_gmm,
    "pyod.models.hbos.HBOS": scorers.fit_hbos,
    "pyod.models.iforest.IForest": scorers.fit_iforest,
    "pyod.models.inne.INNE": scorers.fit_inne,
    "pyod.models.kde.KDE": fit_apart,
    "pyod.models.knn.KNN": scorers.fit_knn,
    "pyod.models.loda.LODA": fit_row_by_row,
    "pyod.models.lof.LOF": fit_row_by_row,
    "pyod.models.ocsvm.OCSVM": fit_apart,
}
"""How each of the paper's twelve is fitted; every other class is scored by PyOD, row by row."""

WITHOUT_PARAMETERS: Final = frozenset({"pyod.models.copod.COPOD", "pyod.models.ecod.ECOD"})
"""Whose only PyOD parameter is a thread count that their scorer here does not need."""

NEED_TORCH: Final = frozenset({"pyod.models.auto_encoder.AutoEncoder"})
DEEP_MODULES: Final = frozenset({"torch", "tqdm"})

BETTER_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    # Left to itself PyOD picks brute force at 16 columns, whose last bits depend on the batch.
    "pyod.models.knn.KNN": {"algorithm": "kd_tree"},
    "pyod.models.lof.LOF": {"algorithm": "kd_tree"},
}

_BATCH = "its score of a row depends on the batch it comes in, so cutting batches changes verdicts"
_SINGLE = "it cannot score a single row"

REFUSED: Final[dict[str, str]] = {
    "CD": _SINGLE, "COF": _SINGLE, "LMDD": _BATCH, "ROD": _BATCH, "SOD": _SINGLE, "SOS": _SINGLE,
}  # fmt: skip
"""PyOD classes that cannot work on a stream, with the reason."""


@dataclass(frozen=True, slots=True)
class PyODDetector:
    """A recipe: which PyOD class, with which parameters, on which scale."""

    name: str  # E.g. ``pyod:KNN``
    class_path: str  # dotted name of the PyOD class
    params: tuple[tuple[str, Any], ...] = ()  # its parameters, as sorted (name, value) pairs
    # ``none`` (as PyOD), ``standard`` or ``robust``: columns are put on one scale, measured on the
    # training rows. Distances mean little when one column is in kW and one in mm/s
    scale: str = "none"

    def fit(self, X: FloatArray, *, seed: int) -> TableScorer:
        """Fit on finite rows X of shape (n, d); equal X and seed give equal scores."""
        X = training_table(self.name, X)
        scale = measure_scale(self.scale, X)
        scaled = X if scale is None else scale.apply(X)
        seed %= 2**32
        fitter = FITTERS.get(self.class_path, fit_row_by_row)
        try:
            if self.class_path not in WITHOUT_PARAMETERS:
                _load(self.class_path)  # before the lock: importing takes seconds
            # Containing takes longer than the fit of what neither draws nor calculates in parallel.
            with np.errstate(all="ignore") if fitter is scorers.fit_hbos else contained(seed):
                inner = fitter(lambda: self._make(seed), scaled)
        except DetectorError:
            raise
        except Exception as error:
            raise DetectorError(_why(self.name, error, X)) from error
        training = np.asarray(inner.training_scores, dtype=np.float64)  # type: ignore[attr-defined]
        return TableScorer(self.name, X.shape[1], scale, inner, training)

    def _make(self, seed: int) -> Any:  # noqa: ANN401 - PyOD is untyped
        accepted, params = _parameters(self.class_path), dict(self.params)
        if "random_state" in accepted and params.get("random_state") is None:
            params["random_state"] = seed
        if "verbose" in accepted and accepted["verbose"].default:
            params.setdefault("verbose", 0)
        return _load(self.class_path)(**params)


def pyod_detector(
    name: str,
    class_path: str,
    /,
    scale: str = "none",
    **params: Any,  # noqa: ANN401 - whatever the PyOD class takes
) -> PyODDetector:
    """Make a recipe and check its parameters.

    Raises
    ------
    ConfigError
        A parameter is unknown, or its value cannot work.
    DetectorError
        The class is refused, missing, or needs an extra that is not installed.

    Examples
    --------
    >>> pyod_detector("pyod:KNN", "pyod.models.knn.KNN", n_neighbors=10).params
    (('algorithm', 'kd_tree'), ('n_neighbors', 10))
    """
    if (reason := REFUSED.get(class_path.rpartition(".")[2])) is not None:
        raise DetectorError(refusal(name, reason))
    check_scale(scale)
    if "contamination" in params:
        raise ConfigError(
            f"contamination = {params['contamination']!r} is not a parameter of {name} here: "
            f"the pipeline has one contamination for threshold and rejection; set it there."
        )
    return PyODDetector(name, class_path, _checked(name, class_path, params), scale)


def refusal(name: str, reason: str) -> str:
    """Say why a detector is refused, and what to take instead."""
    return f"{name} is refused: {reason}. KNN, ECOD and IForest have no such limit."


def _checked(name: str, class_path: str, params: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    if not params and class_path in FITTERS.keys() - NEED_TORCH:
        # Nothing to check, so PyOD is loaded where it fits: over a second of a worker's start.
        return tuple(sorted(BETTER_DEFAULTS.get(class_path, {}).items()))
    accepted: set[str] = set()
    if class_path not in WITHOUT_PARAMETERS:
        accepted = {*_parameters(class_path)} - {"contamination"}
    check_names(name, params, sorted(accepted | {"scale"}))
    for key, value in params.items():
        check_constant(name, key, value)
    if params.get("metric", "minkowski") in ("minkowski", "euclidean", "l2", "manhattan", "l1"):
        params = BETTER_DEFAULTS.get(class_path, {}) | params
    recipe = PyODDetector(name, class_path, tuple(sorted(params.items())))
    if class_path not in WITHOUT_PARAMETERS:
        try:
            with contained(0):
                recipe._make(0)
        except Exception as error:
            raise ConfigError(f"{name} refuses its parameters {params!r}: {error}") from error
    return recipe.params


def check_names(name: str, params: Iterable[str], known: Collection[str]) -> None:
    """Raise a :class:`ConfigError` for the first parameter that is none of those known."""
    for key in params:
        if key not in known:
            listed = ", ".join(known) or "none"
            raise ConfigError(f"{name} has no parameter {key!r}; it accepts: {listed}.")


def check_constant(name: str, key: str, value: object) -> None:
    """Raise a :class:`ConfigError` where a parameter is a generator of random numbers."""
    if isinstance(value, np.random.RandomState | np.random.Generator):
        raise ConfigError(
            f"{key} of {name} is a {type(value).__name__}, which changes as it is used; "
            f"give an int, or nothing: each fit is seeded."
        )


@lru_cache(maxsize=64)
def _parameters(class_path: str) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(_load(class_path)).parameters


def _load(class_path: str) -> Any:  # noqa: ANN401 - PyOD is untyped
    module_name, _, class_name = class_path.rpartition(".")
    needs_torch = class_path in NEED_TORCH and importlib.util.find_spec("torch") is None
    try:
        if needs_torch:  # asked first, for PyOD prints a line of its own
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return getattr(importlib.import_module(module_name), class_name)
    except (ImportError, NameError) as error:
        if getattr(error, "name", None) in DEEP_MODULES:
            raise DetectorError(
                f"{class_path} needs {error.name}, which is not installed; "
                f"install the extra: pip install 'rejex-stream[deep]'."
            ) from error
        raise DetectorError(f"{class_path} cannot be imported: {error}.") from error
    except AttributeError as error:
        raise DetectorError(f"{module_name} has no class {class_name!r}.") from error


def _why(name: str, error: Exception, X: FloatArray) -> str:
    n, d = X.shape
    constant = np.flatnonzero(np.ptp(X, axis=0) == 0).tolist()
    also = f" Columns {constant} never change." if constant else ""
    cause = str(error).rstrip(".") or type(error).__name__
    return f"{name} could not be fitted on {n} rows of {d} columns: {cause}.{also}"


# ------------------------------------------------------------------------ containment
_CHATTY = r"(pyod|sklearn|scipy|numba|torch)(\.|$)"
_lock = threading.RLock()


def _fresh_lock() -> None:
    # A forked child would inherit a lock that the parent's fit thread holds, for ever.
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fresh_lock)


@contextmanager
def contained(seed: int) -> Iterator[None]:
    """Seed every global generator, use one thread, keep quiet; put all back on the way out."""
    torch = sys.modules.get("torch")
    with _lock, warnings.catch_warnings(), np.errstate(all="ignore"), one_thread():
        warnings.filterwarnings("ignore", module=_CHATTY)
        numpy_state = np.random.get_state()  # noqa: NPY002 - PyOD draws from the global one
        python_state = random.getstate()
        hash_seed = os.environ.get("PYTHONHASHSEED")
        torch_state = None if torch is None else _seed_torch(torch, seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)
            if torch is not None and torch_state is not None:
                torch.random.set_rng_state(torch_state[0])
                torch.set_num_threads(torch_state[1])
            if hash_seed is None:
                os.environ.pop("PYTHONHASHSEED", None)
            else:
                os.environ["PYTHONHASHSEED"] = hash_seed


def _seed_torch(torch: Any, seed: int) -> tuple[Any, int]:  # noqa: ANN401 - the torch module
    state = torch.random.get_rng_state(), torch.get_num_threads()
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    return state
