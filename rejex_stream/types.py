"""The types that carry the meaning: what goes in, what comes out.

What is carried is immutable and free of behaviour. One record in gives one :class:`Outcome` out:
it holds a :class:`Verdict`, or an :class:`Invalid` where the record could not be read. What became
of records is counted once, by :class:`OutcomeCounts`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from rejex_stream.readable import Expected, number

FloatArray: TypeAlias = npt.NDArray[np.float64]
ColumnGroups: TypeAlias = Sequence[npt.NDArray[np.intp]]
Box: TypeAlias = dict[str, tuple[float, float]]


class Label(StrEnum):
    """The three verdicts; every event gets exactly one of them."""

    NORMAL = "normal"
    ANOMALY = "anomaly"
    REJECTED = "rejected"


class Reason(StrEnum):
    """Why an event was rejected, or is an anomaly whatever its score says."""

    AMBIGUOUS = "ambiguous"
    """The rank lies in the rejection band: slightly different training data may flip the label."""
    WARM_UP = "warm_up"
    """There is no fitted model yet, or too few reference scores to accept any label."""
    UNSCORABLE = "unscorable"
    """A channel is missing for too long, a feature or the score is not finite, or a feature lies
    beyond ±1e150, where squares overflow."""
    CONSTANT_WINDOW = "constant_window"
    """Every reference score is the same number (a stuck sensor): ranks hold no information."""
    TOO_MANY_SENSORS = "too_many_sensors"
    """Its partition knows ``state.max_keys`` sensors already, and this is none of them; one with
    modes counts once for each."""
    LIMIT = "limit"
    """A channel is beyond a limit that people set, or has had no value for longer than is usual: an
    anomaly, of which the theory says nothing."""
    UNSEEN = "unseen"
    """A channel that rested in the training rows reads what it has never shown: an anomaly, of
    which the theory says nothing."""


class Status(StrEnum):
    """What began or ended with an event, in the state of its sensor."""

    CONSTANT_BEGINS = "constant_begins"
    """Every reference score has become the same number: the sensor is stuck, or switched off."""
    CONSTANT_ENDS = "constant_ends"
    """The reference scores differ again: ranks hold information."""
    WARM_UP_MIXED = "warm_up_mixed"
    """The rows that the first model learnt from are of two kinds: a fault may lie among them."""
    NO_LEVEL = "no_level"
    """In the rows that the first model learnt from, a channel wanders: its changes are judged."""
    CLOCK_BEGINS = "clock_begins"
    """The sensor's times are impossible: before 1990, or more than a day ahead of all others."""
    CLOCK_ENDS = "clock_ends"
    """The sensor's times are possible again."""


SILENT_STAGES = ("ignored", "joined", "waiting")


class Partition(NamedTuple):
    """One ordered part of an input: a Kafka topic partition, or a file."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Position(NamedTuple):
    """Where an event stands in its input; this is the identity of the event.

    `reading` tells the readings of one record apart, where ``input.select`` makes several of it.

    Examples
    --------
    >>> str(Position("water", 0, 7)), str(Position("water", 0, 7, 2))
    ('water-0-7', 'water-0-7.2')
    """

    topic: str
    partition: int
    offset: int
    reading: int = 0

    def __str__(self) -> str:
        nth = f".{self.reading}" if self.reading else ""
        return f"{self.topic}-{self.partition}-{self.offset}{nth}"

    @property
    def parts(self) -> list[str | int]:
        """What stands for it in an array of JSON: `reading` only where it is not the first."""
        return list(self if self.reading else self[:3])


class Record(NamedTuple):
    """Raw bytes as a source delivers them, before anybody tried to understand them."""

    position: Position
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


class UnreadRecord(Record):
    """A record that the source could not hand over; of its content only the position is known.

    It becomes a dead letter with :attr:`reason`, as everything that cannot be read.

    Examples
    --------
    >>> UnreadRecord.of(Position("in", 0, 7), None, "it is too large").reason
    'it is too large'
    """

    reason: str

    @classmethod
    def of(cls, position: Position, timestamp_ms: int | None, reason: str) -> UnreadRecord:
        """Make one."""
        record = cls(position, None, None, (), timestamp_ms)
        record.reason = reason
        return record


class SelectedRecord(Record):
    """One of the readings that ``input.select`` made of its `source`, or why there is none."""

    source: Record
    invalid: Invalid | None

    @classmethod
    def of(
        cls, source: Record, index: int, value: bytes | None, invalid: Invalid | None = None
    ) -> SelectedRecord:
        """Make one; the first has the identity of its record."""
        position, key, _, headers, timestamp_ms = source
        if index:
            position = position._replace(reading=index)
        record = cls(position, key, value, headers, timestamp_ms)
        record.source, record.invalid = source, invalid
        return record


class DelayedRecord(Record):
    """A record whose outcome came with a later one: it waited, or ended a row.

    The input is used up to the offset `at` by then.
    """

    at: int

    @classmethod
    def of(cls, record: Record, by: Record) -> DelayedRecord:
        """Make one of a record whose outcome comes with the record `by`."""
        delayed = cls(*record)
        delayed.at = by.position.offset
        return delayed


def last_offset(record: Record) -> int:
    """Return the offset up to which the input was read when a record's outcome came.

    Examples
    --------
    >>> early, late = (Record(Position("in", 0, i), None, b"") for i in (3, 9))
    >>> last_offset(early), last_offset(DelayedRecord.of(early, late))
    (3, 9)
    """
    return record.at if isinstance(record, DelayedRecord) else record.position.offset


class Reading(NamedTuple):
    """One decoded event."""

    stream_key: str
    """Events of one key share a model, a window and an order (sensor, group or ``global``; each
    with its operating mode, where there is one: :func:`in_mode`)."""
    sensor: str
    """Who measured; equals `stream_key` unless sensors are pooled or have modes. Untrusted text."""
    event_time_ms: int
    """UTC milliseconds since 1970, from the record, never from the wall clock."""
    values: tuple[float, ...]
    """Shape ``(n_channels,)`` in configured order; ``nan`` where a channel is missing."""
    position: Position
    """Identity of the event."""


_NANS: dict[tuple[str, str], float] = {}  # the newest last
_UNITS: dict[int, tuple[str, str]] = {}  # by the identity of these
_MOST_UNITS = 1_024  # more than rows that wait can hold, in any honest stream


def nan_of_unit(was: str, now: str) -> float:
    """Return what stands for a value in another unit than its channel's: a nan, which knows both.

    It is known by its identity, so it is nothing but missing to whoever does not ask. O(1).
    """
    _NANS[was, now] = found = _NANS.pop((was, now), None) or float("nan")
    _UNITS[id(found)] = was, now
    if len(_NANS) > _MOST_UNITS:
        del _UNITS[id(_NANS.pop(next(iter(_NANS))))]
    return found


def unit_change(value: float) -> tuple[str, str] | None:
    """Return which unit a channel had and which this value has, where it is missing by that."""
    return _UNITS.get(id(value))


MODE_MARK = "\x1f"
"""Stands between a stream and its mode in a key; no sensor, group or mode has it in its name."""


def in_mode(stream_key: str, mode: str | None) -> str:
    r"""Return the key of a stream in an operating mode: what has a reference of its own.

    Examples
    --------
    >>> in_mode("WT-03", "idle"), in_mode("WT-03", None), of_mode(in_mode("WT-03", "idle"))
    ('WT-03\x1fidle', 'WT-03', ('WT-03', 'idle'))
    """
    return stream_key if mode is None else f"{stream_key}{MODE_MARK}{mode}"


def of_mode(key: str) -> tuple[str, str | None]:
    """Return the stream and the mode of a key that has one, else the key and ``None``."""
    stream_key, mark, mode = key.rpartition(MODE_MARK)
    return (stream_key, mode) if mark else (key, None)


def stream_name(stream_key: str | None, mode: str | None) -> str:
    """Return a stream in a mode as people call it, e.g. ``WT-03 (idle)``; else the pipeline."""
    if stream_key is None:
        return "the pipeline"
    return stream_key if mode is None else f"{stream_key} ({mode})"


class ChannelEvidence(msgspec.Struct, frozen=True):
    """What a verdict would have been without one channel."""

    channel: str
    """Its name. A model that scores parts of rows did not know it; for another the median of what
    that knows stood in its place."""
    contribution: float | None
    """Score minus `score_without`; ``None`` where that score is not finite."""
    score_without: float | None
    label_without: Label | None
    """What the model says then."""
    expected: Expected | msgspec.UnsetType = msgspec.UNSET
    """What the others made one expect in place of what it read, where they alone are no anomaly and
    say it at least twice as well as its past; of models of how channels go together."""


class Evidence(msgspec.Struct, frozen=True):
    """Why a verdict is not normal."""

    channels: tuple[ChannelEvidence, ...]
    """The largest contribution first."""
    flip: str | None
    """The channel that alone would have changed the label, the largest contribution first."""
    distance_ranks: int
    distance_score: float | None
    """How far the event is from the nearest edge of the rejection band."""
    contamination: float
    """γ of the pipeline."""
    model_age_events: int
    """Rows since the model was fitted (incremental models: since they began)."""


class RestingRange(NamedTuple):
    """Between which values a channel that rests stays, inclusive."""

    channel: int  # its place among the values of a reading
    low: float
    high: float

    @classmethod
    def of_values(cls, channel: int, values: Sequence[float]) -> RestingRange:
        """Return the range of a channel that took one value or two, in ascending order.

        Of two values, as far again on either side is ordinary: a coarse level reads 44 to 47.

        Examples
        --------
        >>> RestingRange.of_values(0, [45.0, 46.0])
        RestingRange(channel=0, low=44.0, high=47.0)
        """
        step = values[-1] - values[0]
        return cls(channel, values[0] - step, values[-1] + step)


class LimitExcess(msgspec.Struct, frozen=True):
    """A value beyond a limit of people, or never seen; or for unusually long none, or no noise."""

    channel: str
    """Its name."""
    value: float | None
    """What it read, or its noise where that is gone; ``None`` where it is missing, and on the wire
    where it is infinite."""
    limit: float
    """The lower limit where the value is below it, else the upper one; where the value is missing,
    for how many events in a row that is usual; where its noise is gone, what that usually is."""
    missing_events: int | msgspec.UnsetType = msgspec.UNSET
    """For how many events it has been missing, where that is what is beyond the limit."""
    unseen: bool | msgspec.UnsetType = msgspec.UNSET
    """True where the channel rested in the training rows, up to `limit`."""
    quiet_events: int | msgspec.UnsetType = msgspec.UNSET
    """For how many events its noise has been gone, whatever the signal did."""
    units: tuple[str, str] | msgspec.UnsetType = msgspec.UNSET
    """The channel's unit, and the other in which it came: so it is missing, and no limit counts."""

    @property
    def called(self) -> str:
        """What it is in two words."""
        if self.units:
            return "unit changed"
        gone = "no value" if self.missing_events else "no noise"
        return gone if self.missing_events or self.quiet_events else "limit exceeded"

    @property
    def is_set_by_people(self) -> bool:
        """Whether people set it: none that is missing, never seen or in another unit, nor noise."""
        return not (self.missing_events or self.unseen or self.quiet_events or self.units)


def beyond(excess: LimitExcess, unit: str = "") -> str:
    """Return in words what is beyond which limit.

    Examples
    --------
    >>> beyond(LimitExcess("pressure", 7.2, 6.0), "bar")
    'pressure 7.2 bar is above its limit of 6 bar'
    >>> beyond(LimitExcess("flow", None, 10.0, 11))
    'flow has had no value for 11 events, more than 10 are not usual'
    >>> beyond(LimitExcess("co", 400.0, 0.0, unseen=True), "ppm")
    'co 400 ppm, where it has rested at no more than 0 ppm'
    >>> beyond(LimitExcess("flow", 0.001, 0.1, quiet_events=128), "l/s")
    'flow has had next to no noise for 128 events: 0.001 l/s, usually 0.1 l/s'
    >>> beyond(LimitExcess("oil", None, 0.0, units=("°C", "°F")))
    'oil: unit was °C, is °F, and no such value is judged: convert it, or set the new unit'
    """
    channel, value, limit = excess.channel, excess.value, excess.limit
    if excess.units:
        was, now = excess.units
        done = "no such value is judged: convert it, or set the new unit"
        return f"{channel}: unit was {was}, is {now}, and {done}"
    if excess.missing_events:
        missing = f"{channel} has had no value for {excess.missing_events:,} events"
        return f"{missing}, more than {limit:,.0f} are not usual"
    unit = f" {unit}" if unit else ""
    if value is None:  # infinite, and came over the wire
        return f"{channel} is infinite, beyond its limit of {number(limit)}{unit}"
    if excess.unseen:
        side = "no more" if value > limit else "no less"
        rested = f"where it has rested at {side} than {number(limit)}{unit}"
        return f"{channel} {number(value)}{unit}, {rested}"
    if excess.quiet_events:
        gone = f"{channel} has had next to no noise for {excess.quiet_events:,} events"
        return f"{gone}: {number(value)}{unit}, usually {number(limit)}{unit}"
    side = "above" if value > limit else "below"
    return f"{channel} {number(value)}{unit} is {side} its limit of {number(limit)}{unit}"


class Limited(msgspec.Struct, frozen=True):
    """Which channels are beyond their limits, and what the verdict is without these."""

    channels: tuple[LimitExcess, ...]
    """Those beyond a limit."""
    label: Label
    reason: Reason | None = None
    """By the score alone: what rates and theory go by."""


class Spread(msgspec.Struct, frozen=True):
    """A channel that an open incident is told of later, and since when it has been unusual.

    It is so without the channels that were named before it.
    """

    channel: str
    since_ms: int


class LevelChange(msgspec.Struct, frozen=True):
    """A channel that has not come back: its mean before an incident and at its end."""

    channel: str
    before: float
    since: float


class IncidentState(StrEnum):
    """Where an incident stands; a stream without one is quiet."""

    OPEN = "open"
    """Somebody is told, and nobody has answered."""
    FAULT = "fault"
    """A person says that it is a fault: the reference stands still until recovery."""
    RECOVERING = "recovering"
    """Scores are ordinary again, not yet for long enough."""
    ADOPTING = "adopting"
    """A person says that it is the new normal: a reference is being made of it."""
    CLOSED = "closed"
    """It is over."""


NOTICE_MS = 12 * 3_600_000
"""So long before it happens people are told again that an incident is taken for normal."""


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of one stream, as it stood when an event changed it."""

    position: Position
    """Of that event."""
    id: str
    """Position of the event that opened it, as text: a replay repeats it."""
    version: int
    """From 1, one more with every change; a command names the version that it answers."""
    state: IncidentState
    """Where it stands."""
    stream_key: str
    sensors: tuple[str, ...]
    """Whose it is."""
    onset_ms: int
    opened_ms: int
    changed_ms: int
    """Event times: when it probably began, when the evidence was in, of this change."""
    onset_seq: int
    opened_seq: int
    changed_seq: int
    """The same as ordinals within the stream key."""
    peak_severity: float
    peak_ms: int
    """The largest severity so far, and when."""
    channels: tuple[ChannelEvidence, ...] = ()
    """Who speaks most, the largest contribution first; empty where evidence is not asked for."""
    n_events: int = 0
    n_anomalies: int = 0
    n_rejected: int = 0
    """Of the events since the onset."""
    answer: str | None = None
    """Id of the command that was obeyed last, if any."""
    ended: str | None = None
    """Why it is over, for ``closed`` ones: ``recovered``, ``absorbed`` (scores are ordinary, but
    ``levels`` are not what they were before it), ``adopted``, ``adopted_by_age``, ``as_before``
    (one that was adopted: readings are again as before it), ``hold_off`` (``hold.enabled`` is off
    now), ``alarm_off`` (nobody is told any more), ``forgotten`` (the stream was silent for
    ``state.forget_after``; counts are those told last), ``back`` (a silent sensor sends again)."""
    mode: str | None = None
    """The operating mode whose reference is held; the stream's other modes go on."""
    held: bool = True
    """Whether the reference stands still; while not, somebody is told and no verdict changes."""
    limits: tuple[LimitExcess, ...] = ()
    """What was beyond a limit that people set, or unseen, when it was so last; empty where nothing
    was."""
    adopts_ms: int | None = None
    """Before this event time it is not taken for normal, however many events come unanswered;
    ``None`` where it is not held, or people set a number of events."""
    spread: tuple[Spread, ...] = ()
    """Channels that were found unusual while it was held, the newest first; each is told once, and
    stands first in `channels` then."""
    levels: tuple[LevelChange, ...] = ()
    """Channels that were not back at their level when scores were ordinary again."""
    silent: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether it is that a sensor sends nothing: its onset is the time of the last reading, its id
    ends with ``-silent-`` and a number, and ordinals and counts are 0. Elsewhere it is not
    written."""
    known: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether somebody said that it is a fault which stays until it is repaired: that it seems to
    end is not told, what comes to it is. Elsewhere it is not written."""
    within: str | msgspec.UnsetType = msgspec.UNSET
    """Id of the incident that was held when it began: it is unusual beside what has been so since
    then. Elsewhere it is not written."""
    told_seq: int | msgspec.UnsetType = msgspec.UNSET
    """Ordinal of the event with which it was told first, where it was held in silence until then.
    Elsewhere it is not written."""

    @property
    def opens(self) -> bool:
        """Whether it is the first that is told of it; later changes may have version 1 as well."""
        told_seq = self.opened_seq if self.told_seq is msgspec.UNSET else self.told_seq
        return self.version == 1 and self.changed_seq == told_seq

    @property
    def is_noticed(self) -> bool:
        """Whether it is taken for normal soon, where nobody answers."""
        left = None if self.adopts_ms is None else self.adopts_ms - self.changed_ms
        return self.state is IncidentState.OPEN and left is not None and left <= NOTICE_MS

    @property
    def speaking(self) -> tuple[ChannelEvidence, ...]:
        """The channels that add to the score, at least a tenth of what the first adds."""
        known = [(channel.contribution or 0.0, channel) for channel in self.channels]
        min_added = max((added for added, _ in known), default=0.0) / 10
        return tuple(channel for added, channel in known if added > 0.0 and added >= min_added)

    @property
    def passed_limit(self) -> bool:
        """Whether a value was beyond a limit that people set."""
        return any(excess.is_set_by_people for excess in self.limits)


class CommandKind(StrEnum):
    """What a person can tell a running pipeline."""

    FAULT = "fault"
    """Of an incident: it is a fault; what was held back stays out of every reference for good."""
    KNOWN_FAULT = "known_fault"
    """Of an incident: a fault that stays until it is repaired; it is quiet, others are told."""
    NEW_NORMAL = "new_normal"
    """Of an incident: this is how it is from now on; the reference is made again of it."""
    PLANNED = "planned"
    """Of a stream, or of all: work is planned in a time; nothing is learnt, nobody is told."""
    MUTE = "mute"
    """Of a stream: readings in a box are known to be normal; nobody is asked about them."""
    CANCEL = "cancel"
    """Of an earlier ``planned`` or ``mute``: it does not hold any more."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A person's word as an input: it holds from a place in the order on, never from a time."""

    id: str
    """Unique; a command that comes twice is obeyed once."""
    kind: CommandKind
    """What is to be done."""
    stream_key: str | None = None
    """Whose; ``None``: of all streams."""
    incident: str | None = None
    version: int | None = None
    """Which incident is answered, as it stood then; a stale answer is refused."""
    from_ms: int | None = None
    until_ms: int | None = None
    """Event times of what is planned or muted; `until_ms` excluded."""
    box: Box = {}
    """What is muted: by channel of the reading the least and the largest value."""
    cancels: str | None = None
    """Id of the command that is taken back."""
    by: str = ""
    note: str = ""
    given_ms: int | None = None
    """Who said it, why, and when by the wall clock: for people, never for a decision."""


class CommandReply(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a command."""

    command: str
    """Its id."""
    accepted: bool
    """Whether it holds."""
    said: str
    """One sentence: what it does, or what was wrong and what is true now."""


class Audit(msgspec.Struct, frozen=True, gc=False):
    """How probable it was that somebody is asked about an event that the pipeline accepted."""

    p: float
    """That probability, in (0, 1]. An accepted event without it could not be drawn."""
    drawn: bool = False
    """Whether it was."""
    key: str | None = None
    """What the draw's key is committed to by: the first 16 digits of its SHA-256 in hexadecimal;
    ``None``: the draw has no key, and anybody can foresee it."""


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """The answer for one event, with every number an operator needs to trust or doubt it."""

    position: Position
    stream_key: str
    sensor: str
    event_time_ms: int
    """Copied from the reading; `stream_key` without the mode."""
    seq: int
    """Ordinal of this event within its stream key, from 0; 0 too for one of too many sensors. Each
    mode counts for itself."""
    label: Label
    reason: Reason | None = None
    """`reason` is set if and only if `label` is ``rejected``, or an anomaly is one whatever its
    score: by a ``limit`` that people set, or a value ``unseen`` of a channel that rested."""
    score: float | None = None
    """Detector-relative, high = anomalous; ``None`` before there is a model and where
    unscorable."""
    rank: int | None = None
    """Mid-rank K = floor((#{<score} + #{<=score}) / 2) among the reference scores, in
    ``0..window_len``."""
    ties: int = 0
    """Reference scores equal to `score`; #{<score} is ``rank - ties // 2``."""
    window_len: int = 0
    n_anomalies: int = 0
    """n, and r = floor(n * contamination): how many reference scores count as anomalies."""
    band_lower: int | None = None
    band_upper: int | None = None
    """Inclusive ranks of the rejection band; empty where ``band_lower > band_upper``."""
    psi: float | None = None
    """rank / window_len."""
    stability: float | None = None
    """P(label = anomaly | score) under re-drawn training data (ExCeeD), in [0, 1]."""
    confidence: float | None = None
    """``|2 * stability - 1|``."""
    threshold: float | None = None
    score_lower: float | None = None
    score_upper: float | None = None
    """In score units: the r-th largest reference score; a score below `score_lower` is normal; a
    score at or above `score_upper` is an anomaly. ``None`` where that label cannot be reached."""
    model_epoch: int | None = None
    """Which fitted model spoke, from 0; ``None`` before the first."""
    tolerance: float | None = None
    """T of the band."""
    evidence: Evidence | None = None
    """Which channels speak; only for events that are not normal, and where it is switched on."""
    withheld: bool = False
    """The policy's own band would have rejected this event, but the review budget had no credit
    left for it: the label is less sure than the policy wants."""
    policy_lower: int | None = None
    policy_upper: int | None = None
    """Under a review budget that holds, the policy's own band, which theory speaks of: `band_lower`
    and `band_upper` are what the credit allowed. ``None`` elsewhere."""
    severity: float | None = None
    """-log10 of the probability of so large a score under the reference scores, continued beyond
    the largest of them (:mod:`rejex_stream.rejection.window`): 3 is one normal event in 1,000. For
    ordering; the rank decides. ``None`` during a warm-up, where the window is constant, and where
    there is no score."""
    status: Status | None = None
    """What began or ended with this event; mostly ``None``."""
    held: bool = False
    planned: bool = False
    """The reference stood still, since an incident is open, or since work is planned: this event
    taught nothing, and the theory does not speak of it."""
    incident: str | None = None
    """Id of the incident that this event opened, or that was open when it came."""
    mode: str | None = None
    """The operating mode that the event was measured in, where modes are told apart."""
    muted: str | msgspec.UnsetType = msgspec.UNSET
    """Id of the mute that the reading lies in: a pattern that people know to be normal, no review
    item and no evidence for an incident. Elsewhere it is unset and not written."""
    audit: Audit | msgspec.UnsetType = msgspec.UNSET
    """Of an accepted or muted event that could be drawn for an audit, with which probability.
    Elsewhere it is unset and not written."""
    limited: Limited | msgspec.UnsetType = msgspec.UNSET
    """Which channels are beyond a limit that people set, or read what was never seen; rank, band
    and budget are as without it. Elsewhere it is unset and not written."""
    interim_severity: float | msgspec.UnsetType = msgspec.UNSET
    """While an incident is held: the severity by the interim reference, made of the rows since it
    began, from the first row that this ranks. Rows that look at readings from before a change are
    unusual by it, too: its alarm waits until none does. Elsewhere it is unset and not written."""

    def expected(self, channel: str) -> Expected | None:
        """Return what the others made one expect of a channel, where the evidence says so."""
        channels = () if self.evidence is None else self.evidence.channels
        return next((one.expected or None for one in channels if one.channel == channel), None)


class Invalid(NamedTuple):
    """A record that could not be read; it goes to the dead letters with its original bytes."""

    position: Position
    """Identity of the record."""
    stage: str
    """Where reading it failed: ``read`` (by the source), ``select`` (by the program), ``decode``
    (bytes to fields) or ``validate`` (fields to a reading). ``ignored`` is no failure: the record
    holds no reading, and is counted and not written; ``joined``: its reading is part of a row that
    comes with a later record; ``waiting``: its own outcome comes later."""
    reason: str
    """One sentence with the offending value, safe to print."""

    @property
    def silent(self) -> bool:
        """Whether it is only counted: nothing is wrong, and nothing is written."""
        return self.stage in SILENT_STAGES


class ContextPoint(NamedTuple):
    """One earlier event of the same sensor, carried along for the reviewer."""

    event_time_ms: int
    values: tuple[float | None, ...]
    score: float | None
    label: Label


class ReviewItem(msgspec.Struct, frozen=True, kw_only=True):
    """What a reviewer gets for an event that a person is asked about."""

    verdict: Verdict
    """The rejected verdict (or an accepted one, drawn for an audit: see `why`)."""
    channels: tuple[str, ...]
    """Names of the channels, in the order of `values`."""
    values: tuple[float | None, ...]
    """The reading itself; ``None`` where a channel was missing."""
    context: Sequence[ContextPoint] = ()
    """The last k events of the same sensor before this one, oldest first."""
    why: str = "rejected"
    """``rejected``, ``audit`` for an accepted event drawn by the audit sample, ``extreme`` for the
    first of anomalies that no incident tells of, or ``status`` where a state of the sensor begins
    or ends."""
    drawn: float | None = None
    """Of an audited event, how probable it was to be drawn: what estimates weigh it by."""
    schema_version: int = 1


class FollowUp(msgspec.Struct, frozen=True, kw_only=True):
    """What came after a review item: the next events of its sensor."""

    position: Position
    """Of the event that made it due, the last one of `points`."""
    of: Position
    """Of the review item's event: the sensor's latest."""
    stream_key: str
    sensor: str
    channels: tuple[str, ...]
    """As in the item."""
    points: Sequence[ContextPoint]
    """Events since the item, or since the follow-up before, oldest first: each comes once."""
    n_since: int
    """How many events of the sensor came since the item, with these."""
    last: bool = False
    """Whether the item gets no more of them."""
    schema_version: int = 1


class Outcome(NamedTuple):
    """One record and what became of it: exactly one of `verdict` and `invalid` is set.

    `incidents` are those that this event changed: opened, moved on, closed; its own stream's last,
    after those of streams that are forgotten with it. `replies` say what became of the commands
    that hold from this event on. `follow_up` tells what came after a review item, up to this event.
    """

    record: Record
    verdict: Verdict | None = None
    invalid: Invalid | None = None
    review: ReviewItem | None = None
    incidents: tuple[Incident, ...] = ()
    replies: tuple[CommandReply, ...] = ()
    follow_up: FollowUp | None = None


# -------------------------------------------------------------------- what became of records
def could_be_missed(verdict: Verdict) -> bool:
    """Return whether an anomaly would be missed: called normal by the pipeline, or by a mute."""
    return verdict.label is Label.NORMAL or bool(verdict.muted)


def drawable(verdict: Verdict) -> tuple[float, str]:
    """Return how probable it was that somebody is asked, and of 0 why: held, planned, or rate."""
    if verdict.audit:
        return verdict.audit.p, ""
    if verdict.muted or not (verdict.held or verdict.planned):
        return 0.0, "rate"
    return 0.0, "held" if verdict.held else "planned"


def is_ranked(verdict: Verdict) -> bool:
    """Return whether the theory speaks of a verdict: accepted, or rejected as ambiguous.

    It does not of a warm-up, of a score that says nothing, of a window of one repeated value, or
    where the reference stood still: in an incident, or in planned work. A limit of people's is
    none of its business: it goes by the score, as if there were none.
    """
    if verdict.held or verdict.planned:
        return False
    reason = (verdict.limited or verdict).reason  # by its score alone
    return reason is None or reason is Reason.AMBIGUOUS


def without_limits(verdict: Verdict) -> Verdict:
    """Return what a verdict is by its score alone, whatever limits people set. O(1)."""
    known = verdict.limited
    if not known:
        return verdict
    return msgspec.structs.replace(
        verdict, label=known.label, reason=known.reason, limited=msgspec.UNSET
    )


def is_for_review(verdict: Verdict) -> bool:
    """Return whether a verdict is worth a person's time.

    A rejected one is, but for a warm-up, one sensor too many, and a window of one repeated value:
    that is a state of the sensor, worth one look where it begins and one where it ends. What is
    muted has been looked at.
    """
    if verdict.status is not None:
        return True
    no_question = (Reason.WARM_UP, Reason.CONSTANT_WINDOW, Reason.TOO_MANY_SENSORS)
    if verdict.muted:
        return False
    return verdict.label is Label.REJECTED and verdict.reason not in no_question


def policy_band(verdict: Verdict) -> tuple[int | None, int | None]:
    """Return first and last rank of the policy's own band, which theory and monitors speak of.

    A review budget that holds widens and narrows the band that decides; who compares with theory,
    or watches for drift, must not be steered by that.
    """
    if verdict.policy_lower is None:
        return verdict.band_lower, verdict.band_upper
    return verdict.policy_lower, verdict.policy_upper


@dataclass(slots=True)
class OutcomeCounts:
    """How many outcomes of each kind: a run's summary, its metrics and a rehearsal hold this."""

    labels: Counter[Label] = field(default_factory=Counter)
    reasons: Counter[Reason] = field(default_factory=Counter)
    """Of the rejected."""
    n_limited: int = 0
    """Anomalies by a limit that people set, or a value never seen, whatever their score."""
    n_to_review: int = 0
    """Verdicts worth a person's time, see :func:`is_for_review`."""
    n_withheld: int = 0
    """Accepted because the review budget had no credit left; see :class:`Verdict`."""
    n_muted: int = 0
    n_held: int = 0
    """Given while the reference stood still; no rate counts them."""
    n_ranked: int = 0
    """Verdicts that the theory speaks of, see :func:`is_ranked`."""
    n_ambiguous: int = 0
    """Those of them that it rejects."""
    n_invalid: int = 0
    n_reviews: int = 0
    n_incidents: int = 0
    n_ignored: int = 0
    """Records without a reading of their own: heartbeats, tombstones, parts of a row."""

    # native counter of outcomes that carry only a label
    plain: Callable[[list[Outcome]], Any] | None = field(default=None, repr=False, compare=False)

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Count outcomes; O(1) each."""
        outcomes = list(outcomes)
        if self.plain is not None:
            labels, outcomes = self.plain(outcomes)
            for label, n in labels:
                self.labels[label] += n
                self.n_ranked += n
        verdicts = [outcome.verdict for outcome in outcomes if outcome.verdict is not None]
        self.add_verdicts(verdicts)
        if len(verdicts) < len(outcomes):
            unread = [outcome.invalid for outcome in outcomes if outcome.invalid is not None]
            self.n_ignored += sum(i.silent and i.stage != "waiting" for i in unread)
            self.n_invalid += sum(not invalid.silent for invalid in unread)
        self.n_reviews += len(outcomes) - [outcome.review for outcome in outcomes].count(None)
        changed = [outcome.incidents for outcome in outcomes if outcome.incidents]
        self.n_incidents += sum(change.opens for changes in changed for change in changes)

    def add_verdicts(self, verdicts: Iterable[Verdict]) -> None:
        """Count verdicts whose records are not at hand; O(1) each."""
        verdicts = list(verdicts)
        labels = [verdict.label for verdict in verdicts]
        for label in Label:  # to hash a member of an enum takes longer than to compare it
            if n := labels.count(label):
                self.labels[label] += n
        odd = [
            one
            for one in verdicts
            if one.reason is not None
            or one.withheld
            or one.held
            or one.planned
            or one.status is not None
            or one.muted
        ]
        n_limited = sum(bool(verdict.limited) for verdict in odd)
        rejected = [one for one in odd if not one.limited] if n_limited else odd
        self.reasons.update([one.reason for one in rejected if one.reason is not None])
        self.n_limited += n_limited
        self.n_to_review += sum(map(is_for_review, odd))
        self.n_withheld += sum(verdict.withheld for verdict in odd)
        self.n_muted += sum(bool(verdict.muted) for verdict in odd)
        self.n_held += sum(verdict.held or verdict.planned for verdict in odd)
        ranked = [verdict for verdict in odd if is_ranked(verdict)]
        self.n_ranked += len(verdicts) - len(odd) + len(ranked)
        ambiguous = Reason.AMBIGUOUS
        self.n_ambiguous += sum(without_limits(one).reason is ambiguous for one in ranked)

    def join(self, more: OutcomeCounts) -> None:
        """Add the counts of other outcomes."""
        self.labels += more.labels
        self.reasons += more.reasons
        for name in OutcomeCounts.__dataclass_fields__:
            if name.startswith("n_"):
                setattr(self, name, getattr(self, name) + getattr(more, name))

    @property
    def n_events(self) -> int:
        """How many records got their outcome, invalid ones included."""
        return self.labels.total() + self.n_invalid

    @property
    def rejection_rate(self) -> float | None:
        """Share of ranked verdicts that are rejected as ambiguous; ``None`` without any."""
        return self.n_ambiguous / self.n_ranked if self.n_ranked else None
