"""What was decided stays decided, though the registry learns, forgets and changes its mind.

The harness stands for a run: records of two partitions, batches that succeed or are tried again as
a whole, commits that keep the decisions, crashes, and replays from any snapshot before the commit.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rejex_stream.decode.avro import avro_reader
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.decode.registry_decoder import UNKNOWN_S, RegistryDecoder
from rejex_stream.errors import CheckpointError, ConnectorError
from rejex_stream.protocols import RegisteredSchema
from rejex_stream.types import Invalid, Position, Reading, Record


def schema(*names):
    fields = [{"name": name, "type": "long"} for name in names]
    return RegisteredSchema(
        "AVRO", json.dumps({"type": "record", "name": "R", "fields": fields}), {}
    )


AB, BA = schema("a", "b"), schema("b", "a")  # the same bytes, another reading
USELESS = RegisteredSchema("JSON", "{}", {})
MAPPING = FieldMapping(["a"], fixed_sensor="s")
IDS = (1, 2, 3)


class Liar:
    """A registry that says what it was told to say last."""

    def __init__(self):
        self.says, self.down, self.asked = {}, False, 0

    def schema(self, schema_id):
        self.asked += 1
        if self.down:
            raise ConnectorError("away", retriable=True)
        return self.says.get(schema_id)


class Pipeline:
    """Partitions under one process at a time; what is durable outlives it."""

    def __init__(self, registry, partitions=2):
        self.registry, self.now = registry, 0.0
        self.records = [[] for _ in range(partitions)]
        self.emitted = [[] for _ in range(partitions)]  # durable
        self.decisions = [None] * partitions  # durable
        self.snapshots = [[0] for _ in range(partitions)]  # durable
        self.start([0] * partitions)

    def start(self, offsets):
        root = RegistryDecoder(MAPPING, self.registry, "AVRO", avro_reader, clock=lambda: self.now)
        self.decoders = [
            root.of_partition(kept, decided_until=len(emitted))
            for kept, emitted in zip(self.decisions, self.emitted, strict=True)
        ]
        self.outcomes = [emitted[:offset] for emitted, offset in zip(
            self.emitted, offsets, strict=True)]  # fmt: skip

    def produce(self, partition, schema_id):
        at = Position("t", partition, len(self.records[partition]))
        value = bytes([0, 0, 0, 0, schema_id, 2, 4])
        self.records[partition].append(Record(at, None, value, (), 5))

    def read(self, partition, most=10**6):
        begin = len(self.outcomes[partition])
        batch = self.records[partition][begin : begin + most]
        decoder = self.decoders[partition]
        self.outcomes[partition] += [decoder.decode(record) for record in batch]

    def commit(self, partition):
        assert len(self.outcomes[partition]) >= len(self.emitted[partition])
        self.emitted[partition] = list(self.outcomes[partition])
        self.decisions[partition] = self.decoders[partition].decisions()
        self.snapshots[partition].append(len(self.outcomes[partition]))

    def crash(self, which):
        """Lose the process; its successor replays, each partition from one of its snapshots."""
        self.start([kept[which % len(kept)] for kept in self.snapshots])
        asked = self.registry.asked
        for partition, emitted in enumerate(self.emitted):
            self.read(partition, len(emitted) - len(self.outcomes[partition]))
            assert kinds(self.outcomes[partition]) == kinds(emitted)
        assert self.registry.asked == asked, "what is decided needs nobody"


def kinds(outcomes):
    return [None if isinstance(outcome, Invalid) else outcome for outcome in outcomes]


PARTITION, ID = st.integers(0, 1), st.sampled_from(IDS)
EVENTS = st.one_of(
    st.tuples(st.just("produce"), PARTITION, ID),
    st.tuples(st.just("read"), PARTITION, st.integers(1, 5)),
    st.tuples(st.just("commit"), PARTITION), st.tuples(st.just("crash"), st.integers(0, 20)),
    st.tuples(st.just("says"), ID, st.sampled_from([None, AB, BA, USELESS])),
    st.tuples(st.just("down"), st.booleans()), st.tuples(st.just("wait")),
)  # fmt: skip


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(st.lists(EVENTS, max_size=80))
def test_a_registry_that_lies_changes_nothing_that_was_committed(events):
    registry = Liar()
    pipeline = Pipeline(registry)
    for partition in (0, 1):
        pipeline.commit(partition)  # with the first commit, decisions are kept
    for event, *what in events:
        match event:
            case "read":
                try:
                    pipeline.read(*what)
                except ConnectorError:
                    assert registry.down
            case "commit":
                if len(pipeline.outcomes[what[0]]) >= len(pipeline.emitted[what[0]]):
                    pipeline.commit(*what)
            case "says":
                registry.says[what[0]] = what[1]
            case "down":
                registry.down = what[0]
            case "wait":
                pipeline.now += UNKNOWN_S
            case _:
                getattr(pipeline, event)(*what)
    pipeline.crash(0)


@pytest.fixture
def registry():
    return Liar()


def committed(registry, *ids, partitions=1):
    """A pipeline that has committed one record for each id, and the next process."""
    pipeline = Pipeline(registry, partitions)
    for schema_id in ids:
        pipeline.produce(0, schema_id)
    pipeline.read(0)
    pipeline.commit(0)
    return pipeline


def test_an_id_that_is_registered_after_its_dead_letters_does_not_bring_them_back(registry):
    registry.says = {1: AB}
    pipeline = committed(registry, *[1] * 10, *[2] * 30, *[1] * 10)
    assert kinds(pipeline.emitted[0]).count(None) == 30
    registry.says[2] = AB
    pipeline.crash(0)
    pipeline.produce(0, 2)
    pipeline.read(0)
    assert isinstance(pipeline.outcomes[0][-1], Reading), "from here on it is known"
    pipeline.commit(0)
    pipeline.crash(0)


def test_known_schemas_outlive_a_registry_that_forgets_changes_or_is_away(registry):
    registry.says = {1: AB, 2: AB}
    pipeline = committed(registry, 1, 2)
    registry.says = {2: BA}
    registry.down = True
    pipeline.crash(0)
    for schema_id in (1, 2):
        pipeline.produce(0, schema_id)
    pipeline.read(0)
    assert [reading.values for reading in pipeline.outcomes[0]] == [(1.0,)] * 4


def test_a_batch_that_is_tried_again_decides_as_it_did(registry):
    """A schema learnt late in a batch that failed is not known to the records before it."""
    registry.says = {1: AB}
    pipeline = Pipeline(registry, 1)
    for schema_id in (2, 1, 2, 3):
        pipeline.produce(0, schema_id)
    real = registry.schema

    def learn_then_fail(schema_id):
        if schema_id == 3:
            raise ConnectorError("away", retriable=True)
        if schema_id == 1:
            registry.says[2] = AB
            pipeline.now += 2 * UNKNOWN_S
        return real(schema_id)

    registry.schema = learn_then_fail
    with pytest.raises(ConnectorError):
        pipeline.read(0)
    registry.schema = real
    pipeline.read(0)
    assert [kind is None for kind in kinds(pipeline.outcomes[0])] == [True, False, False, True]
    pipeline.commit(0)
    pipeline.crash(0)


def test_what_is_learnt_of_older_records_is_not_held_against_newer_decisions(registry):
    pipeline = committed(registry, 2)
    pipeline.decisions[0] = None  # the first record was decided before decisions were kept
    pipeline.start([1])
    pipeline.produce(0, 2)
    pipeline.read(0)
    pipeline.commit(0)
    registry.says = {2: AB}
    pipeline.start([0])
    pipeline.produce(0, 2)
    pipeline.read(0)
    assert [kind is None for kind in kinds(pipeline.outcomes[0])] == [False, True, False]


def test_partitions_decide_each_for_itself_and_share_what_was_asked(registry):
    registry.says = {1: AB}
    pipeline = Pipeline(registry, 2)
    for _ in range(5):
        pipeline.produce(0, 1)
    pipeline.produce(1, 1)
    pipeline.read(0)
    pipeline.read(1)
    assert kinds(pipeline.outcomes[1]) == [Reading("s", "s", 5, (1.0,), Position("t", 1, 0))]
    assert registry.asked == 1


def test_without_decisions_the_registry_is_asked_about_what_is_replayed(registry):
    """As after an upgrade from a version that kept none; from the next commit on they count."""
    registry.says = {1: AB}
    pipeline = committed(registry, 1, 1)
    pipeline.decisions[0] = None
    pipeline.start([0])
    pipeline.read(0, 2)
    assert None not in kinds(pipeline.outcomes[0])
    for schema_id in (2, 1):
        pipeline.produce(0, schema_id)
    pipeline.read(0)
    pipeline.commit(0)
    registry.says[2] = AB
    pipeline.crash(2)  # from the commit before the last
    assert [kind is None for kind in kinds(pipeline.emitted[0])] == [False, False, True, False]


def test_offsets_that_were_reset_are_decided_anew(registry):
    pipeline = committed(registry, 2, 2)
    registry.says = {2: AB}
    pipeline.produce(0, 2)
    pipeline.now += UNKNOWN_S
    pipeline.read(0)
    pipeline.commit(0)
    pipeline.emitted = [[]]  # kafka-consumer-groups --reset-offsets --to-earliest
    pipeline.start([0])
    pipeline.read(0)
    assert None not in kinds(pipeline.outcomes[0])


def test_decisions_are_the_same_object_until_something_is_learnt(registry):
    registry.says = {1: AB}
    pipeline = Pipeline(registry, 1)
    (decoder,) = pipeline.decoders
    empty = decoder.decisions()
    pipeline.produce(0, 2)
    pipeline.read(0)
    assert decoder.decisions() is empty, "ids that nobody knows cost nothing"
    pipeline.produce(0, 1)
    pipeline.read(0)
    learnt = decoder.decisions()
    assert learnt is not empty
    pipeline.produce(0, 1)
    pipeline.read(0)
    assert decoder.decisions() is learnt


def test_a_partition_that_names_ever_more_schemas_is_bounded(registry, monkeypatch):
    monkeypatch.setattr("rejex_stream.decode.registry_decoder.MAX_KNOWN", 2)
    registry.says = dict.fromkeys(IDS, AB)
    pipeline = committed(registry, 1, 2, 3, 1)
    assert [kind is None for kind in kinds(pipeline.emitted[0])] == [False, False, True, False]
    assert "already names 2 other schemas" in pipeline.emitted[0][2].reason
    pipeline.crash(0)


@pytest.mark.parametrize("bent", [b"", b"\x93\x01\x00", b"\x93\x02\x00\x80", b"\xff" * 9, b"\x01"])
def test_decisions_that_were_damaged_are_refused(registry, bent):
    whole = committed(registry, 1).decisions[0]
    assert whole == b"\x93\x01\x00\x80"
    decoder = RegistryDecoder(MAPPING, registry, "AVRO", avro_reader)
    with pytest.raises(CheckpointError, match="What was decided about schemas"):
        decoder.of_partition(bent, decided_until=5)


def test_a_schema_that_a_later_version_refuses_is_no_crash(registry):
    registry.says = {1: AB}
    pipeline = committed(registry, 1)
    found = pipeline.decisions[0].replace(b'"long"', b'"lung"')
    assert found != pipeline.decisions[0]
    decoder = RegistryDecoder(MAPPING, registry, "AVRO", avro_reader)
    outcome = decoder.of_partition(found, decided_until=1).decode(pipeline.records[0][0])
    assert "schema id 1 cannot be used" in outcome.reason
