"""Readings around an event, from the input topic of a real broker."""

from __future__ import annotations

import json

import pytest
from kafka_harness import Kafka, pipeline_toml

from rejex_stream.config import load_config
from rejex_stream.errors import ConfigError
from rejex_stream.review.context_loader import ContextLoader
from rejex_stream.types import Position, Record

pytestmark = pytest.mark.kafka
N = 300


def test_records_around_a_position_are_read_and_none_beyond_what_was_asked(kafka: Kafka, tmp_path):
    settings = kafka.settings(partitions=2)
    (topic,) = settings.topics.input
    kafka.fill(
        settings,
        [
            Record(
                Position(topic, n % 2, n // 2), b"k",
                json.dumps({"t": 1000 * n, "sensor": f"P{n % 4}", "flow": n}).encode(), (), None,
            )
            for n in range(2 * N)
        ],
    )  # fmt: skip
    path = tmp_path / "p.toml"
    path.write_text(
        pipeline_toml(
            "wide", kafka.bootstrap,
            input={"topics": [topic], "sensor": "sensor", "time": "t", "time_unit": "ms"},
        )
    )  # fmt: skip
    wide = ContextLoader(load_config(path), records=50)
    at = Position(topic, 1, 100)
    first = wide.around(at, "P3", "P3", 1)
    # Partition 1 holds P1 and P3 in turn: event n stands at offset n // 2.
    assert (first.channels, first.cut) == (("flow",), "")
    assert [t_ms // 1000 for t_ms, _ in first.points] == list(range(103, 303, 4))
    second = wide.around(at, "P3", "P3", 2)
    assert [t_ms // 1000 for t_ms, _ in second.points] == [
        *range(3, 103, 4), *range(303, 403, 4)
    ]  # fmt: skip
    assert len(wide.around(Position(topic, 1, 290), "P3", "P3", 1).points) == 30, "up to its end"
    with pytest.raises(ConfigError, match="and its input no more"):
        wide.around(Position("other", 0, 1), "P3", "P3", 1)
