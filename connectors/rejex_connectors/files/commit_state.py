"""What the file connectors remember between runs: offsets, output lengths, which file it was."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rejex_connectors.durable import PRIVATE, replace_file
from rejex_stream.errors import ConnectorError
from rejex_stream.types import Partition

__all__ = ["CommitState", "InputState", "lock_folder", "read_commit", "read_input"]

_VERSION = 1


@dataclass(frozen=True, slots=True)
class CommitState:
    """One commit: where each input goes on, and how long each output is."""

    next_offsets: Mapping[Partition, int] = field(default_factory=dict)
    lengths: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Replace the commit before; this is the moment a commit happens."""
        _write(
            folder / "commit.json",
            {
                "next_offsets": [[*key, offset] for key, offset in self.next_offsets.items()],
                "outputs": {role: list(output) for role, output in self.lengths.items()},
            },
        )


@dataclass(frozen=True, slots=True)
class InputState:
    """Which file is being read: a hash of how it begins, and the offset of its first record."""

    beginning: str
    first_offset: int

    def write(self, folder: Path, topic: str) -> None:
        """Replace what was known about the input before."""
        _write(
            folder / "input.json",
            {"topic": topic, "beginning": self.beginning, "first_offset": self.first_offset},
        )


def read_commit(folder: Path) -> CommitState | None:
    """Return the last commit, or ``None`` before the first."""
    state = _read(folder / "commit.json")
    if state is None:
        return None
    try:
        return CommitState(
            {Partition(str(t), int(p)): int(offset) for t, p, offset in state["next_offsets"]},
            {role: (str(path), int(size)) for role, (path, size) in state["outputs"].items()},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(folder / "commit.json", error) from error


def read_input(folder: Path, topic: str) -> InputState | None:
    """Return what is known about the input of that name, if anything is."""
    state = _read(folder / "input.json")
    if state is None or state.get("topic") != topic:
        return None
    try:
        return InputState(str(state["beginning"]), int(state["first_offset"]))
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(folder / "input.json", error) from error


def lock_folder(folder: Path) -> int:
    """Make the folder and claim it for this process; returns a handle to close."""
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    except OSError as error:
        raise ConnectorError(f"the state folder {folder} cannot be used: {error}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise ConnectorError(
            f"the state folder {folder} is in use by another process: stop it first, or give this "
            "pipeline a folder of its own"
        ) from error
    return handle


def _write(path: Path, state: dict[str, Any]) -> None:
    content = json.dumps({"version": _VERSION, **state}, indent=1).encode()
    try:
        replace_file(path, content)
    except OSError as error:
        raise ConnectorError(f"the state {path} cannot be written: {error}") from error


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConnectorError(f"the state {path} cannot be read: {error}") from error
    try:
        state = json.loads(content)
        version = state["version"]
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(path, error) from error
    if version != _VERSION:
        raise ConnectorError(
            f"the state {path} has version {version!r}, this program reads {_VERSION}: run the "
            "version that wrote it, or remove the folder to start over"
        )
    if not isinstance(state, dict):
        raise _damaged(path, TypeError("not an object"))
    return state


def _damaged(path: Path, error: Exception) -> ConnectorError:
    return ConnectorError(
        f"the state {path} is damaged ({type(error).__name__}: {error}): restore it, or remove "
        "the folder to start over"
    )
