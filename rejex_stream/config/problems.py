"""What is wrong with a config, as values: where, what stood there, what was expected, the mend."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from rejex_stream.addresses import without_login
from rejex_stream.config.fields import SECRET
from rejex_stream.config.model import ENV_PREFIX, Config

__all__ = ["Problem", "nearest", "of_validation", "render"]

_MASK = "***"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a config.

    Attributes
    ----------
    key
        ``section.key``; empty for the file as a whole.
    value
        What stood there, printable and short; ``None`` where nothing or where it is secret.
    expected
        What can stand there.
    mend
        What to do.
    variable
        The environment variable it came from, if it did.
    """

    key: str
    value: str | None
    expected: str
    mend: str
    variable: str | None = None

    def __str__(self) -> str:
        where = self.key
        if self.variable is not None:
            where = f"{self.variable} ({self.key})" if self.key else self.variable
        if self.value is not None:
            where += f" = {self.value}"
        parts = [f"expected {self.expected}"] if self.expected else []
        parts += [self.mend] if self.mend else []
        said = "; ".join(parts)
        said += "" if said.endswith((".", "?")) else "."
        return f"{where}: {said}" if where else said[0].upper() + said[1:]


def render(path: str, problems: Sequence[Problem]) -> str:
    """Return all problems of a file as one message."""
    if len(problems) == 1:
        return f"{path}: {problems[0]}"
    lines = [f"{path} has {len(problems)} problems:", *(f"  {problem}" for problem in problems)]
    return "\n".join(lines)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word most like `word`, quoted; or all of them."""
    words = list(known)
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    return repr(near[0]) if near else "one of " + ", ".join(words)


def of_validation(
    error: ValidationError, given: Mapping[str, Any], overridden: frozenset[str]
) -> list[Problem]:
    """Turn pydantic's errors into problems; `overridden` keys came from the environment."""
    problems: dict[str, Problem] = {}
    for found in error.errors(include_url=False, include_input=False, include_context=True):
        path = _path_in(given, found["loc"])
        key = ".".join(path)
        if key in problems:  # the branches of a union complain once each
            continue
        variable = ENV_PREFIX + "__".join(path).upper() if key in overridden else None
        problems[key] = _problem(found, path, _at(given, path), variable)
    return list(problems.values())


def _problem(
    found: Any,  # noqa: ANN401 - pydantic's ErrorDetails
    path: tuple[str, ...],
    value: object,
    variable: str | None,
) -> Problem:
    key, kind = ".".join(path), found["type"]
    if kind == "extra_forbidden":
        known = _known_keys(path[:-1])
        what = "unknown section" if len(path) == 1 else "unknown key"
        return Problem(key, None, "", f"{what}; did you mean {nearest(path[-1], known)}?", variable)
    field = field_at(path)
    hint = _hint(field)
    if kind == "missing":
        what = "is missing" if len(path) > 1 else "the section is missing"
        return Problem(key, None, "", f"{what}: {hint}" if hint else what, variable)
    expected = found["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    expected = expected.replace("0.6931471805599453", "ln 2 = 0.693")
    if field is not None and found["type"] != "literal_error":
        unit = extra_of(field).get("unit")
        expected += f" ({unit})" if unit and unit != SECRET else ""
    if kind == "literal_error" and isinstance(value, str) and field is not None:
        choices = [str(c) for c in _choices(field.annotation)]
        near = difflib.get_close_matches(value, choices, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else hint
    return Problem(key, _shown(value, path), expected, hint, variable)


def _hint(field: FieldInfo | None) -> str:
    if field is None:
        return ""
    hint = (field.description or "").rstrip(".")
    example = extra_of(field).get("example")
    return f"{hint}, e.g. {toml(example)}" if example is not None else hint


def _choices(annotation: Any) -> list[Any]:  # noqa: ANN401 - a type
    inner = get_args(annotation)
    if not inner:
        return []
    return [c for part in inner for c in (_choices(part) if get_args(part) else [part])]


def _shown(value: object, path: tuple[str, ...]) -> str | None:
    field = field_at(path)
    if "client_options" in path or (field is not None and extra_of(field).get("unit") == SECRET):
        return _MASK
    if isinstance(value, Mapping | list):
        return None
    text = without_login(toml(value))
    return text if len(text) <= 60 else text[:59] + "…"


def toml(value: object) -> str:
    """Write a plain value as TOML would, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.encode("unicode_escape").decode().replace('"', '\\"') + '"'
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(str(k))} = {toml(v)}" for k, v in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    return str(value)


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else f'"{name}"'


def field_at(path: Sequence[str]) -> FieldInfo | None:
    """Return the declaration of a setting by its path."""
    model: type[BaseModel] | None = Config
    field: FieldInfo | None = None
    for part in path:
        if model is None:
            return field if part.isdigit() else None
        field = model.model_fields.get(part, field if part.isdigit() else None)
        if field is None:
            return None
        model = section_of(field.annotation)
    return field


def section_of(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401 - a type
    """Return the section that a field holds, directly, optionally or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        found = section_of(inner)
        if found is not None:
            return found
    return None


def extra_of(field: FieldInfo) -> Mapping[str, Any]:
    """Return unit, example and so on of a setting."""
    extra = field.json_schema_extra
    return extra if isinstance(extra, Mapping) else {}


def _known_keys(path: Sequence[str]) -> list[str]:
    model: type[BaseModel] | None = Config
    for part in path:
        if model is not None and part in model.model_fields:
            model = section_of(model.model_fields[part].annotation)
    return list(model.model_fields) if model is not None else []


def _path_in(given: Mapping[str, Any], loc: Sequence[int | str]) -> tuple[str, ...]:
    """Keep of pydantic's location what stands in the file; it also names branches of unions."""
    path: list[str] = []
    node: Any = given
    for part in loc:
        below = _child(node, part)
        if below is not _ABSENT:
            node = below
            path.append(str(part))
        elif isinstance(node, Mapping) and part == loc[-1] and field_at([*path, str(part)]):
            path.append(str(part))  # missing, and ought to be there
    return tuple(path)


def _at(given: Mapping[str, Any], path: Sequence[str]) -> object:
    node: Any = given
    for part in path:
        node = _child(node, int(part) if isinstance(node, list | tuple) else part)
        if node is _ABSENT:
            return None
    return node


_ABSENT = object()


def _child(node: object, part: int | str) -> Any:  # noqa: ANN401 - whatever TOML holds
    if isinstance(node, Mapping):
        return node.get(part, _ABSENT)
    if isinstance(node, list | tuple) and isinstance(part, int) and part < len(node):
        return node[part]
    return _ABSENT
