"""Shared fixtures: where golden values and evaluation data are."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.chromium import browser

__all__ = ["browser"]  # a fixture

# How long an example takes says how busy the machine is, and nothing else.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = Path(__file__).parent / "golden"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the long proofs an hour; everything else has the limit of the settings."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3600))


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
