"""Snapshots in a folder: whole or not there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from rejex_connectors.snapshots import FolderSnapshotStore

from rejex_stream.errors import CheckpointError, ConfigError, ConnectorError
from rejex_stream.testing import MemorySnapshotStore
from rejex_stream.types import Partition

ONE = Partition("water", 0)


@pytest.fixture(params=["folder", "memory"])
def store(request, tmp_path):
    return (
        FolderSnapshotStore(tmp_path, keep=3)
        if request.param == "folder"
        else MemorySnapshotStore(3)
    )


def test_the_newest_snapshot_at_or_before_an_offset_is_loaded(store):
    for offset in (10, 20, 30):
        store.save(ONE, offset, b"%d" % offset)
    assert store.load(ONE, 9) is None
    assert store.load(ONE, 10) == (10, b"10")
    assert store.load(ONE, 29) == (20, b"20")
    assert store.load(ONE, 2**63 - 1) == (30, b"30")


def test_only_the_newest_few_are_kept(store):
    for offset in range(0, 100, 10):
        store.save(ONE, offset, b"%d" % offset)
    assert store.load(ONE, 69) is None
    assert store.load(ONE, 70) == (70, b"70")


def test_saving_drops_the_snapshots_of_a_past_that_was_given_up(store):
    for offset in (10, 20, 30):
        store.save(ONE, offset, b"old")
    store.save(ONE, 15, b"new")
    assert store.load(ONE, 2**63 - 1) == (15, b"new")
    assert store.load(ONE, 14) == (10, b"old")


def test_saving_an_offset_again_replaces_it(store):
    store.save(ONE, 10, b"old")
    store.save(ONE, 10, b"new")
    assert store.load(ONE, 10) == (10, b"new")


@pytest.mark.parametrize(
    "other",
    [
        Partition("water", 1),
        Partition("water-0", 0),
        Partition("../water", 0),
        Partition("w" * 400, 0),
        Partition("泵/a b", 7),
        Partition("water", 10),
    ],
)
def test_partitions_are_kept_apart_whatever_their_topic_is_called(store, other):
    store.save(ONE, 10, b"one")
    assert store.load(other, 99) is None
    store.save(other, 5, b"other")
    assert store.load(ONE, 99) == (10, b"one")
    assert store.load(other, 99) == (5, b"other")


def test_another_process_finds_what_was_saved(tmp_path):
    FolderSnapshotStore(tmp_path / "deep" / "er").save(ONE, 10, b"\x00" * 100_000)
    assert FolderSnapshotStore(tmp_path / "deep" / "er").load(ONE, 10) == (10, b"\x00" * 100_000)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content + b"x",
        lambda content: b"",
        lambda content: content[:60] + bytes([content[60] ^ 1]) + content[61:],
        lambda content: b"X" + content[1:],
    ],
)
def test_a_damaged_snapshot_is_refused_and_removing_it_uncovers_the_one_before(tmp_path, damage):
    store = FolderSnapshotStore(tmp_path)
    store.save(ONE, 10, b"before" * 20)
    store.save(ONE, 20, b"state" * 20)
    newest = max(tmp_path.iterdir())
    newest.write_bytes(damage(newest.read_bytes()))
    with pytest.raises(CheckpointError, match="the one before it serves"):
        store.load(ONE, 99)
    newest.unlink()
    assert store.load(ONE, 99) == (10, b"before" * 20)


def test_foreign_files_in_the_folder_are_left_alone(tmp_path):
    store = FolderSnapshotStore(tmp_path, keep=1)
    (tmp_path / "water-0-notes.snapshot").write_text("mine")
    for offset in range(5):
        store.save(ONE, offset, b"x")
    assert (tmp_path / "water-0-notes.snapshot").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_that_cannot_be_used_is_an_error_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConnectorError, match="cannot be made"):
        FolderSnapshotStore(tmp_path / "file" / "folder")
    with pytest.raises(ConfigError, match="keep is 0"):
        FolderSnapshotStore(tmp_path, keep=0)
    store = FolderSnapshotStore(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConnectorError, match="cannot be written"):
        store.save(ONE, 1, b"")
    with pytest.raises(ConnectorError, match="cannot be read"):
        store.load(ONE, 1)


def test_killed_while_saving_there_is_always_a_whole_snapshot(tmp_path):
    program = """
        import itertools, sys
        from rejex_connectors.snapshots import FolderSnapshotStore
        from rejex_stream.types import Partition
        store = FolderSnapshotStore(sys.argv[1], keep=2)
        for offset in itertools.count():
            store.save(Partition("water", 0), offset, b"%d," % offset * 20_000)
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
            time.sleep(0.004 * round_)
            running.send_signal(signal.SIGKILL)
            last = [2, *map(int, running.stdout.read().split())][-1]
        offset, blob = FolderSnapshotStore(folder).load(ONE, 2**63 - 1)
        assert offset in (last, last + 1)
        assert blob == b"%d," % offset * 20_000
