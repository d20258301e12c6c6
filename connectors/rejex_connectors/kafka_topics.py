"""Which topics the service needs, how they must be set up, and whether they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from kafka import errors as ke
from kafka.admin import ConfigResource, ConfigResourceType

from rejex_connectors.kafka_python import admin
from rejex_connectors.kafka_python_errors import explain
from rejex_stream.errors import ConfigError

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

    from rejex_connectors.kafka_settings import KafkaSettings

__all__ = [
    "Finding",
    "TopicPlan",
    "check_topics",
    "create_topics",
    "describe",
    "plan_topics",
]

DAY_MS = 86_400_000


@dataclass(frozen=True, kw_only=True)
class TopicPlan:
    """How one topic is meant to be.

    Attributes
    ----------
    name, role
        `role` is ``input``, ``verdicts``, ``review``, ``labels``, ``deadletter`` or ``state``.
    partitions, replication
        Counts; partitions are not changed on a topic that exists, since that would move keys.
    config
        Topic settings by Kafka's names.
    """

    name: str
    role: str
    partitions: int
    replication: int
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at: ``ok``, ``warning`` or ``error``, and a sentence."""

    topic: str
    level: Literal["ok", "warning", "error"]
    message: str


def plan_topics(
    settings: KafkaSettings, *, partitions: int = 8, replication: int = 1
) -> tuple[TopicPlan, ...]:
    """Say which topics are needed and how they should be set up.

    Parameters
    ----------
    partitions
        Of the input; outputs and state get the same number, so that what is beside each other in
        the input stays beside each other. The most workers that can share the work.
    replication
        Copies of each partition: 3 in production.

    Examples
    --------
    >>> from rejex_connectors.kafka_settings import KafkaSettings
    >>> [plan.name for plan in plan_topics(KafkaSettings())]  # doctest: +NORMALIZE_WHITESPACE
    ['rejex.readings', 'rejex.verdicts', 'rejex.review', 'rejex.labels', 'rejex.deadletter',
     'rejex.state']
    """
    if partitions < 1 or replication < 1:
        raise ConfigError(
            f"partitions = {partitions}, replication = {replication}: both must be at least 1"
        )
    topics = settings.topics
    size = {"max.message.bytes": str(max(1_048_588, settings.max_message_bytes + 1024))}
    durable = {"min.insync.replicas": str(max(1, replication - 1))}
    kept = {"cleanup.policy": "delete", "retention.ms": str(30 * DAY_MS), **size, **durable}
    week = {**kept, "retention.ms": str(7 * DAY_MS)}
    for_ever = {**kept, "retention.ms": "-1"}
    compacted = {
        "cleanup.policy": "compact",
        "segment.bytes": "67108864",  # the newest segment is never compacted: keep it small
        "min.cleanable.dirty.ratio": "0.2",
        **size,
        **durable,
    }
    wanted = [(name, "input", week) for name in topics.input]
    wanted += [
        (topics.verdicts, "verdicts", kept),
        (topics.review, "review", kept),
        (topics.labels, "labels", for_ever),
        (topics.deadletter, "deadletter", kept),
    ]
    if topics.state is not None:
        wanted.append((topics.state, "state", compacted))
    return tuple(
        TopicPlan(
            name=name, role=role, partitions=partitions, replication=replication, config=config
        )
        for name, role, config in wanted
    )


def create_topics(
    settings: KafkaSettings, plans: Sequence[TopicPlan], *, dry_run: bool = False
) -> tuple[TopicPlan, ...]:
    """Create the topics that are missing; returns those (to be) created. Existing ones are left.

    Raises
    ------
    ConnectorError
        When the broker cannot be reached or refuses.
    """
    client = admin(settings)
    try:
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
        return missing
    except ke.KafkaError as error:
        raise explain(error, settings, "creating topics") from error
    finally:
        client.close()


def check_topics(
    settings: KafkaSettings,
    plans: Sequence[TopicPlan],
    *,
    snapshot_every_s: float | None = None,
) -> tuple[Finding, ...]:
    """Compare the broker's topics with what the service needs.

    Parameters
    ----------
    snapshot_every_s
        How old a snapshot can get: the input must be kept longer, since recovery replays it.

    Raises
    ------
    ConnectorError
        When the broker cannot be reached or refuses.
    """
    client = admin(settings)
    try:
        described = describe(client, settings, [plan.name for plan in plans])
        hidden = ke.TopicAuthorizationFailedError.errno
        known = {name: t for name, t in described.items() if t["error_code"] != hidden}
        configs = _configs(client, list(known))
    except ke.KafkaError as error:
        raise explain(error, settings, "looking at topics") from error
    finally:
        client.close()
    findings: list[Finding] = []
    inputs = [
        len(known[p.name]["partitions"]) for p in plans if p.role == "input" and p.name in known
    ]
    for plan in plans:
        if plan.name in described and plan.name not in known:
            findings.append(_hidden(plan))
            continue
        if plan.name not in known:
            findings.append(
                Finding(
                    topic=plan.name,
                    level="error",
                    message="does not exist: run `rejex-stream topics create`",
                )
            )
            continue
        partitions = len(known[plan.name]["partitions"])
        if not configs[plan.name]:
            findings.append(_unsettled(plan))
            continue
        wrong = list(_wrong(settings, plan, partitions, max(inputs, default=0), configs[plan.name]))
        wrong += _too_short(plan, configs[plan.name], snapshot_every_s)
        ok = Finding(topic=plan.name, level="ok", message=f"{plan.role}, {partitions} partitions")
        findings += wrong or [ok]
    return tuple(findings)


def _wrong(
    settings: KafkaSettings,
    plan: TopicPlan,
    partitions: int,
    n_input: int,
    config: Mapping[str, str],
) -> list[Finding]:
    found: list[Finding] = []

    def say(level: Literal["warning", "error"], message: str) -> None:
        found.append(Finding(topic=plan.name, level=level, message=message))

    policy = config.get("cleanup.policy", "delete")
    if plan.role == "state":
        if policy != "compact":
            say("error", f"cleanup.policy is {policy!r}: snapshots would expire; set it to compact")
    elif "compact" in policy:
        say("error", f"cleanup.policy is {policy!r}: compaction drops events; set it to delete")
    if plan.role not in {"input", "labels"}:
        largest = int(config.get("max.message.bytes", "1048588"))
        if largest < settings.max_message_bytes:
            say(
                "error",
                f"max.message.bytes is {largest}, below kafka.max_message_bytes = "
                f"{settings.max_message_bytes}: raise it or lower the setting",
            )
        if n_input and partitions != n_input:
            say(
                "warning",
                f"has {partitions} partitions, the input {n_input}: order per sensor still holds, "
                "but keys are not where a producer's partitioner would put them",
            )
    return found


def _too_short(
    plan: TopicPlan, config: Mapping[str, str], snapshot_every_s: float | None
) -> list[Finding]:
    if plan.role != "input" or snapshot_every_s is None:
        return []
    retention_ms = int(config.get("retention.ms", "-1"))
    if retention_ms < 0 or retention_ms > 2000 * snapshot_every_s:
        return []
    message = (
        f"retention.ms is {retention_ms}, snapshots may be {snapshot_every_s:.0f} s apart: a crash "
        "could need events that are gone. Keep the input at least twice as long"
    )
    return [Finding(topic=plan.name, level="error", message=message)]


def describe(
    client: KafkaAdminClient, settings: KafkaSettings, names: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return what the broker says of the topics that exist, or that we may not know of.

    Of the latter it says an ``error_code`` and no partitions.

    Raises
    ------
    ConnectorError
        When the broker cannot be reached or refuses.
    """
    try:
        topics = client.describe_topics(list(names))
    except ke.KafkaError as error:
        raise explain(error, settings, "looking at topics") from error
    return {
        topic["name"]: topic
        for topic in topics
        if topic["error_code"] != ke.UnknownTopicOrPartitionError.errno
    }


def _hidden(plan: TopicPlan) -> Finding:
    # Labels are the review console's: a worker does without.
    level: Literal["warning", "error"] = "warning" if plan.role == "labels" else "error"
    return Finding(
        topic=plan.name,
        level=level,
        message="may not be described, and may not exist: allow DESCRIBE on it",
    )


def _unsettled(plan: TopicPlan) -> Finding:
    return Finding(
        topic=plan.name,
        level="warning",
        message="has settings that could not be looked at: allow DESCRIBE_CONFIGS on it",
    )


def _configs(client: KafkaAdminClient, names: Sequence[str]) -> dict[str, dict[str, str]]:
    if not names:
        return {}
    asked = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    answer = client.describe_configs(asked, config_filter="all")["topic"]
    return {
        name: {key: entry["value"] for key, entry in entries.items()}
        for name, entries in answer.items()
    }
