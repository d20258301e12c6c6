"""The window in C says what the product's says, and its command says so."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUICK = [sys.executable, "-m", "benchmarks.native", "--quick"]

pytestmark = pytest.mark.thorough


def run(**options):
    return subprocess.run(
        QUICK, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300, **options
    )


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
def test_the_window_in_c_gives_the_same_ranks_and_verdicts():
    done = run()
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("the same ranks, order statistics and verdicts\n")


def test_without_a_compiler_it_says_so(tmp_path):
    done = run(env={"PATH": str(tmp_path), "HOME": str(tmp_path)})
    assert done.returncode == 1
    assert "there is no C compiler" in done.stderr
