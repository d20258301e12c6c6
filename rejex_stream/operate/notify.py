"""Telling others of alarms: Alertmanager, and a signed webhook. Never in the run's own thread."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import json
import logging
import queue
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rejex_stream.monitor import Alarm
from rejex_stream.monitor.alarm import AlarmKind

__all__ = ["Alertmanager", "Webhook", "sign"]

_log = logging.getLogger(__name__)
_NAMESPACE = uuid.UUID("5b6e0b1c-2c39-5b2e-9a53-7f6f6b2b1d10")
_CRITICAL = {AlarmKind.HEALTH, AlarmKind.COLLAPSE, AlarmKind.STUCK}


def _post(url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> None:
    """POST; raises OSError (urllib's errors are) unless the answer is 2xx."""
    request = urllib.request.Request(url, data=body, headers=dict(headers), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s):
            pass
    except OSError:  # a connection that broke off is both, and speaks for itself
        raise
    except http.client.HTTPException as error:  # who answers there does not speak HTTP
        raise OSError(f"the answer is not HTTP: {error!r}") from error


def _labels(pipeline: str, alarm: Alarm) -> dict[str, str]:
    """Equal labels are one alert: an alarm raised again renews it."""
    labels = {
        "alertname": "Rejex" + "".join(word.capitalize() for word in alarm.kind.split("_")),
        "pipeline": pipeline,
        "kind": alarm.kind.value,
        "direction": alarm.alternative.value,
        "severity": "critical" if alarm.kind in _CRITICAL else "warning",
    }
    if alarm.stream_key is not None:
        labels["stream"] = alarm.stream_key
    return labels


class Alertmanager:
    """Keeps an Alertmanager told of the active alarms: posted, re-posted, resolved.

    Alertmanager groups, silences and routes; an alert it does not hear of for `lifetime_s` it
    takes for resolved, so a dead worker leaves no alert behind for ever.

    Parameters
    ----------
    url
        Its address; the v2 API is used.
    pipeline
        A label of every alert.
    repeat_s, lifetime_s
        How often active alarms are posted again, and when they end if they are not.
    """

    def __init__(
        self, url: str, pipeline: str, *, repeat_s: float = 60.0, lifetime_s: float = 240.0
    ) -> None:
        self._url = url.rstrip("/") + "/api/v2/alerts"
        self._pipeline, self._repeat_s, self._lifetime_s = pipeline, repeat_s, lifetime_s
        self._lock = threading.Lock()
        self._active: dict[tuple[tuple[str, str], ...], tuple[datetime, Alarm]] = {}
        self._resolved: dict[tuple[tuple[str, str], ...], tuple[datetime, Alarm]] = {}
        self._wake, self._stop = threading.Event(), threading.Event()
        self.failures = 0
        self._thread = threading.Thread(target=self._run, name="alertmanager", daemon=True)
        self._thread.start()

    def update(self, alarms: Iterable[Alarm]) -> None:
        """Say which alarms are active now; those not named any more are resolved."""
        now = datetime.now(UTC)
        named = {tuple(sorted(_labels(self._pipeline, a).items())): a for a in alarms}
        with self._lock:
            for key in [key for key in self._active if key not in named]:
                self._resolved[key] = self._active.pop(key)
                self._wake.set()
            for key, alarm in named.items():
                if key not in self._active:
                    self._resolved.pop(key, None)
                    self._active[key] = (now, alarm)
                    self._wake.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(self._repeat_s)
            self._wake.clear()
            self._send()
        self._send()

    def _send(self) -> None:
        now = datetime.now(UTC)
        with self._lock:
            resolved = dict(self._resolved)
            alerts = [
                *(self._alert(key, since, alarm, now + timedelta(seconds=self._lifetime_s))
                  for key, (since, alarm) in self._active.items()),
                *(self._alert(key, since, alarm, now) for key, (since, alarm) in resolved.items()),
            ]  # fmt: skip
        if not alerts:
            return
        try:
            body = json.dumps(alerts).encode()
            _post(self._url, body, {"Content-Type": "application/json"}, timeout_s=5.0)
        except OSError as error:
            self.failures += 1
            _log.warning(
                "Alertmanager at %s did not take %d alerts: %s", self._url, len(alerts), error
            )
            if not self._stop.wait(2.0):
                self._wake.set()  # resolved ones must not be lost
            return
        with self._lock:
            for key in resolved:
                self._resolved.pop(key, None)

    def _alert(
        self, key: tuple[tuple[str, str], ...], since: datetime, alarm: Alarm, ends: datetime
    ) -> dict[str, Any]:
        return {
            "labels": dict(key),
            "annotations": {
                "summary": alarm.message,
                "guarantee": alarm.guarantee,
                "evidence": f"{alarm.evidence:g} {alarm.unit}, limit {alarm.threshold:g}",
                "event": str(alarm.position),
            },
            "startsAt": since.isoformat(),
            "endsAt": max(ends, since).isoformat(),
        }

    def close(self) -> None:
        """Send what is due once more and end; active alerts run out by themselves."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=10)


def sign(secret: bytes, body: bytes) -> str:
    """Return the signature header of a webhook body: ``sha256=`` and the HMAC in hexadecimal.

    Examples
    --------
    >>> sign(b"key", b"{}")[:14]
    'sha256=a777724'
    """
    return "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class _Delivery:
    id: str
    body: bytes


class Webhook:
    """Posts every alarm once as a CloudEvent, signed, retried, and kept if nobody takes it.

    Parameters
    ----------
    url
        Who is told.
    pipeline
        Part of the event's source.
    secret
        Key of the HMAC; without one the header is left out.
    deadletter
        JSON Lines file for what was given up after `attempts`.
    attempts, first_delay_s
        Tries, with the delay doubling in between.
    wait
        How to wait for so many seconds; by default :meth:`close` cuts it short.

    Notes
    -----
    Headers: ``X-Rejex-Signature`` (see :func:`sign`, over the raw body) and ``Idempotency-Key``,
    the same for every try, and for the same alarm raised again by a replay.
    """

    def __init__(
        self,
        url: str,
        pipeline: str,
        *,
        secret: bytes | None = None,
        deadletter: Path | None = None,
        attempts: int = 6,
        first_delay_s: float = 1.0,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._url, self._pipeline, self._secret = url, pipeline, secret
        self._deadletter, self._attempts = deadletter, attempts
        self._stop = threading.Event()
        self._first_delay_s, self._wait = first_delay_s, wait or self._stop.wait
        self._queue: queue.Queue[_Delivery | None] = queue.Queue(maxsize=10_000)
        self._current: _Delivery | None = None
        self.delivered = self.given_up = 0
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)
        self._thread.start()

    def alarm(self, alarm: Alarm) -> None:
        """Queue one alarm; returns at once."""
        key = (
            f"{self._pipeline}/{alarm.kind}/{alarm.alternative}/{alarm.stream_key}/{alarm.position}"
        )
        event_id = str(uuid.uuid5(_NAMESPACE, key))
        moment = datetime.fromtimestamp(alarm.event_time_ms / 1000, UTC)
        event = {
            "specversion": "1.0",
            "id": event_id,
            "source": f"/rejex-stream/{self._pipeline}",
            "type": "io.github.rejex-stream.alarm.v1",
            "subject": alarm.stream_key or self._pipeline,
            "time": moment.isoformat(),
            "datacontenttype": "application/json",
            "data": {
                "kind": alarm.kind.value,
                "direction": alarm.alternative.value,
                "stream": alarm.stream_key,
                "event": str(alarm.position),
                "evidence": alarm.evidence,
                "threshold": alarm.threshold,
                "unit": alarm.unit,
                "guarantee": alarm.guarantee,
                "message": alarm.message,
            },
        }
        try:
            self._queue.put_nowait(_Delivery(event_id, json.dumps(event).encode()))
        except queue.Full:
            self._give_up(_Delivery(event_id, json.dumps(event).encode()), "the queue is full")

    def _run(self) -> None:
        while (delivery := self._queue.get()) is not None:
            self._current = delivery
            self._deliver(delivery)
            self._current = None

    def _deliver(self, delivery: _Delivery) -> None:
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
                _post(self._url, delivery.body, headers, timeout_s=10.0)
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

    def _give_up(self, delivery: _Delivery, problem: str) -> None:
        self.given_up += 1
        _log.error("the webhook at %s did not take alarm %s: %s", self._url, delivery.id, problem)
        if self._deadletter is not None:
            line = json.dumps({"problem": problem, "event": json.loads(delivery.body)})
            with self._deadletter.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def close(self, timeout_s: float = 5.0) -> None:
        """Deliver what is queued, for a while; keep what is left as given up, and end."""
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
            if delivery is not None:
                self._give_up(delivery, "the run ended before it was taken")
