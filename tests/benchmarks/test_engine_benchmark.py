"""The benchmark of both cores checks that they say the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.program import ended, environment

ROOT = Path(__file__).resolve().parents[2]
QUICK = [sys.executable, "-m", "benchmarks.engine", "--quick"]

pytestmark = pytest.mark.thorough


def run(**more):
    return ended(QUICK, cwd=ROOT, env=environment(**more))


@pytest.mark.long
def test_both_cores_give_the_same_verdicts():
    pytest.importorskip("rejex_native", reason="the native core is not built: make native")
    done = run(REJEX_CORE="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("the same verdicts\n")


def test_without_the_native_core_python_is_measured_alone():
    done = run(REJEX_CORE="python")
    assert done.returncode == 0, done.stderr
    assert "Python judges all events" in done.stdout
    assert done.stdout.endswith("by Python alone\n")
