"""The three laws of the engine, over random cuts, fit delays and crashes."""

import random
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine
from rejex_stream.run.executors import InlineExecutor
from tests.streams import ROLLING, Distance, PartsByVersion, readings, spec, stream_of

FEED = readings()
FEW = settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))


class LateExecutor(InlineExecutor):
    """Runs a fit at a random moment between request and need: the verdicts must not care."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._rng = random.Random(seed)
        self._ready = {}

    def submit(self, key, fit):
        super().submit(key, fit)
        if self._rng.random() < 0.5:
            self._ready[key] = super().result(key)

    def result(self, key):
        return self._ready.pop(key) if key in self._ready else super().result(key)


def pipelines():
    """Both kinds of detectors, every calibration, tolerance and budget, rolling features."""
    hst = make_detector("HalfSpaceTrees", n_trees=3, height=4, window_size=20)
    return {
        "distance-shadow": spec(), "distance-holdout": spec(calibration="holdout", every=40),
        "distance-training": spec(calibration="training", lag=0, every=31),
        "distance-budget": spec(rate=0.15), "distance-burst": spec(rate=0.15, burst=3),
        "distance-day": spec(rate=0.15, burst=3, per_day=6000),
        "distance-rolling": spec(features=ROLLING),
        "distance-evidence": spec(features=ROLLING, evidence=True),
        "HalfSpaceTrees-evidence": spec(hst, evidence=True),
        "distance-no-lag": spec(lag=0, every=60), "distance-longest-lag": spec(lag=60, every=61),
        "HBOS": spec(make_detector("HBOS")),
        "KNN": spec(make_detector("KNN"), calibration="training"),
        "GMM": spec(make_detector("GMM", n_components=2)),
        "IForest": spec(make_detector("IForest", n_estimators=5)),
        "ECOD": spec(make_detector("ECOD")), "Sensor": spec(make_detector("Sensor"), evidence=True),
        "SensorEnsemble": spec(make_detector("SensorEnsemble")), "HalfSpaceTrees": spec(hst),
        "GaussianScorer": spec(make_detector("GaussianScorer", grace_period=20)),
    }  # fmt: skip


PIPELINES = pipelines()
# One detector of each kind is enough for a change: HBOS for those that are fitted.
MARKS = dict.fromkeys(("KNN", "GMM", "IForest", "ECOD"), pytest.mark.long)
MARKS |= {"SensorEnsemble": pytest.mark.thorough}
every_pipeline = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, ())) for name in PIPELINES]
)


def one_by_one(name):
    engine = Engine(PIPELINES[name], InlineExecutor())
    return [verdict for reading in FEED for verdict in engine.process([reading])]


EXPECTED = {}


def expected(name):
    if name not in EXPECTED:
        EXPECTED[name] = one_by_one(name)
    return EXPECTED[name]


def cut(rng):
    at, cuts = 0, []
    while at < len(FEED):
        size = rng.choice([1, 2, 5, 33, 120, 400])
        cuts.append(FEED[at : at + size])
        at += size
    return cuts


@pytest.mark.parametrize("fits", [lambda _: InlineExecutor(), LateExecutor], ids=["inline", "late"])
@every_pipeline
@FEW
@given(seed=st.integers(0, 10**6))
def test_laws_1_and_2_batches_and_slow_fits_change_no_verdict(name, fits, seed):
    engine = Engine(PIPELINES[name], fits(seed))
    found = [v for batch in cut(random.Random(seed)) for v in engine.process(batch)]
    assert found == expected(name)


@every_pipeline
@FEW
@given(seed=st.integers(0, 10**6))
def test_law_3_a_crash_anywhere_changes_no_verdict(name, seed):
    rng = random.Random(seed)
    verdicts, done = {}, 0
    engine = Engine(PIPELINES[name], InlineExecutor())
    snapshot = (0, engine.snapshot())
    while done < len(FEED):
        size = rng.choice([1, 3, 40, 150])
        for verdict in engine.process(FEED[done : done + size]):
            # What is replayed says what was said before the crash.
            assert verdicts.setdefault(verdict.position, verdict) == verdict
        done = min(len(FEED), done + size)
        if rng.random() < 0.3:
            snapshot = (done, engine.snapshot())
        if rng.random() < 0.25:
            engine = Engine(PIPELINES[name], InlineExecutor())
            done = snapshot[0]
            engine.restore(snapshot[1])
    assert list(verdicts.values()) == expected(name)


@every_pipeline
def test_law_3_a_crash_goes_on_from_parts_that_are_written_once_a_version(name):
    """The engine that is kept runs on: only what is restored from its parts begins again."""
    rng, parts = random.Random(7), PartsByVersion()
    engine, done, wanted = Engine(PIPELINES[name], InlineExecutor()), 0, expected(name)
    while done < len(FEED) - 25:
        size = rng.choice([1, 1, 1, 25])
        assert engine.process(FEED[done : done + size]) == wanted[done : done + size]
        done += size
        if rng.random() < 0.4:
            parts.keep(engine)
            if rng.random() < 0.4:
                other = parts.restore(Engine(PIPELINES[name], InlineExecutor()))
                assert all(
                    stream_of(other, key) == stream_of(engine, key) for key in engine.streams()
                )
                assert other.process(FEED[done : done + 25]) == wanted[done : done + 25]


@every_pipeline
def test_every_pipeline_meets_all_three_labels(name):
    labels = {str(verdict.label) for verdict in expected(name)}
    assert labels == {"normal", "anomaly", "rejected"}


@every_pipeline
def test_keys_do_not_influence_each_other(name):
    for key in ("a", "b"):
        engine = Engine(PIPELINES[name], InlineExecutor())
        alone = engine.process([reading for reading in FEED if reading.stream_key == key])
        assert alone == [v for v in expected(name) if v.stream_key == key]


@every_pipeline
@FEW
@given(seed=st.integers(0, 10**6))
def test_idle_streams_come_back_unchanged(name, seed):
    engine = Engine(PIPELINES[name], InlineExecutor(), idle={}, max_live_streams=1)
    verdicts = []
    for batch in cut(random.Random(seed)):
        verdicts += engine.process(batch)
        if batch and random.Random(seed).random() < 0.5:
            engine._evict(engine.streams()[0])
    assert verdicts == expected(name)


def test_a_wrong_seed_would_be_seen():
    other = spec(Distance())
    object.__setattr__(other, "seed", 4)
    engine = Engine(other, InlineExecutor())
    assert engine.process(FEED) != expected("distance-shadow")


@pytest.fixture(autouse=True)
def _quiet_libraries():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=RuntimeWarning)
        yield
