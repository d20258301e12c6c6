"""From a config to open inputs, outputs and snapshot stores, in files or on Kafka."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, cast

from rejex_connectors.durable import replace_file
from rejex_connectors.files import FileControl, FileSink, FileSource
from rejex_connectors.files.sink import CommitState, read_commit
from rejex_connectors.files.source import Format, named_format
from rejex_connectors.files.workbooks import require_reader
from rejex_connectors.folder_snapshots import FolderSnapshotStore
from rejex_connectors.kafka.kafka_settings import KafkaSettings, KafkaTopics
from rejex_connectors.signed_snapshots import SealedStore, read_key

from rejex_stream.config.input import REGISTRY_FORMATS
from rejex_stream.config.pipeline_config import Config
from rejex_stream.decode import CsvDecoder, Decoder, JsonDecoder, parse_csv_header
from rejex_stream.decode.mapping import FieldMapping, printable
from rejex_stream.errors import ConfigError, ConnectorError, needing_extra
from rejex_stream.protocols import Assigned, ControlLog, Sink, SnapshotStore, Source
from rejex_stream.types import Invalid, Outcome, Partition, Reading, Record

__all__ = [
    "Edges", "FilePlaces", "MissingTopicError", "budget_of_groups", "file_decoder", "file_format",
    "file_places", "json_decoder", "kafka_decoder", "kafka_settings", "open_edges", "open_source",
    "records_of", "require_extras", "require_one_partition", "require_own_places",
    "require_own_topics", "sealing",
]  # fmt: skip

_STATE = ".rejex-"
_OWNER = "pipeline"
"""In a state folder: the name of the pipeline that it belongs to."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Where a run reads, writes and keeps its state."""

    source: Source
    sink: Sink
    store: SnapshotStore | None
    decoder: Decoder
    control: ControlLog | None = None

    @property
    def fraction(self) -> float | None:
        """Share of the input that was read; ``None`` where there is no end to it."""
        return getattr(self.source, "fraction", None)


def open_edges(config: Config, *, dry_run: bool = False) -> Edges:
    if config.input.kind == "kafka":
        return _kafka_edges(config, dry_run=dry_run)
    return _file_edges(config, dry_run=dry_run)


class FilePlaces(NamedTuple):
    """Where a pipeline over a file writes and keeps its state; ``-`` is standard output.

    `control` is where it hears commands; ``None``: nowhere.
    """

    verdicts: str
    review: str
    deadletter: str
    incidents: str
    state: Path | None
    control: Path | None

    @property
    def outputs(self) -> dict[str, str]:
        roles = ("verdicts", "review", "deadletter", "incidents")
        return {role: getattr(self, role) for role in roles}


def file_places(config: Config) -> FilePlaces:
    """Return the outputs of a pipeline over a file, defaults filled in."""
    output, state = config.output, config.state
    verdicts = output.verdicts or "verdicts.jsonl"
    beside = Path() if verdicts == "-" else Path(verdicts).parent
    passing = config.input.path == "-" or verdicts == "-"
    # What passes by begins again each time: commands to an earlier run must not be taken for ours.
    heard = config.input.control or (None if passing else str(beside / "control.jsonl"))
    places = FilePlaces(
        verdicts,
        output.review or str(beside / "review.jsonl"),
        output.deadletter or str(beside / "deadletter.jsonl"),
        output.incidents or str(beside / "incidents.jsonl"),
        None,
        None if heard is None else Path(heard),
    )
    paths = places.outputs | ({} if heard is None else {"control": heard})
    for role, path in paths.items():
        for other, its in paths.items():
            if role < other and Path(path).absolute() == Path(its).absolute():
                raise ConfigError(
                    f"{other} and {role} are both {printable(path)}: give each its own file."
                )
    passing = passing or "-" in paths.values()
    if passing and state.folder is not None:
        raise ConfigError(
            "standard input and output cannot be taken back, so there is no state to keep: leave "
            "state.folder out, or use files."
        )
    folder: Path | None = None
    if state.resume and not passing:
        folder = Path(state.folder or beside / f"{_STATE}{config.pipeline.name}")
    return places._replace(state=folder)


def require_own_places(config: Config) -> None:
    """Refuse outputs and state that another pipeline writes: they would be mixed, or cut off."""
    places, name = file_places(config), config.pipeline.name
    if places.state is None:
        return
    owner = places.state / _OWNER
    known = owner.read_text("utf-8").strip() if owner.is_file() else name
    if known != name:
        raise ConfigError(
            f"the state folder {places.state} is that of pipeline {printable(known)}, this one is "
            f"{printable(name)}: give it a state.folder of its own, or pipeline.name = "
            f'"{known}" if it is the same.'
        )
    outputs = {str(Path(path).absolute()) for path in places.outputs.values()}
    for folder in sorted(Path(places.verdicts).absolute().parent.glob(f"{_STATE}*")):
        other = folder.name.removeprefix(_STATE)
        commit = CommitState() if folder == places.state.absolute() else read_commit(folder)
        for path, _ in commit.lengths.values():
            if path in outputs and other != name:
                raise ConfigError(
                    f"{path} holds what pipeline {printable(other)} wrote, this one is "
                    f"{printable(name)}: give it outputs of its own in [output], or pipeline.name "
                    f'= "{other}" if it is the same; {folder.name} removed, that one is forgotten.'
                )
    if not owner.is_file() and not read_commit(places.state).next_offsets:
        _refuse_to_cut_off(config, places.state, Path(places.verdicts))


def _refuse_to_cut_off(config: Config, state: Path, verdicts: Path) -> None:
    """Refuse a state folder that is new where the verdicts are not: they would be cut off."""
    holds_some = verdicts.is_file() and verdicts.stat().st_size > 0
    if holds_some and config.state.lost_state != "restart":
        raise ConfigError(
            f"{verdicts} holds verdicts, and the state folder {state} knows nothing of them: all "
            "records would be judged again. If state.folder was changed, bring the state along: "
            "`rejex-stream state export OLD moved.state`, then `rejex-stream state import NEW "
            "moved.state`, with the config as it was and as it is. To start over, move the outputs "
            "away."
        )


def file_format(config: Config) -> tuple[Format, str]:
    """Return the format of the input file and the delimiter of its columns."""
    source = config.input
    named, usual = named_format(source.path or "")
    kind = named if source.format == "auto" else cast(Format, source.format)
    if kind is None:
        raise ConfigError(
            f"the name {printable(source.path)} does not tell its format: give input.format, csv, "
            "jsonl, excel or parquet."
        )
    return kind, "," if kind in ("excel", "parquet") else source.delimiter or usual


def open_source(config: Config, state: Path | None = None) -> FileSource:
    source = config.input
    assert source.path is not None
    kind, delimiter = file_format(config)
    return FileSource(
        source.path,
        format=kind,
        delimiter=delimiter,
        follow=source.follow,
        state_dir=state,
        sample_interval_ms=source.sample_interval_ms if source.time is None else None,
        encoding=source.encoding,
        has_header=not source.columns,
        skip_rows=source.skip_rows,
        sheet=source.sheet,
    )


def file_decoder(config: Config, source: FileSource) -> Decoder:
    mapping = config.mapping()
    kind, delimiter = file_format(config)
    if kind == "jsonl":
        return json_decoder(config)
    if config.input.columns:
        return CsvDecoder(mapping, config.input.columns, delimiter)
    if config.input.follow:
        return _LateCsvDecoder(mapping, source, delimiter)
    return CsvDecoder(mapping, parse_csv_header(source.header, delimiter), delimiter)


def json_decoder(config: Config) -> Decoder:
    decoder = JsonDecoder(config.mapping())
    if config.input.select is None:
        return decoder
    from rejex_stream.decode.select import SelectingDecoder, Selector

    return SelectingDecoder(Selector(config.input.select), decoder)


def records_of(source: Source) -> Iterator[Record]:
    """Yield the records of a finite source from its first on; closes it at the end."""
    try:
        while not source.exhausted:
            for change in source.changes():
                if isinstance(change, Assigned):
                    source.seek(change.partition, change.earliest)
            yield from source.poll(1000, timeout_s=0.2)
    finally:
        source.close()


class _LateCsvDecoder:
    """Learns the header of a followed file with its first record: it may not be there yet."""

    def __init__(self, mapping: FieldMapping, source: FileSource, delimiter: str) -> None:
        self._mapping, self._source, self._delimiter = mapping, source, delimiter
        self.channels = mapping.channel_names

    def decode(self, record: Record) -> Reading | Invalid:
        return self._known.decode(record)

    def lacking(self, record: Record) -> str:
        return self._known.lacking(record)

    @cached_property
    def _known(self) -> CsvDecoder:
        header = parse_csv_header(self._source.header, self._delimiter)
        return CsvDecoder(self._mapping, header, self._delimiter)


def kafka_settings(config: Config) -> KafkaSettings:
    """Return what the Kafka connector is told; secrets stay sealed."""
    pipeline, output = config.pipeline, config.output
    roles = ("verdicts", "review", "labels", "deadletter", "incidents")
    topics: dict[str, Any] = {role: getattr(output, role) for role in roles}
    topics |= {"input": config.input.topics, "control": config.input.control}
    state = None if config.state.folder is not None else config.state.topic
    return KafkaSettings(
        **dict(config.kafka) | {"group": config.kafka.group or pipeline.name},
        topics=KafkaTopics(**{role: name for role, name in topics.items() if name}, state=state),
        pipeline=pipeline.name,
        pipeline_version=pipeline.version,
        form=output.form,
    )


def kafka_decoder(config: Config) -> Decoder:
    mapping, kind = config.mapping(), config.input.format
    if kind not in REGISTRY_FORMATS:
        return json_decoder(config)
    _require_extra(kind)
    from rejex_connectors.kafka.schema_registry import HttpSchemaRegistry

    from rejex_stream.decode.avro import avro_json, avro_reader
    from rejex_stream.decode.protobuf import protobuf_json, protobuf_reader
    from rejex_stream.decode.registry_decoder import RegistryDecoder

    select = config.input.select
    as_reading = avro_reader if kind == "avro" else protobuf_reader
    as_json = avro_json if kind == "avro" else protobuf_json
    decoder = RegistryDecoder(
        mapping,
        HttpSchemaRegistry(config.schema_registry),
        kind.upper(),
        as_reading if select is None else as_json,
    )
    if select is None:
        return decoder
    from rejex_stream.decode.select import RegistrySelectingDecoder, Selector

    return RegistrySelectingDecoder(Selector(select), JsonDecoder(mapping), decoder)


def require_extras(config: Config) -> None:
    source = config.input
    if source.kind == "kafka":
        if config.kafka.client == "confluent":
            _require(("confluent_kafka",), "kafka.client = 'confluent'", "confluent")
        if source.format in REGISTRY_FORMATS:
            _require_extra(source.format)
        return
    kind, _ = file_format(config)
    if kind in ("excel", "parquet"):
        require_reader(kind)


def _require_extra(kind: str) -> None:
    needed = ("fastavro",) if kind == "avro" else ("google.protobuf", "grpc_tools")
    _require(needed, f"input.format = {kind!r}", "registry")


def _require(modules: Sequence[str], what: str, extra: str) -> None:
    with needing_extra(extra, what):
        for name in modules:
            import_module(name)


class _NothingSink:
    def write(self, outcomes: Sequence[Outcome]) -> None: ...

    def commit(self, next_offsets: Mapping[Partition, int]) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


def _file_edges(config: Config, *, dry_run: bool) -> Edges:
    places = file_places(config)
    if dry_run:
        source = open_source(config)
        return Edges(source, _NothingSink(), None, file_decoder(config, source))
    sealed = sealing(config)
    require_own_places(config)
    with ExitStack() as exits:
        # The sink first: it claims the state folder, which the source then reads.
        sink = FileSink(**places.outputs, state_dir=places.state, form=config.output.form)
        exits.callback(sink.close)
        if places.state is not None:
            replace_file(places.state / _OWNER, f"{config.pipeline.name}\n".encode())
        source = open_source(config, places.state)
        exits.callback(source.close)
        decoder = file_decoder(config, source)
        store = None if places.state is None else sealed(FolderSnapshotStore(places.state))
        control: ControlLog | None = None
        if places.control is not None:
            control = FileControl(places.control, [source.partition.topic])
        exits.pop_all()
    return Edges(source, sink, store, decoder, control)


class MissingTopicError(ConnectorError):
    """An input topic does not exist; somebody may be about to make it."""


def _kafka_edges(config: Config, *, dry_run: bool) -> Edges:
    from rejex_connectors.kafka.partition_reader import KafkaControl, topic_ids
    from rejex_connectors.kafka.sink import connect, open_clients
    from rejex_connectors.kafka.source import KafkaSource, KeyWatch
    from rejex_connectors.kafka.topic_admin import look_at_inputs

    settings = kafka_settings(config)
    decoder = kafka_decoder(config)
    inputs = look_at_inputs(settings)
    if inputs.missing:
        problems = "; ".join(
            f"topic {name!r} {problem}" for name, problem in inputs.missing.items()
        )
        raise MissingTopicError(f"Kafka at {settings.bootstrap_servers}: {problems}")
    require_one_partition(config, inputs.partitions)
    # A sensor that comes from the key has none where there is no key: those are dead letters.
    by_key = config.input.partitioning == "check" and not config.mapping().sensor_from
    inspect = KeyWatch(inputs.partitions).see if by_key else None
    if dry_run:
        name = f"dry-run-{uuid.uuid4().hex[:8]}"
        settings = settings.replace(group=f"{settings.group}-{name}", instance_id=None)
        open_consumer, _ = open_clients(settings, name)
        rehearsed = KafkaSource(open_consumer(), settings)
        rehearsed.inspect = inspect
        return Edges(rehearsed, _NothingSink(), None, decoder)
    sealed = sealing(config)
    require_own_topics(settings)
    source, sink = connect(settings)
    source.inspect = inspect
    store: SnapshotStore
    if config.state.folder is not None:
        store = FolderSnapshotStore(config.state.folder, topic_ids(settings))
    else:
        from rejex_connectors.kafka.topic_snapshots import KafkaSnapshots

        store = KafkaSnapshots(settings, sink)
        source.is_decided = store.is_decided  # a partition waits for its state, and for no other
    is_decided = source.is_decided

    def is_decided_and_only_one(partition: Partition) -> bool:
        """Refuse what came when the topic was given more partitions, see there."""
        count = max(inputs.partitions[partition.topic], partition.partition + 1)
        require_one_partition(config, {**inputs.partitions, partition.topic: count})
        return is_decided(partition)

    source.is_decided = is_decided_and_only_one
    return Edges(source, sink, sealed(store), decoder, KafkaControl(settings))


def budget_of_groups(config: Config) -> str | None:
    """Return by which setting a budget that is held belongs to more than one sensor's records."""
    policy, source = config.rejection.policy(), config.input
    if policy.burst is None or policy.owner == "partition":
        return None
    if source.group is not None:
        return "input.group"
    # With a tag the group of a stream, sensor/tag, is its sensor.
    by_sensor = policy.owner == "stream" or (source.tag is not None and not source.mapping().joined)
    return None if by_sensor else 'rejection.review_budget.owner = "group"'


def require_one_partition(config: Config, partitions: Mapping[str, int]) -> None:
    """Refuse groups with a budget or siblings that may lie in several partitions of topics."""
    setting, count = budget_of_groups(config), sum(partitions.values())
    if config.input.siblings and count > 1 and config.input.partitioning == "check":
        raise ConfigError(
            f"input.siblings, and the input has {count} partitions: siblings in several are never "
            "compared. Name a new topic in input.topics and run `rejex-stream topics rekey CONFIG "
            f"--from {next(iter(partitions))}`, which lays siblings in one; where they are in one, "
            'say so by input.partitioning = "trust".'
        )
    if setting is not None and count > 1 and config.input.partitioning == "check":
        sizes = ", ".join(f"{topic} {n}" for topic, n in partitions.items())
        raise ConfigError(
            f"{setting} with a review budget that is held, and the input has {count} partitions "
            f"({sizes}): a group whose sensors lie in several would have a budget in each. Key the "
            'records by group and say so by input.partitioning = "trust"; or give each partition '
            'one (rejection.review_budget.owner = "partition"); or have the rate expected, and '
            'not held (rejection.review_budget.burst = "none").'
        )


def require_own_topics(settings: KafkaSettings) -> None:
    from rejex_connectors.kafka.topic_admin import other_pipelines

    roles = {settings.topics.verdicts: "verdicts", settings.topics.review: "review"}
    for topic, other in other_pipelines(settings, tuple(roles)).items():
        raise ConfigError(
            f"topic {topic!r} holds what pipeline {printable(other)} wrote, this one is "
            f"{settings.pipeline!r}: give it a topic of its own as output.{roles[topic]}, or "
            f'pipeline.name = "{other}" if it is the same.'
        )


def sealing(config: Config) -> Callable[[SnapshotStore], SealedStore]:
    """Read the key, and return what puts a store under it."""
    path = config.state.seal_key_file
    return partial(SealedStore, key=None if path is None else read_key(path))
