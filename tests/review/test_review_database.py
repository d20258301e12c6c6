"""What any review database promises, and that the review code asks for nothing else."""

from __future__ import annotations

import ast
import multiprocessing
import os
import re
import signal
import sqlite3
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from rejex_stream.review.database import SqliteDatabase
from rejex_stream.review.preferences import Preferences, load, save
from rejex_stream.review.store import ReviewStore

REVIEW = Path(find_spec("rejex_stream.review").origin).parent

# Another database joins here: what opens it, by a folder that is empty at first.
OPENERS = {"sqlite": lambda folder: SqliteDatabase(folder / "review.db")}


def _put(connection, key, value):
    connection.execute(
        "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, str(value)),
    )


def _get(connection, key):
    row = connection.execute("SELECT value FROM meta WHERE key = :key", {"key": key}).fetchone()
    return None if row is None else row["value"]


@pytest.fixture(params=sorted(OPENERS))
def opened(request, tmp_path):
    databases = []

    def another():
        databases.append(OPENERS[request.param](tmp_path))
        return databases[-1]

    another.kind = request.param
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

    def fails():
        with database.write() as connection:
            _put(connection, "a", 2)
            connection.executemany("INSERT INTO meta VALUES (?, ?)", [("b", "2"), ("c", "2")])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    with database.read() as connection:
        assert [tuple(row) for row in connection.execute("SELECT * FROM meta")] == [("a", "1")]
    with database.write() as connection:  # and the next one has its turn
        _put(connection, "a", 3)


def test_a_refused_statement_undoes_the_block(opened):
    database = opened()

    def twice():
        with database.write() as connection:
            connection.execute("INSERT INTO meta VALUES ('a', '1')")
            connection.execute("INSERT INTO meta VALUES ('a', '2')")

    with pytest.raises(Exception, match=r"(?i)unique"):
        twice()
    with database.read() as connection:
        assert _get(connection, "a") is None


def _count_up(kind, folder, start, times):
    database = OPENERS[kind](folder)
    start.wait(60)
    for _ in range(times):
        with database.write() as connection:
            known = int(_get(connection, "n"))
            time.sleep(0.002)  # long enough for the others to come between, if they could
            _put(connection, "n", known + 1)
    database.close()


def test_writers_of_several_processes_and_threads_take_turns(opened, tmp_path):
    database = opened()
    with database.write() as connection:
        _put(connection, "n", 0)
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(4)
    work = (opened.kind, tmp_path, start, 25)
    workers = [context.Process(target=_count_up, args=work) for _ in range(2)]
    workers += [threading.Thread(target=_count_up, args=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers[:2]] == [0, 0]
    with database.read() as connection:
        assert _get(connection, "n") == "100"


def _die_writing(kind, folder):
    database = OPENERS[kind](folder)
    with database.write() as connection:
        _put(connection, "whole", 1)
    with database.write() as connection:
        _put(connection, "half", 1)
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_writer_leaves_whole_blocks_and_gives_up_its_turn(opened, tmp_path):
    database = opened()
    worker = multiprocessing.get_context("spawn").Process(
        target=_die_writing, args=(opened.kind, tmp_path)
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
            "INSERT INTO sensor (sensor_id, stream_key, sensor, grp, last_ms, tolerance) "
            "VALUES (1, ?, '', '', ?, ?)",
            (values[2], values[0], values[1]),
        )
        connection.execute("INSERT INTO point VALUES (1, 0, ?, ?, NULL)", (values[3], values[4]))
        row = connection.execute(
            "SELECT last_ms, tolerance, stream_key, channel_values, score "
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
    restored = OPENERS[opened.kind](copy)
    with restored.read() as connection:
        assert _get(connection, "a") == "1"
    assert restored.integrity() == database.integrity() == "ok"
    restored.close()


def test_a_store_works_on_a_database_it_is_given(opened):
    store = ReviewStore(opened())
    with store.database.write() as connection:
        save(connection, "ada", Preferences(theme="dark"))
    with store.database.read() as connection:
        assert load(connection, "ada").theme == "dark"


# -------------------------------------------------------------------------------------- SQLite
@pytest.mark.parametrize(
    ("prepare", "table", "said"),
    [
        ("PRAGMA defer_foreign_keys = ON", "feature", "FOREIGN KEY"),  # found by the commit
        ("PRAGMA max_page_count = 1", "monitor", "disk is full"),  # it has rolled back by itself
    ],
)
def test_sqlite_says_what_failed_and_the_next_writer_has_its_turn(tmp_path, prepare, table, said):
    database = SqliteDatabase(tmp_path / "review.db")

    def fails():
        with database.write() as connection:
            _put(connection, "a", 1)
            connection.execute(prepare)
            connection.execute(f"INSERT INTO {table} VALUES ('none', zeroblob(100000))")

    with pytest.raises(sqlite3.DatabaseError, match=said):
        fails()
    with database.write() as connection:
        assert _get(connection, "a") is None
        connection.execute("PRAGMA max_page_count = 1000000")
        _put(connection, "a", 2)
    database.close()


# ---------------------------------------------------------------------- only the contract
_SQLITE_ONLY = re.compile(
    r"\b(?:(?:INSERT|UPDATE) OR|REPLACE INTO|PRAGMA|ROWID|GLOB|IFNULL|IIF|STRFTIME|JULIANDAY|"
    r"UNIXEPOCH|DATETIME|JSON_?\w*|GROUP_CONCAT|TOTAL|TYPEOF|RANDOMBLOB|PRINTF|INDEXED BY|"
    r"LAST_INSERT_ROWID|CHANGES|INSTR|SQLITE_\w+)\b"
    r"|ON CONFLICT DO UPDATE|\bIS (?:NOT )?[?:]|[?:]\w* IS\b|\b(?:min|max)\([^()]*,"
    r"|\bLIMIT [^ ]+,|\b(?:WHERE|AND|OR|WHEN) \d+ (?:AND|OR|THEN|ORDER)\b",
    re.IGNORECASE,
)
# How a statement begins, or a column by the short name of its table, as parts of one have it.
_SQL = re.compile(
    r"^\s*(?:SELECT|INSERT|UPDATE|DELETE|FROM|WITH|PRAGMA|REPLACE)\b|\b[elmsv]\.[a-z]"
)


def _statements(tree):
    """Yield every text that looks like SQL, the parts put in at run time as ``{}``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if _SQL.search(text):
            yield node.lineno, text


def test_only_the_sqlite_modules_know_sqlite():
    seen = 0
    for path in sorted(REVIEW.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        name = path.relative_to(REVIEW).as_posix()
        if name in ("database.py", "schema.py"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                assert "sqlite3" not in [alias.name for alias in node.names], name
            elif isinstance(node, ast.ImportFrom):
                assert node.module != "sqlite3", name
        for line, text in _statements(tree):
            seen += 1
            found = _SQLITE_ONLY.search(text)
            assert found is None, f"{name}:{line}: {found.group()!r} is SQLite's alone"
    assert seen > 100
