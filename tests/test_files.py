"""Files in, files out: every byte accounted for, whatever happens to the process."""

from __future__ import annotations

import fcntl
import gzip
import io
import json
import os
import random
import signal
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rejex_connectors.files import FileSink, FileSource
from rejex_connectors.files.source import MAX_OPEN_BYTES, CsvRows, LineRows

from rejex_stream.decode import CsvDecoder, JsonDecoder, parse_csv_header
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.encode import (
    decode_dead_letter,
    decode_review,
    decode_verdict,
    encode_follow_up,
    encode_incident,
)
from rejex_stream.engine import Engine
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.protocols import Assigned
from rejex_stream.run.loop import RunSettings, run
from rejex_stream.types import (
    Invalid,
    Label,
    Outcome,
    Partition,
    Position,
    Reason,
    Record,
    ReviewItem,
    Verdict,
)
from tests.program import ended, started
from tests.streams import spec
from tests.test_contract import FOLLOW_UP, INCIDENT
from tests.waiting import pass_time, until

ROOT = Path(__file__).parents[1]


def read_all(source, *, offset=0, batch=3):
    (assigned,) = source.changes()
    source.seek(assigned.partition, offset)
    records = []
    while not source.exhausted:
        records += source.poll(batch, 0.05)
    assert [record.position.offset for record in records] == list(
        range(offset, offset + len(records))
    )
    source.close()
    return [record.value for record in records]


def written(tmp_path, content, name="feed.jsonl"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


# ------------------------------------------------------------------------------------- rows
@pytest.mark.parametrize(("content", "rows"), [
    (b"", []), (b"a\nb\nc", [b"a", b"b", b"c"]), (b"a\r\nb\r\n", [b"a", b"b"]),
    (b"\n\n a\n  \n\r\n\t\nb\n\n", [b" a", b"b"]), (b"\xef\xbb\xbfa\nb", [b"a", b"b"]),
    (b"\xff\xfa\n\x00", [b"\xff\xfa", b"\x00"]),
    (b"a\x0bb\x0cc\x1cd\x85e\n", [b"a\x0bb\x0cc\x1cd\x85e"]),
    (b"[{}, {}]\r\n\n[{}]\n", [b"[{}, {}]", b"[{}]"]), (b"[{}, {}]\n", [b"{}", b"{}"]),
    (b"[[1, 2],\n[3, 4]]", [b"[1, 2]", b"[3, 4]"]),
])  # fmt: skip
def test_lines_are_records_and_blank_lines_are_not(tmp_path, content, rows):
    assert read_all(FileSource(written(tmp_path, content))) == rows


@given(st.lists(st.binary(max_size=5)), st.integers(1, 7))
def test_how_the_bytes_arrive_does_not_change_the_lines(parts, size):
    arrays = b"[{}, {}]\n" + b"\n".join(b"[" + part for part in parts)
    others = b"[" + b", ".join(parts), b" [ 2, {}]\n" + b"".join(parts)
    for content in b"\n".join(parts), arrays, *others:
        assert_pieces_change_nothing(LineRows(), LineRows(), content, size)


def assert_pieces_change_nothing(whole, pieces, content, size):
    expected = whole.feed(content) + whole.finish()
    found = []
    for i in range(0, len(content), size):
        found += pieces.feed(content[i : i + size])
    assert found + pieces.finish() == expected


csv_text = st.text('ab,"\n\r;', max_size=40).map(str.encode)


@settings(max_examples=150)
@given(csv_text, st.integers(1, 7))
def test_how_the_bytes_arrive_does_not_change_the_csv_rows(content, size):
    assert_pieces_change_nothing(CsvRows(","), CsvRows(","), content, size)


@pytest.mark.thorough
@settings(max_examples=150)
@given(
    st.lists(
        st.lists(st.text('ab ,"\n\r;', min_size=1, max_size=6), min_size=2, max_size=3),
        min_size=1,
        max_size=5,
    )
)
def test_csv_written_by_the_standard_library_is_cut_where_it_should_be(table):
    import csv

    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n", quoting=csv.QUOTE_ALL).writerows(table)
    rows = CsvRows(",")
    found = rows.feed(text.getvalue().encode()) + rows.finish()
    assert [next(csv.reader([row.decode()], strict=True)) for row in found] == table


def test_a_stray_quote_costs_its_own_line_only():
    lines = [b'1,"oops', *[b"%d,2" % i for i in range(20_000)]]
    rows = CsvRows(",")
    assert rows.feed(b"\n".join(lines)) + rows.finish() == lines
    assert len(b"\n".join(lines)) > MAX_OPEN_BYTES
    short = CsvRows(",")
    assert short.feed(b'a,"b\nc,d\n') + short.finish() == [b'a,"b', b"c,d"]
    inches = CsvRows(",")
    assert inches.feed(b'5" pipe,1\n6" pipe,2\n') == [b'5" pipe,1', b'6" pipe,2']


@pytest.mark.parametrize("begun", [b"[", b"\xef\xbb\xbf [ "])
def test_a_file_that_was_cut_off_after_its_first_bracket_is_a_bad_record(begun):
    rows = LineRows()
    assert [*rows.feed(begun), *rows.finish()] == [begun]


@pytest.mark.thorough
def test_an_endless_line_does_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr("rejex_connectors.files.source.MAX_ROW_BYTES", 1000)
    rows = LineRows()
    for _ in range(1000):
        assert rows.feed(b"x" * 100_000) == []
        assert len(rows._lines.tail) <= 1001
    (row, after) = rows.feed(b"\nshort\n")
    assert (len(row), after) == (1001, b"short")


# ------------------------------------------------------------------------------- reading
def test_a_csv_header_is_no_record(tmp_path):
    source = FileSource(written(tmp_path, b'\xef\xbb\xbft,"a\nb"\r\n1,2\r\n3,"4\n"\n', "f.csv"))
    assert source.header == b't,"a\nb"'
    assert parse_csv_header(source.header) == ("t", "a\nb")
    assert read_all(source) == [b"1,2", b'3,"4\n"']


def test_csv_flows_through_the_decoder(tmp_path):
    path = written(tmp_path, b"when;flow\n2024-01-01;1.5\nbroken\n2024-01-02;\n", "f.csv")
    source = FileSource(path, delimiter=";")
    mapping = FieldMapping(["flow"], fixed_sensor="m", time="when", time_unit="iso8601")
    decoder = CsvDecoder(mapping, parse_csv_header(source.header, ";"), ";")
    source.seek(source.changes()[0].partition, 0)
    first, broken, _ = map(decoder.decode, source.poll(10, 0))
    assert first.values == (1.5,)
    assert isinstance(broken, Invalid)


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_a_csv_without_a_header_is_an_error(tmp_path, content):
    with pytest.raises(ConnectorError, match="expected a CSV header"):
        _ = FileSource(written(tmp_path, content, "f.csv")).header


def test_reading_can_begin_anywhere_and_go_back(tmp_path):
    content = b"".join(b"%d\n" % i for i in range(100_000))
    source = FileSource(written(tmp_path, content))
    assert read_all(source, offset=99_990, batch=4) == [b"%d" % i for i in range(99_990, 100_000)]
    source = FileSource(written(tmp_path, content))
    (assigned,) = source.changes()
    source.seek(assigned.partition, 500)
    assert source.poll(2, 0)[0].value == b"500"
    source.rewind()
    assert source.poll(2, 0) == ()
    (again,) = source.changes()
    assert again == assigned
    source.seek(again.partition, 10)
    assert source.poll(1, 0)[0].value == b"10"
    source.seek(again.partition, 700)
    assert source.poll(1, 0)[0].value == b"700"


def test_an_offset_beyond_the_file_is_an_error(tmp_path):
    source = FileSource(written(tmp_path, b"1\n2\n"))
    with pytest.raises(ConnectorError, match=r"has 2 record\(s\), fewer than the 5"):
        source.seek(source.partition, 5)


@pytest.mark.thorough
def test_progress_is_known_for_files(tmp_path):
    source = FileSource(written(tmp_path, b"1\n2\n" * 70_000))
    assert source.fraction == 0.0
    source.seek(source.partition, 0)
    source.poll(10, 0)
    assert 0 < source.fraction < 1
    while not source.exhausted:
        source.poll(50_000, 0)
    assert source.fraction == 1.0


def test_records_can_be_given_a_time(tmp_path):
    source = FileSource(written(tmp_path, b"1\n2\n"), sample_interval_ms=500)
    source.seek(source.partition, 0)
    assert [record.timestamp_ms for record in source.poll(9, 0)] == [0, 500]


def test_names_and_formats_come_from_the_path_or_are_given(tmp_path):
    assert FileSource(written(tmp_path, b"", "a.ndjson")).partition == Partition("a.ndjson", 0)
    assert (
        FileSource(written(tmp_path, b"", "b.txt"), format="jsonl", topic="x").partition[0] == "x"
    )
    tabs = FileSource(written(tmp_path, b'a\tb\n"1,\t2"\t3', "c.tsv"))
    assert tabs.header == b"a\tb"
    with pytest.raises(ConfigError, match="say format"):
        FileSource(written(tmp_path, b"", "d.dat"))


@pytest.mark.parametrize("what", ["missing.jsonl", "folder.jsonl"])
def test_what_cannot_be_opened_is_an_error_with_the_path(tmp_path, what):
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(ConnectorError, match=what):
        FileSource(tmp_path / what)


@pytest.mark.parametrize(("encoding", "named"), [
    ("utf-16", None),  # by its byte order mark
    ("utf-16-be", "utf-16-be"),
    ("cp1252", "cp1252"),
    ("latin-1", "latin-1"),
    ("utf-8-sig", None),
    ("utf-8", "utf-8"),
])  # fmt: skip
@pytest.mark.parametrize("chunk", [1, 2, 7, 1 << 18])
def test_every_encoding_gives_the_same_records(tmp_path, monkeypatch, encoding, named, chunk):
    monkeypatch.setattr("rejex_connectors.files.bytes._CHUNK_BYTES", chunk)
    text = "t,Größe\r\n1,2\r\n\r\n3,ü\r\n"
    path = tmp_path / "f.csv"
    path.write_bytes(text.encode(encoding))
    source = FileSource(path, encoding=named)
    assert source.header == "t,Größe".encode()
    assert read_all(source) == [b"1,2", "3,ü".encode()]


def test_bytes_that_stand_for_no_character_stay_legible(tmp_path):
    path = tmp_path / "f.csv"
    path.write_bytes(b"t,a\n1,\x81\n")
    assert read_all(FileSource(path, encoding="cp1252")) == [b"1,\\x81"]


def test_the_first_row_of_a_file_without_a_header_is_a_record(tmp_path):
    path = tmp_path / "f.csv"
    path.write_bytes(b"\xef\xbb\xbf1,2\n3,4\n")
    source = FileSource(path, has_header=False)
    assert read_all(source) == [b"1,2", b"3,4"]


def test_gzip_is_known_by_its_bytes_not_by_its_name(tmp_path):
    path = tmp_path / "f.csv"
    path.write_bytes(gzip.compress(b"t,a\n1,2\n"))
    assert read_all(FileSource(path)) == [b"1,2"]
    path = tmp_path / "plain.csv.gz"
    path.write_bytes(b"t,a\n1,2\n")
    assert read_all(FileSource(path)) == [b"1,2"]


# ------------------------------------------------------------------------------------- gzip
@pytest.mark.thorough
def test_gzip_is_read_member_after_member(tmp_path):
    content = b"".join(b'{"i": %d}\n' % i for i in range(50_000))
    packed = gzip.compress(content[:300_007]) + gzip.compress(content[300_007:]) + b"\0" * 9
    assert read_all(FileSource(written(tmp_path, packed, "f.jsonl.gz")), batch=999) == (
        content.splitlines()
    )


@pytest.mark.thorough
def test_gzip_of_very_compressible_data_comes_in_pieces(tmp_path):
    content = b"\n".join([b"0" * 1000] * 20_000)
    rows = read_all(FileSource(written(tmp_path, gzip.compress(content), "f.jsonl.gz")), batch=999)
    assert len(rows) == 20_000


@pytest.mark.thorough
@pytest.mark.parametrize(("damage", "words"), [
    (lambda packed: packed[:-9], "cut short"),
    (lambda packed: packed[: len(packed) // 2], "cut short"),
    (lambda packed: packed + b"rubbish", "damaged"),
    (lambda packed: packed[:-6] + b"\x00\x01\x02" + packed[-3:], "damaged"),
])  # fmt: skip
def test_damaged_gzip_is_an_error_after_the_records_before_it(tmp_path, damage, words):
    lines = [b'{"i": %d}' % random.Random(i).getrandbits(64) for i in range(20_000)]
    packed = damage(gzip.compress(b"\n".join(lines) + b"\n"))
    source = FileSource(written(tmp_path, packed, "f.jsonl.gz"))
    source.seek(source.partition, 0)
    found = []

    def drain():
        while not source.exhausted:
            found.extend(record.value for record in source.poll(500, 0))

    with pytest.raises(ConnectorError, match=words):
        drain()
    assert found == lines[: len(found)]
    assert len(found) > 5_000


def test_what_came_before_the_damage_is_judged_and_committed(tmp_path):
    rng = random.Random(3)
    lines = [b'{"id": "a", "t": %d, "x": %f, "y": 2}' % (i, rng.random()) for i in range(6_000)]
    packed = gzip.compress(b"\n".join(lines))
    source = FileSource(written(tmp_path, packed[:-20], "f.jsonl.gz"))
    out = tmp_path / "verdicts.jsonl"
    with pytest.raises(ConnectorError, match="cut short"):
        run(
            source, FileSink(verdicts=out), None, lambda partition, fits: Engine(spec(), fits),
            JsonDecoder(FieldMapping(["x", "y"], sensor="id", time="t")),
            settings=RunSettings(commit_interval_s=60),
        )  # fmt: skip
    assert len(out.read_bytes().splitlines()) > 1000


# ------------------------------------------------------------------------------- standard input
PIPE = """
import sys
from rejex_connectors.files import FileSource
source = FileSource("-", format=sys.argv[1])
if sys.argv[1] == "csv":
    print("header", source.header)
source.seek(source.changes()[0].partition, 0)
while not source.exhausted:
    for record in source.poll(10, 0.05):
        print(record.position, record.value, flush=True)
"""


def unread(pipe):
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_standard_input_is_read_as_it_comes():
    how = {"stdin": subprocess.PIPE, "stderr": None, "text": False}
    with started([sys.executable, "-c", PIPE, "jsonl"], **how) as running:
        running.stdin.write(b"one\ntw")
        running.stdin.flush()
        assert running.stdout.readline() == b"stdin-0-0 b'one'\n"
        until(lambda: unread(running.stdin) == 0, "the half of a line is read")
        running.stdin.write(b"o\nthree")
        running.stdin.flush()
        assert running.stdout.readline() == b"stdin-0-1 b'two'\n"
        running.stdin.close()
        assert running.stdout.readline() == b"stdin-0-2 b'three'\n"
    assert running.returncode == 0


def test_a_csv_header_is_waited_for_on_standard_input():
    done = ended([sys.executable, "-c", PIPE, "csv"], input="a,b\n1,2\n")
    assert done.stdout.splitlines() == ["header b'a,b'", "stdin-0-0 b'1,2'"]


# ---------------------------------------------------------------------------------- following
class Follower:
    def __init__(self, path, **options):
        self.source = FileSource(path, follow=True, **options)
        self.source.seek(self.source.partition, 0)
        self.records = []

    def sees(self, n):
        def seen():
            self.records += self.source.poll(10, 0.01)
            return len(self.records) >= n

        until(lambda: len(self.records) >= n or seen(), lambda: self.records)
        return [record.value for record in self.records]

    def sees_nothing_new(self):
        before = len(self.records)
        for _ in range(3):
            self.records += self.source.poll(10, 0.01)
        return len(self.records) == before


def test_following_waits_for_more_and_for_the_rest_of_a_line(tmp_path):
    path = written(tmp_path, b"one\ntw")
    follower = Follower(path)
    assert follower.sees(1) == [b"one"]
    assert follower.sees_nothing_new()
    with path.open("ab") as file:
        file.write(b"o\n")
    assert follower.sees(2) == [b"one", b"two"]
    assert not follower.source.exhausted


def test_following_goes_over_to_the_new_file_when_it_is_rotated(tmp_path):
    path = written(tmp_path, b"one\n")
    follower = Follower(path)
    follower.sees(1)
    path.rename(tmp_path / "feed.jsonl.1")
    assert follower.sees_nothing_new()
    with (tmp_path / "feed.jsonl.1").open("ab") as file:
        file.write(b"late\nunfinished")
    written(tmp_path, b"two\nthree\n")
    assert follower.sees(5) == [b"one", b"late", b"unfinished", b"two", b"three"]
    assert [record.position.offset for record in follower.records] == list(range(5))


def test_following_notices_a_file_that_is_cut(tmp_path):
    path = written(tmp_path, b"one\ntwo\n")
    follower = Follower(path)
    follower.sees(2)
    path.write_bytes(b"3\n")
    assert follower.sees(3)[-1] == b"3"


def test_following_skips_the_header_of_a_new_file_and_refuses_another_one(tmp_path):
    path = written(tmp_path, b"a,b\n1,2\n", "f.csv")
    follower = Follower(path)
    follower.sees(1)
    path.rename(tmp_path / "old.csv")
    written(tmp_path, b"a,b\n3,4\n", "f.csv")
    assert follower.sees(2) == [b"1,2", b"3,4"]
    path.rename(tmp_path / "older.csv")
    written(tmp_path, b"b,a\n3,4\n", "f.csv")
    with pytest.raises(ConnectorError, match=r"header .* changed"):
        follower.sees(3)


def test_a_rotated_input_knows_where_its_records_stand_after_a_restart(tmp_path):
    path, state = written(tmp_path, b"one\ntwo\n"), tmp_path / "state"
    follower = Follower(path, state_dir=state)
    follower.sees(2)
    path.rename(tmp_path / "old")
    written(tmp_path, b"three\nfour\n")
    follower.sees(4)
    with pytest.raises(ConnectorError, match="rotated away"):
        follower.source.seek(follower.source.partition, 1)
    again = FileSource(path, follow=True, state_dir=state)
    (assigned,) = again.changes()
    assert assigned == Assigned(again.partition, None, 2)
    again.seek(again.partition, 3)
    (record,) = again.poll(5, 0)
    assert (record.position.offset, record.value) == (3, b"four")


def test_another_file_under_the_same_state_is_refused(tmp_path):
    path, state = written(tmp_path, b"one\n"), tmp_path / "state"
    assert read_all(FileSource(path, state_dir=state)) == [b"one"]
    path.write_bytes(b"one\ntwo\n")
    assert read_all(FileSource(path, state_dir=state)) == [b"one", b"two"]
    path.write_bytes(b"other\n")
    with pytest.raises(ConnectorError, match="not the file that was read before"):
        read_all(FileSource(path, state_dir=state))


def test_a_compressed_file_cannot_be_followed(tmp_path):
    with pytest.raises(ConfigError, match="unpack"):
        FileSource(written(tmp_path, b"", "f.jsonl.gz"), follow=True)


# ---------------------------------------------------------------------------------- writing
def outcome(offset, kind="normal"):
    at = Position("t", 0, offset)
    record = Record(at, None, b"value %d" % offset)
    if kind == "invalid":
        return Outcome(record, invalid=Invalid(at, "decode", "not JSON"))
    verdict = Verdict(
        position=at, stream_key="a", sensor="a", event_time_ms=offset, seq=offset,
        label=Label.REJECTED if kind == "review" else Label.NORMAL,
        reason=Reason.AMBIGUOUS if kind == "review" else None,
    )  # fmt: skip
    item = ReviewItem(verdict=verdict, channels=("x",), values=(1.0,)) if kind == "review" else None
    return Outcome(record, verdict, None, item)


HERE = Partition("t", 0)


def paths(folder):
    folder.mkdir(exist_ok=True)
    return {
        "verdicts": folder / "v.jsonl",
        "review": folder / "r.jsonl",
        "deadletter": folder / "d.jsonl",
    }


def test_each_outcome_goes_where_it_belongs(tmp_path):
    sink = FileSink(**paths(tmp_path))
    outcomes = [outcome(0), outcome(1, "review"), outcome(2, "invalid")]
    sink.write(outcomes)
    assert all(path.read_bytes() == b"" for path in paths(tmp_path).values())
    sink.commit({HERE: 3})
    sink.close()
    verdicts, review, dead = (p.read_bytes().splitlines() for p in paths(tmp_path).values())
    assert [decode_verdict(line) for line in verdicts] == [o.verdict for o in outcomes[:2]]
    assert [decode_review(line) for line in review] == [outcomes[1].review]
    assert [decode_dead_letter(line) for line in dead] == [
        (outcomes[2].record, outcomes[2].invalid)
    ]


def test_what_follows_an_item_and_every_incident_of_an_event_are_lines_too(tmp_path):
    later = outcome(1)._replace(follow_up=FOLLOW_UP, incidents=(INCIDENT, INCIDENT))
    for review in (tmp_path / "r.jsonl", None):
        sink = FileSink(verdicts=tmp_path / "v", review=review, incidents=tmp_path / "i.jsonl")
        sink.write([later])
        sink.commit({HERE: 2})
        sink.close()
        assert (tmp_path / "i.jsonl").read_bytes().splitlines() == [encode_incident(INCIDENT)] * 2
    assert (tmp_path / "r.jsonl").read_bytes().splitlines() == [encode_follow_up(FOLLOW_UP)]


def test_without_a_state_folder_outputs_begin_empty(tmp_path):
    for path in paths(tmp_path).values():
        path.write_text("old")
    FileSink(**paths(tmp_path)).close()
    assert all(path.read_bytes() == b"" for path in paths(tmp_path).values())


def test_an_output_may_be_left_out(tmp_path):
    sink = FileSink(verdicts=tmp_path / "v")
    sink.write([outcome(0, "review"), outcome(1, "invalid")])
    sink.commit({HERE: 2})
    assert len((tmp_path / "v").read_bytes().splitlines()) == 1


def test_an_abort_takes_back_what_was_written(tmp_path):
    sink = FileSink(verdicts=tmp_path / "v")
    sink.write([outcome(0)])
    sink.commit({HERE: 1})
    sink.write([outcome(1)])
    sink.abort()
    sink.write([outcome(2)])
    sink.commit({HERE: 3})
    kept = [decode_verdict(line).seq for line in (tmp_path / "v").read_bytes().splitlines()]
    assert kept == [0, 2]


def test_a_commit_that_fails_half_way_can_be_aborted(tmp_path, monkeypatch):
    sink = FileSink(**paths(tmp_path), state_dir=tmp_path / "state")
    sink.write([outcome(0), outcome(1, "invalid")])
    sink.commit({HERE: 2})
    sink.write([outcome(2), outcome(3, "invalid")])
    real, calls = os.write, []

    def write(handle, content):
        calls.append(handle)
        if len(calls) == 2:
            real(handle, content[:5])
            raise OSError(28, "No space left on device")
        return real(handle, content)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(ConnectorError, match=r"d\.jsonl cannot be written: No space left"):
        sink.commit({HERE: 4})
    monkeypatch.undo()
    sink.abort()
    sink.write([outcome(2), outcome(3, "invalid")])
    sink.commit({HERE: 4})
    assert len(paths(tmp_path)["verdicts"].read_bytes().splitlines()) == 2
    assert len(paths(tmp_path)["deadletter"].read_bytes().splitlines()) == 2


def test_what_was_appended_after_the_last_commit_is_cut_off(tmp_path):
    options = paths(tmp_path) | {"state_dir": tmp_path / "state"}
    sink = FileSink(**options)
    sink.write([outcome(0)])
    sink.commit({HERE: 1})
    sink.close()
    committed = paths(tmp_path)["verdicts"].read_bytes()
    for path in paths(tmp_path).values():
        with path.open("ab") as file:
            file.write(b'{"half a li')
    again = FileSink(**options)
    assert paths(tmp_path)["verdicts"].read_bytes() == committed
    assert paths(tmp_path)["review"].read_bytes() == b""
    again.close()


def test_the_source_goes_on_where_the_sink_committed(tmp_path):
    feed, state = written(tmp_path, b"1\n2\n3\n", "t.jsonl"), tmp_path / "state"
    sink = FileSink(verdicts=tmp_path / "v", state_dir=state)
    source = FileSource(feed, state_dir=state, topic="t")
    assert source.changes() == [Assigned(HERE, None, 0)]
    sink.write([outcome(0), outcome(1)])
    sink.commit({HERE: 2})
    source.rewind()
    assert source.changes() == [Assigned(HERE, 2, 0)]


def test_a_state_folder_belongs_to_one_process(tmp_path):
    first = FileSink(state_dir=tmp_path)
    with pytest.raises(ConnectorError, match="in use by another process"):
        FileSink(state_dir=tmp_path)
    first.close()
    FileSink(state_dir=tmp_path).close()


@pytest.mark.parametrize("role", ["verdicts", "review"])
def test_an_output_that_is_not_the_committed_one_is_refused(tmp_path, role):
    options = paths(tmp_path) | {"state_dir": tmp_path / "state"}
    sink = FileSink(**options)
    sink.write([outcome(0, "review")])
    sink.commit({HERE: 1})
    sink.close()
    with pytest.raises(ConnectorError, match="not the output of the last commit"):
        FileSink(**(options | {role: tmp_path / "elsewhere"}))
    paths(tmp_path)[role].write_bytes(b"")
    with pytest.raises(ConnectorError, match="found 0"):
        FileSink(**options)


def test_an_output_that_joins_later_is_refused(tmp_path):
    options = paths(tmp_path) | {"state_dir": tmp_path / "state"}
    sink = FileSink(verdicts=options["verdicts"], state_dir=options["state_dir"])
    sink.write([outcome(0)])
    sink.commit({HERE: 1})
    sink.close()
    with pytest.raises(ConnectorError, match="review was not there"):
        FileSink(**options)


def test_outputs_that_cannot_work_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="share a path"):
        FileSink(verdicts=tmp_path / "a", review=tmp_path / "." / "a")
    with pytest.raises(ConfigError, match="standard output cannot be taken back"):
        FileSink(verdicts="-", state_dir=tmp_path)
    with pytest.raises(ConnectorError, match="cannot be opened for writing"):
        FileSink(verdicts=tmp_path / "no" / "where")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 1}', b'{"version": 99}', b"7"])
def test_a_damaged_state_is_refused_with_the_way_out(tmp_path, content):
    written(tmp_path, content, "commit.json")
    with pytest.raises(ConnectorError, match="start over"):
        FileSink(verdicts=tmp_path / "v", state_dir=tmp_path)
    FileSource(written(tmp_path, b""))  # the folder is not locked for ever
    (tmp_path / "commit.json").unlink()
    FileSink(verdicts=tmp_path / "v", state_dir=tmp_path).close()


def test_standard_output_carries_the_verdicts_and_a_closed_pipe_is_one_sentence():
    program = """
import sys
from rejex_connectors.files import FileSink
from rejex_stream.errors import ConnectorError
from rejex_stream.types import *
sink = FileSink(verdicts="-")
try:
    for offset in range(100_000):
        at = Position("t", 0, offset)
        verdict = Verdict(position=at, stream_key="a", sensor="a", event_time_ms=0, seq=offset,
                          label=Label.NORMAL)
        sink.write([Outcome(Record(at, None, b""), verdict)])
        sink.commit({Partition("t", 0): offset + 1})
except ConnectorError as error:
    sys.exit(str(error))
"""
    with started([sys.executable, "-c", program], text=False) as running:
        first = running.stdout.readline()
        running.stdout.close()
        complaint = running.stderr.read()
    assert decode_verdict(first).seq == 0
    assert complaint == b"whoever read - has gone\n"


# -------------------------------------------------------------------------- killed at any moment
@pytest.fixture(scope="module")
def feed(tmp_path_factory):
    path = tmp_path_factory.mktemp("feed") / "feed.jsonl"
    rng = random.Random(5)
    lines = []
    for i in range(6_000):
        event = {"id": "ab"[i % 2], "t": i, "x": rng.gauss(0, 1), "y": rng.gauss(0, 1)}
        lines.append(json.dumps(event) if i % 50 else "broken")
    path.write_text("\n".join(lines))
    return path


def start(feed, out):
    out.mkdir(exist_ok=True)
    return started([sys.executable, "-m", "tests.pipeline_from_files", feed, out], stdout=None)


def outputs(out):
    return {path.name: path.read_bytes() for path in sorted(out.glob("*.jsonl"))}


def killed_until_done(feed, out, rng, kills):
    """Kill the pipeline at random moments while it works; returns how often."""
    killed = 0
    for attempt in range(1000):
        with start(feed, out) as running:
            if killed < kills:
                # Wait until it really works, then kill it within the next few commits.
                commit = out / "state" / "commit.json"
                before = commit.stat().st_mtime_ns if commit.exists() else None
                until(
                    lambda p=running, c=commit, b=before: (
                        p.poll() is not None or (c.exists() and c.stat().st_mtime_ns != b)
                    ),
                    every_s=0.002,
                )
                pass_time(rng.expovariate(1 / 0.15), because="the moment of the kill is random")
            elif attempt:
                running.wait(1200)
            running.send_signal(signal.SIGKILL) if killed < kills else None
            code = running.wait(1200)
            stderr = running.stderr.read()
        if code == -signal.SIGKILL:
            killed += 1
            continue
        assert code == 0, stderr.decode()
        return killed
    raise AssertionError("it never ends")


@pytest.mark.thorough
def test_killed_at_random_moments_the_outputs_are_those_of_an_undisturbed_run(feed, tmp_path):
    quiet, troubled, longer = tmp_path / "quiet", tmp_path / "troubled", tmp_path / "longer.jsonl"
    longer.write_bytes(b"\n".join([feed.read_bytes()] * 3))
    with start(longer, quiet) as running:
        assert running.wait(240) == 0, running.stderr.read().decode()
    # A fast machine may be done before the last of them.
    assert killed_until_done(longer, troubled, random.Random(1), kills=4) >= 2
    assert outputs(troubled) == outputs(quiet)
    verdicts = outputs(quiet)["verdicts.jsonl"].splitlines()
    assert len(verdicts) == 3 * (6_000 - 120)
    assert len({decode_verdict(line).model_epoch for line in verdicts}) > 10
    assert outputs(quiet)["review.jsonl"]
    assert len(outputs(quiet)["dead.jsonl"].splitlines()) == 3 * 120


@pytest.mark.thorough
def test_a_file_that_grows_is_judged_until_somebody_stops_it(tmp_path):
    path, stop = written(tmp_path, b""), threading.Event()
    out = tmp_path / "v.jsonl"

    def produce():
        try:
            for i in range(50):
                with path.open("ab") as file:
                    file.write(b'{"id": "a", "t": %d, "x": 1, "y": 2}\n' % i)
                if i % 10 == 9:
                    until(lambda n=i + 1: out.exists() and out.read_bytes().count(b"\n") == n)
        finally:
            stop.set()

    thread = threading.Thread(target=produce)
    sink = FileSink(verdicts=out)
    thread.start()
    summary = run(
        FileSource(path, follow=True), sink, None, lambda partition, fits: Engine(spec(), fits),
        JsonDecoder(FieldMapping(["x", "y"], sensor="id", time="t")),
        settings=RunSettings(commit_interval_s=0.01), stop=stop,
    )  # fmt: skip
    thread.join()
    assert summary.n_events == 50
    assert summary.stopped
