"""What a run really did, beside what the theory said it would: counts, rates, episodes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from rejex_stream.monitor.theory import batch_means
from rejex_stream.planner import EpisodeRule
from rejex_stream.types import Label, Outcome, Reason, Verdict

__all__ = ["Measured", "Tally"]

_BATCHES = 30
_CONFIDENCE = 0.99


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured. Rates are shares of ranked events: those the theory speaks of.

    Attributes
    ----------
    events, invalid
        Readable records and unreadable ones.
    normal, anomaly, rejected
        Verdicts by label.
    reasons
        Rejected verdicts by reason.
    ranked
        Verdicts with a rank among enough scores, so neither warm-up nor unscorable nor constant.
    rejection_rate, expected_rate
        Measured, and the mean of w / (n + 1) over the very windows that were used.
    lower, upper
        99 % limits of the measured rate that allow for autocorrelation (batch means); ``None``
        below 60 ranked events.
    anomaly_rate, flagged_rate
        Share of accepted anomalies, and of ranks above n - r.
    inflation, effective_events
        How much more the rate varies than independent events would, and `ranked` divided by it.
    tie_share
        Share of ranked events whose score was in the window already.
    sensors, streams
        How many.
    days, events_per_day, rejected_per_day
        By event time; ``None`` where the time does not advance.
    episodes, events_per_episode, episodes_per_day
        Events for review, grouped as the review queue groups them.
    """

    events: int
    invalid: int
    normal: int
    anomaly: int
    rejected: int
    reasons: dict[str, int]
    ranked: int
    rejection_rate: float | None
    expected_rate: float | None
    lower: float | None
    upper: float | None
    anomaly_rate: float | None
    flagged_rate: float | None
    inflation: float | None
    effective_events: float | None
    tie_share: float | None
    sensors: int
    streams: int
    days: float | None
    events_per_day: float | None
    rejected_per_day: float | None
    episodes: int
    events_per_episode: float | None
    episodes_per_day: float | None


@dataclass(slots=True)
class _Sensor:
    """Where one sensor stands: how many events, and its running episode."""

    seen: int = 0
    rejected_at: int = -1
    rejected_ms: int = 0
    begun_ms: int = 0
    length: int = 0


@dataclass(slots=True)
class Tally:
    """Counts outcomes as they come; one byte an event, O(1) each.

    Parameters
    ----------
    rule
        What makes an episode.

    Examples
    --------
    >>> from rejex_stream.types import Position
    >>> tally = Tally()
    >>> tally.add(Verdict(
    ...     position=Position("t", 0, 0), stream_key="a", sensor="a", event_time_ms=0, seq=0,
    ...     label=Label.REJECTED, reason=Reason.AMBIGUOUS, score=1.0, rank=95, window_len=100,
    ...     n_anomalies=10, band_lower=85, band_upper=97))
    >>> tally.measured().rejection_rate, tally.measured().episodes
    (1.0, 1)
    """

    rule: EpisodeRule = field(default_factory=EpisodeRule)
    labels: Counter[Label] = field(default_factory=Counter)
    reasons: Counter[Reason] = field(default_factory=Counter)
    invalid: int = 0
    _cells: bytearray = field(default_factory=bytearray)
    _expected: float = 0.0
    _ties: int = 0
    _streams: set[str] = field(default_factory=set)
    _sensors: dict[str, _Sensor] = field(default_factory=dict)
    _episodes: int = 0
    _first_ms: int | None = None
    _last_ms: int = 0

    def add_outcomes(self, outcomes: Iterable[Outcome]) -> None:
        """Count what became of records."""
        for outcome in outcomes:
            if outcome.verdict is None:
                self.invalid += 1
            else:
                self.add(outcome.verdict)

    def add(self, verdict: Verdict) -> None:
        """Count one verdict."""
        self.labels[verdict.label] += 1
        self._streams.add(verdict.stream_key)
        now = verdict.event_time_ms
        self._first_ms = now if self._first_ms is None else min(self._first_ms, now)
        self._last_ms = max(self._last_ms, now)
        sensor = self._sensors.get(verdict.sensor)
        if sensor is None:
            sensor = self._sensors[verdict.sensor] = _Sensor()
        sensor.seen += 1
        reason = verdict.reason
        if reason is not None:
            self.reasons[reason] += 1
            if reason is not Reason.WARM_UP:
                self._extend_episode(sensor, now)
        if reason is None or reason is Reason.AMBIGUOUS:
            self._rank(verdict)

    def _rank(self, verdict: Verdict) -> None:
        rank, lower, upper = verdict.rank, verdict.band_lower, verdict.band_upper
        assert rank is not None
        assert lower is not None
        assert upper is not None
        flagged = rank > verdict.window_len - verdict.n_anomalies
        if lower <= rank <= upper:
            self._cells.append(2 if flagged else 1)
        else:
            self._cells.append(3 if flagged else 0)
        self._expected += max(0, upper - lower + 1) / (verdict.window_len + 1)
        self._ties += verdict.ties > 0

    def _extend_episode(self, sensor: _Sensor, now: int) -> None:
        rule = self.rule
        near = sensor.length > 0 and (
            now - sensor.rejected_ms <= rule.gap_s * 1000
            or sensor.seen - sensor.rejected_at <= rule.gap_events
        )
        if (
            not near
            or sensor.length >= rule.max_events
            or now - sensor.begun_ms >= rule.max_s * 1000
        ):
            self._episodes += 1
            sensor.begun_ms, sensor.length = now, 0
        sensor.length += 1
        sensor.rejected_at, sensor.rejected_ms = sensor.seen, now

    def measured(self) -> Measured:
        """Return everything counted so far. O(events)."""
        cells, ranked = bytes(self._cells), len(self._cells)
        rejected = cells.count(1) + cells.count(2)
        limits = batch_means(cells, _CONFIDENCE)
        inflation = _inflation(cells)
        span_ms = self._last_ms - (self._first_ms or 0)
        days = span_ms / 86_400_000 if span_ms > 0 else None
        events = self.labels.total()
        to_review = self.labels[Label.REJECTED] - self.reasons[Reason.WARM_UP]
        return Measured(
            events=events,
            invalid=self.invalid,
            normal=self.labels[Label.NORMAL],
            anomaly=self.labels[Label.ANOMALY],
            rejected=self.labels[Label.REJECTED],
            reasons={str(reason): count for reason, count in sorted(self.reasons.items())},
            ranked=ranked,
            rejection_rate=_share(rejected, ranked),
            expected_rate=self._expected / ranked if ranked else None,
            lower=None if limits is None else limits.lower,
            upper=None if limits is None else limits.upper,
            anomaly_rate=_share(cells.count(3), ranked),
            flagged_rate=_share(cells.count(2) + cells.count(3), ranked),
            inflation=inflation,
            effective_events=None if inflation is None else ranked / inflation,
            tie_share=_share(self._ties, ranked),
            sensors=len(self._sensors),
            streams=len(self._streams),
            days=days,
            events_per_day=None if days is None else events / days,
            rejected_per_day=None if days is None else to_review / days,
            episodes=self._episodes,
            events_per_episode=to_review / self._episodes if self._episodes else None,
            episodes_per_day=None if days is None else self._episodes / days,
        )


def _share(count: int, total: int) -> float | None:
    return count / total if total else None


def _inflation(cells: bytes) -> float | None:
    """Variance of batch means over what independent events would have, at least 1."""
    length = len(cells) // _BATCHES
    if length < 2:
        return None
    means = [
        (cells.count(1, i, i + length) + cells.count(2, i, i + length)) / length
        for i in range(0, length * _BATCHES, length)
    ]
    rate = math.fsum(means) / _BATCHES
    if not 0 < rate < 1:
        return None
    spread = math.fsum((mean - rate) ** 2 for mean in means) / (_BATCHES - 1)
    return max(1.0, spread * length / (rate * (1 - rate)))
