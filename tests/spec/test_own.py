"""The shapes of a user's own trainer, and what the tables read of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpxfer.errors import HpxferError
from hpxfer.spec.own import own_shape

DIMS: dict[str, int | str] = {"width": "d", "depth": "n", "num_heads": "h"}


@given(heads=st.integers(1, 32), head_dim=st.integers(1, 64))
def test_the_number_of_heads_gives_their_width(heads: int, head_dim: int) -> None:
    """Tables scale attention by head_dim, and a trainer such as nanoGPT names the number of heads."""
    own = {"d": heads * head_dim, "n": 2, "h": heads}
    by_number = own_shape(own, DIMS, batch=1, steps=1)
    by_width = own_shape(own, {"width": "d", "depth": "n", "head_dim": head_dim}, batch=1, steps=1)
    assert by_number == by_width
    assert by_number.head_dim == head_dim


def test_a_width_of_heads_that_is_given_stays() -> None:
    shape = own_shape({"d": 32, "n": 2, "h": 4}, {**DIMS, "head_dim": 16}, batch=1, steps=1)
    assert (shape.head_dim, shape.num_heads) == (16, 4)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(HpxferError, match=r"dims\.num_heads: must divide the width .* got 3 at width 32"):
        own_shape({"d": 32, "n": 2, "h": 3}, DIMS, batch=1, steps=1)
