"""What outcomes become on Kafka, without a broker: nothing is lost, everything fits."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rejex_connectors.kafka import KafkaSettings
from rejex_connectors.kafka_messages import OutcomeMessages, _size, is_ours, read_cut

from rejex_stream.encode import decode_review, decode_verdict
from rejex_stream.types import (
    ContextPoint,
    Invalid,
    Label,
    Outcome,
    Position,
    Reason,
    Record,
    ReviewItem,
    Verdict,
)

POSITION = Position("in", 5, 42)
LIMIT = 8_000
SETTINGS = KafkaSettings(max_message_bytes=LIMIT, pipeline="turbine", pipeline_version="3")
MESSAGES = OutcomeMessages(SETTINGS, lambda topic: 4)


def record(value=b"{}", key=b"k", headers=()):
    return Record(POSITION, key, value, headers, 1)


def verdict(sensor="pump", label=Label.NORMAL):
    reason = Reason.AMBIGUOUS if label is Label.REJECTED else None
    return Verdict(POSITION, sensor, sensor, 1_700_000_000_042, 0, label, reason)


def test_a_verdict_keeps_key_and_trace_and_carries_cloudevents_headers():
    trace = (("traceparent", b"00-1"), ("tracestate", None), ("other", b"x"))
    (message,) = MESSAGES.of([Outcome(record(headers=trace), verdict())])
    assert (message.topic, message.partition, message.key) == ("rejex.verdicts", 1, b"k")
    assert decode_verdict(message.value) == verdict()
    assert dict(message.headers) == {
        "ce_specversion": b"1.0",
        "ce_id": b"in-5-42@3",
        "ce_type": b"io.rejex.verdict.v1",
        "ce_source": b"/rejex-stream/turbine",
        "ce_subject": b"pump",
        "ce_time": b"2023-11-14T22:13:20.042Z",
        "content-type": b"application/json",
        "traceparent": b"00-1",
    }


@pytest.mark.parametrize("time_ms", [-62_135_596_800_000, -1, 0, 253_402_300_799_999])
def test_every_event_time_has_a_header(time_ms):
    outcome = Outcome(record(), msgspec.structs.replace(verdict(), event_time_ms=time_ms))
    (message,) = MESSAGES.of([outcome])
    text = dict(message.headers)["ce_time"].decode()
    assert len(text) == len("2023-11-14T22:13:20.042Z"), text


def test_a_rejected_event_goes_to_review_as_well():
    rejected = verdict(label=Label.REJECTED)
    item = ReviewItem(verdict=rejected, channels=("v",), values=(1.0,))
    first, second = MESSAGES.of([Outcome(record(), rejected, None, item)])
    assert (first.topic, second.topic) == ("rejex.verdicts", "rejex.review")
    assert decode_review(second.value) == item


def test_a_review_record_that_is_too_large_loses_its_oldest_context():
    rejected = verdict(label=Label.REJECTED)
    points = tuple(ContextPoint(i, (float(i),) * 20, 0.5, Label.NORMAL) for i in range(200))
    item = ReviewItem(verdict=rejected, channels=("v",), values=(1.0,), context=points)
    _, message = MESSAGES.of([Outcome(record(), rejected, None, item)])
    kept = decode_review(message.value).context
    assert _size(message) <= LIMIT
    assert 0 < len(kept) < 200
    assert kept == points[-len(kept) :]


def test_a_dead_letter_keeps_the_original_and_says_why():
    original = record(b"\xff\xfe", headers=(("h", b"1"), ("h", b"2")))
    (message,) = MESSAGES.of([Outcome(original, None, Invalid(POSITION, "decode", "bad bytes"))])
    assert (message.topic, message.key, message.value) == ("rejex.deadletter", b"k", b"\xff\xfe")
    assert [pair for pair in message.headers if not is_ours(pair[0])] == [*original.headers]
    said = dict(message.headers)
    assert said["__connect.errors.topic"] == b"in"
    assert said["__connect.errors.partition"] == b"5"
    assert said["__connect.errors.offset"] == b"42"
    assert said["__connect.errors.stage"] == b"decode"
    assert said["__connect.errors.exception.message"] == b"bad bytes"


def test_a_verdict_that_cannot_be_sent_becomes_a_dead_letter():
    outcome = Outcome(record(key=b"k" * 2 * LIMIT), verdict())
    (message,) = MESSAGES.of([outcome])
    assert message.topic == "rejex.deadletter"
    assert dict(message.headers)["__connect.errors.stage"] == b"encode"


BYTES = st.integers(0, 3 * LIMIT).map(lambda n: b"x" * n) | st.binary(max_size=40)


@given(
    value=st.none() | BYTES,
    key=st.none() | BYTES,
    headers=st.lists(st.tuples(st.text(max_size=20), st.none() | BYTES), max_size=5),
    reason=st.text(max_size=5_000),
)
def test_every_dead_letter_fits_and_a_cut_one_can_be_recognised(value, key, headers, reason):
    original = record(value, key, tuple(headers))
    (message,) = MESSAGES.of([Outcome(original, None, Invalid(POSITION, "decode", reason))])
    assert _size(message) <= LIMIT
    cut = read_cut(message.headers)
    if cut is None:
        assert (message.value, message.key) == (value or b"", key)
    else:
        assert cut.value_bytes == len(value or b"")
        assert cut.sha256 == hashlib.sha256(value or b"").hexdigest()
        assert (value or b"").startswith(message.value)
