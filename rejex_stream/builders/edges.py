"""From a config to open inputs, outputs and snapshot stores."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from rejex_stream.builders.kafka import kafka_decoder, kafka_settings
from rejex_stream.config.model import Config
from rejex_stream.decode import CsvDecoder, Decoder, JsonDecoder, parse_csv_header
from rejex_stream.dryrun import NothingSink
from rejex_stream.errors import ConfigError
from rejex_stream.mapping import FieldMapping, printable
from rejex_stream.protocols import Assigned, Sink, SnapshotStore, Source
from rejex_stream.types import Invalid, Reading, Record

if TYPE_CHECKING:
    from rejex_connectors.files import FileSource

__all__ = [
    "Edges",
    "FilePlaces",
    "file_decoder",
    "file_format",
    "file_places",
    "open_edges",
    "open_source",
    "records_of",
]


@dataclass(frozen=True, slots=True)
class Edges:
    """Where a run reads, writes and keeps its state."""

    source: Source
    sink: Sink
    store: SnapshotStore | None
    decoder: Decoder

    @property
    def fraction(self) -> float | None:
        """Share of the input that was read; ``None`` where there is no end to it."""
        return getattr(self.source, "fraction", None)


def open_edges(config: Config, *, dry_run: bool = False) -> Edges:
    """Open input, output and snapshots.

    Parameters
    ----------
    dry_run
        Read only: a sink that keeps nothing, no snapshots, and on Kafka a group of its own.

    Raises
    ------
    ConnectorError
        If the file or the broker cannot be reached.
    """
    if config.input.kind == "kafka":
        return _kafka_edges(config, dry_run=dry_run)
    return _file_edges(config, dry_run=dry_run)


class FilePlaces(NamedTuple):
    """Where a pipeline over a file writes and keeps its state; ``-`` is standard output."""

    verdicts: str
    review: str
    deadletter: str
    state: Path | None


def file_places(config: Config) -> FilePlaces:
    """Return the outputs of a pipeline over a file, defaults filled in.

    Raises
    ------
    ConfigError
        If two outputs share a path, or standard input or output is to be resumed.
    """
    output, state = config.output, config.state
    verdicts = output.verdicts or "verdicts.jsonl"
    beside = Path() if verdicts == "-" else Path(verdicts).parent
    review = output.review or str(beside / "review.jsonl")
    deadletter = output.deadletter or str(beside / "deadletter.jsonl")
    paths = {"verdicts": verdicts, "review": review, "deadletter": deadletter}
    for role, path in paths.items():
        for other, its in paths.items():
            if role < other and Path(path).absolute() == Path(its).absolute():
                raise ConfigError(
                    f"{other} and {role} are both {printable(path)}: give each its own file."
                )
    passing = config.input.path == "-" or "-" in paths.values()
    if passing and state.folder is not None:
        raise ConfigError(
            "standard input and output cannot be taken back, so there is no state to keep: leave "
            "state.folder out, or use files."
        )
    folder: Path | None = None
    if state.resume and not passing:
        folder = Path(state.folder or beside / f".rejex-{config.pipeline.name}")
    return FilePlaces(verdicts, review, deadletter, folder)


def file_format(config: Config) -> tuple[Literal["csv", "jsonl"], str]:
    """Return the format of the input file and the delimiter of its columns.

    Raises
    ------
    ConfigError
        If the format is not given and the file's name does not tell.
    """
    source = config.input
    suffixes = [suffix.lower() for suffix in Path(source.path or "").suffixes]
    ending = next((suffix for suffix in reversed(suffixes) if suffix != ".gz"), "")
    delimiter = source.delimiter or ("\t" if ending == ".tsv" else ",")
    if source.format in ("csv", "jsonl"):
        return source.format, delimiter
    if ending in (".csv", ".tsv", ".txt"):
        return "csv", delimiter
    if ending in (".jsonl", ".ndjson", ".json"):
        return "jsonl", delimiter
    raise ConfigError(
        f"the name {printable(source.path)} does not tell its format: give input.format, csv or "
        "jsonl."
    )


def open_source(config: Config, state: Path | None = None) -> FileSource:
    """Open the input file of a config.

    Raises
    ------
    ConnectorError
        If it cannot be opened.
    """
    from rejex_connectors.files import FileSource

    source = config.input
    assert source.path is not None
    kind, delimiter = file_format(config)
    return FileSource(
        source.path,
        format=kind,
        delimiter=delimiter,
        follow=source.follow,
        state_dir=state,
        sample_interval_ms=source.sample_interval_ms,
    )


def file_decoder(config: Config, source: FileSource) -> Decoder:
    """Return what makes readings of the records of a file."""
    mapping = config.input.mapping()
    kind, delimiter = file_format(config)
    if kind == "jsonl":
        return JsonDecoder(mapping)
    if config.input.follow:
        return _LateCsvDecoder(mapping, source, delimiter)
    return CsvDecoder(mapping, parse_csv_header(source.header, delimiter), delimiter)


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
        self._decoder: CsvDecoder | None = None

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels."""
        return self._mapping.channel_names

    def decode(self, record: Record) -> Reading | Invalid:
        """Decode one row."""
        if self._decoder is None:
            header = parse_csv_header(self._source.header, self._delimiter)
            self._decoder = CsvDecoder(self._mapping, header, self._delimiter)
        return self._decoder.decode(record)


def _file_edges(config: Config, *, dry_run: bool) -> Edges:
    from rejex_connectors.files import FileSink
    from rejex_connectors.snapshots import FolderSnapshotStore

    places = file_places(config)
    if dry_run:
        source = open_source(config)
        return Edges(source, NothingSink(), None, file_decoder(config, source))
    with ExitStack() as exits:
        # The sink first: it claims the state folder, which the source then reads.
        sink = FileSink(
            verdicts=places.verdicts,
            review=places.review,
            deadletter=places.deadletter,
            state_dir=places.state,
        )
        exits.callback(sink.close)
        source = open_source(config, places.state)
        exits.callback(source.close)
        decoder = file_decoder(config, source)
        store = None if places.state is None else FolderSnapshotStore(places.state)
        exits.pop_all()
    return Edges(source, sink, store, decoder)


def _kafka_edges(config: Config, *, dry_run: bool) -> Edges:
    from rejex_connectors.kafka import KafkaSource, connect
    from rejex_connectors.kafka_client import open_clients

    settings = kafka_settings(config)
    decoder = kafka_decoder(config)
    if dry_run:
        name = f"dry-run-{uuid.uuid4().hex[:8]}"
        settings = dataclasses.replace(settings, group=f"{settings.group}-{name}", instance_id=None)
        open_consumer, _ = open_clients(settings, name)
        return Edges(KafkaSource(open_consumer(), settings), NothingSink(), None, decoder)
    source, sink = connect(settings)
    store: SnapshotStore
    if config.state.folder is not None:
        from rejex_connectors.snapshots import FolderSnapshotStore

        store = FolderSnapshotStore(config.state.folder)
    else:
        from rejex_connectors.kafka_snapshots import KafkaSnapshots

        store = KafkaSnapshots(settings, sink)
    return Edges(source, sink, store, decoder)
