"""Channels that rest: out of the distance, and judged by whether they have ever read such a value.

A channel that takes at most two values in the training rows (a gas sensor at 0 ppm, a switch, a
set point) has no spread that a distance could go by. Any value outside what it has shown is an
anomaly with the reason ``unseen``: the k-th of a wake-up is as rare as k in a window of n. To the
hold each is one never met in the window, so that nothing of it is learnt unless people say so. An
incident opens at the third.

What wakes now and then, as rain and start-ups do, is reported once a window and week: until then a
further wake-up is left to the distance, unless it goes ten times as far as any reported before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from typing import Annotated, NamedTuple

import msgspec

from rejex_stream.rejection.judge import Unseen
from rejex_stream.types import LimitExcess, Reading, RestingRange

__all__ = ["Checked", "RestingChannels", "WakeUp"]

_REPORTED_AT = 3  # readings of a wake-up
_AT_REST = 10  # readings at rest that end a wake-up: a value that flickers is still awake
_TIMES_LARGEST = 10
_WEEK_MS = 7 * 86_400_000
_Count = Annotated[int, msgspec.Meta(ge=0)]


class WakeUp(msgspec.Struct, forbid_unknown_fields=True):
    """What one channel of one sensor did outside its range."""

    quiet: _Count = 0  # readings at rest since the last outside; at `_AT_REST` it is over
    unseen: _Count = 0  # readings of this wake-up that were anomalies
    reach: float = 0.0  # how far outside this wake-up went
    largest: float = 0.0  # how far those went that were reported before
    reported_ms: int | None = None
    reported_seq: int = 0

    def at_rest(self) -> None:
        """Take a reading inside the range."""
        if self.quiet == _AT_REST:
            return  # it is over: nothing changes, and the native core need not leave it to Python
        self.quiet += 1
        if self.quiet == _AT_REST:
            if self.unseen >= _REPORTED_AT:
                self.largest = max(self.largest, self.reach)
            self.unseen, self.reach = 0, 0.0

    def awake(self, distance: float, time_ms: int, seq: int, window: int) -> bool:
        """Take a reading so far outside the range; return whether it is an anomaly."""
        self.quiet = 0
        self.reach = max(self.reach, distance)
        is_news = (
            self.unseen > 0
            or self.reported_ms is None
            or self.reach > _TIMES_LARGEST * self.largest
            or (time_ms - self.reported_ms >= _WEEK_MS and seq - self.reported_seq >= window)
        )
        self.unseen += is_news
        if self.unseen == _REPORTED_AT:
            self.reported_ms, self.reported_seq = time_ms, seq
        return is_news


class Checked(NamedTuple):
    """Readings with values that a resting channel has never shown, by their place."""

    unseen: Mapping[int, Unseen]
    reported: Collection[int]  # those at which somebody is to be told
    wake_ups: dict[str, dict[str, WakeUp]]  # of their sensors, after the last of the readings


class RestingChannels:
    """The wake-ups of one stream, by sensor and name of the channel."""

    __slots__ = ("_channels", "_window", "wake_ups")

    def __init__(self, channels: Sequence[str], window: int) -> None:
        self._channels, self._window = channels, window
        self.wake_ups: dict[str, dict[str, WakeUp]] = {}

    def check(
        self,
        readings: Sequence[Reading],
        which: Sequence[int],
        ranges: Sequence[RestingRange],
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
        unseen, reported = dict[int, Unseen](), set[int]()
        for i in which:
            reading = readings[i]
            own = state.get(reading.sensor)
            for channel, low, high in ranges:
                value, name = reading.values[channel], self._channels[channel]
                wake_up = None if own is None else own.get(name)
                if low <= value <= high:
                    if wake_up is not None:
                        wake_up.at_rest()
                elif value == value:  # noqa: PLR0124 - nan: nothing was read
                    if own is None:
                        own = state[reading.sensor] = {}
                    if wake_up is None:
                        wake_up = own[name] = WakeUp()
                    limit = low if value < low else high
                    if wake_up.awake(
                        abs(value - limit), reading.event_time_ms, seq + i, self._window
                    ):
                        found = LimitExcess(name, value, limit, unseen=True)
                        known, count = unseen.get(i, ((), wake_up.unseen))
                        unseen[i] = Unseen((*known, found), min(count, wake_up.unseen))
                        if wake_up.unseen >= _REPORTED_AT:
                            reported.add(i)
        return Checked(unseen, reported, state)
