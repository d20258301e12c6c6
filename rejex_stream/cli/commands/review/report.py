"""``review report``: what the labels say."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from rejex_stream.cli.commands.review.options import (
    Configs,
    command,
    existing,
)
from rejex_stream.cli.show import As, AsOption, number, print_facts, print_json, print_table, share
from rejex_stream.config.reviewing import Review
from rejex_stream.plan.promises import Costs
from rejex_stream.review.certificate import certificates, said
from rejex_stream.review.gold_cases.reviewer_errors import Interval, Known
from rejex_stream.review.queue.report import Report
from rejex_stream.review.queue.report import report as make_report
from rejex_stream.review.queue.store import wall_clock_ms

__all__ = ["report"]


@command()
def report(
    configs: Configs,
    section: Review,
    *,
    days: Annotated[
        float | None, typer.Option(help="Labels of the last so many days.  [default: all]", min=0)
    ] = None,
    output: AsOption = As.TABLE,
) -> None:
    """Say what the labels say: precision, misses, cost, γ, agreement, and the queue itself."""
    costs = _costs(configs)
    now = wall_clock_ms()
    with existing(section) as opened, opened.database.read() as connection:
        found = make_report(
            connection,
            now_ms=now,
            since_ms=0 if days is None else round(now - days * 86_400_000),
            costs=costs,
        )
        proven = certificates(opened, connection)
    if output is As.JSON:
        print_json(msgspec.to_builtins(found) | {"certificates": list(proven.values())})
    else:
        _print_report(found)
        for name, certificate in sorted(proven.items()):
            print(f"\n{name}: {said(certificate)}.")


def _costs(configs: Configs) -> Costs:
    """Return what mistakes cost by the one config; 1, 1 and 0 where there is none or several."""
    if len(configs) != 1:
        return Costs()
    costs = configs[0].rejection.costs
    return Costs(costs.c_fp, costs.c_fn, 0.0 if costs.c_r is None else costs.c_r)


def _interval(interval: Interval, *, as_share: bool = True) -> tuple[str, str]:
    form = share if as_share else number
    if interval.low is None or interval.high is None:
        return form(interval.value), "not enough labels"
    return form(interval.value), f"{form(interval.low)} to {form(interval.high)}"


def _errors(interval: Interval) -> tuple[str, str]:
    return (
        _interval(interval)
        if interval.low is not None
        else ("-", "nothing judged twice, no known case")
    )


def _print_known(known: Known) -> None:
    """Print what reviewers said of cases whose truth was known, all and each."""
    if not known.cases:
        return
    people = [("all", known.all), *known.reviewers.items()] if known.reviewers else []
    print_table(
        ("known cases", "of anomalies", "overlooked", "95 % interval",
         "of normals", "false alarms", "95 % interval"),
        [
            (
                name,
                number(said.anomalies),
                *_interval(said.rates["overlooked"]),
                number(said.normals),
                *_interval(said.rates["false_alarms"]),
            )
            for name, said in people
        ] or [("nobody", *("-",) * 6)],
        title=f"{number(known.waiting)} of {number(known.cases)} known cases wait",
    )  # fmt: skip


def _print_report(found: Report) -> None:
    """Print a report as tables, and what it warns of."""
    quality, agreement, load = found.quality, found.agreement, found.workload
    print_table(
        ("events", "all", "judged", "anomalies among them", "independent judgements"),
        [
            (name, number(group.events), number(group.judged), number(group.anomalous),
             number(group.effective))
            for name, group in (
                ("accepted as anomaly", quality.accepted_anomaly),
                ("accepted as normal", quality.accepted_normal),
                ("rejected", quality.rejected),
            )
        ],
    )  # fmt: skip
    bound = "" if found.cost_bound is None else f"theory: at most {number(found.cost_bound)}"
    print_table(
        ("what labels say", "estimate", "95 % interval", ""),
        [
            ("precision of accepted anomalies", *_interval(quality.precision), ""),
            ("anomalies among accepted normals", *_interval(quality.false_omission), ""),
            ("anomalies that were missed", *_interval(quality.miss_rate), ""),
            ("anomalies among rejected", *_interval(quality.anomalous_rejected), ""),
            ("share of anomalies, γ", *_interval(quality.contamination), ""),
            ("cost per event", *_interval(quality.cost_per_event, as_share=False), bound),
            ("anomalies that a reviewer overlooks", *_errors(quality.overlooked), ""),
            ("normals that a reviewer calls anomalies", *_errors(quality.false_alarms), ""),
            (
                "agreement of reviewers",
                *_interval(agreement.percent),
                f"{number(agreement.episodes)} episodes judged twice",
            ),
            (
                "Krippendorff's alpha",
                *_interval(agreement.alpha, as_share=False),
                "",
            ),
        ],
        left=(0, 3),
    )
    _print_known(quality.known)
    print_facts(
        [
            ("open episodes", number(load.open_episodes)),
            ("oldest", "-" if load.oldest_ms is None else f"{number(load.oldest_ms / 3.6e6)} h"),
            ("arrive a day", number(load.arrived_per_day)),
            ("decided a day", number(load.decided_per_day)),
            ("time per decision", "-" if load.handle_s is None else f"{number(load.handle_s)} s"),
            ("expired in 7 days", number(load.expired)),
            ("disputed", number(agreement.disputed)),
        ],
        title="The queue",
    )
    for one in found.advice:
        print(f"\n{one.pipeline or 'pipeline'}, {one.kind.replace('_', ' ')}: {one.message}")
