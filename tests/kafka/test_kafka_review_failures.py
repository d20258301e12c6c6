"""A console's disk fills up while a topic is read, and nothing of the topic is lost."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from kafka import KafkaProducer
from kafka_harness import Kafka, make_pipeline
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.topic_admin import create_topics, plan_topics
from test_kafka_delivery import CLIENTS

from rejex_stream.config import Config, load_config
from rejex_stream.config.reviewing import Review
from rejex_stream.encode import encode_review
from rejex_stream.review.console.background import Background, Feeding
from rejex_stream.review.queue.pipeline_logs import TopicFeed
from rejex_stream.review.queue.review_store import ReviewStore
from tests.review.test_review_store import item
from tests.waiting import pass_time, until

pytestmark = pytest.mark.kafka

POLL_INTERVAL_S = 6.0


def send(kafka: Kafka, topic: str, first: int, last: int) -> None:
    """Items in transactions, every other one aborted: positions in between do not exist."""
    producer = KafkaProducer(
        bootstrap_servers=kafka.bootstrap,
        transactional_id=f"{topic}-{first}",
        metrics_enabled=False,
    )
    producer.init_transactions()
    for start in range(first, last, 50):
        for kept in (False, True):
            producer.begin_transaction()
            for i in range(start, min(start + 50, last)):
                producer.send(topic, encode_review(item(i)), partition=i % 2)
            producer.commit_transaction() if kept else producer.abort_transaction()
    producer.close()


def stored(store: ReviewStore) -> list[int]:
    with store.database.read() as connection:
        rows = connection.execute("SELECT seq FROM event ORDER BY seq").fetchall()
    return [row[0] for row in rows]


def set_up(kafka: Kafka, folder: Path, client: str) -> tuple[Config, KafkaSettings]:
    short = ("max.poll.interval.ms", "session.timeout.ms")
    options = dict.fromkeys(short, int(POLL_INTERVAL_S * 1000))
    told = {"client": client, "options": options}
    path, settings = make_pipeline(kafka, folder, partitions=2, input={"time": "t"}, kafka=told)
    return load_config(path), settings


@pytest.mark.parametrize("client", CLIENTS)
def test_a_full_disk_loses_no_review_item(kafka: Kafka, small_disk, tmp_path, client):
    config, settings = set_up(kafka, tmp_path, client)
    send(kafka, settings.topics.review, 0, 600)

    store = ReviewStore(small_disk / "review.db", Review(settle_s=0))
    background = Background(store, Feeding([TopicFeed.of(config, "review", follow=True)]))
    background.start()
    until(lambda: "make room on" in background.problems.get("feed 0", ""))
    send(kafka, settings.topics.review, 600, 900)
    pass_time(POLL_INTERVAL_S + 4, because="the group takes the partitions away meanwhile")
    assert list(background.problems) == ["feed 0"]
    assert len(stored(store)) < 600
    subprocess.run(["mount", "-o", "remount,size=40m", str(small_disk)], check=True)
    until(lambda: len(stored(store)) >= 900, lambda: (len(stored(store)), background.problems))
    until(lambda: not background.problems)
    assert background.stop(60)
    assert stored(store) == list(range(900))
    # Reading what is there once goes by the same law, and finds nothing that was left out.
    assert TopicFeed.of(config, "review", follow=False).pump(store).items == 0
    store.close()


@pytest.mark.parametrize("n_new", [20, 200], ids=["shorter", "longer"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_review_topic_that_is_made_anew_is_read_from_its_start(
    kafka: Kafka, tmp_path, monkeypatch, client, n_new
):
    """Longer than before, no offset tells: only the id of the topic does."""
    monkeypatch.setattr("rejex_stream.review.queue.pipeline_logs._LOOK_EVERY_S", 1.0)
    config, settings = set_up(kafka, tmp_path, client)
    topic = settings.topics.review
    send(kafka, topic, 0, 60)
    store = ReviewStore(tmp_path / "review.db", Review(settle_s=0))
    once = ReviewStore(tmp_path / "once.db", Review(settle_s=0))
    assert TopicFeed.of(config, "review", follow=False).pump(once).items == 60
    background = Background(store, Feeding([TopicFeed.of(config, "review", follow=True)]))
    background.start()
    until(lambda: len(stored(store)) == 60, lambda: background.problems)

    kafka.admin.delete_topics([topic])
    until(lambda: topic not in kafka.admin.list_topics())
    # A name of its own for the transactions: those of before belong to the topic that is gone.
    create_topics(settings, plan_topics(settings, partitions=2, replication=1))
    send(kafka, topic, 1_000, 1_000 + n_new)
    wanted = [*range(60), *range(1_000, 1_000 + n_new)]
    until(lambda: stored(store) == wanted, lambda: (len(stored(store)), background.problems))
    until(lambda: not background.problems, lambda: background.problems)
    assert background.stop(60)
    assert TopicFeed.of(config, "review", follow=False).pump(once).items == n_new
    with store.database.read() as connection:
        audited = connection.execute(
            "SELECT subject FROM audit WHERE action = 'restarted'"
        ).fetchall()
    assert sorted(row[0] for row in audited) == [f"source:{topic}-0", f"source:{topic}-1"]
    store.close()
    once.close()
