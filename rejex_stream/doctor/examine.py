"""Is everything there that a pipeline needs? Numbered checks, each with the way to mend it.

Nothing is changed: files are opened, topics described, a few records read outside any group.
"""

from __future__ import annotations

import errno
import http.client
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rejex_stream.addresses import masked
from rejex_stream.config import Config, check_config
from rejex_stream.doctor.findings import Check, Finding
from rejex_stream.errors import RejexError
from rejex_stream.protocols import BatchDetector

if TYPE_CHECKING:
    from rejex_stream.engine import EngineSpec

__all__ = ["examine"]

_FIT_ROWS = 500
_TIMEOUT_S = 5.0


def examine(path: Path, *, sample: int = 20) -> Iterator[Check]:
    """Run all checks on a config; yields each as soon as it is known.

    Parameters
    ----------
    path
        The config.
    sample
        How many records to read.
    """
    config, problems = check_config(path)
    if config is None:
        for problem in problems:
            what, _, fix = str(problem).rpartition(": ")
            where = "" if problem.key else f"{path}: "
            message = f"{where}{what or problem.key}"
            yield Check(number=1, name="config", level="error", message=message, fix=fix)
        return
    yield Check(number=1, name="config", level="ok", message=f"{path} is valid")
    for number, (name, check) in enumerate(_checks(config, sample), start=2):
        try:
            for finding in check():
                yield Check(
                    number=number,
                    name=name,
                    level=finding.level,
                    message=finding.message,
                    fix=finding.fix,
                )
        except RejexError as error:
            message, _, fix = str(error).partition(": ")
            yield Check(number=number, name=name, level="error", message=message, fix=fix)


def _checks(config: Config, sample: int) -> list[tuple[str, Callable[[], Iterator[Finding]]]]:
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("detector", lambda: _detector(config)),
    ]
    if config.input.kind == "kafka":
        from rejex_stream.doctor import kafka

        checks += kafka.checks(config, sample)
    else:
        from rejex_stream.doctor import files

        checks += files.checks(config, sample)
    checks += [
        ("metrics port", lambda: _port(config)),
        ("alertmanager", lambda: _alertmanager(config)),
        ("webhook", lambda: _webhook(config)),
    ]
    return checks


def _detector(config: Config) -> Iterator[Finding]:
    """Fit and score once, on noise, with as many columns as the pipeline has."""
    from rejex_stream.config.assembly import engine_spec

    spec: EngineSpec = engine_spec(config)
    columns = len(spec.features.names)
    rng = np.random.default_rng(0)
    n_rows = min(_FIT_ROWS, spec.schedule.buffer_events)
    X = rng.normal(size=(n_rows, columns))
    begun = time.perf_counter()
    if isinstance(spec.detector, BatchDetector):
        spec.detector.fit(X, seed=0).score(X[:100])
    else:
        model = spec.detector.start(spec.features.names, seed=0)
        for x in X:
            model.score_one(x)
            model.learn_one(x)
    took = time.perf_counter() - begun
    yield Finding("ok", f"{spec.detector.name} takes {took:.2f} s for {n_rows} rows of {columns}")


def _port(config: Config) -> Iterator[Finding]:
    host, port = config.metrics.host, config.metrics.port
    if port == 0:
        yield Finding("skipped", "metrics.port is 0: no endpoint")
        return
    try:
        with socket.create_server((host, port)):
            yield Finding("ok", f"{host}:{port} is free")
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        yield Finding(
            "error",
            f"{host}:{port} {'is taken' if taken else f'cannot be used: {error.strerror}'}",
            "choose another metrics.port, or stop what listens there"
            if taken
            else "choose an address of this machine as metrics.host",
        )


def _alertmanager(config: Config) -> Iterator[Finding]:
    """Ask Alertmanager for its status, by the API that alarms are posted to."""
    given = config.alerts.alertmanager_url
    if given is None:
        yield Finding("skipped", "alerts.alertmanager_url is not set")
        return
    try:
        with urllib.request.urlopen(
            given.rstrip("/") + "/api/v2/status", timeout=_TIMEOUT_S
        ) as answer:
            version = json.load(answer)["versionInfo"]["version"]
    except OSError as error:  # of which a refusal is one
        yield Finding(
            "error",
            f"{masked(given)} does not answer as it should: {_why(error)}",
            "start Alertmanager, or mend alerts.alertmanager_url",
        )
    except (ValueError, KeyError, TypeError, http.client.HTTPException):
        yield Finding(
            "error",
            f"{masked(given)} does not answer as an Alertmanager does",
            "alerts.alertmanager_url is the address of something else: mend it",
        )
    else:
        yield Finding("ok", f"Alertmanager {version} answers at {masked(given)}")


def _webhook(config: Config) -> Iterator[Finding]:
    """Ask the webhook's address with HEAD, which by its definition changes nothing."""
    alerts = config.alerts
    url = alerts.webhook_address()
    if url is None:
        yield Finding("skipped", "alerts.webhook_url is not set")
        return
    alerts.reveal("webhook_secret")  # of which the refusal says what to mend
    shown = masked(url)
    try:
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.build_opener(_Staying).open(request, timeout=_TIMEOUT_S) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        # Many a webhook knows POST alone, or a signature: that it refuses is an answer.
        status = error.code
        error.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        yield Finding(
            "error",
            f"{shown} cannot be reached: {_why(error)}",
            "start who listens there, or mend alerts.webhook_url",
        )
        return
    if 300 <= status < 400 or status in (404, 410) or status >= 500:
        yield Finding(
            "warning",
            f"{shown} answers {status} to HEAD; no event was sent to try it",
            "see that it takes a POST itself, or mend alerts.webhook_url",
        )
    else:
        yield Finding("ok", f"{shown} can be reached (HEAD: {status}; no event was sent)")


class _Staying(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: a HEAD would become a GET, which may do something."""

    def redirect_request(self, *_: object) -> None:
        """Return no other request."""


def _why(error: Exception) -> object:
    return getattr(error, "reason", None) or error
