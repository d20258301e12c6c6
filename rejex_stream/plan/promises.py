"""What a choice of γ, n and T promises.

Pure functions with frozen results: the command line and the console print the same numbers.
Everything here holds for exchangeable scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from msgspec.structs import replace

from rejex_stream.errors import ConfigError
from rejex_stream.rejection import RejectionBand
from rejex_stream.rejection.arguments import check_number, check_window
from rejex_stream.rejection.band import nested_band
from rejex_stream.rejection.bounds import (
    DELTA,
    cost_bound,
    cost_quantile,
    exact_rate_bound,
    expected_rejection_rate,
    paper_rate_bound,
)
from rejex_stream.rejection.policy import BudgetOwner, RejectionPolicy
from rejex_stream.rejection.token_bucket import base_width

TRUSTED_TOLERANCE = 4.0
"""Below it the paper's theorem 3.1 does not hold, and a label may flip with more than 1.8 %."""

BESIDE_BUDGET = (
    "Events without a rank, audit draws and items about the state of a sensor spend none of it; "
    "`review.capacity`, if set, bounds all cases that people are asked in a day, these included, "
    "and only open incidents are asked beyond it"
)
"""What a budget that holds does not bound; said wherever :func:`budget_sentence` is."""
_OWNERS = {"stream": "a stream", "group": "a group", "partition": "a partition"}


def budget_sentence(
    rate: str = "rate", burst: str = "burst", *, per_day: str | None = None, owner: str = "stream"
) -> str:
    """Return what a budget that holds promises, in the one sentence for it.

    Examples
    --------
    >>> budget_sentence("0.02", "50")
    'of any L ranked events of a stream, in all its modes and after any absence, at most 0.02 · L \
+ 50 are rejected, whatever the scores do'
    """
    whose = f"ranked events of {_OWNERS[owner]}, in all its modes and after any absence,"
    if per_day is None:
        return f"of any L {whose} at most {rate} · L + {burst} are rejected, whatever the scores do"
    return (
        f"of the {whose} at most {per_day} · τ + {burst} are rejected while the trusted clock "
        "advances by τ days, whatever the scores do"
    )


@dataclass(frozen=True, slots=True)
class Costs:
    """Cost of a false alarm, of a missed anomaly and of a rejected event, in any one unit."""

    c_fp: float = 1.0
    c_fn: float = 1.0
    c_r: float = 0.0


_DECLARED = 0.5
"""How far it is believed that a reference holds the share of anomalies that was declared."""


def cost_of_leaning(p_anomaly: float, costs: Costs) -> float:
    """Return the expected cost of the label that an ambiguous event leans to.

    It is called an anomaly with probability `p_anomaly` under redrawn reference data. So probably
    is it one if the reference holds as many as were declared; if it holds none, as that of a sensor
    that is well, some events are the highest all the same. Nobody knows which, and each is believed
    by half: one that leans to "anomaly" is mostly a false alarm, one that leans to "normal" seldom
    a miss.

    Examples
    --------
    >>> cost_of_leaning(0.6, Costs()), cost_of_leaning(0.4, Costs(c_fn=10.0))
    (0.7, 2.0)
    """
    anomalous = _DECLARED * p_anomaly
    return costs.c_fp * (1.0 - anomalous) if p_anomaly >= 0.5 else costs.c_fn * anomalous


EPISODE_GAP_S, EPISODE_GAP_EVENTS = 60.0, 5
"""Events of one sensor so close in time or in number are one episode, the unit people review."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A rate that holds on any stream, see :mod:`rejex_stream.rejection.token_bucket`."""

    burst: int
    per_day: float | None
    """How many events beyond the rate, and the budget by event time, of each owner."""
    max_width: int
    max_tolerance: float
    """The band at full credit. Without credit nothing is rejected; at half of it, the band and T
    are those of the plan."""
    promise: str
    """The sentence for it, of :func:`budget_sentence`."""


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about n, γ and T before the first event; rates are shares of all events."""

    n_anomalies: int
    lower: int
    upper: int
    """r, and the rejected ranks, inclusive."""
    expected_rate: float
    """R, the mean rejection rate, exactly."""
    exact_bound: float
    paper_bound: float
    paper_bound_printed: float | None
    """Exceeded with probability at most δ: exact; the paper's h; h as printed (``None`` where the
    printed form has no value)."""
    anomaly_rate: float
    normal_rate: float
    """Expected shares accepted as anomaly and as normal."""
    kept_share: float
    """Share of flagged events (ranks above n - r) that stay anomalies instead of being rejected."""
    cost_bound: float | None = None
    cost_quantile: float | None = None
    """Bound on the mean cost of an event, and the cost that a window exceeds with probability δ."""
    rejected_per_day: float | None = None
    rejected_per_day_bound: float | None = None
    anomalies_per_day: float | None = None
    """Expected rejected events, their exact bound, and expected anomalies."""
    held: Held | None = None
    """How the rate is held, whatever the scores do; ``None`` where it is only expected."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One choice: its promise, or why it cannot work (sometimes both)."""

    contamination: float
    window: int
    tolerance: float | None
    delta: float
    """γ, n, T (``None`` where a rate allows none) and δ."""
    promise: Promise | None
    """``None`` where there is no band at all."""
    rate: float | None = None
    """The share of events that people can review, where one was given."""
    refusal: str | None = None
    """Why no pipeline would run with it, and the fix; ``None`` for a choice that works."""


def plan(
    contamination: float, window: int, tolerance: float | None = None, *, rate: float | None = None,
    burst: int | None = None, per_day: float | None = None, owner: BudgetOwner = "stream",
    delta: float = DELTA, costs: Costs | None = None, events_per_day: float | None = None,
) -> Plan:  # fmt: skip
    """Say what a choice promises; one that cannot work is a result, not an error.

    Either `tolerance` is given or `rate`, which `burst` and `per_day` hold for each `owner`, as in
    :class:`RejectionPolicy`. The bounds may fail with probability `delta`; without `costs`, or
    `events_per_day` over all sensors, nothing is said of them.

    Examples
    --------
    >>> choice = plan(0.05, 1000, 32, delta=0.05, events_per_day=86_400)
    >>> round(choice.promise.expected_rate, 4), round(choice.promise.rejected_per_day)
    (0.1059, 9149)
    >>> plan(0.01, 1000, 32).refusal
    'With window n = 1,000 and contamination 0.01 (r = 10) no score can ever be called an anomaly \
at tolerance T = 32: use a window of at least 1,700, or a tolerance of at most 16.06.'
    """
    delta, window = check_number("delta", delta), check_window(window)
    policy = RejectionPolicy(
        contamination, tolerance=tolerance, rate=rate, burst=burst, per_day=per_day, owner=owner
    )
    choice = Plan(
        contamination=contamination, window=window, tolerance=tolerance, rate=rate, delta=delta,
        promise=None,
    )  # fmt: skip
    try:
        band = policy.band(window)
    except ConfigError as error:  # r = 0, or a rate below one rank
        return replace(choice, refusal=str(error))
    promise = _promise(band, delta, costs, events_per_day)
    choice = replace(choice, tolerance=band.tolerance, promise=promise)
    try:
        policy.require(window)
    except ConfigError as error:
        return replace(choice, refusal=str(error))
    if policy.burst is not None:
        width = base_width(policy, window)
        held = Held(
            burst=policy.burst,
            per_day=policy.per_day,
            max_width=width,
            max_tolerance=nested_band(window, contamination, width).tolerance,
            promise=budget_sentence(
                f"{rate:g}",
                f"{policy.burst:,}",
                per_day=None if policy.per_day is None else f"{policy.per_day:g}",
                owner=owner,
            ),
        )
        choice = replace(choice, promise=replace(promise, held=held))
    return choice


def plan_doubts(choice: Plan) -> tuple[tuple[str, str], ...]:
    """Return what is doubtful about a choice that works, each with the fix.

    Examples
    --------
    >>> plan_doubts(plan(0.05, 2000, 8))
    ()
    >>> [doubt for doubt, _ in plan_doubts(plan(0.02, 2000, rate=0.002))]
    ['T = 0.98: labels are accepted that flip with a probability of up to 37%']
    """
    doubts = []
    tolerance, promise = choice.tolerance, choice.promise
    if tolerance is not None and tolerance < TRUSTED_TOLERANCE:
        flip = f"flip with a probability of up to {math.exp(-tolerance):.0%}"
        doubt = f"T = {tolerance:.2g}: labels are accepted that {flip}"
        doubts.append((doubt, "allow more rejections, or use a larger window"))
    if promise is not None and promise.kept_share < 0.1:
        kept = f"only {promise.kept_share:.0%} of the flagged events stay anomalies"
        fix = "use a larger window, or a smaller tolerance or budget"
        doubts.append((f"{kept}, the others are rejected", fix))
    return tuple(doubts)


def plan_table(
    contamination: float, windows: Sequence[int], tolerances: Sequence[float] = (), *,
    rates: Sequence[float] = (), burst: int | None = None, delta: float = DELTA,
    costs: Costs | None = None, events_per_day: float | None = None,
) -> tuple[Plan, ...]:  # fmt: skip
    """Say what every window promises with every tolerance, then with every rate.

    Examples
    --------
    >>> [len(plan_table(0.05, [1000, 2000], [4, 32])), len(plan_table(0.05, [1000], rates=[0.1]))]
    [4, 1]
    """
    check_number("contamination", contamination)
    choose = partial(plan, contamination, delta=delta, costs=costs, events_per_day=events_per_day)
    return tuple(
        choice
        for window in windows
        for choice in (
            *(choose(window, tolerance) for tolerance in tolerances),
            *(choose(window, rate=rate, burst=burst) for rate in rates),
        )
    )


def _promise(
    band: RejectionBand, delta: float, costs: Costs | None, events_per_day: float | None
) -> Promise:
    n, r = band.n, band.n_anomalies
    rate, bound = expected_rejection_rate(band), exact_rate_bound(band, delta)
    accepted = n + 1 - band.edges[2]
    try:
        printed = paper_rate_bound(n, band.contamination, band.tolerance, delta, printed=True)
    except ConfigError:
        printed = None
    promise = Promise(
        n_anomalies=r, lower=band.lower, upper=band.upper, expected_rate=rate, exact_bound=bound,
        paper_bound=paper_rate_bound(n, band.contamination, band.tolerance, delta),
        paper_bound_printed=printed, anomaly_rate=accepted / (n + 1),
        normal_rate=band.edges[0] / (n + 1), kept_share=accepted / r,
    )  # fmt: skip
    if costs is not None:
        c_fp, c_fn, c_r = costs.c_fp, costs.c_fn, costs.c_r
        promise = replace(
            promise,
            cost_bound=cost_bound(band, c_fp, c_fn, c_r),
            cost_quantile=cost_quantile(band, c_fp, c_fn, c_r, delta),
        )
    if events_per_day is not None:
        promise = replace(
            promise,
            rejected_per_day=rate * events_per_day,
            rejected_per_day_bound=bound * events_per_day,
            anomalies_per_day=promise.anomaly_rate * events_per_day,
        )
    return promise
