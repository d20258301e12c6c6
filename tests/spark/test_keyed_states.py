"""Streams judged apart, in any cut and order, on any machine, are what one state says."""

from __future__ import annotations

import copy
import json
import os
import random
from types import SimpleNamespace

import pytest
from rejex_connectors.files.sink import lines_of
from rejex_connectors.files.source import append_line

from rejex_stream.config import parse_config
from rejex_stream.config.assembly import Judging, by_partition, kafka_decoder
from rejex_stream.errors import ConfigError
from rejex_stream.spark import frames
from rejex_stream.spark.frames import NO_TIME, KeyedStates, Recipe, decoded, refused
from rejex_stream.spark.job_journal import JobJournal
from rejex_stream.types import Partition, Position, Record

pytestmark = pytest.mark.spark

CONFIG = """
[pipeline]
name = "pumps"
[input]
path = "feed.jsonl"
time = "t"
sensor = "id"
channels = {channels}
{grouped}
[detector]
name = "HBOS"
[rejection]
contamination = 0.05
window = 150
{budget}
[refit]
refit_every_events = 150
{state}
"""
SELECT = 'select = ".readings[]?"'
JOINED = '{ flow = "flow", level = "flow" }'
HELD = 'review_budget = { rate = 0.05, burst = 10, owner = "partition" }'
WAYS = {
    "apart": {}, "shared budget": {"budget": HELD}, "groups by a field": {"grouped": 'group = "g"'},
    "modes of a sensor": {"grouped": 'mode = "m"'},
    "forgetting": {"state": "[state]\nforget_after = 40"},
    "several readings a record": {"grouped": SELECT},
    "several readings, a shared budget": {"grouped": SELECT, "budget": HELD},
    "put in order": {"grouped": "reorder_s = 20"},
    "values that hold": {
        "channels": '["flow", "level"]', "grouped": 'partial = "hold_last"\nmax_age_s = 90',
    },
    "joined rows": {"channels": JOINED, "grouped": 'tag = "tag"\nreorder_s = 3'},
    "joined, several a record": {"channels": JOINED, "grouped": f'tag = "tag"\n{SELECT}'},
    "planned work": {
        "state": "[[calendar]]\nbegin = 1970-01-01T00:20:00Z\nend = 1970-01-01T00:25:00Z"
    },
}  # fmt: skip


APART = {"apart", "planned work", "several readings a record"}


@pytest.fixture(autouse=True)
def frames_are_here():
    try:
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError:
        if os.environ.get("REJEX_REQUIRE_SPARK"):
            raise
        pytest.skip("pandas is not installed (extra `spark`); `make test-spark` runs this")


class Kept:
    """Spark's state of one key, as its handle shows it: values go in and come out as tuples."""

    def __init__(self):
        self.mark, self.parts = [], {}

    def getValueState(self, name, schema):  # noqa: N802
        def update(value):
            self.mark = [value]

        return SimpleNamespace(get=lambda: self.mark[0] if self.mark else None, update=update)

    def getMapState(self, name, key, value):  # noqa: N802
        return SimpleNamespace(
            iterator=lambda: iter(list(self.parts.items())), updateValue=self.parts.__setitem__,
            containsKey=self.parts.__contains__, removeKey=self.parts.__delitem__,
        )  # fmt: skip


FEED = Partition("feed.jsonl", 0)


def config_of(**way):
    filled = {"channels": '["flow"]', "grouped": "", "budget": "tolerance = 5", "state": ""} | way
    config, problems = parse_config(CONFIG.format(**filled))
    assert config is not None, problems
    return config


def feed(n=2_400):
    rng = random.Random(11)
    for i in range(n):
        body = {"t": 1000 * i, "id": f"s{i % 5}", "g": f"g{i % 2}", "flow": rng.gauss(10, 1)}
        body["tag"] = ("flow", "level")[i // 5 % 2]
        if i % 3:
            body["level"] = rng.gauss(4, 1)
        body["m"] = ("load", "idle")[i // 400 % 2]
        if i > 0.7 * n and i % 5 == 0:
            body["flow"] += 9
        if 600 < i < 1_300 and i % 5 == 1:
            body["id"] = "s2"  # one that is silent for long
        value = b"?" if i % 301 == 9 else json.dumps(body).encode()
        yield Record(Position("feed.jsonl", 0, i), None, value)


def in_batches(records, size=7):
    """As many readings, several of each record; now and then none, or one that is nonsense."""
    rng = random.Random(5)
    for n, start in enumerate(range(0, len(records), size)):
        some = records[start : start + size]
        if n % 11 == 3:
            value = b'{"heartbeat": 1}'
        elif n % 11 == 8:
            value = b'{"readings": [{"t": 1000, "id": "s1", "flow": 10}, {"id": "s1"}, 7, null]}'
        else:
            good = [json.loads(one.value) for one in some if one.value != b"?"]
            value = json.dumps({"readings": rng.sample(good, len(good))}).encode()
        yield Record(Position("feed.jsonl", 0, n), None, value)


def by_one_state(config, records, journal=None):
    decoder, inputs = kafka_decoder(config), None if journal is None else journal.inputs
    state = Judging(config).state(FEED, decoder, inputs)
    if journal is not None:
        state.load_journal(journal.decided(FEED), decided_until=0)
        state.journal.rewind_to(0, allow_gaps=False)
    return list(lines_of(state.process(records)))


def by_keys(config, records, rng, journal=None, say=lambda: None):
    """Judge as Spark would: shuffled, in micro-batches, by two processes that take turns.

    Where people are listened to, they `say` something now and then, and batches are repeated.
    """
    recipe, kept, out, at = Recipe(f"{rng.random()}", config, None, journal), {}, [], 0
    benches = [{}, {}]
    while at < len(records):
        batch, at = records[at : (end := at + rng.randrange(1, 400))], end
        before = copy.deepcopy(kept)
        found = judged(recipe, batch, kept, benches, rng)
        if journal is not None:
            say()
            journal.at_commit(FEED, batch[-1].position.offset + 1)
            if rng.random() < 0.4:  # it was written, and Spark did not take note
                kept = before
                again = judged(recipe, batch, kept, benches, rng)
                assert lines(again) == lines(found)
        out += found
    return lines(out)


def lines(frames):
    import pandas as pd

    found = pd.concat(frames).sort_values(["offset", "place"], kind="stable")
    return list(zip(found["output"], map(bytes, found["value"]), strict=True))


def judged(recipe, batch, kept, benches, rng):
    """One micro-batch, by whichever process."""
    import pyarrow as pa

    config, out = recipe.config, []
    columns = [
        pa.array([r.position.topic for r in batch]),
        pa.array([0] * len(batch), pa.int32()),
        pa.array([r.position.offset for r in batch], pa.int64()),
        pa.array([r.key for r in batch], pa.binary()),
        pa.array([r.value for r in batch], pa.binary()),
        pa.array([r.timestamp_ms for r in batch], pa.int64()).fill_null(NO_TIME),
        pa.array([None] * len(batch), pa.null()),
    ]
    arrow = pa.RecordBatch.from_arrays(columns, list("abcdefg"))
    (taken,) = decoded(iter([arrow]), config, b"", whole=recipe.whole)
    rows = taken.to_pandas().sample(frac=1, random_state=rng.randrange(10**6))
    for key, of_key in rows.groupby(["topic", "partition", "stream"]):
        frames._benches = rng.choice(benches)
        processor = KeyedStates(recipe)
        processor.init(kept.setdefault(key, Kept()))
        half = len(of_key) // 2
        chunks = iter([of_key[:half], of_key[half:]])
        out += [frame for frame in processor.handleInputRows(key, chunks, None) if len(frame)]
    return out


@pytest.mark.parametrize("way", WAYS)
def test_any_cut_and_order_on_any_machine_gives_the_same_lines(way, monkeypatch):
    monkeypatch.setattr(frames, "_benches", {})
    config, records = config_of(**WAYS[way]), list(feed())
    if config.input.select is not None:
        records = list(in_batches(records))
    expected = by_one_state(config, records)
    assert any(b'-8.2"' in line for _, line in expected) == (config.input.select is not None)
    assert {"verdicts", "review", "deadletter"} <= {role for role, _ in expected}
    assert by_partition(config) == (way not in APART)
    assert any(b'"planned":true' in line for _, line in expected) == (way == "planned work")
    assert any(b'"mode":"idle"' in line for _, line in expected) == (way == "modes of a sensor")
    for seed in (1, 2):
        assert by_keys(config, records, random.Random(seed)) == expected


def test_what_people_say_holds_from_the_end_of_a_micro_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(frames, "_benches", {})
    config, records, said = config_of(**WAYS["apart"]), list(feed()), iter(range(100))
    journal = JobJournal(("feed.jsonl",), tmp_path, tmp_path / "control.jsonl")

    def say():
        i = next(said)
        begin = 1000 * (400 + 150 * i)
        commands = {
            2: {"kind": "planned", "from_ms": begin, "until_ms": begin + 90_000},
            3: {
                "kind": "planned", "stream_key": "s3", "from_ms": begin, "until_ms": begin + 90_000,
            },
            5: {"kind": "fault", "incident": "feed.jsonl-0-1"},
        }  # fmt: skip
        if i in commands:
            append_line(
                journal.control, json.dumps({"id": f"c-{i}", "by": "ada"} | commands[i]).encode()
            )

    found = by_keys(config, records, random.Random(3), journal, say)
    expected = by_one_state(config, records, journal)
    assert found == expected
    replies = [json.loads(line) for role, line in expected if role == "incidents" and b"c-" in line]
    assert len(replies) == 3
    assert any(b'"planned":true' in line for _, line in expected)
    assert expected != by_one_state(config, records)


@pytest.mark.parametrize(("asked", "said"), [
    ({"state": '[state]\nseal_key_file = "key"'}, "state.seal_key_file puts snapshots under"),
    ({"follow": True}, "input.follow = true is not read on Spark yet"),
    ({"format": "avro"}, "input.format = 'avro' is not read on Spark yet"),
])  # fmt: skip
def test_what_cannot_be_had_is_refused(asked, said):
    config = config_of(state=asked.pop("state", ""))
    changed = config.input.model_copy(update=asked)
    with pytest.raises(ConfigError, match=said):
        refused(config.model_copy(update={"input": changed}))
