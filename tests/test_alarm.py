"""Told before held: the alarm's evidence, its limit, what people answer, and the laws."""

import math
import random
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import lfilter
from scipy.stats import norm

from rejex_stream.detectors import make_detector
from rejex_stream.encode import encode_incident
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.features import FeatureSpec
from rejex_stream.incidents import Alarms, FalseAlarms, Hold
from rejex_stream.incidents.ewma import EwmaChart, _predicted
from rejex_stream.incidents.state_machine import UPDATE_MS, IncidentTracker
from rejex_stream.rejection import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import (
    Command,
    CommandKind,
    IncidentState,
    Label,
    LimitExcess,
    Outcome,
    OutcomeCounts,
    Record,
)
from tests.streams import of_rows, played, spec

HST = make_detector("HalfSpaceTrees", n_trees=5, height=4, window_size=60)
N, MINUTE, MONTH = 200, 60_000, 43_200


def small(alarms=Alarms(), **given):  # noqa: B008 - it is immutable
    return replace(spec(window=N, every=400, tolerance=3.0, **given), alarms=alarms)


def feed(*faults, n=3000, seed=0, by=2.0):
    """Independent readings of two channels, an event a minute, raised in some stretches."""
    X = np.random.default_rng(seed).normal(size=(n, 2))
    for start, stop in faults:
        X[start:stop] += by
    return of_rows(X, step_ms=MINUTE)


def play(engine, readings, cut=100):
    return played(lambda: engine, readings, cut)


def test_clocks_at_either_end_of_time_leave_an_alarm_that_can_be_kept():
    alarm = EwmaChart(N, 0.5)
    for i in range(20 * 60):
        alarm.update(0.5, (2**63 - 1) * (-1) ** i)
    assert alarm.limit < math.inf
    other = EwmaChart(N, 0.5)
    other.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(alarm.state())))
    assert other.state() == alarm.state()
    assert other.limit == alarm.limit


def noise(n):
    return np.random.default_rng(7).standard_normal(n)


def answered(engine, incident, kind):
    command = Command(
        id="c", kind=kind, stream_key="s", incident=incident.id, version=incident.version
    )
    return engine.command(command)


def play_until_told(engine, readings, at):
    """Return after how many readings somebody is told, and what; the first of them come at once."""
    engine.process(readings[:at])
    engine.take_incidents()
    told = []
    while not told:
        engine.process(readings[at : at + 1])
        at, told = at + 1, engine.take_incidents()
    return at, told


def test_somebody_is_told_before_there_is_evidence_for_a_hold():
    readings = feed((2000, 2100), by=1.6)
    told = play(Engine(small(), InlineExecutor()), readings)[1]
    alone = play(Engine(small(alarms=None), InlineExecutor()), readings)[1]
    first = told[0]
    assert first.state is IncidentState.OPEN
    assert not first.held
    assert 2000 <= first.onset_seq <= first.opened_seq < 2060
    assert not alone or first.opened_seq < alone[0].opened_seq
    assert told[-1].state is IncidentState.CLOSED
    assert told[-1].ended == "recovered"


def test_nobody_is_told_of_events_none_of_which_was_an_anomaly():
    readings, off = feed((1700, 1706), (2000, 2100), by=1.6), Hold(enabled=False)
    verdicts = play(Engine(small(hold=off, alarms=None), InlineExecutor()), readings)[0]

    def told(*anomalies):
        """Play the same severities, where these events alone are anomalies."""
        watch = IncidentTracker(off, "s", N, alarms=Alarms())
        for i, (reading, verdict) in enumerate(zip(readings, verdicts, strict=True)):
            label = Label.ANOMALY if i in anomalies else Label.NORMAL
            watch.update_alarm([reading], [0], [msgspec.structs.replace(verdict, label=label)])
        return watch.changes

    first = told(*range(len(readings)))[0]
    assert told() == []
    assert first.onset_seq > 1990
    assert told(first.onset_seq)[0].opened_seq == first.opened_seq
    late = told(first.opened_seq + 5)[0]
    assert late.onset_seq == first.onset_seq
    assert late.opened_seq >= first.opened_seq + 5
    assert told(*range(first.onset_seq)) == [], "what came before the onset is none of it"


def test_an_alarm_changes_no_verdict():
    readings = feed((1500, 1580), (2300, 2380), by=1.4)
    off = Hold(enabled=False)
    with_alarm, told = play(Engine(small(hold=off), InlineExecutor()), readings)
    assert with_alarm == play(Engine(small(hold=off, alarms=None), InlineExecutor()), readings)[0]
    assert told


def test_the_incident_that_was_told_is_the_one_that_is_held():
    told = play(Engine(small(), InlineExecutor()), feed((2000, 2400), by=3.0))[1]
    first, then = (next(i for i in told if i.version == version) for version in (1, 2))
    assert (first.held, then.held) == (False, True)
    assert first.id == then.id == told[0].id
    assert then.n_events == then.changed_seq - first.onset_seq + 1


def test_an_open_incident_publishes_as_it_goes_and_at_most_so_often():
    for held in (True, False):
        hold = Hold(enabled=held, adopt_after_events=10**6)
        engine = Engine(small(hold=hold), InlineExecutor())
        told = play(engine, feed((2000, 2300), by=3.0))[1]
        told = [i for i in told if i.changed_seq < 2300]
        times = [i.changed_ms for i in told]
        counts = [i.n_events for i in told]
        assert len(told) >= 5
        assert counts == sorted(counts)
        assert counts[-1] > counts[0]
        assert max(b - a for a, b in pairwise(times)) <= UPDATE_MS
        assert [i.opens for i in told] == [True] + [False] * (len(told) - 1)
        same = [i for i in told if i.version == told[-1].version]
        between = [b.changed_ms - a.changed_ms for a, b in pairwise(same)]
        assert min(between) >= UPDATE_MS


def test_an_incident_that_is_published_often_is_counted_once():
    engine = Engine(small(), InlineExecutor())
    told, counts = play(engine, feed((2000, 2300), by=3.0))[1], OutcomeCounts()
    record = Record(told[0].position, None, None)
    counts.add(Outcome(record, None, None, None, incidents=(one,)) for one in told)
    assert counts.n_incidents == len({one.id for one in told}) < len(told)


@pytest.mark.parametrize("kind", [CommandKind.FAULT, CommandKind.NEW_NORMAL])
@pytest.mark.parametrize("detector", [None, HST])
def test_an_answer_holds_what_was_only_told(detector, kind):
    readings = feed((2000, 2600), by=1.6 if detector is None else 3.0)
    engine = Engine(small(hold=Hold(recover_events=20), detector=detector), InlineExecutor())
    at, told = play_until_told(engine, readings, 1950)
    assert not told[-1].held
    assert answered(engine, told[-1], kind).accepted
    before = engine.snapshot()
    verdicts, after = play(engine, readings[at:], cut=1)
    together = Engine(engine.spec, InlineExecutor())
    together.restore(before)
    assert play(together, readings[at:]) == (verdicts, after)
    assert together.snapshot() == engine.snapshot()
    assert after[0].held
    assert after[0].changed_seq == at
    if kind is CommandKind.FAULT:
        assert verdicts[0].held
        assert after[0].state is IncidentState.FAULT
        assert verdicts[300].held
    else:
        assert after[0].state is (IncidentState.CLOSED if detector else IncidentState.ADOPTING)
        assert next(i for i in after if i.ended).ended == "adopted"
        late = verdicts[200 : 2600 - at]
        assert sum(v.label == "anomaly" for v in late) < 0.5 * len(late)


def test_with_the_hold_off_an_answer_is_refused():
    engine = Engine(small(hold=Hold(enabled=False)), InlineExecutor())
    told = play(engine, feed((2000, 2600), by=1.6)[:2200])[1]
    reply = answered(engine, told[-1], CommandKind.FAULT)
    assert not reply.accepted
    assert "hold.enabled is off" in reply.said


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_no_cut_of_the_input_and_no_restart_changes_anything(seed):
    rng = random.Random(seed)
    readings = feed((900, 960), (1400, 1500), (2000, 2300), seed=seed, by=2.0)
    of = small(hold=Hold(recover_events=20, adopt_after_events=150))
    verdicts, told = play(Engine(of, InlineExecutor()), readings)
    found, changes = played(
        lambda: Engine(of, InlineExecutor()), readings,
        lambda: rng.choice([1, 3, 40, 333]), lambda: rng.random() < 0.3,
    )  # fmt: skip
    assert found == verdicts
    assert [encode_incident(i) for i in changes] == [encode_incident(i) for i in told]
    assert {i.held for i in told} == {True, False}


def rate(per_month, phi, months=20):
    x = lfilter([math.sqrt(1 - phi**2)], [1, -phi], noise(months * MONTH))
    severities = -np.log10(norm.sf(x))
    return len(told_by(EwmaChart(2000, per_month), severities, MINUTE)) / months


def told_by(alarm, severities, every_ms, counts=True):
    """Return at which events somebody is told, where all of it is in vain."""
    opened, calm, top = [], 50, 0.0
    for i, severity in enumerate(severities.tolist()):
        alarm.update(severity, every_ms * i, told=calm < 50)
        if calm < 50:
            top, calm = max(top, alarm.mass), calm + 1 if alarm.level < 0.75 else 0
            if calm == 50:
                alarm.remember(top * counts)
                alarm.reset()
        elif alarm.is_due(every_ms * i):
            opened, calm, top = [*opened, i], 0, alarm.mass
    return opened


@pytest.mark.thorough
@pytest.mark.parametrize(("phi", "per_month", "low", "high"), [
    pytest.param(0.0, 1, 0, 1.5, marks=pytest.mark.long),
    pytest.param(0.9, 1, 0.2, 2, marks=pytest.mark.long), (0.97, 1, 0.2, 2), (0.9, 10, 5, 20),
])  # fmt: skip
def test_false_alarms_come_about_as_often_as_people_said(phi, per_month, low, high):
    assert low <= rate(per_month, phi) <= high


def test_faults_of_the_past_make_nobody_deaf():
    rng, alarm = random.Random(1), EwmaChart(800, 1.0)
    for i in range(4000):
        wild = i % 1000 < 60  # 6 % of the time, and never told
        alarm.update(3.0 if wild else rng.expovariate(2.3), MINUTE * i)
    assert alarm.limit < 2.5


def test_settings_come_from_the_file_and_are_part_of_the_decision():
    alarms = Alarms(false_alarms=FalseAlarms(per_sensor_month=0.2))
    parts = small(alarms=alarms).decision.parts()
    assert parts["alarms"]["false_alarms"] == {"per_sensor_month": 0.2}
    assert type(small().decision).of(small(alarms=alarms).decision.parts()).alarms == alarms


# ------------------------------------------------------------------------- before much was seen
def test_blocks_of_a_window_that_was_not_full_leave_as_others_come():
    rng, alarm, alone = random.Random(3), EwmaChart(N, 1.0), EwmaChart(N, 1.0)
    for i in range(20 * 300):  # more than are remembered
        alarm.update(2.0 + rng.random(), MINUTE * i, full=False)
    early = alarm.limit
    for i in range(20 * 300):
        severity, full = rng.expovariate(2.3), not 4000 <= i < 4400  # and filled again
        alarm.update(severity, MINUTE * i, full=full)
        alone.update(severity, MINUTE * i, told=not full)  # it says nothing of a limit
        if i in (100, 3000):
            again = EwmaChart(N, 1.0)
            again.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(alarm.state())))
            assert (again.state(), again.limit) == (alarm.state(), alarm.limit)
    assert alarm.limit == alone.limit < early


def test_while_blocks_of_a_window_that_filled_count_the_limit_is_a_prediction_limit():
    rng, alarm = random.Random(4), EwmaChart(N, 1.0)
    for i in range(20 * 40):
        alarm.update(rng.expovariate(2.3), MINUTE * i, full=False)
    tops = sorted(top for top, _ in alarm.state()["blocks"])
    assert len(tops) == 40
    blocks_a_month = 30 * 86_400_000 / (19 * MINUTE * 20 / 19)  # the last event begins no step
    assert alarm.limit == min(3.9, _predicted(tops, 1 / blocks_a_month))
    for i in range(20 * 40):
        alarm.update(rng.expovariate(2.3), MINUTE * (800 + i))
    assert not alarm.state()["n_early"]
    assert alarm.limit != min(3.5, _predicted(sorted(t for t, _ in alarm.state()["blocks"]),
                                              1 / blocks_a_month))  # fmt: skip


@given(
    st.lists(
        st.tuples(st.floats(0, 400), st.integers(-(2**62), 2**62), st.booleans()), max_size=900
    ),
    st.lists(st.floats(4, 400), min_size=36, max_size=36),
    st.floats(0.001, 1000),
)
def test_whatever_came_before_so_many_extreme_events_in_a_row_are_enough(before, extreme, rate):
    alarm = EwmaChart(40, rate)
    for severity, at, full in before:
        alarm.update(severity, at, full=full)
    known = alarm.state()
    early = known["n_early"] or len(known["blocks"]) < 2
    reached = []
    for severity in extreme[: 36 if early else 20]:
        alarm.update(severity, 0)
        reached.append(alarm.level >= alarm.limit)
    assert any(reached)


@pytest.mark.thorough
@pytest.mark.parametrize("count", [2, 3, 7, 12, 19])
@pytest.mark.parametrize("rare", [0.2, 0.03, 0.005])
def test_of_few_blocks_the_next_one_exceeds_the_limit_as_seldom_as_it_says(count, rare):
    rng = np.random.default_rng(count)
    runs = rng.exponential(rng.uniform(0.1, 3), (40_000, count + 1))
    beyond = sum(run[-1] > _predicted(sorted(run[:-1]), rare) for run in (5.0 + runs).tolist())
    assert beyond / len(runs) == pytest.approx(rare, abs=4 * math.sqrt(rare / len(runs)))


def one_sensor(onset, n, every_ms=3_600_000, by=10.0, seed=0):
    """An hourly feed of one channel that is at another level from an event on, for ever."""
    x = np.random.default_rng(seed).normal(size=(n, 2))
    x[onset:, 0] += by
    return of_rows(x, step_ms=every_ms)


def hourly():
    """Return what the shipped settings make of a window of 400."""
    return EngineSpec(
        make_detector("Sensor"), FeatureSpec(("x", "y")), RejectionPolicy(0.02, rate=0.05),
        window=400, alarms=Alarms(),
    )  # fmt: skip


@pytest.mark.parametrize("onset", [480, 520, 601, 760])
def test_a_fault_is_told_before_the_window_was_full_once_and_before_twenty_blocks(onset):
    told = play(Engine(hourly(), InlineExecutor()), one_sensor(onset, onset + 200))[1]
    assert [one.opens for one in told].count(True) == 1, "nothing was told before it"
    assert onset <= told[0].opened_seq < onset + 40


def test_what_fills_no_window_since_it_is_extreme_is_held_and_adopted_within_two_windows():
    """The season moves away while the window fills: nothing of it finds a place."""
    for onset in (480, 510):
        engine = Engine(hourly(), InlineExecutor())
        verdicts, told = play(engine, one_sensor(onset, 1900))
        held = next(one for one in told if one.held)
        assert held.opened_seq < onset + 40
        assert held.changed_seq < 200 + 400 + 100, "a window and a quarter after the first fit"
        ended = [one for one in told if one.ended]
        assert ended[0].ended == "adopted_by_age"
        assert len(ended) <= 2, "five weeks follow, and one false alert a month is allowed"
        assert [one.ended for one in ended[1:]] in ([], ["recovered"])
        late = verdicts[-400:]
        assert sum(v.label == "anomaly" for v in late) < 0.1 * len(late)


def test_an_event_that_is_extreme_is_to_be_seen_though_the_window_that_fills_calls_it_normal():
    """Before a window is long enough for labels, what is extreme enters: no rank is high then."""
    readings = one_sensor(300, 600)
    verdicts, told = play(Engine(hourly(), InlineExecutor()), readings)
    first = next(v.seq for v in verdicts if v.severity is not None)
    assert told[0].opened_seq < first + 40


@pytest.mark.thorough
@pytest.mark.parametrize("phi", [0.0, 0.9, 0.97])
def test_few_false_alarms_come_before_twenty_blocks_were_seen(phi):
    """Hourly data, 30 streams of 400 events: so many alarms a month as people said, 1."""
    rng, alarms = np.random.default_rng(5), 0
    for _ in range(30):
        z = np.concatenate((np.zeros(500), rng.standard_normal(400)))
        z[:500] = rng.standard_normal(500)
        x = lfilter([math.sqrt(1 - phi**2)], [1, -phi], z)[500:]
        alarms += len(told_by(EwmaChart(336, 1.0), -np.log10(norm.sf(x)), 3_600_000))
    assert alarms / (30 * 400 / 720) <= 2


# ------------------------------------------------------------------------- what was told in vain
LAWS = {
    "alike": lambda rng: 3.0,
    "evenly": lambda rng: rng.uniform(2.0, 4.0),
    "few are high": lambda rng: 2.0 + rng.expovariate(2.0),
}


def wild(law, months, seed=0, every=1_500):
    """Return severities a minute of which 24 in a row are high, 29 times a month."""
    rng = random.Random(seed)
    severities = np.array([rng.expovariate(2.3) for _ in range(months * MONTH)])
    for start in range(3_000, len(severities) - every, every):
        at = start + rng.randrange(every - 200)
        severities[at : at + 24] = LAWS[law](rng)
    return severities


@pytest.mark.thorough
@pytest.mark.parametrize("law", LAWS)
def test_of_what_may_be_chance_one_alarm_is_told_in_the_time_that_people_allow_one(law):
    severities = wild(law, 6)
    told = told_by(EwmaChart(2000, 1.0), severities, MINUTE)
    assert 2 <= sum(at > MONTH for at in told) <= 7, "in five months"
    assert len(told) <= 12, "at first there is little to remember"
    assert len(told_by(EwmaChart(2000, 1.0), severities, MINUTE, counts=False)) > 100


@pytest.mark.thorough
def test_after_two_months_the_same_is_told_again_and_what_is_higher_at_once():
    rng, alarm = random.Random(2), EwmaChart(800, 1.0)
    severities = np.array([rng.expovariate(2.3) for _ in range(160_000)])
    heights = {20: 3.0, 25: 2.8, 30: 2.6, 40: 3.9, 50: 3.0, 150: 3.0}
    for at, height in heights.items():
        severities[1000 * at : 1000 * at + 24] = height
    told = told_by(alarm, severities, MINUTE)
    # One that nobody answered silences no other; two do, for a time.
    assert [at // 1000 for at in told] == [20, 25, 40, 150]


def test_a_rise_counts_as_one_however_often_it_was_weighed_and_wherever_it_was_cut():
    alarm = EwmaChart(800, 1.0)
    for mass in (3.0, 4.0):
        alarm.remember(mass)
    again = EwmaChart(800, 1.0)
    again.restore(alarm.state())
    again.remember(5.0)
    assert not again.is_nuisance(1.0), "one that nobody answered silences no other"
    again.reset()
    again.remember(2.0)
    assert again.is_nuisance(5.0)
    assert not again.is_nuisance(5.1)


@pytest.mark.thorough
@pytest.mark.parametrize(("length", "may_hold", "kind", "counts"), [
    (10, False, None, True), (100, False, None, True), (10, True, None, True),
    (4, True, CommandKind.FAULT, False),
])  # fmt: skip
def test_what_was_told_was_in_vain_unless_somebody_answered(length, may_hold, kind, counts):
    of = small(hold=Hold(enabled=may_hold))
    readings, engine = feed((2000, 2000 + length), by=2.5), Engine(of, InlineExecutor())
    at, told = play_until_told(engine, readings, 1990)
    if kind is not None:
        assert answered(engine, told[-1], kind).accepted
    engine.process(readings[at:2600])
    assert engine.take_incidents()[-1].ended == "recovered"
    alarm = engine._live["s"].tracker.state()["alarm"]
    assert (len(alarm["nuisances"] + alarm["previous_nuisances"]) > 0) is counts
    again = Engine(engine.spec, InlineExecutor())
    again.restore(engine.snapshot())
    assert again.process(readings[2600:]) == engine.process(readings[2600:])
    assert again.snapshot() == engine.snapshot()


def test_other_settings_leave_what_the_stream_has_shown():
    watch = IncidentTracker(Hold(enabled=False), "s", N, alarms=Alarms())
    for i in range(20 * 30):
        watch._alarm.update(0.4 + (i % 7) / 10, MINUTE * i)
    before = watch._alarm.state()
    assert len(before["blocks"]) == 30
    watch.apply_settings(Hold(), Alarms(false_alarms=FalseAlarms(per_sensor_month=100.0)))
    assert watch._alarm.state() == before
    assert watch._alarm.limit < EwmaChart(N, 1.0).limit


@pytest.mark.parametrize(("anomalies", "limits"), [(24, False), (25, False), (3, True)])
def test_what_is_beyond_a_limit_of_peoples_is_not_told_in_vain(anomalies, limits):
    readings, off = feed((1700, 1740), n=2000, by=1.6), Hold(enabled=False, recover_events=5)
    verdicts = play(Engine(small(hold=off, alarms=None), InlineExecutor()), readings)[0]
    watch, n_anomalies = IncidentTracker(off, "s", N, alarms=Alarms()), 0
    for i, (reading, verdict) in enumerate(zip(readings, verdicts, strict=True)):
        is_anomaly = i > 1700 and n_anomalies < anomalies
        watch.limit_violations = {i: [LimitExcess("x", 9.0, 6.0)]} if limits and is_anomaly else {}
        label = Label.ANOMALY if is_anomaly else Label.NORMAL
        watch.update_alarm([reading], [0], [msgspec.structs.replace(verdict, label=label)])
        n_anomalies = 0 if watch.open is None else watch.open.n_anomalies
        if watch.changes and watch.changes[-1].ended:
            break
    assert (watch.changes[-1].ended, watch.changes[-1].n_anomalies) == ("recovered", anomalies)
    assert bool(watch._alarm.state()["nuisances"]) is not limits


def episodes(*lengths, gap=900, by=2.5):
    starts = [2000 + gap * i for i in range(len(lengths))]
    stretches = [(at, at + length) for at, length in zip(starts, lengths, strict=True)]
    return feed(*stretches, n=starts[-1] + gap, by=by), starts


def told_in(changes, starts, gap=900):
    """Return for each stretch after how many of its events somebody was told; None: nobody."""
    first = [one.changed_seq for one in {one.id: one for one in reversed(changes)}.values()]
    return [min((at - s for at in first if s <= at < s + gap), default=None) for s in starts]


@pytest.mark.parametrize("may_hold", [True, False])
def test_bursts_teach_that_bursts_come_and_what_lasts_longer_is_told_later(may_hold):
    readings, starts = episodes(60, 55, 40, 35, 200)
    engine = Engine(small(hold=Hold(enabled=may_hold)), InlineExecutor())
    verdicts, changes = play(engine, readings)
    first, second, *shorter, longer = told_in(changes, starts)
    assert max(first, second) < 30, "one that nobody answered silences no other"
    assert shorter == [None, None]
    assert 30 < longer < 150
    if may_hold:  # nobody is told, and the reference stands still all the same
        assert sum(v.held for v in verdicts[starts[2] : starts[2] + 40]) > 20


def test_an_answer_keeps_the_next_of_its_kind_loud():
    readings, starts = episodes(60, 60)
    engine = Engine(small(), InlineExecutor())
    changes = play(engine, readings[: starts[0] + 40])[1]
    assert answered(engine, changes[-1], CommandKind.FAULT).accepted
    changes = play(engine, readings[starts[0] + 40 :])[1]
    assert told_in(changes, starts[1:])[0] < 30


def test_what_is_held_in_silence_is_told_before_it_could_be_adopted():
    readings, starts = episodes(150, 900, gap=1000)
    of = small(hold=Hold(recover_events=20, adopt_after_events=200))
    engine = Engine(of, InlineExecutor())
    changes = play(engine, readings[: starts[1]])[1]
    assert changes[-1].ended == "recovered"
    engine._live["s"].tracker._alarm.remember(1e9)  # the second: whatever comes weighs less
    verdicts, changes = play(engine, readings[starts[1] :])
    held = next(i for i, verdict in enumerate(verdicts) if verdict.held)
    assert changes[0].changed_seq - starts[1] == pytest.approx(held + 100, abs=3)
    assert [one.opens for one in changes] == [True] + [False] * (len(changes) - 1)
    assert [one.ended for one in changes if one.ended] == ["adopted_by_age", "as_before"]


def test_what_is_held_in_silence_for_three_days_is_told_after_half_of_them():
    readings, starts = episodes(150, 5_000, gap=5_100)
    engine = Engine(small(hold=Hold(recover_events=20)), InlineExecutor())
    play(engine, readings[: starts[1]])
    engine._live["s"].tracker._alarm.remember(1e9)
    verdicts, changes = play(engine, readings[starts[1] :])
    opened_ms = next(v.event_time_ms for v in verdicts if v.held)
    assert changes[0].changed_ms - opened_ms == pytest.approx(1.5 * 86_400_000, abs=2 * MINUTE)
    adopting = next(one for one in changes if one.state == "adopting")
    assert adopting.changed_ms - opened_ms == pytest.approx(3 * 86_400_000, abs=2 * MINUTE)


@pytest.mark.parametrize(("step", "length", "told"), [
    (1_000, 40, False), (1_000, 80, True), (60_000, 40, True), (1, 800, True), (1, 300, False),
])  # fmt: skip
def test_an_alarm_lasts_a_minute_or_six_hundred_events(step, length, told):
    alarm, rng, due = EwmaChart(800, 1.0), random.Random(3), False
    for i in range(6000):
        alarm.update(rng.expovariate(2.3), step * i)
    for i in range(6000, 6000 + length):
        alarm.update(4.0, step * i)
        due |= alarm.is_due(step * i)
    assert due is told
