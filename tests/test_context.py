"""What a reviewer gets to see of the time before an event."""

from __future__ import annotations

import math
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rejex_stream.context import REVIEW_REASONS, ReviewContext, drawn_for_audit
from rejex_stream.errors import CheckpointError, ConfigError
from rejex_stream.types import ContextPoint, Label, Position, Reading, Reason, Verdict


def event(offset, *, sensor="a", reason=None, values=(1.0,), stream_key=None, score=0.5):
    at = Position("t", 0, offset)
    reading = Reading(stream_key or sensor, sensor, 1000 * offset, values, at)
    verdict = Verdict(
        position=at,
        stream_key=reading.stream_key,
        sensor=sensor,
        event_time_ms=1000 * offset,
        seq=offset,
        label=Label.REJECTED if reason else Label.NORMAL,
        reason=reason,
        score=score,
    )
    return reading, verdict


def times(item):
    return [point.event_time_ms // 1000 for point in item.context]


def test_an_item_carries_the_last_points_before_the_event_oldest_first():
    context = ReviewContext(["x"], points=3)
    for offset in range(5):
        assert context.observe(*event(offset)) is None
    item = context.observe(*event(5, reason=Reason.AMBIGUOUS))
    assert times(item) == [2, 3, 4]
    assert item.why == "rejected"
    assert item.channels == ("x",)
    assert item.values == (1.0,)
    assert times(context.observe(*event(6, reason=Reason.AMBIGUOUS))) == [3, 4, 5]


def test_the_points_are_those_of_the_same_sensor_not_of_the_stream():
    context = ReviewContext(["x"], points=9)
    for offset in range(6):
        context.observe(*event(offset, sensor="ab"[offset % 2], stream_key="group"))
    item = context.observe(*event(6, sensor="a", stream_key="group", reason=Reason.AMBIGUOUS))
    assert times(item) == [0, 2, 4]


def test_what_is_missing_is_none():
    context = ReviewContext(["x", "y"], points=2)
    context.observe(*event(0, values=(math.nan, 2.0), score=None))
    item = context.observe(*event(1, values=(3.0, math.nan), reason=Reason.UNSCORABLE))
    assert item.values == (3.0, None)
    assert item.context == (ContextPoint(0, (None, 2.0), None, Label.NORMAL),)


@pytest.mark.parametrize("reason", Reason)
def test_only_the_chosen_reasons_go_to_review(reason):
    item = ReviewContext(["x"]).observe(*event(0, reason=reason))
    assert (item is not None) == (reason in REVIEW_REASONS) == (reason is not Reason.WARM_UP)
    assert ReviewContext(["x"], reasons=()).observe(*event(0, reason=reason)) is None
    assert ReviewContext(["x"], reasons={reason}).observe(*event(0, reason=reason)) is not None


def test_without_context_items_are_bare():
    context = ReviewContext(["x"], points=0)
    context.observe(*event(0))
    assert context.observe(*event(1, reason=Reason.AMBIGUOUS)).context == ()


def test_accepted_events_are_drawn_for_audit_by_their_position_alone():
    def drawn(rate, start=0):
        context = ReviewContext(["x"], points=1, audit_rate=rate)
        items = [context.observe(*event(offset)) for offset in range(start, 4000)]
        return {item.verdict.seq for item in items if item is not None}

    assert drawn(0.0) == set()
    assert drawn(1.0) == set(range(4000))
    assert 150 < len(drawn(0.05)) < 250
    assert drawn(0.05, start=2000) == {seq for seq in drawn(0.05) if seq >= 2000}
    assert drawn(0.01) < drawn(0.05)
    item = ReviewContext(["x"], audit_rate=1.0).observe(*event(0))
    assert item.why == "audit"
    assert drawn_for_audit(Position("t", 0, 5), 1.0)


def test_a_rejected_event_is_never_an_audit():
    context = ReviewContext(["x"], audit_rate=1.0, reasons=())
    assert context.observe(*event(0, reason=Reason.AMBIGUOUS)) is None


def test_the_sensor_silent_for_longest_is_forgotten_first():
    context = ReviewContext(["x"], points=5, max_sensors=2)
    context.observe(*event(0, sensor="a"))
    context.observe(*event(1, sensor="b"))
    context.observe(*event(2, sensor="a"))
    context.observe(*event(3, sensor="c"))
    assert times(context.observe(*event(4, sensor="a", reason=Reason.AMBIGUOUS))) == [0, 2]
    assert times(context.observe(*event(5, sensor="b", reason=Reason.AMBIGUOUS))) == []


def test_ever_new_sensor_names_do_not_fill_the_memory():
    context = ReviewContext(["x"], points=4, max_sensors=100)
    for offset in range(300):
        context.observe(*event(offset, sensor=f"s{offset}"))
    tracemalloc.start()
    for offset in range(300, 20_000):
        context.observe(*event(offset, sensor=f"s{offset}"))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 300_000


def test_impossible_numbers_are_refused():
    with pytest.raises(ConfigError, match="-1 points"):
        ReviewContext(["x"], points=-1)
    with pytest.raises(ConfigError, match="audit_rate"):
        ReviewContext(["x"], audit_rate=1.5)
    with pytest.raises(ConfigError, match="max_sensors"):
        ReviewContext(["x"], max_sensors=0)


events = st.lists(
    st.builds(
        event,
        st.integers(0, 10**6),
        sensor=st.text("abcd", min_size=1, max_size=1),
        reason=st.none() | st.sampled_from(Reason),
        values=st.tuples(st.floats(), st.floats(allow_nan=False)),
        score=st.none() | st.floats(allow_nan=False),
    ),
    max_size=40,
)


@given(events, st.integers(0, 40), st.integers(0, 5), st.integers(1, 3))
def test_restored_anywhere_it_makes_the_same_items_and_the_same_snapshot(
    feed, cut, points, max_sensors
):
    def fresh():
        return ReviewContext(["x", "y"], points=points, max_sensors=max_sensors, audit_rate=0.3)

    whole, before, after = fresh(), fresh(), fresh()
    expected = [whole.observe(*item) for item in feed]
    found = [before.observe(*item) for item in feed[:cut]]
    after.restore(before.snapshot())
    assert found + [after.observe(*item) for item in feed[cut:]] == expected
    assert after.snapshot() == whole.snapshot()


def test_a_smaller_context_keeps_the_newest_points_of_a_larger_one():
    large, small = ReviewContext(["x"], points=9), ReviewContext(["x"], points=2)
    for offset in range(5):
        large.observe(*event(offset))
    small.restore(large.snapshot())
    assert times(small.observe(*event(9, reason=Reason.AMBIGUOUS))) == [3, 4]


@pytest.mark.parametrize("blob", [b"", b"\xc1", b"\x80", b"\x91\x91\x01", b"\xff" * 9])
def test_foreign_bytes_are_refused(blob):
    with pytest.raises(CheckpointError, match="review context"):
        ReviewContext(["x"]).restore(blob)
