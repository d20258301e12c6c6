"""What operators are told of an alarm, an incident and a flood of them: as an alert, as an event.

An *alert* is a state: Alertmanager holds it while it lasts, and equal labels are one alert. An
*event* is a change: the webhook gets each once, and its id is the same for every try and for a
replay.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import msgspec

from rejex_stream.encode.records import encode_incident
from rejex_stream.monitor import Alarm
from rejex_stream.monitor.alarm import AlarmKind
from rejex_stream.operate.incidents import Flood, Value
from rejex_stream.rejection.window import grade
from rejex_stream.types import Incident, IncidentState, spoken

__all__ = [
    "Alert", "Event", "Told", "Wording", "alert_of", "cloud_event", "event_of", "log_incident",
]  # fmt: skip

_log = logging.getLogger(__name__)
Told: TypeAlias = Alarm | Incident | Flood
_NAMESPACE = uuid.UUID("5b6e0b1c-2c39-5b2e-9a53-7f6f6b2b1d10")
_CRITICAL = {AlarmKind.HEALTH, AlarmKind.COLLAPSE, AlarmKind.STUCK, AlarmKind.NOTHING_SCORABLE}
_MOST_CHANNELS = 5
_MOST_SENSORS = 20
_STATE = {
    IncidentState.OPEN: "waits for an answer",
    IncidentState.FAULT: "is a fault, as somebody said",
    IncidentState.RECOVERING: "seems to end",
    IncidentState.ADOPTING: "becomes the new normal, as somebody said",
    IncidentState.CLOSED: "is over",
}
_ANSWERS = (
    "'Fault': what was seen since stays out of all that is learnt, and the alert ends when the "
    "sensor is as usual again. 'New normal': from now on this is usual, and the alert ends. No "
    "answer: it goes on until the sensor is as usual again."
)


class Alert(NamedTuple):
    """A state that lasts.

    Attributes
    ----------
    labels
        Who it is: equal labels are one alert, so nothing here changes while it lasts.
    annotations
        What there is to say of it now.
    began
        When it began by the events' own clock; ``None``: when it was first told.
    """

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    began: datetime | None = None


class Event(NamedTuple):
    """A change, as a CloudEvent.

    Attributes
    ----------
    id
        The same for every try, and for the same change told again by a replay.
    body
        The whole event in JSON.
    """

    id: str
    body: bytes


class Wording(NamedTuple):
    """What a pipeline is called, and how its channels and sensors are shown to people.

    Attributes
    ----------
    pipeline
        A label of every alert.
    console_url
        Where the console is, for a link to the incident.
    units, names
        Of channels, where they have any.
    runbook
        Where to read on about a sensor; empty without.
    """

    pipeline: str
    console_url: str | None = None
    units: Mapping[str, str] = MappingProxyType({})
    names: Mapping[str, str] = MappingProxyType({})
    runbook: Callable[[str], str] = lambda _: ""


def alert_of(told: Told, wording: Wording, values: Sequence[Value] = ()) -> Alert:
    """Return the alert of something that lasts."""
    if isinstance(told, Alarm):
        return _alarm_alert(told, wording.pipeline)
    if isinstance(told, Flood):
        return _flood_alert(told, wording)
    labels = {
        "alertname": "RejexIncident",
        "pipeline": wording.pipeline,
        "stream": told.stream_key,
        "incident": told.id,
        "severity": "critical",
    }
    if told.sensors != (told.stream_key,):
        labels |= {"sensor_group": told.stream_key}
        del labels["stream"]
    labels |= {} if told.mode is None else {"mode": told.mode}
    points, word = grade(told.peak_severity)
    annotations = {
        "summary": summary_of(told, wording, values),
        "description": sentence_of(told),
        "answers": "" if told.state.value in {"adopting", "closed"} else _ANSWERS,
        "severity": f"{points} of 100 ({word})",
        "since": _clock(told.onset_ms),
        "onset": _text(told.onset_ms),
        "peak_severity": f"{told.peak_severity:.1f}",
        "channels": ", ".join(found.channel for found in told.channels[:_MOST_CHANNELS]),
        "values": "; ".join(_reads(value, wording) for value in values),
        "sensors": _named(told.sensors),
        "state": told.state.value,
        "link": _link(told, wording),
        "runbook_url": wording.runbook(told.sensors[0] if told.sensors else told.stream_key),
    }
    annotations = {name: text for name, text in annotations.items() if text}
    return Alert(labels, annotations, _moment(told.opened_ms))


def summary_of(incident: Incident, wording: Wording, values: Sequence[Value] = ()) -> str:
    """Return one line that says where, what, since when and how bad."""
    whose = spoken(incident.stream_key, incident.mode)
    what = ", ".join(_reads(value, wording) for value in values[:1])
    if not what:
        named = ", ".join(found.channel for found in incident.channels[:1])
        what = f"{named} is not as usual" if named else "not as usual"
    points, word = grade(incident.peak_severity)
    when = _clock(incident.onset_ms)
    return f"{whose}: {what}; since {when}; severity {points} of 100 ({word})"


def _reads(value: Value, wording: Wording) -> str:
    unit = wording.units.get(value.channel, "")
    unit = f" {unit}" if unit else ""
    name = wording.names.get(value.channel, value.channel)
    reads = "missing" if math.isnan(value.now) else f"{value.now:.4g}{unit}"
    if math.isnan(value.low):
        return f"{name} {reads}"
    return f"{name} {reads}, usually {value.low:.4g} to {value.high:.4g}{unit}"


def _link(incident: Incident, wording: Wording) -> str:
    return "" if wording.console_url is None else f"{wording.console_url}/incidents/{incident.id}"


def _clock(time_ms: int) -> str:
    at = _moment(time_ms)
    return f"{at:%a} {at.day} {at:%B %Y, %H:%M} UTC"


def sentence_of(incident: Incident) -> str:
    """Return what there is to say of an incident, for a person."""
    whose = spoken(incident.stream_key, incident.mode)
    counts = f"of {incident.n_events} events {incident.n_anomalies} are anomalies"
    points, word = grade(incident.peak_severity)
    return (
        f"{whose} is not as usual since {_text(incident.onset_ms)}: {counts}, "
        f"{incident.n_rejected} rejected, severity up to {points} of 100 ({word}). "
        f"It {_STATE[incident.state]}."
    )


def log_incident(incident: Incident) -> None:
    """Say a change of an incident in the log."""
    _log.warning(
        "incident %s: %s",
        incident.id,
        sentence_of(incident),
        extra={
            "event": "incident",
            "state": incident.state.value,
            "stream": incident.stream_key,
            "mode": incident.mode,
            "topic": incident.position.topic,
            "partition": incident.position.partition,
            "offset": incident.position.offset,
        },
    )


def event_of(told: Told, wording: Wording, values: Sequence[Value] = ()) -> Event:
    """Return the CloudEvent of something that changed.

    That of an incident is its record in the incidents output, with what people need beside it:
    ``summary``, ``message``, ``severity``, ``values``, ``link`` and ``runbook``.
    """
    pipeline = wording.pipeline
    if isinstance(told, Alarm):
        where = f"{told.stream_key}/{told.position}{'' if told.mode is None else '/' + told.mode}"
        key = f"{told.kind}/{told.alternative}/{where}"
        kind, subject, time_ms, data = "alarm", told.stream_key, told.event_time_ms, _data_of(told)
    elif isinstance(told, Flood):
        key, data = f"flood/{told.id}", told._asdict()
        kind, subject, time_ms = "incident-flood", None, told.opened_ms
    else:
        key = f"incident/{told.id}/{told.version}"
        kind, subject, time_ms = "incident", told.stream_key, told.changed_ms
        points, word = grade(told.peak_severity)
        data = msgspec.json.decode(encode_incident(told)) | {
            "summary": summary_of(told, wording, values),
            "message": sentence_of(told),
            "severity": {"of_100": points, "word": word},
            "values": [
                {**value._asdict(), "unit": wording.units.get(value.channel, "")}
                for value in values
            ],
            "link": _link(told, wording),
            "runbook": wording.runbook(told.sensors[0] if told.sensors else told.stream_key),
        }
    return cloud_event(pipeline, kind, key, subject or pipeline, time_ms, data)


def cloud_event(  # noqa: PLR0917
    source: str, kind: str, key: str, subject: str, time_ms: int, data: Mapping[str, Any]
) -> Event:
    """Return an event of a source; the same `key` gives the same id."""
    name = str(uuid.uuid5(_NAMESPACE, f"{source}/{key}"))
    event = {
        "specversion": "1.0",
        "id": name,
        "source": f"/rejex-stream/{source}",
        "type": f"io.rejex.{kind}.v1",
        "subject": subject,
        "time": _text(time_ms),
        "datacontenttype": "application/json",
        "data": data,
    }
    return Event(name, msgspec.json.encode(event))


def _alarm_alert(alarm: Alarm, pipeline: str) -> Alert:
    labels = {
        "alertname": "Rejex" + "".join(word.capitalize() for word in alarm.kind.split("_")),
        "pipeline": pipeline,
        "kind": alarm.kind.value,
        "direction": alarm.alternative.value,
        "severity": "critical" if alarm.kind in _CRITICAL else "warning",
    }
    if alarm.stream_key is not None:
        labels["stream"] = alarm.stream_key
    if alarm.mode is not None:
        labels["mode"] = alarm.mode
    annotations = {
        "summary": alarm.message,
        "guarantee": alarm.guarantee,
        "evidence": f"{alarm.evidence:g} {alarm.unit}, limit {alarm.threshold:g}",
        "event": str(alarm.position),
    }
    return Alert(labels, annotations)


def _data_of(alarm: Alarm) -> dict[str, Any]:
    return {
        "kind": alarm.kind.value,
        "direction": alarm.alternative.value,
        "stream": alarm.stream_key,
        "mode": alarm.mode,
        "event": str(alarm.position),
        "evidence": alarm.evidence,
        "threshold": alarm.threshold,
        "unit": alarm.unit,
        "guarantee": alarm.guarantee,
        "message": alarm.message,
    }


def _flood_alert(flood: Flood, wording: Wording) -> Alert:
    labels = {
        "alertname": "RejexIncidentFlood",
        "pipeline": wording.pipeline,
        "incident": flood.id,
        "severity": "critical",
    }
    annotations = {
        "summary": f"{len(flood.streams)} sensors are not as usual at once, since "
        f"{_clock(flood.opened_ms)}: one cause is likelier than so many.",
        "sensors": _named(flood.streams),
    }
    if wording.console_url is not None:
        annotations["link"] = f"{wording.console_url}/incidents"
    return Alert(labels, annotations, _moment(flood.opened_ms))


def _named(sensors: tuple[str, ...]) -> str:
    more = len(sensors) - _MOST_SENSORS
    return ", ".join(sensors[:_MOST_SENSORS]) + (f" and {more} more" if more > 0 else "")


def _moment(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)


def _text(time_ms: int) -> str:
    return _moment(time_ms).isoformat()
