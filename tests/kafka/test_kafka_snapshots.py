"""Snapshots in a topic: found, in pieces, refused when tampered with, missing or foreign."""

from __future__ import annotations

import gc
import threading
from contextlib import closing

import msgspec
import pytest
from kafka import KafkaProducer, TopicPartition
from kafka_harness import Kafka, assert_exactly, edges, feed, next_offsets, owns, run_here
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.refusals import SeatTakenError
from rejex_connectors.kafka.sink import connect
from rejex_connectors.kafka.topic_admin import create_topics, plan_topics
from rejex_connectors.kafka.topic_snapshots import KafkaSnapshots

from rejex_stream.errors import CheckpointError, ConfigError, ConnectorError
from rejex_stream.protocols import SnapshotPiece
from rejex_stream.run.run_events import PartitionOpened
from rejex_stream.types import Partition, Record
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.kafka


@pytest.fixture
def settings(kafka: Kafka) -> KafkaSettings:
    return kafka.settings(partitions=1, instance_id="only")


def half_way(kafka: Kafka, settings: KafkaSettings) -> tuple[list[Record], list[Record]]:
    """Run over the first half of a feed and stop; returns all of it, and the second half.

    A worker that loses its seat between its last commit and its end leaves no snapshot there, and
    on a busy machine one does: so this one ends when it has told of its snapshot.
    """
    records = feed(settings, 1_200, sensors=3, partitions=1)
    kafka.fill(settings, records[:600])
    run_here(settings, next_offsets(records[:600]), kept=True, snapshot_every_events=1)
    assert 600 in manifests(kafka, settings)
    return records, records[600:]


def lose_snapshots(kafka: Kafka, settings: KafkaSettings) -> None:
    assert settings.topics.state is not None
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    for key in {r.key for r in kafka.read(settings, settings.topics.state)[0]}:
        producer.send(settings.topics.state, key=key, value=None, partition=0).get(5)
    producer.close()


def trim(kafka: Kafka, settings: KafkaSettings, offset: int) -> None:
    """Delete the input before `offset`, as retention would."""
    (topic,) = settings.topics.input
    kafka.admin.delete_records({TopicPartition(topic, 0): offset})


def test_a_missing_snapshot_with_trimmed_input_is_refused_with_the_way_out(
    kafka: Kafka, settings: KafkaSettings
) -> None:
    records, rest = half_way(kafka, settings)
    lose_snapshots(kafka, settings)
    trim(kafka, settings, 10)
    kafka.fill(settings, rest)
    with pytest.raises(CheckpointError, match=r"no snapshot .*state\.lost_state"):
        run_here(settings, next_offsets(records))
    assert kafka.committed(settings) == next_offsets(records[:600]), "nothing was committed"


@pytest.mark.parametrize("lost", ["input", "snapshot"])
def test_a_second_run_goes_on_from_the_snapshot_or_replays_the_whole_input_silently(
    kafka: Kafka, settings: KafkaSettings, lost: str
) -> None:
    records, rest = half_way(kafka, settings)
    if lost == "input":
        trim(kafka, settings, 600)
    else:
        lose_snapshots(kafka, settings)
    kafka.fill(settings, rest)
    watch = run_here(settings, next_offsets(records))
    (opened,) = [event for event in watch.events if isinstance(event, PartitionOpened)]
    begun = (600, 600) if lost == "input" else (None, 0)
    assert (opened.snapshot_offset, opened.next_offset, opened.live_from) == (*begun, 600)
    assert_exactly(kafka, settings, records)


def test_input_that_expired_unread_is_refused_with_the_way_out(
    kafka: Kafka, settings: KafkaSettings
) -> None:
    records, rest = half_way(kafka, settings)
    kafka.fill(settings, rest)
    trim(kafka, settings, 700)
    with pytest.raises(CheckpointError, match=r"100 record.s. expired unread"):
        run_here(settings, next_offsets(records))


def manifests(kafka: Kafka, settings: KafkaSettings) -> set[int]:
    assert settings.topics.state is not None
    newest = {r.key: r.value for r in kafka.read(settings, settings.topics.state)[0]}
    return {
        msgspec.msgpack.decode(value)[3]
        for key, value in newest.items()
        if value and b"|m|" in (key or b"")
    }


@pytest.mark.parametrize("what", ["flipped bit", "other bytes"])
def test_a_snapshot_that_was_tampered_with_is_refused(
    kafka: Kafka, settings: KafkaSettings, what: str
) -> None:
    records, rest = half_way(kafka, settings)
    assert settings.topics.state is not None
    newest = max(
        (
            r
            for r in kafka.read(settings, settings.topics.state)[0]
            if (r.key or b"").endswith(b"|head")
        ),
        key=lambda r: msgspec.msgpack.decode(r.value or b"")[0][0],
    )
    assert newest.value is not None
    version, body = msgspec.msgpack.decode(newest.value)
    bent = bytearray(body)
    bent[len(bent) // 2] ^= 1
    told = bytes(bent) if what == "flipped bit" else b"something else"
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    producer.send(
        settings.topics.state, key=newest.key, value=msgspec.msgpack.encode([version, told]),
        headers=list(newest.headers), partition=0,
    ).get(5)  # fmt: skip
    producer.close()
    kafka.fill(settings, rest)
    with pytest.raises(CheckpointError, match=r"in-0, .* offset 600: .*(altered|not a snapshot)"):
        run_here(settings, next_offsets(records))


def test_a_snapshot_of_another_state_is_refused(kafka: Kafka, settings: KafkaSettings) -> None:
    records = feed(settings, 1_200, sensors=3, partitions=1)
    kafka.fill(settings, records[:600])
    run_here(settings, next_offsets(records[:600]), kind="HBOS")
    kafka.fill(settings, records[600:])
    with pytest.raises(CheckpointError, match=r"another state \(detector .*HBOS.* -> .*KNN"):
        run_here(settings, next_offsets(records), kind="KNN")


def test_offsets_that_were_set_back_find_the_older_snapshot(
    kafka: Kafka, settings: KafkaSettings
) -> None:
    records = feed(settings, 900, sensors=3, partitions=1)
    kafka.fill(settings, records)
    run_here(settings, next_offsets(records), max_poll_records=100)
    (topic,) = settings.topics.input
    older, _ = sorted(manifests(kafka, settings))
    kafka.set_back(settings, Partition(topic, 0), older + 5)
    with pytest.raises(CheckpointError, match=r"from offset \d+ on would get a second verdict"):
        run_here(settings, next_offsets(records))
    watch = run_here(settings, next_offsets(records), lost_state="restart")
    (opened,) = [event for event in watch.events if isinstance(event, PartitionOpened)]
    assert (opened.snapshot_offset, opened.live_from) == (older, older + 5)


def test_offsets_that_expired_are_gone_on_from_at_the_snapshot(
    kafka: Kafka, settings: KafkaSettings
) -> None:
    records, rest = half_way(kafka, settings)
    kafka.fill(settings, rest)
    until(lambda: kafka.is_empty(settings.group), "the group is empty")
    kafka.admin.delete_groups([settings.group])
    run_here(settings, next_offsets(records), lost_state="restart")
    assert_exactly(kafka, settings, records)


def make_anew(kafka: Kafka, settings: KafkaSettings, count: int) -> list[Record]:
    """Delete the input and recreate it, with so many records that nobody has seen."""
    (topic,) = settings.topics.input
    kafka.admin.delete_topics([topic])
    until(lambda: topic not in kafka.admin.list_topics(), "it is gone")
    create_topics(settings, [p for p in plan_topics(settings, partitions=1) if p.role == "input"])
    kafka.partitions(topic)
    records = feed(settings, count, sensors=3, partitions=1)
    kafka.fill(settings, records)
    return records


@pytest.mark.parametrize("commits", [False, True])
def test_a_topic_that_was_made_anew_is_begun_at_its_first_record(
    kafka: Kafka, settings: KafkaSettings, commits: bool
) -> None:
    """400 of its 700 records were passed over: an offset was taken for the identity of a log."""
    (topic,) = settings.topics.input
    old = feed(settings, 400, sensors=3, partitions=1)
    kafka.fill(settings, old)
    run_here(settings, next_offsets(old))
    topics = settings.topics

    def judged() -> int:
        return kafka.count(settings, topics.verdicts) + kafka.count(settings, topics.deadletter)

    assert judged() == 400
    records = make_anew(kafka, settings, 700)
    if commits:  # as the refusal of earlier versions advised
        kafka.set_back(settings, Partition(topic, 0), 400)
    with pytest.raises(CheckpointError, match=r"deleted and recreated.*state drop"):
        run_here(settings, next_offsets(records))
    watch = run_here(settings, next_offsets(records), lost_state="restart")
    (opened,) = [event for event in watch.events if isinstance(event, PartitionOpened)]
    assert (opened.snapshot_offset, opened.next_offset, opened.live_from) == (None, 0, 0)
    assert judged() == 400 + 700
    more = feed(settings, 900, sensors=3, partitions=1)[700:]
    kafka.fill(settings, more)
    watch = run_here(settings, next_offsets(more))  # which is not lost any more
    (opened,) = [event for event in watch.events if isinstance(event, PartitionOpened)]
    assert opened.live_from == 700
    assert judged() == 400 + 900


def test_a_large_state_goes_in_pieces_with_the_commit_and_comes_back_whole(kafka: Kafka) -> None:
    settings = kafka.settings(partitions=2, options={"message.max.bytes": 10_000})
    bodies = [bytes(range(256)) * n for n in (400, 100, 700, 0)]
    journals = [b"a" * 40_000, b"b" * 25_000, b"c", b""]
    ours, other, not_ours = (Partition(settings.topics.input[0], number) for number in range(3))
    with edges(settings) as (source, sink), closing(KafkaSnapshots(settings, sink)) as store:
        until(lambda: owns(source, ours, other), "both partitions")
        assert store.load_journal(ours) is None
        for step, (body, journal) in enumerate(zip(bodies, journals, strict=True), start=1):
            store.save_journal(ours, journal)
            piece = SnapshotPiece(step, step - 1 or None, {"a": body, f"b{step}": b"b"})
            assert store.save(ours, piece)
            assert store.load_journal(ours) != journal, "nothing was committed yet"
            sink.commit({ours: step})
            assert store.load_journal(ours) == journal
            rest = {f"b{n}": b"b" for n in range(1, step + 1)}
            assert store.load(ours, step) == (step, {"a": body} | rest)
        assert store.load(other, 100) is None
        assert not store.save(not_ours, SnapshotPiece(0, None, {"a": b"a"})), "nothing is written"
        rest = {f"b{n}": b"b" for n in range(1, 4)}
        assert store.load(ours, 3) == (3, {"a": bodies[2]} | rest)
        assert store.load(ours, 2) is None, "two are kept"
        store.save(ours, SnapshotPiece(3, 3, {"a": b"again"}))
        given_up = "what lies ahead was given up"
        assert store.load(ours, 100) == (3, {"a": b"again"} | rest), given_up
        store.save_journal(ours, b"never")
        store.save(other, SnapshotPiece(7, None, {"a": b"never"}))
        assert store.load(other, 100) is None, "it was not committed"
        sink.abort()
        assert store.load_journal(ours) == b""


def clients_left(before: set[threading.Thread]) -> list[str]:
    started = [thread.name for thread in set(threading.enumerate()) - before]
    return [name for name in started if "kafka" in name]


def test_what_reads_the_state_is_closed_with_the_run(kafka: Kafka, settings: KafkaSettings) -> None:
    """Left to the garbage collector, it would be closed on whatever thread that runs on."""
    records = feed(settings, 40, partitions=1)
    kafka.fill(settings, records)
    before = set(threading.enumerate())
    gc.disable()
    try:
        run_here(settings, next_offsets(records))
        # A look at who has which partition that is under way at the end is not waited for.
        until(lambda: not clients_left(before), "every client's thread ends")
    finally:
        gc.enable()


def test_what_lies_behind_an_open_transaction_is_not_taken_for_absent(
    kafka: Kafka, settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed worker's transaction hides what its successors commit, until the broker aborts it.

    Whoever takes over then would replay without the commands that were decided.
    """
    monkeypatch.setattr("rejex_connectors.kafka.topic_snapshots.SETTLE_S", 0.5)
    partition, state = Partition(settings.topics.input[0], 0), settings.topics.state
    killed = KafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id=f"{kafka.name}-dead")
    with closing(killed), edges(settings) as (source, sink):
        until(lambda: owns(source, partition), "the partition")
        with closing(KafkaSnapshots(settings, sink)) as store:
            killed.init_transactions()
            killed.begin_transaction()
            killed.send(state, key=b"of another", value=b"", partition=0).get(PATIENCE_S)
            store.save_journal(partition, b"a plan holds from 10 on")
            sink.commit({partition: 10})
            for ask in (store.load_journal, lambda p: store.load(p, 10), store.drop):
                with pytest.raises(ConnectorError, match=f"{state}-0 .* is open there") as told:
                    ask(partition)
                assert told.value.retriable
            assert not store.is_decided(partition)
            killed.abort_transaction()
            until(lambda: store.load_journal(partition) == b"a plan holds from 10 on")


def test_a_snapshot_that_could_not_be_written_leaves_the_one_before_alone(
    kafka: Kafka, settings: KafkaSettings
) -> None:
    partition = Partition(settings.topics.input[0], 0)
    kafka.fill(settings, feed(settings, 40, partitions=1))
    with edges(settings) as (source, sink):
        until(lambda: owns(source, partition), "the partition")
        with closing(KafkaSnapshots(settings, sink)) as store:
            store.save(partition, SnapshotPiece(0, None, {"a": b"at 0"}))
            sink.commit({partition: 10})
            store.save(partition, SnapshotPiece(10, 0, {"a": b"at 10"}))
            sink.commit({partition: 20})
            sink.abort()  # and nothing can be written until the source has settled again
            with pytest.raises(ConnectorError):
                store.save(partition, SnapshotPiece(20, 10, {"a": b"at 20"}))
            source.rewind()
            until(
                lambda: owns(source, partition) and source.owned[partition] == 20, "the partition"
            )
            store.save(partition, SnapshotPiece(20, 10, {"a": b"at 20"}))
            assert store.load(partition, 20) == (20, {"a": b"at 20"})
            assert store.load(partition, 19) == (10, {"a": b"at 10"})


def test_who_comes_back_writes_upon_what_others_wrote_meanwhile(
    kafka: Kafka, settings: KafkaSettings
) -> None:
    """State outlives a partition that was lost and came back; what the topic holds may not."""
    kafka.fill(settings, feed(settings, 60, partitions=1))
    partition = Partition(settings.topics.input[0], 0)
    with edges(settings) as (source, sink):
        with closing(KafkaSnapshots(settings, sink)) as store:
            source.is_decided = store.is_decided
            until(lambda: owns(source, partition), "the partition")
            store.save(partition, SnapshotPiece(0, None, {"a": b"at 0", "b": b"at 0"}))
            sink.commit({partition: 10})
            store.save(partition, SnapshotPiece(10, 0, {"a": b"at 10"}))
            with (
                edges(settings) as (other, other_sink),  # takes our name
                closing(KafkaSnapshots(settings, other_sink)) as others,
            ):
                until(lambda: owns(other, partition), "the partition")
                assert others.load(partition, 10) is not None
                for at, base in ((20, 10), (30, 20)):
                    other_sink.commit({partition: at})
                    others.save(partition, SnapshotPiece(at, base, {"a": b"at %d" % at}))
            sink.abort()
            source.reseat(SeatTakenError("taken"))
            until(lambda: owns(source, partition) and source.owned[partition] == 30, "it is back")
            assert not store.save(partition, SnapshotPiece(30, 10, {"a": b"at 30"})), "10 is gone"
            for at, base in ((30, None), (40, 30)):
                sink.commit({partition: at})
                assert store.save(partition, SnapshotPiece(at, base, {"a": b"at %d" % at}))
        with closing(KafkaSnapshots(settings, sink)) as fresh:
            assert fresh.load(partition, 39) == (30, {"a": b"at 30"})
            assert fresh.load(partition, 40) == (40, {"a": b"at 40"})


def test_without_a_state_topic_there_is_no_store(kafka: Kafka, settings: KafkaSettings) -> None:
    nowhere = settings.replace(topics=settings.topics.replace(state=None))
    with edges(nowhere) as (_, sink), pytest.raises(ConfigError, match=r"state\.topic is unset"):
        KafkaSnapshots(nowhere, sink)


def test_a_missing_output_topic_is_named_with_the_command_that_makes_it(kafka: Kafka) -> None:
    settings = kafka.settings(partitions=1, options={"delivery.timeout.ms": 2_000})
    topics = settings.topics.replace(review="not.there")
    with pytest.raises(ConfigError, match=r"'not\.there' does not exist .* topics create"):
        connect(settings.replace(topics=topics))
