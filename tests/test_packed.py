"""Streams that are silent lie outside the memory, and come back as they were."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rejex_connectors.spill_map import Packed

from rejex_stream.engine.stream_state import StreamSnapshot
from rejex_stream.errors import ConnectorError

names = st.text(st.characters(codec=None), max_size=3)
steps = st.lists(
    st.tuples(st.sampled_from(["put", "drop", "clear"]), names, st.binary(max_size=9)), max_size=30
)


@given(steps)
def test_it_is_a_mapping_as_any_other(told):
    packed, plain = Packed(StreamSnapshot._make), {}
    for what, name, body in told:
        assert (name in packed) == (name in plain)
        if what == "put":
            packed[name] = plain[name] = StreamSnapshot(body, body[::-1], len(body))
        elif what == "drop":
            assert packed.pop(name, None) == plain.pop(name, None)
        elif name:
            continue
        else:
            packed.clear()
            plain.clear()
        assert dict(packed) == plain
        assert len(packed) == len(plain)
    for name in set(packed):
        assert isinstance(packed[name], StreamSnapshot)


def test_what_is_packed_is_not_in_memory():
    packed = Packed(StreamSnapshot._make)
    tracemalloc.start()
    for i in range(2_000):
        packed[f"sensor-{i}"] = StreamSnapshot(bytes(20_000), b"", 1)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 1_000_000, "40 MB are in it"
    assert len(packed["sensor-7"].state) == 20_000


def test_who_is_not_there_is_a_key_error():
    packed = Packed(StreamSnapshot._make)
    for action in (lambda: packed["x"], lambda: packed.__delitem__("x")):
        with pytest.raises(KeyError):
            action()
    assert 7 not in packed


def test_a_full_disk_is_an_error_in_one_sentence():
    packed = Packed(StreamSnapshot._make)
    packed._file.execute("PRAGMA max_page_count = 20")
    with pytest.raises(ConnectorError, match=r"disk is full.*TMPDIR"):
        packed["x"] = StreamSnapshot(bytes(1_000_000), b"", 1)
    packed._file.close()
    with pytest.raises(ConnectorError, match="packed away"):
        len(packed)
