"""What the state of a River model is made of: plain values, sealed as bytes.

A model is walked object by object and written as numbers, text, lists and raw arrays; what two
objects share stays shared (`writing.py`). Reading makes empty objects of classes that River's
model packages, or the user's trusted modules, define, and sets attributes (`reading.py`): nothing
that the bytes name is called. What may stand where is known before: the recipe feeds a fresh
copy of the model and notes the kind of every attribute and element (`Kinds`); a state holds
another kind only where its writer has declared it, and never another function.
Who can write a snapshot can still give a model wrong numbers; he cannot run code, and cannot end
the process.

Layout: magic, format version, SHA-256 of the rest; raw length, River version, zlib-packed
MessagePack.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import math
import struct
import sys
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import version
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from rejex_stream.errors import WAY_OUT, CheckpointError, DetectorError

__all__ = [
    "DICTS",
    "RUST",
    "SCALARS",
    "Kinds",
    "class_of",
    "found_in",
    "has_own_state",
    "key_of",
    "kind_of",
    "paths_within",
    "read_array",
    "seal",
    "slots_of",
    "unseal",
    "write_array",
]

Kinds = Mapping[str, Collection[str]]
"""Where (``Mean.n``, ``LODA.features_[]``, with the module) what kinds of value have been seen."""

MAGIC: Final = b"RJXR"
FORMAT_VERSION: Final = 2
_HEAD = struct.Struct(">4sH32s")
_BODY = struct.Struct(">Q16s")
_MAX_BYTES: Final = 1 << 28

MODEL_PACKAGES: Final = frozenset(
    {
        *("anomaly", "base", "cluster", "compose", "covariance", "drift", "ensemble"),
        *("facto", "feature_extraction", "feature_selection", "forest", "imblearn"),
        *("linear_model", "metrics", "misc", "model_selection", "multiclass", "multioutput"),
        *("naive_bayes", "neighbors", "optim", "preprocessing", "proba", "reco", "rules"),
        *("sketch", "stats", "time_series", "tree", "utils"),
    }
)
"""River's packages whose classes may be made; never its data sets, streams or wrappers."""

OWN: Final = "rejex_stream.detectors.river.fourier"

DTYPES: Final = frozenset(
    {"|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8", "<c16"}
)
DICTS: Final[dict[str, type[dict[Any, Any]]]] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Counter": Counter,
    "defaultdict": defaultdict,
}
SCALARS: Final = {type(None): "none", bool: "bool", int: "int", float: "float", str: "str"}
_QUANTILE = struct.Struct("<21d2B")
_IQR = struct.Struct("<21d2B21d2B2d")
RUST: Final[dict[str, struct.Struct]] = {"RsQuantile": _QUANTILE, "RsIQR": _IQR}
"""River's compiled statistics of fixed layout; every other one only River itself can read."""


# ---------------------------------------------------------------------------------- bytes
def seal(payload: Any) -> bytes:  # noqa: ANN401
    """Return plain values as bytes that :func:`unseal` can vouch for.

    Examples
    --------
    >>> unseal(seal({"n": 3}))
    {'n': 3}
    """
    raw = msgspec.msgpack.encode(payload)
    if len(raw) > _MAX_BYTES:
        raise DetectorError(
            f"The state of this model has {len(raw)} bytes, the most is {_MAX_BYTES}; bound what "
            f"the model keeps."
        )
    body = _BODY.pack(len(raw), _river_version()) + zlib.compress(raw, level=1)
    return _HEAD.pack(MAGIC, FORMAT_VERSION, hashlib.sha256(body).digest()) + body


def unseal(blob: bytes) -> Any:  # noqa: ANN401
    """Return the plain values of :func:`seal`.

    Raises
    ------
    CheckpointError
        The bytes are foreign, damaged, or of another version.

    Examples
    --------
    >>> unseal(b"what is this")
    Traceback (most recent call last):
    ...
    rejex_stream.errors.CheckpointError: This is not the state of a River model (12 bytes that ...
    """
    if len(blob) < _HEAD.size + _BODY.size or blob[:4] != MAGIC:
        raise CheckpointError(
            f"This is not the state of a River model ({len(blob)} bytes that do not begin with "
            f"{MAGIC!r}): {WAY_OUT}."
        )
    _, format_version, digest = _HEAD.unpack_from(blob)
    if format_version == 1:
        raise CheckpointError(
            "The state has format 1, a pickle, which could run code and is not read any more: "
            f"{WAY_OUT}."
        )
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
        return msgspec.msgpack.decode(_unpacked(body[_BODY.size :], length), strict=True)
    except (msgspec.DecodeError, zlib.error, ValueError, RecursionError) as error:
        raise CheckpointError(f"The state of the model cannot be read ({error}).") from error


def _unpacked(packed: bytes, length: int) -> bytes:
    stream = zlib.decompressobj()
    raw = stream.decompress(packed, min(length, _MAX_BYTES) + 1)
    if len(raw) != length or not stream.eof:
        raise CheckpointError(
            f"The state claims {length} bytes and holds another number, or more than {_MAX_BYTES}."
        )
    return raw


@functools.cache
def _river_version() -> bytes:
    """Major and minor: River promises nothing about its attributes across minors."""
    return ".".join(version("river").split(".")[:2]).encode().ljust(16, b"\0")


def _text(version: bytes) -> str:
    return version.rstrip(b"\0").decode("ascii", "replace")


# -------------------------------------------------------------------------------- arrays
def write_array(array: npt.NDArray[Any]) -> list[Any]:
    """Return an array of numbers as plain values, bit for bit.

    Examples
    --------
    >>> read_array(write_array(np.array([1.0, 2.0])), (2,))
    array([1., 2.])
    """
    dtype = array.dtype.newbyteorder("<").str
    if dtype not in DTYPES:
        raise DetectorError(f"The model holds an array of {array.dtype}, which cannot be written.")
    return ["a", dtype, list(array.shape), array.astype(dtype).tobytes()]


def read_array(plain: Any, shape: tuple[int, ...] | None = None) -> npt.NDArray[Any]:  # noqa: ANN401
    """Return the array of :func:`write_array`.

    Parameters
    ----------
    plain
        What came out of :func:`write_array`.
    shape
        If given, what the array must be: finite float64 of this shape.

    Raises
    ------
    CheckpointError
        dtype, shape and bytes do not fit each other, or not `shape`.
    """
    match plain:
        case ["a", str(dtype), [*lengths], bytes(raw)] if (
            dtype in DTYPES
            and len(lengths) <= 4
            and all(type(n) is int and 0 <= n < 1 << 40 for n in lengths)
            and math.prod(lengths) * np.dtype(dtype).itemsize == len(raw)
        ):
            array = np.frombuffer(raw, dtype=dtype).reshape(lengths).astype(dtype[1:])
        case _:
            raise CheckpointError(f"An array of the model's state is broken: {WAY_OUT}.")
    wanted = shape is None or (array.shape == shape and array.dtype == np.float64)
    if not wanted or (shape is not None and not np.isfinite(array).all()):
        raise CheckpointError(
            f"An array of the model's state has shape {array.shape} of {array.dtype}, expected "
            f"are finite numbers of shape {shape}: {WAY_OUT}."
        )
    return array


# ----------------------------------------------------------------------- kinds and keys
def kind_of(value: Any) -> str:  # noqa: ANN401
    """Tell what stands somewhere, as closely as it must not change."""
    kind = type(value)
    if (name := SCALARS.get(kind)) is not None:
        return name
    if kind is tuple:
        return f"tuple:{len(value)}"
    if kind is deque:
        return f"deque:{value.maxlen}"
    if kind is np.ndarray:
        return f"array:{value.dtype.newbyteorder('<').str}:{value.ndim}"
    return f"{kind.__module__}.{kind.__qualname__}"


def paths_within(at: str, kind: type, n: int) -> list[str]:
    """Return where the items of a tuple or set stand; places of a short tuple differ in meaning."""
    return [f"{at}[{i}]" for i in range(n)] if kind is tuple and n <= 8 else [at + "[]"] * n


def key_of(key: Any) -> Any:  # noqa: ANN401
    """Return a key that only plain code hashes."""
    if type(key) is tuple:
        return tuple(map(key_of, key))
    if type(key) in (str, int, float, bool, type(None)):
        return key
    raise DetectorError(
        f"The model keys its state by a {type(key).__name__}; numbers, text and tuples of them "
        f"can be written."
    )


# ------------------------------------------------------------------------------- classes
def class_of(module: str, name: str, trusted: frozenset[str]) -> type:
    """Find a class that is really defined where it is said to be, or refuse."""
    root, _, rest = module.partition(".")
    is_rivers = root == "river" and rest.partition(".")[0] in MODEL_PACKAGES
    found = found_in(module, name) if is_rivers or module == OWN or module in trusted else None
    # A module's namespace also holds what it imports: only what it defines itself counts.
    if (
        not isinstance(found, type)
        or found.__module__ != module
        or found.__qualname__ != name
        or "." in name
    ):
        raise CheckpointError(
            f"{module}.{name} is no class of a River model; if it is yours, give "
            f"trusted_modules = ({module!r},)."
        )
    return found


def found_in(module: str, name: str) -> Any:  # noqa: ANN401
    """Return what a module calls by a name without dots, or None."""
    if module not in sys.modules:
        try:
            importlib.import_module(module)
        except ImportError:
            return None
    return vars(sys.modules[module]).get(name)


def has_own_state(cls: type) -> bool:
    """Tell whether a class says itself what its state is."""
    return vars(object)["__getstate__"] is not inspect.getattr_static(cls, "__getstate__")


@functools.cache
def slots_of(cls: type) -> tuple[str, ...]:
    """Return the names of a class's slots, inherited ones too."""
    names: list[str] = []
    for base in cls.__mro__:
        slots: str | Iterable[str] = vars(base).get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))
