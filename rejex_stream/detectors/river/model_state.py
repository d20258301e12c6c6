"""What the state of a River model is made of: plain values, sealed as bytes.

A model is walked object by object and written as numbers, text, lists and raw arrays; what two
objects share stays shared (:func:`write`). Reading makes empty objects of classes that River's
model packages, or the user's trusted modules, define, and sets attributes (:func:`read`): nothing
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
import itertools
import math
import random
import struct
import sys
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import version
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from river import anomaly
from river.tree.padded import PaddedBranch, PaddedLeaf
from river.utils import VectorDict

from rejex_stream.errors import WAY_OUT, CheckpointError, DetectorError

__all__ = ["Kinds", "class_of", "read", "read_array", "seal", "unseal", "write", "write_array"]

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

OWN: Final = "rejex_stream.detectors.river.models"

DTYPES: Final = frozenset(
    {"|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8", "<c16"}
)
DICTS: Final[dict[str, type[dict[Any, Any]]]] = {
    "dict": dict, "OrderedDict": OrderedDict, "Counter": Counter, "defaultdict": defaultdict,
}  # fmt: skip
SCALARS: Final = {type(None): "none", bool: "bool", int: "int", float: "float", str: "str"}
_QUANTILE = struct.Struct("<21d2B")
_IQR = struct.Struct("<21d2B21d2B2d")
RUST: Final[dict[str, struct.Struct]] = {"RsQuantile": _QUANTILE, "RsIQR": _IQR}
"""River's compiled statistics of fixed layout; every other one only River itself can read."""


# ---------------------------------------------------------------------------------- bytes
def seal(payload: Any) -> bytes:  # noqa: ANN401
    """Return plain values as bytes that :func:`unseal` can vouch for."""
    raw = msgspec.msgpack.encode(payload)
    if len(raw) > _MAX_BYTES:
        raise DetectorError(
            f"The state of this model has {len(raw)} bytes, the most is {_MAX_BYTES}; bound what "
            f"the model keeps."
        )
    body = _BODY.pack(len(raw), _river_version()) + zlib.compress(raw, level=1)
    return _HEAD.pack(MAGIC, FORMAT_VERSION, hashlib.sha256(body).digest()) + body


def unseal(blob: bytes) -> Any:  # noqa: ANN401
    """Return the plain values of :func:`seal`."""
    if len(blob) < _HEAD.size + _BODY.size or blob[:4] != MAGIC:
        raise CheckpointError(
            f"This is not the state of a River model ({len(blob)} bytes that do not begin with "
            f"{MAGIC!r}): {WAY_OUT}."
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
    """Return an array of numbers as plain values, bit for bit."""
    dtype = array.dtype.newbyteorder("<").str
    if dtype not in DTYPES:
        raise DetectorError(f"The model holds an array of {array.dtype}, which cannot be written.")
    return ["a", dtype, list(array.shape), array.astype(dtype).tobytes()]


def read_array(plain: Any, shape: tuple[int, ...] | None = None) -> npt.NDArray[Any]:  # noqa: ANN401
    """Return the array of :func:`write_array`."""
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


# ---------------------------------------------------------------------------------------- writing
def write(
    model: Any,  # noqa: ANN401
    *,
    trusted_modules: Collection[str] = (),
) -> tuple[Any, dict[str, set[str]]]:
    """Write a River model, or a structure of models, as plain values; O(size of the model)."""
    writer = _Writer(frozenset(trusted_modules))
    try:
        return writer.write(model, "models"), writer.kinds
    except RecursionError:
        raise DetectorError(
            "The state of this model cannot be written: it is nested too deeply."
        ) from None


class _Writer:
    def __init__(self, trusted: frozenset[str]) -> None:
        self._trusted = trusted
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []  # alive, so that no identity is given twice
        self._open: set[int] = set()
        self._classes: set[type] = set()  # that can be read back
        self.kinds: dict[str, set[str]] = {}

    def write(self, value: Any, at: str) -> Any:  # noqa: ANN401 - one kind, one line
        kind = type(value)
        if (name := SCALARS.get(kind)) is not None:
            self._note(at, name)
            is_long = kind is int and not -(1 << 63) <= value < 1 << 63
            return ["i", hex(value)] if is_long else value
        if kind is bytes:
            self._note(at, "bytes")
            return ["b", value]
        if issubclass(kind, np.generic):
            self._note(at, f"scalar:{value.dtype.str}")
            return ["n", write_array(np.asarray(value))]
        if kind in (FunctionType, BuiltinFunctionType, type, functools.partial, MethodType) or (
            issubclass(kind, type)
        ):
            return self._callable(value, at)
        if id(value) in self._open:
            raise _cannot(kind, at, "it holds itself")
        if (number := self._seen.get(id(value))) is not None:
            self._note(at, kind_of(value))
            return ["@", number]
        self._seen[id(value)] = len(self._kept)
        self._kept.append(value)
        self._note(at, kind_of(value))
        return self._node(value, kind, at)

    def _node(self, value: Any, kind: type, at: str) -> Any:  # noqa: ANN401, PLR0911
        if kind in (list, deque):
            items = [self.write(item, at + "[]") for item in value]
            return ["l", items] if kind is list else ["q", value.maxlen, items]
        if kind in (tuple, set, frozenset):
            self._open.add(id(value))
            ordered = value if kind is tuple else sorted(map(key_of, value), key=repr)
            paths = paths_within(at, kind, len(value))
            items = [self.write(item, path) for item, path in zip(ordered, paths, strict=True)]
            self._open.remove(id(value))
            return [kind.__name__, items]
        if kind in DICTS.values():
            factory = getattr(value, "default_factory", None)
            return [
                kind.__name__,
                [self.write(key_of(key), at + "{k}") for key in value],
                [self.write(item, at + "{}") for item in value.values()],
                None if factory is None else self.write(factory, at + "{f}"),
            ]
        if kind is np.ndarray:
            return write_array(value)
        if kind is random.Random:
            number, words, gauss = value.getstate()
            return ["r", number, np.array(words, dtype="<u4").tobytes(), gauss]
        if kind is VectorDict:
            _, (data, factory, mask, _) = value.__reduce__()
            if factory is not None or mask is not None:
                raise _cannot(kind, at, "it has a mask or a default")
            return ["v", [_plain_key(key) for key in data], list(data.values())]
        if kind.__module__ == "river._river_rust.stats" and kind.__name__ in RUST:
            return ["u", kind.__name__, list(RUST[kind.__name__].unpack(value.__getstate__()))]
        return self._object(value, kind, at)

    def _object(self, value: Any, kind: type, at: str) -> Any:  # noqa: ANN401
        path = f"{kind.__module__}.{kind.__qualname__}"
        if kind not in self._classes:
            try:
                object.__new__(class_of(kind.__module__, kind.__qualname__, self._trusted))
            except (CheckpointError, TypeError) as error:
                raise _cannot(kind, at, str(error)) from None
            self._classes.add(kind)
        attributes = _attributes(value, kind)
        trees = None
        if kind is anomaly.HalfSpaceTrees:
            attributes = dict(attributes)
            trees = _write_trees(attributes.pop("trees"), attributes.pop("_tree_nodes"))
        self._note(path, ",".join(attributes))
        values = [self.write(item, f"{path}.{name}") for name, item in attributes.items()]
        return ["o", kind.__module__, kind.__qualname__, list(attributes), values, trees]

    def _callable(self, value: Any, at: str) -> Any:  # noqa: ANN401
        """Write a function; it must be one of the recipe's own to be read back."""
        if isinstance(value, functools.partial):
            plain = [
                "p", self._callable(value.func, ""), [_plain_key(item) for item in value.args],
                [[name, _plain_key(item)] for name, item in value.keywords.items()],
            ]  # fmt: skip
        elif isinstance(value, MethodType):
            if isinstance(value.__self__, type):
                raise _cannot(type(value), at, "it is bound to a class")
            plain = ["m", self.write(value.__self__, f"{at}()"), value.__name__]
            self._note(at, f"method:{kind_of(value.__self__)}.{value.__name__}")
            return plain
        else:
            module, name = str(value.__module__), str(getattr(value, "__qualname__", "?"))
            if "." in name or found_in(module, name) is not value:
                raise DetectorError(
                    f"The model holds the function {module}.{name}, which cannot be found again "
                    f"by its name; use a named function of a module."
                )
            plain = ["c", module, name]
        self._note(at, f"call:{plain!r}")
        return plain

    def _note(self, at: str, kind: str) -> None:
        if at:
            self.kinds.setdefault(at, set()).add(kind)


def _plain_key(value: Any) -> Any:  # noqa: ANN401
    """Return a key, or what a partial function holds, as MessagePack brings it back."""
    value = key_of(value)
    return list(map(_plain_key, value)) if type(value) is tuple else value


def _cannot(kind: type, at: str, why: str) -> DetectorError:
    return DetectorError(
        f"The model holds a {kind.__module__}.{kind.__qualname__} at {at}, which no "
        f"snapshot can bring back ({why.rstrip('.')}); use River's own parts, and name modules of "
        f"yours in trusted_modules."
    )


def _attributes(value: Any, cls: type) -> dict[str, Any]:  # noqa: ANN401
    if has_own_state(cls):
        return dict(value.__getstate__())
    attributes = dict(getattr(value, "__dict__", {}))
    for name in slots_of(cls):
        try:
            attributes[name] = object.__getattribute__(value, name)
        except AttributeError:
            continue
    return attributes


def _write_trees(trees: list[Any], nodes: list[list[Any]]) -> list[Any]:
    """Write half-space trees, complete binary ones, as four arrays over nodes, depth first."""
    # Five thousand objects would take twenty times as long.
    flat = [node for tree in nodes for node in tree]
    branches = [node for node in flat if type(node) is PaddedBranch]
    features = list(dict.fromkeys(branch.feature for branch in branches))
    number = {feature: i for i, feature in enumerate(features)}
    return [
        len(trees),
        [_plain_key(feature) for feature in features],
        write_array(np.array([number[branch.feature] for branch in branches], dtype="<u4")),
        write_array(np.array([branch.threshold for branch in branches], dtype="<f8")),
        write_array(np.array([node.l_mass for node in flat], dtype="<i8")),
        write_array(np.array([node.r_mass for node in flat], dtype="<i8")),
    ]


# ---------------------------------------------------------------------------------------- reading
_OPEN: Final = object()


def read(
    plain: Any,  # noqa: ANN401
    kinds: Kinds,
    *,
    trusted_modules: Collection[str] = (),
) -> Any:  # noqa: ANN401
    """Make the model that :func:`write` wrote."""
    try:
        return _Reader(kinds, frozenset(trusted_modules)).read(plain, "models")
    except CheckpointError:
        raise
    except Exception as error:  # whatever a forged value meets in numpy or River
        raise CheckpointError(f"The state of the model cannot be read: {error!r}.") from error


class _Reader:
    def __init__(self, kinds: Kinds, trusted: frozenset[str]) -> None:
        self._kinds = kinds
        self._trusted = trusted
        self._made: list[Any] = []
        self._classes: dict[str, type] = {}

    def read(self, plain: Any, at: str) -> Any:  # noqa: ANN401, PLR0911
        if (name := SCALARS.get(type(plain))) is not None:
            self._check(at, name)
            return plain
        if type(plain) is not list or not plain:
            raise CheckpointError(f"The state holds {plain!r} at {at}: {WAY_OUT}.")
        match plain:
            case ["@", int(number)] if 0 <= number < len(self._made):
                value = self._made[number]
                if value is _OPEN:
                    raise CheckpointError(f"The state names at {at} what is not made: {WAY_OUT}.")
                self._check(at, kind_of(value))
                return value
            case ["i", str(digits)] if len(digits) < 10_000:
                self._check(at, "int")
                return int(digits, 16)
            case ["b", bytes(raw)]:
                self._check(at, "bytes")
                return raw
            case ["n", inner]:
                array = read_array(inner)
                self._check(at, f"scalar:{array.dtype.str}")
                return array.reshape(())[()]
            case ["c" | "p", *_]:
                return self._callable(plain, at)
            case ["m", owner, str(method)]:
                value = self.read(owner, f"{at}()")
                self._check(at, f"method:{kind_of(value)}.{method}")
                return getattr(value, method)
        number = len(self._made)
        self._made.append(_OPEN)
        value = self._node(plain, at, number)
        self._check(at, kind_of(value))
        return value

    def _node(self, plain: list[Any], at: str, number: int) -> Any:  # noqa: ANN401
        match plain:
            case ["l", [*items]]:
                row: list[Any] = []
                self._made[number] = row
                row.extend(self.read(item, at + "[]") for item in items)
                return row
            case ["q", int() | None as most, [*items]] if most is None or 0 <= most < 1 << 40:
                if most is not None and len(items) > most:
                    raise CheckpointError(f"The state holds too much at {at}: {WAY_OUT}.")
                queue: deque[Any] = deque(maxlen=most)
                self._made[number] = queue
                queue.extend(self.read(item, at + "[]") for item in items)
                return queue
            case ["tuple" | "set" | "frozenset" as name, [*items]]:
                made_of = {"tuple": tuple, "set": set, "frozenset": frozenset}[name]
                paths = paths_within(at, made_of, len(items))
                values = [self.read(item, path) for item, path in zip(items, paths, strict=True)]
                group = made_of(values if name == "tuple" else map(key_of, values))
                if len(group) != len(items):
                    raise CheckpointError(f"The state repeats itself at {at}: {WAY_OUT}.")
                self._made[number] = group
                return group
            case [str(name), [*_], [*_], _] if name in DICTS:
                return self._dict(plain, at, number)
            case ["o", str(module), str(name), [*attributes], [*items], trees]:
                self._check(at, f"{module}.{name}")
                return self._object((module, name), attributes, items, trees, number)
        self._made[number] = made = _leaf(plain, at)
        return made

    def _dict(self, plain: list[Any], at: str, number: int) -> dict[Any, Any]:
        name, keys, items, factory = plain
        made: dict[Any, Any] = DICTS[name]()
        self._made[number] = made
        read_keys = [key_of(self.read(key, at + "{k}")) for key in keys]
        values = [self.read(item, at + "{}") for item in items]
        for key, value in zip(read_keys, values, strict=True):
            made[key] = value
        if len(made) != len(keys):
            raise CheckpointError(f"The state repeats itself at {at}: {WAY_OUT}.")
        if factory is not None:
            found = self.read(factory, at + "{f}")
            if not isinstance(made, defaultdict) or not callable(found):
                raise CheckpointError(f"The state has a default at {at}: {WAY_OUT}.")
            made.default_factory = found
        elif isinstance(made, defaultdict) and at + "{f}" in self._kinds:
            raise CheckpointError(f"The state lacks a default at {at}: {WAY_OUT}.")
        return made

    def _object(
        self,
        named: tuple[str, str],
        attributes: list[Any],
        items: list[Any],
        trees: Any,  # noqa: ANN401
        number: int,
    ) -> Any:  # noqa: ANN401
        path = ".".join(named)
        if not all(type(name) is str for name in attributes):
            raise CheckpointError(f"The state has nameless attributes of {path}: {WAY_OUT}.")
        self._check(path, ",".join(attributes))
        if (cls := self._classes.get(path)) is None:
            cls = self._classes[path] = class_of(*named, self._trusted)
        made: Any = object.__new__(cls)
        self._made[number] = made
        values = {
            name: self.read(item, f"{path}.{name}")
            for name, item in zip(attributes, items, strict=True)
        }
        if (cls is anomaly.HalfSpaceTrees) != (trees is not None):
            raise CheckpointError(f"The state has trees where none grow, {path}: {WAY_OUT}.")
        if trees is not None:
            values |= _read_trees(trees, values)
        if has_own_state(cls):
            made.__setstate__(values)
            return made
        slots = slots_of(cls)
        for name, value in values.items():
            if name in slots:
                object.__setattr__(made, name, value)
            else:
                vars(made)[name] = value
        return made

    def _callable(self, plain: list[Any], at: str) -> Any:  # noqa: ANN401
        if at:  # within a partial function the whole has been checked
            self._check(at, f"call:{plain!r}")
        match plain:
            case ["c", str(module), str(name)]:
                return found_in(module, name)
            case ["p", inner, [*args], [*keywords]]:
                return functools.partial(
                    self._callable(inner, ""),
                    *[_read_key(item) for item in args],
                    **{name: _read_key(item) for name, item in keywords},
                )
        raise CheckpointError(f"The state holds no function at {at}: {WAY_OUT}.")

    def _check(self, at: str, kind: str) -> None:
        if kind not in self._kinds.get(at, ()):
            expected = ", ".join(sorted(self._kinds.get(at, ()))) or "nothing"
            raise CheckpointError(
                f"The state holds {kind[:200]} at {at[:200]} where {expected[:200]} is expected; "
                f"configure the model that wrote it, or {WAY_OUT}."
            )


def _leaf(plain: list[Any], at: str) -> Any:  # noqa: ANN401
    """Make what holds nothing but numbers."""
    match plain:
        case ["a", *_]:
            return read_array(plain)
        case ["r", int(version_), bytes(words), float() | None as gauss] if len(words) == 2500:
            generator = random.Random()
            generator.setstate((version_, tuple(np.frombuffer(words, dtype="<u4").tolist()), gauss))
            return generator
        case ["v", [*keys], [*items]] if len(keys) == len(items):
            if not all(type(item) is float for item in items):
                raise CheckpointError(f"The state holds no numbers at {at}: {WAY_OUT}.")
            data = dict(zip(map(_read_key, keys), items, strict=True))
            if len(data) != len(keys):
                raise CheckpointError(f"The state repeats itself at {at}: {WAY_OUT}.")
            return VectorDict(data)
        case ["u", str(name), [*numbers]] if name in RUST:
            return _statistic(name, numbers)
    raise CheckpointError(f"The state holds {plain[0]!r} at {at}: {WAY_OUT}.")


def _read_key(plain: Any) -> Any:  # noqa: ANN401
    """Return a key, or what a partial function holds."""
    if type(plain) is list:
        return tuple(map(_read_key, plain))
    if type(plain) in SCALARS:
        return plain
    raise CheckpointError(f"The state holds {plain!r} for a key: {WAY_OUT}.")


def _read_trees(plain: Any, model: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    n_trees, names, *packed = plain
    choice, threshold, l_mass, r_mass = map(read_array, packed)
    height, most = model["height"], model["window_size"]
    size = (1 << (height + 1)) - 1 if 0 <= height < 30 else -1
    features = [_read_key(name) for name in names]
    if (
        n_trees not in (0, model["n_trees"])
        or not len(choice) == len(threshold) == n_trees * (size // 2)
        or not len(l_mass) == len(r_mass) == n_trees * size
        or [array.dtype.str for array in (choice, threshold, l_mass)] != ["<u4", "<f8", "<i8"]
        or r_mass.dtype != l_mass.dtype
        or any(array.ndim != 1 for array in (choice, threshold, l_mass, r_mass))
        or (choice >= len(features)).any()
        or not np.isfinite(threshold).all()
        or ((l_mass < 0) | (l_mass > most) | (r_mass < 0) | (r_mass > most)).any()
        or not 0 <= model["counter"] < most
    ):
        raise CheckpointError(f"The half-space trees of the state do not fit: {WAY_OUT}.")
    cuts = iter(zip([features[i] for i in choice.tolist()], threshold.tolist(), strict=True))
    masses = iter(zip(l_mass.tolist(), r_mass.tolist(), strict=True))

    def grow(height: int, nodes: list[Any]) -> Any:  # noqa: ANN401
        l_mass, r_mass = next(masses)
        node: Any = object.__new__(
            PaddedBranch if height else PaddedLeaf
        )  # River's __init__ is slow
        nodes.append(node)
        node.l_mass, node.r_mass = l_mass, r_mass
        if height:
            node.feature, node.threshold = next(cuts)
            node.children = (grow(height - 1, nodes), grow(height - 1, nodes))
        return node

    nodes: list[list[Any]] = [[] for _ in range(n_trees)]
    return {"trees": [grow(height, own) for own in nodes], "_tree_nodes": nodes}


def _statistic(name: str, numbers: list[Any]) -> Any:  # noqa: ANN401
    """Make one of River's compiled statistics; what they index by is checked before."""
    module = importlib.import_module("river._river_rust.stats")
    if name == "RsIQR":  # two quantiles, then their levels
        _check_quantile(numbers[:23])
        _check_quantile(numbers[23:46])
        made = module.RsIQR(0.25, 0.75)
    else:
        _check_quantile(numbers)
        made = module.RsQuantile(0.5)
    made.__setstate__(RUST[name].pack(*numbers))
    return made


def _check_quantile(numbers: list[Any]) -> None:
    """P-squared: q, 5 increments, 5 wishes, 5 positions, 5 heights; seen (at most 5), sorted."""
    positions, seen, is_sorted = numbers[11:16], *numbers[21:23]
    if (
        len(numbers) != 23
        or not all(type(number) is float and math.isfinite(number) for number in numbers[:21])
        or not all(a < b for a, b in itertools.pairwise(positions))
        or not 0.0 <= numbers[0] <= 1.0
        or type(seen) is not int
        or not 0 <= seen <= 5
        or is_sorted not in (0, 1)
        or type(is_sorted) is not int
    ):
        raise CheckpointError(f"A quantile of the state is broken: {WAY_OUT}.")
