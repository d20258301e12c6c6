"""How often, how much and how long: the knobs of a run. None of them changes a verdict."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from rejex_stream.context import REVIEW_REASONS
from rejex_stream.errors import ConfigError
from rejex_stream.types import Reason

__all__ = ["RunSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The knobs of :func:`rejex_stream.runtime.run`.

    Parameters
    ----------
    commit_interval_s, commit_every_events
        Outcomes become durable after so many seconds or so many outcomes, whichever comes first.
    snapshot_every_events, snapshot_interval_s
        A partition's state is kept after so many of its events or so many seconds with any event;
        the input's retention must be longer. At most so many events are replayed after a crash.
    max_poll_records, poll_timeout_s
        At most so many records a turn, and so long a wait for the first of them.
    batch_s
        Polls shrink until a batch takes no longer than this.
    review_context_events, review_reasons, audit_rate
        How many earlier points a review item carries; rejected for which reasons an event goes to
        review; share of accepted events drawn for review as well.
    invalid_limit, invalid_window_events
        The run stops when more than this share of the last so many records cannot be read, rather
        than drain the feed into the dead letters; ``None`` never stops.
    retry_first_s, retry_longest_s, retry_for_s
        The wait after the first failure of the edge; it doubles up to the longest; the run gives
        up when it would fail for longer than the last.
    lost_state
        When a partition's state cannot be rebuilt: ``refuse``, or ``restart`` with a fresh one.
    progress_interval_s
        How often `on_progress` is called.

    Raises
    ------
    ConfigError
        If a number is out of range.

    Examples
    --------
    >>> settings = RunSettings(retry_first_s=0.5, retry_longest_s=4.0)
    >>> [settings.retry_delay_s(attempt) for attempt in range(1, 7)]
    [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    """

    commit_interval_s: float = 0.5
    commit_every_events: int = 20_000
    snapshot_every_events: int = 50_000
    snapshot_interval_s: float = 300.0
    max_poll_records: int = 5_000
    poll_timeout_s: float = 0.2
    batch_s: float = 0.5
    review_context_events: int = 32
    review_reasons: Collection[Reason] = REVIEW_REASONS
    audit_rate: float = 0.0
    invalid_limit: float | None = 0.5
    invalid_window_events: int = 1_000
    retry_first_s: float = 0.5
    retry_longest_s: float = 30.0
    retry_for_s: float = 600.0
    lost_state: Literal["refuse", "restart"] = "refuse"
    progress_interval_s: float = 1.0

    def __post_init__(self) -> None:
        for name in (
            "commit_every_events",
            "snapshot_every_events",
            "max_poll_records",
            "invalid_window_events",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: expected at least 1")
        for name in ("snapshot_interval_s", "batch_s", "retry_first_s", "retry_longest_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: expected more than 0")
        for name in ("commit_interval_s", "poll_timeout_s", "retry_for_s", "progress_interval_s"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: expected 0 or more")
        if self.invalid_limit is not None and not 0.0 <= self.invalid_limit < 1.0:
            raise ConfigError(
                f"invalid_limit is {self.invalid_limit}: expected a share from 0 up to less "
                "than 1, or none to never stop"
            )
        if self.lost_state not in ("refuse", "restart"):
            raise ConfigError(f"lost_state is {self.lost_state!r}: expected refuse or restart")

    def retry_delay_s(self, attempt: int) -> float:
        """How long to wait after failure number `attempt` (from 1) in a row."""
        return min(self.retry_longest_s, self.retry_first_s * 2.0 ** min(attempt - 1, 60))
