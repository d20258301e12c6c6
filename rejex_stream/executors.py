"""Where fits run: at once, in threads, or in worker processes.

All meet :class:`~rejex_stream.protocols.FitExecutor`: they decide when a result is ready, never
what it is. A key is submitted, then its result is taken once or cancelled; submitting a key that
is still known forgets its earlier fit.
"""

from __future__ import annotations

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
from dataclasses import dataclass
from multiprocessing import get_context
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from threadpoolctl import threadpool_limits

from rejex_stream.errors import ConfigError, DetectorError

__all__ = ["InlineExecutor", "ProcessFitExecutor", "ThreadFitExecutor"]

_log = logging.getLogger(__name__)
_V = TypeVar("_V")


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
        """Note `fit` under `key`."""
        self._fits[key] = fit

    def done(self, key: Hashable) -> bool:
        """Whether `key` was submitted."""
        return key in self._fits

    def result(self, key: Hashable) -> Any:  # noqa: ANN401 - whatever the fit returned
        """Run the fit of `key`; raises what it raised. Once only."""
        return _take(self._fits, key)()

    def cancel(self, key: Hashable) -> None:
        """Forget `key`."""
        self._fits.pop(key, None)

    def close(self) -> None:
        """Forget everything."""
        self._fits.clear()


class ThreadFitExecutor:
    """Runs fits in threads: cheap to start, and good where the fit lets go of the GIL.

    Parameters
    ----------
    workers
        How many fits run at once.

    Examples
    --------
    >>> executor = ThreadFitExecutor(workers=1)
    >>> executor.submit("a", lambda: 42)
    >>> executor.result("a")
    42
    >>> executor.close()
    """

    def __init__(self, workers: int = 1) -> None:
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._futures: dict[Hashable, Future[Any]] = {}
        # Daemons, where a ThreadPoolExecutor would hold up the end of the program for a slow fit.
        self._threads = [
            threading.Thread(target=self._work, daemon=True, name=f"rejex-fit-{index}")
            for index in range(_at_least_one(workers))
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, key: Hashable, fit: Callable[[], Any]) -> None:
        """Start `fit` under `key`."""
        self.cancel(key)
        future = self._futures[key] = Future[Any]()
        self._queue.put((future, fit))

    def done(self, key: Hashable) -> bool:
        """Whether the result of `key` can be taken without waiting."""
        future = self._futures.get(key)
        return future is not None and future.done()

    def result(self, key: Hashable) -> Any:  # noqa: ANN401 - whatever the fit returned
        """Take the result of `key`, waiting if need be; raises what the fit raised. Once only."""
        return _take(self._futures, key).result()

    def cancel(self, key: Hashable) -> None:
        """Forget `key`; a fit that runs already runs to its end for nobody."""
        future = self._futures.pop(key, None)
        if future is not None:
            future.cancel()

    def close(self) -> None:
        """Forget everything; waits for nobody."""
        for key in list(self._futures):
            self.cancel(key)
        for _ in self._threads:
            self._queue.put(None)

    def _work(self) -> None:
        while (task := self._queue.get()) is not None:
            future, fit = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(fit())
            except BaseException as error:  # carried to whoever takes the result
                future.set_exception(error)


@dataclass(slots=True)
class _Job:
    fit: Callable[[], Any]
    pool: ProcessPoolExecutor
    future: Future[Any]
    attempts_alone: int = 0
    """How often it was tried again, in a pool of its own."""


class ProcessFitExecutor:
    """Runs fits in worker processes: the event loop keeps its core while a slow fit runs.

    Workers are spawned (never forked, so threads of the parent do no harm), run at a lower
    priority, use one BLAS thread and ignore Ctrl-C, which is the parent's to handle. Fit and
    result must be picklable, and a program that uses this class needs the usual
    ``if __name__ == "__main__":``.

    When a worker dies (out of memory, a crash in native code) every fit in the pool fails with it.
    Each of them is then tried again, alone in a fresh process and at most twice: a fit that kills
    its own process fails with :class:`DetectorError`, its neighbours never notice.

    Parameters
    ----------
    workers
        How many fits run at once.
    niceness
        Added to the workers' niceness, 0 to 19.
    """

    def __init__(self, workers: int = 1, *, niceness: int = 5) -> None:
        if not 0 <= niceness <= 19:
            raise ConfigError(f"niceness is {niceness}: expected 0 to 19")
        self._workers = _at_least_one(workers)
        self._niceness = niceness
        self._pool: ProcessPoolExecutor | None = None
        self._jobs: dict[Hashable, _Job] = {}

    def submit(self, key: Hashable, fit: Callable[[], Any]) -> None:
        """Start `fit` (picklable) under `key`."""
        self.cancel(key)
        pool = self._pool = self._pool or self._start(self._workers)
        try:
            future = pool.submit(_run, fit)
        except BrokenProcessPool:  # a worker died since the last call
            pool = self._pool = self._start(self._workers)
            future = pool.submit(_run, fit)
        self._jobs[key] = _Job(fit, pool, future)

    def done(self, key: Hashable) -> bool:
        """Whether the result of `key` can be taken without waiting."""
        job = self._jobs.get(key)
        if job is None or not job.future.done():
            return False
        return not self._try_again(job)

    def result(self, key: Hashable) -> Any:  # noqa: ANN401 - whatever the fit returned
        """Take the result of `key`, waiting if need be; raises what the fit raised. Once only."""
        job = _take(self._jobs, key)
        try:
            while self._try_again(job):  # waits
                pass
            outcome = job.future.result()
        except BrokenProcessPool:
            raise DetectorError(
                f"the worker process of the fit {key!r} died {1 + job.attempts_alone} times, also "
                "with that fit alone in it: out of memory, or a crash in native code; try a "
                "smaller buffer"
            ) from None
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise DetectorError(
                f"the fit {key!r} or its result cannot travel between processes: {error}; "
                "define it at the top level of a module, or fit in threads"
            ) from error
        finally:
            if job.attempts_alone:
                _end(job.pool)
        return outcome.value()

    def cancel(self, key: Hashable) -> None:
        """Forget `key`; a fit that runs already may run to its end for nobody."""
        job = self._jobs.pop(key, None)
        if job is not None:
            job.future.cancel()
            if job.attempts_alone:
                _end(job.pool)

    def close(self) -> None:
        """Forget everything and end the workers at once, running fits too."""
        for key in list(self._jobs):
            self.cancel(key)
        if self._pool is not None:
            _end(self._pool)
            self._pool = None

    def _start(self, workers: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            workers,
            get_context("spawn"),
            initializer=_settle,
            initargs=(self._niceness, os.getpid()),
        )

    def _try_again(self, job: _Job) -> bool:
        """Start another attempt if the last one ended with its process; waits for that end."""
        if not isinstance(job.future.exception(), BrokenProcessPool) or job.attempts_alone == 2:
            return False
        _log.warning("a fit's worker process died; trying the fit again, alone")
        if self._pool is job.pool:
            self._pool = None  # broken for good
        job.pool = self._start(1)
        job.future = job.pool.submit(_run, job.fit)
        job.attempts_alone += 1
        return True


# ---------------------------------------------------------------------- inside a worker process
class _Done(NamedTuple):
    result: Any

    def value(self) -> Any:  # noqa: ANN401 - whatever the fit returned
        return self.result


class _Failed(NamedTuple):
    error: Exception

    def value(self) -> Any:  # noqa: ANN401 - never returns
        raise self.error


def _run(fit: Callable[[], Any]) -> _Done | _Failed:
    try:
        # Here and not only at the start of the worker: a fit may load further native libraries.
        with threadpool_limits(limits=1):
            return _Done(fit())
    except BaseException as error:  # SystemExit too: it must not end the parent
        return _Failed(_portable(error))


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
    workers = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.terminate()


def _at_least_one(workers: int) -> int:
    if workers < 1:
        raise ConfigError(f"workers is {workers}: expected at least 1")
    return workers
