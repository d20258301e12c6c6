"""While an incident is held, a fault in another channel is told by it, once a channel."""

import random
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from scipy.signal import lfilter

from rejex_stream.detectors import make_detector
from rejex_stream.encode import encode_incident
from rejex_stream.engine import Engine
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import FeatureSpec
from rejex_stream.incidents import Alarms, Hold
from rejex_stream.operate.incident_text import DisplayNames, choices, describe_incident, headline
from rejex_stream.readable import ChannelReading, Expected
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import ChannelEvidence, Command, CommandKind
from tests.streams import Distance, of_rows, played, spec

N, MINUTE = 200, 60_000
CHANNELS = ("a", "b", "c")
SENSOR, DISTANCE = make_detector("Sensor"), Distance()


def pipeline(detector=DISTANCE):
    return replace(
        spec(window=N, every=400, tolerance=3.0),
        detector=detector, features=FeatureSpec(CHANNELS), alarms=Alarms(), evidence=True,
        hold=Hold(adopt_after_events=0),
        schedule=RefitSchedule(first_fit_events=600, refit_lag_events=20),
    )  # fmt: skip


def feed(*faults, n=1600, seed=1):
    """Readings of three channels, an event a minute, each raised from some row on."""
    rng = np.random.default_rng(seed)
    X = lfilter([0.7], [1, -0.7], rng.normal(size=(n, 3)), axis=0)
    for channel, start, stop, by in faults:
        X[start:stop, CHANNELS.index(channel)] += by
    return of_rows(X, step_ms=MINUTE)


FIRST, SECOND = ("a", 800, None, 9.0), ("c", 1100, None, 9.0)


def incidents(readings, pipeline_=None, cut=100):
    changes = played(lambda: Engine(pipeline_ or pipeline(), InlineExecutor()), readings, cut)[1]
    return {one.id: one for one in changes if one.opened_seq >= 790}, changes


@pytest.mark.parametrize("detector", [SENSOR, DISTANCE], ids=["Sensor", "Distance"])
def test_a_second_fault_is_told_by_the_incident_that_is_open_with_its_channel_first(detector):
    readings = feed(FIRST, SECOND)
    found, changes = incidents(readings, pipeline(detector))
    (incident,) = found.values()
    (spread,) = incident.spread
    assert spread.channel == "c"
    assert 1095 <= (spread.since_ms - readings[0].event_time_ms) / MINUTE <= 1110
    assert [one.channel for one in incident.channels][:2] == ["c", "a"]
    first = next(one for one in changes if one.spread)
    before = changes[changes.index(first) - 1]
    assert first.version == before.version + 1, "which is a post of its own"
    assert 1100 <= first.changed_seq < 1160


def test_three_faults_are_two_posts_more():
    found, _ = incidents(feed(FIRST, SECOND, ("b", 1300, None, 9.0)))
    (incident,) = found.values()
    assert [one.channel for one in incident.spread] == ["b", "c"]
    assert [one.channel for one in incident.channels] == ["b", "c", "a"]


def test_one_fault_alone_tells_of_no_other():
    for seed in range(5):
        found, _ = incidents(feed(FIRST, seed=seed))
        assert [one.spread for one in found.values()] == [()]


@pytest.mark.thorough
def test_without_evidence_or_a_hold_there_is_nothing_to_compare():
    for how in (
        {"evidence": False}, {"hold": Hold(enabled=False)}, {"alarms": None},
    ):  # fmt: skip
        assert not any(
            one.spread for one in incidents(feed(FIRST, SECOND), replace(pipeline(), **how))[1]
        )


def test_what_is_told_ends_with_its_incident():
    readings = feed(("a", 800, 1000, 9.0), ("c", 900, 1000, 9.0), ("b", 1150, None, 9.0))
    first, second = incidents(readings)[0].values()
    assert first.ended == "recovered"
    assert [one.channel for one in first.spread] == ["c"]
    assert second.held
    assert second.spread == ()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, 1, 3])
@pytest.mark.parametrize("detector", [SENSOR, DISTANCE], ids=["Sensor", "Distance"])
def test_in_any_cut_and_restored_anywhere_it_is_told_at_the_same_event(detector, seed):
    def fresh():
        return Engine(pipeline(detector), InlineExecutor())

    faults = (("a", 1500, None, 9.0), ("c", 1900, None, 9.0))
    readings, rng = feed(*faults, n=2200, seed=seed), random.Random(seed)
    verdicts, changes = played(
        fresh, readings, lambda: rng.choice([1, 2, 30, 150]), lambda: rng.random() < 0.3
    )
    wanted = played(fresh, readings, len(readings))
    assert [encode_incident(one) for one in changes] == [encode_incident(i) for i in wanted[1]]
    assert verdicts == wanted[0]
    assert any(one.spread for one in changes)


def test_a_known_fault_stays_open_and_quiet_and_what_comes_to_it_is_told():
    # It nearly ends at 1,100 for a while: of a fault that would be told, of a known one not.
    readings = feed(("a", 800, 1100, 9.0), ("a", 1140, 1400, 9.0), ("c", 1250, 1400, 9.0))

    def answered(kind, cut=100):
        engine = Engine(pipeline(), InlineExecutor())
        engine.process(readings[:900])
        opened = engine.take_incidents()[-1]
        reply = engine.command(
            Command(id="k", kind=kind, stream_key="s", incident=opened.id, version=opened.version)
        )
        assert reply.accepted
        again = Command(id="l", kind=kind, stream_key="s", incident=opened.id)
        assert not engine.command(again).accepted
        changes = []
        for at in range(900, len(readings), cut):
            saved, engine = engine.snapshot(), Engine(pipeline(), InlineExecutor())
            engine.restore(saved)
            engine.process(readings[at : at + cut])
            changes += [one for one in engine.take_incidents() if one.id == opened.id]
        return changes

    fault, known = answered(CommandKind.FAULT), answered(CommandKind.KNOWN_FAULT)
    assert "recovering" in {one.state for one in fault}
    assert {one.state for one in known} == {"fault", "closed"}
    assert {one.known for one in known} == {True}
    first, closed = known[0], known[-1]
    spread = next(one for one in known if one.spread)
    assert spread.spread[0].channel == "c"
    assert (closed.state, closed.ended) == ("closed", "recovered")
    assert known == answered(CommandKind.KNOWN_FAULT, cut=30)
    assert "is a known fault, and stays until it is repaired" in describe_incident(first)
    assert [one.kind for one in choices(first)] == ["new_normal"]
    assert [one.kind for one in choices(fault[0])] == ["known_fault", "new_normal"]


def test_it_is_said_in_words():
    incident = list(incidents(feed(FIRST, SECOND))[0].values())[-1]
    said = headline(incident, DisplayNames(), [ChannelReading("c", 9.5, (-2.0, 2.0), None)])
    assert ": also c" in said
    assert "the incident is open since" in said
    assert "c as well since" in describe_incident(incident)
    first = ChannelEvidence("a", 9.0, 0.1, None, Expected(5.0, 1.0, 0.0, 2.0))
    added = msgspec.structs.replace(incident, channels=(*incident.channels[:1], first))
    assert "also a" not in headline(added, DisplayNames()), "that was told before"
    assert DisplayNames().evidence(added) == "a 5, expected 1 from the others"


@pytest.mark.parametrize("detector", [SENSOR, DISTANCE], ids=["Sensor", "Distance"])
def test_one_fault_that_shows_in_two_channels_is_one_post_and_a_third_is_told(detector):
    together = (FIRST, ("b", 800, None, 9.0))
    (alone,) = incidents(feed(*together), pipeline(detector))[0].values()
    assert alone.spread == ()
    (incident,) = incidents(feed(*together, SECOND), pipeline(detector))[0].values()
    assert [one.channel for one in incident.spread] == ["c"]


@pytest.mark.parametrize("seed", range(3))
def test_beside_a_rest_that_stays_a_little_unusual_a_second_fault_is_told(seed):
    faults = (FIRST, ("b", 800, None, 3.5), SECOND)
    (incident,) = incidents(feed(*faults, seed=seed))[0].values()
    assert [one.channel for one in incident.spread] == ["c"]
