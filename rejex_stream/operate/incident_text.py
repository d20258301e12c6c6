"""How an incident is put into words: one headline and one description for alert, log and page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from rejex_stream.readable import ChannelReading, number, span, utc
from rejex_stream.rejection.window import STRONG, grade
from rejex_stream.types import (
    ChannelEvidence,
    Incident,
    IncidentState,
    LimitExcess,
    beyond,
    stream_name,
)

_MAX_NAMED_CHANNELS = 2
_STATE = {
    IncidentState.OPEN: "is not answered yet",
    IncidentState.FAULT: "is a fault, as was answered",
    IncidentState.RECOVERING: "is returning to normal",
    IncidentState.ADOPTING: "becomes the new normal",
    IncidentState.CLOSED: "is over",
}
_ENDS = {  # in a word or two beside the state, and in a sentence after "it"
    "recovered": ("returned to normal", "has returned to normal"),
    "absorbed": ("not back", "is no longer unusual, because the reference followed"),
    "adopted": ("new normal", "is over: it is the new normal"),
    "adopted_by_age": (
        "not answered: taken for normal", "was not answered, and is taken for normal",
    ),
    "as_before": ("as before", "is over: readings are as they were before it"),
    "hold_off": (
        "holding switched off", "is over: holding was switched off in the config",
    ),
    "alarm_off": ("alarms switched off", "is over: alarms were switched off in the config"),
    "forgotten": ("silent for too long", "is over: its stream was silent for too long"),
    "back": ("back", "is over: the sensor sends again"),
}  # fmt: skip
_SIDES = {
    "both": "",
    "low": " (only drops are asked about)",
    "high": " (only rises are asked about)",
}
_LIMIT_STAYS = (
    " The limit stays: a value beyond it goes on raising incidents, until the config has another."
)
_UNIT_STAYS = (
    " A value in another unit stays missing, until it is converted or the config names it."
)


class DisplayNames(NamedTuple):
    """What a pipeline, its channels and its sensors are called, in alerts and on pages."""

    pipeline: str = ""
    console_url: str | None = None
    channels: Mapping[str, Any] = MappingProxyType({})  # `[channels.NAME]` of the config
    sensors: Mapping[str, Any] = MappingProxyType({})  # `[sensors."PATTERN"]`
    priority: tuple[str, ...] = ()  # what comes first, as `review.priority_sensors` has it

    def name_and_unit(self, channel: str) -> tuple[str, str]:
        known = self.channels.get(channel)
        return (channel, "") if known is None else (known.label or channel, known.unit)

    def usual_of(self, reading: ChannelReading) -> tuple[float, float] | None:
        """Return between which values a channel mostly lies; of an angle two say nothing."""
        known = self.channels.get(reading.channel)
        return None if known is not None and known.kind == "angle" else reading.usual

    def describe_reading(self, reading: ChannelReading, *, speaks: bool = False) -> tuple[str, str]:
        """Return what a channel reads, and what is usual, and the side that raises alarms."""
        reading = replace(reading, usual=self.usual_of(reading))
        now, usual = reading.describe(*self.name_and_unit(reading.channel), speaks=speaks)
        known = self.channels.get(reading.channel)
        return now, usual and usual + _SIDES["both" if known is None else known.side]

    def reading_text(self, reading: ChannelReading) -> str:
        return ", ".join(filter(None, self.describe_reading(reading)))

    def evidence(self, incident: Incident, among: Sequence[ChannelEvidence] | None = None) -> str:
        """Return what is wrong in readings, as the record has it: everywhere the same words.

        What is beyond a limit, else what a channel that speaks (one `among` those given) read
        beside what was expected of it; empty where nothing was.
        """
        named = incident.speaking if among is None else among
        given = next((one for one in named if one.expected), None)
        if incident.limits or given is None or not given.expected:
            return ", ".join(map(self.limit_text, incident.limits))
        return self.reading_text(given.expected.as_reading(given.channel))

    def unusual(self, incident: Incident) -> str:
        """Return what is said of an incident of which no reading says more."""
        named = [self.name_and_unit(one.channel)[0] for one in incident.channels[:1]]
        return " is ".join([*named, "not as usual"])

    def is_within(self, reading: ChannelReading) -> bool:
        """Whether a reading says nothing of what is wrong: by itself it is as usual."""
        usual = self.usual_of(reading)
        return not reading.expected and bool(usual and usual[0] <= reading.value <= usual[1])

    def limit_text(self, excess: LimitExcess) -> str:
        name, unit = self.name_and_unit(excess.channel)
        return beyond(msgspec.structs.replace(excess, channel=name), unit)

    def has_priority(self, incident: Incident) -> bool:
        """Whether people set that an incident comes first: by its sensor, or what it is about."""
        about = [one.channel for one in incident.channels[:1]]
        about += [one.channel for one in incident.spread]
        about += [one.channel for one in incident.limits]
        return comes_first(self.priority, incident.sensors, about)

    def runbook_url(self, sensor: str) -> str:
        """Return the address of what there is to read about a sensor; empty without."""
        for pattern, known in self.sensors.items():
            if fnmatchcase(sensor, pattern):
                return str(known.link.replace("{sensor}", quote(sensor, safe="")))
        return ""

    def incident_url(self, incident: Incident) -> str:
        """Return the address of an incident's page; empty without a console."""
        if self.console_url is None:
            return ""
        return f"{self.console_url}/incidents/{quote(incident.id)}"


def comes_first(priority: Iterable[str], sensors: Iterable[str], channels: Sequence[str]) -> bool:
    """Return whether a channel of a sensor comes first, or the whole sensor.

    Examples
    --------
    >>> [comes_first(["T07/"], [name], ["oil"]) for name in ("T07/gear", "T08/gear")]
    [True, False]
    >>> first = ["T08/gear/oil", "*/brake"]
    >>> [comes_first(first, ["T08/gear"], [name]) for name in ("oil", "brake", "speed")]
    [True, True, False]
    """
    whole = [f"{sensor}/{channel}" for sensor in sensors for channel in (*channels, "")]
    return any(
        fnmatchcase(name, one) if "*" in one else name.startswith(one)
        for one in priority
        for name in whole
    )


def urgency(incident: Incident) -> str:
    """Return ``critical`` or ``warning``, as operators route alerts: the one scale in their words.

    Critical is what is strong or extreme, or beyond a limit that people set. It never falls.
    """
    points, _ = grade(incident.peak_severity, incident.n_anomalies)
    return "critical" if incident.passed_limit or points >= STRONG else "warning"


def graded_severity(incident: Incident) -> str:
    """Return the severity on the one scale; where no score was unusual, that this is so."""
    if incident.limits and not incident.peak_severity:
        return "0 of 100 (scores are ordinary)"
    return "{} of 100 ({})".format(*grade(incident.peak_severity, incident.n_anomalies))


class Choice(NamedTuple):
    """An answer that an incident takes: its kind, what people call it, and what it does."""

    kind: str
    label: str
    does: str


def choices(incident: Incident) -> list[Choice]:
    """Return what people can still answer to an incident.

    Nothing once it is adopted or over, nor to a silence: that ends when the sensor sends again.
    """
    if incident.silent or incident.state in {IncidentState.ADOPTING, IncidentState.CLOSED}:
        return []
    since = "was measured since it began" if incident.held else "is measured from now on"
    fault = Choice(
        "fault",
        "Fault",
        f"The alarm stays until readings return to normal. What {since} is no reference.",
    )
    known = Choice(
        "known_fault",
        "Known fault",
        f"It stays until it is repaired, and is quiet: only what comes to it is told. What {since} "
        "is no reference.",
    )
    new_normal = Choice(
        "new_normal",
        "New normal",
        f"What {since} is the reference from then on: readings like these raise no alarm again."
        + _LIMIT_STAYS * incident.passed_limit
        + _UNIT_STAYS * any(one.units for one in incident.limits),
    )
    if incident.known is True:
        return [new_normal]
    others = [known, new_normal]
    return others if incident.state is IncidentState.FAULT else [fault, *others]


def question(incident: Incident) -> str:
    """Return what is asked of people; of a fault that somebody named, whether it has become usual.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> question(SimpleNamespace(state=IncidentState.FAULT, known=None))
    'It is a fault, as was answered. Or a new normal after all?'
    """
    if incident.known is True or incident.state is IncidentState.FAULT:
        fault = "known fault" if incident.known else "fault"
        return f"It is a {fault}, as was answered. Or a new normal after all?"
    return "Fault, or new normal?"


def if_unanswered(incident: Incident) -> str:
    """Return what becomes of an incident that nobody answers."""
    if incident.silent:
        return "It goes on until the sensor sends again, or is forgotten. It needs no answer."
    goes_on = "It goes on until readings return to normal"
    if incident.state is IncidentState.FAULT or not incident.held:
        return f"{goes_on}."
    when = "" if incident.adopts_ms is None else f" on {spell_time(incident.adopts_ms)} or later"
    return f"{goes_on}. Unanswered, it is taken for normal{when}."


def headline(
    incident: Incident, names: DisplayNames, readings: Sequence[ChannelReading] = ()
) -> str:
    if incident.silent:
        return _silence(incident)
    whose = stream_name(incident.stream_key, incident.mode)
    what = names.evidence(incident, incident.channels[:1] if incident.spread else None)
    if not what and not any(map(names.is_within, readings[:1])):
        what = ", ".join(map(names.reading_text, readings[:1]))
    what = what or names.unusual(incident)
    severity = f"severity {graded_severity(incident)}"
    if incident.state is IncidentState.CLOSED:
        lasted = span(incident.changed_ms - incident.onset_ms)
        if incident.ended == "adopted_by_age":
            return f"{whose}: not answered in {lasted}, and taken for normal; {severity}"
        if incident.ended == "absorbed":
            return f"{whose}: no longer unusual after {lasted}, but {_levels(incident)}; {severity}"
        if incident.ended == "as_before":
            before = f"{utc(incident.onset_ms):%-d %B}"
            return f"{whose}: as before {before} again, and judged by what was usual then"
        ended = f" ({how_ended(incident)})" if incident.ended else ""
        return f"{whose}: over after {lasted}{ended}; {severity}"
    state = "" if incident.state is IncidentState.OPEN else f"; it {state_phrase(incident)}"
    since = f"since {spell_time(incident.onset_ms)}"
    if incident.spread and not incident.limits:
        also = spell_time(incident.spread[0].since_ms)
        what, since = f"also {what}, since {also}", f"the incident is open {since}"
    if incident.within:
        what += ", beside what an earlier incident is open for"
    if incident.is_noticed:
        state = f"; unanswered, it is taken for normal on {spell_time(incident.adopts_ms or 0)}"
    return f"{whose}: {what}; {since}; {severity}{state}"


def _silence(incident: Incident) -> str:
    sensor, since = incident.sensors[0], spell_time(incident.onset_ms)
    if incident.state is not IncidentState.CLOSED:
        return f"{sensor}: sends nothing since {since}"
    lasted = span(incident.changed_ms - incident.onset_ms)
    if incident.ended == "back":
        return f"{sensor}: sends again, after {lasted} of silence since {since}"
    return f"{sensor}: forgotten, after {lasted} of silence since {since}"


def how_ended(incident: Incident) -> str:
    ended = incident.ended or ""
    return _ENDS[ended][0] if ended in _ENDS else ended.replace("_", " ")


def _levels(incident: Incident) -> str:
    return "; ".join(
        f"{one.channel} is {number(one.since)}, and was {number(one.before)} before"
        for one in incident.levels
    )


def spell_time(time_ms: int) -> str:
    """Return a time in UTC as people say it: ``Tue 14 November 2023, 22:13 UTC``."""
    return f"{utc(time_ms):%a %-d %B %Y, %H:%M UTC}"


def describe_incident(incident: Incident, names: DisplayNames | None = None) -> str:
    if incident.silent:
        return f"{_silence(incident)}. Other sensors send, and its gaps are not so long usually."
    whose = stream_name(incident.stream_key, incident.mode)
    named = ", ".join(c.channel for c in incident.channels[:_MAX_NAMED_CHANNELS])
    whose = f"{whose} ({named})" if named else whose
    counts = f"of {incident.n_events} events {incident.n_anomalies} are anomalies"
    said = list(filter(None, [(names or DisplayNames()).evidence(incident)]))
    said += [f"{one.channel} as well since {spell_time(one.since_ms)}" for one in incident.spread]
    if incident.within:
        said.append(f"beside what is so since the incident {incident.within} began")
    since, until = spell_time(incident.onset_ms), spell_time(incident.changed_ms)
    is_over = incident.state is IncidentState.CLOSED
    when = (
        f"was not as usual from {since} to {until}" if is_over else f"is not as usual since {since}"
    )
    return (
        f"{whose} {when}: {'; '.join([*said, counts])}, "
        f"{incident.n_rejected} rejected, severity {graded_severity(incident)}. "
        f"It {state_phrase(incident)}."
    )


def state_phrase(incident: Incident) -> str:
    if incident.ended in _ENDS:
        levels = f": {_levels(incident)}" if incident.levels else ""
        return f"{_ENDS[incident.ended][1]}{levels}"
    if incident.known is True and incident.state is IncidentState.FAULT:
        return "is a known fault, and stays until it is repaired"
    by_whom = ""
    if incident.state is IncidentState.ADOPTING:
        by_whom = ", as was answered" if incident.answer else " by itself: nobody has answered"
    return f"{_STATE[incident.state]}{by_whom}"
