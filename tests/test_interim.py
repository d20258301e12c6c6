"""While an incident is held, an interim reference of the rows since tells what is new beside it."""

import json
import random
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from scipy.signal import lfilter

from rejex_stream import native_core
from rejex_stream.decode import JsonDecoder
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.detectors import make_detector
from rejex_stream.encode import encode_incident
from rejex_stream.engine import Engine
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import FeatureSpec
from rejex_stream.incidents import Alarms, Hold, IncidentTracker
from rejex_stream.incidents.thresholds import n_before
from rejex_stream.operate.incident_text import DisplayNames, describe_incident, headline
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.run.partition import PartitionState
from rejex_stream.run.review_items import ReviewItems
from rejex_stream.types import (
    Command,
    CommandKind,
    IncidentState,
    Label,
    Partition,
    Position,
    Record,
)
from tests.streams import Distance, PartsByVersion, of_rows, played, spec
from tests.test_late_fits import NeverDone
from tests.test_sensor_registry import reborn

N, MINUTE, FIRST = 200, 60_000, 1000
SPEC = replace(
    spec(window=N, every=400, tolerance=3.0),
    detector=Distance(), features=FeatureSpec(("a", "b", "c")), alarms=Alarms(), evidence=True,
    hold=Hold(adopt_after_events=0, recover_events=30),
    schedule=RefitSchedule(
        first_fit_events=200, refit_every_events=400, refit_lag_events=20, buffer_events=400
    ),
)  # fmt: skip
RANKED = 220  # rows held, at most, before the interim reference speaks


def feed(*faults, n=2200, seed=2, step_ms=MINUTE):
    """Three channels, a reading a minute, each raised from some row to another; one row is lost."""
    rng = np.random.default_rng(seed)
    X = lfilter([0.7], [1, -0.3], rng.normal(size=(n, 3)), axis=0)
    for channel, start, stop, by in faults:
        X[start:stop, "abc".index(channel)] += by
    X[1500, 1] = np.nan
    return of_rows(X, step_ms=step_ms)


def fresh(of=SPEC):
    return Engine(of, InlineExecutor())


def since_first(changes):
    return [one for one in changes if one.opened_seq >= FIRST - 30]


SAME = feed(("a", FIRST, None, 12.0), ("a", 1600, None, 8.0))
AGAIN = ("a", 1600, None, 8.0), ("c", 2100, None, 9.0)
OVER = feed(("a", FIRST, 1700, 12.0), ("b", 1500, 1900, 9.0))


@pytest.mark.parametrize("channel", ["a", "c"])
def test_a_second_fault_is_an_incident_within_the_first_whatever_its_channel(channel):
    readings = feed(("a", FIRST, None, 12.0), (channel, 1600, None, 8.0))
    verdicts, changes = played(fresh, readings)
    first, second = dict.fromkeys(one.id for one in since_first(changes))
    opened = next(one for one in changes if one.id == second)
    assert opened.within == first
    assert opened.opens
    assert 1600 <= opened.opened_seq < 1630
    assert opened.channels[0].channel == channel
    assert not any(one.within or one.spread for one in changes if one.id == first)
    # Verdicts stay those of the reference that is trusted.
    assert {v.incident for v in verdicts[1100:] if v.score is not None} == {first}
    assert {v.label for v in verdicts[1100:] if v.score is not None} == {Label.ANOMALY}
    assert f"since the incident {first} began" in describe_incident(opened)
    assert "beside what an earlier incident is open for" in headline(opened, DisplayNames())


def test_a_third_joins_the_second_and_what_comes_before_it_speaks_joins_the_first():
    faults = ("a", FIRST, None, 12.0), ("b", 1600, None, 12.0), ("c", 1700, None, 12.0)
    changes = since_first(played(fresh, feed(*faults))[1])
    first, second = {one.id: one for one in changes}.values()
    assert [one.channel for one in second.spread] == ["c"]
    assert first.spread == ()
    early = feed(("a", FIRST, None, 12.0), ("c", 1100, None, 12.0))
    (first,) = {one.id: one for one in since_first(played(fresh, early)[1])}.values()
    assert [one.channel for one in first.spread] == ["c"]


@pytest.mark.thorough
def test_one_fault_tells_of_no_other_nor_does_its_end():
    for seed in range(6):
        for stop in (None, 1600):
            readings = feed(("a", FIRST, stop, 12.0), seed=seed)
            assert not any(one.within for one in played(fresh, readings)[1])


def test_what_was_found_ends_with_the_first_and_its_reference_is_dropped():
    at = fresh()
    at.process(OVER[:1680])
    first, second = at.open_incidents()
    assert second.within == first.id
    assert len(at._live["s"].model._held) == 0, "the rows are with the interim reference alone"
    at.process(OVER[1680:])
    ended = {one.id: one for one in at.take_incidents() if one.ended}
    # The first ends once both are over, and the second at that event at the latest.
    assert ended[first.id].ended == ended[second.id].ended == "recovered"
    assert ended[second.id].changed_seq <= ended[first.id].changed_seq
    state = at._live["s"]
    assert state._interim is state.model.successor is None
    assert at.open_incidents() == []
    assert not since_first([one for one in at.take_incidents() if one.changed_seq > 2000])


def answered(readings, kind, at, of=SPEC, cut=100):
    """Return verdicts and changes where the first incident was answered before a reading."""
    engine = fresh(of)
    verdicts = engine.process(readings[:at])
    changes = engine.take_incidents()
    first = next(one for one in changes if one.opened_seq >= FIRST - 30)
    assert engine.command(Command(id="k", kind=kind, stream_key="s", incident=first.id)).accepted
    for start in range(at, len(readings), cut):
        verdicts += engine.process(readings[start : start + cut])
        changes += engine.take_incidents()
        saved, engine = engine.snapshot(), fresh(of)
        engine.restore(saved)
    return verdicts, changes, engine


def test_a_new_normal_makes_it_the_reference_at_once():
    readings = feed(("a", FIRST, None, 12.0))
    verdicts, changes, engine = answered(readings, CommandKind.NEW_NORMAL, 1400)
    closed = changes[-1]
    assert (closed.state, closed.ended, closed.changed_seq) == ("closed", "adopted", 1400)
    after = verdicts[1400:]
    assert not any(one.held or one.incident for one in after)
    assert all(one.score is not None for one in after if one.seq != 1500), "no warm-up"
    assert after[0].window_len > 150
    assert after[0].model_epoch > verdicts[1399].model_epoch
    assert sum(one.label is Label.ANOMALY for one in after[:100]) < 30
    late = Command(id="l", kind=CommandKind.FAULT, stream_key="s", incident=closed.id)
    assert "has ended (adopted)" in engine.command(late).said
    governed = answered(readings, CommandKind.NEW_NORMAL, 1400, BUDGET)[0][1400:]
    assert {one.policy_lower is None for one in governed if one.seq != 1500} == {False}


def test_an_answer_before_anything_is_held_ends_the_look_at_levels():
    engine, at = fresh(), 0
    readings = feed(("a", FIRST, None, 1.8), n=1501)
    engine.process(readings[:FIRST])
    while not engine.open_incidents():
        at += 1
        engine.process(readings[FIRST + at - 1 : FIRST + at])
    (opened,), tracker = engine.open_incidents(), engine._live["s"].tracker
    assert not opened.held
    assert tracker.levels
    said = Command(id="n", kind=CommandKind.NEW_NORMAL, stream_key="s", incident=opened.id)
    assert engine.command(said).accepted
    assert not tracker.levels, "its rows are gone"


def test_what_comes_after_a_new_normal_lies_within_nothing():
    readings = feed(("a", FIRST, None, 12.0), ("c", 1800, None, 12.0))
    _, changes, _ = answered(readings, CommandKind.NEW_NORMAL, 1400, cut=2000)
    later = [one for one in changes if one.opened_seq > 1700]
    assert later, "a fault is found by the new reference"
    assert not any(one.within for one in later)


@pytest.mark.thorough
def test_said_before_it_speaks_the_trusted_reference_holds_until_it_does():
    readings = feed(("a", FIRST, None, 12.0))
    verdicts, changes, _ = answered(readings, CommandKind.NEW_NORMAL, 1195, cut=1)
    adopting = next(one for one in changes if one.answer)
    closed = changes[-1]
    assert (adopting.state, adopting.changed_seq) == (IncidentState.ADOPTING, 1195)
    assert 1195 < closed.changed_seq <= FIRST + RANKED
    assert {v.held for v in verdicts[1195 : closed.changed_seq]} == {True}
    assert not verdicts[closed.changed_seq].held


def test_a_new_normal_said_at_the_row_from_which_it_speaks_is_told_before_the_end():
    readings = feed(("a", FIRST, None, 12.0))
    spoke = answered(readings, CommandKind.NEW_NORMAL, 1195)[1][-1].changed_seq
    told = [one.changed_seq for one in answered(readings, CommandKind.NEW_NORMAL, spoke)[1]]
    assert (told.count(spoke), told[-1]) == (1, spoke + 1), "one change an event"


@pytest.mark.parametrize("n_open", [1, 2])
def test_one_whose_scores_rise_is_promoted_only_with_a_second_that_is_open(n_open, monkeypatch):
    readings = SAME if n_open == 2 else feed(("a", FIRST, None, 12.0))

    def renews(self, window):
        is_first, self.open.is_renewed = not self.open.is_renewed, True
        return is_first

    monkeypatch.setattr(IncidentTracker, "renews", renews)
    _, changes, engine = answered(readings[:1702], CommandKind.NEW_NORMAL, 1700)
    assert ("adopted" in [one.ended for one in changes]) is (n_open == 2)
    engine.process(readings[1702:1725])
    (made,) = {one.changed_seq for one in changes + engine.take_incidents() if one.ended}
    assert made == (1700 if n_open == 2 else 1722), "another, of the newest rows, a lag later"


def test_what_rested_since_it_began_is_remembered_after_a_new_normal():
    readings = [
        one._replace(values=(*one.values[:2], float(1400 <= i < 1410)))
        if i >= FIRST - 30 else one
        for i, one in enumerate(feed(("a", FIRST, None, 12.0)))
    ]  # fmt: skip
    engine = answered(readings[:1502], CommandKind.NEW_NORMAL, 1500, SENSOR)[2]
    assert [*engine._live["s"]._resting.wake_ups["s"]] == ["c"]


def test_it_says_before_which_row_the_fit_of_the_interim_reference_has_to_be_there():
    engine = Engine(SPEC, NeverDone())
    readings, at, ready = feed(("a", FIRST, None, 12.0)), FIRST + 150, 1
    engine.process(readings[:at])
    while ready:
        assert engine._live["s"]._interim is None or not engine._live["s"]._interim.model.has_model
        ready = engine.ready(readings[at:])
        engine.process(readings[at : at + ready])
        at += ready
    engine.process(readings[at : at + 1])
    assert engine._live["s"]._interim.model.has_model


@pytest.mark.thorough
def test_a_second_that_is_open_goes_on_as_the_streams_own_after_a_new_normal():
    engine = answered(SAME, CommandKind.NEW_NORMAL, 1700)[2]
    (left,) = engine.open_incidents()
    assert left.within
    assert left.held, "by its own evidence"
    again = Command(id="n", kind=CommandKind.NEW_NORMAL, stream_key="s", incident=left.id)
    assert engine.command(again).accepted
    engine.process(feed(("a", FIRST, None, 20.0), n=2700)[2200:])
    assert engine.take_incidents()[-1].ended == "adopted"


@pytest.mark.thorough
def test_the_second_takes_answers_of_its_own_and_a_known_fault_is_told_of_others():
    _, changes, engine = answered(SAME, CommandKind.KNOWN_FAULT, 1100)
    first, second = {one.id: one for one in since_first(changes)}.values()
    assert first.known is True
    assert second.within == first.id
    late = since_first(answered(SAME, CommandKind.KNOWN_FAULT, FIRST + RANKED)[1])
    assert {one.opened_seq for one in late if one.within} == {second.opened_seq}, "as said later"
    said = Command(id="n", kind=CommandKind.FAULT, stream_key="s", incident=second.id)
    assert engine.command(said).accepted
    engine.process(feed(("a", FIRST, None, 20.0), n=2210)[2200:])
    told = next(one for one in engine.take_incidents() if one.id == second.id)
    assert (told.state, told.answer) == (IncidentState.FAULT, "n")
    assert {one.id for one in engine.open_incidents()} == {first.id, second.id}


@pytest.mark.thorough
@pytest.mark.parametrize("of", [SPEC, replace(SPEC, hold=Hold(adopt_after_events=300))])
def test_a_new_normal_of_the_second_makes_another_interim_reference_of_the_rows_since(of):
    readings, found = feed(("a", FIRST, None, 12.0), *AGAIN, n=2300), []
    for cut in (1, 97):
        engine = fresh(of)
        verdicts = engine.process(readings[:1200])
        first = engine.open_incidents()[0].id
        said = Command(id="f", kind=CommandKind.FAULT, stream_key="s", incident=first)
        assert engine.command(said).accepted
        verdicts += engine.process(readings[1200:1650])
        if of is SPEC:
            (second,) = (one.id for one in engine.open_incidents() if one.within)
            said = Command(id="n", kind=CommandKind.NEW_NORMAL, stream_key="s", incident=second)
            assert engine.command(said).accepted
        for start in range(1650, len(readings), cut):
            verdicts += engine.process(readings[start : start + cut])
        found.append((verdicts, engine.take_incidents()))
    assert found[0] == found[1]
    changes = [one for one in found[0][1] if one.within]
    assert [one.ended for one in changes if one.ended] == [
        "adopted" if of is SPEC else "adopted_by_age"
    ]
    second, third = dict.fromkeys(one.id for one in changes)
    opened = next(one for one in changes if one.id == third)
    assert opened.within == first
    assert 2100 <= opened.opened_seq < 2130
    assert engine._live["s"].tracker.incident == first


def test_nothing_of_it_is_left_where_the_hold_is_switched_off_or_the_stream_forgotten():
    at = fresh()
    at.process(SAME[:1700])
    assert len(at.open_incidents()) == 2
    at.take_incidents()
    at.decide(replace(SPEC, hold=Hold(enabled=False)).decision)
    at.process(SAME[1700:1701])
    assert [one.ended for one in at.take_incidents()] == ["hold_off", "hold_off"]
    at = fresh()
    at.process(SAME[:1700])
    at.forget("s")
    assert at.open_incidents() == []


# ------------------------------------------------------- a repair of what was taken for normal
HOUR, REACH = 60 * MINUTE, FeatureSpec(("a",), preset="sensor").reach
ROLLING = replace(SPEC, features=FeatureSpec(("a", "b", "c"), preset="sensor"))


def adopted(days, *further, by_age=False, of=SPEC, cut=100):
    """Return what came of a fault that was taken for normal and repaired so many days later."""
    of = replace(of, hold=Hold(adopt_after_events=150 if by_age else 0, recover_events=30))
    at = FIRST + 250 + 24 * days
    readings = feed(("a", FIRST, at, 12.0), *further, n=at + 300, step_ms=HOUR)
    if not by_age:
        return (at, *answered(readings, CommandKind.NEW_NORMAL, 1100, of, cut))
    engine = fresh(of)
    verdicts = engine.process(readings)
    return at, verdicts, engine.take_incidents(), engine


@pytest.mark.parametrize("by_age", [False, True])
@pytest.mark.parametrize("days", [1, 10, 15])
def test_rows_as_before_an_adoption_bring_its_reference_back_for_a_fortnight(days, by_age):
    at, verdicts, changes, engine = adopted(days, by_age=by_age)
    first, *others = dict.fromkeys(one.id for one in since_first(changes))
    ended = [one for one in changes if one.id == first and one.ended]
    assert ended[0].ended == ("adopted_by_age" if by_age else "adopted")
    if days == 15:
        assert len(ended) == 1
        assert at <= next(one for one in changes if one.id in others).opened_seq < at + 20
        return
    assert not others, "a repair is no incident"
    back = ended[1]
    assert (back.ended, back.version, back.changed_ms) == (
        "as_before", ended[0].version + 1, HOUR * back.changed_seq,
    )  # fmt: skip
    assert at < back.changed_seq < at + 50
    assert "as before 11 February again" in headline(back, DisplayNames())
    after = [one for one in verdicts[back.changed_seq + 1 :] if one.score is not None]
    assert {one.model_epoch for one in after[:50]} == {verdicts[FIRST - 1].model_epoch}
    assert sum(one.label is Label.ANOMALY for one in after) < 0.25 * len(after)
    assert not any(one.held or one.incident for one in verdicts[at:])
    assert engine._live["s"]._kept.until_ms == back.changed_ms + 14 * 24 * HOUR


@pytest.mark.thorough
@pytest.mark.parametrize("of", [SPEC, ROLLING])
def test_what_was_adopted_comes_back_as_well_and_another_fault_beside_it_is_told(of):
    at = FIRST + 250 + 48
    again = ("a", at + 200, None, 12.0)
    changes = since_first(adopted(2, again, of=of)[2])
    assert [one.ended for one in changes if one.ended] == ["adopted", "as_before", "adopted"]
    assert len({one.id for one in changes}) == 1
    for start in (at - 20, at + 160):  # by the one reference, or by the other
        changes = since_first(adopted(2, ("c", start, None, 12.0), of=of)[2])
        told = [one for one in changes if one.opens][1]
        assert start < told.opened_seq < start + of.features.reach + 20
        assert told.channels[0].channel == "c"
    engine = adopted(2, ("c", at - 40, None, 12.0), of=of)[3]
    assert engine.open_incidents()[0].held
    assert engine._live["s"]._interim is not None, "there are two references at most"
    assert engine._live["s"]._earlier is engine._live["s"]._kept is None


BUDGET = replace(SPEC, policy=replace(SPEC.policy, tolerance=None, rate=0.1, burst=20))
SENSOR = replace(
    SPEC, detector=make_detector("Sensor"),
    schedule=RefitSchedule(first_fit_events=300, refit_lag_events=20),
)  # fmt: skip
BACK = ("a", FIRST, 1800, 12.0), ("c", 1300, 1400, 12.0)
LAWS = {
    "same": (SPEC, SAME), "other": (SPEC, feed(("a", FIRST, None, 12.0), ("c", 1600, None, 8.0))),
    "over": (SPEC, OVER), "budget": (BUDGET, SAME), "Sensor": (SENSOR, SAME),
    "rolling": (replace(ROLLING, detector=make_detector("Sensor")), SAME),
    "adopted": (replace(SPEC, hold=Hold(adopt_after_events=700)), SAME),
    "back": (replace(ROLLING, hold=Hold(adopt_after_events=500, recover_events=30)), feed(*BACK)),
}  # fmt: skip


@pytest.mark.parametrize("answer", [CommandKind.FAULT, CommandKind.NEW_NORMAL])
def test_no_row_that_looks_at_readings_before_the_fault_trains_what_comes_of_it(answer):
    readings = feed(("a", FIRST, None, 12.0), n=1501)
    _, changes, engine = answered(readings, answer, 1100, replace(ROLLING, alarms=None))
    state, onset = engine._live["s"], since_first(changes)[0].onset_seq
    made = state.model if state._interim is None else state._interim.model
    first = made._serving.rows()[0, ROLLING.features.names.index("a_mean_24")]
    assert first == pytest.approx(np.mean([one.values[0] for one in readings[onset : onset + 24]]))


@pytest.mark.thorough
@pytest.mark.parametrize("stop", [1600, 1900])
def test_a_repair_is_no_second_fault_though_rows_after_it_look_at_readings_before(stop):
    for seed in range(3):
        changes = played(
            lambda: fresh(LAWS["rolling"][0]), feed(("a", FIRST, stop, 12.0), seed=seed)
        )[1]
        assert since_first(changes)[-1].ended == "recovered"
        assert not any(one.within for one in changes)


@pytest.mark.thorough
@pytest.mark.parametrize("alarms", [Alarms(), None])
def test_a_second_fault_is_told_with_the_event_whose_columns_look_at_none_before_it(alarms):
    of = replace(LAWS["rolling"][0], alarms=alarms)
    changes = [one for one in played(lambda: fresh(of), SAME)[1] if one.within]
    opened, told = changes[0], [one.changed_seq for one in changes]
    assert opened.opens
    assert opened.id == f"t-0-{opened.changed_seq}"
    assert (opened.position.offset, opened.opened_ms) == (opened.changed_seq, opened.changed_ms)
    reach = ROLLING.features.reach
    assert 1600 < opened.onset_seq + reach < opened.changed_seq
    assert alarms is None or opened.onset_seq < 1610 < opened.changed_seq < 1650
    assert told == sorted(set(told)), "one change an event"


@pytest.mark.thorough
def test_a_third_is_told_after_an_answer_that_is_told_of_the_event_which_tells_of_it():
    of = LAWS["rolling"][0]
    faults = ("a", FIRST, None, 12.0), ("b", 1600, None, 12.0), ("c", 1800, None, 12.0)
    readings = feed(*faults, n=1900)
    third = next(one for one in played(lambda: fresh(of), readings)[1] if one.within and one.spread)
    engine, at = fresh(of), third.changed_seq
    engine.process(readings[:at])
    engine.take_incidents()
    said = Command(id="k", kind=CommandKind.FAULT, stream_key="s", incident=third.id)
    assert engine.command(said).accepted
    engine.process(readings[at : at + 2])
    told = [(one.changed_seq, len(one.spread)) for one in engine.take_incidents() if one.within]
    assert told == [(at, 0), (at + 1, 1)]


@pytest.mark.thorough
@pytest.mark.parametrize("core", ["python", "native"])
@pytest.mark.parametrize("name", LAWS)
def test_row_by_row_in_blocks_and_restored_it_says_the_same(name, core, monkeypatch):
    of, readings = LAWS[name]
    if core == "python":
        monkeypatch.setattr("rejex_stream.engine.engine.core", lambda: (None, ""))
    elif native_core.core()[0] is None:
        pytest.skip("no native core")
    verdicts, changes = played(lambda: fresh(of), readings, 1)
    assert any(one.within for one in changes)
    assert any(one.ended == "as_before" for one in changes) is (name == "back")
    wanted = [encode_incident(one) for one in changes]
    for size in (37, len(readings)):
        found = played(lambda: fresh(of), readings, size)
        assert (found[0], [encode_incident(one) for one in found[1]]) == (verdicts, wanted)
    engine, parts, said, told = fresh(of), PartsByVersion(), [], []
    for start in range(0, len(readings), 37):
        said += engine.process(readings[start : start + 37])
        told += engine.take_incidents()
        parts.keep(engine)
        engine = parts.restore(fresh(of))
    assert (said, [encode_incident(one) for one in told]) == (verdicts, wanted)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["same", "over", "adopted", "Sensor", "back"])
def test_parts_by_version_of_what_runs_on_hold_all_of_it(name):
    of, readings = LAWS[name]
    engine, parts, of_interim = fresh(of), PartsByVersion(), 0
    for start in range(0, len(readings), 29):
        engine.process(readings[start : start + 29])
        engine.take_incidents()
        parts.keep(engine)
        restored = parts.restore(fresh(of))
        assert restored.snapshot() == engine.snapshot(), start
        state = restored._live["s"]
        of_interim += (state._earlier if name == "back" else state._interim) is not None
    assert of_interim > 10


@pytest.mark.thorough
@pytest.mark.parametrize("again", [0.0, 20.0])
def test_the_repair_of_a_channel_that_stood_still_is_no_second_fault(again):
    changes = []
    for seed in range(3):
        readings = [
            one._replace(values=(12.0 if i < 1600 else again + one.values[0], *one.values[1:]))
            if i >= FIRST else one
            for i, one in enumerate(feed(n=1900, seed=seed))
        ]  # fmt: skip
        changes += played(lambda: fresh(SENSOR), readings)[1]
    told = [one for one in changes if one.within and one.opens and one.changed_seq >= 1600]
    assert len(told) == (3 if again else 0), "another fault of the same channel is one"


def test_rows_a_little_unusual_before_a_fault_are_of_the_state_before():
    ordinary, rare = [0.9, 1.2, 0.8, 1.0], [3.0, 3.3, 3.1, 3.3]
    assert [n_before(np.array(s)) for s in ([*ordinary, *rare], rare, ordinary, [3.0])] == [
        4, 0, 0, 0,
    ]  # fmt: skip
    quiet = feed(n=1501)
    readings = [
        one._replace(values=(0.9 + 0.1 * one.values[0], 0.9, 0.9)) if FIRST - 20 <= i < FIRST
        else one._replace(values=(one.values[0] + 12.0, *one.values[1:])) if i >= FIRST else one
        for i, one in enumerate(quiet)
    ]  # fmt: skip
    engine = fresh()
    engine.process(readings)
    (first,) = since_first(engine.take_incidents())[:1]
    assert first.onset_seq < FIRST
    made = engine._live["s"]._interim.model
    assert made._serving.rows()[:, 0].min() > 6.0


# ------------------------------------------------------------------------------------ a storm
ONE = Partition("t", 0)
ANSWERS = [CommandKind.KNOWN_FAULT, CommandKind.FAULT, CommandKind.NEW_NORMAL, None]


def stormy(n, seed):
    """Records of four sensors with faults in faults that end; the last is away now and then."""
    rng, records = np.random.default_rng(seed), []
    for i in range(n // 4):
        for sensor in range(4):
            at, (a, b, c) = (i - 150 * sensor) % 1900, rng.normal(0, 0.75, 3)
            a += 12.0 * (800 <= at < 1600) + 8.0 * (sensor == 1 and 1250 <= at < 1600)
            c += 8.0 * (sensor != 1 and 1250 <= at < 1600)
            if sensor == 3 and i % 1300 > 1200:
                continue
            body = {
                "id": f"s{sensor}",
                "t": 1_780_272_000_000 + 10 * MINUTE * i,
                "a": a,
                "b": b,
                "c": c,
            }
            at = Position(*ONE, len(records))
            records.append(Record(at, None, json.dumps(body).encode()))
    return records


def partition_state():
    decoder = JsonDecoder(FieldMapping(["a", "b", "c"], sensor="id", time="t"))
    context = ReviewItems(decoder.channels, points=3)
    return PartitionState(ONE, decoder=decoder, engine=fresh(ROLLING), context=context)


def test_of_two_incidents_that_one_event_ends_a_run_tells_both():
    """The end of the first was lost, and it stayed open for whoever reads the output."""
    records = [
        Record(Position(*ONE, i), None, json.dumps(
            {"id": "s", "t": r.event_time_ms} | dict(zip("abc", r.values, strict=True))
        ).encode())
        for i, r in enumerate(OVER)
    ]  # fmt: skip
    outcomes = partition_state().process(records)
    ends = [(one.opened_seq, one.changed_seq) for outcome in outcomes
            for one in outcome.incidents if one.ended == "recovered"]  # fmt: skip
    (first, over), (second, also) = ends[-2:]
    assert FIRST <= first < second < over == also


@pytest.mark.thorough
@pytest.mark.parametrize("core", ["python", "native"])
@pytest.mark.parametrize(
    ("n", "kills"), [(8_000, 6), pytest.param(42_000, 35, marks=pytest.mark.slow)]
)
def test_second_incidents_known_faults_and_silences_survive_kills_at_random(
    n, kills, core, monkeypatch
):
    if core == "python":
        monkeypatch.setattr("rejex_stream.engine.engine.core", lambda: (None, ""))
    elif native_core.core()[0] is None:
        pytest.skip("no native core")
    records, rng, said = stormy(n, kills), random.Random(kills), defaultdict(list)
    state, wanted = partition_state(), []
    for at in range(0, len(records), 50):
        for command in said[at]:
            state._command(command)
        outcomes = state.process(records[at : at + 50])
        wanted += outcomes
        for one in (one for outcome in outcomes for one in outcome.incidents if one.opens):
            if not one.silent and (kind := rng.choice(ANSWERS)):
                command = Command(id=one.id, kind=kind, stream_key=one.stream_key, incident=one.id)
                said[at + rng.randrange(50, 500, 50)].append(command)
    changes = [one for outcome in wanted for one in outcome.incidents]
    assert {bool(one.within) for one in changes} == {True, False}
    assert any(one.silent for one in changes)
    assert any(one.known is True for one in changes)

    ends = sorted(rng.sample(range(100, len(records)), kills))
    state, parts, begun, at, found = partition_state(), {}, 0, 0, {}
    while at < len(records):
        for command in said[at] if at % 50 == 0 else ():
            state._command(command)
        to = min(at + rng.choice([1, 7, 30, 50]), at // 50 * 50 + 50)
        for outcome in state.process(records[at:to]):
            offset = outcome.record.position.offset
            assert outcome == found.setdefault(offset, wanted[offset])
        at = to
        if at % 50 == 0 and rng.random() < 0.1:
            state, parts = reborn(state, parts, partition_state)
            begun = at
        if ends and at > ends[0]:
            ends.pop(0)
            state, at = partition_state(), begun
            if parts:
                state.restore(parts)
                state.apply_config()
    assert not ends
    assert len(found) == len(records)
