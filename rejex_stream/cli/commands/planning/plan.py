"""``plan``: from γ, n and T, or from a team's working day; and measured on data of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

import typer

from rejex_stream.cli.show import (
    As,
    AsOption,
    days,
    held_rows,
    number,
    print_json,
    print_table,
    share,
)
from rejex_stream.errors import ConfigError
from rejex_stream.plan.capacity import (
    WINDOWS,
    CapacityPlan,
    CapacityRow,
    HeldRate,
    Team,
    plan_for_team,
)
from rejex_stream.plan.promises import Costs, EpisodeRule, Plan, plan_table
from rejex_stream.rejection.bounds import DELTA
from rejex_stream.rejection.policy import CONTAMINATION, LEAST_BURST

__all__ = ["costs_of", "plan"]

_T = TypeVar("_T")
_TOLERANCES = (4.0, 8.0, 16.0, 32.0)


def plan(  # noqa: PLR0917 - one parameter an option
    contamination: Annotated[
        float | None,
        typer.Option(
            "--contamination",
            "-c",
            help="γ, the expected share of anomalies.  [default: 0.05, or the config's]",
        ),
    ] = None,
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
        typer.Option(
            help="With --rate or --sensors: hold it on any stream, but for so many events at once."
        ),
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
    sensors: Annotated[
        int | None, typer.Option(help="Plan for a team: how many sensors there are.")
    ] = None,
    events_per_s: Annotated[float, typer.Option(help="Events a second, of each sensor.")] = 1.0,
    reviewers: Annotated[float, typer.Option(help="How many people review.")] = 1.0,
    minutes: Annotated[float, typer.Option(help="Minutes a day that each reviews.")] = 60.0,
    handling: Annotated[float, typer.Option(help="Seconds that one review takes.")] = 45.0,
    events_per_episode: Annotated[
        float, typer.Option(help="Rejected events that one review settles; see --replay.")
    ] = 1.0,
    streams: Annotated[
        int | None, typer.Option(help="How many windows the sensors share.  [default: one each]")
    ] = None,
    overrun: Annotated[float, typer.Option(help="Share of days that may bring too much.")] = 0.01,
    frozen: Annotated[
        bool, typer.Option(help="Windows stay as they are instead of sliding.")
    ] = False,
    gap_s: Annotated[float, typer.Option(help="Gap that ends an episode, in seconds.")] = 60.0,
    replay: Annotated[
        Path | None, typer.Option(help="A file of one's own, to measure what is promised.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="How to read that file; guessed without."),
    ] = None,
    output: AsOption = As.TABLE,
) -> None:
    """Say what a choice of γ, n and T promises before the first event.

    With --sensors: which n and T a team can keep up with. With --replay: predicted beside measured.
    """
    costs = costs_of(c_fp, c_fn, c_r)
    rule = EpisodeRule(gap_s=gap_s)
    if burst is not None and not rate and config is None and sensors is None:
        raise ConfigError("--burst goes with --rate, or with --sensors: a tolerance is fixed.")
    if replay is not None:
        from rejex_stream.cli.commands.planning.promised import print_replay

        print_replay(
            replay,
            config,
            contamination=contamination,
            window=_one("--window", window),
            tolerance=_one("--tolerance", tolerance),
            rate=_one("--rate", rate),
            burst=burst,
            delta=delta,
            rule=rule,
            output=output,
        )
        return
    if config is not None:
        raise ConfigError("--config goes with --replay: it says how to read that file.")
    contamination = CONTAMINATION if contamination is None else contamination
    if sensors is not None:
        if tolerance or rate:
            raise ConfigError("--sensors finds T itself: leave --tolerance and --rate out.")
        answer = plan_for_team(
            Team(
                sensors=sensors,
                events_per_s=events_per_s,
                reviewers=reviewers,
                minutes_per_day=minutes,
                handling_s=handling,
                events_per_episode=events_per_episode,
                streams=streams,
            ),
            contamination,
            windows=window or WINDOWS,
            frozen=frozen,
            overrun=overrun,
            delta=delta,
            costs=costs,
            rule=rule,
            burst=LEAST_BURST if burst is None else burst,
        )
        _print_capacity(answer, handling, output)
        if answer.recommended is None:
            raise typer.Exit(1)
        return
    tolerances = tolerance or ([] if rate else list(_TOLERANCES))
    rows = plan_table(
        contamination,
        window or list(WINDOWS[:6]),
        tolerances,
        rates=rate or [],
        burst=burst,
        delta=delta,
        costs=costs,
        events_per_day=events_per_day,
    )
    _print_plans(rows, output)
    if all(row.refusal is not None for row in rows):
        raise typer.Exit(1)


def costs_of(c_fp: float, c_fn: float, c_r: float | None) -> Costs | None:
    """Return the costs, if there are any."""
    return None if c_r is None else Costs(c_fp, c_fn, c_r)


def _one(option: str, values: list[_T] | None) -> _T | None:
    if values is not None and len(values) > 1:
        raise ConfigError(f"{option} is given {len(values)} times: a replay takes one.")
    return values[0] if values else None


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


def _print_capacity(answer: CapacityPlan, handling_s: float, output: As) -> None:
    if output is As.JSON:
        print_json(answer)
        return
    print(
        f"{answer.events_per_day:,.0f} events a day, {answer.reviews_per_day:,} reviews a day "
        f"at {handling_s:g} s each.\n"
        f"Safe rejection rate: {share(answer.safe_rate)} (more overruns the day with a probability "
        f"above {answer.overrun:.0%}; on average {share(min(1.0, answer.naive_rate))} would fit)."
    )
    for held in answer.held:
        print(_held(held, answer.reviews_per_day))
    table = []
    for index, row in enumerate(answer.rows):
        promise = row.plan.promise
        table.append(
            [
                number(row.plan.window),
                number(row.plan.tolerance),
                share(promise.expected_rate if promise else None),
                number(promise.rejected_per_day if promise else None),
                number(row.reviews_per_day),
                number(row.independent_episodes_per_day),
                number(row.minutes_per_day),
                "-" if row.overrun is None else f"{row.overrun:.1%}",
                share(promise.kept_share if promise else None),
                number(promise.cost_bound if promise else None),
                number(promise.cost_quantile if promise else None),
                days(row.fill_days),
                "◀ take this" if index == answer.recommended else _why_not(row),
            ]
        )
    columns = ["n", "T", "rejected", "rejected/day", "reviews/day", "episodes/day*", "minutes/day"]
    columns += ["overrun", "flagged kept", "cost ≤", "cost (1-δ)", "window fills in", ""]
    keep = [i for i in range(len(columns)) if i == 12 or any(row[i] != "-" for row in table)]
    print_table(
        [columns[i] for i in keep], [[row[i] for i in keep] for row in table], left=(len(keep) - 1,)
    )
    if any(row.independent_episodes_per_day is not None for row in answer.rows):
        print("* if rejections were independent; real ones come in bursts: measure by --replay.")
    if answer.spare is not None:
        print(answer.spare)
    if answer.refusal is not None:
        print(answer.refusal)
        if answer.nearest:
            print("Each of these alone would make it work:")
            print("\n".join(f"  - {choice}" for choice in answer.nearest))


def _held(held: HeldRate, reviews_per_day: int) -> str:
    """Say what a budget promises where many have one."""
    whose = "one for all, in a single partition"
    if held.owner == "stream":
        whose = f"one for each of {held.owners:,} streams"
    start = f"A review_budget that holds, burst = {held.burst:,}, {whose}: "
    if held.rate is None:
        return (
            f"{start}no rate, for {held.at_once:,} events may come at once and the day has room "
            f"for {reviews_per_day:,} reviews. Use a smaller burst, or share the budget "
            '(owner = "group" or "partition").'
        )
    at_once = f" of each, so {held.at_once:,} together" if held.owners > 1 else ""
    return (
        f"{start}at rate = {share(held.rate)} no day brings too much, whatever the scores do "
        f"({held.burst:,} events at once{at_once})."
    )


def _why_not(row: CapacityRow) -> str:
    """Return the refusal of a window in three words; JSON has the sentence."""
    if row.plan.refusal is None:
        return ""
    if row.plan.promise is None:
        return "no: under one rank"
    if "is below" in row.plan.refusal:
        return "no: T too small"
    return "no: a label unreachable"
