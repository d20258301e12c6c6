"""What a producer is given arrives whole and in order, or is refused by name."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
from kafka.errors import KafkaTimeoutError
from kafka_harness import ROOT, Kafka, assert_exactly, edges, feed, next_offsets, run_here
from rejex_connectors.kafka.clients import Message
from rejex_connectors.kafka.kafka_settings import OURS_KAFKA_PYTHON, KafkaSettings
from rejex_connectors.kafka.sink import open_clients
from test_kafka_delivery import CLIENTS

from rejex_stream.config.assembly.edges import require_own_topics
from rejex_stream.errors import ConfigError, ConnectorError
from tests.waiting import until

HEADERS = [("ce_type", b"io.rejex.verdict.v1"), ("ce_id", b"in-0-7@1")]


def of(topic: str, n: int, size: int = 200) -> list[Message]:
    """`n` messages for each of two partitions, in turn."""
    return [Message(topic, i % 2, b"k", b"%05d" % i + b"x" * size, HEADERS) for i in range(2 * n)]


@pytest.mark.kafka
@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("client", CLIENTS)
def test_what_was_sent_is_read_in_order(kafka: Kafka, client: str, compression: str) -> None:
    settings = kafka.settings(
        partitions=2, client=client,
        options={
            "batch.size": 8_192, "compression.type": compression, "transaction.timeout.ms": 120_000,
            "delivery.timeout.ms": 120_000,
        },
    )  # fmt: skip
    sent = of(settings.topics.verdicts, 12_000)  # more than may be on their way at once
    sent[100] = sent[100]._replace(key=None, headers=[])
    sent[101] = sent[101]._replace(value=None)
    with edges(settings) as (source, sink):
        sink._producer.publish(sent, {}, source.consumer)
    for partition, records in kafka.read(settings, settings.topics.verdicts).items():
        mine = [message for message in sent if message.partition == partition]
        assert [(r.key, r.value, list(r.headers)) for r in records] == [m[2:] for m in mine]
        assert [r.position.offset for r in records] == list(range(len(mine)))
        assert all(r.timestamp_ms > 1_600_000_000_000 for r in records)


@pytest.mark.kafka
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_topic_that_takes_less_than_it_should_is_named(
    kafka: Kafka, client: str, delivery: str
) -> None:
    small = {"verdicts": {"max.message.bytes": "1000"}}
    settings = kafka.settings(partitions=2, client=client, delivery=delivery, config=small)
    large = of(settings.topics.verdicts, 5, size=5_000)
    with (
        edges(settings) as (source, sink),
        pytest.raises(ConnectorError, match=r"raise the topic's max\.message\.bytes") as refused,
    ):
        sink._producer.publish(large, {}, source.consumer)
    assert not refused.value.retriable
    if delivery == "exactly_once":
        assert kafka.count(settings, settings.topics.verdicts) == 0


@pytest.mark.kafka
@pytest.mark.parametrize("client", CLIENTS)
def test_a_clock_that_the_broker_does_not_believe_is_named(kafka: Kafka, client: str) -> None:
    # Any clock is too far behind that of this topic's broker.
    strict = {"verdicts": {"message.timestamp.before.max.ms": "0"}}
    settings = kafka.settings(partitions=2, client=client, config=strict)
    said = r"clock of this machine says 2\d{3}-.* set it right"
    with edges(settings) as (source, sink), pytest.raises(ConnectorError, match=said):
        sink._producer.publish(of(settings.topics.verdicts, 5), {}, source.consumer)


@pytest.mark.parametrize("missing", [False, True])
def test_auto_takes_confluent_where_it_is_installed_and_kafka_python_elsewhere(
    missing: bool,
) -> None:
    asking = f"""
import sys
if {missing}:
    sys.modules["confluent_kafka"] = None  # as where it is not installed
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.sink import open_clients
def library(client):
    open_consumer, _ = open_clients(KafkaSettings(client=client), "w")
    return open_consumer.func.__module__
try:
    print(library("auto") == library("confluent"), library("auto") == library("kafka-python"))
except Exception as error:
    print(error, library("auto") == library("kafka-python"))
"""
    told = subprocess.run(
        [sys.executable, "-c", asking], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'connectors'}"},
    ).stdout  # fmt: skip
    if missing or importlib.util.find_spec("confluent_kafka") is None:
        assert "pip install 'rejex-stream[confluent]' True" in told
    else:
        assert told == "True False\n"


@pytest.mark.kafka
@pytest.mark.parametrize("client", CLIENTS)
def test_a_topic_that_was_deleted_is_named(kafka: Kafka, client: str) -> None:
    settings = kafka.settings(partitions=2, client=client, options={"delivery.timeout.ms": 4_000})
    gone = settings.topics.review
    with edges(settings) as (source, sink):
        kafka.admin.delete_topics([gone])
        until(lambda: gone not in kafka.admin.list_topics(), "it is gone")

        def told() -> str:
            try:
                sink._producer.publish(of(gone, 1), {}, source.consumer)
            except ConnectorError as error:
                sink.abort()
                sink._settle()
                return str(error) if error.retriable else f"for good: {error}"
            return ""

        until(lambda: told().startswith(f"topic {gone!r} is missing"), told)


COMMON: dict[str, str | int | float | bool] = {
    "client.rack": "a", "retry.backoff.ms": 50, "reconnect.backoff.ms": 20, "fetch.min.bytes": 1,
    "connections.max.idle.ms": 300_000, "request.timeout.ms": 20_000,
}  # fmt: skip
"""What both libraries have."""
COMMON_OF: dict[str, dict[str, str | int | float | bool]] = {
    "kafka-python": {
        "max.poll.records": 400, "check.crcs": True, "receive.buffer.bytes": 65_536,
        "max.partition.fetch.bytes": 500_000, "send.buffer.bytes": 131_072, "retries": 7,
    },
    "confluent": {
        "socket.keepalive.enable": True, "broker.address.family": "v4", "queued.min.messages": 500,
        "socket.timeout.ms": 9_000, "metadata.max.age.ms": 60_000, "statistics.interval.ms": 0,
        "compression.level": 3, "receive.message.max.bytes": 120_000_000,
    },
}  # fmt: skip


@pytest.mark.kafka
@pytest.mark.parametrize("client", CLIENTS)
def test_ten_common_options_of_each_library_reach_it(kafka: Kafka, client: str) -> None:
    settings = kafka.settings(partitions=1, client=client, options=COMMON | COMMON_OF[client])
    records = feed(settings, 100, sensors=2, partitions=1)
    kafka.fill(settings, records)
    run_here(settings, next_offsets(records))
    assert_exactly(kafka, settings, records)


@pytest.mark.kafka
def test_outputs_that_another_pipeline_wrote_to_are_refused(kafka: Kafka) -> None:
    settings = kafka.settings(partitions=2)
    require_own_topics(settings)  # empty as they are
    records = feed(settings, 100, sensors=2, partitions=2)
    kafka.fill(settings, records)
    run_here(settings, next_offsets(records))
    require_own_topics(settings)
    missing = settings.topics.replace(verdicts="not there", review="nor this")
    require_own_topics(settings.replace(pipeline="other", topics=missing))
    with pytest.raises(ConfigError, match=r"pipeline 'rejex-stream' wrote.* as output\.verdicts"):
        require_own_topics(settings.replace(pipeline="other"))


def test_what_we_tell_the_libraries_nobody_else_may() -> None:
    """Whatever is said in the code that opens a client is on the list of what is refused."""
    settings = KafkaSettings(client="kafka-python")
    with pytest.MonkeyPatch.context() as patched:
        told: dict[str, set[str]] = {}
        for role, name in (("consumer", "KafkaConsumer"), ("producer", "KafkaProducer")):

            def noted(role: str = role, **said: object) -> None:
                told[role] = set(said)
                raise KafkaTimeoutError

            patched.setattr(f"rejex_connectors.kafka.kafka_python_client.{name}", noted)
        for open_one in open_clients(settings, "w"):
            with pytest.raises(ConnectorError):
                open_one()
    login = {"sasl_mechanism", "sasl_plain_username", "ssl_context", "ssl_check_hostname"}
    assert told.keys() == {"consumer", "producer"}
    for role, names in told.items():
        ours_at_first = {"metadata_max_age_ms"}  # an option goes before it
        assert names - login - ours_at_first <= OURS_KAFKA_PYTHON, role
