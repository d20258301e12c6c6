"""What is an anomaly whatever the score: beyond limits, or lasting longer than is usual."""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Sequence
from typing import Annotated, NamedTuple

import msgspec

from rejex_stream.errors import ConfigError
from rejex_stream.types import Label, Limited, LimitExcess, Reading, Reason, Verdict, unit_change

_USUAL_GAP, _LONGER, _OFTEN = 10, 3, 10
_SURE_AFTER = 10
"""Times the length of a usual gap: so many events of a stream are seen before one is too long."""
NOISE_EVERY = 64
"""Events of a stream from one look at a sensor's noise to the next."""
_GONE = 0.2  # of the usual noise
_STEP, _SLOW_STEP = 1.1, 1.01  # by which the usual follows; the latter where noise is gone


class ChannelLimits(NamedTuple):
    """Between which values a channel may be, its limits included; ``None``: none on that side."""

    channel: str
    low: float | None = None
    high: float | None = None


class LimitCheck:
    """Which readings lie beyond limits. It knows no past, so no cut of the input matters."""

    __slots__ = ("_sides", "any")

    def __init__(self, limits: Sequence[ChannelLimits], channels: Sequence[str]) -> None:
        self._sides = list[tuple[int, str, float, float]]()
        for channel, low, high in limits:
            lowest, highest = -math.inf if low is None else low, math.inf if high is None else high
            if channel not in channels or not lowest < highest or low is high is None:
                raise ConfigError(
                    f"The limits of channel {channel!r} are low = {low}, high = {high}: expected "
                    f"one of the channels {', '.join(channels)}, and one limit or two, the lower "
                    "one first."
                )
            self._sides.append((channels.index(channel), channel, lowest, highest))
        self.any = bool(self._sides)  # whether there are limits at all

    def exceeded(
        self, readings: Sequence[Reading], muted: Collection[int]
    ) -> dict[int, tuple[LimitExcess, ...]]:
        """Return by their place what readings exceed, muted ones nothing. O(limits) a reading."""
        found: dict[int, tuple[LimitExcess, ...]] = {}
        for at, channel, low, high in self._sides:
            for i, reading in enumerate(readings):
                value = reading.values[at]
                if (value < low or value > high) and i not in muted:  # nan is neither
                    limit = low if value < low else high
                    found[i] = (*found.get(i, ()), LimitExcess(channel, value, limit))
        return found


class Run(msgspec.Struct, array_like=True):
    """For how long something goes on, and went on before, in events.

    A channel without a value is such a run, one without its noise, and a score that does not move.
    """

    now: Annotated[int, msgspec.Meta(ge=-1)] = 0  # -1: no value was ever there
    longest: Annotated[int, msgspec.Meta(ge=0)] = 0  # of those that count as usual
    too_long: Annotated[int, msgspec.Meta(ge=0)] = 0  # events of those that were too long, in all

    def end(self, min_events: int, seq: int) -> None:
        """Take note that it is over, at the event `seq` of its stream.

        A run that was too long is a fault, and makes no longer one usual, unless a tenth of all
        events were in such runs.
        """
        length, self.now = self.now, 0
        if length > self.usual(min_events):
            self.too_long += length
            if _OFTEN * self.too_long <= seq:
                return
        self.longest = max(self.longest, length)

    def usual(self, min_events: int) -> int:
        """Return how long it may last: thrice the longest that was usual, or `min_events`."""
        return max(min_events, _LONGER * self.longest)

    def is_too_long(self, min_events: int, seq: int) -> bool:
        """Whether it lasts longer than is usual for a stream of which enough was seen."""
        usual = self.usual(min_events)
        return self.now > usual and seq >= max(_SURE_AFTER * usual, _OFTEN * self.too_long)


def long_gaps(
    gaps: dict[str, list[Run]],
    readings: Sequence[Reading],
    channels: Sequence[str],
    *,
    seq: int,
    known: Container[str],
    carried: int,
) -> dict[int, tuple[LimitExcess, ...]]:
    """Return by their place which readings lack a channel for longer than is usual for it.

    One that is missing since it came in another unit is told at once.

    `gaps`, of sensors that ever lacked one, go on with the readings; `seq` is the number of the
    first in the stream, `known` are sensors that were seen before, `carried` is for how many events
    people let the last value stand in. O(channels) a reading of such a sensor.
    """
    found: dict[int, tuple[LimitExcess, ...]] = {}
    min_events, seen = max(_USUAL_GAP, carried), set[str]()
    for i, reading in enumerate(readings):
        own, there = gaps.get(reading.sensor), [value == value for value in reading.values]  # noqa: PLR0124
        if own is None:
            if not all(there):
                before = reading.sensor in seen or reading.sensor in known
                own = gaps[reading.sensor] = [Run(0 if before else -1) for _ in channels]
            seen.add(reading.sensor)
        if own is None:
            continue
        for channel, gap, value in zip(channels, own, reading.values, strict=True):
            if value == value:  # noqa: PLR0124 - it is there
                gap.end(min_events, seq + i)
            else:
                gap.now += gap.now >= 0
            excess = None
            if units := unit_change(value):
                excess = LimitExcess(channel, None, 0.0, units=units)
            elif gap.is_too_long(min_events, seq + i):
                excess = LimitExcess(channel, None, float(gap.usual(min_events)), gap.now)
            if excess:
                found[i] = (*found.get(i, ()), excess)
    return found


class Noise(msgspec.Struct, array_like=True):
    """The noise of one channel as a standard deviation, and for how long it has been gone.

    It is gone below a fifth of what is usual. Third differences leave next to nothing of a signal
    that goes on, however large it is; of equal values they leave nothing at all.
    """

    usual: float = 0.0  # about the median of those seen
    now: float = 0.0
    gone: Run = msgspec.field(default_factory=Run)
    is_told: bool = False  # gone for longer than is usual

    def look(self, noise: float, seq: int, window: int) -> None:
        """Take the noise at the event `seq`, from `window` on to be told; nan: it is not known."""
        if not noise < math.inf:
            return
        usual, self.now, step = self.usual, noise, _SLOW_STEP
        if noise > _GONE * usual:
            step = _STEP
            self.gone.end(NOISE_EVERY, seq)
        else:
            self.gone.now += NOISE_EVERY
        self.is_told = usual > 0 and window <= seq and self.gone.is_too_long(NOISE_EVERY, seq)
        if noise > 0:
            usual = usual or noise
            self.usual = usual * step if noise > usual else usual / step

    def excess(self, channel: str) -> LimitExcess:
        """Return it as what is beyond the usual."""
        return LimitExcess(channel, self.now, self.usual, quiet_events=self.gone.now)


def limited(verdict: Verdict, channels: tuple[LimitExcess, ...]) -> Verdict:
    """Return the verdict on an event with channels beyond their limits."""
    known = verdict.limited or Limited((), verdict.label, verdict.reason)
    return msgspec.structs.replace(
        verdict, label=Label.ANOMALY, reason=Reason.LIMIT,
        limited=msgspec.structs.replace(known, channels=(*channels, *known.channels)),
    )  # fmt: skip
