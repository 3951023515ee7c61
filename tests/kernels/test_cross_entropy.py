"""Cross entropy of rows and its gradient, against torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tolerances import assert_near
from torch import Tensor
from triton_cases import BACKENDS, DEVICE, DTYPES, TRITON, integers, normal

from hpxfer.kernels import cross_entropy
from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.cross_entropy import cross_entropy_rows_


def by_torch(logits_NV: Tensor, targets_N: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return (losses, gradient in `dtype`) of the same logits, computed in float32, or float64 for float64."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x = logits_NV.to(wide, copy=True).requires_grad_()
    losses = F.cross_entropy(x, targets_N, reduction="none")
    return losses.detach(), torch.autograd.grad(losses.sum(), x)[0].to(dtype)


def assert_right(logits_NV: Tensor, targets_N: Tensor, backend: Backend) -> None:
    own, exact = (by_torch(logits_NV, targets_N, dtype) for dtype in (logits_NV.dtype, torch.float64))
    losses = cross_entropy_rows_(logits_NV, targets_N, backend=backend)
    assert losses.dtype == torch.float32
    assert_near(losses, own[0], exact[0], "losses")
    assert_near(logits_NV, own[1], exact[1], "gradient")


@BACKENDS
@DTYPES
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 2), (4, 37), (5, 128)])
def test_losses_and_gradient_are_torchs(rows: int, columns: int, dtype: torch.dtype, backend: Backend) -> None:
    assert_right(4 * normal(rows, columns, dtype=dtype), integers(columns, rows), backend)


@BACKENDS
@pytest.mark.parametrize("order", ["rising", "falling", "any"])
def test_a_row_of_many_blocks(order: str, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "BLOCK_V", 16)
    logits = 5 * normal(3, 101)
    if order != "any":
        logits = logits.sort(-1, descending=order == "falling").values
    assert_right(logits, torch.tensor([0, 50, 100], device=DEVICE), backend)


@BACKENDS
def test_a_row_of_the_whole_vocabulary(backend: Backend) -> None:
    assert_right(2 * normal(2, 50304), torch.tensor([50303, 4096], device=DEVICE), backend)


@BACKENDS
@given(st.lists(st.floats(-300, 300, width=32), min_size=2, max_size=9), st.data())
def test_losses_far_from_the_largest_logit_are_exact(backend: Backend, row: list[float], data: st.DataObject) -> None:
    target = torch.tensor([data.draw(st.integers(0, len(row) - 1))], device=DEVICE)
    assert_right(torch.tensor([row], device=DEVICE), target, backend)


@BACKENDS
@DTYPES
def test_rows_with_a_gap_between_them(dtype: torch.dtype, backend: Backend) -> None:
    whole = normal(5, 40, dtype=dtype)
    before = whole.clone()
    assert_right(whole[:, 3:30], integers(27, 5), backend)
    assert torch.equal(whole[:, :3], before[:, :3])
    assert torch.equal(whole[:, 30:], before[:, 30:])


@BACKENDS
@DTYPES
def test_a_row_has_the_same_bits_alone(dtype: torch.dtype, backend: Backend) -> None:
    logits, targets = 3 * normal(6, 96, dtype=dtype), integers(96, 6)
    alone = logits[4:5].clone()
    losses = cross_entropy_rows_(logits, targets, backend=backend)
    assert torch.equal(cross_entropy_rows_(alone, targets[4:5], backend=backend), losses[4:5])
    assert torch.equal(alone, logits[4:5])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, of which the interpreter is made
@BACKENDS
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_a_broken_row_breaks_no_other(poison: float, backend: Backend) -> None:
    logits, targets = normal(4, 33), integers(33, 4)
    broken = logits.clone()
    broken[1, 7] = poison
    losses, broken_losses = (cross_entropy_rows_(given, targets, backend=backend) for given in (logits, broken))
    assert torch.isnan(broken_losses[1])
    assert torch.isnan(broken[1]).any()
    rest = [0, 2, 3]
    assert torch.equal(broken_losses[rest], losses[rest])
    assert torch.equal(broken[rest], logits[rest])


@BACKENDS
def test_minus_infinity_has_no_share(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "BLOCK_V", 16)
    logits = normal(2, 40)
    logits[:, :20] = -torch.inf  # a block of nothing else first
    inner = logits[:, 20:].clone()
    targets = torch.tensor([25, 39], device=DEVICE)
    losses = cross_entropy_rows_(logits, targets, backend=backend)
    own, exact = (by_torch(inner, targets - 20, dtype) for dtype in (torch.float32, torch.float64))
    assert_near(losses, own[0], exact[0])
    assert not logits[:, :20].any()


def test_half_precision_goes_through_a_small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, targets = normal(7, 12, dtype=torch.bfloat16), integers(12, 7)
    expected = logits.clone()
    losses = cross_entropy_rows_(expected, targets)
    monkeypatch.setattr(cross_entropy, "BUFFER_ELEMENTS", 24)
    assert torch.equal(cross_entropy_rows_(logits, targets), losses)
    assert torch.equal(logits, expected)


def test_a_target_outside_the_vocabulary_is_seen() -> None:
    outside = torch.tensor([3, 5], device=DEVICE)
    losses = cross_entropy_rows_(normal(2, 5), outside, backend=TRITON)
    assert losses.isnan().tolist() == [False, True]
    if DEVICE.type == "cpu":
        with pytest.raises(RuntimeError, match="out of bounds"):
            cross_entropy_rows_(normal(2, 5), outside, backend=TORCH)


@DTYPES
def test_the_op_passes_opcheck(dtype: torch.dtype) -> None:
    torch.library.opcheck(cross_entropy._cross_entropy_rows, (normal(3, 20, dtype=dtype), integers(20, 3)))


@pytest.mark.parametrize(
    ("logits", "targets"),
    [
        (torch.zeros(3), torch.zeros(3, dtype=torch.int64)),
        (torch.zeros(3, 4), torch.zeros(4, dtype=torch.int64)),
        (torch.zeros(4, 3).T, torch.zeros(3, dtype=torch.int64)),
        (torch.zeros(3, 4, dtype=torch.float64), torch.zeros(3, dtype=torch.int64)),
    ],
    ids=["one row", "targets", "columns", "dtype"],
)
def test_what_does_not_fit_is_refused(logits: Tensor, targets: Tensor) -> None:
    with pytest.raises(AssertionError, match="got"):
        cross_entropy_rows_(logits, targets)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("columns", [50304, 50257, 151936])
def test_a_whole_head_of_bfloat16_logits(columns: int) -> None:
    generator = torch.Generator(DEVICE).manual_seed(0)
    logits = torch.randn(2**14, columns, dtype=torch.bfloat16, device=DEVICE, generator=generator).mul_(3)
    targets = integers(columns, 2**14)
    some = torch.tensor([0, 1, 1000, 8191, 2**14 - 1], device=DEVICE)
    part = logits[some]
    own, exact = (by_torch(part, targets[some], dtype) for dtype in (torch.bfloat16, torch.float64))
    losses = cross_entropy_rows_(logits, targets, backend=TRITON)
    assert losses.isfinite().all()
    assert_near(losses[some], own[0], exact[0])
    assert_near(logits[some], own[1], exact[1], "gradient")
    # The shares alone, which are small beside the target's -1.
    shares = [gradient.scatter(1, targets[some].unsqueeze(1), 0.0) for gradient in (logits[some], own[1], exact[1])]
    assert_near(*shares, "shares")
    assert torch.equal(cross_entropy_rows_(part, targets[some], backend=TRITON), losses[some])
    assert torch.equal(part, logits[some])
