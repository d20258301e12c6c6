"""Which topics the service needs, how they must be set up, and whether they are."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from kafka import KafkaAdminClient
from kafka import errors as ke
from kafka.admin import ConfigResource, ConfigResourceType

from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.messages import pipeline_of
from rejex_connectors.kafka.partition_reader import PartitionReader, asking, explain, explaining
from rejex_connectors.kafka.refusals import Right, transactional_right
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.types import Partition

DAY_MS = 86_400_000
_METADATA_WAIT_S = 5.0
_NEWEST = 4  # offsets at the end of a topic that may be markers of transactions
_LOOKED_AT = 200
"""Offsets at the end of an output, which may hold the verdicts of several input topics."""
_UNKNOWN = (
    ke.GroupIdNotFoundError,
    ke.TransactionalIdNotFoundError,
    # A new cluster has no coordinators before somebody asks for one.
    ke.CoordinatorLoadInProgressError,
    ke.CoordinatorNotAvailableError,
    ke.NotCoordinatorError,
)


@dataclass(frozen=True, kw_only=True)
class TopicPlan:
    """How one topic is meant to be."""

    name: str
    role: str  # ``input`` or the name of another field of :class:`~.kafka_settings.KafkaTopics`
    partitions: int  # not changed on a topic that exists, since that would move keys
    replication: int
    config: Mapping[str, str] = field(default_factory=dict)  # by Kafka's names


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The input topics as they are: nobody but their producers makes them."""

    partitions: Mapping[str, int]  # of each that is there; 0 where it may not be looked at
    missing: Mapping[str, str]  # of each that is not, what to say


Level: TypeAlias = Literal["ok", "warning", "error"]


class Finding(NamedTuple):
    """One thing that was looked at, and a sentence."""

    topic: str
    level: Level
    message: str


def plan_topics(
    settings: KafkaSettings, *, partitions: int = 8, replication: int = 1
) -> tuple[TopicPlan, ...]:
    """Say which topics are needed and how they should be set up.

    Outputs and state get the `partitions` of the input, so that what is beside each other stays so;
    control has one. `replication` is 3 in production.

    Examples
    --------
    >>> from rejex_connectors.kafka.kafka_settings import KafkaSettings
    >>> [plan.name for plan in plan_topics(KafkaSettings())]  # doctest: +NORMALIZE_WHITESPACE
    ['rejex.readings', 'rejex.verdicts', 'rejex.review', 'rejex.labels', 'rejex.deadletter',
     'rejex.incidents', 'rejex.control', 'rejex.state']
    """
    if partitions < 1 or replication < 1:
        raise ConfigError(
            f"partitions = {partitions}, replication = {replication}: both must be at least 1"
        )
    topics = settings.topics
    size = {"max.message.bytes": str(max(1_048_588, settings.max_message_bytes + 1024))}
    durable = {"min.insync.replicas": str(max(1, replication - 1))}
    month = {"cleanup.policy": "delete", "retention.ms": str(30 * DAY_MS), **size, **durable}
    week = {**month, "retention.ms": str(7 * DAY_MS)}
    for_ever = {**month, "retention.ms": "-1"}
    compacted = {
        "cleanup.policy": "compact",
        "segment.bytes": "67108864",  # the newest segment is never compacted: keep it small
        "min.cleanable.dirty.ratio": "0.2",
        **size,
        **durable,
    }
    wanted = [(name, "input", week) for name in topics.input]
    wanted += [
        (topics.verdicts, "verdicts", month),
        (topics.review, "review", month),
        (topics.labels, "labels", for_ever),
        (topics.deadletter, "deadletter", month),
        (topics.incidents, "incidents", for_ever),
        (topics.control, "control", for_ever),
    ]
    if topics.state is not None:
        wanted.append((topics.state, "state", compacted))
    return tuple(
        TopicPlan(
            name=name,
            role=role,
            partitions=1 if role == "control" else partitions,
            replication=replication,
            config=config,
        )
        for name, role, config in wanted
    )


def look_at_inputs(settings: KafkaSettings) -> Inputs:
    """Look whether the input topics are there, and how many partitions they have."""
    names = settings.topics.input
    with asking(settings, "looking at the input", operation="DESCRIBE") as client:
        described = describe(client, settings, names)
        known = [] if len(described) == len(names) else client.list_topics()
    return Inputs(
        partitions={name: len(topic["partitions"]) for name, topic in described.items()},
        missing={name: _not_there(name, known) for name in names if name not in described},
    )


def other_pipelines(settings: KafkaSettings, topics: Sequence[str]) -> dict[str, str]:
    """Return who wrote what output topics end with, for those where it was another pipeline.

    Left out as well where nobody did, where there is no topic, or where it may not be read: a
    worker need not have that right.
    """
    with closing(PartitionReader(settings)) as reader:
        others = {topic: _other_pipeline(settings, topic, reader) for topic in topics}
    return {topic: other for topic, other in others.items() if other is not None}


def _other_pipeline(settings: KafkaSettings, topic: str, reader: PartitionReader) -> str | None:
    try:
        bounds = reader.bounds(reader.partitions(topic))
        written = [partition for partition, (first, end) in bounds.items() if end > first]
        for partition in written[:1]:
            start = bounds[partition][1] - _NEWEST
            for record in reader.read(partition, max(0, start)):
                name = pipeline_of(record.headers)
                if name is not None and name != settings.pipeline:
                    return name
    except ConnectorError as error:
        if error.retriable:
            raise
    return None


def written_up_to(settings: KafkaSettings, partition: Partition) -> int:
    """Return the offset after the last of a partition whose verdict is in the output; 0: none is.

    Of this pipeline and its version, as the newest verdicts tell, and as far as they may be read.
    """
    topic, last = settings.topics.verdicts, -1
    begin, end = f"{partition}-", f"@{settings.pipeline_version}"
    try:
        with closing(PartitionReader(settings)) as reader:
            places = reader.partitions(topic)
            if not places:
                return 0
            where = places[partition.partition % len(places)]
            _, stop = reader.bounds([where])[where]
            for record in reader.read(where, max(0, stop - _LOOKED_AT)):
                id_ = (dict(record.headers).get("ce_id") or b"").decode("utf-8", "replace")
                if pipeline_of(record.headers) != settings.pipeline or not id_.endswith(end):
                    continue
                offset, _, _ = id_.removesuffix(end).removeprefix(begin).partition(".")
                if id_.startswith(begin) and offset.isdigit():
                    last = max(last, int(offset))
    except ConnectorError as error:
        if error.retriable:
            raise
    return last + 1


def _not_there(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, [t for t in known if not t.startswith("__")], n=1)
    hint = f", but {near[0]!r} does: fix input.topics" if near else ""
    otherwise = ": fix input.topics, or have its producer make it"
    return f"does not exist{hint or otherwise}"


def create_topics(
    settings: KafkaSettings, plans: Sequence[TopicPlan], *, dry_run: bool = False
) -> tuple[TopicPlan, ...]:
    """Create the topics that are missing; returns those (to be) created. Existing ones are left."""
    with asking(settings, "creating topics", operation="CREATE") as client:
        existing = set(client.list_topics())
        missing = tuple(plan for plan in plans if plan.name not in existing)
        if missing and not dry_run:
            client.create_topics(
                {
                    plan.name: {
                        "num_partitions": plan.partitions,
                        "replication_factor": plan.replication,
                        "configs": dict(plan.config),
                    }
                    for plan in missing
                }
            )
            _wait_for(client, {plan.name for plan in missing})
    return missing


def _wait_for(client: KafkaAdminClient, topics: set[str]) -> None:
    # No longer than `_METADATA_WAIT_S`: who may create a topic may not be allowed to see it.
    until = time.monotonic() + _METADATA_WAIT_S
    while not topics <= set(client.list_topics()) and time.monotonic() < until:
        time.sleep(0.05)


def check_topics(
    settings: KafkaSettings, plans: Sequence[TopicPlan], *, snapshot_every_s: float | None = None
) -> tuple[Finding, ...]:
    """Compare the broker's topics with what the service needs.

    Recovery replays the input from a snapshot, which is up to `snapshot_every_s` old.
    """
    with asking(settings, "looking at topics", operation="DESCRIBE") as client:
        described = describe(client, settings, [plan.name for plan in plans])
        every = client.list_topics()
        hidden = ke.TopicAuthorizationFailedError.errno
        known = {name: t for name, t in described.items() if t["error_code"] != hidden}
        configs = topic_settings(client, list(known))
    counts = {name: len(topic["partitions"]) for name, topic in known.items()}
    n_input = max((counts.get(p.name, 0) for p in plans if p.role == "input"), default=0)
    findings: list[Finding] = []
    for plan in plans:
        problems: list[tuple[Level, str]]
        if plan.name in described and plan.name not in known:
            # Labels are the review console's: a worker does without; nor does it need control.
            level: Level = "warning" if plan.role in ("labels", "control") else "error"
            problems = [(level, "may not be described, and may not exist: allow DESCRIBE on it")]
        elif plan.name not in known and plan.role == "input":
            problems = [("error", _not_there(plan.name, every))]
        elif plan.name not in known:
            problems = [("error", "does not exist: run `rejex-stream topics create`")]
        elif not configs[plan.name]:
            what = "has settings that could not be looked at: allow DESCRIBE_CONFIGS on it"
            problems = [("warning", what)]
        else:
            config, count = configs[plan.name], counts[plan.name]
            problems = [
                *_wrong_policy(plan, count, config),
                *_wrong_size(settings, plan, (count, n_input), config),
                *_too_short(plan, config, snapshot_every_s),
            ] or [("ok", f"{plan.role}, {count} partitions")]
        findings += [Finding(plan.name, *problem) for problem in problems]
    return tuple(findings)


def _wrong_policy(
    plan: TopicPlan, partitions: int, config: Mapping[str, str]
) -> Iterator[tuple[Level, str]]:
    policy = config.get("cleanup.policy", "delete")
    if plan.role == "state":
        if policy != "compact":
            what = f"cleanup.policy is {policy!r}: snapshots would expire; set it to compact"
            yield "error", what
    elif "compact" in policy:
        yield "error", f"cleanup.policy is {policy!r}: compaction drops events; set it to delete"
    if plan.role == "control" and partitions != 1:
        what = f"has {partitions} partitions: commands have one order; make it again with 1"
        yield "error", what


def _wrong_size(
    settings: KafkaSettings, plan: TopicPlan, counts: tuple[int, int], config: Mapping[str, str]
) -> Iterator[tuple[Level, str]]:
    if plan.role in {"input", "labels", "control"}:
        return
    largest = int(config.get("max.message.bytes", "1048588"))
    if largest < settings.max_message_bytes:
        yield (
            "error",
            f"max.message.bytes is {largest}, below kafka.options.'message.max.bytes' = "
            f"{settings.max_message_bytes}: raise it or lower the option",
        )
    count, n_input = counts
    if n_input and count != n_input:
        yield (
            "warning",
            f"has {count} partitions, the input {n_input}: order per sensor still holds, but keys "
            "are not where a producer's partitioner would put them",
        )


def _too_short(
    plan: TopicPlan, config: Mapping[str, str], snapshot_every_s: float | None
) -> Iterator[tuple[Level, str]]:
    retention_ms = int(config.get("retention.ms", "-1"))
    if plan.role != "input" or snapshot_every_s is None:
        return
    if 0 <= retention_ms <= 2000 * snapshot_every_s:
        yield (
            "error",
            f"retention.ms is {retention_ms}, snapshots may be {snapshot_every_s:.0f} s apart: a "
            "crash could need events that are gone. Keep the input at least twice as long",
        )


def describe(
    client: KafkaAdminClient, settings: KafkaSettings, names: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return the metadata of existing topics, and of those that we may not see.

    The latter have an ``error_code`` and no partitions.
    """
    with explaining(settings, "looking at topics", operation="DESCRIBE"):
        topics = client.describe_topics(list(names))
    return {
        topic["name"]: topic
        for topic in topics
        if topic["error_code"] != ke.UnknownTopicOrPartitionError.errno
    }


def worker_rights(settings: KafkaSettings) -> list[Right]:
    """Return what a worker does; READ and WRITE imply DESCRIBE."""
    topics = settings.topics
    rights = [Right("topic", name, "READ") for name in topics.input]
    outputs = (topics.verdicts, topics.review, topics.deadletter, topics.incidents)
    rights += [Right("topic", name, "WRITE") for name in outputs]
    rights.append(Right("topic", topics.control, "READ"))
    if topics.state is not None:
        rights += [Right("topic", topics.state, "READ"), Right("topic", topics.state, "WRITE")]
    rights.append(Right("group", settings.group, "READ"))
    if settings.delivery == "exactly_once":
        rights.append(transactional_right(settings))
    return rights


def missing_rights(
    client: KafkaAdminClient, settings: KafkaSettings, described: Mapping[str, Mapping[str, Any]]
) -> Iterator[Right]:
    """Ask the broker for the rights of a worker; yields those it is sure to lack.

    Topics and a group that exists say what is allowed. A group that does not exist yet, and a
    transactional id, say no more than whether they may be looked at; in a new cluster not even
    that. `described` is what the broker says of topics; one that it does not know is not judged.
    """
    for right in worker_rights(settings):
        try:
            if right.kind == "topic":
                about = described.get(right.name, {})
                refused = about.get("error_code") == ke.TopicAuthorizationFailedError.errno
            elif right.kind == "group":
                about, refused = client.describe_groups([right.name])[right.name], False
            else:
                client.describe_transactions([right.name])
                about, refused = {}, False
        except ke.AuthorizationError:
            about, refused = {}, True
        except _UNKNOWN:
            continue
        except ke.KafkaError as error:
            raise explain(error, settings, f"asking for the rights on {right.name}") from error
        allowed = about.get("authorized_operations")
        if refused or (allowed is not None and right.operation not in allowed):
            yield right


def topic_settings(client: KafkaAdminClient, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the settings of topics by Kafka's names, as far as they may be looked at."""
    if not names:
        return {}
    asked = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    answer = client.describe_configs(asked, config_filter="all")["topic"]
    return {
        name: {key: entry["value"] for key, entry in entries.items()}
        for name, entries in answer.items()
    }
