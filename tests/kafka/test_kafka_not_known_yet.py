"""What is not known yet is not absent, and what was said before is not so now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from kafka import TopicPartition
from kafka import errors as ke
from kafka_harness import Kafka, feed
from rejex_connectors.kafka.clients import Gained, Lost
from rejex_connectors.kafka.kafka_python_client import PythonConsumer
from rejex_connectors.kafka.kafka_settings import KafkaSettings, KafkaTopics
from rejex_connectors.kafka.partition_reader import admin, topic_ids
from rejex_connectors.kafka.sink import open_clients
from rejex_connectors.kafka.topic_admin import create_topics, plan_topics
from rejex_connectors.kafka.topic_snapshots import OfflineSink
from rejex_connectors.kafka.unassigned_partitions import group_of, ownerless
from test_kafka_delivery import CLIENTS

from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.types import Partition
from tests.waiting import pass_time, until
from tools.kafka import broker

pytestmark = pytest.mark.kafka


@pytest.fixture
def settings(kafka: Kafka) -> KafkaSettings:
    """No pause of the machine costs a seat here."""
    return kafka.settings(partitions=1, options={"session.timeout.ms": 30_000})


@pytest.fixture
def consumer(settings: KafkaSettings) -> Iterator[PythonConsumer]:
    open_consumer, _ = open_clients(settings, "w")
    with closing(open_consumer()) as consumer:
        assert isinstance(consumer, PythonConsumer)
        yield consumer


def the_input(settings: KafkaSettings) -> Partition:
    return Partition(settings.topics.input[0], 0)


def joins(consumer: PythonConsumer, here: Partition) -> None:
    until(lambda: consumer.poll(1, 0.05) or consumer.changes() == [Gained(here)])


def commits(consumer: PythonConsumer, here: Partition, offset: int) -> None:
    """The library may join once more, straight after it has joined: its metadata were renewed."""

    def committed() -> bool:
        with suppress(ConnectorError):
            consumer.commit({here: offset}, 10.0)
            return True
        consumer.poll(1, 0.05)
        return False

    until(committed, "an offset is committed")


# ------------------------------------------------------- between two lines of ours, another thread
def test_an_answer_that_comes_too_late_is_given_to_nobody_who_asks_later(
    settings: KafkaSettings, consumer: PythonConsumer
) -> None:
    """A worker that was frozen while it asked went on from where it stood then, not from now."""
    here = the_input(settings)
    joins(consumer, here)
    commits(consumer, here, 10)
    with pytest.raises(ConnectorError, match="asking where"):
        consumer.committed(here, 1e-6)
    asked = consumer._consumer._coordinator._offset_fetch_futures
    until(lambda: all(answer.is_done for answer in list(asked.values())), "the answer has come")
    commits(consumer, here, 20)
    assert consumer.committed(here, 10.0) == 20


def test_a_partition_that_comes_back_while_it_is_started_reads_nothing_by_itself(
    kafka: Kafka, settings: KafkaSettings, consumer: PythonConsumer
) -> None:
    """Taken and given between the seek and the resume, it read from 0, where nothing may be."""
    here, tp = the_input(settings), TopicPartition(*the_input(settings))
    kafka.fill(settings, feed(settings, 40, partitions=1))
    kafka.admin.delete_records({tp: 20})
    joins(consumer, here)
    library, resume = consumer._consumer, consumer._consumer.resume

    def resumed(*partitions: TopicPartition) -> None:
        listener = library._subscription.rebalance_listener  # as the library's thread does it
        listener.on_partitions_revoked([tp])
        listener.on_partitions_assigned([tp])
        resume(*partitions)

    library.resume = resumed
    consumer.start(here, 30)
    library.resume = resume
    assert consumer.changes() == [Lost(here), Gained(here)]
    assert library.paused() == {tp}
    pass_time(0.3, because="a fetch that is under way would come")
    assert consumer.poll(100, 0.3) == []
    consumer.start(here, 35)
    found = until(lambda: consumer.poll(100, 0.1))
    assert [record.position.offset for record in found] == [35, 36, 37, 38, 39]


def test_of_a_partition_that_was_taken_meanwhile_no_end_is_known(
    settings: KafkaSettings, consumer: PythonConsumer
) -> None:
    """The list of ours is renewed between two polls, the library's on its own thread."""
    here = the_input(settings)
    joins(consumer, here)
    consumer.start(here, 0)
    consumer._consumer._subscription.assign_from_subscribed([])
    assert consumer.end(here) is None


# ---------------------------------------------------------------------------- whose topic it is
def test_the_id_of_a_topic_that_is_not_known_yet_is_asked_for_again(
    kafka: Kafka, settings: KafkaSettings
) -> None:
    """State without its log's id is taken for that of any log of the name."""
    id_of, here = topic_ids(settings), the_input(settings)
    first = id_of(here)
    assert first
    kafka.admin.delete_topics([here.topic])
    until(lambda: here.topic not in kafka.admin.list_topics(), "it is gone")
    pass_time(1.1, because="an answer holds for a second")
    with pytest.raises(ConnectorError, match="UnknownTopicOrPartition") as raised:
        id_of(here)
    assert raised.value.retriable
    create_topics(settings, [p for p in plan_topics(settings, partitions=1) if p.role == "input"])
    kafka.partitions(here.topic)
    second = id_of(here)
    assert second not in (first, b"")


@pytest.mark.parametrize("client", CLIENTS)
def test_an_output_that_was_made_after_the_others_were_counted_is_found(
    kafka: Kafka, client: str
) -> None:
    settings = kafka.settings(partitions=1, client=client)
    late = f"{settings.topics.verdicts}.late"
    _, open_producer = open_clients(settings, "w")
    with closing(open_producer()) as producer:
        assert producer.partitions(settings.topics.verdicts) == 1
        if client == "confluent":  # kafka-python looks for as long as a commit may take
            with pytest.raises(ConfigError, match="does not exist"):
                producer.partitions(late)
        kafka.admin.create_topics({late: {"num_partitions": 3, "replication_factor": 1}})
        kafka.partitions(late)
        assert producer.partitions(late) == 3
    kafka.admin.delete_topics([late])


# --------------------------------------------------------------------------- who is in the group
def test_partitions_of_a_topic_that_is_not_known_yet_may_have_no_owner(
    settings: KafkaSettings, consumer: PythonConsumer
) -> None:
    """Nobody's partitions were none, so nobody looked for them any more."""
    joins(consumer, the_input(settings))
    assert ownerless(settings) == set()
    elsewhere = KafkaTopics(**settings.topics.model_dump() | {"input": ("not-there",)})
    assert ownerless(settings.replace(topics=elsewhere)) is None


@pytest.fixture
def three_nodes() -> Iterator[tuple[broker.Cluster, Kafka]]:
    """Three brokers, of which one alone knows a group."""
    alone = {"offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": "1"}
    with broker.start(3, overrides=alone) as cluster, Kafka(cluster.bootstrap) as kafka:
        yield cluster, kafka


@pytest.mark.long
@pytest.mark.usefixtures("require_own_broker")
def test_a_group_whose_coordinator_is_away_is_not_taken_for_empty(
    three_nodes: tuple[broker.Cluster, Kafka],
) -> None:
    """Else state is written over while its workers live."""
    cluster, kafka = three_nodes
    settings = kafka.settings(partitions=1, replication=3)
    open_consumer, _ = open_clients(settings, "w")
    with closing(open_consumer()) as member:
        until(lambda: member.poll(1, 0.05) or member.changes(), "it is in the group")
        with pytest.raises(ConnectorError, match=r"has members \(it is Stable\)"):
            OfflineSink(settings)
        (topic,) = kafka.admin.describe_topics(["__consumer_offsets"])
        coordinator = topic["partitions"][0]["leader_id"]
        others = [node for node in cluster.nodes if node.node_id != coordinator]

        class Wrong:
            """Asks a broker that is not the group's."""

            def describe_groups(self, groups: list[str]) -> Any:
                return kafka.admin.describe_groups(groups, group_coordinator_id=others[0].node_id)

        with pytest.raises(ke.NotCoordinatorError):
            group_of(Wrong(), settings.group)  # type: ignore[arg-type]
        next(node for node in cluster.nodes if node not in others).kill()
        left = settings.replace(bootstrap_servers=",".join(node.address for node in others))
        with closing(admin(left)) as client:

            def its_death_is_known() -> bool:
                with suppress(ke.KafkaError):
                    (topic,) = client.describe_topics(["__consumer_offsets"])
                    return bool(topic["partitions"][0]["leader_id"] == -1)
                return False

            until(its_death_is_known)
        with pytest.raises(ConnectorError) as raised:
            OfflineSink(left)
        assert raised.value.retriable


@pytest.mark.long
@pytest.mark.usefixtures("require_own_broker")
def test_in_a_new_cluster_nobody_is_in_any_group() -> None:
    """It makes its coordinators once somebody asks for one."""
    with broker.start() as cluster, Kafka(cluster.bootstrap) as kafka:
        assert OfflineSink(kafka.settings(partitions=1)).partitions("__consumer_offsets")
