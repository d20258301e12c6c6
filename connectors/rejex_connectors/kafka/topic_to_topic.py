"""Dead letters, and a topic without keys copied to one whose keys say who measured."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from threading import Event
from typing import NamedTuple

from kafka.partitioner.default import murmur2

from rejex_connectors.kafka import partition_reader
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.messages import split_headers
from rejex_connectors.kafka.topic_admin import TopicPlan, create_topics, topic_settings
from rejex_connectors.kafka.transactional_writer import TransactionalWriter
from rejex_stream.encode.schemas import CONNECT_PREFIX
from rejex_stream.errors import ConfigError
from rejex_stream.types import Partition, Position, Record, UnreadRecord


class DeadLetter(NamedTuple):
    """A record that could not be read, and why."""

    original: Record  # as it came; a value too large to keep is cut short
    stage: str  # where reading it failed
    reason: str


def list_dead_letters(
    settings: KafkaSettings, *, newest: int | None = None
) -> Iterator[DeadLetter]:
    """Yield dead letters, partition by partition, oldest first; about the `newest` so many."""
    partitions = partition_reader.partitions_of(settings, settings.topics.deadletter)
    ends = {} if newest is None else partition_reader.bounds_of(settings, partitions)
    share = None if newest is None else -(-newest // max(1, len(partitions)))
    for partition in partitions:
        first = 0 if share is None else max(0, ends[partition][1] - share)
        for record in partition_reader.read_partition(settings, partition, first):
            yield _letter(record)


def _letter(record: Record) -> DeadLetter:
    """Take a dead letter apart; works for those of Kafka Connect as well."""
    headers = split_headers(record.headers)
    fields = {
        name.removeprefix(CONNECT_PREFIX): (value or b"").decode("utf-8", "replace")
        for name, value in headers.ours.items()
    }
    try:
        partition, offset = (int(fields[n]) for n in ("partition", "offset"))
        position = Position(fields["topic"], partition, offset, int(fields.get("index", 0)))
    except (KeyError, ValueError):
        position = record.position
    return DeadLetter(
        original=Record(
            position,
            record.key,
            record.value if headers.has_value else None,
            tuple(headers.original),
            record.timestamp_ms,
        ),
        stage=fields.get("stage", "unknown"),
        reason=fields.get("exception.message", "no reason given"),
    )


# ---------------------------------------------------------------------- keys
_BATCH = 2_000
_AGAIN_S = 0.5
_KEPT = ("retention.ms", "retention.bytes", "max.message.bytes", "cleanup.policy")
"""What the copy has of the original: what is there still must not expire on arrival."""


@dataclass(slots=True)
class Rekeyed:
    """How many records were copied, of them without a sensor, and left behind."""

    copied: int = 0  # all that were copied
    # of them those of which nobody could say who measured: they are without a key, as before
    nameless: int = 0
    left_behind: int = 0  # not copied: nothing is in them, or the library cannot read them


def rekey(
    settings: KafkaSettings,
    source: str,
    target: str,
    sensor_of: Callable[[Record], str | None],
    group_of: Callable[[str], str | None],
    *,
    follow: bool = False,
    keep_keys: bool = False,
    stop: Event | None = None,
    on_progress: Callable[[int], object] = lambda _: None,
) -> Rekeyed:
    """Copy a topic to one keyed by sensor, each record once; goes on where it was stopped.

    Sensors of one group (`group_of`; ``None``: of none) lie in one partition.

    Records keep value, headers and time; those of different partitions are merged by time, so that
    a sensor's records come in the order in which they were written, as far as times tell. How far
    it has come is committed in the group ``<group>-rekey-<target>``, in the transaction that
    writes. The target is made if it is not there, with the partitions of the source. With
    `keep_keys` a key stays as it is, where it says more than the sensor.
    """
    stop = stop or Event()
    partitions = partition_reader.partitions_of(settings, source)
    if not partitions:
        raise ConfigError(
            f"topic {source!r} does not exist on {settings.bootstrap_servers}: name the topic "
            "that has no keys."
        )
    if source == target:
        raise ConfigError(f"{target!r} cannot be copied to itself: name another topic.")
    n_target = len(_target(settings, source, target, len(partitions)))
    group = f"{settings.group}-rekey-{target}"
    # The writer first: taking its name settles what a dead predecessor left open.
    writer = TransactionalWriter(settings, f"rekey-{target}", f"copying {source} to {target}")
    try:
        at = partition_reader.committed_offsets(settings.replace(group=group), partitions)
        if not at:
            _require_empty(settings, target)
        done = Rekeyed()
        keyed = partial(
            _keyed, target=target, n=n_target, sensor_of=sensor_of, done=done,
            group_of=group_of, keep_key=keep_keys,
        )  # fmt: skip
        while True:
            records = _merged(settings, partitions, at)
            while batch := list(islice(records, _BATCH)):
                at |= {Partition(*r.position[:2]): r.position.offset + 1 for r in batch}
                writer.write([record for record in map(keyed, batch) if record is not None], at)
                on_progress(done.copied)
                if stop.is_set():
                    return done
            if not follow or stop.wait(_AGAIN_S):
                return done
    finally:
        writer.close()


def key_partition(key: bytes, n: int) -> int:
    """Return the partition that Kafka's own producers choose for a key."""
    return int(murmur2(key) & 0x7FFFFFFF) % n


def _target(
    settings: KafkaSettings, source: str, target: str, n_partitions: int
) -> list[Partition]:
    partitions = partition_reader.partitions_of(settings, target)
    if partitions:
        return partitions
    with partition_reader.asking(settings, f"looking at {source}") as client:
        described = client.describe_topics([source])[0]
        config_of_source = topic_settings(client, [source])[source]
    replication = len(described["partitions"][0]["replica_nodes"])
    config = {name: config_of_source[name] for name in _KEPT if name in config_of_source}
    plan = TopicPlan(
        name=target, role="input", partitions=n_partitions, replication=replication, config=config
    )
    create_topics(settings, [plan])
    return [Partition(target, number) for number in range(n_partitions)]


def _require_empty(settings: KafkaSettings, target: str) -> None:
    bounds = partition_reader.bounds_of(settings, partition_reader.partitions_of(settings, target))
    held = sum(end - first for first, end in bounds.values())
    if held:
        raise ConfigError(
            f"topic {target!r} holds {held:,} records, and nobody knows how many of them were "
            "copied: name a topic that is empty or not there yet, as input.topics."
        )


def _merged(
    settings: KafkaSettings, partitions: list[Partition], at: dict[Partition, int]
) -> Iterator[Record]:
    """Yield what is there, by time; in one partition in its order, whatever its times are."""
    bounds = partition_reader.bounds_of(settings, partitions)
    ready = [p for p in partitions if at.get(p, 0) < bounds[p][1]]
    feeds = [partition_reader.read_partition(settings, p, at.get(p), bounds[p][1]) for p in ready]
    return heapq.merge(*feeds, key=lambda record: record.timestamp_ms or 0)


def _keyed(
    record: Record, *, target: str, n: int, sensor_of: Callable[[Record], str | None],
    done: Rekeyed, group_of: Callable[[str], str | None], keep_key: bool,
) -> Record | None:  # fmt: skip
    sensor = None if isinstance(record, UnreadRecord) else sensor_of(record)
    key = record.key if sensor is None else sensor.encode()
    if isinstance(record, UnreadRecord) or (key is None and record.value is None):
        done.left_behind += 1
        return None
    done.copied += 1
    done.nameless += sensor is None
    group = None if sensor is None else group_of(sensor)
    by = key if group is None else group.encode()
    to = record.position.partition % n if by is None else key_partition(by, n)
    key = record.key if keep_key else key
    return record._replace(position=Position(target, to, 0), key=key)
