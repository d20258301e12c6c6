"""What the review database promises."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import threading

import pytest

from rejex_stream.review.queue.database import Database, StoreError
from tests.waiting import pass_time


def _put(connection, key, value):
    connection.execute(
        "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, str(value)),
    )


def _get(connection, key):
    row = connection.execute("SELECT value FROM meta WHERE key = :key", {"key": key}).fetchone()
    return None if row is None else row["value"]


@pytest.fixture
def opened(tmp_path):
    databases = []

    def another():
        databases.append(Database(tmp_path / "review.db"))
        return databases[-1]

    yield another
    for database in databases:
        database.close()


# ------------------------------------------------------------------------------- transactions
def test_a_read_sees_one_state_while_writes_commit(opened):
    here, there = opened(), opened()
    with here.write() as connection:
        _put(connection, "a", 1)
    with here.read() as reading:
        assert _get(reading, "a") == "1"
        with there.write() as connection:  # a reader does not hold it up
            _put(connection, "a", 2)
            _put(connection, "b", 2)
        assert _get(reading, "a") == "1"
        assert _get(reading, "b") is None
    with here.read() as reading:
        assert (_get(reading, "a"), _get(reading, "b")) == ("2", "2")


def test_a_read_neither_waits_for_a_writer_nor_sees_its_half(opened):
    here, there = opened(), opened()
    with here.write() as connection:
        _put(connection, "a", 1)
        assert _get(connection, "a") == "1"
        with there.read() as reading:
            assert _get(reading, "a") is None


def test_a_failed_write_leaves_nothing(opened):
    database = opened()
    with database.write() as connection:
        _put(connection, "a", 1)

    def fails(last):
        with database.write() as connection:
            _put(connection, "a", 2)
            connection.executemany("INSERT INTO meta VALUES (?, ?)", [("b", "2"), (last, "2")])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails("c")
    with pytest.raises(Exception, match=r"(?i)unique"):  # a statement is refused
        fails("a")
    with database.read() as connection:
        assert [tuple(row) for row in connection.execute("SELECT * FROM meta")] == [("a", "1")]
    with database.write() as connection:  # and the next one has its turn
        _put(connection, "a", 3)


def _count_up(path, start, times):
    database = Database(path)
    start.wait(60)
    for _ in range(times):
        with database.write() as connection:
            known = int(_get(connection, "n"))
            pass_time(0.002, because="the others could come between, if they were let")
            _put(connection, "n", known + 1)
    database.close()


@pytest.mark.thorough
def test_writers_of_several_processes_and_threads_take_turns(opened):
    database = opened()
    with database.write() as connection:
        _put(connection, "n", 0)
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(4)
    work = (database.path, start, 25)
    workers = [context.Process(target=_count_up, args=work) for _ in range(2)]
    workers += [threading.Thread(target=_count_up, args=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers[:2]] == [0, 0]
    with database.read() as connection:
        assert _get(connection, "n") == "100"


def _die_writing(path):
    database = Database(path)
    with database.write() as connection:
        _put(connection, "whole", 1)
    with database.write() as connection:
        _put(connection, "half", 1)
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.thorough
def test_a_killed_writer_leaves_whole_blocks_and_gives_up_its_turn(opened):
    database = opened()
    worker = multiprocessing.get_context("spawn").Process(
        target=_die_writing, args=(database.path,)
    )
    worker.start()
    worker.join(60)
    assert worker.exitcode == -signal.SIGKILL
    with database.write() as connection:
        assert _get(connection, "whole") == "1"
        assert _get(connection, "half") is None


# --------------------------------------------------------------------------------------- rows
def test_rows_are_read_by_name_and_by_position(opened):
    with opened().write() as connection:
        connection.executemany("INSERT INTO meta VALUES (?, ?)", [("a", "1"), ("b", "2")])
        rows = connection.execute("SELECT key, value AS text FROM meta ORDER BY key")
        first = rows.fetchone()
        assert (first["key"], first[0], first["text"], first[1]) == ("a", "a", "1", "1")
        assert dict(first) == {"key": "a", "text": "1"}
        (key, text), *rest = rows.fetchall()
        assert (key, text, rest) == ("b", "2", [])
        assert rows.fetchone() is None
        assert [key for key, _ in connection.execute("SELECT * FROM meta ORDER BY 1")] == ["a", "b"]


def test_values_come_back_as_they_were_stored(opened):
    values = (2**53 + 1, -(2.0**-40), "Ä\n'\"", b"\0\xff", None)
    with opened().write() as connection:
        connection.execute(
            "INSERT INTO sensor (sensor_id, stream_key, sensor, grp, last_ms) "
            "VALUES (1, ?, '', '', ?)",
            (values[2], values[0]),
        )
        connection.execute(
            "INSERT INTO point VALUES (1, 0, ?, ?, ?, NULL)", (values[3], values[1], values[4])
        )
        row = connection.execute(
            "SELECT last_ms, score, stream_key, channel_values, label "
            "FROM sensor JOIN point USING (sensor_id)"
        ).fetchone()
    assert tuple(row) == values
    assert [type(value) for value in row] == [type(value) for value in values]


def test_what_a_statement_made_is_returned(opened):
    sql = (
        "INSERT INTO label (label_id, episode_id, reviewer, kind, source, created_ms, record) "
        "VALUES (?, 'E', 'ada', 'label', 'human', 0, ?) ON CONFLICT DO NOTHING RETURNING label_seq"
    )
    with opened().write() as connection:
        first = connection.execute(sql, ("1", b"")).fetchone()["label_seq"]
        assert connection.execute(sql, ("1", b"")).fetchone() is None
        assert connection.execute(sql, ("2", b"")).fetchone()["label_seq"] > first


@pytest.mark.parametrize("change", ["UPDATE audit SET actor = 'eve'", "DELETE FROM audit"])
def test_facts_are_never_changed(opened, change):
    database = opened()
    with database.write() as connection:
        connection.execute("INSERT INTO audit VALUES (1, 0, 'ada', 'x', 'E', '{}', '')")
    with pytest.raises(Exception, match="audit rows are never changed"), database.write() as again:
        again.execute(change)


# -------------------------------------------------------------------------------------- whole
def test_a_backup_is_whole_beside_a_writer(opened, tmp_path):
    database = opened()
    with database.write() as connection:
        _put(connection, "a", 1)
    with database.write() as connection:
        _put(connection, "a", 2)
        copy = tmp_path / "copy"
        copy.mkdir()
        database.back_up(copy / database.path.name)
    restored = Database(copy / database.path.name)
    with restored.read() as connection:
        assert _get(connection, "a") == "1"
    assert restored.integrity() == database.integrity() == "ok"
    restored.close()


@pytest.mark.parametrize(("prepare", "statement", "said"), [
    # Found by the commit.
    ("PRAGMA defer_foreign_keys = ON", "INSERT INTO label_event VALUES (1, 1)", "FOREIGN KEY"),
    # It has rolled back by itself.
    (
        "PRAGMA max_page_count = 1", "INSERT INTO meta VALUES ('none', hex(zeroblob(100000)))",
        "disk is full",
    ),
])  # fmt: skip
def test_sqlite_says_what_failed_and_the_next_writer_has_its_turn(
    tmp_path, prepare, statement, said
):
    database = Database(tmp_path / "review.db")

    def fails():
        with database.write() as connection:
            _put(connection, "a", 1)
            connection.execute(prepare)
            connection.execute(statement)

    with pytest.raises((sqlite3.DatabaseError, StoreError), match=said):
        fails()
    with database.write() as connection:
        assert _get(connection, "a") is None
        connection.execute("PRAGMA max_page_count = 1000000")
        _put(connection, "a", 2)
    database.close()
