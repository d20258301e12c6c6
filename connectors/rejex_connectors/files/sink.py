"""Outcomes to files as JSON Lines, and what the connectors remember between runs.

That is one small file of offsets and output lengths, whose replacement is a commit, and which file
the input was.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from rejex_connectors.durable import PRIVATE, read_if_there, replace_file, sync_folder
from rejex_stream.encode import (
    Form,
    encode_dead_letter,
    encode_follow_up,
    encode_incident,
    encode_reply,
    encode_review,
    verdict_encoder,
)
from rejex_stream.errors import ConfigError, ConnectorError, explaining_os_errors
from rejex_stream.types import Outcome, Partition

_VERSION = 1
_File = TypeVar("_File", "_CommitFile", "InputState")


class FileSink:
    """Writes outcomes as JSON Lines; see :class:`~rejex_stream.protocols.Sink`.

    Nothing is written before a commit. With a state folder a commit is: append and fsync the
    outputs, then replace one small file that holds the offsets and the outputs' lengths. What a
    killed run appended beyond those lengths is cut off when the outputs are opened again, so every
    outcome stands there once. Without a state folder, outputs begin empty, and a run that is
    killed starts over.
    """

    def __init__(
        self,
        *,
        verdicts: str | Path | None = None,
        review: str | Path | None = None,
        deadletter: str | Path | None = None,
        incidents: str | Path | None = None,
        state_dir: str | Path | None = None,
        form: Form = "full",
    ) -> None:
        self._form: Form = form
        wanted = dict(verdicts=verdicts, review=review, deadletter=deadletter, incidents=incidents)
        paths = {
            role: "-" if str(path) == "-" else os.path.abspath(path)
            for role, path in wanted.items()
            if path is not None
        }
        if len({os.path.realpath(path) for path in paths.values()}) < len(paths):
            raise ConfigError(f"outputs share a path ({paths}): give each its own")
        if state_dir is not None and "-" in paths.values():
            raise ConfigError(
                "standard output cannot be taken back after a crash: write to files, or do "
                "without a state folder"
            )
        self._state_dir = None if state_dir is None else Path(state_dir)
        self._lock = None if self._state_dir is None else lock_folder(self._state_dir)
        self._outputs: dict[str, _Output] = {}
        try:
            commit = CommitState() if self._state_dir is None else read_commit(self._state_dir)
            self._next_offsets = dict(commit.next_offsets)
            for role, path in paths.items():
                self._outputs[role] = _Output(path, _committed_length(role, path, commit))
        except BaseException:
            self.close()
            raise
        self._pending: dict[str, list[bytes]] = {role: [] for role in wanted}

    def write(self, outcomes: Sequence[Outcome]) -> None:
        self.buffer(lines_of(outcomes, review="review" in self._outputs, form=self._form))

    def buffer(self, lines: Iterable[tuple[str, bytes]]) -> None:
        """Buffer what :func:`lines_of` made, here or on another machine."""
        pending = self._pending
        for role, line in lines:
            if role in self._outputs:
                pending[role].append(line)

    def committed(self, partition: Partition) -> int:
        """Return the offset before which every outcome of a partition is in the files."""
        return self._next_offsets.get(partition, 0)

    def commit(self, next_offsets: Mapping[Partition, int]) -> None:
        """Append what was written, and make it durable together with the offsets."""
        durable = self._state_dir is not None
        for role, output in self._outputs.items():
            output.append(self._pending[role], durable=durable)
        if self._state_dir is not None:
            lengths = {role: (out.path, out.length) for role, out in self._outputs.items()}
            CommitState({**self._next_offsets, **next_offsets}, lengths).write(self._state_dir)
        self._next_offsets.update(next_offsets)
        for output in self._outputs.values():
            output.committed = output.length
        for lines in self._pending.values():
            lines.clear()

    def abort(self) -> None:
        """Forget what was written since the last commit, also what is half in the files."""
        for lines in self._pending.values():
            lines.clear()
        for output in self._outputs.values():
            output.cut()

    def close(self) -> None:
        for output in self._outputs.values():
            output.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def lines_of(
    outcomes: Sequence[Outcome], *, review: bool = True, form: Form = "full"
) -> list[tuple[str, bytes]]:
    """Return what outcomes become, in order: an output by its role, and the line that goes there.

    Without `review` nothing is encoded for reviewers, whose items are the longest lines.
    """
    encode, lines = verdict_encoder(form), list[tuple[str, bytes]]()
    for record, verdict, invalid, item, incidents, replies, after in outcomes:
        for reply in replies:
            lines.append(("incidents", encode_reply(record.position, reply)))
        if verdict is not None:
            lines.append(("verdicts", line := encode(verdict)))
        elif invalid is not None and not invalid.silent:
            lines.append(("deadletter", encode_dead_letter(record, invalid)))
        if item is not None and review:
            of_its_own = form == "lean" or item.verdict is not verdict
            lines.append(("review", encode_review(item, None if of_its_own else line)))
        elif after is not None and review:
            lines.append(("review", encode_follow_up(after)))
        for incident in incidents:
            lines.append(("incidents", encode_incident(incident)))
    return lines


class _Output:
    def __init__(self, path: str, length: int) -> None:
        self.path = path
        self.length = self.committed = length
        self._is_stdout = path == "-"
        self._handle = sys.stdout.fileno() if self._is_stdout else _open(path, length)

    def append(self, lines: list[bytes], *, durable: bool) -> None:
        if not lines:
            return
        content = b"\n".join(lines) + b"\n"
        left = memoryview(content)
        try:
            while left:
                left = left[os.write(self._handle, left) :]
            if durable and _is_file(self._handle):
                os.fsync(self._handle)
        except BrokenPipeError as error:
            raise ConnectorError(f"whoever read {self.path} has gone") from error
        except OSError as error:
            raise ConnectorError(f"{self.path} cannot be written: {error.strerror}") from error
        self.length += len(content)

    def cut(self) -> None:
        with explaining_os_errors(f"{self.path} cannot be cut"):
            if not self._is_stdout and _is_file(self._handle):
                os.ftruncate(self._handle, self.committed)
                os.lseek(self._handle, self.committed, os.SEEK_SET)
        self.length = self.committed

    def close(self) -> None:
        if not self._is_stdout:
            os.close(self._handle)


def _open(path: str, length: int) -> int:
    with explaining_os_errors(f"{path} cannot be opened for writing"):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        if _is_file(handle):  # a pipe or a device has no length to restore
            os.ftruncate(handle, length)
            os.lseek(handle, length, os.SEEK_SET)
            sync_folder(Path(path).parent)
    return handle


def _is_file(handle: int) -> bool:
    return stat.S_ISREG(os.fstat(handle).st_mode)


def _committed_length(role: str, path: str, commit: CommitState) -> int:
    if not commit.next_offsets:
        return 0
    known_path, length = commit.lengths.get(role, (path, None))
    if length is None:
        raise ConnectorError(
            f"the output {role} was not there when the last commit was made: earlier outcomes "
            "would be missing in it. Start over with another state folder and outputs, or "
            "leave it out"
        )
    n_bytes = os.path.getsize(path) if os.path.exists(path) else 0
    if os.path.realpath(known_path) != os.path.realpath(path) or n_bytes < length:
        raise ConnectorError(
            f"{path} is not the output of the last commit ({known_path}, {length} bytes, found "
            f"{n_bytes}): bring that file back, or start over with another state folder and "
            "outputs"
        )
    return length


# ------------------------------------------------------------- what is remembered between runs
@dataclass(frozen=True, slots=True)
class CommitState:
    """One commit: where each input goes on, and each output's path and length in bytes."""

    next_offsets: Mapping[Partition, int] = field(default_factory=dict)
    lengths: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Replace the commit before; this is the moment a commit happens."""
        offsets = [(*key, offset) for key, offset in self.next_offsets.items()]
        _write(folder / "commit.json", _CommitFile(_VERSION, offsets, dict(self.lengths)))


class _CommitFile(msgspec.Struct):
    version: int
    next_offsets: list[tuple[str, int, int]]
    outputs: dict[str, tuple[str, int]]


class InputState(msgspec.Struct, frozen=True, kw_only=True):
    """Which file is being read: a hash of how it begins, and the offset of its first record."""

    version: int = _VERSION
    topic: str
    beginning: str
    first_offset: int

    def write(self, folder: Path) -> None:
        _write(folder / "input.json", self)


def read_commit(folder: Path) -> CommitState:
    """Return the last commit; before the first, one of nothing."""
    state = _read(folder / "commit.json", _CommitFile)
    if state is None:
        return CommitState()
    offsets = {Partition(topic, number): offset for topic, number, offset in state.next_offsets}
    return CommitState(offsets, state.outputs)


def read_input(folder: Path, topic: str) -> InputState | None:
    """Return what is known about the input of that name, if anything is."""
    state = _read(folder / "input.json", InputState)
    return None if state is None or state.topic != topic else state


def lock_folder(folder: Path) -> int:
    """Make the folder and claim it for this process; returns a handle to close."""
    with explaining_os_errors(f"the state folder {folder} cannot be used"):
        folder.mkdir(0o700, parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise ConnectorError(
            f"the state folder {folder} is in use by another process: stop it first, or give this "
            "pipeline a folder of its own"
        ) from error
    return handle


def _write(path: Path, state: msgspec.Struct) -> None:
    with explaining_os_errors(f"the state {path} cannot be written"):
        replace_file(path, msgspec.json.format(msgspec.json.encode(state), indent=1))


def _read(path: Path, kind: type[_File]) -> _File | None:
    fix = "or remove the folder and the outputs to start over"
    if (content := read_if_there(path)) is None:
        return None
    try:
        tree = msgspec.json.decode(content)
        version = tree.get("version", _VERSION) if isinstance(tree, dict) else _VERSION
        if version != _VERSION:
            raise ConnectorError(
                f"the state {path} has version {version!r}, this program reads {_VERSION}: run the "
                f"version that wrote it, {fix}"
            )
        return msgspec.convert(tree, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConnectorError(
            f"the state {path} is damaged ({type(error).__name__}: {error}): restore it, {fix}"
        ) from error
