"""docs/explanation/architecture.md is the map: each file it names exists, each room has a line."""

import re
from pathlib import Path

import pytest

from tests.test_imports import ROOMS as FLOORS
from tools import trace_record

ROOT = Path(__file__).resolve().parent.parent
MAP = ROOT / "docs" / "explanation" / "architecture.md"

pytestmark = [
    pytest.mark.text,
    pytest.mark.skipif(
        not MAP.exists(), reason="docs/ is not here: the tests run from a copy without sources"
    ),
]


def packages():
    for source in (ROOT / "rejex_stream", ROOT / "connectors" / "rejex_connectors"):
        for init in sorted(source.rglob("__init__.py")):
            name = str(init.parent.relative_to(source.parent)).removeprefix("rejex_stream/")
            if name != "rejex_stream":
                yield name, init


def rooms():
    """Return each room of the table with its line, in the order of the page."""
    table = MAP.read_text(encoding="utf-8").split("## The packages")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `([\w/]+)` \| (.+) \|$", table, re.M))


def test_every_package_is_in_the_table_and_nothing_else():
    assert rooms().keys() == {name for name, _ in packages()}


def test_the_table_stands_on_the_floors_that_imports_keep():
    floor = {name: i for i, name in enumerate(FLOORS)}
    whole = [name for name in rooms() if name in floor]
    assert len(whole) > 15
    assert whole == sorted(whole, key=floor.__getitem__)


def test_every_file_it_names_exists():
    text = MAP.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[\w.]+/)+[\w.]+\.\w+)`", text))
    assert len(named) > 20
    assert {name for name in named if not any(ROOT.glob(f"**/{name}"))} == set()


def test_every_module_a_line_names_is_in_that_room():
    for name, text in rooms().items():
        (init,) = [init for other, init in packages() if other == name]
        inside = {path.stem for path in init.parent.iterdir()}
        for word in re.findall(r"`([a-z_]{4,})`", text):
            assert word in inside, f"{name} names {word}"


def test_the_way_of_a_record_is_the_way_it_takes():
    """Each file that the way names is called where a feed runs from a file to a file."""
    text = MAP.read_text(encoding="utf-8").split("## The way of one record")[1].split("\n## ")[0]
    named = set(re.findall(r"`((?:rejex_stream|connectors)/[\w/]+\.py)`", text))
    # The same stations at other edges, for other formats, and what people do with the outcome.
    other = re.compile(r"/kafka/|/review/|/decode/(?!csv|mapping)|/spark/|incremental_model")
    here = {name for name in named if not other.search(name)}
    assert len(here) >= 10
    called = {call.file for call in trace_record.of_a_run()}
    assert here - called == set()


def test_the_way_of_a_record_is_short():
    """What one more record passes in Python: limits to be lowered where the way gets shorter.

    One way of judging passes more files than a second, short one for single events did.
    """
    way = trace_record.of_one_record()
    assert len(way.files) <= 34, way.files
    assert way.moves <= 80


def test_a_package_names_the_module_to_open_first():
    for name, init in packages():
        inside = {path.stem for path in init.parent.iterdir()} - {"__init__", "__pycache__"}
        text = re.match(r'"""(.+?)"""', init.read_text(encoding="utf-8"), re.S)
        assert text, f"{name} says nothing"
        named = set(
            re.findall(
                r"[A-Za-z_]\w*", " ".join(re.findall(r"`([^`]+)`", text[1].replace("``", "`")))
            )
        )
        assert len(inside) < 3 or named & inside, f"{name}: which of its modules to open first"
