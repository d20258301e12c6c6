"""From a DataFrame of records to a DataFrame of outcomes: decode, shuffle by stream, judge."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec

from rejex_stream.config import Config
from rejex_stream.config.assembly import by_partition, file_decoder
from rejex_stream.config.input import REGISTRY_FORMATS
from rejex_stream.decode import Decoder
from rejex_stream.decode.json import JsonDecoder
from rejex_stream.errors import ConfigError
from rejex_stream.spark.commands import JobJournal
from rejex_stream.spark.keyed import KeyedStates, Recipe, Taken
from rejex_stream.types import Position, Reading, Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["KEY", "NO_TIME", "OUTCOMES", "decoded", "decoder_of", "refused", "taken", "verdicts"]

KEY = ("topic", "partition", "stream")

OUTCOMES = (
    "topic string, partition int, offset long, place int, output string, to int, key binary, "
    "value binary, headers binary"
)
_DECODED = "topic string, partition int, offset long, stream string, taken binary"
_HEADERS = "array<struct<key:string,value:binary>>"
NO_TIME = -(2**63) + 1


def verdicts(
    records: DataFrame,
    config: Config,
    *,
    header: bytes = b"",
    partitions: Mapping[str, int] | None = None,
    journal: JobJournal | None = None,
    states: DataFrame | None = None,
) -> DataFrame:
    """Judge a stream of records as a worker with the same config does; the same bytes come out.

    Parameters
    ----------
    records
        A streaming DataFrame with columns ``topic``, ``partition``, ``offset``, ``key`` and
        ``value``, and where there are any ``timestamp`` and ``headers``: what Spark's Kafka source
        gives. A record's position is its place in the order, so it is needed for other sources,
        too. Offsets of a partition go up from one micro-batch to the next.
    config
        What decides; where it says to read and write is not looked at.
    header
        The header row where values are CSV with one.
    partitions
        How many partitions each output topic has, for messages to Kafka; without it, values are
        those of files.
    journal
        Where people tell the pipeline things, if it listens; whoever writes must decide then.
    states
        What a new checkpoint begins with, of :func:`~rejex_stream.spark.state_migration.rows_of`;
        records before it are passed over.

    Returns
    -------
    DataFrame
        One row a message: the position it is about (``topic``, ``partition``, ``offset``), its
        ``place`` among those of that record, the ``output`` it is for (``verdicts``, ``review``,
        ``deadletter``, ``incidents``), and the message: ``to`` (partition), ``key``, ``value``
        (JSON) and ``headers`` (MessagePack).

    Raises
    ------
    ConfigError
        If the config asks for what cannot be had on Spark.

    Notes
    -----
    The session needs the RocksDB state store. Streams are shuffled one by one, unless they share
    something of their partition (a budget, a time to forget, sensors in several groups) or people
    are listened to: then whole partitions are.
    """
    refused(config)
    recipe = Recipe(uuid.uuid4().hex, config, dict(partitions) if partitions else None, journal)
    whole = journal is not None or by_partition(config)
    rows = taken(records, config, header, whole=whole)
    return rows.groupBy(*KEY).transformWithStateInPandas(
        KeyedStates(recipe), OUTCOMES, "Append", "None",
        initialState=None if states is None else states.groupBy(*KEY),
    )  # fmt: skip


def taken(records: DataFrame, config: Config, header: bytes, *, whole: bool) -> DataFrame:
    """Decode records, as :func:`verdicts` wants them: a row each, with its :data:`KEY`.

    That is the stream, or where `whole` partitions are judged, the partition.
    """

    def decode(batches: Iterator[Any]) -> Iterator[Any]:
        return decoded(batches, config, header, whole=whole)

    there = set(records.columns)
    return records.selectExpr(
        "topic", "partition", "offset", "key", "value",
        f"coalesce({_time(there)}, {NO_TIME}L) as timestamp_ms",
        "headers" if "headers" in there else f"cast(null as {_HEADERS}) as headers",
    ).mapInArrow(decode, _DECODED)  # fmt: skip


def _time(columns: set[str]) -> str:
    if "timestamp_ms" in columns:
        return "timestamp_ms"
    return "unix_millis(timestamp)" if "timestamp" in columns else "cast(null as long)"


def refused(config: Config) -> None:
    """Refuse what a job on Spark cannot do.

    Raises
    ------
    ConfigError
        Naming the setting.
    """
    if config.input.intake().any:
        raise ConfigError(
            "rows that are joined, held or put in order (input.tag with several channels, "
            'input.partial = "hold_last", input.reorder_s) are not made on Spark yet; '
            "`rejex-stream run` makes them."
        )
    if config.input.select is not None:
        raise ConfigError(
            "input.select is not read on Spark yet: expected one reading a record; "
            "`rejex-stream run` reads it."
        )
    if config.input.format in REGISTRY_FORMATS:
        raise ConfigError(
            f"input.format = {config.input.format!r} is not read on Spark yet: expected json or "
            "csv; `rejex-stream run` reads it."
        )
    if config.state.seal_key_file is not None:
        raise ConfigError(
            "state.seal_key_file puts snapshots under a key, and on Spark state lies in Spark's "
            "checkpoint, which has none: leave it out, and guard that folder."
        )
    if config.input.follow:
        raise ConfigError(
            "input.follow = true is not read on Spark yet: give topics, or a whole file."
        )


def decoded(batches: Iterator[Any], config: Config, header: bytes, *, whole: bool) -> Iterator[Any]:
    """Decode Arrow batches of records; what is read travels with the record. O(records)."""
    import pyarrow as pa

    decode = decoder_of(config, header).decode
    encode = msgspec.msgpack.Encoder().encode
    for batch in batches:
        streams: list[str] = []
        bodies: list[bytes] = []
        columns = [column.to_pylist() for column in batch.columns]
        for topic, partition, offset, key, value, time_ms, headers in zip(*columns, strict=True):
            record = Record(
                Position(topic, partition, offset),
                key,
                value,
                tuple((h["key"], h["value"]) for h in headers or ()),
                None if time_ms == NO_TIME else time_ms,
            )
            item = decode(record)
            if isinstance(item, Reading):
                streams.append("" if whole else item.stream_key)
                bodies.append(encode(Taken(record, item, None)))
            else:
                streams.append("")
                bodies.append(encode(Taken(record, None, item)))
        names = ["topic", "partition", "offset", "stream", "taken"]
        yield pa.RecordBatch.from_arrays(
            [*batch.columns[:3], pa.array(streams, pa.string()), pa.array(bodies, pa.binary())],
            names,
        )


def decoder_of(config: Config, header: bytes) -> Decoder:
    """Make a decoder in a process that has the header of a file and not the file."""
    if config.input.kind == "kafka":
        return JsonDecoder(config.input.mapping())
    source: Any = SimpleNamespace(header=header)
    return file_decoder(config, source)
