"""A fit that is late holds up its own partition, and nothing else: no poll, no stop, no other."""

import json
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rejex_connectors.files import FileSource

from rejex_stream.decode import JsonDecoder
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.engine import Engine
from rejex_stream.run.executors import InlineExecutor, ThreadFitExecutor
from rejex_stream.run.loop import run
from rejex_stream.run.run_settings import RunSettings
from rejex_stream.types import Partition
from tests.doubles import (
    ABORT,
    REBALANCE,
    RETRY,
    Crash,
    DelayedExecutor,
    FakeClock,
    ListSink,
    ListSource,
    MemorySnapshotStore,
)
from tests.streams import Distance, readings, spec
from tests.test_runtime import by_partition
from tests.waiting import PATIENCE_S, until

ONE, TWO = Partition("input", 0), Partition("input", 1)
DECODER = JsonDecoder(FieldMapping(["x", "y"], sensor="id", time="t"))
RECIPE = spec()
NEEDED_AT = RECIPE.schedule.first_fit_events + RECIPE.schedule.refit_lag_events


def lines(n, sensors="a"):
    return [
        json.dumps(
            {"id": sensors[i % len(sensors)], "t": i, "x": (i * 7919) % 101, "y": i % 13}
        ).encode()
        if i % 29 != 28
        else b"not json"
        for i in range(n)
    ]


def play(source, sink, store=None, *, executor=None, observers=(), knobs=None, **options):
    clock = FakeClock(tick_s=0.01)
    return run(
        source, sink, store, lambda partition, fits: Engine(RECIPE, fits), DECODER,
        settings=RunSettings(**({"commit_interval_s": 0.03} | (knobs or {}))), executor=executor,
        observers=observers, clock=clock, wait=clock.advance, **options,
    )  # fmt: skip


def undisturbed(script):
    sink = ListSink()
    play(ListSource(script), sink)
    return by_partition(sink)


class Judged:
    """Counts what is judged in each partition, and calls back."""

    def __init__(self, then=lambda judged: None):
        self.n, self.replayed, self.events, self._then = {}, 0, [], then

    def outcomes(self, partition, outcomes, *, replaying):
        self.replayed += len(outcomes) if replaying else 0
        self.n[partition] = self.n.get(partition, 0) + len(outcomes)
        self._then(self)

    def event(self, event):
        self.events.append(event)


class Gated(InlineExecutor):
    """Fits of `shut` partitions are not done; whoever takes one all the same would wait."""

    def __init__(self, *shut):
        super().__init__()
        self.shut = set(shut)

    def done(self, key):
        return key[0] not in self.shut and super().done(key)

    def result(self, key):
        assert key[0] not in self.shut, "the loop would stand still here"
        return super().result(key)


# ------------------------------------------------------------------------ the others go on
def test_a_partition_waits_for_its_fit_and_the_other_goes_on():
    script = {ONE: lines(600), TWO: lines(600)}
    executor, stood = Gated(ONE), []

    def open_the_gate(judged):
        if judged.n.get(TWO) == 600 and ONE in executor.shut:
            stood.append(judged.n[ONE])
            executor.shut.clear()

    sink = ListSink()
    knobs = {"max_poll_records": 50}
    play(
        ListSource(script), sink, executor=executor, observers=[Judged(open_the_gate)], knobs=knobs
    )
    (at,) = stood
    readable = sum(line != b"not json" for line in lines(at))
    assert readable == NEEDED_AT, "up to the event that needs the fit, and no further"
    assert by_partition(sink) == undisturbed(script)


def test_a_replay_that_waits_for_fits_does_not_hold_up_the_other_partition():
    script = {ONE: lines(600), TWO: lines(600)}
    store, sink = MemorySnapshotStore(), ListSink(["ok"] * 8 + ["crash after"])
    source = ListSource(script, committed=sink.offsets)
    with pytest.raises(Crash):
        play(source, sink, store, knobs={"max_poll_records": 50, "snapshot_every_events": 200})
    assert 0 < sink.offsets[ONE] < 600
    executor = Gated(ONE)

    def open_the_gate(judged):
        if sink.offsets[TWO] == 600:
            executor.shut.clear()

    play(
        source, sink, store, executor=executor, on_progress=lambda seen: open_the_gate(None),
        knobs={"max_poll_records": 50, "progress_interval_s": 0.0},
    )  # fmt: skip
    assert not executor.shut
    assert by_partition(sink) == undisturbed(script)


@pytest.mark.thorough
@pytest.mark.parametrize("trouble", [[], [RETRY], [REBALANCE]], ids=["quiet", "retry", "rebalance"])
def test_what_waits_is_bounded_and_what_could_be_judged_is_committed(trouble):
    delivered, paused = {}, []

    class Seen(ListSource):
        def poll(self, max_records, timeout_s):
            records = super().poll(max_records, timeout_s)
            for record in records:
                delivered[record.position.partition] = record.position.offset + 1
            return records

        def pause(self, partition):
            paused.append(partition)
            super().pause(partition)

    quiet = {ONE: lines(2_000), TWO: lines(2_000)}
    script = quiet | {TWO: [*lines(2_000)[:1_000], *trouble, *lines(2_000)[1_000:]]}
    executor, sink, most = Gated(ONE), ListSink(), []

    def look(seen):
        if sink.offsets.get(TWO) == 2_000:
            most.append((delivered[0], sink.offsets[ONE]))
            executor.shut.clear()

    knobs = {"max_poll_records": 100, "progress_interval_s": 0.0}
    source = Seen(script, committed=sink.offsets)
    play(source, sink, executor=executor, on_progress=look, knobs=knobs)
    taken, committed = most[0]
    assert ONE in paused
    assert sum(line != b"not json" for line in lines(committed)) == NEEDED_AT
    assert taken - committed < 2 * 100
    assert by_partition(sink) == undisturbed(quiet)


# ------------------------------------------------------------------------------ the same verdicts
def troubled(n, sensors):
    trouble = st.tuples(st.integers(0, n), st.sampled_from([ABORT, RETRY, REBALANCE]))

    def mixed(troubles):
        script = list(lines(n, sensors))
        for at, sentinel in troubles:
            script.insert(at, sentinel)
        return script

    return st.lists(trouble, max_size=3).map(mixed)


@pytest.fixture(scope="module")
def quiet():
    return undisturbed({ONE: lines(500, "ab"), TWO: lines(300, "cba")})


@pytest.mark.thorough
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    troubled(500, "ab"), troubled(300, "cba"),
    st.lists(st.sampled_from(["ok", "fail", "ambiguous", "crash", "crash after"]), max_size=6),
    st.integers(0, 99), st.sampled_from([1, 7, 60, 1000]), st.sampled_from([20, 150, 10_000]),
)  # fmt: skip
def test_verdicts_do_not_depend_on_how_long_a_fit_takes(
    quiet, one, two, commits, seed, max_poll, snapshot_every
):
    sink, store = ListSink(commits), MemorySnapshotStore()
    source = ListSource({ONE: one, TWO: two}, committed=sink.offsets)
    knobs = {"max_poll_records": max_poll, "snapshot_every_events": snapshot_every}
    for attempt in range(100):
        try:
            play(source, sink, store, executor=DelayedExecutor(seed + attempt), knobs=knobs)
            break
        except Crash:
            continue
    assert by_partition(sink) == quiet
    assert sink.offsets == {ONE: 500, TWO: 300}


def test_waits_are_counted_by_partition_and_in_seconds():
    summary = play(
        ListSource({ONE: lines(NEEDED_AT + 20)}), ListSink(), executor=DelayedExecutor(delays=[40])
    )
    assert summary.fit_waits == 1
    assert summary.fit_wait_s == summary.longest_fit_wait_s > 0


def test_events_that_give_no_row_wait_for_nobody():
    rowless = [b'{"id": "a", "t": %d}' % i for i in range(500)]
    feed = [*rowless[:250], *lines(1), *rowless[250:]]
    summary = play(ListSource({ONE: feed}), sink := ListSink())
    assert len(sink.outcomes) == 501
    assert summary.fit_waits == 0


@pytest.mark.thorough
def test_a_file_is_held_back_and_goes_on(tmp_path):
    path = Path(tmp_path, "feed.jsonl")
    path.write_bytes(b"\n".join(lines(1_500)) + b"\n")
    slow, quick = ListSink(), ListSink()
    knobs = {"max_poll_records": 40}
    summary = play(FileSource(path), slow, executor=DelayedExecutor(delays=[500] * 99), knobs=knobs)
    play(FileSource(path), quick)
    assert slow.outcomes == quick.outcomes
    assert len(slow.outcomes) == 1_500
    assert not summary.stopped


# --------------------------------------------------------------------------------------- a stop
@dataclass(frozen=True)
class Endless:
    name: str = "test:Endless"
    begun = threading.Event()
    over = threading.Event()

    def fit(self, X, *, seed):
        self.begun.set()
        self.over.wait(2 * PATIENCE_S)
        return Distance().fit(X, seed=seed)


@pytest.mark.parametrize("taken_over", [False, True], ids=["first fit", "takeover"])
def test_a_stop_while_a_fit_of_minutes_is_awaited_commits_and_returns(taken_over):
    script = {ONE: lines(600), TWO: lines(600)}
    sink, store, stop = ListSink(), MemorySnapshotStore(), threading.Event()
    source = ListSource(script, committed=sink.offsets)
    recipe = spec(detector=Endless())
    options = {"knobs": {"snapshot_every_events": 100}}
    if taken_over:
        Endless.over.set()
        judged = Judged(lambda judged: min(judged.n.values()) > 300 and stop.set())
        begin(source, sink, store, recipe, stop, InlineExecutor(), [judged], **options)
        stop.clear()
        source.close()
    before = dict(sink.offsets)
    Endless.over.clear()
    Endless.begun.clear()
    executor, ended = ThreadFitExecutor(), []
    running = threading.Thread(
        target=lambda: ended.append(
            begin(source, sink, store, recipe, stop, executor, [], **options)
        )
    )
    try:
        running.start()
        until(Endless.begun.is_set, "a fit runs")
        stop.set()
        until(lambda: ended, "the run ends though the fit does not", timeout_s=PATIENCE_S / 2)
        assert ended[0].stopped
    finally:
        Endless.over.set()
        running.join()
        executor.close()
    assert sink.offsets.get(ONE, 0) >= before.get(ONE, 0)
    source.close()
    begin(source, sink, store, recipe, threading.Event(), InlineExecutor(), [], **options)
    quiet = ListSink()
    begin(ListSource(script), quiet, None, recipe, threading.Event(), InlineExecutor(), [])
    assert by_partition(sink) == by_partition(quiet)


def begin(source, sink, store, recipe, stop, executor, observers, knobs=None):
    return run(
        source, sink, store, lambda partition, fits: Engine(recipe, fits), DECODER,
        settings=RunSettings(**(knobs or {})), executor=executor, observers=observers, stop=stop,
    )  # fmt: skip


class NeverDone(InlineExecutor):
    """Says of no fit that it is done, and has each when it is asked for."""

    def done(self, key):
        return False


@pytest.mark.parametrize("calibration", ["shadow", "holdout"])
def test_what_is_asked_of_no_model_is_what_it_would_have_said(calibration, monkeypatch):
    """How many of a batch of any length are ready, before and after a restore."""
    pipeline, events = spec(calibration=calibration), readings(900, keys=("a", "b", "c"))
    engine, n_less, n_steady, at = Engine(pipeline, NeverDone()), 0, 0, 0
    while at < len(events):
        for n in (1, 2, 7, 40, 150):
            batch = events[at : at + n]
            found = engine.ready(batch)
            n_less += found < len(batch)
            with monkeypatch.context() as patched:
                patched.setattr(Engine, "_rows_before_fit", lambda *_: 0)
                assert engine.ready(batch) == found
        engine.process(events[at : at + 3])
        at += 3
        n_steady += engine._rows_before_fit("a") > 0
        if at % 150 == 0:
            kept, engine = engine.snapshot(), Engine(pipeline, NeverDone())
            engine.restore(kept)
    assert n_less > 20
    assert n_steady > 20
