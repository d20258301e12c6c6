"""Outcomes to JSON and back."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rejex_stream.encode import (
    decode_dead_letter,
    decode_review,
    decode_reviewed,
    decode_verdict,
    encode_dead_letter,
    encode_review,
    encode_verdict,
)
from rejex_stream.errors import ConnectorError
from rejex_stream.types import (
    ContextPoint,
    Invalid,
    Label,
    Position,
    Reason,
    Record,
    ReviewItem,
    Verdict,
)

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
finite = st.floats(allow_nan=False, allow_infinity=False)
positions = st.builds(
    Position, names, st.integers(0, 99), st.integers(0, 2**62), st.integers(0, 99)
)
verdicts = st.builds(
    Verdict, position=positions, stream_key=names, sensor=names,
    event_time_ms=st.integers(-(2**50), 2**50), seq=st.integers(0, 2**50),
    label=st.sampled_from(Label), reason=st.none() | st.sampled_from(Reason),
    score=st.none() | finite, rank=st.none() | st.integers(0, 10**7), threshold=st.none() | finite,
    model_epoch=st.none() | st.integers(0, 99),
)  # fmt: skip
values = st.lists(st.none() | finite, max_size=4).map(tuple)
items = st.builds(
    ReviewItem, verdict=verdicts, channels=st.lists(names, max_size=4).map(tuple), values=values,
    context=st.lists(
        st.builds(
            ContextPoint, st.integers(0, 9), values, st.none() | finite, st.sampled_from(Label)
        ),
        max_size=3,
    ).map(tuple),
    why=st.sampled_from(["rejected", "audit"]),
)  # fmt: skip


@given(verdicts)
def test_a_verdict_survives_the_wire_as_one_line_with_its_id_first(verdict):
    line = encode_verdict(verdict)
    assert b"\n" not in line
    assert decode_verdict(line) == verdict
    fields = json.loads(line)
    assert list(fields)[:4] == ["id", "topic", "partition", "offset"]
    assert fields["id"] == str(verdict.position)
    unset = {
        name for name in ("muted", "audit", "limited") if not getattr(verdict, name)
    }  # not written
    left_out = {"position", "interim_severity"} | unset  # one that is unset
    assert list(fields)[4:] == [n for n in Verdict.__struct_fields__ if n not in left_out]


@given(items)
def test_a_review_item_survives_the_wire(item):
    line = encode_review(item)
    assert b"\n" not in line
    assert decode_review(line) == item
    assert json.loads(line)["id"] == str(item.verdict.position)
    assert json.loads(line)["verdict"] == json.loads(encode_verdict(item.verdict))


@given(
    st.builds(
        Record, positions, st.none() | st.binary(max_size=9),
        st.none() | st.binary(max_size=40) | names.map(str.encode),
        st.lists(st.tuples(names, st.none() | st.binary(max_size=5)), max_size=2).map(tuple),
        st.none() | st.integers(0, 2**60),
    )
)  # fmt: skip
def test_a_dead_letter_keeps_the_original_bytes(record):
    invalid = Invalid(record.position, "decode", "why")
    line = encode_dead_letter(record, invalid)
    assert b"\n" not in line
    assert decode_dead_letter(line) == (record, invalid)


def test_the_text_of_a_dead_letter_stands_beside_the_bytes_only_if_printable():
    def text_of(value):
        record = Record(Position("t", 0, 1), None, value)
        line = encode_dead_letter(record, Invalid(record.position, "decode", "why"))
        return json.loads(line)["value_text"]

    assert text_of(b'{"a": "\xc3\xa9"}\t1') == '{"a": "é"}\t1'
    assert text_of(b"\x1b[31m") is None
    assert text_of(b"\xff") is None
    assert text_of(None) is None


def test_nan_and_infinity_become_null():
    verdict = Verdict(
        position=Position("t", 0, 1), stream_key="a", sensor="a", event_time_ms=0, seq=0,
        label=Label.REJECTED, score=math.nan, threshold=math.inf,
    )  # fmt: skip
    fields = json.loads(encode_verdict(verdict), parse_constant=pytest.fail)
    assert fields["score"] is None
    assert fields["threshold"] is None
    item = ReviewItem(verdict=verdict, channels=("a",), values=(math.nan,))
    assert json.loads(encode_review(item), parse_constant=pytest.fail)["values"] == [None]


@pytest.mark.parametrize("line", [b"", b"{}", b"[]", b"\xff", b'{"id": 5}', b"[" * 100_000])
@pytest.mark.parametrize(
    "read", [decode_verdict, decode_review, decode_reviewed, decode_dead_letter]
)
def test_a_line_that_is_something_else_is_refused_in_one_sentence(read, line):
    with pytest.raises(ConnectorError, match=r"expected a .* as one JSON object"):
        read(line)


def test_a_review_item_of_a_newer_version_is_refused_and_new_fields_are_not():
    verdict = Verdict(
        position=Position("t", 0, 1), stream_key="a", sensor="a", event_time_ms=0, seq=0,
        label=Label.NORMAL,
    )  # fmt: skip
    item = ReviewItem(verdict=verdict, channels=(), values=())
    fields = json.loads(encode_review(item)) | {"later": 1}
    assert decode_review(json.dumps(fields).encode()) == item
    fields["schema_version"] = 2
    with pytest.raises(ConnectorError, match="update"):
        decode_review(json.dumps(fields).encode())
