"""One episode with everything a reviewer needs: why it is here, the readings, what was said."""

from __future__ import annotations

from dataclasses import dataclass
from sqlite3 import Connection
from typing import NamedTuple

from rejex_stream.config.reviewing import Review
from rejex_stream.encode import decode_review
from rejex_stream.encode.label_records import LabelRecord, active_labels
from rejex_stream.readable import how_often
from rejex_stream.rejection.window import grade
from rejex_stream.review.queue import database, series
from rejex_stream.review.queue.database import Viewer
from rejex_stream.review.queue.label_store import records_of
from rejex_stream.review.queue.listing import (
    EpisodeRow,
    asked_with,
    case_row,
    model_leaning,
    row_of,
)
from rejex_stream.types import Label, Reason, ReviewItem, Status, Verdict, without_limits


class Explanation(NamedTuple):
    """What the reviewer reads."""

    headline: str  # one sentence; never says which way the model leans
    sentences: tuple[str, ...]  # what it means. The last one names the leaning, unless it is hidden
    facts: tuple[tuple[str, str], ...]  # (name, value) pairs for the table beside it


_Words = tuple[str, tuple[str, ...]]
_NOT_RANKED: dict[Reason | None, _Words] = {
    Reason.UNSCORABLE: (
        "No score could be computed for this event.",
        (
            "A channel has been missing for longer than the last value may be carried forward, or "
            "the detector returned no finite number.",
            "Look at the gaps in the channels: the question is whether the sensor failed.",
        ),
    ),
    Reason.CONSTANT_WINDOW: (
        "All reference scores are the same number.",
        (
            "Ranks hold no information then: nothing can be called unusual or usual.",
            "Most often the sensor is stuck, or switched off.",
            "This is said once, where it begins; once more where it ends.",
        ),
    ),
    Reason.WARM_UP: (
        "The model was still warming up.",
        ("There were too few reference scores to accept any label.",),
    ),
}


def explain(verdict: Verdict, why: str, *, blind: bool = False) -> Explanation:
    """Return why this event is here; with `blind`, nothing of which way the model leans."""
    verdict = without_limits(verdict)
    if why in ("audit", "extreme"):
        words = _accepted(verdict, why, blind=blind)
    elif verdict.status is Status.CONSTANT_ENDS and why == "status":
        words = (
            "The reference scores differ again: the sensor moves.",
            ("They had all been the same number. Was it stuck, or switched off?",),
        )
    else:
        words = _NOT_RANKED.get(verdict.reason) or _ambiguous(verdict, blind=blind)
    return Explanation(*words, _facts(verdict, blind=blind))


def _ambiguous(verdict: Verdict, *, blind: bool) -> _Words:
    leaning = model_leaning(verdict)
    if verdict.band_lower is None or leaning is None:
        return "The label could flip under slightly different training data.", ()
    hidden = "Which way it leans is hidden until you have decided."
    return (
        "Borderline: slightly different reference data could flip the label.",
        (hidden if blind else f"It leans to {leaning}.",),
    )


def _accepted(verdict: Verdict, why: str, *, blind: bool) -> _Words:
    label = "anomaly" if verdict.label is Label.ANOMALY else "normal"
    hidden = "The model's word is hidden until you have decided."
    if why == "extreme":
        return (
            "Nothing like it was measured in a quarter of a window. Is it a fault?",
            (
                "Asked once: later ones like it are not, and an incident asks by itself.",
                hidden if blind else "The model is sure: it says anomaly.",
            ),
        )
    if verdict.muted:
        return (
            "It lies in a pattern that was muted. Is it one of it, or a fault?",
            (
                "Drawn at random from muted events, about which nobody is asked otherwise: the "
                "mute must not hide a fault.",
            ),
        )
    return (
        "The model was sure about this one. Is it right?",
        (
            "Drawn at random from accepted events: labels from the rejection band alone say "
            "nothing about the rest.",
            hidden if blind else f"The model said {label}.",
        ),
    )


def _facts(verdict: Verdict, *, blind: bool) -> tuple[tuple[str, str], ...]:
    facts: list[tuple[str, str]] = []
    if verdict.band_lower is not None and verdict.band_upper is not None:
        band = f"ranks {verdict.band_lower:,}–{verdict.band_upper:,} of {verdict.window_len:,}"
        facts.append(("rejection band", band))
    if not blind:
        if verdict.rank is not None:
            facts.append(("rank", f"{verdict.rank:,} of {verdict.window_len:,}"))
        for name, value in (
            ("score", verdict.score),
            ("threshold λ", verdict.threshold),
            ("rejected above", verdict.score_lower),
            ("rejected up to", verdict.score_upper),
            ("ψ, share of scores at or below", verdict.psi),
            ("stability, P(anomaly)", verdict.stability),
            ("confidence", verdict.confidence),
        ):
            if value is not None:
                facts.append((name, f"{value:.4g}"))
        if verdict.severity is not None:
            points, word = grade(verdict.severity)
            facts.append(("severity", f"{points} of 100 ({word})"))
    if verdict.tolerance is not None:
        flip = how_often(-verdict.tolerance)
        facts.append(
            ("tolerance T", f"{verdict.tolerance:.3g}: flips in up to {flip} are accepted")
        )
    if verdict.window_len:
        facts.append(("reference scores n", f"{verdict.window_len:,}"))
        facts.append(("counted as anomalies r", f"{verdict.n_anomalies:,}"))
    if verdict.model_epoch is not None:
        facts.append(("model", f"epoch {verdict.model_epoch}"))
    facts.append(("event", f"number {verdict.seq:,} of this stream"))
    return tuple(facts)


class Bar(NamedTuple):
    """How much one channel has to do with it."""

    # `share` in 0..1 is the length of the bar; `text` the number behind it.

    channel: str
    share: float
    text: str


class Earlier(NamedTuple):
    """Another episode of the same sensor; its verdict is hidden in a blind review."""

    episode_id: str
    start_ms: int
    n_events: int
    status: str
    verdict: str | None


@dataclass(frozen=True, slots=True)
class Detail:
    """What the episode screen shows."""

    row: EpisodeRow
    together: tuple[EpisodeRow, ...]  # other cases of its question
    explanation: Explanation
    events: tuple[ReviewItem, ...]
    # what the model reacts to, channel by channel (from the evidence in the verdict)
    bars: tuple[Bar, ...]
    flip: str
    deviations: tuple[series.Deviation, ...]  # what its channels read beside what is usual
    labels: tuple[LabelRecord, ...]  # labels that stand; empty while `row.blind`
    # what happened to it, newest first; labels by others left out while `row.blind`
    history: tuple[database.AuditRow, ...]
    parts: tuple[tuple[str, int, str], ...]
    from_ms: int  # the stretch of time the plots begin with
    to_ms: int
    main_channel: int  # index of the channel shown first
    holes: tuple[series.Hole, ...]  # stretches of that time without readings
    earlier: tuple[Earlier, ...]  # the newest other episodes of this sensor, and how many there are
    n_earlier: int


def episode_detail(
    connection: Connection, episode: str, settings: Review, viewer: Viewer, now_ms: int
) -> Detail:
    row = row_of(connection, case_row(connection, episode), settings, viewer, now_ms)
    stretch = row.start_ms, row.end_ms
    apart = series.deviations(
        connection, row.sensor_id, row.sensor, row.channels, stretch, blind=row.blind
    )
    bars, flip = _evidence_bars(row)
    main = (
        row.channels.index(bars[0].channel)
        if bars and bars[0].channel in row.channels
        else (apart[0].column if apart else 0)
    )
    low, high = series.around(connection, row.sensor_id, row.start_ms, row.end_ms)
    earlier = _earlier_episodes(connection, row)
    return Detail(
        row=row,
        together=tuple(asked_with(connection, row, settings, viewer, now_ms)),
        explanation=explain(row.main, row.why, blind=row.blind),
        events=tuple(
            decode_review(event["item"])
            for event in connection.execute(
                "SELECT item FROM event WHERE episode_id = ? ORDER BY event_time_ms, event_id",
                (episode,),
            )
        ),
        bars=bars,
        flip=flip,
        deviations=tuple(apart),
        labels=() if row.blind else tuple(active_labels(records_of(connection, episode))),
        history=tuple(_history(connection, row, viewer)),
        parts=tuple(
            tuple(part)
            for part in connection.execute(
                "SELECT episode_id, n_events, status FROM episode "
                "WHERE root_id = ? AND episode_id <> ? AND status <> 'empty' ORDER BY start_ms",
                (row.root_id, episode),
            )
        ),
        from_ms=low,
        to_ms=high,
        main_channel=main,
        holes=series.read(connection, row.sensor_id, row.channels, low, high, most=10).holes,
        earlier=earlier[:_MOST_EARLIER],
        n_earlier=len(earlier),
    )


_MOST_EARLIER = 6


def _earlier_episodes(connection: Connection, row: EpisodeRow) -> tuple[Earlier, ...]:
    others = connection.execute(
        "SELECT episode_id, start_ms, n_events, status, verdict FROM episode WHERE sensor_id = ? "
        "AND root_id <> ? AND status <> 'empty' ORDER BY start_ms DESC, episode_id LIMIT 1000",
        (row.sensor_id, row.root_id),
    )
    rows = [Earlier(*one) for one in others]
    return tuple(one._replace(verdict=None) if row.blind else one for one in rows)


def _evidence_bars(row: EpisodeRow) -> tuple[tuple[Bar, ...], str]:
    evidence = row.main.evidence
    if evidence is None or row.blind:
        return (), ""
    known = [c for c in evidence.channels if c.contribution is not None]
    largest = max((abs(c.contribution or 0.0) for c in known), default=0.0)
    bars = tuple(
        Bar(c.channel, max(0.0, (c.contribution or 0.0) / largest), f"{c.contribution:+.3g}")
        for c in known[:8]
        if largest > 0
    )
    flip = ""
    for channel in evidence.channels:
        if channel.channel == evidence.flip and channel.label_without is not None:
            flip = f"Without {channel.channel} the verdict would be {channel.label_without}."
    return bars, flip


def _history(connection: Connection, row: EpisodeRow, viewer: Viewer) -> list[database.AuditRow]:
    lines = list(database.audit_rows(connection, subject=row.episode_id, limit=50))
    if row.root_id != row.episode_id:
        lines += list(database.audit_rows(connection, subject=row.root_id, limit=20))
    if row.blind:
        hidden = {"label", "undo", "adjudicate", "expire", "comment"}
        lines = [
            line for line in lines if line.action not in hidden or line.actor == viewer.reviewer
        ]
    # That somebody looked at it is worth one line, not two each time.
    looks = ("claim", "release")
    newest = {line.actor: line.seq for line in sorted(lines) if line.action in looks}
    lines = [line for line in lines if line.action not in looks or newest[line.actor] == line.seq]
    return sorted(lines, key=lambda line: -line.seq)
