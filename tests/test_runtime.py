"""The loop: what becomes durable is the same whatever fails, and each thing once."""

import json
import threading
from collections import deque

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rejex_stream.decode import JsonDecoder
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.engine import Engine
from rejex_stream.engine.engine import Restored
from rejex_stream.engine.snapshot import seal, unseal
from rejex_stream.engine.stream_state import StreamView
from rejex_stream.errors import CheckpointError, ConfigError, ConnectorError
from rejex_stream.protocols import Assigned, SnapshotPiece
from rejex_stream.run.commit import Start, starting_point
from rejex_stream.run.executors import ProcessFitExecutor, ThreadFitExecutor
from rejex_stream.run.loop import RunSettings, run
from rejex_stream.run.partition import PartitionState
from rejex_stream.run.run_events import (
    Committed,
    PartitionClosed,
    PartitionLive,
    PartitionOpened,
    Retrying,
    SnapshotSaved,
)
from rejex_stream.types import Label, Partition, Position, Reason, Record, Verdict
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
from tests.streams import spec

ONE = Partition("input", 0)
TWO = Partition("input", 1)
DECODER = JsonDecoder(FieldMapping(["x"], sensor="id", time="t"))
FEW = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def whole():
    """The view of a stream that has no state of its own."""
    return StreamView(lambda: b"", lambda: b"", 0)


class StandIn:
    failures = changes = ()

    def __init__(self):
        self.seq = 0
        self.window = deque(maxlen=20)

    def ready(self, readings):
        return len(readings)

    def process(self, readings):
        verdicts = []
        for reading in readings:
            (value,) = reading.values
            rank = sum(other <= value for other in self.window)
            label, reason = Label.NORMAL, None
            if len(self.window) < 5:
                label, reason = Label.REJECTED, Reason.WARM_UP
            elif rank == len(self.window):
                label, reason = Label.REJECTED, Reason.AMBIGUOUS
            verdicts.append(
                Verdict(position=reading.position, stream_key=reading.stream_key,
                sensor=reading.sensor, event_time_ms=reading.event_time_ms, seq=self.seq,
                label=label, reason=reason, score=value, rank=rank),
            )  # fmt: skip
            self.window.append(value)
            self.seq += 1
        return verdicts

    def streams(self):
        return []

    def view(self, stream_key):
        return whole()

    def head(self):
        return seal("stand-in", 1, [self.seq, list(self.window)])

    def restore_streams(self, head, streams, *, accept_environment):
        assert self.seq == 0, "only a fresh engine is restored"
        self.seq, window = unseal("stand-in", 1, head)
        self.window.extend(window)
        return Restored(spec().decision, spec().decision, ())

    def take_failures(self):
        return []

    def take_incidents(self):
        return []

    def streams_of(self, command):
        return []

    def command(self, command):
        return None


class Counting:
    """A monitor with a state: how many outcomes it saw, and how many of them live."""

    def __init__(self):
        self.seen = self.live = 0
        self.bank = self

    def observe(self, outcomes, *, replaying):
        self.seen += len(outcomes)
        self.live += 0 if replaying else len(outcomes)

    def head(self):
        return b"%d" % self.seen

    def view(self, stream_key):
        return None

    def restore(self, blob, streams):
        self.seen = int(blob)
        return True


class Watching:
    def __init__(self):
        self.events = []
        self.seen = []

    def outcomes(self, partition, outcomes, *, replaying):
        self.seen += [(replaying, outcome.record.position.offset) for outcome in outcomes]

    def event(self, event):
        self.events.append(event)

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


def line(i, sensor="a"):
    return json.dumps({"id": sensor, "t": i, "x": (i * 7919) % 101}).encode()


def lines(n, sensors="ab"):
    return [b"not json" if i % 17 == 16 else line(i, sensors[i % len(sensors)]) for i in range(n)]


def play(source, sink, store=None, *, engine=lambda partition, fits: StandIn(), **options):
    clock = FakeClock(tick_s=0.01)
    knobs = {"snapshot_every_events": 10, "review_context_events": 3} | options.pop("knobs", {})
    return run(
        source, sink, store, engine, options.pop("decoder", DECODER), settings=RunSettings(**knobs),
        clock=clock, wait=clock.advance, **options,
    )  # fmt: skip


def play_through(source, sink, store, **options):
    for attempt in range(1, 200):
        try:
            play(source, sink, store, **options)
        except Crash:
            continue
        return attempt
    raise AssertionError("the run never ends")


def by_partition(sink):
    found = {}
    for outcome in sink.outcomes:
        topic, partition = outcome.record.position[:2]
        found.setdefault(Partition(topic, partition), []).append(outcome)
    return found


def positions(sink):
    return [outcome.record.position.offset for outcome in sink.outcomes]


# ---------------------------------------------------------------------------- the plain line
def test_every_record_gives_one_outcome_in_order():
    sink = ListSink()
    summary = play(ListSource(lines(50)), sink)
    assert positions(sink) == list(range(50))
    for outcome in sink.outcomes:
        assert (outcome.verdict is None) != (outcome.invalid is None)
        known = outcome.verdict or outcome.invalid
        assert known.position == outcome.record.position
    assert sink.offsets == {ONE: 50}
    assert summary.n_events == 50
    assert summary.n_invalid == 2
    assert summary.labels.total() == 48
    assert summary.reasons[Reason.WARM_UP] == 5
    assert not summary.stopped


def test_rejected_events_of_the_chosen_reasons_go_to_review_with_their_context():
    sink = ListSink()
    summary = play(ListSource(lines(60)), sink)
    reviewed = [outcome for outcome in sink.outcomes if outcome.review is not None]
    assert summary.n_reviews == len(reviewed) > 0
    for outcome in sink.outcomes:
        verdict = outcome.verdict
        wanted = verdict is not None and verdict.reason is Reason.AMBIGUOUS
        assert (outcome.review is not None) == wanted
    item = reviewed[-1].review
    before = [
        other.verdict
        for other in sink.outcomes
        if other.verdict is not None
        and other.verdict.sensor == item.verdict.sensor
        and other.verdict.seq < item.verdict.seq
    ][-3:]
    assert [point.event_time_ms for point in item.context] == [v.event_time_ms for v in before]
    assert [point.score for point in item.context] == [v.score for v in before]
    assert item.channels == ("x",)


def test_without_records_nothing_is_committed():
    sink = ListSink()
    assert play(ListSource([]), sink).n_events == 0
    assert sink.n_commits == 0


def test_tombstones_and_gaps_in_the_offsets_are_no_obstacle():
    far = Record(Position("input", 0, 100), None, line(5), (), 0)
    sink = ListSink()
    play(ListSource([line(0), None, far, line(6)]), sink)
    assert positions(sink) == [0, 1, 100, 101]
    assert "tombstone" in sink.outcomes[1].invalid.reason
    assert sink.offsets == {ONE: 102}


def test_several_partitions_have_a_state_each():
    sink = ListSink()
    play(ListSource({ONE: lines(30), TWO: lines(40)}), sink, knobs={"max_poll_records": 7})
    found = by_partition(sink)
    assert [outcome.record.position.offset for outcome in found[TWO]] == list(range(40))
    assert [o.verdict.seq for o in found[ONE] if o.verdict] == list(range(29))
    assert sink.offsets == {ONE: 30, TWO: 40}


def test_commits_come_by_time_and_by_number():
    few, many = ListSink(), ListSink()
    slow = {"commit_interval_s": 60, "max_poll_records": 10}
    play(ListSource(lines(200)), few, knobs=slow)
    assert few.n_commits == 1
    play(ListSource(lines(200)), many, knobs=slow | {"commit_every_events": 20})
    assert many.n_commits == 10
    timed = ListSink()
    play(ListSource(lines(200)), timed, knobs={"commit_interval_s": 0.0, "max_poll_records": 10})
    assert timed.n_commits == 20


# ------------------------------------------------------------------------- crash anywhere


@st.composite
def troubled(draw):
    n = draw(st.integers(1, 60))
    script = list(lines(n, "abc"))
    for sentinel in draw(st.lists(st.sampled_from([ABORT, RETRY, REBALANCE]), max_size=6)):
        script.insert(draw(st.integers(0, len(script))), sentinel)
    return n, script


@pytest.mark.thorough
@FEW
@given(
    troubled(), troubled(),
    st.lists(st.sampled_from(["ok", "fail", "ambiguous", "crash", "crash after"]), max_size=12),
    st.integers(1, 30), st.sampled_from([0.0, 0.05, 0.3, 60.0]), st.sampled_from([1, 7, 1000]),
    st.booleans(),
)  # fmt: skip
def test_whatever_fails_the_durable_outcomes_and_the_state_are_those_of_a_quiet_run(
    one, two, commits, max_poll, interval, snapshot_every, with_store
):
    quiet, quiet_store = ListSink(), MemorySnapshotStore()
    monitors, quiet_monitors = {}, {}

    def monitor_into(kept):
        def make(partition):
            kept[partition] = Counting()
            return kept[partition]

        return make

    play(
        ListSource({ONE: lines(one[0], "abc"), TWO: lines(two[0], "abc")}), quiet, quiet_store,
        make_monitor=monitor_into(quiet_monitors),
    )  # fmt: skip
    sink, store = ListSink(commits), MemorySnapshotStore() if with_store else None
    source = ListSource({ONE: one[1], TWO: two[1]}, committed=sink.offsets)
    play_through(
        source, sink, store, make_monitor=monitor_into(monitors),
        knobs={"max_poll_records": max_poll, "commit_interval_s": interval,
        "snapshot_every_events": snapshot_every},
    )  # fmt: skip
    assert by_partition(sink) == by_partition(quiet)
    assert sink.offsets == quiet.offsets
    if store is not None:
        for partition, end in quiet.offsets.items():
            assert store.load(partition, end) == quiet_store.load(partition, end)
    for partition, monitor in monitors.items():
        assert monitor.seen == quiet_monitors[partition].seen


@pytest.mark.thorough
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_the_real_engine_survives_crashes_with_refits_in_flight(data):
    decoder = JsonDecoder(FieldMapping(["x", "y"], sensor="id", time="t"))
    feed = [
        json.dumps({"id": "ab"[i % 2], "t": i, "x": (i * 7919) % 101, "y": i % 13}).encode()
        for i in range(700)
    ]
    recipe = spec()

    def engine(partition, fits):
        return Engine(recipe, fits)

    quiet = ListSink()
    play(ListSource(feed), quiet, decoder=decoder, engine=engine)
    script = list(feed)
    for sentinel in data.draw(st.lists(st.sampled_from([ABORT, RETRY, REBALANCE]), min_size=1)):
        script.insert(data.draw(st.integers(0, len(script))), sentinel)
    sink, store = ListSink(), MemorySnapshotStore()
    play_through(
        ListSource(script, committed=sink.offsets), sink, store, decoder=decoder, engine=engine,
        executor=DelayedExecutor(data.draw(st.integers(0, 99))),
        knobs={"max_poll_records": data.draw(st.integers(1, 200)), "commit_interval_s": 0.03,
        "snapshot_every_events": data.draw(st.sampled_from([20, 150, 10_000]))},
    )  # fmt: skip
    assert sink.outcomes == quiet.outcomes
    assert {o.verdict.model_epoch for o in sink.outcomes} > {0, 1}


# --------------------------------------------------------------------------- silent replay
def test_a_replay_is_silent_and_tells_how_far_it_is():
    sink, store = ListSink(), MemorySnapshotStore()
    knobs = {"max_poll_records": 4, "commit_interval_s": 0.0, "snapshot_every_events": 1000}
    source = ListSource([*lines(44), ABORT, *lines(3)], committed=sink.offsets)
    with pytest.raises(Crash):
        play(source, sink, store, knobs=knobs)
    assert positions(sink) == list(range(40))  # what came last was judged, not committed
    watching, looks = Watching(), []
    summary = play(
        source, sink, store, knobs=knobs | {"progress_interval_s": 0.0}, observers=[watching],
        on_progress=looks.append,
    )  # fmt: skip
    assert summary.n_events == 7
    assert summary.n_replayed == 40
    assert watching.seen == [(True, i) for i in range(40)] + [(False, i) for i in range(40, 47)]
    assert watching.of(PartitionOpened) == [PartitionOpened(ONE, 0, 0, 40)]
    (live,) = watching.of(PartitionLive)
    assert live.replayed_events == 40
    assert [look.replays[ONE].next_offset for look in looks if look.replays] == [*range(0, 40, 4)]
    assert looks[-1].replays == {}
    assert looks[-1].n_events == 7
    assert watching.of(PartitionClosed) == [PartitionClosed(ONE)]


class Drip(ListSource):
    def poll(self, max_records, timeout_s):
        return super().poll(min(3, max_records), timeout_s)


def test_what_is_replayed_is_judged_in_long_blocks_and_waits_for_no_fit():
    class Lengths(Watching):
        def outcomes(self, partition, outcomes, *, replaying):
            lengths.append((replaying, len(outcomes)))

    lengths, sink, store = [], ListSink(), MemorySnapshotStore()
    knobs = {"max_poll_records": 30, "commit_interval_s": 0.0, "snapshot_every_events": 1000}
    source = Drip([*lines(100), ABORT, *lines(2)], committed=sink.offsets)
    with pytest.raises(Crash):
        play(source, sink, store, knobs=knobs)
    n = len(sink.outcomes)
    assert n > 90
    summary = play(source, sink, store, knobs=knobs, observers=[Lengths()])
    replayed = [length for replaying, length in lengths if replaying]
    assert sum(replayed) == n
    assert set(replayed[:-1]) == {24}
    assert summary.fit_waits == 0
    assert positions(sink) == list(range(102))


def test_snapshots_stand_at_committed_offsets_only():
    sink, store, watching = ListSink(), MemorySnapshotStore(keep=1000), Watching()
    knobs = {"max_poll_records": 3, "commit_interval_s": 0.2, "snapshot_every_events": 1}
    play(ListSource(lines(100)), sink, store, knobs=knobs, observers=[watching])
    committed = {event.next_offsets[ONE] for event in watching.of(Committed)}
    saved = {event.next_offset for event in watching.of(SnapshotSaved)}
    assert len(saved) > 3
    assert saved <= committed
    assert set(store.snapshots[ONE]) == saved | {0}


def test_a_slow_feed_is_snapshotted_by_time():
    knobs = {
        "max_poll_records": 1, "commit_interval_s": 0.0, "snapshot_every_events": 10**6,
        "snapshot_interval_s": 1.0,
    }  # fmt: skip
    summary = play(ListSource(lines(200)), ListSink(), MemorySnapshotStore(), knobs=knobs)
    assert 4 < summary.n_snapshots < 100


def test_a_long_replay_is_snapshotted_on_its_way():
    sink, store, watching = ListSink(), MemorySnapshotStore(), Watching()
    source = ListSource([*lines(110), ABORT, *lines(1)], committed=sink.offsets)
    lazy = {"max_poll_records": 10, "commit_interval_s": 0.0, "snapshot_every_events": 1000}
    with pytest.raises(Crash):
        play(source, sink, store, knobs=lazy)
    play(source, sink, store, knobs=lazy | {"snapshot_every_events": 30}, observers=[watching])
    assert [event.next_offset for event in watching.of(SnapshotSaved)] == [30, 60, 90, 111]


# ------------------------------------------------------------------------- where to begin
def test_a_partition_begins_where_its_state_can_be_rebuilt():
    store = MemorySnapshotStore()
    assert starting_point(Assigned(ONE, None, 7), store) == Start(7, None, 7)
    assert starting_point(Assigned(ONE, None, 0), None) == Start(0, None, 0)
    assert starting_point(Assigned(ONE, 50, 0), store) == Start(0, None, 50)
    store.save(ONE, SnapshotPiece(30, None, {"a": b"s"}))
    assert starting_point(Assigned(ONE, 50, 10), store) == Start(30, {"a": b"s"}, 50)
    assert starting_point(Assigned(ONE, 30, 30), store) == Start(30, {"a": b"s"}, 30)


@pytest.mark.parametrize(("snapshot", "committed", "earliest", "words"), [
    (None, 50, 10, "with no snapshot and the earliest record at 10"),
    (60, 50, 10, "with no snapshot"), (5, 50, 10, "its newest snapshot at offset 5"),
    (40, 50, 60, r"10 record\(s\) expired unread"),
])  # fmt: skip
def test_a_state_that_cannot_be_rebuilt_is_refused_with_the_ways_out(
    snapshot, committed, earliest, words
):
    store = MemorySnapshotStore()
    if snapshot is not None:
        store.save(ONE, SnapshotPiece(snapshot, None, {"a": b"s"}))
    assigned = Assigned(ONE, committed, earliest)
    with pytest.raises(CheckpointError, match=words) as caught:
        starting_point(assigned, store)
    assert 'state.lost_state = "restart"' in str(caught.value)
    live_from = max(earliest, committed or 0)
    again = starting_point(assigned, store, restart_if_lost=True)
    assert again == Start(earliest, None, live_from)


@pytest.mark.parametrize("committed", [None, 30])
def test_verdicts_beyond_what_is_committed_are_not_written_again(committed):
    """Under another group every verdict was written again: 3,540 of 1,770 ids."""
    store, first = MemorySnapshotStore(), committed or 0
    store.save(ONE, SnapshotPiece(0, None, {"a": b"s"}))
    at_its_end = Assigned(ONE, committed, 0, written=first)
    assert starting_point(at_its_end, store).live_from == first
    beyond = at_its_end._replace(written=first + 1)
    with pytest.raises(CheckpointError, match=rf"1 record\(s\) from offset {first} on") as caught:
        starting_point(beyond, store)
    for way_out in ("state export OLD", "state import NEW", "pipeline.version"):
        assert way_out in str(caught.value)
    again = starting_point(beyond, store, restart_if_lost=True)
    assert again == starting_point(at_its_end, store)


def test_offsets_that_expired_are_refused_or_gone_on_from_at_the_snapshot():
    """What was written before was written again: 4,050 verdicts for 2,050 records."""
    store = MemorySnapshotStore()
    play(ListSource(lines(40)), ListSink(), store)
    with pytest.raises(CheckpointError, match="snapshot at offset 40 but no committed offset"):
        play(ListSource(lines(50)), ListSink(), store)
    sink = ListSink()
    play(ListSource(lines(50)), sink, store, knobs={"lost_state": "restart"})
    assert positions(sink) == list(range(40, 50))
    gone_on, made_anew = (
        starting_point(Assigned(ONE, None, 0, end), store, restart_if_lost=True) for end in (50, 49)
    )
    assert (gone_on.offset, gone_on.live_from) == (50, 50)
    assert made_anew == Start(0, None, 0, is_new_log=True)
    with pytest.raises(CheckpointError, match="to offset 50 and the log ends at 49"):
        starting_point(Assigned(ONE, None, 0, 49), store)


def test_trimmed_input_without_a_snapshot_is_refused_and_a_restart_must_be_asked_for():
    def source():
        return ListSource(lines(40), committed={ONE: 20}, earliest={ONE: 10})

    with pytest.raises(CheckpointError, match="input-0 is committed up to offset 20"):
        play(source(), ListSink(), MemorySnapshotStore())
    sink, store = ListSink(), MemorySnapshotStore()
    store.save(ONE, SnapshotPiece(35, None, {"a": b"of a past that was given up"}))
    summary = play(source(), sink, store, knobs={"lost_state": "restart"})
    assert summary.n_replayed == 10
    assert positions(sink) == list(range(20, 40))
    assert store.snapshots[ONE].keys() == {10, 40}


def test_a_start_in_the_middle_can_be_repeated_after_a_crash_without_any_commit():
    sink, store = ListSink(commits=["ok", "crash"]), MemorySnapshotStore()
    earliest = {ONE: 10}
    source = ListSource(lines(40), committed=sink.offsets, earliest=earliest)
    knobs = {"max_poll_records": 6, "commit_interval_s": 0.0, "snapshot_every_events": 1000}
    with pytest.raises(Crash):
        play(source, sink, store, knobs=knobs)
    earliest[ONE] = 12  # the broker trims meanwhile
    with pytest.raises(CheckpointError, match="newest snapshot at offset 10"):
        play(source, sink, store, knobs=knobs)
    earliest[ONE] = 10
    play(source, sink, store, knobs=knobs)
    assert positions(sink) == list(range(10, 40))


# --------------------------------------------------------------------------- partition snapshots
def state_of(channels="x", partition=ONE, monitor=None):
    from rejex_stream.run.review_items import ReviewItems

    decoder = JsonDecoder(FieldMapping(list(channels), sensor="id", time="t"))
    return PartitionState(
        partition, decoder=decoder, engine=StandIn(), context=ReviewItems(decoder.channels),
        monitor=monitor,
    )  # fmt: skip


def records(n, start=0):
    return [Record(Position("input", 0, i), None, line(i)) for i in range(start, n)]


def parts_of(state):
    """The whole state; it may be asked for again."""
    state.parts.abandon(base_is_gone=True)
    parts = state.snapshot().encoded().parts
    state.parts.abandon()
    return parts


def test_a_partition_comes_back_from_its_snapshot_and_snapshots_are_equal_bytes():
    first = state_of(monitor=Counting())
    first.process(records(30))
    second = state_of(monitor=Counting())
    second.restore(parts_of(first))
    assert second.next_offset == 30
    assert second.process(records(40, 30)) == first.process(records(40, 30))
    assert parts_of(second) == parts_of(first)


def test_a_partition_ignores_repeats_of_the_transport():
    one = state_of()
    one.process(records(10))
    assert [o.record.position.offset for o in one.process(records(13, 5))] == [10, 11, 12]
    assert one.process(records(5)) == []


@pytest.mark.parametrize("name", ["head", "ca"])
@pytest.mark.parametrize("at", [0, 6, 30, -1])
def test_a_partition_snapshot_with_one_flipped_bit_is_refused(name, at):
    one = state_of()
    one.process(records(10))
    parts = dict(parts_of(one))
    whole, flipped = parts[name], bytearray(parts[name])
    flipped[at] ^= 1
    for bent in (bytes(flipped), whole[:-1], b"", parts["head" if name == "ca" else "ca"]):
        with pytest.raises(CheckpointError):
            state_of().restore(parts | {name: bent})


def test_a_part_in_the_place_of_another_is_refused():
    one = state_of()
    one.process(records(10))
    parts = dict(parts_of(one))
    with pytest.raises(CheckpointError, match="part of 'a' stands in the place of 'b'"):
        state_of().restore(parts | {"cb": parts["ca"]})


def test_a_partition_refuses_the_snapshot_of_another_partition_or_other_channels():
    one = state_of()
    with pytest.raises(CheckpointError, match="channels"):
        state_of(channels="xy").restore(parts_of(one))
    with pytest.raises(CheckpointError, match="partition"):
        state_of(partition=TWO).restore(parts_of(one))


def test_a_monitor_may_be_added_or_dropped_between_runs():
    with_monitor, without = state_of(monitor=Counting()), state_of()
    with_monitor.process(records(5))
    without.process(records(5))
    state_of().restore(parts_of(with_monitor))
    state_of(monitor=Counting()).restore(parts_of(without))


# ------------------------------------------------------------------------------ recoveries
def test_failures_are_waited_out_with_growing_delays_and_without_rebuilding():
    sink, watching = ListSink(commits=["ok", "fail", "fail", "ambiguous"]), Watching()
    source = ListSource(lines(40), committed=sink.offsets)
    made = []

    def engine(partition, fits):
        made.append(partition)
        return StandIn()

    knobs = {"max_poll_records": 5, "commit_interval_s": 0.0, "retry_first_s": 0.5}
    summary = play(
        source, sink, MemorySnapshotStore(), engine=engine, observers=[watching], knobs=knobs
    )
    assert positions(sink) == list(range(40))
    assert [event.delay_s for event in watching.of(Retrying)] == [0.5, 1.0, 2.0]
    assert summary.n_retries == 3
    assert summary.n_events == 40
    assert made == [ONE], "the state stands where the durable offset is: nothing to rebuild"


def test_the_run_gives_up_after_the_configured_time():
    sink = ListSink(commits=["fail"] * 100)
    source = ListSource(lines(40), committed=sink.offsets)
    knobs = {"retry_first_s": 1.0, "retry_longest_s": 8.0, "retry_for_s": 30.0}
    with pytest.raises(ConnectorError, match=r"gave up after 6 attempts.*the commit failed"):
        play(source, sink, knobs=knobs)
    assert sink.outcomes == []


def test_an_error_that_will_not_go_away_ends_the_run_at_once():
    sink = ListSink(commits=["ok", "fatal"])
    source = ListSource(lines(40), committed=sink.offsets)
    with pytest.raises(ConnectorError, match="fenced"):
        play(source, sink, knobs={"max_poll_records": 5, "commit_interval_s": 0.0})
    assert positions(sink) == list(range(5))


@pytest.mark.parametrize("theirs", [10, 13, 30])
def test_what_somebody_else_committed_meanwhile_is_not_written_again(theirs):
    """Ours is 10 events committed and 5 held when the edge fails; others commit up to `theirs`."""

    class Overtaken(ListSource):
        def rewind(self):
            super().rewind()
            others = [o for o in quiet.outcomes if 10 <= o.record.position.offset < theirs]
            sink.outcomes += others
            sink.offsets[ONE] = theirs

    quiet, made = ListSink(), []
    play(ListSource(lines(60)), quiet)
    sink, watching = ListSink(commits=["ok", "ok", "fail"]), Watching()

    def engine(partition, fits):
        made.append(partition)
        return StandIn()

    play(
        Overtaken(lines(60), committed=sink.offsets), sink, MemorySnapshotStore(), engine=engine,
        observers=[watching], knobs={"max_poll_records": 5, "commit_interval_s": 0.0},
    )  # fmt: skip
    assert sink.outcomes == quiet.outcomes
    assert len(made) == (1 if theirs <= 15 else 2)


def test_offsets_that_move_while_a_replay_is_under_way_are_followed():
    class Moving(ListSource):
        def rewind(self):
            super().rewind()
            sink.offsets[ONE] = 40

    sink, store = ListSink(), MemorySnapshotStore()
    sink.offsets[ONE] = 30
    source = Moving([*lines(20), RETRY, *lines(60)[20:]], committed=sink.offsets)
    play(source, sink, store, knobs={"max_poll_records": 5, "snapshot_every_events": 1000})
    assert positions(sink) == list(range(40, 60))


def test_records_polled_before_a_change_of_hands_are_not_taken_for_those_after_it():
    class Stale(ListSource):
        """Loses the partition in the very poll that still delivers some of its records."""

        polls = 0

        def poll(self, max_records, timeout_s):
            found = super().poll(max_records, timeout_s)
            self.polls += 1
            if self.polls == 5:
                self._lose(ONE)
            return found

    sink = ListSink()
    source = Stale(lines(60), committed=sink.offsets)
    play(source, sink, knobs={"max_poll_records": 5, "commit_interval_s": 60})
    assert positions(sink) == list(range(60))


def test_failures_of_an_idle_input_are_forgotten_too():
    class Flaky(ListSource):
        polls = 0

        def poll(self, max_records, timeout_s):
            self.polls += 1
            if self.polls % 50 == 0:
                raise ConnectorError("the broker is away", retriable=True)
            return ()

        @property
        def exhausted(self):
            return self.polls > 1000

    watching = Watching()
    knobs = {"retry_longest_s": 0.5, "retry_for_s": 2.0}
    play(Flaky([]), ListSink(), observers=[watching], knobs=knobs)
    assert {event.attempt for event in watching.of(Retrying)} == {1}
    assert len(watching.of(Retrying)) == 20


def test_old_failures_are_forgotten():
    script = []
    for _ in range(30):  # one failure every few hundred ticks, never two in a row
        script += [RETRY, *lines(60)]
    watching, sink = Watching(), ListSink()
    knobs = {"max_poll_records": 1, "retry_longest_s": 0.5, "retry_for_s": 2.0}
    play(ListSource(script, committed=sink.offsets), sink, observers=[watching], knobs=knobs)
    assert {event.attempt for event in watching.of(Retrying)} == {1}
    assert len(watching.of(Retrying)) == 30


def test_a_partition_that_is_lost_takes_its_uncommitted_outcomes_along():
    class Losing(ListSource):
        lost = False

        def poll(self, max_records, timeout_s):
            if not self.lost and self._at.get(ONE, 0) >= 20:
                self.lost = True
                self._at.pop(ONE)
                self._scripts.pop(ONE)
                from rejex_stream.protocols import Revoked

                self._changes.append(Revoked(ONE))
            return super().poll(max_records, timeout_s)

    sink = ListSink()
    source = Losing({ONE: lines(40), TWO: lines(40)}, committed=sink.offsets)
    play(source, sink, knobs={"max_poll_records": 10, "commit_interval_s": 60})
    assert sink.offsets == {TWO: 40}
    assert {outcome.record.position.partition for outcome in sink.outcomes} == {1}


# ----------------------------------------------------------------------------- stopping
def test_a_stop_finishes_the_batch_commits_and_snapshots():
    stop, sink, store = threading.Event(), ListSink(), MemorySnapshotStore()

    class Stopping(Watching):
        def outcomes(self, partition, outcomes, *, replaying):
            super().outcomes(partition, outcomes, replaying=replaying)
            if len(self.seen) >= 20:
                stop.set()

    knobs = {"max_poll_records": 10, "commit_interval_s": 60, "snapshot_every_events": 10**6}
    summary = play(
        ListSource(lines(100)), sink, store, stop=stop, observers=[Stopping()], knobs=knobs
    )
    assert summary.stopped
    assert positions(sink) == list(range(20))
    assert store.load(ONE, 10**9)[0] == 20


def test_a_stop_while_the_edge_is_down_returns_without_a_commit(caplog):
    stop = threading.Event()
    sink = ListSink(commits=["fail"])

    class Stopping(Watching):
        def outcomes(self, partition, outcomes, *, replaying):
            stop.set()

    source = ListSource(lines(10), committed=sink.offsets)
    summary = play(source, sink, stop=stop, observers=[Stopping()])
    assert summary.stopped
    assert sink.outcomes == []
    assert "stopping without a last commit" in caplog.text


def test_source_and_sink_are_closed_whatever_happens():
    closed = []

    class Source(ListSource):
        def close(self):
            closed.append("source")
            super().close()

    class Sink(ListSink):
        def close(self):
            closed.append("sink")

    source = Source([line(0), ABORT])
    closed.clear()
    with pytest.raises(Crash):
        play(source, Sink())
    assert closed == ["sink", "source"]


# ------------------------------------------------------------------------ too much rubbish


@pytest.mark.parametrize("knobs", [
    {"commit_every_events": 0}, {"batch_s": 0}, {"commit_interval_s": -1},
    {"invalid_limit": 1.1}, {"retry_first_s": float("nan")}, {"lost_state": "ignore"},
])  # fmt: skip
def test_impossible_settings_are_refused(knobs):
    (name,) = knobs
    with pytest.raises(ConfigError, match=name):
        RunSettings(**knobs)


# --------------------------------------------------------------------------------- fits
def test_a_partition_that_ends_takes_its_fits_along():
    def engine(partition, fits):
        fits.submit("never wanted", StandIn)
        return StandIn()

    executor = DelayedExecutor()
    script = [*lines(10), REBALANCE, *lines(10)]
    play(ListSource(script), ListSink(), engine=engine, executor=executor)
    assert executor._fits == {}


@pytest.mark.parametrize("then", [15, 25])
def test_a_replay_that_was_interrupted_goes_on_only_towards_the_offset_it_was_for(then):
    """Another worker has committed more meanwhile, or somebody has set the offset back."""

    class Moved(dict):
        def get(self, partition, default=None):
            return committed.pop(0)

    sink, committed = ListSink(), [20, then]
    source = ListSource([*lines(10), REBALANCE, *lines(30)], committed=Moved())
    play(source, sink, MemorySnapshotStore(), knobs={"max_poll_records": 5})
    assert positions(sink) == list(range(then, 40))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [ThreadFitExecutor, ProcessFitExecutor])
def test_background_fits_give_the_same_verdicts_and_waits_are_counted(kind):
    decoder = JsonDecoder(FieldMapping(["x", "y"], sensor="id", time="t"))
    feed = [
        json.dumps({"id": "a", "t": i, "x": (i * 7919) % 101, "y": i % 13}).encode()
        for i in range(400)
    ]

    def engine(partition, fits):
        return Engine(spec(), fits)

    inline, background = ListSink(), ListSink()
    play(ListSource(feed), inline, decoder=decoder, engine=engine)
    executor = kind()
    summary = play(ListSource(feed), background, decoder=decoder, engine=engine, executor=executor)
    executor.close()
    assert background.outcomes == inline.outcomes
    assert summary.n_fit_failures == 0
    if kind is ProcessFitExecutor:  # the first fit waits for the worker to start
        assert summary.fit_waits > 0
        assert summary.fit_wait_s >= summary.longest_fit_wait_s > 0
