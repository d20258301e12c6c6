"""Snapshots follow the change: what has moved is written, and of one offset whatever dies."""

import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rejex_stream.engine import Engine
from rejex_stream.engine.engine import EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.engine.sensor_registry import Limits
from rejex_stream.engine.stream_state import StreamState
from rejex_stream.errors import ConnectorError
from rejex_stream.features import FeatureSpec
from rejex_stream.monitor import MonitorConfig
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run import commit
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.run.partition import PartitionMonitor, PartitionState, parts_of
from rejex_stream.run.review_items import ReviewItems
from rejex_stream.types import Position, Record
from tests.doubles import ABORT, REBALANCE, RETRY, Crash, ListSink, ListSource
from tests.doubles import MemorySnapshotStore as Store
from tests.streams import Distance
from tests.test_runtime import DECODER, ONE, by_partition, line, play, play_through

KEYS = "abcdefgh"
SPEC = EngineSpec(
    Distance(), FeatureSpec(("x",)), RejectionPolicy(0.2, tolerance=1), window=20,
    schedule=RefitSchedule(
        first_fit_events=10, refit_every_events=25, refit_lag_events=3, buffer_events=20
    ),
)  # fmt: skip
CONFIG = MonitorConfig(window=20, contamination=0.2, tolerance=1)


def engine(partition, fits):
    return Engine(SPEC, fits)


def state_of(**limits):
    context = ReviewItems(DECODER.channels, points=3)
    monitor = PartitionMonitor(ONE, CONFIG, lambda *_: None)
    return PartitionState(
        ONE, decoder=DECODER, engine=Engine(SPEC, InlineExecutor()), context=context,
        monitor=monitor, limits=Limits(**limits),
    )  # fmt: skip


def records(keys, start=0):
    return [
        Record(Position(*ONE, start + i), None, line(start + i, key)) for i, key in enumerate(keys)
    ]


def kinds(parts):
    """Which keys a snapshot holds, by the kind of part."""
    return {
        kind: sorted(name[1:] for name in parts if name[0] == kind and name != "head")
        for kind in "smcw"
    }


def kept(state):
    piece = state.snapshot().encoded()
    state.parts.commit()
    return piece


def test_what_has_not_moved_is_not_written():
    state = state_of()
    state.process(records(KEYS * 15))
    assert kept(state).base is None
    state.process(records("ab" * 2, 120))
    piece = kept(state)
    assert piece.base == 120
    assert kinds(piece.parts) == {"s": ["a", "b"], "m": [], "c": ["a", "b"], "w": ["a", "b"]}
    state.process(records("c" * 25, 124))  # a fit is asked for
    assert kinds(kept(state).parts) == {"s": ["c"], "m": ["c"], "c": ["c"], "w": ["c"]}
    assert kinds(kept(state).parts) == {"s": [], "m": [], "c": [], "w": []}


@pytest.mark.thorough
def test_what_is_written_grows_with_what_moved_and_not_with_what_there_is():
    sizes = {}
    for n in (20, 400):
        keys = [f"key-{i}" for i in range(n)]
        state = state_of()
        state.process(records(keys * 12))
        whole = kept(state)
        state.process(records(keys[:5], 12 * n))
        moved = kept(state)
        sizes[n] = sum(len(body or b"") for body in moved.parts.values())
        assert len(moved.parts) == 1 + 4 * 5
        assert sum(len(body or b"") for body in whole.parts.values()) > n / 10 * sizes[n]
    assert sizes[400] < 1.2 * sizes[20]


def test_a_snapshot_that_was_given_up_is_due_again():
    state = state_of()
    state.process(records(KEYS * 12))
    kept(state)
    state.process(records("ab", 96))
    state.begin_snapshot()
    state.parts.next_piece(0.0)
    state.process(records("bc", 98))
    state.parts.abandon()
    assert kinds(kept(state).parts)["s"] == ["a", "b", "c"]


def test_a_stream_that_moves_while_it_waits_is_written_as_it_was():
    state, still = state_of(), state_of()
    for one in (state, still):
        one.process(records(KEYS * 12))
    wanted = kept(still).parts
    state.begin_snapshot()
    found, start, last = {}, 96, False
    while not last:
        piece = state.parts.next_piece(0.0)
        state.process(records(KEYS[::-1], start))  # encoded after it has moved
        found |= piece.encoded().parts
        start, last = start + len(KEYS), piece.last
    assert found == wanted


def gone(piece):
    return {name for name, body in piece.parts.items() if body is None}


def test_sensors_that_were_forgotten_are_written_as_gone():
    state = state_of(forget_after_ms=16)
    state.process(records("abc" + "de" * 4))  # at 11
    kept(state)
    state.process(records("de" * 7, 11))  # past 20: those of 0 to 2 were silent for 16
    piece = kept(state)
    assert gone(piece) == {kind + key for kind in "smcwu" for key in "abc"}
    assert set(state.take_forgotten()) == set("abc")
    assert kinds(kept(state).parts) == {"s": [], "m": [], "c": [], "w": []}
    state.process(records("a" + "de" * 4, 25))
    state.begin_snapshot()
    state.process(records("de" * 8 + "b", 34))  # a is forgotten again while one is under way
    state.parts.abandon()
    again = kept(state)
    assert again.parts["sb"] is not None
    assert gone(again) == {"sa", "ma", "ca", "wa", "ua"}


def test_who_was_forgotten_and_is_back_is_written_with_its_new_model():
    """Its model version starts again, and may be the one that was written of its former life."""
    state = state_of(forget_after_ms=80)
    state.process(records("a" * 15 + "bc" * 3))
    kept(state)
    state.process(records("bc" * 45 + "a" * 15, 21))
    parts = kept(state).parts
    assert parts["sa"] is not None
    assert parts["ma"] is not None
    fresh = state_of()
    fresh.process(records("a" * 15, 111))
    assert parts["sa"] == kept(fresh).parts["sa"]


def test_the_loop_encodes_no_stream(monkeypatch):
    threads = set()
    view = StreamState.view

    def noted(self):
        taken = view(self)

        def state():
            threads.add(threading.current_thread().name)
            return taken.state()

        return taken._replace(state=state)

    monkeypatch.setattr(StreamState, "view", noted)
    sink, store = ListSink(), Store()
    play(ListSource([line(i, KEYS[i % 8]) for i in range(60)]), sink, store, engine=engine)
    assert {name.split("_")[0] for name in threads} == {"commit"}


class Cutting(Store):
    """Fails at the pieces that it is told, before or after they are kept."""

    def __init__(self, script):
        super().__init__()
        self.script = list(script)

    def save(self, partition, piece):
        what = self.script.pop(0) if self.script else "ok"
        if what == "away":
            raise ConnectorError("the store is away", retriable=True)
        if what == "dies":
            raise Crash("before a piece")
        done = super().save(partition, piece)
        if what == "dies after":
            raise Crash("after a piece")
        if what == "lost":
            self.snapshots.pop(partition, None)
            return False
        return done


@st.composite
def troubled(draw):
    script = [line(i, draw(st.sampled_from(KEYS))) for i in range(draw(st.integers(20, 150)))]
    plain = list(script)
    for sentinel in draw(st.lists(st.sampled_from([ABORT, RETRY, REBALANCE]), max_size=5)):
        script.insert(draw(st.integers(0, len(script))), sentinel)
    return plain, script


@pytest.mark.thorough
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    troubled(),
    st.lists(
        st.sampled_from(["ok", "ok", "ok", "away", "dies", "dies after", "lost"]), max_size=40
    ),
    st.lists(st.sampled_from(["ok", "fail", "ambiguous", "crash", "crash after"]), max_size=6),
    st.integers(1, 20), st.sampled_from([1, 20]), st.sampled_from([0.0, 0.1]),
    st.sampled_from([{}, {"forget_after": 0.016}, {"max_keys": 3, "forget_after": 0.03}]),
)  # fmt: skip
def test_killed_between_any_two_pieces_the_verdicts_are_those_of_a_quiet_run(
    feed, saves, commits, most, every, interval, lives
):
    plain, script = feed
    quiet, quiet_store = ListSink(), Store()
    monitored = {
        "engine": engine, "make_monitor": lambda at: PartitionMonitor(at, CONFIG, lambda *_: None),
    }  # fmt: skip
    play(ListSource(plain), quiet, quiet_store, **monitored, knobs=lives)
    sink, store = ListSink(commits), Cutting(saves)
    source = ListSource(script, committed=sink.offsets)
    knobs = {
        "max_poll_records": most, "snapshot_every_events": every, "commit_interval_s": interval,
    } | lives  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "VIEW_S", 0.0)  # a view a turn: snapshots take many
        play_through(source, sink, store, **monitored, knobs=knobs)
    assert by_partition(sink) == by_partition(quiet)
    found, wanted = store.load(ONE, 10**9), quiet_store.load(ONE, 10**9)
    if found is not None and found[0] == wanted[0]:
        told = parts_of(found[1]), parts_of(wanted[1])
        assert told[0].streams == told[1].streams
        assert told[0].context == told[1].context
        assert told[0].registry == told[1].registry
        assert told[0].monitor == told[1].monitor
        assert told[0].typical == told[1].typical
