"""Which incidents are open, and which of them are one flood; a view of what the engine said.

Many sensors that leave their usual range within a minute have one cause, and whoever is called
must be called once: such incidents are one alert, for as long as one of them is open.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rejex_stream.types import Incident, IncidentState, Label, Partition, Reading, Verdict

__all__ = ["FLOOD_MS", "FLOOD_STREAMS", "Flood", "OpenIncidents", "UsualValues", "Value"]

FLOOD_STREAMS = 10
"""More streams than these, opened within `FLOOD_MS` of event time, are a flood."""
FLOOD_MS = 60_000


class Flood(NamedTuple):
    """Incidents of many streams that opened at once.

    Attributes
    ----------
    id
        Of the first incident among them.
    opened_ms
        When that was.
    streams
        Whose incidents they are, those that are over included.
    """

    id: str
    opened_ms: int
    streams: tuple[str, ...]


class Value(NamedTuple):
    """What a channel reads, and between which values it mostly is; ``nan``: missing, not known."""

    channel: str
    now: float
    low: float
    high: float


class UsualValues:
    """What the channels of the streams of a partition read, now and usually; for people alone.

    Of each batch the newest normal reading of a stream counts: a mean and a mean deviation that
    forget, by a 32nd. Nothing here decides a verdict, and nothing is kept. O(events) a batch.
    """

    def __init__(self, channels: Sequence[str]) -> None:
        self._at = {name: index for index, name in enumerate(channels)}
        self._newest: dict[str, Reading] = {}
        self._usual: dict[str, tuple[int, list[float], list[float]]] = {}

    def see(self, readings: Sequence[Reading], verdicts: Sequence[Verdict]) -> None:
        """Take note of a batch."""
        normal: dict[str, Reading] = {}
        for reading, verdict in zip(readings, verdicts, strict=True):
            self._newest[reading.stream_key] = reading
            if verdict.label is Label.NORMAL:
                normal[reading.stream_key] = reading
        for stream, reading in normal.items():
            known = self._usual.get(stream)
            if known is None:
                self._usual[stream] = 1, list(reading.values), [0.0] * len(reading.values)
                continue
            count, means, spreads = known
            share = max(1 / 32, 1 / (count + 1))
            for i, value in enumerate(reading.values):
                if math.isfinite(value):
                    away = value - means[i] if math.isfinite(means[i]) else 0.0
                    means[i] = value - away * (1 - share)
                    spreads[i] += share * (abs(away) - spreads[i])
            self._usual[stream] = count + 1, means, spreads

    def forget(self, streams: Sequence[str]) -> None:
        """Drop streams that the engine has forgotten."""
        for stream in streams:
            self._newest.pop(stream, None)
            self._usual.pop(stream, None)

    def of(self, stream: str, channel: str) -> Value | None:
        """Return what a channel reads; ``None`` where nothing was seen of it."""
        at, newest = self._at.get(channel), self._newest.get(stream)
        if at is None or newest is None:
            return None
        known = self._usual.get(stream)
        mean, spread = (math.nan, 0.0) if known is None else (known[1][at], known[2][at])
        return Value(channel, newest.values[at], mean - 2 * spread, mean + 2 * spread)


class OpenIncidents:
    """The incidents that are open, by id; told once and again, it stays the same."""

    def __init__(self) -> None:
        self._open: dict[str, Incident] = {}
        self._floods: dict[str, Flood] = {}
        self._flood_of: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Incident]:
        return iter(self._open.values())

    def changed(self, incident: Incident) -> Incident | Flood | None:
        """Take note of a change; return what somebody should hear of it. O(open incidents).

        The flood that it began; nothing, where it was one more of a flood or is known already;
        else the change itself.
        """
        known = self._open.get(incident.id)
        if known is not None and known.version >= incident.version:
            return None
        if incident.state is IncidentState.CLOSED:
            self._closed(incident.id)
            return incident
        self._open[incident.id] = incident
        return incident if known is not None else self._opened(incident)

    def told_as(self, incident: Incident) -> Incident | Flood:
        """Return what stands for a change that nobody may have heard of: its flood, or itself."""
        told = self.changed(incident)
        return told if told is not None else self._flood_or(incident)

    def forget(self, partition: Partition) -> list[Incident]:
        """Drop and return those of a partition that is no longer ours: its owner tells of them."""
        gone = [one for one in self._open.values() if one.position[:2] == partition]
        for incident in gone:
            self._closed(incident.id)
        return gone

    def is_flooded(self, incident: Incident) -> bool:
        """Whether it is one of a flood, and people are told of that."""
        return incident.id in self._flood_of

    def to_tell(self) -> Sequence[Incident | Flood]:
        """Return what is one alert each: floods first, then incidents that belong to none."""
        alone = (one for name, one in self._open.items() if name not in self._flood_of)
        return [*self._floods.values(), *alone]

    def _flood_or(self, incident: Incident) -> Incident | Flood:
        flood = self._flood_of.get(incident.id)
        return incident if flood is None else self._floods[flood]

    def _closed(self, name: str) -> None:
        self._open.pop(name, None)
        flood = self._flood_of.pop(name, None)
        if flood is not None and flood not in self._flood_of.values():
            del self._floods[flood]

    def _opened(self, incident: Incident) -> Incident | Flood | None:
        near = [one for one in self._open.values() if _are_near(one, incident)]
        floods = (self._flood_of[one.id] for one in near if one.id in self._flood_of)
        flood = self._floods.get(next(floods, ""))
        if flood is not None:
            streams = dict.fromkeys((*flood.streams, incident.stream_key))
            self._floods[flood.id] = flood._replace(streams=tuple(streams))
            self._flood_of[incident.id] = flood.id
            return None
        streams = dict.fromkeys(one.stream_key for one in near)
        if len(streams) <= FLOOD_STREAMS:
            return incident
        first = min(near, key=lambda one: (one.opened_ms, one.id))
        flood = Flood(first.id, first.opened_ms, tuple(streams))
        self._floods[flood.id] = flood
        self._flood_of |= {one.id: flood.id for one in near}
        return flood


def _are_near(one: Incident, other: Incident) -> bool:
    return abs(one.opened_ms - other.opened_ms) <= FLOOD_MS
