"""Scores smoothed over the rows before: of what a mean is made, and where a model begins again."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rejex_stream.detectors import make_detector
from rejex_stream.detectors.smoothing import Ewma
from rejex_stream.engine import Engine
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.errors import CheckpointError, ConfigError
from rejex_stream.incidents import Hold
from rejex_stream.run.executors import InlineExecutor
from tests.streams import Smoothed, readings, spec

FINITE = st.floats(-1e6, 1e6)


def average(scores, span):
    """The last value of the textbook's recursion, begun at the first score."""
    a, mean = 2 / (span + 1), scores[0]
    for score in scores[1:]:
        mean += a * (score - mean)
    return mean


# -------------------------------------------------------------------------------- the average
@pytest.mark.parametrize("span", [2, 10, 50])
def test_a_mean_is_the_textbooks_average_but_for_a_hundredth_of_its_weights(span):
    scores = np.random.default_rng(0).uniform(0, 1, 2_000).tolist()
    found = Ewma(span).begin(scores)
    assert len(found) == len(scores) - Ewma(span).reach
    for at in (len(scores) // 2, len(scores)):
        mean = found[at - 1 - Ewma(span).reach]
        assert mean == pytest.approx(average(scores[:at], span), abs=0.01)


def test_a_mean_ends_where_what_is_left_weighs_less_than_a_hundredth():
    for span in (2, 3, 10, 24, 100):
        kept, rows = 1 - 2 / (span + 1), Ewma(span).reach + 1
        assert kept**rows < 0.01 <= kept ** (rows - 1)
    ewma = Ewma(10)
    ewma.begin([0.0] * 100)
    ewma.remember([1e9] + [0.0] * (ewma.reach - 1))
    assert ewma.means([0.0, 0.0]) == [pytest.approx(1e9 * 0.00222, rel=0.01), 0.0]


def test_what_begins_anew_forgets_the_scores_of_the_model_before():
    ewma = Ewma(10)
    ewma.remember([1e9] * ewma.reach)
    assert ewma.begin([1.0] * 5) == [], "too few for a whole mean"
    assert ewma.recent == [1.0] * 5
    assert ewma.means([1.0]) == [pytest.approx(1.0)]


def test_constant_scores_stay_equal_and_a_weight_is_what_one_score_moves():
    ewma = Ewma(10)
    means = ewma.begin([0.3] * 60)
    assert means == [means[0]] * 38
    assert means[0] == pytest.approx(0.3)
    low, high = ewma.means([0.0])[0], ewma.means([1.0])[0]
    assert high - low == pytest.approx(ewma.weight)
    assert Ewma(1).weight == 1.0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(FINITE, st.just(math.nan), st.just(math.inf)), min_size=1, max_size=80),
    st.data(),
)
def test_a_mean_is_its_own_however_scores_are_cut(scores, data):
    whole, cut = Ewma(10), Ewma(10)
    wanted, found = whole.means(scores), []
    while len(found) < len(scores):
        part = scores[len(found) : len(found) + data.draw(st.integers(1, 30))]
        found += cut.means(part)
        cut.remember(part)
    np.testing.assert_array_equal(found, wanted)
    for score, mean in zip(scores, wanted, strict=True):
        assert math.isfinite(mean) is math.isfinite(score)


def test_before_there_are_enough_a_mean_is_of_those_that_there_are():
    ewma = Ewma(10)
    assert ewma.means([4.0]) == [4.0]
    ewma.remember([4.0])
    assert ewma.means([1.0])[0] == pytest.approx((1.0 + 4.0 * 9 / 11) / (1 + 9 / 11))


def test_scores_as_they_are_come_back_untouched():
    scores = [1.0, math.nan, 3.0]
    ewma = Ewma(1)
    assert ewma.means(scores) is scores
    assert ewma.begin(scores) is scores
    ewma.remember(scores)
    assert ewma.recent == []


# --------------------------------------------------------------------------------- in a stream
def judged(pipeline, feed):
    engine = Engine(pipeline, InlineExecutor())
    return engine, engine.process(feed)


QUIET = {"window": 60, "every": 90, "hold": Hold(enabled=False)}
ONE = [r._replace(sensor="a") for r in readings(500, keys=("a",), missing=0)]


def test_a_score_is_the_mean_of_those_that_its_model_gives_to_the_rows_before():
    plain, smooth = (
        judged(spec(detector, **QUIET | {"every": None}), ONE)[1]
        for detector in (Smoothed(ewma_events=1), Smoothed(ewma_events=10))
    )
    own = [v.score for v in plain if v.score is not None]
    found = [v.score for v in smooth if v.score is not None]
    assert len(found) == len(own) > 300
    whole = Ewma(10).begin(own)
    assert found[22:] == pytest.approx(whole)
    assert found[0] != own[0]  # the rows that calibrated are rows before


def test_a_new_model_speaks_once_its_window_is_full_of_whole_means():
    _, verdicts = judged(spec(Smoothed(ewma_events=10), **QUIET), ONE)
    swaps = [
        now.seq
        for before, now in pairwise(verdicts)
        if None is not before.model_epoch != now.model_epoch
    ]
    first, every, window, reach = 50, 90, 60, Ewma(10).reach
    assert swaps == [first + every * k + window + reach for k in range(1, 5)]
    assert all(verdicts[at].window_len == window for at in swaps)


@pytest.mark.thorough
def test_reference_and_live_scores_are_alike():
    # Independent rows: a reference of scores that are less smooth than those they judge would
    # flag too few, one of scores that are smoother too many.
    rows = np.random.default_rng(1).normal(size=(24_000, 2))
    feed = [r._replace(values=tuple(x)) for r, x in zip(ONE * 48, rows.tolist(), strict=True)]
    flagged = []
    for span in (1, 10):
        pipeline = spec(Smoothed(ewma_events=span), window=100, every=130, hold=Hold(enabled=False))
        ranked = [v for v in judged(pipeline, feed)[1] if v.window_len == 100]
        flagged.append(np.mean([v.rank > 80 for v in ranked]))
    assert flagged == pytest.approx([20 / 101, 20 / 101], abs=0.02)


def test_a_weak_fault_that_lasts_stands_out_and_one_row_less():
    rows = np.random.default_rng(2).normal(size=(len(ONE), 2))
    rows[400:440] += 1.2
    rows[470] += 4.0
    feed = [r._replace(values=tuple(x)) for r, x in zip(ONE, rows.tolist(), strict=True)]
    ranks = {
        span: [v.rank or 0 for v in judged(spec(Smoothed(ewma_events=span), **QUIET), feed)[1]]
        for span in (1, 10)
    }
    assert np.mean(ranks[10][410:440]) > np.mean(ranks[1][410:440]) + 5
    assert ranks[10][470] <= ranks[1][470]


def test_evidence_says_what_the_verdict_would_be_without_a_channel_of_this_row():
    pipeline = spec(Smoothed(ewma_events=10), evidence=True, **QUIET)
    _, verdicts = judged(pipeline, ONE)
    said = [v for v in verdicts if v.evidence is not None]
    assert len(said) > 20
    plain = {
        v.seq: v for v in judged(spec(Smoothed(ewma_events=1), evidence=True, **QUIET), ONE)[1]
    }
    compared = 0
    for verdict in said:
        other = plain[verdict.seq]
        if other.evidence is None or other.model_epoch != verdict.model_epoch:
            continue
        ours, theirs = (
            {c.channel: c.contribution for c in v.evidence.channels} for v in (verdict, other)
        )
        for channel, contribution in ours.items():
            compared += 1
            assert contribution == pytest.approx(Ewma(10).weight * theirs[channel], abs=1e-9)
    assert compared > 10


# ----------------------------------------------------------------------------- state and words
def test_a_snapshot_holds_the_scores_that_the_next_mean_looks_back_at():
    pipeline = spec(Smoothed(ewma_events=10), **QUIET)
    engine, _ = judged(pipeline, ONE[:300])
    other = Engine(pipeline, InlineExecutor())
    other.restore(engine.snapshot())
    recent = engine._stream("a").model._ewma.recent
    assert other._stream("a").model._ewma.recent == recent
    assert len(recent) == Ewma(10).reach
    assert [v.score for v in other.process(ONE[300:])] == [
        v.score for v in engine.process(ONE[300:])
    ]


@pytest.mark.parametrize("recent", [[math.nan], [1.0] * 23, [[1.0]]])
def test_scores_that_no_stream_can_have_given_are_refused(recent):
    engine, _ = judged(spec(Smoothed(ewma_events=10), **QUIET), ONE[:300])
    engine._stream("a").model._ewma.recent = recent
    blob = engine.snapshot()
    with pytest.raises(CheckpointError, match="recent scores"):
        Engine(spec(Smoothed(ewma_events=10), **QUIET), InlineExecutor()).restore(blob)


def test_what_is_not_smoothed_has_the_state_that_it_had():
    engine, _ = judged(spec(Smoothed(ewma_events=1), **QUIET), ONE[:300])
    assert "recent_scores" not in engine._stream("a").model.state()()


@pytest.mark.parametrize("name", ["Ensemble", "SensorEnsemble"])
@pytest.mark.parametrize("span", [0, -1, 1001, 2.5, True, "10"])
def test_a_span_that_is_none_is_refused(name, span):
    params = {"members": ["Sensor"]} if name == "Ensemble" else {}
    with pytest.raises(ConfigError, match="give a whole number from 1"):
        make_detector(name, ewma_events=span, **params)
    made = make_detector(name, ewma_events=10, **params)
    assert made.ewma_events == 10
    assert spec(made).detector.ewma_events == 10


def test_a_window_that_means_cannot_fill_between_fits_is_refused():
    RefitSchedule(refit_every_events=2_022).require(2_000, 22)
    with pytest.raises(ConfigError, match=r"2000 and the 22 events .* Refit every 2022 events"):
        RefitSchedule(refit_every_events=2_021).require(2_000, 22)
    with pytest.raises(ConfigError, match="22 events"):
        spec(Smoothed(ewma_events=10), window=60, every=81)
    spec(Smoothed(ewma_events=1), window=60, every=81)
