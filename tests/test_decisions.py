"""A pipeline told to decide otherwise goes on with its state; one with another state does not."""

import json
from dataclasses import replace
from functools import cache

import pytest

from rejex_stream.decode import JsonDecoder
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, RefitSchedule
from rejex_stream.engine import snapshot as head_module
from rejex_stream.errors import CheckpointError, ConfigError
from rejex_stream.features import FeatureSpec
from rejex_stream.monitor import MonitorConfig
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.run.loop import RunSettings, run
from rejex_stream.run.partition import PartitionMonitor
from rejex_stream.run.run_events import DecisionChanged, EnvironmentChanged
from rejex_stream.types import Partition
from tests.doubles import Crash, FakeClock, ListSink, ListSource, MemorySnapshotStore
from tests.streams import ROLLING, Distance, readings, spec, stream_of
from tests.test_runtime import Watching

ONE = Partition("input", 0)
FEED = [
    json.dumps({"id": "ab"[i % 2], "t": i, "x": (i * 7919) % 101, "y": i % 13}).encode()
    for i in range(700)
]
DECODER = JsonDecoder(FieldMapping(["x", "y"], sensor="id", time="t"))
RIVER = make_detector("HalfSpaceTrees", n_trees=3, height=4, window_size=20)
OLD = {"batch": spec(evidence=True), "incremental": spec(RIVER, evidence=True)}


def policy(**changes):
    return {"policy": RejectionPolicy(**({"contamination": 0.2, "tolerance": 3.0} | changes))}


CHANGES = {
    "tolerance": policy(tolerance=5.0), "budget": policy(tolerance=None, rate=0.15),
    "contamination": policy(contamination=0.25), "ties": policy(ties="paper"),
    "evidence": {"evidence": False},
}  # fmt: skip
every_change = pytest.mark.parametrize("change", CHANGES)
every_kind = pytest.mark.parametrize("kind", OLD)


def play(recipe, sink, store=None, *, feed=FEED, commits_end_in_a_crash=False, **knobs):
    """Run to the end of `feed`; returns what it told and its monitors."""
    clock, watching, monitors = FakeClock(tick_s=0.01), Watching(), []
    config = MonitorConfig(
        window=60, contamination=recipe.policy.contamination,
        tolerance=recipe.band.tolerance, ties=recipe.policy.ties,
    )  # fmt: skip

    def monitor(partition):
        monitors.append(PartitionMonitor(partition, config, lambda *alarm: None))
        return monitors[-1]

    try:
        run(
            ListSource(feed, committed=sink.offsets), sink, store,
            lambda partition, fits: Engine(recipe, fits), DECODER,
            settings=RunSettings(**{"commit_interval_s": 0.03} | knobs), make_monitor=monitor,
            observers=[watching], clock=clock, wait=clock.advance,
        )  # fmt: skip
    except Crash:
        assert commits_end_in_a_crash
    else:
        assert not commits_end_in_a_crash
    return watching, monitors


@cache
def outcomes_of(recipe):
    sink = ListSink()
    play(recipe, sink)
    return written(sink)


def written(sink):
    return [(o.record.position.offset, o.verdict) for o in sink.outcomes]


@pytest.mark.thorough
@every_kind
@every_change
@pytest.mark.parametrize("known_first", [True, False])
def test_a_changed_decision_holds_from_where_the_last_run_ended(kind, change, known_first):
    """The other way round as well: what was not explained before can be explained from now on."""
    was, now = OLD[kind], replace(OLD[kind], **CHANGES[change])
    if not known_first:
        was, now = now, was
    sink, store = ListSink(), MemorySnapshotStore()
    play(was, sink, store, feed=FEED[:350])
    watching, (monitor,) = play(now, sink, store)
    before, after = outcomes_of(was), outcomes_of(now)
    assert before[350:] != after[350:]
    assert written(sink) == before[:350] + after[350:]
    assert watching.of(DecisionChanged) == [DecisionChanged(ONE, 350, was.decision, now.decision)]
    counted = 700 if change == "evidence" else 350  # the labels of the rest are of another policy
    status = monitor.bank.status()
    assert status.events + status.warm_up_events + status.constant_window_events == counted
    watching, _ = play(now, sink, store, feed=[*FEED, *FEED[:5]])
    assert watching.of(DecisionChanged) == []


@every_kind
@pytest.mark.parametrize("how", ["crash", "crash after"])
@pytest.mark.parametrize("crash_at", [1, 2, 4])
def test_a_crash_around_a_changed_decision_loses_and_doubles_nothing(kind, how, crash_at):
    was, now = OLD[kind], replace(OLD[kind], **CHANGES["tolerance"])
    sink, store = ListSink(["ok"] * 3 + ["crash after"]), MemorySnapshotStore()
    play(was, sink, store, commits_end_in_a_crash=True, snapshot_every_events=130,
         max_poll_records=90)  # fmt: skip
    border = sink.offsets[ONE]
    snapshots = store.snapshots[ONE]
    assert 200 < border < 600
    assert max(snapshots) < border, "there is something to replay"
    sink._script = [*["ok"] * (crash_at - 1), how]
    watching, _ = play(now, sink, store, commits_end_in_a_crash=True, snapshot_every_events=10_000,
                       max_poll_records=20)  # fmt: skip
    (told,) = watching.of(DecisionChanged)
    assert told.offset == border
    known = any(offset >= border for offset in store.snapshots[ONE])  # by the new decision
    assert not (known and crash_at == 1)
    watching, _ = play(now, sink, store, snapshot_every_events=10_000)
    assert written(sink) == outcomes_of(was)[:border] + outcomes_of(now)[border:]
    # Written beside the loop: a crash at the second commit may come before it is kept.
    assert len(watching.of(DecisionChanged)) == (not known)


def test_monitors_start_anew_and_see_nothing_that_another_policy_decided(caplog):
    was, now = spec(), replace(spec(), **policy(tolerance=5.0))
    sink, store = ListSink(["ok"] * 3 + ["crash after"]), MemorySnapshotStore()
    play(was, sink, store, commits_end_in_a_crash=True, max_poll_records=90)
    border = sink.offsets[ONE]
    assert max(store.snapshots[ONE]) < border < 650, "there is something to replay"
    _, (monitor,) = play(now, sink, store)
    status = monitor.bank.status()
    assert status.events + status.warm_up_events + status.constant_window_events == 700 - border
    assert "monitor" not in caplog.text


def test_replay_repeats_what_was_decided_in_the_context_of_later_review_items():
    was, now = spec(), replace(spec(), **policy(tolerance=8.0))
    sink = ListSink(["ok"] * 3 + ["crash after"])
    store = MemorySnapshotStore()
    play(was, sink, store, commits_end_in_a_crash=True, max_poll_records=90)
    border = sink.offsets[ONE]
    play(now, sink, store)
    labels = {(o.verdict.sensor, o.verdict.event_time_ms): o.verdict.label for o in sink.outcomes}
    items = [o.review for o in sink.outcomes[border:] if o.review is not None]
    assert len(items) > 20
    across = [item for item in items if item.context[0].event_time_ms < border * 1000]
    assert across
    for item in items:
        for point in item.context:
            assert point.label is labels[item.verdict.sensor, point.event_time_ms]


CHANGED_STATE = {
    "window 60 -> 61": {"window": 61},
    "seed 3 -> 4": {"seed": 4},
    "detector Distance(name='test:Distance') -> PyODDetector(": {"detector": make_detector("HBOS")},
    "refit_every_events 90 -> 91": {"schedule": replace(spec().schedule, refit_every_events=91)},
    "carry_forward_events 1 -> 2": {"features": FeatureSpec(("x", "y"), (), 2)},
    "features () -> (Feature(kind='raw'": {"features": FeatureSpec(("x", "y"), ROLLING, 1)},
}


@pytest.mark.parametrize("what", CHANGED_STATE)
def test_another_state_is_refused_by_the_name_of_what_differs(what):
    sink, store = ListSink(), MemorySnapshotStore()
    play(spec(), sink, store, feed=FEED[:350])
    other = replace(spec(), **CHANGED_STATE[what])
    assert other.state_parts != spec().state_parts
    assert other.decision == spec().decision
    with pytest.raises(CheckpointError) as caught:
        play(other, sink, store)
    assert what in str(caught.value)
    assert str(caught.value).count("->") == 1
    assert "begin again" in str(caught.value)
    assert len(sink.outcomes) == 350


@every_kind
@every_change
def test_state_is_the_same_whatever_is_decided(kind, change):
    streams = []
    for recipe in (OLD[kind], replace(OLD[kind], **CHANGES[change])):
        engine = Engine(recipe, InlineExecutor())
        engine.process(readings())
        streams.append([stream_of(engine, key) for key in engine.streams()])
    assert streams[0] == streams[1]


def test_an_incremental_detector_has_no_schedule_to_differ():
    other = replace(OLD["incremental"], schedule=RefitSchedule.for_window(100))
    assert other.state_parts == OLD["incremental"].state_parts


def test_a_snapshot_in_the_middle_of_a_replay_names_the_decision_that_held_there():
    was, now = spec().decision, replace(spec(), **policy(tolerance=5.0)).decision
    engine = Engine(spec(), InlineExecutor())
    engine.decide(now)
    assert Engine(spec(), InlineExecutor()).restore(engine.snapshot()) == (now, was, ())


# ------------------------------------------------------------------------------- environment
@pytest.fixture
def upgraded(monkeypatch):
    """Snapshots of an older numpy, read by this one."""
    sink, store = ListSink(), MemorySnapshotStore()
    with monkeypatch.context() as patch:
        patch.setattr(head_module, "environment", lambda: {"numpy": "0.1"})
        play(spec(), sink, store, feed=FEED[:350])
        patch.setattr(head_module, "environment", lambda: {"numpy": "0.2"})
        yield sink, store


def test_another_environment_is_told_and_gone_on_with(upgraded):
    watching, _ = play(spec(), *upgraded)
    assert watching.of(EnvironmentChanged) == [EnvironmentChanged(ONE, ("numpy 0.1 -> 0.2",))]
    assert written(upgraded[0]) == outcomes_of(spec())
    watching, _ = play(spec(), *upgraded, feed=[*FEED, *FEED[:5]])
    assert watching.of(EnvironmentChanged) == [], "the next snapshots are of this one"


def test_another_environment_can_be_refused(upgraded):
    with pytest.raises(CheckpointError, match=r"numpy 0\.1 -> 0\.2.*environment = \"accept\""):
        play(spec(), *upgraded, environment="refuse")
    assert len(upgraded[0].outcomes) == 350


# ---------------------------------------------------------------------------------- identity
class Nameless:
    name = "test:Nameless"

    def fit(self, X, *, seed):
        return Distance().fit(X, seed=seed)


def test_a_detector_that_no_other_process_would_know_again_is_refused():
    with pytest.raises(ConfigError, match=r"address \(at 0x\w+\).*__repr__"):
        spec(Nameless())
