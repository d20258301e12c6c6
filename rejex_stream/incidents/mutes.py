"""Patterns that people know to be normal: for a while, nobody is asked about them.

A mute says nothing of a verdict and nothing of the reference: label, rank and severity stay, scores
enter the window. It says who is told: an event in the box is no review item and no evidence for or
against an incident. The audit draws it all the same, so what a mute hides is in the certificate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from rejex_stream.types import Box, Command, CommandKind, CommandReply, Reading

__all__ = ["MOST_MUTES", "Mute", "Mutes"]

_NOTHING: Mapping[int, str] = MappingProxyType({})

MOST_MUTES = 20
"""So many of one stream are remembered."""


class Mute(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A box in the channels of a reading, in a time.

    Attributes
    ----------
    id
        Of the command that said so.
    from_ms, until_ms
        Event times; `until_ms` is excluded.
    box
        By channel the least and the largest value, both included; other channels may be anything.
    """

    id: str
    from_ms: int
    until_ms: int
    box: Box


class Mutes:
    """The mutes of one stream.

    Parameters
    ----------
    channels
        In the order of ``Reading.values``.
    kept
        What :meth:`state` returned.

    Examples
    --------
    >>> from rejex_stream.types import Position
    >>> mutes = Mutes(("flow", "temp"), [Mute("m", 0, 1_000, {"temp": (20.0, 25.0)})])
    >>> warm = Reading("pump", "pump", 5, (3.0, 21.0), Position("t", 0, 0))
    >>> mutes.found([warm, warm._replace(event_time_ms=1_000), warm._replace(values=(3.0, 26.0))])
    {0: 'm'}
    """

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

    def __bool__(self) -> bool:
        return bool(self.all)

    def state(self) -> list[Any]:
        """Return them as plain values."""
        return [msgspec.to_builtins(mute) for mute in self.all]

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
            return _reply(command, f"Mute {command.cancels} holds no more.", holds=True)
        if any(mute.id == command.id for mute in self.all):
            return _reply(command, "It was obeyed before.", holds=True)
        unknown = [name for name in command.box if name not in self._channels]
        if unknown:
            said = (
                f"There is no channel {unknown[0]!r}; a box is in {', '.join(self._channels)}, the "
                "channels of the reading."
            )
            return _reply(command, said, holds=False)
        start, end = command.from_ms, command.until_ms
        assert start is not None  # a sound command says both
        assert end is not None
        left = [mute for mute in self.all if mute.until_ms > start]  # those that are over make room
        if len(left) >= MOST_MUTES:
            said = (
                f"{MOST_MUTES} mutes of stream {command.stream_key!r} hold already: take one back, "
                "or teach the model what is normal."
            )
            return _reply(command, said, holds=False)
        self._hold([*left, Mute(command.id, start, end, command.box)])
        inside = ", ".join(
            f"{name} {low:g} to {high:g}" for name, (low, high) in command.box.items()
        )
        said = (
            f"Nobody is asked about events with {inside} from {start} until {end} (event time, ms) "
            "unless the audit draws them."
        )
        return _reply(command, said, holds=True)


def _reply(command: Command, said: str, *, holds: bool) -> CommandReply:
    return CommandReply(command=command.id, accepted=holds, said=said)
