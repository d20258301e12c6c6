"""The report on a terminal."""

from __future__ import annotations

from rejex_stream.cli.show import number, print_facts, print_table, share
from rejex_stream.review.agreement import Interval
from rejex_stream.review.report import Report

__all__ = ["print_report"]


def _interval(interval: Interval, *, as_share: bool = True) -> tuple[str, str]:
    form = share if as_share else number
    if interval.low is None or interval.high is None:
        return form(interval.value), "not enough labels"
    return form(interval.value), f"{form(interval.low)} to {form(interval.high)}"


def print_report(found: Report) -> None:
    """Print a report as tables, and every proposal with what it would do."""
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
            (
                "agreement of reviewers",
                *_interval(agreement.percent),
                f"{number(agreement.episodes)} episodes judged twice",
            ),
            (
                "Krippendorff's alpha",
                *_interval(agreement.alpha, as_share=False),
                ""
                if agreement.pair is None
                else f"Cohen's kappa of {' and '.join(agreement.pair)}: {number(agreement.kappa)}",
            ),
        ],
        left=(0, 3),
    )
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
    for proposal in found.proposals:
        whose = f" of {proposal.pipeline}" if proposal.pipeline else ""
        print(f"\n{proposal.reason} The config{whose} would be:\n\n{proposal.toml}")
        for name, plan in (("now", proposal.before), ("then", proposal.after)):
            if plan.refusal is not None:
                print(f"{name}: {plan.refusal}")
            elif plan.promise is not None:
                print(
                    f"{name}: {share(plan.promise.expected_rate)} rejected, "
                    f"{number(plan.promise.rejected_per_day)} events a day, "
                    f"{share(plan.promise.kept_share)} of the flagged stay anomalies"
                )
