"""The section of one run in the report: numbers, plots, faults, events for people, settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from html import escape

from rejex_stream.decode.mapping import printable
from rejex_stream.report.findings import Event, FaultFindings, Findings
from rejex_stream.report.plain_words import after, in_words, number, percent, span
from rejex_stream.types import Incident, IncidentState, Label, Verdict, is_for_review, spoken

__all__ = ["MARKS", "run_section"]

_MOST_ROWS = 1_000
_OUTCOMES = {
    "caught": '<span class="outcome caught">✓ caught</span>',
    "review": '<span class="outcome review">◐ to review</span>',
    "missed": '<span class="outcome missed">✕ missed</span>',
}


def _mark(path: str) -> str:
    return f'<svg class="mark" viewBox="0 0 12 12" aria-hidden="true">{path}</svg>'


MARKS = {
    "n": _mark('<path d="M0 8 4 5 8 7 12 4" fill="none" stroke="var(--normal)" stroke-width="2"/>'),
    "a": _mark('<path d="M6 1 11.5 11H.5z" fill="var(--anomaly)"/>'),
    "r": _mark(
        '<circle cx="6" cy="6" r="4.4" fill="none" stroke="var(--rejected)" stroke-width="2.2"/>'
    ),
    "u": _mark('<path d="M2 2 10 10M10 2 2 10" stroke="var(--unscored)" stroke-width="2.2"/>'),
    "fault": _mark('<rect width="12" height="12" rx="2" fill="var(--fault-soft)"/>'),
    "learning": _mark('<rect width="12" height="12" rx="2" fill="var(--grid)"/>'),
}


def run_section(findings: Findings) -> str:
    """Return the whole section as HTML."""
    run = findings.run
    known = ""
    if findings.faults:
        known = f"<h3>What became of the known faults</h3>{_faults(findings)}{_missed(findings)}"
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
{_table(findings, "For people to look at", "rejected events", _is_for_review)}
{_table(findings, "Called anomalies", "events", _is_anomaly)}
{_alarms(findings)}
{_rough_edges(findings)}
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
    rate = findings.counts.rejection_rate or 0.0
    text = (
        f"Over all {findings.counts.n_ranked:,} ranked events {percent(rate)} were "
        f"rejected. The bound of a frozen window is {percent(theory.frozen_bound)}{paper}. "
    )
    if rate <= theory.frozen_bound:
        return text + "The rate keeps within it."
    return text + (
        "The rate is above that bound, which holds for events that do not depend on each "
        "other. What sensors see lasts, so rejections come in bursts."
    )


def _charts(findings: Findings) -> str:
    """Return what the script fills with plots: they are nothing without it."""
    fault = f"<span>{MARKS['fault']}known fault</span>" if findings.faults else ""
    return f"""
<div class="bar"><div class="sensors" role="group" aria-label="Sensor"></div>
<div class="zoom" role="group" aria-label="Zoom">\
<button data-pan="-0.5" aria-label="Earlier">‹</button>\
<button data-pan="0.5" aria-label="Later">›</button>\
<button data-zoom="2" aria-label="Zoom out">−</button>\
<button data-zoom="0.5" aria-label="Zoom in">+</button>\
<button data-zoom="0">All</button></div></div>
<div class="legend"><span>{MARKS["a"]}anomaly</span><span>{MARKS["r"]}rejected: ambiguous</span>\
<span>{MARKS["u"]}rejected: no score</span>{fault}<span>{MARKS["learning"]}learning</span>\
<span>Drag to zoom, double-click to see all.</span></div>
<div class="charts" tabindex="0" role="group" aria-label="Plots of {escape(findings.run.title)}; \
arrow keys pan, plus and minus zoom, 0 shows all"><div class="tip" hidden></div></div>"""


# --------------------------------------------------------------------------------------- tables
def _incidents(findings: Findings) -> str:
    """Return what was held, and what became of it."""
    rows = "".join(
        f"<tr><td>{escape(spoken(one.stream_key, one.mode))}</td><td>{_time(one.onset_ms)}</td>"
        f'<td>{escape(_ended(one))}</td><td class="num">{one.n_events:,}</td>'
        f'<td class="num">{one.n_anomalies:,}</td><td class="num">{one.n_rejected:,}</td></tr>'
        for one in findings.run.incidents
    )
    if not rows:
        return ""
    return f"""
<h3>Incidents: faults that were held</h3>
<p class="muted">While an incident is open its reference stands still, so a fault that stays never \
becomes normal by itself.</p>
<div class="scroll"><table><thead><tr><th>Sensor</th><th>Since</th><th>What became of it</th>\
<th class="num">Its events</th><th class="num">Anomalies</th><th class="num">Rejected</th></tr>\
</thead><tbody>{rows}</tbody></table></div>"""


def _ended(incident: Incident) -> str:
    answered = "answered" if incident.answer else "not answered"
    if incident.state is IncidentState.CLOSED:
        return f"closed: {(incident.ended or '').replace('_', ' ')}, {answered}"
    said = "" if incident.answer else ": fault, or new normal?"
    return f"{incident.state}, {answered}{said}"


def _faults(findings: Findings) -> str:
    rows = "".join(_fault(found) for found in findings.faults)
    return f"""
<div class="scroll faults"><table class="cards"><thead><tr><th>Fault</th><th>Sensor</th>\
<th>From</th><th>Outcome</th><th>Its events</th><th class="num">Chance would flag</th>\
<th>First sign</th></tr></thead>
<tbody>{rows}</tbody></table></div>"""


def _fault(found: FaultFindings) -> str:
    fault = found.fault
    shares = [
        ("a", found.n_anomaly, "anomaly"),
        ("r", found.n_rejected, "rejected"),
        ("u", found.n_unscorable, "no score"),
        ("n", found.n_normal + found.n_warm_up, "normal"),
    ]
    bars = "".join(
        f'<i class="{kind}" style="width:{100 * count / found.n_events:.2f}%"></i>'
        for kind, count, _ in shares
        if count
    )
    words = ", ".join(f"{count} {name}" for _, count, name in shares if count)
    return (
        f'<tr><td><button class="link" data-sensor="{escape(fault.sensor)}" '
        f'data-from="{fault.first_ms}" data-to="{fault.last_ms}">{escape(fault.title)}</button>'
        f'</td><td class="name">{escape(fault.sensor)}</td>'
        f'<td class="time">{_time(fault.first_ms)}</td>'
        f"<td>{_OUTCOMES[found.outcome]}</td>"
        f'<td><div class="share">{bars}</div><span class="muted">{words}</span></td>'
        f'<td class="num" data-name="Chance would flag">{found.expected_flagged:.1f}</td>'
        f'<td data-name="First sign">{after(found.notice_after_s)}</td></tr>'
    )


def _missed(findings: Findings) -> str:
    items = "".join(
        f"<li><b>{escape(found.fault.title)}</b> ({escape(found.fault.sensor)}): "
        f"{escape(_missed_because(findings, found))}</li>"
        for found in findings.faults
        if found.outcome == "missed"
    )
    return f"<h3>What was missed, and why</h3><ul>{items}</ul>" if items else ""


def _missed_because(findings: Findings, found: FaultFindings) -> str:
    """Say how near a missed fault came to being noticed, and what stood in the way."""
    fault = found.fault
    verdicts = [verdict for _, verdict in findings.run.events]
    inside = [
        verdict
        for verdict in verdicts
        if verdict.sensor == fault.sensor
        and fault.first_ms <= verdict.event_time_ms <= fault.last_ms
        and verdict.band_lower is not None
    ]
    if not inside:
        return "its events came while the model was still learning."
    worst = max(inside, key=lambda verdict: verdict.severity or 0.0)
    assert worst.score is not None
    text = (
        f"its most unusual event scored {number(worst.score)}, above {worst.rank:,} of the last "
        f"{worst.window_len:,}; only above {(worst.band_lower or 1) - 1:,} would it have been "
        "looked at."
    )
    same = [
        verdict
        for verdict in verdicts
        if (verdict.stream_key, verdict.mode) == (worst.stream_key, worst.mode)
        and verdict.band_lower is not None
        and verdict.seq < worst.seq
    ]
    higher = [v for v in same[-worst.window_len :] if v.score and v.score > worst.score]
    others = sum(
        any(
            other.sensor == v.sensor and other.first_ms <= v.event_time_ms <= other.last_ms
            for other in findings.run.faults
        )
        for v in higher
        if v.model_epoch == worst.model_epoch
    )
    if not others:
        return text
    return (
        f"{text} Of the {len(higher)} higher scores in its window, {others} came from other "
        "faults: they took its place at the top."
    )


def _is_for_review(verdict: Verdict) -> bool:
    return is_for_review(verdict)


def _is_anomaly(verdict: Verdict) -> bool:
    return verdict.label is Label.ANOMALY


def _table(findings: Findings, title: str, what: str, wanted: Callable[[Verdict], bool]) -> str:
    """Return the newest of the wanted events, each with its reading and the reason."""
    run = findings.run
    events = [(reading, verdict) for reading, verdict in run.events if wanted(verdict)]
    shown = events[-_MOST_ROWS:]
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


def _alarms(findings: Findings) -> str:
    if not findings.alarms:
        return ""
    items = "".join(
        f"<li>{_time(alarm.event_time_ms)}, {escape(alarm.stream_key or 'whole pipeline')}: "
        f"{escape(alarm.message)}</li>"
        for alarm in findings.alarms
    )
    return f"""
<details><summary>What the monitors said <span class="muted">({len(findings.alarms)} alarms; they \
never change a verdict)</span></summary><ul>{items}</ul></details>"""


def _rough_edges(findings: Findings) -> str:
    """Say which records could not be read and whose clock stepped back."""
    dead_letters = findings.run.dead_letters
    items = [
        f"<li>Record {escape(str(record.position))} could not be read ({escape(invalid.reason)}) "
        f"and lies in the dead letters, byte for byte: <code>{escape(_as_text(record.value))}"
        "</code></li>"
        for record, invalid in dead_letters
    ] + [
        f"<li>The clock of {escape(event.reading.sensor)} stepped back by {span(seconds)} to "
        f"{_time(event.reading.event_time_ms)}. Events are judged in the order of arrival.</li>"
        for series in findings.series
        for event, seconds in _steps_back(series.events)
    ]
    if not items:
        return ""
    return f"""
<details open><summary>Rough edges of the input <span class="muted">({len(items):,})</span>\
</summary><ul>{"".join(items[:20])}</ul></details>"""


def _as_text(value: bytes | None) -> str:
    text = (value or b"").decode("utf-8", "backslashreplace")
    return printable(text, 200).strip("'")


def _steps_back(events: Iterable[Event]) -> Iterable[tuple[Event, float]]:
    latest: int | None = None
    for event in events:
        time_ms = event.reading.event_time_ms
        if latest is not None and time_ms < latest:
            yield event, (latest - time_ms) / 1000
        latest = time_ms if latest is None else max(latest, time_ms)


def _time(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%-d %b %Y %H:%M}"
