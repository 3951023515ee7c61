"""The grouped product against a loop over groups, and the batched product of a stack."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tolerances import assert_near
from torch import Tensor
from triton_cases import BACKENDS, DEVICE, TRITON, normal

from hpxfer.kernels import backend, grouped, grouped_launch
from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.grouped import grouped_product
from hpxfer.kernels.product import batched_product

LOADS = {"even": [4, 4, 4], "empty": [0, 7, 0, 5, 0], "one has all": [0, 0, 12], "one row each": [1] * 12}
# bfloat16 where torch runs, or the kernels are compiled: Triton's interpreter cannot round to it.
KINDS = [(TORCH, torch.float32), (TORCH, torch.bfloat16), (TRITON, torch.float32), (TRITON, torch.float16)]
if DEVICE.type == "cuda":
    KINDS.append((TRITON, torch.bfloat16))


def loop(x_NI: Tensor, w_GIO: Tensor, ends_G: Tensor) -> Tensor:
    begin, out = 0, []
    for group, end in enumerate(ends_G.tolist()):
        out.append(x_NI[begin:end] @ w_GIO[group])
        begin = end
    return torch.cat(out)


@pytest.mark.parametrize("loads", LOADS.values(), ids=LOADS.keys())
@pytest.mark.parametrize(("fan_in", "fan_out"), [(8, 24), (16, 8)])
@pytest.mark.parametrize(("backend", "dtype"), KINDS, ids=[f"{tensor.name} {dtype}" for tensor, dtype in KINDS])
def test_values_and_gradients_equal_the_loop(
    loads: list[int], fan_in: int, fan_out: int, backend: Backend, dtype: torch.dtype
) -> None:
    x = normal(12, fan_in, dtype=dtype)
    w = normal(len(loads), fan_in, fan_out, seed=1, dtype=dtype)
    dy = normal(12, fan_out, seed=2, dtype=dtype)
    ends = torch.tensor(loads).cumsum(0).to(DEVICE, torch.int32)

    def results(function: object, to: torch.dtype, *options: Backend) -> tuple[Tensor, ...]:
        leaves = [tensor.to(to).requires_grad_() for tensor in (x, w)]
        y = function(*leaves, ends, *options)  # type: ignore[operator]
        return (y, *torch.autograd.grad(y, leaves, dy.to(to)))

    mine = results(grouped_product, dtype, backend)
    for name, *result in zip(("y", "dx", "dw"), mine, results(loop, dtype), results(loop, torch.float64), strict=True):
        assert_near(*result, name=name)
    empty = [group for group, load in enumerate(loads) if not load]
    assert torch.equal(mine[2][empty], torch.zeros_like(mine[2][empty]))


@BACKENDS
@pytest.mark.parametrize(("trials", "tokens", "fan_in", "fan_out"), [(1, 5, 8, 40), (3, 17, 24, 8), (2, 9, 20, 13)])
def test_batched_product_is_a_product_a_trial(
    trials: int, tokens: int, fan_in: int, fan_out: int, backend: Backend
) -> None:
    x, w, dy = normal(trials, tokens, fan_in), normal(trials, fan_in, fan_out, seed=1), normal(trials, tokens, fan_out)

    def results(to: torch.dtype, *options: Backend) -> tuple[Tensor, ...]:
        leaves = [tensor.to(to).requires_grad_() for tensor in (x, w)]
        y = (
            batched_product(*leaves, *options)
            if options
            else torch.stack([a @ b for a, b in zip(*leaves, strict=True)])
        )
        return (y, *torch.autograd.grad(y, leaves, dy.to(to)))

    mine = results(torch.float32, backend)
    for name, *result in zip(("y", "dx", "dw"), mine, results(torch.float32), results(torch.float64), strict=True):
        assert_near(*result, name=name)


@pytest.mark.parametrize("m", [16, 128])
@pytest.mark.parametrize(
    "loads",
    [[5], [0, 0, 3], [0, 0, 0], [130, 0, 1, 16, 17], [0] * 63 + [1, 300], [0] * 100 + [2000] + [0] * 100],
    ids=lambda loads: f"{len(loads)} groups",
)
def test_tiles_are_those_of_the_groups_in_order(loads: list[int], m: int) -> None:
    assert_tiles(torch.tensor(loads), m)


def test_tiles_of_1310_trials_of_8_experts_cost_no_more_than_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    loads = torch.randint(0, 40, (10_480,), generator=generator) * (torch.rand(10_480, generator=generator) < 0.3)
    loads[7000] = 5000
    sizes = []

    def launch(kernel: object, grid: tuple[int, ...], *args: object, **options: int) -> None:
        sizes.append(grid[0] * options["BLOCK_G"])
        backend.launch(kernel, grid, *args, **options)

    monkeypatch.setattr(grouped_launch, "launch", launch)
    assert_tiles(loads, 16)
    assert sizes[0] < 2 * len(loads)


def assert_tiles(loads: Tensor, m: int) -> None:
    """Check the map of tiles against a loop over the groups."""
    num_rows, ends = int(loads.sum()), loads.cumsum(0)
    tiles = grouped_launch.tiles_of(ends.to(DEVICE, torch.int32), num_rows, m)
    wanted = [
        (group, begin + row)
        for group, (begin, load) in enumerate(zip((ends - loads).tolist(), loads.tolist(), strict=True))
        for row in range(0, load, m)
    ]
    assert list(zip(tiles.group.tolist(), tiles.row.tolist(), strict=True))[: len(wanted)] == wanted
    assert tiles.group.tolist()[len(wanted) :] == [-1] * (tiles.number - len(wanted))


def test_strict_products_have_the_same_bits_in_any_stack() -> None:
    x, w, dy = normal(3, 130, 8), normal(3, 8, 8, seed=1), normal(3, 130, 8, seed=2)

    def results(which: slice) -> tuple[Tensor, ...]:
        leaves = [tensor[which].clone().requires_grad_() for tensor in (x, w)]
        y = batched_product(*leaves, TRITON)
        return (y, *torch.autograd.grad(y, leaves, dy[which]))

    for alone, stacked in zip(results(slice(2, 3)), results(slice(0, 3)), strict=True):
        assert torch.equal(alone[0], stacked[2])


def test_products_that_need_not_be_strict_are_bmm() -> None:
    x, w = normal(3, 17, 24), normal(3, 24, 8, seed=1)
    assert torch.equal(batched_product(x, w, replace(TRITON, strict=False)), torch.bmm(x, w))


@BACKENDS
def test_weights_may_be_masters_in_float32(backend: Backend) -> None:
    x, ends = normal(4, 8, dtype=torch.float16), torch.tensor([4], device=DEVICE, dtype=torch.int32)
    w = normal(1, 8, 8).requires_grad_()
    y = grouped_product(x, w, ends, backend)
    dw = torch.autograd.grad(y, w, torch.ones_like(y))[0]
    assert (y.dtype, dw.dtype) == (torch.float16, torch.float32)
    assert torch.equal(y, grouped_product(x, w.half(), ends, backend))


def test_torch_agrees_with_what_the_op_says_of_itself() -> None:
    x, w = (normal(*size).requires_grad_() for size in ((5, 8), (2, 8, 16)))
    ends = torch.tensor([3, 5], device=DEVICE, dtype=torch.int32)
    torch.library.opcheck(grouped._product, (x, w, ends, 2))
