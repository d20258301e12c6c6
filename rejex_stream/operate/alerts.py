"""What operators hear of an alarm, an incident and a flood of them, and who takes it.

An *alert* is a state: Alertmanager holds it while it lasts, and equal labels are one alert. An
*event* is a change: the webhook gets each once, signed, and its id is the same for every try and
for a replay. Nothing is posted in the run's own thread; what nobody takes, the log says.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import json
import logging
import queue
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

import msgspec

from rejex_stream.addresses import masked
from rejex_stream.encode.records import encode_incident
from rejex_stream.monitor import Alarm
from rejex_stream.monitor.alarm import AlarmKind
from rejex_stream.readable import Reads, span, utc
from rejex_stream.rejection.window import STRONG, grade
from rejex_stream.types import Incident, IncidentState, LimitExcess, Partition, beyond, spoken

__all__ = [
    "Alert", "Alertmanager", "Choice", "Event", "Flood", "Subject", "Webhook",
    "Wording", "alert_of", "asked", "choices", "event_of", "log_incident", "sign", "urgency",
]  # fmt: skip

_log = logging.getLogger(__name__)
_NAMESPACE = uuid.UUID("5b6e0b1c-2c39-5b2e-9a53-7f6f6b2b1d10")
_CRITICAL = {AlarmKind.HEALTH, AlarmKind.COLLAPSE, AlarmKind.STUCK, AlarmKind.NOTHING_SCORABLE}
_MOST_CHANNELS = 5
_MOST_NAMED = 2  # in the sentence
_MOST_SENSORS = 20
_STATE = {
    IncidentState.OPEN: "waits for an answer",
    IncidentState.FAULT: "is a fault, as somebody said",
    IncidentState.RECOVERING: "seems to end",
    IncidentState.ADOPTING: "becomes the new normal",
    IncidentState.CLOSED: "is over",
}
_SIDES = {
    "both": "",
    "low": " (only drops are asked about)",
    "high": " (only rises are asked about)",
}
_LIMIT_STAYS = (
    " The limit stays: a value beyond it goes on raising incidents, until the config has another."
)
_Key: TypeAlias = tuple[tuple[str, str], ...]


class Flood(NamedTuple):
    """Incidents of many streams that opened at once, by the id and time of the first."""

    id: str
    opened_ms: int
    streams: tuple[str, ...]
    """Whose incidents they are, those that are over included."""


Subject: TypeAlias = Alarm | Incident | Flood
"""What an alert or an event is about."""


class Alert(NamedTuple):
    """A state that lasts: equal labels are one alert, so they change only where it gets worse."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    began: datetime | None = None
    """By the events' own clock; ``None``: when it was first posted."""


class Event(NamedTuple):
    """A change, as a CloudEvent in JSON; its id is the same for every try and for a replay."""

    id: str
    body: bytes


class Wording(NamedTuple):
    """What a pipeline, its channels and its sensors are called, in alerts and on pages."""

    pipeline: str = ""
    console_url: str | None = None
    channels: Mapping[str, Any] = MappingProxyType({})  # `[channels.NAME]` of the config
    sensors: Mapping[str, Any] = MappingProxyType({})  # `[sensors."PATTERN"]`

    def called(self, channel: str) -> tuple[str, str]:
        """Return what people call a channel, and its unit."""
        known = self.channels.get(channel)
        return (channel, "") if known is None else (known.label or channel, known.unit)

    def reads(self, one: Reads) -> tuple[str, str]:
        """Return what a channel reads, and what is usual, with the side that alone is asked for."""
        now, usual = one.words(*self.called(one.channel))
        known = self.channels.get(one.channel)
        return now, usual and usual + _SIDES["both" if known is None else known.side]

    def sentence(self, one: Reads) -> str:
        """Return what a channel reads beside what is usual."""
        return ", ".join(filter(None, self.reads(one)))

    def beyond(self, excess: LimitExcess) -> str:
        """Return what is beyond which limit."""
        name, unit = self.called(excess.channel)
        return beyond(msgspec.structs.replace(excess, channel=name), unit)

    def link(self, sensor: str) -> str:
        """Return where to read on about a sensor; empty without."""
        for pattern, known in self.sensors.items():
            if fnmatchcase(sensor, pattern):
                return str(known.link.replace("{sensor}", quote(sensor, safe="")))
        return ""


def alert_of(what: Subject, wording: Wording, values: Sequence[Reads] = ()) -> Alert:
    """Return the alert of something that lasts."""
    if isinstance(what, Alarm):
        return _alarm_alert(what, wording.pipeline)
    if isinstance(what, Flood):
        return _flood_alert(what, wording)
    labels = {
        "alertname": "RejexIncident",
        "pipeline": wording.pipeline,
        "stream": what.stream_key,
        "incident": what.id,
        "severity": urgency(what),
    }
    if what.sensors != (what.stream_key,):
        labels |= {"sensor_group": what.stream_key}
        del labels["stream"]
    labels |= {} if what.mode is None else {"mode": what.mode}
    annotations = {
        "summary": summary_of(what, wording, values),
        "description": sentence_of(what),
        "answers": _answers(what),
        "severity": _graded(what),
        "since": _clock(what.onset_ms),
        "onset": _text(what.onset_ms),
        "peak_severity": f"{what.peak_severity:.1f}",
        "channels": ", ".join(found.channel for found in what.channels[:_MOST_CHANNELS]),
        "values": "; ".join(map(wording.sentence, values)),
        "sensors": _named(what.sensors),
        "state": what.state.value,
        "link": _link(what, wording),
        "runbook_url": wording.link((*what.sensors, what.stream_key)[0]),
    }
    annotations = {name: text for name, text in annotations.items() if text}
    return Alert(labels, annotations, utc(what.opened_ms))


def urgency(incident: Incident) -> str:
    """Return ``critical`` or ``warning``, as operators route alerts: the one scale in their words.

    Critical is what is strong or extreme, or beyond a limit that people set. It never falls.
    """
    points, _ = grade(incident.peak_severity, incident.n_anomalies)
    return "critical" if incident.passed_limit or points >= STRONG else "warning"


def _graded(incident: Incident) -> str:
    return "{} of 100 ({})".format(*grade(incident.peak_severity, incident.n_anomalies))


class Choice(NamedTuple):
    """An answer that an incident takes: its kind, what people call it, and what it does."""

    kind: str
    label: str
    does: str


def choices(incident: Incident) -> list[Choice]:
    """Return what people can still answer to an incident; nothing once it is adopted or over."""
    if incident.state in {IncidentState.ADOPTING, IncidentState.CLOSED}:
        return []
    since = "was measured since it began" if incident.held else "is measured from now on"
    fault = Choice(
        "fault",
        "Fault",
        f"What {since} is never learnt. It ends by itself once the sensor reads as usual again.",
    )
    new_normal = Choice(
        "new_normal",
        "New normal",
        f"The model learns what {since}: from then on this is usual, and the incident is over."
        + _LIMIT_STAYS * incident.passed_limit,
    )
    return [new_normal] if incident.state is IncidentState.FAULT else [fault, new_normal]


def _answers(incident: Incident) -> str:
    found = [f"{one.label}: {one.does}" for one in choices(incident)]
    return " ".join([*found, f"No answer: {unanswered(incident)}"]) if found else ""


def unanswered(incident: Incident) -> str:
    """Return what becomes of an incident that nobody answers."""
    goes_on = "It goes on until the sensor reads as usual again"
    if incident.state is IncidentState.FAULT or not incident.held:
        return f"{goes_on}."
    return (
        f"{goes_on}, or becomes the new normal by itself after as many events as the window has "
        "(hold.adopt_after_events: after so many; 0: never)."
    )


def summary_of(incident: Incident, wording: Wording, values: Sequence[Reads] = ()) -> str:
    """Return one line that says where, what, since when and how bad."""
    whose = spoken(incident.stream_key, incident.mode)
    what = ", ".join(map(wording.beyond, incident.limits))
    what = what or ", ".join(map(wording.sentence, values[:1]))
    if not what:
        named = ", ".join(found.channel for found in incident.channels[:1])
        what = f"{named} is not as usual" if named else "not as usual"
    severity = f"severity {_graded(incident)}"
    if incident.state is IncidentState.CLOSED:
        lasted = span(incident.changed_ms - incident.onset_ms)
        return f"{whose}: over after {lasted}{_ended(incident)}; {severity}"
    return f"{whose}: {what}; since {_clock(incident.onset_ms)}; {severity}"


def _ended(incident: Incident) -> str:
    return f" ({incident.ended.replace('_', ' ')})" if incident.ended else ""


def _link(incident: Incident, wording: Wording) -> str:
    return "" if wording.console_url is None else f"{wording.console_url}/incidents/{incident.id}"


def _clock(time_ms: int) -> str:
    at = utc(time_ms)
    return f"{at:%a} {at.day} {at:%B %Y, %H:%M} UTC"


def sentence_of(incident: Incident) -> str:
    """Return what there is to say of an incident, for a person."""
    whose = spoken(incident.stream_key, incident.mode)
    named = ", ".join(found.channel for found in incident.channels[:_MOST_NAMED])
    whose = f"{whose} ({named})" if named else whose
    counts = f"of {incident.n_events} events {incident.n_anomalies} are anomalies"
    limits = "".join(f"{beyond(excess)}; " for excess in incident.limits)
    when = f"is not as usual since {_clock(incident.onset_ms)}"
    if incident.state is IncidentState.CLOSED:
        when = f"was not as usual from {_clock(incident.onset_ms)} to {_clock(incident.changed_ms)}"
    return (
        f"{whose} {when}: {limits}{counts}, "
        f"{incident.n_rejected} rejected, severity {_graded(incident)}. "
        f"It {standing_of(incident)}."
    )


def standing_of(incident: Incident) -> str:
    """Return where an incident stands now, in words: ``is over (recovered)``."""
    by_whom = ""
    if incident.state is IncidentState.ADOPTING:
        by_whom = ", as somebody said" if incident.answer else " by itself: nobody has answered"
    return f"{_STATE[incident.state]}{by_whom}{_ended(incident)}"


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


def event_of(what: Subject, wording: Wording, values: Sequence[Reads] = ()) -> Event:
    """Return the CloudEvent of something that changed.

    That of an incident is its record in the incidents output, with what people need beside it:
    ``summary``, ``message``, ``severity``, ``values``, ``link`` and ``runbook``.
    """
    pipeline = wording.pipeline
    if isinstance(what, Alarm):
        where = f"{what.stream_key}/{what.position}{'' if what.mode is None else '/' + what.mode}"
        key = f"{what.kind}/{what.alternative}/{where}"
        kind, subject, time_ms, data = "alarm", what.stream_key, what.event_time_ms, _data_of(what)
    elif isinstance(what, Flood):
        key, data = f"flood/{what.id}", what._asdict()
        kind, subject, time_ms = "incident-flood", None, what.opened_ms
    else:
        key = f"incident/{what.id}/{what.version}"
        kind, subject, time_ms = "incident", what.stream_key, what.changed_ms
        points, word = grade(what.peak_severity, what.n_anomalies)
        data = msgspec.json.decode(encode_incident(what)) | {
            "summary": summary_of(what, wording, values),
            "message": sentence_of(what),
            "severity": {"of_100": points, "word": word},
            "values": [
                {
                    "channel": one.channel,
                    "now": one.value,
                    "low": one.usual and one.usual[0],
                    "high": one.usual and one.usual[1],
                    "unit": wording.called(one.channel)[1],
                }
                for one in values
            ],
            "link": _link(what, wording),
            "runbook": wording.link((*what.sensors, what.stream_key)[0]),
        }
    name = str(uuid.uuid5(_NAMESPACE, f"{pipeline}/{key}"))
    event = {
        "specversion": "1.0",
        "id": name,
        "source": f"/rejex-stream/{pipeline}",
        "type": f"io.rejex.{kind}.v1",
        "subject": subject or pipeline,
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
    return Alert(labels, annotations, utc(flood.opened_ms))


def _named(sensors: tuple[str, ...]) -> str:
    more = len(sensors) - _MOST_SENSORS
    return ", ".join(sensors[:_MOST_SENSORS]) + (f" and {more} more" if more > 0 else "")


def _text(time_ms: int) -> str:
    return utc(time_ms).isoformat()


# ------------------------------------------------------------------------- who takes it
@contextmanager
def asked(
    method: str, url: str, body: bytes | None, headers: Mapping[str, str], timeout_s: float
) -> Iterator[Any]:
    """Give the answer to a request; raises OSError (urllib's errors are) unless it is 2xx."""
    request = urllib.request.Request(url, data=body, headers=dict(headers), method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            yield answer
    except OSError:  # a connection that broke off is both, and speaks for itself
        raise
    except http.client.HTTPException as error:  # who answers there does not speak HTTP
        raise OSError(f"the answer is not HTTP: {error!r}") from error


class Alertmanager:
    """Keeps an Alertmanager told of what is active: posted, re-posted, renewed, resolved.

    Alertmanager groups, silences and routes; an alert it does not hear of for `lifetime_s` it
    takes for resolved, so a dead worker leaves no alert behind for ever.
    """

    def __init__(self, url: str, *, repeat_s: float = 60.0, lifetime_s: float = 240.0) -> None:
        self._url = url.rstrip("/") + "/api/v2/alerts"
        self._repeat_s, self._lifetime_s = repeat_s, lifetime_s
        self._lock = threading.Lock()
        self._active: dict[_Key, tuple[datetime, Alert]] = {}
        self._resolved: dict[_Key, tuple[datetime, Alert]] = {}
        self._over: dict[_Key, tuple[datetime, float, Alert]] = {}  # until when, monotonic
        self._wake, self._stop = threading.Event(), threading.Event()
        self.failures = 0
        self._thread = threading.Thread(target=self._run, name="alertmanager", daemon=True)
        self._thread.start()

    def update(self, alerts: Iterable[Alert]) -> None:
        """Say what is active now; what is not named any more is resolved."""
        now = datetime.now(UTC)
        named = {tuple(sorted(alert.labels.items())): alert for alert in alerts}
        with self._lock:
            for key in [key for key in self._active if key not in named]:
                self._resolved[key] = self._active.pop(key)
                self._wake.set()
            for key, alert in named.items():
                since, known = self._active.get(key, (alert.began or now, None))
                if known is not None and known.annotations == alert.annotations:
                    continue
                self._resolved.pop(key, None)
                self._active[key] = (since, alert)
                self._wake.set()

    def over(self, alert: Alert) -> None:
        """Tell of what began and ended between two looks: it is active for one lifetime.

        Alertmanager tells nobody of an alert that it first hears of as resolved. What is active
        already, as severe or less, ends by the next :meth:`update`.
        """
        key, now = tuple(sorted(alert.labels.items())), datetime.now(UTC)
        with self._lock:
            known = {_whose(one) for one in (*self._active, *self._resolved)}
            if _whose(key) not in known:
                ends_s = time.monotonic() + self._lifetime_s
                self._over[key] = alert.began or now, ends_s, alert
                self._wake.set()

    def hand_over(self, alerts: Iterable[Alert]) -> None:
        """Stop telling of alerts that another worker tells of from now on; they do not end here."""
        with self._lock:
            for alert in alerts:
                self._active.pop(tuple(sorted(alert.labels.items())), None)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(self._repeat_s)
            self._wake.clear()
            self._send()
        self._send()

    def _send(self) -> None:
        now, now_s = datetime.now(UTC), time.monotonic()
        with self._lock:
            resolved = dict(self._resolved)
            self._over = {key: one for key, one in self._over.items() if one[1] > now_s}
            alerts = [
                *(_posted(alert, since, now + timedelta(seconds=self._lifetime_s))
                  for since, alert in self._active.values()),
                *(_posted(alert, since, now) for since, alert in resolved.values()),
                *(_posted(alert, since, now + timedelta(seconds=ends_s - now_s))
                  for since, ends_s, alert in self._over.values()),
            ]  # fmt: skip
        if not alerts:
            return
        try:
            body = json.dumps(alerts).encode()
            with asked("POST", self._url, body, {"Content-Type": "application/json"}, 5.0):
                pass
        except OSError as error:
            self.failures += 1
            _log.warning(
                "Alertmanager at %s did not take %d alerts: %s",
                masked(self._url),
                len(alerts),
                error,
            )
            if not self._stop.wait(2.0):
                self._wake.set()  # resolved ones must not be lost
            return
        with self._lock:
            for key in resolved:
                self._resolved.pop(key, None)

    def close(self) -> None:
        """Send what is due once more and end; active alerts run out by themselves."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=10)


def _whose(key: _Key) -> _Key:
    """Return the labels that stay, however severe it becomes."""
    return tuple(label for label in key if label[0] != "severity")


def _posted(alert: Alert, since: datetime, ends: datetime) -> dict[str, Any]:
    return {
        "labels": alert.labels,
        "annotations": alert.annotations,
        "startsAt": min(since, ends).isoformat(),  # it was ahead where a clock went back
        "endsAt": ends.isoformat(),
    }


def sign(secret: bytes, body: bytes) -> str:
    """Return the signature header of a webhook body: ``sha256=`` and the HMAC in hexadecimal."""
    return "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()


_Delivery: TypeAlias = tuple[Event, tuple[str, int] | None]


class Webhook:
    """Posts every event once, signed, and tries again; the log says what nobody took.

    Headers: ``X-Rejex-Signature`` (see :func:`sign`, over the raw body) and ``Idempotency-Key``,
    the same for every try and for a replay. Of incidents it is the outbox of a run, see
    :class:`~rejex_stream.run.run_events.Outbox`.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: bytes | None = None,
        attempts: int = 6,
        first_delay_s: float = 1.0,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._url, self._secret = url, secret
        self._attempts = attempts
        self._stop = threading.Event()
        self._first_delay_s, self._wait = first_delay_s, wait or self._stop.wait
        self._queue: queue.Queue[_Delivery | None] = queue.Queue(maxsize=10_000)
        self._current: _Delivery | None = None
        self._left: dict[tuple[str, int], Incident] = {}  # what nobody has taken yet
        self._changed = threading.Condition()
        self.delivered = self.given_up = 0
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)
        self._thread.start()

    def post(self, event: Event, incident: Incident | None = None) -> None:
        """Queue one event, of a change of an incident that is durable; returns at once."""
        key = None if incident is None else (incident.id, incident.version)
        if key is not None and incident is not None:
            with self._changed:
                if key in self._left:  # it was ours, and is ours again
                    return
                self._left[key] = incident
        try:
            self._queue.put_nowait((event, key))
        except queue.Full:
            self._give_up(event, "the queue is full")
            self._done(key)

    def left(self, partition: Partition, coming: Sequence[Incident] = ()) -> Sequence[Incident]:
        """Return what will not be posted yet once `coming` is durable, in order."""
        with self._changed:
            left = [one for one in self._left.values() if one.position[:2] == partition]
        return [*left, *coming]

    def settle(self, timeout_s: float) -> None:
        """Wait until nothing is left, but no longer than that."""
        with self._changed:
            self._changed.wait_for(lambda: not self._left, timeout_s)

    def _done(self, key: tuple[str, int] | None) -> None:
        with self._changed:
            self._left.pop(key, None)  # type: ignore[arg-type] # None: of no incident
            self._changed.notify_all()

    def _run(self) -> None:
        while (delivery := self._queue.get()) is not None:
            self._current = delivery
            self._deliver(delivery[0])
            self._done(delivery[1])
            self._current = None

    def _deliver(self, delivery: Event) -> None:
        headers = {
            "Content-Type": "application/cloudevents+json; charset=utf-8",
            "Idempotency-Key": delivery.id,
        }
        if self._secret is not None:
            headers["X-Rejex-Signature"] = sign(self._secret, delivery.body)
        delay_s, problem = self._first_delay_s, ""
        for attempt in range(self._attempts):
            if attempt:
                self._wait(delay_s)
                delay_s *= 2
            try:
                with asked("POST", self._url, delivery.body, headers, 10.0):
                    pass
            except urllib.error.HTTPError as error:
                problem = f"HTTP {error.code}"
                error.close()
                if error.code in (400, 401, 403, 404, 410, 422):
                    break  # the same request will be refused again
            except OSError as error:
                problem = str(error)
            else:
                self.delivered += 1
                return
        self._give_up(delivery, problem)

    def _give_up(self, delivery: Event, problem: str) -> None:
        self.given_up += 1
        _log.error(
            "the webhook at %s did not take event %s: %s", masked(self._url), delivery.id, problem
        )

    def close(self, timeout_s: float = 5.0) -> None:
        """Deliver what is queued, for a while; give up what is left, and end."""
        self._stop.set()  # tries that wait for their turn take it now
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(timeout=timeout_s)
        if not self._thread.is_alive():
            return
        left = [self._current]
        with contextlib.suppress(queue.Empty):
            while True:
                left.append(self._queue.get_nowait())
        for delivery in left:
            if delivery is not None:  # who goes on posts what is left
                self._give_up(delivery[0], "the run ended before it was taken")
