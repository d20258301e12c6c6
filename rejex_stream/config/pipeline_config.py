"""The whole configuration of one pipeline, as one immutable value; and as a page for readers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, NamedTuple, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, PrivateAttr, SecretStr
from pydantic.fields import FieldInfo
from rejex_connectors.kafka.kafka_settings import Kafka, RegistrySettings

from rejex_stream.config.deciding import Calendar, Detector, Features, Pipeline, Refit, Rejection
from rejex_stream.config.durations import DURATION, Durations, counts_of
from rejex_stream.config.input import Input
from rejex_stream.config.operating import Alerts, Logging, Metrics
from rejex_stream.config.reviewing import Channel, Review, Sensor
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.decode.reorder_buffer import ReorderRules
from rejex_stream.incidents import Alarms, Hold
from rejex_stream.monitor.config import Monitor
from rejex_stream.run.run_settings import Output, Run, State
from rejex_stream.settings import extra_of, fields_of, section_of, setting, toml

ENV_PREFIX = "REJEX_"


class Config(BaseModel):
    """One pipeline, section by section; read one with :func:`~rejex_stream.config.load_config`."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True
    )

    pipeline: Pipeline = setting(Pipeline, says="Who decides.")
    input: Input = setting(says="Where readings come from, and which field means what.")
    features: Features = setting(Features, says="What the detector sees of a reading.")
    detector: Detector = setting(Detector, says="The model that scores.")
    rejection: Rejection = setting(says="When to abstain.")
    refit: Refit = setting(Refit, says="When a batch detector is fitted again.")
    incidents: Alarms = setting(Alarms, says="When somebody is told of a fault.")
    hold: Hold = setting(Hold, says="What happens while a fault lasts.")
    calendar: tuple[Calendar, ...] = setting((), says="When work is planned.")
    monitor: Monitor = setting(Monitor, says="The watch over the rejection rate.")
    output: Output = setting(Output, says="Where outcomes go.")
    state: State = setting(State, says="What survives a restart.")
    review: Review = setting(Review, says="The queue of rejected events, and its console.")
    channels: dict[str, Channel] = setting({}, says="How people are shown a channel.")
    sensors: dict[str, Sensor] = setting({}, says="What people are told of a sensor.")
    run: Run = setting(Run, says="The loop.")
    kafka: Kafka = setting(Kafka, says="The broker.")
    schema_registry: RegistrySettings = setting(RegistrySettings, says="The schema registry.")
    metrics: Metrics = setting(Metrics, says="The Prometheus endpoint.")
    alerts: Alerts = setting(Alerts, says="Who is told of alarms.")
    logging: Logging = setting(Logging, says="What is said while running.")
    _durations: Durations = PrivateAttr(default_factory=Durations)

    @property
    def durations(self) -> Durations:
        """What was written as a time, by setting, and the events that it became."""
        return self._durations

    def written_as(self, durations: Durations) -> Self:
        """Remember which counts were written as times; returns the config itself."""
        self._durations = durations
        return self

    def without_follow(self) -> Self:
        return self.model_copy(update={"input": self.input.model_copy(update={"follow": False})})

    def reorder_rules(self) -> ReorderRules:
        """Return what becomes of readings before they are judged."""
        counters = [name for name, channel in self.channels.items() if channel.kind == "counter"]
        return self.input.reorder_rules(counters)

    def mapping(self) -> FieldMapping:
        """Return which field of a record means what; of channels also `missing` and `unit`."""
        given = {name: one.missing for name, one in self.channels.items() if one.missing}
        mapping = self.input.mapping()
        if quality := mapping.quality:
            units = {n: one.unit for n, one in self.channels.items() if one.unit in quality.good}
            quality = replace(quality, units=units)
        return replace(mapping, missing_of=given or None, quality=quality)

    def redacted(self) -> dict[str, Any]:
        """Return all values as JSON data, secrets and client options masked."""
        data = self.model_dump(mode="json")
        data["kafka"]["options"] = dict.fromkeys(data["kafka"]["options"], "**********")
        return data


# ------------------------------------------------------------------ the page, and the schema
_HEAD = """\
# Settings

One TOML file describes a pipeline; `rejex-stream validate FILE` checks it. An environment variable
`REJEX_SECTION__FIELD` (upper case, a double underscore at every dot) goes before the file, the
file before the default; lists and tables are written as JSON there. Two settings have no default:
which channels to read, and the share of anomalies to expect; and one choice has none: a tolerance,
or a review budget.

A whole number of events may be given as a time, such as `window = "14 d"` (ms, s, min, h, d, w): it
becomes a count once, by `input.sample_interval_ms`, and `validate` prints it. The settings of a
column count events alone.

This page is made from the program: `rejex-stream settings > docs/reference/settings.md`.
"""


_TITLES = {
    "features.columns": "[[features.columns]]",
    "calendar": "[[calendar]]",
    "channels": "[channels.NAME]",
    "sensors": '[sensors."PATTERN"]',
}


class SettingRow(NamedTuple):
    """One setting, for people."""

    key: str
    type: str
    unit: str
    default: str
    says: str


def settings() -> Iterator[SettingRow]:
    """Every setting, section by section, in the order of the declarations."""
    for name, field in Config.model_fields.items():
        section = section_of(field.annotation)
        assert section is not None
        yield from _of_section(name, section)


def settings_markdown() -> str:
    parts = [_HEAD]
    rows: dict[str, list[SettingRow]] = {}
    for row in settings():
        rows.setdefault(row.key.rpartition(".")[0], []).append(row)
    for section, entries in rows.items():
        title = _TITLES.get(section, f"[{section}]")
        parts.append(f"\n## `{title}`\n\n| setting | type | unit | default | what it decides |")
        parts.append("|---|---|---|---|---|")
        for row in entries:
            name = row.key.rpartition(".")[2]
            cells = (f"`{name}`", row.type, row.unit, row.default, row.says)
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    example = f"{ENV_PREFIX}REJECTION__WINDOW=5000"
    parts.append(f"\nFor example, `{example}` overrides `window` of `[rejection]`.")
    return "\n".join(parts) + "\n"


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema of a config: what editors complete by, and underline.

    It knows each setting by itself; how they fit together is `rejex-stream validate`'s.

    Examples
    --------
    >>> config_schema()["properties"]["rejection"]["$ref"]
    '#/$defs/Rejection'
    """
    schema = Config.model_json_schema()
    for section, name in counts_of(Config):
        declared = schema["properties"][section]["$ref"].rpartition("/")[2]
        declared = schema["$defs"][declared]["properties"][name]
        limits = [key for key in ("type", "minimum", "maximum") if key in declared]
        kinds = declared.pop("anyOf", None) or [{key: declared.pop(key) for key in limits}]
        declared["anyOf"] = [*kinds, {"type": "string", "pattern": DURATION}]
    said = {of.__name__: fields_of(of) for of in _sections(Config)}
    for title, part in {Config.__name__: schema, **schema["$defs"]}.items():
        for name, declared in part.get("properties", {}).items():
            unit, otherwise = declared.pop("unit", ""), declared.pop("otherwise", "")
            example = declared.pop("example", None)
            declared.pop("title", None)
            if example is not None:
                declared["examples"] = [example]
            if declared.get("default", "") is None:  # TOML has no null: left out is how it is said
                del declared["default"]
                declared["anyOf"] = [a for a in declared["anyOf"] if a != {"type": "null"}]
            more = [f"Unit: {unit}."] * bool(unit) + [f"Otherwise: {otherwise}."] * bool(otherwise)
            declared["description"] = " ".join([said[title][name].description or name, *more])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "rejex-stream",
        "description": "A pipeline of rejex-stream.",
    }


def _sections(section: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield section
    for below in filter(None, (section_of(f.annotation) for f in section.model_fields.values())):
        yield from _sections(below)


def _of_section(name: str, section: type[BaseModel]) -> Iterator[SettingRow]:
    nested: list[tuple[str, type[BaseModel]]] = []
    for key, field in fields_of(section).items():
        path = f"{name}.{key}"
        below = section_of(field.annotation)
        if below is not None:
            nested.append((path, below))
            if get_origin(field.annotation) is not tuple:
                continue
        yield SettingRow(
            path,
            _type(field.annotation),
            str(extra_of(field).get("unit", "")),
            _default(field),
            field.description or "",
        )
    for path, below in nested:
        yield from _of_section(path, below)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    otherwise = str(extra_of(field).get("otherwise", ""))
    if otherwise:
        return otherwise
    return f"`{toml(field.get_default(call_default_factory=True))}`"


_NAMES = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    datetime: "time",
    SecretStr: "text",
}


def _type(annotation: Any) -> str:  # noqa: ANN401 - a type
    if annotation in _NAMES:
        return _NAMES[annotation]
    inner = [part for part in get_args(annotation) if part not in (type(None), Ellipsis)]
    origin = get_origin(annotation)
    if origin is Annotated:
        name = _type(inner[0])
    elif origin is dict:
        name = "table"
    elif origin is tuple:
        item = "tables" if section_of(inner[0]) else _NAMES.get(inner[0], _type(inner[0]))
        name = f"list of {item}" + ("s" if item == "text" else "")
    elif inner and all(isinstance(part, str) for part in inner):
        name = ", ".join(f"`{part}`" for part in inner)
    elif inner:
        name = " or ".join(dict.fromkeys(_type(part) for part in inner))
    else:  # an enumeration
        name = ", ".join(f"`{member}`" for member in annotation)
    return name
