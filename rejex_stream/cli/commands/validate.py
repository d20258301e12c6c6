"""``validate``: what a config says and promises."""

from __future__ import annotations

import typer

from rejex_stream.cli.options import ConfigFile
from rejex_stream.cli.show import (
    As,
    AsOption,
    held_rows,
    number,
    print_facts,
    print_json,
    share,
)
from rejex_stream.config import Config, check_config
from rejex_stream.config.assembly import require_extras
from rejex_stream.errors import ConfigError
from rejex_stream.plan.promises import Plan, plan, plan_doubts
from rejex_stream.settings import render

__all__ = ["promise_rows", "promised", "validate"]


def validate(
    config: ConfigFile,
    output: AsOption = As.TABLE,
) -> None:
    """Check a config and say what it promises; nothing is read or written but the file.

    All problems are shown at once. Exit status 2 if there is one, or if an extra that the config
    needs is not installed here.
    """
    found, problems = check_config(config)
    if found is None:
        if output is As.JSON:
            print_json({"valid": False, "problems": problems})
            raise typer.Exit(2)
        raise ConfigError(render(str(config), problems))
    require_extras(found)
    promise = promised(found)
    if output is As.JSON:
        print_json({"valid": True, "plan": promise, "config": found.redacted()})
        return
    print(f"{config}: fine.")
    budget, rows = found.rejection.review_budget, promise_rows(promise)
    if budget is not None and budget.burst is None:
        said = (
            f"{budget.held_burst:,} events, chosen: set rejection.review_budget.burst to your own"
        )
        rows.append(("burst of the budget", said))
    print_facts(rows)
    source = found.input
    is_text = source.time is not None and source.mapping().time_is_text
    if is_text and source.time_zone is None and "%z" not in (source.time_format or ""):
        print("Times without a zone are read as UTC: input.time_zone changes it.")
    for doubt, fix in plan_doubts(promise):
        print(f"Doubtful: {doubt}: {fix}.")


def promised(config: Config) -> Plan:
    """Return what the rejection settings of a config promise."""
    from rejex_stream.cli.commands.plan import costs_of

    rejection = config.rejection
    policy = rejection.policy()
    budget = rejection.review_budget
    return plan(
        rejection.contamination,
        rejection.window,
        policy.tolerance,
        rate=policy.rate,
        burst=policy.burst,
        per_day=policy.per_day,
        costs=costs_of(rejection.costs.c_fp, rejection.costs.c_fn, rejection.costs.c_r),
        events_per_day=None if budget is None else budget.events_per_day,
    )


def promise_rows(choice: Plan) -> list[tuple[str, str]]:
    """Return a promise as lines for people."""
    promise = choice.promise
    assert promise is not None
    rows = [
        ("contamination γ", number(choice.contamination)),
        ("window n", number(choice.window)),
        ("tolerance T", number(choice.tolerance)),
        ("rejected ranks", f"{promise.lower:,} to {promise.upper:,} of 0 to {choice.window:,}"),
        ("rejection rate, expected", share(promise.expected_rate)),
        (f"bound, exact (δ = {choice.delta:g})", share(promise.exact_bound)),
        ("bound, paper", share(promise.paper_bound)),
        ("accepted anomalies, expected", share(promise.anomaly_rate)),
        ("flagged events that stay anomalies", share(promise.kept_share)),
    ]
    rows += held_rows(choice)
    if promise.cost_bound is not None:
        rows += [
            ("cost of an event, bound on its mean", number(promise.cost_bound)),
            (f"cost, exceeded with δ = {choice.delta:g}", number(promise.cost_quantile)),
        ]
    if promise.rejected_per_day is not None:
        rows.append(("rejected a day, expected", number(promise.rejected_per_day)))
    return rows
