"""A reviewer's desk: a real Chromium, and a record of everything that should not happen on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rejex_stream.review.queue.review_store import ReviewStore
from tests.chromium import PATIENCE_MS, unavailable

ROOT = Path(__file__).resolve().parents[2]
SHOTS = ROOT / "artifacts" / "review"
SCHEMES = ("dark", pytest.param("light", marks=pytest.mark.long))
AXE = ROOT / "artifacts" / "npm" / "axe-core-4.14.1.min.js"


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, fetched from npm once; it is no part of the product."""
    if not AXE.exists():
        if shutil.which("npm") is None:
            unavailable("axe-core is fetched with npm, which is not installed")
        AXE.parent.mkdir(parents=True, exist_ok=True)
        try:
            done = subprocess.run(
                ["npm", "pack", "--silent", "axe-core@4.14.1"], cwd=AXE.parent, capture_output=True,
                text=True, check=False, timeout=180,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            unavailable("npm cannot fetch axe-core: no answer within 180 s")
        if done.returncode:
            unavailable(f"npm cannot fetch axe-core: {done.stderr.strip()[-200:]}")
        with tarfile.open(AXE.parent / "axe-core-4.14.1.tgz") as tar:
            source = tar.extractfile("package/axe.min.js")
            assert source is not None
            part = AXE.with_suffix(f".{os.getpid()}")
            part.write_bytes(source.read())
            part.replace(AXE)
    return AXE.read_text(encoding="utf-8")


class Desk:
    """Opens pages as somebody, and remembers what went wrong on them.

    Attributes
    ----------
    complaints
        Errors of scripts, violations of the policy, dialogs, and requests to other origins.
    """

    def __init__(self, browser: Any, base: str) -> None:
        self.browser, self.base = browser, base
        self.complaints: list[str] = []
        self.contexts: list[Any] = []

    def open(
        self, path: str = "/queue", *, width: int = 1280, height: int = 860, scheme: str = "light",
        **options: Any,
    ) -> Any:  # fmt: skip
        context = self.browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, **options
        )
        context.set_default_timeout(PATIENCE_MS)
        self.contexts.append(context)
        return self.tab(context, path)

    def tab(self, context: Any, path: str = "/queue") -> Any:
        page = context.new_page()
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        page.on("request", self._asked)
        page.goto(self.base + path)
        return page

    def _heard(self, message: Any) -> None:
        # A refusal is an answer: the browser reports its status, the page shows its sentence.
        answered = re.search(r"status of (401|403|404|409|422|503)", message.text)
        if message.type in ("error", "warning") and not answered:
            self.complaints.append(f"console: {message.text}")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.base + "/", "data:", "blob:")):
            self.complaints.append(f"request: {request.url}")

    @contextmanager
    def expecting(self, pattern: str) -> Iterator[None]:
        """Let complaints pass that are meant to come, while the block lasts and no longer."""
        before = len(self.complaints)
        yield
        self.complaints[before:] = [
            complaint for complaint in self.complaints[before:] if not re.search(pattern, complaint)
        ]

    def leave(self) -> None:
        """Take every page off the console; profiles end with the browser.

        Chromium may never finish closing a profile of which a page is on its way to another one,
        and Playwright waits for it without a limit.
        """
        from playwright.sync_api import Error

        for context in self.contexts:
            for page in context.pages:
                for _ in range(3):
                    try:
                        page.goto("about:blank")
                        break
                    except Error:  # its own script was quicker: once more
                        continue


Sit = Callable[[Any], AbstractContextManager[Desk]]


@pytest.fixture
def desk(browser: Any) -> Sit:
    """``with desk(console) as place``: afterwards nothing may have gone wrong on its pages."""

    @contextmanager
    def sit(console: Any) -> Iterator[Desk]:
        place = Desk(browser, console.base)
        try:
            yield place
        finally:
            place.leave()
        assert place.complaints == []

    return sit


def shot(page: Any, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png")


def violations(page: Any, axe: str) -> list[str]:
    page.evaluate(axe)
    return page.evaluate(
        "axe.run({resultTypes: ['violations']}).then(found => found.violations.map(one => "
        "one.id + ': ' + one.nodes.slice(0, 3).map(n => n.html.slice(0, 160)).join(' | ')))"
    )


# ------------------------------------------------------------------------- what a page shows now
def ids(page: Any) -> list[str]:
    return page.eval_on_selector_all("#rows tr", "rows => rows.map(row => row.dataset.id)")


def verdict(page: Any, key: str) -> None:
    page.wait_for_selector("body[data-keys=on]")
    page.keyboard.press(key)


def cursor(page: Any) -> str:
    return page.eval_on_selector("#rows tr[aria-current]", "row => row.dataset.id")


def labels(store: ReviewStore) -> list[tuple[str, str | None]]:
    with store.database.read() as connection:
        rows = connection.execute("SELECT kind, verdict FROM label ORDER BY label_seq")
        return [tuple(row) for row in rows]


def sees(page: Any, text: str, selector: str = "#toasts") -> None:
    from playwright.sync_api import expect

    expect(page.locator(selector)).to_contain_text(text)


def counts(page: Any, selector: str, count: int) -> None:
    from playwright.sync_api import expect

    expect(page.locator(selector)).to_have_count(count)
