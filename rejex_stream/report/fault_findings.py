"""What a run says: counts, rates beside theory, and what became of each known fault."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from scipy.special import bdtrc

from rejex_stream.monitor import Theory
from rejex_stream.monitor.config import MonitorConfig
from rejex_stream.monitor.theory import mean_theory, rank_law, theory_of
from rejex_stream.report.judged_run import Fault, Run
from rejex_stream.types import Label, OutcomeCounts, Reading, Reason, Verdict, policy_band

__all__ = ["Event", "FaultFindings", "Findings", "Outcome", "Series", "find", "theory_at"]

Outcome = Literal["caught", "review", "missed"]

_BY_CHANCE = 0.1
_FIRST_RATE_EVENTS = 100
_DAY_S = 86_400.0


class Event(NamedTuple):
    """One judged event, with the rolling rate after it.

    Attributes
    ----------
    rolling_rate
        Share of rejected among the last n ranked events of the stream; ``None`` while there are
        too few to speak of a rate.
    theory
        Of the band the event was judged by; ``None`` where it had none.
    """

    reading: Reading
    verdict: Verdict
    rolling_rate: float | None
    theory: Theory | None


class Series(NamedTuple):
    """All events of one sensor, in the order they were judged, and its usual step in seconds."""

    sensor: str
    events: tuple[Event, ...]
    step_s: float


@dataclass(frozen=True, slots=True)
class FaultFindings:
    """What became of one known fault.

    Attributes
    ----------
    n_events, n_anomaly, n_rejected, n_unscorable, n_warm_up
        Its events, and how they were judged; the rest was called normal. `n_rejected` counts the
        ambiguous ones.
    expected_flagged
        How many anomalies and rejects as many ordinary events would have given.
    outcome
        ``caught``: more anomalies than chance would give (probability below 0.1). ``review``: more
        anomalies and rejects than chance would give, or no score, so that a person sees it.
        ``missed``: neither. Events of one fault depend on each other, so this is a rough check.
    notice_after_s
        From its first reading to the first anomaly or reject; ``None`` if there was none.
    """

    fault: Fault
    n_events: int
    n_anomaly: int
    n_rejected: int
    n_unscorable: int
    n_warm_up: int
    expected_flagged: float
    outcome: Outcome
    notice_after_s: float | None

    @property
    def n_normal(self) -> int:
        """Events of the fault that were called normal."""
        judged = self.n_anomaly + self.n_rejected + self.n_unscorable + self.n_warm_up
        return self.n_events - judged


@dataclass(frozen=True, slots=True)
class Findings:
    """What one run did."""

    run: Run
    series: tuple[Series, ...]
    counts: OutcomeCounts
    faults: tuple[FaultFindings, ...]
    rolling_rate: float  # share of rejected over the last window of each stream
    theory: Theory | None
    events_per_day: float  # of one sensor, by its usual step
    false_alarms: int  # anomalies outside all known faults

    @property
    def n_ambiguous(self) -> int:
        """Ranked events that were rejected."""
        return self.counts.reasons[Reason.AMBIGUOUS]

    @property
    def n_unscored(self) -> int:
        """Rejected events whose score said nothing."""
        reasons = self.counts.reasons
        return reasons[Reason.UNSCORABLE] + reasons[Reason.CONSTANT_WINDOW]

    @property
    def days(self) -> float:
        """Judged sensor-days: ranked events over events a day; 1 if there are none."""
        return self.counts.n_ranked / self.events_per_day or 1.0

    def outcomes(self, outcome: Outcome) -> int:
        """Count the faults with this outcome."""
        return sum(found.outcome == outcome for found in self.faults)


def find(run: Run) -> Findings:
    """Sum up a run and compare it with theory, and with what is known. O(events)."""
    streams: dict[str, list[Event]] = {}
    recent: dict[str, deque[bool]] = {}
    sensors: dict[tuple[str, str], list[Event]] = {}
    for reading, verdict in run.events:
        key, window = verdict.stream_key, run.monitors.window
        rolling = recent.setdefault(key, deque(maxlen=window))
        theory = theory_at(verdict, run.monitors)
        if theory is not None:
            rolling.append(verdict.reason is Reason.AMBIGUOUS)
        enough = len(rolling) >= min(_FIRST_RATE_EVENTS, window)
        rate = sum(rolling) / len(rolling) if enough else None
        event = Event(reading, verdict, rate, theory)
        streams.setdefault(key, []).append(event)
        sensors.setdefault((verdict.sensor, key), []).append(event)

    names = Counter(sensor for sensor, _ in sensors)
    series = tuple(
        _series(sensor if names[sensor] == 1 else f"{sensor} in {key}", events)
        for (sensor, key), events in sorted(sensors.items())
    )
    known = {found.sensor for found in run.faults}
    timed = {
        name: sorted(
            (e for s in series for e in s.events if e.verdict.sensor == name), key=_time_ms
        )
        for name in known
    }
    last = [
        ([event.theory for event in events if event.theory], events[-1].rolling_rate)
        for events in streams.values()
    ]
    rates = [rate for _, rate in last if rate is not None]
    verdicts = [verdict for _, verdict in run.events]
    counts = OutcomeCounts(n_invalid=len(run.dead_letters))
    counts.add_verdicts(verdicts)
    steps = [found.step_s for found in series]
    return Findings(
        run=run,
        series=series,
        counts=counts,
        faults=tuple(
            found for fault in run.faults if (found := _judge(fault, timed[fault.sensor]))
        ),
        rolling_rate=sum(rates) / len(rates) if rates else 0.0,
        theory=mean_theory([(theories[-1], len(theories)) for theories, _ in last if theories]),
        events_per_day=_DAY_S / statistics.median(steps) if steps else 1.0,
        false_alarms=sum(_is_false_alarm(verdict, run.faults) for verdict in verdicts),
    )


def theory_at(verdict: Verdict, monitors: MonitorConfig) -> Theory | None:
    """Return the theory of the band that decided; ``None`` where none did: no rate counts those."""
    lower, upper = policy_band(verdict)
    if lower is None or upper is None or verdict.reason is Reason.CONSTANT_WINDOW:
        return None
    law = rank_law(verdict.window_len, verdict.n_anomalies, lower, upper)
    return theory_of(law, monitors)


def _series(name: str, events: Sequence[Event]) -> Series:
    times = sorted(event.reading.event_time_ms for event in events)
    steps = [later - earlier for earlier, later in pairwise(times) if later > earlier]
    return Series(name, tuple(events), statistics.median(steps) / 1000 if steps else 1.0)


def _time_ms(event: Event) -> int:
    return event.verdict.event_time_ms


def _judge(fault: Fault, timed: Sequence[Event]) -> FaultFindings | None:
    """Say what became of a fault, from its sensor's events in the order of their times."""
    first = bisect_left(timed, fault.first_ms, key=_time_ms)
    events = timed[first : bisect_right(timed, fault.last_ms, key=_time_ms)]
    if not events:
        return None
    verdicts = [event.verdict for event in events]
    reasons = Counter(verdict.reason for verdict in verdicts)
    n_anomaly = sum(verdict.label is Label.ANOMALY for verdict in verdicts)
    n_rejected = reasons[Reason.AMBIGUOUS]
    n_unscorable = reasons[Reason.UNSCORABLE] + reasons[Reason.CONSTANT_WINDOW]
    theories = [event.theory for event in events if event.theory is not None]
    by_chance = sum(theory.expected_anomaly_rate for theory in theories)
    flagged = by_chance + sum(theory.expected_rate for theory in theories)
    outcome: Outcome = "missed"
    if _beyond_chance(n_anomaly, len(theories), by_chance):
        outcome = "caught"
    elif n_unscorable or _beyond_chance(n_anomaly + n_rejected, len(theories), flagged):
        outcome = "review"
    return FaultFindings(
        fault=fault,
        n_events=len(events),
        n_anomaly=n_anomaly,
        n_rejected=n_rejected,
        n_unscorable=n_unscorable,
        n_warm_up=reasons[Reason.WARM_UP],
        expected_flagged=flagged,
        outcome=outcome,
        notice_after_s=min(_noticed(fault, verdicts), default=None),
    )


def _noticed(fault: Fault, verdicts: Sequence[Verdict]) -> Iterator[float]:
    for verdict in verdicts:
        if verdict.label is not Label.NORMAL and verdict.reason is not Reason.WARM_UP:
            yield (verdict.event_time_ms - fault.first_ms) / 1000


def _beyond_chance(found: int, events: int, expected: float) -> bool:
    """Whether so many or more would come by chance with probability below 0.1, if independent."""
    return found > 0 and float(bdtrc(found - 1, events, expected / events)) < _BY_CHANCE


def _is_false_alarm(verdict: Verdict, faults: Sequence[Fault]) -> bool:
    return verdict.label is Label.ANOMALY and not any(
        fault.sensor == verdict.sensor
        and fault.first_ms <= verdict.event_time_ms <= fault.last_ms + fault.settling_ms
        for fault in faults
    )
