"""Writing a file so that a crash leaves the old content or the new, never half of it."""

from __future__ import annotations

import os
from pathlib import Path

from rejex_stream.errors import explaining_os_errors

PRIVATE = 0o600
"""What we make is for who runs us: readings, names of sensors and state are nobody else's."""


def read_if_there(path: Path) -> bytes | None:
    """Return what is in a file; ``None``: there is no such file."""
    with explaining_os_errors(f"{path} cannot be read"):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` into `path`: temporary file, fsync, rename, fsync of the folder.

    Only one process may write to `path`; what it left half-done is overwritten.
    """
    temporary = path.with_name(f".{path.name}.part")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
