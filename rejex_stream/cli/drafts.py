"""A config that a command wrote, with the schema beside it by which editors check it."""

from __future__ import annotations

import json
from pathlib import Path

from rejex_stream.config.table import config_schema
from rejex_stream.errors import ConnectorError

__all__ = ["SCHEMA_FILE", "save_draft"]

SCHEMA_FILE = "rejex.schema.json"


def save_draft(where: Path, text: str) -> None:
    """Write a config, and what its first line names: the schema, of the version that is installed.

    A file of that name which is no schema of ours stays as it is. O(bytes).

    Raises
    ------
    ConnectorError
        If one of them cannot be written.
    """
    schema = config_schema()
    beside = where.parent / SCHEMA_FILE
    _write(where, f"#:schema {SCHEMA_FILE}\n{text}")
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
