"""One partition of the input: its engine, and its place in the order."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from rejex_stream.decode import DecidingDecoder, Decoder, decode_records
from rejex_stream.decode.intake import Intake, IntakeRules
from rejex_stream.engine.engine import Origin, Restored, origin
from rejex_stream.engine.model import FitFailed
from rejex_stream.engine.sensor_registry import Gone, Limits, SensorRegistry
from rejex_stream.errors import CheckpointError
from rejex_stream.rejection.judge import rejected
from rejex_stream.run.command_journal import Decisions
from rejex_stream.run.incremental_snapshot import (
    Head,
    MovedParts,
    PartitionEngine,
    PartitionMonitor,
    Piece,
    from_outside,
    told_apart,
)
from rejex_stream.run.review_items import ReviewItems
from rejex_stream.types import (
    Command,
    CommandReply,
    FollowUp,
    Incident,
    IncidentState,
    Invalid,
    Outcome,
    Partition,
    Reading,
    Reason,
    Record,
    ReviewItem,
    Verdict,
    in_mode,
    of_mode,
    reached,
)

__all__ = ["Described", "PartitionState", "described"]


class PartitionState:
    """Turns the records of one partition into outcomes, and remembers what that takes.

    Parameters
    ----------
    partition
        Which partition.
    decoder, engine, context, monitor
        The parts; engine, context and monitor are fresh and belong to this partition alone.
    next_offset
        Offset of the first record to come.
    accept_environment
        Whether to go on from a snapshot of other library versions or another processor.
    inputs
        Topics of the input, where people can tell the pipeline things; ``None``: nobody can.
    limits
        How many sensors are known, and which are forgotten.
    intake
        What becomes of readings before they are judged.

    Attributes
    ----------
    next_offset
        Records before it are part of the state.
    n_events
        How many records were processed since the very first.
    decisions
        What was decided for it, with the offset from which it holds.
    parts
        What of it has moved since the last snapshot, and the one that is under way.
    """

    def __init__(
        self,
        partition: Partition,
        *,
        decoder: Decoder,
        engine: PartitionEngine,
        context: ReviewItems,
        monitor: PartitionMonitor | None = None,
        next_offset: int = 0,
        accept_environment: bool = True,
        inputs: Iterable[str] | None = None,
        limits: Limits | None = None,
        intake: IntakeRules | None = None,
    ) -> None:
        self.partition = partition
        self.next_offset = next_offset
        self.n_events = 0
        self._decoder = decoder
        self._engine = engine
        self._context = context
        self._monitor = monitor
        self._accept_environment = accept_environment
        self._pending: Restored | None = None  # between a restore and going live
        self._ahead: list[Record] = []  # taken and not judged,
        self._items: list[Reading | Invalid] = []  # and what was read of them
        # What is remembered of the input where records are taken, and where they are judged: a
        # snapshot stands there.
        rules = intake if intake is not None and intake.any else None
        self._intake = None if rules is None else Intake(rules)
        self._judged_intake = None if rules is None else Intake(rules)
        self._followed: list[tuple[Record, Reading | Invalid]] = []  # by the second
        self._inputs = inputs
        self.decisions = Decisions(partition, None, inputs or ())
        self._replies: tuple[CommandReply, ...] = ()  # until the event from which they hold
        self._limits = limits or Limits()
        self._lives = SensorRegistry(self._limits)
        self._forgotten: list[str] = []
        self.parts = MovedParts(engine, context, self._lives, monitor)

    @property
    def n_ahead(self) -> int:
        """How many records were taken and not judged: a fit has to be waited for."""
        return len(self._ahead)

    @property
    def goes_on(self) -> bool:
        """Whether the record to be judged next is there, and its fit need not be waited for."""
        return bool(self._ahead) and self._ready(1) == 1

    @property
    def judged_next(self) -> int:
        """Offset of the record to be judged next, as far as it is known: gaps end with it."""
        return reached(self._ahead[0]) if self._ahead else self.next_offset

    @property
    def taken_next(self) -> int:
        """Offset from which on records are to be taken."""
        return reached(self._ahead[-1]) + 1 if self._ahead else self.next_offset

    def process(
        self, records: Sequence[Record] = (), *, replay_to: int | None = None
    ) -> list[Outcome]:
        """Take records and give an outcome for each, in order, unless it has to wait for a fit.

        What waits, and all behind it, is judged by a later call. Records before
        :attr:`taken_next` are repeats of the transport. With `replay_to` only what stands before
        that offset is judged, for its state alone.
        """
        self._take(records)
        ahead, outcomes = self._ahead, list[Outcome]()
        end = len(ahead)
        if replay_to is not None:
            end = bisect_left(ahead, replay_to, key=reached)
        while end and (n := self._whole(self._ready(self._apply_commands(end)))):
            outcomes += self._judge(ahead[:n], self._items[:n], replaying=replay_to is not None)
            del ahead[:n], self._items[:n]
            end -= n
        self._follow()
        return outcomes

    def _take(self, records: Sequence[Record]) -> None:
        taken_next = self.taken_next
        if records and records[0].position.offset < taken_next:  # they come in order
            records = [record for record in records if record.position.offset >= taken_next]
        records, items = decode_records(self._decoder, records)
        if self._intake is not None:
            taken = list(zip(records, items, strict=True))
            self._followed += taken
            made = [one for pair in taken for one in self._intake.take(*pair)]
            records, items = [record for record, _ in made], [item for _, item in made]
        self._items += items
        self._ahead += records

    def _follow(self) -> None:
        """Bring what is remembered of the input, for a snapshot, to where judging stands."""
        if self._judged_intake is None:
            return
        n = bisect_left(self._followed, self.next_offset, key=_offset)
        for record, item in self._followed[:n]:
            self._judged_intake.take(record, item)
        del self._followed[:n]

    def _apply_commands(self, end: int) -> int:
        """Obey what holds from the next record on; count those before the command after it."""
        self._replies += self.decisions.take(reached(self._ahead[0]), self._command)
        since = self.decisions.next_since
        if since is None:
            return end
        return bisect_left(self._ahead, since, hi=end, key=reached)

    def _command(self, command: Command) -> CommandReply | None:
        for moved in self._engine.streams_of(command):
            self.parts.before_command(moved)
        return self._engine.command(command)

    def _whole(self, n: int) -> int:
        """Return how many records' readings, at least one record's, `n` readings are."""
        ahead = self._ahead
        if not n or n == len(ahead) or reached(ahead[n]) != reached(ahead[n - 1]):
            return n
        at = reached(ahead[n])
        # Where its own first readings begin a fit that its later ones need, that is waited for.
        return bisect_left(ahead, at, key=reached) or bisect_left(ahead, at + 1, key=reached)

    def _ready(self, end: int) -> int:
        """Count the first of those taken, up to `end`, that need not wait for a fit."""
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
        self.parts.before(_readings(items))
        while at < n:
            end, turned_away, gone = self._lives.admit(items, at)
            outcomes += self._judge_admitted(
                records[at:end],
                items[at:end],
                {i - at for i in turned_away},
                ended,
                replaying=replaying,
            )
            if end < n:  # the next event is the one that makes the time pass
                ended = self._ended(gone, items[end])
            self._forget(gone)
            at = end
        return outcomes

    def _judge_admitted(
        self,
        records: Sequence[Record],
        items: Sequence[Reading | Invalid],
        away: Collection[int],
        ended: tuple[Incident, ...],
        *,
        replaying: bool,
    ) -> list[Outcome]:
        """Give an outcome for each; those at `away` are of sensors that nobody knows.

        All that a judged event changes, in its order, is here. The first of them has `ended`
        incidents of streams that are forgotten.
        """
        # 1. What the engine is not shown: no reading, or of a sensor too many.
        readings, judged, apart = _readings(items), records, dict[int, Outcome]()
        if away or len(readings) < len(items):
            apart = self._not_judged(records, items, away)
            readings = _readings(item for i, item in enumerate(items) if i not in apart)
            judged = [record for i, record in enumerate(records) if i not in apart]
        # 2. Judge; a snapshot under way has viewed these streams before.
        self.parts.moved(readings)
        verdicts = self._engine.process(readings) if readings else ()
        # 3. Say what a reviewer needs to see.
        made = map(self._context.observe, readings, verdicts)
        new = tuple.__new__  # nearly twice as fast as calling a named tuple's class
        outcomes = [
            new(Outcome, (record, verdict, None, None, (), (), None))
            if one is None
            else _shown(record, verdict, one)
            for record, verdict, one in zip(judged, verdicts, made, strict=True)
        ]
        for i, outcome in apart.items():
            outcomes.insert(i, outcome)
        # 4. Incidents that changed, those of forgotten streams, replies to commands.
        changed = {incident.position: (incident,) for incident in self._engine.take_incidents()}
        if changed:
            outcomes = [o._replace(incidents=changed.get(o.record.position, ())) for o in outcomes]
        if ended:
            outcomes[0] = outcomes[0]._replace(incidents=(*ended, *outcomes[0].incidents))
        if self._replies and outcomes:
            outcomes[0] = outcomes[0]._replace(replies=self._replies)
            self._replies = ()
        # 5. The monitors see it.
        if self._monitor is not None and not self._monitor_waits:
            known = outcomes
            if away:
                known = [outcome for i, outcome in enumerate(outcomes) if i not in away]
            self._monitor.observe(known, replaying=replaying)
        # 6. It is part of the state.
        if records:
            self.next_offset = reached(records[-1]) + 1
            self.n_events += len(records)
        return outcomes

    def _not_judged(
        self,
        records: Sequence[Record],
        items: Sequence[Reading | Invalid],
        away: Collection[int],
    ) -> dict[int, Outcome]:
        """Return the outcomes of those that the engine is not shown, by their place, in order."""
        found = {}
        for i, (record, item) in enumerate(zip(records, items, strict=True)):
            if isinstance(item, Invalid):
                found[i] = Outcome(record, None, item)
            elif i in away:
                stream_key, mode = of_mode(item.stream_key)
                verdict = rejected(item, 0, Reason.TOO_MANY_SENSORS)
                verdict = replace(verdict, stream_key=stream_key, mode=mode)
                review = self._context.turned_away(item, verdict)
                found[i] = Outcome(record, verdict, None, review)
        return found

    def _ended(self, gone: Gone, item: object) -> tuple[Incident, ...]:
        """Return the end of each incident of the streams that an event has forgotten."""
        if not gone.streams:
            return ()
        assert isinstance(item, Reading)  # nothing else has a time
        return tuple(
            replace(
                incident, position=item.position, version=incident.version + 1,
                state=IncidentState.CLOSED, ended="forgotten", changed_ms=item.event_time_ms,
            )
            for incident in self._engine.open_incidents()
            if in_mode(incident.stream_key, incident.mode) in gone.streams
        )  # fmt: skip

    def _forget(self, gone: Gone) -> None:
        self.parts.before_forgetting(gone)
        self._lives.forget(gone)
        for key, sensor in gone.lives:
            if key not in gone.streams:
                self._engine.forget(key, sensor)
        for key in gone.streams:
            self._engine.forget(key)
            if self._monitor is not None:
                self._monitor.forget(key)
        for sensor in gone.sensors:
            self._context.forget(sensor)
        self._forgotten += gone.streams

    def take_forgotten(self) -> Sequence[str]:
        """Return the streams that were forgotten since the last call."""
        forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def take_failures(self) -> Sequence[FitFailed]:
        """Return the background fits that failed since the last call."""
        return self._engine.take_failures()

    @property
    def decided(self) -> bytes | None:
        """What was decided; ``None`` where records carry no schemas and nobody is listened to."""
        decoder = self._decoder
        schemas = decoder.decisions() if isinstance(decoder, DecidingDecoder) else None
        if schemas is None and self._inputs is None:
            return None
        return self.decisions.encoded(schemas)

    def keep_to(self, decided: bytes | None, *, decided_until: int) -> None:
        """Decide as before, up to the committed offset, and alone from there on.

        Raises
        ------
        CheckpointError
            If the decisions cannot be read.
        """
        self.decisions = Decisions(self.partition, decided, self._inputs or ())
        if isinstance(self._decoder, DecidingDecoder):
            schemas = self.decisions.schemas
            self._decoder = self._decoder.of_partition(schemas, decided_until=decided_until)

    @property
    def between(self) -> bool:
        """Whether a command was obeyed and the event is still to come from which it holds.

        A snapshot that is begun here would contain what a replay from it does again.
        """
        return bool(self._replies)

    def begin_snapshot(self) -> None:
        """Begin a snapshot of the state at :attr:`next_offset`; :attr:`parts` has its pieces."""
        head = Head(
            list(self.partition),
            list(self._decoder.channels),
            self.next_offset,
            self.n_events,
            self._engine.head(),
            self._lives.head(),
            None if self._monitor is None else self._monitor.head(),
            None if self._judged_intake is None else self._judged_intake.state(),
        )
        self.parts.begin(self.next_offset, self.n_events, head.sealed())

    def snapshot(self) -> Piece:
        """Return the whole state at :attr:`next_offset` in one piece, to be kept at once."""
        self.begin_snapshot()
        return self.parts.next_piece(math.inf)

    @property
    def _monitor_waits(self) -> bool:
        """Whether what is replayed was decided by a policy that the monitor does not count by."""
        pending = self._pending
        return pending is not None and pending.was.policy != pending.now.policy

    def decide(self) -> Restored | None:
        """Decide as configured from here on; return what it was, if a snapshot said otherwise."""
        pending, self._pending = self._pending, None
        self._lives.limits = self._limits
        if pending is not None:
            self._engine.decide(pending.now)
        return pending

    def restore(self, parts: Mapping[str, bytes]) -> tuple[str, ...]:
        """Take over a snapshot of the same partition; return what changed of its environment.

        Until :meth:`decide` it goes on with the snapshot's decision: records replayed become what
        was written of them. A monitor that is new since the snapshot, or counted by another
        policy, starts empty.

        Raises
        ------
        CheckpointError
            If the snapshot is damaged, foreign, or of other channels or another partition.
        """
        kept = told_apart(parts)
        head = kept.head
        self._refuse_foreign(head)
        with from_outside():
            restored = self._engine.restore_streams(
                head.engine, kept.streams, accept_environment=self._accept_environment
            )
            if restored.was != restored.now:
                self._engine.decide(restored.was)
                self._pending = restored
            self._context.restore(kept.context)
            self._lives.restore(head.lives, kept.lives)
            for intake in (self._intake, self._judged_intake):
                if intake is not None and head.intake is not None:
                    intake.restore(head.intake)
            all_used = head.monitor is None
            if self._monitor is not None and head.monitor and not self._monitor_waits:
                all_used = self._monitor.restore(head.monitor, kept.monitor)
        if all_used:  # else what the monitors knew must not come back with a later snapshot
            self.parts.restored(head.next_offset, kept.streams)
        self.next_offset, self.n_events = head.next_offset, head.n_events
        return restored.environment

    def _refuse_foreign(self, head: Head) -> None:
        for name, theirs, ours in (
            ("partition", head.partition, list(self.partition)),
            ("channels", head.channels, list(self._decoder.channels)),
        ):
            if theirs != ours:
                raise CheckpointError(
                    f"The snapshot of {_name(self.partition)} is for the {name} {theirs!r}, "
                    f"not {ours!r}: restore that setting, or start another pipeline with its own "
                    f"snapshots and offsets; `rejex-stream state show` says how it was made."
                )


class Described(NamedTuple):
    """What a snapshot says of itself.

    Attributes
    ----------
    n_events
        Records that were processed since the very first.
    channels, origin
        Of the readings; and by what the engine was made.
    limits
        How many sensors were known at most, and how long.
    streams
        Bytes of each stream: window, rows, models.
    sensors
        When each was heard of last, by stream, in event time.
    """

    n_events: int
    channels: Sequence[str]
    origin: Origin
    limits: Mapping[str, object]
    streams: Mapping[str, int]
    sensors: Mapping[str, object]


def described(parts: Mapping[str, bytes]) -> Described:
    """Say what a snapshot holds.

    Raises
    ------
    CheckpointError
        If it is no snapshot of a partition.
    """
    kept = told_apart(parts)
    head = kept.head
    with from_outside():
        made_by, limits = origin(head.engine), head.lives["limits"]
    return Described(
        head.n_events,
        head.channels,
        made_by,
        limits,
        {key: len(stream.state) + len(stream.model) for key, stream in kept.streams.items()},
        kept.lives,
    )


def _offset(taken: tuple[Record, Reading | Invalid]) -> int:
    return taken[0].position.offset


def _readings(items: Iterable[Reading | Invalid]) -> list[Reading]:
    return [item for item in items if type(item) is Reading]


def _shown(record: Record, verdict: Verdict, made: ReviewItem | FollowUp) -> Outcome:
    if isinstance(made, ReviewItem):
        return Outcome(record, verdict, review=made)
    return Outcome(record, verdict, follow_up=made)


def _name(partition: Partition) -> str:
    return f"{partition.topic}-{partition.partition}"
