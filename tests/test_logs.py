"""What is written to standard error, and how often."""

from __future__ import annotations

import io
import json
import logging
import threading

import pytest

from rejex_stream.operate.logs import JsonFormatter, ThinningHandler, logging_to_stderr

CLEAR = "Sending username and password in the clear"


def record(text, at, *arguments, name="kafka.net.sasl.plain", level=logging.WARNING):
    fields = {"name": name, "msg": text, "args": arguments, "levelno": level, "created": at}
    return logging.makeLogRecord(fields)


@pytest.fixture
def stream():
    return io.StringIO()


def test_what_is_repeated_is_written_once_in_a_while_with_a_count(stream):
    handler = ThinningHandler(stream, every_s=60)
    for second in range(150):
        handler.handle(record(CLEAR, 1000.0 + second))
    assert stream.getvalue().splitlines() == [
        CLEAR,
        f"{CLEAR} (and 59 more like it in 60 s)",
        f"{CLEAR} (and 59 more like it in 60 s)",
    ]
    handler.finish()
    handler.finish()
    assert stream.getvalue().splitlines()[3:] == [f"{CLEAR} (and 29 more like it in 29 s)"]


def test_lines_that_differ_in_more_than_numbers_are_all_written(stream):
    handler = ThinningHandler(stream)
    for at, why in enumerate(("refused", "reset", "refused", "timed out")):
        handler.handle(record("node %d at 10.0.0.%d: %s", float(at), at, at, why))
    assert stream.getvalue().splitlines() == [
        "node 0 at 10.0.0.0: refused", "node 1 at 10.0.0.1: reset", "node 3 at 10.0.0.3: timed out"
    ]  # fmt: skip


def test_a_flood_that_ends_is_counted_by_the_next_line_of_the_client(stream):
    handler = ThinningHandler(stream, every_s=60)
    for at in (0.0, 1.0, 5.0):
        handler.handle(record("gone", at))
    handler.handle(record("back", 61.0))
    assert stream.getvalue().splitlines() == ["gone", "gone (and 2 more like it in 5 s)", "back"]


def test_other_loggers_and_other_handlers_are_left_alone(stream):
    handler = ThinningHandler(stream)
    same = record("again", 0.0, name="rejex_stream.run.loop")
    for _ in range(3):
        handler.handle(same)
    assert stream.getvalue() == "again\n" * 3
    first = record("port %d", 0.0, 1)
    for one in (first, record("port %d", 1.0, 2), last := record("port %d", 90.0, 3)):
        handler.handle(one)
    assert (last.msg, last.args) == ("port %d", (3,)), "the record itself is as it was"


def test_a_clock_that_is_set_back_silences_nothing_for_long(stream):
    handler = ThinningHandler(stream, every_s=60)
    handler.handle(record("gone", 1_000_000.0))
    handler.handle(record("gone", 10.0))
    assert stream.getvalue() == "gone\n" * 2


def test_lines_of_two_threads_that_come_in_the_wrong_order_are_repeats_all_the_same(stream):
    handler = ThinningHandler(stream)
    for at in (100.0, 99.9, 100.1, 99.8):
        handler.handle(record("gone", at))
        handler.handle(record("no node", at))
    handler.finish()
    assert stream.getvalue().splitlines() == [
        "gone", "no node",
        "gone (and 3 more like it in 1 s)", "no node (and 3 more like it in 1 s)",
    ]  # fmt: skip


def test_threads_lose_no_count(stream):
    handler = ThinningHandler(stream)
    told = [record("gone", 5.0) for _ in range(500)]
    threads = [
        threading.Thread(target=lambda: [handler.handle(one) for one in told]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handler.finish()
    assert stream.getvalue().splitlines() == ["gone", "gone (and 1,999 more like it in 1 s)"]


@pytest.mark.parametrize(
    ("level", "warnings", "debugs"),
    [
        ("info", 2, 0),  # the line, and at the end how often it was left out
        ("debug", 5, 0),
    ],
)
def test_the_levels_say_what_the_client_may_say(capsys, level, warnings, debugs):
    kafka = logging.getLogger("kafka.net.sasl.plain")
    with logging_to_stderr(level, "json") as handler:
        assert isinstance(handler.formatter, JsonFormatter)
        for _ in range(5):
            kafka.warning(CLEAR)
        kafka.debug("bytes")
        logging.getLogger("rejex_stream").info("own")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert sum(CLEAR in line["message"] for line in lines) == warnings
    assert sum(line["message"] == "bytes" for line in lines) == debugs
    assert sum(line["message"] == "own" for line in lines) == 1
    assert logging.getLogger().level == logging.WARNING
