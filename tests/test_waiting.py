"""Tests wait for effects, and measure no wall clock: a busy machine fails none of them."""

import ast
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S, pass_time, until

TESTS = Path(__file__).resolve().parent
HOME = TESTS / "waiting.py"
# Below this a limit is a measurement: no quick machine waits for it, and a busy one reaches it.
LEAST_LIMIT_S = 30
WALL = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}
CLOCKS = WALL | {"time", "time_ns", "now", "utcnow"}


def called(node):
    """What a call names, and the module or object it is asked of."""
    function = node.func
    if isinstance(function, ast.Attribute):
        owner = function.value
        return function.attr, owner.id if isinstance(owner, ast.Name) else None
    return (function.id, None) if isinstance(function, ast.Name) else (None, None)


def offences(source):
    """Line and sentence of everything in a test that depends on how busy the machine is."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            for alias in node.names:
                if alias.name in WALL | {"sleep"}:
                    yield node.lineno, f"time.{alias.name} goes by another name"
        if isinstance(node, ast.Assert):
            for inner in ast.walk(node.test):
                if isinstance(inner, ast.Call) and called(inner)[0] in CLOCKS:
                    yield inner.lineno, "an assertion on the wall clock"
        if not isinstance(node, ast.Call):
            continue
        name, owner = called(node)
        if owner == "time" and name == "sleep":
            yield node.lineno, "time.sleep: use tests.waiting.until"
        if owner == "time" and name in WALL:
            yield node.lineno, f"time.{name}: wait for the effect, or bound time.process_time"
        limits = [k.value for k in node.keywords if k.arg in ("timeout", "timeout_s")]
        limits += node.args[:1] if name in ("wait", "join", "communicate") else []
        for limit in limits:
            if (
                isinstance(limit, ast.Constant)
                and isinstance(limit.value, int | float)
                and 0 < limit.value < LEAST_LIMIT_S
                and (name, limit.value) not in POLLS
            ):
                yield node.lineno, f"{name} gives up after {limit.value} s: use PATIENCE_S"


# Not limits: a read that looks whether there is something, and goes on.
POLLS = {("create_connection", 0.02)}


@pytest.mark.text
def test_no_test_depends_on_how_busy_the_machine_is():
    found = {
        str(path.relative_to(TESTS)): offence
        for path in sorted({*TESTS.rglob("*.py")} - {HOME})
        if (offence := list(offences(path.read_text(encoding="utf-8"))))
    }
    assert found == {}


@pytest.mark.parametrize("source", [
    "import time\ntime.sleep(1)", "from time import sleep",
    "import time\nbegan = time.monotonic()", "import time\nbegan = time.perf_counter()",
    "import time\nassert time.time() - written < 5", "process.wait(timeout=5)",
    "process.communicate(timeout=5)", "thread.join(2.0)", "urlopen(request, timeout=5)",
])  # fmt: skip
def test_each_of_these_would_be_found(source):
    assert list(offences(source))


def test_waiting_returns_what_came_true_and_says_what_did_not():
    found = iter([0, None, "", "there"])
    assert until(lambda: next(found), every_s=0) == "there"
    with pytest.raises(AssertionError, match="in vain: the sun rises"):
        until(lambda: False, "the sun rises", timeout_s=0)
    with pytest.raises(AssertionError, match="in vain: 3 of 4"):
        until(lambda: False, lambda: "3 of 4", timeout_s=0)
    assert PATIENCE_S >= LEAST_LIMIT_S


def test_time_passes_for_a_reason_only():
    with pytest.raises(AssertionError):
        pass_time(0, because="")
