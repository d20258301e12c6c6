"""Evidence: the right channel is named, and the numbers are those of the verdict."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rejex_stream.demo.turbine import CHANNELS, simulate
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.explanation import Explainer
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import Feature, FeatureSpec
from rejex_stream.rejection.judge import Judge
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import ChannelEvidence, Label, Position, Reading, Reason
from tests.streams import of_rows, readings, spec
from tests.test_contract import INCIDENT

WINDOW, TRAIN = 600, 1000


def turbine_with_faults(faults=160, seed=5):
    """Readings of a healthy turbine, with one channel of single events pushed far off."""
    rng = np.random.default_rng(seed)
    values = simulate(seed=seed).values["WT-01"][: 17 * 144].copy()  # before its first fault
    spread = np.nanstd(values, axis=0)
    faulty = {}
    for i in rng.choice(np.arange(TRAIN + 50, len(values)), faults, replace=False):
        channel = int(rng.integers(len(CHANNELS)))
        values[i, channel] += rng.choice([-1, 1]) * rng.uniform(3, 5) * spread[channel]
        faulty[int(i)] = channel
    return of_rows(values, "WT-01", 600_000), faulty


def run(detector, features=()):
    made, faulty = turbine_with_faults()
    pipeline = EngineSpec(
        make_detector(detector), FeatureSpec(CHANNELS, features), RejectionPolicy(0.1, rate=0.05),
        window=WINDOW, evidence=True,
        schedule=RefitSchedule(first_fit_events=TRAIN, refit_every_events=None, refit_lag_events=0,
                               buffer_events=TRAIN),
    )  # fmt: skip
    verdicts = Engine(pipeline, InlineExecutor()).process(made)
    return verdicts, faulty


ROLLING = (
    *(Feature("raw", channel) for channel in CHANNELS), Feature("mean", "power_kw", events=6),
    Feature("difference", "gearbox_temp_c", events=1), Feature("hour_of_day"),
)  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("detector", "features"),
    [("GMM", ()), ("KNN", ()), ("IForest", ()), ("HBOS", ()), ("HalfSpaceTrees", ()),
     ("KNN", ROLLING), ("Sensor", ()), ("Sensor", ROLLING),
     ("SensorEnsemble", ROLLING)],
)  # fmt: skip
def test_the_faulty_channel_comes_first(detector, features):
    verdicts, faulty = run(detector, features)
    places = []
    for i, channel in faulty.items():
        evidence = verdicts[i].evidence
        if evidence is not None:
            names = [c.channel for c in evidence.channels]
            places.append(names.index(CHANNELS[channel]))
    assert len(places) >= 0.3 * len(faulty)  # KNN on raw units sees power above all
    assert np.mean([place == 0 for place in places]) >= 0.8
    assert np.mean([place <= 2 for place in places]) >= 0.95


def dependent_channels(count, seed=0):
    """Return readings of a load, and of a power and a temperature that follow it."""
    rng = np.random.default_rng(seed)
    load = np.convolve(rng.normal(size=count + 23), np.ones(24) / 4, "valid")
    power, temperature = 3 * load + rng.normal(0, 0.1, count), load + rng.normal(0, 0.3, count)
    return np.column_stack([load, power, temperature])


@pytest.mark.parametrize("detector", ["Sensor", "Mahalanobis", "SensorEnsemble"])
def test_of_channels_that_follow_each_other_the_one_that_left_them_is_named(detector):
    X = dependent_channels(3_000)
    high = np.flatnonzero(X[:2_900, 0] > 1.5)[-40:]
    X[high, 1] = 0.0  # a power within its usual, where the load is high
    names = ("load", "power", "temperature")
    made = of_rows(X, step_ms=600_000)
    pipeline = EngineSpec(
        make_detector(detector), FeatureSpec(names, preset="sensor"),
        RejectionPolicy(0.05, rate=0.05), window=WINDOW, evidence=True,
        schedule=RefitSchedule(first_fit_events=TRAIN, refit_every_events=None, refit_lag_events=0,
                               buffer_events=TRAIN),
    )  # fmt: skip
    found = Engine(pipeline, InlineExecutor()).process(made)
    cards = [found[i].evidence for i in high if found[i].evidence is not None]
    assert len(cards) > 30
    assert np.mean([card.channels[0].channel == "power" for card in cards]) > 0.9
    assert all(c.contribution >= 0 for card in cards for c in card.channels[:1])


@pytest.mark.thorough
@given(data=st.data())
@settings(max_examples=25)
def test_a_row_without_a_channel_scores_as_one_that_lacks_it(data):
    names = ("a", "b", "c", "d")
    spec = FeatureSpec(names, preset="sensor")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    columns = spec.channels_of_columns
    X = rng.normal(size=(500, len(columns))) @ rng.normal(size=(len(columns),) * 2)
    X = np.abs(X) if data.draw(st.booleans()) else X
    scorer = make_detector("Sensor").for_features(spec).fit(X[:400], seed=1)
    groups = [np.flatnonzero(np.array(columns) == name) for name in names]
    rows = X[400:408] * data.draw(st.sampled_from([0.0, 0.2, 1.0, 50.0]))
    gone = data.draw(st.sets(st.integers(0, 3), max_size=3))
    lacking = [j for name in gone for j in groups[name]]
    rows[np.ix_([1, 3], lacking)] = np.nan
    found = scorer.score_without(rows, groups)
    for row, scores in zip(rows, found, strict=True):
        assert scorer.score_without(row[None], groups)[0].tolist() == scores.tolist()
        for group, score in zip(groups, scores, strict=True):
            part = row.copy()
            part[group] = np.nan
            expected = scorer.score(part[None])[0] if np.isfinite(part).any() else 0.0
            assert score == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_of_an_incident_those_channels_speak_that_add_a_tenth_of_what_the_first_adds():
    added = {"a": 50.0, "b": 5.0, "c": 4.9, "d": 0.0, "e": -3.0, "f": None}
    channels = tuple(ChannelEvidence(name, one, None, None) for name, one in added.items())
    incident = msgspec.structs.replace(INCIDENT, channels=channels)
    assert [one.channel for one in incident.speaking] == ["a", "b"]
    nobody = msgspec.structs.replace(INCIDENT, channels=channels[3:])
    assert nobody.speaking == ()


def test_evidence_is_given_where_it_is_asked_for_and_only_there():
    verdicts, _ = run("KNN")
    for v in verdicts:
        wanted = v.label is Label.ANOMALY or v.reason is Reason.AMBIGUOUS
        assert (v.evidence is not None) == wanted
    (without,) = {v.evidence for v in Engine(spec(), InlineExecutor()).process(readings())}
    assert without is None


def test_the_numbers_of_the_evidence_are_those_of_the_verdict():
    verdicts, faulty = run("KNN")
    explained = [v for v in verdicts if v.evidence is not None]
    assert len(explained) > 100
    flips = 0
    for v in explained:
        card = v.evidence
        assert card.contamination == 0.1
        assert card.model_age_events == v.seq - TRAIN
        for c in card.channels:
            assert c.contribution == pytest.approx(v.score - c.score_without)
        contributions = [c.contribution for c in card.channels]
        assert contributions == sorted(contributions, reverse=True)
        if v.label is Label.ANOMALY:
            assert card.distance_ranks == v.rank - v.band_upper >= 1
        else:
            assert card.distance_ranks == min(v.rank - v.band_lower, v.band_upper - v.rank) + 1
        if card.flip is not None:
            (told,) = [c for c in card.channels if c.channel == card.flip]
            assert told.label_without is not v.label
            flips += 1
    assert flips > 50
    clear = [verdicts[i] for i in faulty if verdicts[i].label is Label.ANOMALY]
    assert np.mean([v.evidence.flip == CHANNELS[faulty[v.seq]] for v in clear]) > 0.7
    assert all(math.isfinite(v.evidence.distance_score) for v in explained)


@pytest.mark.parametrize("weight", [1.0, 0.25])
@pytest.mark.parametrize("detector", ["GMM", "Mahalanobis"])
def test_a_row_explained_alone_has_the_evidence_it_has_among_others(detector, weight):
    spec = FeatureSpec(("a", "b"))
    rows = np.random.default_rng(4).normal(20, 2, (300, 2))
    scorer = make_detector(detector).fit(rows[:200], seed=1)
    judge = Judge(RejectionPolicy(0.1, tolerance=4), 100)
    judge.calibrate(scorer.score(rows[100:200]).tolist())
    readings = [Reading("k", "k", i, tuple(r), Position("t", 0, i)) for i, r in enumerate(rows)]
    verdicts = [None] * 300
    judge.judge(
        readings, range(200, 300), scorer.score(rows[200:]).tolist(), verdicts, seq=0, epoch=0
    )
    explainer = Explainer(spec, 0.1)
    wanted = [i for i in range(200, 300) if explainer.wants(verdicts[i])]
    assert len(wanted) > 3

    class Model:
        def score(self, X):
            return scorer.score(X)

        def score_without(self, X, groups):
            return scorer.score_without(X, groups)

        def given_others(self, X, groups):
            return scorer.given_others(X, groups)

        def medians(self):
            return np.median(rows[:200], axis=0)

    Model.weight = weight

    def explained(which):
        found = [verdicts[i] for i in which]
        own = [rows[i].tolist() for i in which]
        return explainer.explain(found, own, Model(), which)

    assert [explained([i])[0] for i in wanted] == explained(wanted)


def test_a_channel_that_is_missing_says_nothing_and_the_others_are_compared_without_it():
    made = [r._replace(stream_key="s", sensor="s") for r in readings(900, missing=0.0)]
    for i in (700, 710, 720):
        made[i] = made[i]._replace(values=(30.0, math.nan))
        made[i - 1] = made[i - 1]._replace(values=(made[i - 1].values[0], math.nan))
    found = Engine(spec(make_detector("Sensor"), evidence=True), InlineExecutor()).process(made)
    for i in (700, 710, 720):
        x, y = found[i].evidence.channels
        assert found[i].label is Label.ANOMALY
        assert (x.channel, x.label_without) == ("x", Label.NORMAL)
        assert x.contribution > 0
        assert (y.channel, y.contribution, y.label_without) == ("y", None, None)


def inverter(n, rng):
    """Return ten-minute means: irradiance under clouds, an inverter's power, and its heat."""
    sun = np.maximum(0.0, np.sin(2 * np.pi * (np.arange(n) % 144) / 144 - np.pi / 2))
    clouds = np.exp(-np.abs(np.convolve(rng.normal(0, 0.4, n + 11), np.ones(12) / 4, "valid")))
    irradiance = 950 * sun * clouds + rng.normal(0, 3, n)
    power = 0.15 * irradiance + rng.normal(0, 2, n)
    heat = 18 + 0.03 * irradiance + rng.normal(0, 0.5, n)
    return np.column_stack([irradiance, power, heat])


def pump(n, rng):
    """Return what a pump moves at its speed, against which head, and the current it takes."""
    speed = 1_000 + 200 * np.tanh(np.convolve(rng.normal(size=n + 35), np.ones(36) / 4, "valid"))
    flow = 0.08 * speed + rng.normal(0, 0.4, n)
    head = 30 + 2e-5 * speed**2 + rng.normal(0, 0.3, n)
    current = 0.02 * speed + 0.05 * flow + rng.normal(0, 0.08, n)
    return np.column_stack([speed, flow, head, current])


PLANTS = {
    "an inverter trips at noon": (inverter, ("irradiance", "power", "heat"), "power", 0.0),
    "a pump's current is 8 % high": (pump, ("speed", "flow", "head", "current"), "current", 1.08),
}


def plant_run(X, channels, detector="Sensor"):
    made = of_rows(X, step_ms=600_000)
    pipeline = EngineSpec(
        make_detector(detector), FeatureSpec(channels, preset="sensor"),
        RejectionPolicy(0.05, rate=0.05), window=WINDOW, evidence=True,
        schedule=RefitSchedule(first_fit_events=2_000, refit_every_events=None, refit_lag_events=0,
                               buffer_events=2_000),
    )  # fmt: skip
    return Engine(pipeline, InlineExecutor()).process(made)


@pytest.mark.parametrize("detector", ["Sensor", "SensorEnsemble", "Mahalanobis"])
@pytest.mark.parametrize("plant", PLANTS)
def test_evidence_says_what_the_others_made_one_expect(plant, detector):
    make, channels, name, factor = PLANTS[plant]
    X, at, noon = make(3_000, np.random.default_rng(8)), channels.index(name), slice(2_805, 2_811)
    usual, healthy = np.quantile(X[:2_000, at], (0.025, 0.975)), X[noon, at].copy()
    X[noon, at] *= factor
    said = 0
    for verdict, should in zip(plant_run(X, channels, detector)[noon], healthy, strict=True):
        first, *others = verdict.evidence.channels
        assert first.channel == name  # the one that left the others
        assert not any(one.expected for one in others)  # which it would have belied
        if not first.expected:
            assert first.label_without is Label.ANOMALY
            continue
        said += 1
        given = first.expected
        assert given.read == X[verdict.seq, at]
        assert given.low < given.value < given.high
        assert given.low - given.value == pytest.approx(given.value - given.high)
        assert given.high - given.low < (usual[1] - usual[0]) / 2
        assert abs(given.value - should) < 1.5 * (given.high - given.value)
        assert not given.low <= given.read <= given.high
    assert said >= 3


@pytest.mark.parametrize("plant", PLANTS)
def test_nineteen_of_twenty_ordinary_readings_lie_in_the_likely_range(plant):
    make, channels, name, _ = PLANTS[plant]
    X, spec = make(5_000, np.random.default_rng(4)), FeatureSpec(channels, preset="sensor")
    rows, _ = spec.start_recent().extract(X.tolist())
    columns = np.array(spec.channels_of_columns)
    groups = [np.flatnonzero(columns == one) for one in channels]
    scorer = make_detector("Sensor").for_features(spec).fit(rows[:2_000], seed=0)
    found = scorer.given_others(rows[2_000:], groups)[:, channels.index(name)]
    read = X[-len(found) :, channels.index(name)]
    assert 0.92 < np.mean((found[:, 1] <= read) & (read <= found[:, 2])) < 0.98
    for i in (0, 7, 1_999):  # to the bit, whatever is scored with it
        alone = scorer.given_others(rows[2_000 + i : 2_001 + i], groups)
        assert alone[0, channels.index(name)].tolist() == found[i].tolist()


@pytest.mark.thorough
def test_where_several_are_at_fault_the_first_says_what_was_expected_all_the_same():
    make, channels, *_ = PLANTS["a pump's current is 8 % high"]
    X = make(3_000, np.random.default_rng(8))
    X[2_805:2_811, 1:] *= (0.8, 1.2, 1.2)  # no two of them go together
    said = 0
    for verdict in plant_run(X, channels)[2_805:2_811]:
        first, *others = verdict.evidence.channels
        if {one.label_without for one in (first, *others)} == {Label.ANOMALY}:
            said += bool(first.expected)
            assert not any(one.expected for one in others)
    assert said >= 3


def test_channels_that_do_not_go_together_make_nobody_expect_anything():
    X = np.random.default_rng(2).normal(size=(3_000, 3))
    X[2_500:2_510, 1] = 9.0
    verdicts = plant_run(X, ("a", "b", "c"))
    cards = [verdict.evidence for verdict in verdicts if verdict.evidence is not None]
    assert len(cards) > 30
    assert not any(one.expected for card in cards for one in card.channels)
