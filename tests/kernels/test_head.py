"""Readout and cross entropy: losses and gradients against torch's own, in pieces of any size."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tolerances import assert_near
from torch import Tensor
from triton_cases import BACKENDS, DEVICE, TRITON, integers, normal

from hpxfer.kernels import head, head_limits
from hpxfer.kernels.backend import Backend
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
        monkeypatch.setattr(head_limits, name, piece)
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


@BACKENDS
# Bytes of a piece of logits: all trials, two, five tokens of one.
@pytest.mark.parametrize("piece", [10 * T * ROW, 2 * T * ROW, 5 * ROW])
def test_bits_of_a_trial_do_not_depend_on_its_stack(
    piece: int, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In torch with the pieces of a CPU, in Triton with those of a GPU."""
    if DEVICE.type == "cuda" and not backend.is_triton:
        pytest.skip("on CUDA, torch chooses the algorithm of a batched product by the number of trials")
    for name in ("CPU_PIECE_BYTES", "GPU_PIECE_BYTES"):
        monkeypatch.setattr(head_limits, name, piece)
    monkeypatch.setattr(head, "pieces", lambda *sizes, cuda: head_limits.pieces(*sizes, cuda=backend.is_triton))
    h, readout, targets, grad = given(torch.float32)

    def run(trials: slice) -> tuple[Tensor, ...]:
        leaves = [tensor[trials].clone().requires_grad_() for tensor in (h, readout)]
        losses = head_losses(*leaves, targets[trials], backend=backend)
        return (losses, *torch.autograd.grad(losses, leaves, grad[trials].float()))

    together = run(slice(0, K))
    for trial in range(K):
        for got, whole in zip(run(slice(trial, trial + 1)), together, strict=True):
            assert torch.equal(got[0], whole[trial])


def in_float64(h: Tensor, readout: Tensor, targets: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the losses and both gradients of one trial, a few thousand tokens at a time."""
    losses, dh, dreadout = [], [], torch.zeros_like(readout, dtype=torch.float64)
    for some, ids, g in zip(h.split(4096), targets.split(4096), grad.split(4096), strict=True):
        logits = some.double() @ readout.double()
        losses.append(F.cross_entropy(logits, ids, reduction="none"))
        onto_logits = logits.softmax(-1).scatter_add_(1, ids.unsqueeze(1), torch.full_like(logits[:, :1], -1.0))
        onto_logits *= g.double().unsqueeze(1)
        dh.append(onto_logits @ readout.double().T)
        dreadout += some.double().T @ onto_logits
    return torch.cat(losses), torch.cat(dh), dreadout


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "fast"])
def test_64k_tokens_in_equal_pieces_are_as_near_as_in_one(strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, size, vocabulary = 2**16, 256, 50304
    h = normal(1, tokens, size, dtype=torch.bfloat16)
    readout = normal(1, size, vocabulary, seed=1, dtype=torch.bfloat16) / size**0.5
    targets, grad = integers(vocabulary, 1, tokens), torch.full((1, tokens), 1 / tokens, device=DEVICE)
    fast, backend = (replace(TRITON, strict=mode) for mode in (False, strict))

    def run(piece_bytes: int, backend: Backend) -> tuple[Tensor, ...]:
        monkeypatch.setattr(head_limits, "GPU_PIECE_BYTES", piece_bytes)
        leaves = [tensor.clone().requires_grad_() for tensor in (h, readout)]
        losses = head_losses(*leaves, targets, backend=backend)
        return (losses.detach(), *torch.autograd.grad(losses, leaves, grad))

    rows = [tokens.stop - tokens.start for _, tokens in head_limits.pieces(1, tokens, 2 * vocabulary, cuda=True)]
    assert rows == [tokens // 2] * 2
    # A strict product takes fewer than 2^31 logits at once, so what they are held against is a product of the library.
    halves, whole = run(head_limits.GPU_PIECE_BYTES, backend), run(2**40, fast)
    exact = in_float64(h[0], readout[0], targets[0], grad[0])
    for name, mine, one, right in zip(("losses", "dh", "dreadout"), halves, whole, exact, strict=True):
        assert_near(mine[0], one[0], right, name)
