"""A job begins with what workers have stored.

Of a partition whose streams share nothing, each stream can be judged on by a state of its own
(:func:`apart`), on any machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from rejex_stream.config import Config
from rejex_stream.config.assembly import DecodedBefore, Judging, NothingStoredError, stored
from rejex_stream.engine.snapshot import of_stream, seal, unseal
from rejex_stream.errors import CheckpointError, ConfigError
from rejex_stream.run.command_journal import CommandJournal
from rejex_stream.run.partition import HEAD, HEAD_FORMAT, HEAD_KIND, of_streams
from rejex_stream.types import Partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "WAYS", "Begin", "MonitorsOnSpark", "apart", "begun", "forget", "rows_of", "worker_snapshots",
]  # fmt: skip

WAYS = ("streams", "partitions")
"""The parts of a checkpoint, by what its states are of; one has no use for those of another."""
_STATES = "topic string, partition int, stream string, name string, body binary"
_PIECE_BYTES = 32_000_000
"""States travel in pieces of so many bytes, as Spark bounds what a task may bring."""


class Begin(NamedTuple):
    """Where a job goes on with a partition, and its snapshot there."""

    next_offset: int
    parts: Mapping[str, bytes]


def worker_snapshots(config: Config, *, applies_commands: bool) -> dict[Partition, Begin]:
    """Return the snapshots with which a new checkpoint begins, of partitions that have one."""
    found: dict[Partition, Begin] = {}
    judging = Judging(config)
    try:
        with stored(config) as state:
            for partition, committed in state.places.committed().items():
                kept = state.store.load(partition, committed)
                if kept is not None:
                    if not applies_commands:
                        _require_applied(partition, state.store.load_journal(partition), kept[0])
                    found[partition] = _begin(judging, partition, kept[1], committed)
    except NothingStoredError:
        return {}
    return found


def _require_applied(partition: Partition, decided: bytes | None, next_offset: int) -> None:
    journal = CommandJournal(partition, decided, ())
    journal.rewind_to(next_offset, allow_gaps=False)
    if journal.next_effective_offset is not None:
        raise ConfigError(
            f"{partition.topic}-{partition.partition} is to obey a command of people from offset "
            f"{journal.next_effective_offset} on, and a job obeys with --control alone: give it."
        )


def _begin(
    judging: Judging, partition: Partition, parts: Mapping[str, bytes], committed: int
) -> Begin:
    """Bring a snapshot back as a worker would, and take it again without its monitors."""
    state = judging.state(partition, DecodedBefore(judging.channels), ())
    state.restore(parts)
    otherwise = state.apply_config()
    if otherwise is not None and state.next_offset < committed:
        raise CheckpointError(
            f"{partition.topic}-{partition.partition} is committed up to offset {committed}, and "
            f"its snapshot at {state.next_offset} decides otherwise than this config: start and "
            "stop `rejex-stream run` with the config of then, which takes a newer one."
        )
    state.parts.abandon(base_is_gone=True)
    whole = state.snapshot().encoded().parts
    return Begin(state.next_offset, {name: body for name, body in whole.items() if body})


def rows_of(
    spark: SparkSession, begins: Mapping[Partition, Begin], *, whole: bool
) -> DataFrame | None:
    """Return states for ``initialState``, a row a part; ``None`` where there are none.

    They are of `whole` partitions, or of each stream on its own. O(bytes), through the driver.
    """
    import pyarrow as pa

    rows = [
        (partition.topic, partition.partition, stream, name, body)
        for partition, begin in begins.items()
        for stream, parts in ({"": begin.parts} if whole else apart(begin.parts)).items()
        for name, body in parts.items()
    ]
    if not rows:
        return None
    types = (pa.string(), pa.int32(), pa.string(), pa.string(), pa.binary())
    names = [column.split()[0] for column in _STATES.split(", ")]

    def frame(some: Sequence[tuple[str, int, str, str, bytes]]) -> DataFrame:
        columns = [pa.array(c, t) for c, t in zip(zip(*some, strict=True), types, strict=True)]
        return spark.createDataFrame(pa.table(columns, names))

    return reduce(lambda one, other: one.union(other), map(frame, _pieces(rows)))


def _pieces(
    rows: Sequence[tuple[str, int, str, str, bytes]],
) -> list[list[tuple[str, int, str, str, bytes]]]:
    pieces: list[list[tuple[str, int, str, str, bytes]]] = []
    room = 0
    for row in rows:
        if len(row[4]) > room:
            pieces.append([])
            room = _PIECE_BYTES
        pieces[-1].append(row)
        room -= len(row[4])
    return pieces


def begun(spark: SparkSession, checkpoint: str) -> bool:
    """Whether a micro-batch of it was done."""
    done, files = _folder(spark, f"{checkpoint}/commits")
    return bool(files.exists(done)) and any(
        one.getPath().getName().isdigit() for one in files.listStatus(done)
    )


def forget(spark: SparkSession, checkpoint: str) -> None:
    """Remove one of which no micro-batch was done: what that began with might be there no more.

    What it has written, its sink knows.
    """
    offsets, files = _folder(spark, f"{checkpoint}/offsets")
    if files.exists(offsets):
        files.delete(offsets.getParent(), True)


def _folder(spark: SparkSession, address: str) -> tuple[Any, Any]:
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(address)
    return path, path.getFileSystem(spark._jsc.hadoopConfiguration())


class MonitorsOnSpark:
    """Keeps the monitors of a job in its checkpoint."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._path, self._files = _folder(spark, f"{checkpoint}/monitors")
        self._draft, _ = _folder(spark, f"{checkpoint}/monitors.new")

    def load(self) -> bytes | None:
        """Return what was saved last."""
        with _explained():
            for path in (self._path, self._draft):  # the draft: it was about to be renamed
                if self._files.exists(path):
                    stream = self._files.open(path)
                    try:
                        return bytes(stream.readAllBytes())
                    finally:
                        stream.close()
        return None

    def save(self, body: bytes) -> None:
        """Keep it in place of what was saved before, whole or not at all. O(bytes)."""
        with _explained():
            stream = self._files.create(self._draft, True)
            try:
                stream.write(bytearray(body))
            finally:
                stream.close()
            self._files.delete(self._path, False)
            self._files.rename(self._draft, self._path)


@contextmanager
def _explained() -> Iterator[None]:
    from py4j.protocol import Py4JError

    try:
        yield
    except Py4JError as error:
        raise OSError(str(error).splitlines()[0]) from error


def apart(parts: Mapping[str, bytes]) -> dict[str, dict[str, bytes]]:
    """Return a snapshot of each stream; under ``""``, one of what belongs to none. O(bytes).

    Each stands where the whole one does. Monitors watch whole partitions and are left out.
    """
    head = unseal(HEAD_KIND, HEAD_FORMAT, parts.get(HEAD, b""))
    found: dict[str, dict[str, bytes]] = {"": {}}
    for stream, name in of_streams(parts):
        found.setdefault(stream, {})[name] = parts[name]
    for stream, own in found.items():
        of_it = {
            "n_events": 0 if stream else head["n_events"],  # who is none has judged all so far
            "engine": of_stream(head["engine"], stream),
            "monitor": None,
        }
        own[HEAD] = seal(HEAD_KIND, HEAD_FORMAT, head | of_it)
    return found
