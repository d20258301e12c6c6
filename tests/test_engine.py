"""What the engine does at its edges: warm-up, gaps, stuck sensors, failed fits, snapshots."""

import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import FitJob, RefitSchedule, derive_seed
from rejex_stream.engine.snapshot import seal, unseal
from rejex_stream.errors import CheckpointError, ConfigError, DetectorError
from rejex_stream.features import FeatureSpec
from rejex_stream.incidents import Alarms
from rejex_stream.rejection.judge import Judge
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Label, Reading, Reason
from tests.streams import Distance, FailsOn, of_rows, readings, spec, stream_of, with_stream


def feed(values, key="k"):
    return of_rows(values, key)


def run(pipeline, events, **options):
    engine = Engine(pipeline, InlineExecutor(), **options)
    return engine, engine.process(events)


def test_a_verdict_explains_itself():
    _, verdicts = run(spec(), readings(keys=("a",), missing=0.0))
    judged = [v for v in verdicts if v.rank is not None and v.reason is not Reason.WARM_UP]
    assert len(judged) > 400
    scores = []
    for v in judged:
        assert v.psi == v.rank / v.window_len
        assert v.confidence == pytest.approx(abs(2 * v.stability - 1))
        assert v.score_lower <= v.threshold <= (v.score_upper or math.inf)
        if v.ties == 0 and v.label is Label.NORMAL:
            assert v.score < v.score_lower
        if v.ties == 0 and v.label is Label.ANOMALY:
            assert v.score >= v.score_upper
        scores.append(v.score)


@pytest.mark.thorough
def test_the_share_of_rejected_events_is_what_theory_says():
    rng = np.random.default_rng(1)
    pipeline = EngineSpec(
        Distance(), FeatureSpec(("x", "y")), RejectionPolicy(0.05, tolerance=8), window=500,
        schedule=RefitSchedule(first_fit_events=1000, refit_every_events=2000),
    )  # fmt: skip
    _, verdicts = run(pipeline, feed(rng.normal(size=(30_000, 2))))
    judged = [v for v in verdicts if v.window_len == 500]
    rate = sum(v.label is Label.REJECTED for v in judged) / len(judged)
    flagged = sum(v.rank > 500 - v.n_anomalies for v in judged) / len(judged)
    assert len(judged) > 25_000
    assert rate == pytest.approx(pipeline.band.width / 501, rel=0.06)
    assert flagged == pytest.approx(0.05, rel=0.08)


@pytest.mark.parametrize("before", [[1.0], [1.0, 7.0, 2.0]])
def test_a_window_is_constant_with_the_event_after_its_last_other_score_has_left(before):
    """Ranks among equal scores say nothing, so not one of them may be judged."""
    judge = Judge(RejectionPolicy(0.2, tolerance=3.0), 60)
    scores = [*np.linspace(0.0, 5.0, 60).tolist(), *before, *[7.0] * 80]
    events, verdicts = feed([(score, 0.0) for score in scores]), [None] * len(scores)
    for i in range(len(scores)):
        judge.judge(events, [i], [scores[i]], verdicts, seq=0, epoch=0)
    other = max(i for i, score in enumerate(scores) if score != 7.0)
    first = [v.reason is Reason.CONSTANT_WINDOW for v in verdicts].index(True)
    assert first == other + 60 + 1


def test_a_stuck_sensor_is_said_once_where_it_begins_and_once_where_it_ends():
    moving = readings(events=250, keys=("a",), missing=0)
    stuck = [  # at an ordinary value: what is extreme does not fill a window
        r._replace(values=(0.5, 1.5)) for r in readings(events=200, keys=("a",), missing=0)
    ]
    events = [
        r._replace(position=r.position._replace(offset=i), event_time_ms=1000 * i)
        for i, r in enumerate([*moving, *stuck, *moving, *stuck])
    ]
    # One model for ever, so that only the window decides.
    engine, verdicts = run(spec(every=None), events[:400])
    restored = Engine(spec(every=None), InlineExecutor())
    restored.restore(engine.snapshot())  # in a window that is constant, which was said
    assert verdicts[-1].reason is Reason.CONSTANT_WINDOW
    verdicts += restored.process(events[400:])
    constant = [v.reason is Reason.CONSTANT_WINDOW for v in verdicts]
    said = {v.seq: str(v.status) for v in verdicts if v.status is not None}
    edges = [i for i in range(1, len(constant)) if constant[i] != constant[i - 1]]
    assert list(said) == edges
    assert len(edges) == 3
    assert list(said.values()) == ["constant_begins", "constant_ends", "constant_begins"]


def test_lengths_of_a_filling_window_that_cannot_say_a_label_are_warm_up():
    policy = RejectionPolicy(0.02, rate=0.03)
    assert policy.first_window == 150
    rng = np.random.default_rng(1)
    judge, verdicts = Judge(policy, 200), [None] * 200
    scores = rng.random(200).tolist()
    events = feed([(score, 0.0) for score in scores])
    judge.judge(events, range(200), scores, verdicts, seq=0, epoch=0)
    warm_up = [i for i, v in enumerate(verdicts) if v.reason is Reason.WARM_UP]
    assert warm_up == [*range(150), *range(166, 200)]
    assert all(v.rank is not None and v.severity is None for v in verdicts[166:200])
    for n in range(150, 200):
        assert (n in warm_up) == (not policy.band(n).can_accept_anomaly)


def test_a_failed_fit_keeps_the_old_model_and_is_tried_at_the_next_boundary():
    failing = FailsOn((derive_seed(3, "a", 1),))
    engine, verdicts = run(spec(failing), readings(keys=("a",), missing=0))
    epochs = Counter(v.model_epoch for v in verdicts)
    assert 1 not in epochs
    assert epochs[0] > 200
    assert epochs[2] > 0
    (failure,) = engine.take_failures()
    assert failure.epoch == 1
    assert "singular matrix" in str(failure.error)
    assert "80 rows of 2 features" in str(failure.error)
    assert engine.take_failures() == []


@pytest.mark.parametrize("calibration", ["shadow", "holdout", "training"])
@pytest.mark.parametrize("lag", [0, 7, 60])
def test_without_refits_there_is_one_fit_and_one_epoch(calibration, lag):
    fits = []

    class Counting(InlineExecutor):
        def submit(self, key, fit):
            fits.append(key)
            super().submit(key, fit)

    engine = Engine(spec(calibration=calibration, every=None, lag=lag), Counting())
    verdicts = engine.process(readings(keys=("a",), missing=0))
    assert len(fits) == 1
    assert {v.model_epoch for v in verdicts} == {None, 0}


def test_snapshots_are_refused_when_they_cannot_be_trusted():
    engine, _ = run(spec(), readings())
    blob = engine.snapshot()
    fresh = Engine(spec(), InlineExecutor())
    with pytest.raises(CheckpointError, match="altered or cut short"):
        fresh.restore(blob[:-1])
    with pytest.raises(CheckpointError, match="altered or cut short"):
        fresh.restore(blob[:100] + bytes([blob[100] ^ 1]) + blob[101:])
    with pytest.raises(CheckpointError, match="not a snapshot"):
        fresh.restore(b"hello")
    with pytest.raises(CheckpointError, match=r"another state \(window 60 -> 70\)"):
        Engine(spec(window=70), InlineExecutor()).restore(blob)
    with pytest.raises(CheckpointError, match="format 99"):
        fresh.restore(seal("engine", 99, []))
    with pytest.raises(CheckpointError, match="one of 'window'"):
        fresh.restore(seal("window", 1, []))
    with pytest.raises(CheckpointError, match="format 1, this version reads format 2"):
        fresh.restore(seal("engine", 1, ["ca38d9af", {}, {}]))


def test_every_part_of_a_snapshot_is_the_one_that_was_written_with_it():
    engine, _ = run(spec(), readings())
    blob = engine.snapshot()
    *head, streams = unseal("engine", 2, blob)
    assert [*streams] == engine.streams()
    (state, model, version), other = streams["a"], streams["b"]
    for wrong in ([model, state, version], [state, other[1], version], other, [state, model], []):
        with pytest.raises(CheckpointError):
            Engine(spec(), InlineExecutor()).restore(
                seal("engine", 2, [*head, streams | {"a": wrong}])
            )
    for at in range(0, len(blob), 997):
        fresh = Engine(spec(), InlineExecutor())
        with pytest.raises(CheckpointError):
            fresh.restore(blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :])


def test_the_parts_of_two_snapshots_do_not_mix():
    engine, _ = run(spec(), readings())
    early = Engine(spec(), InlineExecutor())
    early.process(readings()[:100])
    mixed = stream_of(engine, "a")._replace(model=stream_of(early, "a").model)
    with pytest.raises(CheckpointError, match="not written together"):
        with_stream(Engine(spec(), InlineExecutor()), "a", mixed)
    with pytest.raises(CheckpointError, match="one of stream 'a', not 'b'"):
        with_stream(Engine(spec(), InlineExecutor()), "b", stream_of(engine, "a"))


@pytest.mark.parametrize(("make", "words"), [
    (lambda: spec(window=8), "can ever be called"),
    (lambda: spec(every=59), "Refit every 60 events or more"),
    (lambda: spec(lag=61), "above the window of 60"),
    (lambda: spec(lag=100), "above buffer_events"),
    (lambda: spec(detector=object()), "is not a detector"),
    (lambda: RefitSchedule(first_fit_events=1), "too small"),
    (lambda: RefitSchedule(calibration="magic"), "use shadow, holdout or training"),
    (lambda: Engine(spec(), InlineExecutor(), max_live_streams=3), "needs a mapping"),
])  # fmt: skip
def test_pipelines_that_cannot_work_are_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize("calibration", ["holdout", "training"])
def test_a_fit_whose_first_scores_are_too_few_failed(calibration):
    scorer = SimpleNamespace(score=lambda X: np.zeros(len(X) - 1))
    detector = SimpleNamespace(name="few", fit=lambda _X, seed: scorer)
    job = FitJob(detector, np.zeros((30, 3)), 1, calibration, 0.3)
    with pytest.raises(DetectorError, match=r"few could not be fitted on .* scored in shape"):
        job()


def small_engine(detector: str, **policy: object) -> Engine:
    guarded = detector == "Sensor"
    schedule = RefitSchedule(
        first_fit_events=300, refit_every_events=700, refit_lag_events=50, buffer_events=300,
        calibration="shadow" if guarded else "holdout", guard_quantile=0.95 if guarded else None,
    )  # fmt: skip
    features = FeatureSpec(("a", "b"), carry_forward_events=2)
    band = RejectionPolicy(0.1, **(policy or {"tolerance": 4}))
    spec = EngineSpec(
        make_detector(detector), features, band, window=200, schedule=schedule,
        evidence=detector == "HBOS", alarms=Alarms(),
    )  # fmt: skip
    return Engine(spec, InlineExecutor())


def faulty(events: int) -> list[Reading]:
    """A sensor that faults and recovers, sticks, misses values and repeats itself."""
    draw = np.random.default_rng(11)
    x = draw.normal(size=(events, 2)).round(2)
    x[997:1100] += 9.0  # a fit is asked for between its onset and its discovery
    x[1500:1640] += 9.0
    x[2100:2340] = x[2100]
    x[draw.random(events) < 0.01, 0] = np.nan
    x[2600:2660, 1] = np.nan  # a gap that is too long, and then short ones
    x[2700:2900:20, 1] = np.nan
    x[700] = 1e160
    return of_rows(x, "p")


@pytest.mark.thorough
@pytest.mark.parametrize(("detector", "policy"), [
    ("HBOS", {}), ("GMM", {"rate": 0.1, "burst": 20}), ("GMM", {"tolerance": 4, "ties": "paper"}),
    ("Sensor", {}),
])  # fmt: skip
def test_blocks_give_the_bytes_of_single_events(detector, policy):
    readings = faulty(3200)
    single = small_engine(detector, **policy)
    expected = [verdict for reading in readings for verdict in single.process([reading])]
    told = single.take_incidents()
    draw = np.random.default_rng(5)
    for longest in (60, 400, 3200):
        engine, found, start = small_engine(detector, **policy), [], 0
        while start < len(readings):
            stop = start + int(draw.integers(1, longest + 1))
            found += engine.process(readings[start:stop])
            start = stop
        for one, other in zip(expected, found, strict=True):
            assert repr(one) == repr(other)
        assert engine.take_incidents() == told
        assert engine.snapshot() == single.snapshot()
    assert any(v.limited for v in expected), "no gap was too long"
    assert detector == "Sensor" or any(one.held for one in told), "nothing stopped a block halfway"


def test_a_turn_leaves_the_model_where_a_restored_one_begins():
    readings, whole, engine = faulty(3200)[:1800], small_engine("HBOS"), small_engine("HBOS")
    whole.process(readings[:990])
    engine.process(readings[:990])
    for i, reading in enumerate(readings[990:1030], start=990):
        fresh = small_engine("HBOS")
        fresh.restore(engine.snapshot())
        engine = fresh
        assert repr(whole.process([reading])) == repr(engine.process([reading])), i
    opened = [incident.opened_seq for incident in whole.take_incidents()]
    assert opened, "no fit was taken back"
    assert repr(whole.process(readings[1030:])) == repr(engine.process(readings[1030:]))
    assert whole.snapshot() == engine.snapshot()
