"""What the verdict files say: counts, rates against theory, and what became of each fault.

Everything is read back from the files that a run wrote. Labels are used here and nowhere before.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from scipy.special import bdtrc

from rejex_stream.build import monitor_config
from rejex_stream.demo.feeds import Segment
from rejex_stream.demo.pipelines import Pipeline
from rejex_stream.demo.play import read_back
from rejex_stream.monitor import Alarm, MonitorBank, Theory
from rejex_stream.monitor.cells import cell_table
from rejex_stream.monitor.theory import mean_theory, theory_of
from rejex_stream.types import Invalid, Label, Reading, Reason, Record, Verdict

__all__ = ["Event", "Findings", "Outcome", "SegmentFindings", "Stream", "evaluate"]

Outcome = Literal["caught", "review", "missed"]

_BY_CHANCE = 0.1
_FIRST_RATE_EVENTS = 100


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


@dataclass(frozen=True, slots=True)
class Stream:
    """All events of one sensor, in order."""

    key: str
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class SegmentFindings:
    """What became of one known fault.

    Attributes
    ----------
    n_events, n_anomaly, n_rejected, n_unscorable, n_warm_up
        Its events, and how they were judged; the rest was called normal. `n_rejected` counts the
        ambiguous ones.
    expected_anomaly, expected_flagged
        How many anomalies, and anomalies or rejects, as many ordinary events would have given.
    outcome
        ``caught``: more anomalies than chance would give (probability below 0.1). ``review``: more
        anomalies and rejects than chance would give, or no score, so that a person sees it.
        ``missed``: neither. Events of one fault depend on each other, so this is a rough check.
    notice_after_s
        From its first reading to the first anomaly or reject; ``None`` if there was none.
    """

    segment: Segment
    n_events: int
    n_anomaly: int
    n_rejected: int
    n_unscorable: int
    n_warm_up: int
    expected_anomaly: float
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
    """What one pipeline did.

    Attributes
    ----------
    streams
        In order of name.
    labels, reasons
        Verdicts by label, rejected ones by reason.
    dead_letters
        Records that could not be read.
    segments
        What became of each known fault.
    n_ranked
        Events that were judged by a rejection band.
    rejection_rate, rolling_rate
        Share of rejected among them: over everything, and over the last window of each stream.
    theory
        Mean theory of the streams at their end; ``None`` if nothing was ever ranked.
    days
        Judged sensor-days: ranked events over events a day.
    false_alarms
        Anomalies outside all known faults.
    alarms
        What the monitors said.
    """

    pipeline: Pipeline
    streams: tuple[Stream, ...]
    labels: Counter[Label]
    reasons: Counter[Reason]
    dead_letters: tuple[tuple[Record, Invalid], ...]
    segments: tuple[SegmentFindings, ...]
    n_ranked: int
    n_ambiguous: int
    rejection_rate: float
    rolling_rate: float
    theory: Theory | None
    days: float
    false_alarms: int
    alarms: tuple[Alarm, ...] = field(default=())

    @property
    def n_events(self) -> int:
        """Records of the feed: verdicts and dead letters."""
        return self.labels.total() + len(self.dead_letters)

    def outcomes(self, outcome: Outcome) -> int:
        """Count the faults with this outcome."""
        return sum(found.outcome == outcome for found in self.segments)


def evaluate(pipeline: Pipeline) -> Findings:
    """Read back what a run of `pipeline` wrote and compare it with what is known."""
    readings, verdicts, dead_letters = read_back(pipeline)
    monitors = monitor_config(pipeline.config)
    by_key: dict[str, list[tuple[Reading, Verdict]]] = {}
    for verdict in verdicts:
        reading = readings[verdict.position]
        by_key.setdefault(verdict.stream_key, []).append((reading, verdict))

    def theory(verdict: Verdict) -> Theory | None:
        if not _is_ranked(verdict):
            return None
        assert verdict.band_lower is not None
        assert verdict.band_upper is not None
        table = cell_table(
            verdict.window_len, verdict.n_anomalies, verdict.band_lower, verdict.band_upper
        )
        return theory_of(table, monitors)

    window = pipeline.config.rejection.window
    streams, ends = [], []
    for key in sorted(by_key):
        pairs = by_key[key]
        events = tuple(
            Event(reading, verdict, rate, theory(verdict))
            for (reading, verdict), rate in zip(pairs, _rolling(pairs, window), strict=True)
        )
        streams.append(Stream(key, events))
        last = next((event.theory for event in reversed(events) if event.theory), None)
        if last is not None:
            ends.append((last, sum(event.theory is not None for event in events)))

    ranked = [verdict for verdict in verdicts if _is_ranked(verdict)]
    n_ambiguous = sum(verdict.reason is Reason.AMBIGUOUS for verdict in ranked)
    rolling = [stream.events[-1].rolling_rate for stream in streams]
    rolling_known = [rate for rate in rolling if rate is not None]
    segments = tuple(_judge(segment, streams) for segment in pipeline.feed.segments)
    return Findings(
        pipeline=pipeline,
        streams=tuple(streams),
        labels=Counter(verdict.label for verdict in verdicts),
        reasons=Counter(verdict.reason for verdict in verdicts if verdict.reason is not None),
        dead_letters=tuple(dead_letters),
        segments=segments,
        n_ranked=len(ranked),
        n_ambiguous=n_ambiguous,
        rejection_rate=n_ambiguous / len(ranked) if ranked else 0.0,
        rolling_rate=sum(rolling_known) / len(rolling_known) if rolling_known else 0.0,
        theory=mean_theory(ends),
        days=len(ranked) / pipeline.feed.events_per_day,
        false_alarms=sum(_is_false_alarm(event, pipeline.feed.segments) for event in ranked),
        alarms=tuple(MonitorBank(monitors).observe(verdicts)),
    )


def _is_ranked(verdict: Verdict) -> bool:
    """Whether a rejection band decided; only such events enter a rate."""
    return verdict.band_lower is not None and verdict.reason is not Reason.CONSTANT_WINDOW


def _rolling(pairs: Sequence[tuple[Reading, Verdict]], window: int) -> Iterator[float | None]:
    recent: deque[bool] = deque(maxlen=window)
    for _, verdict in pairs:
        if _is_ranked(verdict):
            recent.append(verdict.reason is Reason.AMBIGUOUS)
        enough = len(recent) >= min(_FIRST_RATE_EVENTS, window)
        yield sum(recent) / len(recent) if enough else None


def _judge(segment: Segment, streams: Sequence[Stream]) -> SegmentFindings:
    events = [
        event
        for stream in streams
        for event in stream.events
        if event.reading.sensor == segment.sensor
        and segment.first_ms <= event.reading.event_time_ms <= segment.last_ms
    ]
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
    noticed = [
        verdict.event_time_ms
        for verdict in verdicts
        if verdict.label is not Label.NORMAL and verdict.reason is not Reason.WARM_UP
    ]
    return SegmentFindings(
        segment=segment,
        n_events=len(events),
        n_anomaly=n_anomaly,
        n_rejected=n_rejected,
        n_unscorable=n_unscorable,
        n_warm_up=reasons[Reason.WARM_UP],
        expected_anomaly=by_chance,
        expected_flagged=flagged,
        outcome=outcome,
        notice_after_s=(min(noticed) - segment.first_ms) / 1000 if noticed else None,
    )


def _beyond_chance(found: int, events: int, expected: float) -> bool:
    """Whether so many or more would come by chance with probability below 0.1, if independent."""
    return found > 0 and float(bdtrc(found - 1, events, expected / events)) < _BY_CHANCE


def _is_false_alarm(verdict: Verdict, segments: Sequence[Segment]) -> bool:
    return verdict.label is Label.ANOMALY and not any(
        segment.sensor == verdict.sensor
        and segment.first_ms <= verdict.event_time_ms <= segment.last_ms + segment.settling_ms
        for segment in segments
    )
