"""A config as one job of Spark, from its input to its outputs."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rejex_connectors.files import FileControl, FileSink
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.spark.sink import FileBatches, KafkaBatches
from rejex_connectors.spark.source import COLUMNS, Chunks

from rejex_stream.config import Config, assembly
from rejex_stream.config.assembly.control_line import lines_of
from rejex_stream.config.assembly.running import open_run_monitor
from rejex_stream.errors import (
    CheckpointError,
    ConfigError,
    ConnectorError,
    RejexError,
    needing_extra,
)
from rejex_stream.operate.run_monitor import RunMonitor
from rejex_stream.run.partition import log_alarm
from rejex_stream.spark.frames import refused, verdicts
from rejex_stream.spark.job_journal import JobJournal
from rejex_stream.spark.monitoring import JobMonitoring, still_open
from rejex_stream.types import Partition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rejex_connectors.kafka.partition_reader import PartitionReader

_UNHEARD = (
    "{where} holds commands of people, which are heard on Spark with --control alone: without it, "
    "verdicts would be others than those of `rejex-stream run`. Give it, or name in input.control "
    "a log without any."
)
_SLOW = "Python worker failed to connect back"
_STARTS = 10
"""Spark gives its processes 10 s to start, by no setting; a busy machine does not keep that."""
_NEEDED = ("pyspark", "pandas", "pyarrow", "google.protobuf")


@dataclass(frozen=True)
class SparkJob:
    """How a job is run."""

    # spark's: ``local[2]``, ``spark://host:7077``, ...; ``None``: what ``spark-submit`` says
    master: str | None
    # folder or address of Spark's checkpoint: offsets and state; ``None``: in the state folder
    checkpoint: str | None
    batch_events: int = 100_000  # records of a micro-batch, at most
    shuffle_partitions: int = 8  # how many tasks share the streams; fixed when a checkpoint begins
    available_now: bool = False  # whether to end with what topics hold at the start
    control: bool = False  # whether to hear commands of people; partitions are judged whole then
    conf: Mapping[str, str] = field(default_factory=dict)  # settings of Spark beyond these


def run_on_spark(config: Config, job: SparkJob, stop: threading.Event) -> dict[str, int]:
    """Run a pipeline until its input ends or `stop` is set; return the messages by output."""
    _require_extra()
    refused(config)
    if config.input.kind == "kafka":
        return _run_topics(config, job, stop)
    return _run_files(config, job, stop)


def _require_extra() -> None:
    with needing_extra("spark", "Spark"):
        for name in _NEEDED:
            import_module(name)


@contextmanager
def session(job: SparkJob, name: str) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

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
    with TemporaryDirectory(prefix="rejex-spark-") as folder:
        # Also of what plans the state, which goes by this variable alone.
        given = os.environ.setdefault("PYSPARK_PYTHON", ours := _python(job, Path(folder)))
        try:
            spark = builder.getOrCreate()
            try:
                yield spark
            finally:
                spark.stop()
        finally:
            if given == ours:
                del os.environ["PYSPARK_PYTHON"]


def _python(job: SparkJob, folder: Path) -> str:
    # On this machine without Spark's own path: that holds an archive whose modules each process
    # compiles again, a second of the ten that it is given.
    if not (job.master or "").startswith("local"):
        return sys.executable
    starts = folder / "python"
    path = quote(os.environ.get("PYTHONPATH", ""))
    starts.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {quote(sys.executable)} "$@"\n', "utf-8")
    starts.chmod(0o755)
    return str(starts)


def _run_files(config: Config, job: SparkJob, stop: threading.Event) -> dict[str, int]:
    places = assembly.file_places(config)
    if places.state is None:
        raise ConfigError(
            "a job on Spark reads and writes files, not standard streams, and keeps its state: "
            "name output.verdicts a file, and leave state.resume."
        )
    assembly.require_own_places(config)
    assert places.control is not None  # as there is a state
    if not job.control and FileControl(places.control, ()).read(0).records:
        raise ConfigError(_UNHEARD.format(where=places.control))
    journal, way = _journal(config, job), _way(config, job)
    checkpoint = f"{job.checkpoint or places.state / 'spark'}/{way}"
    with ExitStack() as exits:
        sink = FileSink(**places.outputs, state_dir=places.state, form=config.output.form)
        exits.callback(sink.close)
        (places.state / "pipeline").write_text(config.pipeline.name + "\n", "utf-8")
        source = assembly.open_source(config, places.state)
        exits.callback(source.close)
        is_csv = assembly.file_format(config)[0] == "csv" and not config.input.columns
        header = source.header if is_csv else b""
        spark = exits.enter_context(session(job, config.pipeline.name))
        chunks = Chunks(places.state / "spark-input" / way, job.batch_events)
        if not _has_begun(spark, checkpoint):
            _forget(spark, checkpoint)
            chunks.forget()
        records = (
            spark.readStream.format("parquet")
            .schema(COLUMNS)
            .option("maxFilesPerTrigger", "1")
            .option("maxFileAge", "36500d")
            .load(str(chunks.folder.absolute()))
        )
        listening = journal if job.control else None
        out = verdicts(records, config, header=header, journal=listening)
        watch = exits.enter_context(_watching(config))
        monitoring = JobMonitoring(watch, config, journal)
        at = {source.partition: sink.committed(source.partition)}
        monitoring.begin(at, still_open(lines_of(Path(places.incidents)), at))
        write = FileBatches(sink, monitoring)
        stream = out.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)

        def all_of_it(query: Any) -> None:
            chunks.lay(source, stop)
            query.processAllAvailable()

        _until_done(stream, all_of_it, stop, monitoring.turn)
        monitoring.end(lambda *_: None)
        if not stop.is_set():
            chunks.done()
    return write.counts


def _run_topics(config: Config, job: SparkJob, stop: threading.Event) -> dict[str, int]:
    from rejex_connectors.kafka.partition_reader import (
        PartitionReader,
        bounds_of,
        committed_offsets,
        partitions_of,
    )
    from rejex_connectors.kafka.topic_snapshots import OfflineSink

    settings = _settings(config)
    folder = job.checkpoint or config.state.folder
    if folder is None:
        raise ConfigError("where Spark keeps its state is not said: give --checkpoint.")
    checkpoint = f"{folder}/{_way(config, job)}"
    assembly.require_own_topics(settings)
    alone = OfflineSink(settings)  # refuses beside workers of the group
    topics = settings.topics
    commands = bounds_of(settings, partitions_of(settings, topics.control))
    if not job.control and any(end for _, end in commands.values()):
        raise ConfigError(_UNHEARD.format(where=topics.control))
    journal = _journal(config, job)
    counts = {
        name: alone.partitions(name)
        for name in (topics.verdicts, topics.review, topics.deadletter, topics.incidents)
    }
    inputs = [p for topic in topics.input for p in partitions_of(settings, topic)]
    if not inputs:
        raise ConfigError(f"input.topics: {', '.join(topics.input)}: no such topic.")
    assembly.require_one_partition(config, Counter(partition.topic for partition in inputs))
    with (
        _watching(config) as watch,
        closing(PartitionReader(settings)) as reader,
        session(_with_connector(job), config.pipeline.name) as spark,
    ):
        if not _has_begun(spark, checkpoint):
            _forget(spark, checkpoint)
            _require_records(settings, inputs)
        read = spark.readStream.option("maxOffsetsPerTrigger", str(job.batch_events))
        records = _topics(read, settings).option("startingOffsets", settings.start).load()
        listening = journal if job.control else None
        out = verdicts(records, config, partitions=counts, journal=listening)
        monitoring = JobMonitoring(watch, config, journal)
        at = dict.fromkeys(inputs, 0) | committed_offsets(settings, inputs)
        of_incidents = chain.from_iterable(map(reader.read, reader.partitions(topics.incidents)))
        monitoring.begin(at, still_open((record.value or b"" for record in of_incidents), at))
        watch.source = _Input(reader, inputs, monitoring)
        tasks = min(len(inputs), job.shuffle_partitions)
        write = KafkaBatches(settings, tasks, monitoring)
        stream = out.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        if job.available_now:
            stream = stream.trigger(availableNow=True)
        _until_done(stream, lambda query: query.awaitTermination(), stop, monitoring.turn)
        monitoring.end(write.keep)
    return write.counts


def _journal(config: Config, job: SparkJob) -> JobJournal | None:
    """Return who hears people and remembers what they are still to be told; ``None``: nobody."""
    if not job.control and config.alerts.webhook_url is None:
        return None
    return JobJournal.of(config, listens=job.control)


def _watching(config: Config) -> AbstractContextManager[RunMonitor]:
    return open_run_monitor(config, assembly.engine_spec(config), log_alarm, None, quiet=False)


class _Input:
    """In the place of a worker's source, where it is asked how far the input goes."""

    def __init__(
        self, reader: PartitionReader, partitions: Sequence[Partition], monitoring: JobMonitoring
    ) -> None:
        self._reader, self._partitions, self._watched = reader, partitions, monitoring

    def ask(self) -> None:
        """Nothing: the next question is one."""

    def lag(self) -> Mapping[Partition, int]:
        bounds = self._reader.bounds(self._partitions)
        return self._watched.lag({p: end for p, (_, end) in bounds.items()})


def _settings(config: Config) -> KafkaSettings:
    settings = assembly.kafka_settings(config)
    if settings.security.protocol != "PLAINTEXT":
        raise ConfigError(
            f"kafka.security.protocol = {settings.security.protocol!r} is not spoken on Spark yet: "
            "expected PLAINTEXT; `rejex-stream run` speaks it."
        )
    return settings


def _topics(read: Any, settings: KafkaSettings) -> Any:
    return (
        read.format("kafka")
        .option("kafka.bootstrap.servers", settings.bootstrap_servers)
        .option("subscribe", ",".join(settings.topics.input))
        .option("kafka.isolation.level", "read_committed")
        .option("includeHeaders", "true")
    )


def _way(config: Config, job: SparkJob) -> str:
    """Name the part of a checkpoint by what its states are of: one would not be another's."""
    return "partitions" if job.control or assembly.by_partition(config) else "streams"


def _with_connector(job: SparkJob) -> SparkJob:
    """Have Spark fetch its connector, unless it is told where the jars are."""
    from pyspark import __version__

    if {"spark.jars", "spark.jars.packages"} & job.conf.keys():
        return job
    package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{__version__}"
    return replace(job, conf={**job.conf, "spark.jars.packages": package})


def _require_records(settings: KafkaSettings, inputs: Sequence[Partition]) -> None:
    """Refuse a new checkpoint where records are gone that its states would be made of."""
    from rejex_connectors.kafka.partition_reader import bounds_of, committed_offsets

    committed = committed_offsets(settings, inputs)
    bounds = bounds_of(settings, inputs)
    for partition, offset in committed.items():
        if offset and (bounds[partition][0] > 0 or settings.start == "latest"):
            raise CheckpointError(
                f"{partition} is committed up to offset {offset}, and "
                "its state cannot be rebuilt in this new checkpoint without the records before "
                "it: use the checkpoint of then, or take another pipeline with its own outputs."
            )


def _has_begun(spark: SparkSession, checkpoint: str) -> bool:
    """Whether a micro-batch of a checkpoint was done."""
    done, files = _folder(spark, f"{checkpoint}/commits")
    return bool(files.exists(done)) and any(
        commit.getPath().getName().isdigit() for commit in files.listStatus(done)
    )


def _forget(spark: SparkSession, checkpoint: str) -> None:
    """Remove a checkpoint of which no micro-batch was done: its input may be there no more."""
    offsets, files = _folder(spark, f"{checkpoint}/offsets")
    if files.exists(offsets):
        files.delete(offsets.getParent(), True)


def _folder(spark: SparkSession, address: str) -> tuple[Any, Any]:
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(address)
    return path, path.getFileSystem(spark._jsc.hadoopConfiguration())


def _until_done(
    stream: Any, wait: Callable[[Any], object], stop: threading.Event, turn: Callable[[], object]
) -> None:
    """Let a query run until `wait` returns, and `turn` meanwhile; say in a sentence what fails."""
    for again in reversed(range(_STARTS)):
        error = _until_ended(stream.start(), wait, stop, turn)
        if error is None:
            return
        if not again or _SLOW not in str(error):
            lines = str(error).strip().splitlines()
            ours = [line for line in lines if line.startswith("rejex_stream.errors.")]
            cause = ours[-1].partition(": ")[2] if ours else lines[0]
            raise ConnectorError(f"Spark: {cause}") from error


def _until_ended(
    query: Any, wait: Callable[[Any], object], stop: threading.Event, turn: Callable[[], object]
) -> Exception | None:
    from pyspark.errors import PySparkException

    done, failed = threading.Event(), list[RejexError]()

    def until() -> None:
        try:
            with suppress(PySparkException):  # what it is, the query says itself
                wait(query)
        except RejexError as error:
            failed.append(error)
        finally:
            done.set()

    threading.Thread(target=until, daemon=True, name="rejex-spark").start()
    try:
        while not done.wait(0.1) and not stop.is_set():
            turn()
    finally:
        query.stop()
    if failed:
        raise failed[0]
    found: Exception | None = query.exception()
    return found
