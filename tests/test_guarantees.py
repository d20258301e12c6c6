"""Rates, bounds and costs: against 90-digit values and simulation."""

import numpy as np
import pytest

from rejex_stream.errors import ConfigError
from rejex_stream.rejection import rejection_band
from rejex_stream.rejection.bounds import (
    cost_bound,
    cost_quantile,
    exact_rate_bound,
    expected_rejection_rate,
    paper_rate_bound,
    theorem_interval,
)
from rejex_stream.rejection.exceed import stability


def test_all_golden_bounds_are_met(exceed_golden):
    for n, gamma, _m, T, _lo, _hi, t1, t2, t1c, t2c, rate, exact, paper, costs in exceed_golden[
        "band"
    ]:
        band = rejection_band(n, gamma, T)
        assert theorem_interval(n, gamma, T, printed=True) == pytest.approx((float(t1), float(t2)))
        assert theorem_interval(n, gamma, T) == pytest.approx((float(t1c), float(t2c)))
        assert expected_rejection_rate(band) == pytest.approx(float(rate), rel=1e-12)
        for delta, value in exact.items():
            assert exact_rate_bound(band, float(delta)) == pytest.approx(float(value), rel=1e-9)
        for delta, value in paper.items():
            h = paper_rate_bound(n, gamma, T, float(delta), printed=True)
            assert h == pytest.approx(min(1.0, float(value)), rel=1e-12)
        for c_fp, c_fn, c_r, value in costs:
            assert cost_bound(band, c_fp, c_fn, float(c_r)) == pytest.approx(float(value))


@pytest.mark.parametrize("tolerance", [0.8, 2, 4, 5, 8, 32, 64])
def test_every_rejected_rank_lies_inside_the_corrected_theorem(tolerance):
    for n in (20, 100, 500, 2000):
        for gamma in (0.05, 0.1, 0.3, 0.45):
            band, (t1, t2) = (
                rejection_band(n, gamma, tolerance),
                theorem_interval(n, gamma, tolerance),
            )
            if band.width:
                assert t1 <= band.lower / n
                assert band.upper / n <= t2


def test_the_printed_theorem_is_false_at_tolerance_4_now_and_then():
    n, gamma = 20_000, 0.05
    t1, _ = theorem_interval(n, gamma, 4, printed=True)
    at = stability(int(t1 * n), n, gamma)
    assert at.log_p_anomaly > -4  # accepted as certain by the theorem, yet above exp(-T)
    with pytest.raises(ConfigError, match="at least 4"):
        theorem_interval(1000, 0.05, 1.0, printed=True)


@pytest.mark.parametrize(("n", "gamma", "tolerance"), [(200, 0.1, 8), (400, 0.05, 32)])
def test_the_exact_bound_is_exceeded_by_delta_of_the_windows(n, gamma, tolerance):
    rng = np.random.default_rng(7)
    band = rejection_band(n, gamma, tolerance)
    reference = np.sort(rng.random((20_000, n)), axis=1)
    low = reference[:, band.lower - 1]
    high = reference[:, band.upper] if band.can_accept_anomaly else 1.0
    rate = high - low  # of uniform scores that fall into the band, given the window
    assert rate.mean() == pytest.approx(expected_rejection_rate(band), rel=0.01)
    assert (rate > exact_rate_bound(band, 0.1)).mean() == pytest.approx(0.1, abs=0.01)
    assert (rate > paper_rate_bound(n, gamma, tolerance, 0.1)).mean() <= 0.1


@pytest.mark.parametrize(("n", "gamma", "tolerance", "costs"), [
    (1000, 0.05, 32, (1, 1, 0.05)),
    (1000, 0.05, 8, (10, 1, 0.05)),
    (200, 0.1, 32, (1, 10, 0.5)),
    (100, 0.1, 32, (1, 1, 0.1)),  # an anomaly is never accepted
    (1000, 0.05, 0.7, (1, 1, 0.05)),  # almost nothing is rejected
    (1000, 0.05, 32, (0, 1, 0)),
])  # fmt: skip
@pytest.mark.parametrize("delta", [0.5, 0.1, 0.01])
def test_the_cost_quantile_agrees_with_drawing_windows(n, gamma, tolerance, costs, delta):
    band = rejection_band(n, gamma, tolerance)
    c_fp, c_fn, c_r = costs
    rng = np.random.default_rng(3)
    shape = np.array([band.lower, band.width, n - band.upper], float)
    parts = np.stack([rng.gamma(a, size=200_000) if a else np.zeros(200_000) for a in shape])
    parts /= parts.sum(axis=0)
    cost = np.minimum(gamma, parts[0]) * c_fn + parts[2] * c_fp + parts[1] * c_r
    drawn = np.quantile(cost, 1 - delta)
    assert cost_quantile(band, *costs, delta=delta) == pytest.approx(drawn, rel=4e-3, abs=1e-9)


@pytest.mark.parametrize(("call", "words"), [
    (lambda b: cost_bound(b, 1, 1, 0.2), r"c_r = 0\.2 is above its limit.*0\.1"),
    (lambda b: cost_bound(b, -1, 1, 0), "c_fp = -1 cannot be used"),
    (lambda b: cost_bound(b, 1, float("nan"), 0), "c_fn is not a number"),
    (lambda b: cost_quantile(b, 1, 1, 0.1, delta=0), r"delta = 0 is outside \(0, 1\)"),
    (lambda b: exact_rate_bound(b, 1.0), r"delta = 1 is outside"),
    (lambda _: paper_rate_bound(100, 0.1, 32, float("nan")), "delta is not a number"),
])  # fmt: skip
def test_bad_arguments_are_refused_with_value_limit_and_mend(call, words):
    with pytest.raises(ConfigError, match=words):
        call(rejection_band(1000, 0.1, 32))
