"""The page around the runs: one HTML file that asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import json
import platform
from collections.abc import Sequence
from html import escape
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from string import Template

from rejex_stream.errors import ConnectorError
from rejex_stream.report.findings import Findings
from rejex_stream.report.plotdata import plot_data
from rejex_stream.report.section import MARKS, run_section
from rejex_stream.types import Label, Reason

__all__ = ["UPLOT", "write_report"]

UPLOT = files("rejex_stream") / "review" / "console" / "static" / "vendor"
"""The one plot library, which the review console serves too."""
_PAGE = files("rejex_stream.report") / "page"


def write_report(
    path: Path, all_findings: Sequence[Findings], command: str, *, credit: str = ""
) -> None:
    """Write the report of these runs to `path`."""
    script = "\n".join(
        ((UPLOT / "uPlot.iife.min.js").read_text("utf-8"), (_PAGE / "report.js").read_text("utf-8"))
    )
    script = f"\n{script}\n"
    data = json.dumps([plot_data(findings) for findings in all_findings], separators=(",", ":"))
    titles = ", ".join(findings.run.title for findings in all_findings)
    text = Template((_PAGE / "report.html").read_text("utf-8")).substitute(
        title=escape(titles),
        css=(UPLOT / "uPlot.min.css").read_text("utf-8")
        + (_PAGE / "report.css").read_text("utf-8"),
        licence=escape((UPLOT / "uPlot.LICENSE.txt").read_text("utf-8")),
        script=script,
        # No other script can run, whatever text the data holds.
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        # Nor can any text end the element of the data: "<" does not occur in it.
        data=data.replace("<", "\\u003c"),
        lead=_lead(all_findings),
        mix=_mix(all_findings),
        three=_three(all_findings),
        runs="".join(map(run_section, all_findings)),
        footer=_footer(command, credit),
    )
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConnectorError(f"cannot write {path}: {error.strerror}.") from error


def _labels(all_findings: Sequence[Findings], label: Label) -> int:
    return sum(findings.counts.labels[label] for findings in all_findings)


def _reasons(all_findings: Sequence[Findings], reason: Reason) -> int:
    return sum(findings.counts.reasons[reason] for findings in all_findings)


def _lead(all_findings: Sequence[Findings]) -> str:
    events = sum(findings.counts.n_events for findings in all_findings)
    sensors = sum(len(findings.series) for findings in all_findings)
    text = (
        f"<strong>{events:,} records</strong> of {sensors:,} "
        f"{'sensor' if sensors == 1 else 'sensors'}, judged one by one. Where slightly different "
        "training data would have changed the answer, there is none, and the event waits for a "
        "person."
    )
    faults = sum(len(findings.faults) for findings in all_findings)
    if not faults:
        return text
    caught, review, missed = (
        sum(findings.outcomes(outcome) for findings in all_findings)
        for outcome in ("caught", "review", "missed")
    )
    return (
        f"{text} Of <strong>{faults} known faults</strong> {caught} were caught, {review} went to "
        f"review and {missed} {'was' if missed == 1 else 'were'} missed."
    )


def _mix(all_findings: Sequence[Findings]) -> str:
    """Return a bar of all verdicts, and what it says in words."""
    parts = (
        ("w", _reasons(all_findings, Reason.WARM_UP), "still learning"),
        ("n", _labels(all_findings, Label.NORMAL), "normal"),
        ("r", _reasons(all_findings, Reason.AMBIGUOUS), "rejected as ambiguous"),
        ("u", sum(found.n_unscored for found in all_findings), "rejected without a score"),
        ("a", _labels(all_findings, Label.ANOMALY), "anomaly"),
    )
    total = sum(count for _, count, _ in parts) or 1
    bars = "".join(
        f'<i class="{kind}" style="width:{100 * count / total:.3f}%" '
        f'title="{title}: {count:,}"></i>'
        for kind, count, title in parts
        if count
    )
    text = ", ".join(f"{count:,} {title}" for _, count, title in parts if count)
    return f'<div class="mixbar" role="img" aria-label="{text}">{bars}</div>'


def _three(all_findings: Sequence[Findings]) -> str:
    warm_up = _reasons(all_findings, Reason.WARM_UP)
    rejected = _labels(all_findings, Label.REJECTED) - warm_up
    rejected -= _reasons(all_findings, Reason.CONSTANT_WINDOW)
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


def _footer(command: str, credit: str) -> str:
    versions = ", ".join(
        f"{package} {_version(package)}" for package in ("rejex-stream", "river", "pyod", "numpy")
    )
    made = (
        f"<p>Made by <code>{escape(command)}</code> with {escape(versions)} on Python "
        f"{platform.python_version()}.</p>"
    )
    return f"{made}<p>{escape(credit)}</p>" if credit else made


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"
