"""Commits go on while the next records are judged, and nothing else happens meanwhile."""

import threading

import pytest

from rejex_stream.errors import CheckpointError, ConnectorError
from rejex_stream.run.command_journal import CommandJournal
from rejex_stream.run.commit import Commits, Ownership
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.run.partition import PartitionState
from rejex_stream.run.review_items import ReviewItems
from rejex_stream.run.run_events import Committed, IncidentsDurable, RunSummary, SnapshotSaved
from rejex_stream.run.run_settings import RunSettings
from tests.doubles import Crash, ListControl, ListSink, ListSource, MemorySnapshotStore
from tests.obedient import Obedient
from tests.test_runtime import (
    DECODER,
    ONE,
    FakeClock,
    StandIn,
    Watching,
    line,
    lines,
    play,
    positions,
)
from tests.waiting import PATIENCE_S

KNOBS = {"max_poll_records": 10, "commit_interval_s": 0.0}


class Between:
    """Sink, source, store and engine that note who works while a commit is under way."""

    def __init__(self, n, **sink):
        self.under_way = threading.Event()
        self.judged_meanwhile = threading.Event()
        self.disturbed = []
        self.threads = set()
        self.to_raise = None
        self.calm = True  # after a failure, turns need not hold both a commit and records
        outer = self

        class Sink(ListSink):
            def commit(self, next_offsets):
                outer.threads.add(threading.current_thread())
                outer.under_way.set()
                try:
                    # At the end of the input there is nothing more to judge.
                    if outer.calm and max(next_offsets.values()) < n:
                        assert outer.judged_meanwhile.wait(PATIENCE_S), (
                            "nothing was judged meanwhile"
                        )
                    super().commit(next_offsets)
                except ConnectorError:
                    outer.calm = False
                    raise
                finally:
                    outer.judged_meanwhile.clear()
                    outer.under_way.clear()

        class Source(ListSource):
            def poll(self, max_records, timeout_s):
                outer.note("poll")
                return super().poll(max_records, timeout_s)

            def changes(self):
                outer.note("changes")
                return super().changes()

            def rewind(self):
                outer.note("rewind")
                super().rewind()

        class Engine(StandIn):
            def process(self, readings):
                if not self.seq or not outer.calm:
                    return super().process(readings)
                assert outer.under_way.wait(PATIENCE_S), "no commit is under way"
                try:
                    if outer.to_raise is not None:
                        outer.calm = False
                        raise outer.to_raise
                    return super().process(readings)
                finally:
                    outer.judged_meanwhile.set()

        self.sink = Sink(**sink)
        self.source = Source(lines(n), committed=self.sink.offsets)
        self.engine = lambda partition, fits: Engine()

    def note(self, what):
        if self.under_way.is_set():
            self.disturbed.append(what)


def test_a_commit_waits_for_the_edge_while_records_are_judged():
    plain, between = ListSink(), Between(60)
    play(ListSource(lines(60)), plain, knobs=KNOBS)
    play(between.source, between.sink, engine=between.engine, knobs=KNOBS)
    assert between.sink.outcomes == plain.outcomes
    assert between.sink.n_commits == 6
    assert between.disturbed == []
    assert threading.current_thread() not in between.threads
    assert not any(thread.is_alive() for thread in between.threads)


@pytest.mark.parametrize("what", ["fail", "ambiguous"])
def test_what_was_judged_while_a_commit_failed_is_not_lost(what):
    plain, between = ListSink(), Between(60, commits=["ok", what])
    play(ListSource(lines(60)), plain, knobs=KNOBS)
    summary = play(
        between.source, between.sink, MemorySnapshotStore(), engine=between.engine, knobs=KNOBS
    )
    assert between.sink.outcomes == plain.outcomes
    assert summary.n_events == 60
    assert summary.n_retries == 1
    assert summary.n_replayed == 0  # the partition stood where it could go on
    assert between.disturbed == []


def test_a_crash_in_the_middle_of_judging_leaves_the_commit_whole():
    between = Between(60)
    between.to_raise = Crash("in the engine")
    store = MemorySnapshotStore()
    with pytest.raises(Crash, match="in the engine"):
        play(between.source, between.sink, store, engine=between.engine, knobs=KNOBS)
    assert positions(between.sink) == list(range(10))
    assert between.sink.offsets == {ONE: 10}
    play(between.source, between.sink, store, engine=lambda partition, fits: StandIn(), knobs=KNOBS)
    assert positions(between.sink) == list(range(60))


def test_when_judging_and_commit_both_fail_the_run_goes_on_from_what_is_durable():
    plain, between = ListSink(), Between(60, commits=["ambiguous"])
    between.to_raise = ConnectorError("the schema registry is away", retriable=True)
    play(ListSource(lines(60)), plain, knobs=KNOBS)
    play(between.source, between.sink, MemorySnapshotStore(), engine=between.engine, knobs=KNOBS)
    assert between.sink.outcomes == plain.outcomes


def test_a_snapshot_holds_what_was_handed_over_and_not_what_was_judged_since():
    between, store, watching = Between(60), MemorySnapshotStore(keep=100), Watching()
    play(
        between.source, between.sink, store, engine=between.engine,
        knobs=KNOBS | {"snapshot_every_events": 1}, observers=[watching],
    )  # fmt: skip
    committed = [event.next_offsets[ONE] for event in watching.of(Committed)]
    saved = [event.next_offset for event in watching.of(SnapshotSaved)]
    assert saved == committed == [10, 20, 30, 40, 50, 60]
    # A run that begins at any of them gives what the whole run gave.
    for offset in committed[:-1]:
        kept = MemorySnapshotStore()
        kept.snapshots[ONE] = {offset: store.snapshots[ONE][offset]}
        sink = ListSink()
        sink.offsets[ONE] = offset
        play(ListSource(lines(60), committed=sink.offsets), sink, kept, knobs=KNOBS)
        assert sink.outcomes == between.sink.outcomes[offset:]


def test_a_snapshot_that_cannot_be_kept_does_not_undo_the_commit():
    class Failing(MemorySnapshotStore):
        fails = 1

        def save(self, partition, piece):
            if piece.next_offset and self.fails:
                self.fails -= 1
                between.calm = False
                raise ConnectorError("the state topic is away", retriable=True)
            return super().save(partition, piece)

    plain, between, watching = ListSink(), Between(60), Watching()
    play(ListSource(lines(60)), plain, knobs=KNOBS)
    summary = play(
        between.source, between.sink, Failing(), engine=between.engine,
        knobs=KNOBS | {"snapshot_every_events": 1}, observers=[watching],
    )  # fmt: skip
    assert between.sink.outcomes == plain.outcomes
    assert summary.n_retries == 1
    assert summary.n_replayed == 0
    assert sum(event.n_events for event in watching.of(Committed)) == 60


def test_where_the_base_of_a_snapshot_is_gone_the_next_one_is_written_whole():
    """Else every later one would build upon what nobody has, and a restart would replay it all."""

    class Losing(MemorySnapshotStore):
        calls = 0

        def save(self, partition, piece):
            if self.calls == 2:  # a disk was lost, or somebody cleaned up
                self.snapshots.pop(partition)
            self.calls += 1
            return super().save(partition, piece)

    store, sink, watching = Losing(), ListSink(), Watching()
    knobs = KNOBS | {"snapshot_every_events": 1}
    play(ListSource(lines(60)), sink, store, knobs=knobs, observers=[watching])
    assert [event.next_offset for event in watching.of(SnapshotSaved)] == [10, 30, 40, 50, 60]
    again = ListSink()
    again.offsets[ONE] = 60
    play(ListSource(lines(70), committed=again.offsets), again, store, knobs=KNOBS)
    assert positions(again) == list(range(60, 70))


def test_an_offset_never_goes_back():
    source, sink, summary = ListSource(lines(20)), ListSink(), RunSummary()
    shared = {"summary": summary, "emit": lambda event: None, "clock": FakeClock()}

    def make_state(partition, fits):
        return PartitionState(
            partition, decoder=DECODER, engine=StandIn(), context=ReviewItems(DECODER.channels)
        )

    ours = Ownership(source, None, make_state, InlineExecutor(), restart_if_lost=False, **shared)
    commits = Commits(ours, sink, None, RunSettings())
    try:
        ours.apply(source.changes())
        owned = ours.owned[ONE]
        owned.held += owned.state.process(source.poll(8, 0.0))
        owned.committed = 9
        with pytest.raises(CheckpointError, match=r"committed up to offset 9, .* stands at 8"):
            commits.begin(everything=True)
        assert not commits.finish()
        assert sink.outcomes == []
        assert sink.offsets == {}
        owned.committed = 8
        commits.begin(everything=True)
        assert commits.finish()
        assert sink.offsets == {ONE: 8}
    finally:
        commits.close()


# --------------------------------------------------------------------------- who is told of it
class People:
    """Told of incidents; they take it at once, or leave it."""

    def __init__(self, sink, *, take=True):
        self.told, self.again, self._left = [], [], []
        self._sink, self.take, self.settled = sink, take, 0

    def outcomes(self, partition, outcomes, *, replaying):
        pass

    def event(self, event):
        if isinstance(event, IncidentsDurable):
            names = [change.id for change in event.incidents]
            assert set(names) <= set(changed(self._sink)), "told before it was durable"
            self.told += names
            self.again += names if event.again else []
            self._left += () if self.take else event.incidents

    def pending(self, partition, new=()):
        return [one for one in self._left if one.position[:2] == partition] + [*new]

    def flush(self, timeout_s):
        self.settled += 1
        if self.take:
            self._left.clear()


def changed(sink):
    return [one.id for outcome in sink.outcomes for one in outcome.incidents]


def tell(sink, store, *, take=True, n=200, **options):
    people = People(sink, take=take)
    options = {"knobs": KNOBS, "control": ListControl(("input",)), "outbox": people} | options
    failed = False
    try:
        play(
            ListSource([line(i, f"s{i}") for i in range(n)], committed=sink.offsets), sink, store,
            engine=lambda partition, fits: Obedient(), observers=[people], **options,
        )  # fmt: skip
    except Crash:
        failed = True
    return people, failed


def kept(store):
    found = store.load_journal(ONE)
    return [] if found is None else [one.id for one in CommandJournal(ONE, found, ()).outbox]


def test_people_are_told_once_it_is_durable_and_what_they_took_is_struck_out():
    sink, store = ListSink(["ok", "fail", *["ambiguous"] * 4]), MemorySnapshotStore()
    people, _ = tell(sink, store)
    assert people.told == changed(sink)
    assert len(people.told) > 10
    assert (people.again, kept(store), people.settled) == ([], [], 1)
    again, _ = tell(sink, store)
    assert again.told == []


def test_what_nobody_took_is_told_by_who_goes_on_and_by_nobody_after_that():
    sink, store = ListSink(), MemorySnapshotStore()
    first, _ = tell(sink, store, take=False, n=100)
    assert kept(store) == first.told == changed(sink)
    second, _ = tell(sink, store)
    assert second.again == first.told
    assert second.told == changed(sink), "what came since is told after it"
    assert kept(store) == []
    assert tell(sink, store)[0].told == []


@pytest.mark.parametrize("when", ["crash", "crash after"])
def test_after_a_crash_people_are_told_of_what_was_committed_and_of_that_alone(when):
    sink, store = ListSink([*["ok"] * 4, when]), MemorySnapshotStore()
    first, failed = tell(sink, store, knobs=KNOBS | {"snapshot_every_events": 25})
    assert failed
    durable, wrote = changed(sink), kept(store)
    assert (set(durable) - set(first.told) != set()) == (when == "crash after")
    assert set(wrote) - set(durable) or when == "crash after", "kept before the commit failed"
    second, _ = tell(sink, store)
    assert second.again == [one for one in wrote if one in durable]
    assert sorted({*first.told, *second.told}) == sorted(changed(sink))
    assert len(changed(sink)) == len(set(changed(sink)))


def test_a_quiet_input_is_no_reason_to_tell_again():
    """What is taken after the last event is struck out by a commit of its own."""
    sink, store = ListSink(), MemorySnapshotStore()
    tell(sink, store, take=False, n=100)
    commits = sink.n_commits
    people, _ = tell(sink, store, n=100)
    assert people.again
    assert sink.n_commits == commits + 1
    assert kept(store) == []
    assert sink.offsets == {ONE: 100}


def test_where_nobody_is_told_nothing_is_kept():
    sink, store = ListSink(), MemorySnapshotStore()
    tell(sink, store, take=False, n=100)
    assert kept(store)
    tell(sink, store, outbox=None)
    assert kept(store) == []


def test_the_newest_are_kept_where_nobody_takes_anything():
    journal = CommandJournal(ONE, None, ())
    sink = ListSink()
    tell(sink, MemorySnapshotStore(), n=2_000)
    changes = [one for outcome in sink.outcomes for one in outcome.incidents]
    many = changes * 10
    journal.set_outbox(many)
    found = CommandJournal(ONE, journal.encoded(None), ()).outbox
    assert list(found) == many[-500:]
