"""The table of CONTRIBUTING.md, from what one changes to the tests that fall: none is missing."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"

pytestmark = pytest.mark.text


def rows():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("## Which test for which file")[1].split("\n## ")[0]
    for line in re.findall(r"^\| `.*\|$", table, re.M):
        places, tests = (re.findall(r"`([^`]+)`", cell) for cell in line.strip("|").split("|"))
        yield places, {name: set(TESTS.glob(f"{name}.py")) for name in tests}


def test_every_place_and_every_test_it_names_is_there():
    missing = [place for places, _ in rows() for place in places if not (ROOT / place).exists()]
    missing += [name for _, tests in rows() for name, found in tests.items() if not found]
    assert missing == []


def test_every_folder_of_the_product_has_its_tests():
    named = {place.rstrip("/") for places, _ in rows() for place in places}
    folders = {
        str(init.parent.relative_to(ROOT))
        for top in ("rejex_stream", "connectors/rejex_connectors")
        for init in (ROOT / top).rglob("__init__.py")
    } - {"rejex_stream"}
    assert [f for f in sorted(folders) if not any(f"{f}/".startswith(f"{n}/") for n in named)] == []


def test_every_test_is_named():
    known = {path for _, tests in rows() for found in tests.values() for path in found}
    left = sorted(str(path.relative_to(TESTS)) for path in {*TESTS.rglob("test_*.py")} - known)
    assert left == []
