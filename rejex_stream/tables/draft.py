"""A config that reads what was understood, judges it as it was scored, and has a schema beside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rejex_stream.config import Config, parse_config
from rejex_stream.config.model import config_schema
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.plan.suggest import Suggestion
from rejex_stream.settings import field_at, render, toml

__all__ = ["draft_config", "save_draft"]

_SCHEMA_FILE = "rejex.schema.json"


def draft_config(
    source: Mapping[str, object],
    choice: Suggestion,
    *,
    name: str,
    detector: str,
    comments: Sequence[str] = (),
    kafka: Mapping[str, object] | None = None,
) -> str:
    """Write the config, a TOML text, under which ``run`` gives the verdicts of ``score``."""
    spec = choice.spec
    policy = spec.policy
    rejection: dict[str, object] = {
        "contamination": policy.contamination,
        "window": spec.window,
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
        "detector": {"name": detector},
        "rejection": rejection,
        "output": {role: f"{name}.{role}{ending}" for role in roles},
    }
    if kafka:
        sections |= {"state": {"topic": f"{name}.state"}, "kafka": kafka}
    parts = ["\n".join(f"# {line}" for line in comments)] if comments else []
    parts += [_section(title, values) for title, values in sections.items()]
    if carry := spec.features.carry_forward_events:
        parts.append(_section("features", {"carry_forward_events": carry}))
    for column in spec.features.features:
        made: dict[str, object] = {
            "kind": column.kind,
            "channel": column.channel,
            "events": column.events,
        }
        parts.append(_section("[features.columns]", made | {"seconds": column.seconds}))
    text = "\n\n".join(parts) + "\n"
    config, problems = parse_config(text)
    if config is None:
        raise ConfigError(render("the config of this table", problems))
    return text


def _section(title: str, values: Mapping[str, object]) -> str:
    lines = [f"[{title}]"]
    for key, value in values.items():
        if value is not None:
            field = field_at(Config, [title, key])
            lines += [f"# {field.description}"] if field and field.description else []
            lines.append(f"{key} = {toml(value)}")
    return "\n".join(lines)


def save_draft(where: Path, text: str) -> None:
    """Write a config, and what its first line names: the schema, of the version that is installed.

    A file of that name which is no schema of ours stays as it is. O(bytes).
    """
    schema = config_schema()
    beside = where.parent / _SCHEMA_FILE
    _write(where, f"#:schema {_SCHEMA_FILE}\n{text}")
    try:
        known = json.loads(beside.read_text(encoding="utf-8"))
        ours = isinstance(known, dict) and known.get("title") == schema["title"]
    except FileNotFoundError:
        ours = True
    except (OSError, ValueError):
        ours = False
    if ours:
        _write(beside, json.dumps(schema, indent=2, ensure_ascii=False) + "\n")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConnectorError(f"cannot write {path}: {error.strerror}.") from error
