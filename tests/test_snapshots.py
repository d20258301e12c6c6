"""Snapshots in a folder: whole or not there, and of two offsets."""

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from rejex_connectors.folder_snapshots import FolderSnapshotStore

from rejex_stream.errors import CheckpointError, ConnectorError
from rejex_stream.protocols import SnapshotPiece
from rejex_stream.types import Partition
from tests.doubles import MemorySnapshotStore
from tests.waiting import pass_time

ONE = Partition("water", 0)
LAST = 2**63 - 1


@pytest.fixture(params=["folder", "memory"])
def store(request, tmp_path):
    return FolderSnapshotStore(tmp_path) if request.param == "folder" else MemorySnapshotStore(2)


def save(store, offset, base=None, partition=ONE, first=True, last=True, **parts):
    return store.save(partition, SnapshotPiece(offset, base, parts, first, last))


def test_the_newest_snapshot_at_or_before_an_offset_is_loaded(store):
    assert store.load(ONE, LAST) is None
    assert save(store, 10, a=b"1", b=b"1", c=b"1")
    assert save(store, 20, 10, a=b"2", c=None, d=b"")
    assert store.load(ONE, 9) is None
    assert store.load(ONE, 10) == (10, {"a": b"1", "b": b"1", "c": b"1"})
    assert store.load(ONE, 19) == (10, {"a": b"1", "b": b"1", "c": b"1"})
    assert store.load(ONE, LAST) == (20, {"a": b"2", "b": b"1", "d": b""})
    assert save(store, 30, 20, b=b"3")
    assert store.load(ONE, 19) is None, "two are kept"


def test_a_snapshot_in_pieces_is_there_with_its_last(store):
    save(store, 10, a=b"1", b=b"1")
    assert save(store, 20, 10, last=False, a=b"2")
    assert save(store, 20, 10, first=False, b=b"2")
    assert store.load(ONE, LAST) == (20, {"a": b"2", "b": b"2"})
    assert save(store, 30, 20, last=False, a=b"never")
    assert store.load(ONE, LAST) == (20, {"a": b"2", "b": b"2"})
    assert save(store, 31, 20, b=b"3"), "one that was not finished is as if it had not been"
    assert store.load(ONE, LAST) == (31, {"a": b"2", "b": b"3"})


def test_saving_drops_the_snapshots_of_a_past_that_was_given_up(store):
    save(store, 10, a=b"1")
    save(store, 30, 10, a=b"3")
    assert save(store, 15, 10, b=b"new")
    assert store.load(ONE, LAST) == (15, {"a": b"1", "b": b"new"})
    save(store, 12, a=b"whole")
    assert store.load(ONE, LAST) == (12, {"a": b"whole"})


def test_without_its_base_nothing_is_saved(store):
    assert not save(store, 20, 10, a=b"1")
    save(store, 20, a=b"1")
    assert not save(store, 30, 10, a=b"2")
    assert store.load(ONE, LAST) == (20, {"a": b"1"})


@pytest.mark.parametrize("other", [
    Partition("water", 1), Partition("water-0", 0), Partition("../water", 0),
    Partition("w" * 400, 0), Partition("泵/a b", 7), Partition("water", 10),
])  # fmt: skip
def test_partitions_are_kept_apart_whatever_their_topic_is_called(store, other):
    save(store, 10, a=b"one")
    assert store.load(other, 99) is None
    save(store, 5, partition=other, a=b"other")
    assert store.load(ONE, 99) == (10, {"a": b"one"})
    assert store.load(other, 99) == (5, {"a": b"other"})


def test_another_process_finds_what_was_saved_and_goes_on(tmp_path):
    parts = {"s\udc80/泵": b"\x00" * 100_000}
    FolderSnapshotStore(tmp_path / "deep" / "er").save(ONE, SnapshotPiece(10, None, parts))
    again = FolderSnapshotStore(tmp_path / "deep" / "er")
    assert again.load(ONE, 10) == (10, parts)
    save(again, 20, 10, b=b"2")
    save(FolderSnapshotStore(tmp_path / "deep" / "er"), 30, 20, c=b"3")
    assert again.load(ONE, LAST) == (30, parts | {"b": b"2", "c": b"3"})


def test_a_store_that_others_wrote_to_meanwhile_is_read_anew(tmp_path):
    one = FolderSnapshotStore(tmp_path)
    save(one, 10, a=b"1")
    save(one, 20, 10, a=b"2")
    other = FolderSnapshotStore(tmp_path)
    save(other, 30, 20, a=b"3")
    save(other, 40, 30, a=b"4")
    one.load(ONE, LAST)
    assert not save(one, 50, 20, b=b"5"), "what it builds upon is gone"
    assert one.load(ONE, LAST) == (40, {"a": b"4"})


def test_a_damaged_file_is_refused_with_the_way_out(tmp_path):
    store = FolderSnapshotStore(tmp_path)
    save(store, 10, a=b"before" * 2000)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[:100] = b"x" * 100
    path.write_bytes(content)
    for action in (lambda: store.load(ONE, 99), lambda: save(store, 20, 10)):
        with pytest.raises(CheckpointError, match=r"damaged .*`rejex-stream state drop`"):
            action()


def test_a_folder_that_cannot_be_used_is_an_error_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConnectorError, match="cannot be made"):
        FolderSnapshotStore(tmp_path / "file" / "folder")
    store = FolderSnapshotStore(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConnectorError, match="cannot be written"):
        save(store, 1, a=b"")
    with pytest.raises(ConnectorError, match="cannot be read"):
        store.load(ONE, 1)


@pytest.mark.parametrize("at", range(8))
def test_wherever_the_disk_fails_the_snapshot_before_is_whole(tmp_path, monkeypatch, at):
    """The statement that fails is the `at`-th; what was done before it is undone."""
    store = FolderSnapshotStore(tmp_path)
    save(store, 10, a=b"1", b=b"1", c=b"1")
    left = [at]

    class Failing(sqlite3.Connection):
        def execute(self, *args):
            left[0] -= 1
            if left[0] < 0:
                raise sqlite3.OperationalError("database or disk is full")
            return super().execute(*args)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **o: connect(*a, factory=Failing, **o))
    with pytest.raises(ConnectorError, match="disk is full"):
        save(store, 20, 10, a=b"2", b=b"2", c=None, d=b"2", e=b"2")
    monkeypatch.undo()
    assert FolderSnapshotStore(tmp_path).load(ONE, LAST) == (10, dict.fromkeys("abc", b"1"))
    assert save(store, 21, 10, a=b"3")
    assert store.load(ONE, LAST) == (21, {"a": b"3", "b": b"1", "c": b"1"})


@pytest.mark.thorough
def test_killed_while_saving_there_is_always_a_whole_snapshot(tmp_path):
    program = """
        import itertools, sys
        from rejex_connectors.folder_snapshots import FolderSnapshotStore
        from rejex_stream.protocols import SnapshotPiece
        from rejex_stream.types import Partition
        store = FolderSnapshotStore(sys.argv[1])
        for offset in itertools.count():
            body = b"%d," % offset * 5_000
            parts = {"a": body, "b": body} if offset % 2 else {"b": body, "c": body}
            base = offset - 1 if offset else None
            assert store.save(Partition("water", 0), SnapshotPiece(offset, base, parts))
            print(offset, flush=True)
    """
    root = Path(__file__).parents[1]
    env = os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{root / 'connectors'}"}
    for round_ in range(6):
        folder = tmp_path / str(round_)
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), str(folder)],
            stdout=subprocess.PIPE,
            env=env,
        ) as running:
            for _ in range(3):
                running.stdout.readline()
            pass_time(0.004 * round_, because="each kill falls elsewhere within a save")
            running.send_signal(signal.SIGKILL)
            last = [2, *map(int, running.stdout.read().split())][-1]
        offset, parts = FolderSnapshotStore(folder).load(ONE, LAST)
        assert offset in (last, last + 1)
        odd = offset if offset % 2 else offset - 1
        even = offset - 1 if offset % 2 else offset
        found = {name: int(body.split(b",")[0]) for name, body in parts.items()}
        assert found == {"a": odd, "b": offset, "c": even}
