"""Sums of every trial: against torch's, and the same bits whatever is stacked beside a trial."""

from __future__ import annotations

import pytest
import torch
from tolerances import assert_near
from torch import Tensor
from triton_cases import BACKENDS, DEVICE, DTYPES, TRITON, normal

from hpxfer.kernels import sums
from hpxfer.kernels.backend import Backend
from hpxfer.kernels.sums import aligned, column_sums, spread, squares


@pytest.fixture(params=["one piece", "pieces", "pieces of pieces"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sum 37 rows or elements at once, in pieces, or in pieces whose sums are summed in pieces."""
    rows, block = {"one piece": (64, 8), "pieces": (8, 4), "pieces of pieces": (4, 4)}[request.param]
    monkeypatch.setattr(sums, "ROWS", rows)
    monkeypatch.setattr(sums, "BLOCK_T", block)
    monkeypatch.setattr(sums, "BLOCK_D", 16)
    monkeypatch.setattr(sums, "ELEMENTS", rows)
    monkeypatch.setattr(sums, "BLOCK_N", block)


@pytest.mark.usefixtures("pieces")
@BACKENDS
@DTYPES
@pytest.mark.parametrize(("rows", "columns"), [(37, 5), (1, 20), (37, 16)])
def test_column_sums_are_torchs(rows: int, columns: int, dtype: torch.dtype, backend: Backend) -> None:
    x = normal(3, rows, columns, dtype=dtype)
    found = column_sums(x, backend)
    assert found.dtype == torch.float32
    assert_near(found, x.float().sum(1), x.double().sum(1))


@BACKENDS
def test_column_sums_take_any_strides(backend: Backend) -> None:
    x = normal(5, 6, 2)
    for tensor in (x.permute(2, 0, 1), x[:, ::2], x[:1].expand(4, -1, -1), x[..., :1].expand(-1, -1, 3), x[1:, 1:, 1:]):
        assert_near(column_sums(tensor, backend), tensor.sum(1), tensor.double().sum(1))


@BACKENDS
def test_column_sums_of_nothing_are_zero(backend: Backend) -> None:
    assert torch.equal(column_sums(normal(2, 0, 3), backend), torch.zeros(2, 3, device=DEVICE))


def test_squares_of_nothing_are_zero() -> None:
    assert torch.equal(squares(normal(2, 0)), torch.zeros(2, device=DEVICE))


@pytest.mark.usefixtures("pieces")
@DTYPES
@pytest.mark.parametrize("count", [1, 37])
def test_squares_are_torchs(count: int, dtype: torch.dtype) -> None:
    x = normal(3, count, dtype=dtype)
    found = squares(x)
    assert found.dtype == torch.float32
    assert_near(found, x.float().square().sum(1), x.double().square().sum(1))


@pytest.mark.usefixtures("pieces")
@BACKENDS
def test_a_trial_has_the_same_bits_alone(backend: Backend) -> None:
    x = 10.0 ** normal(5, 37, 7)  # many sizes, so that the order shows
    together = column_sums(x, backend), squares(x.flatten(1))
    for trial in range(5):
        alone = x[trial : trial + 1].clone()
        assert torch.equal(column_sums(alone, backend)[0], together[0][trial])
        assert torch.equal(squares(alone.flatten(1))[0], together[1][trial])


@BACKENDS
def test_a_broken_trial_breaks_no_other(backend: Backend) -> None:
    x = normal(3, 9, 4)
    broken = x.clone()
    broken[1, 3, 2] = torch.nan
    before, after = (
        torch.cat([column_sums(tensor, backend), squares(tensor.flatten(1))[:, None]], 1) for tensor in (x, broken)
    )
    assert after[1].isnan().tolist() == [False, False, True, False, True]
    assert torch.equal(after[[0, 2]], before[[0, 2]])


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_what_is_spread_gathers_its_gradient(dtype: torch.dtype, backend: Backend) -> None:
    h, gain, bias, dy = (normal(*size, seed=seed) for seed, size in enumerate([(2, 9, 5), (2, 5), (2, 5), (2, 9, 5)]))
    h, dy = h.to(dtype), dy.to(dtype)

    def results(to: torch.dtype, how: Backend | None) -> tuple[Tensor, ...]:
        leaves = [gain.to(to).requires_grad_(), bias.to(to).requires_grad_()]
        if how is None:
            high, low = (leaf.to(dtype if to == torch.float32 else to).unsqueeze(1) for leaf in leaves)
        else:
            high, low = (spread(leaf, 9, dtype, how) for leaf in leaves)
        y = h.to(high.dtype) * high + low
        return y.detach(), *torch.autograd.grad(y, leaves, dy.to(y.dtype))

    mine = results(torch.float32, backend)
    assert mine[0].dtype == dtype
    assert mine[1].dtype == mine[2].dtype == torch.float32
    own, exact = results(torch.float32, None), results(torch.float64, None)
    assert torch.equal(mine[0], own[0])
    for found, plain, right in zip(mine[1:], own[1:], exact[1:], strict=True):
        assert_near(found, plain.to(dtype), right)


@BACKENDS
def test_the_gradient_of_column_sums(backend: Backend) -> None:
    x, dy = normal(2, 4, 3).requires_grad_(), normal(2, 3, seed=1)
    (dx,) = torch.autograd.grad(column_sums(x, backend), x, dy)
    assert torch.equal(dx, dy.unsqueeze(1).expand(2, 4, 3))


def test_spread_is_a_view() -> None:
    for strict in (True, False):
        out = spread(normal(2, 3), 1000, torch.float32, Backend(name="triton", reason="a test", strict=strict))
        assert out.stride() == (3, 0, 1)


def test_what_is_not_aligned_is_copied() -> None:
    whole = normal(65)
    assert aligned(whole) is whole
    moved = aligned(whole[1:])
    assert moved.data_ptr() % 16 == 0
    assert torch.equal(moved, whole[1:])


@DTYPES
def test_the_ops_pass_opcheck(dtype: torch.dtype) -> None:
    torch.library.opcheck(sums._column_sums, (normal(2, 5, 3, dtype=dtype).requires_grad_(),))
    torch.library.opcheck(sums._squares, (normal(2, 5, dtype=dtype),))


def test_what_does_not_fit_is_refused() -> None:
    x = torch.zeros(2, 3, 4)
    for call in (
        lambda: column_sums(x[0]),
        lambda: column_sums(x.double()),
        lambda: squares(x),
        lambda: squares(x[0].double()),
        lambda: spread(x[0].half(), 2, torch.float16),
    ):
        with pytest.raises(AssertionError, match="got"):
            call()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_many_rows_and_elements() -> None:
    x = normal(3, 65_536, 512, dtype=torch.bfloat16)
    assert_near(column_sums(x, TRITON), x.float().sum(1), x.double().sum(1))
    assert torch.equal(column_sums(x[1:2].clone(), TRITON)[0], column_sums(x, TRITON)[1])
    flat = normal(3, 25_755_648)
    assert_near(squares(flat), flat.square().sum(1), flat.double().square().sum(1))
    assert torch.equal(squares(flat[2:].clone())[0], squares(flat)[2])
