"""``plan``: what a choice of γ, n and T promises."""

from __future__ import annotations

from typing import Annotated

import typer

from rejex_stream.cli import options
from rejex_stream.cli.show import (
    As,
    AsOption,
    held_rows,
    number,
    print_json,
    print_table,
    share,
)
from rejex_stream.errors import ConfigError
from rejex_stream.plan.promises import Costs, Plan, plan_table
from rejex_stream.rejection.bounds import DELTA
from rejex_stream.rejection.policy import CONTAMINATION

__all__ = ["costs_of", "plan"]

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
    output: AsOption = As.TABLE,
) -> None:
    """Say what a choice of γ, n and T promises before the first event.

    What it gives: `score FILE` measures that on a table, `run CONFIG --dry-run` on a pipeline.
    """
    if burst is not None and not rate:
        raise ConfigError("--burst goes with --rate: a tolerance is fixed.")
    tolerances = tolerance or ([] if rate else list(_TOLERANCES))
    rows = plan_table(
        contamination,
        window or list(_WINDOWS),
        tolerances,
        rates=rate or [],
        burst=burst,
        delta=delta,
        costs=costs_of(c_fp, c_fn, c_r),
        events_per_day=events_per_day,
    )
    _print_plans(rows, output)
    if all(row.refusal is not None for row in rows):
        raise typer.Exit(1)


def costs_of(c_fp: float, c_fn: float, c_r: float | None) -> Costs | None:
    """Return the costs, if there are any."""
    return None if c_r is None else Costs(c_fp, c_fn, c_r)


def _print_plans(rows: tuple[Plan, ...], output: As) -> None:
    if output is As.JSON:
        print_json(rows)
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
        cells = [number(row.window), number(row.tolerance)]
        promise = row.promise
        if promise is None or row.refusal is not None:
            cells += [number(promise.n_anomalies) if promise else "-", "impossible"]
            table.append(cells + [""] * (len(columns) - len(cells)))
            continue
        cells += [
            number(promise.n_anomalies),
            share(promise.expected_rate),
            share(promise.exact_bound),
            share(promise.paper_bound),
            share(promise.paper_bound_printed),
            share(promise.anomaly_rate),
            share(promise.kept_share),
        ]
        if has_costs:
            cells += [number(promise.cost_bound), number(promise.cost_quantile)]
        if has_days:
            cells += [number(promise.rejected_per_day), number(promise.anomalies_per_day)]
        table.append(cells)
    print_table(columns, table, title=f"γ = {rows[0].contamination:g}", left=())
    for row in rows:
        for what, said in held_rows(row):
            print(f"n = {row.window:,}, rate {row.rate:g}: {what}: {said}.")
        if row.refusal is not None:
            of = f", T = {row.tolerance:g}" if row.tolerance is not None else ""
            print(f"impossible: n = {row.window:,}{of}: {row.refusal}")
