"""Snapshots in parts: written as they move, and whole or passed over whatever is cut off."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rejex_connectors.snapshot_parts import PartSets

from rejex_stream.errors import AnotherLogError
from rejex_stream.protocols import SnapshotPiece
from rejex_stream.types import Partition
from tests.doubles import MemorySnapshotStore

ONE = Partition("t", 0)


class Log:
    """Single records under keys, of which the last counts; a crash cuts off what comes after."""

    def __init__(self):
        self.records = {}
        self.n_bytes = self.n_writes = 0

    def apply(self, writes):
        for key, value in writes:
            self.n_writes += 1
            self.n_bytes += len(key) + len(value or b"")
            if value is None:
                self.records.pop(key, None)
            else:
                self.records[key] = value

    def read(self, limit=50):
        sets = PartSets(limit)
        for key, value in self.records.items():
            assert sets.read(key, value)
        sets.finish_reading()
        return sets


def piece(offset, base, first=True, last=True, **parts):
    return SnapshotPiece(offset, base, parts, first, last)


def saved(log, sets, *pieces):
    for one in pieces:
        writes = sets.write(one)
        assert writes is not None
        log.apply(writes)


def test_a_set_is_what_moved_and_what_stayed():
    log = Log()
    sets = log.read()
    saved(log, sets, piece(10, None, a=b"1", b=b"1" * 200, c=b""))
    saved(log, sets, piece(20, 10, a=b"2", c=None))
    assert log.read().load(99) == (20, {"a": b"2", "b": b"1" * 200})
    assert log.read().load(19) == (10, {"a": b"1", "b": b"1" * 200, "c": b""})
    saved(log, sets, piece(30, 20, b=b"3"))
    assert log.read().load(99) == (30, {"a": b"2", "b": b"3"})
    assert log.read().load(29) == (20, {"a": b"2", "b": b"1" * 200})
    assert log.read().load(19) is None, "two are kept"


def test_what_is_written_is_what_moved():
    log = Log()
    sets = log.read()
    many = {f"key-{i}": b"x" * 40 for i in range(1000)}
    saved(log, sets, SnapshotPiece(0, None, many))
    for step in range(1, 20):
        log.n_writes = log.n_bytes = 0
        saved(log, sets, SnapshotPiece(step, step - 1, {f"key-{step}": b"y"}))
        assert log.n_writes == 2
        assert log.n_bytes < 300
    assert len(log.records) < 1000 + 2 * 20 + 2


def test_parts_that_are_gone_leave_nothing_behind():
    log = Log()
    sets = log.read()
    saved(log, sets, piece(0, None, a=b"1" * 300, b=b"1"))
    saved(log, sets, piece(1, 0, a=None))
    for step in range(2, 5):
        saved(log, sets, piece(step, step - 1, b=b"%d" % step))
        sets = log.read()
    assert not [key for key in log.records if key.endswith(b"|a")]
    assert len([key for key in log.records if key.endswith(b"|b")]) == 2
    saved(log, sets, piece(5, None, c=b"1"))
    for step in range(6, 9):
        saved(log, sets, piece(step, step - 1, c=b"%d" % step))
    assert not [key for key in log.records if key.endswith(b"|b")]


def test_without_its_base_a_set_is_not_written():
    log = Log()
    assert log.read().write(piece(20, 10, a=b"1")) is None
    sets = log.read()
    saved(log, sets, piece(10, None, a=b"1"))
    assert sets.write(piece(30, 20, a=b"1")) is None
    assert log.read().write(piece(30, 10, first=False, a=b"1")) is None


def test_records_of_others_are_not_taken():
    sets = PartSets(50)
    for key in (b"0|1", b"p|x|0|a", b"p|0|0", b"m|9", b"m|x", b"schemas|0"):
        assert not sets.read(key, b"\x01")
    assert not sets.read(b"p|0|0|a", b"\xc1")


NAMES = st.sampled_from("abcd")
BODY = st.one_of(st.none(), st.binary(max_size=120))
STEP = st.tuples(
    st.dictionaries(NAMES, BODY, max_size=4),  # what moves
    st.integers(1, 3),  # in so many pieces
    st.sampled_from(["go on", "go on", "go on", "whole", "back", "restart", "give up"]),
    st.integers(0, 12),  # where it is cut off, if it is
    st.booleans(),
)


@pytest.mark.thorough
@settings(max_examples=300, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=12))
def test_cut_off_between_any_two_writes_a_whole_set_of_one_offset_is_left(steps):
    """Against a store that keeps every set for ever: what is found was saved, and is the newest."""
    log, truth = Log(), MemorySnapshotStore(keep=10**6)
    sets, at, state = log.read(), None, {}
    offset = 0
    for moved, n_pieces, what, cut, cuts in steps:
        offset += 10
        if what == "back" and at is not None:
            older = log.read().load(at - 1)
            if older is not None:
                at, state = older[0], dict(older[1])
                offset = at + 5
        if what in ("restart", "back"):
            sets = log.read()
        base = None if what == "whole" else at
        changed = (
            dict(moved)
            if base is not None
            else {name: body for name, body in (state | moved).items() if body is not None}
        )
        names = sorted(changed)
        parts = [{n: changed[n] for n in names[i::n_pieces]} for i in range(n_pieces)]
        writes = []
        for i, some in enumerate(parts[: n_pieces - (what == "give up")]):
            made = sets.write(SnapshotPiece(offset, base, some, i == 0, i == n_pieces - 1))
            assert made is not None
            writes += made
        if what == "give up":
            log.apply(writes)
            continue
        log.apply(writes[:cut] if cuts else writes)
        if cuts and cut < len(writes):
            sets = log.read()
            found = sets.load(10**9)
            if at is not None:
                assert found is not None, "the set it builds upon is whole"
            new = {} if base is None else dict(state)
            new |= changed
            whole = (offset, {name: body for name, body in new.items() if body is not None})
            if found is not None and found != whole:
                assert found == truth.load(ONE, found[0])
                at, state = found[0], dict(found[1])
                continue
            if found is None:
                continue
        for i, some in enumerate(parts):
            assert truth.save(ONE, SnapshotPiece(offset, base, some, i == 0, i == n_pieces - 1))
        at, state = offset, dict(truth.snapshots[ONE][offset])
        assert log.read().load(10**9) == (at, state)


def test_sets_of_a_log_that_is_gone_are_refused_and_written_over():
    def opened(log):
        sets = PartSets(50, log)
        for key, value in kept.items():
            sets.read(key, value)
        sets.finish_reading()
        return sets

    def keep(sets, piece):
        for key, value in sets.write(piece):
            if value is None:
                kept.pop(key, None)
            else:
                kept[key] = value

    kept = {}
    keep(opened(b""), SnapshotPiece(300, None, {"a": b"1"}))
    assert opened(b"one").load(400) == (300, {"a": b"1"}), "nothing says that it is another's"
    keep(opened(b"one"), SnapshotPiece(400, 300, {"b": b"2"}))
    assert opened(b"one").load(400) == opened(b"").load(400) == (400, {"a": b"1", "b": b"2"})
    for at_most in (0, 400):
        with pytest.raises(AnotherLogError, match=r"another log of that name \(one; now it is two"):
            opened(b"two").load(at_most)
    whole = SnapshotPiece(0, None, {"c": b"3"}, first=True, last=False)
    before = dict(kept)
    keep(opened(b"two"), whole)  # and a crash
    assert opened(b"two").load(400) is None
    kept = before
    keep(opened(b"two"), SnapshotPiece(0, None, {"c": b"3"}))
    assert opened(b"two").load(400) == (0, {"c": b"3"})
    with pytest.raises(AnotherLogError):
        opened(b"one").load(400)
