"""Where fits run: in place, in threads or in processes; and which of them a partition waits for."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, NamedTuple, TypeVar

from rejex_stream.errors import ConfigError, DetectorError
from rejex_stream.protocols import FitExecutor
from rejex_stream.threads import one_thread

_log = logging.getLogger(__name__)


_V = TypeVar("_V")
_ATTEMPTS = 3  # of a fit whose process dies


class _Task(NamedTuple):
    future: Future[Any]
    fit: Callable[[], Any]


class InlineExecutor:
    """Runs a fit when its result is asked for: no concurrency, the simplest thing that works.

    Examples
    --------
    >>> executor = InlineExecutor()
    >>> executor.submit("a", lambda: 42)
    >>> executor.done("a"), executor.result("a")
    (True, 42)
    """

    def __init__(self) -> None:
        self._fits: dict[Hashable, Callable[[], Any]] = {}

    def submit(self, key: Hashable, fit: Callable[[], Any]) -> None:
        self._fits[key] = fit

    def done(self, key: Hashable) -> bool:
        return key in self._fits

    def result(self, key: Hashable) -> Any:  # noqa: ANN401 - whatever the fit returned
        """Run the fit of `key`; raises what it raised. Once only."""
        return _take(self._fits, key)()

    def cancel(self, key: Hashable) -> None:
        self._fits.pop(key, None)

    def close(self) -> None:
        self._fits.clear()


class ThreadFitExecutor:
    """Runs fits in threads: cheap to start, and good where the fit lets go of the GIL.

    Fits begin in the order of their submission, but those first that somebody waits for: who asks
    whether a fit is done needs it.

    Examples
    --------
    >>> executor = ThreadFitExecutor(workers=1)
    >>> executor.submit("a", lambda: 42)
    >>> executor.result("a")
    42
    >>> executor.close()
    """

    def __init__(self, workers: int = 1) -> None:
        self._futures: dict[Hashable, Future[Any]] = {}
        self._queued: dict[Hashable, _Task] = {}  # in order of submission
        self._wanted: dict[Hashable, None] = {}  # those of them that were asked for, in order
        self._changed = threading.Condition()
        self._closed = False
        # Daemons, where a ThreadPoolExecutor would hold up the end of the program for a slow fit.
        if workers < 1:
            raise ConfigError(f"workers is {workers}: expected at least 1")
        for index in range(workers):
            threading.Thread(target=self._work, daemon=True, name=f"rejex-fit-{index}").start()

    def submit(self, key: Hashable, fit: Callable[[], Any]) -> None:
        self.cancel(key)
        with self._changed:
            future = self._futures[key] = Future[Any]()
            self._queued[key] = _Task(future, fit)
            self._changed.notify()

    def done(self, key: Hashable) -> bool:
        """Whether the result of `key` can be taken without waiting; if not, it goes first."""
        with self._changed:
            if key in self._queued:
                self._wanted[key] = None
            return key in self._futures and self._futures[key].done()

    def result(self, key: Hashable) -> Any:  # noqa: ANN401 - whatever the fit returned
        """Take the result of `key`, waiting if need be; raises what the fit raised. Once only."""
        self.done(key)
        with self._changed:
            future = _take(self._futures, key)
        return future.result()

    def cancel(self, key: Hashable) -> None:
        """Forget `key`; a fit that runs already runs to its end for nobody."""
        with self._changed:
            self._futures.pop(key, None)
            self._queued.pop(key, None)
            self._wanted.pop(key, None)

    def close(self) -> None:
        with self._changed:
            self._futures.clear()
            self._queued.clear()
            self._wanted.clear()
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            future, fit = task
            try:
                future.set_result(self._run(fit))
            except BaseException as error:  # carried to whoever takes the result
                future.set_exception(error)

    def _next(self) -> _Task | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queued or self._closed)
            if self._closed:
                return None
            key = next(iter(self._wanted or self._queued))
            self._wanted.pop(key, None)
            return self._queued.pop(key)

    def _run(self, fit: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the fit returned
        return fit()


class ProcessFitExecutor(ThreadFitExecutor):
    """Runs fits in worker processes: the event loop keeps its core while a slow fit runs.

    Each thread hands its fits to a process of its own. These are spawned (never forked, so threads
    of the parent do no harm), run at a lower priority, use one BLAS thread and ignore Ctrl-C, which
    is the parent's to handle. Fit and result must be picklable, and a program that uses this class
    needs the usual ``if __name__ == "__main__":``.

    When a process dies (out of memory, a crash in native code) its fit is tried again in a fresh
    one, at most twice, and then fails with :class:`DetectorError`; other fits never notice.

    `prepare` is called in every process as this begins, for the modules it loads: they take a
    second or two, and the first fit need not wait for them. What it raises is ignored.
    """

    def __init__(
        self, workers: int = 1, *, niceness: int = 5, prepare: Callable[[], object] | None = None
    ) -> None:
        if not 0 <= niceness <= 19:
            raise ConfigError(f"niceness is {niceness}: expected 0 to 19")
        self._niceness = niceness
        self._prepare = prepare
        self._pools: dict[int, ProcessPoolExecutor] = {}  # of one process each, by thread
        super().__init__(workers)

    def _work(self) -> None:
        if self._prepare is not None:
            with contextlib.suppress(Exception):  # a fit that needs it fails alike, and tells
                self._run(self._prepare)
        super()._work()

    def close(self) -> None:
        """Forget everything and end the workers at once, running fits too."""
        super().close()
        while self._pools:
            _, pool = self._pools.popitem()
            _end(pool)

    def _run(self, fit: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the fit returned
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                outcome = self._pool().submit(_run, fit).result()
            except BrokenProcessPool:
                self._pools.pop(threading.get_ident(), None)
                if attempt < _ATTEMPTS and not self._closed:
                    _log.warning("a fit's worker process died; trying the fit again")
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise DetectorError(
                    f"a fit or its result cannot travel between processes: {error}; "
                    "define it at the top level of a module, or fit in threads"
                ) from error
            else:
                if outcome.error is not None:
                    raise outcome.error
                return outcome.result
        raise DetectorError(
            f"the worker process of a fit died {_ATTEMPTS} times: out of memory, or a crash in "
            "native code; try a smaller buffer"
        )

    def _pool(self) -> ProcessPoolExecutor:
        with self._changed:
            if self._closed:
                raise DetectorError("the executor was closed")
            pool = self._pools.get(threading.get_ident())
            if pool is None:
                pool = self._pools[threading.get_ident()] = ProcessPoolExecutor(
                    1,
                    get_context("spawn"),
                    initializer=_settle,
                    initargs=(self._niceness, os.getpid()),
                )
            return pool


# ---------------------------------------------------------------------- inside a worker process
class _Outcome(NamedTuple):
    result: Any
    error: Exception | None = None


def _run(fit: Callable[[], Any]) -> _Outcome:
    try:
        # Here and not only at the start of the worker: a fit may load further native libraries.
        with one_thread():
            return _Outcome(fit())
    except BaseException as error:  # SystemExit too: it must not end the parent
        return _Outcome(None, _portable(error))


def _portable(error: BaseException) -> Exception:
    """Make an error safe to send: one that cannot be unpickled would take the pool down."""
    where = "".join(traceback.format_exception(error))
    copy: Exception = DetectorError(f"{type(error).__name__}: {error}")
    try:
        twin = pickle.loads(pickle.dumps(error))
        if isinstance(error, Exception) and type(twin) is type(error):
            copy = twin
    except Exception:  # whatever a foreign __reduce__ or __init__ does
        _log.debug("an error cannot be pickled", exc_info=True)
    copy.add_note(f"In the worker process:\n{where}")
    return copy


def _settle(niceness: int, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(niceness)
    threading.Thread(target=_end_with, args=(parent,), daemon=True, name="rejex-orphan").start()


def _end_with(parent: int) -> None:
    """End this worker when its parent was killed: nobody is left to take the result."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


# ------------------------------------------------------------------------------------------
def _take(known: dict[Hashable, _V], key: Hashable) -> _V:
    try:
        return known.pop(key)
    except KeyError:
        raise DetectorError(
            f"no fit is known under {key!r}: a result is taken once, after it was submitted"
        ) from None


def _end(pool: ProcessPoolExecutor) -> None:
    """End a pool now: shutdown() alone would leave a running fit to its end."""
    workers = pool._processes
    pool.shutdown(wait=False)  # but for a worker that is being started: it is among them then
    for worker in list((workers or {}).values()):
        worker.terminate()


class ScopedExecutor:
    """A view of an executor that several engines share: keys cannot clash, all end at once."""

    def __init__(self, executor: FitExecutor, scope: Hashable) -> None:
        self._executor = executor
        self._scope = scope
        self._keys: set[Hashable] = set()

    def submit(self, key: Hashable, fit: Callable[[], Any]) -> None:
        self._keys.add(key)
        self._executor.submit((self._scope, key), fit)

    def done(self, key: Hashable) -> bool:
        return key in self._keys and self._executor.done((self._scope, key))

    def result(self, key: Hashable) -> Any:  # noqa: ANN401 - whatever the fit returned
        """Take the result of `key`, waiting if need be. Once only."""
        self._keys.discard(key)
        return self._executor.result((self._scope, key))

    def cancel(self, key: Hashable) -> None:
        self._keys.discard(key)
        self._executor.cancel((self._scope, key))

    def cancel_all(self) -> None:
        for key in list(self._keys):
            self.cancel(key)
