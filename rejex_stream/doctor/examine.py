"""Is everything there that a pipeline needs? Numbered checks, each with the way to mend it.

Nothing is changed: files are opened, topics described, a few records read outside any group.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rejex_stream.config import Config, check_config
from rejex_stream.doctor import alerts
from rejex_stream.doctor.findings import Check, Finding
from rejex_stream.errors import RejexError
from rejex_stream.protocols import BatchDetector

if TYPE_CHECKING:
    from rejex_stream.engine import EngineSpec

__all__ = ["examine"]

_FIT_ROWS = 500


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
        ("verdicts", lambda: _verdicts(config)),
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
        ("alertmanager", lambda: alerts.alertmanager(config.alerts)),
        ("webhook", lambda: alerts.webhook(config.alerts)),
    ]
    return checks


def _verdicts(config: Config) -> Iterator[Finding]:
    """Both labels can be reached, or the config would not be valid; say how often."""
    from rejex_stream.plan.promises import plan, plan_doubts

    rejection = config.rejection
    policy = rejection.policy()
    choice = plan(
        rejection.contamination,
        rejection.window,
        policy.tolerance,
        rate=policy.rate,
    )
    promise = choice.promise
    assert promise is not None
    told = (
        f"all three can be given: expected {promise.normal_rate:.2%} normal, "
        f"{promise.expected_rate:.2%} rejected, {promise.anomaly_rate:.2%} anomaly (T = "
        f"{choice.tolerance:.3g}, n = {choice.window:,})"
    )
    doubts = plan_doubts(choice)
    yield Finding("warning" if doubts else "ok", told)
    for doubt, fix in doubts:
        yield Finding("warning", doubt, fix)


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
        scorer = spec.detector.fit(X, seed=0)
        took = time.perf_counter() - begun
        begun = time.perf_counter()
        scorer.score(X[:100])
        per_event_us = (time.perf_counter() - begun) / min(100, n_rows) * 1e6
        yield Finding(
            "ok",
            f"{spec.detector.name} fits {n_rows} rows of {columns} columns in {took:.2f} s and "
            f"scores one in {per_event_us:,.0f} µs",
        )
    else:
        model = spec.detector.start(spec.features.names, seed=0)
        for x in X:
            model.score_one(x)
            model.learn_one(x)
        per_event_us = (time.perf_counter() - begun) / n_rows * 1e6
        yield Finding(
            "ok",
            f"{spec.detector.name} scores and learns a row of {columns} columns in "
            f"{per_event_us:,.0f} µs",
        )


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
