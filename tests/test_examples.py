"""Every example runs as it stands and says what its text promises."""

import re
import sys
from pathlib import Path

import pytest

from tests.program import ended

pytestmark = pytest.mark.thorough

EXAMPLES = Path(__file__).parent.parent / "examples"
SAYS = {
    "water_leak.py": r"90 of 1,181 hours went to review; the budget allows 99\.",
    "turbine.py": r"WT-01 gearbox overheats .*of 111; first sign after 2\.2 h",
    "plants.py": r"^time,sensor,power_kw,gearbox_c\n2026-01-01 00:00,WT-01,",
    "batch_facade.py": r"T = 32: +\d\.\d% rejected \(expected 7\.4%",
}


def test_every_example_is_tested_and_listed():
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == set(SAYS)
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert names == set(re.findall(r"\]\((\w+\.py)\)", readme))


@pytest.mark.parametrize("name", sorted(SAYS))
def test_the_example_runs_and_says_what_it_should(name, tmp_path):
    done = ended([sys.executable, EXAMPLES / name], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(SAYS[name], done.stdout), done.stdout
    assert list(tmp_path.iterdir()) == []  # an example leaves nothing behind
