"""Groups and sensors as labels: groups up to a number, sensors only where somebody asks for them.

Ten thousand sensors would be ten thousand time series; what every sensor does is the console's to
show.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from rejex_stream.operate.logs import escaped
from rejex_stream.types import Label, Outcome, Reason, Verdict, in_mode

__all__ = ["GroupNames", "SensorRates", "most_sensors"]

_MOST_GROUPS = 100
_MOST_SENSORS = 100_000
_OTHER = "other"


def most_sensors(per_sensor: str) -> int:
    """Return how many sensors ``metrics.per_sensor`` asks for."""
    if per_sensor == "all":
        return _MOST_SENSORS
    return int(per_sensor.partition(":")[2] or 0)


class GroupNames:
    """The value of the label ``sensor_group``; empty where sensors are not grouped.

    A field of the records may name the group, so there may be any number: the first hundred are
    told apart, all further ones are ``other``.
    """

    def __init__(self, grouped: bool) -> None:
        self._grouped = grouped
        self._known: dict[str, str] = {}

    def of(self, stream_key: str) -> str:
        """Return the label's value for a stream key."""
        if not self._grouped:
            return ""
        name = self._known.get(stream_key)
        if name is None:
            if len(self._known) >= _MOST_GROUPS:
                return _OTHER
            name = self._known[stream_key] = escaped(stream_key)
        return name

    def told_apart(self, judged: Sequence[Outcome]) -> Mapping[str, Sequence[Outcome]]:
        """Return outcomes with verdicts by the label's value; O(1) where nothing is grouped."""
        if not self._grouped:
            return {"": judged} if judged else {}
        found: dict[str, list[Outcome]] = {}
        for outcome in judged:
            if outcome.verdict is not None:
                found.setdefault(self.of(outcome.verdict.stream_key), []).append(outcome)
        return found


class _Counts:
    __slots__ = ("events", "group", "key", "partition", "rejected")

    def __init__(self, group: str, key: str, partition: tuple[str, int]) -> None:
        self.group, self.key, self.partition = group, key, partition
        self.events = self.rejected = 0


class SensorRates(Collector):
    """Exports the share of rejected events of the sensors that were rejected most.

    Counted over each sensor's last n to 2n events (both counts are halved at 2n), warm-up left
    out. A sensor with fewer than n events is ranked as if the others had not been rejected, so a
    new one does not lead for a single event.

    Notes
    -----
    O(1) an event; O(sensors) a :meth:`refresh`. About 200 bytes a sensor, 100,000 sensors at most:
    those that come later are left out until a restart.
    """

    def __init__(self, pipeline: str, most: int, window: int) -> None:
        self._pipeline, self._most, self._window = pipeline, most, window
        self._sensors: dict[str, _Counts] = {}
        self._told: list[tuple[list[str], float]] = []

    def count(self, verdict: Verdict, group: str) -> None:
        """Count one verdict."""
        if verdict.reason in (Reason.WARM_UP, Reason.CONSTANT_WINDOW, Reason.TOO_MANY_SENSORS):
            return
        counts = self._sensors.get(verdict.sensor)
        if counts is None:
            if len(self._sensors) >= _MOST_SENSORS:
                return
            key = verdict.stream_key
            if verdict.mode is not None:
                key = in_mode(key, verdict.mode)
            counts = self._sensors[verdict.sensor] = _Counts(group, key, verdict.position[:2])
        counts.events += 1
        counts.rejected += verdict.label is Label.REJECTED
        if counts.events >= 2 * self._window:
            counts.events //= 2
            counts.rejected //= 2

    def forget(self, streams: Collection[str]) -> None:
        """Drop the sensors of streams that are forgotten. O(sensors)."""
        self._keep(lambda counts: counts.key not in streams)

    def forget_partition(self, partition: tuple[str, int]) -> None:
        """Drop the sensors of a partition that is no longer ours. O(sensors)."""
        self._keep(lambda counts: counts.partition != partition)

    def _keep(self, stays: Callable[[_Counts], bool]) -> None:
        self._sensors = {name: one for name, one in self._sensors.items() if stays(one)}
        self.refresh()

    def refresh(self) -> None:
        """Choose the sensors; in the run's own thread, since a scrape comes from another."""
        most = heapq.nlargest(self._most, self._sensors.items(), key=self._rank)
        self._told = [
            ([self._pipeline, counts.group, escaped(sensor)], counts.rejected / counts.events)
            for sensor, counts in most
        ]

    def _rank(self, item: tuple[str, _Counts]) -> float:
        return item[1].rejected / max(item[1].events, self._window)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield what was chosen last."""
        family = GaugeMetricFamily(
            "rejex_sensor_rejection_rate_ratio",
            "Share of rejected events among a sensor's last n to 2n; opt-in.",
            labels=["pipeline", "sensor_group", "sensor"],
        )
        for labels, share in self._told:
            family.add_metric(labels, share)
        yield family
