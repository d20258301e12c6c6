"""The arithmetic that keeps a row's bits its own."""

from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

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
