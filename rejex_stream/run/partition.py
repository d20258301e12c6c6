"""One partition of the input: its engine, its place in the order, and the snapshots of its state.

A snapshot is made of parts that move at different times, each under one seal. The loop takes views
of the streams that have moved, some at each turn, and of a stream that is about to move before it
does; they are encoded on another thread. So a snapshot of any number of streams stands at one
offset, and the loop never waits for all of them.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from rejex_stream.decode import DecidingDecoder, Decoder, decode_records
from rejex_stream.decode.reorder_buffer import ReorderBuffer, ReorderRules
from rejex_stream.engine.engine import Engine, Origin, Restored, origin
from rejex_stream.engine.refit import FitFailed
from rejex_stream.engine.sensor_registry import Gone, Limits, SensorRegistry
from rejex_stream.engine.snapshot import seal, unseal
from rejex_stream.engine.stream_state import StreamSnapshot, resting_in
from rejex_stream.errors import WAY_OUT, CheckpointError, RejexError
from rejex_stream.monitor import Alarm, MonitorBank, MonitorConfig
from rejex_stream.native_core import native
from rejex_stream.protocols import SnapshotPiece
from rejex_stream.rejection.judge import rejected
from rejex_stream.run.command_journal import CommandJournal
from rejex_stream.run.review_items import ReviewItems, TypicalValues
from rejex_stream.run.run_settings import RunSettings
from rejex_stream.types import (
    Command,
    CommandReply,
    Incident,
    IncidentState,
    Invalid,
    Outcome,
    Partition,
    Position,
    Reading,
    Reason,
    Record,
    Status,
    Verdict,
    in_mode,
    last_offset,
    of_mode,
    stream_name,
)

_log = logging.getLogger(__name__)

HEAD, _HEAD_KIND, _HEAD_FORMAT = "head", "partition-head", 1
_STATE, _MODEL, _CONTEXT, _MONITOR, _TYPICAL = "s", "m", "c", "w", "u"
_FORMAT_VERSION = 1
_VERSION_BYTES = 8
MAX_PIECE_BYTES = 4_000_000
"""A piece is closed once its parts are about so large."""

Encode: TypeAlias = Callable[[], Mapping[str, bytes | None]]
OnJudged: TypeAlias = Callable[[Partition, Sequence[Reading], float], None]
"""Sees what was judged at once, and how many seconds that took."""


class PartitionMonitor:
    """A :class:`~rejex_stream.monitor.MonitorBank` in the place of a run's monitor."""

    def __init__(
        self,
        partition: Partition,
        config: MonitorConfig,
        on_alarm: Callable[[Partition, Alarm], None],
    ) -> None:
        # The monitors, for metrics and the live view.
        self.bank = MonitorBank(config, native("note"))
        self._partition = partition
        self._on_alarm = on_alarm

    def observe(self, outcomes: Sequence[Outcome], *, replaying: bool) -> None:
        alarms = self.bank.observe(
            [outcome.verdict for outcome in outcomes if outcome.verdict is not None]
        )
        if not replaying:
            for alarm in alarms:
                self._on_alarm(self._partition, alarm)

    def view(self, stream_key: str) -> bytes | None:
        return self.bank.stream(stream_key).snapshot() if stream_key in self.bank else None

    def restore(self, blob: bytes, streams: Mapping[str, bytes]) -> bool:
        """Take over a state; monitors whose settings were changed since start again."""
        try:
            self.bank.restore(blob, streams)
        except CheckpointError as error:
            _log.warning("%s-%d: %s", *self._partition, error)
            return False
        return True


def log_alarm(partition: Partition, alarm: Alarm) -> None:
    _log.warning(
        "alarm %s on %s: %s",
        alarm.kind,
        stream_name(alarm.stream_key, alarm.mode),
        alarm.message,
        extra={
            "event": "alarm",
            "kind": str(alarm.kind),
            "stream": alarm.stream_key,
            "mode": alarm.mode,
            "topic": partition.topic,
            "partition": partition.partition,
            "offset": alarm.position.offset,
        },
    )


class Head(msgspec.Struct, forbid_unknown_fields=True):
    """What a snapshot holds of no single stream or sensor."""

    partition: list[str | int]
    channels: list[str]
    next_offset: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
    n_events: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
    engine: bytes
    sensors: dict[str, Any]
    monitor: bytes | None
    reorder: Any = None
    counters: tuple[int, ...] = ()  # the places of channels that are read by their rise

    def sealed(self) -> bytes:
        return seal(_HEAD_KIND, _HEAD_FORMAT, msgspec.structs.asdict(self))


@contextmanager
def from_outside() -> Iterator[None]:
    """Turn whatever goes wrong with state that comes from outside into its refusal.

    A seal vouches for bytes and not for sense: what was sealed by something else, or by a defect,
    may have any form.
    """
    try:
        yield
    except RejexError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"The snapshot holds what no run can have written ({type(error).__name__}: {error}): "
            f"{WAY_OUT}."
        ) from error


class SnapshotParts(NamedTuple):
    """The parts of a snapshot, by what they are."""

    head: Head
    streams: dict[str, StreamSnapshot]
    context: dict[str, bytes]
    registry: dict[str, Any]
    monitor: dict[str, bytes]
    typical: dict[str, bytes]


class Piece(NamedTuple):
    """Some views of a snapshot; :meth:`encoded` may run on any thread, once."""

    next_offset: int
    n_events: int
    base: int | None
    views: Sequence[Encode]
    first: bool
    last: bool

    def encoded(self) -> SnapshotPiece:
        parts: dict[str, bytes | None] = {}
        for encode in self.views:
            parts |= encode()
        return SnapshotPiece(self.next_offset, self.base, parts, self.first, self.last)


@dataclass
class _Begun:
    next_offset: int
    n_events: int
    base: int | None
    streams: dict[str, None]
    sensors: dict[str, None]
    versions: dict[str, int]
    taken: list[Encode]
    first: bool = True
    all_streams: dict[str, None] = field(default_factory=dict)
    all_sensors: dict[str, None] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)


class DirtyParts:
    """Knows which streams have changed since the last snapshot, and takes the views of the next."""

    def __init__(
        self,
        engine: Engine,
        context: ReviewItems,
        registry: SensorRegistry,
        monitor: PartitionMonitor | None,
        typical: TypicalValues,
    ) -> None:
        # where the snapshot stands that the next one builds upon; ``None``: it is written whole
        self.base: int | None = None
        self._engine, self._context, self._registry = engine, context, registry
        self._monitor, self._typical = monitor, typical
        self._streams: dict[str, None] = {}
        self._sensors: dict[str, None] = {}
        self._gone: set[str] = set()  # parts of what was evicted
        self._versions: dict[str, int] = {}  # of the models in the last snapshot
        self.begun: _Begun | None = None  # a snapshot that is neither committed nor abandoned

    def view_before_change(self, readings: Iterable[Reading]) -> None:
        """View now what a snapshot waits for and these readings are about to change."""
        if self.begun is not None:
            for reading in readings:
                self._view_now(self.begun, reading.stream_key, reading.sensor)

    def mark_dirty(self, readings: Collection[Reading]) -> None:
        self._streams |= dict.fromkeys([reading.stream_key for reading in readings])
        self._sensors |= dict.fromkeys([reading.sensor for reading in readings])

    def mark_dirty_by_command(self, key: str) -> None:
        """Have the next snapshot write a stream that a command is about to change."""
        begun = self.begun
        if begun is not None and key in begun.streams:
            del begun.streams[key]
            begun.taken.append(self._view(begun, key))
        self._streams[key] = None

    def mark_evicted(self, gone: Gone) -> None:
        """Have the next snapshot drop who is about to be evicted, after a view for this one."""
        begun = self.begun
        for key, sensor in gone.pairs:
            if begun is not None:
                self._view_now(begun, key, sensor)
            self._streams[key] = self._sensors[sensor] = None
        for key in gone.streams:
            del self._streams[key]
            self._gone.update(kind + key for kind in (_STATE, _MODEL, _MONITOR, _TYPICAL))
            self._versions.pop(key, None)  # who comes back under that name has another model
            if begun is not None:
                begun.versions.pop(key, None)
        for sensor in gone.sensors:
            del self._sensors[sensor]
            self._gone.add(_CONTEXT + sensor)

    def _view_now(self, begun: _Begun, key: str, sensor: str) -> None:
        if key in begun.streams:
            del begun.streams[key]
            begun.taken.append(self._view(begun, key))
        if sensor in begun.sensors:
            del begun.sensors[sensor]
            begun.taken.append(self._view_of_sensor(sensor))

    def begin(self, next_offset: int, n_events: int, head: bytes) -> None:
        """Begin a snapshot of the state as it is now. O(1), but for the first one."""
        streams, sensors = self._streams, self._sensors
        if self.base is None:
            streams = dict.fromkeys(self._engine.streams())
            sensors = dict.fromkeys(self._context.sensors())
            self._versions = {}
        forgotten = {
            part
            for part in self._gone
            if part[1:] not in (sensors if part[0] == _CONTEXT else streams)  # who is not back
        }
        self._streams, self._sensors, self._gone = {}, {}, set()
        gone = dict.fromkeys(forgotten)
        self.begun = _Begun(
            next_offset, n_events, self.base, dict(streams), dict(sensors), {},
            [lambda: {**gone, HEAD: head}], True, streams, sensors, forgotten,
        )  # fmt: skip

    def next_piece(self, seconds: float) -> Piece:
        """Take a view, more for so long, and return them with those that could not wait."""
        begun = self.begun
        assert begun is not None
        until, size = perf_counter() + seconds, 0
        max_bytes = MAX_PIECE_BYTES if seconds < math.inf else math.inf
        for waiting, view in (
            (begun.streams, lambda key: self._view(begun, key)),
            (begun.sensors, self._view_of_sensor),
        ):
            while waiting and (not size or (perf_counter() < until and size < max_bytes)):
                name = next(iter(waiting))
                del waiting[name]
                begun.taken.append(view(name))
                size += 1 if waiting is begun.sensors else self._size
        views, begun.taken = begun.taken, []
        first, begun.first = begun.first, False
        last = not begun.streams and not begun.sensors
        return Piece(begun.next_offset, begun.n_events, begun.base, views, first, last)

    def restored(self, base: int, streams: Mapping[str, StreamSnapshot]) -> None:
        """Build upon the snapshot that was restored."""
        self.base = base
        self._versions = {key: stream.model_version for key, stream in streams.items()}

    def commit(self) -> None:
        begun, self.begun = self.begun, None
        assert begun is not None
        self.base = begun.next_offset
        self._versions |= begun.versions

    def abandon(self, *, base_is_gone: bool = False) -> None:
        """Drop the snapshot that was begun; what had changed is due again."""
        begun, self.begun = self.begun, None
        if begun is not None:
            gone = self._gone  # since it was begun
            self._gone = gone | begun.gone
            self._streams |= {key: None for key in begun.all_streams if _STATE + key not in gone}
            self._sensors |= {
                sensor: None for sensor in begun.all_sensors if _CONTEXT + sensor not in gone
            }
        if base_is_gone:
            self.base = None

    _size = 20_000  # bytes of a stream, about; measured as they are encoded

    def _view(self, begun: _Begun, key: str) -> Encode:
        view = self._engine.view(key)
        monitor = None if self._monitor is None else self._monitor.view(key)
        typical = self._typical.view(key)
        has_new_model = self._versions.get(key) != view.model_version
        begun.versions[key] = view.model_version

        def encode() -> dict[str, bytes | None]:
            version = view.model_version.to_bytes(_VERSION_BYTES, "big")
            parts: dict[str, bytes | None] = {_STATE + key: version + view.state()}
            if has_new_model:
                parts[_MODEL + key] = view.model()
            if monitor is not None:
                parts[_MONITOR + key] = seal("monitor", _FORMAT_VERSION, [key, monitor])
            parts[_TYPICAL + key] = seal("typical", _FORMAT_VERSION, [key, typical()])
            self._size = sum(map(len, filter(None, parts.values())))
            return parts

        return encode

    def _view_of_sensor(self, sensor: str) -> Encode:
        view, known = self._context.view(sensor), self._registry.view(sensor)
        return lambda: {
            _CONTEXT + sensor: seal("context", _FORMAT_VERSION, [sensor, view(), known])
        }


def parts_of(parts: Mapping[str, bytes]) -> SnapshotParts:
    """Return the parts of a snapshot by what they are."""
    with from_outside():
        head = msgspec.convert(unseal(_HEAD_KIND, _HEAD_FORMAT, parts.get(HEAD, b"")), Head)
        sorted_parts = SnapshotParts(head, {}, {}, {}, {}, {})
        for name, body in parts.items():
            kind, key = name[:1], name[1:]
            if name == HEAD or kind == _MODEL:
                continue
            if kind == _STATE:
                version = int.from_bytes(body[:_VERSION_BYTES], "big")
                model = parts.get(_MODEL + key, b"")
                sorted_parts.streams[key] = StreamSnapshot(body[_VERSION_BYTES:], model, version)
            elif kind == _CONTEXT:
                whose, sorted_parts.context[key], sorted_parts.registry[key] = unseal(
                    "context", _FORMAT_VERSION, body
                )
                _refuse_other(whose, key)
            elif kind == _MONITOR:
                whose, sorted_parts.monitor[key] = unseal("monitor", _FORMAT_VERSION, body)
                _refuse_other(whose, key)
            elif kind == _TYPICAL:
                whose, sorted_parts.typical[key] = unseal("typical", _FORMAT_VERSION, body)
                _refuse_other(whose, key)
        return sorted_parts


def _refuse_other(whose: object, key: str) -> None:
    if whose != key:
        raise CheckpointError(
            f"The snapshot was altered: a part of {whose!r} stands in the place of {key!r}."
        )


class PartitionState:
    """Turns the records of one partition into outcomes, and remembers what that takes."""

    def __init__(
        self,
        partition: Partition,
        *,
        decoder: Decoder,
        engine: Engine,
        context: ReviewItems,
        monitor: PartitionMonitor | None = None,
        next_offset: int = 0,
        accept_environment: bool = True,
        inputs: Iterable[str] | None = None,
        limits: Limits | None = None,
        reorder: ReorderRules | None = None,
        on_judged: OnJudged | None = None,
    ) -> None:
        self.partition = partition
        self.next_offset = next_offset  # records before it are part of the state
        self.n_events = 0  # how many records were processed since the very first
        self._decoder = decoder
        self._deciding = decoder if isinstance(decoder, DecidingDecoder) else None
        self._engine = engine
        self._context = context
        self._monitor = monitor
        self._on_judged = on_judged
        self._accept_environment = accept_environment
        self._pending: Restored | None = None  # between a restore and going live
        self.ahead: list[Record] = []  # taken and not judged: a fit has to be waited for,
        self._items: list[Reading | Invalid] = []  # and what was read of them
        # What is remembered of the input where records are taken, and where they are judged: a
        # snapshot stands there.
        rules = reorder if reorder is not None and reorder.any else None
        self._counters = () if rules is None else rules.counters
        self._reorder = None if rules is None else ReorderBuffer(rules)
        self._judged_reorder = None if rules is None else ReorderBuffer(rules)
        self._followed: list[tuple[Record, Reading | Invalid]] = []  # by the second
        self._inputs = inputs
        self.journal = CommandJournal(partition, None, inputs or ())
        self.journal.is_expired = self._is_over
        # To commands that were applied, until the event comes from which they hold: a snapshot that
        # is begun meanwhile would contain what a replay from it does again.
        self.replies: tuple[CommandReply, ...] = ()
        self._limits = limits or Limits()
        self.registry = SensorRegistry(self._limits)  # who is known
        engine.silences = self.registry.silences
        self._typical = TypicalValues(decoder.channels)
        engine.told = self._typical.told
        self.forgotten: list[str] = []  # streams, until they are taken
        self.failures = engine.failures  # of background fits, until they are taken
        # what has changed since the last snapshot, and the one that is being written
        self.parts = DirtyParts(engine, context, self.registry, monitor, self._typical)

    @property
    def can_progress(self) -> bool:
        """Whether the record to be judged next is there, and its fit need not be waited for."""
        return bool(self.ahead) and self._ready(1) == 1

    @property
    def judged_next(self) -> int:
        """Offset of the record to be judged next, as far as it is known: gaps end with it."""
        return last_offset(self.ahead[0]) if self.ahead else self.next_offset

    @property
    def taken_next(self) -> int:
        """Offset from which on records are to be taken."""
        return last_offset(self.ahead[-1]) + 1 if self.ahead else self.next_offset

    def process(
        self, records: Sequence[Record] = (), *, replay_to: int | None = None, at_once: int = 0
    ) -> list[Outcome]:
        """Take records and give an outcome for each, in order, unless it has to wait for a fit.

        What waits, and all behind it, is judged by a later call. Records before
        :attr:`taken_next` are repeats of the transport. With `replay_to` only what stands before
        that offset is judged, for its state alone; it waits until `at_once` records are there, or
        all of them, or a call brings none.
        """
        self._take(records)
        ahead, outcomes = self.ahead, list[Outcome]()
        end = len(ahead)
        if replay_to is not None:
            end = bisect_left(ahead, replay_to, key=last_offset)
            if records and end == len(ahead) < at_once and self.taken_next < replay_to:
                return outcomes
        while end and (n := self._whole(self._ready(self._apply_commands(end)))):
            outcomes += self._judge(ahead[:n], self._items[:n], replaying=replay_to is not None)
            del ahead[:n], self._items[:n]
            end -= n
        if self._judged_reorder is not None:
            self._follow(self._judged_reorder)
        return outcomes

    def _take(self, records: Sequence[Record]) -> None:
        taken_next = self.taken_next
        if records and records[0].position.offset < taken_next:  # they come in order
            records = [record for record in records if record.position.offset >= taken_next]
        records, items = decode_records(self._decoder, records)
        if self._reorder is not None:
            taken = list(zip(records, items, strict=True))
            self._followed += taken
            made = [item for pair in taken for item in self._reorder.add(*pair)]
            records, items = [record for record, _ in made], [item for _, item in made]
        self._items += items
        self.ahead += records

    def _follow(self, reorder: ReorderBuffer) -> None:
        n = bisect_left(self._followed, self.next_offset, key=lambda pair: pair[0].position.offset)
        for record, item in self._followed[:n]:
            reorder.add(record, item)
        del self._followed[:n]

    def _apply_commands(self, end: int) -> int:
        """Apply the commands due at the next record; count the records before the next command."""
        if not self.journal.entries:
            return end
        self.replies += self.journal.apply_due(last_offset(self.ahead[0]), self._command)
        next_command = self.journal.next_effective_offset
        if next_command is None:
            return end
        return bisect_left(self.ahead, next_command, hi=end, key=last_offset)

    def _is_over(self, command: Command) -> bool | None:
        """Whether a command could change nothing any more; ``None`` while no time is known."""
        now_ms = self.registry.now_ms
        if not self.n_events or now_ms is None:
            return None
        if command.incident is not None:
            return command.incident not in {open.id for open in self._engine.open_incidents()}
        return command.until_ms is not None and command.until_ms <= now_ms

    def _command(self, command: Command) -> CommandReply | None:
        for key in self._engine.streams_of(command):
            self.parts.mark_dirty_by_command(key)
        return self._engine.command(command)

    def _whole(self, n: int) -> int:
        """Round `n` readings to those of whole records, at least one record's."""
        ahead = self.ahead
        if not n or n == len(ahead) or last_offset(ahead[n]) != last_offset(ahead[n - 1]):
            return n
        at = last_offset(ahead[n])
        # Where its own first readings begin a fit that its later ones need, that is waited for.
        return bisect_left(ahead, at, key=last_offset) or bisect_left(
            ahead, at + 1, key=last_offset
        )

    def _ready(self, end: int) -> int:
        """Count the first items, up to `end`, that need not wait for a fit."""
        readings = _readings(self._items[:end])
        ready = self._engine.ready(readings) if readings else 0
        if ready == len(readings):
            return end
        if len(readings) == end:
            return ready
        return [i for i in range(end) if type(self._items[i]) is Reading][ready]

    def _judge(
        self, records: Sequence[Record], items: Sequence[Reading | Invalid], *, replaying: bool
    ) -> list[Outcome]:
        outcomes, at, n = list[Outcome](), 0, len(records)
        ended: tuple[Incident, ...] = ()
        self.parts.view_before_change(_readings(items))
        while at < n:
            end, over_limit, gone, clocks, silences = self.registry.admit(items, at)
            outcomes += self._judge_admitted(
                records[at:end],
                items[at:end],
                {i - at for i in over_limit},
                ended,
                {items[i].position: status for i, status in clocks.items()},
                replaying=replaying,
            )
            for i, turned in silences.items():
                outcomes[i] = outcomes[i]._replace(incidents=(*turned, *outcomes[i].incidents))
            if end < n:  # the next event is the one that makes the time pass
                ended = self._ended(gone, items[end])
            if gone.pairs:
                self._forget(gone)
            at = end
        return outcomes

    def _judge_admitted(
        self,
        records: Sequence[Record],
        items: Sequence[Reading | Invalid],
        away: Collection[int],
        ended: tuple[Incident, ...],
        clocks: Mapping[Position, Status],
        *,
        replaying: bool,
    ) -> list[Outcome]:
        """Return an outcome for each item; those at `away` are of sensors over the limit."""
        # All that a judged event changes, in its order, is here. `ended` are the incidents of
        # evicted streams, published with the first outcome; `clocks` the statuses of sensors whose
        # clock begins or ceases to be trusted.
        readings, judged, apart = _readings(items), records, dict[int, Outcome]()
        if away or len(readings) < len(items):
            apart = self._not_judged(records, items, away)
            readings = _readings(item for i, item in enumerate(items) if i not in apart)
            judged = [record for i, record in enumerate(records) if i not in apart]
        self.parts.mark_dirty(readings)
        verdicts: Sequence[Verdict] = ()
        if readings:
            begun = perf_counter()
            verdicts = self._engine.process(readings)
            if self._on_judged is not None:
                self._on_judged(self.partition, readings, perf_counter() - begun)
        if clocks:
            verdicts = [
                replace(v, status=clocks[v.position])
                if v.status is None and v.position in clocks else v
                for v in verdicts
            ]  # fmt: skip
        outcomes = self._context.outcomes(judged, readings, verdicts)
        changes = self._engine.take_incidents() if self._engine.changes else ()
        self._typical.update(readings, verdicts, changes)
        if changes:
            changed: dict[Position, tuple[Incident, ...]] = {}
            for change in changes:  # one event may change several incidents
                changed[change.position] = (*changed.get(change.position, ()), change)
            outcomes = [o._replace(incidents=changed.get(o.record.position, ())) for o in outcomes]
        for i, outcome in apart.items():  # that of a record that waits may be here as well
            outcomes.insert(i, outcome)
        if ended:
            outcomes[0] = outcomes[0]._replace(incidents=(*ended, *outcomes[0].incidents))
        if self.replies and outcomes:
            outcomes[0] = outcomes[0]._replace(replies=self.replies)
            self.replies = ()
        if self._monitor is not None and not self._monitor_waits:
            known = outcomes
            if away:
                known = [outcome for i, outcome in enumerate(outcomes) if i not in away]
            self._monitor.observe(known, replaying=replaying)
        if records:
            self.next_offset = last_offset(records[-1]) + 1
            self.n_events += len(records)
        return outcomes

    def _not_judged(
        self, records: Sequence[Record], items: Sequence[Reading | Invalid], away: Collection[int]
    ) -> dict[int, Outcome]:
        outcomes = {}
        for i, (record, item) in enumerate(zip(records, items, strict=True)):
            if isinstance(item, Invalid):
                outcomes[i] = Outcome(record, None, item)
            elif i in away:
                stream_key, mode = of_mode(item.stream_key)
                verdict = rejected(item, 0, Reason.TOO_MANY_SENSORS)
                verdict = replace(verdict, stream_key=stream_key, mode=mode)
                review = self._context.turned_away(item, verdict)
                outcomes[i] = Outcome(record, verdict, None, review)
        return outcomes

    def _ended(self, gone: Gone, item: object) -> tuple[Incident, ...]:
        if not gone.pairs:
            return ()
        assert isinstance(item, Reading)  # nothing else has a time
        return tuple(
            replace(
                incident, position=item.position, version=incident.version + 1,
                state=IncidentState.CLOSED, ended="forgotten", changed_ms=item.event_time_ms,
            )
            for incident in self._engine.open_incidents()
            if (
                incident.sensors[0] in gone.sensors
                if incident.silent
                else in_mode(incident.stream_key, incident.mode) in gone.streams
            )
        )  # fmt: skip

    def _forget(self, gone: Gone) -> None:
        self.parts.mark_evicted(gone)
        self.registry.forget(gone)
        for key, sensor in gone.pairs:
            if key not in gone.streams:
                self._engine.forget(key, sensor)
        for key in gone.streams:
            self._engine.forget(key)
            self._typical.forget(key)
            if self._monitor is not None:
                self._monitor.bank.forget(key)
        self._engine.siblings.forget(gone.sensors)
        for sensor in gone.sensors:
            self._context.forget(sensor)
        self.forgotten += gone.streams

    def take_forgotten(self) -> Sequence[str]:
        """Return the streams that were forgotten since the last call."""
        forgotten, self.forgotten = self.forgotten, []
        return forgotten

    def take_failures(self) -> Sequence[FitFailed]:
        return self._engine.take_failures()

    @property
    def journal_bytes(self) -> bytes | None:
        """The journal to commit; ``None`` without a control log and without schemas."""
        schemas = None if self._deciding is None else self._deciding.decisions()
        if schemas is None and self._inputs is None:
            return None
        return self.journal.encoded(schemas)

    def load_journal(self, saved: bytes | None, *, decided_until: int) -> None:
        """Take over the journal up to the committed offset, and extend it from there on."""
        self.journal = CommandJournal(self.partition, saved, self._inputs or ())
        self.journal.is_expired = self._is_over
        if self._deciding is not None:
            schemas = self.journal.schemas
            self._deciding = self._deciding.of_partition(schemas, decided_until=decided_until)
            self._decoder = self._deciding

    def begin_snapshot(self) -> None:
        """Begin a snapshot of the state at :attr:`next_offset`; :attr:`parts` has its pieces."""
        head = Head(
            list(self.partition),
            list(self._decoder.channels),
            self.next_offset,
            self.n_events,
            self._engine.head(),
            self.registry.head(),
            None if self._monitor is None else self._monitor.bank.head(),
            None if self._judged_reorder is None else self._judged_reorder.state(),
            self._counters,
        )
        self.parts.begin(self.next_offset, self.n_events, head.sealed())

    def snapshot(self) -> Piece:
        """Return the whole state at :attr:`next_offset` in one piece, to be kept at once."""
        self.begin_snapshot()
        return self.parts.next_piece(math.inf)

    @property
    def _monitor_waits(self) -> bool:
        pending = self._pending
        return pending is not None and pending.was.policy != pending.now.policy

    def apply_config(self) -> Restored | None:
        """Judge as configured from here on; return what it was, if a snapshot said otherwise."""
        pending, self._pending = self._pending, None
        self.registry.limits = self._limits
        if pending is not None:
            self._engine.decide(pending.now)
        return pending

    def restore(self, parts: Mapping[str, bytes]) -> tuple[str, ...]:
        """Take over a snapshot of the same partition; return what changed of its environment.

        Until :meth:`apply_config` it judges by the snapshot's policy: records replayed become what
        was written of them. A monitor that is new since the snapshot, or counted by another
        policy, starts empty.
        """
        saved = parts_of(parts)
        head = saved.head
        self._refuse_foreign(head)
        with from_outside():
            restored = self._engine.restore_streams(
                head.engine, saved.streams, accept_environment=self._accept_environment
            )
            if restored.was != restored.now:
                self._engine.decide(restored.was)
                self._pending = restored
            self._context.restore(saved.context)
            self._typical.restore(saved.typical)
            self.registry.restore(head.sensors, saved.registry)
            for reorder in (self._reorder, self._judged_reorder):
                if reorder is not None and head.reorder is not None:
                    reorder.restore(head.reorder)
            all_used = head.monitor is None
            if self._monitor is not None and head.monitor and not self._monitor_waits:
                all_used = self._monitor.restore(head.monitor, saved.monitor)
        if all_used:  # else what the monitors knew must not come back with a later snapshot
            self.parts.restored(head.next_offset, saved.streams)
        self.next_offset, self.n_events = head.next_offset, head.n_events
        return restored.environment

    def _refuse_foreign(self, head: Head) -> None:
        for name, theirs, ours in (
            ("partition", head.partition, list(self.partition)),
            ("channels", head.channels, list(self._decoder.channels)),
            ("counters", head.counters, self._counters),
        ):
            if theirs != ours:
                raise CheckpointError(
                    f"The snapshot of {self.partition} is for the {name} "
                    f"{theirs!r}, not {ours!r}: restore that setting, or start another pipeline "
                    "with its own snapshots and offsets; `rejex-stream state show` says how it was "
                    "made."
                )


def make_state(
    settings: RunSettings,
    partition: Partition,
    decoder: Decoder,
    engine: Engine,
    **more: Any,  # noqa: ANN401 - as PartitionState takes it
) -> PartitionState:
    context = ReviewItems(
        decoder.channels,
        points=settings.review_context_events,
        reasons=settings.review_reasons,
        audit=settings.audit,
    )
    return PartitionState(
        partition,
        decoder=decoder,
        engine=engine,
        context=context,
        accept_environment=settings.environment == "accept",
        limits=settings.limits,
        reorder=settings.reorder,
        **more,
    )


class Described(NamedTuple):
    """What a snapshot says of itself."""

    n_events: int  # records that were processed since the very first
    channels: Sequence[str]  # channels, origin: of the readings; and by what the engine was made
    origin: Origin
    limits: Mapping[str, object]  # how many sensors were known at most, and how long
    streams: Mapping[str, int]  # bytes of each stream: window, rows, models
    sensors: Mapping[str, object]  # when each was heard of last, by stream, in event time
    resting: Sequence[str]  # channels that some model does not score


def described(parts: Mapping[str, bytes]) -> Described:
    saved = parts_of(parts)
    head = saved.head
    with from_outside():
        made_by, limits = origin(head.engine), head.sensors["limits"]
        heard = {sensor: streams for sensor, (streams, *_) in saved.registry.items()}
        resting = {channel for stream in saved.streams.values() for channel in resting_in(stream)}
    return Described(
        head.n_events,
        head.channels,
        made_by,
        limits,
        {key: len(stream.state) + len(stream.model) for key, stream in saved.streams.items()},
        heard,
        [head.channels[i] for i in sorted(resting)],
    )


def _readings(items: Iterable[Reading | Invalid]) -> list[Reading]:
    return [item for item in items if type(item) is Reading]
