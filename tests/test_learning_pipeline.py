"""Answers through the control log: whatever crashes, the outcomes are those of a quiet run."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from rejex_stream.decode import JsonDecoder
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.encode import decode_command, encode_command
from rejex_stream.engine import Engine
from rejex_stream.errors import ConnectorError
from rejex_stream.learning import LearningSpec
from rejex_stream.operate.run_metrics import RunMetrics
from rejex_stream.rejection.audit_sampling import KeyedSampler
from rejex_stream.run.loop import RunSettings, run
from rejex_stream.run.review_items import AuditDraw
from rejex_stream.types import Command, CommandKind, EventAnswer, Partition, Position, Record
from tests.doubles import Crash, FakeClock, ListControl, ListSink, ListSource, MemorySnapshotStore
from tests.obedient import as_decided
from tests.streams import readings, spec

ONE = Partition("input", 0)
LEARNING = LearningSpec(rate=0.5, alpha=0.5, patience=150, sampler=KeyedSampler(b"secret"))
RECIPE = replace(spec(), learning=LEARNING, sampler=LEARNING.sampler)
HELD = replace(spec(rate=0.15, burst=8), learning=LEARNING, sampler=LEARNING.sampler)
FEED = [
    b'{"id": "%b", "t": %d, "x": %.3f, "y": %.3f}' % (one.stream_key.encode(), i, *one.values)
    for i, one in enumerate(readings(1_000, missing=0.0))
]
DECODER = JsonDecoder(FieldMapping(["x", "y"], sensor="id", time="t"))


class Answering(ListSource):
    """While records are polled, people answer what has become durable, each event once."""

    def __init__(self, script, control, sink):
        super().__init__(script, committed=sink.offsets)
        self.control, self.sink, self.seen, self.n = control, sink, 0, 0

    def poll(self, max_records, timeout_s):
        for outcome in self.sink.outcomes[self.seen :]:
            item = outcome.review
            if item is not None and item.verdict.learning and item.verdict.learning.asked:
                self._say(item)
        self.seen = len(self.sink.outcomes)
        return super().poll(max_records, timeout_s)

    def _say(self, item):
        verdict, self.n = item.verdict, self.n + 1
        said = "anomaly" if max(item.values) > 3 else "normal"
        fields = {"kind": CommandKind.ANSWERS, "answers": (EventAnswer(verdict.position, said),)}
        if self.n == 40:
            fields = {"kind": CommandKind.JUDGE, "judge": "challenger"}
        command = Command(id=f"c-{self.n}", stream_key=verdict.stream_key, **fields)
        self.control.lines.append(encode_command(command))


def play(source, sink, store, control, metrics=None, recipe=RECIPE, **knobs):
    clock = FakeClock(tick_s=0.01)
    run(
        source, sink, store, lambda partition, fits: Engine(recipe, fits), DECODER,
        settings=RunSettings(
            audit=AuditDraw(key=b"secret", differ_rate=LEARNING.rate),
            **{"commit_interval_s": 0.03, "max_poll_records": 20} | knobs,
        ),
        control=control, clock=clock, wait=clock.advance,
        observers=[] if metrics is None else [metrics],
    )  # fmt: skip


def undisturbed(control, sink, recipe):
    """Return what a run writes that has the same commands at the same offsets, and no trouble."""
    store, plain = MemorySnapshotStore(), ListSink()
    told = [(o.record.position.offset, reply.command) for o in sink.outcomes for reply in o.replies]
    said = [Record(Position("control", 0, n), None, word) for n, word in enumerate(control.lines)]
    store.journals[ONE] = as_decided(ONE, control.inputs, said, told, len(FEED))
    play(ListSource(FEED), plain, store, ListControl(), recipe=recipe, max_poll_records=1_000)
    return plain


@pytest.mark.thorough
@pytest.mark.parametrize("recipe", [RECIPE, HELD], ids=["tolerance", "budget"])
@pytest.mark.parametrize("seed", range(4))
def test_crashes_change_no_outcome(seed, recipe):
    rng, control, store = random.Random(seed), ListControl(), MemorySnapshotStore()
    sink = ListSink(
        rng.choices(["ok", "crash", "crash after", "fail", "ambiguous"], [4, 1, 1, 1, 1], k=40)
    )
    source, crashes = Answering(FEED, control, sink), 0
    while True:
        try:
            every = rng.choice([1, 60, 400])
            play(source, sink, store, control, recipe=recipe, snapshot_every_events=every)
            break
        except Crash:
            crashes += 1
    assert crashes > 3
    assert sink.outcomes == undisturbed(control, sink, recipe).outcomes
    learned = [o.verdict.learning for o in sink.outcomes if o.verdict.learning]
    assert {one.judge for one in learned} == {"champion", "challenger"}
    replies = [reply for o in sink.outcomes for reply in o.replies if reply.accepted]
    assert len(replies) > 30


def test_what_is_asked_is_sent_to_people_and_counted():
    control, sink = ListControl(), ListSink()
    metrics = RunMetrics("pump", RECIPE)
    play(Answering(FEED, control, sink), sink, MemorySnapshotStore(), control, metrics)
    for outcome in sink.outcomes:
        learned, item = outcome.verdict.learning, outcome.review
        if learned and learned.asked:
            assert item is not None
            audited = item.why == "audit"
            assert audited is (outcome.verdict.reason is None)
            assert item.drawn == (LEARNING.rate if audited else None)
    text = metrics.exposition().decode()
    counted = {
        line.split("{")[1].split("}")[0]: float(line.split()[-1])
        for line in text.splitlines()
        if line.startswith("rejex_challenged_events_total")
    }
    challenged = [
        o.verdict for o in sink.outcomes if o.verdict.learning and o.verdict.learning.other
    ]
    differ = [one for one in challenged if one.learning.other is not one.label]
    assert sum(counted.values()) == len(challenged)
    assert sum(n for names, n in counted.items() if 'differ="yes"' in names) == len(differ) > 10
    assert any('judge="challenger"' in names for names in counted)


# ------------------------------------------------------------------------------- the commands
@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b'{"id": "c", "kind": "judge", "judge": "champion"}', "does not say stream_key"),
        (b'{"id": "c", "kind": "judge", "stream_key": "a"}', "does not say judge"),
        (b'{"id": "c", "kind": "judge", "stream_key": "a", "judge": "me"}', "Invalid enum value"),
        (b'{"id": "c", "kind": "answers", "stream_key": "a"}', "0 answers of 0 partitions"),
        (b'{"id": "c", "kind": "answers", "stream_key": "a", "answers": '
         b'[[["t", 0, 1], "normal"], [["t", 1, 1], "normal"]]}', "2 answers of 2 partitions"),
        (b'{"id": "c", "kind": "answers", "stream_key": "a", "answers": [[["t", 0, 1], "?"]]}',
         "Invalid enum value"),
        (encode_command(Command(id="c", kind=CommandKind.ANSWERS, stream_key="a",
                                answers=(EventAnswer(Position("t", 0, 1), "normal"),) * 201)),
         "201 answers of 1 partitions: expected 1 to 200"),
    ],
)  # fmt: skip
def test_what_nobody_could_obey_is_refused(line, complaint):
    with pytest.raises(ConnectorError, match=complaint):
        decode_command(line)


def test_answers_concern_their_own_partition_alone():
    from rejex_stream.protocols import ControlRecords
    from rejex_stream.run.command_journal import CommandJournal

    for topic, who in (("input", 1), ("elsewhere", 0)):  # of no input of ours: the first replies
        command = Command(id="c", kind=CommandKind.ANSWERS, stream_key="a",
                          answers=(EventAnswer(Position(topic, 1, 5), "normal"),))  # fmt: skip
        record = Record(Position("control", 0, 0), None, encode_command(command))
        for number in (0, 1):
            journal = CommandJournal(Partition("input", number), None, ("input",))
            journal.ingest(ControlRecords([record], 1))
            assert journal.can_assign is (number == who)
