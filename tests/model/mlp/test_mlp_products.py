"""Products of a stack: their values, and that their bits depend on no neighbor."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hpxfer.model.mlp.products import product

SIZES = st.sampled_from([1, 2, 3, 5, 7, 8, 10, 16, 27, 50, 64])
ROWS = ([0], [1], [3], [15], [0, 1, 2], [13, 14, 15])


def _rows(x: Tensor, rows: list[int], transposed: bool) -> Tensor:
    """Return some trials in memory of their own, in the same order of numbers."""
    return x.mT[rows].contiguous().mT if transposed else x[rows].contiguous()


@given(x=SIZES, y=SIZES, z=SIZES, first=st.booleans(), second=st.booleans())
def test_a_product_has_the_same_bits_in_every_stack(x: int, y: int, z: int, first: bool, second: bool) -> None:
    generator = torch.Generator().manual_seed(x + 100 * y + 10_000 * z)
    a = _rows(torch.randn(16, x, y, generator=generator), list(range(16)), first)
    b = _rows(torch.randn(16, y, z, generator=generator), list(range(16)), second)
    whole = product(a, b)
    assert whole.shape == (16, x, z)
    assert whole.is_contiguous()
    torch.testing.assert_close(whole.double(), a.double() @ b.double(), rtol=1e-4, atol=1e-4)
    for rows in ROWS:
        assert torch.equal(product(_rows(a, rows, first), _rows(b, rows, second)), whole[rows])
