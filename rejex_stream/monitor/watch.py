"""Everything that is watched about one sequence of rank cells: a stream's, or a whole pipeline's.

Rolling counts, health detector, and the practical alarms on the rejection rate and the review
budget. What needs a score (stuck sensor, drift) is :mod:`rejex_stream.monitor.stream`'s.
"""

from __future__ import annotations

import math

import msgspec

from rejex_stream.monitor.active import NO_ALARMS, ActiveAlarm, ActiveAlarms
from rejex_stream.monitor.alarm import Alarm, AlarmKind, Alternative
from rejex_stream.monitor.budget import FALSE_ALARM_DAYS, BudgetEvidence, DayBudget
from rejex_stream.monitor.cells import ALTERNATIVES, CellTable, cell_table
from rejex_stream.monitor.config import MonitorConfig
from rejex_stream.monitor.counts import CountsState, Regime, RollingCounts
from rejex_stream.monitor.health import HealthDetector, HealthState
from rejex_stream.types import Label, Reason, Verdict

__all__ = ["Watch", "WatchState"]

_HEURISTIC = "heuristic: a fact about recent counts, without a false-alarm probability"


class WatchState(msgspec.Struct):
    """All a watch has to remember; its size depends on the configuration alone."""

    counts: CountsState
    health: HealthState
    budget: DayBudget
    over_budget: BudgetEvidence
    active: list[ActiveAlarm]
    table: tuple[int, int, int, int] | None


class Watch:
    """Monitors of rank cells; see the module.

    Parameters
    ----------
    config
        Settings, for the window lengths and limits.
    stream_key
        Whose alarms these are; ``None`` for the pipeline.

    Notes
    -----
    O(1) an event. The rolling counts use the verdict's own rank, since they are about what people
    get to see; the health detector is given the cell of the randomised rank.
    """

    __slots__ = ("_config", "active", "budget", "counts", "health", "over_budget", "table")

    def __init__(self, config: MonitorConfig, stream_key: str | None) -> None:
        self._config = config
        self.counts = RollingCounts(config)
        self.health = HealthDetector(config)
        self.budget = DayBudget()
        self.over_budget = BudgetEvidence()
        self.active = ActiveAlarms(stream_key)
        self.table: CellTable | None = None

    def observe(
        self, verdict: Verdict, table: CellTable, shown: int, drawn: int
    ) -> tuple[Alarm, ...]:
        """Count one ranked event; return the alarms it raised, mostly none.

        Parameters
        ----------
        verdict
            Where alarms point to.
        table
            Law of the cells for this event's window.
        shown
            Rank cell of the verdict.
        drawn
            Rank cell of the randomised rank; differs from `shown` only under ties.
        """
        counts = self.counts
        if table is not self.table:
            counts.switch(self.table, table)
            self.table = table
        outside = counts.update(table, shown)
        fired = self.health.update(table, drawn)
        alarms = NO_ALARMS if fired is None else self._raise_health(verdict, fired)
        if outside:
            alarms += self._judge(verdict, table)
        elif counts.events >= counts.recheck:
            counts.set_limits(table, self.health.inflation)
        return alarms

    def count_review(self, verdict: Verdict) -> tuple[Alarm, ...]:
        """Count one verdict of any kind against the review budget of the day.

        Rejections during warm-up are not counted: they are not worth a person's time.
        """
        limit, budget = self._config.review_budget_per_day, self.budget
        rejected = verdict.label is Label.REJECTED and verdict.reason is not Reason.WARM_UP
        new_day = budget.update(verdict.event_time_ms, rejected)
        if limit is None or not (rejected or new_day):
            return NO_ALARMS
        inflation = max(1.0, self.health.inflation or 1.0)
        if new_day and self.over_budget.is_gone(budget.latest_ms, limit, inflation):
            self.active.withdraw(AlarmKind.REVIEW_BUDGET)
        if not rejected or not self.over_budget.update(budget.latest_ms, limit, inflation):
            return NO_ALARMS
        projected = budget.projected
        if projected <= limit or AlarmKind.REVIEW_BUDGET in self.active:
            return NO_ALARMS
        guarantee = (
            f"at a rate within the budget about one false alarm in {FALSE_ALARM_DAYS:g} days"
        )
        return self.active.raise_alarm(
            verdict,
            AlarmKind.REVIEW_BUDGET,
            Alternative.MORE_REJECTS,
            evidence=projected,
            threshold=limit,
            unit="events/day",
            guarantee=f"heuristic: {guarantee} of independent rejections",
            message=f"About {projected:,.0f} rejected events are to be expected today, and lately "
            f"there were more than chance explains; people can look at {limit:,.0f} a day.",
        )

    def swap(self) -> None:
        """Start anew after a model swap; the budget and the measured VIF go on."""
        self.active.withdraw(AlarmKind.HEALTH, AlarmKind.REJECTION_RATE, AlarmKind.COLLAPSE)
        self.health.reset(swapped=True)
        self.counts.reset()

    def _judge(self, verdict: Verdict, table: CellTable) -> tuple[Alarm, ...]:
        """Raise or withdraw, once a count has left its limits."""
        counts = self.counts
        # What there was to see, before the limits are worked out anew.
        briefly = counts.in_window > counts.high or counts.in_window < counts.low
        window, rolling = self._config.window, self._config.rolling
        count, length = (counts.in_window, window) if briefly else (counts.in_rolling, rolling)
        low = counts.low if briefly else counts.deep
        high, rate = counts.high, counts.expected_rate
        regime = counts.judge(table, self.health.inflation)
        if regime is Regime.USUAL:
            self.active.withdraw(AlarmKind.REJECTION_RATE, AlarmKind.COLLAPSE)
            return NO_ALARMS
        if regime is Regime.DOUBLED:
            return self.active.raise_alarm(
                verdict,
                AlarmKind.REJECTION_RATE,
                Alternative.MORE_REJECTS,
                evidence=count / length,
                threshold=high / length,
                unit="rate",
                guarantee=_HEURISTIC,
                message=f"{count / length:.1%} of the last {length:,} events were rejected; the "
                f"theory expects {rate:.1%}.",
            )
        return self.active.raise_alarm(
            verdict,
            AlarmKind.COLLAPSE,
            Alternative.FEWER_REJECTS,
            evidence=count / length,
            threshold=max(0, low - 1) / length,
            unit="rate",
            guarantee=_HEURISTIC,
            message=f"Only {count:,} of the last {length:,} events were rejected; the theory "
            f"expects {rate * length:,.0f}. A dead sensor, or one outside its usual range.",
        )

    def _raise_health(self, verdict: Verdict, index: int) -> tuple[Alarm, ...]:
        alternative, _, factor = ALTERNATIVES[index]
        every, inflation = self._config.false_alarm_events, self.health.inflation or 1.0
        guarantee = f"about one false alarm per {every:,.0f} events of exchangeable scores"
        if inflation > 1.5:
            guarantee += f"; autocorrelated here (VIF {inflation:.1f}), so a heuristic"
        what = alternative.value.replace("_", " ")
        return self.active.raise_alarm(
            verdict,
            AlarmKind.HEALTH,
            alternative,
            evidence=self.health.fired_log_evidence,
            threshold=math.log(every),
            unit="nats",
            guarantee=guarantee,
            message=f"There are {what} than the theory allows: the ranks fit a factor of "
            f"{factor:g} better than 1.",
            now=self.counts.events,
            hold_events=self._config.rolling * self.health.streams,
        )

    # ------------------------------------------------------------------------------- state
    @property
    def state(self) -> WatchState:
        """All that has to be kept."""
        return WatchState(
            counts=self.counts.state,
            health=self.health.state,
            budget=self.budget,
            over_budget=self.over_budget,
            active=self.active.state,
            table=None if self.table is None else self.table.key,
        )

    def restore(self, state: WatchState) -> None:
        """Go on from a state."""
        self.table = None if state.table is None else cell_table(*state.table)
        self.counts.restore(state.counts)
        self.health.restore(state.health, self.table)
        self.budget, self.over_budget = state.budget, state.over_budget
        self.active.restore(state.active)
