"""EIO, short writes and a full disk at every write of the review store and of the labels."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.program import ended, environment
from tests.soak_results import record

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """A library in front of libc, of which writes can be told to fail."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("no C compiler (cc), or not Linux: no write can be made to fail")
    path = tmp_path_factory.mktemp("shim") / "bad_disk.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(path), str(HERE / "bad_disk.c")]
    subprocess.run([*command, "-ldl"], check=True)
    return path


@pytest.mark.thorough
@pytest.mark.parametrize(
    "stride", [113, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(3_600)])]
)
def test_a_disk_that_fails_at_any_write_loses_no_item_and_no_label(shim, tmp_path, stride):
    """What was tried is not done at all, and said; tried again it is done once."""
    words = [sys.executable, HERE / "bad_disk.py", tmp_path, str(stride)]
    done = ended(words, env=environment(LD_PRELOAD=str(shim)), timeout=None)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["n_wrong"] == 0, told["wrong"]
    assert len(told["wanted"]["items"]) == 12
    assert told["wanted"]["labels"] == 13
    assert told["wanted"]["broken"] is None
    assert told["bitten"] > 0.5 * told["days"]
    assert {word.split("'")[0].strip() for word in told["words"]} <= {
        "The review store", "The labels file",
    }  # fmt: skip
    if stride == 1:
        record(
            "a bad disk under the review store and the labels",
            size=f"{told['calls']:,} writes, syncs and truncations of a day of 12 answers",
            done_to_it=f"{told['days']:,} days: at each of them EIO once, EIO three times, a short "
            "write then EIO, ENOSPC",
            outcome=f"in {told['bitten']:,} days something failed and was said; no item and no "
            f"label is lost, none is doubled but {told['doubled']} labels sent again with their "
            "own id; the trail is whole",
            versions=f", SQLite {told['sqlite']}",
        )
