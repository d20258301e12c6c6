"""The plots of one pipeline: empty canvases with captions and legends, which the script fills."""

from __future__ import annotations

from html import escape

from rejex_stream.demo.evaluate import Findings
from rejex_stream.demo.words import percent

__all__ = ["MARKS", "charts"]

MARKS = {
    "n": '<svg class="mark" viewBox="0 0 12 12" aria-hidden="true"><path d="M0 8 4 5 8 7 12 4" '
    'fill="none" stroke="var(--normal)" stroke-width="2"/></svg>',
    "a": '<svg class="mark" viewBox="0 0 12 12" aria-hidden="true"><path d="M6 1 11.5 11H.5z" '
    'fill="var(--anomaly)"/></svg>',
    "r": '<svg class="mark" viewBox="0 0 12 12" aria-hidden="true"><circle cx="6" cy="6" r="4.4" '
    'fill="none" stroke="var(--rejected)" stroke-width="2.2"/></svg>',
    "u": '<svg class="mark" viewBox="0 0 12 12" aria-hidden="true"><path d="M2 2 10 10M10 2 2 10" '
    'stroke="var(--unscored)" stroke-width="2.2"/></svg>',
}
_LINES = {
    "rolling": ("var(--rejected)", "", 3),
    "expected": ("var(--ink)", "", 2),
    "exact": ("var(--anomaly)", "7 4", 2),
    "paper": ("var(--faint)", "2 4", 2),
    "lambda": ("var(--ink)", "6 4", 2),
    "swap": ("var(--faint)", "1 3", 1),
}


def charts(findings: Findings) -> str:
    """Return tabs, legend and one figure for each channel, the score, the rate and the days."""
    pipeline = findings.pipeline
    figures = [
        _figure(f"channel-{k}", channel.title, f"{channel.title}, {channel.unit}")
        for k, channel in enumerate(pipeline.channels)
    ]
    figures += [
        _figure(
            "score",
            "Score",
            "Score, high is unusual",
            _key(_line("lambda"), "threshold λ"),
            _key(_box("rejected-soft"), "rejection band"),
            _key(_line("swap"), "new model"),
        ),
        _figure(
            "rate",
            "Rolling rejection rate",
            f"Rejected, rolling over {pipeline.config.rejection.window:,} events",
            *_theory_keys(findings),
        ),
        _figure(
            "days",
            "Reviews and anomalies",
            "Events a day for people",
            _key(_box("rejected"), "to review"),
            _key(_box("anomaly"), "anomaly"),
            _key(_line("lambda"), "planned reviews"),
        ),
    ]
    return f"""
<div class="bar">{_tabs(findings)}
<div class="zoom" role="group" aria-label="Zoom">\
<button data-zoom="out" aria-label="Zoom out">−</button>\
<button data-zoom="in" aria-label="Zoom in">+</button>\
<button data-zoom="all">All</button></div></div>
<div class="legend"><span>{MARKS["a"]}anomaly</span><span>{MARKS["r"]}rejected: ambiguous</span>\
<span>{MARKS["u"]}rejected: no score</span>\
<span>{_box("fault-soft")}known fault</span><span>{_box("grid")}learning</span>\
<span>Drag to zoom, double-click to see all.</span></div>
<div class="charts" tabindex="0" role="group" aria-label="Plots of {escape(pipeline.title)}; \
arrow keys pan, plus and minus zoom, 0 shows all">
<div class="tip" hidden></div>
<canvas class="strip" data-plot="strip" role="img" aria-label="Overview of the whole feed"></canvas>
{"".join(figures)}
</div>"""


def _tabs(findings: Findings) -> str:
    if len(findings.streams) == 1:
        return ""
    buttons = "".join(
        f'<button aria-pressed="false" data-stream="{escape(stream.key)}">'
        f"{escape(stream.key)}</button>"
        for stream in findings.streams
    )
    return f'<div class="tabs" role="group" aria-label="Turbine">{buttons}</div>'


def _theory_keys(findings: Findings) -> list[str]:
    theory = findings.theory
    if theory is None:
        return []
    paper = "–" if theory.paper_bound is None else percent(theory.paper_bound)
    return [
        _key(_line("rolling"), "rolling"),
        _key(_line("expected"), f"expected R {percent(theory.expected_rate)}"),
        _key(_line("exact"), f"exact bound {percent(theory.exact_bound)}"),
        _key(_line("paper"), f"paper’s bound {paper}"),
    ]


def _figure(name: str, title: str, caption: str, *keys: str) -> str:
    return (
        f'<figure><figcaption><b>{escape(caption)}</b><span class="note">{"".join(keys)}</span>'
        f'</figcaption><canvas data-plot="{name}" data-title="{escape(title)}" role="img">'
        "</canvas></figure>"
    )


def _key(swatch: str, text: str) -> str:
    return f'<span class="key">{swatch}{escape(text)}</span>'


def _box(colour: str) -> str:
    return (
        '<svg class="mark" viewBox="0 0 12 12" aria-hidden="true"><rect width="12" height="12" '
        f'rx="2" fill="var(--{colour})"/></svg>'
    )


def _line(name: str) -> str:
    colour, dash, width = _LINES[name]
    return (
        '<svg width="22" height="8" viewBox="0 0 22 8" aria-hidden="true">'
        f'<path d="M0 4H22" stroke="{colour}" stroke-width="{width}" '
        f'stroke-dasharray="{dash}"/></svg>'
    )
