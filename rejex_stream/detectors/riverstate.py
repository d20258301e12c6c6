"""The state of a River model as bytes, read back without handing the reader to the writer.

A plain pickle can run anything when it is read. Here a blob may name only what a River model is
made of: classes defined in River's model modules, numpy arrays, a short list of containers and
functions, and classes of modules the recipe names. Nothing else can be looked up, no dotted name
is followed, and no method is bound but the few that River's own models keep. Who can write a
snapshot can still make a model wrong; what he cannot do is run code.

Layout: magic, format version, SHA-256 of the rest; raw length, River version, zlib-packed pickle.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import pickle
import struct
import sys
import zlib
from collections.abc import Collection
from importlib.metadata import version
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final, NoReturn

from rejex_stream.errors import CheckpointError, DetectorError

__all__ = ["decode", "encode"]

MAGIC: Final = b"RJXR"
FORMAT_VERSION: Final = 1
_HEAD = struct.Struct(">4sH32s")
_BODY = struct.Struct(">Q16s")
_MAX_BYTES = 1 << 30

MODEL_PACKAGES: Final = frozenset(
    {
        *("anomaly", "base", "cluster", "compose", "covariance", "drift", "ensemble"),
        *("facto", "feature_extraction", "feature_selection", "forest", "imblearn"),
        *("linear_model", "metrics", "misc", "model_selection", "multiclass", "multioutput"),
        *("naive_bayes", "neighbors", "optim", "preprocessing", "proba", "reco", "rules"),
        *("sketch", "stats", "time_series", "tree", "utils", "_river_rust"),
    }
)
"""River's packages whose classes may be named; never its data sets, streams or wrappers."""

CLASSES: Final = frozenset(
    {
        *(("builtins", name) for name in ("bool", "bytearray", "complex", "dict", "float")),
        *(("builtins", name) for name in ("frozenset", "int", "list", "object", "range", "set")),
        *(("builtins", name) for name in ("slice", "str", "tuple")),
        *(("collections", name) for name in ("Counter", "OrderedDict", "defaultdict", "deque")),
        *(("datetime", name) for name in ("date", "datetime", "time", "timedelta", "timezone")),
        ("functools", "partial"),
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("numpy.random._mt19937", "MT19937"),
        ("numpy.random._pcg64", "PCG64"),
        ("random", "Random"),
        ("rejex_stream.detectors.fourier", "FourierFeatures"),
        ("statistics", "NormalDist"),
    }
)

FUNCTIONS: Final = frozenset(
    {
        ("copyreg", "_reconstructor"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy._core.numeric", "_frombuffer"),
        ("numpy.random._pickle", "__bit_generator_ctor"),
        ("numpy.random._pickle", "__generator_ctor"),
        ("numpy.random._pickle", "__randomstate_ctor"),
        ("river._river_rust.vectordict", "euclidean_distance_dict"),
        ("river._river_rust.vectordict", "euclidean_distance_tuple"),
        ("river.utils.math", "minkowski_distance"),
    }
)

BOUND_METHODS: Final = frozenset(
    {
        ("river.drift.page_hinkley.PageHinkley", "_test_both"),
        ("river.drift.page_hinkley.PageHinkley", "_test_decrease"),
        ("river.drift.page_hinkley.PageHinkley", "_test_increase"),
        ("river.feature_extraction.kernel_approx.RBFSampler", "_random_weights"),
    }
)
"""Methods that River's models keep a reference to; (class, method)."""


def encode(model: Any, *, trusted_modules: Collection[str] = ()) -> bytes:  # noqa: ANN401
    """Write a River model, or a structure of models, as bytes; O(size of the model).

    Parameters
    ----------
    model
        What to write.
    trusted_modules
        Modules of the user whose classes and functions may be part of it, e.g. ``("mymodels",)``.

    Raises
    ------
    DetectorError
        The model holds something that :func:`decode` would refuse.

    Examples
    --------
    >>> from river import stats
    >>> mean = stats.Mean()
    >>> mean.update(3.0)
    >>> decode(encode(mean)).get()
    3.0
    """
    buffer = io.BytesIO()
    try:
        _Writer(buffer, frozenset(trusted_modules)).dump(model)
    except DetectorError:
        raise
    except Exception as error:
        raise DetectorError(
            f"The state of this model cannot be written: {error}. Use named functions and classes "
            f"of a module, no lambdas, and nothing that holds a file or a lock."
        ) from error
    raw = buffer.getvalue()
    body = _BODY.pack(len(raw), _river_version()) + zlib.compress(raw, level=1)
    return _HEAD.pack(MAGIC, FORMAT_VERSION, hashlib.sha256(body).digest()) + body


def decode(blob: bytes, *, trusted_modules: Collection[str] = ()) -> Any:  # noqa: ANN401
    """Read what :func:`encode` wrote.

    Raises
    ------
    CheckpointError
        The bytes are foreign, damaged, of another version, or name something not allowed.

    Examples
    --------
    >>> decode(b"what is this")
    Traceback (most recent call last):
    ...
    rejex_stream.errors.CheckpointError: This is not the state of a River model (12 bytes that ...
    """
    if len(blob) < _HEAD.size + _BODY.size or blob[:4] != MAGIC:
        raise CheckpointError(
            f"This is not the state of a River model ({len(blob)} bytes that do not begin with "
            f"{MAGIC!r}); start without it, or from an older snapshot."
        )
    _, format_version, digest = _HEAD.unpack_from(blob)
    if format_version != FORMAT_VERSION:
        raise CheckpointError(
            f"The state has format version {format_version}, this program reads {FORMAT_VERSION}; "
            f"use the version of rejex-stream that wrote it."
        )
    body = blob[_HEAD.size :]
    if hashlib.sha256(body).digest() != digest:
        raise CheckpointError("The state of the model is damaged: its checksum does not match.")
    length, river_version = _BODY.unpack_from(body)
    if river_version != _river_version():
        raise CheckpointError(
            f"The state was written with River {_text(river_version)}, installed is "
            f"{_text(_river_version())}; install the former, or start without the state."
        )
    try:
        raw = _unpacked(body[_BODY.size :], length)
        return _Reader(io.BytesIO(raw), frozenset(trusted_modules)).load()
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"The state of the model cannot be read: {error!r}.") from error


def _unpacked(packed: bytes, length: int) -> bytes:
    stream = zlib.decompressobj()
    raw = stream.decompress(packed, min(length, _MAX_BYTES) + 1)
    if len(raw) != length or not stream.eof:
        raise CheckpointError(
            f"The state claims {length} bytes and holds another number, or more than {_MAX_BYTES}."
        )
    return raw


def _river_version() -> bytes:
    """Major and minor: River promises nothing about its attributes across minors."""
    return ".".join(version("river").split(".")[:2]).encode().ljust(16, b"\0")


def _text(version: bytes) -> str:
    return version.rstrip(b"\0").decode("ascii", "replace")


# ---------------------------------------------------------------------------- who may be named
def _is_allowed(module: str, name: str, trusted: frozenset[str]) -> bool:
    if "." in name or "<" in name:
        return False
    if (module, name) in CLASSES or (module, name) in FUNCTIONS or module in trusted:
        return True
    root, _, rest = module.partition(".")
    return root == "river" and rest.partition(".")[0] in MODEL_PACKAGES


def _look_up(module: str, name: str, trusted: frozenset[str]) -> Any:  # noqa: ANN401
    """Find a global that is really defined where it is said to be, or refuse."""
    if not _is_allowed(module, name, trusted):
        _refuse(module, name)
    importlib.import_module(module)
    found: Any = vars(sys.modules[module]).get(name)
    if (module, name) in CLASSES or (module, name) in FUNCTIONS:
        return found
    # A module's namespace also holds what it imports: only what it defines itself counts.
    kinds: tuple[type, ...] = (type,) if module not in trusted else (type, FunctionType)
    if (
        not issubclass(type(found), kinds)
        or found.__module__ != module
        or found.__qualname__ != name
    ):
        _refuse(module, name)
    return found


def _refuse(module: str, name: str) -> NoReturn:
    raise CheckpointError(
        f"The state names {module}.{name}, which is no part of a River model; it was not written "
        f"by this program, or the model needs trusted_modules = ({module!r},)."
    )


def _bound_method(owner: Any, name: str) -> Any:  # noqa: ANN401 - stands in for getattr
    kind = type(owner)
    if (f"{kind.__module__}.{kind.__qualname__}", name) not in BOUND_METHODS:
        raise CheckpointError(f"The state binds {kind.__qualname__}.{name}, which is not allowed.")
    return getattr(owner, name)


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, trusted: frozenset[str]) -> None:
        super().__init__(file)
        self._trusted = trusted

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401
        if (module, name) == ("builtins", "getattr"):
            return _bound_method
        return _look_up(module, name, self._trusted)


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, trusted: frozenset[str]) -> None:
        super().__init__(file, protocol=5)
        self._trusted = trusted

    def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401
        """Refuse at once what the reader would refuse later."""
        if isinstance(obj, type | FunctionType | BuiltinFunctionType) and obj is not getattr:
            module, name = str(obj.__module__), str(getattr(obj, "__qualname__", "?"))
            try:
                _look_up(module, name, self._trusted)
            except CheckpointError:
                raise DetectorError(
                    f"The model holds {module}.{name}, which a snapshot may not name; "
                    f"give trusted_modules = ({module!r},) if it is yours."
                ) from None
        return NotImplemented
