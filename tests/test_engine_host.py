"""A host that holds the engine: bad readings, several threads, state kept stream by stream."""

import math
import re
import sys
import threading
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine
from rejex_stream.engine import snapshot as head_module
from rejex_stream.engine.model import RowBuffer
from rejex_stream.engine.packed_rows import RowShape
from rejex_stream.engine.snapshot import pack_array, seal, unseal
from rejex_stream.errors import CheckpointError, ConfigError, DetectorError, EngineError
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from tests.program import ended
from tests.streams import EVERY_KIND, FailsOn, readings, spec, stream_of, with_stream

RIVER = make_detector("HalfSpaceTrees", n_trees=3, height=4, window_size=20)
KINDS = {"batch": spec(features=EVERY_KIND), "incremental": spec(RIVER, features=EVERY_KIND)}
EVENTS = readings()


def engine_of(pipeline=KINDS["batch"], **options):
    return Engine(pipeline, InlineExecutor(), **options)


# ---------------------------------------------------------------------------- all or nothing
BAD = {
    "has 3 values: expected 2, the channels x, y": lambda r: r._replace(values=(1.0, 2.0, 3.0)),
    "has 1 values: expected 2": lambda r: r._replace(values=(1.0,)),
    "has 0 values": lambda r: r._replace(values=()),
    "has values None": lambda r: r._replace(values=None),
    "has 'high' in channel 'y'": lambda r: r._replace(values=(1.0, "high")),
    "has None in channel 'x'": lambda r: r._replace(values=(None, 1.0)),
    "has 1000": lambda r: r._replace(values=(1.0, 10**400)),
    "has (1+2j) in channel 'y'": lambda r: r._replace(values=(1.0, 1 + 2j)),
    "has sensor 'b\\x1fc': expected no U": lambda r: r._replace(sensor="b\x1fc"),
    "has stream_key 'b\\x1fc': expected no U": lambda r: r._replace(stream_key="b\x1fc"),
    "has stream_key None": lambda r: r._replace(stream_key=None),
    "has stream_key ['a']": lambda r: r._replace(stream_key=["a"]),
    "has stream_key '\\udc80': expected valid Unicode": lambda r: r._replace(stream_key="\udc80"),
    "has sensor 7": lambda r: r._replace(sensor=7),
    "has sensor 'a\\ud800'": lambda r: r._replace(sensor="a\ud800"),
    "has event_time_ms '2024'": lambda r: r._replace(event_time_ms="2024"),
    "has event_time_ms 1.5": lambda r: r._replace(event_time_ms=1.5),
    f"has event_time_ms {2**63}": lambda r: r._replace(event_time_ms=2**63),
    f"has event_time_ms {-(2**63) - 1}": lambda r: r._replace(event_time_ms=-(2**63) - 1),
    "is None: expected a Reading": lambda r: None, "is b'{}'": lambda r: b"{}", "is ('": tuple,
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [3, 40])
@pytest.mark.parametrize("words", BAD)
def test_with_one_bad_reading_nothing_of_the_batch_is_taken(kind, size, words):
    expected = engine_of(KINDS[kind]).process(EVENTS[:300])
    engine = engine_of(KINDS[kind])
    verdicts = engine.process(EVENTS[:200])
    before = engine.snapshot()
    good = EVENTS[200 : 200 + size]
    at = size - 1
    batch = [*good[:at], BAD[words](good[at]), *good[at:]]
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        engine.process(batch)
    assert str(caught.value).startswith(f"Reading {at} of {size + 1}")
    assert "Nothing of the batch was taken" in str(caught.value)
    assert engine.snapshot() == before
    assert verdicts + engine.process(good) + engine.process(EVENTS[200 + size : 300]) == expected


@pytest.mark.parametrize("batch", [7, None, "abc"])
def test_what_is_no_batch_is_refused(batch):
    with pytest.raises(ConfigError, match=r"is no batch|expected a Reading"):
        engine_of().process(batch)


def test_an_unknown_key_of_a_refused_batch_is_not_there():
    engine = engine_of()
    new = EVENTS[0]._replace(stream_key="new")
    with pytest.raises(ConfigError):
        engine.process([new, new._replace(values=())])
    assert engine.streams() == []


@pytest.mark.parametrize("size", [1, 40])
@pytest.mark.parametrize(
    "number",
    [np.float64, np.float32, lambda v: v if math.isnan(v) else Fraction(v)],
    ids=["float64", "float32", "Fraction"],
)
def test_numbers_of_other_libraries_are_taken_and_kept_as_plain_ones(size, number):
    exact = [r._replace(values=tuple(float(np.float32(v)) for v in r.values)) for r in EVENTS]
    alike = [
        r._replace(values=tuple(map(number, r.values)), event_time_ms=np.int64(r.event_time_ms))
        for r in exact
    ]
    plain, other = engine_of(), engine_of()
    for start in range(0, len(alike), size):
        expected = plain.process(exact[start : start + size])
        verdicts = other.process(alike[start : start + size])
        assert verdicts == expected
        assert type(verdicts[0].event_time_ms) is int
    assert other.snapshot() == plain.snapshot()


def test_readings_may_come_in_any_iterable_and_none_at_all():
    assert engine_of().process(iter(EVENTS)) == engine_of().process(EVENTS)
    assert engine_of().process(tuple(EVENTS)) == engine_of().process(EVENTS)
    assert engine_of().process([]) == engine_of().process(()) == []


class Breaks:
    """A detector whose scorer fails for one row, as somebody's own may."""

    name = "test:Breaks"

    def __repr__(self):
        return "Breaks()"

    def fit(self, X, *, seed):
        return self

    def score(self, X):
        if (X[:, 0] > 1e6).any():
            raise ZeroDivisionError("nobody foresaw that")
        return X[:, 0]


def test_an_engine_that_broke_off_halfway_says_so_until_it_is_restored():
    events = readings(keys=("a", "b"), missing=0)
    engine = engine_of(spec(Breaks()))
    engine.process(events[:300])
    kept = engine.snapshot()
    expected = engine.process(events[300:])
    with pytest.raises(ZeroDivisionError):
        engine.process([events[0], events[1]._replace(values=(2e6, 1.0))])
    for use in (
        lambda: engine.process(events[300:]), engine.snapshot, lambda: engine.view("a"),
        lambda: engine.forget("a"),
    ):  # fmt: skip
        with pytest.raises(EngineError, match=r"ended with an error .* restore\(\)"):
            use()
    engine.restore(kept)
    assert engine.process(events[300:]) == expected


# ----------------------------------------------------------------------------------- threads
class Held(InlineExecutor):
    """Fits that stand still until they are let go."""

    def __init__(self):
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def submit(self, key, fit):
        self.begun.set()
        assert self.go_on.wait(60)
        super().submit(key, fit)


def test_a_second_thread_is_refused_and_changes_nothing():
    executor = Held()
    engine, verdicts = Engine(KINDS["batch"], executor), []
    first = threading.Thread(target=lambda: verdicts.extend(engine.process(EVENTS)), name="north")
    first.start()
    assert executor.begun.wait(60)
    told = []

    def second():
        for use in (
            lambda: engine.process(EVENTS), engine.snapshot, lambda: engine.view("a"),
            lambda: engine.restore(b""), lambda: engine.restore_streams(b"", {}),
            lambda: engine.forget("a"), lambda: engine.decide(spec().decision),
            engine.take_failures, engine.close,
        ):  # fmt: skip
            try:
                use()
            except EngineError as error:
                told.append(str(error))

    other = threading.Thread(target=second, name="south")
    other.start()
    other.join()
    executor.go_on.set()
    first.join()
    assert len(told) == 9
    assert all("thread 'south' called it while thread 'north' was not done" in t for t in told)
    assert verdicts == engine_of().process(EVENTS)
    assert engine.process(EVENTS[:1])[0].seq == sum(
        r.stream_key == EVENTS[0].stream_key for r in EVENTS
    )


@pytest.mark.thorough
def test_whatever_threads_do_no_verdict_is_lost_or_doubled():
    events = readings(events=3000, keys=("a",), missing=0)
    engine, verdicts, refused = engine_of(), [], []
    batches = iter([events[i : i + 5] for i in range(0, len(events), 5)])
    lock = threading.Lock()

    def work():
        while True:
            with lock:
                batch = next(batches, None)
            if batch is None:
                return
            while True:
                try:
                    verdicts.extend(engine.process(batch))
                except EngineError as error:
                    refused.append(error)
                else:
                    break

    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switching)
    assert refused
    assert sorted(v.seq for v in verdicts) == list(range(3000))


def test_an_executor_that_calls_back_is_refused_too():
    class Nosy(InlineExecutor):
        def submit(self, key, fit):
            engine.process(EVENTS[:1])

    engine = Engine(KINDS["batch"], Nosy())
    with pytest.raises(EngineError, match="two callers at once"):
        engine.process(EVENTS)


# ------------------------------------------------------------------------- one stream's state
def kept_of(pipeline, events=EVENTS, key="a"):
    engine = engine_of(pipeline)
    engine.process(events)
    return stream_of(engine, key)


def test_a_snapshot_of_another_state_is_refused_by_the_name_of_what_differs():
    was, other = engine_of(spec(make_detector("KNN"))), engine_of(spec(make_detector("GMM")))
    was.process(EVENTS[:300])
    with pytest.raises(CheckpointError, match=r"another state \(detector .*KNN.* -> .*GMM"):
        other.restore(was.snapshot())
    assert other.streams() == []


@pytest.mark.parametrize("idle", [False, True])
def test_a_changed_decision_goes_on_and_is_told(idle):
    was, now = spec(), replace(spec(), policy=RejectionPolicy(0.2, tolerance=5.0))
    engine = engine_of(was)
    engine.process(EVENTS[:400])
    if idle:
        engine._evict("a")
    other = engine_of(now)
    told = other.restore(engine.snapshot())
    assert told == (was.decision, now.decision, ())
    assert other.process(EVENTS[400:]) == engine_of(now).process(EVENTS)[400:]


def test_a_snapshot_of_another_environment_is_a_choice(monkeypatch):
    before = engine_of(spec())
    before.process(EVENTS[:300])
    monkeypatch.setattr(head_module, "environment", lambda: {"numpy": "0.1"})
    old = before.snapshot()
    monkeypatch.undo()
    engine = engine_of(spec())
    with pytest.raises(CheckpointError, match=r"numpy 0\.1 -> .*accept_environment=True"):
        engine.restore(old)
    assert engine.streams() == []
    (change, *_) = engine.restore(old, accept_environment=True).environment
    assert change.startswith("numpy 0.1 -> ")
    assert engine.snapshot() == before.snapshot()


# ------------------------------------------------------------------------- mutated snapshots
def mutations(count, seed, seconds):
    """Return what became of mutated snapshots, in a process of its own: none may end it."""
    command = [sys.executable, "-m", "tests.mutated_snapshots", str(count), "--seed", str(seed)]
    done = ended([*command, "--seconds", str(seconds)], timeout=None)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = (line.split("\t") for line in done.stdout.splitlines())
    return {what: int(found) for found, what in lines}


@pytest.mark.thorough
def test_a_mutated_snapshot_is_refused_or_goes_on():
    became = mutations(300, 20, 6)  # how many, seed, seconds of processor
    assert became["refused"] > 50
    assert became["taken"] > 0


@pytest.mark.slow
def test_ten_thousand_mutated_snapshots_are_refused_or_go_on():
    became = mutations(10_000, 21, 3600)
    assert sum(became.values()) == 10_000
    assert became["refused"] > 5_000


def packed(rows, left_out=b""):
    buffer = RowBuffer(len(rows), RowShape(rows.shape[1], rows.shape[1]))
    buffer.extend(rows, left_out)
    return [*map(list, buffer.packed(len(rows)).blocks)]


FORGED = {
    "a shadow without scores": lambda s, m: s["model"].update(shadow_scores=None),
    "a seed of another model": lambda s, m: m["recipes"]["serving"].update(seed=1),
    "a model of the future": lambda s, m: m["recipes"]["serving"].update(requested_at=500),
    "a model between two fits": lambda s, m: m["recipes"]["serving"].update(requested_at=51),
    "rows beyond what an event can have": lambda s,
    m: s["model"].update(rows=packed(np.full((80, 2), 1e200))), "too few rows": lambda s,
    m: s["model"].update(rows=packed(np.ones((3, 2)))),
    "a model of more rows than it has": lambda s, m: m["recipes"]["serving"].update(n_rows=500),
    "a gap between rows": lambda s, m: s["model"]["rows"].insert(0, packed(np.ones((3, 2)))[0]),
    "rows of another width": lambda s, m: s["model"].update(rows=packed(np.ones((80, 3)))),
    "a row left out that nobody guards": lambda s,
    m: s["model"].update(rows=packed(np.ones((80, 2)), bytes([1]) + bytes(79))),
    "a window too long": lambda s, m: s.update(window=pack_array(np.ones(61))),
    "a window in two dimensions": lambda s, m: s.update(window=pack_array(np.ones((2, 3)))),
    "a number before zero": lambda s, m: s.update(seq=-1), "one channel": lambda s,
    m: s["sensors"]["a-0"].__setitem__(0, [1.0]), "a time in words": lambda s,
    m: s["sensors"]["a-0"].__setitem__(2, "noon"), "one thing more": lambda s, m: s.update(more=1),
    "an array of nothing": lambda s, m: s.update(window=[[-1], b""]),
}  # fmt: skip


@pytest.mark.parametrize("forge", FORGED)
def test_a_state_that_no_stream_was_ever_in_is_refused(forge):
    kept = kept_of(spec(), EVENTS[:300])
    plain, model = unseal("stream-state", 2, kept.state), unseal("stream-model", 2, kept.model)
    assert model["recipes"]["shadow"] is not None
    FORGED[forge](plain, model)
    forged = kept._replace(
        state=seal("stream-state", 2, plain), model=seal("stream-model", 2, model)
    )
    with pytest.raises(CheckpointError):
        with_stream(engine_of(spec()), "a", forged)


def test_rows_that_no_model_can_be_fitted_on_are_refused_when_it_is_needed():
    """Fits run in the executor, so it is known with the next event only."""
    pipeline = spec(FailsOn(()))
    blob = kept_of(pipeline, EVENTS[:300])
    other = Engine(pipeline, Failing())
    with_stream(other, "a", blob)
    with pytest.raises(CheckpointError, match="cannot be fitted again from its snapshot"):
        other.process([r for r in EVENTS[300:] if r.stream_key == "a"])


class Failing(InlineExecutor):
    def result(self, key):
        raise DetectorError("singular matrix")


DECISIONS = [
    {}, {"evidence": 1}, {"contamination": 0.7}, {"tolerance": None}, {"rate": 0.1},
    {"tolerance": "8"}, {"ties": "magic"}, {"more": 1}, {"tolerance": 1e9}, {"tolerance": 1e300},
    {"contamination": 1e-9}, {"contamination": 5e-324},
]  # fmt: skip


@pytest.mark.parametrize("change", DECISIONS, ids=str)
def test_a_decision_that_cannot_be_is_refused(change):
    engine = engine_of(spec())
    head = unseal("engine", 2, engine.snapshot())
    head[1] = head[1] | change if change else {}
    with pytest.raises(CheckpointError):
        engine.restore(seal("engine", 2, head))


def test_a_model_that_was_asked_for_between_two_boundaries_is_refused():
    kept = kept_of(spec())
    model = unseal("stream-model", 2, kept.model)
    serving = model["recipes"]["serving"]
    assert serving["requested_at"] > 80, "and its rows are as many as the buffer holds"
    serving["requested_at"] += 1
    with pytest.raises(CheckpointError, match="asked for at row"):
        with_stream(engine_of(spec()), "a", kept._replace(model=seal("stream-model", 2, model)))


def test_a_stream_that_is_replaced_gives_its_fits_up():
    executor = InlineExecutor()
    engine, kept = Engine(spec(), executor), kept_of(spec(), EVENTS[:20])
    events = [r for r in EVENTS if r.stream_key == "a"]
    engine.process(events[:52])
    assert executor._fits, "one is under way"
    with_stream(engine, "a", kept)
    assert executor._fits == {}
