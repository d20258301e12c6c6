"""Result rows on disk: appended, never rewritten, safe after a SIGKILL at any moment.

A row is one line of JSON, written by one system call under a file lock and forced to disk. A kill
can leave at most one torn last line; reading skips it, and the next append ends it first.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["append", "keys", "read"]

_KEY = ("dataset", "detector", "fold", "method")


def append(path: Path, row: dict[str, Any]) -> None:
    """Add one row; returns when it is on disk."""
    line = json.dumps(row, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line  # somebody was killed in the middle of a row
        written = os.write(descriptor, line)
        if written != len(line):
            raise OSError(f"Only {written} of {len(line)} bytes of a row fit on the disk.")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the whole rows; torn ones are skipped.

    Of repeated rows the first counts, unless it only says why its cell is absent.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    if not path.exists():
        return []
    with path.open("rb") as file:
        for line in file:
            try:
                row = json.loads(line)
                key = tuple(row[part] for part in _KEY)
            except (ValueError, KeyError, TypeError):
                continue
            if key not in found or "absent" in found[key]:
                found[key] = row
    return list(found.values())


def keys(rows: Iterable[dict[str, Any]]) -> set[tuple[str, str, int, str]]:
    """Return (dataset, detector, fold, method) of rows; a cell that failed is to be tried again."""
    return {
        (row["dataset"], row["detector"], row["fold"], row["method"])
        for row in rows
        if "absent" not in row
    }
