"""Incidents of one cause are one situation: what the law joins, what it leaves, in any order."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rejex_stream.incidents.situations import Onset, _tail, find_situations, group_name, onset_of
from rejex_stream.types import ChannelEvidence, Spread
from tests.operate.test_incidents_told import incident

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
NOW = 1_780_272_000_000
METERS = [f"gw7/meter-{k:02d}" for k in range(20)]


def onset(stream, minutes, opened=2, *, silent=False, step_ms=MINUTE, further=None):
    at_ms = NOW + round(minutes * MINUTE)
    further_ms = None if further is None else NOW + further * MINUTE
    return Onset(f"{stream}@{minutes}", stream, silent, at_ms, at_ms + opened * MINUTE,
                 step_ms, further_ms)  # fmt: skip


def sizes(onsets, streams=METERS, known=None):
    return sorted(len(one.members) for one in find_situations(onsets, streams, known or {}))


STEP = [onset(name, 3 * k / 20, 1 + 5 * (k % 4)) for k, name in enumerate(METERS)]


def test_one_cause_is_one_situation_of_its_group_and_says_of_how_many():
    (one,) = find_situations(STEP[:14], METERS)
    assert (len(one.members), one.group, one.streams) == (14, "gw7/", 20)
    assert one.id == STEP[0].incident


def test_another_gateways_fault_and_a_later_one_stay_their_own():
    own = [onset("gw8/meter-00", 2), onset("gw7/meter-90", 24)]
    assert sizes([*STEP, *own]) == [1, 1, 20]


def test_one_stream_with_two_faults_is_no_situation():
    assert sizes([onset("gw7/meter-03", 0), onset("gw7/meter-03", 4)]) == [1, 1]


def test_who_was_slow_to_open_joins_and_who_drifted_for_days_does_not():
    slow, drifts = onset("gw7/meter-90", -70, 90), onset("gw7/meter-91", -12_000, 12_010)
    assert sizes([*STEP, slow, drifts]) == [1, 21]


@pytest.mark.parametrize("rate_of_day", [0, 1])
def test_what_chance_makes_is_no_situation(rate_of_day):
    """Of each stream so many openings a day: one of them with another is no news then."""
    draw = random.Random(rate_of_day)
    before = [
        onset(name, -draw.uniform(20, 3 * 1440))
        for name in METERS for _ in range(3 * rate_of_day)
    ]  # fmt: skip
    pair = [onset("gw7/meter-00", 0), onset("gw7/meter-01", 3)]
    five = [onset(name, 200 + k) for k, name in enumerate(METERS[:5])]
    assert sizes([*before, *five])[-1] == 5, "more than chance makes"
    found = find_situations([*before, *pair], METERS)
    (of,) = [one for one in found if pair[0].incident in one.members]
    assert (pair[1].incident in of.members) == (rate_of_day == 0)


def test_the_slower_the_sampling_the_more_have_to_agree():
    hourly = [onset(name, 20 * k, step_ms=HOUR) for k, name in enumerate(METERS)]
    assert sizes(hourly[:2]) == [1, 1]
    assert sizes(hourly[:6]) == [6]
    assert sizes([onset(METERS[0], 0), onset(METERS[1], 8)]) == [2]
    before = [onset(METERS[2], -150 * k) for k in range(1, 13)]
    assert sizes([*before, onset(METERS[0], 0), onset(METERS[1], 7)])[-2:] == [1, 2]
    assert sizes([onset(METERS[0], 0), onset(METERS[1], 8.1)]) == [1, 1]


def test_those_that_fall_silent_together_are_one_and_not_with_those_that_do_not():
    silent = [onset(name, 0, 3, silent=True) for name in METERS[:8]]
    assert sizes([*silent, *(onset(name, 1) for name in METERS[8:])]) == [8, 12]


def test_a_further_fault_of_one_leaves_and_those_of_most_do_not():
    one, *rest = STEP
    away = one._replace(further_ms=NOW + 50 * MINUTE)
    found = find_situations([away, *rest], METERS)
    assert sorted(len(these.members) for these in found) == [1, 19]
    assert len({these.id for these in found}) == 2
    assert sizes([these._replace(further_ms=NOW + 50 * MINUTE) for these in STEP]) == [20]
    assert sizes([away], METERS) == [1], "alone it stays what it was"
    assert find_situations([away], METERS)[0].id == one.incident


@pytest.mark.parametrize(
    ("channel", "showing", "stays"),
    [("a", 19, True), ("a", 7, True), ("a", 6, False), ("c", 0, False)],
)
def test_a_further_fault_that_others_show_is_the_causes(channel, showing, stays):
    away = STEP[0]._replace(further_ms=NOW + 50 * MINUTE, further=(channel,), shows=("c",))
    others = [one._replace(shows=("a", "b") if k < showing else ("b",))
              for k, one in enumerate(STEP[1:])]  # fmt: skip
    assert (sizes([away, *others]) == [20]) is stays
    both = away._replace(further=(channel, "d"))
    assert sizes([both, *others]) == [1, 19], "the other one is its own"


def test_an_incident_shows_what_is_half_as_loud_as_the_loudest():
    told = [ChannelEvidence(*one, None, None) for one in (("a", 4.0), ("b", 2.0), ("c", 1.9))]
    assert onset_of(incident(channels=(*told, ChannelEvidence("d", None, None, None)))).shows == (
        "a", "b", "d",
    )  # fmt: skip


def test_the_oldest_that_was_told_of_stays_and_whoever_leaves_does_not_take_it():
    late = STEP[5].incident
    known = {late: late}
    assert find_situations(STEP, METERS, known)[0].id == late, "it was told of first"
    known = {one.incident: late for one in STEP}
    leaves = [one._replace(further_ms=NOW + HOUR) if one.incident == late else one for one in STEP]
    stay, gone = sorted(find_situations(leaves, METERS, known), key=lambda one: -len(one.members))
    assert (stay.id, gone.members) == (late, (late,))
    assert gone.id == f"{late}-{NOW + HOUR}"


ANY = st.builds(
    lambda stream, minutes, opened, further, silent: onset(
        METERS[stream] if stream < 18 else f"boiler{'x' * stream}",
        minutes, opened, further=further, silent=silent,
    ),
    st.integers(0, 21), st.integers(-200, 200), st.integers(0, 120),
    st.none() | st.integers(200, 400), st.booleans(),
)  # fmt: skip


@pytest.mark.thorough
@given(st.lists(ANY, max_size=25, unique_by=lambda one: one.incident), st.randoms())
def test_the_order_changes_nothing_and_everybody_is_in_one(onsets, draw):
    shuffled = draw.sample(onsets, len(onsets))
    found = find_situations(onsets, METERS)
    assert find_situations(shuffled, METERS) == found
    assert sorted(id_ for one in found for id_ in one.members) == sorted(
        one.incident for one in onsets
    )
    assert len({one.id for one in found}) == len(found)
    # One by one, with what was told before: the same groups, whatever they are called.
    known = {}
    for seen in range(len(shuffled)):
        told = find_situations(shuffled[: seen + 1], METERS, known)
        known = {id_: one.id for one in told for id_ in one.members}
        assert len({one.id for one in told}) == len(told)
    assert {one.members for one in find_situations(onsets, METERS, known)} == {
        one.members for one in found
    }


@pytest.mark.parametrize(
    ("name", "group"),
    [("plant/line/flow", "plant/line/"), ("T12", "T"), ("pump-3", "pump"), ("boiler", ""),
     ("a.b:c", "a.b:"), ("", ""), ("7", ""), ("x\ny/1", "x\ny/")],
)  # fmt: skip
def test_a_group_is_what_names_share(name, group):
    assert group_name(name) == group


def test_a_stream_alone_in_its_group_is_one_with_all_others_that_are():
    assert sizes([onset(name, 0) for name in ("boiler", "gw7/flow", "T1")], ()) == [3]


def test_the_step_is_that_of_the_incidents_own_events():
    one = incident(onset_seq=4, opened_seq=9, opened_ms=1_700_000_000_000 + 5 * MINUTE)
    assert onset_of(one).step_ms == MINUTE
    assert onset_of(incident(opened_seq=0, changed_seq=0)).step_ms == 0
    assert onset_of(incident(spread=(Spread("a", 7), Spread("b", 5)))).further_ms == 7
    soft = [ChannelEvidence(*one, None, None) for one in (("a", 1.9), ("oil", 4.0))]
    of = onset_of(incident(channels=tuple(soft), spread=(Spread("a", 7), Spread("b", 5))))
    assert (of.further_ms, of.further) == (5, ("b",)), "it may be what the cause does to it"


def test_the_tail_is_poissons():
    assert _tail(2, 0.5) == pytest.approx(0.0902, abs=1e-4)
    assert (_tail(0, 0.0), _tail(1, 0.0)) == (1.0, 0.0)
