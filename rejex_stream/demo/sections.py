"""The section of one pipeline in the report: numbers, plots, faults, review items, settings."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape

from rejex_stream.demo.evaluate import Event, Findings, SegmentFindings
from rejex_stream.demo.figures import charts
from rejex_stream.demo.play import read_lines
from rejex_stream.demo.words import in_words, missed_because, number, percent, span
from rejex_stream.encode import decode_review
from rejex_stream.mapping import printable

__all__ = ["mix_bar", "pipeline_section"]

_OUTCOMES = {
    "caught": '<span class="outcome caught">✓ caught</span>',
    "review": '<span class="outcome review">◐ to review</span>',
    "missed": '<span class="outcome missed">✕ missed</span>',
}


def mix_bar(parts: Iterable[tuple[str, int, str]]) -> str:
    """Return a bar of shares: (class, count, title) each."""
    parts = [part for part in parts if part[1]]
    total = sum(count for _, count, _ in parts) or 1
    bars = "".join(
        f'<i class="{kind}" style="width:{100 * count / total:.3f}%" '
        f'title="{escape(title)}: {count:,}"></i>'
        for kind, count, title in parts
    )
    text = ", ".join(f"{count:,} {title}" for _, count, title in parts)
    return f'<div class="mixbar" role="img" aria-label="{escape(text)}">{bars}</div>'


def pipeline_section(findings: Findings) -> str:
    """Return the whole section as HTML."""
    pipeline = findings.pipeline
    return f"""
<section class="pipeline" id="{escape(pipeline.name)}" data-first="{_first_shown(findings)}">
<h2>{escape(pipeline.title)}</h2>
<p class="about">{escape(pipeline.about)}</p>
{_tiles(findings)}
<p class="muted">{_rate_in_words(findings)}</p>
{charts(findings)}
<h3>What became of the known faults</h3>
{_faults(findings)}
{_missed(findings)}
{_review(findings)}
{_alarms(findings)}
{_unreadable(findings)}
{_settings(findings)}
</section>"""


def _first_shown(findings: Findings) -> int:
    """Pick the stream with most to see: whose faults gave the most anomalies and rejects."""
    flagged = [
        sum(
            found.n_anomaly + found.n_rejected
            for found in findings.segments
            if found.segment.sensor == stream.key
        )
        for stream in findings.streams
    ]
    return max(range(len(flagged)), key=flagged.__getitem__)


# -------------------------------------------------------------------------------------- numbers
def _tiles(findings: Findings) -> str:
    theory, days = findings.theory, findings.days or 1.0
    per_day = findings.pipeline.feed.events_per_day
    each = " a day" if len(findings.streams) == 1 else " a day, per turbine"
    budget = findings.pipeline.config.rejection.review_budget
    planned = f"planned {number(budget.share * per_day)}" if budget else "no budget was set"
    tiles = [
        (
            "Known faults",
            f"{findings.outcomes('caught')} caught",
            f"{findings.outcomes('review')} to review, {findings.outcomes('missed')} missed",
        ),
        (
            "Rejected, latest window",
            percent(findings.rolling_rate),
            f"theory expects {percent(theory.expected_rate)}" if theory else "nothing was ranked",
        ),
        ("Reviews" + each, f"{findings.n_ambiguous / days:.1f}", planned),
        (
            "False alarms" + each,
            f"{findings.false_alarms / days:.2f}",
            f"theory allows {theory.expected_anomaly_rate * per_day:.2f}" if theory else "",
        ),
    ]
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b>'
            f"<span>{escape(note)}</span></div>"
            for name, value, note in tiles
        )
        + "</div>"
    )


def _rate_in_words(findings: Findings) -> str:
    theory = findings.theory
    if theory is None:
        return "No event was ever ranked: the feed is shorter than the warm-up."
    paper = "" if theory.paper_bound is None else f", the paper’s {percent(theory.paper_bound)}"
    text = (
        f"Over all {findings.n_ranked:,} ranked events {percent(findings.rejection_rate)} were "
        f"rejected. The exact bound is {percent(theory.exact_bound)}{paper}. "
    )
    if findings.rejection_rate <= theory.exact_bound:
        return text + "The rate keeps within both."
    return text + (
        "The rate is above the exact bound, which holds for events that do not depend on each "
        "other. Faults and weather last for hours, so rejections come in bursts."
    )


# --------------------------------------------------------------------------------------- tables
def _faults(findings: Findings) -> str:
    rows = "".join(_fault(found) for found in findings.segments)
    return f"""
<div class="wide"><table class="cards"><thead><tr><th>Fault</th><th>Sensor</th><th>From</th>\
<th>Outcome</th><th>Its events</th><th class="num">Chance would flag</th>\
<th>First sign</th></tr></thead>
<tbody>{rows}</tbody></table></div>"""


def _fault(found: SegmentFindings) -> str:
    segment = found.segment
    first = _time(segment.first_ms)
    shares = [
        ("a", found.n_anomaly, "anomaly"),
        ("r", found.n_rejected, "rejected"),
        ("u", found.n_unscorable, "no score"),
        ("n", found.n_normal + found.n_warm_up, "normal"),
    ]
    bars = "".join(
        f'<i class="{kind}" style="width:{100 * count / found.n_events:.2f}%"></i>'
        for kind, count, _ in shares
        if count and found.n_events
    )
    words = ", ".join(f"{count} {name}" for _, count, name in shares if count)
    sign = "none" if found.notice_after_s is None else _after(found.notice_after_s)
    return (
        f'<tr><td><button class="link" data-stream="{escape(segment.sensor)}" '
        f'data-at="{segment.first_ms}" data-to="{segment.last_ms}">{escape(segment.title)}</button>'
        f'</td><td>{escape(segment.sensor)}</td><td class="time">{first}</td>'
        f"<td>{_OUTCOMES[found.outcome]}</td>"
        f'<td><div class="share">{bars}</div><span class="muted">{words}</span></td>'
        f'<td class="num" data-name="Chance would flag">{found.expected_flagged:.1f}</td>'
        f'<td data-name="First sign">{sign}</td></tr>'
    )


def _after(seconds: float) -> str:
    return "at once" if seconds <= 0 else f"after {span(seconds)}"


def _missed(findings: Findings) -> str:
    missed = [found for found in findings.segments if found.outcome == "missed"]
    if not missed:
        return ""
    items = "".join(
        f"<li><b>{escape(found.segment.title)}</b> ({escape(found.segment.sensor)}): "
        f"{escape(missed_because(findings, found))}</li>"
        for found in missed
    )
    return f"<h3>What was missed, and why</h3><ul>{items}</ul>"


def _review(findings: Findings) -> str:
    items = [decode_review(line) for line in read_lines(findings.pipeline.review_path)]
    titles = [(channel.title, channel.unit) for channel in findings.pipeline.channels]
    rows = "".join(
        f'<tr><td class="time">{_time(item.verdict.event_time_ms)}</td>'
        f"<td>{escape(item.verdict.sensor)}</td><td>"
        + ", ".join(
            f"{escape(title)} {'missing' if value is None else number(value)} {escape(unit)}"
            for (title, unit), value in zip(titles, item.values, strict=True)
        )
        + f"</td><td>{escape(in_words(item.verdict))}</td></tr>"
        for item in items
    )
    return f"""
<details open><summary>For people to look at <span class="muted">({len(items):,} review items)\
</span></summary><div class="scroll" tabindex="0"><table class="cards"><thead><tr>\
<th>Time (UTC)</th><th>Sensor</th><th>Reading</th><th>Why it was rejected</th></tr></thead>
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


def _unreadable(findings: Findings) -> str:
    back = _steps_back(event for stream in findings.streams for event in stream.events)
    if not findings.dead_letters and not back:
        return ""
    items = [
        f"<li>Record {escape(str(record.position))} could not be read ({escape(invalid.reason)}) "
        f"and lies in the dead letters, byte for byte: <code>{escape(_as_text(record.value))}"
        "</code></li>"
        for record, invalid in findings.dead_letters
    ]
    items += [
        f"<li>The clock of {escape(event.reading.sensor)} stepped back by {span(seconds)} to "
        f"{_time(event.reading.event_time_ms)}. Events are judged in the order of arrival.</li>"
        for event, seconds in back
    ]
    return f"""
<details open><summary>Rough edges of the feed</summary><ul>{"".join(items)}</ul></details>"""


def _as_text(value: bytes | None) -> str:
    text = (value or b"").decode("utf-8", "backslashreplace")
    return printable(text, 200).strip("'")


def _steps_back(events: Iterable[Event]) -> list[tuple[Event, float]]:
    found: list[tuple[Event, float]] = []
    latest: dict[str, int] = {}
    for event in events:
        sensor, time_ms = event.reading.sensor, event.reading.event_time_ms
        before = latest.get(sensor, time_ms)
        if time_ms < before:
            found.append((event, (before - time_ms) / 1000))
        latest[sensor] = max(before, time_ms)
    return found


def _settings(findings: Findings) -> str:
    path = findings.pipeline.config_path
    return f"""
<details><summary>Settings used <span class="muted">({escape(path.name)})</span></summary>\
<pre>{escape(path.read_text(encoding="utf-8"))}</pre></details>"""


def _time(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%-d %b %Y %H:%M}"
