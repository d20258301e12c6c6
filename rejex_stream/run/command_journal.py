"""Commands of people, each with the offset from which it is in effect; and what is in the outbox.

A verdict is a function of the input. What else it depends on, the schema behind an id and the
commands of people, gets a place in the order here: an offset is assigned at a commit, durable
before any outcome that the command changes, and every replay applies it at the same place. The
same journal lists the changes of incidents that are durable and not delivered yet, so that after a
crash people are notified of those, and of no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from operator import itemgetter
from typing import NamedTuple

import msgspec

from rejex_stream.decode.registry_decoder import FORMAT_VERSION, decided
from rejex_stream.encode import decode_command
from rejex_stream.encode.records import decode_incidents, encode_incident, position_of
from rejex_stream.errors import CheckpointError, ConnectorError, RejexError
from rejex_stream.protocols import ControlLog, ControlRecords
from rejex_stream.run.run_events import ControlUnread, RunEvent
from rejex_stream.types import Command, CommandReply, Incident, Partition, Record

_KEPT_SNAPSHOTS = 2  # as many as the stores keep
MAX_ENTRIES = 1_000
"""Commands in the journal of a partition; more wait for two snapshots, which are due at once."""
LONG_QUEUE = 100
"""Where more wait, those that could change nothing any more are dropped."""
_MAX_KNOWN = 1_000
_MAX_OUTBOX = 500
"""Changes in an outbox that nobody empties, the newest: each commit writes them again."""


class _Entry(NamedTuple):
    """A command and the offset from which it is in effect; or the reply that refuses it."""

    effective_offset: int
    command: Command | None
    refusal: CommandReply | None


class _Durable(msgspec.Struct, array_like=True):
    """What is durable. Entries in effect from before `replayable_from` were dropped."""

    version: int
    schemas: bytes | None
    next_command: int
    replayable_from: int
    entries: list[_Entry]
    known: list[bytes]
    snapshots: list[int]
    pending: list[bytes] = []  # from here on: earlier records end before
    log: bytes = b""  # whose offset `next_command` is


class CommandJournal:
    """The commands of one partition, durable with its commits.

    A command waits (:meth:`ingest`) for a commit, whose transaction records it
    (:meth:`assign_offset`). It is in effect from that commit's offset on, and applied before the
    first record there (:meth:`apply_due`): a snapshot at that offset does not contain it.
    """

    def __init__(self, partition: Partition, saved: bytes | None, inputs: Iterable[str]) -> None:
        self._partition = partition
        self._inputs = frozenset(inputs)
        self._durable = (
            _Durable(FORMAT_VERSION, None, 0, 0, [], [], []) if saved is None else _read(saved)
        )
        self.next_command = self._durable.next_command
        self.unassigned: list[tuple[int, Command | CommandReply]] = []
        self._next = 0
        self._encoded: bytes | None = None
        self.entries = self._durable.entries
        # Changes of incidents without an acknowledged delivery, in order.
        self.outbox: tuple[Incident, ...] = ()
        # Whether a command could change nothing; `None` before the first event, when no time is
        # known yet: a long queue then waits for it.
        self.is_expired: Callable[[Command], bool | None] = lambda _: False
        self._is_early = False
        for line in self._durable.pending:
            change = decode_incidents(line)
            if isinstance(change, Incident):
                self.outbox += (change,)

    def set_outbox(self, changes: Sequence[Incident]) -> None:
        """Have the next commit record the outbox; O(1) where it has not changed."""
        changes = tuple(changes[-_MAX_OUTBOX:])
        if changes != self.outbox:
            self.outbox = changes
            self._durable.pending = [encode_incident(change) for change in changes]
            self._encoded = None

    @property
    def schemas(self) -> bytes | None:
        """What is known of schemas, as the last commit recorded it."""
        return self._durable.schemas

    # ------------------------------------------------------------------------------ assigning
    @property
    def can_assign(self) -> bool:
        """Whether commands wait for an offset, and there is room for them."""
        has_room = len(self._durable.entries) < MAX_ENTRIES and not self._is_early
        return bool(self.unassigned) and has_room

    @property
    def awaits_snapshot(self) -> bool:
        """Whether commands wait for no more than the room that snapshots make."""
        return bool(self.unassigned) and len(self._durable.entries) >= MAX_ENTRIES

    def ingest(self, read: ControlRecords) -> bool:
        """Queue the commands of the control log that are new.

        Returns false, with nothing queued, where it is another log than before: read it from its
        beginning.
        """
        before, self._durable.log = self._durable.log, read.log or self._durable.log
        if before not in (b"", self._durable.log):
            self.next_command = self._durable.next_command = 0
            self.unassigned = [(-1, item) for _, item in self.unassigned]  # gone from the log
            self._encoded = None
            return False
        for record in read.records:
            if record.position.offset >= self.next_command:
                self._ingest_one(record)
        self.next_command = max(self.next_command, read.next_offset)
        return True

    def _ingest_one(self, record: Record) -> None:
        try:
            command = decode_command(record.value or b"")
        except ConnectorError as error:
            if self._partition.partition == 0:  # one partition replies for all
                refusal = CommandReply(command=_id_of(record), accepted=False, said=str(error))
                self.unassigned.append((record.position.offset, refusal))
            return
        if self._is_concerned(command):
            self.unassigned.append((record.position.offset, command))

    def _is_concerned(self, command: Command) -> bool:
        """Whether this partition replies: that of the incident; without one, each."""
        if command.incident is None:
            return True
        position = position_of(command.incident)
        if position is None or position.topic not in self._inputs:
            return self._partition.partition == 0
        return position[:2] == self._partition

    def drop_superseded(self) -> None:
        """Drop from a long queue what has expired or was cancelled, with one reply for all.

        Or an answer of today would wait for years of old plans. O(1) where the queue is short.
        """
        self._is_early = False
        if len(self.unassigned) <= LONG_QUEUE:
            return
        known, cancelled = set(self._durable.known), set[str]()
        remaining: list[tuple[int, Command | CommandReply]] = []
        dropped: list[tuple[int, str]] = []
        for place, item in reversed(self.unassigned):  # what cancels comes after
            if isinstance(item, Command):
                is_expired = self.is_expired(item)
                if is_expired is None:
                    self._is_early = True
                    return
                if item.cancels is not None:
                    cancelled.add(item.cancels)
                if is_expired or item.id in cancelled or _mark(item.id) in known:
                    dropped.append((place, item.id))
                    continue
            remaining.append((place, item))
        if dropped:
            place, id_ = dropped[0]
            why = "they had ended, were cancelled or were given before"
            sentence = f"{len(dropped):,} commands up to this one were dropped: {why}"
            remaining.append((place, CommandReply(command=id_, accepted=False, said=sentence)))
            self.unassigned = sorted(remaining, key=itemgetter(0))

    def assign_offset(self, offset: int) -> None:
        """Put the queue into effect from `offset` on, that of the commit which records it."""
        durable, room = self._durable, MAX_ENTRIES - len(self._durable.entries)
        assigned, self.unassigned = self.unassigned[:room], self.unassigned[room:]
        if durable.entries:  # a commit that was recorded and then failed stood ahead
            offset = max(offset, durable.entries[-1].effective_offset)
        for place, item in assigned:
            durable.entries.append(self._entry(offset, item))
            durable.next_command = place + 1
        if not self.unassigned:
            durable.next_command = self.next_command
        self._encoded = None

    def _entry(self, offset: int, item: Command | CommandReply) -> _Entry:
        if isinstance(item, CommandReply):
            return _Entry(offset, None, item)
        mark = _mark(item.id)
        if mark in self._durable.known:
            why = "it was given before, and a command is applied once"
            return _Entry(offset, None, CommandReply(command=item.id, accepted=False, said=why))
        self._durable.known = [*self._durable.known, mark][-_MAX_KNOWN:]
        return _Entry(offset, item, None)

    # ------------------------------------------------------------------------------- applying
    @property
    def next_effective_offset(self) -> int | None:
        """The offset from which the next command is in effect that was not applied yet."""
        entries = self._durable.entries
        return entries[self._next].effective_offset if self._next < len(entries) else None

    def apply_due(
        self, offset: int, apply: Callable[[Command], CommandReply | None]
    ) -> tuple[CommandReply, ...]:
        """Apply the commands in effect from `offset` or before it; return the replies."""
        replies: list[CommandReply] = []
        while (due := self.next_effective_offset) is not None and due <= offset:
            _, command, refusal = self._durable.entries[self._next]
            self._next += 1
            if refusal is not None:
                replies.append(refusal)
            elif command is not None:
                replies.append(self._applied(command, apply))
        return tuple(replies)

    def _applied(
        self, command: Command, apply: Callable[[Command], CommandReply | None]
    ) -> CommandReply:
        try:
            reply = apply(command)
        except RejexError as error:
            return CommandReply(command=command.id, accepted=False, said=str(error))
        if reply is not None:
            return reply
        what = "nobody who is meant"
        if command.stream_key is not None:
            what = f"no stream {command.stream_key!r}"
        if command.incident is not None:
            what = f"no incident {command.incident!r}"
        elif command.cancels is not None:
            what = f"no plan {command.cancels!r}"
        sentence = f"{self._partition} has {what}"
        return CommandReply(command=command.id, accepted=False, said=sentence)

    def rewind_to(self, offset: int, *, allow_gaps: bool) -> None:
        """Continue from a state as it was at `offset`: commands in effect from there are due."""
        if offset < self._durable.replayable_from and not allow_gaps:
            raise CheckpointError(
                f"{self._partition} is to be replayed from "
                f"offset {offset}, but commands in effect from before "
                f"{self._durable.replayable_from} were dropped once there were newer snapshots. "
                "Either bring those snapshots back, "
                'or allow a restart without the old state (state.lost_state = "restart").'
            )
        self._next = sum(entry.effective_offset < offset for entry in self._durable.entries)

    # -------------------------------------------------------------------------------- durable
    def snapshot_saved(self, offset: int) -> None:
        """Drop what no replay needs: commands from before the oldest snapshot that is durable."""
        durable = self._durable
        earlier = [other for other in durable.snapshots if other < offset]
        durable.snapshots = [*earlier, offset][-_KEPT_SNAPSHOTS:]
        if len(durable.snapshots) < _KEPT_SNAPSHOTS:
            return
        oldest = durable.snapshots[0]
        dropped = sum(entry.effective_offset < oldest for entry in durable.entries[: self._next])
        if dropped:
            del durable.entries[:dropped]
            self._next -= dropped
            durable.replayable_from = oldest
            self._encoded = None

    def encoded(self, schemas: bytes | None) -> bytes:
        """Return the journal for the next commit; the same object while nothing has changed."""
        if self._encoded is None or schemas is not self._durable.schemas:
            self._durable.schemas = schemas
            self._encoded = msgspec.msgpack.encode(self._durable)
        return self._encoded


def _mark(id_: str) -> bytes:
    return blake2b(id_.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _read(saved: bytes) -> _Durable:
    asked = "the registry and the control log are"
    return decided(saved, _Durable, "schemas and commands", asked)


class _OnlyId(msgspec.Struct):
    id: str


def _id_of(record: Record) -> str:
    try:
        id_ = msgspec.json.decode(record.value or b"", type=_OnlyId).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        id_ = ""
    return id_ if 0 < len(id_) <= 100 else str(record.position)


class CommandReader:
    """Reads the control log for all partitions of ours; a log that is away stops nothing."""

    def __init__(self, log: ControlLog | None, emit: Callable[[RunEvent], None]) -> None:
        self._log, self._emit = log, emit
        self._why: str | None = None

    def ingest(self, journals: Sequence[CommandJournal]) -> None:
        """Give each journal what it has not read; O(1) while there is nothing new."""
        for journal in journals:
            journal.drop_superseded()
        wanting = [journal for journal in journals if len(journal.unassigned) < MAX_ENTRIES]
        if self._log is None or not wanting:
            return
        start = min(journal.next_command for journal in wanting)
        try:
            read = self._log.read(start)
        except ConnectorError as error:
            self._report(str(error))
            return
        self._report(None)
        for journal in wanting:
            journal.ingest(read)
            journal.drop_superseded()

    def _report(self, why: str | None) -> None:
        if why != self._why:
            self._why = why
            self._emit(ControlUnread(why))

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
