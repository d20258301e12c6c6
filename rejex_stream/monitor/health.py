"""Are the ranks still what exchangeable scores give? A Shiryaev-Roberts e-detector.

Seven alternatives bet against the exact law of the rank cells (:mod:`rejex_stream.monitor.cells`):
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

Evidence is kept on the linear scale, which is safe here: R_j is never below 0, an alarm resets it,
so it stays within 7 L times one ratio, and L is at most 1e12. Ratios are exponentiated once.

References
----------
.. [1] A. Shiryaev: On optimum methods in quickest detection problems. Theory Probab. Appl., 1963.
.. [2] J. Shin, A. Ramdas, A. Rinaldo: E-detectors. New England J. Statist. Data Sci., 2024.
"""

from __future__ import annotations

import math

import msgspec

from rejex_stream.monitor.cells import ALTERNATIVES, CellTable
from rejex_stream.monitor.config import MonitorConfig
from rejex_stream.monitor.inflation import Inflation, InflationState

__all__ = ["HealthDetector", "HealthState"]

_LONGEST_RUN = 16
_BLIND_WINDOWS = 10  # a doubling that takes longer than this to show cannot be told in time
_MIN_EFFECTIVE = 10  # a window worth fewer independent events measures no VIF to rely on
_ZEROS = [0.0] * len(ALTERNATIVES)


class HealthState(msgspec.Struct):
    """Evidence of each alternative, normal events not yet booked, and the block counts."""

    evidence: list[float]
    run: int
    inflation: InflationState
    crossings: int = 0

    def __post_init__(self) -> None:
        """Refuse evidence that could not be evidence."""
        if len(self.evidence) != len(ALTERNATIVES) or not min(self.evidence) >= 0.0:
            raise ValueError("the evidence is out of order")
        if not 0 <= self.run < min(_LONGEST_RUN, max(self.inflation.left, 1)):
            raise ValueError("the run of normal events is out of order")


class HealthDetector:
    """Watches the rank cells of one stream, or of all streams of a pipeline.

    Parameters
    ----------
    config
        L and the window.
    streams
        How many streams interleave; see :class:`Inflation`.

    Attributes
    ----------
    crossings
        How often the evidence reached L, recurrences of one alarm included.
    fired_log_evidence
        The log evidence when it last did.

    Notes
    -----
    O(1) an event. Most events are normal and say the same thing, so they are booked in runs of at
    most 16, exactly (R -> a^m R + a + ... + a^m) and therefore checked once a run. An SR statistic
    looked at less often gives no more false alarms.

    Examples
    --------
    >>> from rejex_stream.monitor.cells import cell_table
    >>> table = cell_table(1000, 50, 882, 987)
    >>> health = HealthDetector(MonitorConfig(window=1000, contamination=0.05, tolerance=32))
    >>> usual = ([1] + [0] * 8 + [2] + [0] * 8 + [1] + [0] * 9) * 3_000
    >>> any(health.update(table, cell) is not None for cell in usual)
    False
    >>> doubled = ([1] + [0] * 3 + [2] + [0] * 4) * 200
    >>> fired = [health.update(table, cell) for cell in doubled]
    >>> {str(ALTERNATIVES[j][0]) for j in fired if j is not None}
    {'more_rejects'}
    """

    __slots__ = (
        "_due",
        "_evidence",
        "_inflation",
        "_limit",
        "_powers",
        "_rows",
        "_run",
        "_table",
        "_tempered",
        "_window",
        "crossings",
        "fired_log_evidence",
        "streams",
    )

    def __init__(self, config: MonitorConfig, streams: int = 1) -> None:
        self.streams = streams
        self._window = config.window
        self._limit = config.false_alarm_events * len(ALTERNATIVES)
        self._inflation = Inflation(config.window, streams)
        self._table: CellTable | None = None
        self._tempered: dict[tuple[int, ...], _Rows] = {}
        self._rows: _Rows | None = None
        self._powers: _Rows = ()
        self._evidence = list(_ZEROS)
        self._run = 0
        self._due = 1
        self.fired_log_evidence = -math.inf
        self.crossings = 0

    # ------------------------------------------------------------------------------ hot path
    def update(self, table: CellTable, cell: int) -> int | None:
        """Count one event; return the index of the alternative that fired, if one did.

        Parameters
        ----------
        table
            Null law and ratios of this event's window.
        cell
            Rank cell of the event, from its randomised rank.
        """
        fired = None if table is self._table else self._switch(table)
        if not cell:
            run = self._run + 1
            if run < self._due:
                self._run = run
                return fired
            self._run = 0
            again = self._book(table, run, 0)
        else:
            run, self._run = self._run, 0
            again = self._book(table, run, cell)
        return again if fired is None else fired

    def _book(self, table: CellTable, run: int, cell: int) -> int | None:
        """Book `run` normal events and then, unless it is 0, one event of `cell`."""
        fired = None
        rows = self._rows
        if rows is not None:
            s0, s1, s2, s3, s4, s5, s6 = self._evidence
            if run > 1:
                a, b, c, d, e, f, g, h0, h1, h2, h3, h4, h5, h6 = self._power(rows, run)
                s0, s1, s2, s3 = s0 * a + h0, s1 * b + h1, s2 * c + h2, s3 * d + h3
                s4, s5, s6 = s4 * e + h4, s5 * f + h5, s6 * g + h6
            elif run:
                a, b, c, d, e, f, g = rows[0]
                s0, s1, s2, s3 = (s0 + 1) * a, (s1 + 1) * b, (s2 + 1) * c, (s3 + 1) * d
                s4, s5, s6 = (s4 + 1) * e, (s5 + 1) * f, (s6 + 1) * g
            if cell:
                a, b, c, d, e, f, g = rows[cell]
                s0, s1, s2, s3 = (s0 + 1) * a, (s1 + 1) * b, (s2 + 1) * c, (s3 + 1) * d
                s4, s5, s6 = (s4 + 1) * e, (s5 + 1) * f, (s6 + 1) * g
            evidence = self._evidence = [s0, s1, s2, s3, s4, s5, s6]
            if s0 + s1 + s2 + s3 + s4 + s5 + s6 >= self._limit:
                self.crossings += 1
                self.fired_log_evidence = self.log_evidence
                fired = max(range(len(evidence)), key=evidence.__getitem__)
                self._evidence = list(_ZEROS)
        events = run
        inflation = self._inflation
        if cell:
            events += 1
            counts = inflation.state.counts
            counts[0] += cell < 3
            counts[1] += cell > 1
        if inflation.advance(table, events, self.streams):
            self._tempered.clear()
            self._rows = self._rows_of(table)
            self._powers = ()
        left = inflation.state.left
        self._due = left if left < _LONGEST_RUN else _LONGEST_RUN
        return fired

    def _power(self, rows: _Rows, run: int) -> tuple[float, ...]:
        """Return (a^m for each alternative, then a + ... + a^m) of m = `run` normal events."""
        if not self._powers:
            power, total = (1.0,) * len(_ZEROS), (0.0,) * len(_ZEROS)
            table = [power + total]
            for _ in range(_LONGEST_RUN):
                power = tuple(p * a for p, a in zip(power, rows[0], strict=True))
                total = tuple(t + p for t, p in zip(total, power, strict=True))
                table.append(power + total)
            self._powers = tuple(table)
        return self._powers[run]

    # --------------------------------------------------------------------------- cold path
    def _switch(self, table: CellTable) -> int | None:
        fired = None
        if self._table is not None:
            if table.same_law(self._table):  # the cache made it anew: nothing changes
                self._table = table
                return None
            run, self._run = self._run, 0
            if run:
                fired = self._book(self._table, run, 0)
            self._inflation.settle(self._table)
        self._table = table
        self._rows, self._powers = self._rows_of(table), ()
        return fired

    def _rows_of(self, table: CellTable) -> _Rows | None:
        """Return ratio ** (1 / VIF) by cell, or ``None`` where no VIF can be relied on."""
        factor = self._inflation.factor
        if factor is None or factor * _MIN_EFFECTIVE > self._window * self.streams:
            self._evidence = list(_ZEROS)
            return None
        rows = self._tempered.get(table.key)
        if rows is None:
            if len(self._tempered) >= 64:
                self._tempered.clear()
            rows = self._tempered[table.key] = tuple(
                tuple(math.exp(log_ratio / factor) for log_ratio in row) for row in table.log_ratios
            )
        return rows

    def reset(self, *, swapped: bool = False) -> None:
        """Drop the evidence; after a model swap also the open blocks, but not the measured VIF.

        The autocorrelation belongs to the sensor more than to the model, and takes three windows
        to measure: a monitor that forgot it at every refit would never be awake.
        """
        self._evidence = list(_ZEROS)
        if swapped:
            self._run = 0
            self._due = 1
            self._inflation.discard_open_blocks(self.streams)

    # ------------------------------------------------------------------------------- status
    @property
    def inflation(self) -> float | None:
        """The variance inflation factor, >= 1; ``None`` for the first three windows."""
        return self._inflation.factor

    @property
    def log_evidence(self) -> float:
        """Natural logarithm of the mean SR statistic; the alarm comes at log L."""
        mean = sum(self._evidence) / len(self._evidence)
        return math.log(mean) if mean > 0.0 else -math.inf

    def doubling_delay(self, table: CellTable) -> float:
        """Return about how many events a doubling of the rejects needs to show; inf: never."""
        information = table.doubling_information
        if self._inflation.factor is None or information <= 0.0:
            return math.inf
        return math.log(self._limit) * self._inflation.factor / information

    def can_tell(self, table: CellTable) -> bool:
        """Whether silence means health: a doubling would show within ten windows."""
        if self._rows is None:
            return False
        return self.doubling_delay(table) <= _BLIND_WINDOWS * self._window * self.streams

    # ------------------------------------------------------------------------------- snapshot
    @property
    def state(self) -> HealthState:
        """All that has to be kept, apart from the current table."""
        return HealthState(list(self._evidence), self._run, self._inflation.state, self.crossings)

    def restore(self, state: HealthState, table: CellTable | None) -> None:
        """Go on from a state, with the table of the last event."""
        self._inflation.restore(state.inflation)
        self._evidence, self._run = list(state.evidence), state.run
        self.crossings = state.crossings
        self._tempered.clear()
        self._table = table
        self._rows = None if table is None else self._rows_of(table)
        self._powers = ()
        self._due = max(1, min(_LONGEST_RUN, self._inflation.state.left))


_Rows = tuple[tuple[float, ...], ...]
