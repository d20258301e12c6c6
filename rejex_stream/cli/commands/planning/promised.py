"""``plan --replay``: what was promised beside what a file of one's own gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from rejex_stream.cli.commands.score import print_measured, print_said
from rejex_stream.cli.progress import counting
from rejex_stream.cli.show import As, number, print_facts, print_json
from rejex_stream.config import Config, load_config
from rejex_stream.config.assembly import engine_spec, file_decoder, open_source, records_of
from rejex_stream.decode import Decoder
from rejex_stream.engine import EngineSpec
from rejex_stream.errors import ConfigError
from rejex_stream.plan.dry_run import replay
from rejex_stream.plan.measured import Measured
from rejex_stream.plan.promises import EpisodeRule, Plan, episodes_per_day, plan, reviews_needed
from rejex_stream.rejection.policy import CONTAMINATION, RejectionPolicy
from rejex_stream.tables import open_table
from rejex_stream.types import Record

__all__ = ["print_replay"]

_BAD_DAYS = 0.01


def print_replay(
    file: Path,
    config: Path | None,
    *,
    contamination: float | None,
    window: int | None,
    tolerance: float | None,
    rate: float | None,
    burst: int | None,
    delta: float,
    rule: EpisodeRule,
    output: As,
) -> None:
    """Judge a file and print predicted beside measured.

    With a config, its mapping, features and detector are used, and what is asked of γ, n and T on
    the command line where it is; without one, all is guessed.
    """
    if tolerance is not None and rate is not None:
        raise ConfigError("--tolerance and --rate are both given: keep one.")
    if config is None:
        table = open_table(file)
        print_said(table)
        choice = table.suggested(
            contamination=CONTAMINATION if contamination is None else contamination,
            tolerance=tolerance,
            rate=rate,
            window=window,
        )
        spec, notes = choice.spec, choice.notes
        decoder: Decoder = table.decoder(pooled=choice.pooled)
        records: Iterable[Record] = table.records()
        total: int | None = table.n_rows
    else:
        found = _over_file(load_config(config), file)
        spec = _with(engine_spec(found), contamination, window, tolerance, rate, found)
        notes = (f"config: {config}", f"detector: {spec.detector.name}")
        source = open_source(found)
        decoder = file_decoder(found, source)
        records, total = records_of(source), None
    if burst is not None:
        held = dataclasses.replace(spec.policy, burst=burst)
        spec = dataclasses.replace(spec, policy=held)
    with counting(total, "records") as progress:
        replayed = replay(spec, decoder, records, rule=rule, on_progress=progress)
    measured = replayed.measured
    promise = plan(
        spec.policy.contamination,
        spec.window,
        spec.policy.tolerance,
        rate=spec.policy.rate,
        burst=spec.policy.burst,
        per_day=spec.policy.per_day,
        delta=delta,
        events_per_day=measured.events_per_day,
    )
    if output is As.JSON:
        print_json({"plan": promise, "measured": measured, "notes": notes})
        return
    print_facts(
        [(name, said) for name, _, said in (note.partition(": ") for note in notes)],
        title=f"{file.name}: {measured.events + measured.invalid:,} records",
    )
    print_measured(measured, promise)
    _print_days(measured, promise, rule)


def _over_file(config: Config, file: Path) -> Config:
    """Return a config that reads `file`, whatever it reads otherwise."""
    source = config.input
    timeless = source.time is None and source.sample_interval_ms is None
    changed = source.model_copy(
        update={
            "kind": "file",
            "path": str(file),
            "topics": (),
            "follow": False,
            "format": source.format if source.kind == "file" else "auto",
            "sample_interval_ms": 1000 if timeless else source.sample_interval_ms,
        }
    )
    return config.model_copy(update={"input": changed})


def _with(  # noqa: PLR0917
    spec: EngineSpec,
    contamination: float | None,
    window: int | None,
    tolerance: float | None,
    rate: float | None,
    config: Config,
) -> EngineSpec:
    """Return the engine of a config with what was asked for on the command line."""
    policy = spec.policy
    if tolerance is None and rate is None:
        tolerance, rate = policy.tolerance, policy.rate
    gamma = policy.contamination if contamination is None else contamination
    n = spec.window if window is None else window
    return dataclasses.replace(
        spec,
        policy=RejectionPolicy(
            gamma,
            tolerance=tolerance,
            rate=rate,
            ties=policy.ties,
            burst=None if rate is None else policy.burst,
            per_day=None if rate is None else policy.per_day,
        ),
        window=n,
        schedule=config.refit.schedule(n),
    )


def _print_days(measured: Measured, promise: Plan, rule: EpisodeRule) -> None:
    known = promise.promise
    if measured.days is None or measured.events_per_day is None or known is None:
        return
    independent = episodes_per_day(
        known.expected_rate, measured.events_per_day, measured.sensors, rule
    )
    print_facts(
        [
            ("events a day", number(measured.events_per_day)),
            (
                "rejected events a day",
                f"{number(known.rejected_per_day)} predicted, "
                f"{number(measured.rejected_per_day)} measured",
            ),
            *_bad_day(measured, promise),
            (
                "episodes a day",
                f"{number(independent)} if rejections were independent, "
                f"{number(measured.episodes_per_day)} measured",
            ),
        ],
        title="A day",
    )


def _bad_day(measured: Measured, promise: Plan) -> list[tuple[str, str]]:
    """Return how many a bad day brings: independent events beside the autocorrelation measured."""
    known = promise.promise
    assert known is not None
    events = measured.events_per_day
    if known.held is not None:
        said = "a budget that holds: see above" if known.held.per_day is None else "by event time"
        return [("more than the budget and its burst", f"never ({said})")]
    if events is None or measured.inflation is None or not known.expected_rate:
        return []
    independent = reviews_needed(events, known.expected_rate, _BAD_DAYS)
    # So many fewer events that tell as much: each of them stands for `inflation` of the real ones.
    inflation = measured.inflation
    correlated = inflation * reviews_needed(events / inflation, known.expected_rate, _BAD_DAYS)
    return [
        (
            f"exceeded on {_BAD_DAYS:.0%} of the days",
            f"{number(independent)} if events were independent, {number(correlated)} at the "
            "measured inflation",
        )
    ]
