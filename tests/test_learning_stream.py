"""Learning in the engine: the three laws with answers between events, and changed decisions."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from fractions import Fraction
from functools import cache

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rejex_stream.detectors import make_detector
from rejex_stream.encode import decode_verdict, encode_verdict
from rejex_stream.engine import Engine
from rejex_stream.errors import CheckpointError, ConfigError
from rejex_stream.learning import LearningSpec
from rejex_stream.rejection.audit_sampling import KeyedSampler
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.run.review_items import AuditDraw
from rejex_stream.types import (
    Command,
    CommandKind,
    EventAnswer,
    Label,
    Position,
    Reading,
    Reason,
    in_mode,
    is_ranked,
)
from tests.streams import ROLLING, readings, spec
from tests.test_governor import overspent
from tests.test_shared_budgets import Itself, sent

FEED = readings(900)
FEW = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
LEARNING = LearningSpec(rate=0.5, alpha=0.5, patience=80, sampler=KeyedSampler(b"secret"))
RIVER = make_detector("HalfSpaceTrees", n_trees=3, height=4, window_size=20)
PIPELINES = {
    "batch": replace(spec(evidence=True), learning=LEARNING, sampler=LEARNING.sampler),
    "rolling": replace(spec(features=ROLLING), learning=LEARNING, sampler=LEARNING.sampler),
    "incremental": replace(spec(RIVER), learning=LEARNING, sampler=LEARNING.sampler),
    "budget": replace(
        spec(evidence=True, rate=0.1, burst=3), learning=LEARNING, sampler=LEARNING.sampler
    ),
    "shared": replace(
        spec(rate=0.1, burst=3, owner="partition"), learning=LEARNING, sampler=LEARNING.sampler
    ),
}
every_pipeline = pytest.mark.parametrize("name", PIPELINES)


def answers(verdict, said):
    return Command(
        id=f"c-{verdict.position.offset}-{said}", kind=CommandKind.ANSWERS,
        stream_key=verdict.stream_key, answers=(EventAnswer(verdict.position, said),),
    )  # fmt: skip


def judges(key, who, id_):
    return Command(id=id_, kind=CommandKind.JUDGE, stream_key=key, judge=who)


@cache
def told(name):
    """Verdicts one by one, and by offset the commands that were obeyed before that event.

    People answer 30 events later, mostly and in their own order, and not always sure.
    """
    rng, engine = random.Random(7), Engine(PIPELINES[name], InlineExecutor())
    commands, verdicts, replies = {}, [], []
    for i, reading in enumerate(FEED):
        now = commands.setdefault(i, [])
        if i >= 30:
            asked = verdicts[i - rng.randrange(1, 30)]
            if asked.learning and asked.learning.asked:
                spike = max(FEED[asked.position.offset].values) > 3
                said = rng.choice(["anomaly" if spike else "normal"] * 5 + ["unsure"])
                now.append(answers(asked, said))
        if i == 650:
            times = {"from_ms": 660_000, "until_ms": 720_000}
            now.append(Command(id="p", kind=CommandKind.PLANNED, **times))
        if i in (730, 840):
            now.append(judges("b", "challenger" if i == 730 else "champion", f"j-{i}"))
        replies += [engine.command(command) for command in now]
        verdicts += engine.process([reading])
    return verdicts, commands, replies


def play(engine, commands, start, stop):
    """Process events up to `stop`, batches cut where commands hold."""
    verdicts = []
    while start < stop:
        for command in commands.get(start, ()):
            engine.command(command)
        end = next((i for i in range(start + 1, stop) if commands.get(i)), stop)
        verdicts += engine.process(FEED[start:end])
        start = end
    return verdicts


@every_pipeline
def test_the_feed_meets_all_that_learning_can_do(name):
    verdicts, _, replies = told(name)
    learned = [verdict.learning for verdict in verdicts if verdict.learning]
    assert {one.judge for one in learned} == {"champion", "challenger"}
    assert {one.asked for one in learned} == {None, "teach", "measure"}
    assert sum(one.other not in (None, v.label) for v in verdicts if (one := v.learning)) > 20
    assert {reply.accepted for reply in replies} == {True, False}
    assert sum(verdict.planned for verdict in verdicts) == 60
    assert not any(verdict.learning for verdict in verdicts if verdict.planned)


@pytest.mark.thorough
@every_pipeline
@FEW
@given(seed=st.integers(0, 10**6))
def test_batches_change_no_verdict(name, seed):
    rng, engine = random.Random(seed), Engine(PIPELINES[name], InlineExecutor())
    expected, commands, _ = told(name)
    found, at = [], 0
    while at < len(FEED):
        end = min(len(FEED), at + rng.choice([1, 2, 33, 400]))
        found += play(engine, commands, at, end)
        at = end
    assert found == expected


@pytest.mark.thorough
@every_pipeline
@FEW
@given(seed=st.integers(0, 10**6))
def test_a_crash_anywhere_changes_no_verdict(name, seed):
    rng = random.Random(seed)
    expected, commands, _ = told(name)
    found, done, engine = {}, 0, Engine(PIPELINES[name], InlineExecutor())
    kept = 0, engine.snapshot()
    while done < len(FEED):
        end = min(len(FEED), done + rng.choice([1, 3, 40, 150]))
        for verdict in play(engine, commands, done, end):
            assert found.setdefault(verdict.position, verdict) == verdict
        done = end
        if rng.random() < 0.3:
            kept = done, engine.snapshot()
        if rng.random() < 0.25:
            engine, done = Engine(PIPELINES[name], InlineExecutor()), kept[0]
            engine.restore(kept[1])
    assert list(found.values()) == expected


def test_a_snapshot_at_every_cut_goes_on_the_same():
    expected, commands, _ = told("batch")
    engine, again = Engine(PIPELINES["batch"], InlineExecutor()), None
    for at in range(0, len(FEED), 9):
        end = min(len(FEED), at + 9)
        blob = engine.snapshot()
        again = Engine(PIPELINES["batch"], InlineExecutor())
        again.restore(blob)
        assert again.snapshot() == blob
        assert play(again, commands, at, end) == expected[at:end]
        play(engine, commands, at, end)


def test_streams_that_leave_memory_come_back_with_what_they_learnt():
    expected, commands, _ = told("batch")
    engine = Engine(PIPELINES["batch"], InlineExecutor(), idle={}, max_live_streams=1)
    assert play(engine, commands, 0, len(FEED)) == expected


# -------------------------------------------------------------------------------- the verdicts
def test_without_learning_nothing_of_it_is_written():
    plain = Engine(spec(), InlineExecutor()).process(FEED)
    assert not any(verdict.learning for verdict in plain)
    assert not any(b'"learning"' in encode_verdict(verdict) for verdict in plain)


@every_pipeline
def test_while_the_champion_speaks_its_verdicts_are_those_without_learning(name):
    verdicts, commands, _ = told(name)
    engine = Engine(replace(PIPELINES[name], learning=None), InlineExecutor())
    plain = play(engine, commands, 0, len(FEED))
    spoke = [(one.learning.judge if one.learning else "champion") for one in verdicts]
    if name in ("budget", "shared"):  # who speaks spends from there on
        n = spoke.index("challenger")
        assert n > 200
        verdicts, plain, spoke = verdicts[:n], plain[:n], spoke[:n]
    for with_, without, judge in zip(verdicts, plain, spoke, strict=True):
        there = replace_label(with_, without) if judge == "challenger" else with_
        assert encode_verdict(bare(there)) == encode_verdict(without)


def bare(verdict):
    return msgspec.structs.replace(verdict, learning=msgspec.UNSET)


def replace_label(verdict, other):
    if verdict.label is not Label.REJECTED:
        assert verdict.reason is None
    elif other.label is not Label.REJECTED:
        assert verdict.reason is Reason.AMBIGUOUS
    assert other.label is (verdict.learning.other or verdict.label)
    return msgspec.structs.replace(verdict, label=other.label, reason=other.reason)


@every_pipeline
def test_what_is_written_can_be_read(name):
    verdicts, _, _ = told(name)
    for verdict in verdicts:
        if verdict.learning:
            assert decode_verdict(encode_verdict(verdict)).learning == verdict.learning


def test_rejected_events_teach_and_what_measures_is_drawn_and_known_to_the_audit():
    draw = AuditDraw(key=b"secret", differ_rate=LEARNING.rate)
    verdicts, _, _ = told("batch")
    measured = 0
    for verdict in verdicts:
        learned = verdict.learning
        if not learned:
            continue
        differs = learned.other not in (None, verdict.label)
        drawn = differs and LEARNING.sampler.is_drawn(verdict.position, LEARNING.rate)
        rejected = verdict.label is Label.REJECTED
        if learned.other is None:
            assert learned.asked is None
        else:
            assert learned.asked == ("measure" if drawn else "teach" if rejected else None)
        if drawn and not rejected:
            assert draw.audit(verdict).p == LEARNING.rate
            measured += 1
        elif not rejected:
            assert draw.audit(verdict) is None or not draw.audit(verdict).drawn
    assert measured > 5


def test_values_of_any_size_are_judged():
    huge = [
        one._replace(values=(one.values[0] * 10.0 ** (i % 140), 1e-300 * (i % 3)))
        for i, one in enumerate(readings(700, keys=("a",), missing=0.0))
    ]
    engine = Engine(PIPELINES["batch"], InlineExecutor())
    with np.errstate(all="raise", under="ignore"):
        verdicts = engine.process(huge)
        for verdict in verdicts:
            if verdict.learning and verdict.learning.asked:
                engine.command(answers(verdict, "normal"))
        engine.process([one._replace(event_time_ms=one.event_time_ms + 10**6) for one in huge])


# -------------------------------------------------------------------------------- the decision
def later(was, now, at=600):
    """Verdicts by `now` after a snapshot of `was` at an event."""
    first, second = Engine(was, InlineExecutor()), Engine(now, InlineExecutor())
    first.process(FEED[:at])
    second.restore(first.snapshot())
    return second.process(FEED[at:])


def test_learning_can_be_switched_on_and_begins_then():
    on = PIPELINES["batch"]
    verdicts = later(replace(on, learning=None), on)
    learned = [verdict.learning for verdict in verdicts if verdict.learning]
    assert learned[0].other is None
    assert {one.judge for one in learned} == {"champion"}
    assert learned[-1].other is not None


def test_learning_can_be_switched_off():
    on = PIPELINES["batch"]
    off = replace(on, learning=None)
    assert later(on, off) == Engine(off, InlineExecutor()).process(FEED)[600:]


def test_another_way_of_learning_begins_anew_and_the_same_goes_on():
    on = PIPELINES["batch"]
    other = replace(on, learning=replace(LEARNING, patience=81))
    assert next(v.learning for v in later(on, other) if v.learning).other is None
    assert next(v.learning for v in later(on, on) if v.learning).other is not None


def test_a_decision_that_learning_does_not_depend_on_leaves_what_was_learnt():
    expected, commands, _ = told("batch")
    engine = Engine(PIPELINES["batch"], InlineExecutor())
    before = play(engine, commands, 0, 600)
    engine.decide(engine.spec.decision._replace(evidence=False))
    after = play(engine, commands, 600, len(FEED))
    bare_ = [msgspec.structs.replace(verdict, evidence=None) for verdict in expected[600:]]
    assert (before, after) == (expected[:600], bare_)


def test_draws_of_a_key_that_is_gone_cannot_be_repeated():
    on = PIPELINES["batch"]
    coin = KeyedSampler(b"another")
    with pytest.raises(CheckpointError, match="another audit key"):
        later(on, replace(on, learning=replace(LEARNING, sampler=coin), sampler=coin))
    assert b"secret" not in Engine(on, InlineExecutor()).snapshot()


def test_impossible_numbers_are_refused():
    with pytest.raises(ConfigError, match="probabilities above 0"):
        replace(spec(), learning=replace(LEARNING, rate=0.0))


# ------------------------------------------------------------------------- a budget that is held
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 10**6), greed=st.floats(0.7, 1))
@pytest.mark.parametrize("owner", ["stream", "partition"])
def test_champion_and_challenger_spend_one_credit_whoever_speaks(owner, seed, greed):
    """The theorem, for an adversary who knows the credit and changes who speaks at will."""
    rng = np.random.default_rng(seed)
    recipe = spec(Itself(), rate=0.05, burst=4, owner=owner)
    engine = Engine(replace(recipe, learning=LEARNING, sampler=LEARNING.sampler), InlineExecutor())
    said = []
    for i in range(2500):
        value = sent(engine, "a", greed, rng)
        reading = Reading("a", "a", i, (value, rng.random()), Position("t", 0, i))
        (verdict,) = engine.process([reading])
        if is_ranked(verdict):
            said.append(verdict)
        if verdict.learning and verdict.learning.asked:
            engine.command(answers(verdict, str(rng.choice(["anomaly", "normal"]))))
        if rng.random() < 0.02:
            engine.command(judges("a", str(rng.choice(["champion", "challenger"])), f"j{i}"))
    rejected = [verdict.label is Label.REJECTED for verdict in said]
    assert overspent(rejected, [Fraction("0.05")] * len(said)) <= 4
    spoke = {v.learning.judge for v, is_rejected in zip(said, rejected, strict=True)
             if is_rejected and v.learning}  # fmt: skip
    assert spoke == {"champion", "challenger"}
    credit, bucket = Fraction(4), engine._live["a"]._judge._bucket
    for is_rejected in rejected:  # only what was published has cost anything
        credit = min(Fraction(4), credit + Fraction("0.05")) - is_rejected
    assert Fraction(bucket.credit, bucket.cost_per_rejection) == credit


# -------------------------------------------------------------------------------- the commands
def test_a_stream_without_challenger_says_so():
    engine = Engine(PIPELINES["batch"], InlineExecutor())
    verdicts = engine.process(FEED[:100])
    reply = engine.command(judges("a", "challenger", "j"))
    assert not reply.accepted
    assert "before 60 more events" in reply.said
    assert not engine.command(answers(verdicts[-1], "normal")).accepted
    plain = Engine(spec(), InlineExecutor())
    plain.process(FEED[:100])
    assert "learning.enabled" in plain.command(judges("a", "challenger", "j")).said
    assert plain.command(judges("nobody", "challenger", "j")) is None


def test_who_speaks_already_is_not_changed_and_who_is_changed_begins_anew():
    engine = Engine(PIPELINES["batch"], InlineExecutor())
    verdicts = engine.process(FEED[:700])
    before = engine.snapshot()
    assert engine.command(judges("a", "champion", "j")).accepted
    assert engine.snapshot() == before
    measured = [v for v in verdicts if v.stream_key == "a" and v.learning]
    measured = [v for v in measured if v.learning.asked == "measure"][-1]
    assert engine.command(judges("a", "challenger", "j")).accepted
    reply = engine.command(answers(measured, "normal"))
    assert not reply.accepted, "the evidence was begun again without it"


def test_an_answer_finds_the_mode_that_was_asked():
    feed = [one._replace(stream_key=in_mode(one.stream_key, "xy"[i % 2]))
            for i, one in enumerate(readings(1_200, keys=("a",), missing=0.0))]  # fmt: skip
    recipe = replace(spec(modes=True), learning=LEARNING, sampler=LEARNING.sampler)
    engine = Engine(recipe, InlineExecutor())
    asked = {v.mode: v for v in engine.process(feed) if v.learning and v.learning.asked}
    assert len(asked) == 2
    for verdict in asked.values():
        assert verdict.stream_key == "a"
        assert engine.command(answers(verdict, "normal")).accepted


def test_who_is_not_sure_teaches_nothing():
    engine = Engine(PIPELINES["batch"], InlineExecutor())
    verdicts = [one for one in engine.process(FEED[:700]) if one.learning]
    late = [one for one in verdicts if one.learning.asked == "teach"][-1]
    other = Engine(PIPELINES["batch"], InlineExecutor())
    other.restore(engine.snapshot())
    engine.command(answers(late, "unsure"))
    plain, taught = ([v.learning for v in e.process(FEED[700:])] for e in (engine, other))
    assert plain == taught


def test_an_answer_counts_once_and_in_time():
    engine = Engine(PIPELINES["batch"], InlineExecutor())
    verdicts = [one for one in engine.process(FEED[:700]) if one.learning and one.learning.asked]
    early = next(one for one in verdicts if one.learning.asked == "teach")
    late = verdicts[-1]
    assert not engine.command(answers(early, "normal")).accepted
    first, again = engine.command(answers(late, "normal")), engine.command(answers(late, "normal"))
    assert first.accepted
    assert first.said.startswith("1 teach" if late.learning.asked == "teach" else "0 teach, 1 mea")
    assert not again.accepted


@pytest.mark.thorough
def test_shuffled_answers_do_not_take_over():
    took = []
    for seed in range(10):
        rng, feed = random.Random(seed), readings(2_000, keys=("a",), seed=seed, missing=0.0)
        engine = Engine(
            replace(spec(), learning=LearningSpec(rate=0.5, sampler=KeyedSampler(b"%d" % seed))),
            InlineExecutor(),
        )
        judged = []
        for reading in feed:
            judged += engine.process([reading])
            learned = judged[-1].learning
            if learned and learned.asked:
                engine.command(answers(judged[-1], rng.choice(["normal"] * 4 + ["anomaly"])))
        took.append(any(v.learning and v.learning.judge == "challenger" for v in judged))
    assert sum(took) <= 1


def test_an_event_that_lacks_a_channel_is_the_champions_alone():
    recipe = replace(spec(make_detector("Sensor")), learning=LEARNING, sampler=LEARNING.sampler)
    feed = readings(900, keys=("a",), missing=0.1)
    verdicts = Engine(recipe, InlineExecutor()).process(feed)
    partial = [v for r, v in zip(feed, verdicts, strict=True) if v.score is not None
               and any(map(math.isnan, r.values))]  # fmt: skip
    assert sum(bool(v.learning) for v in verdicts) > 300
    assert len([v for v in partial if not v.learning]) > 10
