"""docs/architecture.md is the map of the house: every file it names exists, every room is on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAP = ROOT / "docs" / "architecture.md"

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


def paragraphs():
    rooms = MAP.read_text(encoding="utf-8").split("## The rooms")[1].split("\n## ")[0]
    return dict(re.findall(r"^### (\S+)\n\n(.+?)(?=\n\n)", rooms + "\n\n", re.M | re.S))


def test_every_package_has_its_paragraph_and_every_paragraph_its_package():
    assert paragraphs().keys() == {name for name, _ in packages()}


def test_every_file_it_names_exists():
    text = MAP.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[\w.]+/)+[\w.]+\.\w+)`", text))
    assert len(named) > 20
    assert {name for name in named if not any(ROOT.glob(f"**/{name}"))} == set()


def test_every_module_a_paragraph_names_is_in_that_room():
    top = {path.stem for path in (ROOT / "rejex_stream").iterdir()}
    for name, text in paragraphs().items():
        (init,) = [init for other, init in packages() if other == name]
        inside = {path.stem for path in init.parent.iterdir()} | {"queue", "console"} | top
        for word in re.findall(r"`([a-z_]{4,})`", text):
            assert word in inside or word in {"unscorable"}, f"{name} names {word}"


@pytest.mark.parametrize(("name", "init"), list(packages()))
def test_a_package_says_what_it_is_for_and_what_to_open_first(name, init):
    text = re.match(r'"""(.+?)"""', init.read_text(encoding="utf-8"), re.S)
    assert text, f"{name} says nothing"
    assert len(text[1].split()) >= 20, f"{name}: what comes in, what goes out, what to open first"
