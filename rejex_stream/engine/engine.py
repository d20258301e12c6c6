"""The deterministic core: readings in, verdicts out, state as bytes.

Three laws, each a property test:

1. ``process(a) + process(b) == process(a + b)`` for every cut: batching changes speed only.
2. Fits are requested, needed and swapped at event counts, never at times.
3. Snapshot, crash, restore and silent replay give the same verdicts as no crash.

There is no clock, no thread of its own, no file and no log in here; the one effect the engine may
ask for is a fit, through the executor it is given.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import partial
from heapq import heapify, heappop, heapreplace
from numbers import Integral, Real
from types import TracebackType
from typing import Any, TypeAlias

from rejex_stream.engine.explanation import Explainer
from rejex_stream.engine.refit import FitFailed
from rejex_stream.engine.siblings import Siblings
from rejex_stream.engine.silences import Silences
from rejex_stream.engine.snapshot import (
    FORMAT,
    Origin,
    Restored,
    StreamsInCommon,
    as_kind,
    compared,
    origin,
    origin_of,
    seal,
    unseal,
)
from rejex_stream.engine.spec import Decision, EngineSpec, in_short
from rejex_stream.engine.stream_state import (
    StreamSnapshot,
    StreamState,
    StreamView,
    credit_in,
    new_model,
)
from rejex_stream.errors import ConfigError, EngineError
from rejex_stream.incidents import IncidentTracker, Plan, Plans
from rejex_stream.native_core import core
from rejex_stream.protocols import FitExecutor
from rejex_stream.readable import ChannelReading
from rejex_stream.rejection.judge import Judge
from rejex_stream.rejection.token_bucket import Credits
from rejex_stream.types import (
    MODE_MARK,
    Command,
    CommandKind,
    CommandReply,
    FloatArray,
    Incident,
    IncidentState,
    Reading,
    Verdict,
    in_mode,
    of_mode,
)

__all__ = [
    "Decision", "Engine", "EngineSpec", "Origin", "ReentrancyGuard", "Restored", "checked", "core",
    "origin", "run_in_order",
]  # fmt: skip

_Snapshot: TypeAlias = tuple[
    dict[str, str], dict[str, Any], dict[str, str], dict[str, StreamSnapshot]
]


class Engine:
    """Scores, ranks and judges the readings of any number of stream keys.

    Parameters
    ----------
    spec
        What decides a verdict.
    executor
        Where fits run (:mod:`rejex_stream.run.executors`); unused by incremental detectors.
    idle
        Where streams that have not been heard of for long are kept as bytes, e.g. a dict or a
        disk-backed mapping; they come back unchanged with their next event.
    max_live_streams
        How many streams stay in memory; the one unheard of for longest leaves first.

    Examples
    --------
    >>> from rejex_stream.detectors import make_detector
    >>> from rejex_stream.engine.refit import RefitSchedule
    >>> from rejex_stream.features import FeatureSpec
    >>> from rejex_stream.rejection import RejectionPolicy
    >>> from rejex_stream.run.executors import InlineExecutor
    >>> from rejex_stream.types import Position
    >>> spec = EngineSpec(
    ...     make_detector("HBOS"), FeatureSpec(("flow",)), RejectionPolicy(0.1, tolerance=4),
    ...     window=100, schedule=RefitSchedule(first_fit_events=200, refit_every_events=None),
    ... )
    >>> engine = Engine(spec, InlineExecutor())
    >>> values = [float(i % 17) for i in range(400)] + [99.0]
    >>> readings = [
    ...     Reading("pump", "pump", 1000 * i, (value,), Position("flow", 0, i))
    ...     for i, value in enumerate(values)
    ... ]
    >>> verdicts = engine.process(readings)
    >>> str(verdicts[0].label), str(verdicts[0].reason)
    ('rejected', 'warm_up')
    >>> str(verdicts[-1].label), verdicts[-1].rank, verdicts[-1].window_len
    ('anomaly', 97, 100)
    """

    def __init__(
        self,
        spec: EngineSpec,
        executor: FitExecutor,
        *,
        idle: MutableMapping[str, StreamSnapshot] | None = None,
        max_live_streams: int | None = None,
    ) -> None:
        if max_live_streams is not None and (max_live_streams < 1 or idle is None):
            raise ConfigError(
                f"max_live_streams = {max_live_streams} needs a mapping `idle` to put streams "
                "into, and must be at least 1."
            )
        self.spec = spec
        self._executor, self._is_batch, self._core = executor, spec.is_batch, core()[0]
        self._live: dict[str, StreamState] = {}  # in order of last use
        self._idle: MutableMapping[str, StreamSnapshot] = {} if idle is None else idle
        self._max_live = max_live_streams
        self.failures: list[FitFailed] = []  # of fits, until they are taken; always this list
        self.changes: list[Incident] = []  # of incidents, until they are taken
        self._plans = Plans()  # of all streams, as people said
        self._open: dict[str, Incident] = {}  # as they stand, by id
        # Who sends nothing: its partition knows.
        self.silences: Silences | None = None
        # What the channels of an incident read, beside what is usual: its partition knows, too.
        self.told: Callable[[Incident], Sequence[ChannelReading]] | None = None
        self._modes = OperatingModes(by_mode=spec.modes)
        self._decision = spec.decision
        self._is_lazy = False
        self.siblings = Siblings(spec.features, modes=spec.modes)
        self._credits = Credits(self._decision.policy, modes=spec.modes)
        self._guard = ReentrancyGuard()

    def process(self, readings: Sequence[Reading]) -> list[Verdict]:
        """Return one verdict per reading, in the same order.

        Readings of one key must come in their order; keys may be mixed at will. Where a fit is
        needed that is not done, this waits for it; :meth:`ready` says how far it need not. All or
        nothing: with one reading that cannot be judged, none of the batch is.

        Raises
        ------
        ConfigError
            If a reading is none, or not one of this pipeline's channels; no state has changed.
        EngineError
            If another thread is using the engine, or an earlier call broke off.
        """
        with self._guard:
            self._guard.require_whole()
            verdicts = None if self.siblings.any else self._polled(readings)
            if verdicts is None:
                channels, modes = self.spec.features.channels, self.spec.modes
                readings, totals = checked(readings, channels, modes=modes)
                self._guard.halfway = True
                verdicts = self._judge(readings, totals)
            if self._max_live is not None:
                self._make_room()
            self._guard.halfway = False
        return verdicts

    def _polled(
        self, readings: Sequence[Reading], beside: FloatArray | None = None
    ) -> list[Verdict] | None:
        """Judge a batch by the native core; ``None``, and nothing has happened, where it is not."""
        if self._core is None or self._is_lazy or self._credits.are_shared:
            return None
        was_halfway, self._guard.halfway = self._guard.halfway, True
        channels = len(self.spec.features.channels)
        found = self._core.poll(self._stream, self._live, readings, channels, beside)
        if found is None:
            self._guard.halfway = was_halfway
            return None
        verdicts: list[Verdict] = found[0]
        self._note_in_order([one for state in found[1] for one in state.take_incidents()], verdicts)
        return verdicts

    def _judge(self, readings: Sequence[Reading], totals: Sequence[float]) -> list[Verdict]:
        if not self.siblings.any:
            return self._judge_in_order(readings, totals)
        verdicts = list[Verdict]()
        while len(verdicts) < len(readings):  # up to where it is looked at who is held
            part = slice(len(verdicts), len(verdicts) + self.siblings.until_look)
            beside = self.siblings.beside(readings[part], self._core and self._core.beside)
            judged = self._polled(readings[part], beside)
            if judged is None:
                judged = self._judge_in_order(readings[part], totals[part], beside)
            self.siblings.look(judged)
            verdicts += judged
        return verdicts

    def _judge_in_order(
        self, readings: Sequence[Reading], totals: Sequence[float], beside: FloatArray | None = None
    ) -> list[Verdict]:
        """Judge in the order of the readings, across keys: who comes first gets the credit."""
        # Rows are made, and scored, key by key all the same.
        if readings and self._is_lazy:
            self._materialise()
        by_key: defaultdict[str, list[int]] = defaultdict(list)
        for i, reading in enumerate(readings):
            by_key[reading[0]].append(i)
        streams: list[tuple[list[int], list[Verdict | None], StreamState]] = []
        steps = []
        for key, at in by_key.items():
            own: list[Verdict | None] = [None] * len(at)
            state = self._stream(key)
            if beside is not None:
                state.beside = beside[at]
            streams.append((at, own, state))
            steps.append((at, state.steps([readings[i] for i in at], [totals[i] for i in at], own)))
        run_in_order(steps)
        verdicts: list[Verdict] = [None] * len(readings)  # type: ignore[list-item] # filled below
        changes: list[Incident] = []
        for at, own, state in streams:
            for i, verdict in zip(at, own, strict=True):
                verdicts[i] = verdict  # type: ignore[assignment] # every step was taken
            if state.tracker.changes:
                changes += state.take_incidents()
        self._note_in_order(changes, verdicts)
        return verdicts

    def _note_in_order(self, changes: Sequence[Incident], verdicts: Sequence[Verdict]) -> None:
        if changes:
            place = {verdict.position: i for i, verdict in enumerate(verdicts)}
            self._note(sorted(changes, key=lambda change: place[change.position]))

    def _note(self, changes: Iterable[Incident]) -> None:
        for change in changes:
            self.changes.append(change)
            self._open[change.id] = change
            if change.state is IncidentState.CLOSED:
                del self._open[change.id]

    def ready(self, readings: Sequence[Reading]) -> int:
        """Return how many of the next readings can be judged before a fit has to be waited for.

        By batch invariance a caller may process these now and the others once the fit is done: no
        verdict depends on it. Fits that the others need are asked for, in the order of need.
        O(readings).
        """
        if not self._is_batch:
            return len(readings)
        ready, left = len(readings), dict[str, int]()
        with self._guard.whole():
            keys = [reading[0] for reading in readings]
            due = {key for key, n in Counter(keys).items() if self._rows_before_fit(key) < n}
            for i, key in enumerate(keys):
                if key not in due:
                    continue
                rows = left.get(key)
                if rows is None:
                    rows = self._rows_ready(key, needed_now=ready == len(readings))
                if rows == 0:
                    ready = min(ready, i)
                left[key] = rows - 1
        return ready

    def _rows_before_fit(self, key: str) -> int:
        """Return before how many rows, at least, no fit is installed or waited for."""
        state = self._live.get(key)
        return 0 if state is None else state.model.fast_path_until - state.model.rows_seen

    def _rows_ready(self, key: str, *, needed_now: bool) -> int:
        state = self._live.get(key)
        if state is None and key in self._idle and needed_now:
            state = self._stream(key)
        if state is None:  # new, or idle behind one that waits
            return self.spec.schedule.first_fit_events + self.spec.schedule.refit_lag_events
        return state.rows_ready()

    def take_failures(self) -> list[FitFailed]:
        """Return the fits that failed since the last call, for the shell to log and count."""
        with self._guard:
            failures, self.failures[:] = self.failures[:], ()  # models hold on to the list itself
        return failures

    def take_incidents(self) -> list[Incident]:
        """Return what changed of incidents since the last call, in the order of the events.

        At most one change of an incident an event; its `position` is that of the event.
        """
        with self._guard:
            changes, self.changes = self.changes, []
        return changes

    def open_incidents(self) -> list[Incident]:
        """Return the incidents that are open, as they were told last."""
        silent = () if self.silences is None else self.silences.open.values()
        return [*self._open.values(), *silent]

    def command(self, command: Command) -> CommandReply | None:
        """Apply what a person says from the next reading on; a refusal changes nothing.

        Returns ``None`` where none of this engine's streams and incidents is meant. What an answer
        changes of an incident is told with the stream's next event.
        """
        with self._guard.whole():
            keys = self.streams_of(command)
            if not keys:
                return self._command_all(command)
            replies = [self._stream(key).command(command) for key in keys]
            self._make_room()
        said = [reply for reply in replies if reply is not None]
        return max(said, key=lambda reply: reply.accepted, default=None)

    def streams_of(self, command: Command) -> list[str]:
        """Return the keys whose own state a command may change: one in each mode of the stream."""
        keys = [] if command.stream_key is None else self._modes.of(command.stream_key)
        return [key for key in keys if key in self._live or key in self._idle]

    def _command_all(self, command: Command) -> CommandReply | None:
        if command.stream_key is not None:
            return None
        if command.kind not in (CommandKind.PLANNED, CommandKind.CANCEL):
            said = f"Incident {command.incident} is answered without its stream: give stream_key."
            return CommandReply(command=command.id, accepted=False, said=said)
        reply = self._plans.command(command)
        self._show_decision()
        return reply

    def streams(self) -> list[str]:
        """Return the keys of all streams, in memory or idle."""
        return [*self._live, *self._idle]

    def _evict(self, stream_key: str) -> None:
        """Move one stream to `idle`; its next event brings it back unchanged."""
        state = self._live.pop(stream_key)
        self._idle[stream_key] = state.snapshot()
        state.close()

    def forget(self, stream_key: str, sensor: str | None = None) -> None:
        """Drop a stream, or of one that goes on what it knows of a sensor; they begin again.

        O(1), and what it takes to bring back an idle stream.
        """
        with self._guard.whole():
            if sensor is not None:
                if stream_key in self._live or stream_key in self._idle:
                    self._stream(stream_key).forget(sensor)
                    self._make_room()
                return
            state = self._live.pop(stream_key, None)
            kept = self._idle.pop(stream_key, None)
            if state is not None:
                self._credits.release(stream_key, state.credit)
                state.close()
            elif kept is not None:
                self._credits.release(stream_key, credit_in(kept))
            for id_, one in list(self._open.items()):
                if in_mode(one.stream_key, one.mode) == stream_key:
                    del self._open[id_]
            self._modes.forget(stream_key)

    def snapshot(self) -> bytes:
        """Return all streams as sealed bytes: rows, windows and seeds; no pickled models."""
        with self._guard.whole():
            streams = {key: state.snapshot() for key, state in self._live.items()}
            return seal("engine", FORMAT, [*self._origin(), streams | {**self._idle}])

    def _origin(self) -> list[Mapping[str, Any]]:
        credits, siblings = self._credits.state(), self.siblings.state()
        said = StreamsInCommon(self._plans, self._open, credits, siblings)
        return origin_of(self.spec, self._decision, said)

    def head(self) -> bytes:
        """Return, sealed, what belongs to no single stream: what a snapshot has to agree with."""
        return seal("engine-head", FORMAT, self._origin())

    def view(self, stream_key: str) -> StreamView:
        """Take one stream as it is now, to be encoded later on any thread. O(window + rows)."""
        with self._guard.whole():
            if stream_key in self._live:
                return self._live[stream_key].view()
            kept = self._idle[stream_key]
        return StreamView(lambda: kept.state, lambda: kept.model, kept.model_version)

    def decide(self, decision: Decision) -> None:
        """Give verdicts by another decision from the next reading on; the state is the same."""
        with self._guard.whole():
            self._decision = decision
            self._renew_credits()
            self._show_decision()
            if self._is_lazy:
                self._materialise()

    def _renew_credits(self) -> None:
        known = ((key, credit_in(kept)) for key, kept in self._idle.items())
        self._credits.rebuild(self._decision.policy, self.streams(), known, is_lazy=self._is_lazy)

    def _show_decision(self) -> None:
        for key, state in self._live.items():
            state.decide(self._decision, self._calendar, self._explainer(), self._credits.of(key))

    @property
    def _calendar(self) -> tuple[Plan, ...]:
        return (*self._decision.calendar, *self._plans.all)

    def restore(self, blob: bytes, *, accept_environment: bool = False) -> Restored:
        """Take over all streams of :meth:`snapshot`; what this engine held before is dropped.

        Models are fitted again from their rows and seeds. That repeats them bit for bit under
        the library versions that made them. Verdicts are given by this engine's own decision, may
        it be another than that of the snapshot.

        Parameters
        ----------
        blob
            The snapshot.
        accept_environment
            Go on under other library versions or on another kind of processor than those of the
            snapshot; scores may then differ in the last bit, and verdicts after a replay with them.

        Raises
        ------
        CheckpointError
            If the snapshot is broken, of a pipeline with another state, or of other versions.
        """
        with self._guard:
            *origin, streams = as_kind(unseal("engine", FORMAT, blob), _Snapshot)
            return self._take_over(origin, streams, accept_environment=accept_environment)

    def restore_streams(
        self,
        head: bytes,
        streams: Mapping[str, StreamSnapshot],
        *,
        accept_environment: bool = False,
    ) -> Restored:
        """Take over streams under the :meth:`head` they were taken with, as :meth:`restore` does.

        Raises
        ------
        CheckpointError
            As :meth:`restore`.
        """
        with self._guard:
            origin = unseal("engine-head", FORMAT, head)
            return self._take_over(origin, streams, accept_environment=accept_environment)

    def _take_over(
        self,
        origin: Sequence[Any],
        streams: Mapping[str, StreamSnapshot],
        *,
        accept_environment: bool,
    ) -> Restored:
        restored, said = compared(
            origin, self.spec, self._decision, accept_environment=accept_environment
        )
        self._drop()
        self._plans, self._open = said.plans, said.incidents
        self._credits.load(said.credits)
        try:
            self.siblings.restore(said.siblings)
            self._idle.update(streams)
            self._modes.know(streams)
            self._renew_credits()
            # By another decision a credit could be cut; the one it came from may be wanted next.
            self._is_lazy = restored.was != restored.now
            if not self._is_lazy:
                self._materialise()
        except BaseException:
            self._drop()
            raise
        return restored

    def close(self) -> None:
        """Drop all state and give up background fits."""
        with self._guard:
            self._drop()

    def _drop(self) -> None:
        for state in self._live.values():
            state.close()
        self._live.clear()
        self._idle.clear()
        self._modes.clear()
        self._open.clear()
        self._credits.clear()
        self._guard.halfway = False

    def _stream(self, key: str) -> StreamState:
        state = self._live.pop(key, None)
        if state is None:
            state = self._new_stream(key)
            kept = self._idle.get(key)
            if kept is not None:
                state.restore(kept)
                del self._idle[key]
            else:
                self._begin(key, state)
        self._live[key] = state  # last used, last to leave
        return state

    def _begin(self, key: str, state: StreamState) -> None:
        """Begin a stream: with mutes and plans of its other modes, and the credit it left."""
        for other in self._modes.others(key)[:1]:
            state.copy_commands_from(self._stream(other))
        self._modes.know([key])
        left = self._credits.register(key)
        if left is not None:
            state.credit = left

    def _new_stream(self, key: str) -> StreamState:
        spec, decision = self.spec, self._decision
        stream_key, mode = self._modes.named(key)
        tracker = IncidentTracker(decision.hold, stream_key, spec.window, mode, decision.alarms)
        model = new_model(spec, key, tracker, self._executor, self.failures.append)
        judge = Judge(decision.policy, spec.window, self._credits.of(key), tracker)
        return StreamState(
            key, spec.features, model, judge,
            tracker=tracker, explainer=self._explainer(), calendar=self._calendar,
            limits=decision.limits,
            fast_path=None if self._core is None else self._core.fast_path,
            interim=partial(self._new_interim, key) if self._is_batch else None,
        )  # fmt: skip

    def _new_interim(self, key: str, tracker: IncidentTracker) -> StreamState:
        """Return what judges beside a stream that is held: it asks nobody, and spends no budget."""
        spec, policy = self.spec, self._decision.policy.unbudgeted
        model = new_model(spec, key, tracker, self._executor, self.failures.append)
        judge = Judge(policy, spec.window, None, tracker)
        return StreamState(
            key, spec.features, model, judge, tracker=tracker, explainer=self._explainer()
        )

    def _materialise(self) -> None:
        """Bring streams back while there is room: fits start now, not with the next event."""
        self._is_lazy = False
        for key in list(self._idle):
            if self._max_live is not None and len(self._live) >= self._max_live:
                break
            self._stream(key)

    def _explainer(self) -> Explainer | None:
        decision = self._decision
        if not decision.evidence:
            return None
        return Explainer(self.spec.features, decision.policy.contamination)

    def _make_room(self) -> None:
        while self._max_live is not None and len(self._live) > self._max_live:
            self._evict(next(iter(self._live)))


_INT64 = 2**63  # a time beyond it cannot be kept


def checked(
    readings: Sequence[Reading], channels: Sequence[str], *, modes: bool = False
) -> tuple[Sequence[Reading], Sequence[float]]:
    """Return the readings of a batch, all of which can be judged, and the sum of each one's values.

    What decoders make costs about 0.4 µs a reading; anything else (numpy's numbers, say) is turned
    into plain numbers.
    """
    try:
        totals = _plain_totals(readings, len(channels), modes=modes)
    except (TypeError, ValueError, ArithmeticError):
        totals = None
    if totals is not None:
        return readings, totals
    try:
        readings = list(readings)
    except TypeError:
        raise ConfigError(
            f"{in_short(readings)} is no batch: give process() a list of readings."
        ) from None
    plain = []
    for i, reading in enumerate(readings):
        try:
            plain.append(_plain(reading, channels, modes=modes))
        except _Wrong as wrong:
            at = f" ({reading[4]})" if isinstance(reading, Reading) else ""
            raise ConfigError(
                f"Reading {i} of {len(readings)}{at} {wrong}. Nothing of the batch was taken; fix "
                "that reading, or leave it out, and give the others again."
            ) from None
    return plain, [sum(reading.values) for reading in plain]


class _Wrong(Exception):  # noqa: N818 - never leaves this module
    """What a reading has and what was expected."""


def _plain_totals(
    readings: Sequence[Reading], n_channels: int, *, modes: bool
) -> list[float] | None:
    # A sum is a float if its parts are floats and perhaps integers; that of numpy's is numpy's.
    if type(readings) is not list and type(readings) is not tuple:
        return None
    totals: list[float] = []
    for reading in readings:
        if type(reading) is not Reading:
            return None
        key, sensor, time, values, _ = reading
        total, names = sum(values), key + sensor
        if not names.isascii():
            names.encode()  # refuses a lone surrogate, which no snapshot could hold
        if (
            type(total) is not float
            or len(values) != n_channels
            or type(time) is not int
            or not -_INT64 <= time < _INT64
            # A name has the mark in it that stands before a mode, and nowhere else.
            or (MODE_MARK in names and MODE_MARK in sensor + (of_mode(key)[0] if modes else key))
        ):
            return None
        totals.append(total)
    return totals


def _plain(reading: Reading, channels: Sequence[str], *, modes: bool) -> Reading:
    if not isinstance(reading, Reading):
        raise _Wrong(f"is {in_short(reading)}: expected a Reading")
    for what, name in (("stream_key", reading.stream_key), ("sensor", reading.sensor)):
        if not isinstance(name, str):
            raise _Wrong(f"has {what} {in_short(name)}: expected a text")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise _Wrong(f"has {what} {in_short(name)}: expected valid Unicode") from None
        if MODE_MARK in (of_mode(name)[0] if modes and what == "stream_key" else name):
            raise _Wrong(
                f"has {what} {in_short(name)}: expected no U+001F, which stands before an "
                "operating mode (EngineSpec(modes=True))"
            )
    time = reading.event_time_ms
    if not isinstance(time, Integral) or not -_INT64 <= time < _INT64:
        raise _Wrong(f"has event_time_ms {in_short(time)}: expected milliseconds as an integer")
    try:
        found = list(reading.values)
    except TypeError:
        raise _Wrong(f"has values {in_short(reading.values)}: expected a tuple of floats") from None
    if len(found) != len(channels):
        named = ", ".join(channels)
        raise _Wrong(f"has {len(found)} values: expected {len(channels)}, the channels {named}")
    values = []
    for channel, value in zip(channels, found, strict=True):
        try:
            if not isinstance(value, Real):
                raise TypeError
            values.append(float(value))
        except (TypeError, ValueError, ArithmeticError):
            raise _Wrong(
                f"has {in_short(value)} in channel {channel!r}: expected a float, nan if missing"
            ) from None
    return Reading(str(reading[0]), str(reading[1]), int(time), tuple(values), reading[4])


def run_in_order(streams: Sequence[tuple[Sequence[int], Iterator[int]]]) -> None:
    """Take the steps of streams in the order of the readings: where each stream's own stand."""
    waiting = []
    for n, (at, steps) in enumerate(streams):
        if (step := next(steps, None)) is not None:
            waiting.append((at[step], n))
    heapify(waiting)
    while waiting:
        at, steps = streams[waiting[0][1]]
        if (step := next(steps, None)) is None:
            heappop(waiting)
        else:
            heapreplace(waiting, (at[step], waiting[0][1]))


class ReentrancyGuard:
    """Lets one call in and refuses every other until it has ended; waits for nobody.

    A lock that made the second thread wait would keep the state whole and give its readings an
    order by chance.

    Attributes
    ----------
    halfway
        Set while a call changes state; one that an exception ended leaves it set.
    """

    __slots__ = ("_lock", "_who", "halfway")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._who = 0
        self.halfway = False

    def __enter__(self) -> None:
        if not self._lock.acquire(False):
            raise EngineError(
                "This engine is used by two callers at once: thread "
                f"{_name(threading.get_ident())} called it while thread {_name(self._who)} was not "
                "done. Nothing was changed by the second; give every thread an engine of its own, "
                "or put a lock around this one."
            )
        self._who = threading.get_ident()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Begin a call that goes on from the state as it is."""
        with self:
            self.require_whole()
            yield

    def require_whole(self) -> None:
        """Refuse to go on from a state that a failed call left between two events."""
        if self.halfway:
            raise EngineError(
                "An earlier call ended with an error after part of its batch had been judged, so "
                "this engine's state belongs to no place in the input: restore() a snapshot, or "
                "make a new engine and give it the readings again."
            )


def _name(ident: int) -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return repr(names.get(ident, f"number {ident}"))


class OperatingModes:
    """The keys of each stream, where keys name a mode; else every stream is its own key."""

    __slots__ = ("_by_mode", "_keys")

    def __init__(self, *, by_mode: bool) -> None:
        self._by_mode = by_mode
        self._keys: dict[str, dict[str, None]] = {}

    def named(self, key: str) -> tuple[str, str | None]:
        """Return the stream and the mode of a key."""
        return of_mode(key) if self._by_mode else (key, None)

    def know(self, keys: Iterable[str]) -> None:
        """Take note of keys."""
        if self._by_mode:
            for key in keys:
                self._keys.setdefault(of_mode(key)[0], {})[key] = None

    def of(self, stream_key: str) -> Sequence[str]:
        """Return the keys that are known of a stream."""
        return list(self._keys.get(stream_key, ())) if self._by_mode else [stream_key]

    def others(self, key: str) -> Sequence[str]:
        """Return the keys of the same stream in its other modes."""
        stream_key, mode = self.named(key)
        return [] if mode is None else [other for other in self.of(stream_key) if other != key]

    def forget(self, key: str) -> None:
        """Forget a key."""
        stream_key, _ = self.named(key)
        keys = self._keys.get(stream_key, {})
        keys.pop(key, None)
        if not keys:
            self._keys.pop(stream_key, None)

    def clear(self) -> None:
        """Forget all of them."""
        self._keys.clear()
