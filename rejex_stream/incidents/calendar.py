"""What people say ahead of the events: when work is planned, and which patterns are normal.

By event time, so that the same events are meant in every replay. Of planned work verdicts are given
and marked, and nothing is learnt from them. A mute says nothing of a verdict and nothing of the
reference: label, rank and severity stay, scores enter the window. It says who is asked: an event in
the box is no review item and no evidence for or against an incident. The audit draws it all the
same, so what a mute hides is in the certificate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated

import msgspec

from rejex_stream.types import Box, Command, CommandKind, CommandReply, Reading

MOST_MUTES = 20
"""So many of one stream are remembered."""
_MOST_PLANS = 200  # that a stream, or the engine for all of them, remembers
_NOTHING: Mapping[int, str] = MappingProxyType({})
AGAIN = "It was obeyed before."


class Plan(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A time in which work is planned, once or again and again.

    `until_ms` is excluded; without `streams` it is for all, and without `id` it is of the config.

    Examples
    --------
    >>> nightly = Plan(from_ms=1_000, until_ms=1_500, every_ms=10_000)
    >>> [nightly.holds("pump", at) for at in (999, 1_000, 1_500, 11_499, 11_500)]
    [False, True, False, True, False]
    """

    from_ms: int
    until_ms: int
    every_ms: Annotated[int, msgspec.Meta(ge=1)] | None = None
    streams: tuple[str, ...] = ()
    id: str = ""

    def holds(self, stream_key: str, time_ms: int) -> bool:
        """Whether an event of a stream falls into it."""
        if self.streams and stream_key not in self.streams:
            return False
        since = time_ms - self.from_ms
        if self.every_ms is not None and since >= 0:
            since %= self.every_ms
        return 0 <= since < self.until_ms - self.from_ms


class Plans:
    """The plans of one stream, or of all of them; the newest of them are remembered."""

    __slots__ = ("all",)

    def __init__(self, kept: Sequence[Plan] = ()) -> None:
        self.all = tuple(kept)

    def command(self, command: Command) -> CommandReply:
        """Take a plan in, or back; a refusal changes nothing."""
        if command.kind is CommandKind.CANCEL:
            left = tuple(plan for plan in self.all if plan.id != command.cancels)
            if len(left) == len(self.all):
                said = f"There is no plan {command.cancels} to be taken back."
                return reply(command, said, holds=False)
            self.all = left
            return reply(command, f"Plan {command.cancels} holds no more.", holds=True)
        if any(plan.id == command.id for plan in self.all):
            return reply(command, AGAIN, holds=True)
        start, end = command.from_ms, command.until_ms
        if start is None or end is None or end <= start:
            said = (
                f"A plan from {start} until {end} covers no event: give from_ms and until_ms, "
                "the later one last."
            )
            return reply(command, said, holds=False)
        self.all = (*self.all, Plan(start, end, id=command.id))[-_MOST_PLANS:]
        said = (
            f"Events from {start} until {end} (event time, ms) are planned: nothing is learnt "
            "from them."
        )
        return reply(command, said, holds=True)


def runs(
    plans: Sequence[Plan], stream_key: str, readings: Sequence[Reading]
) -> Iterator[tuple[int, int, bool]]:
    """Cut readings of one stream where planned work begins and ends: start, stop, planned."""
    start, planned = 0, False
    for i, reading in enumerate(readings):
        now = any(plan.holds(stream_key, reading.event_time_ms) for plan in plans)
        if now is not planned:
            if i > start:
                yield start, i, planned
            start, planned = i, now
    yield start, len(readings), planned


class Mute(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A box in the channels of a reading, in a time; `id` is of the command that said so.

    By channel the least and the largest value, both included; other channels may be anything.
    `until_ms` is excluded.
    """

    id: str
    from_ms: int
    until_ms: int
    box: Box


class Mutes:
    """The mutes of one stream, whose readings have these channels."""

    __slots__ = ("_boxes", "_channels", "all")

    def __init__(self, channels: Sequence[str], kept: Sequence[Mute] = ()) -> None:
        self._channels = tuple(channels)
        self._hold(kept)

    def _hold(self, mutes: Sequence[Mute]) -> None:
        self.all = tuple(mutes)
        at = self._channels.index
        self._boxes = [
            (mute, [(at(name), low, high) for name, (low, high) in mute.box.items()])
            for mute in self.all
        ]

    def found(self, readings: Sequence[Reading]) -> Mapping[int, str]:
        """Return which of the readings are muted, and by which mute. O(readings x channels).

        A channel that is missing (nan) lies in no box.
        """
        if not self._boxes:
            return _NOTHING
        return {
            i: mute.id
            for mute, box in reversed(self._boxes)  # the first one said has the last word
            for i, (_, _, time_ms, values, _) in enumerate(readings)
            if mute.from_ms <= time_ms < mute.until_ms
            and all(low <= values[at] <= high for at, low, high in box)
        }

    def command(self, command: Command) -> CommandReply | None:
        """Take a mute in, or back; a refusal changes nothing. ``None``: none of these is meant."""
        if command.kind is CommandKind.CANCEL:
            left = [mute for mute in self.all if mute.id != command.cancels]
            if len(left) == len(self.all):
                return None
            self._hold(left)
            return reply(command, f"Mute {command.cancels} holds no more.", holds=True)
        if any(mute.id == command.id for mute in self.all):
            return reply(command, AGAIN, holds=True)
        unknown = [name for name in command.box if name not in self._channels]
        if unknown:
            said = (
                f"There is no channel {unknown[0]!r}; a box is in {', '.join(self._channels)}, the "
                "channels of the reading."
            )
            return reply(command, said, holds=False)
        start, end = command.from_ms, command.until_ms
        assert start is not None  # a sound command says both
        assert end is not None
        left = [mute for mute in self.all if mute.until_ms > start]  # those that are over make room
        if len(left) >= MOST_MUTES:
            said = (
                f"{MOST_MUTES} mutes of stream {command.stream_key!r} hold already: take one back, "
                "or teach the model what is normal."
            )
            return reply(command, said, holds=False)
        self._hold([*left, Mute(command.id, start, end, command.box)])
        inside = ", ".join(
            f"{name} {low:g} to {high:g}" for name, (low, high) in command.box.items()
        )
        said = (
            f"Nobody is asked about events with {inside} from {start} until {end} (event time, ms) "
            "unless the audit draws them."
        )
        return reply(command, said, holds=True)


def reply(command: Command, said: str, *, holds: bool) -> CommandReply:
    """Return what is said to a command that holds, or was refused."""
    return CommandReply(command=command.id, accepted=holds, said=said)
