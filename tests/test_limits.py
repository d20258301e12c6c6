"""Limits that people set: an anomaly whatever the score, told at once, and none of the theory."""

import itertools
import json
import math
import random
import re
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from rejex_stream.cli import main
from rejex_stream.config import load_config
from rejex_stream.config.assembly import engine_spec
from rejex_stream.config.reviewing import Channel
from rejex_stream.detectors import make_detector
from rejex_stream.encode import decode_verdict, encode_incident, encode_verdict
from rejex_stream.encode.records import decode_incidents
from rejex_stream.engine import Engine, stream_state
from rejex_stream.errors import ConfigError
from rejex_stream.features import Circle, Feature, FeatureSpec
from rejex_stream.incidents import Alarms, ChannelLimits, Hold
from rejex_stream.incidents.limits import Noise
from rejex_stream.incidents.state_machine import UPDATE_MS
from rejex_stream.monitor import MonitorBank, MonitorConfig
from rejex_stream.operate.alerts import make_alert
from rejex_stream.operate.incident_text import DisplayNames, choices
from rejex_stream.rejection import RejectionPolicy
from rejex_stream.report.page import in_words
from rejex_stream.review.certificate import Evidence, read_log
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.run.review_items import AuditDraw, ReviewItems
from rejex_stream.types import (
    Command,
    CommandKind,
    IncidentState,
    Label,
    LimitExcess,
    OutcomeCounts,
    Reason,
    is_ranked,
    nan_of_unit,
    unit_change,
    without_limits,
)
from tests.oracle import reference_verdicts
from tests.streams import of_rows, played, spec
from tests.test_alarm import N, feed, play, small

HIGH = (ChannelLimits("x", None, 6.0),)
BUDGET = RejectionPolicy(0.2, rate=0.15, burst=4)
HST = make_detector("HalfSpaceTrees", n_trees=5, height=4, window_size=60)


def lone(*at, n=3000, value=7.25, seed=0):
    """Usual readings; at some places the first channel is beyond its limit."""
    readings = feed(n=n, seed=seed)
    for i in at:
        readings[i] = readings[i]._replace(values=(value, readings[i].values[1]))
    return readings


def engine(limits=HIGH, **given):
    policy = given.pop("policy", None)
    made = small(**given)
    return Engine(replace(made, limits=limits, policy=policy or made.policy), InlineExecutor())


def test_a_value_beyond_its_limit_is_an_anomaly_from_the_first_event_on():
    verdicts = play(engine(), lone(0, 30, 1500))[0]
    assert [v.seq for v in verdicts if v.reason is Reason.LIMIT] == [0, 30, 1500]
    first, late = verdicts[0], verdicts[1500]
    assert first.label is late.label is Label.ANOMALY
    assert first.score is None
    assert first.limited.reason is Reason.WARM_UP
    assert first.limited.channels == (LimitExcess("x", 7.25, 6.0),)
    assert late.score is not None
    assert late.limited.label is Label.ANOMALY


@pytest.mark.thorough
def test_without_limits_every_verdict_is_what_it_was():
    readings = lone(0, 30, 31, 1500, *range(2000, 2400, 3))
    for given in ({}, {"policy": BUDGET}, {"detector": HST}, {"hold": Hold(enabled=False)}):
        plain, more = engine((), **given), engine(**given)
        bare = [without_limits(v) for v in play(more, readings)[0]]
        assert bare == play(plain, readings)[0]


def test_the_limit_itself_is_within_and_so_is_what_is_missing():
    verdicts = play(engine(), lone(5, value=6.0))[0]
    assert not any(v.limited for v in verdicts)
    verdicts = play(engine(), lone(5, 900, value=math.nan))[0]
    assert not any(v.limited for v in verdicts)
    both = engine((ChannelLimits("x", -6.0, 6.0),))
    verdicts = play(both, lone(5, value=-6.5))[0]
    assert verdicts[5].limited.channels == (LimitExcess("x", -6.5, -6.0),)


def test_an_infinite_value_is_beyond_and_travels():
    verdict = play(engine(), lone(700, 701, 702, value=math.inf))[0][702]
    assert verdict.reason is Reason.LIMIT
    assert verdict.limited.reason is Reason.UNSCORABLE
    assert decode_verdict(encode_verdict(verdict)).limited.channels == (
        LimitExcess("x", None, 6.0),
    )


def test_held_and_constant_events_are_subject_to_limits_and_planned_and_muted_ones_are_not():
    readings = feed((1500, 2400), by=9.0)
    verdicts = play(engine((ChannelLimits("x", None, 7.0),)), readings)[0]
    held = [v for v, r in zip(verdicts, readings, strict=True) if v.held and r.values[0] > 7.0]
    assert len(held) > 50
    assert {v.reason for v in held} == {Reason.LIMIT}
    assert all(v.incident for v in held)
    stuck = [r._replace(values=(8.0, 1.0)) for r in feed(n=1200)]
    verdicts = play(engine(hold=Hold(enabled=False)), stuck)[0]
    assert verdicts[-1].limited.reason is Reason.CONSTANT_WINDOW
    told, usual = engine(), lone(105, 700, n=1200)
    play(told, usual[:50])
    times = [r.event_time_ms for r in readings]
    for command in (
        Command(id="p", kind=CommandKind.PLANNED, from_ms=times[100], until_ms=times[110]),
        Command(
            id="m", kind=CommandKind.MUTE, stream_key="s", box={"x": (6.5, 8.0)}, by="ada",
            note="washing", from_ms=times[600], until_ms=times[2999]),
    ):  # fmt: skip
        assert told.command(command).accepted
    verdicts, incidents = play(told, usual[50:])
    assert not any(v.limited for v in verdicts)
    assert verdicts[55].planned
    assert verdicts[650].muted == "m"
    assert not incidents


def test_somebody_is_told_at_the_first_event_and_until_values_are_within_again():
    readings = lone(20, *range(700, 760))
    told = play(engine(hold=Hold(enabled=False, recover_events=15)), readings)[1]
    ends = (None, *[i.id for i in told])
    shown = [
        (i.state, i.changed_seq)
        for i, before in zip(told, ends, strict=False)
        if i.state is IncidentState.CLOSED or i.id != before
    ]
    assert shown[0] == (IncidentState.OPEN, 20)
    assert shown[1] == (IncidentState.CLOSED, 35)
    assert shown[2] == (IncidentState.OPEN, 700)
    assert shown[3][1] >= 774
    assert len(shown) == 4
    assert told[0].limits == (LimitExcess("x", 7.25, 6.0),)
    assert told[0].channels[0].channel == "x"
    assert (told[0].n_events, told[0].n_anomalies, told[0].sensors) == (1, 1, ("s",))
    assert told[0].onset_seq == 20
    assert decode_incidents(encode_incident(told[0])) == told[0]


def test_an_incident_lasts_while_values_are_beyond_however_ordinary_scores_are():
    told = play(engine(hold=Hold(recover_events=15)), lone(*range(5, 45), n=200))[1]
    assert len({i.id for i in told}) == 1
    assert [i.changed_seq for i in told if i.state is IncidentState.CLOSED] == [44 + 15]
    n_updates = (told[-1].changed_ms - told[0].changed_ms) // UPDATE_MS
    assert len(told) <= 2 + n_updates, "the first event beyond the limit is news, the others not"


def test_an_open_incident_publishes_that_a_limit_is_exceeded():
    readings = feed((2000, 2300), by=1.6)
    told = play(engine((), hold=Hold(enabled=False)), readings)[1]
    at = told[0].opened_seq + 3
    readings[at] = readings[at]._replace(values=(7.25, 0.0))
    told = play(engine(hold=Hold(enabled=False)), readings)[1]
    assert not told[0].limits
    assert (told[1].id, told[1].version, told[1].changed_seq) == (told[0].id, 2, at)
    assert told[1].limits == (LimitExcess("x", 7.25, 6.0),)


@pytest.mark.thorough
@pytest.mark.parametrize("after", [3, 60])
def test_a_held_incident_publishes_at_once_that_a_limit_is_exceeded(after):
    """It said so with its next change, which may be days later."""
    readings = feed((1500, 2400), by=9.0)
    told = play(engine(()), readings)[1]
    held = next(i for i in told if i.held)
    at = held.changed_seq + after
    limits = (ChannelLimits("x", None, 40.0),)
    readings[at] = readings[at]._replace(values=(47.25, 0.0))
    told = play(engine(limits), readings)[1]
    assert not told[0].limits
    said = next(i for i in told if i.limits)
    assert (said.id, said.held, said.changed_seq) == (held.id, True, at)
    assert said.version == held.version + 1
    assert said.limits == (LimitExcess("x", 47.25, 40.0),)
    assert said.channels[0].channel == "x"
    assert play(engine(limits), readings, cut=1) == play(engine(limits), readings, cut=3000)


def test_the_event_that_makes_an_incident_a_hold_says_its_limit():
    readings = feed((1500, 2400), by=9.0)
    turned = next(i for i in play(engine(()), readings)[1] if i.held)
    at, alone = turned.changed_seq, engine((ChannelLimits("x", None, 40.0),))
    readings[at] = readings[at]._replace(values=(47.25, readings[at].values[1]))
    told = play(alone, readings)[1]
    assert next(i for i in told if i.held).changed_seq == at
    assert next(i for i in told if i.held).limits == (LimitExcess("x", 47.25, 40.0),)


def test_the_alert_says_what_is_beyond_which_limit():
    incident = play(engine(), lone(20, value=7.2))[1][0]
    wording = DisplayNames("p", channels={"x": Channel(unit="bar", label="pressure")})
    alert = make_alert(incident, wording)
    assert "s: pressure 7.2 bar is above its limit of 6 bar; since" in alert.annotations["summary"]
    assert "pressure 7.2 bar is above its limit of 6 bar" in alert.annotations["description"]
    low = play(engine((ChannelLimits("x", -5.0),)), lone(20, value=-7.2))[1][0]
    assert "pressure -7.2 bar is below its limit of -5 bar" in make_alert(low, wording).annotations[
        "summary"
    ]  # fmt: skip


# ------------------------------------------------------------------------------ the laws
@pytest.mark.thorough
@pytest.mark.parametrize(
    "given", [{}, {"detector": HST}, {"policy": BUDGET}, {"hold": Hold(enabled=False)}]
)
def test_no_cut_of_the_input_and_no_restart_changes_anything(given):
    readings = feed((1500, 1900), by=9.0)
    rng = random.Random(5)
    for i in rng.sample(range(3000), 150):
        value = rng.choice((7.25, 7.25, math.nan, math.inf))
        for at in range(i, min(3000, i + 3)) if value == math.inf else [i]:  # one is carried
            readings[at] = readings[at]._replace(values=(value, readings[at].values[1]))
    wanted = play(engine(**given), readings, cut=3000)
    assert sum(v.limited.reason is Reason.UNSCORABLE for v in wanted[0] if v.limited) > 20
    assert sum(1 for v in wanted[0] if v.limited) > 100
    assert len(wanted[1]) > 4
    for seed in range(2):
        rng = random.Random(seed)
        sizes, restarts = lambda: rng.choice((1, 1, 2, 7, 60, 400)), lambda: rng.random() < 0.1  # noqa: B023
        assert played(lambda: engine(**given), readings, sizes, restarts) == wanted


def test_what_cannot_be_scored_before_an_adoption_ends_is_held_in_any_cut():
    readings, limits = feed((1000, 2000), by=9.0, n=2000), (ChannelLimits("x", None, 40.0),)
    readings = [reading._replace(event_time_ms=60 * reading.event_time_ms) for reading in readings]
    at = next(i.changed_seq for i in play(engine(limits), readings)[1] if i.ended)
    for i in range(at - 1, at + 6):  # the first carries the value before it on
        readings[i] = readings[i]._replace(values=(math.inf, readings[i].values[1]))
    wanted = play(engine(limits), readings, cut=1)
    assert next(i.changed_seq for i in wanted[1] if i.ended) > at
    assert sum(v.held and bool(v.limited) for v in wanted[0]) >= 5
    assert play(engine(limits), readings, cut=2000) == wanted


def test_an_event_without_a_score_opens_an_incident_where_a_batch_begins_with_it():
    readings = lone(701, n=1200)
    for i in (699, 700, 701):
        readings[i] = readings[i]._replace(values=(readings[i].values[0], math.nan))
    found = engine()
    verdicts = found.process(readings[:701]) + found.process(readings[701:])
    assert verdicts[701].limited.reason is Reason.UNSCORABLE
    told = found.take_incidents()
    assert (told[0].opened_seq, told[0].limits) == (701, (LimitExcess("x", 7.25, 6.0),))
    assert play(engine(), readings, cut=1) == (verdicts, told)


def full_of_gaps():
    rng, readings = random.Random(4), lacking((300, 330), (700, 790), (1000, 1012), n=1200)
    return [
        r._replace(values=(r.values[0], math.nan)) if rng.random() < 0.3 else r for r in readings
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(("detector", "limits", "readings"), [
    (None, (ChannelLimits("x", -1.0, 1.5), ChannelLimits("y", None, 2.0)), lambda: lone(3, n=700)),
    (make_detector("Sensor"), (ChannelLimits("x", None, 3.0),), full_of_gaps),
], ids=["values", "gaps"])  # fmt: skip
def test_the_oracle_says_the_same(detector, limits, readings):
    pipeline, readings = replace(spec(detector), limits=limits), readings()
    found, wanted = (
        [(v.label, v.reason, v.limited, v.rank, v.band_lower) for v in verdicts]
        for verdicts in (
            Engine(pipeline, InlineExecutor()).process(readings),
            reference_verdicts(pipeline, readings),
        )
    )
    assert found == wanted
    assert sum(reason is Reason.LIMIT for _, reason, *_ in found) > 50


def test_changed_limits_are_a_changed_decision():
    readings, old = lone(*range(0, 3000, 50)), engine(())
    play(old, readings[:1500])
    new = engine()
    restored = new.restore(old.snapshot())
    assert restored.was.limits == ()
    assert restored.now.limits == HIGH
    assert "limits" in restored.now.since(restored.was)
    new.decide(restored.was)
    before = play(new, readings[1500:1700])[0]
    new.decide(restored.now)
    after = play(new, readings[1700:])[0]
    assert not any(v.limited for v in before)
    assert [v.seq for v in after if v.limited] == list(range(1700, 3000, 50))
    assert type(restored.now).of(restored.now.parts()) == restored.now


# ------------------------------------------------------------------------------ said apart
def test_rates_and_monitors_see_what_the_score_says():
    readings = lone(n=2600)
    limits = (ChannelLimits("x", -0.5, 0.5),)
    off = Hold(enabled=False)
    plain, more = (play(engine(one, hold=off), readings)[0] for one in ((), limits))
    assert sum(v.reason is Reason.LIMIT for v in more) > 1000
    counted = []
    for verdicts in (plain, more):
        config = MonitorConfig(contamination=0.2, window=N, tolerance=3.0)
        monitor, counts = MonitorBank(config), OutcomeCounts()
        alarms = monitor.observe(verdicts)
        counts.add_verdicts(verdicts)
        counted.append((alarms, monitor.snapshot(), counts.n_ranked, counts.n_ambiguous))
    assert counted[0] == counted[1]
    assert [is_ranked(v) for v in plain] == [is_ranked(v) for v in more]


def test_nobody_is_asked_about_an_anomaly_by_a_limit():
    readings = lone(*range(1000, 1100), n=1200)
    verdicts = play(engine(hold=Hold(enabled=False)), readings)[0]
    items = ReviewItems(("x", "y"), points=4, audit=AuditDraw(1.0, anomaly_rate=1.0))
    found = [items.observe(*one) for one in zip(readings, verdicts, strict=True)]
    beyond = [v for v in verdicts if v.limited]
    assert len(beyond) == 100
    assert not any(v.audit for v in beyond)
    asked = [one.verdict for one in found if one is not None and hasattr(one, "verdict")]
    assert asked
    assert not any(v.limited for v in asked)


def test_the_certificate_takes_them_for_anomalies():
    verdicts = play(engine(hold=Hold(enabled=False)), lone(3, 1000, 1001, n=1200))[0]
    lines = [encode_verdict(v) for v in verdicts]
    log = read_log(lines, AuditDraw(), Evidence())
    assert not log.wrong
    forged = msgspec.structs.replace(verdicts[1000], label=Label.NORMAL)
    forged_log = [*lines[:1000], encode_verdict(forged), *lines[1001:]]
    assert read_log(forged_log, AuditDraw(), Evidence()).wrong


@pytest.mark.parametrize(
    "limits", [ChannelLimits("z", None, 6.0), ChannelLimits("x"), ChannelLimits("x", 6.0, 6.0)]
)
def test_limits_that_are_none_are_refused(limits):
    with pytest.raises(ConfigError, match=f"channel '{limits.channel}'"):
        replace(small(), alarms=Alarms(), limits=(limits,))


# ------------------------------------------------------------------------------ from file to file
CONFIG = """
[input]
path = "feed.csv"
time = "time"
sensor = "sensor"
channels = ["pressure", "flow"]

[rejection]
contamination = 0.05
tolerance = 4
window = 200

[refit]
executor = "inline"

[channels.pressure]
high = 6
limit = "alarm"
"""


def test_a_run_from_file_to_file_says_what_was_beyond(tmp_path, monkeypatch, capsys):
    readings = lone(10, 900, n=1200, value=7.2)
    rows = [f"{1_700_000_000 + 60 * i},p0,{x!r},{y!r}" for i, (x, y) in
            enumerate(reading.values for reading in readings)]  # fmt: skip
    (tmp_path / "feed.csv").write_text("\n".join(["time,sensor,pressure,flow", *rows]) + "\n")
    (tmp_path / "pipeline.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    assert main(["run", "pipeline.toml", "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["labels"]["anomaly"] > 2
    assert found["limited"] == 2
    assert "limit" not in found["reasons"]  # those are why events were rejected
    assert sum(found["reasons"].values()) == found["labels"]["rejected"]
    lines = (tmp_path / "verdicts.jsonl").read_bytes().splitlines()
    verdicts = [decode_verdict(line) for line in lines]
    assert [v.seq for v in verdicts if v.reason is Reason.LIMIT] == [10, 900]
    assert verdicts[10].limited.channels == (LimitExcess("pressure", 7.2, 6.0),)
    lines = (tmp_path / "incidents.jsonl").read_bytes().splitlines()
    told = [decode_incidents(line) for line in lines]
    assert told[0].changed_seq == 10
    assert told[0].limits == (LimitExcess("pressure", 7.2, 6.0),)
    with (tmp_path / "feed.csv").open("a") as file:
        file.write(f"{1_700_000_000 + 60 * 1200},p0,7.2,0.0\n")
    assert main(["run", "pipeline.toml"]) == 0
    said = [line.split()[0:3] for line in capsys.readouterr().out.splitlines()]
    below = said[[words[0:1] for words in said].index(["anomaly"]) + 1]
    assert below == ["beyond", "a", "limit"]


@pytest.mark.parametrize(("was", "becomes", "says"), [
    ("high = 6\n", "", 'channels.pressure: limit = "alarm" without a limit'),
    ("high = 6", "high = 6\nlow = 6", "low = 6.0 is not below high = 6.0"),
    ('"alarm"', '"shout"', "channels.pressure.limit"),
    ("[channels.pressure]", "[channels.presure]", "did you mean 'pressure'"),
])  # fmt: skip
def test_limits_that_make_no_sense_are_refused_in_a_sentence(was, becomes, says, tmp_path):
    (tmp_path / "pipeline.toml").write_text(CONFIG.replace(was, becomes))
    with pytest.raises(ConfigError, match=re.escape(says)):
        load_config(tmp_path / "pipeline.toml")


def test_limits_that_are_only_drawn_decide_nothing(tmp_path):
    (tmp_path / "drawn.toml").write_text(CONFIG.replace('limit = "alarm"', ""))
    (tmp_path / "alarm.toml").write_text(CONFIG)
    assert engine_spec(load_config(tmp_path / "drawn.toml")).limits == ()
    alarm = engine_spec(load_config(tmp_path / "alarm.toml")).limits
    assert alarm == (ChannelLimits("pressure", None, 6.0),)


# ---------------------------------------------------------------- what is missing for too long
def lacking(*spans, n=1500, channels=(0,), every=1, gone=math.nan):
    """Usual readings, some channels of which are missing in stretches."""
    readings = feed(n=n)
    for begin, end in spans:
        for i in range(begin, end, every):
            values = [gone if c in channels else v for c, v in enumerate(readings[i].values)]
            readings[i] = readings[i]._replace(values=tuple(values))
    return readings


def missing(verdicts):
    return [v.seq for v in verdicts if v.limited]


@pytest.mark.parametrize("detector", ["Sensor", "HBOS", "trees"])
def test_a_channel_that_goes_missing_is_an_anomaly_and_one_incident_until_it_is_back(detector):
    made = engine((), detector=HST if detector == "trees" else make_detector(detector))
    verdicts, changes = play(made, lacking((1000, 1100)))
    assert missing(verdicts) == [*range(1010, 1100)]
    last = verdicts[1099]
    assert last.label is Label.ANOMALY
    assert last.reason is Reason.LIMIT
    assert last.limited.channels == (LimitExcess("x", None, 10.0, 100),)
    assert last.limited.reason is (None if detector == "Sensor" else Reason.UNSCORABLE)
    changes = [change for change in changes if change.opened_seq >= 1000]
    opened, *_, closed = changes
    assert (opened.opened_seq, closed.state, closed.ended) == (
        1010, IncidentState.CLOSED, "recovered",
    )  # fmt: skip
    assert len({change.id for change in changes}) == 1
    text = "x has had no value for 11 events, more than 10 are not usual"
    assert opened.limits == (LimitExcess("x", None, 10.0, 11),)
    assert text in make_alert(opened, DisplayNames("p")).annotations["summary"]
    assert decode_incidents(encode_incident(opened)).limits == opened.limits


def test_where_nobody_counts_what_is_missing_a_lost_channel_goes_unseen(monkeypatch):
    monkeypatch.setattr(stream_state, "long_gaps", lambda *given, **more: {})
    verdicts, changes = play(engine(()), lacking((1000, 1100)))
    assert not missing(verdicts)
    assert not [change for change in changes if 1000 <= change.opened_seq < 1100]


def test_gaps_as_long_as_they_have_always_been_are_usual():
    spans = [(i, i + 12) for i in range(10, 900, 40)]
    assert not missing(play(engine(()), lacking(*spans, (1000, 1036)))[0]), "three times as long is"
    found = missing(play(engine(()), lacking(*spans, (1000, 1040)))[0])
    assert found == [*range(1036, 1040)]
    assert not missing(play(engine(()), lacking((50, 99)))[0]), "nothing is usual so early"
    again = missing(play(engine(()), lacking((800, 860), (1250, 1310)))[0])
    assert again == [*range(810, 860), *range(1260, 1310)], "a fault is no habit"
    often = [(i, i + 59) for i in range(300, 1500, 60)]
    assert missing(play(engine(()), lacking(*often))[0]) == [*range(310, 359)], "but this is one"
    assert not missing(play(engine(()), lacking((0, 1500)))[0]), "it was never there"


def test_what_is_carried_forward_for_longer_is_usual_for_as_long():
    made = replace(small(), features=FeatureSpec(("x", "y"), carry_forward_events=25))
    verdicts = play(Engine(made, InlineExecutor()), lacking((1000, 1100)))[0]
    assert missing(verdicts) == [*range(1025, 1100)]


def test_a_sensor_without_any_value_is_one_incident_and_no_flood():
    verdicts, changes = play(engine(()), lacking((1000, 1200), channels=(0, 1)))
    reasons = [v.reason for v in verdicts[1001:1200]]  # the first is carried forward
    assert reasons == [Reason.UNSCORABLE] * 9 + [Reason.LIMIT] * 190
    assert len({change.id for change in changes}) == 1


def test_planned_and_muted_gaps_are_no_anomalies_and_are_counted_all_the_same():
    readings, made = lacking((1000, 1100)), engine(())
    times = [r.event_time_ms for r in readings]
    play(made, readings[:100])
    made.command(
        Command(id="p", kind=CommandKind.PLANNED, from_ms=times[1000], until_ms=times[1050])
    )
    verdicts = play(made, readings[100:])[0]
    assert missing(verdicts)[0] == next(v.seq for v in verdicts if v.seq > 1000 and not v.planned)
    assert verdicts[-401].limited.channels[0].missing_events == 100


def test_a_unit_that_changes_is_an_incident_of_its_own_from_the_first_event_on():
    verdicts, changes = play(engine(()), lacking((1000, 1100), gone=nan_of_unit("°C", "°F")))
    assert [v.seq for v in verdicts if v.reason is Reason.LIMIT] == [*range(1000, 1100)]
    changes = [change for change in changes if change.opened_seq >= 1000]
    assert len({change.id for change in changes}) == 1
    assert (changes[0].onset_seq, changes[-1].ended) == (1000, "recovered")
    (told,) = changes[0].limits
    assert (told.units, told.called) == (("°C", "°F"), "unit changed")
    assert decode_incidents(encode_incident(changes[0])).limits == (told,)
    assert not told.is_set_by_people
    assert not changes[0].passed_limit
    assert choices(changes[0])[-1].does.endswith("or the config names it.")
    alert = make_alert(changes[0], DisplayNames("p")).annotations
    assert alert["severity"] == "0 of 100 (scores are ordinary)"
    for text in (alert["summary"], alert["description"], in_words(verdicts[1000])):
        assert "x: unit was °C, is °F, and no such value is judged: convert it" in text


def test_however_many_units_there_were_the_newest_are_known_and_the_oldest_are_plainly_missing():
    oldest, *_, newest = [nan_of_unit("°C", str(i)) for i in range(5_000)]
    assert (unit_change(newest), unit_change(oldest)) == (("°C", "4999"), None)
    assert nan_of_unit("°C", "4999") is newest
    assert math.isnan(oldest)


@pytest.mark.thorough
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("cut", [1, 7, 333])
def test_no_cut_and_no_restart_changes_what_is_missing_for_too_long(cut, restarts):
    """Without a restart in between, single events take whatever short way there is."""
    readings = lacking((300, 330), (700, 790), (800, 803), (806, 812), (1000, 1100))
    readings[900:905] = lacking((900, 905), gone=nan_of_unit("bar", "kPa"))[900:905]
    whole, pieces = play(engine(()), readings)[0], itertools.count()
    found, _ = played(
        lambda: engine(()), readings, cut, lambda: restarts and next(pieces) * cut % 5 == 0
    )
    assert found == whole
    assert len(missing(whole)) > 90


def test_a_sensor_that_was_forgotten_lacks_nothing_that_it_had_before():
    made, readings = engine(()), lacking((1000, 1300))
    play(made, readings[:1100])
    made.forget("s", "s")
    assert not missing(play(made, readings[1100:])[0])


# ------------------------------------------------------------- noise that is gone for too long
def swinging(period, *spans, n=2300):
    """A sine with noise, which is gone in stretches, beside a channel that goes on."""
    at, noise = np.arange(n), 0.1 * np.random.default_rng(period).standard_normal((n, 2))
    for begin, end in spans:
        noise[begin:end, 0] = 0.0
    return of_rows(
        np.column_stack((np.sin(2 * np.pi * at / period), np.zeros(n))) + noise, step_ms=60_000
    )


def sensor(name="Sensor", **features):
    made = engine((), detector=make_detector(name)).spec
    return Engine(replace(made, features=replace(made.features, **features)), InlineExecutor())


def quiet(readings, name="Sensor", **features):
    verdicts = play(sensor(name, **features), readings, cut=500)[0]
    return [v.seq for v in verdicts if v.limited and v.limited.channels[0].quiet_events]


@pytest.mark.parametrize("period", [24, 50, 200])
def test_noise_that_goes_while_the_signal_goes_on_is_told_until_it_is_back(period):
    readings = swinging(period, (2000, 2200))
    # looked at with every 64th event, and told when it has been gone at two of them
    assert quiet(readings) == [*range(2112, 2240)]
    told = next(change for change in play(sensor(), readings, cut=500)[1] if change.limits)
    (excess,) = told.limits
    assert (told.opened_seq, excess.channel, excess.quiet_events) == (2112, "x", 128)
    assert excess.value < 0.02
    assert excess.limit == pytest.approx(0.1, rel=0.3)
    text = "x has had next to no noise for 128 events: 0.0"
    assert text in make_alert(told, DisplayNames("p")).annotations["summary"]
    assert decode_incidents(encode_incident(told)).limits == told.limits
    assert not quiet(swinging(period))
    # nor is it another law where rows are made one by one: by the hour, and of angles
    assert quiet(readings, "SeasonalSensor") == [*range(2112, 2240)]
    turned = [r._replace(values=(90 * r.values[0] % 360, r.values[1])) for r in readings]
    assert quiet(turned, angles=(Circle("x", 360.0),)) == [*range(2112, 2240)]
    # and nothing is known of it where no column looks back far enough
    assert not quiet(
        readings, preset=None, features=(Feature("raw", "x"), Feature("std", "x", events=8))
    )


def test_what_is_often_without_noise_is_usual_and_what_stands_still_beside_others_is_told():
    x, i = np.random.default_rng(1).normal(size=(2500, 2)), np.arange(2500)
    set_point, night = np.repeat(x[:50, 0], 50), np.where(i // 300 % 2, x[:, 0], 0.0)
    woken = np.where(i < 1500, 0.0, x[:, 0])  # it stood still from the beginning on
    woken[2000:2200] = 0.0
    for usual in (set_point, night, woken, np.round(0.2 * x[:, 0])):
        assert not quiet(of_rows(np.column_stack((usual, x[:, 1])), step_ms=60_000))
    x[2000:2300, 0] = x[2000, 0]
    assert quiet(of_rows(x, step_ms=60_000)) == [*range(2112, 2368)]


@pytest.mark.parametrize(("core", "name"), [
    ("native", "Sensor"), ("python", "Sensor"), ("native", "SeasonalSensor")
])  # fmt: skip
def test_no_cut_no_restart_and_no_core_changes_what_has_no_noise(core, name):
    def made():
        found = sensor(name)
        found._core = found._core if core == "native" else None
        return found

    readings, pieces = swinging(50, (2000, 2200)), itertools.count(1)
    wanted = played(lambda: sensor(name), readings, 2300)
    assert played(made, readings, 1) == wanted
    assert played(made, readings, 97, lambda: next(pieces) > 20) == wanted


def test_usual_noise_follows_slowly_while_it_is_gone_and_is_not_told_before_a_window():
    one = Noise()
    for seq in range(64, 6400, 64):
        one.look(0.0 if seq % 640 == 0 else 1.0, seq, 1000)
        assert not one.is_told  # it is gone for one look now and then
    one.look(math.nan, 6400, 1000)
    told = []
    for seq in range(6464, 20_000, 64):
        one.look(0.1, seq, 6700)
        told += [seq] * one.is_told
    assert told == [*range(6720, 10_881, 64)]
