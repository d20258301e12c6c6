"""How the queue is doing, and what labels give back: a report with proposals for the config.

Labels never change a verdict by themselves. Where they contradict the configuration the report
prints the change it would make, and what that change would do.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from sqlite3 import Connection
from typing import Literal

import msgspec

from rejex_stream.errors import ConfigError
from rejex_stream.plan.promises import Costs, Plan, plan
from rejex_stream.rejection import rejection_band
from rejex_stream.rejection.costs import cost_bound
from rejex_stream.review.gold_cases.reviewer_errors import Interval
from rejex_stream.review.queue.quality import (
    Quality,
    bootstrap,
    by_pair,
    cohen_kappa,
    judged_episodes,
    krippendorff_alpha,
    percent_agreement,
    quality,
)

__all__ = [
    "Advice",
    "Agreement",
    "Measured",
    "Proposal",
    "Report",
    "Workload",
    "advise",
    "agreement",
    "event_time_of",
    "measured",
    "pipelines_of",
    "propose_budget",
    "propose_contamination",
    "report",
    "workload",
]

_DAY_MS = 86_400_000
_WEEK_MS = 7 * _DAY_MS


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
    days = min(7.0, max((now_ms - first) / _DAY_MS, 1.0)) if first is not None else 1.0
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
    """How far reviewers agree, over episodes that at least two people judged.

    Attributes
    ----------
    kappa
        Of the pair of reviewers with most episodes in common, named in `pair`.
    """

    episodes: int
    judged: int
    percent: Interval
    alpha: Interval
    kappa: float | None
    pair: tuple[str, str] | None
    disputed: int


def agreement(connection: Connection, since_ms: int = 0) -> Agreement:
    """Return the agreement; adjudications are answers to a disagreement and do not count."""
    units: list[dict[str, str]] = []
    judged = 0
    for episode in judged_episodes(connection, since_ms):
        judged += 1
        said = {
            label.reviewer: str(label.verdict)
            for label in episode.labels
            if label.role != "adjudication"
        }
        if len(said) > 1:
            units.append(said)
    words = [tuple(unit.values()) for unit in units]
    pairs = by_pair(units)
    pair = max(pairs, key=lambda names: (len(pairs[names]), names), default=None)
    disputed = connection.execute(
        "SELECT count(*) FROM episode WHERE status = 'disputed'"
    ).fetchone()[0]
    return Agreement(
        episodes=len(units),
        judged=judged,
        percent=bootstrap(words, percent_agreement),
        alpha=bootstrap(words, krippendorff_alpha),
        kappa=cohen_kappa(pairs[pair]) if pair is not None else None,
        pair=pair,
        disputed=disputed,
    )


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a pipeline did over its last seven days of event time, to put beside a plan.

    Attributes
    ----------
    days
        Event time covered.
    events_per_episode
        Rejected events that one review settled.
    window, n_anomalies, tolerance
        n, r and T in use.
    """

    pipeline: str
    days: float
    sensors: int
    streams: int
    events_per_day: float
    rejected_per_day: float
    rejection_rate: float | None
    expected_rate: float | None
    episodes_per_day: float
    events_per_episode: float | None
    window: int | None
    n_anomalies: int | None
    tolerance: float | None


def pipelines_of(connection: Connection) -> list[str]:
    """Return the names of the pipelines that have given a verdict."""
    rows = connection.execute(
        "SELECT DISTINCT pipeline FROM sensor WHERE last_ms IS NOT NULL ORDER BY 1"
    )
    return [row[0] for row in rows]


def measured(connection: Connection, pipeline: str) -> Measured | None:
    """Return what a pipeline did; ``None`` before its first verdict."""
    newest = connection.execute(
        "SELECT max(t_ms), min(t_ms) FROM minute JOIN sensor USING (sensor_id) "
        "WHERE pipeline = ? AND normal + anomaly + rejected > 0",
        (pipeline,),
    ).fetchone()
    if newest[0] is None:
        return None
    start = max(newest[1], newest[0] - _WEEK_MS)
    days = max((newest[0] - start) / _DAY_MS, 1 / 24)
    found = connection.execute(
        "SELECT sum(normal + anomaly + rejected), sum(banded), sum(ambiguous), sum(expected) "
        "FROM minute JOIN sensor USING (sensor_id) WHERE pipeline = ? AND t_ms >= ?",
        (pipeline, start),
    ).fetchone()
    episodes = connection.execute(
        "SELECT count(*), coalesce(sum(n_events), 0) FROM episode JOIN sensor USING (sensor_id) "
        "WHERE pipeline = ? AND start_ms >= ? AND why = 'rejected' AND status <> 'empty' "
        "AND root_id = episode_id",
        (pipeline, start),
    ).fetchone()
    sensors = connection.execute(
        "SELECT count(*), count(DISTINCT stream_key), max(window_len) FROM sensor "
        "WHERE pipeline = ? AND last_ms IS NOT NULL",
        (pipeline,),
    ).fetchone()
    window = connection.execute(
        "SELECT window_len, n_anomalies, tolerance FROM sensor WHERE pipeline = ? "
        "AND window_len IS NOT NULL ORDER BY window_len DESC LIMIT 1",
        (pipeline,),
    ).fetchone()
    banded = found[1]
    return Measured(
        pipeline=pipeline,
        days=days,
        sensors=sensors[0],
        streams=sensors[1],
        events_per_day=found[0] / days,
        rejected_per_day=found[2] / days,
        rejection_rate=found[2] / banded if banded else None,
        expected_rate=found[3] / banded if banded else None,
        episodes_per_day=episodes[0] / days,
        events_per_episode=episodes[1] / episodes[0] if episodes[0] else None,
        window=window[0] if window else None,
        n_anomalies=window[1] if window else None,
        tolerance=window[2] if window else None,
    )


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A change to the configuration, with its reason and what it would do.

    Attributes
    ----------
    pipeline
        Whose config.
    toml
        The lines to change, old values as comments.
    before, after
        What the planner promises with and without it; `after` may say why it cannot work.
    """

    pipeline: str
    reason: str
    toml: str
    before: Plan
    after: Plan


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a pipeline, or with what is known of it, in a sentence."""

    pipeline: str
    kind: Literal["blind_detector", "too_few_answers", "theory_broken"]
    message: str


def advise(measured: Measured, found: Quality, costs: Costs) -> list[Advice]:
    """Tell a detector that does not see the faults from answers too few to say, and a broken bound.

    A wrong γ is a :class:`Proposal`; for a blind detector another γ would only flag more of the
    same events.
    """
    told: list[tuple[Literal["blind_detector", "too_few_answers", "theory_broken"], str]] = []
    miss, bound = found.miss_rate, _cost_bound(measured, costs)
    if blind(found) and miss.value is not None and miss.low is not None:
        told.append(
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
        told.append(
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
        told.append(
            (
                "theory_broken",
                f"An event costs {cost.value:.3g}, at least {cost.low:.3g}, and theory promises at "
                f"most {bound:.3g}: its premises do not hold here (scores in no order of time, a "
                "detector that ranks anomalies first, no more of them than contamination says).",
            )
        )
    return [Advice(pipeline=measured.pipeline, kind=kind, message=said) for kind, said in told]


_VAGUE = 0.5
"""An interval for the share that is missed this wide says nothing."""


def blind(found: Quality) -> bool:
    """Say whether, as far as the labels can prove it, most anomalies are called normal."""
    return found.miss_rate.low is not None and found.miss_rate.low > 0.5


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the labels say.

    Attributes
    ----------
    pipelines
        Measured rates, per pipeline.
    cost_bound
        The theory's bound on the mean cost of an event, for a single pipeline with known n, r, T.
    advice
        What no change of γ or of the budget would mend.
    """

    since_ms: int
    quality: Quality
    agreement: Agreement
    workload: Workload
    pipelines: tuple[Measured, ...]
    cost_bound: float | None
    proposals: tuple[Proposal, ...]
    advice: tuple[Advice, ...] = ()


def report(
    connection: Connection,
    *,
    now_ms: int,
    since_ms: int = 0,
    costs: Costs | None = None,
    contamination: Mapping[str, float] | None = None,
) -> Report:
    """Return the report over all labels given since a time.

    Parameters
    ----------
    costs
        What mistakes cost; (1, 1, 0) by default.
    contamination
        The configured γ by name of the pipeline; by default r / n as the verdicts tell it, which is
        at most it.
    """
    costs = costs or Costs()
    from_ms = event_time_of(connection, since_ms, now_ms)
    found = quality(connection, costs, from_ms)
    load = workload(connection, now_ms)
    names = pipelines_of(connection)
    pipelines = tuple(one for name in names if (one := measured(connection, name)) is not None)
    proposals: list[Proposal] = []
    advice: list[Advice] = []
    bound: float | None = None
    for one in pipelines:
        gamma = (contamination or {}).get(one.pipeline)
        own = quality(connection, costs, from_ms, one.pipeline) if len(pipelines) > 1 else found
        advice += advise(one, own, costs)
        wanted = (propose_contamination(one, own, gamma), propose_budget(one, load, gamma))
        proposals += [proposal for proposal in wanted if proposal is not None]
    if len(pipelines) == 1:
        bound = _cost_bound(pipelines[0], costs)
    return Report(
        since_ms=since_ms,
        quality=found,
        agreement=agreement(connection, from_ms),
        workload=load,
        pipelines=pipelines,
        cost_bound=bound,
        proposals=tuple(proposals),
        advice=tuple(advice),
    )


def event_time_of(connection: Connection, since_ms: int, now_ms: int) -> int:
    """Return the event time that lies as far before the newest one as a time lies before now.

    Verdicts know event time alone; so totals and labels are both counted from there.
    """
    newest = connection.execute(
        "SELECT max((SELECT max(t_ms) FROM minute), (SELECT max(end_ms) FROM episode))"
    ).fetchone()[0]
    return 0 if newest is None or not since_ms else max(0, newest - (now_ms - since_ms))


def _gamma(measured: Measured, configured: float | None) -> float | None:
    if configured is not None:
        return configured
    if not measured.window or not measured.n_anomalies:
        return None
    return round(measured.n_anomalies / measured.window, 6)


def _cost_bound(measured: Measured, costs: Costs) -> float | None:
    gamma = _gamma(measured, None)
    if gamma is None or measured.window is None or measured.tolerance is None:
        return None
    try:
        band = rejection_band(measured.window, gamma, measured.tolerance)
        return cost_bound(band, costs.c_fp, costs.c_fn, costs.c_r)
    except ConfigError:
        return None


def propose_contamination(
    measured: Measured, found: Quality, configured: float | None = None
) -> Proposal | None:
    """Propose another γ if the configured one is outside the interval that labels leave for it.

    Not for a detector that does not see the anomalies: see :func:`advise`.
    """
    gamma = _gamma(measured, configured)
    estimate = found.contamination
    if (
        gamma is None
        or measured.window is None
        or measured.tolerance is None
        or estimate.value is None
        or estimate.low is None
        or estimate.high is None
        or estimate.low <= gamma <= estimate.high
        or blind(found)
    ):
        return None
    wanted = round(min(max(estimate.value, 1e-4), 0.49), 4)
    events = measured.events_per_day
    return Proposal(
        pipeline=measured.pipeline,
        reason=f"Labels put the share of anomalies at {100 * estimate.value:.2g} % "
        f"({100 * estimate.low:.2g} to {100 * estimate.high:.2g} %); "
        f"contamination = {gamma:g} is outside.",
        toml=f"[rejection]\ncontamination = {wanted:g}   # was {gamma:g}\n",
        before=plan(gamma, measured.window, measured.tolerance, events_per_day=events),
        after=plan(wanted, measured.window, measured.tolerance, events_per_day=events),
    )


def propose_budget(
    measured: Measured, load: Workload, configured: float | None = None
) -> Proposal | None:
    """Propose a smaller rejection budget if far more episodes arrive than people decide."""
    gamma = _gamma(measured, configured)
    if (
        gamma is None
        or measured.window is None
        or measured.tolerance is None
        or measured.expected_rate is None
        or load.decided < 20
        or load.arrived_per_day <= 1.2 * load.decided_per_day
    ):
        return None
    share = load.decided_per_day / load.arrived_per_day
    rate = float(f"{measured.expected_rate * share:.3g}")
    events = measured.events_per_day
    return Proposal(
        pipeline=measured.pipeline,
        reason=f"{load.arrived_per_day:.0f} cases arrive a day and {load.decided_per_day:.0f} "
        "are decided.",
        toml="[rejection]\n"
        f"review_budget = {{ rate = {rate:g} }}   # instead of tolerance = "
        f"{measured.tolerance:.4g}\n",
        before=plan(gamma, measured.window, measured.tolerance, events_per_day=events),
        after=plan(gamma, measured.window, rate=rate, events_per_day=events),
    )
