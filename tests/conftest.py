"""Shared fixtures: where golden values and evaluation data are."""

import gzip
import json
import os
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from tests.chromium import browser
from tests.program import Said, here

__all__ = ["browser"]  # a fixture

# How long an example takes says how busy the machine is, and nothing else.
settings.register_profile(
    "patient", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = Path(__file__).parent / "golden"


HEAVIER = {"long", "thorough", "browser", "prometheus"}
HEAVY = 10  # as many ordinary tests as one of those is worth, when the long files are put first
CASES = 2  # of a test with more of them, `make test-quick` takes the first two


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the long proofs an hour; among several workers, mix what waits with what computes."""
    seen: Counter[str] = Counter()
    weights: Counter[str] = Counter()
    for item in items:
        weights[item.location[0]] += HEAVY if HEAVIER & {m.name for m in item.iter_markers()} else 1
        seen[item.nodeid.split("[")[0]] += 1
        if seen[item.nodeid.split("[")[0]] > CASES:
            item.add_marker(pytest.mark.thorough)
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3600))
    for item in repeated(items):
        item.add_marker(pytest.mark.long)
    if "PYTEST_XDIST_WORKER" in os.environ:
        places = mixed(weights)
        items.sort(key=lambda item: places[item.location[0]])


def repeated(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield proofs with a broker that differ from another in the client only.

    `make test` takes one client for each of them, half of the proofs this one and half the other.
    """
    proofs: dict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        call = getattr(item, "callspec", None)
        late = item.get_closest_marker("slow") or item.get_closest_marker("long")
        if call and "client" in call.params and not late:
            others = {name: given for name, given in call.params.items() if name != "client"}
            proofs[item.nodeid.split("[")[0], repr(others)].append(item)
    for (name, _), clients in proofs.items():
        chosen = crc32(name.encode()) % len(clients)
        yield from clients[:chosen] + clients[chosen + 1 :]


def mixed(weights: Mapping[str, int]) -> dict[str, int]:
    """Return the place of each file: the heavy ones first, those with a broker, which wait, spread.

    None with a broker is among the last: no worker is left alone with a long file.
    """
    files = sorted(weights, key=lambda file: (-weights[file], file))
    waits = [file for file in files if file.startswith("tests/kafka/")]
    computes = [file for file in files if not file.startswith("tests/kafka/")]
    share = {file: i / len(computes) for i, file in enumerate(computes)}
    share |= {file: 0.75 * i / len(waits) for i, file in enumerate(waits)}
    return {file: i for i, file in enumerate(sorted(files, key=lambda f: (share[f], f)))}


@pytest.fixture(scope="session", autouse=True)
def _own_environment() -> Iterator[None]:
    """No variable of who runs the tests sets anything in the configs of theirs."""
    with pytest.MonkeyPatch.context() as environment:
        for name in [name for name in os.environ if name.startswith("REJEX_") and "__" in name]:
            environment.delenv(name)
        yield


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def rejex(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    return partial(here, capsys)


@pytest.fixture(scope="session")
def exceed_golden() -> dict[str, Any]:
    """Reference values of stability and bands, computed at 90 digits straight from the formulas."""
    with gzip.open(GOLDEN / "exceed.json.gz") as file:
        return json.load(file)


@pytest.fixture(scope="session")
def evaluation_data() -> Path:
    """Folder with ADBench tables and labelled sensor streams; never committed."""
    folder = Path(os.environ.get("REJEX_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "manifest.json").exists():
        pytest.skip(
            f"no evaluation data at {folder}: set REJEX_DATA to a folder with manifest.json"
        )
    return folder


@pytest.fixture(scope="session")
def shared_cases() -> Path:
    """Folder with small inputs of plants; never committed."""
    folder = Path(os.environ.get("REJEX_CASES", ROOT.parent / "shared" / "cases"))
    if not (folder / "README.md").exists():
        pytest.skip(f"no cases at {folder}: set REJEX_CASES to a folder with them")
    return folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 600 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(folder)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"a small file system needs the right to mount: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
