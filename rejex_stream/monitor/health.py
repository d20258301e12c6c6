"""Are the ranks still what exchangeable scores give? A Shiryaev-Roberts e-detector.

Seven alternatives bet against the exact law of the rank cells (:mod:`rejex_stream.monitor.theory`):
rejects x0.5, x1.5, x2, x3 and flagged x0.4, x2, x4. For each, R_j <- (R_j + 1) * ratio_j(cell), and
the alarm is given when the mean of the seven reaches L. Under the theory that mean grows by at most
one an event in expectation, hence *about one false alarm per L events*, at any time, without a
correction for looking after every event.

What carries the guarantee. With VIF = 1 (exchangeable scores) the mean of R_j minus the number of
events is a supermartingale against a growing window; against a sliding one the nominal law is a
close approximation that simulation shows to be on the safe side. Autocorrelated scores break the
premise, so ratios are raised to the power 1 / VIF (:mod:`rejex_stream.monitor.inflation`): a power
below 1 of a likelihood ratio keeps its expectation below 1, so this costs only delay under the
theory. That it also keeps autocorrelated streams quiet is measured, not proved. Where a window is
worth fewer than ten independent events, nothing is judged at all.

Evidence goes on over a model swap. With shadow and with holdout calibration the new model ranks
live rows among scores that it gave to rows it was not fitted on, so given the past the cells have
the null law of the window's length again, and the supermartingale does not notice. Where that
premise fails (``calibration = "training"``: for one window after a swap), evidence grows, and says
what is true: the ranks do not follow the theory.

Evidence is kept on the linear scale, which is safe here: R_j is never below 0, an alarm resets it,
so it stays within 7 L times one ratio, and L is at most 1e12. Ratios are exponentiated once.

References
----------
.. [1] A. Shiryaev: On optimum methods in quickest detection problems. Theory Probab. Appl., 1963.
.. [2] J. Shin, A. Ramdas, A. Rinaldo: E-detectors. New England J. Statist. Data Sci., 2024.
"""

from __future__ import annotations

import math
from itertools import repeat
from operator import add, mul, truediv

import msgspec

from rejex_stream.monitor.alarm import ActiveAlarms, Alarm, AlarmKind
from rejex_stream.monitor.config import MonitorConfig
from rejex_stream.monitor.inflation import Inflation, InflationState, unit_of
from rejex_stream.monitor.theory import ALTERNATIVES, RankLaw
from rejex_stream.types import Verdict

_LONGEST_RUN = 16
_BLIND_WINDOWS = 10  # a doubling that takes longer than this to show cannot be told in time
_MIN_EFFECTIVE = 10  # a window worth fewer independent events measures no VIF to rely on
_MAX_LAWS = 1_024  # whose ratios are kept, where streams alternate
_LAWS_A_STREAM = 8
_ZEROS = [0.0] * len(ALTERNATIVES)


class HealthState(msgspec.Struct):
    """Evidence of each alternative, normal events not yet booked, and the open block.

    A block ends in `left` of its `unit` events; `since` says for how many of them the expectation
    is not booked yet. Pairs are of rejected and of flagged events.
    """

    evidence: list[float]
    run: int
    inflation: InflationState
    unit: int
    left: int
    since: int
    counts: list[int]
    expected: list[float]
    variance: list[float]
    crossings: int = 0

    def __post_init__(self) -> None:
        """Refuse evidence that could not be evidence."""
        if len(self.evidence) != len(ALTERNATIVES) or not min(self.evidence) >= 0.0:
            raise ValueError("the evidence is out of order")
        pairs = (self.counts, self.expected, self.variance)
        if any(len(pair) != 2 for pair in pairs) or not 1 <= self.left <= self.since <= self.unit:
            raise ValueError("the open block is out of order")
        if not 0 <= self.run < min(_LONGEST_RUN, self.left):
            raise ValueError("the run of normal events is out of order")


class _Ratios(dict[int, tuple[float, ...]]):
    """Ratios a of one law by cell, to the power 1 / VIF, made when they are asked for, then kept.

    By -m stands what m normal events come to: a^m of each alternative, then a + ... + a^m. While a
    window fills, every event brings a law of its own, and few cells of it are ever seen.
    """

    __slots__ = ("_factor", "_log_ratios")

    def __init__(self, law: RankLaw, factor: float) -> None:
        self._log_ratios, self._factor = law.log_ratios, factor

    def __missing__(self, cell: int) -> tuple[float, ...]:
        if cell >= 0:
            tempered = map(truediv, self._log_ratios[cell], repeat(self._factor))
            found = tuple(map(math.exp, tempered))
        elif cell == -1:
            found = self[0] * 2
        else:
            before = self[cell + 1]
            power = tuple(map(mul, before, self[0]))
            found = power + tuple(map(add, before[len(power) :], power))
        self[cell] = found
        return found


class HealthDetector:
    """Watches the rank cells of one stream, or of all `streams` of a pipeline.

    `crossings` counts how often the evidence reached L, recurrences of one alarm included. The
    blocks of a pipeline are as many times longer as there are streams, so that they span the same
    stretch of each.

    O(1) an event. Most events are normal and say the same thing, so they are booked in runs of at
    most 16, exactly (R -> a^m R + a + ... + a^m) and therefore checked once a run. An SR statistic
    looked at less often gives no more false alarms.

    Examples
    --------
    >>> from rejex_stream.monitor.theory import rank_law
    >>> law = rank_law(1000, 50, 882, 987)
    >>> health = HealthDetector(MonitorConfig(window=1000, contamination=0.05, tolerance=32))
    >>> usual = ([1] + [0] * 8 + [2] + [0] * 8 + [1] + [0] * 9) * 3_000
    >>> any(health.update(law, cell) is not None for cell in usual)
    False
    >>> doubled = ([1] + [0] * 3 + [2] + [0] * 4) * 200
    >>> fired = [health.update(law, cell) for cell in doubled]
    >>> {str(ALTERNATIVES[j][0]) for j in fired if j is not None}
    {'more_rejects'}
    """

    __slots__ = (
        "_counts", "_due", "_every", "_evidence", "_expected", "_inflation", "_is_blind", "_law",
        "_left", "_limit", "_ratios", "_run", "_since", "_tempered", "_unit", "_variance",
        "_window", "crossings", "fired_log_evidence", "streams",
    )  # fmt: skip

    def __init__(self, config: MonitorConfig, streams: int = 1) -> None:
        self.streams = streams
        self._window = config.window
        self._every = config.false_alarm_events
        self._limit = self._every * len(ALTERNATIVES)
        self._inflation = Inflation(config.window, kinds=2)
        self._law: RankLaw | None = None
        self._tempered: dict[RankLaw, _Ratios] = {}
        self._ratios: _Ratios | None = None  # made when they are asked for
        self._is_blind = True  # no VIF can be relied on
        self._evidence = list(_ZEROS)
        self._run = 0
        self._due = 1
        self.fired_log_evidence = -math.inf
        self.crossings = 0
        self._unit = unit_of(config.window) * streams
        self._begin_block()

    def _begin_block(self) -> None:
        self._left = self._since = self._unit
        self._counts = [0, 0]
        self._expected, self._variance = [0.0, 0.0], [0.0, 0.0]

    # ------------------------------------------------------------------------------ hot path
    def update(self, law: RankLaw, cell: int) -> int | None:
        """Count one event by the cell of its randomised rank; return which alternative fired."""
        fired = None if law is self._law else self._switch(law)
        run, self._run = self._run + (not cell), 0
        if not cell and run < self._due:
            self._run = run
            return fired
        again = self._book(law, run, cell)
        return again if fired is None else fired

    def _book(self, law: RankLaw, run: int, cell: int) -> int | None:
        """Book `run` normal events and then, unless it is 0, one event of `cell`."""
        fired = None
        if not self._is_blind:
            ratios = self._ratios
            if ratios is None:
                self._ratios = ratios = self._ratios_of(law)
            s0, s1, s2, s3, s4, s5, s6 = self._evidence
            if run > 1:
                a, b, c, d, e, f, g, h0, h1, h2, h3, h4, h5, h6 = ratios[-run]
                s0, s1, s2, s3 = s0 * a + h0, s1 * b + h1, s2 * c + h2, s3 * d + h3
                s4, s5, s6 = s4 * e + h4, s5 * f + h5, s6 * g + h6
            elif run:
                a, b, c, d, e, f, g = ratios[0]
                s0, s1, s2, s3 = (s0 + 1) * a, (s1 + 1) * b, (s2 + 1) * c, (s3 + 1) * d
                s4, s5, s6 = (s4 + 1) * e, (s5 + 1) * f, (s6 + 1) * g
            if cell:
                a, b, c, d, e, f, g = ratios[cell]
                s0, s1, s2, s3 = (s0 + 1) * a, (s1 + 1) * b, (s2 + 1) * c, (s3 + 1) * d
                s4, s5, s6 = (s4 + 1) * e, (s5 + 1) * f, (s6 + 1) * g
            evidence = self._evidence = [s0, s1, s2, s3, s4, s5, s6]
            if s0 + s1 + s2 + s3 + s4 + s5 + s6 >= self._limit:
                self.crossings += 1
                self.fired_log_evidence = self.log_evidence
                fired = max(range(len(evidence)), key=evidence.__getitem__)
                self._evidence = list(_ZEROS)
        if cell:
            run += 1
            self._counts[0] += cell < 3
            self._counts[1] += cell > 1
        self._left -= run
        if not self._left:
            self._close_block(law)
        self._due = self._left if self._left < _LONGEST_RUN else _LONGEST_RUN
        return fired

    def _close_block(self, law: RankLaw) -> None:
        self._settle(law)
        apart = [count - mean for count, mean in zip(self._counts, self._expected, strict=True)]
        if self._inflation.close(apart, self._variance):
            self._unit = unit_of(self._window) * max(1, self.streams)
            if self._inflation.factor is not None:
                self._tempered.clear()
                self._update_tempering()
        self._begin_block()

    def _settle(self, law: RankLaw) -> None:
        """Book the expectation of the events since the last call, which all had this law."""
        events, self._since = self._since - self._left, self._left
        p, q = law.rejection_rate, law.flagged_rate
        expected, variance = self._expected, self._variance
        expected[0] += events * p
        expected[1] += events * q
        variance[0] += events * p * (1.0 - p)
        variance[1] += events * q * (1.0 - q)

    # --------------------------------------------------------------------------- cold path
    def raise_alarm(
        self, active: ActiveAlarms, verdict: Verdict, index: int, *, now: int, hold_events: int
    ) -> tuple[Alarm, ...]:
        """Raise the alarm of the alternative that :meth:`update` returned."""
        alternative, _, factor = ALTERNATIVES[index]
        every, inflation = self._every, self.inflation or 1.0
        guarantee = f"about one false alarm per {every:,.0f} events of exchangeable scores"
        if inflation > 1.5:
            guarantee += f"; autocorrelated here (VIF {inflation:.1f}), so a heuristic"
        what = alternative.value.replace("_", " ")
        return active.raise_alarm(
            verdict,
            AlarmKind.HEALTH,
            alternative,
            evidence=self.fired_log_evidence,
            threshold=math.log(every),
            unit="nats",
            guarantee=guarantee,
            message=f"There are {what}: about {factor:g} times as many as configured. Look at what "
            "is called so; if nothing is wrong there, fit again or change contamination.",
            now=now,
            hold_events=hold_events * self.streams,
        )

    def _switch(self, law: RankLaw) -> int | None:
        fired = None
        if self._law is not None:
            if law.key == self._law.key:  # the cache made it again: nothing changes
                self._law = law
                return None
            run, self._run = self._run, 0
            if run:
                fired = self._book(self._law, run, 0)
            self._settle(self._law)
        self._law = law
        self._update_tempering()
        return fired

    def _update_tempering(self) -> None:
        """Go by ratios ** (1 / VIF), or by none where no VIF can be relied on."""
        factor, self._ratios = self._inflation.factor, None
        self._is_blind = factor is None or factor * _MIN_EFFECTIVE > self._window * self.streams
        if self._is_blind:
            self._evidence = list(_ZEROS)

    def _ratios_of(self, law: RankLaw) -> _Ratios:
        ratios = self._tempered.get(law)
        if ratios is None:
            if len(self._tempered) >= min(_LAWS_A_STREAM * self.streams, _MAX_LAWS):
                self._tempered.clear()
            ratios = self._tempered[law] = _Ratios(law, self._inflation.factor or 1.0)
        return ratios

    # ------------------------------------------------------------------------------- status
    @property
    def inflation(self) -> float | None:
        """The variance inflation factor, >= 1; ``None`` for the first three windows."""
        return self._inflation.factor

    @property
    def log_evidence(self) -> float:
        """Natural logarithm of the mean SR statistic; the alarm comes at log L."""
        mean = math.fsum(self._evidence) / len(self._evidence)
        return math.log(mean) if mean > 0.0 else -math.inf

    def doubling_delay(self, law: RankLaw) -> float:
        """Return about how many events a doubling of the rejects needs to show; inf: never."""
        information = law.doubling_information
        if self._inflation.factor is None or information <= 0.0:
            return math.inf
        return math.log(self._limit) * self._inflation.factor / information

    def can_tell(self, law: RankLaw) -> bool:
        """Whether silence means health: a doubling would show within ten windows."""
        if self._is_blind:
            return False
        return self.doubling_delay(law) <= _BLIND_WINDOWS * self._window * self.streams

    # ------------------------------------------------------------------------------- snapshot
    @property
    def state(self) -> HealthState:
        """All that has to be kept, apart from the current law."""
        return HealthState(
            evidence=list(self._evidence),
            run=self._run,
            inflation=self._inflation.state,
            unit=self._unit,
            left=self._left,
            since=self._since,
            counts=list(self._counts),
            expected=list(self._expected),
            variance=list(self._variance),
            crossings=self.crossings,
        )

    def restore(self, state: HealthState, law: RankLaw | None) -> None:
        """Go on from a state, with the law of the last event."""
        self._inflation.restore(state.inflation)
        self._evidence, self._run = list(state.evidence), state.run
        self._unit, self._left, self._since = state.unit, state.left, state.since
        self._counts, self.crossings = list(state.counts), state.crossings
        self._expected, self._variance = list(state.expected), list(state.variance)
        self._tempered.clear()
        self._law = law
        self._ratios, self._is_blind = None, True
        if law is not None:
            self._update_tempering()
        # The first ranked event of all is booked at once, as by a detector that was never saved.
        self._due = 1 if law is None else min(_LONGEST_RUN, self._left)
