"""Faults that last are held until they are over, or somebody answers; and the three laws of it."""

import math
import random

import numpy as np
import pytest
from scipy.signal import lfilter

from rejex_stream.detectors import make_detector
from rejex_stream.encode import encode_verdict
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.engine.spec import Decision
from rejex_stream.features import FeatureSpec
from rejex_stream.incidents import Alarms, Hold, IncidentTracker, Plan, Plans
from rejex_stream.incidents.thresholds import rises
from rejex_stream.operate.incident_text import (
    DisplayNames,
    describe_incident,
    headline,
    how_ended,
    spell_time,
)
from rejex_stream.rejection import RejectionPolicy
from rejex_stream.rejection.window import ScoreWindow
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Command, CommandKind, IncidentState, Label, Position, Verdict
from tests.streams import Distance, PartsByVersion, of_rows, played, stream_of

FAULT, NEW_NORMAL = CommandKind.FAULT, CommandKind.NEW_NORMAL


def sensors(events, at, raised, *, until=None, phi=0.95, seed=0):
    """Three AR(phi) channels, one of them raised by so many sd from an event on."""
    rng = np.random.default_rng(seed)
    X = lfilter([np.sqrt(1 - phi * phi)], [1, -phi], rng.standard_normal((events, 3)), axis=0)
    X[at:until, 0] += raised
    return of_rows(X)


def engine(detector="GMM", *, hold=None, **given):
    features = FeatureSpec(("a", "b", "c"))
    given = {"window": 2000, "evidence": False, "hold": hold or Hold()} | given
    policy = RejectionPolicy(0.02, rate=0.05)
    return Engine(EngineSpec(make_detector(detector), features, policy, **given), InlineExecutor())


def small(**given):
    """A pipeline that meets everything within a few hundred events."""
    given = {"window": 400, "evidence": False, "hold": Hold(recover_events=20)} | given
    detector = given.pop("detector", None) or Distance()
    features = FeatureSpec(("a", "b", "c"))
    return EngineSpec(detector, features, RejectionPolicy(0.05, tolerance=8), **given)


def play(engine, readings, cuts=500):
    return [
        v for i in range(0, len(readings), cuts) for v in engine.process(readings[i : i + cuts])
    ]


def answer(engine, kind, incident, **given):
    given = {"id": f"{kind}-{incident.version}", "version": incident.version} | given
    return engine.command(
        Command(kind=kind, stream_key=incident.stream_key, incident=incident.id, **given)
    )


# --------------------------------------------------------------------------- the fault that stays
@pytest.mark.thorough
def test_rows_from_before_a_long_suspicion_are_there_again_for_any_cut():
    schedule = RefitSchedule(first_fit_events=500, refit_every_events=1000, buffer_events=1000)
    feed = sensors(6_500, 5_600, 5.0)
    snapshots = []
    for cuts in (1, 37, 500):
        whole = engine(window=1000, schedule=schedule)
        verdicts = play(whole, feed, cuts)
        (opened,) = whole.take_incidents()
        assert opened.opened_seq - opened.onset_seq > 64  # more than there is room for anyway
        snapshots.append(whole.snapshot())
        again = engine(window=1000, schedule=schedule)
        again.restore(snapshots[-1])
        assert again.snapshot() == snapshots[-1]
    assert snapshots[0] == snapshots[1] == snapshots[2]
    assert verdicts[-1].held


@pytest.mark.thorough
def test_a_fault_that_stays_is_not_forgotten():
    held = engine(hold=Hold(adopt_after_events=0))
    verdicts = play(held, sensors(20_000, 12_000, 20.0))
    (incident,) = held.take_incidents()
    assert incident.state is IncidentState.OPEN
    assert 11_990 <= incident.onset_seq <= 12_010 < incident.opened_seq < 12_100
    assert incident.id == str(verdicts[incident.opened_seq].position)
    after = verdicts[incident.opened_seq :]
    assert all(v.held and v.incident == incident.id for v in after)
    assert not any(v.held or v.incident for v in verdicts[: incident.opened_seq])
    assert not [v for v in after if v.label is Label.NORMAL]


def test_what_nobody_answers_for_a_window_is_the_new_normal_unless_it_is_a_fault():
    feed = sensors(3_500, 2_000, 30.0, phi=0.0)
    hold = Hold(adopt_after_events=400)
    at, known = (Engine(small(hold=hold), InlineExecutor()) for _ in range(2))
    play(at, feed)
    opened, adopting, closed = at.take_incidents()
    assert opened.state is IncidentState.OPEN
    held = adopting.changed_seq - opened.opened_seq
    assert (adopting.state, held) == (IncidentState.ADOPTING, 400)
    assert (closed.state, closed.ended) == (IncidentState.CLOSED, "adopted_by_age")
    play(known, feed[:2_100])
    (opened,) = known.take_incidents()
    answer(known, CommandKind.FAULT, opened)
    play(known, feed[2_100:])
    assert {i.state for i in known.take_incidents()} == {IncidentState.FAULT}


@pytest.mark.parametrize("step_s", [1, 600, 3600])
def test_unanswered_a_fault_is_normal_after_a_window_and_three_days(step_s):
    """A night and a week-end pass before anybody is there: minutes of events are no answer."""
    n_days = 3 * 86_400 // step_s
    feed = [
        reading._replace(event_time_ms=1000 * step_s * i)
        for i, reading in enumerate(sensors(2_000 + min(n_days, 3_000) + 900, 2_000, 30.0, phi=0.0))
    ]
    if step_s == 1:  # most of the three days nothing comes
        feed[4_500:] = [
            r._replace(event_time_ms=r.event_time_ms + 3 * 86_400_000) for r in feed[4_500:]
        ]
    engine = Engine(small(), InlineExecutor())
    verdicts = play(engine, feed)
    changes = engine.take_incidents()
    opened, adopting = changes[0], next(one for one in changes if one.state == "adopting")
    assert opened.adopts_ms == opened.opened_ms + 3 * 86_400_000
    by_time = next(r.event_time_ms for r in feed if r.event_time_ms >= opened.adopts_ms)
    by_window = feed[opened.opened_seq + 400].event_time_ms
    assert adopting.changed_ms == max(by_time, by_window)
    assert all(v.held for v in verdicts[opened.opened_seq : adopting.changed_seq])
    assert changes[-1].ended == "adopted_by_age"


@pytest.mark.parametrize("step_s", [600, 3600])
def test_half_a_day_before_it_is_taken_for_normal_that_is_said_again_once(step_s):
    """With a reading an hour a window takes longer than three days: its end is the date then."""
    feed = [
        reading._replace(event_time_ms=1000 * step_s * i)
        for i, reading in enumerate(sensors(2_900, 2_000, 30.0, phi=0.0))
    ]
    wanted, changes = (
        played(lambda: Engine(small(), InlineExecutor()), feed, cut)[1] for cut in (100, 1)
    )
    assert changes == wanted
    opened, again, adopting = (one for one in changes if one.state != "closed")
    last_ms = max(opened.opened_ms + 3 * 86_400_000, 1000 * step_s * (opened.opened_seq + 400))
    assert (again.state, again.version) == ("open", 2)
    assert again.adopts_ms == adopting.changed_ms == last_ms
    assert 0 <= again.changed_ms - (last_ms - 12 * 3_600_000) < 1000 * step_s
    date = f"; unanswered, it is taken for normal on {spell_time(last_ms)}"
    assert headline(again, DisplayNames()).endswith(date)
    assert "taken for normal" not in headline(opened, DisplayNames())
    ended = changes[-1]
    assert how_ended(ended) == "not answered: taken for normal"
    texts = headline(ended, DisplayNames()), describe_incident(ended), how_ended(ended)
    assert not any("over" in text for text in texts)


def test_until_an_incident_opens_verdicts_are_those_without_a_hold():
    feed = sensors(2_300, 2_000, 30.0, phi=0.0)
    held = Engine(small(), InlineExecutor())
    verdicts = play(held, feed)
    free = play(Engine(small(hold=Hold(enabled=False)), InlineExecutor()), feed)
    (incident,) = held.take_incidents()
    assert incident.opened_seq > 2_000
    assert verdicts[: incident.opened_seq] == free[: incident.opened_seq]  # nothing is seen later
    assert verdicts[-100:] != free[-100:]


def test_the_reference_of_an_incident_is_that_from_before_its_onset_in_its_order():
    feed, windows = sensors(2_300, 2_000, 4.0, phi=0.0), []
    made = Engine(small(), InlineExecutor())
    play(made, feed)
    (opened,) = made.take_incidents()
    assert opened.opened_seq - opened.onset_seq > 2  # some of these scores had entered
    before = Engine(small(), InlineExecutor())
    play(before, feed[: opened.onset_seq])
    for of in (made, before):
        windows.append(of._live["s"]._judge.window.scores())
    assert windows[0] == windows[1]


def test_one_spike_opens_nothing():
    feed = sensors(9_000, 9_000, 0.0, phi=0.0)
    feed[7_000] = feed[7_000]._replace(values=(1e6, 0.0, 0.0))
    spiked = engine()
    play(spiked, feed)
    assert spiked.take_incidents() == []


# --------------------------------------------------------------------------- answers
@pytest.mark.thorough
@pytest.mark.parametrize("detector", ["GMM", "HalfSpaceTrees"])
def test_a_new_normal_becomes_the_reference(detector):
    spec = small(detector=make_detector(detector)) if detector != "GMM" else small()
    at = Engine(spec, InlineExecutor())
    feed = sensors(4_000, 2_000, 30.0, phi=0.0)
    before = play(at, feed[:2_300])[-1].model_epoch
    (opened,) = at.take_incidents()
    assert answer(at, NEW_NORMAL, opened).accepted
    verdicts = play(at, feed[2_300:], 7)
    if spec.is_batch:  # enough rows were held: the interim reference speaks at once
        assert verdicts[0].model_epoch > before
        assert not verdicts[0].held
    changes = at.take_incidents()
    assert changes[-1].state is IncidentState.CLOSED
    assert changes[-1].ended == "adopted"
    assert changes[-1].answer == "new_normal-1"
    assert changes[-1].position.offset < 2_300 + 150
    late = verdicts[800:]
    assert not any(v.held for v in late)
    assert sum(v.label is Label.NORMAL for v in late) > 0.85 * len(late)


def test_a_fault_is_held_until_recovery_and_its_rows_stay_out():
    at = Engine(small(), InlineExecutor())
    feed = sensors(6_000, 2_000, 30.0, until=4_000, phi=0.0)
    play(at, feed[:2_300])
    (opened,) = at.take_incidents()
    assert answer(at, FAULT, opened).accepted
    play(at, feed[2_300:])
    changes = at.take_incidents()
    assert changes[0].state is IncidentState.FAULT
    assert (changes[0].version, changes[0].position.offset) == (2, 2_300)
    assert changes[-1].ended == "recovered"
    assert 4_000 < changes[-1].changed_seq < 4_100
    model = at._live["s"].model
    assert (model._rows.packed(10_000).training(10_000)[:, 0] < 15).all()


@pytest.mark.thorough
def test_a_sensor_without_a_level_is_seldom_flagged_and_seldom_held():
    """A random walk was held three quarters of the time, and flagged as long.

    Where it is adopted after a window: three days are all of this stream, a reading a second.
    """
    n, verdicts, hold = 24_000, [], Hold(adopt_after_events=2_000)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = 0.1 * np.cumsum(rng.standard_normal((n, 3)), axis=0) + 0.3 * rng.standard_normal((n, 3))
        walk = sensors(n, 0, 0.0)
        walk = [r._replace(values=tuple(x)) for r, x in zip(walk, X.tolist(), strict=True)]
        verdicts += play(engine("Sensor", hold=hold), walk)
    assert sum(v.label is Label.ANOMALY for v in verdicts) <= 0.2 * len(verdicts)
    assert sum(v.held for v in verdicts) <= 0.25 * len(verdicts)


def hours(days, *, fault=None, seed=0):
    """The power of an office, hourly: days, weekends, a winter; one fault below."""
    rng, t = np.random.default_rng(seed), np.arange(24 * days)
    day = 25 * np.sin(2 * np.pi * (t / 24 - 0.3)) * (t // 24 % 7 < 5)
    x = 40 + day + 8 * np.cos(2 * np.pi * t / 8766) + 3 * rng.standard_normal(len(t))
    if fault is not None:
        x[fault : fault + 240] -= 25.0
    return of_rows(x[:, None], step_ms=3_600_000)


@pytest.mark.thorough
def test_a_season_is_told_and_not_held_though_a_fault_in_it_is():
    """It was held 47 % of the time: whoever holds spring judges summer by it."""
    spec = EngineSpec(
        make_detector("Sensor"), FeatureSpec(("kw",)), RejectionPolicy(0.05, rate=0.05),
        window=2000, alarms=Alarms(),
    )  # fmt: skip
    at = Engine(spec, InlineExecutor())
    verdicts = play(at, hours(700))
    told = at.take_incidents()
    assert not any(one.held for one in told)
    assert sum(one.opens for one in told) <= 24, "one a month is allowed"
    assert sum(v.label is Label.ANOMALY for v in verdicts) < 0.27 * len(verdicts)
    for fault in (13_000, 13_500):
        at = Engine(spec, InlineExecutor())
        verdicts = play(at, hours(600, fault=fault))[fault : fault + 24]
        assert sum(v.label is Label.ANOMALY for v in verdicts) >= 12
        told = {one.id: one for one in at.take_incidents()}.values()
        assert any(one.opened_seq < fault + 24 and one.changed_seq > fault for one in told)


@pytest.mark.parametrize("phi", [0.0, 0.9])
def test_scores_that_only_vary_seldom_rise_and_a_season_does(phi):
    rng, n = np.random.default_rng(4), 1500
    steps = rng.standard_normal((600, n))
    series = lfilter([np.sqrt(1 - phi * phi)], [1, -phi], steps, axis=1)
    assert sum(map(rises, series)) <= 0.025 * len(series), "one in a hundred is meant"
    drift = np.linspace(0, 2.0 if phi else 0.5, n)
    assert sum(map(rises, series + drift)) > 0.9 * len(series)
    assert not any(map(rises, series - drift)), "what falls is the model's good luck"
    assert not rises(np.ones(n))


def test_a_refused_crossing_begins_the_evidence_anew_and_waits_for_another_reference():
    noise = np.random.default_rng(5).standard_normal(400)
    for slope, events, holds in ((0.0, 400, True), (1.0, 400, False), (1.0, 300, True)):
        window, watch = ScoreWindow(400), IncidentTracker(Hold(), "s", 400)
        for score in (noise + np.linspace(0.0, slope, 400))[:events].tolist():
            window.push(score)
        watch.measure_inflation(window, is_due=True)
        assert watch.limit < math.inf
        watch.level, watch.pending_transition = 50.0, IncidentState.OPEN
        assert watch.has_transition(window) is holds
        assert (watch.pending_transition is None, watch.limit == math.inf) == (not holds, not holds)
        assert watch.level == (50.0 if holds else 0.0)
        watch.measure_inflation(window, is_due=True)
        assert watch.limit < math.inf, "measured again, it is asked again"


def test_a_recovery_to_another_level_is_a_recovery_and_what_comes_then_is_an_incident_of_its_own():
    """A stream that comes back elsewhere was held for ever."""
    at = Engine(small(hold=Hold(adopt_after_events=400)), InlineExecutor())
    feed = sensors(6_000, 2_000, 30.0, until=2_200, phi=0.0)
    elsewhere = [
        r._replace(values=(r.values[0] + (8.0 if i >= 2_200 else 0.0), *r.values[1:]))
        for i, r in enumerate(feed)
    ]
    again = [
        r._replace(values=(r.values[0] - (40.0 if 5_000 <= i < 5_100 else 0.0), *r.values[1:]))
        for i, r in enumerate(elsewhere)
    ]
    verdicts = play(at, again)
    ended = [i for i in at.take_incidents() if i.ended]
    assert [i.ended for i in ended] == ["adopted_by_age", "recovered"]
    assert 2_000 <= ended[0].onset_seq < 2_010
    assert ended[0].changed_seq < 2_000 + 2 * 400
    assert 5_000 <= ended[1].onset_seq < 5_010
    assert not verdicts[-1].held


def test_what_cannot_be_obeyed_changes_nothing_and_says_why():
    at = Engine(small(), InlineExecutor())
    feed = sensors(3_000, 2_000, 30.0, phi=0.0)
    play(at, feed[:2_300])
    (opened,) = at.take_incidents()
    before = at.snapshot()
    stale = answer(at, FAULT, opened, version=7)
    assert not stale.accepted
    assert "is at version 1 now (open), and version 7 was answered" in stale.said
    nameless = at.command(Command(id="x", kind=FAULT, incident=opened.id))
    assert not nameless.accepted
    assert "give stream_key" in nameless.said
    assert at.command(Command(id="x", kind=FAULT, stream_key="other", incident=opened.id)) is None
    assert at.command(Command(id="x", kind=FAULT, stream_key="s", incident="t-0-9")) is None
    backwards = Command(id="x", kind=CommandKind.PLANNED, stream_key="s", from_ms=5, until_ms=5)
    assert not at.command(backwards).accepted
    nothing = Command(id="x", kind=CommandKind.CANCEL, stream_key="s", cancels="y")
    assert not at.command(nothing).accepted
    assert at.snapshot() == before
    assert answer(at, FAULT, opened).accepted
    assert answer(at, FAULT, opened).said == "It was obeyed before."
    assert "known to be a fault" in answer(at, FAULT, opened, id="again", version=2).said
    assert answer(at, NEW_NORMAL, opened, version=None).accepted
    assert "being adopted" in answer(at, FAULT, opened, id="late", version=3).said
    play(at, feed[2_300:])
    assert "has ended (adopted)" in answer(at, FAULT, opened, id="later").said


def test_one_event_tells_one_change():
    feed = sensors(2_600, 2_000, 30.0, until=2_300, phi=0.0)
    at = Engine(small(), InlineExecutor())
    play(at, feed)
    recovering = at.take_incidents()[1]
    assert recovering.state is IncidentState.RECOVERING
    told = recovering.position.offset
    at = Engine(small(), InlineExecutor())
    play(at, feed[:told])
    (opened,) = at.take_incidents()
    assert answer(at, FAULT, opened).accepted
    play(at, feed[told : told + 2])
    changes = [(change.state, change.position.offset) for change in at.take_incidents()]
    assert changes == [(IncidentState.FAULT, told), (IncidentState.RECOVERING, told + 1)]


# --------------------------------------------------------------------------- planned work
@pytest.mark.parametrize("said", ["config", "stream", "all"])
def test_planned_work_teaches_nothing_and_opens_nothing(said):
    feed = sensors(3_000, 2_000, 30.0, until=2_400, phi=0.0)
    times = {"from_ms": 1_990_000, "until_ms": 2_410_000}
    calendar = (Plan(**times),) if said == "config" else ()
    at = Engine(small(calendar=calendar), InlineExecutor())
    verdicts = play(at, feed[:1_000])
    if said != "config":
        key = "s" if said == "stream" else None
        command = Command(id="p", kind=CommandKind.PLANNED, stream_key=key, **times)
        assert at.command(command).accepted
        blob, at = at.snapshot(), Engine(small(), InlineExecutor())
        at.restore(blob)
    verdicts += play(at, feed[1_000:], 77)
    assert at.take_incidents() == []
    assert [v.planned for v in verdicts] == [1_990 <= i < 2_410 for i in range(3_000)]
    assert max(at._live["s"]._judge.window.scores()) < 15
    assert verdicts[2_100].label is Label.ANOMALY  # said all the same


def test_a_plan_is_taken_back():
    at = Engine(small(), InlineExecutor())
    feed = sensors(2_300, 2_000, 30.0, phi=0.0)
    play(at, feed[:1_000])
    at.command(Command(id="p", kind=CommandKind.PLANNED, from_ms=0, until_ms=10**9))
    play(at, feed[1_000:1_100])
    assert at.command(Command(id="q", kind=CommandKind.CANCEL, cancels="p")).accepted
    play(at, feed[1_100:])
    assert [i.state for i in at.take_incidents()] == [IncidentState.OPEN]


def test_plans_come_once_hold_from_their_first_time_and_the_newest_are_remembered():
    plans = Plans()

    def said(i):
        command = Command(id=f"p{i}", kind=CommandKind.PLANNED, from_ms=i, until_ms=i + 1)
        return plans.command(command).said

    assert "are planned" in said(0)
    assert said(0) == "It was obeyed before."
    assert len(plans.all) == 1
    for i in range(1, 201):
        said(i)
    assert (len(plans.all), plans.all[0].id, plans.all[-1].id) == (200, "p1", "p200")
    nightly = Plan(from_ms=1_000, until_ms=1_500, every_ms=10_000)
    assert [nightly.holds("s", at) for at in (-8_700, 1_300, 11_300)] == [False, True, True]
    assert not Plan(0, 9, streams=("other",)).holds("s", 5)


# --------------------------------------------------------------------------- the laws
def story(pipeline, feed, commands, seed):
    """Play a feed in random cuts with evictions and restores; commands hold from their offset."""
    rng = random.Random(seed)

    def new():
        return Engine(pipeline, InlineExecutor(), idle={}, max_live_streams=1 + seed % 2)

    at, verdicts, changes, replies = new(), [], [], []
    while len(verdicts) < len(feed):
        done = len(verdicts)
        for offset, make in commands.items():
            if offset == done:
                replies += [at.command(make(changes))]
        size = rng.choice([1, 2, 5, 33, 120, 400])
        until = min([offset for offset in commands if offset > done] + [done + size])
        verdicts += at.process(feed[done:until])
        changes += at.take_incidents()
        if rng.random() < 0.15:
            at._evict(at.streams()[0])
        if rng.random() < 0.15:
            blob, at = at.snapshot(), new()
            at.restore(blob)
    return [encode_verdict(v) for v in verdicts], changes, replies, at.open_incidents()


def two_streams(seed):
    """Two streams, faults that come and go, missing values, planned work."""
    rng, feeds = random.Random(seed), []
    for key in "ab":
        feed = sensors(2_600, rng.randrange(900, 1_400), rng.choice([6.0, 30.0]), phi=0.3,
                       until=rng.choice([1_700, None]), seed=seed)  # fmt: skip
        feeds.append([r._replace(stream_key=key, sensor=key) for r in feed])
    mixed = [feeds[rng.random() < 0.4].pop(0) for _ in range(2_600)]
    return [
        r._replace(
            position=Position("t", 0, i),
            values=(float("nan"), *r.values[1:]) if rng.random() < 0.02 else r.values,
        )
        for i, r in enumerate(mixed)
    ]


def command_of(kind, n):
    def make(changes):
        last = changes[-1] if changes else None
        return Command(
            id=f"c{n}", kind=kind, stream_key=last.stream_key if last else "a",
            incident=last.id if last else "t-0-0", version=None,
            from_ms=1_800_000, until_ms=1_850_000, cancels="c1",
        )  # fmt: skip

    return make


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["plain", "guarded", "learns"])
def test_cuts_evictions_and_restores_change_nothing(kind, seed):
    rng = random.Random(seed)
    hold = Hold(recover_events=10, adopt_after_events=rng.choice([None, 0, 150]))
    guard = RefitSchedule.for_window(300, guard_quantile=0.95 if kind == "guarded" else None)
    detector = make_detector("GaussianScorer") if kind == "learns" else Distance()
    pipeline = small(detector=detector, window=300, hold=hold, schedule=guard)
    feed = two_streams(seed)
    kinds = [FAULT, NEW_NORMAL, CommandKind.PLANNED, CommandKind.CANCEL]
    commands = {rng.randrange(1_000, 2_500): command_of(rng.choice(kinds), n) for n in range(6)}
    wanted = story(pipeline, feed, commands, 0)
    assert wanted[1]  # there were incidents
    for other in range(1, 4):
        assert story(pipeline, feed, commands, other) == wanted


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "cuts"), [("sensor", 1), ("guarded", 300), ("plain", 1)])
def test_what_is_adopted_is_the_second_of_two_incidents_and_nothing_of_the_first(kind, cuts):
    """The first is recovered from; of the second some rows lack a channel. Nothing restarts."""
    guard = RefitSchedule.for_window(300, guard_quantile=None if kind == "plain" else 0.95)
    detector = make_detector("Sensor") if kind == "sensor" else Distance()
    made = Engine(small(detector=detector, window=300, schedule=guard), InlineExecutor())
    feed, parts = sensors(3_600, 2_000, 30.0, until=2_060, phi=0.0), PartsByVersion()
    for i in range(2_600, len(feed)):
        x, *others = feed[i].values
        missing = float("nan") if i < 2_800 and i % 11 in (0, 1, 2) else others[0]
        feed[i] = feed[i]._replace(values=(x - 30.0, missing, others[1]))
    play(made, feed[:2_690], cuts)
    first, *_, ended, second = made.take_incidents()
    assert (first.held, ended.id, ended.ended) == (True, first.id, "recovered")
    assert (second.held, second.opened_seq > 2_600) == (True, True)
    parts.keep(made)
    assert answer(made, NEW_NORMAL, second).accepted
    verdicts = play(made, feed[2_690:3_000], cuts)
    assert made.take_incidents()[-1].ended == "adopted"
    model = made._live["s"].model
    assert model._origin > 0
    learnt = model._rows.packed(10_000).training(10_000)
    for rows in (learnt, model._serving.rows()):
        assert rows[:, 0].max() < 15
        assert np.mean(rows[:, 0] < -15) > 0.9
        assert not np.isnan(rows).any()
    parts.keep(made)
    restored = parts.restore(Engine(made.spec, InlineExecutor()))
    late = play(made, feed[3_000:3_200], cuts)
    assert play(restored, feed[3_000:3_200], cuts) == late
    verdicts += late
    assert not any(v.held for v in verdicts[150:])
    assert sum(v.label is Label.NORMAL for v in late) > 0.8 * len(late)


def test_a_hold_that_is_switched_off_holds_nothing():
    feed = sensors(3_000, 2_000, 30.0, phi=0.0)
    off = Engine(small(hold=Hold(enabled=False)), InlineExecutor())
    verdicts = play(off, feed)
    assert not any(v.held or v.incident for v in verdicts)


def test_a_decision_says_whether_it_holds_and_is_read_back():
    for spec in (small(calendar=(Plan(0, 5),)), small(hold=Hold(enabled=False))):
        assert Decision.of(spec.decision.parts()) == spec.decision


def test_a_snapshot_goes_on_under_another_hold():
    feed = sensors(3_000, 2_000, 30.0, phi=0.0)
    at = Engine(small(), InlineExecutor())
    play(at, feed[:2_200])
    assert at.open_incidents()
    off = Engine(small(hold=Hold(enabled=False)), InlineExecutor())
    restored = off.restore(at.snapshot())
    assert restored.was.hold.enabled
    off.decide(restored.was)  # the replay, as it was
    assert play(off, feed[2_200:2_300]) == play(at, feed[2_200:2_300])
    off.decide(restored.now)
    assert not any(v.held for v in play(off, feed[2_300:]))


def test_a_hold_that_is_turned_off_ends_what_is_open_with_the_next_event():
    feed = sensors(3_000, 2_000, 30.0, phi=0.0)
    at = Engine(small(), InlineExecutor())
    play(at, feed[:2_200])
    (opened,) = at.take_incidents()
    at.decide(small(hold=Hold(enabled=False)).decision)
    play(at, feed[2_200:2_300], 7)
    (closed,) = at.take_incidents()
    assert (closed.id, closed.version, closed.state) == (opened.id, 2, IncidentState.CLOSED)
    assert (closed.ended, closed.position) == ("hold_off", feed[2_200].position)
    assert closed.n_events == 2_200 - closed.onset_seq
    assert at.open_incidents() == []
    assert "has ended (hold_off)" in answer(at, FAULT, opened).said


def test_a_held_stream_waits_for_no_fit():
    at = Engine(small(hold=Hold(adopt_after_events=0)), InlineExecutor())
    play(at, sensors(2_300, 2_000, 30.0, phi=0.0))
    rows = at._live["s"].model.rows_seen
    more = sensors(5_000, 0, 30.0, phi=0.0, seed=1)
    play(at, [r._replace(position=Position("t", 0, 2_300 + i)) for i, r in enumerate(more)])
    assert at._live["s"].model.rows_seen == rows
    assert at.ready(more[:5]) == 5


# --------------------------------------------------------------------------- nothing wrong
def test_nothing_is_held_until_a_window_was_full_once():
    def opened(at):
        told = Engine(small(window=1_000), InlineExecutor())
        play(told, sensors(at + 300, at, 30.0, phi=0.0))
        return [i.state for i in told.take_incidents()]

    first = small(window=1_000).schedule.first_fit_events
    assert opened(first + 300) == []
    assert opened(first + 1_500) == [IncidentState.OPEN]


def test_a_measurement_that_is_small_by_chance_is_no_less_than_usual():
    watch = IncidentTracker(Hold(), "s", 500)
    rng = np.random.default_rng(0)
    slow = lfilter([1], [1, -0.9], rng.standard_normal(500)).tolist()
    watch.maybe_remeasure(125, ScoreWindow(500, slow[:100]))
    assert watch.limit == math.inf  # it was never full
    watch.restart(ScoreWindow(500, slow))
    usual = watch.limit
    watch.restart(ScoreWindow(500, rng.standard_normal(500).tolist()))
    assert 2.5 + 5 * 1.0 < (usual + 7.5) / 2 - 5 < watch.limit < usual
    known = watch.limit
    watch.restart(ScoreWindow(500, rng.standard_normal(200).tolist()))
    assert 15 < watch.limit <= known  # no longer full, and judged by what is usual
    again = IncidentTracker(Hold(), "s", 500)
    again.restore(watch.state())
    assert again.state() == watch.state()


# --------------------------------------------------------------------------- right after a turn
@pytest.mark.parametrize(("guard", "lag"), [(None, 50), (0.95, 50), (None, 2)])
def test_no_fit_is_made_of_rows_that_are_taken_back(guard, lag):
    """A fit that was asked for between the onset and its discovery would learn the fault."""
    schedule = RefitSchedule(
        first_fit_events=400, refit_every_events=800, refit_lag_events=lag, buffer_events=400,
        guard_quantile=guard,
    )  # fmt: skip
    given_up = 0
    for onset in range(1_195, 1_203):  # a fit is asked for with the row of 1,200
        held = Engine(small(schedule=schedule), InlineExecutor())
        feed = sensors(onset + 30, onset, 30.0, phi=0.0)
        play(held, feed[:onset])
        model, asked, parts = held._live["s"].model, [], PartsByVersion()
        for reading in feed[onset:]:
            held.process([reading])
            parts.keep(held)
            asked += [one["requested_at"] for one in model.recipes()().values() if one]
        (opened,) = held.open_incidents()
        assert opened.onset_seq == onset == model.rows_seen
        left = [one for one in model.recipes()().values() if one]
        assert all(one["requested_at"] <= model.rows_seen for one in left)
        fits = [one for one in (model._serving, model._pending, model._shadow) if one]
        assert len(fits) == len(left)
        assert all(fit.rows()[:, 0].max() < 15 for fit in fits)
        other = parts.restore(Engine(held.spec, InlineExecutor()))
        assert stream_of(other, "s") == stream_of(held, "s")
        given_up += max(asked) > model.rows_seen
    assert given_up >= 3


def watch_of(engine):
    return engine._live["s"].tracker


def watched(recover=60, **given):
    """A stream whose fault was found and is over, and what comes after it."""
    feed = sensors(4_000, 2_000, 30.0, until=2_010, phi=0.0)
    at = Engine(small(hold=Hold(recover_events=recover), **given), InlineExecutor())
    play(at, feed[:2_012])
    assert [one.state for one in at.take_incidents()] == [IncidentState.OPEN]
    return at, feed


def test_one_outlier_costs_an_incident_no_more_evidence_than_any_can_add():
    at, feed = watched()
    play(at, feed[2_012:2_065])
    watch = watch_of(at)
    left = watch.min_events_held()
    spike = feed[2_065]._replace(values=(1e9, 0.0, 0.0))
    (verdict,) = at.process([spike])
    assert verdict.held
    assert verdict.severity > 10
    # It adds log10(n + 1) - 0.75 to the evidence for the incident, which is 2.5 ordinary events.
    assert watch.min_events_held() <= left + 3


def test_after_ten_relapses_it_is_not_said_again_that_scores_look_ordinary():
    at, feed = watched(recover=20)
    quiet = iter(feed[2_012:])
    states = []
    for _ in range(15):  # half of what would end it, and then again not
        while watch_of(at).open.ordinary < watch_of(at).recovery / 2:
            at.process([next(quiet)])
        at.process([next(quiet)._replace(values=(30.0, 0.0, 0.0)) for _ in range(8)])
        states += [change.state for change in at.take_incidents()]
    assert states.count(IncidentState.RECOVERING) == 10
    assert states[-1] is IncidentState.OPEN


@pytest.mark.thorough
def test_no_row_is_measured_at_twice():
    """Where an incident began with the very row of a measurement, the count comes there again."""
    schedule = RefitSchedule(first_fit_events=400, refit_every_events=None, buffer_events=400)
    at, step = Engine(small(schedule=schedule), InlineExecutor()), 1_600
    feed = sensors(3_000, step, 30.0, until=step + 10, phi=0.0, seed=1)
    play(at, feed[:step])
    before = watch_of(at)._usual.count
    play(at, feed[step:])
    opened, *_, closed = at.take_incidents()
    assert (opened.onset_seq, closed.state) == (step, IncidentState.CLOSED)
    assert watch_of(at)._usual.count == before + 1


def test_a_model_that_learns_has_its_warm_up_with_what_it_adopted_too():
    detector = make_detector("HalfSpaceTrees", n_trees=5, height=5, window_size=200)
    at = Engine(small(detector=detector), InlineExecutor())
    feed = sensors(3_000, 1_500, 30.0, phi=0.0)
    play(at, feed[:1_500])
    seen = 1_500
    while not at.open_incidents():
        at.process([feed[seen]])
        seen = seen + 1
    (opened,) = at.open_incidents()
    assert answer(at, NEW_NORMAL, opened).accepted
    held = seen - opened.onset_seq
    verdicts = play(at, feed[seen:])
    warm = [v.score is None for v in verdicts].index(False)
    assert warm == detector.warm_up_events - held > 100


def test_it_is_never_said_that_a_stream_is_held_longer_than_it_is():
    for hold, state in (
        (Hold(recover_events=60), "recovered"), (Hold(adopt_after_events=90), "adopted_by_age")
    ):  # fmt: skip
        feed = sensors(4_000, 2_000, 30.0, until=2_010 if state == "recovered" else None, phi=0.0)
        at, told, done = Engine(small(hold=hold), InlineExecutor()), [], 2_012
        play(at, feed[:done])
        watch = watch_of(at)
        while watch.frozen and not watch.is_adopting:
            told.append(watch.min_events_held())
            at.process([feed[done]])
            done += 1
        held = range(len(told), 0, -1)
        more = state == "adopted_by_age"  # then the next row needs no fit either
        assert all(least < n + more for least, n in zip(told, held, strict=True))
        assert max(told) > 20
        assert told[-1] == more
        play(at, feed[done:])
        assert at.take_incidents()[-1].ended == state


def test_of_what_is_under_suspicion_only_what_entered_is_no_part_of_the_reference():
    window, watch = ScoreWindow(50, map(float, range(50))), IncidentTracker(Hold(), "s", 50)
    verdict = Verdict(Position("t", 0, 0), "s", "s", 0, 0, Label.NORMAL, score=9.0)
    watch.suspect_events.extend([(verdict, math.nan), (verdict, 3.0), (verdict, math.nan)])
    assert [*watch._trusted(window)] == [float(score) for score in range(49)]


@pytest.mark.parametrize("is_answered", [False, True])
def test_rows_that_were_held_are_gone_where_the_hold_is_switched_off(is_answered):
    at = Engine(small(), InlineExecutor())
    play(at, sensors(2_190, 2_000, 30.0, phi=0.0))
    model = at._live["s"].model
    assert len(model._held) > 100
    if is_answered:
        assert answer(at, NEW_NORMAL, at.take_incidents()[-1]).accepted
    at.decide(small(hold=Hold(enabled=False)).decision)
    play(at, sensors(2_191, 2_000, 30.0, phi=0.0)[2_190:])
    assert len(model._held) == 0
    assert not watch_of(at).is_adopting
