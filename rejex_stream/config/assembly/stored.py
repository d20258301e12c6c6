"""From a config to what its pipeline has stored, while nothing of it runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rejex_connectors.files.sink import (
    CommitState,
    InputState,
    lock_folder,
    read_commit,
    read_input,
)
from rejex_connectors.folder_snapshots import FolderSnapshotStore
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.signed_snapshots import SealedStore

from rejex_stream.config.assembly.edges import file_places, kafka_settings, sealing
from rejex_stream.config.pipeline_config import Config
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.protocols import SnapshotStore
from rejex_stream.types import Partition

__all__ = ["NothingStoredError", "Stored", "stored"]


class NothingStoredError(ConnectorError):
    """Of this pipeline nothing was stored yet."""


class _Store(SnapshotStore, Protocol):
    def drop(self, partition: Partition, *, schemas: bool) -> None:
        """Remove the snapshots of a partition, and where asked what was decided about schemas."""


@dataclass(frozen=True)
class Stored:
    """What a pipeline has stored, of each partition of its input."""

    partitions: Sequence[Partition]
    store: SealedStore
    raw: _Store
    """The snapshots as they lie there, sealed or damaged; `store` opens them as a run does."""
    places: _FilePlaces | _KafkaPlaces
    where: str


def stored(config: Config, *, to_change: bool = False) -> AbstractContextManager[Stored]:
    """Open what is stored; `to_change` it, nothing else may run."""
    opened = _of_kafka if config.input.kind == "kafka" else _of_files
    return opened(config, to_change=to_change)


@contextmanager
def _of_files(config: Config, *, to_change: bool) -> Iterator[Stored]:
    folder = file_places(config).state
    if folder is None:
        raise ConfigError(
            "this pipeline keeps no state: it reads or writes a pipe, or state.resume is false."
        )
    lock = lock_folder(folder) if to_change else None
    try:
        _require(folder)
        raw = FolderSnapshotStore(folder)
        only = Partition(Path(config.input.path or "").name, 0)
        yield Stored([only], sealing(config)(raw), raw, _FilePlaces(config, folder), str(folder))
    finally:
        if lock is not None:
            os.close(lock)


@contextmanager
def _of_kafka(config: Config, *, to_change: bool) -> Iterator[Stored]:
    from rejex_connectors.kafka.partition_reader import partitions_of
    from rejex_connectors.kafka.topic_snapshots import BufferingSink, KafkaSnapshots, OfflineSink

    settings = kafka_settings(config)
    every = [p for topic in settings.topics.input for p in partitions_of(settings, topic)]
    sink = OfflineSink(settings) if to_change else None
    raw: _Store
    if config.state.folder is not None:
        where = config.state.folder
        if sink is None:
            _require(Path(where))
        raw = FolderSnapshotStore(where)
    else:
        where = f"topic {settings.topics.state}"
        if sink is None:
            there = len(partitions_of(settings, settings.topics.state or ""))
            if not there:
                raise NothingStoredError(f"there is no {where} yet: nothing is stored")
            raw = KafkaSnapshots(settings, BufferingSink(there))
        else:
            raw = KafkaSnapshots(settings, sink)
    with closing(raw):
        yield Stored(every, sealing(config)(raw), raw, _KafkaPlaces(settings, every), where)


def _require(folder: Path) -> None:
    if not folder.is_dir():
        raise NothingStoredError(f"there is no state folder {folder} yet: nothing is stored")


class _FilePlaces:
    def __init__(self, config: Config, folder: Path) -> None:
        self._places, self._folder = file_places(config), folder

    def committed(self) -> dict[Partition, int]:
        return dict(read_commit(self._folder).next_offsets)

    def earliest(self, partition: Partition) -> int:
        state = read_input(self._folder, partition.topic)
        return 0 if state is None else state.first_offset

    def input_is(self, partition: Partition) -> dict[str, Any] | None:
        state = read_input(self._folder, partition.topic)
        if state is None:
            return None
        return {"beginning": state.beginning, "first_offset": state.first_offset}

    def begin_at(
        self, partition: Partition, offset: int, input_is: Mapping[str, Any] | None
    ) -> None:
        """Commit an offset for a partition that has none; outputs go on after what they hold."""
        if input_is is not None:
            InputState(topic=partition.topic, **input_is).write(self._folder)
        lengths = {
            role: (os.path.abspath(path), os.path.getsize(path) if os.path.exists(path) else 0)
            for role, path in self._places.outputs.items()
        }
        CommitState({partition: offset}, lengths).write(self._folder)


class _KafkaPlaces:
    def __init__(self, settings: KafkaSettings, partitions: Sequence[Partition]) -> None:
        self._settings, self._partitions = settings, partitions

    def committed(self) -> dict[Partition, int]:
        from rejex_connectors.kafka.partition_reader import committed_offsets

        return committed_offsets(self._settings, self._partitions)

    def earliest(self, partition: Partition) -> int:
        from rejex_connectors.kafka.partition_reader import bounds_of

        return bounds_of(self._settings, [partition])[partition][0]

    def input_is(self, partition: Partition) -> None:
        return None

    def begin_at(
        self, partition: Partition, offset: int, input_is: Mapping[str, Any] | None
    ) -> None:
        from rejex_connectors.kafka.topic_snapshots import OfflineSink

        OfflineSink(self._settings).commit({partition: offset})
