"""From a DataFrame of records to a DataFrame of outcomes: decode, shuffle by stream, judge.

The state of each stream is restored where it is not at hand, judged on, and kept in parts.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from rejex_connectors.files.sink import lines_of
from rejex_connectors.kafka.clients import Message

from rejex_stream import types
from rejex_stream.config import Config, assembly
from rejex_stream.config.input import REGISTRY_FORMATS
from rejex_stream.decode import decode_records
from rejex_stream.decode.mapping import ABSENT
from rejex_stream.errors import ConfigError
from rejex_stream.run.partition import PartitionState
from rejex_stream.spark.job_journal import JobJournal
from rejex_stream.threads import one_thread

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

KEY = ("topic", "partition", "stream")

OUTCOMES = (
    "topic string, partition int, offset long, place long, output string, to int, key binary, "
    "value binary, headers binary"
)
_DECODED = "topic string, partition int, offset long, stream string, taken binary"
_HEADERS = "array<struct<key:string,value:binary>>"
NO_TIME = -(2**63) + 1
_LIVE = 2_000  # so many states stay at hand in a worker's process
_COLUMNS = ("topic", "partition", "offset", "place", "output", "to", "key", "value", "headers")


def verdicts(
    records: DataFrame,
    config: Config,
    *,
    header: bytes = b"",
    partitions: Mapping[str, int] | None = None,
    journal: JobJournal | None = None,
) -> DataFrame:
    """Judge a stream of records as a worker with the same config does; the same bytes come out.

    `records` is a streaming DataFrame with columns ``topic``, ``partition``, ``offset``, ``key``
    and ``value``, and where there are any ``timestamp`` and ``headers``: what Spark's Kafka source
    gives. A record's position is its place in the order; offsets go up from one micro-batch to the
    next. `header` is the header row where values are CSV with one, `partitions` how many partitions
    each output topic has, for messages to Kafka: without it, values are those of files. `journal`
    is where people tell the pipeline things; whoever writes must decide then.

    Returns one row a message: the record it is about, its ``place`` among those of that record,
    the ``output`` it is for (``verdicts``, ``review``, ``deadletter``, ``incidents``), and ``to``
    (partition), ``key``, ``value`` (JSON) and ``headers`` (MessagePack).

    The session needs the RocksDB state store. Streams are shuffled one by one, unless they share
    something of their partition (a budget, a time to forget, sensors in several groups) or people
    are listened to: then whole partitions are.

    Raises
    ------
    ConfigError
        If the config asks for what cannot be had on Spark.
    """
    refused(config)
    recipe = Recipe(uuid.uuid4().hex, config, dict(partitions) if partitions else None, journal)
    rows = taken(records, config, header, whole=recipe.whole)
    return rows.groupBy(*KEY).transformWithStateInPandas(
        KeyedStates(recipe), OUTCOMES, "Append", "None"
    )


def taken(records: DataFrame, config: Config, header: bytes, *, whole: bool) -> DataFrame:
    """Decode records, as :func:`verdicts` wants them: a row each, with its :data:`KEY`.

    That is the stream, or where `whole` partitions are judged, the partition.
    """

    def decode(batches: Iterator[Any]) -> Iterator[Any]:
        return decoded(batches, config, header, whole=whole)

    there = set(records.columns)
    time_ms = "unix_millis(timestamp)" if "timestamp" in there else "cast(null as long)"
    time_ms = "timestamp_ms" if "timestamp_ms" in there else time_ms
    return records.selectExpr(
        "topic", "partition", "offset", "key", "value",
        f"coalesce({time_ms}, {NO_TIME}L) as timestamp_ms",
        "headers" if "headers" in there else f"cast(null as {_HEADERS}) as headers",
    ).mapInArrow(decode, _DECODED)  # fmt: skip


def refused(config: Config) -> None:
    source = config.input
    for asked, why in (
        (
            source.format in REGISTRY_FORMATS,
            f"input.format = {source.format!r} is not read on Spark yet: expected json or csv; "
            "`rejex-stream run` reads it.",
        ),
        (
            config.state.seal_key_file is not None,
            "state.seal_key_file puts snapshots under a key, and on Spark state lies in Spark's "
            "checkpoint, which has none: leave it out, and guard that folder.",
        ),
        (
            source.follow,
            "input.follow = true is not read on Spark yet: give topics, or a whole file.",
        ),
        (
            source.siblings is not None,
            "input.siblings is not heard on Spark, where each sensor may be judged by another "
            "task: leave it out, or take `rejex-stream run`.",
        ),
    ):
        if asked:
            raise ConfigError(why)


def decoded(batches: Iterator[Any], config: Config, header: bytes, *, whole: bool) -> Iterator[Any]:
    """Decode Arrow batches of records; what is read travels with the record. O(records)."""
    import pyarrow as pa

    on_topic = config.input.kind == "kafka"
    # In this process there is the header of a file, and not the file.
    source: Any = SimpleNamespace(header=header)
    decoder = assembly.kafka_decoder(config) if on_topic else assembly.file_decoder(config, source)
    encode = msgspec.msgpack.Encoder().encode
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        records: Sequence[types.Record] = [
            types.Record(
                types.Position(topic, partition, offset),
                key,
                value,
                tuple((h["key"], h["value"]) for h in headers or ()),
                None if time_ms == NO_TIME else time_ms,
            )
            for topic, partition, offset, key, value, time_ms, headers in zip(*columns, strict=True)
        ]
        records, items = decode_records(decoder, records)
        rows: list[tuple[str, int, int, str, bytes]] = []
        for record, item in zip(records, items, strict=True):
            at = record.position
            if isinstance(item, types.Reading):
                values = enumerate(item.values)
                marks = ((i, x, types.unit_change(x)) for i, x in values)
                marked = tuple((i, units) for i, x, units in marks if units or x is ABSENT)
                stream, taken = "" if whole else item.stream_key, Taken(record, item, None, marked)
            else:  # a dead letter holds the whole record, whichever of its readings is none
                source = record.source if isinstance(record, types.SelectedRecord) else record
                stream, taken = "", Taken(record._replace(value=source.value), None, item)
            rows.append((at.topic, at.partition, at.offset, stream, encode(taken)))
        of_type = (pa.string(), pa.int32(), pa.int64(), pa.string(), pa.binary())
        made = zip(*rows, strict=True) if rows else repeat((), len(of_type))
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, kind) for column, kind in zip(made, of_type, strict=True)],
            ["topic", "partition", "offset", "stream", "taken"],
        )


# ---------------------------------------------------------------------- state of a stream
class Taken(NamedTuple):
    """A record on its way from one executor to another, and what was read in it."""

    record: types.Record
    reading: types.Reading | None
    invalid: types.Invalid | None
    # Channels that the record does not name, with None; and in another unit, with both.
    marked: tuple[tuple[int, tuple[str, str] | None], ...] = ()

    @property
    def item(self) -> types.Reading | types.Invalid:
        """What was read, as the decoder gave it."""
        if not self.marked:
            return self.reading or self.invalid  # type: ignore[return-value] # one of both
        assert self.reading is not None
        values = list(self.reading.values)
        for i, units in self.marked:
            values[i] = types.nan_of_unit(*units) if units else ABSENT
        return self.reading._replace(values=tuple(values))


@dataclass(frozen=True)
class Recipe:
    """What a worker's process needs to judge."""

    id: str  # of this job; live states are never taken from one job into another
    config: Config  # what decides
    # how many partitions each output topic has; ``None``: outputs are lines of files
    partitions: Mapping[str, int] | None
    journal: JobJournal | None = None  # where people tell the pipeline things; ``None``: nowhere

    @property
    def whole(self) -> bool:
        """Whether partitions are judged whole, and not each stream on its own."""
        return self.journal is not None or assembly.by_partition(self.config)


class _Live(NamedTuple):
    mark: bytes
    state: PartitionState
    read: assembly.DecodedBefore


class _Bench:
    """What one process keeps from task to task: recipes made ready, and states at hand."""

    def __init__(self, recipe: Recipe) -> None:
        self.judging = assembly.Judging(recipe.config)
        self.live: OrderedDict[tuple[str, int, str], _Live] = OrderedDict()
        self.messages = _messages(recipe)
        self._journal, self._whole = recipe.journal, recipe.whole

    def fresh(self, partition: types.Partition) -> tuple[PartitionState, assembly.DecodedBefore]:
        read = assembly.DecodedBefore(self.judging.channels)
        inputs = None if self._journal is None else self._journal.inputs
        state = self.judging.state(partition, read, inputs)
        state.registry.sees_all = self._whole
        return state, read

    def listen(self, state: PartitionState) -> None:
        """Have the state obey what is durable by now, from where it stands."""
        if self._journal is not None:
            state.load_journal(
                self._journal.decided(state.partition), decided_until=state.next_offset
            )
            state.journal.rewind_to(state.next_offset, allow_gaps=False)


def _messages(
    recipe: Recipe,
) -> Callable[[types.Outcome], Iterable[tuple[str, int, bytes | None, bytes | None, bytes]]]:
    """Return what makes of an outcome its messages: output, partition, key, value, headers."""
    if recipe.partitions is None:
        nothing = msgspec.msgpack.encode([])
        form = recipe.config.output.form
        return lambda outcome: [
            (role, 0, None, line, nothing) for role, line in lines_of([outcome], form=form)
        ]
    from rejex_connectors.kafka.messages import OutcomeMessages

    settings = assembly.kafka_settings(recipe.config)
    roles = {
        getattr(settings.topics, role): role
        for role in ("verdicts", "review", "deadletter", "incidents")
    }
    of = OutcomeMessages(settings, recipe.partitions.__getitem__).of
    encode = msgspec.msgpack.Encoder().encode

    def message(m: Message) -> tuple[str, int, bytes | None, bytes | None, bytes]:
        return roles[m.topic], m.partition, m.key, m.value, encode(m.headers)

    return lambda outcome: map(message, of([outcome]))


_benches: dict[str, _Bench] = {}


class KeyedStates:
    """A ``StatefulProcessor`` of Spark: judges the records of one stream, or of one partition.

    Its state is the parts of a worker's snapshot, each a value of its own that is written where it
    has moved: the window with every micro-batch, the model where it was refitted. States stay at
    hand in the worker's process as well, and are used where their mark is the one in Spark's state;
    so a batch that is repeated, on whatever machine, begins with what is durable.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    def init(self, handle: Any) -> None:
        bench = _benches.get(self._recipe.id)
        if bench is None:
            _benches.clear()  # of an earlier job in this process
            bench = _benches[self._recipe.id] = _Bench(self._recipe)
        self._bench = bench
        self._mark = handle.getValueState("mark", "mark binary")
        self._parts = handle.getMapState("parts", "name string", "body binary")
        self._taken = msgspec.msgpack.Decoder(Taken)

    def handleInputRows(  # noqa: N802 - Spark's name
        self, key: tuple[str, int, str], rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Judge what a micro-batch holds of one key."""
        import pandas as pd

        taken = [self._taken.decode(body) for frame in rows for body in frame["taken"]]
        taken.sort(key=lambda item: item.record.position)  # map tasks came in any order
        topic, partition, _ = key
        live = self._live(key, types.Partition(str(topic), int(partition)))
        state, read = live.state, live.read
        self._bench.listen(state)
        read.items = {item.record.position: item.item for item in taken}
        with one_thread():
            outcomes = state.process([item.record for item in taken])
        read.items = {}
        self._keep(key, live)
        # What a record lets come goes before it; of streams apart, nothing waits for another.
        whole = self._recipe.whole
        out = [
            (
                topic,
                partition,
                types.last_offset(at),
                (i if whole else at.position.reading) << 32 | n,
                *made,
            )
            for i, outcome in enumerate(outcomes)
            for at in (outcome.record,)
            for n, made in enumerate(self._bench.messages(outcome))
        ]
        yield pd.DataFrame(out, columns=list(_COLUMNS))

    def _live(self, key: tuple[str, int, str], partition: types.Partition) -> _Live:
        known = self._mark.get()
        live = self._bench.live.pop(key, None)
        if live is not None and known is not None and live.mark == bytes(known[0]):
            return live
        state, read = self._bench.fresh(partition)
        if known is not None:
            parts = {str(name[0]): bytes(body[0]) for name, body in self._parts.iterator()}
            state.restore(parts)
            state.apply_config()
        return _Live(b"", state, read)

    def _keep(self, key: tuple[str, int, str], live: _Live) -> None:
        state = live.state
        for name, body in state.snapshot().encoded().parts.items():
            if body is not None:
                self._parts.updateValue((name,), (body,))
            elif self._parts.containsKey((name,)):
                self._parts.removeKey((name,))
        state.parts.commit()
        mark = uuid.uuid4().bytes
        self._mark.update((mark,))
        self._bench.live[key] = live._replace(mark=mark)
        while len(self._bench.live) > _LIVE:
            self._bench.live.popitem(last=False)

    def handleExpiredTimer(  # noqa: N802
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pd.DataFrame]:
        return iter(())

    def close(self) -> None:
        """Let go of nothing: states stay at hand for the next micro-batch."""
