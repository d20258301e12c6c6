"""What people say, on Spark: it holds from the end of a micro-batch, and is durable with that."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rejex_stream.config import Config
from rejex_stream.config.assembly import file_places, kafka_settings
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.protocols import Heard
from rejex_stream.run.decided import Decisions
from rejex_stream.types import Partition

if TYPE_CHECKING:
    from rejex_connectors.kafka.clients import Message
    from rejex_connectors.kafka.settings import KafkaSettings
    from rejex_connectors.snapshots import FolderSnapshotStore

__all__ = ["Told"]


@dataclass(frozen=True)
class Told:
    """Hears commands where a worker does, and keeps what was decided where a worker does.

    Who writes a micro-batch decides at its end (:meth:`at_commit`), durable with the offsets; who
    judges the next one finds it there (:meth:`kept`). So does whoever judges one again, by what
    holds from after it at most. Travels to executors.

    Attributes
    ----------
    inputs
        Topics of the input: incidents of others are nobody's.
    folder, control
        Of files: the state folder and the control log.
    settings, state_partitions
        Of topics: where they are, and how many partitions the state topic has.
    """

    inputs: tuple[str, ...]
    folder: Path | None = None
    control: Path | None = None
    settings: KafkaSettings | None = None
    state_partitions: int = 0

    @classmethod
    def of(cls, config: Config) -> Told:
        """Return who hears what is said to a pipeline.

        Raises
        ------
        ConfigError
            If it keeps nothing that could hold decisions.
        ConnectorError
            If there is no state topic or control topic, or the broker does not answer.
        """
        if config.input.kind == "file":
            places = file_places(config)
            assert places.state is not None  # refused before
            assert places.control is not None
            name = Path(config.input.path or "").name
            return cls((name,), places.state.absolute(), places.control.absolute())
        from rejex_connectors.kafka.reading import partitions_of

        settings = kafka_settings(config)
        if settings.topics.state is None:
            raise ConfigError(
                "state.folder is set, and on Spark what people said of topics is kept in a topic: "
                "leave it out, and give --checkpoint."
            )
        state, control = (
            len(partitions_of(settings, name))
            for name in (settings.topics.state, settings.topics.control)
        )
        if not state or not control:
            missing = settings.topics.control if state else settings.topics.state
            raise ConnectorError(f"there is no topic {missing}: call `rejex-stream topics create`")
        return cls(settings.topics.input, settings=settings, state_partitions=state)

    def kept(self, partition: Partition) -> bytes | None:
        """Return what was decided when the partition was last committed.

        Raises
        ------
        CheckpointError, ConnectorError
            If it is damaged, or cannot be read.
        """
        with closing(self._store(_Pieces(self.state_partitions))) as store:
            return store.load_decisions(partition)

    def at_commit(self, partition: Partition, next_offset: int) -> Sequence[Message]:
        """Decide what was said since the last commit: it holds from the offset of this one.

        Returns
        -------
        Sequence[Message]
            What is to be written in its transaction; nothing for files, whose decisions are kept
            before it, and mean nothing without it.

        Raises
        ------
        CheckpointError, ConnectorError
            If the control log, or what was decided before, cannot be read.
        """
        pieces = _Pieces(self.state_partitions)
        with closing(self._store(pieces)) as store:
            decisions = Decisions(partition, store.load_decisions(partition), self.inputs)
            decisions.hear(self._heard(decisions.next_heard))
            if decisions.waiting:
                decisions.decide(next_offset)
                store.save_decisions(partition, decisions.encoded(decisions.schemas))
        return pieces.messages

    def _store(self, pieces: _Pieces) -> FolderSnapshotStore:
        from rejex_connectors.kafka.snapshots import KafkaSnapshots
        from rejex_connectors.snapshots import FolderSnapshotStore

        if self.settings is None:
            return FolderSnapshotStore(cast("Path", self.folder))
        return KafkaSnapshots(self.settings, pieces)  # type: ignore[arg-type, return-value]

    def _heard(self, start: int) -> Heard:
        if self.settings is None:
            from rejex_connectors.files import FileControl

            return FileControl(cast("Path", self.control), self.inputs).read(start)
        from rejex_connectors.kafka.reading import read_partition

        log = Partition(self.settings.topics.control, 0)
        said = list(read_partition(self.settings, log, start))
        return Heard(said, said[-1].position.offset + 1 if said else start)


class _Pieces:
    """In the place of a sink: holds what is to be written with the next commit."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self.messages: list[Message] = []

    def partitions(self, topic: str) -> int:
        return self._partitions

    def keep(self, partition: Partition, messages: list[Message]) -> None:
        self.messages += messages
