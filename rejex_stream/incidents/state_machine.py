"""The state machine of one stream key: quiet, suspected, open, answered or recovering, closed.

    quiet ──evidence──► suspected ──more──► open ◄──────────► recovering ──► closed (recovered)
      ▲                    │ fades            │ │   ordinary      ▲
      └────────────────────┘                  │ └──► fault ◄──────┘
                                              └────► adopting ──► closed (adopted)

It opens at one of two levels of evidence. At the alarm's, somebody is told and the reference moves
on: no verdict changes. At the strict one (:mod:`rejex_stream.incidents.thresholds`) it is *held*.

It sees verdicts in the order of the events and is a function of them and of the commands that hold
from a place in that order. Whoever judges asks :attr:`IncidentTracker.frozen` whether the
reference stands still; a transition ends the judging of a batch after its event, so that the next
event finds the reference as the transition left it.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, cast

import msgspec
import numpy as np
from msgspec import UNSET

from rejex_stream.incidents.calendar import AGAIN, reply
from rejex_stream.incidents.ewma import RESET_LEVEL, EwmaChart, Mass, mass_after
from rejex_stream.incidents.incident_settings import Alarms, Hold
from rejex_stream.incidents.levels import ChannelLevel, LevelHistory, level_changes
from rejex_stream.incidents.thresholds import (
    DRIFT,
    ORDINARY,
    inflation,
    limit_of,
    mean_severity,
    n_before,
    rises,
)
from rejex_stream.rejection.judge import EXTREME
from rejex_stream.rejection.window import ScoreWindow
from rejex_stream.types import (
    NOTICE_MS,
    ChannelEvidence,
    Command,
    CommandKind,
    CommandReply,
    FloatArray,
    Incident,
    IncidentState,
    Label,
    LevelChange,
    LimitExcess,
    Reading,
    Spread,
    Verdict,
)

UPDATE_MS = 300_000  # the counts of an open incident are published at most so often
_MOST_SENSORS = 100  # named in an incident
_MOST_RELAPSES = 10  # after so many, it is not said again that scores look ordinary
_LOOK_BACK = 4  # an onset lies at most a window / 4 back
_PATIENCE_MS = 3 * 86_400_000  # a week-end: nothing is taken for normal before somebody was there
_MAX_LEFT_MS = 366 * 86_400_000  # of what is guessed
_OLD = 16  # quarters of a window after which a measurement is made again
_REMEMBERED = 16  # measurements: a single one is a guess
_RECOVERY_WORTH = 10  # independent ordinary events end an incident
_RARE = 2.0  # severity of one score in a hundred
_NOTHING: Mapping[int, Any] = MappingProxyType({})  # by ordinal


class Transition(NamedTuple):
    """What the last event changed."""

    state: IncidentState  # where the incident stands now
    # where it was opened: what each score since the onset had pushed out of the window, oldest
    # first; ``entered`` tells those that did not enter
    onset: tuple[Suspect, ...] = ()
    n_before: int = 0  # how many of these are rather of the state before


class Suspect(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is kept of an event that may belong to something."""

    seq: int
    event_time_ms: int
    sensor: str
    label: Label
    severity: float | None
    evicted: float | None
    entered: bool

    @classmethod
    def of(cls, event: Verdict | Suspect, evicted: float | None) -> Suspect:
        """Return it; `evicted` is nan where the score did not enter."""
        entered = evicted is None or not math.isnan(evicted)
        return cls(
            event.seq, event.event_time_ms, event.sensor, event.label, _shown(event),
            evicted if entered else None, entered,
        )  # fmt: skip


class Confirmation(NamedTuple):
    """What the reference that stands still says of a row, and of the one with which it counts."""

    severity: float | None  # the lower of both; ``None``: nothing
    reading: Reading  # with which it counts, the row's own or a later one
    seq: int


def _shown(event: Verdict | Suspect) -> float | None:
    """Return the severity that an incident may show; that of a muted event is none of its."""
    return None if isinstance(event, Verdict) and event.muted else event.severity


class OpenIncident(msgspec.Struct, forbid_unknown_fields=True):
    """The incident that is open, and the evidence for its end."""

    id: str
    state: IncidentState
    version: int
    onset_ms: int
    onset_seq: int
    opened_ms: int
    opened_seq: int
    sensors: list[str]
    channels: list[ChannelEvidence]
    peak_severity: float = 0.0
    peak_ms: int = 0
    n_events: int = 0
    n_anomalies: int = 0
    n_rejected: int = 0
    n_held: int = 0
    ordinary: Mass = 0.0
    relapses: int = 0
    is_fault: bool = False
    is_known: bool = False  # whether that fault stays until it is repaired
    by_age: bool = False
    answer: str | None = None
    unpublished: bool = False
    held: bool = True
    quiet_run: int = 0
    mass: Mass = 0.0  # of its rise, while it is held
    top_mass: Mass = 0.0
    adopts_ms: int | None = None
    is_told: bool = True  # else it is held, and no more than what was told in vain before
    published_ms: int = 0
    limits: list[LimitExcess] = []
    named: list[str] = []  # channels that were told of, since it is held
    has_settled: bool = False  # whether rows without them are news where they become unusual
    spread: list[Spread] = []
    mark: int = 0  # a row count before its rise
    levels: list[ChannelLevel] = []  # of its channels then, while it is told and not held
    moved: list[LevelChange] = []  # where scores are ordinary again, and levels are not
    is_news: bool = False  # whether it is held from its next event on
    held_ms: int = 0
    is_reminded: bool = False  # whether it was said again when it is taken for normal
    within: str | None = None  # id of the incident that was held when it began
    interim_ms: int | None = None  # from when on what is new is told by the interim reference
    told_seq: int | None = None  # of the event that it was told with first
    is_renewed: bool = False  # whether that was made again, of its newest rows

    def count(self, sensor: str, label: Label, severity: float | None, time_ms: int) -> None:
        """Count an event since the onset."""
        self.n_events += 1
        self.n_anomalies += label is Label.ANOMALY
        self.n_rejected += label is Label.REJECTED
        if severity is None or severity <= ORDINARY:
            return
        if severity > self.peak_severity:
            self.peak_severity, self.peak_ms = severity, time_ms
        if sensor not in self.sensors and len(self.sensors) < _MOST_SENSORS:
            self.sensors.append(sensor)

    def weigh(self, severity: float | None) -> None:
        """Add to its mass what an event of a held stream weighs."""
        self.mass = mass_after(self.mass, severity or 0.0)
        self.top_mass = max(self.top_mass, self.mass)

    def exceed(self, sensor: str, limits: Sequence[LimitExcess]) -> None:
        """Put limit violations before the channels that the evidence names."""
        self.limits = list(limits)
        known = {found.channel: found for found in self.channels}
        first = [
            known.pop(one.channel, ChannelEvidence(one.channel, None, None, None)) for one in limits
        ]
        self.channels = [*first, *known.values()]
        if sensor not in self.sensors and len(self.sensors) < _MOST_SENSORS:
            self.sensors.append(sensor)

    def put_first(self, verdict: Verdict, channel: str, since_ms: int) -> None:
        """Put a channel before the others that was found unusual without them."""
        said = () if verdict.evidence is None else verdict.evidence.channels
        known = {found.channel: found for found in (*self.channels, *said)}
        first = known.pop(channel, ChannelEvidence(channel, None, None, None))
        self.channels = [first, *(one for one in self.channels if one.channel != channel)]
        self.named.append(channel)
        self.spread.insert(0, Spread(channel, since_ms))


_AS_IT_IS = (
    "id", "version", "state", "onset_ms", "opened_ms", "onset_seq", "opened_seq", "peak_severity",
    "peak_ms", "n_events", "n_anomalies", "n_rejected", "answer", "held", "adopts_ms",
)  # fmt: skip


class LastClosed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The incident before: for whoever answers it too late."""

    id: str
    ended: str


class _Usual(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The mean of the inflations that were measured, the newer the heavier."""

    mean: Mass = 0.0
    count: Annotated[int, msgspec.Meta(ge=0, le=_REMEMBERED)] = 0
    looked: int = -1  # at which row count, so that no cut of the input counts one twice

    def after(self, inflated: float) -> _Usual:
        count = min(self.count + 1, _REMEMBERED)
        return _Usual(self.mean + (inflated - self.mean) / count, count, self.looked)


class _State(msgspec.Struct, forbid_unknown_fields=True):
    level: Mass
    inflation: float | None
    n_measured: int
    since: list[Suspect]
    open: OpenIncident | None
    last: LastClosed | None
    usual: _Usual
    alarm: Any
    rising: OpenIncident | None
    second: Any


class IncidentTracker:
    """Watches the severities of one stream key, and knows its incident.

    The evidence is `level`, S <- max(0, S + min(severity, max_severity) - ordinary): it begins with
    a severity above `min_severity`, and from `limit` on an incident is held. `suspect_events` are
    those since it is above 0, each with what its score pushed out of the window (nan: it did not
    enter); the first of them is the onset, `look_back` events before its discovery at most.

    O(1) an event that is shown; nothing is shown while scores are ordinary. At most a quarter of a
    window of events is remembered.
    """

    __slots__ = (
        "_alarm", "_alarms", "_candidate", "_hold", "_inflation", "_last", "_measured",
        "_saved_level", "_second", "_usual", "_window", "active", "changes", "earlier", "frozen",
        "history", "incident", "late", "level", "limit", "limit_violations", "look_back",
        "max_severity", "min_severity", "mode", "open", "ordinary", "pending_spread",
        "pending_transition", "published_seq", "reach", "severities_without", "stream_key",
        "suspect_events", "trusted", "within",
    )  # fmt: skip

    def __init__(
        self,
        hold: Hold,
        stream_key: str,
        window: int,
        mode: str | None = None,
        alarms: Alarms | None = None,
    ) -> None:
        self.stream_key, self.mode = stream_key, mode
        self.ordinary, self.max_severity, self.limit = ORDINARY, math.log10(window + 1), math.inf
        self.level, self.min_severity, self.frozen = 0.0, math.inf, False
        self._saved_level = 0.0  # of a state, until it is known whether it is of use
        self.incident: str | None = None
        self._window, self.look_back = window, max(1, window // _LOOK_BACK)
        self.suspect_events: deque[tuple[Verdict | Suspect, float | None]] = deque(
            maxlen=self.look_back
        )
        self.changes: list[Incident] = []
        # The incident that is held while this one watches; by ordinal, what the reference that
        # stands still says: what is ordinary by that one comes back, and is no news.
        self.within: str | None = None
        self.trusted: Mapping[int, Confirmation] = _NOTHING
        # Where an earlier reference is kept, how many readings before its own a row looks at; and,
        # by ordinal, what that reference says of the rows that are being judged: what is ordinary
        # by it is no news.
        self.reach: int | None = None
        self.earlier: Mapping[int, float | None] = _NOTHING
        self.late: dict[int, float | None] = {}  # what counts of these for the alarm
        self.history: LevelHistory | None = None
        self._inflation: float | None = None
        self._measured, self._usual = 0, _Usual()
        self.open: OpenIncident | None = None
        self._last: LastClosed | None = None
        self.pending_transition: IncidentState | None = None
        self.published_seq = -1  # seq of the event that the last change was told of
        self._alarm: EwmaChart | None = None
        self._candidate: OpenIncident | None = None  # what is no incident yet
        # Looks for a second fault while one is held; by ordinal, how rare the readings that are
        # being judged are without the channels that were named.
        self._second: EwmaChart | None = None
        self.severities_without: Mapping[int, float | None] = _NOTHING
        self.pending_spread = False
        # Which of the readings that are being judged are beyond limits, by ordinal.
        self.limit_violations: Mapping[int, Sequence[LimitExcess]] = _NOTHING
        self.apply_settings(hold, alarms)

    def apply_settings(self, hold: Hold, alarms: Alarms | None = None) -> None:
        """Go by other settings from the next event on; what the stream has shown stays."""
        self._hold, self.active = hold, hold.enabled
        was, self._alarms, self._alarm = self._alarm, alarms, None
        if alarms is not None:
            self._alarm = EwmaChart(self._window, alarms.false_alarms.per_sensor_month)
            if was is not None:
                self._alarm.restore(was.state())
        self._refresh()

    @property
    def per_month(self) -> float:
        """How many false alarms people are willing to see."""
        alarms = self._alarms or Alarms()
        return alarms.false_alarms.per_sensor_month

    def _refresh(self) -> None:
        incident = self.open if self.active else None
        self.frozen = incident is not None and incident.held
        self.incident = incident.id if incident is not None and self.frozen else None
        self.min_severity = ORDINARY if self.limit < math.inf and self.active else math.inf
        if self.reach is not None and self.active:
            self.min_severity = -1.0  # every row counts
        if self.frozen or not self.active:
            self.level = 0.0
        elif self._saved_level:
            self.level, self._saved_level = self._saved_level, 0.0

    def forget(self, reading: Reading, seq: int) -> bool:
        """Forget, where it does not watch, what it knew; return whether there was anything.

        What is open ends with this event.
        """
        is_held = self.open is not None and self.open.held
        known = bool(self.suspect_events) or is_held or self._usual != _Usual()
        if is_held:
            self._end(reading, seq, "hold_off")
        if known:
            self.suspect_events.clear()
            self._inflation, self._measured, self._usual = None, 0, _Usual()
            self.limit, self._saved_level = math.inf, 0.0
        return known

    def of_interim(self) -> IncidentTracker:
        """Return what watches an interim reference: it knows how this stream varies by chance."""
        found = IncidentTracker(self._hold, self.stream_key, self._window, self.mode, self._alarms)
        found.within, found._usual = self.incident, self._usual
        if self._alarm is not None and found._alarm is not None:
            found._alarm.restore(self._alarm.state())
            found._alarm.reset()
        return found

    def succeed(self, other: IncidentTracker) -> None:
        """Watch the stream in the place of another, which begins without suspicion later."""
        self.within, self._last = None, other._last
        self.limit_violations, self.trusted = other.limit_violations, _NOTHING
        self.changes, other.changes = [*other.changes, *self.changes], []
        other.watch_beside(None)
        other.level, other._candidate = 0.0, None
        other.suspect_events.clear()
        if other._alarm is not None:
            other._alarm.reset()

    def watch_beside(self, reach: int | None) -> None:
        """Watch, or no longer, while an earlier reference is kept.

        What is unusual counts once as many readings have come as a row looks back, as the lower of
        what its own reference says of the row and the earlier one of the newest.
        """
        self.reach = reach and min(reach, self.look_back)
        self.earlier, self.late = _NOTHING, {}
        if reach is None and not self.level:
            self.suspect_events.clear()
        self._refresh()

    def end_with(self, reading: Reading, seq: int, ended: str) -> None:
        """End what is open, if anything: what it lies within has ended."""
        if self.open is not None:
            self._end(reading, seq, ended)

    def ranks_in_interim(self, time_ms: int) -> None:
        """Note from when on the interim reference tells what is new."""
        if self.open is not None and self.open.interim_ms is None:
            self.open.interim_ms = time_ms

    def renews(self, window: ScoreWindow) -> bool:
        """Whether what goes on has left an interim reference behind: once, another is made."""
        incident = self.open
        if incident is None or incident.is_renewed or not rises(window.in_order()):
            return False
        incident.is_renewed = True
        return True

    # ------------------------------------------------------------------------------ evidence
    def update_evidence(self, verdict: Verdict, rare: float | None, evicted: float | None) -> bool:
        """Add a verdict to the evidence; return whether a transition is due, and judging ends.

        `rare` is its severity among the reference scores of the moment. A verdict without a score,
        in a warm-up, a mute or a constant window is neither for nor against; `evicted` is what its
        score pushed out of the window, nan where it did not enter.
        """
        if self.trusted:
            rare = self._at_most_trusted(verdict.seq, rare)
        if self.frozen:
            return self.update_held(verdict, 0.0 if verdict.muted else rare)
        if verdict.score is None:
            self.suspect_events.append((verdict, evicted))
            return False
        if self.reach is not None:
            rare = self.late[verdict.seq] = self._counts_late(verdict.seq, rare)
        if rare is None or verdict.muted:
            rare = self.ordinary
        level = self.level + min(rare, self.max_severity) - self.ordinary
        self.level = level = max(0.0, level) if self.limit < math.inf else 0.0
        self.suspect_events.append((verdict, evicted))
        if level <= 0.0:
            while len(self.suspect_events) > (self.reach or 0):
                self.suspect_events.popleft()
            return False
        if level >= self.limit:
            self.pending_transition = IncidentState.OPEN
        return level >= self.limit

    def _at_most_trusted(self, seq: int, severity: float | None) -> float | None:
        trusted = self.trusted.get(seq)
        if severity is None or trusted is None or trusted.severity is None:
            return severity
        return min(severity, trusted.severity)

    def _counts_late(self, seq: int, rare: float | None) -> float | None:
        """Return what the row counts that lies as far back as columns look; ``None``: nothing."""
        earlier = self.earlier.get(seq)
        if self.reach and rare is not None:
            known = len(self.suspect_events) >= self.reach
            rare = _shown(self.suspect_events[-self.reach][0]) if known else None
        return rare if earlier is None or rare is None else min(rare, earlier)

    def is_confirmed(self, seq: int) -> bool:
        """Whether no reference that stands still finds a row rather usual: its channels come back.

        A channel that stood still since that began is at rest by the interim reference.
        """
        late = self.trusted.get(seq)
        trusted = self.earlier.get(seq) if late is None else late.severity
        return trusted is None or trusted >= _RARE

    def _told_with(self, event: Reading | Verdict, seq: int) -> tuple[Reading | Verdict, int]:
        """Return the event with which people are told of one, and its ordinal."""
        late = self.trusted.get(seq)
        return (event, seq) if late is None else (late.reading, late.seq)

    def update_held(self, verdict: Verdict, severity: float | None) -> bool:
        """Count a verdict of a held stream; return whether a transition is due."""
        incident = self.open
        assert incident is not None  # or nothing would be held
        incident.count(verdict.sensor, verdict.label, _shown(verdict), verdict.event_time_ms)
        incident.n_held += 1
        if severity is not None:
            incident.weigh(verdict.severity)
        self._weigh_second(verdict)
        is_news = self._exceed(incident, verdict) or incident.is_news
        if incident.is_news:
            incident.is_news = False
            self._date(incident, verdict)
        if severity is not None:
            ordinary = incident.ordinary + ORDINARY - min(severity, self.max_severity)
            incident.ordinary = max(0.0, ordinary)
        if self._told_with(verdict, verdict.seq)[1] == self.published_seq:
            return False  # one change an event
        if incident.state is not IncidentState.ADOPTING:
            self.pending_transition = self._due(incident, verdict.event_time_ms)
        self.pending_spread = self.pending_transition is None and self._is_second_due(verdict)
        if self.pending_transition is None and not self.pending_spread:
            is_news |= self._is_news(incident, verdict.event_time_ms)
            is_news |= self._reminds(incident, verdict.event_time_ms)
            self._update(incident, verdict, is_news=is_news)
        return self.pending_spread or self.pending_transition is not None

    @property
    def levels(self) -> Sequence[ChannelLevel]:
        """The levels before an incident that is told and not held."""
        return () if self.open is None or self.open.held else self.open.levels

    @property
    def recover_events(self) -> int:
        """About so many ordinary events end an incident."""
        return self._hold.recover_events

    @property
    def named(self) -> Sequence[str]:
        """The channels that an incident that is held was told of; empty where nothing is known."""
        incident = self.open
        if incident is None or not self.frozen or self._alarm is None or self._is_left_to_interim:
            return ()
        if not incident.named and incident.channels:
            incident.named = [incident.channels[0].channel]
        return incident.named

    def _weigh_second(self, verdict: Verdict) -> None:
        """Look at a row without the channels that were named, for an alarm of the same price.

        It begins half way to its limit. Where it reaches that before it was ordinary, and within
        as many events as end an incident, the fault that was told shows in one more channel, which
        is named in silence. Once there is an interim reference, only as long as what began before
        it lasts.
        """
        incident, severity = self.open, self.severities_without.get(verdict.seq)
        if self._is_left_to_interim:
            self._second, severity = None, None
        if severity is not None and not verdict.muted:
            assert incident is not None  # it is held
            assert self._alarm is not None  # or no row would be looked at
            half_way = (RESET_LEVEL + self._alarm.limit) / 2
            second = self._second
            if second is None:
                second = self._second = EwmaChart(self._window, self.per_month)
                second.level, incident.has_settled = half_way, False
            second.update(severity, verdict.event_time_ms, told=True)
            if second.level < half_way:
                second.rise_ms = verdict.event_time_ms
            incident.has_settled |= (
                second.level < RESET_LEVEL or second.n_rise > self.recover_events
            )

    @property
    def _is_left_to_interim(self) -> bool:
        incident, second = self.open, self._second
        if incident is None or incident.interim_ms is None:
            return False
        if second is None or not incident.has_settled or second.level < RESET_LEVEL:
            return True
        return second.rise_ms >= incident.interim_ms

    def _is_second_due(self, verdict: Verdict) -> bool:
        second, alarm = self._second, self._alarm
        if second is None or alarm is None or verdict.seq not in self.severities_without:
            return False
        second.limit = alarm.limit
        return second.is_due(verdict.event_time_ms) and not alarm.is_nuisance(second.mass)

    def tell_spread(self, reading: Reading, verdict: Verdict, channel: str) -> None:
        """Tell once of the channel in which a second fault was found, with its incident.

        In silence where the first fault shows in it.
        """
        incident, second = self.open, self._second
        assert incident is not None  # it is held
        assert second is not None  # it was due
        self.pending_spread, self._second = False, None  # it begins again, without that channel
        if not incident.has_settled:
            incident.named.append(channel)
            return
        incident.is_told = True
        incident.put_first(verdict, channel, second.rise_ms)
        self._publish(reading, verdict.seq)

    def _is_news(self, incident: OpenIncident, time_ms: int) -> bool:
        """Note whether an incident is more than what was told in vain before; if it is so now."""
        if incident.is_told or self._alarm is None:
            return False
        is_old = self._is_old(incident, time_ms, share=2)  # nothing is adopted in silence
        incident.is_told = is_old or not self._alarm.is_nuisance(incident.top_mass)
        return incident.is_told

    def _reminds(self, incident: OpenIncident, time_ms: int) -> bool:
        """Whether it is to be said again when an incident is taken for normal: once, in time.

        Where a window takes longer than people have, the date is that of its last event, by how
        fast those held came.
        """
        date_ms = incident.adopts_ms
        is_waiting = incident.state is IncidentState.OPEN and not incident.is_reminded
        if date_ms is None or not is_waiting or date_ms - time_ms > NOTICE_MS:
            return False
        left = max(0, self._window - incident.n_held)
        left_ms = min((time_ms - incident.held_ms) * left // incident.n_held, _MAX_LEFT_MS)
        incident.adopts_ms = max(incident.held_ms + _PATIENCE_MS, time_ms + left_ms)
        incident.is_reminded = incident.adopts_ms - time_ms <= NOTICE_MS
        return incident.is_reminded

    def _is_old(self, incident: OpenIncident, time_ms: int, share: int = 1) -> bool:
        """Whether an unanswered incident has been held for the time that people have, or a part."""
        if (age := self._adopt_after) is None:
            return False
        is_late = incident.adopts_ms is None or (
            share * (time_ms - incident.opened_ms) >= incident.adopts_ms - incident.opened_ms
        )
        return is_late and share * incident.n_held >= age

    def _exceed(self, incident: OpenIncident, verdict: Verdict) -> bool:
        """Note what an event is beyond; return whether that is the first limit to be passed."""
        limits = self.limit_violations.get(verdict.seq) if self.limit_violations else None
        if not limits:
            return False
        is_news, incident.is_told = not incident.limits, True
        incident.exceed(verdict.sensor, limits)
        return is_news

    def _update(self, incident: OpenIncident, verdict: Verdict, *, is_news: bool = False) -> None:
        """Publish how an incident stands: news at once, the rest after so much event time."""
        since_ms = verdict.event_time_ms - incident.published_ms
        if is_news:
            self._publish(verdict, verdict.seq)
        elif self._alarms is not None and since_ms >= UPDATE_MS:
            self._publish(verdict, verdict.seq, counted=True)

    def update_alarm(
        self, readings: Sequence[Reading], which: Sequence[int], verdicts: Sequence[Verdict | None]
    ) -> None:
        """Look at verdicts of a stream that is not held, for the alarm; O(1) an event.

        What is beyond a limit that people set waits for no evidence.
        """
        alarm = self._alarm
        if alarm is None:
            if which and self.open is not None and not self.open.held:
                self._end(readings[which[0]], cast("Verdict", verdicts[which[0]]).seq, "alarm_off")
            return
        for i in which:
            verdict = cast("Verdict", verdicts[i])
            severity, incident = self._at_most_trusted(verdict.seq, verdict.severity), self.open
            severity = self.late.get(verdict.seq, severity)
            limits = verdict.seq in self.limit_violations
            if severity is not None and not verdict.muted:
                full = verdict.window_len >= self._window
                alarm.update(severity, verdict.event_time_ms, told=incident is not None, full=full)
            elif not limits and (incident is None or not incident.limits):
                continue
            if incident is not None:
                self._follow_open(incident, alarm, readings[i], verdict)
            elif alarm.level < RESET_LEVEL and not limits:
                self._candidate = None
            else:
                self._rise(alarm, readings[i], verdict)

    def _rise(self, alarm: EwmaChart, reading: Reading, verdict: Verdict) -> None:
        """Count an event since the statistic is not ordinary; at its limit an incident opens."""
        # Where one of them was an anomaly, or is extreme; or at a limit that people set.
        at, seq, limits = verdict.event_time_ms, verdict.seq, verdict.seq in self.limit_violations
        if self._candidate is None:
            self._candidate = OpenIncident(
                "", IncidentState.OPEN, 0, at, seq, at, seq, [], [], held=False,
                mark=0 if self.history is None else self.history.last_mark(), within=self.within,
            )  # fmt: skip
        incident = self._candidate
        label = Label.ANOMALY if limits else verdict.label
        incident.count(verdict.sensor, label, verdict.severity, at)
        to_be_seen = incident.n_anomalies or incident.peak_severity >= EXTREME
        if not (limits or (to_be_seen and alarm.is_due(at))):
            return
        told, incident.opened_seq = self._told_with(reading, seq)
        incident.id, incident.opened_ms = str(told.position), told.event_time_ms
        incident.top_mass = alarm.mass
        incident.channels = [] if verdict.evidence is None else list(verdict.evidence.channels)
        self._exceed(incident, verdict)
        if self.history is not None:
            length = self._hold.recover_events
            incident.levels = self.history.levels_before(incident.mark, length)
        self.open, self._candidate = incident, None
        self._publish(reading, seq)

    def _follow_open(
        self, incident: OpenIncident, alarm: EwmaChart, reading: Reading, verdict: Verdict
    ) -> None:
        # It ends where scores are ordinary, and values within what limits people set.
        limits = verdict.seq in self.limit_violations
        label = Label.ANOMALY if limits else verdict.label
        incident.count(verdict.sensor, label, _shown(verdict), verdict.event_time_ms)
        if not incident.channels and verdict.evidence is not None:
            incident.channels = list(verdict.evidence.channels)
        is_news = self._exceed(incident, verdict)
        incident.top_mass = max(incident.top_mass, alarm.mass)
        is_quiet = alarm.level < RESET_LEVEL and not limits
        incident.quiet_run = incident.quiet_run + 1 if is_quiet else 0
        for level in incident.levels:
            level.add(reading.values, is_ordinary=is_quiet)
        if incident.quiet_run < self._hold.recover_events:
            self._update(incident, verdict, is_news=is_news)
            return
        if not incident.limits:  # else it is by these that it has come back
            since = {one.channel: one.total / one.count for one in incident.levels if one.count}
            incident.moved = level_changes(incident.levels, incident.channels, since)
        self._end(reading, verdict.seq, "absorbed" if incident.moved else "recovered")

    def hold_moved(
        self, rows_seen: int, fitted_at: int, window: ScoreWindow, since: Mapping[str, float]
    ) -> int:
        """Hold what is told and stays at another level; return how many rows it goes back.

        `since` has the means of the newest rows. Nothing is held where the model was fitted since
        it began, or the scores before call the newest ordinary: these cannot tell when it is over.
        """
        incident, length = self.open, self._hold.recover_events
        if incident is None or incident.held or not (self.active and self.limit < math.inf):
            return 0
        count, scores = rows_seen - incident.mark, window.in_order()
        before = scores[:-count]
        if not (
            fitted_at <= incident.mark
            and 2 * length <= incident.n_events
            and length <= count <= 2 * self.look_back
            and len(scores) == self._window
            and level_changes(incident.levels, incident.channels, since)
            and mean_severity(before, scores[-length:]) >= ORDINARY
            and not rises(before)
        ):
            return 0
        incident.held = incident.is_news = True
        incident.mass, incident.levels = incident.top_mass, []
        self.suspect_events.clear()
        self._refresh()
        return count

    def _due(self, incident: OpenIncident, time_ms: int) -> IncidentState | None:
        """Return the state that the evidence for an end asks for, if it is another one."""
        enough = self.recovery
        if incident.ordinary >= enough:
            return IncidentState.CLOSED
        if incident.state is IncidentState.OPEN and self._is_old(incident, time_ms):
            return IncidentState.ADOPTING
        if incident.state is IncidentState.RECOVERING:
            unrecovered = IncidentState.FAULT if incident.is_fault else IncidentState.OPEN
            return unrecovered if incident.ordinary <= 0.0 else None
        relapses = math.inf if incident.is_known else incident.relapses  # then it is quiet
        if incident.ordinary >= enough / 2 and relapses < _MOST_RELAPSES:
            return IncidentState.RECOVERING
        return None

    @property
    def _adopt_after(self) -> int | None:
        """After so many events held, what nobody answers is the new normal; ``None``: never."""
        given = self._hold.adopt_after_events
        return self._window if given is None else given or None

    @property
    def recovery(self) -> float:
        """The evidence to the contrary that ends an incident: of about so many ordinary events."""
        worth = min(_RECOVERY_WORTH * (self._inflation or 1.0), 2 * self.look_back)
        return max(self.recover_events, worth) * DRIFT

    def min_events_held(self) -> int:
        """Return how many more events, at least, find the reference standing still."""
        incident = self.open
        if incident is None:
            return 0
        if incident.state is IncidentState.ADOPTING:  # until there is an interim reference
            return sys.maxsize if self.within is None else 0
        left = max(0, math.ceil((self.recovery - incident.ordinary) / ORDINARY) - 1)
        age = self._adopt_after
        return left if age is None else min(left, max(0, age - incident.n_held))

    def restart(self, window: ScoreWindow) -> None:
        """Begin without suspicion, with the inflation of another reference."""
        if self.active:
            self._clear_evidence()
            self.measure_inflation(window)

    def next_measurement(self, rows: int) -> int:
        """Return the first row count above `rows` at which :meth:`maybe_remeasure` measures."""
        return (rows // self._step + 1) * self._step

    @property
    def _step(self) -> int:
        return self.look_back * (_OLD if self._measured == self._window else 1)

    def maybe_remeasure(self, rows: int, window: ScoreWindow, *, is_due: bool = False) -> None:
        """Measure again where it is due: as a window fills, and every four windows from then on."""
        if rows % self._step == 0 and self.active and rows != self._usual.looked:
            self._usual = msgspec.structs.replace(self._usual, looked=rows)
            self.measure_inflation(window, is_due=is_due)

    def measure_inflation(self, window: ScoreWindow, *, is_due: bool = False) -> None:
        """Measure the inflation of the reference, without what is under suspicion. O(n log n).

        Until a window was full once, or is due to be since as many were judged, though extreme ones
        found no place in it, it has not been seen how the stream varies: nothing is judged.
        """
        inflated, n = None, 0
        if is_due or self._usual.count or len(window) == self._window:
            inflated, n = inflation(self._trusted(window)), len(window)
        if inflated is not None:
            if n == self._window:
                self._usual = self._usual.after(inflated)
            inflated = max(inflated, self._usual.mean)
        self._inflation, self._measured = inflated, n
        self.limit = limit_of(inflated, n)
        if self.limit == math.inf:
            self._clear_evidence()
        self._refresh()

    def _trusted(self, window: ScoreWindow) -> FloatArray:
        """Return the scores of the reference in their order, without what is under suspicion."""
        entered = sum(Suspect.of(*event).entered for event in self.suspect_events)
        return window.in_order()[: len(window) - entered]

    def _clear_evidence(self) -> None:
        if not self.frozen:
            self.level = 0.0
        self.suspect_events.clear()

    # ------------------------------------------------------------------------------ turns
    def has_transition(self, window: ScoreWindow) -> bool:
        """Whether a transition is due, or a second fault is to be told.

        Nothing is held where the reference moves.
        """
        opens = self.pending_transition is IncidentState.OPEN and not self.frozen
        if opens and len(window) == self._window and rises(self._trusted(window)):
            # Until there is one that does not.
            self.pending_transition, self._inflation, self.limit = None, None, math.inf
            self._clear_evidence()
            self._refresh()
        return self.pending_spread or self.pending_transition is not None

    def apply_transition(self, reading: Reading, verdict: Verdict) -> Transition:
        """Apply the pending transition at this event."""
        state, self.pending_transition = self.pending_transition, None
        assert state is not None  # update_held returned true
        incident = self.open
        if state is IncidentState.OPEN and (incident is None or not incident.held):
            onset = tuple(Suspect.of(*event) for event in self.suspect_events)
            if incident is None:
                incident = self._begin(verdict, onset)
            else:  # it was told; what came since was counted
                incident.count(
                    verdict.sensor, verdict.label, _shown(verdict), verdict.event_time_ms
                )
                incident.held, incident.mass = True, incident.top_mass
            self._date(incident, verdict)
            self._is_news(incident, verdict.event_time_ms)
            self._exceed(incident, verdict)
            self.suspect_events.clear()
            self._refresh()
            self._publish(reading, verdict.seq)
            severities = [min(one.severity or 0.0, self.max_severity) for one in onset]
            return Transition(state, onset, n_before(np.array(severities)))
        assert incident is not None  # only an open one changes
        if incident.state is IncidentState.RECOVERING and state is not IncidentState.CLOSED:
            incident.relapses += 1
        incident.state = state
        if state is IncidentState.ADOPTING:
            incident.by_age = True
        if state is IncidentState.CLOSED:
            self._end(reading, verdict.seq, "recovered")
        else:
            self._publish(reading, verdict.seq)
        return Transition(state)

    def _date(self, incident: OpenIncident, verdict: Verdict) -> None:
        """Say how long an incident that begins to be held waits for an answer."""
        incident.held_ms = verdict.event_time_ms
        if self._hold.adopt_after_events is None:
            incident.adopts_ms = verdict.event_time_ms + _PATIENCE_MS

    def _begin(self, verdict: Verdict, onset: Sequence[Suspect]) -> OpenIncident:
        first, self._candidate = onset[0], None
        said = () if verdict.evidence is None else verdict.evidence.channels
        told, seq = self._told_with(verdict, verdict.seq)
        self.open = incident = OpenIncident(
            str(told.position), IncidentState.OPEN, 0, first.event_time_ms, first.seq,
            told.event_time_ms, seq, [], list(said), within=self.within,
        )  # fmt: skip
        for suspect in onset:
            incident.count(suspect.sensor, suspect.label, suspect.severity, suspect.event_time_ms)
            incident.weigh(suspect.severity)
        incident.is_told = self._alarm is None
        return incident

    def adopted(self, reading: Reading, seq: int) -> Incident | None:
        """End the incident, and return how that is told: there is a reference made of it."""
        incident = self.open
        assert incident is not None  # what else could have been adopted
        self._end(reading, seq, "adopted_by_age" if incident.by_age else "adopted")
        return self.changes[-1] if incident.is_told else None

    def _end(self, reading: Reading, seq: int, ended: str) -> None:
        incident = self.open
        assert incident is not None  # only an open one ends
        incident.state = IncidentState.CLOSED
        self._last = LastClosed(incident.id, ended)
        self._publish(reading, seq, ended)
        self.open, self._second = None, None
        if self._alarm is not None:
            of_people = any(excess.is_set_by_people for excess in incident.limits)
            if ended in ("recovered", "absorbed") and not (incident.answer or of_people):
                self._alarm.remember(incident.top_mass)
            self._alarm.reset()
        self._refresh()

    def publish(self, reading: Reading, seq: int) -> None:
        """Publish, with the first event after it, what a command has changed."""
        incident = self.open
        if incident is not None and incident.unpublished:
            incident.unpublished = False
            self._publish(reading, seq, counted=True)

    def _publish(
        self,
        reading: Reading | Verdict,
        seq: int,
        ended: str | None = None,
        *,
        counted: bool = False,
    ) -> None:
        incident = self.open
        assert incident is not None  # only an open one has changes
        if not incident.is_told:
            return
        incident.version += not counted
        incident.published_ms = reading.event_time_ms
        reading, seq = self._told_with(reading, seq)
        self.published_seq = seq
        if incident.told_seq is None:
            incident.told_seq = seq
        self.changes.append(
            Incident(
                position=reading.position, stream_key=self.stream_key, mode=self.mode,
                sensors=tuple(incident.sensors), channels=tuple(incident.channels),
                changed_ms=reading.event_time_ms, changed_seq=seq, ended=ended,
                limits=tuple(incident.limits), spread=tuple(incident.spread),
                levels=tuple(incident.moved), known=incident.is_known or UNSET,
                within=incident.within or UNSET,
                told_seq=UNSET if incident.told_seq == incident.opened_seq else incident.told_seq,
                **{name: getattr(incident, name) for name in _AS_IT_IS},
            )
        )  # fmt: skip

    # ------------------------------------------------------------------------------ commands
    def command(self, command: Command) -> CommandReply | None:
        """Take a person's answer; ``None`` where the incident is none of this stream."""
        incident, last = self.open, self._last
        if incident is None or incident.id != command.incident:
            if last is None or last.id != command.incident:
                return None
            said = f"Incident {last.id} has ended ({last.ended}): it needs none."
            return reply(command, said, holds=False)
        if command.id == incident.answer:
            return reply(command, AGAIN, holds=True)
        wrong = _contradiction(incident, command)
        if not (wrong or self.active):
            wrong = "needs no answer: hold.enabled is off, and the reference moves on in any case"
        if wrong:
            return reply(command, f"Incident {incident.id} {wrong}.", holds=False)
        incident.is_known = command.kind is CommandKind.KNOWN_FAULT
        incident.is_fault = incident.is_known or command.kind is CommandKind.FAULT
        if incident.is_fault:
            incident.state = IncidentState.FAULT
            said = "It is held until scores are ordinary again."
            if incident.is_known:
                said = "It stays open and quiet until it is repaired; what comes to it is told."
        else:
            incident.state = IncidentState.ADOPTING
            said = "A reference is made of what was held back."
        if not incident.held:  # from here on
            incident.held = True
            self.suspect_events.clear()
            self._refresh()
        incident.answer, incident.unpublished, incident.is_told = command.id, True, True
        incident.version += 1
        return reply(command, said, holds=True)

    @property
    def is_adopting(self) -> bool:
        """Whether a reference is being made of what was held back."""
        return self.open is not None and self.open.state is IncidentState.ADOPTING

    # ------------------------------------------------------------------------------ snapshot
    def state(self) -> dict[str, Any]:
        """Return everything it knows as plain values."""
        level = self.level or self._saved_level
        since, incident = [Suspect.of(*event) for event in self.suspect_events], self.open
        known = _State(
            level, self._inflation, self._measured, since, incident, self._last, self._usual,
            None if self._alarm is None else self._alarm.state(), self._candidate,
            None if self._second is None else self._second.state(),
        )  # fmt: skip
        return cast("dict[str, Any]", msgspec.to_builtins(known))

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        known = msgspec.convert(state, _State)
        is_held = known.open is not None and known.open.held
        if len(known.since) > (self.suspect_events.maxlen or 0) * (not is_held):
            raise ValueError(f"{len(known.since)} events under suspicion")
        self.open, self._last, self._candidate = known.open, known.last, known.rising
        self._inflation, self._measured = known.inflation, known.n_measured
        self._usual = known.usual
        self.limit = limit_of(known.inflation, known.n_measured)
        self.suspect_events.clear()
        self.suspect_events.extend((s, s.evicted if s.entered else math.nan) for s in known.since)
        self._saved_level = 0.0 if is_held else known.level
        if self._alarm is not None and known.alarm is not None:
            self._alarm.restore(known.alarm)
        if known.second is not None:
            self._second = EwmaChart(self._window, self.per_month)
            self._second.restore(known.second)
        self._refresh()


def _contradiction(incident: OpenIncident, command: Command) -> str | None:
    if incident.state is IncidentState.ADOPTING:
        return "is being adopted as the new normal: it takes no other answer"
    if command.version is not None and command.version != incident.version:
        return (
            f"is at version {incident.version} now ({incident.state}), and version "
            f"{command.version} was answered: look at it again"
        )
    if incident.is_fault and command.kind is CommandKind.FAULT:
        return "is known to be a fault already"
    if incident.is_known and command.kind is CommandKind.KNOWN_FAULT:
        return "is a known fault already"
    return None
