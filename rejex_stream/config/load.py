"""Reading a config: file, then environment, then every complaint at once.

Precedence: environment (``REJEX_SECTION__FIELD``) over file over default.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource, SettingsError

from rejex_stream.config.checks import cross_check
from rejex_stream.config.model import ENV_PREFIX, Config
from rejex_stream.errors import ConfigError
from rejex_stream.settings import Problem, nearest, of_validation, render

__all__ = ["check_config", "load_config", "name_of", "parse_config"]


def load_config(path: str | Path) -> Config:
    """Read and check a config file, with overrides from the environment."""
    config, problems = check_config(path)
    if config is None:
        raise ConfigError(render(str(path), problems))
    return config


def check_config(path: str | Path) -> tuple[Config | None, tuple[Problem, ...]]:
    """Read a config file and find all that is wrong with it; the config is there if nothing is."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        why = error.strerror or type(error).__name__
        return None, (Problem("", None, "a readable TOML file", f"{why}: check the path"),)
    except UnicodeDecodeError as error:
        mend = f"byte {error.start} is not UTF-8: save the file as UTF-8"
        return None, (Problem("", None, "a TOML file", mend),)
    return parse_config(text, name=name_of(path))


def name_of(path: str | Path) -> str:
    """Return a pipeline's name after a file: letters, digits, dot, dash, underline.

    Examples
    --------
    >>> name_of("plants/Wärme 2.toml")
    'W-rme-2'
    """
    stem = Path(path).stem
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in stem)


def parse_config(
    text: str, *, name: str | None = None
) -> tuple[Config | None, tuple[Problem, ...]]:
    """Check a config given as TOML text, with overrides from the environment.

    Examples
    --------
    >>> config, problems = parse_config('''
    ... [input]
    ... path = "water.csv"
    ... channels = ["flow"]
    ... time = "t"
    ... [rejection]
    ... contamination = 0.6
    ... tolerence = 32
    ... ''')
    >>> config is None
    True
    >>> for problem in problems:
    ...     print(problem)
    rejection.contamination = 0.6: expected less than 0.5 (share of events); γ, the expected \
share of anomalies, e.g. 0.02.
    rejection.tolerence: unknown key; did you mean 'tolerance'?
    """
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return None, (Problem("", None, "a TOML file", f"{error}: mend that line"),)
    overrides, problems = _environment()
    merged = _merge({"pipeline": {"name": name}} if name else {}, _merge(given, overrides))
    variables = {key: ENV_PREFIX + key.replace(".", "__").upper() for key in _paths(overrides)}
    config: Config | None = None
    broken: set[str] = set()
    try:
        config = Config(**merged)
    except ValidationError as error:
        found = of_validation(error, Config, merged, variables)
        broken = {problem.key.split(".")[0] for problem in found}
        problems += found
    problems += cross_check(merged, frozenset(broken))
    return (None if problems else config), tuple(problems)


def _environment() -> tuple[dict[str, Any], list[Problem]]:
    """Return overrides from ``REJEX_SECTION__FIELD``, and complaints about the others."""
    problems = []
    for name in sorted(os.environ):
        if not name.startswith(ENV_PREFIX) or "__" not in name:
            continue
        section = name.removeprefix(ENV_PREFIX).split("__")[0].lower()
        if section not in Config.model_fields:
            mend = f"names no section; did you mean {nearest(section, Config.model_fields)}?"
            problems.append(Problem(section, None, "", mend, variable=name))
    try:
        found = EnvSettingsSource(Config)()
    except SettingsError as error:
        problems.append(Problem("", None, "JSON where a list or table is meant", f"{error}"))
        return {}, problems
    params = found.get("detector", {}).get("params")
    if isinstance(params, dict):
        found["detector"]["params"] = {key: _toml_value(value) for key, value in params.items()}
    return found, problems


def _toml_value(text: object) -> object:
    """Read a parameter as TOML would: ``10`` is a number, what is no TOML is a text."""
    if not isinstance(text, str):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = _merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


def _paths(tree: Mapping[str, Any], above: str = "") -> list[str]:
    paths = []
    for key, value in tree.items():
        here = f"{above}.{key}" if above else key
        paths += _paths(value, here) if isinstance(value, Mapping) else [here]
    return paths
