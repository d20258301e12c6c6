"""The contract: schemas fit what is written, and do not change unnoticed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jsonschema
import pytest

from rejex_stream.contract import SCHEMAS, asyncapi, json_schema
from rejex_stream.encode import encode_dead_letter, encode_review, encode_verdict
from rejex_stream.review.labels import LabelRecord, encode_label
from rejex_stream.types import (
    ChannelEvidence,
    ContextPoint,
    Evidence,
    Invalid,
    Label,
    Position,
    Reason,
    Record,
    ReviewItem,
    Verdict,
)

GOLDEN = Path(__file__).parent / "golden" / "contract"
DOCUMENTS = {
    **{name: lambda name=name: json_schema(name) for name in SCHEMAS},
    "asyncapi": asyncapi,
}

POSITION = Position("water", 0, 7)
VERDICT = Verdict(
    position=POSITION,
    stream_key="m1",
    sensor="m1",
    event_time_ms=1_700_000_000_000,
    seq=7,
    label=Label.REJECTED,
    reason=Reason.AMBIGUOUS,
    score=float("nan"),
    rank=3,
    window_len=10,
    evidence=Evidence(
        (ChannelEvidence("flow", 0.5, 0.1, Label.NORMAL),), "flow", 2, 0.1, 0.05, 400
    ),
)
REVIEW = ReviewItem(
    verdict=VERDICT,
    channels=("flow",),
    values=(None,),
    context=(ContextPoint(1, (2.5,), None, Label.NORMAL),),
)
LABEL = LabelRecord(
    label_id="1",
    episode_id="E-1",
    root_id="E-1",
    stream_key="m1",
    sensor="m1",
    events=(POSITION,),
    verdict="normal",
    reviewer="ada",
    created_ms=0,
    from_ms=0,
    to_ms=0,
    batch_id="b",
)
WRITTEN = {
    "verdict": encode_verdict(VERDICT),
    "review": encode_review(REVIEW),
    "label": encode_label(LABEL),
    "deadletter": encode_dead_letter(
        Record(POSITION, b"k", b"\xff", (("h", None),), 5), Invalid(POSITION, "decode", "no")
    ),
}


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_a_document_equals_its_golden_file(name):
    """A changed schema is a decision: readers depend on it. Rewrite with REJEX_WRITE_GOLDEN=1."""
    text = json.dumps(DOCUMENTS[name](), indent=2, ensure_ascii=False) + "\n"
    path = GOLDEN / f"{name}.json"
    if os.environ.get("REJEX_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs: is it a new version?"


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_is_written_fits_its_schema(name):
    schema = json_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(WRITTEN[name]), schema)


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_lacks_a_required_field_does_not_fit(name):
    schema = json_schema(name)
    broken = json.loads(WRITTEN[name])
    del broken[schema["required"][0]]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema)


def test_every_field_of_a_verdict_is_explained():
    properties = json_schema("verdict")["properties"]
    unexplained = {name for name, field in properties.items() if "description" not in field}
    assert unexplained <= {"id", "topic", "partition", "offset"}


def test_every_reference_in_the_asyncapi_document_leads_somewhere():
    document = asyncapi({"verdicts": "plant.verdicts"}, "kafka:9092")
    references = []

    def walk(node):
        if isinstance(node, dict):
            references.extend(value for key, value in node.items() if key == "$ref")
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(document)
    assert len(references) > 15
    for reference in references:
        node = document
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]
    assert document["servers"]["kafka"]["host"] == "kafka:9092"
