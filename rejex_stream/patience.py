"""How long to go on trying when the edge fails for the moment."""

from __future__ import annotations

from rejex_stream.errors import ConnectorError
from rejex_stream.settings import RunSettings

__all__ = ["Patience"]


class Patience:
    """Counts failures in a row and says how long to wait after each.

    Examples
    --------
    >>> patience = Patience(RunSettings(retry_first_s=1.0, retry_for_s=5.0))
    >>> error = ConnectorError("the broker is away", retriable=True)
    >>> patience.failed(error, now=10.0), patience.failed(error, now=11.0)
    (1.0, 2.0)
    >>> patience.failed(error, now=13.0)
    Traceback (most recent call last):
    ...
    rejex_stream.errors.ConnectorError: gave up after 3 attempts in 3 s: the broker is away
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
        delay_s = self._settings.retry_delay_s(self.attempts)
        if now + delay_s - self._first_s > self._settings.retry_for_s:
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
