"""How much of the newest input could be read: a feed gone wrong should stop, not drain away."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rejex_stream.errors import ConnectorError
from rejex_stream.types import Invalid, Outcome

__all__ = ["ValidityWatch"]


class ValidityWatch:
    """Watches the share of invalid records among the last so many.

    Parameters
    ----------
    limit
        The largest share that is tolerated; ``None`` tolerates all.
    window_events
        How many records the share is taken over; nothing is said before there were that many.

    Examples
    --------
    >>> from rejex_stream.types import Position, Record
    >>> watch = ValidityWatch(0.5, window_events=2)
    >>> at = Position("t", 0, 1)
    >>> broken = Outcome(Record(at, None, b"?"), invalid=Invalid(at, "decode", "not JSON"))
    >>> watch.see([broken])
    >>> watch.complaint() is None
    True
    >>> watch.see([broken])
    >>> str(watch.complaint())[:47]
    '100% of the last 2 records could not be read (t'
    """

    def __init__(self, limit: float | None, window_events: int) -> None:
        self._limit = limit
        self._window: deque[bool] = deque(maxlen=window_events)
        self._window_events = window_events
        self._newest: Invalid | None = None

    def see(self, outcomes: Sequence[Outcome]) -> None:
        """Take note of outcomes in order."""
        self._window.extend([outcome.invalid is not None for outcome in outcomes])
        for outcome in reversed(outcomes):
            if outcome.invalid is not None:
                self._newest = outcome.invalid
                break

    def complaint(self) -> ConnectorError | None:
        """Return an error to raise if too many records could not be read. O(window)."""
        seen = len(self._window)
        if self._limit is None or self._newest is None or seen < self._window_events:
            return None
        share = self._window.count(True) / seen
        if share <= self._limit:
            return None
        return ConnectorError(
            f"{share:.0%} of the last {seen} records could not be read (the limit is "
            f"{self._limit:.0%}). The newest is {self._newest.position}: {self._newest.reason}. "
            "Compare the field mapping with the input; everything up to here is committed"
        )
