"""A config that reads what was understood, and judges it as it was scored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rejex_stream.config import Config, parse_config
from rejex_stream.config.assembly import file_decoder, open_source, records_of
from rejex_stream.config.durations import in_days
from rejex_stream.config.input import ALL_SENSORS
from rejex_stream.decode import Decoder
from rejex_stream.decode.reorder_buffer import ReorderRules
from rejex_stream.errors import ConfigError, explaining_os_errors
from rejex_stream.features import Circle
from rejex_stream.plan.suggest import Suggestion
from rejex_stream.settings import field_at, render, toml, toml_key
from rejex_stream.types import Record


class Opened(NamedTuple):
    """What reads a file."""

    decoder: Decoder
    records: Iterator[Record]
    rules: ReorderRules


def opened(
    source: Mapping[str, object], told: Mapping[str, Mapping[str, object]], *, pooled: bool = False
) -> Opened:
    """Open a file as the config reads it that is drafted of the same."""
    said = {**source, "group": ALL_SENSORS if pooled else None}
    config = Config.model_validate({
        "input": {name: value for name, value in said.items() if value is not None},
        "channels": told,
        "rejection": {"contamination": 0.05, "tolerance": 1},  # nothing is judged by it
    })  # fmt: skip
    file = open_source(config)
    return Opened(file_decoder(config, file), records_of(file), config.reorder_rules())


def draft_config(
    source: Mapping[str, object],
    choice: Suggestion,
    *,
    name: str,
    comments: Sequence[str] = (),
    kafka: Mapping[str, object] | None = None,
    told: Mapping[str, Mapping[str, object]],
) -> str:
    """Write the config, a TOML text, under which ``run`` gives the verdicts of ``score``."""
    spec = choice.spec
    policy = spec.policy
    rejection: dict[str, object] = {
        "contamination": policy.contamination,
        "window": in_days(spec.window, source.get("sample_interval_ms")),
        "tolerance": policy.tolerance,
        "review_budget": None if policy.rate is None else {"rate": policy.rate},
    }
    ending = "" if kafka else ".jsonl"
    roles = ("verdicts", "review", "incidents", "deadletter", *(("labels",) if kafka else ()))
    sections: dict[str, Mapping[str, object]] = {
        "pipeline": {"name": name, "seed": spec.seed},
        "input": {
            **source,
            "control": f"{name}.control{ending}",
            "group": "*" if choice.pooled else None,
        },
        "detector": {"name": choice.detector},
        "rejection": rejection,
        "output": {role: f"{name}.{role}{ending}" for role in roles},
    }
    if kafka:
        sections |= {"state": {"topic": f"{name}.state"}, "kafka": kafka}
    parts = ["\n".join(f"# {line}" for line in comments)] if comments else []
    parts += [_section(title, values) for title, values in sections.items()]
    carry, preset = spec.features.carry_forward_events, spec.features.preset
    if preset == getattr(spec.detector, "preset", None):  # which the detector brings
        preset = None
    if carry or preset:
        given = {"preset": preset, "carry_forward_events": carry or None}
        parts.append(_section("features", given))
    for column in spec.features.features:
        made = {name: getattr(column, name) for name in ("kind", "channel", "events", "seconds")}
        parts.append(_section("[features.columns]", made))
    angles = {
        angle.channel: {
            "kind": "angle",
            "period": None if angle.period == Circle._field_defaults["period"] else angle.period,
            "follows": angle.follows or None,
        }
        for angle in spec.features.angles
    }
    for channel in dict.fromkeys((*told, *angles)):
        values = {**angles.get(channel, {}), **told.get(channel, {})}
        parts.append(_section(f"channels.{toml_key(channel)}", values, ("channels", "*")))
    text = "\n\n".join(parts) + "\n"
    config, problems = parse_config(text)
    if config is None:
        raise ConfigError(render("the config of this table", problems))
    return text


def _section(title: str, values: Mapping[str, object], path: Sequence[str] = ()) -> str:
    lines = [f"[{title}]"]
    for key, value in values.items():
        if value is not None:
            field = field_at(Config, [*(path or (title,)), key])
            lines += [f"# {field.description}"] if field and field.description else []
            lines.append(f"{key} = {toml(value)}")
    return "\n".join(lines)


def save_draft(where: Path, text: str) -> None:
    with explaining_os_errors(f"cannot write {where}"):
        where.write_text(text, encoding="utf-8")
