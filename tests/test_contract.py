"""The contract: schemas fit what is written, and do not change unnoticed."""

import json
import os
from pathlib import Path

import jsonschema
import msgspec
import pytest

from rejex_stream.encode import (
    decode_review,
    encode_command,
    encode_dead_letter,
    encode_follow_up,
    encode_incident,
    encode_lean_verdict,
    encode_reply,
    encode_review,
    encode_verdict,
)
from rejex_stream.encode.label_records import LabelRecord, encode_label
from rejex_stream.encode.schemas import SCHEMAS, json_schema
from rejex_stream.types import (
    ChannelEvidence,
    Command,
    CommandKind,
    CommandReply,
    ContextPoint,
    Evidence,
    FollowUp,
    Incident,
    IncidentState,
    Invalid,
    Label,
    Position,
    Reason,
    Record,
    ReviewItem,
    Verdict,
)

GOLDEN = Path(__file__).parent / "golden" / "contract"
POSITION = Position("water", 0, 7)
VERDICT = Verdict(
    position=POSITION, stream_key="m1", sensor="m1", event_time_ms=1_700_000_000_000, seq=7,
    label=Label.REJECTED, reason=Reason.AMBIGUOUS, score=float("nan"), rank=3, window_len=10,
    evidence=Evidence(
        (ChannelEvidence("flow", 0.5, 0.1, Label.NORMAL),), "flow", 2, 0.1, 0.05, 400
    ),
)  # fmt: skip
REVIEW = ReviewItem(
    verdict=VERDICT, channels=("flow",), values=(None,),
    context=(ContextPoint(1, (2.5,), None, Label.NORMAL),),
)  # fmt: skip
LABEL = LabelRecord(
    label_id="1", episode_id="E-1", root_id="E-1", stream_key="m1", sensor="m1", events=(POSITION,),
    verdict="normal", reviewer="ada", created_ms=0, from_ms=0, to_ms=0, batch_id="b",
)  # fmt: skip
INCIDENT = Incident(
    position=POSITION, id="water-0-5", version=2, state=IncidentState.OPEN, stream_key="m1",
    sensors=("m1",), onset_ms=1, opened_ms=2, changed_ms=3, onset_seq=4, opened_seq=5,
    changed_seq=7, peak_severity=12.5, peak_ms=2,
    channels=(ChannelEvidence("flow", 0.5, 0.1, Label.NORMAL),), n_events=3,
)  # fmt: skip
FOLLOW_UP = FollowUp(
    position=POSITION._replace(offset=6), of=POSITION, stream_key="m", sensor="m",
    channels=("flow",), points=(ContextPoint(5, (None,), 0.5, Label.NORMAL),), n_since=1,
)  # fmt: skip
REPLY = CommandReply(command="c-1", accepted=False, said="it is closed")
COMMAND = Command(id="c-1", kind=CommandKind.FAULT, incident="water-0-5", version=2, by="ada")
WRITTEN = {
    "incident": encode_incident(INCIDENT), "reply": encode_reply(POSITION, REPLY),
    "command": encode_command(COMMAND), "verdict": encode_verdict(VERDICT),
    "lean-verdict": encode_lean_verdict(VERDICT), "review": encode_review(REVIEW),
    "follow-up": encode_follow_up(FOLLOW_UP), "label": encode_label(LABEL),
    "deadletter": encode_dead_letter(
        Record(POSITION, b"k", b"\xff", (("h", None),), 5), Invalid(POSITION, "decode", "no")
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_document_equals_its_golden_file(name):
    """A changed schema is a decision: readers depend on it. Rewrite with REJEX_WRITE_GOLDEN=1."""
    text = json.dumps(json_schema(name), indent=2, ensure_ascii=False) + "\n"
    path = GOLDEN / f"{name}.json"
    if os.environ.get("REJEX_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs: is it a new version?"


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_is_written_fits_its_schema(name):
    schema = json_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(WRITTEN[name]), schema)


@pytest.mark.thorough
@pytest.mark.parametrize("name", SCHEMAS)
def test_what_lacks_a_required_field_does_not_fit(name):
    schema = json_schema(name)
    broken = json.loads(WRITTEN[name])
    del broken[schema["required"][0]]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema)


@pytest.mark.parametrize("name", ["command", "incident", "lean-verdict", "reply", "verdict"])
def test_every_field_is_explained(name):
    properties = json_schema(name)["properties"]
    unexplained = {name for name, field in properties.items() if "description" not in field}
    assert unexplained <= {"id", "topic", "partition", "offset"}


@pytest.mark.parametrize("name", ["verdict", "review", "incident"])
def test_evidence_is_objects(name):
    wanted = {
        "channel": "flow", "contribution": 0.5, "score_without": 0.1, "label_without": "normal",
    }  # fmt: skip
    written = json.loads(WRITTEN[name])
    holder = written.get("verdict", written).get("evidence") or written.get("verdict", written)
    assert holder["channels"] == [wanted]


def test_a_channel_list_of_a_review_item_is_no_evidence():
    item = msgspec.structs.replace(REVIEW, channels=("a", "b", "c"), values=(1.0, 2.0, 3.0))
    assert decode_review(encode_review(item)).channels == ("a", "b", "c")
