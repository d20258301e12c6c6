"""A snapshot that is taken apart and judged on stream by stream."""

from __future__ import annotations

import json
import random

import pytest
from rejex_connectors.files.sink import lines_of

from rejex_stream.config import parse_config
from rejex_stream.config.assembly import Judging, by_partition
from rejex_stream.decode import JsonDecoder
from rejex_stream.protocols import ControlRecords
from rejex_stream.run.partition import described
from rejex_stream.spark.state_migration import apart
from rejex_stream.types import Partition, Position, Reading, Record

CONFIG = """
[pipeline]
name = "pumps"
[input]
path = "feed.jsonl"
time = "t"
sensor = "id"
channels = ["flow"]
{pooled}
[detector]
name = "Mahalanobis"
[hold]
adopt_after_events = 0
[rejection]
contamination = 0.05
window = {window}
review_budget = {{ rate = 0.05, burst = {burst} }}
[refit]
refit_every_events = 200
"""
FEED = Partition("feed.jsonl", 0)
N, SENSORS = 2_100, 4


def config_of(pooled="", window=150, burst=8):
    config, problems = parse_config(CONFIG.format(pooled=pooled, window=window, burst=burst))
    assert config is not None, problems
    assert not by_partition(config)
    return config


def feed(n=N):
    rng = random.Random(5)
    for i in range(n):
        fault = 9 if i > 0.5 * n and i % SENSORS == 0 else 0  # lasts over every cut
        body = {"t": 1000 * i, "id": f"s{i % SENSORS}", "flow": rng.gauss(10, 1) + fault}
        yield Record(Position(*FEED, i), None, b"?" if i % 97 == 9 else json.dumps(body).encode())


def fresh(config, parts=None):
    state = Judging(config).state(FEED, JsonDecoder(config.input.mapping()), ("feed.jsonl",))
    if parts is not None:
        state.restore(parts)
        state.apply_config()
    state.journal.rewind_to(state.next_offset, allow_gaps=False)
    return state


def whole(state):
    state.parts.abandon(base_is_gone=True)
    return dict(state.snapshot().encoded().parts)


def say(state, offset):
    """A plan for all sensors that begins while the streams are judged apart."""
    plan = {
        "id": "c-1", "kind": "planned", "by": "ada", "from_ms": 1_300_000, "until_ms": 1_360_000,
    }  # fmt: skip
    said = Record(Position("control", 0, 0), None, json.dumps(plan).encode())
    state.journal.ingest(ControlRecords([said], 1))
    state.journal.assign_offset(offset)


def judged_apart(config, parts, records, seed):
    """Each stream by a state of its own that is kept and brought back now and then."""
    rng, kept, out = random.Random(seed), apart(parts), []
    decode, at = JsonDecoder(config.input.mapping()).decode, 0
    while at < len(records):
        batch, at = records[at : (end := at + rng.randrange(1, 300))], end
        by_key = {}
        for record in batch:
            item = decode(record)
            key = item.stream_key if isinstance(item, Reading) else ""
            by_key.setdefault(key, []).append(record)
        for key, own in rng.sample(sorted(by_key.items()), len(by_key)):
            state = fresh(config, kept.get(key))
            out += state.process(own)
            kept[key] = whole(state)
    out.sort(key=lambda outcome: outcome.record.position)
    return list(lines_of(out))


@pytest.mark.thorough
@pytest.mark.parametrize("pooled", ["", 'group = "*"'])
@pytest.mark.parametrize("seed", [1, 2])
def test_judged_apart_no_verdict_differs(pooled, seed):
    config, records = config_of(pooled), list(feed())
    one = fresh(config)
    say(one, 500)
    expected = list(lines_of(one.process(records)))
    assert any(b'"planned":true' in line for _, line in expected)
    assert pooled or sum(role == "incidents" for role, _ in expected) > 1  # one is a reply
    begun = 1_200 + seed
    first = fresh(config)
    say(first, 500)
    found = list(lines_of(first.process(records[:begun])))
    assert found + judged_apart(config, whole(first), records[begun:], seed) == expected


def test_apart_each_stream_has_its_own_incident_and_all_plans():
    state = fresh(config_of())
    say(state, 500)
    state.process(list(feed()))
    parts = whole(state)
    streams = apart(parts)
    assert set(streams) == {"", *(f"s{i}" for i in range(SENSORS))}
    for i in range(SENSORS):
        own = streams[f"s{i}"]
        said = described(own).origin.decision
        assert set(described(own).streams) == {f"s{i}"}
        assert {one["stream_key"] for one in said.get("incidents", ())} <= {f"s{i}"}
        assert len(said["plans"]) == 1
    assert "incidents" in described(streams["s0"]).origin.decision
