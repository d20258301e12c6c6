"""What the native core reads and writes beside what Python does: the same, byte for byte."""

import json
import math
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rejex_connectors.kafka.messages import OutcomeMessages

from rejex_stream.decode import CsvDecoder, JsonDecoder
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.encode import encode_verdict, verdict_encoder
from rejex_stream.native_trial import wrong
from rejex_stream.run.review_items import REVIEW_REASONS, AuditDraw, EncodedPoints, ReviewItems
from rejex_stream.types import (
    Audit,
    ChannelEvidence,
    CommandReply,
    ContextPoint,
    DelayedRecord,
    Evidence,
    FollowUp,
    Incident,
    IncidentState,
    Invalid,
    Label,
    Limited,
    LimitExcess,
    Outcome,
    OutcomeCounts,
    Position,
    Reading,
    Reason,
    Record,
    ReviewItem,
    Status,
    Verdict,
)

SLOW = list(HealthCheck)


def alone(name):
    """Have Python work alone."""


@pytest.fixture
def native():
    """Return what is asked for what the native core has, may it be believed or not."""
    built = pytest.importorskip("rejex_native", reason="the native core is not built: make native")
    return lambda name: getattr(built, name)


# ------------------------------------------------------------------------------------- numbers
def test_a_double_is_written_with_the_same_digits(native):
    written, encode = native("written"), msgspec.json.encode
    draw = np.random.default_rng(11)
    any_bits = draw.integers(0, 2**64, 200_000, dtype=np.uint64).view(np.float64)
    usual = draw.normal(0, 1, 100_000) * 10.0 ** draw.integers(-8, 20, 100_000)
    short = draw.integers(-(10**6), 10**6, 50_000) * 10.0 ** draw.integers(-30, 30, 50_000)
    whole = draw.integers(-(2**60), 2**60, 50_000).astype(float)
    edges = [s * 10.0**e * f for s in (1, -1) for e in range(-320, 309) for f in (1, 1.5, 9.9999)]
    powers = [math.ldexp(1.0, e) for e in range(-1074, 1024)]
    next_to = [math.nextafter(x, to) for x in (*edges, *powers) for to in (0.0, math.inf)]
    odd = [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, 2.0**53]
    for values in (any_bits, usual, short, whole, edges, powers, next_to, odd):
        floats = tuple(map(float, values))
        assert written(floats) == encode(floats)


@settings(max_examples=150, deadline=None, suppress_health_check=SLOW)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text()
        | st.sampled_from([*Label, *Reason, *Status]) | st.binary()
        | st.builds(Audit, p=st.floats(0, 1)),
        lambda inner: st.lists(inner, max_size=4).map(tuple) | st.lists(inner, max_size=4),
        max_leaves=8,
    )
)  # fmt: skip
def test_any_value_is_written_the_same(native, value):
    assert written(native("written"), value) == written(msgspec.json.encode, value)


def written(write, value):
    try:
        return write(value)
    except (OverflowError, UnicodeEncodeError) as error:
        return type(error)


def test_every_character_is_written_the_same(native):
    for start in range(0, 0x110000, 0x1000):
        text = "".join(chr(c) for c in range(start, start + 0x1000) if not 0xD800 <= c < 0xE000)
        assert native("written")(text) == msgspec.json.encode(text)


# ------------------------------------------------------------------------------------ messages
ODD = ["", "WT-03", 'a"b\\c', "\x00\x1f\x7f", "\u00e9\U0001f600"]
NAMES = st.text(max_size=12) | st.sampled_from(ODD)
NUMBERS = st.floats() | st.sampled_from([0.0, -0.0, 1e16, 1e-5, 0.1, 5e-324])
WHOLE = st.integers(-(2**70), 2**70) | st.integers(-9, 300)
PLACES = st.builds(
    Position, NAMES, st.integers(0, 40) | st.just(2**31 - 1),
    st.integers(0, 2**63 - 1) | st.integers(0, 99) | st.just(2**64),
    st.sampled_from((0, 0, 0, 1, 12)),
)  # fmt: skip
TIMES = (
    st.integers(-62_135_596_800_000, 253_402_300_799_999)
    | st.integers(0, 2**41)
    | st.sampled_from([0, 951_782_400_000, 951_868_799_999, 4_107_542_399_999, 253_402_300_799_999])
)


def maybe(strategy):
    return st.none() | strategy


def or_unset(strategy):
    return st.just(msgspec.UNSET) | strategy


LABELS, REASONS = st.sampled_from(Label), st.none() | st.sampled_from(Reason)
EVIDENCES = st.builds(
    Evidence,
    st.lists(
        st.builds(ChannelEvidence, NAMES, maybe(NUMBERS), maybe(NUMBERS), maybe(LABELS)), max_size=2
    ).map(tuple),
    maybe(NAMES), WHOLE, maybe(NUMBERS), NUMBERS, WHOLE,
)  # fmt: skip
LIMITED = st.builds(
    Limited,
    st.lists(st.builds(LimitExcess, NAMES, maybe(NUMBERS), NUMBERS), max_size=2).map(tuple),
    LABELS, REASONS,
)  # fmt: skip


@st.composite
def verdicts(draw, position):
    """Any verdict, sensible or not: what is written of it is what is in it."""
    given_ = {
        name: draw(maybe(NUMBERS), label=name)
        for name in (
            "score", "psi", "stability", "confidence", "threshold", "score_lower", "score_upper",
            "tolerance", "severity",
        )
    } | {
        name: draw(maybe(WHOLE), label=name)
        for name in ("rank", "band_lower", "band_upper", "policy_lower", "policy_upper")
    }  # fmt: skip
    sensor = draw(NAMES)
    return Verdict(
        position=position, stream_key=draw(st.just(sensor) | NAMES), sensor=sensor,
        event_time_ms=draw(TIMES), seq=draw(WHOLE), label=draw(st.sampled_from(Label)),
        reason=draw(maybe(st.sampled_from(Reason))), ties=draw(st.integers(0, 9)),
        window_len=draw(WHOLE), model_epoch=draw(maybe(st.integers(0, 9))),
        withheld=draw(st.booleans()), status=draw(maybe(st.sampled_from(Status))),
        held=draw(st.booleans()), planned=draw(st.booleans()), incident=draw(maybe(NAMES)),
        mode=draw(maybe(NAMES)), muted=draw(or_unset(NAMES)), evidence=draw(maybe(EVIDENCES)),
        audit=draw(or_unset(st.builds(Audit, NUMBERS, st.booleans(), maybe(NAMES)))),
        limited=draw(or_unset(LIMITED)), **given_,
    )  # fmt: skip


POINTS = st.builds(
    ContextPoint, TIMES, st.lists(maybe(NUMBERS), min_size=1, max_size=2).map(tuple),
    maybe(NUMBERS), LABELS,
)  # fmt: skip


@st.composite
def contexts(draw):
    """Points as tuples, as anybody may make them, or as they are kept: as JSON."""
    points = draw(st.lists(POINTS, max_size=3).map(tuple))
    if draw(st.booleans()):
        fields = ("event_time_ms", "values", "score", "label")
        points = EncodedPoints(
            [msgspec.json.encode(dict(zip(fields, point, strict=True))) for point in points]
        )
    return points


HEADERS = st.lists(
    st.tuples(
        st.sampled_from(("traceparent", "tracestate", "other", "ce_id")),
        maybe(st.binary(max_size=4) | st.sampled_from((b"x" * 512, b"x" * 513))),
    ),
    max_size=4,
).map(tuple)
CHANNELS = st.lists(NAMES, max_size=2).map(tuple)


@st.composite
def outcomes(draw):
    position = draw(PLACES)
    key = draw(maybe(st.binary(max_size=5) | st.just(b"k" * 900)))
    record = Record(position, key, draw(maybe(st.binary(max_size=9))), draw(HEADERS), 1)
    if draw(st.integers(0, 9)) == 0:
        record = DelayedRecord.of(record, record)
    if draw(st.integers(0, 9)) == 0:
        return Outcome(record, None, Invalid(position, draw(STAGES), draw(NAMES)))
    elsewhere = draw(st.integers(0, 9)) == 0
    verdict = draw(verdicts(draw(PLACES) if elsewhere else position))
    review = after = None
    if draw(st.booleans()):
        review = ReviewItem(
            verdict=draw(verdicts(position)) if draw(st.integers(0, 4)) == 0 else verdict,
            channels=draw(CHANNELS), values=draw(st.lists(maybe(NUMBERS), max_size=2).map(tuple)),
            context=draw(contexts()), why=draw(st.sampled_from(("rejected", "audit", "status"))),
            drawn=draw(maybe(NUMBERS)),
        )  # fmt: skip
    elif draw(st.booleans()):
        after = FollowUp(
            position=draw(PLACES) if elsewhere else position, of=draw(PLACES),
            stream_key=draw(NAMES), sensor=draw(NAMES), channels=draw(CHANNELS),
            points=draw(contexts().filter(len)), n_since=draw(WHOLE), last=draw(st.booleans()),
        )  # fmt: skip
    incidents = (incident(position),) if draw(st.integers(0, 9)) == 0 else ()
    replies = (
        (CommandReply(command="c1", accepted=True, said="done"),)
        if draw(st.integers(0, 9)) == 0
        else ()
    )
    return Outcome(record, verdict, None, review, incidents, replies, after)


STAGES = st.sampled_from(("decode", "validate", "ignored", "waiting"))


def incident(position):
    return Incident(
        position=position, id=str(position), version=1, state=IncidentState.OPEN, stream_key="a",
        sensors=("a",), onset_ms=1, opened_ms=2, changed_ms=3, onset_seq=1, opened_seq=2,
        changed_seq=3, peak_severity=4.0, peak_ms=2, channels=(), n_events=3, n_anomalies=2,
        n_rejected=1,
    )  # fmt: skip


def made(of, form, limit):
    topics = SimpleNamespace(verdicts="v", review="r", deadletter="d", incidents="i")
    settings = SimpleNamespace(
        topics=topics, max_message_bytes=limit, pipeline="p\u00fcmp", pipeline_version="1\u00e9",
        instance_id=None, form=form,
    )  # fmt: skip
    return OutcomeMessages(settings, lambda topic: 1 + ord(topic) % 7, of)


def all_of(messages, told):
    try:
        return list(messages.of(told))
    except UnicodeEncodeError as error:
        return str(error)


@pytest.mark.thorough
@settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
@given(
    told=st.lists(outcomes(), min_size=1, max_size=4),
    form=st.sampled_from(("full", "lean")),
    limit=st.sampled_from((1_000_000, 1_000_000, 3_500, 2_600, 2_000)),
)
def test_any_outcome_becomes_the_same_messages(native, told, form, limit):
    expected, found = (all_of(made(of, form, limit), told) for of in (alone, native))
    assert found == expected
    assert all(type(a) is type(b) for a, b in zip(found, expected, strict=True))


@pytest.mark.thorough
@settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
@given(verdict=PLACES.flatmap(verdicts), form=st.sampled_from(("full", "lean")))
def test_any_verdict_becomes_the_same_line(native, verdict, form):
    ours, theirs = (verdict_encoder(form, of)(verdict) for of in (alone, native))
    assert ours == theirs


@pytest.mark.thorough
@settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
@given(told=st.lists(outcomes(), max_size=9))
def test_outcomes_are_counted_the_same(native, told):
    counted = []
    for of in (alone, native):
        counted.append(counts := OutcomeCounts(plain=of("plain")))
        counts.add(told)
    assert counted[0] == counted[1]


ODD = [
    {"reason": Reason.AMBIGUOUS, "label": Label.REJECTED}, {"status": Status.CLOCK_BEGINS},
    {"withheld": True}, {"held": True}, {"planned": True}, {"muted": "m"},
    {"limited": Limited((), Label.NORMAL), "label": Label.ANOMALY},
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: next(iter(odd)))
def test_a_verdict_that_is_odd_in_one_thing_is_not_counted_as_plain(native, odd):
    place = Position("t", 0, 0)
    verdict = Verdict(place, "a", "a", 1, 0, Label.NORMAL, score=1.0)
    plain = Outcome(Record(place, None, b""), verdict)
    other = plain._replace(verdict=msgspec.structs.replace(verdict, **odd))
    assert native("plain")([plain, other]) == ([(Label.NORMAL, 1)], [other])
    counted = [OutcomeCounts(plain=of("plain")) for of in (alone, native)]
    for counts in counted:
        counts.add([plain, other])
    assert counted[0] == counted[1]


def test_more_than_a_block_of_outcomes_is_written_in_order(native):
    told = []
    for offset in range(250):
        place = Position("t", 0, offset)
        verdict = Verdict(place, "a", "a", 1, offset, Label.NORMAL, score=offset / 7)
        told.append(Outcome(Record(place, b"k" if offset % 3 else None, b""), verdict))
    expected, found = (list(made(of, "full", 10_000).of(told)) for of in (alone, native))
    assert found == expected
    assert [json.loads(message.value)["offset"] for message in found] == list(range(250))


def test_what_cannot_be_written_is_refused_as_python_refuses_it(native):
    odd = Verdict(Position("t", 0, 1), "a\ud800", "a\ud800", 1, 1, Label.NORMAL)
    told = [Outcome(Record(odd.position, None, b""), odd)]
    for of in (alone, native):
        with pytest.raises(UnicodeEncodeError):
            list(made(of, "full", 10_000).of(told))
        with pytest.raises(UnicodeEncodeError):
            verdict_encoder("full", of)(odd)


def test_all_but_the_extraordinary_is_made_natively(native):
    plain = Verdict(Position("t", 0, 1), "a", "a", 1, 1, Label.NORMAL, score=0.25)
    points = EncodedPoints([b'{"event_time_ms":7,"values":[1.0],"score":1.0,"label":"normal"}'])
    item = ReviewItem(verdict=plain, channels=("x",), values=(1.0,), context=points)
    after = FollowUp(
        position=plain.position, of=plain.position, stream_key="a", sensor="a", channels=("x",),
        points=points, n_since=1,
    )  # fmt: skip
    record = Record(plain.position, b"k", b"", (("traceparent", b"00-1"),))
    told = [Outcome(record, plain, review=item), Outcome(record, plain, follow_up=after)]
    for form in ("full", "lean"):
        messages = made(native, form, 1_000_000)
        messages._of = pytest.fail
        assert len(list(messages.of(told))) == 4
    assert native("lines")("full").verdict(plain) == encode_verdict(plain)


@pytest.mark.thorough
def test_bytes_that_differ_are_not_believed(native, monkeypatch):
    import rejex_native

    right = native("Messages")

    class Off:
        def __init__(self, *given):
            self._of = right(*given)

        def of(self, outcomes, python):
            messages = self._of.of(outcomes, python)
            return [m._replace(value=m.value.replace(b"0.5", b"5e-1")) for m in messages]

    monkeypatch.setattr(rejex_native, "Messages", Off)
    assert "differs from Python in what it writes" in wrong(rejex_native)


# ------------------------------------------------------------------------- what reviewers see
@st.composite
def judged(draw, at):
    """An event of one of two sensors, ordinary or not, with a verdict as an engine gives it."""
    sensor = draw(st.sampled_from(("a", "b")))
    place = Position("t", 0, at)
    values = (draw(NUMBERS), draw(NUMBERS))
    label = draw(st.sampled_from([Label.NORMAL] * 6 + [Label.ANOMALY, Label.REJECTED]))
    verdict = Verdict(
        place, sensor, sensor, 1000 * at, at, label,
        draw(st.sampled_from(Reason)) if label is Label.REJECTED else None,
        draw(maybe(NUMBERS)), window_len=40,
        severity=draw(maybe(st.sampled_from((0.3, 2.9, 3.0, 6.0, 9.0, 40.0)))),
        status=draw(st.sampled_from([None] * 9 + [*Status])),
        held=draw(st.sampled_from((False, False, True))),
        muted="m" if draw(st.integers(0, 9)) == 0 else msgspec.UNSET,
    )  # fmt: skip
    return Record(place, b"k", b"{}"), Reading(sensor, sensor, 1000 * at, values, place), verdict


@pytest.mark.thorough
@settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
@given(data=st.data())
def test_reviewers_are_shown_the_same(native, data):
    points = data.draw(st.sampled_from((0, 1, 5, 8)), label="points")
    audit = AuditDraw(rate=data.draw(st.sampled_from((0.0, 0.0, 0.4)), label="audit"))
    reasons = data.draw(st.sampled_from((REVIEW_REASONS, ())), label="reasons")
    ours, theirs = (
        ReviewItems(("x", "y"), points=points, reasons=reasons, audit=audit, native=of)
        for of in (alone, native)
    )
    at = 0
    for size in data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=6), label="batches"):
        told = [data.draw(judged(at + i)) for i in range(size)]
        expected, found = (
            items.outcomes(*map(list, zip(*told, strict=True))) for items in (ours, theirs)
        )
        assert repr(found) == repr(expected)  # nan is not itself
        assert list(map(type, found)) == list(map(type, expected))
        assert [list(made(of, "full", 10**6).of(expected)) for of in (alone, native)] == [
            list(made(of, "full", 10**6).of(found)) for of in (native, alone)
        ]
        views = [{name: items.view(name)() for name in items.sensors()} for items in (ours, theirs)]
        assert views[0] == views[1]
        if data.draw(st.integers(0, 3), label="restored") == 0:  # each from the other's
            ours.restore(views[1])
            theirs.restore(views[0])
        at += size


def test_an_ordinary_event_is_remembered_natively(native):
    items = ReviewItems(("x",), points=4, native=native)
    place = Position("t", 0, 1)
    told = Verdict(place, "a", "a", 1, 1, Label.NORMAL, score=0.25, severity=0.1)
    reading, record = Reading("a", "a", 1, (0.5,), place), Record(place, None, b"")
    items.outcomes([record], [reading], [told])  # a sensor that is new is Python's
    items.observe = pytest.fail
    (found,) = items.outcomes([record], [reading], [told])
    assert found == Outcome(record, told)
    assert type(found) is Outcome


@pytest.mark.parametrize("points", [3, 4, 5])
def test_what_follows_an_item_ends_at_the_same_event_in_either_core(native, points):
    told = []
    for at in range(points + 4):
        place, is_item = Position("t", 0, at), at == 1
        label, reason = (Label.REJECTED, Reason.AMBIGUOUS) if is_item else (Label.NORMAL, None)
        verdict = Verdict(place, "a", "a", at, at, label, reason, score=0.25, severity=0.1)
        told.append((Record(place, None, b""), Reading("a", "a", at, (0.5,), place), verdict))
    expected, found = (
        ReviewItems(("x",), points=points, native=of).outcomes(*map(list, zip(*told, strict=True)))
        for of in (alone, native)
    )
    assert found == expected
    assert [outcome[-1].last for outcome in found if outcome[-1]][-1], "so many have followed"
    assert found[1 + points][-1].last


# ------------------------------------------------------------------------------------- reading
JSON_TEXTS = st.text(max_size=6).map(lambda text: json.dumps(text, ensure_ascii=False)) | (
    st.sampled_from(
        ['"a"', '"b\\u00e9"', '"\\\\u0061"', '"\\ud800"', '"\x01"', '"', '"a\\"', '"\x7f"']
    )
)
JSON_NUMBERS = (
    st.floats(allow_nan=False, allow_infinity=False).map(json.dumps)
    | st.integers(-(10**25), 10**25).map(str)
    | st.from_regex(r"-?[0-9]{1,25}(\.[0-9]{0,25})?([eE][+-]?[0-9]{1,4})?", fullmatch=True)
    | st.sampled_from(
        ["0", "-0", "-0.0", "01", "1.", ".5", "1e999", "-1e-999", "1e308", "1.8e308", "NaN", "+1",
         "Infinity", "-Infinity", "9007199254740993", "18446744073709551616", "1" * 400, "-",
         "1_0", "0x1", "1e", "5e-324", "2.4703282292062327e-324", "9" * 310, "1e+2", "1E2"]
    )
)  # fmt: skip
JSON_VALUES = JSON_NUMBERS | JSON_TEXTS | st.sampled_from(
    ["null", "true", "false", "nul", "[]", "{}", "[1,2]", '{"x":1}', "[" * 70 + "]" * 70, ""]
)  # fmt: skip
JSON_NAMES = st.sampled_from(['"x"', '"y"', '"sensor"', '"t"', '"z"', '"\\u0078"', '""', "x"])
SPACE = st.sampled_from(["", "", "", " ", "\n", "\t\r", "\x0b", "\ufeff"])
SOUND = st.fixed_dictionaries(
    {'"sensor"': JSON_TEXTS, '"t"': st.integers(-(10**14), 10**15).map(str) | JSON_NUMBERS},
    optional={'"x"': JSON_NUMBERS, '"y"': JSON_NUMBERS | JSON_TEXTS, '"z"': JSON_VALUES},
).map(lambda fields: list(fields.items()))


@st.composite
def texts(draw):
    """Flat objects, most of them sound, and what is nearly one."""
    pairs = draw(SOUND | SOUND | st.lists(st.tuples(JSON_NAMES, JSON_VALUES), max_size=5))
    space = draw(SPACE)
    text = "{" + ",".join(f"{space}{name}{space}:{space}{value}" for name, value in pairs) + "}"
    text = draw(st.sampled_from([text] * 12 + [text + text, f"[{text}]", text[:-1], text + " x"]))
    value = f"{space}{text}{space}".encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 9)) == 0 and value:
        at = draw(st.integers(0, len(value) - 1))
        value = value[:at] + draw(st.binary(max_size=3)) + value[at + 1 :]
    return value


MAPPINGS = (
    {"sensor": "sensor", "time": "t"}, {"sensor": "sensor"}, {"fixed_sensor": "pump", "time": "t"},
    {"sensor_from": "key", "time": "t", "groups": {"a": "g"}},
    {"sensor": "sensor", "time": "t", "pooled": True, "max_value_bytes": 60},
    {"sensor": ["sensor"], "time": "t", "time_unit": "iso8601"},
    {"sensor": "sensor", "time": ["t"], "time_unit": "iso8601"},
    {"sensor": "sensor", "time": "t", "time_unit": "s"},
    {"sensor": "sensor", "time": "t", "group": "z"},
    {"sensor": "sensor", "time": "t", "partial": True},
    {"sensor": "sensor", "time": "t", "missing": ["-999", "---", "1"]},
    {"sensor": "sensor", "time": "t", "numbers": "text"}, {"sensor": "sensor", "time": "x"},
    {"sensor": "sensor", "time": "t", "flags": ["y"]},
    {"sensor": "sensor", "time": "t", "missing_of": {"y": {-999.0, 1.0}}},
)  # fmt: skip


@pytest.mark.thorough
@settings(max_examples=200, deadline=None, suppress_health_check=SLOW)
@given(
    values=st.lists(st.none() | st.just(b"") | texts() | texts() | texts(), min_size=1, max_size=6),
    mapping=st.sampled_from(MAPPINGS),
    stamps=st.sampled_from((None, 5, 2**62)),
    key=st.sampled_from((b"a", b"", None, b"\xff")),
)
def test_any_bytes_are_read_the_same(native, values, mapping, stamps, key):
    records = [
        Record(Position("t", 0, i), key, value, (), stamps) for i, value in enumerate(values)
    ]
    fields = FieldMapping(("x", "y"), **mapping)
    ours, theirs = JsonDecoder(fields, alone), JsonDecoder(fields, native)
    expected = list(map(ours.decode, records))
    one_by_one = [theirs.decode_all([record])[0] for record in records]  # a block is all or nothing
    for found in (theirs.decode_all(records), one_by_one):
        assert list(map(repr, found)) == list(map(repr, expected))


def test_flat_records_are_read_natively(native):
    for mapping in (MAPPINGS[0], MAPPINGS[1], MAPPINGS[2], MAPPINGS[3]):
        decoder = JsonDecoder(FieldMapping(("x", "y"), **mapping), native)
        value = b'{"sensor":"a","t":17,"x":1.5,"y":null,"other":"\xc3\xa9"}'
        record = Record(Position("t", 0, 0), b"a", value, (), 5)
        (found,) = decoder._native([record])
        assert type(found) is Reading
        assert found.values[0] == 1.5


# ------------------------------------------------------------------------------------ rows of CSV
CELLS = JSON_NUMBERS | st.sampled_from(
    ["", " ", "nan", "-", "+", ".", "1.", ".5", "+.5e1", "1e", "e1", " 1.5", "1.5 ", "1_0", "1,5",
     "\u0663", "-999", "-999.0", "--", "1.5 C", "5-", "inf", "1d3", "true", "on", "\x00", "17",
     "1e309", "-0", "007", "2024-01-01T00:00:00Z", "1700000000000", "999999999999999999"]
)  # fmt: skip
SENSORS = st.sampled_from(["a", "a", "b", " a", "a ", "", "\u00e9", "x" * 300, "a\x1fb", "\u3000a"])
ROWS_OF = (
    {"sensor": "s", "time": "t"},
    {"sensor": "s"},
    {"fixed_sensor": "pump", "time": "t", "time_unit": "iso8601"},
    {"sensor_from": "key", "time": "t"},
    {"sensor": "s", "time": "t", "time_unit": "s", "missing": ["-999", "---", "1"]},
    {"sensor": ["s", "z"], "time": "t"},
    {"sensor": "s", "time": ["t", "z"], "time_unit": "iso8601"},
    {"sensor": "s", "time": "t", "group": "z"},
    {"sensor": "s", "time": "t", "flags": ["y"], "units": ["C"], "pooled": True},
    {"sensor": "s", "time": "t", "decimal": ",", "max_value_bytes": 40},
    {"sensor": "s", "time": "t", "thousands": "'"},
    {"sensor": "s", "time": "x", "time_unit": "excel"},
    {"sensor": "s", "time": "t", "missing_of": {"y": {-999.0, 1.0}}},
)


@st.composite
def rows(draw):
    """Rows of five cells, most of them sound, and what is nearly one."""
    many = draw(st.integers(0, 9))
    count = 4 + (many == 0) - (many == 1)
    time = st.integers(0, 10**13).map(str) | st.just("2024-01-01T00:00:00Z") | CELLS
    cells = [draw(SENSORS), draw(time)] + [draw(CELLS) for _ in range(count - 1)]
    cells += draw(st.sampled_from([[], [], [], [""], ["", " "], ["1"]]))
    if draw(st.integers(0, 9)) == 0:
        cells[-1] = f'"{cells[-1]}"'
    value = ",".join(cells).encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(value)))
        value = value[:at] + draw(st.binary(max_size=3)) + value[at + 1 :]
    return value


@pytest.mark.thorough
@settings(max_examples=300, deadline=None, suppress_health_check=SLOW)
@given(
    values=st.lists(st.none() | st.just(b"") | st.just(b",,,,") | rows(), min_size=1, max_size=9),
    mapping=st.sampled_from(ROWS_OF),
    stamps=st.sampled_from((None, 5, 2**62)),
    key=st.sampled_from((b"a", b"", None, b"\xff")),
)
def test_any_row_is_read_the_same(native, values, mapping, stamps, key):
    records = [
        Record(Position("t", 0, i), key, value, (), stamps) for i, value in enumerate(values * 2)
    ]
    fields = FieldMapping(("x", "y"), **mapping)
    ours, theirs = (CsvDecoder(fields, "stxyz", native=one) for one in (alone, native))
    expected = list(map(ours.decode, records))
    assert list(map(repr, theirs.decode_all(records))) == list(map(repr, expected))
    assert list(map(repr, ours.decode_all(records))) == list(map(repr, expected))


@pytest.mark.parametrize("marker", ["-999", "-999.0", "1e3", "0", "-0", "---", ""])
@pytest.mark.parametrize("cell", ["-999", "-999.0", "-9.99e2", "1000", "+1e3", "0", "-0.0", "---"])
def test_what_stands_for_no_value_is_missing_in_rows_and_records(native, marker, cell):
    own = {"missing_of": {"x": [float(marker)]}} if marker.strip("-") else {}
    for none in ({"missing": [marker] if marker else []}, own):
        _require_missing(native, FieldMapping(("x", "y"), sensor="s", time="t", **none), cell)


def _require_missing(native, fields, cell):
    row = Record(Position("t", 0, 0), None, f"a,17,{cell},1.5,".encode())
    tree = Record(Position("t", 0, 0), None, f'{{"s":"a","t":17,"x":{cell},"y":1.5}}'.encode())
    for of in (alone, native):
        rows, trees = CsvDecoder(fields, "stxyz", native=of), JsonDecoder(fields, of)
        found = [*rows.decode_all([row, row]), *trees.decode_all([tree])]
        expected = [rows.decode(row), rows.decode(row), trees.decode(tree)]
        assert list(map(repr, found)) == list(map(repr, expected))


def test_an_empty_row_is_no_missing_value(native):
    for of in (alone, native):
        rows = CsvDecoder(FieldMapping(("x",), fixed_sensor="a"), "x", native=of)
        empty, full = (Record(Position("t", 0, 0), None, value, (), 5) for value in (b"", b"1"))
        assert [type(one) for one in rows.decode_all([full, empty])] == [Reading, Invalid]


@pytest.mark.parametrize(("sound", "decoder"), [
    (b'{"x": 1.25e3, "s":"ab", "t":17, "z":null,"y":-0.5}', JsonDecoder),
    (b"ab,17,1.25e3,,-0.5", lambda fields, native: CsvDecoder(fields, "stxyz", native=native)),
], ids=["record", "row"])  # fmt: skip
def test_every_byte_matters(native, sound, decoder):
    """Each byte of what is sound, changed to every other, removed, and doubled."""
    fields = FieldMapping(("x", "y"), sensor="s", time="t")
    ours, theirs = (decoder(fields, core) for core in (alone, native))
    for at in range(len(sound)):
        changed = [sound[:at] + bytes([byte]) + sound[at + 1 :] for byte in range(256)]
        for value in (*changed, sound[:at] + sound[at + 1 :], sound[:at] + sound[at : at + 1] * 2):
            record = Record(Position("t", 0, 0), None, value)
            assert repr(theirs.decode_all([record])) == repr([ours.decode(record)]), value


def test_plain_rows_are_read_natively(native):
    for mapping in (ROWS_OF[0], ROWS_OF[1], ROWS_OF[2], ROWS_OF[4], ROWS_OF[8]):
        decoder = CsvDecoder(FieldMapping(("x", "y"), **mapping), "stxyz", native=native)
        time = "2024-01-01T00:00:00Z" if mapping.get("time_unit") == "iso8601" else "17"
        value = f"a,{time},1.5,,\u00e9".encode()
        record = Record(Position("t", 0, 0), b"a", value, (), 5)
        decoder.decode(record)  # a sensor that is new is Python's
        decoder.decode = pytest.fail
        (found,) = decoder.decode_all([record])
        assert type(found) is Reading
        assert found.values[0] == 1.5
        assert math.isnan(found.values[1])


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_record_may_be_as_long_as_it_may_be(native, more):
    known = FieldMapping(("x",), sensor="s", time="t", max_value_bytes=40)
    for decoders, begun, ended in (
        ([CsvDecoder(known, "stx", native=one) for one in (alone, native)], b"a,17,1.", b""),
        ([JsonDecoder(known, one) for one in (alone, native)], b'{"s":"a","t":17,"x":1.', b"}"),
    ):
        value = begun + b"5" * (40 + more - len(begun) - len(ended)) + ended
        record = Record(Position("t", 0, 0), None, value, (), 5)
        short = Record(Position("t", 0, 0), None, begun + b"5" + ended, (), 5)
        ours, theirs = (one.decode_all([short, record])[1] for one in decoders)
        assert ours == theirs
        assert isinstance(ours, Invalid) is (more > 0)
