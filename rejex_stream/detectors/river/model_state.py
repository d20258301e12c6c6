"""What the state of a River model is made of: plain values, sealed as bytes.

A model is walked object by object and written as numbers, text, lists and raw arrays; lists, dicts
and objects that two others share stay shared (:func:`write`). Reading makes empty objects of
classes that River's model packages define, and sets attributes (:func:`read`): nothing that the
bytes name is called, and of functions a state can only hold those of these packages and types like
``float``. Who can write a snapshot can give a model wrong values; he cannot run code.

Layout: zlib-packed MessagePack of what this is, River's version and the state.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import inspect
import itertools
import math
import random
import struct
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
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

_KIND: Final = "rejex-stream, state of a River model, 3"
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

NUMBERS: Final = "biufc"  # kinds of dtype
DICTS: Final[dict[str, type[dict[Any, Any]]]] = {
    "dict": dict, "OrderedDict": OrderedDict, "Counter": Counter, "defaultdict": defaultdict,
}  # fmt: skip
SETS: Final = {"set": set, "frozenset": frozenset}
PLAIN: Final = (type(None), bool, float, str)
FUNCTIONS: Final = (FunctionType, BuiltinFunctionType, functools.partial, MethodType)
BUILTINS: Final = frozenset({"bool", "dict", "float", "int", "list", "set", "str", "tuple"})
_QUANTILE = struct.Struct("<21d2B")
RUST: Final = {"RsQuantile": (1, (0.5,)), "RsIQR": (2, (0.25, 0.75))}
"""River's compiled statistics of fixed layout: quantiles in it, and what one is made with."""


# ---------------------------------------------------------------------------------- bytes
def seal(payload: Any) -> bytes:  # noqa: ANN401
    """Return plain values as bytes that :func:`unseal` can vouch for."""
    raw = msgspec.msgpack.encode([_KIND, _river_version(), payload])
    if len(raw) > _MAX_BYTES:
        raise DetectorError(
            f"The state of this model has {len(raw)} bytes, the most is {_MAX_BYTES}; bound what "
            f"the model keeps."
        )
    return zlib.compress(raw, level=1)


def unseal(blob: bytes) -> Any:  # noqa: ANN401
    """Return the plain values of :func:`seal`."""
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(blob, _MAX_BYTES)
        if not stream.eof or stream.unused_data:  # its checksum is at the end
            raise ValueError(f"{len(blob)} bytes that do not end where they should")
        kind, river, payload = msgspec.msgpack.decode(raw, type=tuple[str, str, Any])
        if kind != _KIND:
            raise ValueError(f"it is {kind[:100]!r}")
    except (msgspec.MsgspecError, zlib.error, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"This is no state of a River model, or it is damaged ({error}): {WAY_OUT}."
        ) from error
    if river != _river_version():
        raise CheckpointError(
            f"The state was written with River {river[:20]}, installed is {_river_version()}; "
            f"install the former, or start without the state."
        )
    return payload


@functools.cache
def _river_version() -> str:
    """Major and minor: River promises nothing about its attributes across minors."""
    return ".".join(version("river").split(".")[:2])


# -------------------------------------------------------------------------------- arrays
def write_array(array: npt.NDArray[Any]) -> list[Any]:
    """Return an array of numbers as plain values, bit for bit."""
    if array.dtype.kind not in NUMBERS:
        raise DetectorError(f"The model holds an array of {array.dtype}, which cannot be written.")
    dtype = array.dtype.newbyteorder("<").str
    return ["a", dtype, list(array.shape), array.astype(dtype).tobytes()]


def read_array(plain: Any, shape: tuple[int, ...] | None = None) -> npt.NDArray[Any]:  # noqa: ANN401
    """Return the array of :func:`write_array`; of a `shape`, finite floats."""
    try:
        _, dtype, lengths, raw = plain
        if np.dtype(dtype).kind not in NUMBERS:
            raise ValueError(f"it is of {dtype}")
        array = np.frombuffer(raw, dtype=dtype).reshape(lengths).astype(dtype[1:])
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"An array of the model's state is broken ({error}): {WAY_OUT}."
        ) from error
    if shape is not None and (
        array.shape != shape or array.dtype != np.float64 or not np.isfinite(array).all()
    ):
        raise CheckpointError(
            f"An array of the model's state has shape {array.shape} of {array.dtype}, expected "
            f"are finite numbers of shape {shape}: {WAY_OUT}."
        )
    return array


# ------------------------------------------------------------------- classes and functions
def _class_of(module: str, name: str) -> type:
    """Find a class of River's models that is really defined where it is said to be, or refuse."""
    cls = _rivers(module, name)
    if not isinstance(cls, type):
        raise CheckpointError(
            f"{module}.{name} is no class of a River model; for a class or function of your own "
            "write a detector with start(), restore() and warm_up_events."
        )
    return cls


def _function_of(module: str, name: str) -> Any:  # noqa: ANN401
    """Find a function or class of River's models, or a plain type."""
    if module == "builtins" and name in BUILTINS:
        return getattr(builtins, name)
    if (function := _rivers(module, name, MODEL_PACKAGES | {"_river_rust"})) is None:
        raise CheckpointError(
            f"The state holds the function {module[:100]}.{name[:100]}, which is none of River's: "
            f"{WAY_OUT}."
        )
    return function


def _rivers(module: str, name: str, packages: frozenset[str] = MODEL_PACKAGES) -> Any:  # noqa: ANN401
    """Return what a module of River's models defines itself by a name without dots, or None."""
    root, _, rest = module.partition(".")
    if module != OWN and not (root == "river" and rest.partition(".")[0] in packages):
        return None
    try:
        value = vars(importlib.import_module(module)).get(name)
    except ImportError:
        return None
    # A module's namespace also holds what it imports.
    defined = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    return value if defined == (module, name) else None


# ---------------------------------------------------------------------------------------- writing
def write(model: Any) -> Any:  # noqa: ANN401
    """Write a River model, or a structure of models, as plain values; O(size of the model)."""
    try:
        return _Writer().write(model)
    except RecursionError:
        raise DetectorError(
            "The state of this model cannot be written: it is nested too deeply."
        ) from None


class _Writer:
    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._written: list[Any] = []  # alive, so that no identity is given twice
        self._classes: set[type] = set()  # that can be read back
        self._at = "the model itself"

    def write(self, value: Any) -> Any:  # noqa: ANN401, PLR0911 - one kind, one line
        kind = type(value)
        if kind in PLAIN or (kind is int and -(1 << 63) <= value < 1 << 63):
            return value
        if kind is int:
            return ["i", hex(value)]
        if kind is bytes:
            return ["b", value]
        if kind is tuple:  # what it holds stays shared, itself it is written anew
            return ["t", list(map(self.write, value))]
        if issubclass(kind, np.generic):
            return ["n", write_array(np.asarray(value))]
        if kind in FUNCTIONS or issubclass(kind, type):
            return self._function(value)
        if (number := self._numbers.get(id(value))) is not None:
            return ["@", number]
        self._numbers[id(value)] = len(self._written)
        self._written.append(value)
        return self._node(value, kind)

    def _node(self, value: Any, kind: type) -> Any:  # noqa: ANN401, PLR0911
        if kind is list:
            return ["l", list(map(self.write, value))]
        if kind is deque:
            return ["q", value.maxlen, list(map(self.write, value))]
        if kind in SETS.values():
            return [kind.__name__, list(map(self.write, sorted(map(_key, value), key=repr)))]
        if kind in DICTS.values():
            factory = self.write(getattr(value, "default_factory", None))
            return [kind.__name__, self._items(value), factory]
        if kind is np.ndarray:
            return write_array(value)
        if kind is random.Random:
            number, words, gauss = value.getstate()
            return ["r", number, np.array(words, dtype="<u4").tobytes(), gauss]
        if kind is VectorDict:
            _, (data, factory, mask, _) = value.__reduce__()
            if factory is not None or mask is not None:
                raise self._refusal(kind, "it has a mask or a default")
            return ["v", self._items(data)]
        if kind.__module__ == "river._river_rust.stats" and kind.__name__ in RUST:
            return ["u", kind.__name__, value.__getstate__()]
        return self._object(value, kind)

    def _items(self, value: dict[Any, Any]) -> list[Any]:
        return [[self.write(_key(key)), self.write(item)] for key, item in value.items()]

    def _object(self, value: Any, kind: type) -> Any:  # noqa: ANN401
        if kind not in self._classes:
            try:
                object.__new__(_class_of(kind.__module__, kind.__qualname__))
            except (CheckpointError, TypeError) as error:
                raise self._refusal(kind, str(error)) from None
            self._classes.add(kind)
        state, trees = value.__getstate__(), None
        if type(state) is tuple:  # attributes, and slots
            state = {**(state[0] or {}), **state[1]}
        state = dict(state or {})
        if kind is anomaly.HalfSpaceTrees:
            trees = _write_trees(state.pop("trees"), state.pop("_tree_nodes"))
        plain = {}
        for name, item in state.items():
            self._at = f"{kind.__module__}.{kind.__qualname__}.{name}"
            plain[name] = self.write(item)
        return ["o", kind.__module__, kind.__qualname__, plain, trees]

    def _function(self, value: Any) -> Any:  # noqa: ANN401
        if isinstance(value, functools.partial):
            inner, keywords = self.write(value.func), value.keywords
            args = list(map(self.write, value.args))
            return ["p", inner, args, {name: self.write(item) for name, item in keywords.items()}]
        if isinstance(value, MethodType):
            if isinstance(value.__self__, type):
                raise self._refusal(type(value), "it is bound to a class")
            return ["m", self.write(value.__self__), value.__name__]
        module, name = str(value.__module__), str(getattr(value, "__qualname__", "?"))
        try:
            _function_of(module, name)
        except CheckpointError:
            raise DetectorError(
                f"The model holds the function {module}.{name}, which is none of River's, so no "
                "snapshot can bring it back; write a detector with start(), restore() and "
                "warm_up_events."
            ) from None
        return ["c", module, name]

    def _refusal(self, kind: type, why: str) -> DetectorError:
        return DetectorError(
            f"The model holds a {kind.__module__}.{kind.__qualname__} at {self._at}, which no "
            f"snapshot can bring back ({why.rstrip('.')}); use River's own parts."
        )


def _key(key: Any) -> Any:  # noqa: ANN401
    """Return a key that only plain code hashes."""
    if type(key) is tuple:
        return tuple(map(_key, key))
    if type(key) in (*PLAIN, int):
        return key
    raise DetectorError(
        f"The model keys its state by a {type(key).__name__}; numbers, text and tuples of them "
        f"can be written."
    )


def _write_trees(trees: list[Any], nodes: list[list[Any]]) -> list[Any]:
    """Write half-space trees, complete binary ones, as four arrays over nodes, depth first."""
    # Five thousand objects would take twenty times as long.
    flat = [node for tree in nodes for node in tree]
    branches = [node for node in flat if type(node) is PaddedBranch]
    features = list(dict.fromkeys(branch.feature for branch in branches))
    number = {feature: i for i, feature in enumerate(features)}
    return [
        len(trees),
        list(map(_key, features)),
        write_array(np.array([number[branch.feature] for branch in branches], dtype="<u4")),
        write_array(np.array([branch.threshold for branch in branches], dtype="<f8")),
        write_array(np.array([node.l_mass for node in flat], dtype="<i8")),
        write_array(np.array([node.r_mass for node in flat], dtype="<i8")),
    ]


# ---------------------------------------------------------------------------------------- reading
def read(plain: Any) -> Any:  # noqa: ANN401
    """Make the model that :func:`write` wrote."""
    try:
        return _Reader().read(plain)
    except CheckpointError:
        raise
    except Exception as error:  # whatever a broken value meets in numpy or River
        raise CheckpointError(
            f"The state of the model cannot be read ({error!r}): {WAY_OUT}."
        ) from error


class _Reader:
    def __init__(self) -> None:
        self._made: list[Any] = []

    def read(self, plain: Any) -> Any:  # noqa: ANN401, PLR0911 - one kind, one line
        if type(plain) in (*PLAIN, int):
            return plain
        match plain:
            case ["@", int(number)]:
                return self._made[number]
            case ["i", str(digits)] if len(digits) < 10_000:
                return int(digits, 16)
            case ["b", bytes(raw)]:
                return raw
            case ["t", [*items]]:
                return tuple(map(self.read, items))
            case ["n", inner]:
                return read_array(inner).reshape(())[()]
            case ["c", str(module), str(name)]:
                return _function_of(module, name)
            case ["p", inner, [*args], dict(keywords)]:
                named = {name: self.read(item) for name, item in keywords.items()}
                return functools.partial(self.read(inner), *map(self.read, args), **named)
            case ["m", owner, str(method)]:
                bound = getattr(self.read(owner), method)
                if not isinstance(bound, MethodType):
                    raise CheckpointError(f"The state holds the method {method[:100]}: {WAY_OUT}.")
                return bound
        number = len(self._made)
        self._made.append(None)
        return self._node(plain, number)

    def _node(self, plain: Any, number: int) -> Any:  # noqa: ANN401
        """Make what others may share, known by its number before what is in it is read."""
        made: Any
        match plain:
            case ["l", [*items]]:
                made = self._made[number] = []
                made.extend(map(self.read, items))
            case ["q", int() | None as most, [*items]]:
                made = self._made[number] = deque(maxlen=most)
                made.extend(map(self.read, items))
            case ["set" | "frozenset" as name, [*items]]:
                made = self._made[number] = SETS[name](_key(self.read(item)) for item in items)
            case [str(name), [*items], factory] if name in DICTS:
                made = self._made[number] = DICTS[name]()
                if factory is not None:
                    made.default_factory = self.read(factory)
                for key, item in self._pairs(items):
                    made[key] = item
            case ["v", [*items]]:
                made = self._made[number] = VectorDict(dict(self._pairs(items)))
            case ["a", *_]:
                made = self._made[number] = read_array(plain)
            case ["r", int(version_), bytes(words), float() | None as gauss]:
                made = self._made[number] = random.Random()
                drawn = np.frombuffer(words, dtype="<u4").tolist()
                made.setstate((version_, tuple(drawn), gauss))
            case ["u", str(name), bytes(raw)] if name in RUST:
                made = self._made[number] = _statistic(name, raw)
            case ["o", str(module), str(name), dict(state), trees]:
                made = self._made[number] = object.__new__(_class_of(module, name))
                self._fill(made, state, trees)
            case _:
                raise CheckpointError(f"The state holds {str(plain)[:200]}: {WAY_OUT}.")
        return made

    def _pairs(self, items: list[Any]) -> Iterator[tuple[Any, Any]]:
        for key, item in items:
            yield _key(self.read(key)), self.read(item)

    def _fill(self, made: Any, state: dict[str, Any], trees: Any) -> None:  # noqa: ANN401
        values = {name: self.read(item) for name, item in state.items()}
        if trees is not None:
            values |= _read_trees(trees, values["height"])
        if inspect.getattr_static(made, "__setstate__", None) is not None:
            made.__setstate__(values)
            return
        for name, value in values.items():
            object.__setattr__(made, name, value)


def _read_trees(plain: Any, height: int) -> dict[str, Any]:  # noqa: ANN401
    n_trees, names, *packed = plain
    choice, threshold, l_mass, r_mass = map(read_array, packed)
    if len(l_mass) != n_trees * ((1 << (height + 1)) - 1):
        raise CheckpointError(f"The half-space trees of the state do not fit: {WAY_OUT}.")
    cuts = iter(zip([names[i] for i in choice.tolist()], threshold.tolist(), strict=True))
    masses = iter(zip(l_mass.tolist(), r_mass.tolist(), strict=True))

    def grow(height: int, nodes: list[Any]) -> Any:  # noqa: ANN401
        # River's __init__ is slow.
        node: Any = object.__new__(PaddedBranch if height else PaddedLeaf)
        nodes.append(node)
        node.l_mass, node.r_mass = next(masses)
        if height:
            node.feature, node.threshold = next(cuts)
            node.children = (grow(height - 1, nodes), grow(height - 1, nodes))
        return node

    nodes: list[list[Any]] = [[] for _ in range(n_trees)]
    return {"trees": [grow(height, own) for own in nodes], "_tree_nodes": nodes}


def _statistic(name: str, raw: bytes) -> Any:  # noqa: ANN401
    """Make one of River's compiled statistics; what they index by is checked before."""
    n_quantiles, made_with = RUST[name]
    for i in range(n_quantiles):
        # P-squared: q, 5 increments, 5 wishes, 5 positions, 5 heights; seen (at most 5), sorted.
        *numbers, seen, is_sorted = _QUANTILE.unpack_from(raw, i * _QUANTILE.size)
        rising = all(a < b for a, b in itertools.pairwise(numbers[11:16]))
        if not (all(map(math.isfinite, numbers)) and rising and seen <= 5 and is_sorted <= 1):
            raise CheckpointError(f"A quantile of the state is broken: {WAY_OUT}.")
    made = getattr(importlib.import_module("river._river_rust.stats"), name)(*made_with)
    made.__setstate__(raw)
    return made
