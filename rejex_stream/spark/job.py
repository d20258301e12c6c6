"""A config as one job of Spark, from its input to its outputs."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rejex_stream.config import Config
from rejex_stream.config.assembly import (
    file_format,
    file_places,
    kafka_settings,
    open_source,
    require_own_places,
    require_own_topics,
)
from rejex_stream.errors import CheckpointError, ConfigError, ConnectorError, RejexError
from rejex_stream.spark.frames import refused, verdicts
from rejex_stream.types import Partition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rejex_connectors.kafka.settings import KafkaSettings

__all__ = ["SparkJob", "run_on_spark"]

_NEEDED = ("pyspark", "pandas", "pyarrow", "google.protobuf")


@dataclass(frozen=True)
class SparkJob:
    """How a job is run.

    Attributes
    ----------
    master
        Spark's: ``local[2]``, ``spark://host:7077``, ...; ``None``: what ``spark-submit`` says.
    checkpoint
        Folder or address of Spark's checkpoint: offsets and state; ``None``: in the state folder.
    batch_events
        Records of a micro-batch, at most.
    shuffle_partitions
        How many tasks share the streams; fixed when a checkpoint begins.
    available_now
        Whether to end with what topics hold at the start.
    conf
        Settings of Spark beyond these.
    """

    master: str | None
    checkpoint: str | None
    batch_events: int = 100_000
    shuffle_partitions: int = 8
    available_now: bool = False
    conf: Mapping[str, str] = field(default_factory=dict)


def run_on_spark(config: Config, job: SparkJob, stop: threading.Event) -> dict[str, int]:
    """Run a pipeline on Spark until its input ends or `stop` is set; return the messages by output.

    Raises
    ------
    ConfigError
        If the config asks for what cannot be had on Spark, or the extra is not installed.
    ConnectorError
        If an edge fails; Spark repeats what is not durable when the job is started again.
    """
    _require_extra()
    refused(config)
    if config.input.kind == "kafka":
        return _run_topics(config, job, stop)
    return _run_files(config, job, stop)


def _require_extra() -> None:
    from importlib import import_module

    for name in _NEEDED:
        try:
            import_module(name)
        except ImportError:
            raise ConfigError(
                f"Spark needs {name}: install the extra with pip install 'rejex-stream[spark]'."
            ) from None


@contextmanager
def session(job: SparkJob, name: str) -> Iterator[SparkSession]:
    """Open a session with what keyed states need of it."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # also of what plans the state
    builder = SparkSession.builder.appName(name)
    if job.master is not None:
        builder = builder.master(job.master)
    state = "spark.sql.streaming.stateStore"
    settings = {
        f"{state}.providerClass": "org.apache.spark.sql.execution.streaming.state."
        "RocksDBStateStoreProvider",
        f"{state}.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.minBatchesToRetain": "10",
        "spark.sql.shuffle.partitions": str(job.shuffle_partitions),
        "spark.sql.files.maxPartitionBytes": "1m",  # so that pieces of a chunk are tasks
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        **job.conf,
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def _run_files(config: Config, job: SparkJob, stop: threading.Event) -> dict[str, int]:
    from rejex_connectors.files import FileSink
    from rejex_connectors.spark.sink import FileBatches
    from rejex_connectors.spark.source import COLUMNS, Chunks

    places = file_places(config)
    if places.state is None:
        raise ConfigError(
            "a job on Spark reads and writes files, not standard streams, and keeps its state: "
            "name output.verdicts a file, and leave state.resume."
        )
    require_own_places(config)
    checkpoint = job.checkpoint or str(places.state / "spark")
    with ExitStack() as exits:
        sink = FileSink(**places.outputs, state_dir=places.state)
        exits.callback(sink.close)
        (places.state / "pipeline").write_text(config.pipeline.name + "\n", "utf-8")
        source = open_source(config, places.state)
        exits.callback(source.close)
        is_csv = file_format(config)[0] == "csv" and not config.input.columns
        header = source.header if is_csv else b""
        spark = exits.enter_context(session(job, config.pipeline.name))
        chunks = Chunks(places.state / "spark-input", job.batch_events)
        if not _begun(spark, checkpoint):
            chunks.forget()
        records = (
            spark.readStream.format("parquet")
            .schema(COLUMNS)
            .option("maxFilesPerTrigger", "1")
            .option("maxFileAge", "36500d")
            .load(str(chunks.folder.absolute()))
        )
        out = verdicts(records, config, header=header)
        write = FileBatches(sink)
        query = out.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).start()

        def all_of_it() -> None:
            chunks.lay(source, stop)
            query.processAllAvailable()

        _until_done(query, all_of_it, stop)
        if not stop.is_set():
            chunks.done()
    return write.counts


def _run_topics(config: Config, job: SparkJob, stop: threading.Event) -> dict[str, int]:
    from rejex_connectors.kafka.reading import partitions_of
    from rejex_connectors.kafka.snapshots import AloneSink
    from rejex_connectors.spark.sink import KafkaBatches

    settings = kafka_settings(config)
    if settings.security.protocol != "PLAINTEXT":
        raise ConfigError(
            f"kafka.security.protocol = {settings.security.protocol!r} is not spoken on Spark yet: "
            "expected PLAINTEXT; `rejex-stream run` speaks it."
        )
    checkpoint = job.checkpoint or config.state.folder
    if checkpoint is None:
        raise ConfigError("where Spark keeps its state is not said: give --checkpoint.")
    require_own_topics(settings)
    alone = AloneSink(settings)  # refuses beside workers of the group
    topics = settings.topics
    counts = {
        name: alone.partitions(name)
        for name in (topics.verdicts, topics.review, topics.deadletter, topics.incidents)
    }
    inputs = [p for topic in topics.input for p in partitions_of(settings, topic)]
    if not inputs:
        raise ConfigError(f"input.topics: {', '.join(topics.input)}: no such topic.")
    with session(_with_connector(job), config.pipeline.name) as spark:
        if not _begun(spark, checkpoint):
            _require_whole_history(settings, inputs)
        records = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", settings.bootstrap_servers)
            .option("subscribe", ",".join(topics.input))
            .option("startingOffsets", settings.start)
            .option("kafka.isolation.level", "read_committed")
            .option("includeHeaders", "true")
            .option("maxOffsetsPerTrigger", str(job.batch_events))
            .load()
        )
        out = verdicts(records, config, partitions=counts)
        write = KafkaBatches(settings, min(len(inputs), job.shuffle_partitions))
        stream = out.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        if job.available_now:
            stream = stream.trigger(availableNow=True)
        query = stream.start()
        _until_done(query, query.awaitTermination, stop)
    return write.counts


def _with_connector(job: SparkJob) -> SparkJob:
    """Have Spark fetch its connector, unless it is told where the jars are."""
    from pyspark import __version__

    if {"spark.jars", "spark.jars.packages"} & job.conf.keys():
        return job
    package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{__version__}"
    return replace(job, conf={**job.conf, "spark.jars.packages": package})


def _begun(spark: SparkSession, checkpoint: str) -> bool:
    path: Any = spark._jvm.org.apache.hadoop.fs.Path(f"{checkpoint}/offsets")
    conf = spark._jsc.hadoopConfiguration()
    return bool(path.getFileSystem(conf).exists(path))


def _require_whole_history(settings: KafkaSettings, inputs: Sequence[Partition]) -> None:
    """Refuse to go on where the records are gone of which the state was made."""
    from rejex_connectors.kafka.reading import bounds_of, committed_offsets

    committed = committed_offsets(settings, inputs)
    bounds = bounds_of(settings, inputs)
    for partition, offset in committed.items():
        earliest = bounds[partition][0]
        if offset and (earliest > 0 or settings.start == "latest"):
            raise CheckpointError(
                f"{partition.topic}-{partition.partition} is committed up to offset {offset}, and "
                "its state cannot be rebuilt in this new checkpoint without the records before "
                "it: use the checkpoint of then, or another pipeline with its own outputs."
            )


def _until_done(query: Any, wait: Callable[[], object], stop: threading.Event) -> None:  # noqa: ANN401 - Spark's
    """Let the query run until `wait` returns; what fails is said in one sentence."""
    from pyspark.errors import PySparkException

    done, failed = threading.Event(), list[RejexError]()

    def until() -> None:
        try:
            with suppress(PySparkException):  # what it is, the query says itself
                wait()
        except RejexError as error:
            failed.append(error)
        finally:
            done.set()

    threading.Thread(target=until, daemon=True, name="rejex-spark").start()
    try:
        while not done.wait(0.1) and not stop.is_set():
            pass
    finally:
        query.stop()
    if failed:
        raise failed[0]
    error = query.exception()
    if error is not None:
        raise ConnectorError(f"Spark: {_cause(str(error))}") from error


def _cause(told: str) -> str:
    """Return the sentence of ours in what Spark tells, or else its first line."""
    lines = told.strip().splitlines()
    ours = [line for line in lines if line.startswith("rejex_stream.errors.")]
    return ours[-1].partition(": ")[2] if ours else lines[0]
