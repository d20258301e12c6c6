"""Telling others: Alertmanager, and a signed webhook. Never in the run's own thread.

What they are told is said in :mod:`~rejex_stream.operate.alert_messages`; here it is posted,
tried again, and said in the log where nobody takes it.
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
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from rejex_stream.addresses import masked
from rejex_stream.operate.alert_messages import Alert, Event
from rejex_stream.types import Incident, Partition

__all__ = ["Alertmanager", "Webhook", "WebhookOutbox", "sign"]

_Key: TypeAlias = tuple[tuple[str, str], ...]
_Delivery: TypeAlias = tuple[Event, Callable[[], None]]
_log = logging.getLogger(__name__)


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
        self._over: dict[_Key, tuple[datetime, datetime, Alert]] = {}
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
        already ends by the next :meth:`update`.
        """
        key, now = tuple(sorted(alert.labels.items())), datetime.now(UTC)
        with self._lock:
            if key not in self._active and key not in self._resolved:
                ends = now + timedelta(seconds=self._lifetime_s)
                self._over[key] = alert.began or now, ends, alert
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
        now = datetime.now(UTC)
        with self._lock:
            resolved = dict(self._resolved)
            self._over = {key: one for key, one in self._over.items() if one[1] > now}
            alerts = [
                *(_posted(alert, since, now + timedelta(seconds=self._lifetime_s))
                  for since, alert in self._active.values()),
                *(_posted(alert, since, now) for since, alert in resolved.values()),
                *(_posted(alert, since, ends) for since, ends, alert in self._over.values()),
            ]  # fmt: skip
        if not alerts:
            return
        try:
            body = json.dumps(alerts).encode()
            _post(self._url, body, {"Content-Type": "application/json"}, timeout_s=5.0)
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


def _posted(alert: Alert, since: datetime, ends: datetime) -> dict[str, Any]:
    return {
        "labels": alert.labels,
        "annotations": alert.annotations,
        "startsAt": since.isoformat(),
        "endsAt": max(ends, since).isoformat(),
    }


def sign(secret: bytes, body: bytes) -> str:
    """Return the signature header of a webhook body: ``sha256=`` and the HMAC in hexadecimal."""
    return "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()


class Webhook:
    """Posts every event once, signed, and tries again; the log says what nobody took.

    Notes
    -----
    Headers: ``X-Rejex-Signature`` (see :func:`sign`, over the raw body) and ``Idempotency-Key``,
    the same for every try, and for the same change told again by a replay.
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
        self.delivered = self.given_up = 0
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)
        self._thread.start()

    def tell(self, event: Event, then: Callable[[], None] = lambda: None) -> None:
        """Queue one event; returns at once, and calls `then` when it was taken or given up."""
        try:
            self._queue.put_nowait((event, then))
        except queue.Full:
            self._give_up(event, "the queue is full")
            then()

    def _run(self) -> None:
        while (delivery := self._queue.get()) is not None:
            self._current = delivery
            self._deliver(delivery[0])
            delivery[1]()
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
            if delivery is not None:  # who goes on tells of what is kept as untold
                self._give_up(delivery[0], "the run ended before it was taken")


class WebhookOutbox:
    """Incidents that the webhook has not taken; a :class:`~rejex_stream.run.progress.Outbox`."""

    def __init__(self, webhook: Webhook) -> None:
        self._webhook = webhook
        self._left: dict[tuple[str, int], Incident] = {}
        self._changed = threading.Condition()

    def tell(self, incident: Incident, event: Event) -> None:
        """Have the webhook told of a change that is durable; returns at once."""
        key = incident.id, incident.version
        with self._changed:
            if key in self._left:  # it was ours, and is ours again
                return
            self._left[key] = incident

        def taken() -> None:
            with self._changed:
                del self._left[key]
                self._changed.notify_all()

        self._webhook.tell(event, taken)

    def left(self, partition: Partition, coming: Sequence[Incident] = ()) -> Sequence[Incident]:
        """Return what will be untold once `coming` is durable, in order."""
        with self._changed:
            left = [one for one in self._left.values() if one.position[:2] == partition]
        return [*left, *coming]

    def settle(self, timeout_s: float) -> None:
        """Wait until nothing is left, but no longer than that."""
        with self._changed:
            self._changed.wait_for(lambda: not self._left, timeout_s)
