"""Alerts and events of alarms and incidents, and who receives them.

An *alert* is a state: Alertmanager holds it while it lasts, and equal labels are one alert. It
groups, repeats and silences them: here each incident is one alert. An *event* is a change: the
webhook gets each once, signed, with the same id at every attempt and in a replay. Nothing is posted
in the run's own thread; what nobody accepts is logged.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import json
import logging
import math
import queue
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

import msgspec

from rejex_stream.addresses import NoRedirects, masked
from rejex_stream.encode.records import encode_incident
from rejex_stream.monitor import Alarm
from rejex_stream.monitor.alarm import AlarmKind
from rejex_stream.operate.incident_text import (
    DisplayNames,
    choices,
    describe_incident,
    graded_severity,
    headline,
    if_unanswered,
    spell_time,
    urgency,
)
from rejex_stream.operate.open_situations import Together
from rejex_stream.readable import ChannelReading, utc
from rejex_stream.rejection.window import grade
from rejex_stream.types import Incident, Partition

_log = logging.getLogger(__name__)
_NAMESPACE = uuid.UUID("5b6e0b1c-2c39-5b2e-9a53-7f6f6b2b1d10")
_CRITICAL = {AlarmKind.HEALTH, AlarmKind.COLLAPSE, AlarmKind.STUCK, AlarmKind.NOTHING_SCORABLE}
_MAX_CHANNELS = 5
_MAX_SENSORS = 20
_AS_RAISED = ("evidence", "threshold", "unit", "guarantee", "message")
_Key: TypeAlias = tuple[tuple[str, str], ...]


class Alert(NamedTuple):
    """A state that lasts: equal labels are one alert, so they change only where it gets worse."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    began: datetime | None = None  # by the events' own clock; `None`: when it was first posted


class Event(NamedTuple):
    """A change, as a CloudEvent in JSON; its id is the same for every try and for a replay."""

    id: str
    body: bytes


def make_alert(
    subject: Alarm | Incident,
    names: DisplayNames,
    readings: Sequence[ChannelReading] = (),
    together: Together | None = None,
) -> Alert:
    """Return the alert of an alarm or an incident, which lasts as long as that does.

    That of a situation is the alert of its first incident, with its others beside it.
    """
    if isinstance(subject, Alarm):
        return _alarm_alert(subject, names.pipeline)
    incident = subject
    members = (incident,) if together is None else (incident, *together.open)
    labels = {
        "alertname": "RejexIncident",
        "pipeline": names.pipeline,
        "stream": incident.stream_key,
        "incident": incident.id if together is None else together.situation.id,
        "severity": min(map(urgency, members)),  # critical before warning
    }
    if incident.sensors != (incident.stream_key,):
        labels |= {"sensor_group": incident.stream_key}
        del labels["stream"]
    labels |= {} if incident.mode is None else {"mode": incident.mode}
    labels |= {"priority": "high"} if any(map(names.has_priority, members)) else {}
    annotations = {
        "summary": _summary(incident, names, readings, together),
        "description": describe_incident(incident, names),
        "answers": _answers(incident),
        "severity": "" if incident.silent else graded_severity(incident),
        "since": spell_time(incident.onset_ms),
        "onset": _text(incident.onset_ms),
        "peak_severity": "" if incident.silent else f"{incident.peak_severity:.1f}",
        "channels": ", ".join(c.channel for c in incident.channels[:_MAX_CHANNELS]),
        "values": "; ".join(map(names.reading_text, readings)),
        "sensors": _named([*dict.fromkeys(name for one in members for name in one.sensors)]),
        "state": (incident if together is None else together).state.value,
        "link": names.incident_url(incident),
        "runbook_url": names.runbook_url((*incident.sensors, incident.stream_key)[0]),
    }
    annotations = {name: text for name, text in annotations.items() if text}
    return Alert(labels, annotations, utc(incident.opened_ms))


def make_overdue_alert(sensor: str, names: DisplayNames) -> Alert:
    """Return the alert of a sensor that sends nothing while no event can say so."""
    labels = {
        "alertname": "RejexSilent",
        "pipeline": names.pipeline,
        "sensor": sensor,
        "severity": "warning",
    }
    summary = f"{sensor}: sends nothing, and too few other sensors do for an incident"
    annotations = {"summary": summary, "runbook_url": names.runbook_url(sensor)}
    return Alert(labels, {name: text for name, text in annotations.items() if text})


def _summary(
    incident: Incident,
    names: DisplayNames,
    readings: Sequence[ChannelReading],
    together: Together | None,
) -> str:
    size = "" if together is None else together.size_text
    return (f"{size}; first " if size else "") + headline(incident, names, readings)


def _answers(incident: Incident) -> str:
    answers = [f"{choice.label}: {choice.does}" for choice in choices(incident)]
    return " ".join([*answers, f"No answer: {if_unanswered(incident)}"]) if answers else ""


def log_incident(incident: Incident, names: DisplayNames) -> None:
    _log.warning(
        "incident %s: %s",
        incident.id,
        describe_incident(incident, names),
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


def make_event(
    subject: Alarm | Incident,
    names: DisplayNames,
    readings: Sequence[ChannelReading] = (),
    together: Together | None = None,
) -> Event:
    """Return the CloudEvent of an alarm or of a change of an incident.

    That of an incident is its record in the incidents output, with what people need beside it:
    ``summary``, ``message``, ``severity``, ``values``, ``link``, ``runbook`` and ``situation``.
    """
    pipeline, stream = names.pipeline, subject.stream_key
    if isinstance(subject, Alarm):
        mode = "" if subject.mode is None else f"/{subject.mode}"
        key = f"{subject.kind}/{subject.alternative}/{stream}/{subject.position}{mode}"
        kind, time_ms, data = "alarm", subject.event_time_ms, _alarm_data(subject)
    else:
        key = f"incident/{subject.id}/{subject.version}"
        kind, time_ms = "incident", subject.changed_ms
        points, word = grade(subject.peak_severity, subject.n_anomalies)
        data = msgspec.json.decode(encode_incident(subject)) | {
            "summary": _summary(subject, names, readings, together),
            "message": describe_incident(subject, names),
            "severity": {"of_100": points, "word": word},
            "priority": "high" if names.has_priority(subject) else "",
            "values": [
                {
                    "channel": reading.channel,
                    "now": reading.value,
                    "low": usual and usual[0],
                    "high": usual and usual[1],
                    "unit": names.name_and_unit(reading.channel)[1],
                }
                for reading, usual in zip(readings, map(names.usual_of, readings), strict=True)
            ],
            "link": names.incident_url(subject),
            "runbook": names.runbook_url((*subject.sensors, subject.stream_key)[0]),
        }
        if together is not None and together.size_text:
            data["situation"] = together.situation._asdict()
    id_ = str(uuid.uuid5(_NAMESPACE, f"{pipeline}/{key}"))
    event = {
        "specversion": "1.0",
        "id": id_,
        "source": f"/rejex-stream/{pipeline}",
        "type": f"io.rejex.{kind}.v1",
        "subject": stream or pipeline,
        "time": _text(time_ms),
        "datacontenttype": "application/json",
        "data": data,
    }
    return Event(id_, msgspec.json.encode(event))


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


def _alarm_data(alarm: Alarm) -> dict[str, Any]:
    return {
        "kind": alarm.kind.value,
        "direction": alarm.alternative.value,
        "stream": alarm.stream_key,
        "mode": alarm.mode,
        "event": str(alarm.position),
        **{name: getattr(alarm, name) for name in _AS_RAISED},
    }


def _named(sensors: Sequence[str]) -> str:
    more = len(sensors) - _MAX_SENSORS
    return ", ".join(sensors[:_MAX_SENSORS]) + (f" and {more} more" if more > 0 else "")


def _text(time_ms: int) -> str:
    return utc(time_ms).isoformat()


# ------------------------------------------------------------------------- who receives it
_opener = urllib.request.build_opener(NoRedirects)


@contextmanager
def http_request(
    method: str, url: str, body: bytes | None, headers: Mapping[str, str], timeout_s: float
) -> Iterator[Any]:
    """Yield the answer to a request; raises OSError (urllib's errors are) unless it is 2xx."""
    request = urllib.request.Request(url, data=body, headers=dict(headers), method=method)
    try:
        with _opener.open(request, timeout=timeout_s) as answer:
            yield answer
    except OSError:  # an aborted connection is of both kinds, and has a message of its own
        raise
    except http.client.HTTPException as error:
        raise OSError(f"the answer is not HTTP: {error!r}") from error


class _Posted(NamedTuple):
    alert: Alert
    since: datetime
    ends_s: float = math.inf  # by the monotonic clock


class Alertmanager:
    """Posts active alerts to an Alertmanager, again before they expire there, and resolves them.

    An alert that is not posted again for `lifetime_s` is resolved there, so that a dead worker
    leaves no alert behind.
    """

    def __init__(self, url: str, *, repeat_s: float = 60.0, lifetime_s: float = 240.0) -> None:
        self._url = url.rstrip("/") + "/api/v2/alerts"
        self._repeat_s, self._lifetime_s = repeat_s, lifetime_s
        self._lock = threading.Lock()
        self._posted: dict[_Key, _Posted] = {}
        self._wake, self._stop = threading.Event(), threading.Event()
        self.failures = 0
        self._thread = threading.Thread(target=self._run, name="alertmanager", daemon=True)
        self._thread.start()

    def update(self, alerts: Iterable[Alert]) -> None:
        """Set which alerts are active now; all others are resolved."""
        now, now_s = datetime.now(UTC), time.monotonic()
        active = {_key(alert): alert for alert in alerts}
        with self._lock:
            for key, posted in self._posted.items():
                if key not in active and posted.ends_s == math.inf:
                    self._posted[key] = posted._replace(ends_s=now_s)
                    self._wake.set()
            for key, alert in active.items():
                known = self._posted.get(key)
                is_active = known is not None and known.ends_s == math.inf
                if known is None or not is_active or known.alert.annotations != alert.annotations:
                    since = known.since if known is not None and is_active else alert.began or now
                    self._posted[key] = _Posted(alert, since)
                    self._wake.set()

    def post_ended(self, alert: Alert) -> None:
        """Post an alert that began and ended between two updates: it lasts for one lifetime.

        Alertmanager notifies nobody of an alert that is resolved when it first comes. One that is
        posted already, whatever its severity, ends by the next :meth:`update`.
        """
        with self._lock:
            if _unranked(_key(alert)) not in map(_unranked, self._posted):
                since, ends_s = (
                    alert.began or datetime.now(UTC),
                    time.monotonic() + self._lifetime_s,
                )
                self._posted[_key(alert)] = _Posted(alert, since, ends_s)
                self._wake.set()

    def hand_over(self, alerts: Iterable[Alert]) -> None:
        """Stop posting alerts that another worker posts from now on; they do not end here."""
        with self._lock:
            for alert in alerts:
                self._posted.pop(_key(alert), None)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(self._repeat_s)
            self._wake.clear()
            self._send()
        self._send()

    def _send(self) -> None:
        now, now_s = datetime.now(UTC), time.monotonic()
        with self._lock:
            posted = dict(self._posted)
        if not posted:
            return
        body = json.dumps([self._body(one, now, now_s) for one in posted.values()]).encode()
        try:
            with http_request("POST", self._url, body, {"Content-Type": "application/json"}, 5.0):
                pass
        except OSError as error:
            self.failures += 1
            _log.warning(
                "Alertmanager at %s did not accept %d alerts: %s",
                masked(self._url),
                len(posted),
                error,
            )
            if not self._stop.wait(2.0):
                self._wake.set()  # resolved alerts must not be lost
            return
        with self._lock:
            for key, one in posted.items():
                if one.ends_s <= now_s and self._posted.get(key) == one:
                    del self._posted[key]

    def _body(self, posted: _Posted, now: datetime, now_s: float) -> dict[str, Any]:
        left_s = min(self._lifetime_s, max(0.0, posted.ends_s - now_s))
        ends = now + timedelta(seconds=left_s)
        return {
            "labels": posted.alert.labels,
            "annotations": posted.alert.annotations,
            # It was ahead where a clock went back.
            "startsAt": min(posted.since, ends).isoformat(),
            "endsAt": ends.isoformat(),
        }

    def close(self) -> None:
        """Send what is due once more and end; active alerts expire by themselves."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=10)


def _key(alert: Alert) -> _Key:
    return tuple(sorted(alert.labels.items()))


def _unranked(key: _Key) -> _Key:
    """Return the labels that stay, however severe it becomes, and whoever joins."""
    return tuple(label for label in key if label[0] not in ("severity", "priority"))


def sign(secret: bytes, body: bytes) -> str:
    """Return the signature header of a webhook body: ``sha256=`` and the HMAC in hexadecimal."""
    return "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()


_Delivery: TypeAlias = tuple[Event, tuple[str, int] | None]


class Webhook:
    """Posts every event once, signed, and tries again; what is never accepted is logged.

    Headers: ``X-Rejex-Signature`` (see :func:`sign`, over the raw body) and ``Idempotency-Key``,
    the same for every attempt and for a replay. Of incidents it is the outbox of a run, see
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
        self._left: dict[tuple[str, int], Incident] = {}  # what has not been accepted yet
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

    def pending(self, partition: Partition, new: Sequence[Incident] = ()) -> Sequence[Incident]:
        """Return what will not be posted yet once `new` is durable, in order."""
        with self._changed:
            left = [one for one in self._left.values() if one.position[:2] == partition]
        return [*left, *new]

    def flush(self, timeout_s: float) -> None:
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
                with http_request("POST", self._url, delivery.body, headers, 10.0):
                    pass
            except urllib.error.HTTPError as error:
                problem = f"HTTP {error.code}"
                error.close()
                if error.code in (301, 302, 303, 307, 308):
                    problem += ", a redirect, which is not followed: give the address it leads to"
                    break
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
            "the webhook at %s did not accept event %s: %s", masked(self._url), delivery.id, problem
        )

    def close(self, timeout_s: float = 5.0) -> None:
        """Deliver what is queued, for a while; give up what is left, and end."""
        self._stop.set()  # attempts that wait begin now
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
                self._give_up(delivery[0], "the run ended before it was accepted")
