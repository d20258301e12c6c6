"""What was decided for a partition, each with the offset from which it holds; what is yet untold.

A verdict is a function of the input. What else it depends on, which schema an id named and what
people said, gets a place in the order here: it is decided at a commit boundary, durable before any
outcome that it changes, and found again at the same place by every replay. The same record lists
which changes of incidents are durable and not told yet, so that after a crash people are told of
those, and of no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from operator import itemgetter
from typing import NamedTuple

import msgspec

from rejex_stream.encode import decode_command
from rejex_stream.encode.records import decode_incidents, encode_incident, position_of
from rejex_stream.errors import CheckpointError, ConnectorError, RejexError
from rejex_stream.protocols import ControlLog, ControlRecords
from rejex_stream.run.run_events import ControlUnread, RunEvent
from rejex_stream.types import Command, CommandReply, Incident, Partition, Position, Record

__all__ = ["CommandReader", "Decisions"]

_FORMAT_VERSION = 1
_KEPT_SNAPSHOTS = 2  # as many as the stores keep
MOST_KEPT = 1_000
"""So many commands are kept of a partition; more wait in the log until snapshots have passed."""
LONG = 100
"""Where more wait, those that could change nothing any more are passed over: they take no place."""
_MOST_KNOWN = 1_000
_MOST_PENDING = 500
"""So many are kept where nobody takes them, the newest: each commit writes them again."""
_LISTEN_AGAIN_S = 5.0


class _Order(NamedTuple):
    """A command and the offset from which it holds; or what is said instead of obeying it."""

    since: int
    command: Command | None
    refusal: CommandReply | None


class _Durable(msgspec.Struct, array_like=True):
    """What is durable. Orders that hold from before `complete_from` were dropped."""

    version: int
    schemas: bytes | None
    next_command: int
    complete_from: int
    orders: list[_Order]
    known: list[bytes]
    snapshots: list[int]
    pending: list[bytes] = []  # from here on: earlier records end before
    log: bytes = b""  # whose offset `next_command` is


class Decisions:
    """What was decided for one partition, durable with its commits.

    A command waits (:meth:`ingest`) for a commit, whose transaction records it (:meth:`decide`);
    from that commit's offset on it holds, and the first record there finds it (:meth:`take`). A
    snapshot at an offset never contains the commands that hold from there.
    """

    def __init__(self, partition: Partition, kept: bytes | None, inputs: Iterable[str]) -> None:
        self._partition = partition
        self._inputs = frozenset(inputs)
        self._durable = (
            _Durable(_FORMAT_VERSION, None, 0, 0, [], [], []) if kept is None else _read(kept)
        )
        self.next_command = self._durable.next_command
        self.undecided: list[tuple[int, Command | CommandReply]] = []
        self._next = 0
        self._encoded: bytes | None = None
        self.orders = self._durable.orders  # decided, each with the offset from which it holds
        # Changes of incidents that nobody is known to have been told of, in order.
        self.pending: tuple[Incident, ...] = ()
        # Whether a command could change nothing; `None` before the first event, when no time is
        # known yet: a long queue then waits for it.
        self.is_over: Callable[[Command], bool | None] = lambda _: False
        self._is_early = False
        for line in self._durable.pending:
            change = decode_incidents(line)
            if isinstance(change, Incident):
                self.pending += (change,)

    def set_pending(self, changes: Sequence[Incident]) -> None:
        """Have the next commit record what is pending once it is durable; O(1) if that is known."""
        changes = tuple(changes[-_MOST_PENDING:])
        if changes != self.pending:
            self.pending = changes
            self._durable.pending = [encode_incident(change) for change in changes]
            self._encoded = None

    @property
    def schemas(self) -> bytes | None:
        """What was decided about schemas, as the last commit has it."""
        return self._durable.schemas

    # ------------------------------------------------------------------------------- deciding
    @property
    def waiting(self) -> bool:
        """Whether there are commands to decide, and room for them."""
        has_room = len(self._durable.orders) < MOST_KEPT and not self._is_early
        return bool(self.undecided) and has_room

    @property
    def full(self) -> bool:
        """Whether no more can wait: the rest stays in the log for now."""
        return len(self.undecided) >= MOST_KEPT

    def ingest(self, read: ControlRecords) -> bool:
        """Take what stands in the control log; what is known already is passed over.

        Returns whether it was taken: another log than before is to be read from its beginning.
        """
        before, self._durable.log = self._durable.log, read.log or self._durable.log
        if before not in (b"", self._durable.log):
            self.next_command = self._durable.next_command = 0
            self.undecided = [(-1, said) for _, said in self.undecided]  # gone from the log
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
            if self._partition.partition == 0:  # one says it for all
                refusal = CommandReply(command=_id_of(record), accepted=False, said=str(error))
                self.undecided.append((record.position.offset, refusal))
            return
        if self._is_concerned(command):
            self.undecided.append((record.position.offset, command))

    def _is_concerned(self, command: Command) -> bool:
        """Whether the partition answers: that of the incident or events, or each without."""
        if command.answers:
            position: Position | None = command.answers[0].position
        elif command.incident is None:
            return True
        else:
            position = position_of(command.incident)
        if position is None or position.topic not in self._inputs:
            return self._partition.partition == 0
        return position[:2] == self._partition

    def pass_over(self) -> None:
        """Take out of a long queue what has ended or was overtaken; one reply speaks for all.

        Or an answer of today would wait for years of old plans. O(1) where the queue is short.
        """
        self._is_early = False
        if len(self.undecided) <= LONG:
            return
        known, taken_back = set(self._durable.known), set[str]()
        left: list[tuple[int, Command | CommandReply]] = []
        over: list[tuple[int, str]] = []
        for place, said in reversed(self.undecided):  # who takes back comes after
            if isinstance(said, Command):
                is_over = self.is_over(said)
                if is_over is None:
                    self._is_early = True
                    return
                if said.cancels is not None:
                    taken_back.add(said.cancels)
                if is_over or said.id in taken_back or _mark(said.id) in known:
                    over.append((place, said.id))
                    continue
            left.append((place, said))
        if over:
            place, id_ = over[0]
            why = "they had ended, were taken back or were given before"
            sentence = f"{len(over):,} commands up to this one were passed over: {why}"
            left.append((place, CommandReply(command=id_, accepted=False, said=sentence)))
            self.undecided = sorted(left, key=itemgetter(0))

    def decide(self, offset: int) -> None:
        """Have what waits hold from `offset` on, where the commit stands that records it."""
        durable, room = self._durable, MOST_KEPT - len(self._durable.orders)
        decided, self.undecided = self.undecided[:room], self.undecided[room:]
        if durable.orders:  # where a commit was recorded that then failed, they wait for each other
            offset = max(offset, durable.orders[-1].since)
        for place, said in decided:
            durable.orders.append(self._order(offset, said))
            durable.next_command = place + 1
        if not self.undecided:
            durable.next_command = self.next_command
        self._encoded = None

    def _order(self, offset: int, said: Command | CommandReply) -> _Order:
        if isinstance(said, CommandReply):
            return _Order(offset, None, said)
        mark = _mark(said.id)
        if mark in self._durable.known:
            again = "it was given before, and a command is obeyed once"
            return _Order(offset, None, CommandReply(command=said.id, accepted=False, said=again))
        self._durable.known = [*self._durable.known, mark][-_MOST_KNOWN:]
        return _Order(offset, said, None)

    # -------------------------------------------------------------------------------- obeying
    @property
    def next_since(self) -> int | None:
        """From which offset the next command holds that was not taken yet."""
        orders = self._durable.orders
        return orders[self._next].since if self._next < len(orders) else None

    def take(
        self, offset: int, apply: Callable[[Command], CommandReply | None]
    ) -> tuple[CommandReply, ...]:
        """Apply the commands that hold from `offset` or before it; return what became of them."""
        replies: list[CommandReply] = []
        while (since := self.next_since) is not None and since <= offset:
            _, command, refusal = self._durable.orders[self._next]
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
        where = f"{self._partition.topic}-{self._partition.partition}"
        return CommandReply(command=command.id, accepted=False, said=f"{where} has {what}")

    def begin_at(self, offset: int, *, whatever_is_lost: bool) -> None:
        """Go on from a state as it was at `offset`: what holds from there is taken again."""
        if offset < self._durable.complete_from and not whatever_is_lost:
            raise CheckpointError(
                f"{self._partition.topic}-{self._partition.partition} is to be replayed from "
                f"offset {offset}, but commands that held from before "
                f"{self._durable.complete_from} were dropped once there were newer snapshots. "
                "Either bring those snapshots back, "
                'or allow a restart without the old state (state.lost_state = "restart").'
            )
        self._next = sum(order.since < offset for order in self._durable.orders)

    # -------------------------------------------------------------------------------- keeping
    def snapshot_saved(self, offset: int) -> None:
        """Drop what no replay needs: commands from before the oldest snapshot that is durable."""
        durable = self._durable
        earlier = [other for other in durable.snapshots if other < offset]
        durable.snapshots = [*earlier, offset][-_KEPT_SNAPSHOTS:]
        if len(durable.snapshots) < _KEPT_SNAPSHOTS:
            return
        oldest = durable.snapshots[0]
        dropped = sum(order.since < oldest for order in durable.orders[: self._next])
        if dropped:
            del durable.orders[:dropped]
            self._next -= dropped
            durable.complete_from = oldest
            self._encoded = None

    def encoded(self, schemas: bytes | None) -> bytes:
        """Return all of it, to be made durable with the commit; the same object while it is so."""
        if self._encoded is None or schemas is not self._durable.schemas:
            self._durable.schemas = schemas
            self._encoded = msgspec.msgpack.encode(self._durable)
        return self._encoded


def _mark(id_: str) -> bytes:
    return blake2b(id_.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _read(kept: bytes) -> _Durable:
    try:
        found = msgspec.msgpack.decode(kept, type=_Durable)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"What was decided about schemas and commands cannot be read ({error}): remove it, and "
            "the registry and the control log are asked again about what is replayed."
        ) from None
    if found.version != _FORMAT_VERSION:
        raise CheckpointError(
            f"What was decided about schemas and commands has format {found.version}, this version "
            f"reads format {_FORMAT_VERSION}: run the version that wrote it."
        )
    return found


class _OnlyId(msgspec.Struct):
    id: str


def _id_of(record: Record) -> str:
    """Return the id of what is no command, if it has one; else its place in the log."""
    try:
        id_ = msgspec.json.decode(record.value or b"", type=_OnlyId).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        id_ = ""
    return id_ if 0 < len(id_) <= 100 else str(record.position)


class CommandReader:
    """Reads the control log for all partitions of ours; a log that is away stops nothing."""

    def __init__(
        self, log: ControlLog | None, emit: Callable[[RunEvent], None], clock: Callable[[], float]
    ) -> None:
        self._log, self._emit, self._clock = log, emit, clock
        self._why: str | None = None
        self._again_at = 0.0

    def ingest(self, listeners: Sequence[Decisions]) -> None:
        """Give each what it has not read; O(1) while there is nothing new."""
        for one in listeners:
            one.pass_over()
        wanting = [one for one in listeners if not one.full]
        if self._log is None or not wanting:
            return
        if self._why is not None and self._clock() < self._again_at:
            return
        start = min(one.next_command for one in wanting)
        try:
            read = self._log.read(start)
        except ConnectorError as error:
            self._again_at = self._clock() + _LISTEN_AGAIN_S
            self._report(str(error))
            return
        if self._why is not None:
            self._report(None)
        for one in wanting:
            one.ingest(read)
            one.pass_over()

    def _report(self, why: str | None) -> None:
        if why != self._why:
            self._why = why
            self._emit(ControlUnread(why))

    def close(self) -> None:
        """Let go of the log."""
        if self._log is not None:
            self._log.close()
