"""What is written to standard error, and how often."""

import json
import logging

import pytest

from rejex_stream.operate.logs import JsonFormatter, RepeatFilter, logging_to_stderr

CLEAR = "Sending username and password in the clear"


def record(text, at, *arguments, name="kafka.net.sasl.plain", level=logging.WARNING):
    fields = {"name": name, "msg": text, "args": arguments, "levelno": level, "created": at}
    return logging.makeLogRecord(fields)


def written(*records, every_s=60):
    keep = RepeatFilter(every_s)
    return [one.getMessage() for one in records if keep.filter(one)]


def test_what_is_repeated_is_written_once_in_a_while():
    lines = written(*(record(CLEAR, 1000.0 + second) for second in range(150)))
    assert lines == [CLEAR] * 3


def test_lines_that_differ_in_more_than_numbers_are_all_written():
    whys = ("refused", "reset", "refused", "timed out")
    lines = written(
        *(record("node %d at 10.0.0.%d: %s", float(i), i, i, why) for i, why in enumerate(whys))
    )
    assert lines == [
        "node 0 at 10.0.0.0: refused", "node 1 at 10.0.0.1: reset", "node 3 at 10.0.0.3: timed out"
    ]  # fmt: skip


def test_what_several_parts_of_the_library_say_of_one_outage_is_one_line():
    said = (
        ("net.connection", "<Connection node_id=1>: Request timed out after 29999 ms. Closing."),
        ("net.transport", "Abort ([Error 7] TimedOutError: Request timed out after 3999 ms)"),
        ("consumer.fetcher", "Fetch failed: [Error 7] Error: Request timed out after 29999 ms"),
        ("net.selector", "Task ran for 0.152s (>0.100s threshold). It is blocking the event loop"),
        ("librdkafka", "FAIL [p#consumer-2]: 127.0.0.1:9092/bootstrap: Connect failed: refused"),
        ("librdkafka", "127.0.0.1:9092/bootstrap: Connect failed: refused"),
    )  # fmt: skip
    lines = written(*(record(text, float(i), name=f"kafka.{who}")
                      for i, (who, text) in enumerate(said)))  # fmt: skip
    assert lines == [said[0][1], said[4][1]]


def test_other_loggers_are_left_alone():
    same = record("again", 0.0, name="rejex_stream.run.loop")
    assert written(same, same, same) == ["again"] * 3


def test_a_clock_that_is_set_back_silences_nothing_for_long():
    assert written(record("gone", 1_000_000.0), record("gone", 10.0)) == ["gone"] * 2


def test_lines_of_two_threads_that_come_in_the_wrong_order_are_repeats_all_the_same():
    ats = (100.0, 99.9, 100.1, 99.8)
    assert written(*(record(text, at) for at in ats for text in ("gone", "no node"))) == [
        "gone", "no node",
    ]  # fmt: skip


def test_what_was_said_long_ago_is_forgotten():
    keep = RepeatFilter(every_s=60)
    for i in range(10_000):
        keep.filter(record("topic " + "x" * (i % 100) + chr(97 + i // 400), 10.0 * i))
    assert len(keep._written) <= 6


@pytest.mark.parametrize(("level", "warnings", "debugs"), [("info", 1, 0), ("debug", 5, 0)])
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
