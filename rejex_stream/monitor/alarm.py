"""What a monitor says when it speaks up, and how much that is worth."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rejex_stream.types import Position

__all__ = ["Alarm", "AlarmKind", "Alternative"]


class AlarmKind(StrEnum):
    """Which question was answered."""

    HEALTH = "health"
    """The ranks are not what exchangeable scores give; `Alternative` says in which direction."""
    REJECTION_RATE = "rejection_rate"
    """Twice the planned share of the last n events was rejected: a fact, not a test."""
    COLLAPSE = "collapse"
    """Almost nothing is rejected any more: a dead sensor, or one that left its usual range."""
    STUCK = "stuck"
    """The same score over and over, or a reference of one repeated value."""
    REVIEW_BUDGET = "review_budget"
    """The day will end with more rejected events than people can look at."""
    DRIFT = "drift"
    """The scores moved away from those of a frozen reference."""
    ADWIN = "adwin"
    """River's ADWIN saw the mean score change."""


class Alternative(StrEnum):
    """In which direction the stream left the theory."""

    MORE_REJECTS = "more_rejects"
    FEWER_REJECTS = "fewer_rejects"
    MORE_ANOMALIES = "more_anomalies"
    FEWER_ANOMALIES = "fewer_anomalies"
    HIGHER_SCORES = "higher_scores"
    LOWER_SCORES = "lower_scores"
    REPEATED_SCORE = "repeated_score"


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """One alarm. A monitor raises alarms and never changes a verdict.

    Attributes
    ----------
    kind, alternative
        Which question was answered, and how.
    stream_key
        The stream it is about; ``None`` for the whole pipeline.
    position, seq, event_time_ms, model_epoch
        Of the event that completed the evidence; `seq` counts within that event's own stream.
    evidence, threshold
        The number that was too large (or, for a collapse, too small) and its limit, both in `unit`.
    unit
        ``nats`` of log evidence, a ``rate``, ``events``, or ``events/day``.
    guarantee
        What a false alarm costs: "about one false alarm per L events ..." or "heuristic: ...".
    message
        One sentence for a person.
    """

    kind: AlarmKind
    alternative: Alternative
    stream_key: str | None
    position: Position
    seq: int
    event_time_ms: int
    model_epoch: int | None
    evidence: float
    threshold: float
    unit: str
    guarantee: str
    message: str
