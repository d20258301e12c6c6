"""Write a River model as plain values, object by object."""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Collection
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
from river import anomaly
from river.tree.padded import PaddedBranch
from river.utils import VectorDict

from rejex_stream.detectors.river.model_state import (
    DICTS,
    RUST,
    SCALARS,
    class_of,
    found_in,
    has_own_state,
    key_of,
    kind_of,
    paths_within,
    slots_of,
    write_array,
)
from rejex_stream.errors import CheckpointError, DetectorError

__all__ = ["write"]


def write(
    model: Any,  # noqa: ANN401
    *,
    trusted_modules: Collection[str] = (),
) -> tuple[Any, dict[str, set[str]]]:
    """Write a River model, or a structure of models, as plain values; O(size of the model).

    Parameters
    ----------
    model
        What to write.
    trusted_modules
        Modules of the user whose classes and functions may be part of it, e.g. ``("mymodels",)``.

    Returns
    -------
    The plain values, and the kinds found on the way.

    Raises
    ------
    DetectorError
        The model holds something that cannot be written.

    Examples
    --------
    >>> from river import stats
    >>> from rejex_stream.detectors.river.deserialize import read
    >>> mean = stats.Mean()
    >>> mean.update(3.0)
    >>> plain, kinds = write(mean)
    >>> read(plain, kinds).get()
    3.0
    """
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
            return ["v", [_constant(key) for key in data], list(data.values())]
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
                "p",
                self._callable(value.func, ""),
                [_constant(item) for item in value.args],
                [[name, _constant(item)] for name, item in value.keywords.items()],
            ]
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


def _constant(value: Any) -> Any:  # noqa: ANN401
    """Return a key, or what a partial function holds, as MessagePack brings it back."""
    value = key_of(value)
    return list(map(_constant, value)) if type(value) is tuple else value


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
    """Write half-space trees, complete binary ones, as four arrays over their nodes, depth first.

    Five thousand objects would take twenty times as long.
    """
    flat = [node for tree in nodes for node in tree]
    branches = [node for node in flat if type(node) is PaddedBranch]
    features = list(dict.fromkeys(branch.feature for branch in branches))
    number = {feature: i for i, feature in enumerate(features)}
    return [
        len(trees),
        [_constant(feature) for feature in features],
        write_array(np.array([number[branch.feature] for branch in branches], dtype="<u4")),
        write_array(np.array([branch.threshold for branch in branches], dtype="<f8")),
        write_array(np.array([node.l_mass for node in flat], dtype="<i8")),
        write_array(np.array([node.r_mass for node in flat], dtype="<i8")),
    ]
