"""The types that carry the meaning: what goes in, what comes out.

Everything here is immutable and free of behaviour. One record in gives one
:class:`Outcome` out: it holds a :class:`Verdict`, or an :class:`Invalid` where the record
could not be read.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

__all__ = [
    "ChannelEvidence",
    "ContextPoint",
    "Evidence",
    "FloatArray",
    "Invalid",
    "Label",
    "Outcome",
    "Partition",
    "Position",
    "Reading",
    "Reason",
    "Record",
    "ReviewItem",
    "Verdict",
]

FloatArray: TypeAlias = npt.NDArray[np.float64]


class Label(StrEnum):
    """The three verdicts; every event gets exactly one of them."""

    NORMAL = "normal"
    ANOMALY = "anomaly"
    REJECTED = "rejected"


class Reason(StrEnum):
    """Why an event was rejected."""

    AMBIGUOUS = "ambiguous"
    """The rank lies in the rejection band: slightly different training data may flip the label."""
    WARM_UP = "warm_up"
    """There is no fitted model yet, or too few reference scores to accept any label."""
    UNSCORABLE = "unscorable"
    """A channel is missing for too long, or the detector gave a score that is not finite."""
    CONSTANT_WINDOW = "constant_window"
    """Every reference score is the same number (a stuck sensor): ranks hold no information."""


class Partition(NamedTuple):
    """One ordered part of an input: a Kafka topic partition, or a file."""

    topic: str
    partition: int


class Position(NamedTuple):
    """Where an event stands in its input; this is the identity of the event."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}-{self.offset}"


class Record(NamedTuple):
    """Raw bytes as a source delivers them, before anybody tried to understand them."""

    position: Position
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


class Reading(NamedTuple):
    """One decoded event.

    Attributes
    ----------
    stream_key
        Events of one key share a model, a window and an order (sensor, group or ``global``).
    sensor
        Who measured; equals `stream_key` unless sensors are pooled. Untrusted text.
    event_time_ms
        UTC milliseconds since 1970, from the record, never from the wall clock.
    values
        Shape ``(n_channels,)`` in configured order; ``nan`` where a channel is missing.
    position
        Identity of the event.
    """

    stream_key: str
    sensor: str
    event_time_ms: int
    values: tuple[float, ...]
    position: Position


class ChannelEvidence(NamedTuple):
    """What a verdict would have been without one channel.

    Attributes
    ----------
    channel
        Its name; in its place stood the median of what the model knows.
    contribution
        Score minus `score_without`; ``None`` where that score is not finite.
    score_without, label_without
        What the model says then.
    """

    channel: str
    contribution: float | None
    score_without: float | None
    label_without: Label | None


class Evidence(msgspec.Struct, frozen=True):
    """Why a verdict is not normal.

    Attributes
    ----------
    channels
        The largest contribution first.
    flip
        The channel that alone would have changed the label, the largest contribution first.
    distance_ranks, distance_score
        How far the event is from the nearest edge of the rejection band.
    contamination
        γ of the pipeline.
    model_age_events
        Rows since the model was fitted (incremental models: since they began).
    """

    channels: tuple[ChannelEvidence, ...]
    flip: str | None
    distance_ranks: int
    distance_score: float | None
    contamination: float
    model_age_events: int


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """The answer for one event, with every number an operator needs to trust or doubt it.

    Attributes
    ----------
    position, stream_key, sensor, event_time_ms
        Copied from the reading.
    seq
        Ordinal of this event within its stream key, from 0.
    label, reason
        `reason` is set if and only if `label` is ``rejected``.
    score
        Detector-relative, high = anomalous; ``None`` before there is a model and where unscorable.
    rank
        Mid-rank K = floor((#{<score} + #{<=score}) / 2) among the reference scores, in
        ``0..window_len``.
    ties
        Reference scores equal to `score`; #{<score} is ``rank - ties // 2``.
    window_len, n_anomalies
        n, and r = floor(n * contamination): how many reference scores count as anomalies.
    band_lower, band_upper
        Inclusive ranks of the rejection band; empty where ``band_lower > band_upper``.
    psi
        rank / window_len.
    stability
        P(label = anomaly | score) under re-drawn training data (ExCeeD), in [0, 1].
    confidence
        ``|2 * stability - 1|``.
    threshold, score_lower, score_upper
        In score units: the r-th largest reference score; a score below `score_lower` is normal; a
        score at or above `score_upper` is an anomaly. ``None`` where that label cannot be reached.
    model_epoch
        Which fitted model spoke, from 0; ``None`` before the first.
    tolerance
        T of the band.
    evidence
        Which channels speak; only for events that are not normal, and where it is switched on.
    """

    position: Position
    stream_key: str
    sensor: str
    event_time_ms: int
    seq: int
    label: Label
    reason: Reason | None = None
    score: float | None = None
    rank: int | None = None
    ties: int = 0
    window_len: int = 0
    n_anomalies: int = 0
    band_lower: int | None = None
    band_upper: int | None = None
    psi: float | None = None
    stability: float | None = None
    confidence: float | None = None
    threshold: float | None = None
    score_lower: float | None = None
    score_upper: float | None = None
    model_epoch: int | None = None
    tolerance: float | None = None
    evidence: Evidence | None = None


class Invalid(NamedTuple):
    """A record that could not be read; it goes to the dead letters with its original bytes.

    Attributes
    ----------
    position
        Identity of the record.
    stage
        Where reading it failed: ``decode`` (bytes to fields) or ``validate`` (fields to a reading).
    reason
        One sentence with the offending value, safe to print.
    """

    position: Position
    stage: str
    reason: str


class ContextPoint(NamedTuple):
    """One earlier event of the same sensor, carried along for the reviewer."""

    event_time_ms: int
    values: tuple[float | None, ...]
    score: float | None
    label: Label


class ReviewItem(msgspec.Struct, frozen=True, kw_only=True):
    """What a reviewer gets for a rejected event.

    Attributes
    ----------
    verdict
        The rejected verdict (or an accepted one, drawn for an audit: see `why`).
    channels
        Names of the channels, in the order of `values`.
    values
        The reading itself; ``None`` where a channel was missing.
    context
        The last k events of the same sensor before this one, oldest first.
    why
        ``rejected``, or ``audit`` for an accepted event drawn by the audit sample.
    """

    verdict: Verdict
    channels: tuple[str, ...]
    values: tuple[float | None, ...]
    context: tuple[ContextPoint, ...] = ()
    why: str = "rejected"
    schema_version: int = 1


class Outcome(NamedTuple):
    """One record and what became of it: exactly one of `verdict` and `invalid` is set."""

    record: Record
    verdict: Verdict | None = None
    invalid: Invalid | None = None
    review: ReviewItem | None = None
