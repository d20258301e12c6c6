"""How a setting is declared and refused: type, limit, unit, default and sentence, stated once.

A :class:`Section` is a table of the config file and the settings of a concept at once: the docs,
the messages for a value that cannot be, and the checks of what is given in Python come from it.
"""

from __future__ import annotations

import ast
import copy
import difflib
import inspect
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, ClassVar, Self, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from rejex_stream.addresses import expected_http_address, without_login
from rejex_stream.errors import ConfigError, explaining_os_errors

SECRET = "secret"
"""In place of a unit: the value is never printed."""


def _http_address(value: str) -> str:
    if expected := expected_http_address(value):
        raise PydanticCustomError("http_address", "{expected}", {"expected": expected})
    return value


HttpAddress = Annotated[str, AfterValidator(_http_address)]


class Section(BaseModel):
    """A table of the config file: immutable, and an unknown key is an error.

    Examples
    --------
    >>> class Pump(Section):
    ...     strokes: int = setting(60, unit="1/min", says="How fast it is.", ge=1)
    >>> Pump().replace(strokes=0)
    Traceback (most recent call last):
    rejex_stream.errors.ConfigError: Pump: strokes = 0: expected greater than or equal to 1 \
(1/min); How fast it is.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        validate_default=True,
        hide_input_in_errors=True,
        defer_build=True,  # within that of the whole config, or where one is made alone
    )
    table: ClassVar[str] = ""
    """Where it stands in the file, for the sentences of :meth:`check`."""

    def __init__(self, /, **values: Any) -> None:  # noqa: ANN401
        try:
            super().__init__(**values)
        except ValidationError as error:
            problems = of_validation(error, type(self), values)
            raise ConfigError(render(type(self).__name__, problems)) from None
        self.check()

    # A section within a config is validated with the whole, so that all problems are said at once.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def check(self) -> None:
        """Refuse what no single setting can know to be wrong."""

    def replace(self, **changes: Any) -> Self:  # noqa: ANN401 - as the fields
        """Return the same settings but for `changes`, checked again."""
        return type(self)(**dict(self) | changes)

    def reveal(self, name: str) -> str | None:
        """Read a secret now: as it stands, or from where ``env:NAME`` or ``file:PATH`` says.

        A file is read less one newline; its bytes may be any (``surrogateescape``).
        """
        declared = getattr(self, name)
        if declared is None:
            return None
        value = str(declared.get_secret_value())
        kind, _, place = value.partition(":")
        if kind == "env":
            if place in os.environ:
                return os.environ[place]
            raise ConfigError(
                f"{self.table}.{name}: environment variable {place} is not set: it holds a secret."
            )
        if kind == "file":
            failed = f"{self.table}.{name}: {place} cannot be read"
            with explaining_os_errors(failed, kind=ConfigError):
                text = Path(place).read_bytes().decode("utf-8", "surrogateescape")
            return text.removesuffix("\r\n").removesuffix("\n")
        return value


def setting(
    default: Any = ...,  # noqa: ANN401 - as pydantic's own Field
    *,
    unit: str = "",
    says: str | None = None,
    otherwise: str = "",
    example: Any = None,  # noqa: ANN401
    **limits: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """Declare a setting: its unit, one sentence on what it decides, and limits as pydantic's.

    The sentence stands in `says`, or below the declaration as its docstring. `otherwise` is what
    happens where an optional one is left out, e.g. ``half a window``, and ``none`` where the
    default is ``None``; `example` a value that works, for error messages.
    """
    otherwise = otherwise or ("none" if default is None else "")
    extra: dict[str, Any] = {"unit": unit, "otherwise": otherwise, "example": example}
    if isinstance(default, type):
        return Field(default_factory=default, description=says, json_schema_extra=extra, **limits)
    return Field(default, description=says, json_schema_extra=extra, **limits)


def secret(*, says: str | None = None, otherwise: str = "none") -> Any:  # noqa: ANN401
    """Declare a secret, as it is or as ``env:NAME`` or ``file:PATH``: never printed."""
    extra: dict[str, Any] = {"unit": SECRET, "otherwise": otherwise}
    return Field(None, description=says, json_schema_extra=extra, repr=False)


def stated(section: type[BaseModel], name: str) -> Any:  # noqa: ANN401 - as pydantic's own Field
    """Declare a setting that a section states already: the same limits, default and sentence."""
    declared = copy.copy(section.model_fields[name])
    known: Any = declared.json_schema_extra
    extra: dict[str, Any] = {**known, "stated_by": (section, name)}
    declared.json_schema_extra = extra
    return declared


@cache
def fields_of(section: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """Return the settings of a section with their sentences, read where somebody asks."""
    fields = section.model_fields
    for kind in section.__mro__[: section.__mro__.index(BaseModel)]:
        for name, text in written_below(kind).items():
            if name in fields:
                fields[name].description = fields[name].description or " ".join(text.split())
    for field in fields.values():
        extra: Any = field.json_schema_extra or {}
        if "stated_by" in extra:
            other, own = extra["stated_by"]
            field.description = fields_of(other)[own].description
    return fields


def written_below(kind: type) -> dict[str, str]:
    """Return what stands below the fields of a type, each text below one line or several."""
    texts, above, last = dict[str, str](), list[str](), 0
    try:
        (declared,) = ast.parse(dedent(inspect.getsource(kind))).body
    except OSError:  # made at a prompt
        return {}
    for node in declared.body if isinstance(declared, ast.ClassDef) else ():
        above, last = [] if node.lineno > last + 1 else above, node.end_lineno or 0
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            above.append(node.target.id)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and above:
            texts |= dict.fromkeys(above, str(node.value.value))
            above = []
    return texts


_MASK = "***"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a config; key and value are empty for the file as a whole.

    The value is printable and short, and ``None`` where it is secret.
    """

    key: str
    value: str | None
    expected: str
    fix: str
    variable: str | None = None

    def __str__(self) -> str:
        where = self.key
        if self.variable is not None:
            where = f"{self.variable} ({self.key})" if self.key else self.variable
        if self.value is not None:
            where += f" = {self.value}"
        parts = [f"expected {self.expected}"] if self.expected else []
        parts += [self.fix] if self.fix else []
        sentence = "; ".join(parts)
        sentence += "" if sentence.endswith((".", "?")) else "."
        return f"{where}: {sentence}" if where else sentence[0].upper() + sentence[1:]


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
    error: ValidationError,
    model: type[BaseModel],
    given: Mapping[str, Any],
    variables: Mapping[str, str] | None = None,
) -> list[Problem]:
    """Turn pydantic's errors into problems; `variables`: by key, where a value came from."""
    problems: dict[str, Problem] = {}
    for complaint in error.errors(include_url=False, include_input=False, include_context=True):
        path = _path_in(model, given, complaint["loc"])
        key = ".".join(path)
        if key in problems:  # the branches of a union complain once each
            continue
        variable = (variables or {}).get(key)
        problems[key] = _problem(complaint, model, path, _at(given, path), variable)
    return list(problems.values())


def _problem(
    complaint: Any,  # noqa: ANN401 - pydantic's ErrorDetails
    model: type[BaseModel],
    path: tuple[str, ...],
    value: object,
    variable: str | None,
) -> Problem:
    key, kind = ".".join(path), complaint["type"]
    if kind == "extra_forbidden":
        known = _known_keys(model, path[:-1])
        what = "unknown key" if issubclass(model, Section) or len(path) > 1 else "unknown section"
        fix = f"{what}; did you mean {nearest(path[-1], known)}?"
        return Problem(key, None, "", fix, variable)
    field = field_at(model, path)
    hint = _hint(field)
    if kind == "missing":
        what = "is missing"
        if len(path) == 1 and not issubclass(model, Section):
            what = "the section is missing"
        return Problem(key, None, "", f"{what}: {hint}" if hint else what, variable)
    expected = complaint["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    expected = expected.replace(repr(math.log(2)), "ln 2 = 0.693")
    if field is not None and complaint["type"] != "literal_error":
        unit = extra_of(field).get("unit")
        expected += f" ({unit})" if unit and unit != SECRET else ""
    if kind == "literal_error" and isinstance(value, str) and field is not None:
        choices = [str(c) for c in _choices(field.annotation)]
        near = difflib.get_close_matches(value, choices, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else hint
    return Problem(key, _shown(value, model, path), expected, hint, variable)


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


def _shown(value: object, model: type[BaseModel], path: tuple[str, ...]) -> str | None:
    above = (field_at(model, path[:depth]) for depth in range(1, len(path) + 1))
    if any(field is not None and extra_of(field).get("unit") == SECRET for field in above):
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
        # A text of JSON is one of TOML too; what a terminal would act on is spelled out.
        return "".join(
            char if char.isprintable() else f"\\U{ord(char):08x}"
            for char in json.dumps(value, ensure_ascii=False)
        )
    if isinstance(value, Mapping):
        inner = ", ".join(f"{toml_key(str(k))} = {toml(v)}" for k, v in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    return str(value)


def toml_key(name: str) -> str:
    """Return a name as a key of TOML."""
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else toml(name)


def field_at(root: type[BaseModel], path: Sequence[str]) -> FieldInfo | None:
    """Return the declaration of a setting by its path."""
    model: type[BaseModel] | None = root
    field: FieldInfo | None = None
    named = False  # the next part is a name of the user's
    for part in path:
        if named:
            named = False
            continue
        if model is None:
            return field if part.isdigit() else None
        field = fields_of(model).get(part, field if part.isdigit() else None)
        if field is None:
            return None
        model = section_of(field.annotation)
        named = model is not None and get_origin(field.annotation) is dict
    return field


def section_of(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401 - a type
    """Return the section that a field holds, directly, optionally or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        section = section_of(inner)
        if section is not None:
            return section
    return None


def extra_of(field: FieldInfo) -> Mapping[str, Any]:
    """Return unit, example and so on of a setting."""
    extra = field.json_schema_extra
    return extra if isinstance(extra, Mapping) else {}


def _known_keys(root: type[BaseModel], path: Sequence[str]) -> list[str]:
    field = field_at(root, path)
    model = root if field is None else section_of(field.annotation)
    return list(model.model_fields) if model is not None else []


def _path_in(
    model: type[BaseModel], given: Mapping[str, Any], loc: Sequence[int | str]
) -> tuple[str, ...]:
    """Keep of pydantic's location what stands in the file; it also names branches of unions."""
    path: list[str] = []
    node: Any = given
    for part in loc:
        below = _child(node, part)
        if below is not _ABSENT:
            node = below
            path.append(str(part))
        elif isinstance(node, Mapping) and part == loc[-1] and field_at(model, [*path, str(part)]):
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
