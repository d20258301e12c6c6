"""Telling a running pipeline: the one way to make a command, and to put it into the control log."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from rejex_connectors.files.source import append_line

from rejex_stream.config.assembly.edges import file_places, kafka_settings
from rejex_stream.config.pipeline_config import Config
from rejex_stream.encode import (
    Answered,
    decode_command,
    decode_dead_letter,
    decode_incidents,
    encode_command,
)
from rejex_stream.encode.schemas import COMMAND_TYPE
from rejex_stream.errors import ConfigError, ConnectorError, explaining_os_errors
from rejex_stream.types import Command, CommandKind, CommandReply, Incident, Partition, Position

if TYPE_CHECKING:
    from rejex_connectors.kafka.kafka_settings import KafkaSettings

__all__ = [
    "ControlLine", "Published", "incidents_in", "lines_of", "make_command", "published_lines",
    "unread_and_bounds",
]  # fmt: skip

Published: TypeAlias = Literal["verdicts", "review", "incidents"]


def make_command(
    kind: CommandKind,
    *,
    by: str,
    given_ms: int,
    note: str = "",
    id_: str | None = None,
    **fields: Any,  # noqa: ANN401 - as in Command
) -> Command:
    """Return a command that can be read; one `id_` given twice is applied once."""
    command = Command(
        id=id_ or f"c-{uuid.uuid4().hex[:12]}",
        kind=kind,
        by=by,
        note=note,
        given_ms=given_ms,
        **fields,
    )
    try:
        return decode_command(encode_command(command))
    except ConnectorError as error:
        raise ConfigError(f"{error}.") from None


class ControlLine:
    """Both ends of a pipeline's control: where commands go, and where replies come from."""

    def __init__(self, config: Config) -> None:
        self._kafka = kafka_settings(config) if config.input.kind == "kafka" else None
        places = None if self._kafka else file_places(config)
        if places is not None and (places.control is None or places.incidents == "-"):
            raise ConfigError(
                "this pipeline reads or writes standard streams and hears no commands: name "
                "input.control, and output.incidents a file."
            )
        self._control = Path() if places is None else cast("Path", places.control)
        self._incidents = Path() if places is None else Path(places.incidents)

    def publish(self, *commands: Command) -> None:
        """Make commands durable in the control log, in this order."""
        if self._kafka is None:
            for command in commands:
                append_line(self._control, encode_command(command))
            return
        from rejex_connectors.kafka.clients import Message
        from rejex_connectors.kafka.messages import EventHeaders
        from rejex_connectors.kafka.sink import open_clients

        settings = self._kafka.replace(delivery="at_least_once")
        made = EventHeaders(COMMAND_TYPE, settings.pipeline, settings.pipeline_version)
        topic = settings.topics.control
        messages = [
            Message(
                topic,
                0,
                None if command.stream_key is None else command.stream_key.encode(),
                encode_command(command),
                made.named(command.id, command.stream_key or ""),
            )
            for command in commands
        ]
        _, open_producer = open_clients(settings, "control")
        producer = open_producer()
        try:
            producer.partitions(topic)
            producer.publish(messages, {}, cast("Any", None))  # nothing is consumed with it
        finally:
            producer.close()

    def commands(self) -> list[Command]:
        """Return the commands that stand in the log; what is none is passed over."""
        commands = []
        for line in self._lines("control", None):
            try:
                commands.append(decode_command(line))
            except ConnectorError:
                continue  # whoever obeys says what is wrong with it
        return commands

    def incidents(self) -> dict[str, Incident]:
        return incidents_in(self._lines("incidents", None))

    def replies(self, since: Any = None) -> dict[str, list[CommandReply]]:  # noqa: ANN401
        replies: dict[str, list[CommandReply]] = {}
        for item in _incident_records(self._lines("incidents", since)):
            if not isinstance(item, Incident):
                replies.setdefault(item[1].command, []).append(item[1])
        return replies

    def mark(self) -> Any:  # noqa: ANN401 - of either kind
        if self._kafka is None:
            return self._incidents.stat().st_size if self._incidents.exists() else 0
        from rejex_connectors.kafka.partition_reader import bounds_of, partitions_of

        there = partitions_of(self._kafka, self._kafka.topics.incidents)
        return {partition: end for partition, (_, end) in bounds_of(self._kafka, there).items()}

    def _lines(self, role: str, since: Any) -> Iterator[bytes]:  # noqa: ANN401
        if self._kafka is not None:
            return _of_topic(self._kafka, role, since)
        return lines_of(self._control if role == "control" else self._incidents, since)


def published_lines(config: Config, what: Published) -> Iterator[bytes]:
    if config.input.kind == "kafka":
        yield from _of_topic(kafka_settings(config), what, None)
        return
    path = file_places(config).outputs[what]
    if path == "-" or not Path(path).exists():
        raise ConfigError(f"there is no file with {what} of this pipeline ({path!r}): let it run.")
    yield from (line.rstrip(b"\n") for line in lines_of(Path(path)))


def unread_and_bounds(
    config: Config,
) -> tuple[set[Position], dict[Partition, tuple[int, int]] | None]:
    """Return the positions of dead letters, and where the input's partitions begin and end.

    Of a file nobody knows the end: its one partition is the log's.
    """
    if config.input.kind != "kafka":
        letters = lines_of(Path(file_places(config).deadletter))
        return {decode_dead_letter(line)[0].position for line in letters}, {}
    from rejex_connectors.kafka.partition_reader import bounds_of, partitions_of
    from rejex_connectors.kafka.topic_to_topic import list_dead_letters

    settings = kafka_settings(config)
    places = [at for topic in settings.topics.input for at in partitions_of(settings, topic)]
    unread = {letter.original.position for letter in list_dead_letters(settings)}
    return unread, bounds_of(settings, places)


def incidents_in(lines: Iterable[bytes]) -> dict[str, Incident]:
    """Return incidents as they stand, by their ids, in the order in which they opened."""
    return {item.id: item for item in _incident_records(lines) if isinstance(item, Incident)}


def _incident_records(lines: Iterable[bytes]) -> Iterator[Answered]:
    for line in lines:
        with suppress(ConnectorError):  # none of ours
            yield decode_incidents(line)


def lines_of(path: Path, since: int | None = None) -> Iterator[bytes]:
    """Yield the whole lines of a file that was made only if there was something to write."""
    missing = suppress(FileNotFoundError)
    with explaining_os_errors(f"{path} cannot be read"), missing, path.open("rb") as file:
        file.seek(since or 0)
        yield from (line for line in file if line.endswith(b"\n"))


def _of_topic(settings: KafkaSettings, role: str, since: Any) -> Iterator[bytes]:  # noqa: ANN401
    from rejex_connectors.kafka.partition_reader import partitions_of, read_partition

    for partition in partitions_of(settings, getattr(settings.topics, role), needed=True):
        start = None if since is None else since[partition]
        for record in read_partition(settings, partition, start):
            yield record.value or b""
