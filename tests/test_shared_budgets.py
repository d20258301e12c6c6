"""A budget that streams share: the theorem for every owner, in the order of the partition."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine
from rejex_stream.engine.engine import Decision
from rejex_stream.errors import CheckpointError, ConfigError
from rejex_stream.rejection import token_bucket
from rejex_stream.rejection.judge import Judge
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.rejection.token_bucket import Credits, TokenBucket
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Position, Reading, in_mode, is_ranked
from tests.doubles import DelayedExecutor
from tests.streams import FirstColumn, readings, spec, stream_of
from tests.test_governor import Adversary, overspent

KEYS = ("north/a", "north/b", "south/a", "alone")
OWNERS = {
    "stream": lambda key: key,
    "group": lambda key: key.rpartition("/")[0] or key,
    "partition": lambda key: "",
}
FEW = settings(max_examples=5, deadline=None)


def engine(owner, *, burst=1, rate=0.1, live=None, **more):
    recipe = spec(rate=rate, burst=burst, owner=owner, **more)
    idle = None if live is None else {}
    return Engine(recipe, InlineExecutor(), idle=idle, max_live_streams=live)


def cut(made, feed, cuts):
    edges = [0, *cuts, len(feed)]
    return [verdict for a, b in pairwise(edges) for verdict in made.process(feed[a:b])]


cuts_of = st.lists(st.integers(0, 800), max_size=8).map(sorted)


# ------------------------------------------------------------------------------ the theorem
@pytest.mark.parametrize("owner", OWNERS)
@FEW
@given(
    rate=st.floats(0.02, 0.08).map(lambda x: round(x, 3)), burst=st.integers(1, 20),
    greed=st.floats(0, 1), seed=st.integers(0, 10**6),
)  # fmt: skip
def test_no_stretch_of_an_owner_s_events_has_more_than_rate_times_length_plus_burst(
    owner, rate, burst, greed, seed
):
    policy = RejectionPolicy(0.1, rate=rate, burst=burst, owner=owner)
    rng, shared, players = np.random.default_rng(seed), {}, {}
    for key in KEYS:
        name = policy.shared_by(key)
        if name is not None:
            shared.setdefault(name, TokenBucket(policy, is_shared=True))
        judge = Judge(policy, 200, shared.get(name))
        judge.replace_window(rng.random(150))
        players[key] = judge, Adversary(judge, greed, rng)
    said = {}
    for i in range(900):
        key = KEYS[rng.integers(len(KEYS))]
        judge, adversary = players[key]
        verdicts = [None]
        reading = Reading(key, key, i, (0.0,), Position("t", 0, i))
        judge.judge([reading], [0], [adversary.score()], verdicts, seq=i, epoch=0)
        said.setdefault(OWNERS[owner](key), []).extend(filter(is_ranked, verdicts))
    for verdicts in said.values():
        rejected = [verdict.label == "rejected" for verdict in verdicts]
        assert overspent(rejected, [Fraction(repr(rate))] * len(rejected)) <= burst
        assert sum(rejected) >= 0.5 * rate * len(rejected)
    assert len(said) == {"stream": 4, "group": 3, "partition": 1}[owner]


def sent(made, key, greed, rng):
    """Return what hurts a stream of an engine most, as the adversary of one judge does."""
    state = made._live.get(key)
    if state is None or state._judge._rank_tables is None or rng.random() > greed:
        return rng.random()
    return Adversary(state._judge, 0.0, rng).score()


def restarted(made, recipe):
    other = Engine(recipe, InlineExecutor())
    was = other.restore(made.snapshot()).was
    if was != recipe.decision:
        other.decide(was)  # what the log has left is replayed as it was judged
        other.decide(recipe.decision)
    return other


@pytest.mark.thorough
@pytest.mark.parametrize("owner", ["stream", "group"])
@pytest.mark.parametrize("modes", [1, 3])
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 10**6), greed=st.floats(0.5, 1))
def test_no_sensor_has_more_through_modes_forgetting_restarts_and_other_budgets(
    owner, modes, seed, greed
):
    """The theorem for an adversary who also chooses modes, and when it is silent for long."""
    budget = {"rate": 0.05, "burst": 6, "owner": owner}
    rng, name = np.random.default_rng(seed), "north/a"
    recipe = spec(FirstColumn(), modes=True, **budget)
    made, said = Engine(recipe, InlineExecutor()), []
    for i in range(1500):
        key = in_mode(name, f"m{rng.integers(modes)}")
        value = sent(made, key, greed, rng)
        at = Position("t", 0, i)
        (verdict,) = made.process([Reading(key, name, i, (value, 0.0), at)])
        if is_ranked(verdict):
            said.append((verdict.label == "rejected", Fraction(repr(budget["rate"]))))
        if rng.random() < 0.0015:
            for each in made.streams():
                made.forget(each)
        if rng.random() < 0.001:
            made.forget(key)
        if rng.random() < 0.003:
            made = restarted(made, recipe)
        if rng.random() < 0.002:
            budget |= {"rate": float(rng.choice([0.02, 0.05])), "burst": int(rng.choice([2, 6]))}
            recipe = spec(FirstColumn(), modes=True, **budget)
            made = restarted(made, recipe)
    assert overspent(*zip(*said, strict=True)) <= 6
    assert any(rejected for rejected, _ in said), "nothing was at stake"


@pytest.mark.parametrize("owner", ["stream", "group", "partition"])
def test_a_sensor_that_comes_back_finds_the_credit_it_left(owner, monkeypatch):
    """Also where so many have come and gone that they are known by drawers alone."""
    monkeypatch.setattr(token_bucket, "MAX_GONE", 4)
    monkeypatch.setattr(token_bucket, "N_OVERFLOW_BUCKETS", 2)
    made, rng = engine(owner, detector=FirstColumn(), burst=6, rate=0.05), np.random.default_rng(1)
    said, sizes = {}, set()
    for i in range(3 * 12 * 150):
        name = f"g{i // 150 % 12}/a"  # each is there for 150 events, then for long not
        value = sent(made, name, 1.0, rng)
        verdict = made.process([Reading(name, name, i, (value, 0.0), Position("t", 0, i))])[0]
        if is_ranked(verdict):
            said.setdefault(OWNERS[owner](name), []).append(verdict.label == "rejected")
        if i % 150 == 149:
            made.forget(name)
            sizes.add(len(made._credits.state()))
            if i % 7 == 0:
                made = restarted(made, made.spec)
    for rejected in said.values():
        assert overspent(rejected, [Fraction("0.05")] * len(rejected)) <= 6
        assert sum(rejected) >= 6
    assert max(sizes) <= 4 + 2 + (owner == "partition")


def test_who_has_spent_nothing_leaves_nothing():
    made = engine("stream", burst=6)
    for i in range(40):
        made.process([Reading(f"s{i}", "s", i, (0.0, 0.0), Position("t", 0, i))])
        made.forget(f"s{i}")
    assert made._credits.state() == {}


def test_what_the_last_to_leave_knew_is_no_newer_than_the_credit_it_shared():
    """The last was idle since before another one spent: its own credit is an old one."""
    policy = RejectionPolicy(0.1, rate=0.1, burst=3, owner="partition")
    credits = Credits(policy)
    for name in "ab":
        credits.register(name)
    before = credits.of("b").state()
    for i in range(2):
        credits.of("a").allow(100, "a", i)
        credits.of("a").spend()
    spent = credits.of("a").state()
    credits.release("a", spent)
    credits.release("b", before)
    assert credits.of("c").state() == spent


# ----------------------------------------------------------------------------- the three laws
FEW_TREES = {"n_trees": 2, "window_size": 20, "warm_up_events": 30, "scale_events": 20}
TREES = make_detector("HalfSpaceTrees", **FEW_TREES)


@pytest.mark.thorough
@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("more", [{"guard": 0.9}, {"detector": TREES, "evidence": True}])
@FEW
@given(seed=st.integers(0, 99), cuts=cuts_of)
def test_no_cut_changes_a_verdict(owner, more, seed, cuts):
    feed = readings(800, KEYS, seed=seed, stuck=30)
    one_by_one = cut(engine(owner, **more), feed, range(1, 800))
    assert cut(engine(owner, **more), feed, cuts) == one_by_one
    said = Counter(verdict.withheld for verdict in one_by_one if is_ranked(verdict))
    assert said[True] > 0, "nothing was at stake"


@pytest.mark.thorough
@pytest.mark.parametrize("owner", ["group", "partition"])
@FEW
@given(seed=st.integers(0, 99), at=st.integers(300, 799), live=st.sampled_from([None, 1, 2]))
def test_a_crash_leaves_the_credit_where_it_was_whoever_is_idle(owner, seed, at, live):
    feed = readings(800, KEYS, seed=seed)
    whole = engine(owner, live=live)
    before = whole.process(feed[:at])
    blob = whole.snapshot()
    after = whole.process(feed[at:])
    other = engine(owner, live=live)
    other.process(feed)  # a credit of its own, newer by its count, which is dropped
    other.restore(blob)
    assert other.process(feed[at:]) == after
    assert before + after == engine(owner).process(feed)


def test_streams_kept_at_different_times_know_the_newest_credit_together():
    feed = readings(800, KEYS)
    whole = engine("partition")
    kept = {}
    for reading in feed[:600]:  # every stream is kept when it was last heard of, and not again
        whole.process([reading])
        kept[reading.stream_key] = stream_of(whole, reading.stream_key)
    wanted = whole.process(feed[600:])
    for last in KEYS:  # whichever of them comes back after the one that was heard of last
        other = engine("partition")
        streams = {key: kept[key] for key in sorted(KEYS, key=lambda key: key == last)}
        other.restore_streams(other.head(), streams)
        assert other.process(feed[600:]) == wanted, last


@pytest.mark.parametrize("last", KEYS)
def test_whoever_wakes_first_knows_the_newest_credit(last):
    whole = engine("partition", live=1)
    feed = readings(400, KEYS)
    for reading in feed:  # whoever is put away is so with the credit of that moment
        whole.process([reading])
    at = max(i for i, reading in enumerate(feed) if reading.stream_key == last)
    whole.process([feed[at]._replace(position=Position("t", 0, 400))])
    kept = {}
    for key in sorted(KEYS, key=lambda key: key == last):  # the first of them wakes
        kept[key] = stream_of(whole, key)
    other = engine("partition", live=1)
    other.restore_streams(whole.head(), kept)
    assert other._credits.of("alone").state() == whole._credits.of("alone").state()


# --------------------------------------------------------------------------- other decisions
@pytest.mark.parametrize(("was", "now"), [
    ({"owner": "partition"}, {"owner": "stream"}), ({"owner": "stream"}, {"owner": "group"}),
    ({"owner": "stream", "burst": 30}, {"burst": 2}),
    ({"owner": "partition", "burst": 30}, {"owner": "partition", "burst": 2}),
    ({"owner": "stream"}, {"burst": None}),
])  # fmt: skip
def test_a_replay_by_the_decision_that_was_finds_the_credit_that_was(was, now):
    feed = readings(800, KEYS)
    whole = Engine(spec(rate=0.1, **{"burst": 3} | was), InlineExecutor())
    whole.process(feed[:400])
    other = Engine(spec(rate=0.1, **{"burst": 3} | now), InlineExecutor())
    said = other.restore(whole.snapshot())
    other.decide(said.was)
    assert other.process(feed[400:]) == whole.process(feed[400:])


@pytest.mark.parametrize("live", [None, 1])
def test_another_rate_takes_the_shared_credit_along_and_another_owner_begins_anew(live):
    feed, made = readings(800, KEYS), engine("partition", live=live, burst=8)
    made.process(feed)
    shared = made._credits.of("alone")
    credit = shared.credit / shared.cost_per_rejection
    assert 0 <= credit < 8
    half = RejectionPolicy(0.2, rate=0.05, burst=8, owner="partition")
    made.decide(Decision(half, evidence=False))
    shared = made._credits.of("alone")
    assert shared.credit / shared.cost_per_rejection == pytest.approx(credit, abs=1 / 20)
    made.decide(Decision(RejectionPolicy(0.2, rate=0.05, burst=4, owner="group"), evidence=False))
    made.process(feed[-30:])
    assert all(made._credits.of(key).events_seen > 0 for key in ("north/a", "south/a"))


@pytest.mark.thorough
def test_a_decision_gives_nothing_back_of_what_a_forgotten_stream_has_spent():
    made = engine("partition", live=1)
    feed = readings(800, KEYS)
    for reading in feed:
        made.process([reading])
    spent = made._credits.of("alone").state()
    made.forget(feed[-1].stream_key)  # the others were put away with an older credit
    made.decide(Decision(made.spec.policy, evidence=False))
    assert made._credits.of("alone").state() == spent


def test_a_fit_that_is_waited_for_comes_before_any_verdict_all_the_same():
    feed = readings(600, KEYS)
    made = Engine(spec(rate=0.1, burst=1, owner="partition"), DelayedExecutor(seed=5))
    done, said = 0, []
    while done < len(feed):
        ready = made.ready(feed[done : done + 70])
        said += made.process(feed[done : done + ready])
        done += ready
    assert said == engine("partition").process(feed)


# ------------------------------------------------------------------------------ what is refused
@pytest.mark.parametrize("credit", [["-1", "20", None], ["1", "0", None], [1, 2, "x", 4, 5, 6]])
def test_a_credit_that_is_none_is_no_snapshot(credit):
    policy = RejectionPolicy(0.1, rate=0.1, burst=3, owner="partition")
    shared = Credits(policy)
    with pytest.raises(CheckpointError, match="The credit in a snapshot is none"):
        shared.rebuild(policy, ["a"], [("a", credit)], is_lazy=True)
    with pytest.raises(CheckpointError, match="The credit in a snapshot is none"):
        shared.load({"": credit})


@pytest.mark.parametrize(("more", "words"), [
    ({"rate": 0.1, "burst": 3, "owner": "team"}, "owner = 'team' is unknown: use stream, group"),
    ({"rate": 0.1, "owner": "group"}, "owner = 'group' belongs to a budget that holds"),
    ({"tolerance": 4, "owner": "partition"}, "belongs to a budget that holds: give a burst"),
])  # fmt: skip
def test_owners_that_cannot_be_are_refused(more, words):
    with pytest.raises(ConfigError, match=words):
        RejectionPolicy(0.1, **more)


def test_a_credit_of_another_owner_says_nothing():
    def credit(owner, spent, *, is_shared):
        bucket = TokenBucket(
            RejectionPolicy(0.1, rate=0.1, burst=9, owner=owner), is_shared=is_shared
        )
        for _ in range(spent):
            bucket.allow(200, "s", 0)
            bucket.spend()
        return bucket

    own, group = credit("partition", 0, is_shared=True), credit("group", 5, is_shared=True)
    alone = credit("stream", 5, is_shared=False)
    for other in (group, alone):
        own.restore(other.state())
        assert own.credit == own.capacity
    own.restore(credit("partition", 5, is_shared=True).state())
    assert own.credit < own.capacity
    alone.restore(group.state())
    assert alone.state() == credit("stream", 5, is_shared=False).state()
