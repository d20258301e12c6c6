"""Which open incidents are one situation, as far as one process sees them, and what is news of it.

Whoever is told of a situation hears of it once, and again when it changes its state, when it is
eight times as large, passes a limit, or is about to be taken for normal. Of an incident of its own
further faults are told as well; that its reference is held from now on is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from rejex_stream.incidents.situations import (
    Onset,
    Situation,
    find_situations,
    group_name,
    onset_of,
)
from rejex_stream.types import Incident, IncidentState, LimitExcess

_STATES = list(IncidentState)  # the one that needs people most comes first
_MONTH_MS = 30 * 86_400_000


class Together(NamedTuple):
    """A situation that goes on, or has just ended."""

    situation: Situation
    first: Incident  # whose identity it has
    open: tuple[Incident, ...]

    @property
    def state(self) -> IncidentState:
        """Return the state of the situation: that of the member that needs people most."""
        return min((one.state for one in self.open), key=_STATES.index, default=_STATES[-1])

    @property
    def size_text(self) -> str:
        """Return how many there are, as ``14 of 20 gw7/*``; empty for one."""
        size, situation = len(self.situation.members), self.situation
        return f"{size} of {situation.streams} {situation.group}*" if size > 1 else ""


class OpenSituations:
    """The incidents that are open, by situation."""

    def __init__(self) -> None:
        self._onsets: dict[str, Onset] = {}  # of a month, or open
        self._open: dict[str, Incident] = {}
        self._situations: dict[str, Situation] = {}  # by incident
        self._firsts: dict[str, Incident] = {}  # by situation
        self._told: dict[str, tuple[IncidentState, tuple[int, bool, bool], tuple[Any, ...]]] = {}

    def __iter__(self) -> Iterator[Together]:
        return map(self.of, {self._situations[one].id: one for one in self._open}.values())

    def of(self, incident: str) -> Together:
        situation = self._situations[incident]
        members = tuple(self._open[one] for one in situation.members if one in self._open)
        return Together(situation, self._firsts[situation.id], members)

    @property
    def incidents(self) -> list[Incident]:
        return list(self._open.values())

    def has_new_state(self, incident: Incident) -> bool:
        """Whether a change leads to another state: figures alone are not logged."""
        known = self._open.get(incident.id)
        return known is None or known.state is not incident.state

    def update(self, incident: Incident, streams: Iterable[str]) -> bool:
        """Take a change into account; returns whether its version is new, not its figures alone.

        `streams` are all that are known. A change that comes late takes nothing back.
        """
        before = self._open.get(incident.id)
        is_new = before is None or before.version < incident.version
        if before is not None:
            incident = max(before, incident, key=lambda one: (one.version, one.changed_seq))
        if incident.state is IncidentState.CLOSED:
            self._open.pop(incident.id, None)
        else:
            self._open[incident.id] = incident
        onset, known = onset_of(incident), self._onsets.get(incident.id)
        if known is None or known.further_ms != onset.further_ms:
            self._onsets[incident.id] = onset
            self._group(streams)
        situation = self._situations[incident.id]
        if incident.id == situation.id or situation.id not in self._firsts:
            self._firsts[situation.id] = incident
        return is_new

    def _group(self, streams: Iterable[str]) -> None:
        newest_ms = max(one.opened_ms for one in self._onsets.values())
        self._onsets = {
            id_: one for id_, one in self._onsets.items()
            if id_ in self._open or one.opened_ms > newest_ms - _MONTH_MS
        }  # fmt: skip
        known = {id_: one.id for id_, one in self._situations.items()}
        found = find_situations(self._onsets.values(), streams, known)
        self._situations = {member: one for one in found for member in one.members}
        for one in found:
            members = [self._open[member] for member in one.members if member in self._open]
            if members:
                first = next((member for member in members if member.id == one.id), members[0])
                self._firsts.setdefault(one.id, first)

    def is_news(self, incident: Incident) -> bool:
        """Whether a change that was taken into account is to be told; asked once a change."""
        together = self.of(incident.id)
        size, key = len(together.situation.members), together.situation.id
        noticed = any(one.is_noticed for one in together.open)
        limits = any(one.passed_limit for one in together.open)
        own = (incident.known, incident.spread, self._limits(incident)) if size == 1 else ()
        told = together.state, ((size.bit_length() - 1) // 3, noticed, limits), own
        known, self._told[key] = self._told.get(key), told
        if known is None or known[0] is not told[0] or (own and known[2] != own):
            return True
        return any(now > before for before, now in zip(known[1], told[1], strict=True))

    def _limits(self, incident: Incident) -> tuple[LimitExcess, ...]:
        """Return what is beyond a limit, but for what a situation of its group shows as well.

        It was open before that began, so its onset does not say that it is of the same cause.
        """
        soon_ms = 2 * self._onsets[incident.id].slack_ms
        shown = {
            excess.channel
            for one in self._open.values()
            if len(self._situations[one.id].members) > 1
            and group_name(one.stream_key) == group_name(incident.stream_key)
            and abs(one.changed_ms - incident.changed_ms) <= soon_ms
            for excess in one.limits
        }
        return tuple(
            one for one in incident.limits if one.is_set_by_people or one.channel not in shown
        )

    def forget(self, incidents: Iterable[Incident]) -> None:
        for one in incidents:
            self._open.pop(one.id, None)
        needed = {self._situations[one].id for one in self._open}
        self._firsts = {id_: one for id_, one in self._firsts.items() if id_ in needed}
        self._told = {id_: one for id_, one in self._told.items() if id_ in needed}
