"""Make a River model of plain values that anybody may have written."""

from __future__ import annotations

import functools
import importlib
import itertools
import math
import random
from collections import defaultdict, deque
from collections.abc import Collection
from typing import Any, Final

import numpy as np
from river import anomaly
from river.tree.padded import PaddedBranch, PaddedLeaf
from river.utils import VectorDict

from rejex_stream.detectors.river.model_state import (
    DICTS,
    RUST,
    SCALARS,
    Kinds,
    class_of,
    found_in,
    has_own_state,
    key_of,
    kind_of,
    paths_within,
    read_array,
    slots_of,
)
from rejex_stream.errors import WAY_OUT, CheckpointError

__all__ = ["read"]

_OPEN: Final = object()


def read(
    plain: Any,  # noqa: ANN401
    kinds: Kinds,
    *,
    trusted_modules: Collection[str] = (),
) -> Any:  # noqa: ANN401
    """Make the model that :func:`write` wrote.

    Parameters
    ----------
    plain
        What came out of :func:`write`, from whatever source.
    kinds
        What may stand where.
    trusted_modules
        As in :func:`write`.

    Raises
    ------
    CheckpointError
        A value is not of a kind allowed where it stands, or is no plain value of ours at all.
    """
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
                    *[_constant(item) for item in args],
                    **{name: _constant(item) for name, item in keywords},
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
            data = dict(zip(map(_constant, keys), items, strict=True))
            if len(data) != len(keys):
                raise CheckpointError(f"The state repeats itself at {at}: {WAY_OUT}.")
            return VectorDict(data)
        case ["u", str(name), [*numbers]] if name in RUST:
            return _statistic(name, numbers)
    raise CheckpointError(f"The state holds {plain[0]!r} at {at}: {WAY_OUT}.")


def _constant(plain: Any) -> Any:  # noqa: ANN401
    """Return a key, or what a partial function holds."""
    if type(plain) is list:
        return tuple(map(_constant, plain))
    if type(plain) in SCALARS:
        return plain
    raise CheckpointError(f"The state holds {plain!r} for a key: {WAY_OUT}.")


def _read_trees(plain: Any, model: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    n_trees, names, *packed = plain
    choice, threshold, l_mass, r_mass = map(read_array, packed)
    height, most = model["height"], model["window_size"]
    size = (1 << (height + 1)) - 1 if 0 <= height < 30 else -1
    features = [_constant(name) for name in names]
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
