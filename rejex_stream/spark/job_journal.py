"""What people say and are told, on Spark: settled at the end of a micro-batch, durable with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rejex_connectors.files import FileControl
from rejex_connectors.folder_snapshots import FolderSnapshotStore
from rejex_connectors.kafka.clients import Message
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.spark.sink import Written

from rejex_stream.config import Config
from rejex_stream.config.assembly import file_places, kafka_settings
from rejex_stream.encode import decode_incidents
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.protocols import ControlRecords
from rejex_stream.run.command_journal import CommandJournal
from rejex_stream.types import Incident, Partition

if TYPE_CHECKING:
    from rejex_connectors.kafka.topic_snapshots import KafkaSnapshots


@dataclass(frozen=True)
class JobJournal:
    """Reads commands, and stores what was decided and what is pending, where a worker does.

    Who writes a micro-batch decides at its end (:meth:`at_commit`), durable with the offsets; who
    judges the next one finds it there (:meth:`decided`). So does whoever judges one again, by what
    holds from after it at most. Travels to executors.
    """

    inputs: tuple[str, ...]  # topics of the input: incidents of others are nobody's
    folder: Path | None = None  # folder, control: of files: the state folder and the control log
    control: Path | None = None
    # settings, state_partitions: of topics: where they are, and how many partitions the state topic
    # has
    settings: KafkaSettings | None = None
    state_partitions: int = 0
    listens: bool = True  # whether to read commands

    @classmethod
    def of(cls, config: Config, *, listens: bool = True) -> JobJournal:
        """Return the command reader and outbox of a pipeline."""
        if config.input.kind == "file":
            places = file_places(config)
            assert places.state is not None  # refused before
            assert places.control is not None
            name = Path(config.input.path or "").name
            return cls((name,), places.state.absolute(), places.control.absolute(), listens=listens)
        from rejex_connectors.kafka.partition_reader import partitions_of

        settings = kafka_settings(config)
        if settings.topics.state is None:
            raise ConfigError(
                "state.folder is set, and on Spark what people said of topics, and what the "
                "webhook is still to be told, is kept in a topic: leave it out, and give "
                "--checkpoint."
            )
        state = len(partitions_of(settings, settings.topics.state))
        control = not listens or partitions_of(settings, settings.topics.control)
        if not state or not control:
            missing = settings.topics.control if state else settings.topics.state
            raise ConnectorError(f"there is no topic {missing}: call `rejex-stream topics create`")
        inputs = settings.topics.input
        return cls(inputs, settings=settings, state_partitions=state, listens=listens)

    def decided(self, partition: Partition) -> bytes | None:
        """Return what was decided when the partition was last committed."""
        with closing(self._store()[0]) as store:
            return store.load_journal(partition)

    def pending(self, partition: Partition, committed: int) -> Sequence[Incident]:
        """Return the changes of incidents that are durable, and of which nobody was told."""
        outbox = CommandJournal(partition, self.decided(partition), self.inputs).outbox
        # Those behind it were recorded for a commit that did not come to be.
        return [change for change in outbox if change.position.offset < committed]

    def at_commit(
        self,
        partition: Partition,
        next_offset: int,
        *,
        decides: bool = True,
        pending: Sequence[Incident] | None = None,
    ) -> Sequence[Message]:
        """Decide what was said since the last commit: it holds from the offset of this one."""
        decides = decides and self.listens
        if not decides and pending is None:
            return ()
        opened, messages = self._store()
        with closing(opened) as store:
            journal = CommandJournal(partition, store.load_journal(partition), self.inputs)
            if decides and not journal.ingest(self._commands_from(journal.next_command)):
                journal.ingest(self._commands_from(0))
            decides = decides and journal.can_assign
            if decides:
                journal.assign_offset(next_offset)
            if pending is not None:
                journal.set_outbox(pending)
            if decides or pending is not None:
                store.save_journal(partition, journal.encoded(journal.schemas))
        return messages

    def _store(self) -> tuple[FolderSnapshotStore | KafkaSnapshots, list[Message]]:
        """Open where decisions are kept, and what to write for them with the next commit."""
        if self.settings is None:
            return FolderSnapshotStore(cast("Path", self.folder)), []
        from rejex_connectors.kafka.topic_snapshots import BufferingSink, KafkaSnapshots

        pending = BufferingSink(self.state_partitions)
        return KafkaSnapshots(self.settings, pending), pending.messages

    def _commands_from(self, start: int) -> ControlRecords:
        if self.settings is None:
            return FileControl(cast("Path", self.control), self.inputs).read(start)
        from rejex_connectors.kafka.partition_reader import read_partition, topic_ids

        log = Partition(self.settings.topics.control, 0)
        commands = list(read_partition(self.settings, log, start))
        next_offset = commands[-1].position.offset + 1 if commands else start
        return ControlRecords(commands, next_offset, topic_ids(self.settings)(log))


@dataclass(frozen=True)
class AtCommit:
    """What is decided and recorded at the commits of one micro-batch; travels to executors."""

    journal: JobJournal | None  # who decides and records; ``None``: nobody does
    # where each partition stood when the job took it over, or after its last micro-batch: of what
    # is before, the record speaks already
    at: Mapping[Partition, int]
    # what nobody had taken when the micro-batch began; ``None``: nobody is told
    left: Mapping[Partition, Sequence[Incident]] | None
    kept: Mapping[Partition, Sequence[Incident]]  # what the record lists

    def __call__(
        self, partition: Partition, next_offset: int, incidents: Sequence[Written], last: bool
    ) -> Sequence[Message]:
        """Return what is to be written with a commit; see :meth:`JobJournal.at_commit`."""
        if self.journal is None:
            return ()
        pending = self.pending(partition, incidents)
        if pending == [*self.kept.get(partition, ())]:
            pending = None
        return self.journal.at_commit(partition, next_offset, decides=last, pending=pending)

    def pending(self, partition: Partition, incidents: Sequence[Written]) -> list[Incident] | None:
        """Return what is pending once these are durable.

        That are all of the micro-batch, also those that another try of the task has committed: it
        is told of as a whole.
        """
        if self.left is None:
            return None
        at = self.at.get(partition, 0)
        coming = changes_in(one.value for one in incidents if one.offset >= at)
        return [*self.left.get(partition, ()), *coming]


def changes_in(lines: Iterable[bytes]) -> list[Incident]:
    """Return the changes of incidents among what was written of incidents; the rest is replies."""
    records = (decode_incidents(line) for line in lines)
    return [change for change in records if isinstance(change, Incident)]
