"""All monitors of one stream: what `observe` is told about each verdict, and what it answers."""

from __future__ import annotations

import math
from typing import TypeVar

import msgspec

from rejex_stream.errors import CheckpointError
from rejex_stream.monitor.alarm import NO_ALARMS, Alarm, AlarmKind, Alternative
from rejex_stream.monitor.config import MonitorConfig
from rejex_stream.monitor.drift import DriftDetector, DriftState
from rejex_stream.monitor.ranks import RankMonitors, RankState
from rejex_stream.monitor.status import MonitorStatus, Unranked, summarise
from rejex_stream.monitor.theory import RankLaw, Theory, randomised_rank, rank_law, theory_of
from rejex_stream.settings import Section
from rejex_stream.types import Reason, Status, Verdict, is_ranked, policy_band

__all__ = ["StreamMonitor", "StuckRun", "decode", "encode"]


_NEGLIGIBLE = 1e-6  # of the usual step between two scores: noise of arithmetic, not of a sensor
_STEPS = 32  # before a step is called usual
_LARGEST_STEP = 4.0  # of the usual one, in its mean: a spike must not blind it


class StuckRun(msgspec.Struct):
    """How long the score has not moved; heuristic.

    It has not moved while it stays within a millionth of the usual step from where the run began,
    so that the noise of a converter or of arithmetic is no sign of life. The usual step is the mean
    of those that were larger: it is not unlearnt while the sensor is stuck. A run counts only if
    its value was rare in the reference when the run began, so a sensor that reads zero most of the
    time is not called stuck for reading zero.

    Attributes
    ----------
    score
        Where the run began; ``None`` before the first score.
    length
        Of the run, in events.
    usual_step, steps
        Mean distance between two scores, and how many it was learnt from, up to 32.
    """

    score: float | None = None
    length: int = 0
    was_common: bool = False
    last: float = 0.0
    usual_step: float = 0.0
    steps: int = 0
    swapped: bool = False

    def update(self, score: float | None, ties: int, window_len: int) -> int:
        """Count one score; return the length of the run of equal, formerly rare scores.

        Examples
        --------
        >>> run = StuckRun()
        >>> [run.update(score, 0, 100) for score in (0.5, 0.7, 0.7, 0.7, 0.2)]
        [1, 1, 2, 3, 1]
        >>> [StuckRun().update(0.0, 90, 100), run.update(None, 0, 0)]
        [0, 0]
        """
        if score is None or self.score is None:
            self._begin(score, ties, window_len)
            return 0 if self.was_common or score is None else 1
        if self.swapped:  # the same row, as another model sees it
            self.swapped, self.score = False, score
        usual, steps = self.usual_step, self.steps
        is_usual = steps >= _STEPS
        nearest = _NEGLIGIBLE * usual if is_usual else 0.0
        if abs(score - self.score) <= nearest:
            self.length += 1
        else:
            step = abs(score - self.last)
            if is_usual:
                step = min(step, _LARGEST_STEP * usual)
            if step > nearest:
                if not is_usual:
                    self.steps = steps = steps + 1
                self.usual_step = usual + (step - usual) / steps
            self.score, self.length = score, 1
            self.was_common = 2 * ties > window_len
        self.last = score
        return 0 if self.was_common else self.length

    def _begin(self, score: float | None, ties: int, window_len: int) -> None:
        self.score, self.length = score, 1
        self.last = self.last if score is None else score
        self.was_common = 2 * ties > window_len

    def swap(self) -> None:
        """Note that the next score is another model's: it cannot show whether the sensor moved."""
        self.swapped = self.score is not None


class _Snapshot(msgspec.Struct):
    config: MonitorConfig
    stream_key: str
    ranks: RankState = msgspec.field(name="watch")
    drift: DriftState
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
    * `rejection_rate`, `collapse`, `stuck`: heuristics.

    Parameters
    ----------
    config
        Settings.
    stream_key
        Whose verdicts are watched.

    Notes
    -----
    O(log n) an event, about 4 µs for all monitors together. Verdicts without a rank (``warm_up``,
    ``unscorable``, ``constant_window``) are counted and enter no test. All monitors go on over a
    change of the model epoch.

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
        "_config",
        "_drift",
        "_is_stuck",
        "_law_key",
        "_model_epoch",
        "_paper_ties",
        "_stuck",
        "_stuck_events",
        "_tie_mass",
        "_unranked",
        "drawn_cell",
        "law",
        "ranked",
        "ranks",
        "shown_cell",
        "stream_key",
    )

    def __init__(self, config: MonitorConfig, stream_key: str) -> None:
        self.stream_key = stream_key
        self._config = config
        self._paper_ties = config.ties == "paper"
        self._stuck_events = config.stuck_events or math.inf
        self.ranks = RankMonitors(config, stream_key)
        self._drift = DriftDetector(config)
        self._stuck = StuckRun()
        self._is_stuck = False
        self._unranked = Unranked()
        self._model_epoch: int | None = None
        self._tie_mass = 0.0
        self._law_key: tuple[int, int, int | None, int | None] = (0, 0, None, None)
        self.law: RankLaw | None = None
        # What the last verdict came to, for whoever pools several streams.
        self.ranked = False
        self.shown_cell = self.drawn_cell = 0

    # ------------------------------------------------------------------------------ hot path
    def observe(self, verdict: Verdict) -> tuple[Alarm, ...]:
        """Take note of one verdict; return the alarms it raised, mostly none.

        Never raises, whatever the verdict holds. Verdicts must come in stream order.
        """
        rank, n, r = verdict.rank, verdict.window_len, verdict.n_anomalies
        lower, upper = policy_band(verdict)
        alarms = NO_ALARMS
        if verdict.status is Status.WARM_UP_MIXED:
            alarms += self._raise_warm_up(verdict)
        if rank is None or lower is None or upper is None or n < 1 or not is_ranked(verdict):
            return alarms + self._observe_unranked(verdict)
        if verdict.model_epoch != self._model_epoch:
            self._swap(verdict.model_epoch)

        law = self.law
        if law is None or self._law_key != (n, r, lower, upper):
            self._law_key = (n, r, lower, upper)
            self.law = law = rank_law(n, r, lower, upper)
        below, ties = self._among(rank, verdict.ties)
        if below + ties < law.edges[0]:  # whatever is drawn
            shown = drawn = 0
        else:
            shown, drawn = self._cells(verdict, law, rank, below, ties)
        self.ranked, self.shown_cell, self.drawn_cell = True, shown, drawn
        raised = self.ranks.observe(verdict, law, shown, drawn)
        if raised:
            alarms += raised

        score = verdict.score
        if score is not None and score - score == 0.0:  # finite
            raised = self._observe_score(verdict, score, below, ties)
            if raised:
                alarms += raised
        return alarms

    def _observe_score(
        self, verdict: Verdict, score: float, below: int, ties: int
    ) -> tuple[Alarm, ...]:
        alarms, n = NO_ALARMS, verdict.window_len
        if self._stuck.update(score, ties, n) >= self._stuck_events:
            alarms = self._raise_stuck(verdict, f"{self._stuck.length:,} equal scores in a row")
        elif self._is_stuck:
            self._is_stuck = False
            self.ranks.active.withdraw(AlarmKind.STUCK)
        moved = self._drift.update(score, below, ties, n)
        if moved is not None:
            alarms += self._raise_drift(verdict, moved)
        return alarms

    def _among(self, rank: int, ties: int) -> tuple[int, int]:
        """Return how many rows of the window are below and equal to a score."""
        if ties <= 0:
            return rank, 0
        return rank - ties if self._paper_ties else rank - ties // 2, ties

    def _cells(
        self, verdict: Verdict, law: RankLaw, rank: int, below: int, ties: int
    ) -> tuple[int, int]:
        """Return the cells of the verdict's own rank and of one drawn among its ties."""
        shown = drawn = law.cell(rank)
        if ties:
            drawn = law.cell(below)
            if drawn != law.cell(below + ties):  # else every draw lies in the same cell
                drawn = law.cell(randomised_rank(below, ties, verdict.position))
            if below < law.edges[1] <= below + ties:  # the score is the threshold itself
                self._tie_mass = ties / verdict.window_len
        return shown, drawn

    # --------------------------------------------------------------------------- cold path
    def _observe_unranked(self, verdict: Verdict) -> tuple[Alarm, ...]:
        self.ranked = False
        self._unranked.count(verdict)
        score = verdict.score
        if score is not None and score - score == 0.0:  # it entered the window all the same
            if verdict.model_epoch != self._model_epoch:
                self._swap(verdict.model_epoch)
            if verdict.rank is None:
                self._drift.lose()
            else:
                among = self._among(verdict.rank, verdict.ties)
                self._drift.follow(score, *among, verdict.window_len)
        if verdict.reason is Reason.CONSTANT_WINDOW and self._config.stuck_events:
            return self._raise_stuck(verdict, "All reference scores are one number")
        return NO_ALARMS

    def _swap(self, model_epoch: int | None) -> None:
        """Go on with another model's scores.

        Its ranks are among its own scores of the window's rows, which it was not fitted on: uniform
        again, so counts, evidence and their alarms go on as if nothing had happened. (Not with
        ``calibration = "training"``, where ranks are too high for one window: health then says so,
        rightly.) What is made of scores cannot go on: the mass of ties is measured anew.
        """
        if self._model_epoch is not None:
            self._drift.swap()
            self._stuck.swap()
            self._tie_mass = 0.0
            self.ranks.active.withdraw(AlarmKind.WARM_UP)
        self._model_epoch = model_epoch

    def _raise_warm_up(self, verdict: Verdict) -> tuple[Alarm, ...]:
        return self.ranks.active.raise_alarm(
            verdict,
            AlarmKind.WARM_UP,
            Alternative.MIXED_ROWS,
            evidence=1.0,
            threshold=1.0,
            unit="finding",
            guarantee="measured on streams in which nothing is wrong, not proved: see "
            "docs/incidents.md",
            message="The first model learnt from rows of two kinds: a fault may have begun or "
            "ended within the warm-up, and would be normal now. Look at these rows; if they hold "
            "a fault, begin anew once it is over (rejex-stream state drop CONFIG); if they hold "
            "operating modes, name their field (input.mode).",
        )

    def _raise_stuck(self, verdict: Verdict, what: str) -> tuple[Alarm, ...]:
        self._is_stuck = True
        return self.ranks.active.raise_alarm(
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
        return self.ranks.active.raise_alarm(
            verdict,
            AlarmKind.DRIFT,
            moved,
            evidence=math.log(limit),
            threshold=math.log(limit),
            unit="nats",
            guarantee=f"about one false alarm per {limit:,.0f} events of exchangeable scores; a "
            "heuristic for autocorrelated ones",
            message=f"There are {where} than among the {self._drift.reference_events:,} that were "
            "frozen for comparison; they are being frozen anew.",
            now=self.ranks.rate.events,
            hold_events=self._drift.reference_events,
        )

    # ------------------------------------------------------------------------------- status
    @property
    def theory(self) -> Theory | None:
        """Expected rates and bounds for the last ranked event."""
        return None if self.law is None else theory_of(self.law, self._config)

    def status(self) -> MonitorStatus:
        """Return what the monitors know now; about 0.1 ms."""
        return summarise(
            self.ranks,
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
                ranks=self.ranks.state,
                drift=self._drift.state,
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
                for name in MonitorConfig.model_fields
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
        if len(state.ranks.rate.ring) != self._config.rolling:
            raise CheckpointError(
                "The monitor snapshot is damaged (its rolling window has another length): start "
                "the monitors anew."
            )
        self.ranks.restore(state.ranks)
        self._drift.restore(state.drift)
        self._stuck, self._is_stuck = state.stuck, state.is_stuck
        self._unranked = state.unranked
        self._model_epoch, self._tie_mass = state.model_epoch, state.tie_mass
        self.law = self.ranks.law
        self._law_key = (0, 0, None, None) if self.law is None else self.law.key
        self.ranked = False


# --------------------------------------------------------------------------- state as bytes
_MAGIC = b"rejex-monitor"
_VERSION = 2

S = TypeVar("S", bound=msgspec.Struct)


def encode(state: msgspec.Struct) -> bytes:
    """Return the bytes of a state; the same state gives the same bytes.

    Examples
    --------
    >>> from rejex_stream.monitor.status import Unranked
    >>> decode(encode(Unranked(warm_up=3)), Unranked).warm_up
    3
    """
    return _MAGIC + bytes([_VERSION]) + msgspec.msgpack.encode(state, enc_hook=dict)


def _settings(kind: type[Section], fields: dict[str, object]) -> Section:
    return kind(**fields)


def decode(blob: bytes, kind: type[S]) -> S:
    """Return the state in `blob`; O(size).

    Raises
    ------
    CheckpointError
        If it is not a monitor snapshot, of another version, or does not fit the schema.
    """
    if not blob.startswith(_MAGIC) or len(blob) <= len(_MAGIC):
        raise CheckpointError(
            f"These {len(blob)} bytes are not a monitor snapshot: give what snapshot() returned, "
            "or start the monitors anew."
        )
    version = blob[len(_MAGIC)]
    if version != _VERSION:
        raise CheckpointError(
            f"The monitor snapshot has version {version}; this release reads version {_VERSION}: "
            "start the monitors anew."
        )
    try:
        return msgspec.msgpack.decode(blob[len(_MAGIC) + 1 :], type=kind, dec_hook=_settings)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CheckpointError(
            f"The monitor snapshot is damaged ({error}): start the monitors anew."
        ) from None
