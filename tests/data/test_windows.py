"""The keyed bijection that orders the training windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from laws import examples

from hpxfer.data.windows import shuffled

PINNED_10 = [5, 7, 6, 3, 0, 4, 1, 9, 2, 8]
PINNED_BILLION = [947089523, 75351466, 50682439, 487068384]


@settings(deadline=None, max_examples=examples(60))
@given(size=st.integers(1, 3000), seed=st.integers(0, 2**63))
@example(size=1, seed=0)
@example(size=2, seed=0)
@example(size=4, seed=0)
@example(size=5, seed=0)
@example(size=1024, seed=0)
@example(size=1025, seed=0)
def test_every_size_and_seed_gives_a_permutation(size: int, seed: int) -> None:
    assert np.sort(shuffled(np.arange(size), size, seed)).tolist() == list(range(size))


@settings(deadline=None, max_examples=examples(25))
@given(size=st.integers(1, 10**12), seed=st.integers(0, 1000), data=st.data())
def test_an_index_alone_goes_where_it_goes_in_company(size: int, seed: int, data: st.DataObject) -> None:
    index = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)))
    together = shuffled(index, size, seed)
    assert together.dtype == np.int64
    assert ((together >= 0) & (together < size)).all()
    assert together.tolist() == [int(shuffled(index[i : i + 1], size, seed)[0]) for i in range(len(index))]


def test_order_is_pinned() -> None:
    """Stored trials were trained in this order. A change of the order must increase TRAINER_VERSION."""
    assert shuffled(np.arange(10), 10, 0).tolist() == PINNED_10
    assert shuffled(np.arange(4), 10**9, 1).tolist() == PINNED_BILLION


def test_seeds_give_unrelated_orders() -> None:
    size = 4096
    orders = [shuffled(np.arange(size), size, seed) for seed in range(20)]
    fixed = [int((order == other).sum()) for i, order in enumerate(orders) for other in [np.arange(size), *orders[:i]]]
    # Two random permutations agree in one place on average, Poisson: 12 or more places have a chance below 1e-8.
    assert max(fixed) < 12
    assert 0.5 < np.mean(fixed) < 1.5


def test_order_has_no_trend() -> None:
    size = 5000
    index = np.arange(size)
    for seed in range(5):
        order = shuffled(index, size, seed)
        for item, other in ((index, order), (order[:-1], order[1:]), (index % 64, order % 64)):
            # The correlation of independent values has standard deviation 1/sqrt(size).
            assert abs(np.corrcoef(item, other)[0, 1]) < 5 / np.sqrt(size)


def test_index_outside_is_a_bug() -> None:
    with pytest.raises(AssertionError, match=r"outside range\(3\)"):
        shuffled(np.array([3]), 3, 0)
