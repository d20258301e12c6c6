"""From a team's working day to n and T: which rejection rate fits, and which windows allow it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from scipy.special import betainc, betaincinv

from rejex_stream.errors import ConfigError
from rejex_stream.plan.promises import (
    TRUSTED_TOLERANCE,
    Costs,
    EpisodeRule,
    Plan,
    episodes_per_day,
    plan,
    plan_doubts,
)
from rejex_stream.rejection import min_window, rejection_band, window_for_rate
from rejex_stream.rejection.arguments import check_burst, check_contamination
from rejex_stream.rejection.bounds import DELTA, expected_rejection_rate
from rejex_stream.rejection.policy import LEAST_BURST, BudgetOwner

__all__ = [
    "WINDOWS",
    "CapacityPlan",
    "CapacityRow",
    "HeldRate",
    "Team",
    "events_together",
    "frozen_overrun",
    "held_rate",
    "plan_for_team",
    "reviews_needed",
    "safe_rate",
    "sliding_overrun",
]

WINDOWS = (500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
"""Windows that are tried when none are given."""

_OWNERS: tuple[BudgetOwner, ...] = ("stream", "partition")
_LARGEST_WINDOW = 10_000_000
# A label that flips with exp(-32), the paper's value, is certain: more only costs reviews.
_AMPLE_TOLERANCES = (32.0, 16.0, 8.0)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """How much arrives, and how much people can look at.

    Attributes
    ----------
    sensors, events_per_s
        How many sensors, and how many events each sends a second.
    reviewers, minutes_per_day, handling_s
        How many people, for how many minutes a day each, and seconds per review.
    events_per_episode
        Rejected events that one review settles at once, as measured by a replay; 1 counts every
        rejected event as a review of its own.
    streams
        Windows that are kept: one per sensor unless sensors are pooled.

    Raises
    ------
    ConfigError
        If a number is not positive.
    """

    sensors: int
    events_per_s: float
    reviewers: float = 1.0
    minutes_per_day: float = 60.0
    handling_s: float = 45.0
    events_per_episode: float = 1.0
    streams: int | None = None

    def __post_init__(self) -> None:
        for name in ("sensors", "events_per_s", "reviewers", "minutes_per_day", "handling_s"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ConfigError(f"{name} = {value:g} cannot be used: give a positive number.")
        if not 1 <= self.events_per_episode < math.inf:
            raise ConfigError(
                f"events_per_episode = {self.events_per_episode:g} is below 1: an episode has at "
                "least one event."
            )
        if self.streams is not None and not 1 <= self.streams <= self.sensors:
            raise ConfigError(
                f"streams = {self.streams} cannot be used: give 1 (all pooled) up to the number "
                f"of sensors, {self.sensors}."
            )

    @property
    def events_per_day(self) -> float:
        """Events over all sensors."""
        return self.sensors * self.events_per_s * 86_400

    @property
    def reviews_per_day(self) -> int:
        """Reviews that fit into the working day."""
        return math.floor(self.reviewers * self.minutes_per_day * 60 / self.handling_s)

    @property
    def events_per_stream_day(self) -> float:
        """Events a day that fill one window."""
        return self.events_per_day / (self.streams or self.sensors)


class CapacityRow(msgspec.Struct, frozen=True, kw_only=True):
    """One window under the safe rate.

    Attributes
    ----------
    plan
        What it promises, with the largest tolerance that fits and helps.
    time_left
        Whether people have time for more, which no larger tolerance would put to use.
    reviews_per_day, minutes_per_day
        Expected reviews (rejected events by `events_per_episode`) and the minutes they take.
    independent_episodes_per_day
        Episodes if rejections were independent of each other; a replay measures the real number.
    overrun
        Probability that a day brings more than people can look at.
    fill_days
        How long one window takes to fill.
    """

    plan: Plan
    reviews_per_day: float | None = None
    minutes_per_day: float | None = None
    independent_episodes_per_day: float | None = None
    overrun: float | None = None
    fill_days: float
    time_left: bool = False


class HeldRate(msgspec.Struct, frozen=True, kw_only=True):
    """A budget that no day can overrun, whatever the scores do.

    Attributes
    ----------
    owner, owners
        Who has one, and how many there are; of partitions, one.
    burst
        Rejected events of each owner beyond its rate, at any time.
    at_once
        Of all owners together.
    rate
        The largest rate at which a day's rate and all bursts are within a day's reviews; ``None``
        where the bursts alone are more.
    """

    owner: BudgetOwner
    owners: int
    burst: int
    at_once: int
    rate: float | None


class CapacityPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which windows and tolerances a team can afford.

    Attributes
    ----------
    events_per_day, reviews_per_day
        What arrives, and what people can look at.
    naive_rate, safe_rate
        Reviews over events; and the largest rate that overruns on at most `overrun` of the days.
    overrun
        The probability allowed.
    held
        With a budget of each stream, and of each partition, what holds without any probability.
    rows
        One per window.
    recommended
        Index of the smallest window that works, if one does.
    spare
        What is left of the day, where time is not what limits the recommended window.
    refusal
        Why none does.
    nearest
        Changes, each of which alone would make it work.
    """

    events_per_day: float
    reviews_per_day: int
    naive_rate: float
    safe_rate: float
    overrun: float
    held: tuple[HeldRate, ...]
    rows: tuple[CapacityRow, ...]
    recommended: int | None
    spare: str | None
    refusal: str | None
    nearest: tuple[str, ...]


def plan_for_team(
    team: Team,
    contamination: float,
    *,
    windows: Sequence[int] = WINDOWS,
    frozen: bool = False,
    overrun: float = 0.01,
    delta: float = DELTA,
    costs: Costs | None = None,
    rule: EpisodeRule | None = None,
    least_tolerance: float = TRUSTED_TOLERANCE,
    burst: int = LEAST_BURST,
) -> CapacityPlan:
    """Find the windows and tolerances that a team can keep up with, or say what would help.

    Parameters
    ----------
    team
        What arrives, and what people can look at.
    contamination
        γ.
    windows
        Windows to try.
    frozen
        Whether windows stay as they are instead of sliding (the batch facade).
    overrun
        Share of days on which there may be more to review than fits.
    delta, costs
        As in :func:`~rejex_stream.plan.promises.plan`.
    rule
        What makes an episode.
    least_tolerance
        Smaller tolerances are refused.
    burst
        Of a budget that is held.

    Examples
    --------
    >>> team = Team(sensors=5, events_per_s=0.1, reviewers=2, minutes_per_day=60, handling_s=10)
    >>> answer = plan_for_team(team, 0.05)
    >>> answer.reviews_per_day, round(answer.safe_rate, 4)
    (720, 0.0153)
    >>> answer.rows[answer.recommended].plan.window
    5000
    >>> plan_for_team(Team(sensors=200, events_per_s=1), 0.05).recommended is None
    True
    >>> plan_for_team(Team(sensors=1, events_per_s=0.001), 0.05).spare
    'Everything fits, and time is left: n = 500 at T = 32 brings about 13 of the 80 reviews a day \
that people have time for.'
    """
    check_contamination(contamination)
    question = _Question(team, contamination, frozen, overrun, delta, costs, rule, least_tolerance)
    safe = safe_rate(
        team.events_per_day,
        team.reviews_per_day,
        overrun=overrun,
        events_per_episode=team.events_per_episode,
    )
    rows = tuple(_row(question, n, safe) for n in sorted(set(windows)))
    works = [i for i, row in enumerate(rows) if row.plan.refusal is None]
    refusal, nearest = (None, ()) if works else _refuse(question, safe, max(windows))
    return CapacityPlan(
        events_per_day=team.events_per_day,
        reviews_per_day=team.reviews_per_day,
        naive_rate=team.reviews_per_day * team.events_per_episode / team.events_per_day,
        safe_rate=safe,
        overrun=overrun,
        held=tuple(held_rate(team, owner, burst) for owner in _OWNERS),
        rows=rows,
        recommended=works[0] if works else None,
        spare=_spare(team, rows[works[0]]) if works else None,
        refusal=refusal,
        nearest=nearest,
    )


@dataclass(frozen=True, slots=True)
class _Question:
    """What was asked, apart from the window."""

    team: Team
    contamination: float
    frozen: bool
    overrun: float
    delta: float
    costs: Costs | None
    rule: EpisodeRule | None
    least_tolerance: float

    def promise(self, n: int, tolerance: float | None = None, rate: float | None = None) -> Plan:
        return plan(
            self.contamination,
            n,
            tolerance,
            rate=rate,
            delta=self.delta,
            costs=self.costs,
            events_per_day=self.team.events_per_day,
        )

    def overrun_of(self, width: int, n: int) -> float:
        team = self.team
        events = team.events_per_day / team.events_per_episode
        if self.frozen:
            streams = team.streams or team.sensors
            return frozen_overrun(events, team.reviews_per_day, width, n, streams=streams)
        return sliding_overrun(events, team.reviews_per_day, width / (n + 1))


def _row(question: _Question, n: int, safe: float) -> CapacityRow:
    team = question.team
    fill = n / team.events_per_stream_day
    rate = _frozen_rate(question, n, safe) if question.frozen else safe
    if rate <= 0:
        nothing = Plan(
            contamination=question.contamination,
            window=n,
            tolerance=None,
            delta=question.delta,
            promise=None,
            refusal="no rejected event at all fits into the day.",
        )
        return CapacityRow(plan=nothing, fill_days=fill)
    choice, time_left = _choose(question, n, rate)
    promise = choice.promise
    if promise is None:
        return CapacityRow(plan=choice, fill_days=fill)
    reviews = promise.expected_rate * team.events_per_day / team.events_per_episode
    return CapacityRow(
        plan=choice,
        reviews_per_day=reviews,
        minutes_per_day=reviews * team.handling_s / 60,
        independent_episodes_per_day=episodes_per_day(
            promise.expected_rate, team.events_per_day, team.sensors, question.rule
        ),
        overrun=question.overrun_of(promise.upper - promise.lower + 1, n),
        fill_days=fill,
        time_left=time_left,
    )


def _choose(question: _Question, n: int, rate: float) -> tuple[Plan, bool]:
    """Return the largest tolerance that the rate allows and that helps; whether time is left."""
    ample = _AMPLE_TOLERANCES[0]
    choice = _trusted(question, question.promise(n, rate=rate), rate) if rate < 1 else None
    fits = choice is not None and choice.refusal is None
    if choice and fits and (choice.tolerance or 0.0) <= ample and not plan_doubts(choice):
        return choice, False
    least = question.least_tolerance
    smaller = [
        other
        for tolerance in (*(one for one in _AMPLE_TOLERANCES if one > least), least)
        if (other := question.promise(n, tolerance=tolerance)).refusal is None
        and other.promise is not None
        and other.promise.expected_rate <= rate
    ]
    if smaller:
        return next((one for one in smaller if not plan_doubts(one)), smaller[-1]), True
    return choice or question.promise(n, tolerance=least), False


def _spare(team: Team, row: CapacityRow) -> str | None:
    if not row.time_left or row.reviews_per_day is None:
        return None
    return (
        f"Everything fits, and time is left: n = {row.plan.window:,} at T = {row.plan.tolerance:g} "
        f"brings about {row.reviews_per_day:,.{1 if row.reviews_per_day < 10 else 0}f} of the "
        f"{team.reviews_per_day:,} reviews a day that people have time for."
    )


def _trusted(question: _Question, choice: Plan, rate: float) -> Plan:
    """Refuse a tolerance that means too little."""
    least, tolerance = question.least_tolerance, choice.tolerance
    if choice.refusal is not None or tolerance is None or tolerance >= least:
        return choice
    # One band belongs to a range of tolerances, and the least one may still be in it.
    other = question.promise(choice.window, tolerance=least)
    if other.promise is not None and other.promise.expected_rate <= rate:
        return other
    return msgspec.structs.replace(
        choice,
        refusal=f"T = {tolerance:.2g} is below {least:g}: accepted labels would flip with up to "
        f"{math.exp(-tolerance):.1%}, and the paper's theorem needs T of at least 4. Use a larger "
        "window.",
    )


def _frozen_rate(question: _Question, n: int, safe: float) -> float:
    """Return the largest rate whose Beta-binomial count overruns seldom enough; below `safe`."""
    most = math.floor(safe * (n + 1))
    left = _least(0, most, lambda cut: question.overrun_of(most - cut, n) <= question.overrun)
    width = most - left
    return (width + 0.5) / (n + 1) if width else 0.0


def _refuse(question: _Question, safe: float, largest: int) -> tuple[str, tuple[str, ...]]:
    """Say why nothing works, and the changes each of which alone would help."""
    team, least = question.team, question.least_tolerance
    events, capacity = team.events_per_day, team.reviews_per_day
    if safe >= 1:
        n = min_window(question.contamination, least)
        return (
            f"{capacity:,} reviews a day cover all {events:,.0f} events, but no window up to "
            f"{largest:,} can give both labels with a tolerance of at least {least:g}.",
            (f"a window of {n:,} events at T = {least:g}",),
        )
    if capacity:
        refusal = (
            f"With {events:,.0f} events and {capacity:,} reviews a day, at most {safe:.2g} of the "
            f"events may be rejected; no window up to {largest:,} does that with a tolerance of at "
            f"least {least:g}."
        )
    else:
        refusal = (
            f"Not one review fits into the day: it takes {team.handling_s:,.0f} s, and people have "
            f"{team.reviewers * team.minutes_per_day:,.3g} minutes."
        )
    nearest = _larger_window(question, safe) if safe > 0 else []
    n = max(largest, min_window(question.contamination, least))
    rate = expected_rejection_rate(rejection_band(n, question.contamination, least))
    needed = reviews_needed(events / team.events_per_episode, rate, question.overrun)
    minutes, per_person = needed * team.handling_s / 60, team.minutes_per_day
    seconds = per_person * team.reviewers * 60 / needed
    at = f"at n = {n:,}, T = {least:g}"
    nearest.append(
        f"{at}: {needed:,} reviews a day, that is {minutes:,.0f} minutes "
        f"({minutes / per_person:,.1f} people at {per_person:g} minutes, or {seconds:.2g} s a "
        "review)"
    )
    if capacity:
        together = events_together(events, capacity, rate, question.overrun)
        nearest.append(
            f"{at}: one review for every {together:,} rejected events, by episodes or pooled "
            "sensors (measure yours with --replay)"
        )
    if 0 < safe < rate:
        nearest.append(f"{at}: look at a random {safe / rate:.2g} of the rejected events only")
    return refusal, tuple(nearest)


def _larger_window(question: _Question, safe: float) -> list[str]:
    gamma, least = question.contamination, question.least_tolerance
    if expected_rejection_rate(rejection_band(_LARGEST_WINDOW, gamma, least)) > safe:
        return []
    n = window_for_rate(safe, gamma, least)
    days = n / question.team.events_per_stream_day
    return [f"a window of {n:,} events at T = {least:g} (fills in {days:,.1f} days)"]


# ------------------------------------------------------------------- how often a day overruns
def held_rate(team: Team, owner: BudgetOwner, burst: int) -> HeldRate:
    """Return the largest rate that no day can overrun, if a budget holds it.

    S owners reject at most ρ L + S · B of L events together (docs/theory.md).

    Examples
    --------
    >>> team = Team(sensors=5, events_per_s=0.1, reviewers=2, minutes_per_day=60, handling_s=10)
    >>> [round(held_rate(team, owner, 50).rate, 4) for owner in ("stream", "partition")]
    [0.0109, 0.0155]
    >>> held_rate(team, "stream", 150).rate is None
    True
    """
    owners = 1 if owner == "partition" else team.streams or team.sensors
    at_once = owners * check_burst(burst)
    left = team.reviews_per_day * team.events_per_episode - at_once
    rate = left / team.events_per_day if left > 0 else None
    return HeldRate(
        owner=owner, owners=owners, burst=burst, at_once=at_once,
        rate=None if rate is None else min(1.0, rate),
    )  # fmt: skip


def safe_rate(
    events: float, capacity: int, *, overrun: float = 0.01, events_per_episode: float = 1.0
) -> float:
    """Return the largest rejection rate with P(more reviews than `capacity`) <= `overrun`.

    For P(Bin(events, rate) > capacity), inverted exactly. That is conservative for a sliding
    window, whose rate corrects itself; for a frozen one see :func:`frozen_overrun`. Where rejected
    events come in episodes, it is the episodes that are counted.

    Examples
    --------
    >>> round(safe_rate(1000, 10), 5), round(safe_rate(100_000, 200), 5)
    (0.00478, 0.0017)
    """
    trials = events / events_per_episode
    if capacity >= trials:
        return 1.0
    if capacity < 1:
        return 0.0
    return float(betaincinv(capacity + 1, trials - capacity, overrun))


def frozen_overrun(
    events: float, capacity: int, width: int, window: int, *, streams: int = 1
) -> float:
    """Return P(more than `capacity` rejected events) for windows that do not slide.

    A frozen window has a rejection rate of its own, Beta(w, n + 1 - w), so the count is
    Beta-binomial: wider than binomial by a factor 1 + events / n. `streams` windows average out.

    Examples
    --------
    >>> frozen, sliding = frozen_overrun(10_000, 120, 20, 2000), frozen_overrun(
    ...     10_000, 120, 20 * 10**6, 2000 * 10**6)
    >>> round(frozen, 2), round(sliding, 2)
    (0.19, 0.02)
    """
    if capacity >= events:
        return 0.0
    a, b = streams * width, streams * (window + 1 - width)
    rates = betaincinv(a, b, (_NODES + 1) / 2)
    return float((_WEIGHTS / 2) @ betainc(capacity + 1, events - capacity, rates))


def sliding_overrun(events: float, capacity: int, rate: float) -> float:
    """Return P(more than `capacity` rejected events) at a rate, for windows that slide.

    Examples
    --------
    >>> round(sliding_overrun(1000, 10, 0.00478), 3)
    0.01
    """
    if capacity >= events:
        return 0.0
    return float(betainc(capacity + 1, events - capacity, rate))


def reviews_needed(events: float, rate: float, overrun: float) -> int:
    """Return the smallest capacity that P(Bin(events, rate) > capacity) <= overrun allows."""
    return _least(
        0, math.ceil(events), lambda capacity: sliding_overrun(events, capacity, rate) <= overrun
    )


def events_together(events: float, capacity: int, rate: float, overrun: float) -> int:
    """Return the smallest episode, in rejected events, that makes `rate` safe."""
    return _least(
        1,
        math.ceil(events / capacity),
        lambda size: rate <= safe_rate(events, capacity, overrun=overrun, events_per_episode=size),
    )


def _least(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the least number from which on `holds`; `high` if none below it does."""
    return low + bisect_left(range(low, high), True, key=holds)
