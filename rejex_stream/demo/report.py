"""One HTML file with everything a person wants to see; it asks nobody for anything."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from html import escape
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from string import Template

from rejex_stream.demo.evaluate import Findings
from rejex_stream.demo.figures import MARKS
from rejex_stream.demo.plotdata import plot_data
from rejex_stream.demo.sections import mix_bar, pipeline_section
from rejex_stream.types import Label, Reason

__all__ = ["write_report"]

_TERMS = (
    (
        "Score, λ and rank",
        "The detector’s number for “how unusual”. λ is the score above which the newest n scores "
        "hold the share γ of them; the rank of an event is how many of those n lie below it.",
    ),
    (
        "Stability and the rejection band",
        "With slightly different training data the same event could land on the other side of λ. "
        "Where the chance of that is above exp(−T), the event is rejected. In ranks that is one "
        "interval, fixed in advance by n, γ and T; here T follows from the reviews a day.",
    ),
    (
        "Expected rate R and exact bound",
        "R is the share of ranks inside the band. The rate of a window exceeds the exact bound "
        "with probability δ = 0.1, if events do not depend on each other.",
    ),
    (
        "The paper’s bound",
        "Theorem 3.5 of RejEx (Perini and Davis, NeurIPS 2023). It holds under the same condition "
        "and is several times wider, so a doubled rejection rate can stay below it.",
    ),
    (
        "Learning",
        "Before its first model, and until there are enough scores to give either label, a stream "
        "rejects everything as warm-up. Those events are nobody’s to review and enter no rate.",
    ),
    (
        "Caught, to review, missed",
        "Caught: the fault got more anomalies than as many ordinary events would by chance. To "
        "review: more anomalies and rejects than by chance, or no score at all, so that a person "
        "sees it. Missed: neither.",
    ),
    (
        "What a fault leaves behind",
        "Every score enters the window, those of faults too: γ counts on them. After a long fault "
        "λ stays high until the fault has left the window, and a second one can hide below it.",
    ),
    (
        "False alarm",
        "An anomaly outside all known faults. Within an hour after a fault nothing counts, since "
        "the features still contain it. A real feed holds faults that nobody wrote down, so some "
        "of these may be right.",
    ),
)


def write_report(path: Path, all_findings: Sequence[Findings], command: str) -> None:
    """Write the report of these pipelines to `path`.

    Parameters
    ----------
    path
        An HTML file; overwritten.
    all_findings
        In the order of the page.
    command
        What was typed, for the footer.
    """
    page = Template(_page("report.html"))
    data = json.dumps([plot_data(findings) for findings in all_findings], separators=(",", ":"))
    text = page.substitute(
        css=_page("report.css"),
        js=_page("plot.js") + _page("report.js"),
        # No text in a feed can end the element: "<" does not occur in it.
        data=data.replace("<", "\\u003c"),
        headline="Anomaly, normal, or not sure.",
        lead=_lead(all_findings),
        mix=_mix(all_findings),
        three=_three(all_findings),
        pipelines="".join(map(pipeline_section, all_findings)),
        notes=_notes(),
        footer=_footer(command),
    )
    path.write_text(text, encoding="utf-8")


def _page(name: str) -> str:
    return (files("rejex_stream.demo") / "page" / name).read_text(encoding="utf-8")


def _labels(all_findings: Sequence[Findings], label: Label) -> int:
    return sum(findings.labels[label] for findings in all_findings)


def _reasons(all_findings: Sequence[Findings], reason: Reason) -> int:
    return sum(findings.reasons[reason] for findings in all_findings)


def _lead(all_findings: Sequence[Findings]) -> str:
    events = sum(findings.n_events for findings in all_findings)
    faults = sum(len(findings.segments) for findings in all_findings)
    caught, review, missed = (
        sum(findings.outcomes(outcome) for findings in all_findings)
        for outcome in ("caught", "review", "missed")
    )
    return (
        f"<strong>{events:,} readings</strong> of a real water meter and a simulated wind farm "
        "went through the same engine. Where slightly different training data would have changed "
        "the answer, it did not answer, and the event waits for a person. Of "
        f"<strong>{faults} known faults</strong> {caught} were caught, {review} went to review "
        f"and {missed} {'was' if missed == 1 else 'were'} missed."
    )


def _mix(all_findings: Sequence[Findings]) -> str:
    return mix_bar(
        (
            ("w", _reasons(all_findings, Reason.WARM_UP), "still learning"),
            ("n", _labels(all_findings, Label.NORMAL), "normal"),
            ("r", _reasons(all_findings, Reason.AMBIGUOUS), "rejected as ambiguous"),
            (
                "u",
                _reasons(all_findings, Reason.UNSCORABLE)
                + _reasons(all_findings, Reason.CONSTANT_WINDOW),
                "rejected without a score",
            ),
            ("a", _labels(all_findings, Label.ANOMALY), "anomaly"),
        )
    )


def _three(all_findings: Sequence[Findings]) -> str:
    warm_up = _reasons(all_findings, Reason.WARM_UP)
    rejected = _labels(all_findings, Label.REJECTED) - warm_up
    entries = (
        (
            "n",
            "Normal",
            _labels(all_findings, Label.NORMAL),
            "Usual, and other training data would say so too.",
        ),
        (
            "a",
            "Anomaly",
            _labels(all_findings, Label.ANOMALY),
            "Unusual, and other training data would say so too.",
        ),
        (
            "r",
            "Rejected",
            rejected,
            "Too close to call, or no score: a person decides. "
            f"{warm_up:,} more came while the models were still learning.",
        ),
    )
    items = "".join(
        f'<div><dt>{MARKS[mark]}{name}</dt><dd class="count">{count:,}</dd><dd>{text}</dd></div>'
        for mark, name, count, text in entries
    )
    return f'<dl class="three">{items}</dl>'


def _notes() -> str:
    terms = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in _TERMS
    )
    return (
        f'<section class="plain"><h2>How to read this</h2><dl class="terms">{terms}</dl></section>'
    )


def _footer(command: str) -> str:
    versions = ", ".join(
        f"{package} {_version(package)}" for package in ("rejex-stream", "river", "pyod", "numpy")
    )
    return (
        f"<p>Made by <code>{escape(command)}</code> with {escape(versions)} on Python "
        f"{platform.python_version()}. The same command gives the same verdicts.</p>"
        "<p>Water flow: WaterFlow data set of the river package, donated by Tecnojest s.r.l. Its "
        "anomalous segments are documented there in words and were located in the series; labels "
        "were used for this report only, never by a detector.</p>"
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"
