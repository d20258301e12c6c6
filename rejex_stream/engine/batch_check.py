"""What is asked before a call changes an engine: one caller, a batch that can be judged whole."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from heapq import heapify, heappop, heapreplace
from numbers import Integral, Real
from types import TracebackType

from rejex_stream.errors import ConfigError, EngineError
from rejex_stream.types import MODE_MARK, Reading, of_mode

__all__ = [
    "SingleOwner",
    "checked",
    "in_order",
]

_INT64 = 2**63  # a time beyond it cannot be kept
_FEW = 8  # setting out costs more than looking one by one


def checked(
    readings: Sequence[Reading], channels: Sequence[str], *, modes: bool = False
) -> tuple[Sequence[Reading], Sequence[float]]:
    """Return the readings of a batch, all of which can be judged, and the sum of each one's values.

    What decoders make is looked at in bulk, about 0.2 µs a reading; anything else (numpy's numbers,
    say) one by one, and it comes back as plain numbers.

    Parameters
    ----------
    readings
        The batch.
    channels
        Names of the channels, in the order of ``Reading.values``.
    modes
        Whether stream keys name a mode (:func:`~rejex_stream.types.in_mode`).

    Raises
    ------
    ConfigError
        For the first reading that cannot be judged: what it is, and what was expected.

    Examples
    --------
    >>> from rejex_stream.types import Position
    >>> good = Reading("pump", "pump", 1000, (1.5,), Position("t", 0, 7))
    >>> checked([good], ["flow"]) == ([good], [1.5])
    True
    >>> checked([good, good._replace(values=(1.5, 2.5))], ["flow"])
    Traceback (most recent call last):
    rejex_stream.errors.ConfigError: Reading 1 of 2 (t-0-7) has 2 values: expected 1, the channels \
flow. Nothing of the batch was taken; mend that reading, or leave it out, and give the others again.
    """
    try:
        totals = _plain_totals(readings, len(channels), modes=modes)
    except (TypeError, ValueError, ArithmeticError):
        totals = None
    if totals is not None:
        return readings, totals
    try:
        readings = list(readings)
    except TypeError:
        raise ConfigError(
            f"{_short(readings)} is no batch: give process() a list of readings."
        ) from None
    settled = []
    for i, reading in enumerate(readings):
        try:
            settled.append(_settled(reading, channels, modes=modes))
        except _Wrong as wrong:
            at = f" ({reading[4]})" if isinstance(reading, Reading) else ""
            raise ConfigError(
                f"Reading {i} of {len(readings)}{at} {wrong}. Nothing of the batch was taken; mend "
                "that reading, or leave it out, and give the others again."
            ) from None
    return settled, [sum(reading.values) for reading in settled]


class _Wrong(Exception):  # noqa: N818 - never leaves this module
    """What a reading has and what was expected."""


def _plain_totals(
    readings: Sequence[Reading], n_channels: int, *, modes: bool
) -> list[float] | None:
    """Return the sums if nothing need be looked at one by one; no loop of Python's in large ones.

    A sum is a float if its parts are floats and perhaps integers; that of numpy's is numpy's.
    """
    if type(readings) is not list and type(readings) is not tuple:
        return None
    if len(readings) < _FEW:
        return _totals_of_few(readings, n_channels, modes=modes)
    if {*map(type, readings)} != {Reading}:
        return None
    keys, sensors, times, rows, _ = zip(*readings, strict=False)
    text = "".join({*keys} if sensors == keys else {*keys, *sensors})  # refuses what is no text
    if not text.isascii():
        text.encode()  # refuses a lone surrogate, which no snapshot could hold
    if MODE_MARK in text:
        names = {*zip(keys, sensors, strict=True)}
        if any(_is_marked(key, sensor, modes=modes) for key, sensor in names):
            return None
    if {*map(type, times)} != {int} or not -_INT64 <= min(times) <= max(times) < _INT64:
        return None
    totals: list[float] = [*map(sum, rows)]
    return totals if {*map(type, totals)} == {float} and {*map(len, rows)} == {n_channels} else None


def _totals_of_few(
    readings: Sequence[Reading], n_channels: int, *, modes: bool
) -> list[float] | None:
    totals: list[float] = []
    for reading in readings:
        if type(reading) is not Reading:
            return None
        key, sensor, time, values, _ = reading
        total = sum(values)
        if (
            type(total) is not float
            or len(values) != n_channels
            or type(time) is not int
            or not -_INT64 <= time < _INT64
            or not (named := key + sensor).isascii()  # others are looked at more closely
            or (MODE_MARK in named and _is_marked(key, sensor, modes=modes))
        ):
            return None
        totals.append(total)
    return totals


def _is_marked(key: str, sensor: str, *, modes: bool) -> bool:
    """Whether a name has the mark in it that stands before a mode, and nowhere else."""
    return MODE_MARK in sensor or MODE_MARK in (of_mode(key)[0] if modes else key)


def _settled(reading: Reading, channels: Sequence[str], *, modes: bool) -> Reading:
    """Return one reading with plain numbers."""
    if not isinstance(reading, Reading):
        raise _Wrong(f"is {_short(reading)}: expected a Reading")
    for what, name in (("stream_key", reading.stream_key), ("sensor", reading.sensor)):
        if not isinstance(name, str):
            raise _Wrong(f"has {what} {_short(name)}: expected a text")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise _Wrong(f"has {what} {_short(name)}: expected valid Unicode") from None
        if MODE_MARK in (of_mode(name)[0] if modes and what == "stream_key" else name):
            raise _Wrong(
                f"has {what} {_short(name)}: expected no U+001F, which stands before an operating "
                "mode (EngineSpec(modes=True))"
            )
    time = reading.event_time_ms
    if not isinstance(time, Integral) or not -_INT64 <= time < _INT64:
        raise _Wrong(f"has event_time_ms {_short(time)}: expected milliseconds as an integer")
    try:
        found = list(reading.values)
    except TypeError:
        raise _Wrong(f"has values {_short(reading.values)}: expected a tuple of floats") from None
    if len(found) != len(channels):
        named = ", ".join(channels)
        raise _Wrong(f"has {len(found)} values: expected {len(channels)}, the channels {named}")
    values = []
    for channel, value in zip(channels, found, strict=True):
        try:
            if not isinstance(value, Real):
                raise TypeError
            values.append(float(value))
        except (TypeError, ValueError, ArithmeticError):
            raise _Wrong(
                f"has {_short(value)} in channel {channel!r}: expected a float, nan if missing"
            ) from None
    return Reading(str(reading[0]), str(reading[1]), int(time), tuple(values), reading[4])


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def in_order(streams: Sequence[tuple[Sequence[int], Iterator[int]]]) -> None:
    """Take the turns of streams in the order of the readings: where each stream's own stand."""
    waiting = []
    for n, (at, turns) in enumerate(streams):
        if (turn := next(turns, None)) is not None:
            waiting.append((at[turn], n))
    heapify(waiting)
    while waiting:
        at, turns = streams[waiting[0][1]]
        if (turn := next(turns, None)) is None:
            heappop(waiting)
        else:
            heapreplace(waiting, (at[turn], waiting[0][1]))


class SingleOwner:
    """Lets one call in and refuses every other until it has ended; waits for nobody.

    A lock that made the second thread wait would keep the state whole and give its readings an
    order by chance.

    Attributes
    ----------
    halfway
        Set while a call changes state; one that an exception ended leaves it set.

    Examples
    --------
    >>> alone = SingleOwner()
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
