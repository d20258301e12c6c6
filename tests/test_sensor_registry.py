"""Sensors have a life: who is known, turned away or forgotten is a function of the events alone."""

import json
import math
import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rejex_stream.decode import JsonDecoder
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.engine.sensor_registry import Limits, SensorRegistry
from rejex_stream.errors import CheckpointError
from rejex_stream.features import Feature, FeatureSpec
from rejex_stream.monitor import MonitorBank
from rejex_stream.rejection import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.run.loop import RunSettings
from rejex_stream.run.partition import PartitionMonitor, PartitionState
from rejex_stream.run.review_items import ReviewItems
from rejex_stream.run.run_events import Committed, SensorsForgotten
from rejex_stream.types import (
    Command,
    CommandKind,
    IncidentState,
    Label,
    Partition,
    Position,
    Reading,
    Reason,
    Record,
    Status,
)
from tests.doubles import ListSink, ListSource
from tests.doubles import MemorySnapshotStore as Store
from tests.streams import Distance
from tests.test_runtime import Watching, play
from tests.test_state_moves import CONFIG, SPEC

ONE = Partition("input", 0)
GROUPED = JsonDecoder(FieldMapping(["x"], sensor="id", time="t", group="g"))
LAGS = replace(SPEC, features=FeatureSpec(("x",), (Feature("lag", "x", 3),)))


def record(offset, time_ms, sensor, group=None, x=None):
    body = {"id": sensor, "g": group or sensor, "t": time_ms}
    body["x"] = (offset * 7919) % 101 if x is None else x
    return Record(Position(*ONE, offset), None, json.dumps(body).encode())


def feed(*told):
    """Records of (time, sensor) or (time, sensor, group)."""
    return [record(i, *one) for i, one in enumerate(told)]


def state_of(pipeline=SPEC, **limits):
    return PartitionState(
        ONE, decoder=GROUPED, engine=Engine(pipeline, InlineExecutor()),
        context=ReviewItems(GROUPED.channels, points=3),
        monitor=PartitionMonitor(ONE, CONFIG, lambda *_: None), limits=Limits(**limits),
    )  # fmt: skip


def verdicts(outcomes):
    return [outcome.verdict for outcome in outcomes]


def reborn(state, parts, fresh):
    piece = state.snapshot().encoded()
    state.parts.commit()
    kept = parts if piece.base is not None else {}
    parts = {name: body for name, body in (kept | piece.parts).items() if body is not None}
    state = fresh()
    state.restore(parts)
    state.apply_config()
    return state, parts


def seqs(outcomes):
    return [outcome.verdict.seq for outcome in outcomes]


# ------------------------------------------------------------------------------ forgetting


def test_of_a_group_a_sensor_is_forgotten_and_the_others_keep_the_model():
    state = state_of(LAGS, forget_after_ms=800)
    told = [(10 * i, "ab"[i % 2], "g") for i in range(100)]
    told += [(1000 + 10 * i, "bc"[i % 2], "g") for i in range(100)]
    state.process(feed(*told))
    assert state.take_forgotten() == []
    (after, again) = state.process([record(200, 2000, "a", "g"), record(201, 2001, "b", "g")])
    assert after.verdict.reason is Reason.WARM_UP, "its lags are gone"
    assert after.verdict.seq == 200
    assert again.verdict.reason is not Reason.WARM_UP


# ------------------------------------------------------------------------- clocks that lie
DAY = 86_400_000
NOW = 1_750_000_000_000


def statuses(told, cut=None):
    """Which events of a feed have a status, cut anywhere and restored there."""
    records, state = feed(*told), state_of()
    found = state.process(records[:cut])
    if cut is not None:
        piece = state.snapshot().encoded()
        state = state_of()
        state.restore(piece.parts)
        state.apply_config()
        found += state.process(records[cut:])
    return {i: v.status for i, v in enumerate(verdicts(found)) if v.status is not None}


def lying(*times):
    """Two honest sensors, and one with these times where they are not None."""
    told = []
    for i, time_ms in enumerate(times):
        told += [(NOW + 1000 * i, "a"), (NOW + 1000 * i, "b")]
        told.append((NOW + 1000 * i if time_ms is None else time_ms, "c"))
    return told


@pytest.mark.parametrize("wrong", [NOW + 400 * DAY, NOW + DAY + 9000, 0, -1, NOW // 1000])
@pytest.mark.parametrize("cut", [None, 3, 8, 10, 11, 14, 20])
def test_a_clock_that_is_wrong_is_said_once_and_when_it_is_right_again(wrong, cut):
    told = lying(None, None, wrong, wrong, wrong, None, None)
    begins = 8 if wrong < NOW else 11  # one record from the future may be all of a plant's
    wanted = {begins: Status.CLOCK_BEGINS, 17: Status.CLOCK_ENDS}
    assert statuses(told, cut) == wanted


def test_how_many_clocks_are_not_trusted_is_said_with_each_commit():
    wrong = NOW + 400 * DAY
    values = [one.value for one in feed(*lying(None, None, wrong, wrong, wrong, None, None))]
    watching, knobs = Watching(), {"commit_every_events": 1, "max_poll_records": 1}
    play(
        ListSource(values), ListSink(), engine=lambda _, fits: Engine(SPEC, fits),
        decoder=GROUPED, observers=[watching], knobs=knobs,
    )  # fmt: skip
    commits = watching.of(Committed)
    said = {one.next_offsets[ONE] for one in commits if one.untrusted_clocks[ONE]}
    # It begins with event 11 and ends with event 17; commits end while the next one is judged.
    assert said == set(range(11, 17))


def test_a_day_ahead_at_most_and_a_single_record_say_nothing():
    assert not statuses(lying(None, None, NOW + DAY + 2000, NOW + DAY + 3000, None))
    assert not statuses(lying(None, None, NOW + 400 * DAY, None, None))


def test_a_plant_that_stood_still_and_sensors_one_after_the_other_have_right_clocks():
    stop = [(NOW + i, "abc"[i % 3]) for i in range(30)]
    stop += [(NOW + 9 * DAY + i, "cba"[i % 3]) for i in range(30)]
    blocks = [(NOW + k * 40 * DAY + DAY * i, sensor) for k, sensor in enumerate("abc")
              for i in range(30)]  # fmt: skip
    elapsed = [(1000 * i, "abc"[i % 3]) for i in range(90)]
    alone = [(NOW + i * 9 * DAY, "a") for i in range(40)]
    for told in (stop, blocks, elapsed, alone):
        assert not statuses(told)


ONE_LIES = st.tuples(st.sampled_from([0, -5, NOW // 1000, NOW + 90 * DAY, NOW - 90 * DAY, 2**45]))
TWO_LIE = st.tuples(
    st.sampled_from([0, NOW + 90 * DAY, 2**45, NOW - 90 * DAY]),
    st.sampled_from([-5, NOW + 92 * DAY, 2**44, NOW - 88 * DAY]),
)


@pytest.mark.thorough
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.one_of(st.lists(lies, min_size=30, max_size=60) for lies in (ONE_LIES, TWO_LIE)),
    st.lists(st.integers(0, 2), min_size=60, max_size=60),
    st.sampled_from([None, 900, 5000, 10 * DAY]),
)
def test_sensors_that_lie_about_time_change_nothing_for_others_unless_two_agree(
    times, places, forget_after_ms
):
    """Of two honest sensors all is as it is without those that have these times."""
    budget = RejectionPolicy(0.2, rate=0.15, burst=2, per_day=3)
    spec = replace(SPEC, policy=budget, window=budget.first_window)
    told = [(NOW, "a"), (NOW, "b")]
    for i, (lies, place) in enumerate(zip(times, places, strict=False)):
        three = [(NOW + 1000 * i, "a"), (NOW + 1000 * i, "b")]
        told += [*three[:place], *zip(lies, "cd", strict=False), *three[place:]]
    found, records = [], feed(*told)
    honest = [r for r, (_, sensor) in zip(records, told, strict=True) if sensor in "ab"]
    for one in (records, honest):
        outcomes = state_of(spec, forget_after_ms=forget_after_ms).process(one)
        found.append([(o.verdict, o.review, o.incidents)
                      for o in outcomes if o.verdict.sensor in "ab"])  # fmt: skip
    assert found[0] == found[1]


def test_there_it_ends_two_that_agree_within_a_day_are_believed():
    state = state_of(forget_after_ms=10 * DAY)
    ahead = [(NOW + 90 * DAY, "c"), (NOW + 91 * DAY, "d")]
    state.process(feed((NOW, "a"), (NOW, "b"), *ahead, (NOW + 1, "a")))
    assert set(state.take_forgotten()) == {"a", "b"}


@pytest.mark.parametrize("sensors", ["a", "ab", "abc"])
def test_one_event_300_days_ahead_moves_neither_forgetting_nor_commands_nor_budgets(sensors):
    budget = RejectionPolicy(0.2, rate=0.15, burst=2, per_day=3, owner="partition")
    spec = replace(SPEC, policy=budget, window=budget.first_window)
    told = [(NOW + 1000 * i, sensors[i % len(sensors)]) for i in range(200)]
    told[150] = NOW + 300 * DAY, told[150][1]
    state = state_of(spec, forget_after_ms=10 * DAY)
    state.process(feed(*told))
    assert state.take_forgotten() == []
    for now_ms in (state.registry.now_ms, state._engine._credits.of("a").latest_ms):
        assert NOW < now_ms < NOW + 200_000
    plan = Command(id="p", kind=CommandKind.PLANNED, from_ms=NOW, until_ms=NOW + 5 * DAY)
    assert not state._is_over(plan)


# ---------------------------------------------------------------------------- too many


def test_a_flood_of_names_takes_no_model_from_anybody_and_leaves_nothing_behind():
    state, alone = state_of(max_keys=2), state_of()
    flood = [(i, f"hostile-{i}") for i in range(2, 300)]
    told = [(0, "a"), (1, "b")]
    for i, one in enumerate(flood):
        told += [one, (i + 2, "ab"[i % 2])]
    known = [
        v for v in verdicts(state.process(feed(*told))) if v.reason is not Reason.TOO_MANY_SENSORS
    ]
    expected = [r for r in feed(*told) if json.loads(r.value)["id"] in "ab"]
    assert known == verdicts(alone.process(expected))
    assert len(state._engine.streams()) == len(state._context.sensors()) == 2
    assert len(state.registry) == 2
    assert sorted(state._monitor.bank) == ["a", "b"]


def test_a_name_in_many_groups_is_as_many_sensors():
    state = state_of(max_keys=3)
    found = verdicts(state.process(feed(*((i, "a", f"g{i}") for i in range(9)))))
    assert sum(v.reason is Reason.TOO_MANY_SENSORS for v in found) == 6
    assert len(state._engine.streams()) == 3


# ---------------------------------------------------------------------------- the three laws
def oracle(told, limits):
    """The rule as it is said, slowly; an engine of its own for each life of a sensor."""
    lives, found = {}, []
    after, step = limits.forget_after_ms, None
    if after is not None:
        step = max(1, after // 8)
    newest = {}
    now = None
    for i, (time_ms, sensor) in enumerate(told):
        newest[sensor] = max(newest.get(sensor, -(10**18)), time_ms)
        others = sorted(newest.values())[:-1]
        was = now
        # What a second sensor has ever reached, or one alone eight times; it is never earlier.
        known = [t for t in (*others[-1:], was) if t is not None]
        if len(newest) == 1 and i >= 7:
            known.append(min(t for t, _ in told[i - 7 : i + 1]))
        now = max(known, default=None)
        if step is not None and now is not None and (was is None or now // step > was // step):
            lives = {who: it for who, it in lives.items() if not now - it[0] > after}
        heard = time_ms if now is None else max(time_ms, now)
        reading = GROUPED.decode(record(i, time_ms, sensor))
        if sensor in lives:
            lives[sensor][0] = heard
        elif limits.max_keys is not None and len(lives) >= limits.max_keys:
            found.append((sensor, 0, Label.REJECTED, Reason.TOO_MANY_SENSORS, None))
            continue
        else:
            lives[sensor] = [heard, Engine(SPEC, InlineExecutor())]
        (v,) = lives[sensor][1].process([reading])
        found.append((v.sensor, v.seq, v.label, v.reason, v.score))
    return found


@st.composite
def histories(draw):
    time_ms, told = 0, []
    for _ in range(draw(st.integers(1, 120))):
        time_ms += draw(st.sampled_from([0, 1, 3, 10, 40]))
        jump = draw(st.sampled_from([0] * 12 + [-60, 500]))
        told.append((time_ms + jump, draw(st.sampled_from("aaabbcdef"))))
    return told


@pytest.mark.thorough
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    histories(),
    st.builds(
        Limits,
        forget_after_ms=st.sampled_from([None, 1, 16, 50, 200]),
        max_keys=st.sampled_from([None, 1, 2, 4]),
    ),
    st.lists(st.integers(1, 30), min_size=1),
    st.lists(st.booleans(), min_size=1),
)
def test_in_any_cut_and_restored_anywhere_it_is_the_rule(told, limits, cuts, restores):
    def fresh():
        return state_of(**{name: getattr(limits, name) for name in ("forget_after_ms", "max_keys")})

    state, records, found, i = fresh(), feed(*told), [], 0
    parts = {}
    while records:
        n = cuts[i % len(cuts)]
        found += verdicts(state.process(records[:n]))
        records = records[n:]
        if restores[i % len(restores)]:
            state, parts = reborn(state, parts, fresh)
        i += 1
    told_now = [(v.sensor, v.seq, v.label, v.reason, v.score) for v in found]
    assert told_now == oracle(told, limits)


@pytest.mark.thorough
@pytest.mark.parametrize("owner", ["stream", "group", "partition"])
@pytest.mark.parametrize("seed", range(2))
def test_what_the_forgotten_left_of_their_budget_outlives_cuts_and_restarts(seed, owner):
    """Through the shell: the credit in the head of a snapshot is that of the order."""
    policy = RejectionPolicy(0.2, rate=0.1, burst=2, owner=owner)
    pipeline, rng = replace(SPEC, policy=policy), random.Random(seed)
    told, time_ms = [], 0
    for _ in range(30):  # each is there for a while, then for long not
        sensor = rng.choice(["p/a", "p/b", "q/c"])
        for _ in range(rng.randrange(20, 120)):
            time_ms += 10
            told.append((time_ms, rng.choice([sensor] * 9 + ["q/there"]), None, rng.gauss(0, 9)))
    records = feed(*told)
    whole = state_of(pipeline, forget_after_ms=900)
    wanted = verdicts(whole.process(records))
    state, found, parts = state_of(pipeline, forget_after_ms=900), [], {}
    while records:
        n = rng.randrange(1, 90)
        found += verdicts(state.process(records[:n]))
        records = records[n:]
        piece = state.snapshot().encoded()
        state.parts.commit()
        kept = parts if piece.base is not None else {}
        parts = {name: b for name, b in (kept | piece.parts).items() if b is not None}
        if rng.random() < 0.5:
            state = state_of(pipeline, forget_after_ms=900)
            state.restore(parts)
            state.apply_config()
    assert found == wanted
    assert any(verdict.withheld for verdict in wanted)
    assert len(whole.take_forgotten()) > 4


def test_what_is_replayed_is_replayed_by_the_limits_of_then():
    then, now = state_of(max_keys=2), state_of(max_keys=3)
    then.process(feed((0, "a"), (1, "b"), (2, "c")))
    now.restore(then.snapshot().encoded().parts)
    (replayed,) = now.process([record(3, 3, "c")], replay_to=4)
    assert replayed.verdict.reason is Reason.TOO_MANY_SENSORS
    now.apply_config()
    (live,) = now.process([record(4, 4, "c")])
    assert live.verdict.reason is Reason.WARM_UP


HOLDING = EngineSpec(
    Distance(), FeatureSpec(("x",)), RejectionPolicy(0.1, tolerance=4), window=100, evidence=False,
    schedule=RefitSchedule(first_fit_events=100, refit_lag_events=10),
)  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_incidents_of_streams_that_are_forgotten_end_with_the_event_that_forgets_them(seed):
    told = [
        record(i, i, "ab"[i % 2], x=(i * 7919) % 101 + (900 if i > 700 else 0)) for i in range(900)
    ]
    told += [record(900 + i, 900 + 100 * i, "cd"[i % 2]) for i in range(30)]
    rng = random.Random(seed)
    state, changes, events, parts = state_of(HOLDING, forget_after_ms=800), [], told, {}
    while events:
        outcomes = state.process(events[: (size := rng.choice([1, 5, 60]))])
        changes += [(o.record.position, i) for o in outcomes for i in o.incidents]
        events = events[size:]
        if rng.random() < 0.2:
            again = lambda: state_of(HOLDING, forget_after_ms=800)  # noqa: E731
            state, parts = reborn(state, parts, again)
    opened = {i.id: i for _, i in changes if i.version == 1}
    ended = [(at, i) for at, i in changes if i.state is IncidentState.CLOSED]
    assert (
        sorted(i.stream_key for _, i in ended)
        == sorted(i.stream_key for i in opened.values())
        == ["a", "b"]
    )
    for at, incident in ended:
        assert (incident.ended, incident.position, incident.version) == ("forgotten", at, 2)
    assert len({at for at, _ in ended}) == 1
    assert state._engine.open_incidents() == []


def test_the_limits_come_from_the_settings_and_forgetting_is_told_once():
    told = [(0, "a"), (1, "b"), (2, "c"), (5000, "a"), (5001, "b"), (5002, "c"), (5003, "c")]
    values = [one.value for one in feed(*told)]
    watching, sink, store = Watching(), ListSink(), Store()
    knobs = {
        "forget_after": 1, "max_keys": 2, "snapshot_every_events": 10**6, "max_poll_records": 1,
    }  # fmt: skip
    play(
        ListSource(values), sink, store, engine=lambda _, fits: Engine(SPEC, fits),
        decoder=GROUPED, observers=[watching], knobs=knobs,
    )  # fmt: skip
    reasons = [outcome.verdict.reason for outcome in sink.outcomes]
    assert [r is Reason.TOO_MANY_SENSORS for r in reasons] == [0, 0, 1, 0, 0, 1, 1]
    (gone,) = watching.of(SensorsForgotten)
    assert gone == SensorsForgotten(ONE, ["b"], replaying=False)
    assert RunSettings().limits == Limits(max_keys=100_000)


# ------------------------------------------------------------------------------- the rest
def test_what_was_forgotten_is_gone_everywhere():
    state = state_of(forget_after_ms=800)
    state.process(feed((0, "a"), *((100 * i, "bc"[i % 2]) for i in range(1, 30))))
    assert sorted(state._engine.streams()) == sorted(state._context.sensors()) == ["b", "c"]
    assert isinstance(state._monitor.bank, MonitorBank)
    assert sorted(state._monitor.bank) == ["b", "c"]


def test_a_snapshot_under_way_holds_whoever_is_forgotten_before_it_is_whole():
    limits = {"forget_after_ms": 800, "max_keys": 3}
    told = feed(*((100 * i, "abc"[min(i, 2)] if i < 3 else "bc"[i % 2]) for i in range(30)))
    state, still = state_of(**limits), state_of(**limits)
    for one in (state, still):
        one.process(told[:3])
    wanted = still.snapshot().encoded().parts
    state.begin_snapshot()
    state.process(told[3:])  # a is forgotten, and nothing of it had been viewed
    assert state.take_forgotten() == ["a"]
    found = state.parts.next_piece(math.inf).encoded().parts
    assert found == wanted

    again = state_of(**limits)
    again.restore(found)
    (late,) = again.process([record(3, 250, "d")])  # a still counts there
    assert late.verdict.reason is Reason.TOO_MANY_SENSORS


def test_who_comes_back_after_being_forgotten_has_its_own_model_in_the_next_snapshot():
    others = [(200 + 100 * i, "bc"[i % 2]) for i in range(20)]
    records = feed(*((10 * i, "a") for i in range(20)), *others,
                   *((2_200 + 10 * i, "a") for i in range(20)))  # fmt: skip
    state, stored = state_of(forget_after_ms=800), dict[str, bytes | None]()
    for at, some in ((0, records[:20]), (1, records[20:])):
        state.process(some)
        assert list(state.take_forgotten()) == ["a"] * at
        piece = state.snapshot().encoded()
        assert (piece.base is None) is (at == 0), "the second builds upon the first"
        stored |= piece.parts
        state.parts.commit()
    state.parts.base = None
    whole = state.snapshot().encoded().parts
    assert {name: body for name, body in stored.items() if body is not None} == whole


def test_a_snapshot_that_is_abandoned_leaves_nothing_of_who_was_forgotten_meanwhile():
    told = feed(*((100 * i, "abc"[min(i, 2)] if i < 3 else "bc"[i % 2]) for i in range(30)))
    state = state_of(forget_after_ms=800)
    stored = dict(state.snapshot().encoded().parts)
    state.parts.commit()
    state.process(told[:3])
    state.begin_snapshot()
    state.process(told[3:])
    assert state.take_forgotten() == ["a"]
    state.parts.abandon()
    stored |= state.snapshot().encoded().parts
    state.parts.commit()
    state.parts.base = None
    whole = state.snapshot().encoded().parts
    assert {name: body for name, body in stored.items() if body is not None} == whole


@pytest.mark.parametrize(("head", "views"), [
    ({"limits": {}, "clock": [None, 0]}, {"a": {"a": "x"}}), ({"limits": {}, "clock": "?"}, {}),
    ({"limits": {"max_keys": 0}, "clock": []}, {}), ({"limits": {}}, {}), ([], {}),
    ({"limits": {}, "clock": []}, {"a": 1}),
])  # fmt: skip
def test_what_is_no_life_is_refused(head, views):
    with pytest.raises(CheckpointError, match="known of sensors is broken"):
        SensorRegistry().restore(head, views)


def test_hearing_is_cheap():
    lives = SensorRegistry(Limits(forget_after_ms=10**9, max_keys=10))
    events = [Reading("a", "a", i, (), Position("t", 0, i)) for i in range(10)]
    assert lives.admit(events).end == 10
    assert len(lives) == 1
