"""What is written to topics and files, as schemas made from the very types that are encoded.

A change that breaks a reader gets a new version in the event type (``io.rejex.verdict.v2``); new
optional fields do not. Golden files in the tests notice either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rejex_stream.encode.incidents import IncidentRecord, ReplyRecord
from rejex_stream.encode.labels import LabelRecord
from rejex_stream.encode.records import (
    ContextRecord,
    DeadLetterRecord,
    FollowUpRecord,
    LeanVerdictRecord,
    ReviewRecord,
    VerdictRecord,
)
from rejex_stream.types import (
    ChannelEvidence,
    Command,
    CommandReply,
    ContextPoint,
    Evidence,
    FollowUp,
    Incident,
    Learned,
    ReviewItem,
    Verdict,
)

__all__ = [
    "COMMAND_TYPE",
    "CONNECT_PREFIX",
    "FOLLOW_UP_TYPE",
    "INCIDENT_TYPE",
    "LABEL_TYPE",
    "LEAN_VERDICT_TYPE",
    "PIPELINE",
    "PIPELINE_VERSION",
    "REPLY_TYPE",
    "REVIEW_TYPE",
    "SCHEMAS",
    "TOPICS",
    "VERDICT_TYPE",
    "asyncapi",
    "json_schema",
]

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
    "verdict": VerdictRecord,
    "lean-verdict": LeanVerdictRecord,
    "review": ReviewRecord,
    "follow-up": FollowUpRecord,
    "label": LabelRecord,
    "deadletter": DeadLetterRecord,
    "incident": IncidentRecord,
    "reply": ReplyRecord,
    "command": Command,
}
SCHEMAS = tuple(_TYPES)
"""Names that :func:`json_schema` knows. ``deadletter`` is the form in files: on Kafka a dead
letter is the original record, with the reason in headers."""

# Where the fields of a wire type are explained; the last one also says what it is.
_EXPLAINED_BY: dict[str, tuple[type, ...]] = {
    "VerdictRecord": (VerdictRecord, Verdict),
    "LeanVerdictRecord": (Verdict, LeanVerdictRecord),
    "ReviewRecord": (ReviewRecord, ReviewItem),
    "FollowUpRecord": (FollowUp, FollowUpRecord),
    "ContextRecord": (ContextRecord, ContextPoint),
    "LabelRecord": (LabelRecord,),
    "DeadLetterRecord": (DeadLetterRecord,),
    "IncidentRecord": (Incident, IncidentRecord),
    "ReplyRecord": (CommandReply, ReplyRecord),
    "Command": (Command,),
    "ChannelEvidence": (ChannelEvidence,),
    "Evidence": (Evidence,),
    "Learned": (Learned,),
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
    """Return the JSON Schema (2020-12) of one kind of record.

    Parameters
    ----------
    name
        One of :data:`SCHEMAS`.

    Examples
    --------
    >>> schema = json_schema("verdict")
    >>> schema["$id"], schema["required"][:2]
    ('urn:rejex-stream:verdict:v1', ['id', 'topic'])
    >>> schema["properties"]["psi"]["description"]
    'rank / window_len.'
    """
    kind = _TYPES[name]
    _, components = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    found = _described(components)
    root = found.pop(kind.__name__)
    schema = {"$schema": _DIALECT, "$id": f"urn:rejex-stream:{name}:v1", **root}
    if found:
        schema["$defs"] = found
    return schema


def asyncapi(
    topics: Mapping[str, str] | None = None, bootstrap_servers: str | None = None
) -> dict[str, Any]:
    """Return the AsyncAPI 3 document of the topics that the service writes.

    Parameters
    ----------
    topics
        Names by role (those of :data:`TOPICS` but ``input`` and ``state``), where they are not the
        usual ones.
    bootstrap_servers
        Address of the broker, if it shall be in the document.

    Examples
    --------
    >>> asyncapi({"verdicts": "plant.verdicts"})["channels"]["verdicts"]["address"]
    'plant.verdicts'
    """
    names = {role: name for role, name in TOPICS.items() if role not in ("input", "state")}
    names |= dict(topics or {})
    kinds = [VerdictRecord, LeanVerdictRecord, ReviewRecord, FollowUpRecord, LabelRecord]
    kinds += [IncidentRecord, ReplyRecord, Command]
    _, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    document: dict[str, Any] = {
        "asyncapi": "3.0.0",
        "info": {
            "title": "rejex-stream",
            "version": "1",
            "description": "Verdicts on sensor events, events for human review, the labels people "
            "gave, incidents, and records that could not be read; and what people tell a running "
            "pipeline. Read with isolation.level=read_committed.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {role: _channel(role, names[role]) for role in names},
        "operations": {
            f"{action}_{role}": {"action": action, "channel": {"$ref": f"#/channels/{role}"}}
            for role in names
            for action in (("receive",) if role == "control" else ("send",))
        },
        "components": {
            "messages": {
                "verdicts": _message("VerdictRecord", VERDICT_TYPE, "A verdict."),
                "lean_verdicts": _message(
                    "LeanVerdictRecord",
                    LEAN_VERDICT_TYPE,
                    "A verdict where output.form is lean; such a pipeline writes no others.",
                ),
                "review": _message("ReviewRecord", REVIEW_TYPE, "An event for a person."),
                "follow_ups": _message(
                    "FollowUpRecord", FOLLOW_UP_TYPE, "What came after an event for a person."
                ),
                "labels": {
                    "summary": "What a person decided.",
                    "contentType": "application/json",
                    "payload": {"$ref": "#/components/schemas/LabelRecord"},
                },
                "deadletter": {
                    "summary": "A record that could not be read: key, value and headers as they "
                    "came, with Kafka Connect's error headers.",
                    "contentType": "application/octet-stream",
                    "headers": {"$ref": "#/components/schemas/DeadLetterHeaders"},
                    "payload": {"description": "The original bytes."},
                },
                "incidents": _message("IncidentRecord", INCIDENT_TYPE, "A change of an incident."),
                "replies": _message(
                    "ReplyRecord", REPLY_TYPE, "What became of a command.", "The command's id."
                ),
                "control": {
                    "name": COMMAND_TYPE,
                    "summary": "What a person tells a running pipeline; one partition.",
                    "contentType": "application/json",
                    "payload": {"$ref": "#/components/schemas/Command"},
                },
            },
            "schemas": {
                **_described(components),
                "CloudEventHeaders": _cloud_event_headers(),
                "DeadLetterHeaders": _dead_letter_headers(),
            },
        },
    }
    if bootstrap_servers is not None:
        document["servers"] = {"kafka": {"host": bootstrap_servers, "protocol": "kafka"}}
    return document


_ALSO = {
    "verdicts": ("lean_verdicts",),
    "review": ("follow_ups",),
    "incidents": ("replies",),
}


def _channel(role: str, address: str) -> dict[str, Any]:
    return {
        "address": address,
        "messages": {
            kind: {"$ref": f"#/components/messages/{kind}"} for kind in (role, *_ALSO.get(role, ()))
        },
        "bindings": {"kafka": {"topic": address, "bindingVersion": "0.5.0"}},
    }


def _message(
    schema: str,
    event_type: str,
    summary: str,
    key: str = "The key of the input record, bytes untouched.",
) -> dict[str, Any]:
    return {
        "name": event_type,
        "summary": summary,
        "contentType": "application/json",
        "headers": {"$ref": "#/components/schemas/CloudEventHeaders"},
        "payload": {"$ref": f"#/components/schemas/{schema}"},
        "bindings": {
            "kafka": {
                "key": {"description": key},
                "bindingVersion": "0.5.0",
            }
        },
    }


def _cloud_event_headers() -> dict[str, Any]:
    says = {
        "ce_specversion": "1.0",
        "ce_id": "topic-partition-offset@pipeline version, of a reply the command's id before it, "
        "of a forgotten stream's incident that incident's: equal for every repeat.",
        "ce_source": "/rejex-stream/<pipeline>.",
        "ce_type": f"{VERDICT_TYPE}, {LEAN_VERDICT_TYPE}, {REVIEW_TYPE}, {FOLLOW_UP_TYPE}, "
        f"{INCIDENT_TYPE} or {REPLY_TYPE}: switch on it.",
        "ce_subject": "The sensor; of an incident the stream, of a reply the command.",
        "content-type": "application/json",
    }
    optional = {
        "ce_time": "Event time, RFC 3339, UTC; missing on replies alone.",
        "traceparent": "W3C trace context of the input record.",
        "tracestate": "As above.",
    }
    return _text_fields(says, optional)


def _dead_letter_headers() -> dict[str, Any]:
    says = {
        "topic": "Where the record stands.",
        "partition": "Where the record stands.",
        "offset": "Where the record stands.",
        "connector.name": "Name of the pipeline.",
        "task.id": "Name of the worker.",
        "stage": "read, last resort, decode, validate or encode.",
        "exception.class.name": "rejex_stream.types.Invalid.",
        "exception.message": "One sentence with the offending value.",
    }
    optional = {
        "rejex.cut.value.bytes": "The value was too large and was cut: bytes of the original.",
        "rejex.cut.value.sha256": "SHA-256 of the original value, hexadecimal.",
        "rejex.cut.headers": "So many original headers were too large and were left out.",
        "rejex.null.value": "The original had no value at all.",
    }
    return _text_fields({CONNECT_PREFIX + name: text for name, text in says.items()}, optional)


def _text_fields(says: Mapping[str, str], optional: Mapping[str, str]) -> dict[str, Any]:
    fields = {**says, **optional}
    return {
        "type": "object",
        "properties": {
            name: {"type": "string", "description": text} for name, text in fields.items()
        },
        "required": list(says),
    }


# ------------------------------------------------------------------ descriptions from docstrings
def _described(components: Mapping[str, Any]) -> dict[str, Any]:
    """Give every schema a plain title and one sentence, and every field what its type says."""
    described: dict[str, Any] = {}
    for name, schema in components.items():
        kinds = _EXPLAINED_BY.get(name, ())
        docstrings = [kind.__doc__ or "" for kind in kinds] or [schema.get("description", "")]
        fields = {field: text for doc in docstrings for field, text in _attributes(doc).items()}
        found = {
            **schema,
            "title": _PLAIN_NAMES.get(name, name),
            "description": _plain(docstrings[-1].strip().split("\n\n")[0]),
        }
        if "properties" in schema:
            found["properties"] = {
                field: {**value, "description": fields[field]} if field in fields else value
                for field, value in schema["properties"].items()
            }
        described[name] = found
    return described


def _attributes(docstring: str) -> dict[str, str]:
    """Read the Attributes section of a NumPy docstring: field → text."""
    _, _, section = docstring.partition("Attributes\n    ----------\n")
    section = section.split("\n\n    ")[0]
    found: dict[str, str] = {}
    for block in re.split(r"\n(?=    \S)", "\n" + section):
        names, _, text = block.strip().partition("\n")
        for name in names.split(", "):
            if name.isidentifier():
                found[name] = _plain(text)
    return found


def _plain(text: str) -> str:
    """Drop the markup of docstrings."""
    text = re.sub(r":\w+:`~?([\w.]+)`", lambda m: m[1].rsplit(".", 1)[-1], text)
    text = re.sub(r"\bNone\b", "null", text.replace("`", ""))
    return " ".join(text.split())
