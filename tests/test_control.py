"""What people tell a running pipeline holds from a place in the order, whatever fails."""

import contextlib
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rejex_stream.encode import decode_command, decode_incidents, encode_command, encode_incident
from rejex_stream.encode.records import position_of
from rejex_stream.errors import CheckpointError, ConnectorError
from rejex_stream.protocols import ControlRecords
from rejex_stream.run import command_journal
from rejex_stream.run.command_journal import CommandJournal
from rejex_stream.run.run_events import Committed, ControlUnread, PartitionOpened
from rejex_stream.types import Command, CommandKind, CommandReply, Position, Record
from tests.doubles import (
    ABORT,
    REBALANCE,
    RETRY,
    ListControl,
    ListSink,
    ListSource,
    MemorySnapshotStore,
)
from tests.obedient import Obedient, as_decided
from tests.test_runtime import ONE, TWO, Watching, by_partition, line, play, play_through

FEW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def lines(n, sensors="ab"):
    return [b"not json" if i % 19 == 18 else line(i, sensors[i % len(sensors)]) for i in range(n)]


def given_as(kind, id_, **fields):
    return encode_command(Command(id=id_, kind=CommandKind(kind), **fields))


def plan(id_, stream_key=None):
    return given_as("planned", id_, stream_key=stream_key, from_ms=0, until_ms=9)


def mute(id_, stream_key, until_ms=9):
    more = {"from_ms": 0, "until_ms": until_ms, "box": {"x": (1.5, 2.5)}, "by": "ada", "note": "n"}
    return given_as("mute", id_, stream_key=stream_key, **more)


def log(*words, n=0):
    return [Record(Position("control", 0, at), None, word) for at, word in enumerate(words, n)]


class Speaking(ListSource):
    """While records are polled somebody speaks: `words` by how many polls there were before."""

    def __init__(self, script, control, words, **options):
        self.control, self.words, self.polls = control, dict(words), 0
        super().__init__(script, **options)

    def poll(self, max_records, timeout_s):
        self.control.lines += self.words.pop(self.polls, [])
        self.polls += 1
        return super().poll(max_records, timeout_s)


def obedient(waits=0):
    return lambda partition, fits: Obedient(waits)


def lives(source, sink, store, control, waits=0, **knobs):
    """Start a process after every crash, until the input has ended."""
    play_through(source, sink, store, engine=obedient(waits), control=control, knobs=knobs)


def replies(outcomes):
    return [
        (outcome.record.position.offset, reply) for outcome in outcomes for reply in outcome.replies
    ]


def undisturbed(scripts, control, sink):
    """The same input, and the same commands at the same offsets, with nothing in between."""
    store = MemorySnapshotStore()
    said = log(*control.lines)
    for partition, outcomes in by_partition(sink).items():
        told = [(offset, reply.command) for offset, reply in replies(outcomes)]
        end = sink.offsets[partition]
        store.journals[partition] = as_decided(partition, control.inputs, said, told, end)
    plain = ListSink()
    source = ListSource({p: [x for x in s if isinstance(x, bytes)] for p, s in scripts.items()})
    play(
        source, plain, store, engine=obedient(), control=ListControl(),
        knobs={"max_poll_records": 1000},
    )  # fmt: skip
    return plain


SAID = st.one_of(
    st.builds(mute, st.sampled_from("pqr"), st.sampled_from(["a", "b", "z"])),
    st.builds(plan, st.sampled_from("pqr"), st.sampled_from([None, "a", "b", "z"])),
    st.builds(lambda c: given_as("cancel", f"c{c}", cancels=c), st.sampled_from("pqr")),
    st.builds(
        lambda kind, p, offset, version: given_as(
            kind, f"{kind}-{p}-{offset}-{version}", incident=f"input-{p}-{offset}", version=version
        ),
        st.sampled_from(["fault", "new_normal"]), st.integers(0, 1),
        st.sampled_from([3, 13, 23, 24, 33, 34, 44]), st.integers(1, 3),
    ),
    st.sampled_from([b"", b"{", b'{"id": "x"}', b'{"id": "y", "kind": "fault"}', b"[1]"]),
    st.just(given_as("fault", "far", incident="elsewhere-0-3", version=1)),
)  # fmt: skip
TROUBLE = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from([ABORT, RETRY, REBALANCE])), max_size=6
)


@pytest.mark.thorough
@FEW
@given(
    TROUBLE, TROUBLE,
    st.dictionaries(st.integers(0, 60), st.lists(SAID, min_size=1, max_size=3), max_size=12),
    st.lists(st.sampled_from(["ok", "fail", "ambiguous", "crash", "crash after"]), max_size=12),
    st.integers(1, 9), st.sampled_from([0.0, 0.05]), st.sampled_from([1, 7, 1000]),
    st.sampled_from([0, 2]),
)  # fmt: skip
def test_whatever_fails_it_is_as_if_nothing_had_and_the_commands_stood_in_the_input(
    one, two, words, commits, most, interval, every, waits
):
    scripts = {}
    for partition, trouble in ((ONE, one), (TWO, two)):
        scripts[partition] = lines(60)
        for at, what in sorted(trouble, key=lambda item: -item[0]):
            scripts[partition].insert(at, what)
    control, sink, store = ListControl(), ListSink(commits), MemorySnapshotStore()
    source = Speaking(scripts, control, words, committed=sink.offsets)
    knobs = {
        "max_poll_records": most, "commit_interval_s": interval, "snapshot_every_events": every,
        "invalid_limit": 1.0,
    }  # fmt: skip
    lives(source, sink, store, control, waits, **knobs)
    plain = undisturbed(scripts, control, sink)
    assert by_partition(sink) == by_partition(plain)
    assert {p: len(outcomes) for p, outcomes in by_partition(sink).items()} == {ONE: 60, TWO: 60}


def test_a_command_holds_from_the_commit_that_records_it_and_is_answered_there():
    control, sink, store = ListControl(), ListSink(), MemorySnapshotStore()
    words = {5: [plan("p")], 9: [given_as("cancel", "c", cancels="p")]}
    source = Speaking(lines(60), control, words)
    lives(source, sink, store, control, max_poll_records=5, commit_interval_s=0.0)
    found = replies(sink.outcomes)
    assert [(reply.command, reply.accepted) for _, reply in found] == [("p", True), ("c", True)]
    (begin, _), (end, _) = found
    assert 0 < begin < end < 60
    planned = [
        out.record.position.offset for out in sink.outcomes if out.verdict and out.verdict.planned
    ]
    assert planned == [i for i in range(begin, end) if i % 19 != 18]


def answered(control, words=None, script=None, **knobs):
    sink = ListSink()
    source = Speaking(script or lines(200), control, words or {})
    usual = {"max_poll_records": 5, "commit_interval_s": 0.0}
    lives(source, sink, MemorySnapshotStore(), control, **(usual | knobs))
    return sink, {reply.command: reply for _, reply in replies(sink.outcomes)}


def test_an_incident_is_answered_by_its_partition_and_its_changes_are_told_once():
    sink, found = answered(ListControl())
    opened = [change for out in sink.outcomes for change in out.incidents]
    assert opened
    control = ListControl()
    first = opened[0]
    words = {
        12: [given_as("fault", "f", incident=first.id, version=1)],
        14: [given_as("fault", "stale", incident=first.id, version=1),
        given_as("new_normal", "n", incident=first.id, version=2)],
        20: [given_as("new_normal", "late", incident=first.id, version=3)],
    }  # fmt: skip
    sink, found = answered(control, words)
    assert [found[id_].accepted for id_ in ("f", "stale", "n", "late")] == [
        True, False, True, False,
    ]  # fmt: skip
    assert found["stale"].said == "it is at version 2, not 1"
    assert found["late"].said == f"input-0 has no incident {first.id!r}"
    changes = [change for out in sink.outcomes for change in out.incidents if change.id == first.id]
    assert [(change.version, change.state, change.answer) for change in changes] == [
        (1, "open", None), (2, "fault", "f"), (3, "closed", "n"),
    ]  # fmt: skip
    assert all(
        change.position == out.record.position for out in sink.outcomes for change in out.incidents
    )


def test_poison_unknown_and_repeated_commands_are_refused_with_a_sentence():
    control = ListControl()
    control.lines = [
        b"\xff", b"", b'{"id": "half", "kind": "fault"}', b'{"id": "odd", "kind": "dance"}',
        plan("p", "z"), plan("q"), plan("q"), given_as("cancel", "c", cancels="nothing"),
        given_as("fault", "far", incident="elsewhere-3-3", version=1),
        given_as("fault", "named", incident="the pump", version=1),
        given_as("fault", "other", incident="input-1-3", version=1),
        plan("x" * 300), plan("q" * 90, "s" * 2_000),
        encode_command(Command(id="big", kind=CommandKind.FAULT, incident="a", version=2**60)),
    ]  # fmt: skip
    sink, _ = answered(control)
    said = {}
    for _, reply in replies(sink.outcomes):
        said.setdefault(reply.command, []).append((reply.accepted, reply.said))
    assert all(not accepted for id_, found in said.items() if id_ != "q" for accepted, _ in found)
    assert [accepted for accepted, _ in said["q"]] == [True, False]
    assert said["q"][1][1].startswith("it was given before")
    assert said["half"] == [(False, "the command 'half' (fault) does not say incident: the id of "
                             "the one that is answered")]  # fmt: skip
    assert "expected a command as one JSON object" in said["control-0-0"][0][1]
    assert said["p"] == [(False, "input-0 has no stream 'z'")]
    assert said["c"] == [(False, "input-0 has no plan 'nothing'")]
    assert said["far"] == [(False, "input-0 has no incident 'elsewhere-3-3'")]
    assert said["named"] == [(False, "input-0 has no incident 'the pump'")]
    assert "other" not in said, "that is for partition 1 to say"
    assert len(sink.outcomes) == 200
    assert {"odd", "big", "control-0-1"} < said.keys()


def test_partitions_without_events_are_told_by_a_commit_of_their_own():
    """Who sends an event an hour is not asked to send two before a word counts."""
    control, sink, store = ListControl(), ListSink(), MemorySnapshotStore()

    class Hourly(ListSource):
        """A record, then a word, then many polls without anything, then the other record."""

        polls = 0

        def poll(self, max_records, timeout_s):
            self.polls += 1
            if 2 < self.polls < 20:
                if self.polls == 10:
                    assert sink.offsets[ONE] == 1, "nothing waits for the second"
                    control.lines.append(plan("p"))
                if self.polls == 19:
                    kept = CommandJournal(ONE, store.journals[ONE], ["input"])
                    kept.rewind_to(1, allow_gaps=False)
                    assert kept.next_effective_offset == 1, "it is durable before its effect"
                return []
            return super().poll(1, timeout_s)

    lives(Hourly(lines(2), committed=sink.offsets), sink, store, control, commit_interval_s=0.0)
    assert [offset for offset, _ in replies(sink.outcomes)] == [1]


class Away(ListControl):
    """A log that cannot be read for a while."""

    def __init__(self, away):
        super().__init__()
        self.away = away

    def read(self, start):
        self.away -= 1
        if self.away >= 0:
            raise ConnectorError("topic 'rejex.control' does not exist")
        return super().read(start)


@pytest.mark.thorough
def test_a_log_that_cannot_be_read_stops_nothing_and_is_said_once():
    control, sink, watching = Away(2), ListSink(), Watching()
    control.lines.append(plan("p"))
    play(
        ListSource(lines(9_000)), sink, MemorySnapshotStore(), engine=obedient(),
        control=control, observers=[watching],
        knobs={"max_poll_records": 5, "commit_interval_s": 0.0, "invalid_limit": 1.0},
    )  # fmt: skip
    assert watching.of(ControlUnread) == [
        ControlUnread("topic 'rejex.control' does not exist"), ControlUnread(None)
    ]  # fmt: skip
    assert len(sink.outcomes) == 9_000
    assert len(replies(sink.outcomes)) == 1


def test_what_no_replay_needs_is_dropped_and_a_replay_that_needed_it_is_refused():
    control, sink, store = ListControl(), ListSink(), MemorySnapshotStore(keep=100)
    words = {n: [plan(f"p{n}")] for n in range(2, 18, 2)}
    source = Speaking(lines(80), control, words, committed=sink.offsets)
    knobs = {"max_poll_records": 5, "commit_interval_s": 0.0, "invalid_limit": 1.0}
    lives(source, sink, store, control, snapshot_every_events=10, **knobs)
    kept = CommandJournal(ONE, store.journals[ONE], ["input"])._durable
    assert 0 < len(kept.entries) < len(words)
    assert all(entry.effective_offset >= kept.replayable_from > 0 for entry in kept.entries)
    assert len(replies(sink.outcomes)) == len(words)
    before = [offset for offset in store.snapshots[ONE] if offset < kept.replayable_from]
    store.snapshots[ONE] = {before[-1]: store.snapshots[ONE][before[-1]]}
    with pytest.raises(CheckpointError, match="were dropped once there were newer snapshots"):
        play(ListSource(lines(110), committed=sink.offsets), sink, store, engine=obedient(),
             control=control)  # fmt: skip
    play(ListSource(lines(110), committed=sink.offsets), sink, store, engine=obedient(),
         control=control, knobs={"lost_state": "restart"})  # fmt: skip
    assert len(sink.outcomes) == 110


def test_a_flood_waits_in_the_log_and_nothing_of_it_is_lost(monkeypatch):
    monkeypatch.setattr(command_journal, "MAX_ENTRIES", 10)
    control = ListControl()
    control.lines = [mute(f"m{n}", "a", 10**6) for n in range(35)]
    script = [line(i) for i in range(2_000)]
    sink, found = answered(control, script=script, snapshot_every_events=9_999)
    assert len(found) == 35
    assert len({offset for offset, _ in replies(sink.outcomes)}) >= 4
    monkeypatch.setattr(command_journal, "MAX_ENTRIES", 35)
    assert undisturbed({ONE: script}, control, sink).outcomes == sink.outcomes


@pytest.mark.parametrize("n_old", [1_500, 5_000])
def test_a_new_answer_does_not_wait_behind_old_commands(n_old):
    control, script = ListControl(), [line(i) for i in range(100, 3_100)]
    control.lines = [plan(f"p{n}") for n in range(n_old)]  # they have ended with t = 9
    control.lines.insert(n_old - 7, given_as("fault", "of_nobody", incident="gone-0-3", version=1))
    words = {40: [mute("new", "a", 10**6)]}
    sink, found = answered(control, words, script)
    (at,) = [offset for offset, reply in replies(sink.outcomes) if reply.command == "new"]
    assert at <= 40 * 5 + 15
    assert found["new"].accepted
    assert len(replies(sink.outcomes)) < 100
    passed = [reply.said for reply in found.values() if "were dropped" in reply.said]
    assert sum(int(said.split(" ")[0].replace(",", "")) for said in passed) > n_old - 100


def test_a_long_queue_of_what_still_holds_is_decided_in_its_order_after_the_first_event():
    control = ListControl()
    control.lines = [mute(f"m{n}", "a", 10**6) for n in range(150)]
    sink, found = answered(control, script=[line(i) for i in range(300)])
    assert [reply.command for _, reply in replies(sink.outcomes)] == [f"m{n}" for n in range(150)]
    assert not any("were dropped" in reply.said for reply in found.values())
    assert replies(sink.outcomes)[0][0] > 0


def queue_of(*lines_, is_over=lambda command: False):
    journal = CommandJournal(ONE, None, ["input"])
    journal.is_expired = is_over
    journal.ingest(ControlRecords(log(*lines_), len(lines_)))
    return journal


def left(journal):
    return [getattr(said, "id", getattr(said, "command", None)) for _, said in journal.unassigned]


def test_what_was_taken_back_or_given_before_is_passed_over_and_a_short_queue_never():
    long = [plan(f"p{n}") for n in range(command_journal.LONG_QUEUE)]
    taken = given_as("cancel", "c", cancels="p3")
    queue = queue_of(*long, taken)
    queue.drop_superseded()
    assert left(queue) == [*(f"p{n}" for n in range(command_journal.LONG_QUEUE)), "c"]
    (_, said) = queue.unassigned[3]
    assert said.said.startswith("1 commands up to this one were dropped")
    assert queue.unassigned[3][0] == 3
    queue = queue_of(*long)
    queue.is_expired = lambda command: True
    queue.drop_superseded()
    assert len(queue.unassigned) == command_journal.LONG_QUEUE
    queue = queue_of(*long, taken, is_over=lambda command: command.id != "c")
    queue.drop_superseded()
    assert left(queue) == [f"p{command_journal.LONG_QUEUE - 1}", "c"]
    queue.assign_offset(7)
    assert (
        CommandJournal(ONE, queue.encoded(None), ["input"]).next_command
        == command_journal.LONG_QUEUE + 1
    )


def test_a_command_that_was_obeyed_takes_no_place_in_a_long_queue_again():
    queue = queue_of(plan("p0"))
    queue.assign_offset(5)
    queue.ingest(ControlRecords(log(*[plan("p0")] * 149, n=1), 150))
    queue.drop_superseded()
    assert len(queue.unassigned) == 1


@pytest.mark.thorough
def test_what_waits_is_counted_where_it_is_committed():
    seen, control = Watching(), ListControl()
    control.lines = [mute(f"m{n}", "a", 10**6) for n in range(1_400)]
    sink = ListSink()
    play(Speaking([line(i) for i in range(300)], control, {}), sink, MemorySnapshotStore(),
         engine=obedient(), control=control, observers=[seen],
         knobs={"max_poll_records": 5, "commit_interval_s": 0, "snapshot_every_events": 9_999},
    )  # fmt: skip
    waits = [e.waiting[ONE] for e in seen.of(Committed)]
    assert 400 in waits
    assert waits[-1] == 0, "no snapshot is due by events or time: it is since commands wait for it"
    assert len(replies(sink.outcomes)) == len(control.lines)


def test_of_many_commands_the_newest_are_known_when_they_come_again(monkeypatch):
    monkeypatch.setattr(command_journal, "_MAX_KNOWN", 2)
    journal = CommandJournal(ONE, None, ["input"])
    for n, id_ in enumerate("abcca"):
        journal.ingest(ControlRecords(log(plan(id_), n=n), n + 1))
        journal.assign_offset(n)
    answers = journal.apply_due(9, lambda c: CommandReply(command=c.id, accepted=True, said=""))
    assert [answer.command for answer in answers if answer.accepted] == ["a", "b", "c", "a"]


def test_a_command_in_effect_from_the_oldest_snapshot_is_there_for_a_replay_from_it():
    journal = queue_of(plan("p"))
    journal.assign_offset(5)
    journal.apply_due(5, lambda command: None)
    due = []
    for snapshot, oldest in ((5, 5), (9, 5), (12, 9)):  # two are kept
        journal.snapshot_saved(snapshot)
        again = CommandJournal(ONE, journal.encoded(None), ["input"])
        again.rewind_to(oldest, allow_gaps=False)
        due.append(again.next_effective_offset)
    assert due == [5, 5, None]


@pytest.mark.parametrize("commands", [[], [plan("p")]])
def test_a_partition_that_comes_back_with_commands_of_another_worker_is_rebuilt(commands):
    control, sink, store, seen = ListControl(), ListSink(), MemorySnapshotStore(), Watching()
    journal = as_decided(ONE, control.inputs, log(*commands), [(4, "p")], 4)

    class Elsewhere(ListSource):
        def _lose(self, partition):
            assert sink.offsets[ONE] == 4, "we hold two outcomes more"
            sink.offsets[ONE], store.journals[ONE] = 5, journal
            super()._lose(partition)

    script = [*map(line, range(6)), REBALANCE, *map(line, range(6, 9))]
    play(
        Elsewhere(script, committed=sink.offsets), sink, store,
        engine=obedient(), control=control, observers=[seen],
        knobs={"max_poll_records": 2, "commit_every_events": 4, "commit_interval_s": 60},
    )  # fmt: skip
    assert len(seen.of(PartitionOpened)) == 1 + len(commands)
    assert [outcome.record.position.offset for outcome in sink.outcomes] == [
        0, 1, 2, 3, *range(5, 9),
    ]  # fmt: skip


def test_after_a_crash_the_log_is_read_from_the_first_command_that_waited(monkeypatch):
    monkeypatch.setattr(command_journal, "MAX_ENTRIES", 2)
    said = log(*(plan(f"p{n}") for n in range(5)))
    before = CommandJournal(ONE, None, [])
    before.ingest(ControlRecords(said, 5))
    before.assign_offset(100)
    after = CommandJournal(ONE, before.encoded(None), [])
    assert after.next_command == 2  # the next three are nowhere but in the log
    after.rewind_to(100, allow_gaps=False)
    found = [reply.command for reply in after.apply_due(100, lambda command: None)]
    after.snapshot_saved(150)
    after.snapshot_saved(200)
    after.ingest(ControlRecords(said[after.next_command :], 5))
    after.assign_offset(200)
    found += [reply.command for reply in after.apply_due(200, lambda command: None)]
    assert found == ["p0", "p1", "p2", "p3"]


def test_no_snapshot_begins_between_a_command_and_the_event_from_which_it_holds():
    """It would contain what the next run does again: here it ends while a fit is waited for."""
    control, sink, store, stop = ListControl(), ListSink(), MemorySnapshotStore(), threading.Event()

    class Stopped(Obedient):
        def ready(self, readings):
            if self.asked and not self.plans:  # the cancellation was obeyed
                stop.set()
            return super().ready(readings)

    words = {2: [mute("m", "a")], 7: [given_as("cancel", "c", cancels="m")]}
    source = Speaking(lines(60), control, words, committed=sink.offsets)
    knobs = {"max_poll_records": 5, "commit_interval_s": 0.0, "snapshot_every_events": 1000}
    play(source, sink, store, engine=lambda *_: Stopped(waits=2), control=control, stop=stop,
         knobs=knobs | {"invalid_limit": 1.0})  # fmt: skip
    assert 0 < len(sink.outcomes) < 60
    assert len(replies(sink.outcomes)) == 1  # the event from which the other holds was not judged
    lives(source, sink, store, control, invalid_limit=1.0)
    assert [reply.accepted for _, reply in replies(sink.outcomes)] == [True, True]
    assert by_partition(sink) == by_partition(undisturbed({ONE: lines(60)}, control, sink))


def test_commands_keep_their_order_where_a_commit_failed_that_was_recorded():
    """A folder keeps its journal before the commit: the next commit may stand before that one."""

    def heard(journal, *words):
        for id_ in words:
            at = journal.next_command
            journal.ingest(ControlRecords(log(plan(id_), n=at), at + 1))

    before = CommandJournal(ONE, None, [])
    heard(before, "first")
    before.assign_offset(100)
    after = CommandJournal(ONE, before.encoded(None), [])
    after.rewind_to(50, allow_gaps=False)
    heard(after, "second")
    after.assign_offset(60)
    again = CommandJournal(ONE, after.encoded(None), [])
    again.rewind_to(70, allow_gaps=False)
    assert again.apply_due(99, lambda command: None) == ()
    assert [reply.command for reply in again.apply_due(100, lambda command: None)] == [
        "first", "second",
    ]  # fmt: skip


def test_decisions_that_are_none_are_refused():
    with pytest.raises(CheckpointError, match="cannot be read"):
        CommandJournal(ONE, b"\x00", [])
    ours = CommandJournal(ONE, None, []).encoded(None)
    earlier = ours.replace(b"\x99\x01", b"\x97\x01", 1).removesuffix(b"\x90\xc4\x00")
    assert earlier != ours
    assert CommandJournal(ONE, earlier, []).outbox == (), "an earlier version lists nothing"
    newer = ours.replace(b"\x99\x01", b"\x99\x09", 1)
    with pytest.raises(CheckpointError, match="has format 9"):
        CommandJournal(ONE, newer, [])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_command_or_refused(said):
    with contextlib.suppress(ConnectorError):
        decode_command(said)


def test_what_was_written_of_an_incident_is_read_again():
    sink, _ = answered(ListControl())
    for incident in [change for out in sink.outcomes for change in out.incidents]:
        assert decode_incidents(encode_incident(incident)) == incident
        assert str(position_of(incident.id)) == incident.id


def test_a_position_names_one_partition_and_what_is_none_no_partition():
    assert position_of("a-b-12-345") == Position("a-b", 12, 345)
    none = ["", "a", "a-1", "-0-1", "a-x-1", "a-1-", "a-²-1", "a--1"]
    assert [*map(position_of, none)] == [None] * len(none)


def test_of_a_log_that_was_made_again_everything_is_read_after_a_crash(monkeypatch):
    """What was read of the log before keeps no place in the new one, and waits for room."""
    monkeypatch.setattr(command_journal, "MAX_ENTRIES", 2)
    before = CommandJournal(ONE, None, [])
    old = log(*(plan(f"old{n}") for n in range(5)))
    assert before.ingest(ControlRecords(old, 5, b"a log"))
    assert not before.ingest(ControlRecords([], 0, b"another"))
    assert before.ingest(ControlRecords(log(plan("new")), 1, b"another"))
    before.assign_offset(100)
    assert CommandJournal(ONE, before.encoded(None), []).next_command == 0
