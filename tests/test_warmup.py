"""A fault that lies in the warm-up is said, and where nothing is wrong nothing is said."""

import dataclasses
import random

import numpy as np
import pytest

from benchmarks.warmup import NULLS, STEPS
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.model import SegmentResult
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.engine.snapshot import pack_array
from rejex_stream.engine.stream_state import new_model
from rejex_stream.features import Feature, FeatureSpec
from rejex_stream.incidents import Plan
from rejex_stream.incidents.thresholds import is_mixed, spread
from rejex_stream.monitor import AlarmKind, MonitorBank, MonitorConfig
from rejex_stream.rejection import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Position, Reading, Status
from tests.streams import of_rows, played

UNSEEN = {"3 sd from 50% on, AR(.95)", "3 sd from 50% on, AR(.99)", "8 sd from 50% on, AR(.99)"}


@pytest.mark.parametrize("name", NULLS)
def test_where_nothing_is_wrong_nothing_is_said(name):
    rng = np.random.default_rng(7)
    assert sum(is_mixed(NULLS[name](rng, 1000)[:, None]) for _ in range(200)) <= 2


@pytest.mark.parametrize("name", [name for name in STEPS if name not in UNSEEN])
def test_a_fault_that_begins_halfway_is_said(name):
    rng = np.random.default_rng(7)
    assert sum(is_mixed(STEPS[name](rng, 1000)[:, None]) for _ in range(50)) >= 45


def test_a_fault_that_comes_and_goes_is_said():
    rng = np.random.default_rng(1)
    column = rng.standard_normal(1000)
    column[300:500] += 4
    assert is_mixed(column[:, None])


@pytest.mark.parametrize(
    "column",
    [np.zeros(1000), np.full(1000, 1e150), np.arange(60.0), np.array([*[0.0] * 999, 1e150])],
    ids=["zeros", "large", "few", "spike"],
)
def test_what_says_nothing_is_no_finding(column):
    assert spread(column) == 0.0


# ------------------------------------------------------------------------------ in the engine
SPEC = EngineSpec(
    make_detector("HBOS"), FeatureSpec(("x", "y"), (Feature("raw", "x"), Feature("hour_of_day"))),
    RejectionPolicy(0.05, tolerance=4), window=400,
    schedule=RefitSchedule.for_window(400, refit_every_events=800),
)  # fmt: skip


def readings(n=1000, begin=120):
    draw = random.Random(3)
    return of_rows([(draw.gauss(5.0 * (i >= begin), 1), 0.0) for i in range(n)], step_ms=60_000)


RIVER = {400: 250, 600: 300}  # window: first event judged behind half of it, HST's 251st or later


def engine(detector="HBOS", **changes):
    few = {"n_trees": 3, "height": 4} if detector == "HalfSpaceTrees" else {}
    changes |= {"detector": make_detector(detector, **few)}
    return Engine(dataclasses.replace(SPEC, **changes), InlineExecutor())


def test_it_is_said_once_with_the_first_event_that_the_model_judges():
    verdicts = engine().process(readings())
    first = next(v for v in verdicts if v.score is not None)
    assert [v for v in verdicts if v.status is Status.WARM_UP_MIXED] == [first]


def test_a_sensor_without_a_level_is_told_so_with_the_first_event_that_the_model_judges():
    walk = np.cumsum(np.random.default_rng(3).normal(size=4_000)).tolist()
    for values, said in ((walk, [Status.NO_LEVEL]), (np.diff(walk).tolist(), [])):
        spec = dataclasses.replace(
            SPEC, detector=make_detector("Sensor"), features=FeatureSpec(("c",)), window=2_000,
            schedule=None,
        )  # fmt: skip
        verdicts = Engine(spec, InlineExecutor()).process([
            Reading("s", "s", 60_000 * i, (x,), Position("t", 0, i)) for i, x in enumerate(values)
        ])  # fmt: skip
        assert [v.status for v in verdicts if v.status] == said
        assert [v.status for v in verdicts if v.score is not None][:1] == (said or [None])


@pytest.mark.thorough
@pytest.mark.parametrize("evidence", [False, True])
@pytest.mark.parametrize("window", RIVER)
def test_a_model_that_learns_row_by_row_is_asked_about_its_first_half_window(window, evidence):
    given = {"window": window, "evidence": evidence}
    verdicts = engine("HalfSpaceTrees", **given).process(readings())
    (said,) = [v for v in verdicts if v.status is Status.WARM_UP_MIXED]
    assert said.seq == RIVER[window]
    assert said.score is not None
    alike = engine("HalfSpaceTrees", **given).process(readings(begin=window // 2))
    assert {v.status for v in alike} == {None}, "what comes later is no matter of the warm-up"


@pytest.mark.parametrize("detector", ["HBOS", "HalfSpaceTrees"])
def test_a_stream_of_one_kind_hears_nothing_and_the_hour_of_the_day_is_no_change(detector):
    verdicts = engine(detector).process(readings(begin=10**6))
    assert {v.status for v in verdicts} == {None}


@pytest.mark.thorough
def test_planned_rows_are_none_of_the_first_of_a_model_that_learns_row_by_row():
    plan = Plan(from_ms=60_000 * 120, until_ms=60_000 * 500)
    feed = readings()
    fine = readings(begin=10**6)
    feed = fine[:120] + feed[120:500] + fine[500:]
    verdicts = engine("HalfSpaceTrees", calendar=(plan,)).process(feed)
    assert Status.WARM_UP_MIXED not in {v.status for v in verdicts}
    feed = readings(begin=500)
    verdicts = engine("HalfSpaceTrees", calendar=(plan,)).process(feed)
    (said,) = [v.seq for v in verdicts if v.status is Status.WARM_UP_MIXED]
    assert said == 250 + 380


@pytest.mark.thorough
@pytest.mark.parametrize("detector", ["HBOS", "HalfSpaceTrees"])
def test_cuts_and_crashes_change_nothing(detector):
    feed, wanted = readings(), engine(detector).process(readings())
    assert played(lambda: engine(detector), feed, 7, lambda: True)[0] == wanted


@pytest.mark.thorough
def test_first_rows_that_were_asked_are_gone_and_those_that_cannot_be_are_refused():
    current = engine("HalfSpaceTrees")
    current.process(readings(150))
    state = current._live["s"].model.state()()

    def fresh():
        blank = engine("HalfSpaceTrees")
        return new_model(blank.spec, "s", current._live["s"].tracker, InlineExecutor(), print)

    def mixed(kept):
        model = fresh()
        model.restore(kept, {})
        rows = [[reading.values[0], 0.0, 1.0] for reading in readings()[150:]]
        judge, found, at = current._live["s"]._judge, [], 0
        while at < len(rows):
            segment = model.next_segment(rows, at, judge)
            found += [segment.start] * (segment.status is not None)
            at = segment.stop
            model.after_judging(segment, SegmentResult(segment.stop), judge)
        return found

    assert mixed(state) == [250 - 150]
    assert mixed(state | {"first": None}) == []
    with pytest.raises(ValueError, match="149 first rows after 150"):
        mixed(state | {"first": pack_array(np.zeros((149, 3)))})


def test_the_monitors_raise_it_until_a_later_model_speaks():
    verdicts = engine().process(readings(3000))
    bank = MonitorBank(MonitorConfig(window=400, contamination=0.05, tolerance=4.0))
    early = [v for v in verdicts if v.model_epoch in (None, 0)]
    (alarm,) = [a for a in bank.observe(early) if a.kind is AlarmKind.WARM_UP]
    assert "input.mode" in alarm.message
    assert alarm in bank.active_alarms()
    bank.observe(verdicts[len(early) :])
    assert alarm not in bank.active_alarms()
