"""Shared fixtures: where golden values and evaluation data are."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.chromium import browser

__all__ = ["browser"]  # a fixture

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
