"""What a partition's snapshot is made of: parts that move at different times, each under one seal.

The loop takes views of the streams that have moved, some at each turn, and of a stream that is
about to move before it does; they are encoded on another thread. So a snapshot of any number of
streams stands at one offset, and the loop never waits for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from time import perf_counter
from typing import Annotated, Any, NamedTuple, Protocol, TypeAlias

import msgspec

from rejex_stream.engine.engine import Decision, Restored
from rejex_stream.engine.model import FitFailed
from rejex_stream.engine.sensor_registry import Gone, SensorRegistry
from rejex_stream.engine.snapshot import seal, unseal
from rejex_stream.engine.stream_state import StreamSnapshot, StreamView
from rejex_stream.errors import WAY_OUT, CheckpointError, RejexError
from rejex_stream.protocols import SnapshotPiece
from rejex_stream.run.review_items import ReviewItems
from rejex_stream.types import Command, CommandReply, Incident, Outcome, Reading, Verdict

__all__ = [
    "HEAD",
    "HEAD_FORMAT",
    "HEAD_KIND",
    "Head",
    "MovedParts",
    "PartitionEngine",
    "PartitionMonitor",
    "Piece",
    "SnapshotParts",
    "from_outside",
    "of_streams",
    "told_apart",
]  # fmt: skip

HEAD, HEAD_KIND, HEAD_FORMAT = "head", "partition-head", 1
_STATE, _MODEL, _CONTEXT, _MONITOR = "s", "m", "c", "w"
_FORMAT_VERSION = 1
_VERSION_BYTES = 8
MOST_BYTES = 4_000_000
"""A piece is closed once its parts are about so large."""

Encode: TypeAlias = Callable[[], Mapping[str, bytes | None]]


class PartitionEngine(Protocol):
    """What a partition's state needs of an engine."""

    def ready(self, readings: Sequence[Reading]) -> int:
        """Return how many of them can be judged before a fit has to be waited for."""
        ...

    def process(self, readings: Sequence[Reading]) -> Sequence[Verdict]:
        """Give one verdict a reading, in the same order."""
        ...

    def streams(self) -> Sequence[str]:
        """Return the keys that :meth:`view` knows."""
        ...

    def head(self) -> bytes:
        """Encode, sealed, what belongs to no single stream."""
        ...

    def view(self, stream_key: str) -> StreamView:
        """Take one stream as it is now, to be encoded later on another thread."""
        ...

    def forget(self, stream_key: str, sensor: str | None = None) -> None:
        """Drop a stream, or of one that goes on what it knows of a sensor."""
        ...

    def restore_streams(
        self, head: bytes, streams: Mapping[str, StreamSnapshot], *, accept_environment: bool
    ) -> Restored:
        """Take over a state; asked of a fresh engine only."""
        ...

    def decide(self, decision: Decision) -> None:
        """Give verdicts by another decision from the next reading on."""
        ...

    def open_incidents(self) -> Sequence[Incident]:
        """Return the incidents that are open, as they stand."""
        ...

    def take_failures(self) -> Sequence[FitFailed]:
        """Return the fits that failed since the last call."""
        ...

    def take_incidents(self) -> Sequence[Incident]:
        """Return the changes of incidents since the last call, in the order of the events."""
        ...

    def streams_of(self, command: Command) -> Sequence[str]:
        """Return the keys of the streams whose own state a command may change."""
        ...

    def command(self, command: Command) -> CommandReply | None:
        """Obey between two readings, all or nothing; ``None``: none of its streams is meant."""
        ...


class PartitionMonitor(Protocol):
    """Watches the outcomes of one partition; its state travels with the partition."""

    def observe(self, outcomes: Sequence[Outcome], *, replaying: bool) -> None:
        """See outcomes in order; `replaying` ones were seen before, only state comes of them."""
        ...

    def head(self) -> bytes:
        """Encode what belongs to no single stream."""
        ...

    def view(self, stream_key: str) -> bytes | None:
        """Encode what is known of one stream, if anything is."""
        ...

    def forget(self, stream_key: str) -> None:
        """Drop what is known of one stream, if anything is."""
        ...

    def restore(self, blob: bytes, streams: Mapping[str, bytes]) -> bool:
        """Take over a state; asked of a fresh monitor only. Returns whether it is of use."""
        ...


class Head(msgspec.Struct, forbid_unknown_fields=True):
    """What a snapshot holds of no single stream or sensor."""

    partition: list[str | int]
    channels: list[str]
    next_offset: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
    n_events: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
    engine: bytes
    lives: dict[str, Any]
    monitor: bytes | None
    intake: Any = None

    def sealed(self) -> bytes:
        """Return it as a part of a snapshot."""
        return seal(HEAD_KIND, HEAD_FORMAT, msgspec.structs.asdict(self))


@contextmanager
def from_outside() -> Iterator[None]:
    """Turn whatever goes wrong with state that comes from outside into its refusal.

    A seal vouches for bytes and not for sense: what was sealed by something else, or by a defect,
    may have any form.

    Raises
    ------
    CheckpointError
        For every error but those that say already what to do.
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
    """The parts of a snapshot, told apart."""

    head: Head
    streams: dict[str, StreamSnapshot]
    context: dict[str, bytes]
    lives: dict[str, object]
    monitor: dict[str, bytes]


class Piece(NamedTuple):
    """Some views of a snapshot; :meth:`encoded` may run on any thread, once."""

    next_offset: int
    n_events: int
    base: int | None
    views: Sequence[Encode]
    first: bool
    last: bool

    def encoded(self) -> SnapshotPiece:
        """Encode. O(bytes)."""
        parts: dict[str, bytes | None] = {}
        for encode in self.views:
            parts |= encode()
        return SnapshotPiece(self.next_offset, self.base, parts, self.first, self.last)


@dataclass
class _Begun:
    """A snapshot of which views are being taken."""

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


class MovedParts:
    """Knows which streams have moved since the last snapshot, and takes the views of the next.

    Parameters
    ----------
    engine, context, lives, monitor
        Whose state it is.

    Attributes
    ----------
    base
        Where the snapshot stands that the next one builds upon; ``None``: it is written whole.
    """

    def __init__(
        self,
        engine: PartitionEngine,
        context: ReviewItems,
        lives: SensorRegistry,
        monitor: PartitionMonitor | None,
    ) -> None:
        self.base: int | None = None
        self._engine, self._context, self._lives = engine, context, lives
        self._monitor = monitor
        self._streams: dict[str, None] = {}
        self._sensors: dict[str, None] = {}
        self._gone: set[str] = set()  # parts of what was forgotten
        self._versions: dict[str, int] = {}  # of the models that are kept
        self._begun: _Begun | None = None

    @property
    def under_way(self) -> bool:
        """Whether a snapshot was begun and is neither kept nor abandoned."""
        return self._begun is not None

    def before(self, readings: Iterable[Reading]) -> None:
        """View first what a snapshot waits for and these are about to move."""
        if self._begun is not None:
            for reading in readings:
                self._view_first(self._begun, reading.stream_key, reading.sensor)

    def moved(self, readings: Collection[Reading]) -> None:
        """Take note of what these have moved."""
        self._streams |= dict.fromkeys([reading.stream_key for reading in readings])
        self._sensors |= dict.fromkeys([reading.sensor for reading in readings])

    def before_command(self, key: str) -> None:
        """Take note that one stream is about to move, without a reading of it."""
        begun = self._begun
        if begun is not None and key in begun.streams:
            del begun.streams[key]
            begun.taken.append(self._view(begun, key))
        self._streams[key] = None

    def before_forgetting(self, gone: Gone) -> None:
        """Take note of who is about to be forgotten; what a snapshot waits for is viewed first."""
        begun = self._begun
        for key, sensor in gone.lives:
            if begun is not None:
                self._view_first(begun, key, sensor)
            self._streams[key] = self._sensors[sensor] = None
        for key in gone.streams:
            del self._streams[key]
            self._gone.update(kind + key for kind in (_STATE, _MODEL, _MONITOR))
            self._versions.pop(key, None)  # who comes back under that name has another model
            if begun is not None:
                begun.versions.pop(key, None)
        for sensor in gone.sensors:
            del self._sensors[sensor]
            self._gone.add(_CONTEXT + sensor)

    def _view_first(self, begun: _Begun, key: str, sensor: str) -> None:
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
        self._begun = _Begun(
            next_offset, n_events, self.base, dict(streams), dict(sensors), {},
            [lambda: {**gone, HEAD: head}], True, streams, sensors, forgotten,
        )  # fmt: skip

    def next_piece(self, seconds: float) -> Piece:
        """Take a view, more for so long, and return them with those that could not wait."""
        begun = self._begun
        assert begun is not None
        until, size = perf_counter() + seconds, 0
        most = MOST_BYTES if seconds < inf else inf
        for waiting, view in (
            (begun.streams, lambda key: self._view(begun, key)),
            (begun.sensors, self._view_of_sensor),
        ):
            while waiting and (not size or (perf_counter() < until and size < most)):
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
        self._versions = {key: kept.model_version for key, kept in streams.items()}

    def keep(self) -> None:
        """Build upon the snapshot that was begun: it is durable."""
        begun, self._begun = self._begun, None
        assert begun is not None
        self.base = begun.next_offset
        self._versions |= begun.versions

    def abandon(self, *, base_is_gone: bool = False) -> None:
        """Give up the snapshot that was begun; what had moved is due again."""
        begun, self._begun = self._begun, None
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
        moved = self._versions.get(key) != view.model_version
        begun.versions[key] = view.model_version

        def encode() -> dict[str, bytes | None]:
            version = view.model_version.to_bytes(_VERSION_BYTES, "big")
            parts: dict[str, bytes | None] = {_STATE + key: version + view.state()}
            if moved:
                parts[_MODEL + key] = view.model()
            if monitor is not None:
                parts[_MONITOR + key] = seal("monitor", _FORMAT_VERSION, [key, monitor])
            self._size = sum(map(len, filter(None, parts.values())))
            return parts

        return encode

    def _view_of_sensor(self, sensor: str) -> Encode:
        view, heard = self._context.view(sensor), self._lives.view(sensor)
        return lambda: {_CONTEXT + sensor: seal("context", _FORMAT_VERSION, [sensor, view, heard])}


def told_apart(parts: Mapping[str, bytes]) -> SnapshotParts:
    """Return the parts of a snapshot by what they are.

    Raises
    ------
    CheckpointError
        If one is missing, foreign or broken.
    """
    with from_outside():
        head = msgspec.convert(unseal(HEAD_KIND, HEAD_FORMAT, parts.get(HEAD, b"")), Head)
        kept = SnapshotParts(head, {}, {}, {}, {})
        for name, body in parts.items():
            kind, key = name[:1], name[1:]
            if name == HEAD or kind == _MODEL:
                continue
            if kind == _STATE:
                version = int.from_bytes(body[:_VERSION_BYTES], "big")
                model = parts.get(_MODEL + key, b"")
                kept.streams[key] = StreamSnapshot(body[_VERSION_BYTES:], model, version)
            elif kind == _CONTEXT:
                whose, kept.context[key], kept.lives[key] = unseal("context", _FORMAT_VERSION, body)
                _refuse_other(whose, key)
            elif kind == _MONITOR:
                whose, kept.monitor[key] = unseal("monitor", _FORMAT_VERSION, body)
                _refuse_other(whose, key)
        return kept


def _refuse_other(whose: object, key: str) -> None:
    if whose != key:
        raise CheckpointError(
            f"The snapshot was altered: a part of {whose!r} stands in the place of {key!r}."
        )


def of_streams(parts: Mapping[str, bytes]) -> Iterator[tuple[str, str]]:
    """Yield the names of the parts of each stream, with the stream; monitors' are left out.

    Raises
    ------
    CheckpointError
        If a part is broken.
    """
    for name, body in parts.items():
        kind, key = name[:1], name[1:]
        if name == HEAD:
            continue
        if kind in (_STATE, _MODEL):
            yield key, name
        elif kind == _CONTEXT:  # of a sensor, which may be one of a pool
            with from_outside():
                _, _, streams = unseal("context", _FORMAT_VERSION, body)
                names = [(str(stream), name) for stream in streams]
            yield from names
