"""Take a picture of a report for the documentation: ``python -m tools.screenshot REPORT PICTURE``.

Needs Chromium (or Chrome) and Playwright's Python package; it never downloads a browser.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from tools.chromium import FLAGS, MISSING, find_chromium


def shoot(
    report: Path, picture: Path, *, width: int, height: int, scale: float, dark: bool
) -> None:
    """Save the first `height` CSS pixels of the page as PNG."""
    path = find_chromium()
    if path is None:
        sys.exit(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        page = browser.new_page(
            viewport={"width": width, "height": height},
            device_scale_factor=scale,
            color_scheme="dark" if dark else "light",
        )
        page.goto(report.resolve().as_uri())
        page.wait_for_timeout(500)  # two frames would do; plots are drawn in the next one
        page.screenshot(path=picture)
        browser.close()


def main() -> None:
    """Parse the command line and take the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=1240)
    parser.add_argument("--height", type=int, default=1560)
    parser.add_argument("--scale", type=float, default=1.25)
    parser.add_argument("--dark", action="store_true")
    given = parser.parse_args()
    given.picture.parent.mkdir(parents=True, exist_ok=True)
    shoot(
        given.report,
        given.picture,
        width=given.width,
        height=given.height,
        scale=given.scale,
        dark=given.dark,
    )
    print(f"{given.picture}: {given.picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
