"""What outcomes become on Kafka, without a broker: nothing is lost, everything fits."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.messages import OutcomeMessages, _size, split_headers
from rejex_connectors.kafka.topic_to_topic import _letter

from rejex_stream.encode import decode_incidents, decode_review, decode_reviewed, decode_verdict
from rejex_stream.types import (
    CommandReply,
    ContextPoint,
    FollowUp,
    Incident,
    IncidentState,
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
SETTINGS = KafkaSettings(
    options={"message.max.bytes": LIMIT}, pipeline="turbine", pipeline_version="3"
)
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
        "ce_specversion": b"1.0", "ce_id": b"in-5-42@3", "ce_type": b"io.rejex.verdict.v1",
        "ce_source": b"/rejex-stream/turbine", "ce_subject": b"pump",
        "ce_time": b"2023-11-14T22:13:20.042Z", "content-type": b"application/json",
        "traceparent": b"00-1",
    }  # fmt: skip


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


def test_bytes_and_headers_are_those_that_were_always_written():
    told = msgspec.structs.replace(verdict(label=Label.REJECTED), score=0.5)
    points = (ContextPoint(1, (20.5, None), 0.25, Label.NORMAL), ContextPoint(2, (1.0,), None, "x"))
    item = ReviewItem(verdict=told, channels=("t", "p"), values=(20.5, None), context=points)
    _, review = MESSAGES.of([Outcome(record(), told, review=item)])
    start, _, rest = review.value.partition(b'"verdict":')
    assert start == (
        b'{"id":"in-5-42","schema_version":1,"why":"rejected","channels":["t","p"],'
        b'"values":[20.5,null],'
    )
    written, _, rest = rest.partition(b',"context":')
    assert written.startswith(
        b'{"id":"in-5-42","topic":"in","partition":5,"offset":42,"stream_key":"pump",'
        b'"sensor":"pump","event_time_ms":1700000000042,"seq":0,"label":"rejected",'
        b'"reason":"ambiguous","score":0.5,"rank":null,"ties":0,'
    )
    context = (
        b'[{"event_time_ms":1,"values":[20.5,null],"score":0.25,"label":"normal"},'
        b'{"event_time_ms":2,"values":[1.0],"score":null,"label":"x"}]'
    )
    assert rest == context + b',"drawn":null}'
    assert review.headers == [
        ("ce_specversion", b"1.0"), ("ce_type", b"io.rejex.review.v1"),
        ("ce_source", b"/rejex-stream/turbine"), ("content-type", b"application/json"),
        ("ce_id", b"in-5-42@3"), ("ce_time", b"2023-11-14T22:13:20.042Z"), ("ce_subject", b"pump"),
    ]  # fmt: skip
    after = FollowUp(
        position=POSITION, of=POSITION._replace(offset=40), stream_key="pump", sensor="pump",
        channels=("t", "p"), points=points, n_since=2,
    )  # fmt: skip
    _, followed = MESSAGES.of([Outcome(record(), verdict(), follow_up=after)])
    assert followed.value == (
        b'{"id":"in-5-42","topic":"in","partition":5,"offset":42,"schema_version":1,'
        b'"follows":"in-5-40","follows_offset":40,"stream_key":"pump","sensor":"pump",'
        b'"channels":["t","p"],"points":' + context + b',"n_since":2,"last":false}'
    )


@pytest.mark.parametrize("form", ["full", "lean"])
def test_an_item_holds_its_own_verdict_in_full_whatever_is_written_beside_it(form):
    other = msgspec.structs.replace(verdict(label=Label.REJECTED), score=0.5)
    messages = OutcomeMessages(SETTINGS.replace(form=form), lambda _: 4)
    item = ReviewItem(verdict=other, channels=("t",), values=(1.0,))
    told, equal = verdict(label=Label.REJECTED), msgspec.structs.replace(other)
    for beside in (told, other, equal):
        _, review = messages.of([Outcome(record(), beside, review=item)])
        assert decode_review(review.value) == item


def test_what_came_after_goes_where_the_item_went_and_fits():
    point = ContextPoint(5, (1.0,), 0.5, Label.NORMAL)
    after = FollowUp(
        position=POSITION, of=POSITION._replace(offset=3), stream_key="line 1", sensor="line 1",
        channels=("v",), points=(point,) * 4, n_since=4,
    )  # fmt: skip
    _, second = MESSAGES.of([Outcome(record(), verdict(), follow_up=after)])
    assert (second.topic, second.key) == ("rejex.review", record().key)
    assert dict(second.headers)["ce_type"] == b"io.rejex.follow-up.v1"
    assert decode_reviewed(second.value) == after
    large = msgspec.structs.replace(
        after, points=tuple(point._replace(event_time_ms=at) for at in range(10_000))
    )
    _, message = MESSAGES.of([Outcome(record(), verdict(), follow_up=large)])
    kept = decode_reviewed(message.value).points
    assert 0 < len(kept) < 10_000
    assert kept[-1].event_time_ms == 9_999


INCIDENT = Incident(
    position=POSITION, id="in-5-40", version=2, state=IncidentState.FAULT, stream_key="line 1",
    sensors=("pump",), onset_ms=1, opened_ms=2, changed_ms=1_700_000_000_042, onset_seq=1,
    opened_seq=2, changed_seq=3, peak_severity=9.5, peak_ms=2,
)  # fmt: skip


def test_replies_to_a_command_that_was_given_twice_are_two():
    once = CommandReply(command="c-1", accepted=True, said="it is a fault")
    again = CommandReply(command="c-1", accepted=False, said="it is one already")
    told = Outcome(record(), verdict(), replies=(once, again))
    later = Outcome(record()._replace(position=POSITION._replace(offset=43)), verdict(),
                    replies=(again,))  # fmt: skip
    ids = [dict(m.headers)["ce_id"] for m in MESSAGES.of([told, later])]
    replies = [one for one in ids if one.startswith(b"c-1")]
    assert replies == [b"c-1-in-5-42@3", b"c-1-in-5-42-1@3", b"c-1-in-5-43@3"]


def test_a_change_of_an_incident_stands_behind_its_verdict_and_a_reply_before_it():
    reply = CommandReply(command="c-1", accepted=True, said="it is a fault")
    told = Outcome(
        record(headers=(("traceparent", b"00-1"),)), verdict(), None, None, (INCIDENT,), (reply,)
    )
    first, second, third = MESSAGES.of([told])
    assert [m.topic for m in (first, second, third)] == [
        "rejex.incidents", "rejex.verdicts", "rejex.incidents",
    ]  # fmt: skip
    assert (first.partition, first.key) == (1, b"c-1")
    assert decode_incidents(first.value) == (POSITION, reply)
    assert dict(first.headers) == {
        "ce_specversion": b"1.0", "ce_id": b"c-1-in-5-42@3", "ce_type": b"io.rejex.reply.v1",
        "ce_source": b"/rejex-stream/turbine", "ce_subject": b"c-1",
        "content-type": b"application/json",
    }  # fmt: skip
    assert (third.partition, third.key) == (1, b"k")
    assert decode_incidents(third.value) == INCIDENT
    headers = dict(third.headers)
    assert headers["ce_type"] == b"io.rejex.incident.v1"
    assert headers["ce_subject"] == b"line 1"
    assert headers["ce_time"] == b"2023-11-14T22:13:20.042Z"
    assert headers["traceparent"] == b"00-1"


def test_incidents_of_streams_that_one_event_forgets_are_told_apart():
    gone = [
        msgspec.structs.replace(INCIDENT, id=f"in-5-{i}", stream_key=f"line {i}", ended="forgotten")
        for i in range(2)
    ]
    _, first, second = MESSAGES.of([Outcome(record(), verdict(), None, None, tuple(gone))])
    assert [dict(m.headers)["ce_id"] for m in (first, second)] == [
        b"in-5-0-in-5-42@3", b"in-5-1-in-5-42@3",
    ]  # fmt: skip


def test_what_people_said_of_an_unreadable_record_s_place_is_answered_there_too():
    broken = Invalid(POSITION, "decode", "not JSON")
    reply = CommandReply(command="c-1", accepted=False, said="no")
    first, second = MESSAGES.of([Outcome(record(), None, broken, replies=(reply,))])
    assert (first.topic, second.topic) == ("rejex.incidents", "rejex.deadletter")


def test_an_incident_that_is_too_large_loses_names_and_a_reply_its_words():
    many = msgspec.structs.replace(INCIDENT, sensors=tuple(f"sensor {i}" for i in range(5_000)))
    reply = CommandReply(command="c" * 100, accepted=False, said="\x01" * 9_000)
    first, _, third = MESSAGES.of([Outcome(record(), verdict(), None, None, (many,), (reply,))])
    assert max(_size(first), _size(third)) < LIMIT
    assert not decode_incidents(first.value)[1].accepted
    kept = decode_incidents(third.value)
    assert kept.sensors == many.sensors[: len(kept.sensors)]
    assert 0 < len(kept.sensors) < 5_000
    nameless = msgspec.structs.replace(INCIDENT, stream_key="x" * 9_000, sensors=())
    _, third = MESSAGES.of([Outcome(record(), verdict(), None, None, (nameless,))])
    assert third.topic == "rejex.deadletter"


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
    assert [*split_headers(message.headers).original] == [*original.headers]
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


@pytest.mark.thorough
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
    ours = split_headers(message.headers).ours
    if "rejex.cut.value.bytes" not in ours:
        assert (message.value, message.key) == (value or b"", key)
    else:
        assert ours["rejex.cut.value.bytes"] == b"%d" % len(value or b"")
        digest = hashlib.sha256(value or b"").hexdigest()
        assert ours["rejex.cut.value.sha256"] == digest.encode()
        assert (value or b"").startswith(message.value)


@pytest.mark.parametrize("forged", [
    ("rejex.cut.value.bytes", b"abc"), ("rejex.cut.value.bytes", b"7"),
    ("rejex.cut.value.sha256", b"\xff"), ("rejex.cut.headers", b"1"),
    ("rejex.null.value", b"1"), ("__connect.errors.offset", b"0"),
    ("__connect.errors.topic", b"elsewhere"), ("__connect.errors.stage", b"none"),
])  # fmt: skip
def test_headers_that_look_like_ours_on_the_original_are_data(forged):
    original = record(b"broken", headers=(forged, ("mine", b"1"), forged))
    (message,) = MESSAGES.of([Outcome(original, invalid=Invalid(POSITION, "decode", "because"))])
    letter = _letter(
        Record(
            Position("rejex.deadletter", 1, 0), message.key, message.value, tuple(message.headers),
            1,
        )
    )  # fmt: skip
    assert letter.original == original
    assert (letter.stage, letter.reason) == ("decode", "because")


def test_a_trace_header_too_long_for_one_is_left_behind():
    long = (("traceparent", b"x" * 1_500_000), ("tracestate", b"a=1"), ("tracestate", b"b=2"))
    (message,) = MESSAGES.of([Outcome(record(headers=long), verdict())])
    assert message.topic == "rejex.verdicts"
    assert "traceparent" not in dict(message.headers)
    assert [value for name, value in message.headers if name == "tracestate"] == [b"a=1"]


@given(st.lists(st.tuples(st.text(max_size=40), st.binary(max_size=3) | st.none()), max_size=5))
def test_any_headers_come_back(headers):
    pairs = tuple((name, value or b"") for name, value in headers)
    (message,) = MESSAGES.of(
        [Outcome(record(b"x", headers=pairs), invalid=Invalid(POSITION, "decode", "because"))]
    )
    assert tuple(split_headers(message.headers).original) == pairs


# What lies on the edge of the limit: each byte of a value, and headers as long as they can be.
@pytest.mark.parametrize("size", range(LIMIT - 4_400, LIMIT - 400, 37))
def test_every_message_fits_whatever_its_headers_take(size):
    sensor, trace = "\U0001f300" * 256, (("traceparent", b"t" * 512), ("tracestate", b"s" * 512))
    judged = verdict(sensor, Label.REJECTED)
    points = (ContextPoint(1, (), None, Label.NORMAL),)
    item = ReviewItem(
        verdict=judged, channels=(), values=(), context=points, why="x" * max(0, size - 4_000)
    )
    follow_up = FollowUp(
        position=POSITION, of=POSITION, stream_key="s", sensor=sensor, channels=("c" * size,),
        points=points, n_since=1,
    )  # fmt: skip
    reply = CommandReply(command="c" * 1_200, accepted=True, said="y" * size)
    key = b"k" * (size // 2)
    outcomes = [
        Outcome(record(key=key, headers=trace), judged, review=item),
        Outcome(record(headers=trace), judged, follow_up=follow_up, replies=(reply,)),
    ]
    made = list(MESSAGES.of(outcomes))
    assert len(made) in (4, 5)  # a verdict that cannot be sent has no item
    assert max(map(_size, made)) <= LIMIT - 100


@pytest.mark.parametrize("letter", ["s", "é", "漢", "😀"])
def test_a_verdict_is_a_dead_letter_from_the_first_byte_on_that_is_too_many(letter):
    """The quick estimate, by characters of the sensor, lets none through that is too large."""
    traced = (("traceparent", b"t" * 512), ("tracestate", b"u" * 512))
    topics = set()
    for length in range(1, 3_000):
        one = verdict(sensor=letter * length)
        (message,) = MESSAGES.of([Outcome(record(headers=traced), one)])
        topics.add(message.topic)
        if message.topic == "rejex.deadletter":
            break
        assert _size(message) <= LIMIT - 100
    assert topics == {"rejex.verdicts", "rejex.deadletter"}
    (before,) = MESSAGES.of(
        [Outcome(record(headers=traced), verdict(sensor=letter * (length - 1)))]
    )
    assert _size(before) > LIMIT - 100 - 3 * len(letter.encode())
