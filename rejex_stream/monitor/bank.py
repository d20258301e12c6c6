"""The monitors of a pipeline: one set for each stream, and one for all streams together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec

from rejex_stream.errors import CheckpointError
from rejex_stream.incidents import Run
from rejex_stream.monitor.alarm import NO_ALARMS, Alarm, AlarmKind, Alternative
from rejex_stream.monitor.config import MonitorConfig
from rejex_stream.monitor.drift import DriftDetector, DriftState
from rejex_stream.monitor.status import MonitorStatus, RankMonitors, RankState, Unranked
from rejex_stream.monitor.theory import (
    RankLaw,
    Theory,
    mean_theory,
    randomised_rank,
    rank_law,
    theory_of,
)
from rejex_stream.rejection.band import cell_of
from rejex_stream.settings import Section
from rejex_stream.types import (
    Reason,
    Status,
    Verdict,
    in_mode,
    is_ranked,
    policy_band,
    without_limits,
)

_NEGLIGIBLE = 1e-6  # of the usual step between two scores: noise of arithmetic, not of a sensor
_STEPS = 32  # before a step is called usual
_LARGEST_STEP = 4.0  # of the usual one, in its mean: a spike must not blind it
_DRIFT_WINDOWS = 20  # that a drift stays active, unless it is seen again


Note: TypeAlias = Callable[
    [dict[str, Any], RankMonitors, Unranked, list[Verdict], int, list[Alarm]], int
]
"""Takes note of verdicts from one on, until one is Python's; returns where that is."""


class StuckRun(msgspec.Struct):
    """How long the score has not moved; heuristic.

    It has not moved while it stays within a millionth of the usual step from where the run began,
    so that the noise of a converter or of arithmetic is no sign of life. The usual step is the mean
    of those that were larger: it is not unlearnt while the sensor is stuck. A run counts only if
    its value was rare in the reference when the run began, so a sensor that reads zero most of the
    time is not called stuck for reading zero; and only if the stream's own runs are not usually as
    long: what stands still each night is called stuck in the first nights alone.
    """

    score: float | None = None  # where the run began
    length: int = 0
    was_common: bool = False
    last: float = 0.0
    usual_step: float = 0.0  # mean distance between two scores
    steps: int = 0  # that it was learnt from, up to 32
    swapped: bool = False
    runs: Run = msgspec.field(default_factory=Run)  # of those that are long, how long is usual
    seq: int = 0  # of the newest event of one

    def update(self, score: float | None, ties: int, window_len: int) -> int:
        """Count one score; return the length of the run of equal, formerly rare scores."""
        if score is None or self.score is None:
            self.score, self.length = score, 1
            self.last = self.last if score is None else score
            self.was_common = 2 * ties > window_len
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

    def swap(self) -> None:
        """Note that the next score is another model's: it cannot show whether the sensor moved."""
        self.swapped = self.score is not None


class _Snapshot(msgspec.Struct):
    config: MonitorConfig
    stream_key: str
    ranks: RankState
    drift: DriftState
    stuck: StuckRun
    unranked: Unranked
    model_epoch: int | None
    tie_mass: float


class StreamMonitor:
    """Watches the verdicts of one stream key and never changes one.

    `health` and `drift` are tests of ranks with about one false alarm per L events of exchangeable
    scores (measured, not proved, for autocorrelated ones); `rejection_rate`, `collapse` and `stuck`
    are heuristics.

    O(log n) an event, about 2 µs for all monitors together. Verdicts without a rank (``warm_up``,
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
        "_config", "_drift", "_is_stuck", "_law_key", "_model_epoch", "_paper_ties", "_stuck",
        "_stuck_events", "_tie_mass", "_unranked", "cells", "law", "ranks", "stream_key",
    )  # fmt: skip

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
        # of the last verdict: of its rank, and of one drawn among its ties; not ranked: ``None``
        self.cells: tuple[int, int] | None = None

    # ------------------------------------------------------------------------------ hot path
    def observe(self, verdict: Verdict) -> tuple[Alarm, ...]:
        """Take note of one verdict; return the alarms it raised, mostly none.

        Never raises, whatever the verdict holds. Verdicts must come in stream order.
        """
        rank, n, r = verdict.rank, verdict.window_len, verdict.n_anomalies
        lower, upper = policy_band(verdict)
        alarms = NO_ALARMS
        if verdict.status is not None and verdict.status is Status.WARM_UP_MIXED:
            alarms += self._raise_warm_up(verdict)
        if rank is None or lower is None or upper is None or n < 1 or not is_ranked(verdict):
            return alarms + self._observe_unranked(verdict)
        if verdict.model_epoch != self._model_epoch:
            self._swap(verdict.model_epoch)

        law = self.law
        if law is None or self._law_key != (n, r, lower, upper):
            self._law_key = (n, r, lower, upper)
            self.law = law = rank_law(n, r, lower, upper)
        ties = verdict.ties if verdict.ties > 0 else 0
        below = rank - (ties if self._paper_ties else ties // 2)
        if below + ties < law.edges[0]:  # whatever is drawn
            shown = drawn = 0
        else:
            shown, drawn = self._cells(verdict, law, rank, below, ties)
        self.cells = shown, drawn
        raised = self.ranks.count(verdict, law, shown, drawn)
        return alarms + raised + self._followed(verdict, below, ties)

    def _followed(self, verdict: Verdict, below: int, ties: int) -> tuple[Alarm, ...]:
        """Go on with what is the stream's alone: whether its scores drift, or stand still."""
        alarms, n, drift = NO_ALARMS, verdict.window_len, self._drift
        share = (below + below + ties) / (n + n)
        if 0.0 <= share <= 1.0:
            drift.excess += share - 0.5
        drift.left -= 1
        if not drift.left and (moved := drift.close_block()) is not None:
            alarms += self._raise_drift(verdict, moved)
        score = verdict.score
        if score is None or score - score != 0.0:  # not finite
            return alarms
        if self._stuck.update(score, ties, n) >= self._stuck_events:
            alarms += self._raise_run(verdict)
        elif self._is_stuck:
            self._moves_again()
        return alarms

    def _cells(
        self, verdict: Verdict, law: RankLaw, rank: int, below: int, ties: int
    ) -> tuple[int, int]:
        """Return the cells of the verdict's own rank and of one drawn among its ties."""
        edges = law.edges
        shown = drawn = cell_of(rank, edges)
        if ties:
            drawn = cell_of(below, edges)
            if drawn != cell_of(below + ties, edges):  # else every draw lies in the same cell
                drawn = cell_of(randomised_rank(below, ties, verdict.position), edges)
            if below < edges[1] <= below + ties:  # the score is the threshold itself
                self._tie_mass = ties / verdict.window_len
        return shown, drawn

    # --------------------------------------------------------------------------- cold path
    def _observe_unranked(self, verdict: Verdict) -> tuple[Alarm, ...]:
        self.cells = None
        self._unranked.count(verdict)
        if without_limits(verdict).reason is Reason.CONSTANT_WINDOW and self._config.stuck_events:
            return self._raise_stuck(verdict, "All reference scores are one number")
        return NO_ALARMS

    def _swap(self, model_epoch: int | None) -> None:
        # Its ranks are among its own scores of the window's rows, which it was not fitted on:
        # uniform again, so counts, evidence and their alarms go on as if nothing had happened. (Not
        # with ``calibration = "training"``, where ranks are too high for one window: health then
        # says so, rightly.) What is made of scores cannot go on: ties are measured again.
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
            "docs/explanation/rest-and-silence.md",
            message="The first model learnt from rows of two kinds: a fault may have begun or "
            "ended within the warm-up, and would be normal now. Look at these rows; if they hold "
            "a fault, begin again once it is over (rejex-stream state drop CONFIG); if they hold "
            "operating modes, name their field (input.mode).",
        )

    def _raise_run(self, verdict: Verdict) -> tuple[Alarm, ...]:
        stuck, self._is_stuck = self._stuck, True
        stuck.runs.now, stuck.seq = stuck.length, verdict.seq
        if stuck.length <= stuck.runs.usual(self._config.stuck_events - 1):
            return NO_ALARMS  # it stands still for so long each night, say
        return self._raise_stuck(verdict, f"{self._stuck.length:,} equal scores in a row")

    def _moves_again(self) -> None:
        self._is_stuck = False
        self._stuck.runs.end(self._config.stuck_events - 1, self._stuck.seq)
        self.ranks.active.withdraw(AlarmKind.STUCK)

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
        return self.ranks.active.raise_alarm(
            verdict,
            AlarmKind.DRIFT,
            moved,
            evidence=math.log(limit),
            threshold=math.log(limit),
            unit="nats",
            guarantee=f"about one false alarm per {limit:,.0f} events of exchangeable scores; a "
            "heuristic for autocorrelated ones, and over refits",
            message=f"There were {moved.value.replace('_', ' ')} than in the window before, again "
            "and again: the level of the scores moves (a moving sum of ranks).",
            now=self.ranks.rate.events,
            hold_events=_DRIFT_WINDOWS * self._config.window,
        )

    # ------------------------------------------------------------------------------- status
    @property
    def theory(self) -> Theory | None:
        """Expected rates and bounds for the last ranked event."""
        return None if self.law is None else theory_of(self.law, self._config)

    def status(self) -> MonitorStatus:
        """Return what the monitors know now; about 0.1 ms."""
        return self.ranks.status(
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
        return _encode(
            _Snapshot(
                config=self._config,
                stream_key=self.stream_key,
                ranks=self.ranks.state,
                drift=self._drift.state,
                stuck=self._stuck,
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
        state = _decode(blob, _Snapshot)
        if state.config != self._config:
            changed = [
                name
                for name in MonitorConfig.model_fields
                if getattr(state.config, name) != getattr(self._config, name)
            ]
            raise CheckpointError(
                f"The monitor snapshot was written with another {', '.join(changed)}: start the "
                "monitors of this stream again."
            )
        if state.stream_key != self.stream_key:
            raise CheckpointError(
                f"The monitor snapshot belongs to stream {state.stream_key!r}, not to "
                f"{self.stream_key!r}: give each stream its own."
            )
        if len(state.ranks.rate.ring) != self._config.rolling:
            raise CheckpointError(
                "The monitor snapshot is damaged (its rolling window has another length): start "
                "the monitors again."
            )
        self.ranks.restore(state.ranks)
        self._drift.restore(state.drift)
        self._stuck, self._unranked = state.stuck, state.unranked
        self._is_stuck = self._stuck.runs.now > 0 or AlarmKind.STUCK in self.ranks.active
        self._model_epoch, self._tie_mass = state.model_epoch, state.tie_mass
        self.law = self.ranks.law
        self._law_key = (0, 0, None, None) if self.law is None else self.law.key
        self.cells = None


class _BankSnapshot(msgspec.Struct):
    config: MonitorConfig
    pooled: RankState
    unranked: Unranked
    streams: dict[str, bytes]


class MonitorBank:
    """Watches all verdicts of a pipeline, stream by stream and pooled.

    The pooled health detector sees the events of all streams in the order of arrival, so a change
    common to many streams shows long before it does in any one of them. What streams have in common
    without a fault (weather, load) makes their rejects come together: that raises the pooled
    variance inflation like autocorrelation does, measured over blocks that are as many times longer
    as there are streams. Slow drift belongs to single streams. While there is only one stream,
    alarms of the pipeline that repeat the stream's are not returned.

    Examples
    --------
    >>> from rejex_stream.types import Label, Position
    >>> bank = MonitorBank(MonitorConfig(window=1000, contamination=0.05, tolerance=32))
    >>> verdicts = [
    ...     Verdict(
    ...         position=Position("readings", 0, i), stream_key=f"pump-{i % 2}", sensor="pump",
    ...         seq=i // 2, event_time_ms=1_000 * i, label=Label.NORMAL, score=0.1 * i,
    ...         rank=i % 800, window_len=1000, n_anomalies=50, band_lower=882, band_upper=987,
    ...         model_epoch=0)
    ...     for i in range(100)]
    >>> bank.observe(verdicts)
    []
    >>> bank.status().events, sorted(bank), bank.stream("pump-1").status().events
    (100, ['pump-0', 'pump-1'], 50)
    """

    __slots__ = ("_config", "_note", "_pooled", "_streams", "_unranked")

    def __init__(self, config: MonitorConfig, note: Note | None = None) -> None:
        self._config = config
        self._note = note  # of the native core
        self._streams: dict[str, StreamMonitor] = {}
        self._pooled = RankMonitors(config, None)
        self._unranked = Unranked()

    def __iter__(self) -> Iterator[str]:
        return iter(self._streams)

    def __len__(self) -> int:
        return len(self._streams)

    def observe(self, verdicts: Iterable[Verdict]) -> list[Alarm]:
        """Take note of verdicts, in order; return the alarms they raised.

        Never raises, whatever the verdicts hold. O(log n) an event, about 5 µs.
        """
        alarms: list[Alarm] = []
        streams, every, at = self._streams, list(verdicts), 0
        while at < len(every):
            if self._note is not None:
                at = self._note(streams, self._pooled, self._unranked, every, at, alarms)
                if at == len(every):
                    break
            verdict = every[at]
            at += 1
            key = verdict.stream_key
            if verdict.mode is not None:
                key = in_mode(key, verdict.mode)
            monitor = streams.get(key) or self._add(key)
            alarms += monitor.observe(verdict)
            if monitor.cells is None or monitor.law is None:
                self._unranked.count(verdict)
                continue
            pooled = self._pooled.count(verdict, monitor.law, *monitor.cells)
            if len(streams) > 1:  # of one stream it would be said twice
                alarms += pooled
        return alarms

    def _add(self, stream_key: str) -> StreamMonitor:
        monitor = self._streams[stream_key] = StreamMonitor(self._config, stream_key)
        self._pooled.health.streams = len(self._streams)
        return monitor

    def stream(self, stream_key: str) -> StreamMonitor:
        """Return the monitors of one stream, made new if it was never seen."""
        return self._streams.get(stream_key) or self._add(stream_key)

    def status(self) -> MonitorStatus:
        """Return the pooled status, in O(streams); bounds are event-weighted means of theirs."""
        parts = [
            (theory, monitor.ranks.rate.events)
            for monitor in self._streams.values()
            if (theory := monitor.theory) is not None
        ]
        theory = mean_theory(parts)
        return self._pooled.status(stream_key=None, unranked=self._unranked, theory=theory)

    def active_alarms(self) -> list[Alarm]:
        """Return the alarms that are not withdrawn: the pipeline's and every stream's."""
        every = [self._pooled, *(monitor.ranks for monitor in self._streams.values())]
        return [alarm for ranks in every for alarm in ranks.active.at(ranks.rate.events)]

    def forget(self, stream_key: str) -> None:
        """Forget a stream, if it is here."""
        self._streams.pop(stream_key, None)
        self._pooled.health.streams = max(1, len(self._streams))

    def __contains__(self, stream_key: object) -> bool:
        return stream_key in self._streams

    def snapshot(self) -> bytes:
        """Return everything as bytes; a restored bank raises the same alarms ever after."""
        return self._encoded({key: monitor.snapshot() for key, monitor in self._streams.items()})

    def head(self) -> bytes:
        """Return as bytes what all streams have in common; each has a snapshot of its own."""
        return self._encoded({})

    def _encoded(self, streams: dict[str, bytes]) -> bytes:
        return _encode(
            _BankSnapshot(
                config=self._config,
                pooled=self._pooled.state,
                unranked=self._unranked,
                streams=streams,
            )
        )

    def restore(self, blob: bytes, streams: Mapping[str, bytes] | None = None) -> None:
        """Go on from :meth:`snapshot`, or from :meth:`head` and `streams`, in place of all here.

        Raises
        ------
        CheckpointError
            If the bytes are foreign, damaged, of another version or of other settings; the bank is
            then unchanged.
        """
        state = _decode(blob, _BankSnapshot)
        if state.config != self._config or len(state.pooled.rate.ring) != self._config.rolling:
            raise CheckpointError(
                "The monitor snapshot was written with other settings: start the monitors again."
            )
        kept = state.streams | dict(streams or {})
        monitors = {key: StreamMonitor(self._config, key) for key in kept}
        for key, monitor in monitors.items():
            monitor.restore(kept[key])
        self._streams = monitors
        self._pooled = RankMonitors(self._config, None)
        self._pooled.restore(state.pooled)
        self._pooled.health.streams = max(1, len(monitors))
        self._unranked = state.unranked


# --------------------------------------------------------------------------- state as bytes
_MAGIC = b"rejex-monitor\x03"  # and the version

S = TypeVar("S", bound=msgspec.Struct)


def _encode(state: msgspec.Struct) -> bytes:
    return _MAGIC + msgspec.msgpack.encode(state, enc_hook=dict)


def _settings(kind: type[Section], fields: dict[str, object]) -> Section:
    return kind(**fields)


def _decode(blob: bytes, kind: type[S]) -> S:
    if not blob.startswith(_MAGIC) or len(blob) <= len(_MAGIC):
        raise CheckpointError(
            f"These {len(blob)} bytes are not a monitor snapshot of this version: give what "
            "snapshot() returned, or start the monitors again."
        )
    try:
        return msgspec.msgpack.decode(blob[len(_MAGIC) :], type=kind, dec_hook=_settings)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CheckpointError(
            f"The monitor snapshot is damaged ({error}): start the monitors again."
        ) from None
