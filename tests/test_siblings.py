"""A sensor is judged beside its siblings: what no weather explains is told, weather is not."""

import math
import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rejex_stream.config import parse_config
from rejex_stream.config.assembly.edges import require_one_partition
from rejex_stream.config.assembly.running import engine_spec
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.engine.siblings import Siblings
from rejex_stream.errors import CheckpointError, ConfigError
from rejex_stream.features import Circle, Feature, FeatureSpec
from rejex_stream.features.spec import group_of
from rejex_stream.native_core import core
from rejex_stream.rejection import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.spark.frames import refused
from rejex_stream.tables.inspection import open_table
from rejex_stream.types import Label, Position, Reading, in_mode
from tests.streams import PartsByVersion, played

NAMES = tuple(f"T{i}" for i in range(1, 9))
STEP = 600_000


def farm(n=700, seed=0, *, together=True, fault=None, channels=2):
    """Values of eight turbines under one wind, (n, 8, channels); T2 may be warm from a row."""
    rng = np.random.default_rng(seed)
    own = rng.normal(size=(n, 8, channels))
    common = np.cumsum(rng.normal(0, 1, (n, 1, channels)), axis=0)
    wind = 6 * np.sin(np.arange(n) / 17)[:, None, None] + 0.3 * common
    values = 40 + (wind if together else 6 * np.roll(own, 1, axis=0)) + 0.3 * own
    if fault is not None:
        values[fault:, 1, 0] += 3
    return np.round(values, 3)


def fed(values, names=NAMES, mode=None):
    """Readings of all turbines, step by step; some lack a value, and some steps are late."""
    made = [
        (i * STEP, name, tuple(map(float, row)))
        for i, step in enumerate(values)
        for name, row in zip(names, step, strict=True)
    ]
    return [
        Reading(in_mode(name, mode), name, at, row, Position("t", 0, i))
        for i, (at, name, row) in enumerate(made)
    ]


def spec_of(siblings="*", detector="Sensor", channels=2, **given):
    names = ("gearbox", "power", "oil")[:channels]
    return EngineSpec(
        make_detector(detector), FeatureSpec(names, siblings=siblings, **given),
        RejectionPolicy(0.05, tolerance=4), window=200,
        schedule=RefitSchedule(first_fit_events=200, refit_every_events=200), evidence=True,
    )  # fmt: skip


def judged(feed, spec=None):
    return Engine(spec or spec_of(), InlineExecutor()).process(feed)


def said(siblings, sensor, at, *values, mode=None):
    key = in_mode(sensor, mode)
    return siblings.beside([Reading(key, sensor, at, values, Position("t", 0, at))])[0].tolist()


def compared(readings, *, modes=False, **given):
    """What siblings say of the last of readings, (before, median) by channel."""
    siblings = Siblings(FeatureSpec(("a", "b"), siblings="*", **given), modes=modes)
    for sensor, at, values, *mode in readings:
        found = said(siblings, sensor, at, *values, mode=mode[0] if mode else None)
    return [tuple(found[i : i + 2]) for i in range(0, len(found), 4)]


def steps(*of_steps, times=(0, 10, 20)):
    return [
        (f"s{j}", at, values) for at, step in zip(times, of_steps, strict=False)
        for j, values in enumerate(step)
    ]  # fmt: skip


FIRST = [(0.0, 0.0)] * 5
SECOND = [(9.0, 1.0), (1.0, 2.0), (2.0, 3.0), (3.0, 4.0), (4.0, 5.0)]
THIRD = [(7.0, 7.0)] * 5
NOW = ("s0", 20, (7.0, 7.0))


# ------------------------------------------------------------------------------- who says what
def test_a_reading_is_laid_beside_what_its_siblings_read_at_its_time():
    assert compared([*steps(FIRST, SECOND), NOW]) == [(9.0, 2.5), (1.0, 3.5)]
    # Those that have sent their next by then are looked at where they were.
    assert compared([*steps(FIRST, SECOND, THIRD)[:15], ("s0", 30, (0.0, 0.0))])[0] == (7.0, 7.0)
    assert compared([*steps(FIRST, SECOND), *steps(THIRD, times=(20,))[1:], NOW])[0] == (9.0, 2.5)


def test_one_at_fault_is_not_the_fault_of_the_others():
    wild = [(9.0, 1.0), (1e9, 2.0), (2.0, 3.0), (3.0, 4.0), (4.0, 5.0)]
    assert compared([*steps(FIRST, wild), NOW]) == [(9.0, 3.5), (1.0, 3.5)]


@pytest.mark.parametrize(
    "others",
    [
        SECOND[1:3],  # two are too few
        [*SECOND[1:3], (math.nan, 4.0)],
    ],
)
def test_of_fewer_than_three_nothing_is_said(others):
    found = compared([*steps([FIRST[0]] * (1 + len(others)), [SECOND[0], *others]), NOW])
    assert found[0] == (7.0, 7.0)  # as if it were like them
    assert found[1] == ((1.0, 3.0) if len(others) == 3 else (7.0, 7.0))


def test_who_is_silent_late_or_in_another_mode_is_left_out():
    late = [(sensor, at + 8 * (sensor == "s4" and at == 10), v) for sensor, at, v in
            steps(FIRST, SECOND)]  # fmt: skip
    assert compared([*late, NOW])[0] == (9.0, 2.0)
    silent = [one for one in steps(FIRST, SECOND) if one[:2] != ("s4", 10)]
    assert compared([*silent, NOW])[0] == (9.0, 2.0)
    off = [(*one, "off" if one[0] == "s4" else "on") for one in steps(FIRST, SECOND)]
    assert compared([*off, (*NOW, "on")], modes=True)[0] == (9.0, 2.0)
    began = [(*one, "off" if one[1] == 0 else "on") for one in steps(FIRST, SECOND)]
    assert compared([*began, (*NOW, "on")], modes=True)[0] == (7.0, 7.0)  # no step is known
    assert compared([*began, (*NOW, "off")], modes=True)[0] == (7.0, 7.0)


def test_who_is_held_when_it_is_looked_at_is_left_out_until_it_is_free():
    siblings = Siblings(FeatureSpec(("a", "b"), siblings="*"), modes=False)

    def median(at, n_verdicts=0, *, held=False):
        for _ in range(n_verdicts):
            siblings.look([SimpleNamespace(sensor="s0", held=held)])
        return [said(siblings, name, at, *values) for name, _, values in steps(SECOND)][-1][1]

    assert [median(0), median(10), median(20)] == [4.0, 4.0, 2.5]  # of s0 to s3: 9, 1, 2 and 3
    assert [median(30, 255, held=True), median(40, 1, held=True)] == [2.5, 2.5]
    assert [median(50, 256), median(60)] == [2.0, 2.5]  # at the step before it was held


def test_a_fault_that_spreads_is_not_that_of_those_it_has_not_reached():
    values = farm(700)
    for sensor, begins in ((1, 330), (2, 400), (3, 470), (4, 540)):
        values[begins:, sensor, 0] += 6
    feed, n = fed(values), 640 * 8
    last = judged(feed)[n:]
    anomalies = {v.sensor: 0 for v in last} | Counter(
        v.sensor for v in last if v.label is Label.ANOMALY
    )
    assert {v.sensor for v in last if v.held} >= {"T2", "T4", "T5"}
    assert max(anomalies[name] for name in ("T1", "T6", "T7", "T8")) < 0.2 * len(last) / 8
    before, after = (Engine(spec_of(), InlineExecutor()) for _ in range(2))
    for i in range(0, n, 639):  # in other parts, and after a restart
        before.process(feed[i : min(n, i + 639)])
    after.restore(before.snapshot())
    assert after.process(feed[n:]) == last


def test_after_a_gap_of_its_own_a_sensor_is_like_the_others_until_there_is_a_step_again():
    gap = [*steps(FIRST, SECOND), *steps(THIRD, times=(500,))]
    assert compared([*gap[1:], ("s0", 500, (5.0, 5.0))])[0] == (5.0, 5.0)
    assert compared([*gap, ("s0", 490, (5.0, 5.0))])[0] == (5.0, 5.0)  # time steps back


def by_the_definition(feed):
    """The first two columns of each reading's channel, by looking at all siblings for each."""
    read, found = {}, []
    for _, sensor, at, values, _ in feed:
        own = read.setdefault(sensor, [])
        own.append((at, values))
        said = [(x if math.isfinite(x) else 0.0,) * 2 for x in values]
        if len(own) > 2 and own[-3][0] < own[-2][0] < at:
            then, before = own[-2]
            step = min(at - then, then - own[-3][0])
            near = [
                min(reversed(of[-2:]), key=lambda one: abs(one[0] - then))
                for name, of in read.items() if name != sensor
            ]  # fmt: skip
            near = [of for when, of in near if 2 * abs(when - then) <= step]
            for i, mine in enumerate(before):
                known = [of[i] for of in near if not math.isnan(of[i])]
                usual = np.median(known) if len(known) > 2 else math.nan
                if math.isfinite(mine) and math.isfinite(usual):
                    said[i] = (mine, usual)
        found.append(said)
    return found


@pytest.mark.parametrize("native", [False, True])
def test_however_late_siblings_are_it_is_as_defined(native):
    beside = core()[0].beside if native and core()[0] else None
    for seed in range(30):
        draw, shifts = random.Random(seed), [0, 0, 0, 200_000, 300_000, -300_000, -500_000]
        late = [
            one._replace(event_time_ms=one.event_time_ms + draw.choice(shifts))
            for one in holes(fed(np.round(farm(40, seed)[:, :5], 1), NAMES[:5]), seed)
        ]
        siblings, found = Siblings(FeatureSpec(("a", "b"), siblings="*"), modes=False), []
        while len(found) < len(late):
            part = late[len(found) : len(found) + draw.choice([1, 3, 40])]
            found += siblings.beside(part, beside).reshape(len(part), 2, 4)[:, :, :2].tolist()
        assert found == [[[*pair] for pair in said] for said in by_the_definition(late)]


def test_siblings_are_named_by_a_pattern_a_table_or_all_of_them():
    assert group_of("*")("x") == group_of("*")("y") is not None
    assert group_of("")("x") is None
    by_name = group_of(r"(.+)/turbine-\d+")
    assert by_name("north/turbine-1") == by_name("north/turbine-2") != by_name("south/turbine-1")
    assert by_name("mast") is None
    assert [group_of((("x", "1"), ("y", "2")))(name) for name in "xyz"] == ["1", "2", None]
    two = Siblings(FeatureSpec(("a",), siblings=r"(.)\d"), modes=False)
    for at in (0, 10):
        for j in range(5):
            said(two, f"a{j}", at, float(j))
            said(two, f"b{j}", at, 100.0 + j)
    assert said(two, "a0", 20, 5.0)[:2] == [0.0, 2.5]
    assert said(two, "mast", 20, 5.0)[:2] == [5.0, 5.0]


def test_who_is_forgotten_is_nobodys_sibling():
    siblings = Siblings(FeatureSpec(("a", "b"), siblings="*"), modes=False)
    for sensor, at, values in steps(FIRST, SECOND):
        said(siblings, sensor, at, *values)
    siblings.forget(["s4"])
    assert said(siblings, *NOW[:2], *NOW[2])[:2] == [9.0, 2.0]


# ------------------------------------------------------------------------- what it is good for
def test_what_no_weather_explains_is_an_anomaly_and_its_siblings_are_named():
    feed, begins = fed(farm(fault=500)), 500 * 8
    alone = judged(feed, spec_of(siblings=""))
    beside = judged(feed)

    def share(verdicts, name):
        late = [v for v in verdicts[begins + 80 : begins + 480] if v.sensor == name]
        return sum(v.label is Label.ANOMALY for v in late) / len(late)

    assert share(beside, "T2") > 0.95
    assert share(alone, "T2") < 0.5
    assert max(share(beside, name) for name in NAMES if name != "T2") < 0.2
    told = [v for v in beside[begins + 80 : begins + 480] if v.sensor == "T2" and v.evidence]
    first = told[20].evidence.channels[0]
    assert (first.channel, first.expected.by) == ("gearbox", "siblings")
    assert first.expected.read > first.expected.high
    assert first.expected.as_reading("gearbox").describe()[1].startswith("its siblings ")


def test_siblings_are_out_where_they_say_nothing():
    member = spec_of().detector.members[-1]
    for together, targets in ((False, None), (True, (0, 1))):
        engine = Engine(spec_of(), InlineExecutor())
        engine.process(fed(farm(400, together=together)))
        rows = engine._live["T2"].model._rows.packed(150).rows()[0]
        assert getattr(member.of_rows(rows), "targets", None) == targets


# ------------------------------------------------------------------------------- the laws
def holes(feed, seed):
    """Leave readings and values out, and let some come late."""
    rng, found = random.Random(seed), []
    for reading in feed:
        if rng.random() < 0.01:
            continue
        values = reading.values
        if rng.random() < 0.01:
            values = (math.nan, *values[1:])
        found.insert(len(found) - (rng.random() < 0.05), reading._replace(values=values))
    return [one._replace(position=Position("t", 0, i)) for i, one in enumerate(found)]


@pytest.mark.parametrize("detector", ["Sensor", "SeasonalSensor"])
def test_no_cut_and_no_crash_changes_a_verdict(detector):
    feed, spec = holes(fed(farm(420, fault=300)), 3), spec_of(detector=detector)

    def make():
        return Engine(spec, InlineExecutor(), idle={}, max_live_streams=4)

    whole, _ = played(make, feed, len(feed))
    assert {v.label for v in whole} == {*Label}
    rng = random.Random(5)
    assert played(make, feed, lambda: rng.choice([1, 7, 60, 200]))[0] == whole
    assert played(make, feed, lambda: rng.choice([40, 90]), lambda: rng.random() < 0.3)[0] == whole
    engine, parts, half = make(), PartsByVersion(), len(feed) // 2 + 2
    engine.process(feed[:half])
    parts.keep(engine)
    assert parts.restore(make()).process(feed[half:]) == whole[half:]
    # Under another budget, from a restart on or told while it runs.
    other = replace(spec, policy=RejectionPolicy(0.05, rate=0.02))
    engine.decide(other.decision)
    restarted = parts.restore(Engine(other, InlineExecutor()))
    assert restarted.process(feed[half:]) == (told := engine.process(feed[half:])) != whole[half:]
    assert [v.score for v in told] == [v.score for v in whole[half:]]


def test_a_reading_refused_leaves_no_trace_beside_its_siblings():
    feed, engine = fed(farm(30)), Engine(spec_of(), InlineExecutor())
    engine.process(feed[:100])
    before = engine.snapshot()
    with pytest.raises(ConfigError):
        engine.process([feed[100], feed[101]._replace(values=(1.0,))])
    assert engine.snapshot() == before


def test_a_snapshot_of_other_siblings_is_refused():
    engine = Engine(spec_of(), InlineExecutor())
    engine.process(fed(farm(30)))
    for other in ("", "(T).", (("T1", "a"),)):
        with pytest.raises(CheckpointError, match="siblings"):
            Engine(spec_of(other), InlineExecutor()).restore(engine.snapshot())


def test_a_restart_before_any_sibling_came_changes_not_when_it_is_looked_at_who_is_held():
    engine = Engine(spec_of("X(.)"), InlineExecutor())
    engine.process(fed(farm(10)))
    again = Engine(spec_of("X(.)"), InlineExecutor())
    again.restore(engine.snapshot())
    assert again.siblings.until_look == engine.siblings.until_look < 256


@pytest.mark.parametrize(
    ("together", "others", "apart"),
    [(True, 7, 0), (True, 7, 1), (True, 7, 20), (False, 7, 0), (True, 2, 0)],
)
def test_a_table_whose_sensors_move_together_is_told_so(tmp_path, together, others, apart):
    lines = [
        f"{i * STEP},{name},{row[0]},{'' if j == 6 else row[1] + apart * j}\n"  # one lacks it
        for i, step in enumerate(farm(300, together=together))
        for j, (name, row) in enumerate(zip(NAMES[: 1 + others], step, strict=False))
    ]
    (tmp_path / "farm.csv").write_text("time,sensor,gearbox,power\n" + "".join(lines))
    said = [one for one in open_table(tmp_path / "farm.csv").said if one.startswith("siblings: ")]
    assert len(said) == (together and others > 2)
    if said:
        assert "'gearbox', 'power'" in said[0]
        # Where one of them lies far from the next, the median is one sensor's reading.
        assert ('input.siblings = "*"' in said[0]) == (apart < 20)
        assert ("'power' is usually 42.52 at one and 182.4 at another" in said[0]) == (apart == 20)


# ------------------------------------------------------------------------------- what is refused
@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"siblings": "("}, "no regular expression"),
        ({"detector": "KNN"}, 'take detector.name = "Sensor"'),
    ],
)
def test_what_cannot_be_is_refused(given, match):
    with pytest.raises(ConfigError, match=match):
        spec_of(**given)
    with pytest.raises(ConfigError, match="set `siblings`"):
        FeatureSpec(("a",), (Feature("siblings", "a", 1),))


def test_angles_and_channels_with_a_side_are_not_compared():
    spec = spec_of(channels=3, angles=(Circle("power"),), sides=(("oil", "low"),))
    assert spec.features.compared == ("gearbox",)
    assert sum(name.endswith("_siblings") for name in spec.features.names) == 1


def config(line, path='path = "a.csv"', **more):
    said = ["[input]", path, 'channels = ["a", "b"]', 'time = "t"', 'sensor = "s"', line]
    said += [f'{key} = "{value}"' for key, value in more.items()]
    said += ["[rejection]", "contamination = 0.05", "review_budget = { rate = 0.05 }"]
    read, problems = parse_config("\n".join(said))
    if problems:
        raise ConfigError(str(problems))
    return read


def test_a_config_says_who_they_are_and_where_they_cannot_be():
    said = engine_spec(config('siblings = { x = "n", y = "n" }')).features.siblings
    assert said == (("x", "n"), ("y", "n"))
    with pytest.raises(ConfigError, match="no regular expression"):
        config('siblings = "("')
    with pytest.raises(ConfigError, match="on Spark"):
        refused(config('siblings = "*"'))
    topics = 'kind = "kafka"\ntopics = ["in"]'
    with pytest.raises(ConfigError, match="topics rekey CONFIG --from in"):
        require_one_partition(config('siblings = "*"', topics), {"in": 2})
    require_one_partition(config('siblings = "*"', topics), {"in": 1})
    trusted = config('siblings = "*"', topics, partitioning="trust")
    require_one_partition(trusted, {"in": 2})
