"""An engine belongs to one thread at a time, and to none after a call that ended halfway."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from rejex_stream.errors import EngineError

__all__ = ["Alone"]


class Alone:
    """Lets one call in and refuses every other until it has ended; waits for nobody.

    A lock that made the second thread wait would keep the state whole and give its readings an
    order by chance.

    Attributes
    ----------
    halfway
        Set while a call changes state; one that an exception ended leaves it set.

    Examples
    --------
    >>> alone = Alone()
    >>> with alone:
    ...     with alone:
    ...         pass
    Traceback (most recent call last):
    rejex_stream.errors.EngineError: This engine is used by two callers at once: thread \
'MainThread' called it while thread 'MainThread' was not done. Nothing was changed by the second; \
give every thread an engine of its own, or put a lock around this one.
    """

    __slots__ = ("_lock", "_who", "halfway", "leave")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._who = 0
        self.halfway = False
        self.leave = self._lock.release

    def enter(self) -> None:
        """Begin a call that :meth:`leave` ends; beside ``with`` for calls that come often."""
        if not self._lock.acquire(False):
            raise EngineError(
                "This engine is used by two callers at once: thread "
                f"{_name(threading.get_ident())} called it while thread {_name(self._who)} was not "
                "done. Nothing was changed by the second; give every thread an engine of its own, "
                "or put a lock around this one."
            )
        self._who = threading.get_ident()

    __enter__ = enter

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Begin a call that goes on from the state as it is."""
        with self:
            self.require_whole()
            yield

    def require_whole(self) -> None:
        """Refuse to go on from a state that a failed call left between two events.

        Raises
        ------
        EngineError
            If the last call that changed state did not end.
        """
        if self.halfway:
            raise EngineError(
                "An earlier call ended with an error after part of its batch had been judged, so "
                "this engine's state belongs to no place in the input: restore() a snapshot, or "
                "make a new engine and give it the readings again."
            )


def _name(ident: int) -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return repr(names.get(ident, f"number {ident}"))
