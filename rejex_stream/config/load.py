"""Reading a config: file, then environment, then every complaint at once.

Precedence: environment (``REJEX_SECTION__FIELD``) over file over default. What no single setting
can know, whether they fit each other, is checked by building the very objects that the pipeline
will use, so that a config that passes cannot fail for its values later. A section that is known to
be broken is left out, and with it the checks that need it.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from rejex_stream.config.assembly import file_format, file_places, kafka_settings, monitor_config
from rejex_stream.config.durations import with_counts
from rejex_stream.config.input import REGISTRY_FORMATS
from rejex_stream.config.pipeline_config import ENV_PREFIX, Config
from rejex_stream.config.reviewing import Channel, angles_of, sides_of
from rejex_stream.decode import CsvDecoder
from rejex_stream.decode.paths import origin_of
from rejex_stream.decode.written import require_encoding
from rejex_stream.detectors import make_detector
from rejex_stream.engine import EngineSpec
from rejex_stream.errors import ConfigError, RejexError
from rejex_stream.features import FeatureSpec
from rejex_stream.protocols import require_identity
from rejex_stream.rejection.bounds import cost_bound
from rejex_stream.settings import Problem, nearest, of_validation, render


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
        fix = f"byte {error.start} is not UTF-8: save the file as UTF-8"
        return None, (Problem("", None, "a TOML file", fix),)
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

    `name` is the pipeline's where the text gives none.
    """
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return None, (Problem("", None, "a TOML file", f"{error}: fix that line"),)
    return check_sections(given, name=name)


def check_sections(
    given: Mapping[str, Any], *, name: str | None = None
) -> tuple[Config | None, tuple[Problem, ...]]:
    """Check a config given as its sections, with overrides from the environment."""
    overrides, problems = _environment()
    merged = _merge({"pipeline": {"name": name}} if name else {}, _merge(given, overrides))
    variables = {key: ENV_PREFIX + key.replace(".", "__").upper() for key in _paths(overrides)}
    merged, durations, uncounted = with_counts(merged, Config, variables)
    problems += uncounted
    config: Config | None = None
    broken = {problem.key.split(".")[0] for problem in uncounted}
    try:
        config = Config(**merged).written_as(durations)
    except ValidationError as error:
        invalid = of_validation(error, Config, merged, variables)
        broken |= {problem.key.split(".")[0] for problem in invalid}
        problems += invalid
    problems += _cross_check(merged, frozenset(broken))
    return (None if problems else config), tuple(problems)


def _environment() -> tuple[dict[str, Any], list[Problem]]:
    problems, sections = [], Config.model_fields
    names = sorted(name for name in os.environ if name.upper().startswith(ENV_PREFIX))
    named = {name: name[len(ENV_PREFIX) :].split("__")[0].lower() for name in names}
    for name, section in named.items():
        if name.startswith(ENV_PREFIX) and "__" in name and section not in sections:
            fix = f"names no section; did you mean {nearest(section, sections)}?"
            problems.append(Problem(section, None, "", fix, variable=name))
    if sections.keys().isdisjoint(named.values()):
        return {}, problems
    from pydantic_settings import EnvSettingsSource, SettingsError  # slow to load

    try:
        model: Any = Config  # whose fields are all that is looked at
        overrides = EnvSettingsSource(model, env_prefix=ENV_PREFIX, env_nested_delimiter="__")()
    except SettingsError as error:
        problems.append(Problem("", None, "JSON where a list or table is meant", f"{error}"))
        return {}, problems
    params = overrides.get("detector", {}).get("params")
    if isinstance(params, dict):
        overrides["detector"]["params"] = {key: _toml_value(value) for key, value in params.items()}
    return overrides, problems


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


# ------------------------------------------------------- do the settings fit each other?
def _cross_check(merged: Mapping[str, Any], broken: frozenset[str]) -> list[Problem]:
    sections: dict[str, Any] = {}
    for name, field in Config.model_fields.items():
        section = field.annotation
        if name == "channels" and name not in broken:
            sections[name] = {
                channel: Channel.model_validate(given)
                for channel, given in merged.get(name, {}).items()
            }
        if name in broken or not isinstance(section, type) or not issubclass(section, BaseModel):
            continue
        sections[name] = section.model_validate(merged.get(name, {}))
    whole: Any = SimpleNamespace(**sections)
    problems: list[Problem] = []
    failed: set[str] = set()
    for check in _CHECKS:
        if not set(check.needs) <= sections.keys() or failed & set(check.after):
            continue
        try:
            check.run(whole)
        except RejexError as error:
            failed.add(check.key)
            problems.append(Problem(check.key, None, "", str(error)))
    return problems


class _Check(NamedTuple):
    """One thing that must hold; skipped where a check it builds upon has failed."""

    key: str
    needs: tuple[str, ...]
    run: Callable[[Any], object]
    after: tuple[str, ...] = ()


def _places(config: Any) -> None:  # noqa: ANN401 - the sections that stand
    source = config.input
    if source.kind == "file":
        if source.path is None:
            raise ConfigError("path is missing: name the file to read, or - for standard input.")
        named = (*([source.sensor] if isinstance(source.sensor, str) else ()), source.tag)
        for spec in named:
            if spec and ":" in spec and origin_of(spec) is not None:
                raise ConfigError(
                    f"{spec!r} is read beside a record of Kafka, and a file has lines."
                )
        if source.topics:
            raise ConfigError("topics are for kind = 'kafka', but kind is 'file': drop one.")
        if source.time is None and source.sample_interval_ms is None:
            raise ConfigError(
                "time is missing: lines of a file carry no time of their own, so name the field "
                "that holds it, or give sample_interval_ms."
            )
        return
    if not source.topics:
        raise ConfigError("topics is missing: name at least one topic to read.")
    if not config.state.resume:
        raise ConfigError("state.resume = false is for files: Kafka's offsets are the group's.")
    only_files = (
        "path", "follow", "delimiter", "encoding", "columns", "sheet", "skip_rows",
    )  # fmt: skip
    for name in only_files:
        given = getattr(source, name)
        if given:
            raise ConfigError(f"{name} is for kind = 'file', but kind is 'kafka': drop one.")


def _format(config: Any) -> None:  # noqa: ANN401
    source = config.input
    _require_json(source)
    if source.encoding is not None:
        require_encoding(source.encoding, "encoding is")
    if source.kind == "kafka":
        if source.format in ("csv", "excel", "parquet"):
            raise ConfigError(
                f"{source.format} is for kind = 'file': leave it out for JSON, or give avro, "
                "protobuf."
            )
    elif source.format in REGISTRY_FORMATS:
        raise ConfigError(
            f"{source.format} is for kind = 'kafka': a file is csv, jsonl, excel or parquet."
        )
    elif source.path is not None:
        kind, _ = file_format(config)
        if kind not in ("excel", "parquet"):
            if source.sheet is not None:
                raise ConfigError(
                    "sheet is for Excel workbooks: drop it, or give format = 'excel'."
                )
            return
        if source.path == "-":
            raise ConfigError(f"{kind} is no text that could be read from a pipe: name a file.")
        for name in ("follow", "delimiter", "encoding"):
            if getattr(source, name):
                raise ConfigError(
                    f"{name} is for files of text, but the format is {kind!r}: drop it."
                )


def _select(config: Any) -> None:  # noqa: ANN401
    source = config.input
    if source.select is None:
        return
    if source.kind == "file" and source.path is not None and file_format(config)[0] != "jsonl":
        raise ConfigError("select is for JSON: a table has one reading a row; drop it.")
    from rejex_stream.decode.select import Selector

    Selector(source.select)


def _columns(config: Any) -> None:  # noqa: ANN401
    source = config.input
    if not source.columns or source.kind != "file" or source.path is None:
        return
    kind, delimiter = file_format(config)
    if kind in ("jsonl", "parquet"):
        raise ConfigError("columns is for tables without a header: this format names its fields.")
    CsvDecoder(source.mapping(), source.columns, delimiter)


def _require_json(source: Any) -> None:  # noqa: ANN401
    """Refuse what readers by a schema do not know, where records are not made JSON of first."""
    if source.format in REGISTRY_FORMATS and source.select is None:
        asked = {"tag": source.tag, "quality": source.quality, "partial": source.partial}
        for name, value in asked.items():
            if value not in (None, "missing"):
                raise ConfigError(
                    f"{name} is for JSON, but format is {source.format!r}: drop it, or give "
                    "select = '.', by which records are read as JSON."
                )


def _registry(config: Any) -> None:  # noqa: ANN401
    needed = config.input.format in REGISTRY_FORMATS
    if needed and config.schema_registry.url is None:
        raise ConfigError(
            f"url is missing: input.format = {config.input.format!r} needs the registry's address."
        )
    if config.schema_registry.url is not None:
        if not needed:
            raise ConfigError(
                f"url is given, but input.format is {config.input.format!r}: give input.format, "
                "avro or protobuf, or leave the registry out."
            )
        config.schema_registry.check()


def _costs(config: Any) -> None:  # noqa: ANN401
    rejection = config.rejection
    if rejection.costs.c_r is not None:
        costs = rejection.costs
        band = rejection.policy().band(rejection.window)
        cost_bound(band, costs.c_fp, costs.c_fn, costs.c_r)


def _schedule(config: Any) -> None:  # noqa: ANN401
    config.refit.schedule(config.rejection.window).require(config.rejection.window)


def _flags(config: Any) -> None:  # noqa: ANN401
    source = config.input
    if source.flags and source.channels:
        FeatureSpec(tuple(source.channels), flags=source.flags)


def _features(config: Any) -> None:  # noqa: ANN401
    source = config.input
    config.features.spec(tuple(source.channels), source.flags)


def _detector(config: Any) -> None:  # noqa: ANN401
    require_identity(make_detector(config.detector.name, **config.detector.params))


def _monitor(config: Any) -> None:  # noqa: ANN401
    monitor_config(config).require()


def _channels(config: Any) -> None:  # noqa: ANN401
    known = config.input.mapping().channel_names
    for name, entry in config.channels.items():
        if name not in known:
            raise ConfigError(
                f"channels.{name}: the input has no such channel; did you mean "
                f"{nearest(name, known)}?"
            )
        if entry.low is not None and entry.high is not None and entry.low >= entry.high:
            raise ConfigError(
                f"channels.{name}: low = {entry.low} is not below high = {entry.high}: swap them."
            )
        for setting in ("period", "follows"):
            if entry.kind != "angle" and getattr(entry, setting) is not None:
                raise ConfigError(
                    f'channels.{name}: {setting} is of angles: add kind = "angle", or leave '
                    f"{setting} out."
                )
        if entry.limit == "alarm" and entry.low is None and entry.high is None:
            raise ConfigError(
                f'channels.{name}: limit = "alarm" without a limit: give low, high or both, beyond '
                'which an event is an anomaly; or take limit = "draw".'
            )


def _sides(config: Any) -> None:  # noqa: ANN401
    sides, angles = sides_of(config.channels), angles_of(config.channels)
    siblings = config.input.siblings_said()
    if sides or angles or siblings:
        names, flags = config.input.mapping().channel_names, config.input.flags
        detector = make_detector(config.detector.name, **config.detector.params)
        features = config.features.spec(names, flags, sides, angles, siblings)
        EngineSpec(detector, features, config.rejection.policy(), config.rejection.window)


def _kafka(config: Any) -> None:  # noqa: ANN401
    if config.input.kind == "kafka" and config.input.topics:
        kafka_settings(config)


_SIDED = ("channels", "input", "features", "detector", "rejection")
_CHECKS = (
    _Check("input", ("input", "state"), _places),
    _Check("input.format", ("input",), _format),
    _Check("schema_registry", ("schema_registry", "input"), _registry, after=("input.format",)),
    _Check(
        "output",
        ("input", "output", "state", "pipeline"),
        lambda config: config.input.kind != "file" or file_places(config),
    ),
    _Check("input", ("input",), lambda config: config.input.mapping()),
    _Check("input.select", ("input",), _select, after=("input", "input.format")),
    _Check("input.columns", ("input",), _columns, after=("input", "input.format")),
    _Check("rejection", ("rejection",), lambda c: c.rejection.policy().require(c.rejection.window)),
    _Check("rejection.costs", ("rejection",), _costs, after=("rejection",)),
    _Check("refit", ("refit", "rejection"), _schedule),
    _Check("input.flags", ("input",), _flags),
    _Check("features", ("features", "input"), _features, after=("input.flags",)),
    _Check("detector", ("detector",), _detector),
    _Check("monitor", ("monitor", "rejection"), _monitor, after=("rejection",)),
    _Check("alerts", ("alerts",), lambda config: config.alerts.check()),
    _Check("channels", ("channels", "input"), _channels, after=("input",)),
    _Check("channels", _SIDED, _sides, after=("input", "rejection", "features", "detector")),
    _Check("review", ("review",), lambda config: config.review.check()),
    _Check("kafka", ("kafka", "input", "output", "state", "pipeline"), _kafka),
)
