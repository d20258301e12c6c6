"""What is asked before a run: ``plan``, ``validate`` and ``doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rejex_stream.cli import show
from rejex_stream.cli import table_options as options
from rejex_stream.config import check_config
from rejex_stream.config.assembly import engine_spec, require_extras
from rejex_stream.errors import ConfigError
from rejex_stream.operate.logs import escaped
from rejex_stream.plan.promises import Costs, Plan, plan_table
from rejex_stream.readable import span
from rejex_stream.rejection.bounds import DELTA
from rejex_stream.rejection.policy import CONTAMINATION
from rejex_stream.settings import render
from rejex_stream.tables.column_checks import at_rest

if TYPE_CHECKING:
    from rejex_stream.doctor import Check

_WINDOWS = (500, 1000, 2000, 5000, 10_000, 20_000)
_TOLERANCES = (4.0, 8.0, 16.0, 32.0)


def plan(  # noqa: PLR0917 - one parameter an option
    contamination: options.Contamination = CONTAMINATION,
    window: Annotated[
        list[int] | None, typer.Option("--window", "-n", help="n; may be given several times.")
    ] = None,
    tolerance: Annotated[
        list[float] | None, typer.Option("--tolerance", "-T", help="T; several times too.")
    ] = None,
    rate: Annotated[
        list[float] | None,
        typer.Option(help="Instead of T: the share of events to reject; several times too."),
    ] = None,
    burst: Annotated[
        int | None,
        typer.Option(help="With --rate: hold it on any stream, but for so many events at once."),
    ] = None,
    delta: Annotated[float, typer.Option(help="δ, with which the bounds may fail.")] = DELTA,
    c_fp: Annotated[float, typer.Option(help="Cost of a false alarm.")] = 1.0,
    c_fn: Annotated[float, typer.Option(help="Cost of a missed anomaly.")] = 1.0,
    c_r: Annotated[
        float | None, typer.Option(help="Cost of a rejected event; without it, no costs.")
    ] = None,
    events_per_day: Annotated[
        float | None, typer.Option(help="Events a day, over all sensors.")
    ] = None,
    sensors: Annotated[int | None, typer.Option(help="How many sensors there are.", min=1)] = None,
    readings_per_day: Annotated[
        float, typer.Option(help="With --sensors: readings of each a day.", min=0)
    ] = 1440.0,
    output: show.AsOption = show.As.TABLE,
) -> None:
    """Say what a choice of γ, n and T promises before the first event.

    What it gives: `score FILE` measures that on a table, `run CONFIG --dry-run` on a pipeline.
    """
    if burst is not None and not rate:
        raise ConfigError("--burst goes with --rate: a tolerance is fixed.")
    if sensors is not None:
        events_per_day = sensors * readings_per_day
    tolerances = tolerance or ([] if rate else list(_TOLERANCES))
    rows = plan_table(
        contamination,
        window or list(_WINDOWS),
        tolerances,
        rates=rate or [],
        burst=burst,
        delta=delta,
        costs=None if c_r is None else Costs(c_fp, c_fn, c_r),
        events_per_day=events_per_day,
    )
    _print_plans(rows, output)
    if all(row.refusal is not None for row in rows):
        raise typer.Exit(1)


def _print_plans(rows: tuple[Plan, ...], output: show.As) -> None:
    if output is show.As.JSON:
        show.print_json(rows)
        return
    has_costs = any(row.promise and row.promise.cost_bound is not None for row in rows)
    has_days = any(row.promise and row.promise.rejected_per_day is not None for row in rows)
    delta = rows[0].delta
    columns = ["n", "T", "r", "rejected", f"exact ≤ (δ={delta:g})", "paper ≤", "as printed"]
    columns += ["anomalies", "flagged kept"]
    columns += ["cost ≤", "cost (1-δ)"] if has_costs else []
    columns += ["rejected/day", "anomalies/day"] if has_days else []
    table = []
    for row in rows:
        cells = [show.number(row.window), show.number(row.tolerance)]
        promise = row.promise
        if promise is None or row.refusal is not None:
            cells += [show.number(promise.n_anomalies if promise else None), "impossible"]
            table.append(cells + [""] * (len(columns) - len(cells)))
            continue
        cells += [
            show.number(promise.n_anomalies),
            show.share(promise.expected_rate),
            show.share(promise.exact_bound),
            show.share(promise.paper_bound),
            show.share(promise.paper_bound_printed),
            show.share(promise.anomaly_rate),
            show.share(promise.kept_share),
        ]
        if has_costs:
            cells += [show.number(promise.cost_bound), show.number(promise.cost_quantile)]
        if has_days:
            cells += [show.number(promise.rejected_per_day), show.number(promise.anomalies_per_day)]
        table.append(cells)
    show.print_table(columns, table, title=f"γ = {rows[0].contamination:g}", left=())
    for row in rows:
        for what, sentence in show.held_rows(row):
            print(f"n = {row.window:,}, rate {row.rate:g}: {what}: {sentence}.")
        if row.refusal is not None:
            of = f", T = {row.tolerance:g}" if row.tolerance is not None else ""
            print(f"impossible: n = {row.window:,}{of}: {row.refusal}")


# ---------------------------------------------------------------------------- validate
def validate(
    config: show.ConfigFile,
    against_stored: Annotated[
        bool,
        typer.Option("--against-state", help="Also say what a run would do with what is stored."),
    ] = False,
    output: show.AsOption = show.As.TABLE,
) -> None:
    """Check a config and say what it promises; nothing else is read, and nothing is written.

    All problems are shown at once. Exit status 2 if there is one, or if an extra that the config
    needs is not installed here; 1 if what is stored would be refused.
    """
    from rejex_stream.config.assembly.against_state import against_state
    from rejex_stream.doctor import config_findings, promised

    loaded, problems = check_config(config)
    if loaded is None:
        if output is show.As.JSON:
            show.print_json({"valid": False, "problems": problems})
            raise typer.Exit(2)
        raise ConfigError(render(str(config), problems))
    require_extras(loaded)
    promise, outlooks = promised(loaded), against_state(loaded) if against_stored else []
    refused = typer.Exit(1) if any(one.outcome == "refused" for one in outlooks) else None
    if output is show.As.JSON:
        stored = {"state": [one._asdict() for one in outlooks]} if against_stored else {}
        found = {"valid": True, "plan": promise, "config": loaded.redacted()}
        show.print_json(found | stored)
        if refused:
            raise refused
        return
    print(f"{config}: fine.")
    budget, rows = loaded.rejection.review_budget, _promise_rows(promise)
    if budget is not None and budget.burst is None:
        choice = (
            f"{budget.held_burst:,} events, chosen: set rejection.review_budget.burst to your own"
        )
        rows.append(("burst of the budget", choice))
    detector = engine_spec(loaded).detector
    if any(
        getattr(one, "flags", "") == "apart" for one in getattr(detector, "members", [detector])
    ):
        rows.append(("out of the distance", at_rest(of=" in the rows of a fit")))
    for key, (written, count) in loaded.durations.items():
        every = span(loaded.input.sample_interval_ms)
        rows.append((key, f"{written}: {count:,} events, at one in {every}"))
    show.print_facts(rows)
    for finding in config_findings(loaded):
        doubtful = "Doubtful: " if finding.level == "warning" else ""
        print(f"{doubtful}{finding.message}: {finding.fix}.")
    for outlook in outlooks:
        print(escaped(f"{outlook.partition} {outlook.outcome}: {outlook.why}."))
    if refused:
        raise refused


def _promise_rows(choice: Plan) -> list[tuple[str, str]]:
    promise = choice.promise
    assert promise is not None
    rows = [
        ("contamination γ", show.number(choice.contamination)),
        ("window n", show.number(choice.window)),
        ("tolerance T", show.number(choice.tolerance)),
        ("rejected ranks", f"{promise.lower:,} to {promise.upper:,} of 0 to {choice.window:,}"),
        ("rejection rate, expected", show.share(promise.expected_rate)),
        (f"bound, exact (δ = {choice.delta:g})", show.share(promise.exact_bound)),
        ("bound, paper", show.share(promise.paper_bound)),
        ("accepted anomalies, expected", show.share(promise.anomaly_rate)),
        ("flagged events that stay anomalies", show.share(promise.kept_share)),
    ]
    rows += show.held_rows(choice)
    if promise.cost_bound is not None:
        rows += [
            ("cost of an event, bound on its mean", show.number(promise.cost_bound)),
            (f"cost, exceeded with δ = {choice.delta:g}", show.number(promise.cost_quantile)),
        ]
    if promise.rejected_per_day is not None:
        rows.append(("rejected a day, expected", show.number(promise.rejected_per_day)))
    return rows


# ------------------------------------------------------------------------------ doctor
_MARKS = {"ok": "ok", "warning": "WARNING", "error": "ERROR", "skipped": "-"}
_STYLES = {"ok": "green", "warning": "yellow", "error": "bold red", "skipped": "dim"}


def doctor(
    config: show.ConfigFile,
    sample: Annotated[int, typer.Option(min=1, help="How many records to read.")] = 200,
    output: show.AsOption = show.As.TABLE,
) -> None:
    """Check everything that a pipeline needs, and say how to fix what is missing.

    Changes nothing. Exit status 1 if a check fails.
    """
    from rejex_stream.doctor import examine

    checks: list[Check] = []
    for check in examine(config, sample=sample):
        checks.append(check)
        if output is show.As.TABLE:
            _print_check(check)
    if output is show.As.JSON:
        show.print_json(checks)
    errors = sum(check.level == "error" for check in checks)
    if output is show.As.TABLE:
        warnings = sum(check.level == "warning" for check in checks)
        print(f"{len(checks)} findings: {errors} error(s), {warnings} warning(s).")
    if errors:
        raise typer.Exit(1)


def _print_check(check: Check) -> None:
    out = show.console()
    mark = f"{_MARKS[check.level]:<8}"
    out.print(f"{check.number:>2} {check.name:<13} ", end="")
    out.print(mark, style=_STYLES[check.level], end="")
    out.print(escaped(check.message), soft_wrap=True)
    if check.fix:
        out.print(f"   {'':<13}         → {escaped(check.fix)}", soft_wrap=True)
