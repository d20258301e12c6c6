"""Fields of JSON records, by path: each is walked once, and what is guessed asks its profile."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rejex_stream.decode.json import flat
from rejex_stream.tables.names import COUNTER, STEP, TIME_OF_RECORD, is_quality, last_of

MOSTLY = 0.8
"""The share of records that makes a rule of what they have in common."""


@dataclass(frozen=True)
class FieldProfile:
    """What the records of a sample hold in one field."""

    path: str
    rows: Sequence[Any]  # one each record, None where there is none

    @cached_property
    def values(self) -> list[Any]:
        return [value for value in self.rows if value is not None]

    @cached_property
    def distinct(self) -> set[str]:
        return set(map(str, self.values))

    @cached_property
    def is_moment(self) -> bool:
        """Whether values are times of our age: seconds to nanoseconds since 1970, or ISO 8601."""
        return bool(self.values) and all(map(is_moment, self.values))

    @cached_property
    def is_text(self) -> bool:
        return all(isinstance(value, str) for value in self.values)

    @cached_property
    def is_measured(self) -> bool:
        """Whether it is a measurement: numbers, and no time, no count and no name."""
        numbers = [x for x in self.values if isinstance(x, int | float) and not isinstance(x, bool)]
        last = last_of(self.path)
        if len(numbers) < MOSTLY * len(self.values) or not numbers or all(map(is_moment, numbers)):
            return False
        if COUNTER.search(self.path) or STEP.match(last) or is_quality(self.path, numbers):
            return False
        if any(not float(x).is_integer() for x in numbers):
            return True
        return not TIME_OF_RECORD.search(last) and len(set(numbers)) > 1

    def is_in(self, share: float) -> bool:
        """Whether so many records have it."""
        return len(self.values) >= share * len(self.rows)


class Trees:
    """Parsed records, or the elements of their arrays; each is walked once."""

    def __init__(self, trees: Sequence[Any]) -> None:
        self.all = trees
        self._dicts = [tree for tree in trees if isinstance(tree, dict)]

    @cached_property
    def objects(self) -> list[dict[str, Any]]:
        """The trees where nearly all are objects, else none."""
        return self._dicts if len(self._dicts) >= MOSTLY * len(self.all) else []

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Objects by their paths."""
        return [dict(flat(tree)) for tree in self._dicts]

    @cached_property
    def fields(self) -> dict[str, FieldProfile]:
        paths = dict.fromkeys(p for row in self.rows for p, x in row.items() if x is not None)
        return {path: FieldProfile(path, [row.get(path) for row in self.rows]) for path in paths}

    @cached_property
    def measured(self) -> set[str]:
        return {path for path, field in self.fields.items() if field.is_measured}

    @cached_property
    def lists(self) -> dict[str, list[list[Any]]]:
        """The arrays of records by path; the path of a record that is one is empty."""
        arrays: dict[str, list[list[Any]]] = {}
        rows = iter(self.rows)
        for tree in self.all:
            row = next(rows) if isinstance(tree, dict) else {"": tree}
            for path, value in row.items():
                if isinstance(value, list):
                    arrays.setdefault(path, []).append(value)
        return arrays

    @cached_property
    def has_text_numbers(self) -> bool:
        fields = self.fields.values()
        return any(f.is_text and not f.is_moment and all(map(is_number, f.values)) for f in fields)

    @cached_property
    def object_lists(self) -> dict[str, Trees]:
        """The elements of the arrays that hold objects alone, by path."""
        elements = {
            p: [element for each in objects for element in each]
            for p, objects in self.lists.items()
        }
        return {
            path: Trees(objects)
            for path, objects in elements.items()
            if objects and all(isinstance(element, dict) for element in objects)
        }


def is_moment(value: object) -> bool:
    """Whether a value is a time of our age: seconds to nanoseconds since 1970, or ISO 8601."""
    if isinstance(value, bool):
        return False
    if isinstance(value, int | float):
        return any(0.9 <= value / (1.7e9 * unit) <= 1.35 for unit in (1, 1e3, 1e6, 1e9))
    if not isinstance(value, str):
        return False
    if value.isdecimal():  # a number of seconds may be anything; one with more digits is a clock
        return len(value) in (13, 16, 19) and is_moment(int(value))
    return bool(re.match(r"\d{4}-\d\d-\d\d[T ]\d", value))


def is_number(value: object) -> bool:
    """Whether a value is a number, or a text that is one, maybe with a unit behind it."""
    if isinstance(value, str):
        return bool(re.fullmatch(r"\s*[+-]?\d+([.,]\d+)?([eE][+-]?\d+)?\s*\D{0,4}", value))
    return isinstance(value, int | float) and not isinstance(value, bool)


def jq_of(path: str) -> str:
    """Return a path as jq writes it: ``motor.v`` is ``.motor.v``, ``a b`` is ``.["a b"]``."""
    parts = [part.replace("\\.", ".") for part in re.split(r"(?<!\\)\.", path)] if path else []
    plain = re.compile(r"[A-Za-z_]\w*")
    text = "".join(
        f".{part}" if plain.fullmatch(part) else f"[{json.dumps(part, ensure_ascii=False)}]"
        for part in parts
    )
    return text if text.startswith(".") else f".{text}"
