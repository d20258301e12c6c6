"""Is everything there that a pipeline needs? Numbered checks, each with the way to mend it.

Nothing is changed: files are opened, topics described, a few records read outside any group.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

from rejex_stream.addresses import masked
from rejex_stream.config import Config, check_config
from rejex_stream.config.assembly import file_decoder, open_source
from rejex_stream.decode import decode_records
from rejex_stream.doctor.findings import (
    Check,
    Finding,
    clock_finding,
    doubt_findings,
    sample_findings,
)
from rejex_stream.errors import RejexError
from rejex_stream.protocols import Assigned
from rejex_stream.types import Reading

__all__ = ["examine"]

_TIMEOUT_S = 5.0
_Check: TypeAlias = Callable[[], Iterator[Finding]]


def examine(path: Path, *, sample: int = 200) -> Iterator[Check]:
    """Run all checks on a config; yields each as soon as it is known."""
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


def _checks(config: Config, sample: int) -> list[tuple[str, _Check]]:
    if config.input.kind == "kafka":
        from rejex_stream.doctor.kafka import checks

        of_input = checks(config, sample)
    else:
        of_input = _of_files(config, sample)
    return [
        *of_input,
        ("alertmanager", lambda: _alertmanager(config)),
        ("webhook", lambda: _webhook(config)),
    ]


def _of_files(config: Config, sample: int) -> list[tuple[str, _Check]]:
    """Return the checks by name, in order; they share the records that were read."""
    readings: list[Reading] = []
    return [
        ("input", lambda: _input(config)),
        ("sample", lambda: _sample(config, sample, readings)),
        ("clock", lambda: _clock(readings)),
    ]


def _input(config: Config) -> Iterator[Finding]:
    if config.input.path == "-":
        yield Finding("skipped", "standard input cannot be looked at without taking from it")
        return
    source = open_source(config)
    source.close()
    path = Path(config.input.path or "")
    yield Finding("ok", f"{path} can be read, {path.stat().st_size:,} bytes")


def _sample(config: Config, sample: int, readings: list[Reading]) -> Iterator[Finding]:
    if config.input.path == "-":
        yield Finding("skipped", "standard input")
        return
    source = open_source(config)
    with closing(source):
        decoder = file_decoder(config, source)
        for change in source.changes():
            if isinstance(change, Assigned):
                source.seek(change.partition, change.earliest)
        records, decoded = decode_records(decoder, source.poll(sample, timeout_s=1.0))
        readings += [item for item in decoded if isinstance(item, Reading)]
        yield from sample_findings(records, decoded, decoder, config.input.flags)
        yield from doubt_findings(config, records, decoded, decoder)


def _clock(readings: list[Reading]) -> Iterator[Finding]:
    if readings:
        yield clock_finding(readings, time.time())
    else:
        yield Finding("skipped", "no record was read")


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
