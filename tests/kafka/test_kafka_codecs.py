"""What other people's producers compress is read, and we may write so too, with every codec.

A plain install has to be enough: nobody chooses the codec of a topic that somebody else fills.
"""

from __future__ import annotations

import pytest
from kafka import KafkaProducer
from kafka_harness import Kafka, assert_exactly, feed, next_offsets, run_here
from test_kafka_delivery import CLIENTS

pytestmark = pytest.mark.kafka

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("client", CLIENTS)
def test_batches_of_every_codec_are_read_and_written(
    kafka: Kafka, client: str, codec: str | None
) -> None:
    settings = kafka.settings(
        partitions=2, client=client, options={"compression.type": codec or "none"}
    )
    records = feed(settings, 400, partitions=2)
    producer = KafkaProducer(
        bootstrap_servers=kafka.bootstrap,
        compression_type=codec,
        linger_ms=20,
        metrics_enabled=False,
    )
    for record in records:
        topic, partition = record.position[:2]
        producer.send(topic, record.value, record.key, list(record.headers), partition)
    producer.flush(60)
    producer.close()
    run_here(settings, next_offsets(records))
    assert_exactly(kafka, settings, records)
