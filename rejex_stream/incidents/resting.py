"""Channels that rest: out of the distance, and judged by whether they have ever read such a value.

A channel that takes at most two values in the training rows (a gas sensor at 0 ppm, a switch, a
set point) has no spread that a distance could go by. Any value outside what it has shown is an
anomaly with the reason ``unseen``; docs/explanation/rest-and-silence.md says how rare it is, and at
which price what wakes now and then is told.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from rejex_stream.rejection.judge import Unseen
from rejex_stream.types import FloatArray, LimitExcess, Reading, RestingRange

_REPORTED_AT = 3  # readings of a wake-up
_AT_REST = 10  # readings at rest that end a wake-up: a value that flickers is still awake
_TIMES_LARGEST = 10
_MONTH_MS = 30 * 86_400_000
_Count = Annotated[int, msgspec.Meta(ge=0)]


class Price(NamedTuple):
    """What has to pass from one report of the same to the next."""

    at_least_ms: float
    at_least_events: float


class WakeUp(msgspec.Struct, forbid_unknown_fields=True):
    """What one channel of one sensor did outside its range."""

    quiet: _Count = 0  # readings at rest since the last outside; at `_AT_REST` it is over
    unseen: _Count = 0  # readings of this wake-up that were anomalies
    reach: float = 0.0  # how far outside this wake-up went
    length: _Count = 0  # how many readings it was there
    largest: float = 0.0  # how far those went that were reported before, and for how long
    longest: _Count = 0
    reported_ms: int | None = None
    reported_seq: int = 0

    @classmethod
    def after(cls, past: PastWakeUps, time_ms: int, seq: int) -> WakeUp:
        """Return the first of a channel that is judged."""
        if not past.length:
            return cls()
        return cls(largest=past.reach, longest=past.length, reported_ms=time_ms, reported_seq=seq)

    def at_rest(self) -> None:
        """Take a reading inside the range."""
        if self.quiet == _AT_REST:
            return  # it is over: nothing changes, and the native core need not leave it to Python
        self.quiet += 1
        if self.quiet == _AT_REST:
            if self.unseen >= _REPORTED_AT:
                self.largest = max(self.largest, self.reach)
                self.longest = max(self.longest, self.length)
            self.unseen, self.reach, self.length = 0, 0.0, 0

    def awake(self, distance: float, time_ms: int, seq: int, price: Price) -> bool:
        """Take a reading so far outside the range; return whether it is an anomaly."""
        self.quiet = 0
        self.reach = max(self.reach, distance)
        self.length += 1
        is_news = (
            self.unseen > 0
            or self.reported_ms is None
            or self.reach > _TIMES_LARGEST * self.largest
            or self.length > _TIMES_LARGEST * self.longest
            or (
                time_ms - self.reported_ms >= price.at_least_ms
                and seq - self.reported_seq >= price.at_least_events
            )
        )
        self.unseen += is_news
        if self.unseen == _REPORTED_AT:
            self.reported_ms, self.reported_seq = time_ms, seq
        return is_news


class PastWakeUps(NamedTuple):
    """What is known of a channel from before it was judged."""

    reach: float = 0.0  # how far outside its range it went and came back; 0: nowhere
    length: int = 0  # for how many readings, at most

    @classmethod
    def among(cls, values: FloatArray, resting: RestingRange) -> PastWakeUps:
        """Return what past values of shape (n,) show.

        What was shorter than is reported is a glitch, and what is not over yet is for people to
        see.
        """
        _, low, high = resting
        outside = np.maximum(low - values, values - high)
        at = np.flatnonzero(outside > 0)
        each = [
            one
            for one in np.split(at, np.flatnonzero(np.diff(at) > _AT_REST) + 1)
            if len(one) >= _REPORTED_AT and one[-1] < len(values) - _AT_REST
        ]
        if not each:
            return cls()
        return cls(float(outside[np.concatenate(each)].max()), max(map(len, each)))


_NEVER = PastWakeUps()


class Checked(NamedTuple):
    """Readings with values that a resting channel has never shown, by their place."""

    unseen: Mapping[int, Unseen]
    reported: Collection[int]  # those at which somebody is to be told
    wake_ups: dict[str, dict[str, WakeUp]]  # of their sensors, after the last of the readings


class RestingChannels:
    """The wake-ups of one stream, by sensor and name of the channel."""

    __slots__ = ("_channels", "_window", "per_month", "wake_ups")

    def __init__(self, channels: Sequence[str], window: int) -> None:
        self._channels, self._window = channels, window
        self.per_month = 1.0
        """How many false alarms people are willing to see."""
        self.wake_ups: dict[str, dict[str, WakeUp]] = {}

    def check(
        self,
        readings: Sequence[Reading],
        which: Sequence[int],
        ranges: Sequence[RestingRange],
        past_wake_ups: Sequence[PastWakeUps],
        seq: int,
    ) -> Checked:
        """Return what some of the readings show for the first time, and the state after them.

        `seq` is the ordinal of the first of all readings. The state here is left as it is: the
        judge may stop before the last of them, and `wake_ups` is updated by what was judged.
        O(ranges) a reading.
        """
        sensors = {readings[i].sensor for i in which} & self.wake_ups.keys()
        state = {
            sensor: {name: copy(wake_up) for name, wake_up in self.wake_ups[sensor].items()}
            for sensor in sensors
        }
        pasts = past_wake_ups if len(past_wake_ups) == len(ranges) else [_NEVER] * len(ranges)
        price = Price(_MONTH_MS / self.per_month, self._window / self.per_month)
        unseen, reported = dict[int, Unseen](), set[int]()
        for i in which:
            reading = readings[i]
            own = state.get(reading.sensor)
            for (channel, low, high), past in zip(ranges, pasts, strict=True):
                value, name = reading.values[channel], self._channels[channel]
                wake_up = None if own is None else own.get(name)
                if low <= value <= high:
                    if wake_up is not None:
                        wake_up.at_rest()
                elif value == value:  # noqa: PLR0124 - nan: nothing was read
                    if own is None:
                        own = state[reading.sensor] = {}
                    if wake_up is None:
                        wake_up = own[name] = WakeUp.after(past, reading.event_time_ms, seq + i)
                    limit = low if value < low else high
                    if wake_up.awake(abs(value - limit), reading.event_time_ms, seq + i, price):
                        found = LimitExcess(name, value, limit, unseen=True)
                        known, count = unseen.get(i, ((), wake_up.unseen))
                        unseen[i] = Unseen((*known, found), min(count, wake_up.unseen))
                        if wake_up.unseen >= _REPORTED_AT:
                            reported.add(i)
        return Checked(unseen, reported, state)
