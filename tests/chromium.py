"""A real Chromium for tests: found or skipped with the reason, required in CI."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tools.chromium import FLAGS, MISSING, find_chromium

# Waiting for a condition costs nothing where the machine is quick.
PATIENCE_MS = 30_000


def unavailable(reason: str) -> None:
    """Skip with the reason; where a browser is required (CI), fail instead."""
    if os.environ.get("REJEX_REQUIRE_BROWSER"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        from playwright import sync_api
    except ImportError:
        unavailable("Playwright is not installed: pip install playwright")
    path = find_chromium()
    if path is None:
        unavailable(MISSING)
    sync_api.expect.set_options(timeout=PATIENCE_MS)
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield found
        found.close()
