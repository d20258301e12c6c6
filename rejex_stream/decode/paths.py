"""Fields by path: ``motor.temp`` is the field ``temp`` of the object ``motor``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rejex_stream.errors import ConfigError

__all__ = ["field_path", "refuse_nested"]

_UNESCAPED_DOT = re.compile(r"(?<!\\)\.")


def field_path(field: str) -> tuple[str, ...]:
    r"""Split a field at its dots; a dot that belongs to a name is written ``\.``.

    Examples
    --------
    >>> field_path("motor.temp"), field_path(r"v1\.2")
    (('motor', 'temp'), ('v1.2',))
    """
    path = tuple(part.replace("\\.", ".") for part in _UNESCAPED_DOT.split(field))
    if not all(path):
        raise ConfigError(f"field {field!r} has an empty part: write nested fields as `a.b`")
    return path


def refuse_nested(paths: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse fields of which one stands inside the other."""
    for outer, outer_path in paths.items():
        for inner, inner_path in paths.items():
            if outer != inner and inner_path[: len(outer_path)] == outer_path:
                raise ConfigError(
                    f"field {inner!r} stands inside field {outer!r}, which is a value itself: "
                    f"map one of them"
                )
