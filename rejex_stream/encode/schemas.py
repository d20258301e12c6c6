"""What is written to topics and files, as schemas made from the very types that are encoded.

A change that breaks a reader gets a new version in the event type (``io.rejex.verdict.v2``); new
optional fields do not. Golden files in the tests notice either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rejex_stream import types
from rejex_stream.encode import label_records, records
from rejex_stream.settings import written_below

VERDICT_TYPE: Final = "io.rejex.verdict.v1"
LEAN_VERDICT_TYPE: Final = "io.rejex.lean-verdict.v1"
REVIEW_TYPE: Final = "io.rejex.review.v1"
FOLLOW_UP_TYPE: Final = "io.rejex.follow-up.v1"
LABEL_TYPE: Final = "io.rejex.label.v1"
INCIDENT_TYPE: Final = "io.rejex.incident.v1"
REPLY_TYPE: Final = "io.rejex.reply.v1"
COMMAND_TYPE: Final = "io.rejex.command.v1"
PIPELINE: Final = "rejex-stream"
PIPELINE_VERSION: Final = "1"
"""Who decided, where no other name is given."""
TOPICS: Final[Mapping[str, str]] = {
    "input": "rejex.readings",
    "verdicts": "rejex.verdicts",
    "review": "rejex.review",
    "labels": "rejex.labels",
    "deadletter": "rejex.deadletter",
    "incidents": "rejex.incidents",
    "control": "rejex.control",
    "state": "rejex.state",
}
"""Names of the topics by role, where no others are given."""
CONNECT_PREFIX: Final = "__connect.errors."
"""Prefix of Kafka Connect's dead-letter headers: generic tools know them."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TYPES: dict[str, type] = {
    "verdict": records.VerdictRecord,
    "lean-verdict": records.LeanVerdictRecord,
    "review": records.ReviewRecord,
    "follow-up": records.FollowUpRecord,
    "label": label_records.LabelRecord,
    "deadletter": records.DeadLetterRecord,
    "incident": records.IncidentRecord,
    "reply": records.ReplyRecord,
    "command": types.Command,
}
SCHEMAS = tuple(_TYPES)
"""Names that :func:`json_schema` knows. ``deadletter`` is the form in files: on Kafka a dead
letter is the original record, with the reason in headers."""

# Where the fields of a wire type are explained, if not there; the last one also says what it is.
_EXPLAINED_BY: dict[str, tuple[type, ...]] = {
    "VerdictRecord": (records.VerdictHead, types.Verdict),
    "LeanVerdictRecord": (types.Verdict, records.LeanVerdictRecord),
    "ReviewRecord": (records.ReviewRecord, types.ReviewItem),
    "FollowUpRecord": (types.FollowUp, records.FollowUpRecord),
    "ContextRecord": (records.ContextRecord, types.ContextPoint),
    "IncidentRecord": (types.Incident, records.IncidentHead),
    "ReplyRecord": (types.CommandReply, records.ReplyHead),
}
_PLAIN_NAMES = {
    "VerdictRecord": "Verdict",
    "LeanVerdictRecord": "Lean verdict",
    "ReviewRecord": "ReviewItem",
    "FollowUpRecord": "Follow-up of a review item",
    "ContextRecord": "ContextPoint",
    "LabelRecord": "Label record",
    "DeadLetterRecord": "Dead letter",
    "IncidentRecord": "Incident",
    "ReplyRecord": "Reply to a command",
}


def json_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of one kind of record."""
    kind = _TYPES[name]
    _, components = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    described = _described(components)
    root = described.pop(kind.__name__)
    schema = {"$schema": _DIALECT, "$id": f"urn:rejex-stream:{name}:v1", **root}
    if described:
        schema["$defs"] = described
    return schema


# ------------------------------------------------------------------ descriptions from docstrings
def _described(components: Mapping[str, Any]) -> dict[str, Any]:
    """Give every schema a plain title and one sentence, and every field what its type says."""
    described: dict[str, Any] = {}
    for name, schema in components.items():
        own = (getattr(home, name, None) for home in (types, records, label_records))
        kinds = _EXPLAINED_BY.get(name) or tuple(filter(None, own))[:1]
        told = [*map(written_below, kinds)]
        fields = {field: _plain(text) for texts in told for field, text in texts.items()}
        explained = {
            **schema,
            "title": _PLAIN_NAMES.get(name, name),
            "description": _plain((kinds[-1].__doc__ or "").strip().split("\n\n")[0]),
        }
        if "properties" in schema:
            explained["properties"] = {
                field: {**value, "description": fields[field]} if field in fields else value
                for field, value in schema["properties"].items()
            }
        described[name] = explained
    return described


def _plain(text: str) -> str:
    text = re.sub(r":\w+:`~?([\w.]+)`", lambda m: m[1].rsplit(".", 1)[-1], text)
    text = re.sub(r"\bNone\b", "null", text.replace("`", ""))
    return " ".join(text.split())
