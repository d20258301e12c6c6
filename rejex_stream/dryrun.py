"""What a run needs to be a rehearsal: a sink that keeps nothing, and an eye that counts."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from rejex_stream.planner import EpisodeRule
from rejex_stream.progress import RunEvent
from rejex_stream.tally import Tally
from rejex_stream.types import Outcome, Partition

__all__ = ["Counting", "NothingSink"]


class NothingSink:
    """A sink that writes nothing and commits nothing; see :class:`~.protocols.Sink`."""

    def write(self, outcomes: Sequence[Outcome]) -> None:
        """Take outcomes and forget them."""

    def commit(self, next_offsets: Mapping[Partition, int]) -> None:
        """Make nothing durable."""

    def abort(self) -> None:
        """Forget nothing."""

    def close(self) -> None:
        """Let go of nothing."""


class Counting:
    """An observer that counts outcomes, and ends the run after `limit` of them.

    Parameters
    ----------
    stop
        Set once the limit is reached.
    limit
        How many outcomes; ``None`` for all.
    rule
        What makes an episode.

    Attributes
    ----------
    tally
        The counts.
    """

    def __init__(
        self, stop: threading.Event, limit: int | None = None, rule: EpisodeRule | None = None
    ) -> None:
        self.tally = Tally(rule or EpisodeRule())
        self._stop, self._left = stop, limit

    def outcomes(
        self, partition: Partition, outcomes: Sequence[Outcome], *, replaying: bool
    ) -> None:
        """Count a batch, up to the limit."""
        if replaying:
            return
        if self._left is not None:
            outcomes = outcomes[: self._left]
            self._left -= len(outcomes)
            if self._left <= 0:
                self._stop.set()
        self.tally.add_outcomes(outcomes)

    def event(self, event: RunEvent) -> None:
        """See what happened to the run; nothing to count."""
