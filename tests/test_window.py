"""The window against a list that is sorted again at every step."""

import copy
import math
import pickle
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rejex_stream.errors import ConfigError
from rejex_stream.rejection.window import ScoreWindow, mid_rank
from tests.streams import check_window

few_values = st.integers(-3, 3).map(float)
any_value = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 12), st.lists(st.one_of(few_values, any_value), max_size=60), any_value)
def test_ranks_and_order_statistics_equal_those_of_a_sorted_list(capacity, scores, probe):
    window = ScoreWindow(capacity)
    kept: list[float] = []
    for score in scores:
        evicted = window.push(score)
        kept.append(score)
        assert evicted == (kept.pop(0) if len(kept) > capacity else None)
        check_window(window)
        for value in (score, probe):
            assert window.rank(value) == (
                sum(s < value for s in kept),
                sum(s <= value for s in kept),
            )
        assert [window.order_statistic(k) for k in range(1, len(kept) + 1)] == sorted(kept)
        assert window.is_constant == (min(kept) == max(kept))
        assert window.scores() == kept


def test_a_long_random_life_keeps_the_invariants():
    rng = random.Random(5)
    window = ScoreWindow(997)
    for step in range(20_000):
        window.push(rng.choice([rng.gauss(0, 1), round(rng.gauss(0, 1), 1), 0.0]))
        if step % 500 == 0:
            check_window(window)
    check_window(window)


def test_the_mid_rank_does_not_call_a_stuck_sensor_an_anomaly():
    window = ScoreWindow(100, [3.0] * 100)
    assert window.rank(3.0) == (0, 100)
    assert mid_rank(*window.rank(3.0)) == 50


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_scores_that_cannot_be_ranked_stay_out(score):
    window = ScoreWindow(4, [1.0])
    with pytest.raises(ConfigError, match="only finite scores"):
        window.push(score)
    with pytest.raises(ConfigError, match="only finite scores"):
        ScoreWindow(4, [score])
    assert window.scores() == [1.0]


def test_bad_arguments_are_refused():
    with pytest.raises(ConfigError, match="window n = 1"):
        ScoreWindow(1)
    with pytest.raises(ConfigError, match="no order statistic 3"):
        ScoreWindow(4, [1.0, 2.0]).order_statistic(3)


def test_a_copy_goes_on_by_itself():
    window = ScoreWindow(3, [0.3, 0.1])
    copies = [copy.deepcopy(window), pickle.loads(pickle.dumps(window))]
    window.push(0.9)
    for made in copies:
        assert made.scores() == [0.3, 0.1]
        assert [made.push(score) for score in (0.2, 0.5)] == [None, 0.3]
        assert made.rank(0.5) == (2, 3)
        check_window(made)
    assert window.scores() == [0.3, 0.1, 0.9]
