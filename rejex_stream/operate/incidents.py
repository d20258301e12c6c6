"""Which incidents are open, and which of them are one flood; a view of what the engine said.

Many sensors that leave their usual range within a minute have one cause, and whoever is called
must be called once: such incidents are one alert, for as long as one of them is open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rejex_stream.types import Incident, IncidentState, Partition

__all__ = ["FLOOD_MS", "FLOOD_STREAMS", "Flood", "OpenIncidents"]

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


class OpenIncidents:
    """The incidents that are open, by id; told once and again, it stays the same.

    Examples
    --------
    >>> from rejex_stream.types import Position
    >>> def opened(i, version=1, state=IncidentState.OPEN):
    ...     place = Position("farm", 0, i)
    ...     return Incident(
    ...         position=place, id=str(place), version=version, state=state,
    ...         stream_key=f"WT-{i:02}", sensors=(f"WT-{i:02}",), onset_ms=0, opened_ms=1000 * i,
    ...         changed_ms=1000 * i, onset_seq=0, opened_seq=9, changed_seq=9, peak_severity=4.0,
    ...         peak_ms=0)
    >>> seen = OpenIncidents()
    >>> told = [seen.changed(opened(i)) for i in range(12)]
    >>> [type(one).__name__ for one in told[-3:]]
    ['Incident', 'Flood', 'NoneType']
    >>> len(seen), [(flood.id, len(flood.streams)) for flood in seen.to_tell()]
    (12, [('farm-0-0', 12)])
    """

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

    def forget(self, partition: Partition) -> None:
        """Drop those of a partition that is no longer ours; who owns it now tells of them."""
        for name, incident in list(self._open.items()):
            if incident.position[:2] == partition:
                self._closed(name)

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
