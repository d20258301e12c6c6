"""The bare loop of ``benchmarks.kafka`` writes what the service writes."""

from __future__ import annotations

from collections import Counter

from rejex_connectors.kafka.kafka_settings import KafkaSettings, KafkaTopics

from benchmarks.kafka.loops import written
from benchmarks.kafka.setting import Load
from rejex_stream.encode import decode_verdict
from rejex_stream.encode.records import decode_reviewed

TOPICS = KafkaTopics(input=("in",), verdicts="bench.verdicts", review="bench.review")


def test_what_the_bare_loop_writes_is_what_the_service_writes():
    settings = KafkaSettings(group="bench", topics=TOPICS)
    messages = written(settings, Load(sensors=2, window=200, warm=2_000), sample=1_000)
    assert len(messages) == 1_000
    for i, (verdict, *_) in enumerate(messages, 2_000):
        assert verdict.topic == "bench.verdicts"
        said = decode_verdict(verdict.value)
        assert (said.position.offset, said.sensor) == (i, f"turbine-{i % 2:04d}")
        headers = dict(verdict.headers)
        assert headers["ce_source"] == b"/rejex-stream/bench"
        assert headers["ce_subject"] == said.sensor.encode()
        assert len(headers) == 7
    told = [message for _, *more in messages for message in more]
    kinds = Counter(dict(message.headers)["ce_type"] for message in told)
    assert {message.topic for message in told} <= {"bench.review", "bench.incidents"}
    reviews = [decode_reviewed(m.value) for m in told if m.topic == "bench.review"]
    assert 5 < len(reviews) < 200, kinds
