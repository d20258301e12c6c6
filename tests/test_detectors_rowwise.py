"""The arithmetic that keeps a row's bits its own."""

from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rejex_stream.detectors import make_detector
from rejex_stream.detectors.rowwise import affine, count_below, row_sum


@given(m=st.integers(1, 40), k=st.integers(1, 70), seed=st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_a_row_sum_is_the_sum_from_left_to_right(m, k, seed):
    A = np.random.default_rng(seed).normal(size=(m, k)) * 1e6
    assert row_sum(A).tolist() == [reduce(add, row) for row in A.tolist()]


@given(m=st.integers(1, 40), d=st.integers(1, 20), k=st.integers(1, 20), cut=st.integers(0, 40))
@example(m=16, d=20, k=1, cut=5)  # numpy would add a single column in pairs
@settings(max_examples=60, deadline=None)
def test_an_affine_map_gives_each_row_its_own_bits(m, d, k, cut):
    rng = np.random.default_rng(m)
    X, W, b = rng.normal(size=(m, d)), rng.normal(size=(d, k)), rng.normal(size=k)
    whole = affine(X, W, b)
    assert whole.tolist() == [
        [reduce(add, (x * w).tolist(), float(offset)) for w, offset in zip(W.T, b, strict=True)]
        for x in X
    ]
    assert np.array_equal(whole, np.concatenate([affine(X[:cut], W, b), affine(X[cut:], W, b)]))


@pytest.mark.parametrize("b", [1, 5, 64, 65, 300])
@pytest.mark.parametrize("m", [1, 16, 17, 60])
def test_edges_are_counted_the_same_either_way(m, b):
    rng = np.random.default_rng(b)
    edges = np.sort(rng.integers(0, 20, size=(3, b)).astype(float), axis=1)
    X = rng.integers(-2, 23, size=(m, 3)).astype(float)
    expected = [[int((edges[j] < x).sum()) for j, x in enumerate(row)] for row in X]
    assert count_below(edges, X).tolist() == expected


def test_padding_with_infinity_counts_nothing():
    edges = np.array([[0.0, 1.0, np.inf, np.inf]])
    assert count_below(edges, np.array([[0.5], [1e308]])).tolist() == [[1], [2]]


@pytest.mark.parametrize("covariance", ["full", "tied", "diag", "spherical"])
@pytest.mark.parametrize("d", [1, 2, 8, 40])
def test_a_gaussian_mixture_scores_a_row_alone_as_among_others(d, covariance):
    for K in (1, 3):
        _assert_alone_as_among("GMM", d, covariance_type=covariance, n_components=K)


@pytest.mark.parametrize("bins", [1, 6, 300, "auto"])
@pytest.mark.parametrize("d", [1, 2, 8, 40])
def test_histograms_score_a_row_alone_as_among_others(d, bins):
    _assert_alone_as_among("HBOS", d, n_bins=bins)


def _assert_alone_as_among(name, d, **params):
    rng = np.random.default_rng(d)
    X = rng.normal(size=(400, d)) @ rng.normal(size=(d, d))
    X[:, 0] = np.round(X[:, 0])  # on edges of bins
    scorer = make_detector(name, **params).fit(X, seed=0)
    bins = np.histogram_bin_edges(X[:, 0], 6)[:, None] * np.ones(d)
    probes = np.concatenate([X, bins, 10.0 ** rng.uniform(-9, 150, size=(100, d)), 0 * X[:2], -X])
    alone = np.concatenate([scorer.score(probe[None]) for probe in probes])
    assert alone.tobytes() == scorer.score(probes).tobytes()


@pytest.mark.parametrize("seed", range(6))
def test_a_row_alone_falls_into_the_bin_that_it_falls_into_among_many(seed):
    """HBOS: at every edge of a bin and at the ends of what still counts, and a step beside them."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(80 + 40 * seed, 3)).round(1 if seed % 2 else 12)
    table[:, 2] = 7.0 if seed < 3 else table[:, 2]
    scorer = make_detector("HBOS").fit(table, seed=0)
    inner = scorer.inner
    edges = np.where(np.isfinite(inner.edges), inner.edges, 0.0).T
    at = np.vstack([edges, inner.reach, table[:50], 3 * table[:50], [[-1e150] * 3, [1e150] * 3]])
    rows = np.vstack([at, np.nextafter(at, np.inf), np.nextafter(at, -np.inf)])
    assert [*map(scorer.by_row(), rows.tolist())] == scorer.score(rows).tolist()
