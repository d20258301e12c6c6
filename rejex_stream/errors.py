"""The exceptions of rejex-stream, two levels deep.

::

    RejexError
    ├── ConfigError        a setting cannot work: names the key, the value, what was expected
    ├── DetectorError      a detector is unknown, refused or failed to fit
    ├── CheckpointError    a snapshot is foreign, tampered with, too old or too new
    │   └── AnotherLogError  it is of a log that was recreated since
    ├── ConnectorError     the edge failed: a broker, a file, a topic
    └── EngineError        an engine was used by two threads at once, or after a call that failed

Bad *data* is not an exception: a record that cannot be read becomes an
:class:`~rejex_stream.types.Invalid`, an event that cannot be scored a rejected verdict.
Every message is a sentence with the offending value and the way to fix it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

WAY_OUT = (
    "use another snapshot (`rejex-stream state import`), or drop it (`rejex-stream state drop`) to "
    "start from the input alone"
)
"""What is left to do where a snapshot cannot be used."""


class RejexError(Exception):
    """Root of every error that rejex-stream raises on purpose."""


class ConfigError(RejexError, ValueError):
    """A setting or an argument cannot work; the message holds value, limit and fix."""


class DetectorError(RejexError):
    """A detector is unknown, refused by name, or failed to fit."""


class CheckpointError(RejexError):
    """A snapshot cannot be used: foreign, tampered with, or of another version."""


class AnotherLogError(CheckpointError):
    """A snapshot is of a log that is gone: what has its name now is another one."""


class ConnectorError(RejexError):
    """The edge failed: broker, file or topic.

    Parameters
    ----------
    message
        A sentence with the address or path and the way out.
    retriable
        Whether the same call may succeed later without a change by the user.
    """

    def __init__(self, message: str, *, retriable: bool = False) -> None:
        super().__init__(message)
        self.retriable = retriable


@contextmanager
def explaining_os_errors(
    failed: str, fix: str = "", *, kind: Callable[[str], RejexError] = ConnectorError
) -> Iterator[None]:
    """Raise what the system refuses as an error of ours: what failed, why, and how to fix it."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise kind(f"{failed} ({why}): {fix}." if fix else f"{failed}: {why}") from error


@contextmanager
def needing_extra(extra: str, what: str, otherwise: str = "") -> Iterator[None]:
    """Raise what cannot be imported as a :class:`ConfigError` that names the extra to install."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"{what} needs {error.name}: install the extra with pip install "
            f"'rejex-stream[{extra}]'{otherwise}."
        ) from error


class EngineError(RejexError, RuntimeError):
    """An engine was called by two threads at once, or again after a call that ended halfway."""
