"""All monitors of one stream: what `observe` is told about each verdict, and what it answers."""

from __future__ import annotations

import math

import msgspec

from rejex_stream.errors import CheckpointError
from rejex_stream.monitor.active import NO_ALARMS
from rejex_stream.monitor.adwin import AdwinDetector, AdwinState
from rejex_stream.monitor.alarm import Alarm, AlarmKind, Alternative
from rejex_stream.monitor.cells import CellTable, cell_table, randomised_rank
from rejex_stream.monitor.config import MonitorConfig
from rejex_stream.monitor.drift import DriftDetector, DriftState
from rejex_stream.monitor.practical import StuckRun
from rejex_stream.monitor.snapshot import decode, encode
from rejex_stream.monitor.status import MonitorStatus, Unranked, summarise
from rejex_stream.monitor.theory import Theory, theory_of
from rejex_stream.monitor.watch import Watch, WatchState
from rejex_stream.types import Reason, Verdict

__all__ = ["StreamMonitor"]


class _Snapshot(msgspec.Struct):
    config: MonitorConfig
    stream_key: str
    watch: WatchState
    drift: DriftState
    adwin: AdwinState | None
    stuck: StuckRun
    is_stuck: bool
    unranked: Unranked
    model_epoch: int | None
    tie_mass: float


class StreamMonitor:
    """Watches the verdicts of one stream key and never changes one.

    Monitors and what their alarms are worth:

    * `health` (:mod:`~rejex_stream.monitor.health`): about one false alarm per L events for
      exchangeable scores; measured, not proved, for autocorrelated ones.
    * `drift` (:mod:`~rejex_stream.monitor.drift`): the same, against a frozen reference.
    * `rejection_rate`, `collapse`, `stuck`, `review_budget`, `adwin`: heuristics.

    Parameters
    ----------
    config
        Settings.
    stream_key
        Whose verdicts are watched.

    Notes
    -----
    O(1) an event, about 2 µs for all monitors together. Verdicts without a rank (``warm_up``,
    ``unscorable``, ``constant_window``) are counted and enter no test. A change of the model epoch
    starts all monitors anew, except for the measured autocorrelation and the day's budget.

    Examples
    --------
    >>> from rejex_stream.types import Label, Position
    >>> config = MonitorConfig(window=1000, contamination=0.05, tolerance=32)
    >>> monitor = StreamMonitor(config, "pump")
    >>> for i in range(2_000):
    ...     verdict = Verdict(
    ...         position=Position("readings", 0, i), stream_key="pump", sensor="pump", seq=i,
    ...         event_time_ms=1_000 * i, label=Label.NORMAL, score=i * 0.618 % 1,
    ...         rank=i * 618 % 881, window_len=1000, n_anomalies=50, band_lower=882, band_upper=987,
    ...         model_epoch=0)
    ...     alarms = monitor.observe(verdict)
    >>> status = monitor.status()
    >>> status.rejection_rate, round(status.theory.expected_rate, 3), status.health
    (0.0, 0.106, 'calibrating')
    """

    __slots__ = (
        "_adwin",
        "_config",
        "_drift",
        "_is_stuck",
        "_law",
        "_model_epoch",
        "_paper_ties",
        "_stuck",
        "_stuck_events",
        "_tie_mass",
        "_unranked",
        "drawn_cell",
        "ranked",
        "shown_cell",
        "stream_key",
        "table",
        "watch",
    )

    def __init__(self, config: MonitorConfig, stream_key: str) -> None:
        self.stream_key = stream_key
        self._config = config
        self._paper_ties = config.ties == "paper"
        self._stuck_events = config.stuck_events or math.inf
        self.watch = Watch(config, stream_key)
        self._drift = DriftDetector(config)
        self._adwin = AdwinDetector(config.adwin_delta) if config.adwin else None
        self._stuck = StuckRun()
        self._is_stuck = False
        self._unranked = Unranked()
        self._model_epoch: int | None = None
        self._tie_mass = 0.0
        self._law: tuple[int, int, int | None, int | None] = (0, 0, None, None)
        self.table: CellTable | None = None
        # What the last verdict came to, for whoever pools several streams.
        self.ranked = False
        self.shown_cell = self.drawn_cell = 0

    # ------------------------------------------------------------------------------ hot path
    def observe(self, verdict: Verdict) -> tuple[Alarm, ...]:
        """Take note of one verdict; return the alarms it raised, mostly none.

        Never raises, whatever the verdict holds. Verdicts must come in stream order.
        """
        rank, n = verdict.rank, verdict.window_len
        reason = verdict.reason
        lower, upper = verdict.band_lower, verdict.band_upper
        alarms = NO_ALARMS
        if self._config.review_budget_per_day is not None:
            alarms = self.watch.count_review(verdict)
        if (
            rank is None
            or lower is None
            or upper is None
            or n < 1
            or (reason is not None and reason is not Reason.AMBIGUOUS)
        ):
            return alarms + self._observe_unranked(verdict)
        if verdict.model_epoch != self._model_epoch:
            self._swap(verdict.model_epoch)

        r = verdict.n_anomalies
        table = self.table
        if table is None or self._law != (n, r, lower, upper):
            self._law = (n, r, lower, upper)
            self.table = table = cell_table(n, r, lower, upper)
        shown = drawn = table.cell(rank)
        ties = verdict.ties
        if ties > 0:
            below = rank - ties if self._paper_ties else rank - ties // 2
            drawn = table.cell(below)
            if drawn != table.cell(below + ties):  # else every draw lies in the same cell
                drawn = table.cell(randomised_rank(below, ties, verdict.position))
            if below <= n - r < below + ties:  # the score is the threshold itself
                self._tie_mass = ties / n
        self.ranked, self.shown_cell, self.drawn_cell = True, shown, drawn
        raised = self.watch.observe(verdict, table, shown, drawn)
        if raised:
            alarms += raised

        score = verdict.score
        if score is not None and score - score == 0.0:  # finite
            raised = self._observe_score(verdict, score)
            if raised:
                alarms += raised
        return alarms

    def _observe_score(self, verdict: Verdict, score: float) -> tuple[Alarm, ...]:
        alarms = NO_ALARMS
        if self._stuck.update(score, verdict.ties, verdict.window_len) >= self._stuck_events:
            alarms = self._raise_stuck(verdict, f"{self._stuck.length:,} equal scores in a row")
        elif self._is_stuck:
            self._is_stuck = False
            self.watch.active.withdraw(AlarmKind.STUCK)
        moved = self._drift.update(score)
        if moved is not None:
            alarms += self._raise_drift(verdict, moved)
        if self._adwin is not None:
            moved = self._adwin.update(score)
            if moved is not None:
                alarms += self._raise_adwin(verdict, moved)
        return alarms

    # --------------------------------------------------------------------------- cold path
    def _observe_unranked(self, verdict: Verdict) -> tuple[Alarm, ...]:
        self.ranked = False
        self._unranked.count(verdict)
        if verdict.reason is Reason.CONSTANT_WINDOW and self._config.stuck_events:
            return self._raise_stuck(verdict, "All reference scores are one number")
        return NO_ALARMS

    def _swap(self, model_epoch: int | None) -> None:
        """Start anew for another model's scores."""
        if self.watch.counts.events or self._is_stuck:
            self.watch.swap()
            self.watch.active.withdraw(AlarmKind.STUCK, AlarmKind.DRIFT, AlarmKind.ADWIN)
            self._drift.reset()
            if self._adwin is not None:
                self._adwin.reset()
            self._stuck = StuckRun()
            self._is_stuck = False
            self._tie_mass = 0.0
        self._model_epoch = model_epoch

    def _raise_stuck(self, verdict: Verdict, what: str) -> tuple[Alarm, ...]:
        self._is_stuck = True
        return self.watch.active.raise_alarm(
            verdict,
            AlarmKind.STUCK,
            Alternative.REPEATED_SCORE,
            evidence=float(max(self._stuck.length, verdict.ties)),
            threshold=float(self._config.stuck_events),
            unit="events",
            guarantee="heuristic: a run of equal scores, without a false-alarm probability",
            message=f"{what}: the sensor seems to be stuck.",
        )

    def _raise_drift(self, verdict: Verdict, moved: Alternative) -> tuple[Alarm, ...]:
        limit = self._config.false_alarm_events
        where = moved.value.replace("_", " ")
        return self.watch.active.raise_alarm(
            verdict,
            AlarmKind.DRIFT,
            moved,
            evidence=math.log(limit),
            threshold=math.log(limit),
            unit="nats",
            guarantee=f"about one false alarm per {limit:,.0f} events of exchangeable scores; a "
            "heuristic for autocorrelated ones",
            message=f"There are {where} than among the {self._drift.reference_events:,} frozen "
            "when this model began; they are being frozen anew.",
            now=self.watch.counts.events,
            hold_events=self._drift.reference_events,
        )

    def _raise_adwin(self, verdict: Verdict, moved: Alternative) -> tuple[Alarm, ...]:
        return self.watch.active.raise_alarm(
            verdict,
            AlarmKind.ADWIN,
            moved,
            evidence=float(verdict.score or 0.0),
            threshold=self._config.adwin_delta,
            unit="score",
            guarantee="heuristic: ADWIN takes scores for independent",
            message=f"ADWIN sees {moved.value.replace('_', ' ')} than before.",
            now=self.watch.counts.events,
            hold_events=self._config.rolling,
        )

    # ------------------------------------------------------------------------------- status
    @property
    def theory(self) -> Theory | None:
        """Expected rates and bounds for the last ranked event."""
        return None if self.table is None else theory_of(self.table, self._config)

    def status(self) -> MonitorStatus:
        """Return what the monitors know now; about 0.1 ms."""
        return summarise(
            self.watch,
            self._config,
            stream_key=self.stream_key,
            unranked=self._unranked,
            theory=self.theory,
            drift=self._drift.status,
            drift_log_evidence=self._drift.log_evidence,
            tie_mass=self._tie_mass,
        )

    # ----------------------------------------------------------------------------- snapshot
    def snapshot(self) -> bytes:
        """Return everything as bytes; a restored monitor raises the same alarms ever after."""
        return encode(
            _Snapshot(
                config=self._config,
                stream_key=self.stream_key,
                watch=self.watch.state,
                drift=self._drift.state,
                adwin=None if self._adwin is None else self._adwin.state,
                stuck=self._stuck,
                is_stuck=self._is_stuck,
                unranked=self._unranked,
                model_epoch=self._model_epoch,
                tie_mass=self._tie_mass,
            )
        )

    def restore(self, blob: bytes) -> None:
        """Go on from :meth:`snapshot`.

        Raises
        ------
        CheckpointError
            If the bytes are foreign, damaged, of another version, or were written for another
            stream or with other settings; the monitor is then unchanged.
        """
        state = decode(blob, _Snapshot)
        if state.config != self._config:
            changed = [
                name
                for name in self._config.__struct_fields__
                if getattr(state.config, name) != getattr(self._config, name)
            ]
            raise CheckpointError(
                f"The monitor snapshot was written with another {', '.join(changed)}: start the "
                "monitors of this stream anew."
            )
        if state.stream_key != self.stream_key:
            raise CheckpointError(
                f"The monitor snapshot belongs to stream {state.stream_key!r}, not to "
                f"{self.stream_key!r}: give each stream its own."
            )
        if len(state.watch.counts.ring) != self._config.rolling:
            raise CheckpointError(
                "The monitor snapshot is damaged (its rolling window has another length): start "
                "the monitors anew."
            )
        self.watch.restore(state.watch)
        self._drift.restore(state.drift)
        if self._adwin is not None and state.adwin is not None:
            self._adwin.restore(state.adwin)
        self._stuck, self._is_stuck = state.stuck, state.is_stuck
        self._unranked = state.unranked
        self._model_epoch, self._tie_mass = state.model_epoch, state.tie_mass
        self.table = self.watch.table
        self._law = (0, 0, None, None) if self.table is None else self.table.key
        self.ranked = False
