"""Readings of parsed trees: the objects of JSON, the records and maps of Avro."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

from rejex_stream.decode.mapping import (
    ABSENT,
    FieldMapping,
    NameCache,
    Unreadable,
    floats_of,
    printable,
)
from rejex_stream.decode.paths import field_paths
from rejex_stream.types import Reading, Record

_Tree: TypeAlias = dict[str, Any]
_NEW = tuple.__new__  # nearly twice as fast as calling a named tuple's class


class TreeReader:
    """Finds what a mapping names in trees of dicts; `container` names what may hold fields."""

    def __init__(self, mapping: FieldMapping, *, container: str = "an object") -> None:
        self._mapping, self._container = mapping, container
        self._paths = field_paths(mapping.fields)
        self._sensor, self._time = mapping.getters(self._finder)
        self._names = [self._finder(field) for field in (mapping.group, mapping.tag, mapping.mode)]
        self._qualities = [self._finder(field or None) for field in mapping.quality_fields]
        self._fetch = self._fetcher(mapping.channel_fields)
        self._if_absent = ABSENT if mapping.partial else None
        others = (mapping.tag or mapping.tag_from, mapping.mode, mapping.quality, mapping.group)
        self._is_simple = others.count(None) == len(others) and len(mapping.sensor_fields) == 1
        self.names = NameCache(mapping)

    def reading(self, record: Record, tree: _Tree) -> Reading:
        """Make a reading of a record that was parsed to a tree; ``Unreadable`` where it is none."""
        mapping, sensor, time = self._mapping, self._sensor(tree), self._time(tree)
        try:
            values = self._fetch(tree)
        except KeyError:
            values = self._found(tree)
        if type(sensor) is str and self._is_simple and (floats := floats_of(values)) is not None:
            key, sensor = self.names[sensor]
            if mapping.missing or mapping.missing_of:
                floats = mapping.without_missing(floats)
            return _NEW(Reading, (key, sensor, mapping.time_of(record, time), floats, record[0]))
        group, tag, mode = self._names
        return mapping.reading(
            record,
            time=time,
            sensor=sensor,
            group=group(tree),
            tag=tag(tree),
            mode=mode(tree),
            values=values,
            qualities=[find(tree) for find in self._qualities],
        )

    def _fetcher(self, fields: Sequence[str]) -> Callable[[_Tree], tuple[Any, ...]]:
        paths = [self._paths[field] for field in fields]
        if len(paths) > 1 and max(map(len, paths)) == 1:
            return itemgetter(*(path[0] for path in paths))
        return self._found

    def _found(self, tree: _Tree) -> tuple[Any, ...]:
        fields = self._mapping.channel_fields
        return tuple([self._find(tree, field, self._if_absent) for field in fields])

    def _finder(self, field: str | None) -> Callable[[_Tree], object]:
        if field is None:
            return lambda _: None
        path = self._paths[field]
        if len(path) == 1:
            (name,) = path
            return lambda tree: tree.get(name)
        return lambda tree: self._find(tree, field)

    def _find(self, tree: _Tree, field: str, if_absent: float | None = None) -> object:
        node: Any = tree
        path = self._paths[field]
        for depth, name in enumerate(path):
            if node is None:
                return if_absent
            if not isinstance(node, dict):
                where = ".".join(path[:depth])
                raise Unreadable(f"{where}: expected {self._container}, got {printable(node)}")
            node = node.get(name, if_absent)
            if node is ABSENT:
                return node
        return node
