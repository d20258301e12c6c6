"""Situations: incidents of one cause, found by when they began.

Incidents of one group of streams are one situation where their onsets lie within a few sampling
steps of each other, and more of them do than chance makes. Both are measured: the step from the
incident's own events, and what chance makes from the group's own openings, by a Poisson tail. The
result is a function of the incidents alone: in whatever order they come, it is the same.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from rejex_stream.types import Incident

_STEPS = 8  # sampling steps between onsets that agree
_CHANCE = 1e-3
_SHARE = 3  # one of so many members shows a channel that the cause reaches
_TIMES_LIKELIER = 10  # to be of a situation than to have opened alone, of who was slower to open
_MONTH_MS = 30 * 86_400_000
_FURTHER_MS = 2 * _MONTH_MS  # between two in which a held stream is told of one by chance
_PARENT = re.compile(r"(.*[/.:|])[^/.:|]+", re.DOTALL)
_NUMBER = re.compile(r"(.*?)[\W_]*\d+", re.DOTALL)


class Onset(NamedTuple):
    """When and where an incident began, which is all that is asked of it."""

    incident: str
    stream_key: str
    silent: bool
    onset_ms: int
    opened_ms: int
    step_ms: float
    further_ms: int | None = None  # since when its newest further fault lasts
    further: tuple[str, ...] = ()  # the channels of its further faults
    shows: tuple[str, ...] = ()  # the channels that add at least half as much as the loudest

    @property
    def slack_ms(self) -> float:
        """Half of how far an onset of the same stream may be away."""
        return self.step_ms * _STEPS / 2


class Situation(NamedTuple):
    """Incidents of one cause; most are of one incident."""

    id: str  # that of an incident, the one that was told of first
    members: tuple[str, ...]  # by onset
    group: str  # what the names of its streams begin with; empty: nothing
    streams: int  # of the group


def group_name(stream_key: str) -> str:
    """Return what a stream's name shares with those of its siblings; empty: nothing.

    Examples
    --------
    >>> [group_name(name) for name in ("gw7/meter-03", "plant.line2.flow", "WT-12", "boiler")]
    ['gw7/', 'plant.line2.', 'WT', '']
    """
    known = _PARENT.fullmatch(stream_key) or _NUMBER.fullmatch(stream_key)
    return "" if known is None else known[1]


def onset_of(incident: Incident) -> Onset:
    """Return when and where an incident began."""
    span_ms, events = (
        incident.opened_ms - incident.onset_ms,
        incident.opened_seq - incident.onset_seq,
    )
    if incident.silent:  # it is told after three of its stream's longest gaps
        events = 3
    if events <= 0:
        span_ms = incident.changed_ms - incident.onset_ms
        events = incident.changed_seq - incident.onset_seq
    step_ms = len(incident.sensors) * span_ms / events if events > 0 and span_ms > 0 else 0.0
    told = [(one.channel, one.contribution) for one in incident.channels]
    loudest = max((share for _, share in told if share is not None), default=0.0)
    soft = {name for name, share in told if share is not None and 2 * share < loudest}
    # What adds less to the score than half of what the cause does may be of the cause.
    further = [one for one in incident.spread if one.channel not in soft]
    return Onset(
        incident.id,
        incident.stream_key,
        bool(incident.silent),
        incident.onset_ms,
        incident.opened_ms,
        step_ms,
        further[0].since_ms if further else None,
        tuple(one.channel for one in further),
        tuple(name for name, _ in told if name not in soft),
    )


def find_situations(
    onsets: Iterable[Onset],
    streams: Iterable[str] = (),
    known: Mapping[str, str] = MappingProxyType({}),
    span_ms: float | None = None,
) -> list[Situation]:
    """Return all incidents by situation, the oldest first; O(n log n).

    `streams` are those that are known, with or without incidents. `known` says which situation each
    incident was told of in: the oldest of those that meet stays. Chance makes as many as began
    before; with a `span_ms`, as many as there are in it.
    """
    faults = sorted(onsets, key=lambda one: (one.onset_ms, one.incident))
    sizes = Counter(map(group_name, {*streams, *(one.stream_key for one in faults)}))
    alone = sum(size == 1 for size in sizes.values()) + (sizes[""] if sizes[""] > 1 else 0)
    groups = defaultdict[tuple[str, bool], list[Onset]](list)
    for one in faults:
        name = group_name(one.stream_key)
        groups[name if sizes[name] > 1 else "", one.silent].append(one)
    found = [
        (is_own, members, name, sizes[name] if name else alone)
        for (name, _), those in groups.items()
        for is_own, members in _by_cause(those, sizes[name] if name else alone, span_ms)
    ]
    # Who leaves a situation leaves its identity to those that stay.
    found.sort(key=lambda one: (one[0], one[1][0].onset_ms, one[1][0].incident))
    opened = {one.incident: (one.opened_ms, one.incident) for one in faults}
    told, taken, situations = set(known.values()), set[str](), list[Situation]()
    for _, causes, name, size in found:
        members = [one.incident for one in causes]
        names = [known.get(one, one) for one in members] + members
        names.sort(key=lambda one: (one not in told, opened.get(one, (math.inf, one))))
        free = [one for one in names if one not in taken]
        identity = free[0] if free else f"{members[0]}-{causes[0].further_ms}"
        taken.add(identity)
        situations.append(Situation(identity, tuple(members), name, size))
    return situations


def _by_cause(
    faults: Sequence[Onset], n_streams: int, span_ms: float | None
) -> Iterator[tuple[bool, list[Onset]]]:
    """Yield the incidents of one group, cause by cause, and whether it is one that left others."""
    begun, cores = list[int](), list[tuple[list[Onset], float]]()
    for run in _runs(faults):
        onset_ms = run[0].onset_ms
        recent = len(begun) - bisect_left(begun, onset_ms - _MONTH_MS)
        if span_ms is None:
            # One opening a stream a month is what was asked for, where nothing is known yet.
            passed_ms = max(0, onset_ms - begun[-recent]) if recent else 0
            rate = (1 + recent) / (_MONTH_MS / n_streams + passed_ms)
        else:
            rate = len(faults) / span_ms
        width_ms = run[-1].onset_ms - onset_ms + max(one.slack_ms for one in run)
        together = _tail(_size(run), rate * width_ms) <= _CHANCE
        for core in [run] if together else [[one] for one in run]:
            cores.append((core, rate))
            insort(begun, core[0].onset_ms)
    # Who was slow to open may have begun with the others: the largest cores take such incidents in.
    cores.sort(key=lambda core: (-_size(core[0]), core[0][0].onset_ms, core[0][0].incident))
    placed = set[str]()
    for core, rate in cores:
        members = [one for one in core if one.incident not in placed]
        placed.update(one.incident for one in members)
        share = _size(members) / n_streams
        if _size(members) > 1:
            first_ms, last_ms = members[0].onset_ms, members[-1].onset_ms
            members += [  # where others began between its onset and its opening
                one for one in faults
                if one.incident not in placed
                and one.onset_ms - 2 * one.slack_ms <= last_ms
                and first_ms <= one.opened_ms + 2 * one.slack_ms
                and _TIMES_LIKELIER * rate / n_streams * (one.opened_ms - one.onset_ms) <= share
            ]  # fmt: skip
        placed.update(one.incident for one in members)
        if members:
            yield from _without_own(sorted(members, key=lambda one: (one.onset_ms, one.incident)))


def _without_own(members: list[Onset]) -> Iterator[tuple[bool, list[Onset]]]:
    """Yield a situation without those whose further fault is their own, and each of these.

    It is the cause's where it is of channels that a third of the others show as well.
    """
    shown = Counter(name for one in members for name in {*one.shows, *one.further})
    further = [
        one for one in members
        if one.further_ms is not None
        and any(_SHARE * (shown[name] - 1) < len(members) - 1 for name in one.further or ("",))
    ]  # fmt: skip
    until_ms = max((one.further_ms or 0 for one in further), default=0)
    by_chance = len(members) * (until_ms - members[0].onset_ms) / _FURTHER_MS
    if len(members) > 1 and further and _tail(len(further), by_chance) > _CHANCE:
        members = [one for one in members if one not in further]
        yield from ((True, [one]) for one in further)
    if members:
        yield False, members


def _size(faults: Iterable[Onset]) -> int:
    return len({one.stream_key for one in faults})


def _runs(faults: Iterable[Onset]) -> Iterator[list[Onset]]:
    run, reach_ms = list[Onset](), -math.inf
    for one in sorted(faults, key=lambda one: (one.onset_ms - one.slack_ms, one.incident)):
        if run and one.onset_ms - one.slack_ms > reach_ms:
            yield sorted(run, key=lambda one: (one.onset_ms, one.incident))
            run, reach_ms = [], -math.inf
        run.append(one)
        reach_ms = max(reach_ms, one.onset_ms + one.slack_ms)
    if run:
        yield sorted(run, key=lambda one: (one.onset_ms, one.incident))


def _tail(k: int, expected: float) -> float:
    if expected <= 0:
        return float(k <= 0)
    below = sum(math.exp(n * math.log(expected) - expected - math.lgamma(n + 1)) for n in range(k))
    return max(0.0, 1.0 - below)
