"""What the demo says at its end, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rejex_stream.cli.show import print_table
from rejex_stream.demo.evaluate import Findings, SegmentFindings
from rejex_stream.demo.words import percent, span
from rejex_stream.types import Label, Reason

__all__ = ["print_summary"]

_OUTCOMES = {"caught": "✓ caught", "review": "○ to review", "missed": "✕ missed"}


def print_summary(all_findings: Sequence[Findings]) -> None:
    """Print two tables: what was said, beside theory and plan; and what became of each fault."""
    columns = ["", *(findings.pipeline.title for findings in all_findings)]
    described = [_facts(findings) for findings in all_findings]
    rows = [
        (name, *(facts[k][1] for facts in described)) for k, (name, _) in enumerate(described[0])
    ]
    print_table(columns, rows)
    print_table(
        [
            "known fault",
            "sensor",
            "outcome",
            "events",
            "anomaly",
            "rejected",
            "normal",
            "first sign",
        ],
        [_fault(found) for findings in all_findings for found in findings.segments],
        left=(0, 1, 2, 7),
    )


def _facts(findings: Findings) -> list[tuple[str, str]]:
    labels, reasons, theory = findings.labels, findings.reasons, findings.theory
    per_day, days = findings.pipeline.feed.events_per_day, findings.days or 1.0
    budget = findings.pipeline.config.rejection.review_budget
    unscored = reasons[Reason.UNSCORABLE] + reasons[Reason.CONSTANT_WINDOW]
    bounds = (
        [("expected rate R", "–"), ("exact bound", "–"), ("paper's bound", "–")]
        if theory is None
        else [
            ("expected rate R", percent(theory.expected_rate)),
            ("exact bound", percent(theory.exact_bound)),
            ("paper's bound", "–" if theory.paper_bound is None else percent(theory.paper_bound)),
        ]
    )
    allowed = "" if theory is None else f" ({theory.expected_anomaly_rate * per_day:.2f} by theory)"
    planned = f" ({budget.share * per_day:.3g} planned)" if budget else ""
    return [
        ("records", f"{findings.n_events:,}"),
        ("normal", f"{labels[Label.NORMAL]:,}"),
        ("anomaly", f"{labels[Label.ANOMALY]:,}"),
        ("rejected: ambiguous", f"{reasons[Reason.AMBIGUOUS]:,}"),
        ("rejected: no score", f"{unscored:,}"),
        ("rejected: warm-up", f"{reasons[Reason.WARM_UP]:,}"),
        ("dead letters", f"{len(findings.dead_letters):,}"),
        ("rejection rate, all ranked events", percent(findings.rejection_rate)),
        ("rejection rate, latest window", percent(findings.rolling_rate)),
        *bounds,
        ("reviews a day and sensor", f"{findings.n_ambiguous / days:.1f}{planned}"),
        ("false alarms a day and sensor", f"{findings.false_alarms / days:.2f}{allowed}"),
        (
            "known faults caught, to review, missed",
            ", ".join(str(findings.outcomes(k)) for k in ("caught", "review", "missed")),
        ),
    ]


def _fault(found: SegmentFindings) -> tuple[str, ...]:
    rejected = found.n_rejected + found.n_unscorable
    after = found.notice_after_s
    sign = "none" if after is None else "at once" if after <= 0 else f"after {span(after)}"
    return (
        found.segment.title,
        found.segment.sensor,
        _OUTCOMES[found.outcome],
        str(found.n_events),
        str(found.n_anomaly),
        str(rejected),
        str(found.n_normal),
        sign,
    )
