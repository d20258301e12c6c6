"""What people are asked and told: items with the points around them, audits, usual readings."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, overload

import msgspec

from rejex_stream.encode.records import ContextRecord
from rejex_stream.errors import CheckpointError, ConfigError
from rejex_stream.native_core import native
from rejex_stream.readable import ChannelReading, RowsState, TypicalRows
from rejex_stream.rejection.audit_sampling import commitment, is_drawn
from rejex_stream.rejection.band import label_of, rank_edges
from rejex_stream.rejection.judge import EXTREME
from rejex_stream.types import (
    Audit,
    ContextPoint,
    FollowUp,
    Incident,
    Label,
    Outcome,
    Position,
    Reading,
    Reason,
    Record,
    ReviewItem,
    Verdict,
    in_mode,
)

REVIEW_REASONS = frozenset({Reason.AMBIGUOUS, Reason.UNSCORABLE})
"""Rejected for one of these, an event goes to review; the events of a warm-up do not.

Nor do those of a constant window, which is a state of the sensor: where it begins and where it ends
an item of its own says so.
"""

_PER_WINDOW = 4
"""An extreme anomaly is asked about if none was seen of its sensor for a quarter of a window, or
none that is half as severe.
"""

_Point: TypeAlias = tuple[int, tuple[float, ...], float | None, Label]


class _View(msgspec.Struct):
    recent: list[_Point]
    of: Position | None
    n_since: int
    extreme: tuple[int, float] | None


class EncodedPoints(Sequence[ContextPoint]):
    """Points as they are written, JSON of one each in `lines`; read only where they are looked at.

    Several items show each point, and as tuples of floats it is larger and lies scattered.
    """

    __slots__ = ("lines",)

    def __init__(self, lines: Iterable[bytes]) -> None:
        self.lines = tuple(lines)

    def __len__(self) -> int:
        return len(self.lines)

    @overload
    def __getitem__(self, at: int) -> ContextPoint: ...
    @overload
    def __getitem__(self, at: slice) -> EncodedPoints: ...
    def __getitem__(self, at: int | slice) -> ContextPoint | EncodedPoints:
        if isinstance(at, slice):
            return EncodedPoints(self.lines[at])
        return ContextPoint(*msgspec.structs.astuple(_decode(self.lines[at])))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment] # as of a list

    def __repr__(self) -> str:
        return repr(tuple(self))


class _Sensor:
    """What is remembered of a sensor: points as they leave, what is owed, the last extreme."""

    __slots__ = ("extreme", "n_since", "of", "recent")

    def __init__(self, recent: Iterable[bytes], points: int) -> None:
        self.recent = deque(recent, maxlen=points)  # as EncodedPoints has them
        self.of: Position | None = None  # the latest item, while events are owed to it
        self.n_since = 0
        # Where an anomaly was extreme last, and how severe the worst was since all was quiet.
        self.extreme: tuple[int, float] | None = None

    def asks(self, verdict: Verdict, severity: float) -> bool:
        """Record an extreme anomaly; return whether it is the first for long, or the worst."""
        # Twice as severe as those before, so that a blip hides no fault; O(log severity) times.
        before, worst = self.extreme or (verdict.seq, 0.0)
        if not 0 <= verdict.seq - before <= verdict.window_len // _PER_WINDOW:
            worst = 0.0
        asks = severity > 2 * worst
        self.extreme = verdict.seq, severity if asks else worst
        return asks


def committed(key: bytes) -> str | None:
    """Return what a verdict says of the draw's key: enough of its SHA-256 to hold it to one key."""
    return commitment(key)[:16] if key else None


@dataclass(frozen=True)
class AuditDraw:
    """Which share of each kind of accepted events is audited, and by which draw.

    The draws are those of :mod:`rejex_stream.rejection.audit_sampling`: nobody can foresee them.
    """

    rate: float = 0.0  # of accepted normals
    # Of those within the band's own width below it, or withheld by a budget; by default `rate`.
    near_rate: float | None = None
    anomaly_rate: float | None = None  # by default `rate`
    # At most 64 bytes; empty: anybody can repeat the draw, and foresee it.
    key: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        for name in ("rate", "near_rate", "anomaly_rate"):
            share = getattr(self, name)
            if share is not None and not 0.0 <= share <= 1.0:
                raise ConfigError(f"audit {name} is {share}: expected a share from 0 to 1")
        if len(self.key) > hashlib.blake2b.MAX_KEY_SIZE:
            raise ConfigError(
                f"the audit key has {len(self.key)} bytes: expected at most "
                f"{hashlib.blake2b.MAX_KEY_SIZE}, such as 32 random ones."
            )

    def probability(self, verdict: Verdict) -> float:
        """Return how probable it is that an accepted or muted event is audited. O(1).

        None that is held or planned is: an incident asks one question, not one an event, and such
        events are in no rate that an audit is about. A muted one is all the same, whatever its
        label: but for the draw nobody is asked about it, and the certificate has to speak of it.
        Nor is an anomaly by a limit that people set: they have answered.
        """
        if verdict.limited or ((verdict.held or verdict.planned) and not verdict.muted):
            return 0.0
        share = self.rate
        if verdict.muted:
            share = max(share, self.near_rate or 0.0)
        elif verdict.label is Label.ANOMALY:
            share = share if self.anomaly_rate is None else self.anomaly_rate
        elif self.near_rate is not None and _is_near(verdict):
            share = self.near_rate
        return share

    def audit(self, verdict: Verdict) -> Audit | None:
        """Return how probable it was that an event is drawn, and whether; ``None``: not at all."""
        share = self.probability(verdict)
        if not share:
            return None
        return _audit(share, self.is_drawn(verdict.position, share), self.key)

    def is_drawn(self, position: Position, share: float) -> bool:
        """Draw for a position; a smaller share draws a subset of a larger one. O(1)."""
        return is_drawn(self.key, position, share)


def _is_near(verdict: Verdict) -> bool:
    rank, lower, upper = verdict.rank, verdict.band_lower, verdict.band_upper
    if rank is None or lower is None or upper is None:
        return False
    upper = max(upper, lower - 1)  # where the band is empty, it is so at its place
    below = max(1, upper - lower + 1)
    wider = rank_edges(verdict.window_len, verdict.n_anomalies, lower - below, upper)
    return verdict.withheld or label_of(rank, wider) is not Label.NORMAL


@lru_cache(maxsize=64)
def _audit(share: float, drawn: bool, key: bytes) -> Audit:
    return Audit(share, drawn, committed(key))


NO_AUDIT = AuditDraw()


class ReviewItems:
    """Remembers the last `points` events of every sensor; makes review items and what follows them.

    What comes after an item follows when 1, 2, 4, 8, ... events came, up to `points`: early, and
    each event once. A new item ends it: its own context holds the events between. What it makes
    depends on the events alone, so a replay makes the same items; its state travels in the
    snapshot of its partition.

    An extreme anomaly (:data:`~rejex_stream.rejection.judge.EXTREME`) that no incident holds is
    asked about as well where it is the sensor's first for a quarter of a window, or twice as
    severe: a fault that is over before there is evidence for an alarm would go unnoticed.
    """

    def __init__(
        self,
        channels: Sequence[str],
        *,
        points: int = 32,  # so many earlier events, and so many later ones
        reasons: Collection[Reason] = REVIEW_REASONS,  # without any, nothing goes to review
        audit: AuditDraw = NO_AUDIT,  # labels from the boundary alone say nothing about the rest
        native: Callable[[str], Any] = native,
    ) -> None:
        if points < 0:
            raise ConfigError(f"review context is {points} points: expected 0 or more")
        self._channels = tuple(channels)
        self._points = points
        self._reasons = frozenset(reasons)
        self._audit, self._audits = audit, audit != NO_AUDIT
        self._sensors: dict[str, _Sensor] = {}
        make = None if self._audits else native("Points")
        self._native = make and make(points)

    def outcomes(
        self, records: Sequence[Record], readings: Sequence[Reading], verdicts: Sequence[Verdict]
    ) -> list[Outcome]:
        """Return what judged records come to: their verdicts, and what people are shown of each."""
        if self._native is not None:
            given = self.observe, self._follow_up, ReviewItem, records, readings, verdicts
            return self._native.outcomes(self._sensors, *given)  # type: ignore[no-any-return]
        outcomes = []
        for record, reading, verdict in zip(records, readings, verdicts, strict=True):
            made = self.observe(reading, verdict)
            item, after = (made, None) if isinstance(made, ReviewItem) else (None, made)
            outcomes.append(_as_named(Outcome, (record, verdict, None, item, (), (), after)))
        return outcomes

    def observe(self, reading: Reading, verdict: Verdict) -> ReviewItem | FollowUp | None:
        """Remember one event; returns its review item, or what is due to the item before it.

        A verdict that could be drawn for an audit is given its probability. O(1), and O(points)
        where there is something to return.
        """
        sensor = self._sensors.get(reading.sensor)
        if sensor is None:
            sensor = self._sensors[reading.sensor] = _Sensor((), self._points)
        item = None
        if verdict.label is Label.REJECTED and not verdict.muted:
            if verdict.reason in self._reasons:
                item = self._item(reading, verdict, sensor.recent, "rejected")
        elif self._audits and (audit := self._audit.audit(verdict)):
            # Of a verdict that was made a moment ago, and that nobody else has seen yet.
            msgspec.structs.force_setattr(verdict, "audit", audit)
            if audit.drawn:
                item = self._item(reading, verdict, sensor.recent, "audit", drawn=audit.p)
        if (
            verdict.severity is not None
            and verdict.severity >= EXTREME
            and verdict.label is Label.ANOMALY
            and not (verdict.held or verdict.planned or verdict.muted or verdict.limited)
            and sensor.asks(verdict, verdict.severity)
            and item is None
            and self._reasons
        ):
            item = self._item(reading, verdict, sensor.recent, "extreme")
        if item is None and verdict.status is not None and self._reasons:
            item = self._item(reading, verdict, sensor.recent, "status")
        if self._points:
            point = reading.event_time_ms, reading.values, verdict.score, verdict.label
            sensor.recent.append(_encode(ContextRecord(*point)))
        if item is not None:
            if self._points:
                sensor.of, sensor.n_since = verdict.position, 0
            return item
        if sensor.of is None:
            return None
        sensor.n_since = n_since = sensor.n_since + 1
        if n_since & (n_since - 1) and n_since < self._points:
            return None
        return self._follow_up(sensor, sensor.of, verdict)

    def _follow_up(self, sensor: _Sensor, of: Position, verdict: Verdict) -> FollowUp:
        n_since = sensor.n_since
        last = n_since >= self._points
        if last:
            sensor.of = None
        n_told = 1 << (n_since - 1).bit_length() >> 1  # the power of two before, 0 of 1
        return FollowUp(
            position=verdict.position,
            of=of,
            stream_key=verdict.stream_key,
            sensor=verdict.sensor,
            channels=self._channels,
            points=EncodedPoints(sensor.recent)[n_told - n_since :],
            n_since=n_since,
            last=last,
        )

    def turned_away(self, reading: Reading, verdict: Verdict) -> ReviewItem | None:
        """Return the review item of an event that nothing is remembered of, if it is due."""
        if verdict.reason in self._reasons:
            return self._item(reading, verdict, (), "rejected")
        return None

    def _item(
        self,
        reading: Reading,
        verdict: Verdict,
        recent: Iterable[bytes],
        why: str,
        *,
        drawn: float | None = None,
    ) -> ReviewItem:
        return ReviewItem(
            verdict=verdict,
            channels=self._channels,
            values=_known(reading.values),
            context=EncodedPoints(recent),
            why=why,
            drawn=drawn,
        )

    def forget(self, sensor: str) -> None:
        self._sensors.pop(sensor, None)

    def sensors(self) -> Collection[str]:
        return self._sensors.keys()

    def view(self, sensor: str) -> Callable[[], bytes]:
        """Take what is remembered of one sensor as it is now; encoded when called. O(points)."""
        known = self._sensors[sensor]
        points, of, extreme = EncodedPoints(known.recent), known.of, known.extreme
        owed = 0 if of is None else known.n_since

        def encoded() -> bytes:
            recent = [(ms, _with_nan(values), score, label) for ms, values, score, label in points]
            return msgspec.msgpack.encode(_View(recent, of, owed, extreme))

        return encoded

    def restore(self, views: Mapping[str, bytes]) -> None:
        """Take over what :meth:`view` encoded; a smaller `points` keeps the newest."""
        try:
            decoded = {
                sensor: msgspec.msgpack.decode(view, type=_View) for sensor, view in views.items()
            }
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CheckpointError(f"the review context cannot be read: {error}") from None
        self._sensors = {}
        for name, view in decoded.items():
            recent = (_encode(ContextRecord(*point)) for point in view.recent)
            sensor = self._sensors[name] = _Sensor(recent, self._points)
            sensor.extreme = view.extreme
            if view.of is not None and view.n_since < self._points:
                sensor.of, sensor.n_since = view.of, view.n_since


# ---------------------------------------------------------- what an incident reads, and usually
_NORMAL = Label.NORMAL  # look-up is not free
_MAX_ROWS, _MAX_STEP = 48, 27
_LEAST_SEEN = 50  # readings that say what is usual
_MAX_READINGS = 3
_MAX_CHANGES, _KEPT_CHANGES = 64, 12  # of a stream: until people are told of them, and after it


class _Change(NamedTuple):
    incident: str
    version: int
    seq: int
    readings: Sequence[ChannelReading]


class TypicalValues:
    """What the channels of streams usually read: of a thousand normal events every 27th.

    What an incident holds, or tells of, is none of them. It is a function of the events, wherever a
    batch is cut, and its state is in the snapshot: an alert says the same after a restart.
    """

    def __init__(self, channels: Sequence[str]) -> None:
        self._at = {name: index for index, name in enumerate(channels)}
        self._rows: dict[str, TypicalRows] = {}
        self._changes: dict[str, list[_Change]] = {}  # the first of each version, and the newest

    def update(
        self, readings: Sequence[Reading], verdicts: Sequence[Verdict], changes: Sequence[Incident]
    ) -> None:
        """Take judged events into account, and the changes of incidents at them. O(events)."""
        places = {reading.position: i for i, reading in enumerate(readings)} if changes else {}
        begin = 0
        for change in changes:
            at = places[change.position]
            self._add(readings[begin:at], verdicts[begin:at])
            self._tell(change, readings[at], verdicts[at])
            begin = at
        self._add(readings[begin:], verdicts[begin:])

    def _add(self, readings: Sequence[Reading], verdicts: Sequence[Verdict]) -> None:
        rows = self._rows
        for reading, verdict in zip(readings, verdicts, strict=True):
            if verdict.label is _NORMAL and verdict.incident is None:
                known = rows.get(reading.stream_key)
                if known is None:
                    known = rows[reading.stream_key] = TypicalRows(_MAX_ROWS, _MAX_STEP)
                if known.skip:
                    known.skip -= 1
                else:
                    known.update(reading.values)

    def _tell(self, change: Incident, reading: Reading, verdict: Verdict) -> None:
        rows, told = self._rows.get(reading.stream_key), list[ChannelReading]()
        for name in [one.channel for one in change.channels if one.channel in self._at]:
            at = self._at[name]
            usual = rows.range(at) if rows is not None and rows.seen >= _LEAST_SEEN else None
            told.append(ChannelReading(name, reading.values[at], usual, verdict.expected(name)))
        known = self._changes.setdefault(reading.stream_key, [])
        if len(known) > 1 and known[-1][:2] == known[-2][:2] == (change.id, change.version):
            del known[-1]
        made = _Change(change.id, change.version, change.changed_seq, told[:_MAX_READINGS])
        known[:] = [*known[1 - _MAX_CHANGES :], made]

    def told(self, change: Incident) -> Sequence[ChannelReading]:
        """Return what the channels of an incident read at a change, and what was usual then.

        Of a change that is no more known, what they read at the newest that is.
        """
        known = self._changes.get(in_mode(change.stream_key, change.mode), [])
        own = [one for one in known if one.incident == change.id]
        exact = [one for one in own if one.seq == change.changed_seq]
        if exact:
            del known[: max(0, known.index(exact[-1]) - _KEPT_CHANGES)]
        return (exact or own)[-1].readings if own else ()

    def forget(self, stream: str) -> None:
        """Forget a stream that begins again, should it come back."""
        self._rows.pop(stream, None)
        self._changes.pop(stream, None)

    def view(self, stream: str) -> Callable[[], bytes]:
        """Take what is known of a stream as it is now; encoded when called."""
        rows = self._rows.get(stream)
        changes = self._changes.get(stream, [])[-_KEPT_CHANGES:]
        taken = (1, 0, []) if rows is None else rows.state(), changes
        return lambda: msgspec.msgpack.encode(taken)

    def restore(self, views: Mapping[str, bytes]) -> None:
        """Take over what :meth:`view` encoded."""
        for stream, view in views.items():
            state, self._changes[stream] = _decode_typical(view)
            if {len(row) for row in state[2]} - {8 * len(self._at)}:
                raise ValueError(f"rows for other channels than {list(self._at)}")
            self._rows[stream] = TypicalRows(_MAX_ROWS, _MAX_STEP, state)


_decode_typical = msgspec.msgpack.Decoder(tuple[RowsState, list[_Change]]).decode
_as_named = tuple.__new__  # nearly twice as fast as calling a named tuple's class
_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(ContextRecord).decode


def _known(values: tuple[float, ...]) -> tuple[float | None, ...]:
    if math.isnan(sum(values)):  # of infinities too, which the longer way leaves alone
        return tuple([None if math.isnan(value) else value for value in values])
    return values


def _with_nan(values: tuple[float | None, ...]) -> tuple[float, ...]:
    return tuple([math.nan if value is None else value for value in values])
