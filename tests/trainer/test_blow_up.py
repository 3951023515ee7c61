"""The rule of divergence, for both trainers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpxfer.trainer.divergence import BLOW_UP, blow_up_limit, is_bad


@given(st.floats(1e-6, 1e6), st.floats(0, 1e6))
def test_the_limit_is_a_multiple_of_the_larger(first: float, guess: float) -> None:
    limit = blow_up_limit(first, guess)
    assert limit == BLOW_UP * first or limit == BLOW_UP * guess
    assert limit >= BLOW_UP * first
    assert not is_bad(limit, limit)
    assert is_bad(math.nextafter(limit, math.inf), limit)


@pytest.mark.parametrize("first", [0.0, -3.0, math.nan, math.inf, -math.inf])
def test_a_first_loss_that_is_not_positive_has_no_limit(first: float) -> None:
    assert blow_up_limit(first) == math.inf


@pytest.mark.parametrize("limit", [8.0, math.inf])
def test_a_loss_that_is_not_finite_is_bad(limit: float) -> None:
    assert all(is_bad(loss, limit) for loss in (math.nan, math.inf, -math.inf))
    assert not is_bad(-1e9, limit)
