"""Snapshots under a key: what somebody without it wrote is refused, with what to do."""

import pytest
from rejex_connectors.signed_snapshots import SealedStore, read_key

from rejex_stream.cli import main
from rejex_stream.errors import CheckpointError, ConfigError
from rejex_stream.protocols import SnapshotPiece
from rejex_stream.types import Partition
from tests.doubles import MemorySnapshotStore
from tests.pump import pump_toml

ONE, TWO = Partition("water", 0), Partition("water", 1)
KEY = b"k" * 16


@pytest.fixture
def kept():
    return MemorySnapshotStore()


@pytest.fixture
def store(kept):
    store = SealedStore(kept, KEY)
    assert store.save(ONE, SnapshotPiece(10, None, {"head": b"h", "sa": b"1", "sb": b"1"}))
    assert store.save(ONE, SnapshotPiece(20, 10, {"head": b"i", "sa": b"2", "sb": None}))
    store.save_journal(ONE, b"known")
    return store


def test_what_was_sealed_comes_back(store, kept):
    assert store.load(ONE, 99) == (20, {"head": b"i", "sa": b"2"})
    assert SealedStore(kept, KEY).load(ONE, 19) == (10, {"head": b"h", "sa": b"1", "sb": b"1"})
    assert SealedStore(kept, KEY).load_journal(ONE) == b"known"
    assert store.load(TWO, 99) is None
    assert store.load_journal(TWO) is None


@pytest.mark.parametrize("name", ["head", "sa"])
@pytest.mark.parametrize("at", [8, 20, -1])
def test_a_part_that_was_altered_is_refused(store, kept, name, at):
    parts = kept.snapshots[ONE][20]
    bent = bytearray(parts[name])
    bent[at] ^= 1
    parts[name] = bytes(bent)
    with pytest.raises(CheckpointError, match=f"water-0 at offset 20 .*part {name!r}.*state drop"):
        store.load(ONE, 99)


def test_a_part_in_another_place_is_refused(store, kept):
    parts = kept.snapshots[ONE][20]
    kept.snapshots[TWO] = {20: dict(parts)}
    kept.journals[TWO] = kept.journals[ONE]
    with pytest.raises(CheckpointError, match="water-1"):
        store.load(TWO, 99)
    with pytest.raises(CheckpointError, match="decided for water-1"):
        store.load_journal(TWO)
    parts["sb"] = parts["sa"]
    with pytest.raises(CheckpointError, match="part 'sb'"):
        store.load(ONE, 99)
    del parts["sb"]
    kept.journals[ONE] = parts["sa"]
    with pytest.raises(CheckpointError, match="decided"):
        store.load_journal(ONE)


@pytest.mark.parametrize(("wrote", "reads", "words"), [
    (KEY, b"another key, as long", "the key that it was sealed with"),
    (KEY, None, "set state.seal_key_file"), (None, KEY, "is not sealed"),
])  # fmt: skip
def test_another_key_or_none_is_refused_with_what_to_do(kept, wrote, reads, words):
    SealedStore(kept, wrote).save(ONE, SnapshotPiece(10, None, {"head": b"h"}))
    SealedStore(kept, wrote).save_journal(ONE, b"known")
    for look in (
        SealedStore(kept, reads).load_journal,
        lambda p: SealedStore(kept, reads).load(p, 9 + 1),
    ):
        with pytest.raises(CheckpointError, match=words):
            look(ONE)


def test_without_a_key_nothing_is_changed(kept):
    SealedStore(kept, None).save(ONE, SnapshotPiece(10, None, {"head": b"h"}))
    assert kept.load(ONE, 10) == SealedStore(kept, None).load(ONE, 10) == (10, {"head": b"h"})


def test_a_key_is_read_and_one_that_is_none_refused(tmp_path):
    path = tmp_path / "key"
    with pytest.raises(ConfigError, match=r"key cannot be read: No such file"):
        read_key(str(path))
    path.write_bytes(b"short\n")
    with pytest.raises(ConfigError, match="has 5 bytes: give at least 16"):
        read_key(str(path))
    path.write_bytes(KEY + b"\n")
    assert read_key(str(path)) == KEY


def test_a_pipeline_keeps_its_snapshots_under_the_key(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(n, key):
        feed = "".join(f"{i},p{i % 2},{i * 7919 % 1009}\n" for i in range(n))
        (tmp_path / "feed.csv").write_text("t,id,flow\n" + feed)
        (tmp_path / "key").write_bytes(key or b"")
        config = pump_toml() + ('[state]\nseal_key_file = "key"\n' if key else "")
        (tmp_path / "pump.toml").write_text(config)
        status = main(["run", "pump.toml"])
        printed = capsys.readouterr()
        return status, " ".join((printed.out + printed.err).split())

    assert run(500, KEY)[0] == 0
    for key, words in (
        (b"another key, as long", "was not sealed with the key"),
        (None, "set state"),
    ):
        status, said = run(600, key)
        assert status != 0
        assert words in said
    assert run(600, b"short")[0] != 0
    assert run(600, KEY)[0] == 0
    assert len((tmp_path / "verdicts.jsonl").read_text().splitlines()) == 600
