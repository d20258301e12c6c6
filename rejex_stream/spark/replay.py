"""A history judged anew on Spark, by two configs; tasks share the streams, or the partitions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import groupby, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import TYPE_CHECKING, Any

import msgspec

from rejex_stream.config import Config
from rejex_stream.config.assembly import DecodedBefore, Judging, file_format, open_source
from rejex_stream.errors import ConnectorError
from rejex_stream.plan.measured import Differences, compare
from rejex_stream.spark.frames import KEY, decoder_of, refused, taken
from rejex_stream.spark.job import (
    SparkJob,
    cause,
    history_of,
    require_extra,
    session,
    with_connector,
)
from rejex_stream.spark.keyed import Taken
from rejex_stream.threads import one_thread, seldom_collecting
from rejex_stream.types import Partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["differences_on_spark"]

_BATCH = 5_000


def differences_on_spark(
    one: Config, other: Config, since_ms: int | None, job: SparkJob, *, whole: bool
) -> Differences:
    """Judge the history of one config by it and by another, and compare, on Spark; writes nothing.

    Parameters
    ----------
    one, other
        The configs; `one` says where the history is.
    since_ms
        From which event time on outcomes are compared, in ms; ``None``: all.
    job
        How it is run; its shuffle partitions are the tasks that judge.
    whole
        Whether streams share something or their keys differ, so that partitions are judged whole.

    Raises
    ------
    ConfigError
        If a config asks for what cannot be had on Spark, or the extra is not installed.
    ConnectorError
        If the history cannot be read.
    """
    require_extra()
    for config in (one, other):
        refused(config)
    from pyspark.errors import PySparkException

    with ExitStack() as exits:
        header = b""
        if one.input.kind == "kafka":
            spark = exits.enter_context(session(with_connector(job), one.pipeline.name))
            records = history_of(spark, one)
        else:
            from rejex_connectors.spark.source import COLUMNS, Chunks

            source = open_source(one)
            exits.callback(source.close)
            is_csv = file_format(one)[0] == "csv" and not one.input.columns
            header = source.header if is_csv else b""
            folder = Path(exits.enter_context(TemporaryDirectory(prefix="rejex-replay-")))
            Chunks(folder, job.batch_events).lay(source, Event())
            spark = exits.enter_context(session(job, one.pipeline.name))
            records = spark.read.schema(COLUMNS).parquet(str(folder))
        try:
            return _compared(records, (one, other), since_ms, header, job, whole=whole)
        except PySparkException as error:
            raise ConnectorError(f"Spark: {cause(str(error))}") from error


def _compared(
    records: DataFrame,
    configs: tuple[Config, Config],
    since_ms: int | None,
    header: bytes,
    job: SparkJob,
    *,
    whole: bool,
) -> Differences:
    def judge(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        found = _judged(batches, configs, since_ms, header)
        yield pa.RecordBatch.from_pydict({"found": [found.plain()]})

    shares = taken(records, configs[0], header, whole=whole).repartition(
        job.shuffle_partitions, *KEY
    )
    in_order = shares.sortWithinPartitions("topic", "partition", "offset").select("taken")
    found = Differences()
    for (plain,) in in_order.mapInArrow(judge, "found binary").collect():
        found.join(Differences.of_plain(bytes(plain)))
    return found


def _judged(
    batches: Iterator[Any], configs: tuple[Config, Config], since_ms: int | None, header: bytes
) -> Differences:
    """Judge the streams of a task, which come partition by partition, records in order."""
    one, other = configs
    found, decode = Differences(), msgspec.msgpack.Decoder(Taken).decode
    makes = Judging(one), Judging(other)
    read = None if one.input == other.input else decoder_of(other, header).decode
    rows = (decode(body) for batch in batches for body in batch.column("taken").to_pylist())
    with one_thread(), seldom_collecting():
        for (topic, number), of_it in groupby(rows, lambda row: row.record.position[:2]):
            pair = DecodedBefore(makes[0].channels), DecodedBefore(makes[1].channels)
            partition = Partition(topic, number)
            first, second = (m.state(partition, d) for m, d in zip(makes, pair, strict=True))
            while some := list(islice(of_it, _BATCH)):
                for record, reading, invalid in some:
                    item: Any = reading or invalid
                    pair[0].items[record.position] = item
                    again = item if read is None else read(record)
                    pair[1].items[record.position] = again
                compare([row.record for row in some], first, second, since_ms, found)
                for decoded in pair:
                    decoded.items.clear()
    return found
