"""Readout and cross entropy: losses and gradients against torch's own, in pieces of any size."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tolerances import assert_near
from torch import Tensor
from triton_cases import BACKENDS, DEVICE, integers, normal

from hpxfer.kernels import head
from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.head import head_losses

K, T, D, V = 3, 8, 12, 20
ROW = 4 * V  # bytes of a token's logits in float32


def given(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return h, readout, targets and the gradient of the losses, unlike for every token."""
    return (
        normal(K, T, D, dtype=dtype),
        normal(K, D, V, seed=1, dtype=dtype),
        integers(V, K, T),
        normal(K, T, seed=2, dtype=torch.float64),
    )


def torchs(h_KTD: Tensor, readout_KDV: Tensor, targets_KT: Tensor) -> Tensor:
    logits = torch.bmm(h_KTD, readout_KDV)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(logits.flatten(0, 1), targets_KT.flatten(), reduction="none").view(targets_KT.shape)


def results(function: object, dtype: torch.dtype, to: torch.dtype) -> tuple[Tensor, ...]:
    h, readout, targets, grad = given(dtype)
    leaves = [tensor.to(to).requires_grad_() for tensor in (h, readout)]
    losses = function(*leaves, targets)  # type: ignore[operator]
    return (losses, *torch.autograd.grad(losses, leaves, grad.to(losses.dtype)))


# Bytes of a piece of logits: all trials, two, one, five tokens of one, one token.
@pytest.mark.parametrize("piece", [10 * T * ROW, 2 * T * ROW, T * ROW, 5 * ROW, 1])
@pytest.mark.parametrize("kept", [True, False])
def test_losses_and_gradients_in_pieces(piece: int, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CPU_PIECE_BYTES", "GPU_PIECE_BYTES"):
        monkeypatch.setattr(head, name, piece)
    if not kept:
        monkeypatch.setattr(head, "KEPT_BYTES", 0)
    mine = results(head_losses, torch.float32, torch.float32)
    own, exact = (results(torchs, torch.float32, to) for to in (torch.float32, torch.float64))
    for name, *loss in zip(("losses", "dh", "dreadout"), mine, own, exact, strict=True):
        assert_near(*loss, name=name)


@BACKENDS
def test_both_backends(backend: Backend) -> None:
    mine = results(lambda *args: head_losses(*args, backend=backend), torch.float32, torch.float32)
    own, exact = (results(torchs, torch.float32, to) for to in (torch.float32, torch.float64))
    for name, *loss in zip(("losses", "dh", "dreadout"), mine, own, exact, strict=True):
        assert_near(*loss, name=name)


def test_bfloat16_is_as_near_as_torchs() -> None:
    mine, own = (results(tensor, torch.bfloat16, torch.bfloat16) for tensor in (head_losses, torchs))
    assert mine[0].dtype == torch.float32
    for name, *tensor in zip(
        ("losses", "dh", "dreadout"), mine, own, results(torchs, torch.bfloat16, torch.float64), strict=True
    ):
        assert_near(*tensor, name=name)


def test_no_gradients_are_made_where_none_are_asked_for() -> None:
    h, readout, targets, _ = given(torch.float32)
    with torch.no_grad():
        losses = head_losses(h, readout, targets)
    leaf = h.requires_grad_()
    assert torch.equal(losses, head_losses(leaf, readout, targets).detach())
    assert not losses.requires_grad


def test_a_target_with_hardly_a_share_has_its_loss() -> None:
    """Its probability is 0 in float32, but the loss is not infinite."""
    h, readout = torch.ones(1, 1, 1, device=DEVICE), torch.tensor([[[0.0, 200.0]]], device=DEVICE)
    losses = head_losses(h.requires_grad_(), readout, torch.zeros(1, 1, dtype=torch.long, device=DEVICE))
    assert losses.item() == 200.0


def test_bits_of_a_trial_do_not_depend_on_its_stack() -> None:
    h, readout, targets, grad = given(torch.float32)

    def run(trials: slice) -> tuple[Tensor, ...]:
        leaves = [tensor[trials].clone().requires_grad_() for tensor in (h, readout)]
        losses = head_losses(*leaves, targets[trials], backend=TORCH)
        return (losses, *torch.autograd.grad(losses, leaves, grad[trials].float()))

    together = run(slice(0, K))
    for trial in range(K):
        for got, whole in zip(run(slice(trial, trial + 1)), together, strict=True):
            assert torch.equal(got[0], whole[trial])
