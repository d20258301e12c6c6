"""A whole pipeline in memory, with crashes as values: for our tests and for yours.

A script is a list of records with sentinels in between. Each sentinel acts once; a run that is
started again with the same source goes past it:

>>> from tests.doubles import ABORT, ListSource
>>> source = ListSource([b"0", b"1", ABORT, b"2"])

What is durable (a sink's committed outcomes and offsets, a store's snapshots) survives a
:class:`Crash`, everything else is lost.
"""

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import Enum
from typing import Any

from rejex_stream.errors import ConnectorError, DetectorError
from rejex_stream.protocols import Assigned, ControlRecords, Revoked, SnapshotPiece
from rejex_stream.types import Outcome, Partition, Position, Record

__all__ = [
    "ABORT", "REBALANCE", "RETRY", "Crash", "DelayedExecutor", "FakeClock", "ListControl",
    "ListSink", "ListSource", "MemorySnapshotStore", "Sentinel",
]  # fmt: skip


class Crash(BaseException):
    """The process "died" here; nothing in the product catches it."""


class Sentinel(Enum):
    """What may stand between the records of a script."""

    ABORT = "the process dies"
    RETRY = "a poll fails with a retriable error"
    REBALANCE = "the partition is lost and comes back at once"


ABORT = Sentinel.ABORT
RETRY = Sentinel.RETRY
REBALANCE = Sentinel.REBALANCE

Script = Sequence[bytes | Record | Sentinel | None]


class ListSource:
    """A source of scripted records; can be run again after a crash.

    Parameters
    ----------
    script
        Values or whole records (a value gets its ordinal as offset), with sentinels in between;
        or one such list for each partition.
    committed
        The durable offsets, looked up at every assignment: give :attr:`ListSink.offsets`.
    earliest
        First offsets that can still be read, where not 0.
    """

    def __init__(
        self, script: Script | Mapping[Partition, Script], *,
        committed: Mapping[Partition, int] | None = None,
        earliest: Mapping[Partition, int] | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(script, Mapping):
            script = {Partition("input", 0): script}
        self._scripts = {key: _numbered(key, items) for key, items in script.items()}
        self._committed: Mapping[Partition, int] = {} if committed is None else committed
        self._earliest: Mapping[Partition, int] = {} if earliest is None else earliest
        self._done: set[tuple[Partition, int]] = set()
        self._turn = 0
        self._at: dict[Partition, int] = {}
        self._from: dict[Partition, int] = {}
        self._changes: list[Revoked | Partition] = []  # a partition alone: to be assigned
        self.close()

    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        found: list[Record] = []
        for _ in self._scripts:
            partition = list(self._scripts)[self._turn % len(self._scripts)]
            self._turn += 1
            if partition in self._at:
                found = self._read(partition, max_records)
            if found:
                break
        return found

    def _read(self, partition: Partition, max_records: int) -> list[Record]:
        found: list[Record] = []
        script = self._scripts[partition]
        while len(found) < max_records and self._at[partition] < len(script):
            index = self._at[partition]
            item = script[index]
            if isinstance(item, Record):
                if item.position.offset >= self._from[partition]:
                    found.append(item)
            elif (partition, index) not in self._done:
                if found:
                    break  # what stands before the sentinel is delivered first
                self._done.add((partition, index))
                self._act(partition, item)
                if partition not in self._at:
                    break
            self._at[partition] += 1
        return found

    def _act(self, partition: Partition, sentinel: Sentinel) -> None:
        if sentinel is ABORT:
            raise Crash(str(partition))
        if sentinel is RETRY:
            raise ConnectorError("the broker is away for a moment", retriable=True)
        self._lose(partition)

    def _lose(self, partition: Partition) -> None:
        self._at.pop(partition, None)
        self._changes += [Revoked(partition), partition]

    def changes(self) -> Sequence[Assigned | Revoked]:
        changes, self._changes = self._changes, []
        return [
            change
            if isinstance(change, Revoked)
            else Assigned(change, self._committed.get(change), self._earliest.get(change, 0))
            for change in changes
        ]

    def seek(self, partition: Partition, offset: int) -> None:
        self._at[partition] = 0
        self._from[partition] = offset

    def pause(self, partition: Partition) -> None:
        del self._at[partition]

    def rewind(self) -> None:
        self._changes = []
        for partition in self._scripts:
            self._lose(partition)

    @property
    def exhausted(self) -> bool:
        return not self._changes and all(
            self._at.get(key, 0) >= len(script) for key, script in self._scripts.items()
        )

    def close(self) -> None:
        self._at.clear()
        self._from.clear()
        self._changes = list(self._scripts)


def _numbered(partition: Partition, script: Script) -> list[Record | Sentinel]:
    numbered: list[Record | Sentinel] = []
    offset = 0
    for item in script:
        if isinstance(item, Sentinel):
            numbered.append(item)
            continue
        if isinstance(item, Record):
            offset = item.position.offset
            numbered.append(item)
        else:
            position = Position(partition.topic, partition.partition, offset)
            numbered.append(Record(position, None, item, (), offset))
        offset += 1
    return numbered


class ListSink:
    """Keeps committed outcomes in a list, and fails on command.

    Parameters
    ----------
    commits
        What the first commits do: ``"ok"``; ``"fail"`` (nothing becomes durable, retriable);
        ``"ambiguous"`` (all becomes durable, and yet a retriable error is raised, as after a
        time-out); ``"crash"`` and ``"crash after"`` (before or after it became durable);
        ``"fatal"`` (an error that is not retriable). All later ones are ok.

    Attributes
    ----------
    outcomes
        What is durable, in order.
    offsets
        Durable next offsets.
    """

    def __init__(self, commits: Sequence[str] = ()) -> None:
        self.outcomes: list[Outcome] = []
        self.offsets: dict[Partition, int] = {}
        self.n_commits = 0
        self._script = list(commits)
        self._written: list[Outcome] = []

    def write(self, outcomes: Sequence[Outcome]) -> None:
        self._written += outcomes

    def commit(self, next_offsets: Mapping[Partition, int]) -> None:
        what = self._script.pop(0) if self._script else "ok"
        if what == "crash":
            raise Crash("before a commit")
        if what == "fail":
            raise ConnectorError("the commit failed", retriable=True)
        if what == "fatal":
            raise ConnectorError("the producer was fenced")
        self.outcomes += self._written
        self.offsets |= next_offsets
        self._written = []
        self.n_commits += 1
        if what == "ambiguous":
            raise ConnectorError("the commit timed out", retriable=True)
        if what == "crash after":
            raise Crash("after a commit")

    def abort(self) -> None:
        self._written = []

    def close(self) -> None:
        self._written = []


class MemorySnapshotStore:
    """Keeps the newest snapshots of each partition in memory.

    Examples
    --------
    >>> store = MemorySnapshotStore()
    >>> store.save(Partition("t", 0), SnapshotPiece(10, None, {"a": b"1", "b": b"1"}))
    True
    >>> store.save(Partition("t", 0), SnapshotPiece(20, 10, {"a": b"2"}))
    True
    >>> store.load(Partition("t", 0), at_most=29)
    (20, {'a': b'2', 'b': b'1'})
    """

    def __init__(self, keep: int = 3) -> None:
        self._keep = keep
        self.snapshots: dict[Partition, dict[int, dict[str, bytes]]] = {}
        self._begun: dict[Partition, tuple[int, dict[str, bytes]]] = {}
        self.journals: dict[Partition, bytes] = {}

    def save(self, partition: Partition, piece: SnapshotPiece) -> bool:
        kept = self.snapshots.get(partition, {})
        if piece.first:
            if piece.base is not None and piece.base not in kept:
                return False
            before = {} if piece.base is None else kept[piece.base]
            self._begun[partition] = piece.next_offset, dict(before)
        offset, parts = self._begun.get(partition, (None, {}))
        if offset != piece.next_offset:
            return False
        for name, body in piece.parts.items():
            if body is None:
                parts.pop(name, None)
            else:
                parts[name] = body
        if piece.last:
            del self._begun[partition]
            kept = {offset: old for offset, old in kept.items() if offset < piece.next_offset}
            kept[piece.next_offset] = parts
            self.snapshots[partition] = dict(sorted(kept.items())[-self._keep :])
        return True

    def load(self, partition: Partition, at_most: int) -> tuple[int, Mapping[str, bytes]] | None:
        kept = self.snapshots.get(partition, {})
        offsets = [offset for offset in kept if offset <= at_most]
        return (max(offsets), kept[max(offsets)]) if offsets else None

    def save_journal(self, partition: Partition, decisions: bytes) -> None:
        self.journals[partition] = decisions

    def load_journal(self, partition: Partition) -> bytes | None:
        return self.journals.get(partition)

    def close(self) -> None:
        """Nothing is held open."""


class ListControl:
    """A control log in memory.

    Attributes
    ----------
    lines
        What people said so far.
    """

    def __init__(self, inputs: Sequence[str] = ("input",)) -> None:
        self.inputs = tuple(inputs)
        self.lines: list[bytes] = []

    def read(self, start: int) -> ControlRecords:
        heard = [
            Record(Position("control", 0, number), None, self.lines[number])
            for number in range(start, len(self.lines))
        ]
        return ControlRecords(heard, max(start, len(self.lines)))

    def close(self) -> None:
        """Nothing is held open."""


class DelayedExecutor:
    """Runs every fit, but is "done" only after being asked a random number of times.

    Parameters
    ----------
    seed
        Decides the delays.
    delays
        Instead: the delays themselves, in the order of submission.
    """

    def __init__(self, seed: int = 0, delays: Sequence[int] | None = None) -> None:
        self._random = random.Random(seed)
        self._delays = None if delays is None else iter(delays)
        self._fits: dict[Hashable, Callable[[], Any]] = {}
        self._asks: dict[Hashable, int] = {}

    def submit(self, key: Hashable, fit: Callable[[], Any]) -> None:
        self._fits[key] = fit
        drawn = self._random.choice((0, 1, 2, 10, 100, 1_000))
        self._asks[key] = drawn if self._delays is None else next(self._delays)

    def done(self, key: Hashable) -> bool:
        if key not in self._fits:
            return False
        self._asks[key] -= 1
        return self._asks[key] < 0

    def result(self, key: Hashable) -> Any:
        if key not in self._fits:
            raise DetectorError(
                f"no fit is known under {key!r}: a result is taken once, after it was submitted"
            )
        return self._fits.pop(key)()

    def cancel(self, key: Hashable) -> None:
        self._fits.pop(key, None)

    def close(self) -> None:
        self._fits.clear()


class FakeClock:
    """A clock that moves when told: by :meth:`advance`, or by `tick_s` at every look.

    Examples
    --------
    >>> clock = FakeClock(tick_s=0.5)
    >>> clock(), clock()
    (0.0, 0.5)
    >>> clock.advance(10)
    >>> clock()
    11.0
    """

    def __init__(self, tick_s: float = 0.0) -> None:
        self._now_s = 0.0
        self._tick_s = tick_s

    def __call__(self) -> float:
        now_s = self._now_s
        self._now_s += self._tick_s
        return now_s

    def advance(self, seconds: float) -> None:
        self._now_s += seconds
