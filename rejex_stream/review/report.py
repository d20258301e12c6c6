"""What labels give back: a report, and proposals that somebody has to put into the config.

Labels never change a verdict by themselves. Where they contradict the configuration the report
prints the change it would make, and what that change would do.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rejex_stream.errors import ConfigError
from rejex_stream.guarantees import cost_bound
from rejex_stream.planner import Costs, Plan, plan
from rejex_stream.rejection import rejection_band
from rejex_stream.review import workload
from rejex_stream.review.quality import Quality, quality
from rejex_stream.review.storage import Connection
from rejex_stream.review.workload import Agreement, Measured, Workload

__all__ = ["Proposal", "Report", "propose_budget", "propose_contamination", "report"]


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


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the labels say.

    Attributes
    ----------
    pipelines
        Measured rates, per pipeline.
    cost_bound
        The theory's bound on the mean cost of an event, for a single pipeline with known n, r, T.
    """

    since_ms: int
    quality: Quality
    agreement: Agreement
    workload: Workload
    pipelines: tuple[Measured, ...]
    cost_bound: float | None
    proposals: tuple[Proposal, ...]


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
    found = quality(connection, costs, since_ms)
    load = workload.workload(connection, now_ms)
    names = [
        row[0]
        for row in connection.execute(
            "SELECT DISTINCT pipeline FROM sensor WHERE last_ms IS NOT NULL ORDER BY 1"
        )
    ]
    pipelines = tuple(
        one for name in names if (one := workload.measured(connection, name)) is not None
    )
    proposals: list[Proposal] = []
    bound: float | None = None
    for one in pipelines:
        gamma = (contamination or {}).get(one.pipeline)
        own = quality(connection, costs, since_ms, one.pipeline) if len(pipelines) > 1 else found
        wanted = (propose_contamination(one, own, gamma), propose_budget(one, load, gamma))
        proposals += [proposal for proposal in wanted if proposal is not None]
    if len(pipelines) == 1:
        bound = _cost_bound(pipelines[0], costs)
    return Report(
        since_ms=since_ms,
        quality=found,
        agreement=workload.agreement(connection, since_ms),
        workload=load,
        pipelines=pipelines,
        cost_bound=bound,
        proposals=tuple(proposals),
    )


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
    """Propose another γ if the configured one is outside the interval that labels leave for it."""
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
        reason=f"{load.arrived_per_day:.0f} episodes arrive a day and {load.decided_per_day:.0f} "
        "are decided.",
        toml="[rejection]\n"
        f"review_budget = {{ rate = {rate:g} }}   # instead of tolerance = "
        f"{measured.tolerance:.4g}\n",
        before=plan(gamma, measured.window, measured.tolerance, events_per_day=events),
        after=plan(gamma, measured.window, rate=rate, events_per_day=events),
    )
