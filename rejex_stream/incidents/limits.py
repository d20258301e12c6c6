"""Limits that people set to the values of channels; beyond one, no theory is asked."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from rejex_stream.errors import ConfigError
from rejex_stream.types import Label, Limited, LimitExcess, Reading, Reason, Verdict

__all__ = ["ChannelLimits", "LimitCheck", "limited"]


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
            least, most = -math.inf if low is None else low, math.inf if high is None else high
            if channel not in channels or not least < most or low is high is None:
                raise ConfigError(
                    f"The limits of channel {channel!r} are low = {low}, high = {high}: expected "
                    f"one of the channels {', '.join(channels)}, and one limit or two, the lower "
                    "one first."
                )
            self._sides.append((channels.index(channel), channel, least, most))
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


def limited(verdict: Verdict, channels: tuple[LimitExcess, ...]) -> Verdict:
    """Return the verdict on an event with channels beyond their limits."""
    return msgspec.structs.replace(
        verdict, label=Label.ANOMALY, reason=Reason.LIMIT,
        limited=Limited(channels, verdict.label, verdict.reason),
    )  # fmt: skip
