"""A pattern that people know to be normal is muted: nobody is asked, and nothing else changes."""

import random
from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from rejex_stream.encode import decode_verdict, encode_command, encode_verdict
from rejex_stream.encode.label_records import LabelRecord
from rejex_stream.encode.records import decode_command
from rejex_stream.engine import Engine
from rejex_stream.errors import ConnectorError
from rejex_stream.incidents import ChannelLimits, Hold, Mute, Mutes
from rejex_stream.incidents.calendar import MOST_MUTES
from rejex_stream.rejection import RejectionPolicy
from rejex_stream.review.certificate import Evidence, read_log
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.run.review_items import AuditDraw, ReviewItems
from rejex_stream.types import Command, CommandKind, IncidentState, Label, Position, Reading, Reason
from tests.test_incidents import play, sensors, small

DAY = 86_400_000
BOX = {"a": (20.0, 40.0)}


def mute(id_="m", *, stream_key="s", box=BOX, from_ms=0, until_ms=10**9, **more):
    more = {"by": "ada", "note": "washing"} | more
    return Command(
        id=id_, kind=CommandKind.MUTE, stream_key=stream_key, box=box, from_ms=from_ms,
        until_ms=until_ms, **more,
    )  # fmt: skip


def at_work(*commands, **given):
    found = Engine(small(**given), InlineExecutor())
    feed = sensors(1_000, 1_000, 0.0, phi=0.0)
    play(found, feed)
    assert all(found.command(command).accepted for command in commands)
    return found


def washing(events=3_000, *, every=7, high=30.0, channel=0, until=None):
    feed = sensors(events, events, 0.0, phi=0.0)
    for i in range(1_500, until or events, every):
        values = list(feed[i].values)
        values[channel] += high
        feed[i] = feed[i]._replace(values=tuple(values))
    return feed[1_000:]


def without(verdict):
    return msgspec.structs.replace(verdict, muted=msgspec.UNSET)


# ------------------------------------------------------------------------------ the engine
def test_a_muted_event_has_the_verdict_it_had_and_says_who_muted_it():
    # Without incidents both see the same references: a hold would part them, as it should.
    feed, off = washing(), Hold(enabled=False)
    plain, told = at_work(hold=off), at_work(mute(), hold=off)
    before, after = play(plain, feed), play(told, feed)
    assert [without(v) for v in after] == before
    inside = [BOX["a"][0] <= reading.values[0] <= BOX["a"][1] for reading in feed]
    assert [v.muted == "m" for v in after] == inside
    assert {v.label for v in after if v.muted} - {Label.NORMAL}
    assert not any(v.muted for v in before)
    assert b'"muted"' not in encode_verdict(before[-1])
    line = encode_verdict(next(v for v in after if v.muted))
    assert decode_verdict(line).muted == "m"


@pytest.mark.parametrize("said", ["mute", "planned", "of all", "decided"])
def test_what_is_said_holds_from_the_next_reading_on_also_where_that_comes_alone(said):
    feed, found = washing(), []
    planned = Command(id="p", kind=CommandKind.PLANNED, stream_key="s", from_ms=0, until_ms=10**9)
    for cut in (1, 400):
        told = at_work(hold=Hold(recover_events=20))
        before = play(told, feed[:515], cut)  # amid a stretch in which nothing is due
        if said == "decided":
            limits = (ChannelLimits("a", high=25.0),)
            told.decide(replace(told.spec, limits=limits).decision)
        else:
            command = mute() if said == "mute" else planned
            command = (
                msgspec.structs.replace(planned, stream_key=None) if said == "of all" else command
            )
            assert told.command(command).accepted
        found.append((before, play(told, feed[515:1000], cut), told.snapshot()))
    assert found[0] == found[1]
    after = found[0][1]
    assert any(v.muted or v.planned or v.reason is Reason.LIMIT for v in after)


def test_muted_events_open_no_incident_and_a_fault_outside_the_box_opens_one():
    feed = sensors(3_000, 1_500, 30.0, phi=0.0)[1_000:]
    loud, quiet = at_work(), at_work(mute())
    play(loud, feed[:600])
    verdicts = play(quiet, feed[:600])
    assert [one.state for one in loud.take_incidents()] == [IncidentState.OPEN]
    assert quiet.take_incidents() == []
    assert not any(verdict.held for verdict in verdicts)
    fault = [r._replace(values=(r.values[0], r.values[1] + 90.0, r.values[2])) for r in feed[600:]]
    outside = at_work(mute(box=BOX | {"b": (-9.0, 9.0)}), hold=Hold(adopt_after_events=0))
    play(outside, feed[:600] + fault)
    (opened,) = outside.take_incidents()
    assert 1_600 <= opened.opened_seq < 1_620


def test_within_an_incident_muted_events_are_no_evidence_and_show_nothing():
    """The incident opens on channel b; muted ones among its events neither end nor feed it."""
    feed = sensors(2_400, 2_400, 0.0, phi=0.0)
    for i in range(1_500, 1_700):
        values = list(feed[i].values)
        values[0 if i % 2 else 1] += 30.0 if i % 2 else 12.0
        feed[i] = feed[i]._replace(values=tuple(values))
    told = at_work(mute())
    verdicts = play(told, feed[1_000:1_700])
    changes = told.take_incidents()
    assert [one.state for one in changes] == [IncidentState.OPEN]
    mutes = [v.severity for v in verdicts if v.muted]
    assert changes[0].peak_severity < min(s for s in mutes if s is not None)
    assert any(v.muted and v.held for v in verdicts)
    play(told, feed[1_700:])
    (*_, last) = told.take_incidents()
    assert last.state is IncidentState.CLOSED
    assert last.peak_severity < min(s for s in mutes if s is not None)


@pytest.mark.thorough
@pytest.mark.parametrize("governed", [False, True])
def test_no_cut_of_the_input_and_no_snapshot_changes_who_is_muted(governed):
    spec = small()
    if governed:
        spec = replace(spec, policy=RejectionPolicy(0.05, rate=0.1, burst=20))
    feed = washing(2_600, every=3, until=2_200)
    back = Command(id="c", kind=CommandKind.CANCEL, cancels="m", stream_key="s")
    commands = {
        300: mute("m", until_ms=2_300_000), 700: mute("n", box={"b": (1.0, 2.0)}), 1_100: back,
    }  # fmt: skip
    expected = None
    for seed in range(4):
        chance, found, at = random.Random(seed), [], 0
        engine = Engine(spec, InlineExecutor())
        play(engine, sensors(1_000, 1_000, 0.0, phi=0.0))
        while at < len(feed):
            if at in commands:
                assert engine.command(commands[at]).accepted
            stop = min([len(feed), at + chance.choice([1, 2, 30, 400])]
                       + [place for place in commands if place > at])  # fmt: skip
            found += engine.process(feed[at:stop])
            if chance.random() < 0.3:
                blob, engine = engine.snapshot(), Engine(spec, InlineExecutor())
                engine.restore(blob)
            at = stop
        expected = expected or found
        assert found == expected
    assert {verdict.muted for verdict in expected if verdict.muted} == {"m", "n"}
    assert not any(verdict.muted == "m" for verdict in expected[1_100:])
    assert any(verdict.muted == "m" for verdict in expected[1_000:1_100])
    rejected = [verdict.label is Label.REJECTED for verdict in expected if verdict.muted]
    assert any(rejected)


# ------------------------------------------------------------------------------ who is told
@pytest.mark.thorough
def test_nobody_is_asked_and_the_audit_draws_muted_events_of_every_label():
    feed = washing(12_000, every=3)
    draw = AuditDraw(0.2, key=b"k")
    told = at_work(mute(until_ms=10**9), hold=Hold(enabled=False))
    items = ReviewItems(("a", "b", "c"), points=0, audit=draw)
    verdicts = play(told, feed)
    asked = [items.observe(*event) for event in zip(feed, verdicts, strict=True)]
    why = Counter((i.why, bool(i.verdict.muted)) for i in asked if i is not None)
    assert set(why) == {("rejected", False), ("audit", False), ("audit", True)}
    n_muted = sum(bool(v.muted) for v in verdicts)
    assert 0.15 < why["audit", True] / n_muted < 0.25
    assert {i.drawn for i in asked if i is not None and i.verdict.muted} == {0.2}


@pytest.mark.thorough
def test_a_fault_hidden_by_a_mute_is_counted_as_missed():
    told = at_work(mute(), hold=Hold(enabled=False))
    verdicts = [v for v in play(told, washing(6_000, every=3)) if v.muted]
    assert {v.label for v in verdicts} - {Label.NORMAL}
    said = [
        LabelRecord(
            label_id=f"l{i}", episode_id=f"e{i}", root_id=f"e{i}", stream_key="s", sensor="s",
            events=(v.position,), verdict="anomaly", reviewer="ada", created_ms=0, from_ms=0,
            to_ms=0, batch_id="b",
        )
        for i, v in enumerate(verdicts)
    ]  # fmt: skip
    draw = AuditDraw(1.0)
    drawn = [msgspec.structs.replace(v, audit=draw.audit(v)) for v in verdicts]
    found = read_log(map(encode_verdict, drawn), draw, Evidence(labels=said)).tally
    assert found.answers == {(1.0, "anomaly"): len(verdicts)}


# ------------------------------------------------------------------------------ commands
@pytest.mark.parametrize(("wrong", "complaint"), [
    ({"until_ms": None}, "expected both, the second later by 90 days at most"),
    ({"from_ms": None}, "expected both"), ({"until_ms": 0}, "expected both"),
    ({"until_ms": 90 * DAY + 1}, "by 90 days at most"),
    ({"box": {}}, "has a box of 0 channels: expected 1 to 200"),
    ({"box": {"a": (2.0, 1.0)}}, "'a' from 2 to 1: expected two numbers, the larger one last"),
    ({"stream_key": None}, "does not say stream_key: a mute says whose, who and why"),
    ({"note": ""}, "does not say note"), ({"by": ""}, "does not say by"),
])  # fmt: skip
def test_a_mute_without_end_bounds_or_reason_is_refused_in_a_sentence(wrong, complaint):
    with pytest.raises(ConnectorError, match=complaint):
        decode_command(encode_command(mute(**wrong)))


def test_a_box_of_numbers_that_are_none_is_refused():
    line = encode_command(mute()).replace(b"40.0", b"1e999")
    with pytest.raises(ConnectorError):
        decode_command(line)
    with pytest.raises(ConnectorError):
        decode_command(line.replace(b"1e999", b"null"))


def test_the_longest_mute_is_one_of_ninety_days():
    assert decode_command(encode_command(mute(until_ms=90 * DAY))).until_ms == 90 * DAY


def test_what_cannot_hold_is_refused_and_changes_nothing():
    told = at_work()
    said = told.command(mute(box={"flw": (1.0, 2.0)})).said
    assert said == "There is no channel 'flw'; a box is in a, b, c, the channels of the reading."
    assert told.command(mute(stream_key="nobody")) is None
    for i in range(MOST_MUTES):
        assert told.command(mute(f"m{i}", until_ms=1_000 + i)).accepted
    assert not told.command(mute("more")).accepted
    assert told.command(mute("m0")).said == "It was obeyed before."
    assert told.command(mute("later", from_ms=1_000)).accepted  # the one that is over makes room
    back = Command(id="c", kind=CommandKind.CANCEL, cancels="later", stream_key="s")
    assert told.command(back).said == "Mute later holds no more."
    assert not told.command(back).accepted


def test_a_missing_channel_lies_in_no_box_and_the_time_is_that_of_the_event():
    def reading(at, *values):
        return Reading("s", "s", at, values, Position("t", 0, 0))

    mutes = Mutes(("a", "b"), [Mute("m", 10, 20, {"a": (1.0, 2.0)})])
    events = [reading(9, 1.0, 0.0), reading(10, 1.0, np.nan), reading(19, 2.0, 0.0),
              reading(20, 2.0, 0.0), reading(15, np.nan, 0.0), reading(15, 2.1, 0.0)]  # fmt: skip
    assert dict(mutes.found(events)) == {1: "m", 2: "m"}
