"""When to try again and when to give up, where the edge fails for the moment.

The one policy of a run. What the edges bound themselves is no retry: how long one question may
take, how many messages are under way; a question that took too long fails, and this decides.
"""

from __future__ import annotations

from rejex_stream.errors import ConnectorError
from rejex_stream.run.settings import RunSettings

__all__ = ["Retries"]


class Retries:
    """Counts failures in a row and says how long to wait after each.

    ``retry_first_s``, then twice as long each time, at most ``retry_longest_s``; no longer than
    ``retry_for_s`` since the first. :meth:`succeeded` begins anew.

    Examples
    --------
    >>> settings = RunSettings(retry_first_s=1.0, retry_longest_s=2.0, retry_for_s=6.0)
    >>> retries = Retries(settings)
    >>> error = ConnectorError("the broker is away", retriable=True)
    >>> [retries.failed(error, now) for now in (10.0, 11.0, 13.0)]
    [1.0, 2.0, 2.0]
    >>> retries.failed(error, now=15.0)
    Traceback (most recent call last):
    ...
    rejex_stream.errors.ConnectorError: gave up after 4 attempts in 5 s: the broker is away
    """

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self.attempts = 0
        self._first_s = 0.0
        self._last_s = 0.0

    def failed(self, error: ConnectorError, now: float) -> float:
        """Return the seconds to wait before the next attempt.

        Raises
        ------
        ConnectorError
            If it would go on failing for too long.
        """
        self.attempts += 1
        if self.attempts == 1:
            self._first_s = now
        self._last_s = now
        settings = self._settings
        doubled_s = settings.retry_first_s * 2.0 ** min(self.attempts - 1, 60)
        delay_s = min(settings.retry_longest_s, doubled_s)
        if now + delay_s - self._first_s > settings.retry_for_s:
            raise ConnectorError(
                f"gave up after {self.attempts} attempts in {now - self._first_s:.0f} s: {error}"
            ) from error
        return delay_s

    def succeeded(self) -> None:
        """Forget the failures: something became durable."""
        self.attempts = 0

    def is_old(self, now: float) -> bool:
        """Whether the last failure is long past: the next one would be another story."""
        return self.attempts > 0 and now - self._last_s > self._settings.retry_longest_s
