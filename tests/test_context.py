"""What a reviewer gets to see of the time before an event."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rejex_stream.encode import decode_review, encode_follow_up, encode_review
from rejex_stream.encode.records import ContextRecord
from rejex_stream.errors import CheckpointError, ConfigError
from rejex_stream.run.review_items import REVIEW_REASONS, AuditDraw, EncodedPoints, ReviewItems
from rejex_stream.types import (
    ContextPoint,
    FollowUp,
    Label,
    Position,
    Reading,
    Reason,
    ReviewItem,
    Status,
    Verdict,
)


def event(
    offset, *, sensor="a", reason=None, values=(1.0,), stream_key=None, score=0.5, status=None,
    **given,
):  # fmt: skip
    at = Position("t", 0, offset)
    reading = Reading(stream_key or sensor, sensor, 1000 * offset, values, at)
    verdict = Verdict(
        position=at, stream_key=reading.stream_key, sensor=sensor, event_time_ms=1000 * offset,
        seq=offset, reason=reason, score=score, status=status,
        **{"label": Label.REJECTED if reason else Label.NORMAL, "window_len": 40} | given,
    )  # fmt: skip
    return reading, verdict


def times(item):
    return [point.event_time_ms // 1000 for point in item.context]


def test_an_item_carries_the_last_points_before_the_event_oldest_first():
    context = ReviewItems(["x"], points=3)
    for offset in range(5):
        assert context.observe(*event(offset)) is None
    item = context.observe(*event(5, reason=Reason.AMBIGUOUS))
    assert times(item) == [2, 3, 4]
    assert item.why == "rejected"
    assert item.channels == ("x",)
    assert item.values == (1.0,)
    assert times(context.observe(*event(6, reason=Reason.AMBIGUOUS))) == [3, 4, 5]


def test_the_points_are_those_of_the_same_sensor_not_of_the_stream():
    context = ReviewItems(["x"], points=9)
    for offset in range(6):
        context.observe(*event(offset, sensor="ab"[offset % 2], stream_key="group"))
    item = context.observe(*event(6, sensor="a", stream_key="group", reason=Reason.AMBIGUOUS))
    assert times(item) == [0, 2, 4]


def test_what_is_missing_is_none():
    context = ReviewItems(["x", "y"], points=2)
    context.observe(*event(0, values=(math.nan, 2.0), score=None))
    item = context.observe(*event(1, values=(3.0, math.nan), reason=Reason.UNSCORABLE))
    assert item.values == (3.0, None)
    assert item.context == (ContextPoint(0, (None, 2.0), None, Label.NORMAL),)


@pytest.mark.parametrize("reason", Reason)
def test_only_the_chosen_reasons_go_to_review(reason):
    item = ReviewItems(["x"]).observe(*event(0, reason=reason))
    assert (item is not None) == (reason in REVIEW_REASONS)
    assert {Reason.AMBIGUOUS, Reason.UNSCORABLE} == REVIEW_REASONS
    audited = ReviewItems(["x"], reasons=(), audit=AuditDraw(1.0))
    assert audited.observe(*event(0, reason=reason)) is None, "what is rejected is no audit"
    assert ReviewItems(["x"], reasons={reason}).observe(*event(0, reason=reason)) is not None


def test_a_state_of_the_sensor_is_an_item_where_it_begins_and_where_it_ends():
    begins, ends = Status.CONSTANT_BEGINS, Status.CONSTANT_ENDS
    found = [
        ReviewItems(["x"], audit=AuditDraw(rate), reasons=reasons).observe(
            *event(0, reason=reason, status=status)
        )
        for reason, status, rate, reasons in (
            (Reason.CONSTANT_WINDOW, begins, 0.0, REVIEW_REASONS),
            (Reason.CONSTANT_WINDOW, None, 0.0, REVIEW_REASONS), (None, ends, 0.0, REVIEW_REASONS),
            (None, ends, 1.0, REVIEW_REASONS), (Reason.AMBIGUOUS, ends, 0.0, REVIEW_REASONS),
            (Reason.CONSTANT_WINDOW, begins, 0.0, ()),
        )
    ]  # fmt: skip
    assert [item and item.why for item in found] == [
        "status", None, "status", "audit", "rejected", None
    ]  # fmt: skip


def extreme(offset, **given):
    known = {"label": Label.ANOMALY, "severity": 4.0, "window_len": 100}
    return event(offset, **known | given)


def test_of_extreme_anomalies_the_first_for_a_quarter_of_a_window_is_asked_about():
    items = ReviewItems(["x"], points=0)
    asked = []
    for offset in (0, 1, 25, 50, 76, 102):  # 26 events apart from the fifth on
        if items.observe(*extreme(offset)) is not None:
            asked.append(offset)
        if offset == 25:  # a crash is no reason to ask again
            known, items = views(items), ReviewItems(["x"], points=0)
            items.restore(known)
    assert asked == [0, 76, 102]
    louder = [
        at for at, severity in ((103, 8.0), (104, 8.1), (105, 16.3), (106, 16.4), (140, 4.0))
        if items.observe(*extreme(at, severity=severity)) is not None
    ]  # fmt: skip
    assert louder == [104, 105, 140]  # twice the worst of a quarter: a blip hides no fault
    other = items.observe(*extreme(103, sensor="b"))
    assert (other.why, other.drawn) == ("extreme", None)
    assert items.observe(*extreme(3)).why == "extreme", "its stream was forgotten, and began again"


@pytest.mark.parametrize("given", [
    {"severity": 3.99}, {"severity": None}, {"label": Label.NORMAL},
    {"held": True, "incident": "t-0-0"}, {"planned": True}, {"muted": "m"},
])  # fmt: skip
def test_nobody_is_asked_about_what_an_incident_or_a_plan_tells_of(given):
    assert ReviewItems(["x"]).observe(*extreme(0, **given)) is None
    assert ReviewItems(["x"], reasons=()).observe(*extreme(0)) is None
    asked = ReviewItems(["x"], audit=AuditDraw(1.0)).observe(*extreme(0))
    assert asked.why == "audit", "drawn by chance, so it counts as drawn"


def test_accepted_events_are_drawn_for_audit_by_their_position_alone():
    def drawn(rate, start=0):
        context = ReviewItems(["x"], points=1, audit=AuditDraw(rate))
        items = [context.observe(*event(offset)) for offset in range(start, 4000)]
        return {item.verdict.seq for item in items if isinstance(item, ReviewItem)}

    assert drawn(0.0) == set()
    assert drawn(1.0) == set(range(4000))
    assert 150 < len(drawn(0.05)) < 250
    assert drawn(0.05, start=2000) == {seq for seq in drawn(0.05) if seq >= 2000}
    assert drawn(0.01) < drawn(0.05)
    item = ReviewItems(["x"], audit=AuditDraw(1.0)).observe(*event(0))
    assert item.why == "audit"
    assert item.drawn == 1.0


def test_normals_near_the_band_and_anomalies_are_drawn_in_shares_of_their_own():
    def drawn(label, rank, withheld=False):
        context = ReviewItems(["x"], points=0, audit=AuditDraw(0.0, 0.5, 1.0))
        items = []
        for offset in range(400):
            reading, verdict = event(offset)
            judged = msgspec.structs.replace(
                verdict, label=label, rank=rank, window_len=100, n_anomalies=8,
                band_lower=90, band_upper=94, withheld=withheld,
            )  # fmt: skip
            items.append(context.observe(reading, judged))
        return [item.drawn for item in items if item is not None]

    assert drawn(Label.NORMAL, 84) == []
    assert set(drawn(Label.NORMAL, 85)) == {0.5}
    assert 150 < len(drawn(Label.NORMAL, 85)) < 250
    assert set(drawn(Label.NORMAL, 3, withheld=True)) == {0.5}
    assert drawn(Label.ANOMALY, 99) == [1.0] * 400


@pytest.mark.parametrize("where", [{}, {"held": True}, {"planned": True}])
@pytest.mark.parametrize("label", [Label.NORMAL, Label.ANOMALY, Label.REJECTED])
def test_a_muted_event_is_drawn_in_the_larger_share_of_normals_whatever_its_label(label, where):
    muted = msgspec.structs.replace(event(0)[1], label=label, muted="m1", **where)
    assert AuditDraw(0.1, 0.5, 1.0).probability(muted) == 0.5
    assert AuditDraw(0.1, 0.05, 1.0).probability(muted) == 0.1


@pytest.mark.parametrize("where", ["held", "planned"])
@pytest.mark.parametrize("label", [Label.NORMAL, Label.ANOMALY])
def test_what_is_held_or_planned_is_never_an_audit(where, label):
    context = ReviewItems(["x"], points=0, audit=AuditDraw(1.0, 1.0, 1.0))
    reading, verdict = event(0)
    judged = msgspec.structs.replace(verdict, label=label, **{where: True})
    assert context.observe(reading, judged) is None


def test_nobody_foresees_a_draw_without_the_key():
    places = [Position("t", 0, offset) for offset in range(4000)]
    draws = [
        {place for place in places if AuditDraw(key=key).is_drawn(place, 0.05)}
        for key in (b"", b"one secret of many", b"another secret")
    ]
    assert all(150 < len(draw) < 250 for draw in draws)
    assert all(len(one & other) < 40 for one in draws for other in draws if one is not other)


@pytest.mark.parametrize(
    ("lower", "upper", "near"),
    [(882, 987, range(776, 882)), (40, 987, range(40)), (951, 950, [950]), (951, 940, [950])],
)
def test_near_is_within_the_bands_own_width_below_it(lower, upper, near):
    draw = AuditDraw(0.25, near_rate=0.5)
    accepted = Verdict(Position("t", 0, 0), "k", "s", 0, 0, Label.NORMAL, window_len=1000,
                       n_anomalies=50, band_lower=lower, band_upper=upper)  # fmt: skip
    found = [
        rank
        for rank in range(min(lower, 951))
        if draw.probability(msgspec.structs.replace(accepted, rank=rank)) == 0.5
    ]
    assert found == list(near)
    assert draw.probability(msgspec.structs.replace(accepted, rank=0, withheld=True)) == 0.5


def test_a_sensor_that_is_forgotten_begins_anew():
    context = ReviewItems(["x"], points=5)
    for offset, sensor in enumerate("aba"):
        context.observe(*event(offset, sensor=sensor))
    context.forget("a")
    context.forget("nobody")
    assert times(context.observe(*event(4, sensor="a", reason=Reason.AMBIGUOUS))) == []
    assert times(context.observe(*event(5, sensor="b", reason=Reason.AMBIGUOUS))) == [1]


def test_an_event_of_one_sensor_too_many_is_an_item_where_asked_for_and_not_remembered():
    turned_away = event(0, reason=Reason.TOO_MANY_SENSORS)
    assert ReviewItems(["x"]).turned_away(*turned_away) is None
    context = ReviewItems(["x"], reasons=[Reason.TOO_MANY_SENSORS])
    assert times(context.turned_away(*turned_away)) == []
    assert list(context.sensors()) == []


def test_impossible_numbers_are_refused():
    with pytest.raises(ConfigError, match="-1 points"):
        ReviewItems(["x"], points=-1)
    for wrong in ({"rate": 1.5}, {"near_rate": -0.1}, {"anomaly_rate": float("nan")}):
        with pytest.raises(ConfigError, match=f"audit {next(iter(wrong))} is"):
            AuditDraw(**wrong)
    with pytest.raises(ConfigError, match="65 bytes: expected at most 64"):
        AuditDraw(0.1, key=b"x" * 65)


events = st.lists(
    st.builds(
        event, st.integers(0, 10**6), sensor=st.text("abcd", min_size=1, max_size=1),
        label=st.sampled_from(Label), reason=st.none() | st.sampled_from(Reason),
        values=st.tuples(st.floats(), st.floats(allow_nan=False)),
        score=st.none() | st.floats(allow_nan=False), severity=st.none() | st.floats(0.0, 9.0),
    ),
    max_size=40,
)  # fmt: skip


def views(context):
    """Everything that is remembered."""
    return {sensor: context.view(sensor)() for sensor in context.sensors()}


def test_what_came_after_an_item_follows_early_and_each_event_once():
    context = ReviewItems(["x"], points=6)
    assert context.observe(*event(0)) is None
    assert context.observe(*event(1, reason=Reason.AMBIGUOUS)).why == "rejected"
    told = {at: context.observe(*event(at, values=(float(at),))) for at in range(2, 12)}
    told = {at: one for at, one in told.items() if one is not None}
    found = {at: ([p.values[0] for p in one.points], one.n_since) for at, one in told.items()}
    assert found == {2: ([2], 1), 3: ([3], 2), 5: ([4, 5], 4), 7: ([6, 7], 6)}
    assert [one.last for one in told.values()] == [False, False, False, True]
    assert {(one.of.offset, one.channels) for one in told.values()} == {(1, ("x",))}
    assert [one.position.offset for one in told.values()] == list(told)


def test_a_new_item_ends_what_follows_the_one_before():
    context = ReviewItems(["x"], points=6)
    for at, reason in enumerate([Reason.AMBIGUOUS, None, None, None, Reason.AMBIGUOUS]):
        last = context.observe(*event(at, reason=reason))
    assert times(last) == [0, 1, 2, 3], "what was not told yet is in its context"
    follows = [context.observe(*event(at)) for at in range(5, 7)]
    assert [(one.of.offset, one.n_since) for one in follows] == [(4, 1), (4, 2)]


def test_without_a_context_and_of_other_sensors_nothing_follows():
    context = ReviewItems(["x"], points=0)
    context.observe(*event(0, reason=Reason.AMBIGUOUS))
    assert context.observe(*event(1)) is None
    assert context.observe(*event(2, reason=Reason.AMBIGUOUS)).context == ()
    context = ReviewItems(["x"], points=4)
    context.observe(*event(0, reason=Reason.AMBIGUOUS))
    assert context.observe(*event(1, sensor="b")) is None
    context.forget("a")
    assert context.observe(*event(2)) is None


@given(events, st.integers(1, 9))
def test_no_event_near_an_item_is_unknown_and_none_follows_twice(feed, points):
    context, heard = ReviewItems(["x", "y"], points=points), {}
    for at, (reading, verdict) in enumerate(feed):
        made = context.observe(
            reading._replace(event_time_ms=at),
            msgspec.structs.replace(verdict, event_time_ms=at, position=Position("t", 0, at)),
        )
        heard.setdefault(reading.sensor, []).append((at, made))
    for mine in heard.values():
        known, followed = set(), []
        for at, made in mine:
            if isinstance(made, FollowUp):
                followed += [point.event_time_ms for point in made.points]
            elif made is not None:
                known |= {at, *(point.event_time_ms for point in made.context)}
        assert len(followed) == len(set(followed))
        items = [i for i, (_, made) in enumerate(mine) if isinstance(made, ReviewItem)]
        for i, following in zip(items, [*items, len(mine)][1:], strict=True):
            later = following - i - 1
            told = later  # up to the next item, whose context has them
            if following == len(mine) and later < points:  # some wait for the next power of two
                told = 1 << later.bit_length() >> 1
            due = [at for at, _ in mine[i + 1 : i + 1 + min(told, points)]]
            assert set(due) <= known | set(followed)


@given(events, st.integers(0, 40), st.integers(0, 5))
def test_restored_anywhere_it_makes_the_same_items_and_the_same_snapshot(feed, cut, points):
    def fresh():
        return ReviewItems(["x", "y"], points=points, audit=AuditDraw(0.3))

    whole, before, after = fresh(), fresh(), fresh()
    expected = [whole.observe(*item) for item in feed]
    found = [before.observe(*item) for item in feed[:cut]]
    after.restore(views(before))
    assert found + [after.observe(*item) for item in feed[cut:]] == expected
    assert views(after) == views(whole)


def test_what_is_missing_or_has_no_name_in_json_is_kept_as_nan_and_comes_back_as_none():
    before, after = ReviewItems(["x", "y"]), ReviewItems(["x", "y"])
    for at in range(3):
        before.observe(*event(at, values=(math.nan, math.inf), score=None))
    points = [(1000 * at, (math.nan, math.nan), None, Label.NORMAL) for at in range(3)]
    view = {"recent": points, "of": None, "n_since": 0, "extreme": None}
    assert before.view("a")() == msgspec.msgpack.encode(view)
    after.restore(views(before))
    item = after.observe(*event(9, reason=Reason.AMBIGUOUS))
    assert [point.values for point in item.context] == [(None, None)] * 3


def test_a_smaller_context_keeps_the_newest_points_of_a_larger_one():
    large, small = ReviewItems(["x"], points=9), ReviewItems(["x"], points=2)
    for offset in range(5):
        large.observe(*event(offset))
    small.restore(views(large))
    assert times(small.observe(*event(9, reason=Reason.AMBIGUOUS))) == [3, 4]


@pytest.mark.parametrize("blob", [b"", b"\xc1", b"\x80", b"\x91\x91\x01", b"\xff" * 9])
def test_foreign_bytes_are_refused(blob):
    with pytest.raises(CheckpointError, match="review context"):
        ReviewItems(["x"]).restore({"a": blob})


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
POINTS = st.builds(
    ContextPoint, st.integers(0, 2**53), st.tuples(FLOATS, st.none() | FLOATS), st.none() | FLOATS,
    st.sampled_from(Label),
)  # fmt: skip


@pytest.mark.thorough
@given(st.lists(POINTS, max_size=5), st.slices(5))
def test_points_that_are_kept_as_they_are_written_read_and_write_as_points_do(points, cut):
    """What a reader of the class sees, and the bytes of items and follow-ups, by cuts too."""
    kept = EncodedPoints(
        msgspec.json.encode(ContextRecord(p.event_time_ms, p.values, p.score, p.label))
        for p in points
    )
    assert kept == tuple(points)
    assert (kept != points[:-1]) is bool(points)
    _, verdict = event(9, reason=Reason.AMBIGUOUS)
    for found, given_ in ((kept, tuple(points)), (kept[cut], tuple(points[cut]))):
        assert list(found) == list(given_)
        items = [ReviewItem(verdict=verdict, channels=("x",), values=(1.0,), context=one)
                 for one in (found, given_)]  # fmt: skip
        assert items[0] == items[1]
        assert encode_review(items[0]) == encode_review(items[1])
        assert decode_review(encode_review(items[0])).context == given_
        follow_ups = [
            FollowUp(position=verdict.position, of=verdict.position, stream_key="a", sensor="a",
                     channels=("x",), points=one, n_since=1)
            for one in (found, given_)
        ]  # fmt: skip
        assert encode_follow_up(follow_ups[0]) == encode_follow_up(follow_ups[1])
