"""The grouped product against a loop over groups."""

from __future__ import annotations

import pytest
import torch
from tolerances import assert_near
from torch import Tensor

from hpxfer.kernels.grouped import grouped_product

LOADS = {"even": [4, 4, 4], "empty": [0, 7, 0, 5, 0], "one has all": [0, 0, 12], "one row each": [1] * 12}


def loop(x_NI: Tensor, w_GIO: Tensor, ends_G: Tensor) -> Tensor:
    begin, out = 0, []
    for group, end in enumerate(ends_G.tolist()):
        out.append(x_NI[begin:end] @ w_GIO[group])
        begin = end
    return torch.cat(out)


@pytest.mark.parametrize("loads", LOADS.values(), ids=LOADS.keys())
@pytest.mark.parametrize(("fan_in", "fan_out"), [(8, 24), (16, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients_equal_the_loop(loads: list[int], fan_in: int, fan_out: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, w, dy = (
        torch.randn(size, generator=generator).to(dtype)
        for size in ((12, fan_in), (len(loads), fan_in, fan_out), (12, fan_out))
    )
    ends = torch.tensor(loads).cumsum(0).to(torch.int32)

    def results(function: object, to: torch.dtype) -> tuple[Tensor, ...]:
        leaves = [one.to(to).requires_grad_() for one in (x, w)]
        y = function(*leaves, ends)  # type: ignore[operator]
        return (y, *torch.autograd.grad(y, leaves, dy.to(to)))

    mine = results(grouped_product, dtype)
    for name, *one in zip(("y", "dx", "dw"), mine, results(loop, dtype), results(loop, torch.float64), strict=True):
        assert_near(*one, name=name)
    empty = [group for group, load in enumerate(loads) if not load]
    assert torch.equal(mine[2][empty], torch.zeros_like(mine[2][empty]))
