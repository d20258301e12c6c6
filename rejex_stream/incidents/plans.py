"""Times in which work is planned: verdicts are given and marked, and nothing is learnt from them.

By event time, so that the same events are planned in every replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec

from rejex_stream.types import Command, CommandKind, CommandReply, Reading

__all__ = ["Plan", "Plans"]

_MOST = 200  # plans that a stream, or the engine for all of them, remembers


class Plan(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A time in which work is planned, once or again and again.

    Attributes
    ----------
    from_ms, until_ms
        Event times; `until_ms` is excluded.
    every_ms
        After so long it comes again; ``None``: it does not.
    streams
        Whose; empty: of all.
    id
        Of the command that said so; empty for those of the config.

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
    """The plans of one stream, or of all of them; the newest of them are remembered.

    Parameters
    ----------
    kept
        What :meth:`state` returned.
    """

    __slots__ = ("all",)

    def __init__(self, kept: Sequence[Plan] = ()) -> None:
        self.all = tuple(kept)

    def __bool__(self) -> bool:
        return bool(self.all)

    def state(self) -> list[Any]:
        """Return them as plain values."""
        return [msgspec.to_builtins(plan) for plan in self.all]

    def command(self, command: Command) -> CommandReply:
        """Take a plan in, or back; a refusal changes nothing."""
        if command.kind is CommandKind.CANCEL:
            left = tuple(plan for plan in self.all if plan.id != command.cancels)
            if len(left) == len(self.all):
                return CommandReply(
                    command=command.id,
                    accepted=False,
                    said=f"There is no plan {command.cancels} to be taken back.",
                )
            self.all = left
            return CommandReply(
                command=command.id, accepted=True, said=f"Plan {command.cancels} holds no more."
            )
        if any(plan.id == command.id for plan in self.all):
            return CommandReply(command=command.id, accepted=True, said="It was obeyed before.")
        start, end = command.from_ms, command.until_ms
        if start is None or end is None or end <= start:
            return CommandReply(
                command=command.id,
                accepted=False,
                said=f"A plan from {start} until {end} covers no event: give from_ms and until_ms, "
                "the later one last.",
            )
        self.all = (*self.all, Plan(start, end, id=command.id))[-_MOST:]
        return CommandReply(
            command=command.id,
            accepted=True,
            said=f"Events from {start} until {end} (event time, ms) are planned: nothing is learnt "
            "from them.",
        )


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
