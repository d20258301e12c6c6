"""Snapshots in a topic: found, in pieces, refused when tampered with, missing or foreign."""

from __future__ import annotations

import dataclasses

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka_harness import Kafka, assert_exactly, feed, next_offsets, run_here
from rejex_connectors.kafka import KafkaSettings, connect
from rejex_connectors.kafka_snapshots import KafkaSnapshots

from rejex_stream.errors import CheckpointError, ConfigError
from rejex_stream.progress import LaneOpened
from rejex_stream.protocols import Assigned
from rejex_stream.types import Partition, Record

pytestmark = pytest.mark.kafka


@pytest.fixture
def settings(kafka: Kafka) -> KafkaSettings:
    return kafka.settings(partitions=1, instance_id="only")


def half_way(kafka: Kafka, settings: KafkaSettings) -> tuple[list[Record], list[Record]]:
    """Run over the first half of a feed and stop; returns all of it, and the second half."""
    records = feed(settings, 1_200, sensors=3, partitions=1)
    kafka.fill(settings, records[:600])
    run_here(settings, next_offsets(records[:600]))
    return records, records[600:]


def lose_snapshots(kafka: Kafka, settings: KafkaSettings) -> None:
    """Delete every key of the state topic."""
    assert settings.topics.state is not None
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    for key in {r.key for r in kafka.read(settings, settings.topics.state)[0]}:
        producer.send(settings.topics.state, key=key, value=None, partition=0).get(5)
    producer.close()


def trim(kafka: Kafka, settings: KafkaSettings, offset: int) -> None:
    """Delete the input before `offset`, as retention would."""
    (topic,) = settings.topics.input
    kafka.admin.delete_records({TopicPartition(topic, 0): offset})


def test_a_second_run_goes_on_from_the_snapshot_without_the_old_input(
    kafka: Kafka, settings: KafkaSettings
) -> None:
    records, rest = half_way(kafka, settings)
    trim(kafka, settings, 600)
    kafka.fill(settings, rest)
    watch = run_here(settings, next_offsets(records))
    (opened,) = [event for event in watch.events if isinstance(event, LaneOpened)]
    assert (opened.snapshot_offset, opened.live_from) == (600, 600)
    assert_exactly(kafka, settings, records)


def test_a_missing_snapshot_with_trimmed_input_is_refused_with_the_way_out(
    kafka: Kafka, settings: KafkaSettings
) -> None:
    records, rest = half_way(kafka, settings)
    lose_snapshots(kafka, settings)
    trim(kafka, settings, 10)
    kafka.fill(settings, rest)
    with pytest.raises(CheckpointError, match=r"no snapshot .*lost_state"):
        run_here(settings, next_offsets(records))
    assert kafka.committed(settings) == next_offsets(records[:600]), "nothing was committed"


def test_without_a_snapshot_the_whole_input_is_replayed_silently(
    kafka: Kafka, settings: KafkaSettings
) -> None:
    records, rest = half_way(kafka, settings)
    lose_snapshots(kafka, settings)
    kafka.fill(settings, rest)
    watch = run_here(settings, next_offsets(records))
    (opened,) = [event for event in watch.events if isinstance(event, LaneOpened)]
    assert (opened.snapshot_offset, opened.next_offset, opened.live_from) == (None, 0, 600)
    assert_exactly(kafka, settings, records)


def test_input_that_expired_unread_is_refused_with_the_way_out(
    kafka: Kafka, settings: KafkaSettings
) -> None:
    records, rest = half_way(kafka, settings)
    kafka.fill(settings, rest)
    trim(kafka, settings, 700)
    with pytest.raises(CheckpointError, match=r"100 record.s. expired unread"):
        run_here(settings, next_offsets(records))


@pytest.mark.parametrize("what", ["flipped bit", "other bytes"])
def test_a_snapshot_that_was_tampered_with_is_refused(
    kafka: Kafka, settings: KafkaSettings, what: str
) -> None:
    records, rest = half_way(kafka, settings)
    assert settings.topics.state is not None
    newest = max(
        (r for r in kafka.read(settings, settings.topics.state)[0] if r.value),
        key=lambda r: int(dict(r.headers)["next_offset"] or b""),
    )
    assert newest.value is not None
    value = bytearray(newest.value)
    value[len(value) // 2] ^= 1
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    producer.send(
        settings.topics.state,
        key=newest.key,
        value=bytes(value) if what == "flipped bit" else b"something else",
        headers=list(newest.headers),
        partition=0,
    ).get(5)
    producer.close()
    kafka.fill(settings, rest)
    with pytest.raises(CheckpointError, match="was altered"):
        run_here(settings, next_offsets(records))


def test_a_snapshot_of_another_pipeline_is_refused(kafka: Kafka, settings: KafkaSettings) -> None:
    records = feed(settings, 1_200, sensors=3, partitions=1)
    kafka.fill(settings, records[:600])
    run_here(settings, next_offsets(records[:600]), kind="HBOS")
    kafka.fill(settings, records[600:])
    with pytest.raises(CheckpointError, match="another pipeline"):
        run_here(settings, next_offsets(records), kind="KNN")


def test_offsets_that_were_set_back_find_the_older_snapshot(
    kafka: Kafka, settings: KafkaSettings
) -> None:
    records = feed(settings, 900, sensors=3, partitions=1)
    kafka.fill(settings, records)
    run_here(settings, next_offsets(records), max_poll_records=100)
    (topic,) = settings.topics.input
    assert settings.topics.state is not None
    kept = {
        int(dict(r.headers)["next_offset"] or b"")
        for r in kafka.read(settings, settings.topics.state)[0]
        if r.value
    }
    older = sorted(kept)[-2]
    kafka.set_back(settings, Partition(topic, 0), older + 5)
    watch = run_here(settings, next_offsets(records))
    (opened,) = [event for event in watch.events if isinstance(event, LaneOpened)]
    assert (opened.snapshot_offset, opened.live_from) == (older, older + 5)


def test_a_large_snapshot_goes_in_pieces_and_comes_back_whole(kafka: Kafka) -> None:
    settings = kafka.settings(partitions=2, max_message_bytes=10_000)
    blobs = {n: bytes(range(256)) * n for n in (400, 100, 700, 0)}
    source, sink = connect(settings)
    try:
        store = KafkaSnapshots(settings, sink)
        given: list[Partition] = []
        while len(given) < 2:
            source.poll(10, 0.2)
            given += [c.partition for c in source.changes() if isinstance(c, Assigned)]
        partition, other = given
        for step, blob in enumerate(blobs.values(), start=1):
            store.save(partition, step, blob)
            sink.commit({partition: step})
            assert store.load(partition, step) == (step, blob)
        assert store.load(other, 100) is None
        assert store.load(partition, 3) == (3, blobs[700])
        assert store.load(partition, 2) is None, "two are kept"
        store.save(partition, 3, b"again")
        assert store.load(partition, 100) == (3, b"again"), "what lies ahead was given up"
    finally:
        sink.close()
        source.close()


def test_a_snapshot_that_was_not_committed_is_not_found(kafka: Kafka) -> None:
    settings = kafka.settings(partitions=1)
    source, sink = connect(settings)
    try:
        store = KafkaSnapshots(settings, sink)
        given: list[Assigned] = []
        while not given:
            source.poll(10, 0.2)
            given += [c for c in source.changes() if isinstance(c, Assigned)]
        store.save(given[0].partition, 7, b"blob")
        assert store.load(given[0].partition, 100) is None
    finally:
        sink.close()
        source.close()


def test_without_a_state_topic_there_is_no_store(kafka: Kafka, settings: KafkaSettings) -> None:
    nowhere = dataclasses.replace(settings, topics=dataclasses.replace(settings.topics, state=None))
    source, sink = connect(nowhere)
    try:
        with pytest.raises(ConfigError, match="state is unset"):
            KafkaSnapshots(nowhere, sink)
    finally:
        sink.close()
        source.close()


def test_a_missing_output_topic_is_named_with_the_command_that_makes_it(kafka: Kafka) -> None:
    settings = kafka.settings(partitions=1, commit_timeout_ms=2_000)
    topics = dataclasses.replace(settings.topics, review="not.there")
    with pytest.raises(ConfigError, match=r"'not\.there' does not exist .* topics create"):
        connect(dataclasses.replace(settings, topics=topics))
