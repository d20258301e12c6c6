"""Take the console's pictures for the documentation: ``python -m tools.console_pictures FOLDER``.

Runs the demo, serves the console on what it wrote, works as a small team would, and takes a picture
of each screen. Needs Chromium (or Chrome) and Playwright's Python package; it never downloads a
browser. Ages on the pictures are those of the moment.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from tools.chromium import FLAGS, MISSING, find_chromium

WIDTH, HEIGHT = 1180, 760
PHONE = 390, 844
PATIENCE_S = 300.0
ASK = """([path, body]) => fetch(path, body === null ? {} : {
    method: 'POST', headers: {'content-type': 'application/json'}, body: JSON.stringify(body)
}).then(response => response.json())"""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Run the demo and serve the console on it; yields its address."""
    program = [sys.executable, "-m", "rejex_stream"]
    demo = [*program, "demo", "--out", "demo"]
    subprocess.run(demo, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    configs = [word for one in ("turbines", "water") for word in
               ("--config", f"demo/{one}/pipeline.toml")]  # fmt: skip
    words = ["review", "serve", "--port", "0", "--store", "review.db"]
    # A team of two: where nobody is asked who they are, it is who serves.
    process = subprocess.Popen(
        [*program, *words, "--reviewer", "ada:lead", "--reviewer", "bob", *configs],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            found = re.match(r"review console: (\S+?)/?$", line.strip())
            if found:
                yield found[1]
                return
        sys.exit("the console did not start")
    finally:
        process.terminate()
        process.communicate()


def ask(page: Page, path: str, body: object = None) -> Any:  # noqa: ANN401 - whatever it says
    """Ask the console as a page of it does."""
    return page.evaluate(ASK, [path, body])


def settled(page: Page) -> list[dict[str, Any]]:
    """Wait until all is in the queue that the demo wrote; returns what is ready."""
    until_s, before = time.monotonic() + PATIENCE_S, -1
    while time.monotonic() < until_s:
        targets = ask(page, "/api/queue/ids?sort=severity")["targets"]
        if len(targets) == before and before > 0:
            return list(targets)
        before = len(targets)
        page.wait_for_timeout(4000)
    sys.exit("the queue does not come to rest")


def work(page: Page, targets: list[dict[str, Any]]) -> str:
    """Give some verdicts, talk, and share the work; returns an episode that is open."""
    for number, target in enumerate(targets[6:20]):
        verdict = "anomaly" if number % 3 == 0 else "normal"
        body = {"request_id": f"p{number}", "verdict": verdict, "targets": [target]}
        ask(page, "/api/labels", body)
    shown, given = targets[1]["id"], targets[3]["id"]
    ask(page, "/api/assign", {"episodes": [given], "to": "bob"})
    text = "Looks like the gearbox again: compare with last week."
    ask(page, f"/api/episodes/{shown}/comment", {"request_id": "c1", "text": text})
    return str(shown)


def main() -> None:
    """Parse the command line and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    path = find_chromium()
    if path is None:
        sys.exit(MISSING)
    with (
        tempfile.TemporaryDirectory() as scratch,
        served(Path(scratch)) as address,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(60_000)
        page.goto(address + "/help")
        targets = settled(page)
        until_s = time.monotonic() + 60  # what was measured in incidents is read step by step
        while time.monotonic() < until_s and "known so far" in page.evaluate(
            "fetch('/now').then(response => response.text())"
        ):
            page.wait_for_timeout(2000)
        for name, scheme, size in (
            ("now", "light", (WIDTH, HEIGHT)),
            ("now-dark", "dark", (WIDTH, HEIGHT)),
            ("now-phone", "light", PHONE),
        ):
            first = browser.new_page(
                viewport={"width": size[0], "height": size[1]}, color_scheme=scheme
            )
            first.goto(address + "/now")
            first.wait_for_selector("main")
            first.screenshot(path=given.folder / f"console-{name}.png")
            first.close()
        episode = work(page, targets)
        for name, where, ready in (
            ("queue", "/queue?sort=severity", "#rows tr[data-id]"),
            ("episode", f"/episode/{episode}", "#plots canvas"),
            ("incidents", "/incidents", "main"),
            ("audit", "/audit", ".tiles"),
        ):
            page.goto(address + where)
            page.wait_for_selector(ready)
            page.wait_for_timeout(700)  # plots are drawn in the next frames
            picture = given.folder / f"console-{name}.png"
            page.screenshot(path=picture)
            print(f"{picture}: {picture.stat().st_size / 1000:.0f} kB")
        browser.close()


if __name__ == "__main__":
    main()
