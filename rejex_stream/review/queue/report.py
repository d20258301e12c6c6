"""How the queue is doing, and what labels give back: figures, and sentences where they warn.

Labels never change a verdict by themselves, nor a setting.
"""

from __future__ import annotations

import statistics
from sqlite3 import Connection
from typing import Literal

import msgspec

from rejex_stream.errors import ConfigError
from rejex_stream.plan.promises import Costs
from rejex_stream.rejection import rejection_band
from rejex_stream.rejection.bounds import cost_bound
from rejex_stream.review.gold_cases.reviewer_errors import Interval
from rejex_stream.review.queue.quality import (
    Quality,
    bootstrap,
    judged_episodes,
    krippendorff_alpha,
    percent_agreement,
    quality,
)
from rejex_stream.review.queue.series import DAY_MS, pipeline_clock

__all__ = [
    "Advice",
    "Agreement",
    "InUse",
    "Report",
    "Workload",
    "advise",
    "agreement",
    "event_time_of",
    "pipelines_of",
    "report",
    "workload",
]

_WEEK_MS = 7 * DAY_MS


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The queue now and over the last seven days.

    Attributes
    ----------
    oldest_ms
        Age of the oldest open episode.
    arrived_per_day, decided_per_day
        Episodes.
    handle_s
        Median seconds from claim to verdict, where an episode was claimed.
    turnaround_ms
        Median from arrival to the verdict.
    """

    open_episodes: int
    open_events: int
    oldest_ms: int | None
    arrived_per_day: float
    decided_per_day: float
    decided: int
    expired: int
    handle_s: float | None
    turnaround_ms: float | None


def workload(connection: Connection, now_ms: int) -> Workload:
    """Return how the queue is doing."""
    week = now_ms - _WEEK_MS
    waiting = connection.execute(
        "SELECT count(*), coalesce(sum(n_events), 0), min(received_ms) FROM episode "
        "WHERE status IN ('open', 'needs_second', 'disputed')"
    ).fetchone()
    first = connection.execute("SELECT min(received_ms) FROM episode").fetchone()[0]
    days = min(7.0, max((now_ms - first) / DAY_MS, 1.0)) if first is not None else 1.0
    arrived = connection.execute(
        "SELECT count(*) FROM episode WHERE received_ms >= ? AND root_id = episode_id", (week,)
    ).fetchone()[0]
    decided = connection.execute(
        "SELECT count(DISTINCT episode_id) FROM label WHERE kind = 'label' AND source = 'human' "
        "AND created_ms >= ?",
        (week,),
    ).fetchone()[0]
    expired = connection.execute(
        "SELECT count(*) FROM label WHERE source = 'expired' AND kind = 'label' "
        "AND created_ms >= ?",
        (week,),
    ).fetchone()[0]
    handles = [
        row[0] / 1000
        for row in connection.execute(
            "SELECT handle_ms FROM label WHERE handle_ms IS NOT NULL AND created_ms >= ?", (week,)
        )
    ]
    waits = [
        row[0]
        for row in connection.execute(
            "SELECT l.created_ms - e.received_ms FROM label l JOIN episode e USING (episode_id) "
            "WHERE l.kind = 'label' AND l.source = 'human' AND l.created_ms >= ?",
            (week,),
        )
    ]
    return Workload(
        open_episodes=waiting[0],
        open_events=waiting[1],
        oldest_ms=None if waiting[2] is None else now_ms - waiting[2],
        arrived_per_day=arrived / days,
        decided_per_day=decided / days,
        decided=decided,
        expired=expired,
        handle_s=statistics.median(handles) if handles else None,
        turnaround_ms=statistics.median(waits) if waits else None,
    )


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How far reviewers agree, over episodes that at least two people judged."""

    episodes: int
    judged: int
    percent: Interval
    alpha: Interval
    disputed: int


def agreement(connection: Connection, since_ms: int = 0) -> Agreement:
    """Return the agreement; adjudications are answers to a disagreement and do not count."""
    units: list[tuple[str, ...]] = []
    judged = 0
    for episode in judged_episodes(connection, since_ms):
        judged += 1
        said = {
            label.reviewer: str(label.verdict)
            for label in episode.labels
            if label.role != "adjudication"
        }
        if len(said) > 1:
            units.append(tuple(said.values()))
    disputed = connection.execute(
        "SELECT count(*) FROM episode WHERE status = 'disputed'"
    ).fetchone()[0]
    return Agreement(
        episodes=len(units),
        judged=judged,
        percent=bootstrap(units, percent_agreement),
        alpha=bootstrap(units, krippendorff_alpha),
        disputed=disputed,
    )


class InUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a pipeline's verdicts were given with: n, r and T of its longest window."""

    pipeline: str
    window: int | None
    n_anomalies: int | None
    tolerance: float | None


def pipelines_of(connection: Connection) -> list[str]:
    """Return the names of the pipelines that have given a verdict."""
    rows = connection.execute(
        "SELECT DISTINCT pipeline FROM sensor WHERE last_ms IS NOT NULL ORDER BY 1"
    )
    return [row[0] for row in rows]


def _in_use(connection: Connection, pipeline: str) -> InUse:
    row = connection.execute(
        "SELECT window_len, n_anomalies, tolerance FROM sensor WHERE pipeline = ? "
        "AND last_ms IS NOT NULL ORDER BY window_len DESC LIMIT 1",
        (pipeline,),
    ).fetchone()
    return InUse(pipeline=pipeline, window=row[0], n_anomalies=row[1], tolerance=row[2])


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a pipeline, or with what is known of it, in a sentence."""

    pipeline: str
    kind: Literal["blind_detector", "too_few_answers", "theory_broken"]
    message: str


def advise(used: InUse, found: Quality, costs: Costs) -> list[Advice]:
    """Tell a detector that does not see the faults from answers too few to say, and a broken bound.

    Of a wrong γ the interval beside it tells; for a blind detector another one would only flag more
    of the same events.
    """
    advice: list[tuple[Literal["blind_detector", "too_few_answers", "theory_broken"], str]] = []
    miss, bound = found.miss_rate, _cost_bound(used, costs)
    if _is_blind(found) and miss.value is not None and miss.low is not None:
        advice.append(
            (
                "blind_detector",
                f"Of the anomalies {100 * miss.value:.2g} % were called normal, at least "
                f"{100 * miss.low:.2g} %: the detector does not see them, and another "
                "contamination would flag more of what they are not. Look at the audited ones, "
                "try other features or another detector, and see what it would have said: "
                "rejex-stream replay CONFIG --config NEW.",
            )
        )
    if miss.low is None or miss.high is None or miss.high - miss.low > _VAGUE:
        advice.append(
            (
                "too_few_answers",
                f"{found.accepted_normal.judged} accepted normals and "
                f"{found.accepted_anomaly.judged} accepted anomalies were judged, and "
                f"{found.rejected.judged} of {found.rejected.events} rejected events: "
                "too few to say how many anomalies are missed. Raise "
                "output.audit_rate, or answer more.",
            )
        )
    cost = found.cost_per_event
    if bound is not None and cost.value is not None and cost.low is not None and cost.low > bound:
        advice.append(
            (
                "theory_broken",
                f"An event costs {cost.value:.3g}, at least {cost.low:.3g}, and theory promises at "
                f"most {bound:.3g}: its premises do not hold here (scores in no order of time, a "
                "detector that ranks anomalies first, no more of them than contamination says).",
            )
        )
    return [Advice(pipeline=used.pipeline, kind=kind, message=message) for kind, message in advice]


_VAGUE = 0.5
"""An interval for the share that is missed this wide says nothing."""


def _is_blind(found: Quality) -> bool:
    """Say whether, as far as the labels can prove it, most anomalies are called normal."""
    return found.miss_rate.low is not None and found.miss_rate.low > 0.5


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the labels say.

    Attributes
    ----------
    pipelines
        What their verdicts were given with.
    cost_bound
        The theory's bound on the mean cost of an event, for a single pipeline with known n, r, T.
    advice
        What no change of γ or of the budget would mend.
    """

    since_ms: int
    quality: Quality
    agreement: Agreement
    workload: Workload
    pipelines: tuple[InUse, ...]
    cost_bound: float | None
    advice: tuple[Advice, ...] = ()


def report(
    connection: Connection,
    *,
    now_ms: int,
    since_ms: int = 0,
    costs: Costs | None = None,
) -> Report:
    """Return the report over all labels given since a time.

    Parameters
    ----------
    costs
        What mistakes cost; (1, 1, 0) by default.
    """
    costs = costs or Costs()
    pipelines = tuple(_in_use(connection, name) for name in pipelines_of(connection))
    begins = [event_time_of(connection, one.pipeline, since_ms, now_ms) for one in pipelines]
    from_ms = max(begins, default=0)
    found = quality(connection, costs, from_ms)
    advice: list[Advice] = []
    bound: float | None = None
    for one, begin in zip(pipelines, begins, strict=True):
        own = quality(connection, costs, begin, one.pipeline) if len(pipelines) > 1 else found
        advice += advise(one, own, costs)
    if len(pipelines) == 1:
        bound = _cost_bound(pipelines[0], costs)
    return Report(
        since_ms=since_ms,
        quality=found,
        agreement=agreement(connection, from_ms),
        workload=workload(connection, now_ms),
        pipelines=pipelines,
        cost_bound=bound,
        advice=tuple(advice),
    )


def event_time_of(connection: Connection, pipeline: str, since_ms: int, now_ms: int) -> int:
    """Return the event time that lies as far before a pipeline's as a time lies before now.

    Verdicts know event time alone; so totals and labels are both counted from there.
    """
    clock = pipeline_clock(connection, pipeline)
    return 0 if clock is None or not since_ms else max(0, clock.now_ms - (now_ms - since_ms))


def _cost_bound(used: InUse, costs: Costs) -> float | None:
    n, r = used.window, used.n_anomalies
    if not n or not r or used.tolerance is None:
        return None
    try:
        band = rejection_band(n, round(r / n, 6), used.tolerance)
        return cost_bound(band, costs.c_fp, costs.c_fn, costs.c_r)
    except ConfigError:
        return None
