"""Commands in a file: read while it grows, and obeyed at the same event after any kill."""

import json
import random
import signal
import sys

import pytest
from rejex_connectors.files import FileControl, FileSource
from rejex_connectors.files.source import append_line
from rejex_connectors.folder_snapshots import FolderSnapshotStore

from rejex_stream.encode import decode_incidents, encode_command
from rejex_stream.errors import ConnectorError
from rejex_stream.protocols import ControlRecords
from rejex_stream.run.command_journal import CommandJournal, CommandReader
from rejex_stream.types import Command, CommandKind, Incident, Partition, Position, Record
from tests import control_from_files
from tests.obedient import as_decided
from tests.program import started
from tests.waiting import pass_time, until

N_EVENTS = 2_000


def plan(id_):
    return encode_command(Command(id=id_, kind=CommandKind.PLANNED, from_ms=0, until_ms=9))


def test_lines_are_heard_whole_and_each_once(tmp_path):
    path = tmp_path / "control.jsonl"
    log = FileControl(path, ["in"])
    assert log.read(0)[:2] == ([], 0)
    path.write_bytes(b'{"a": 1}\r\n\n{"b"')
    first = log.read(0)
    assert [record.value for record in first.records] == [b'{"a": 1}']
    assert log.read(first.next_offset)[:2] == ([], first.next_offset)
    with path.open("ab") as file:
        file.write(b": 2}\n")
    second = log.read(first.next_offset)
    assert [(r.position.offset, r.value) for r in second.records] == [(11, b'{"b": 2}')]
    assert log.read(second.next_offset).records == []


@pytest.mark.parametrize("names", [["n1"], ["n1", "n2", "n3", "n4"]], ids=["shorter", "longer"])
def test_a_file_made_anew_is_read_from_its_beginning(tmp_path, names):
    path = tmp_path / "control.jsonl"
    log = FileControl(path, ["in"])
    journal = CommandJournal(Partition("in", 0), None, ["in"])
    reader = CommandReader(log, lambda _: None)

    def obeyed():
        reader.ingest([journal])
        found = [item.id for _, item in journal.unassigned]
        journal.assign_offset(0)
        return found

    path.write_bytes(plan("a") + b"\n" + plan("b") + b"\n")
    assert obeyed() == ["a", "b"]
    path.write_bytes(b"".join(plan(name) + b"\n" for name in names))
    assert [*obeyed(), *obeyed()] == names
    kept = CommandJournal(Partition("in", 0), journal.encoded(None), ["in"])
    assert kept.next_command == path.stat().st_size
    journal = kept
    path.write_bytes(plan("c") + b"\n" + plan("d") + b"\n")
    assert [*obeyed(), *obeyed()] == ["c", "d"]


@pytest.mark.thorough
def test_commands_that_wait_while_the_log_is_made_anew_name_no_place_in_it():
    journal = CommandJournal(Partition("in", 0), None, ["in"])
    old = [Record(Position("c", 0, n), None, plan(f"a{n}")) for n in range(1_500)]
    journal.ingest(ControlRecords(old, 1_500, b"old"))
    assert not journal.ingest(ControlRecords([], 1_500, b"new"))
    journal.assign_offset(7)
    assert len(journal.entries) == 1_000, "no more have room"
    after = CommandJournal(Partition("in", 0), journal.encoded(None), ["in"])
    assert after.next_command == 0, "a crash here loses none of the new log"


def test_a_file_is_told_from_another_by_its_first_line(tmp_path):
    path = tmp_path / "control.jsonl"
    log = FileControl(path, ["in"])
    path.write_bytes(b"one\ntwo\n")
    first = log.read(0).log
    with path.open("ab") as file:
        file.write(b"three\n")
    assert first
    assert log.read(4).log == first
    path.write_bytes(b"another\ntwo\nthree\nfour\n")
    assert log.read(8).log not in (b"", first)
    path.write_bytes(b"not whole")
    assert log.read(0).log == b""


def test_what_cannot_be_read_is_said(tmp_path):
    with pytest.raises(ConnectorError, match="cannot be read"):
        FileControl(tmp_path, ["in"]).read(0)


def test_a_line_without_end_is_neither_waited_for_nor_kept_in_memory(tmp_path):
    path = tmp_path / "control.jsonl"
    path.write_bytes(b"x" * (3 << 20) + b'\n{"id": "after"}\n')
    log, at, found = FileControl(path, ["in"]), 0, []
    for _ in range(5):
        heard = log.read(at)
        at, found = heard.next_offset, found + list(heard.records)
    assert found[-1].value == b'{"id": "after"}'
    assert max(len(record.value) for record in found) <= 1 << 20


def test_an_appended_line_stands_alone(tmp_path):
    path = tmp_path / "control.jsonl"
    append_line(path, b"one")
    with path.open("ab") as file:
        file.write(b"half")
    append_line(path, b"two")
    assert path.read_bytes() == b"one\nhalf\ntwo\n"


# -------------------------------------------------------------------------- killed at any moment
@pytest.fixture(scope="module")
def feed(tmp_path_factory):
    path = tmp_path_factory.mktemp("control") / "feed.jsonl"
    events = [
        "broken" if i % 50 == 49 else json.dumps({"id": "abc"[i % 3], "t": i, "x": i * 7919 % 1009})
        for i in range(N_EVENTS)
    ]
    path.write_text("\n".join(events))
    return path


def said(path):
    return FileControl(path, ["feed.jsonl"]).read(0).records if path.exists() else []


def told(path):
    """Changes of incidents and replies, of which the last may be half written."""
    content = path.read_bytes() if path.exists() else b""
    return [decode_incidents(line) for line in content.split(b"\n")[:-1] if line.endswith(b"}")]


class Person:
    """Answers what is open, plans work and mutes, at random; sometimes too late, or twice."""

    def __init__(self, out, rng):
        self.out, self.rng, self.n = out, rng, 0

    def speak(self):
        self.n += 1
        found = [item for item in told(self.out / "incidents.jsonl") if isinstance(item, Incident)]
        if found and self.rng.random() < 0.7:
            one = self.rng.choice(found[-4:])
            kind = self.rng.choice([CommandKind.FAULT, CommandKind.NEW_NORMAL])
            command = Command(id=f"c{self.n}", kind=kind, incident=one.id, version=one.version)
        elif self.n % 2:
            command = Command(id=f"c{self.n}", kind=CommandKind.PLANNED, from_ms=0, until_ms=self.n)
        else:
            command = Command(
                id=f"c{self.n}", kind=CommandKind.MUTE, stream_key="abc"[self.n % 3],
                from_ms=0, until_ms=self.n, box={"x": (0.0, float(self.n))}, by="p", note="known",
            )  # fmt: skip
        for _ in range(self.rng.choice([1, 1, 1, 2])):
            append_line(self.out / "control.jsonl", encode_command(command))
        if self.rng.random() < 0.2:
            append_line(self.out / "control.jsonl", b"{nonsense")


def run_once(feed, out, *, kill_after_s, person):
    with started([sys.executable, "-m", "tests.control_from_files", feed, out]) as running:
        commit = out / "state" / "commit.json"
        before = commit.stat().st_mtime_ns if commit.exists() else None
        until(
            lambda: (
                running.poll() is not None
                or (commit.exists() and commit.stat().st_mtime_ns != before)
            ),
            every_s=0.002,
        )
        if kill_after_s is not None:
            for _ in range(4):
                person.speak()
                pass_time(kill_after_s / 4, because="the moment of the kill is random")
            running.send_signal(signal.SIGKILL)
        code = running.wait(240)
        assert code in (0, -signal.SIGKILL), running.stderr.read().decode()
        return code


@pytest.mark.parametrize(
    "kills",
    [pytest.param(5, marks=pytest.mark.thorough), pytest.param(100, marks=pytest.mark.slow)],
)
def test_killed_between_answers_and_their_effect_nothing_shows(feed, tmp_path, kills):
    if kills > 50:
        bigger = tmp_path / "feed.jsonl"
        bigger.write_bytes(b"\n".join([feed.read_bytes()] * 20))
        feed = bigger
    rng, out, quiet = random.Random(kills), tmp_path / "troubled", tmp_path / "quiet"
    out.mkdir()
    person, killed = Person(out, rng), 0
    while killed < kills:
        if run_once(feed, out, kill_after_s=rng.expovariate(1 / 0.1), person=person) == 0:
            break
        killed += 1
    assert run_once(feed, out, kill_after_s=None, person=person) == 0
    assert killed >= kills / 2
    found = told(out / "incidents.jsonl")
    replies = [
        (item[0].offset, item[1].command) for item in found if not isinstance(item, Incident)
    ]
    assert len(replies) > kills
    assert len({item[1].accepted for item in found if not isinstance(item, Incident)}) == 2
    store = FolderSnapshotStore(quiet / "state")
    source = FileSource(feed)
    partition, n_events = source.partition, len(feed.read_bytes().splitlines())
    source.close()
    kept = as_decided(partition, [feed.name], said(out / "control.jsonl"), replies, n_events)
    store.save_journal(partition, kept)
    control_from_files.main(str(feed), str(quiet))
    for name in ("verdicts.jsonl", "incidents.jsonl", "dead.jsonl"):
        assert (out / name).read_bytes() == (quiet / name).read_bytes(), name
