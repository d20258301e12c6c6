"""Runs of anomalies and rejections that belong together: what somebody looks at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from rejex_stream.plan.promises import EpisodeRule
from rejex_stream.types import Label, Reason, Verdict

__all__ = ["Episode", "Episodes"]

_EPISODE = EpisodeRule()


@dataclass(slots=True)
class Episode:
    """Events of one sensor near each other that are not normal."""

    sensor: str
    first_row: int
    last_row: int
    first_ms: int
    last_ms: int
    anomalies: int = 0
    rejected: int = 0
    severity: float | None = None
    channels: Counter[str] = field(default_factory=Counter)


class Episodes:
    """Groups verdicts in order, much as the review queue does. O(1) a verdict."""

    def __init__(self) -> None:
        self.all: list[Episode] = []
        self._seen: Counter[str] = Counter()
        self._open: dict[str, tuple[int, Episode]] = {}

    @property
    def total(self) -> int:
        """How many there are."""
        return len(self.all)

    def worst(self, n: int) -> list[Episode]:
        """Return the `n` most severe, the worst first. O(episodes log episodes)."""
        return sorted(self.all, key=lambda e: (-(e.severity or 0.0), -e.anomalies, e.first_row))[:n]

    def add(self, verdicts: Iterable[Verdict]) -> None:
        """Take verdicts in order; warm-up is no episode."""
        for verdict in verdicts:
            self._seen[verdict.sensor] += 1
            if verdict.label is not Label.NORMAL and verdict.reason is not Reason.WARM_UP:
                self._take(verdict)

    def _take(self, verdict: Verdict) -> None:
        sensor, now, row = verdict.sensor, verdict.event_time_ms, verdict.position.offset + 1
        seen, rule = self._seen[sensor], _EPISODE
        at, episode = self._open.get(sensor, (0, None))
        near = episode is not None and (
            now - episode.last_ms <= rule.gap_s * 1000 or seen - at <= rule.gap_events
        )
        if episode is None or not near:
            episode = Episode(sensor, row, row, now, now)
            self.all.append(episode)
        self._open[sensor] = seen, episode
        episode.last_row = row
        episode.last_ms = max(now, episode.last_ms)
        episode.anomalies += verdict.label is Label.ANOMALY
        episode.rejected += verdict.label is Label.REJECTED
        if verdict.severity is not None:
            episode.severity = max(verdict.severity, episode.severity or 0.0)
        if verdict.evidence is not None and verdict.evidence.channels:
            episode.channels[verdict.evidence.channels[0].channel] += 1
