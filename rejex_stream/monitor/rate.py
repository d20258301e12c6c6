"""The rolling rejection rate: its count, its limits, and the alarms when it doubles or collapses.

The limits of the counts are whole numbers that are worked out a few times a window, so an event
costs two additions and three comparisons. They are limits that a person can check by hand: the
alarms state facts ("twice the planned share of the last n events was rejected") and matter whatever
the cause; none has a probability attached. The limits of the rate itself (batch means) allow for
autocorrelation.
"""

from __future__ import annotations

import math
from enum import Enum
from functools import lru_cache

import msgspec
import scipy

from rejex_stream.monitor.alarm import NO_ALARMS, ActiveAlarms, Alarm, AlarmKind, Alternative
from rejex_stream.monitor.config import MonitorConfig
from rejex_stream.monitor.theory import RankLaw
from rejex_stream.readable import percent
from rejex_stream.types import Verdict

_IS_REJECT = (0, 1, 1, 0, 0, 1, 1)
_EMPTY = 4  # a slot of the ring that no event has filled yet
WITHHELD = 4  # added to the cell of a rank in the band for which the budget had no credit
_OF_RANKS = bytes([0, 1, 2, 3, 4, 1, 2]).ljust(256)
_MIXED_RECHECK = 64
_COLLAPSE = 0.25  # of the expected rate
BATCHES = 30
_INFLATION_WINDOWS = 20
_HEURISTIC = "heuristic: a fact about recent counts, without a false-alarm probability"


class Regime(Enum):
    """What the counts say about the rejection rate."""

    USUAL = "usual"
    DOUBLED = "doubled"
    COLLAPSED = "collapsed"


class RateState(msgspec.Struct):
    """The ring of rank cells and what was derived from it; size set by the configuration."""

    ring: bytes
    at: int
    events: int
    in_window: int
    in_rolling: int
    expected_rate: float
    mixed_until: int
    limits: tuple[int, int, int, int]
    regime: Regime
    usual_inflation: float | None

    def __post_init__(self) -> None:
        """Refuse a ring that could not be one."""
        if not 0 <= self.at < len(self.ring) or max(self.ring) > 2 + WITHHELD or self.events < 0:
            raise ValueError("the ring of rank cells is out of order")


class RejectionRate:
    """Counts the rejected events of the last n and of the last `rolling` ranked events.

    `expected_rate` is R; where the law changes (a filling window, a pipeline of different streams)
    its average, with a memory of a window. The regime stays while low <= in_window <= high and
    in_rolling >= deep.

    Examples
    --------
    >>> from rejex_stream.monitor.theory import rank_law
    >>> counts = RejectionRate(MonitorConfig(window=1000, contamination=0.05, tolerance=32))
    >>> law = rank_law(1000, 50, 882, 987)
    >>> counts.switch(None, law)
    >>> for event in range(2_000):
    ...     outside = counts.update(law, 1 if event % 4 == 0 else 0)
    ...     if counts.events == counts.recheck:
    ...         counts.set_limits(law, inflation=None)
    >>> outside, counts.in_window, counts.high
    (True, 250, 211)
    >>> counts.judge(law, inflation=None)
    <Regime.DOUBLED: 'doubled'>
    """

    __slots__ = (
        "_at", "_config", "_mixed_until", "_ring", "_usual_inflation", "_window", "deep",
        "events", "expected_rate", "high", "in_rolling", "in_window", "low", "recheck", "regime",
    )  # fmt: skip

    def __init__(self, config: MonitorConfig) -> None:
        self._config = config
        self._window = config.window
        self._ring = bytearray([_EMPTY]) * self._config.rolling
        self._at = self.in_window = self.in_rolling = 0
        self.events = 0
        self.expected_rate = 0.0
        self._mixed_until = 0
        self._usual_inflation: float | None = None
        self.regime = Regime.USUAL
        self.low, self.high, self.deep = 0, self._window, 0
        self.recheck = self._window

    def update(self, law: RankLaw, cell: int) -> bool:
        """Count one event by its verdict's cell; return whether a count is outside its limits."""
        ring, at, window = self._ring, self._at, self._window
        # A negative index wraps, which is just what a ring needs.
        left, oldest = ring[at - window], ring[at]
        if cell or left or oldest:
            is_reject = _IS_REJECT[cell]
            self.in_window += is_reject - _IS_REJECT[left]
            self.in_rolling += is_reject - _IS_REJECT[oldest]
            ring[at] = cell
        at += 1
        self._at = at if at < len(ring) else 0
        self.events = events = self.events + 1
        if events < self._mixed_until:
            self.expected_rate += (law.rejection_rate - self.expected_rate) / window
        return not self.low <= self.in_window <= self.high or self.in_rolling < self.deep

    def switch(self, old: RankLaw | None, new: RankLaw) -> None:
        """Note a change of law: R is then averaged until one law has filled a whole window."""
        if old is None or not self.events:
            self.expected_rate = new.rejection_rate
        elif new.key != old.key:
            self._mixed_until = self.events + self._window
            self.recheck = min(self.recheck, max(self._window, self.events + _MIXED_RECHECK))

    def raise_or_withdraw(
        self, active: ActiveAlarms, verdict: Verdict, law: RankLaw, inflation: float | None
    ) -> tuple[Alarm, ...]:
        """Raise or withdraw the alarms of the rate, once a count has left its limits."""
        # What there was to see, before the limits are worked out again.
        briefly = self.in_window > self.high or self.in_window < self.low
        count, length = (
            (self.in_window, self._window) if briefly else (self.in_rolling, self._config.rolling)
        )
        low = self.low if briefly else self.deep
        high, rate = self.high, self.expected_rate
        regime = self.judge(law, inflation)
        if regime is Regime.USUAL:
            active.withdraw(AlarmKind.REJECTION_RATE, AlarmKind.COLLAPSE)
            return NO_ALARMS
        kind, direction, limit = AlarmKind.COLLAPSE, Alternative.FEWER_REJECTS, max(0, low - 1)
        message = (
            f"Only {count:,} of the last {length:,} events were rejected; the theory expects "
            f"{rate * length:,.0f}. A dead sensor, or one outside its usual range."
        )
        if regime is Regime.DOUBLED:
            kind, direction, limit = AlarmKind.REJECTION_RATE, Alternative.MORE_REJECTS, high
            ring = self._ring[self._at :] + self._ring[: self._at]
            withheld = sum(cell > _EMPTY for cell in ring[-length:])
            beside = f", {percent(withheld / length, 1)} withheld without credit of the budget"
            message = (
                f"{percent((count - withheld) / length, 1)} of the last {length:,} events were "
                f"rejected{beside if withheld else ''}; the theory expects {percent(rate, 1)}."
            )
        return active.raise_alarm(
            verdict,
            kind,
            direction,
            evidence=count / length,
            threshold=limit / length,
            unit="rate",
            guarantee=_HEURISTIC,
            message=message,
        )

    def judge(self, law: RankLaw, inflation: float | None) -> Regime:
        """Return the regime the counts are in now, with limits worked out again.

        Without a VIF (`inflation`) no collapse can be told.
        """
        if self.regime is not Regime.USUAL:
            inside = self.low <= self.in_window <= self.high
            self.regime = self.regime if inside else Regime.USUAL
        elif self.in_window > self.high:
            self.regime = Regime.DOUBLED
        elif self.in_window < self.low or self.in_rolling < self.deep:
            self.regime = Regime.COLLAPSED
        self.set_limits(law, inflation)
        return self.regime

    def set_limits(self, law: RankLaw, inflation: float | None) -> None:
        """Work the limits out again, in O(log n); called a few times a window."""
        window, rolling = self._window, self._config.rolling
        if self.events < self._mixed_until:
            self.recheck = self.events + _MIXED_RECHECK
        else:
            self.recheck = self.events + max(1, window // 4)
            self.expected_rate = law.rejection_rate
        rate, nats = self.expected_rate, math.log(self._config.false_alarm_events)
        high, calm = doubling_limits(rate, window, nats)
        self.low, self.high, self.deep = 0, high, 0
        # A collapse inflates the block variance itself, with the lag it is measured at: what counts
        # is the last figure from before.
        if self.in_window >= rate * window / 2:
            self._usual_inflation = inflation
        inflation = self._usual_inflation
        if self.regime is Regime.DOUBLED:
            self.low, self.high = calm + 1, window
        elif self.regime is Regime.COLLAPSED:
            self.high = math.floor(rate * window / 2)
        elif inflation is not None:
            self.low = collapse_limit(rate, window, inflation, nats) + 1
            if self.events >= rolling:
                self.deep = collapse_limit(rate, rolling, inflation, nats) + 1

    @property
    def cells(self) -> bytes:
        """Rank cells of the verdicts in the rolling window, oldest first, one byte each."""
        ring = bytes(self._ring[self._at :] + self._ring[: self._at])
        return ring[max(0, len(ring) - self.events) :].translate(_OF_RANKS)

    @property
    def state(self) -> RateState:
        """All that has to be kept."""
        return RateState(
            ring=bytes(self._ring),
            at=self._at,
            events=self.events,
            in_window=self.in_window,
            in_rolling=self.in_rolling,
            expected_rate=self.expected_rate,
            mixed_until=self._mixed_until,
            limits=(self.low, self.high, self.deep, self.recheck),
            regime=self.regime,
            usual_inflation=self._usual_inflation,
        )

    def restore(self, state: RateState) -> None:
        """Go on from a state."""
        self._ring, self._at = bytearray(state.ring), state.at
        self.events = state.events
        self.in_window, self.in_rolling = state.in_window, state.in_rolling
        self.expected_rate, self._mixed_until = state.expected_rate, state.mixed_until
        self.low, self.high, self.deep, self.recheck = state.limits
        self.regime = state.regime
        self._usual_inflation = state.usual_inflation


@lru_cache(maxsize=1_024)
def doubling_limits(rate: float, events: int, nats: float) -> tuple[int, int]:
    """Return the counts above which "more than 2 R" is raised, and at or below which it clears.

    Where R is so small that chance alone doubles it now and then, the least count that independent
    events exceed with probability exp(-nats) at most (Chernoff's bound) takes the place of 2 R. It
    clears half-way back, so that it does not flicker.

    Examples
    --------
    >>> doubling_limits(0.1059, 1000, nats=13.8), doubling_limits(0.005, 1000, nats=13.8)
    ((211, 158), (20, 12))
    """
    high = min(events, math.floor(2.0 * rate * events))
    while high < events and events * _divergence((high + 1) / events, rate) < nats:
        high += 1
    return high, math.floor((rate * events + high) / 2)


@lru_cache(maxsize=1_024)
def collapse_limit(rate: float, events: int, inflation: float, nats: float) -> int:
    """Return the largest count of rejected events that shows a rate far below R; -1 if none can.

    The count shows it if a rate of R / 4 would give as few with probability exp(-nats) at most, by
    Chernoff's bound for the effective number of events, `events` / `inflation`.

    Examples
    --------
    >>> collapse_limit(0.1059, 1000, inflation=1.0, nats=13.8)
    4
    >>> collapse_limit(0.1059, 1000, inflation=46.0, nats=13.8)   # too autocorrelated to tell
    -1
    """
    quarter = _COLLAPSE * rate
    effective = events / inflation

    def shows(count: int) -> bool:
        share = count / events
        return share < quarter and effective * _divergence(share, quarter) >= nats

    if not shows(0):
        return -1
    low, high = 0, math.ceil(quarter * events) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if shows(middle) else (low, middle)
    return low


def _divergence(p: float, q: float) -> float:
    """Kullback-Leibler divergence of Bernoulli(p) from Bernoulli(q), in nats."""
    if not 0.0 < q < 1.0:
        return 0.0
    inside = p * math.log(p / q) if p > 0.0 else 0.0
    return inside + ((1.0 - p) * math.log((1.0 - p) / (1.0 - q)) if p < 1.0 else 0.0)


class BatchMeans(msgspec.Struct, frozen=True):
    """What the means of 30 batches say about a rejection rate: its limits, in [0, 1].

    `inflation` is how much more the rate varies than that of independent events would, at least 1;
    ``None`` where all events or none are rejected.
    """

    lower: float
    upper: float
    inflation: float | None


def batch_means(cells: bytes, confidence: float) -> BatchMeans | None:
    """Return two-sided limits of the rejection rate that allow for autocorrelation.

    The events are cut into 30 batches; the spread of their means takes the place of the binomial
    variance, and its t quantile (29 degrees of freedom) that of the normal one. Heuristic: batches
    must be longer than the correlation. Never narrower than the binomial variance would give.

    `cells` are rank cells 0..3, one byte an event, oldest first; ``None`` below 60 events.
    O(number of events), some microseconds per thousand.

    Examples
    --------
    >>> cells = bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0] * 300)
    >>> means = batch_means(cells, 0.99)
    >>> means.lower < 0.2 < means.upper, means.inflation
    (True, 1.0)
    """
    length = len(cells) // BATCHES
    if length < 2:
        return None
    used = cells[len(cells) - length * BATCHES :]
    batches = [used[i : i + length] for i in range(0, len(used), length)]
    means = [(batch.count(1) + batch.count(2)) / length for batch in batches]
    rate = math.fsum(means) / BATCHES
    spread = math.fsum((mean - rate) ** 2 for mean in means) / (BATCHES - 1)
    guess = (rate * len(used) + 1) / (len(used) + 2)  # so that "none so far" has a variance
    deviation = math.sqrt(max(spread / BATCHES, guess * (1 - guess) / len(used)))
    width = _t_quantile(confidence, BATCHES - 1) * deviation
    return BatchMeans(
        lower=max(0.0, rate - width),
        upper=min(1.0, rate + width),
        inflation=max(1.0, spread * length / (rate * (1 - rate))) if 0 < rate < 1 else None,
    )


def sliding_variance(law: RankLaw, events: int) -> float:
    """Return the variance of how many of `events` independent events a sliding window rejects.

    The window learns what it has seen: had many of the last n lain in the band, its edges move, and
    the next n are rejected less often. In the limit of a large window the excess of an event is
    I(t) - (I(t-1) + ... + I(t-n)) / n, with I = 1 in the band; the squared weights of N of these
    sum to N - N^3 / (3 n^2) up to N = n, and to 2 n / 3 from there on. That would be all, were the
    edges exact. An event between an edge and its estimate, whose standard deviation is
    sqrt(q (1 - q) / n), is counted by the one and learnt by the other: half of the mean width of
    that gap is added an event, in the long run.

    Examples
    --------
    >>> from rejex_stream.monitor.theory import rank_law
    >>> law = rank_law(1000, 50, 882, 987)
    >>> round(sliding_variance(law, 3_600), 1)
    79.1
    >>> round(3_600 * law.rejection_rate * (1 - law.rejection_rate), 1)    # in a binomial count
    340.8
    """
    n, rate = law.n, law.rejection_rate
    gaps = math.fsum(
        math.sqrt(2.0 * edge * (n - edge) / (math.pi * n**3))
        for edge in (law.edges[0], law.edges[2])
        if 0 < edge < n
    )
    if events < n:
        learnt, missed = events - events**3 / (3.0 * n**2), events**2 / (6.0 * n)
    else:
        learnt, missed = 2.0 * n / 3.0, events / 2.0 - n / 3.0
    return rate * (1.0 - rate) * learnt + gaps * missed


def rate_limits(
    rate: float, events: int, *, law: RankLaw, inflation: float, confidence: float, streams: int = 1
) -> BatchMeans:
    """Return limits around a rolling rate, within which the theory's rate lies where it holds.

    The variance is that of a sliding window's self-correcting count (:func:`sliding_variance`)
    times the measured variance inflation; the quantile is that of t with 19 degrees of freedom, as
    the inflation is a mean over at most 20 windows. For exchangeable scores a derivation, for
    autocorrelated ones a heuristic whose coverage is measured (benchmarks/results/monitors.md).

    `rate` is the share of `events` rejected ones, of so many `streams`, each ranked by `law` in a
    window of its own; `confidence` is of both limits together.

    Examples
    --------
    >>> from rejex_stream.monitor.theory import rank_law
    >>> law = rank_law(1000, 50, 882, 987)
    >>> limits = rate_limits(0.1, 3_600, law=law, inflation=1.0, confidence=0.99)
    >>> round(limits.lower, 4), round(limits.upper, 4)
    (0.0929, 0.1071)
    """
    each = max(1, round(events / streams))
    deviation = math.sqrt(streams * sliding_variance(law, each) * inflation) / events
    width = _t_quantile(confidence, _INFLATION_WINDOWS - 1) * deviation
    return BatchMeans(max(0.0, rate - width), min(1.0, rate + width), inflation)


@lru_cache(maxsize=64)
def _t_quantile(confidence: float, degrees: int) -> float:
    return float(scipy.special.stdtrit(degrees, (1 + confidence) / 2))
