"""Where a Chromium is on this machine, and how it is started without asking anybody outside."""

from __future__ import annotations

import os
import shutil

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
MISSING = "no Chromium on the path: install one, or set REJEX_BROWSER"


def find_chromium() -> str | None:
    """Return its path: ``REJEX_BROWSER``, or the first known name on the path."""
    return os.environ.get("REJEX_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
