"""Outcomes to files: verdicts, review items, incidents and dead letters as JSON Lines."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rejex_connectors.durable import PRIVATE, sync_folder
from rejex_connectors.files.commit_state import CommitState, lock_folder, read_commit
from rejex_stream.encode import (
    Form,
    VerdictEncoder,
    encode_dead_letter,
    encode_follow_up,
    encode_incident,
    encode_reply,
)
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.types import Outcome, Partition

__all__ = ["FileSink", "lines_of"]


class FileSink:
    """Writes outcomes as JSON Lines; see :class:`~rejex_stream.protocols.Sink`.

    Nothing is written before a commit. With a state folder a commit is: append and fsync the
    outputs, then replace one small file that holds the offsets and the outputs' lengths. What a
    killed run appended beyond those lengths is cut off when the outputs are opened again, so every
    outcome stands there once. Without a state folder, outputs begin empty, and a run that is
    killed starts over.

    Parameters
    ----------
    verdicts, review, deadletter, incidents
        Where each goes: a path, ``-`` for standard output, or ``None`` for nowhere. Replies to
        commands go where incidents go.
    state_dir
        A folder for this pipeline alone.
    form
        How much of a verdict is written.

    Raises
    ------
    ConfigError
        If two outputs share a path, or a state folder is to make standard output exact.
    ConnectorError
        If an output cannot be opened or is not what was committed, or the folder is in use.

    Examples
    --------
    >>> import tempfile
    >>> from rejex_stream.types import Invalid, Position, Record
    >>> path = Path(tempfile.mkdtemp(), "dead.jsonl")
    >>> sink = FileSink(deadletter=path)
    >>> at = Position("water", 0, 7)
    >>> sink.write([Outcome(Record(at, None, b"?"), invalid=Invalid(at, "decode", "not JSON"))])
    >>> sink.commit({Partition("water", 0): 8})
    >>> path.read_text()[:18]
    '{"id":"water-0-7",'
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
        wanted = {
            "verdicts": verdicts,
            "review": review,
            "deadletter": deadletter,
            "incidents": incidents,
        }
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
            commit = None if self._state_dir is None else read_commit(self._state_dir)
            self._next_offsets = {} if commit is None else dict(commit.next_offsets)
            for role, path in paths.items():
                self._outputs[role] = _Output(path, _committed_length(role, path, commit))
        except BaseException:
            self.close()
            raise
        self._pending: dict[str, list[bytes]] = {role: [] for role in wanted}

    def write(self, outcomes: Sequence[Outcome]) -> None:
        """Encode and keep. O(outcomes)."""
        self.keep(lines_of(outcomes, review="review" in self._outputs, form=self._form))

    def keep(self, lines: Iterable[tuple[str, bytes]]) -> None:
        """Keep what :func:`lines_of` has made, here or on another machine."""
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
        """Let go of the outputs; uncommitted outcomes are dropped."""
        for output in self._outputs.values():
            output.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def lines_of(
    outcomes: Sequence[Outcome], *, review: bool = True, form: Form = "full"
) -> Iterator[tuple[str, bytes]]:
    """Yield what outcomes become, in order: an output by its role, and the line that goes there.

    Without `review` nothing is encoded for reviewers, whose items are the longest lines.
    """
    encoder = VerdictEncoder(form)
    for record, verdict, invalid, item, incidents, replies, after in outcomes:
        for reply in replies:
            yield "incidents", encode_reply(record.position, reply)
        if verdict is not None:
            yield "verdicts", encoder.verdict(verdict)
        elif invalid is not None and not invalid.silent:
            yield "deadletter", encode_dead_letter(record, invalid)
        if item is not None and review:
            yield "review", encoder.review(item)
        elif after is not None and review:
            yield "review", encode_follow_up(after)
        for incident in incidents:
            yield "incidents", encode_incident(incident)


class _Output:
    """One output file, or standard output."""

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
        try:
            if not self._is_stdout and _is_file(self._handle):
                os.ftruncate(self._handle, self.committed)
                os.lseek(self._handle, self.committed, os.SEEK_SET)
        except OSError as error:
            raise ConnectorError(f"{self.path} cannot be cut: {error.strerror}") from error
        self.length = self.committed

    def close(self) -> None:
        if not self._is_stdout:
            os.close(self._handle)


def _open(path: str, length: int) -> int:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        if _is_file(handle):  # a pipe or a device has no length to restore
            os.ftruncate(handle, length)
            os.lseek(handle, length, os.SEEK_SET)
            sync_folder(Path(path).parent)
    except OSError as error:
        raise ConnectorError(f"{path} cannot be opened for writing: {error.strerror}") from error
    return handle


def _is_file(handle: int) -> bool:
    return stat.S_ISREG(os.fstat(handle).st_mode)


def _committed_length(role: str, path: str, commit: CommitState | None) -> int:
    if commit is None or not commit.next_offsets:
        return 0
    known_path, length = commit.lengths.get(role, (path, None))
    if length is None and role == "incidents":
        return 0  # the state is of a version that wrote none
    if length is None:
        raise ConnectorError(
            f"the output {role} was not there when the last commit was made: earlier outcomes "
            "would be missing in it. Start over with another state folder, or leave it out"
        )
    found = os.path.getsize(path) if os.path.exists(path) else 0
    if os.path.realpath(known_path) != os.path.realpath(path) or found < length:
        raise ConnectorError(
            f"{path} is not the output of the last commit ({known_path}, {length} bytes, found "
            f"{found}): bring that file back, or start over with another state folder"
        )
    return length
