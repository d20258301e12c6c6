"""The page around the runs: one HTML file that asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import Any

from rejex_stream import __version__
from rejex_stream.decode.mapping import printable
from rejex_stream.errors import explaining_os_errors
from rejex_stream.incidents.situations import Situation, find_situations, onset_of
from rejex_stream.operate.incident_text import how_ended
from rejex_stream.readable import how_often, number, percent, span, utc
from rejex_stream.report.judged_run import Event, FaultFindings, Findings, Series
from rejex_stream.types import (
    Incident,
    IncidentState,
    Label,
    Reason,
    Verdict,
    beyond,
    is_for_review,
    stream_name,
)

UPLOT = files("rejex_stream") / "review" / "console" / "static" / "vendor"
"""The one plot library, which the review console serves too."""
_PAGE = files("rejex_stream.report") / "page"
_MAX_ROWS, _MAX_UNREADABLE = 1_000, 20

_OUTCOMES = {
    "caught": '<span class="outcome caught">✓ caught</span>',
    "review": '<span class="outcome review">◐ to review</span>',
    "missed": '<span class="outcome missed">✕ missed</span>',
}


def _mark(path: str) -> str:
    return f'<svg class="mark" viewBox="0 0 12 12" aria-hidden="true">{path}</svg>'


_MARKS = {
    "n": _mark('<path d="M0 8 4 5 8 7 12 4" fill="none" stroke="var(--normal)" stroke-width="2"/>'),
    "a": _mark('<path d="M6 1 11.5 11H.5z" fill="var(--anomaly)"/>'),
    "r": _mark(
        '<circle cx="6" cy="6" r="4.4" fill="none" stroke="var(--rejected)" stroke-width="2.2"/>'
    ),
    "u": _mark('<path d="M2 2 10 10M10 2 2 10" stroke="var(--unscored)" stroke-width="2.2"/>'),
    "fault": _mark('<rect width="12" height="12" rx="2" fill="var(--fault-soft)"/>'),
    "learning": _mark('<rect width="12" height="12" rx="2" fill="var(--grid)"/>'),
}


_CODES = {
    Reason.AMBIGUOUS: "r",
    Reason.WARM_UP: "w",
    Reason.UNSCORABLE: "u",
    Reason.CONSTANT_WINDOW: "c",
    Reason.LIMIT: "a",
    Reason.TOO_MANY_SENSORS: "w",  # as one that has no model yet
}


_NO_RANK = {
    Reason.WARM_UP: "still learning what is usual",
    Reason.UNSCORABLE: "a channel is missing for too long, so there is no score",
    Reason.CONSTANT_WINDOW: "all recent scores are the same number: the sensor may be stuck",
    Reason.TOO_MANY_SENSORS: "one sensor more than state.max_keys allows, so it has no model",
}


def write_report(
    path: Path, all_findings: Sequence[Findings], command: str, *, credit: str = ""
) -> None:
    script = "\n".join(
        ((UPLOT / "uPlot.iife.min.js").read_text("utf-8"), (_PAGE / "report.js").read_text("utf-8"))
    )
    script = f"\n{script}\n"
    data = json.dumps([_plot_data(findings) for findings in all_findings], separators=(",", ":"))
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
        verdicts=_count_verdicts(all_findings),
        runs="".join(map(_section, all_findings)),
        footer=f"<p>Made by <code>{escape(command)}</code> with rejex-stream {__version__}.</p>"
        + (f"<p>{escape(credit)}</p>" if credit else ""),
    )
    with explaining_os_errors(f"cannot write {path}"):
        path.write_text(text, encoding="utf-8")


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


def _count_verdicts(all_findings: Sequence[Findings]) -> str:
    labels, reasons = (
        sum((getattr(findings.counts, name) for findings in all_findings), Counter[Any]())
        for name in ("labels", "reasons")
    )
    rejected = labels[Label.REJECTED] - reasons[Reason.WARM_UP]
    return (
        f"{_MARKS['n']} {labels[Label.NORMAL]:,} normal, {_MARKS['a']} {labels[Label.ANOMALY]:,} "
        f"anomalies, {_MARKS['r']} {rejected:,} rejected: too close to call, or no score. "
        f"{reasons[Reason.WARM_UP]:,} more came while the models were still learning."
    )


def _section(findings: Findings) -> str:
    run = findings.run
    known = ""
    if findings.faults:
        known = f"<h3>What became of the known faults</h3>{_faults(findings)}"
    older = f" The {run.left_out:,} events before these are left out." if run.left_out else ""
    return f"""
<section class="run" id="{escape(run.name)}">
<h2>{escape(run.title)}</h2>
<p class="about">{escape(run.about + older)}</p>
{_tiles(findings)}
<p class="muted">{_rate_in_words(findings)}</p>
{_charts(findings)}
{_incidents(findings)}
{known}
{_table(findings, "For people to look at", "rejected events", is_for_review)}
{_table(findings, "Called anomalies", "events", lambda verdict: verdict.label is Label.ANOMALY)}
{_unreadable(findings)}
<details><summary>Settings used</summary><pre>{escape(run.settings)}</pre></details>
</section>"""


# -------------------------------------------------------------------------------------- numbers
def _tiles(findings: Findings) -> str:
    theory, days, per_day = findings.theory, findings.days, findings.events_per_day
    each = " a day" if len(findings.series) == 1 else " a day and sensor"
    budget = findings.run.budget
    anomalies = findings.counts.labels[Label.ANOMALY]
    tiles = [
        ("Anomalies" + each, f"{anomalies / days:.1f}", f"{anomalies:,} in all"),
        (
            "Rejected, latest window",
            percent(findings.rolling_rate),
            f"theory expects {percent(theory.expected_rate)}" if theory else "nothing was ranked",
        ),
        (
            "Reviews" + each,
            f"{findings.n_ambiguous / days:.1f}",
            "a tolerance was set" if budget is None else f"planned {number(budget * per_day)}",
        ),
    ]
    if findings.faults:
        known = f"{findings.outcomes('review')} to review, {findings.outcomes('missed')} missed"
        tiles[0] = "Known faults", f"{findings.outcomes('caught')} caught", known
        tiles.append(
            (
                "False alarms" + each,
                f"{findings.false_alarms / days:.2f}",
                f"theory allows {theory.expected_anomaly_rate * per_day:.2f}" if theory else "",
            )
        )
    shown = "".join(
        f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b>'
        f"<span>{escape(note)}</span></div>"
        for name, value, note in tiles
    )
    return f'<div class="tiles">{shown}</div>'


def _rate_in_words(findings: Findings) -> str:
    theory = findings.theory
    if theory is None:
        return "No event was ever ranked: the input is shorter than the warm-up."
    paper = "" if theory.paper_bound is None else f", the paper’s {percent(theory.paper_bound)}"
    return (
        f"Over all {findings.counts.n_ranked:,} ranked events "
        f"{percent(findings.counts.rejection_rate or 0.0)} were rejected. The bound of a frozen "
        f"window is {percent(theory.frozen_bound)}{paper}, for events that do not depend on each "
        "other; what sensors see lasts, so rejections come in bursts."
    )


def _charts(findings: Findings) -> str:
    fault = f"<span>{_MARKS['fault']}known fault</span>" if findings.faults else ""
    return f"""
<div class="bar"><div class="sensors" role="group" aria-label="Sensor"></div>
<div class="zoom" role="group" aria-label="Zoom">\
<button data-pan="-0.5" aria-label="Earlier">‹</button>\
<button data-pan="0.5" aria-label="Later">›</button>\
<button data-zoom="2" aria-label="Zoom out">−</button>\
<button data-zoom="0.5" aria-label="Zoom in">+</button>\
<button data-zoom="0">All</button></div></div>
<div class="legend"><span>{_MARKS["a"]}anomaly</span><span>{_MARKS["r"]}rejected: ambiguous</span>\
<span>{_MARKS["u"]}rejected: no score</span>{fault}<span>{_MARKS["learning"]}learning</span>\
<span>Drag to zoom, double-click to see all.</span></div>
<div class="charts" tabindex="0" role="group" aria-label="Plots of {escape(findings.run.title)}; \
arrow keys pan, plus and minus zoom, 0 shows all"><div class="tip" hidden></div></div>"""


# --------------------------------------------------------------------------------------- tables
def _incidents(findings: Findings) -> str:
    incidents, names = findings.run.incidents, findings.run.names
    streams = {series.sensor for series in findings.series}
    of = {id_: one for one in find_situations(map(onset_of, incidents), streams)
          for id_ in one.members}  # fmt: skip
    place = {one.id: at for at, one in enumerate(incidents)}
    ordered = sorted(incidents, key=lambda one: min(place[id_] for id_ in of[one.id].members))
    rows = "".join(
        f"<tr><td>{escape(stream_name(incident.stream_key, incident.mode))}"
        f"{escape(_together(of[incident.id]))}</td>"
        f"<td>{escape(names.evidence(incident) or names.unusual(incident))}</td>"
        f"<td>{_time(incident.onset_ms)}</td><td>{escape(_ended(incident))}</td>"
        f'<td class="num">{incident.n_events:,}</td><td class="num">{incident.n_anomalies:,}</td>'
        f'<td class="num">{incident.n_rejected:,}</td></tr>'
        for incident in ordered
    )
    if not rows:
        return ""
    return f"""
<h3>Incidents: faults that were held</h3>
<p class="muted">While an incident is open its reference stands still, so a fault that stays never \
becomes normal by itself.</p>
<div class="scroll"><table><thead><tr><th>Sensor</th><th>What was told</th><th>Since</th>\
<th>What became of it</th><th class="num">Its events</th><th class="num">Anomalies</th>\
<th class="num">Rejected</th></tr>\
</thead><tbody>{rows}</tbody></table></div>"""


def _together(situation: Situation) -> str:
    size = len(situation.members)
    return f" · one of {size} that began together" if size > 1 else ""


def _ended(incident: Incident) -> str:
    answered = "answered" if incident.answer else "not answered"
    if incident.state is IncidentState.CLOSED:
        return f"closed: {how_ended(incident)}, {answered}"
    said = "" if incident.answer else ": fault, or new normal?"
    return f"{incident.state}, {answered}{said}"


def _faults(findings: Findings) -> str:
    rows = "".join(_fault(fault) for fault in findings.faults)
    return f"""
<div class="scroll faults"><table class="cards"><thead><tr><th>Fault</th><th>Sensor</th>\
<th>From</th><th>Outcome</th><th>Its events</th><th class="num">Chance would flag</th>\
<th>First sign</th></tr></thead>
<tbody>{rows}</tbody></table></div>"""


def _fault(result: FaultFindings) -> str:
    fault = result.fault
    shares = [
        (result.n_anomaly, "anomaly"),
        (result.n_rejected, "rejected"),
        (result.n_unscorable, "no score"),
        (result.n_normal + result.n_warm_up, "normal"),
    ]
    words = ", ".join(f"{count} {name}" for count, name in shares if count)
    return (
        f'<tr><td><button class="link" data-sensor="{escape(fault.sensor)}" '
        f'data-from="{fault.first_ms}" data-to="{fault.last_ms}">{escape(fault.title)}</button>'
        f'</td><td class="name">{escape(fault.sensor)}</td>'
        f'<td class="time">{_time(fault.first_ms)}</td>'
        f"<td>{_OUTCOMES[result.outcome]}</td>"
        f'<td class="muted">{words}</td>'
        f'<td class="num" data-name="Chance would flag">{result.expected_flagged:.1f}</td>'
        f'<td data-name="First sign">{after(result.notice_after_s)}</td></tr>'
    )


def _table(findings: Findings, title: str, what: str, wanted: Callable[[Verdict], bool]) -> str:
    run = findings.run
    events = [(reading, verdict) for reading, verdict in run.events if wanted(verdict)]
    shown = events[-_MAX_ROWS:]
    rows = "".join(
        f'<tr><td class="time">{_time(verdict.event_time_ms)}</td>'
        f'<td class="name">{escape(verdict.sensor)}</td><td>'
        + ", ".join(
            f"{escape(title)} "
            + ("missing" if math.isnan(value) else f"{number(value)} {escape(unit)}".rstrip())
            for (title, unit), value in zip(run.channels, reading.values, strict=True)
        )
        + f"</td><td>{escape(in_words(verdict))}</td></tr>"
        for reading, verdict in shown
    )
    newest = f", the newest {len(shown):,}" if len(shown) < len(events) else ""
    return f"""
<details open><summary>{title} <span class="muted">({len(events):,} {what}{newest})\
</span></summary><div class="scroll" tabindex="0"><table class="cards"><thead><tr>\
<th>Time (UTC)</th><th>Sensor</th><th>Reading</th><th>Why</th></tr></thead>
<tbody>{rows}</tbody></table></div></details>"""


def _unreadable(findings: Findings) -> str:
    letters = findings.run.dead_letters
    items = "".join(
        f"<li>Record {escape(str(record.position))} could not be read ({escape(invalid.reason)}) "
        f"and lies in the dead letters, byte for byte: <code>{escape(_as_text(record.value))}"
        "</code></li>"
        for record, invalid in letters[:_MAX_UNREADABLE]
    )
    return (
        items
        and f"""
<details open><summary>Could not be read <span class="muted">({len(letters):,})</span>\
</summary><ul>{items}</ul></details>"""
    )


def _as_text(value: bytes | None) -> str:
    text = (value or b"").decode("utf-8", "backslashreplace")
    return printable(text, 200).strip("'")


def _time(time_ms: int) -> str:
    return f"{utc(time_ms):%-d %b %Y %H:%M}"


# --------------------------------------------------------------------------------------- plots
def _plot_data(findings: Findings) -> dict[str, Any]:
    # Lines that seldom change (λ, band, theory) are run-length encoded as [first index, value].
    run = findings.run  # the series with most to see is shown first
    seen = [sum(_code(e.verdict) in "ar" for e in one.events) for one in findings.series]
    return {
        "name": run.name,
        "channels": [channel._asdict() for channel in run.channels],
        "window": run.monitors.window,
        "first": seen.index(max(seen)),
        "series": [_plotted(findings, series) for series in findings.series],
    }


def _plotted(findings: Findings, series: Series) -> dict[str, Any]:
    # Plots are over event time; the order of arrival differs where a clock stepped back.
    events = sorted(series.events, key=lambda event: event.reading.event_time_ms)
    times_ms = [event.reading.event_time_ms for event in events]
    verdicts = [event.verdict for event in events]
    return {
        "sensor": series.sensor,
        "step_s": series.step_s,
        "time_ms": [times_ms[0], *(later - earlier for earlier, later in pairwise(times_ms))],
        "values": [
            [_short(event.reading.values[channel], 5) for event in events]
            for channel in range(len(findings.run.channels))
        ],
        "code": "".join(map(_code, verdicts)),
        "score": [_short(verdict.score) for verdict in verdicts],
        "rank": [verdict.rank for verdict in verdicts],
        "n": _runs(verdicts, lambda verdict: verdict.window_len),
        "lambda": _runs(verdicts, lambda verdict: _short(verdict.threshold)),
        "lower": _runs(verdicts, lambda verdict: _short(verdict.score_lower)),
        "upper": _runs(verdicts, lambda verdict: _short(verdict.score_upper)),
        "epoch": _runs(verdicts, lambda verdict: verdict.model_epoch),
        "rate": [_short(event.rolling_rate) for event in events],
        "expected": _theory(events, lambda theory: theory.expected_rate),
        "exact": _theory(events, lambda theory: theory.frozen_bound),
        "paper": _theory(events, lambda theory: theory.paper_bound),
        "why": {
            str(index): in_words(verdict)
            for index, verdict in enumerate(verdicts)
            if verdict.label is not Label.NORMAL and verdict.reason is not Reason.WARM_UP
        },
        "faults": [
            {
                "from": fault.fault.first_ms / 1000,
                "to": fault.fault.last_ms / 1000,
                "title": fault.fault.title,
                "outcome": fault.outcome,
            }
            for fault in findings.faults
            if fault.fault.sensor == verdicts[0].sensor
        ],
    }


def _code(verdict: Verdict) -> str:
    if verdict.reason is None:
        return "a" if verdict.label is Label.ANOMALY else "n"
    return _CODES[verdict.reason]


def _theory(events: Iterable[Event], pick: Callable[[Any], float | None]) -> list[list[Any]]:
    return _runs(events, lambda event: None if event.theory is None else _short(pick(event.theory)))


def _runs(items: Iterable[Any], value_of: Callable[[Any], Any]) -> list[list[Any]]:
    runs: list[list[Any]] = []
    for index, item in enumerate(items):
        value = value_of(item)
        if not runs or runs[-1][1] != value:
            runs.append([index, value])
    return runs


def _short(value: float | None, digits: int = 4) -> float | None:
    """Round to so many digits that matter; what is not finite becomes ``None``."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


# --------------------------------------------------------------------------------------- words
def in_words(verdict: Verdict) -> str:
    """Say why this verdict, for somebody who knows the machine and not the method."""
    if verdict.limited:
        return ", ".join(beyond(channel) for channel in verdict.limited.channels)
    if verdict.reason in _NO_RANK:
        return _NO_RANK[verdict.reason]
    if verdict.rank is None or verdict.score is None or verdict.stability is None:
        return ""
    n = verdict.window_len
    above = "all" if verdict.rank >= n else f"{verdict.rank:,}"
    if verdict.label is Label.REJECTED:
        flip = min(verdict.stability, 1 - verdict.stability)
        return (
            f"other training data would flip the label in "
            f"{how_often(math.log(max(flip, 1e-300)))}; "
            f"above {above} of the last {n:,}"
        )
    return f"score {number(verdict.score)} is above {above} of the last {n:,}"


def after(seconds: float | None) -> str:
    if seconds is None:
        return "none"
    return "at once" if seconds <= 0 else f"after {span(1000 * seconds)}"
