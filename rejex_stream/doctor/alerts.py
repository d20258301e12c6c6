"""Can those who are told of alarms be reached? They are asked, and told nothing."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator

from rejex_stream.config.operating import Alerts
from rejex_stream.doctor.findings import Finding
from rejex_stream.errors import ConfigError

__all__ = ["alertmanager", "webhook"]

_TIMEOUT_S = 5.0
_GONE = 404, 410
_ERRORS = 500


def alertmanager(alerts: Alerts) -> Iterator[Finding]:
    """Ask Alertmanager for its status, by the API that alarms are posted to."""
    if alerts.alertmanager_url is None:
        yield Finding("skipped", "alerts.alertmanager_url is not set")
        return
    url = alerts.alertmanager_url.rstrip("/") + "/api/v2/status"
    fix = "start Alertmanager, or mend alerts.alertmanager_url"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            version = json.load(answer)["versionInfo"]["version"]
    except urllib.error.HTTPError as error:
        error.close()
        yield Finding("error", f"{url} answers {error.code}", fix)
    except OSError as error:
        yield Finding("error", f"{url} does not answer: {_why(error)}", fix)
    except (ValueError, KeyError, TypeError, http.client.HTTPException):
        other = "alerts.alertmanager_url is the address of something else: mend it"
        yield Finding("error", f"{url} does not answer as an Alertmanager does", other)
    else:
        yield Finding("ok", f"Alertmanager {version} answers at {alerts.alertmanager_url}")


def webhook(alerts: Alerts) -> Iterator[Finding]:
    """Ask the webhook's address with HEAD, which by its definition changes nothing."""
    url = alerts.webhook_url
    if url is None:
        yield Finding("skipped", "alerts.webhook_url is not set")
        return
    try:
        alerts.reveal("webhook_secret")
    except ConfigError as error:
        yield Finding("error", str(error), "mend alerts.webhook_secret, or the file's permissions")
        return
    status, to = 0, ""
    try:
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.build_opener(_Staying).open(request, timeout=_TIMEOUT_S) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        # Many a webhook knows POST alone, or a signature: that it refuses is an answer.
        status, to = error.code, error.headers.get("Location", "")
        error.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        yield Finding(
            "error",
            f"{url} cannot be reached: {_why(error)}",
            "start who listens there, or mend alerts.webhook_url",
        )
        return
    if to:
        yield Finding(
            "warning",
            f"{url} answers {status} and sends on to {to}, but no event is sent on",
            "give the address that takes a POST as alerts.webhook_url",
        )
    elif status in _GONE or status >= _ERRORS:
        yield Finding(
            "warning",
            f"{url} answers {status} to HEAD; no event was sent to try it",
            "see that it takes a POST, or mend alerts.webhook_url",
        )
    else:
        yield Finding("ok", f"{url} can be reached (HEAD: {status}; no event was sent)")


class _Staying(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: a HEAD would become a GET, which may do something."""

    def redirect_request(self, *_: object) -> None:
        """Return no other request."""


def _why(error: Exception) -> object:
    return getattr(error, "reason", None) or error
