"""Causal attention against its formula, and the bits of a trial in any stack."""

from __future__ import annotations

import math

import pytest
import torch
from tolerances import assert_near
from torch import Tensor
from triton_cases import DEVICE, normal

from hpxfer.kernels.attention import attention
from hpxfer.kernels.backend import Backend
from hpxfer.model.linear import document_mask

STRICT, FAST = (Backend(name="torch", reason="a test", strict=strict) for strict in (True, False))
# Trials, sequences of one, context, heads, head features.
SIZES = {"one head": (2, 2, 8, 1, 8), "heads": (3, 1, 16, 4, 8), "one token": (1, 2, 1, 2, 16), "odd": (2, 1, 24, 3, 4)}


def plain(qkv_NS3HP: Tensor, scale: float, documents_NS: Tensor | None = None) -> Tensor:
    q, k, v = qkv_NS3HP.permute(2, 0, 3, 1, 4)
    scores = scale * q @ k.transpose(-1, -2)
    unseen = torch.ones_like(scores).triu(1).bool()
    if documents_NS is not None:
        unseen |= (documents_NS.unsqueeze(2) != documents_NS.unsqueeze(1)).unsqueeze(1)
    weight = scores.masked_fill(unseen, -math.inf).exp()
    return (weight / weight.sum(-1, keepdim=True) @ v).transpose(1, 2)


def with_gradient(heads: Tensor, qkv: Tensor, num: int) -> tuple[Tensor, Tensor]:
    return heads, torch.autograd.grad(heads, qkv, normal(*heads.shape, seed=num).to(heads.dtype))[0]


@pytest.mark.parametrize("backend", [STRICT, FAST], ids=["strict", "fast"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("scale", [0.125, 0.5])
def test_heads_and_gradient_are_the_formula(
    size: tuple[int, int, int, int, int], scale: float, backend: Backend
) -> None:
    trials, sequences, context, heads, features = size
    qkv = normal(trials * sequences, context, 3, heads, features)
    results = []
    for dtype in (torch.float32, torch.float64):
        leaf = qkv.to(dtype).requires_grad_()
        results.append(with_gradient(plain(leaf, scale), leaf, 1))
    leaf = qkv.requires_grad_()
    mine = with_gradient(attention(*leaf.unbind(2), scale=scale, num_trials=trials, backend=backend), leaf, 1)
    for name, *result in zip(("heads", "dqkv"), mine, *results, strict=True):
        assert_near(*result, name=name)


@pytest.mark.parametrize("backend", [STRICT, FAST], ids=["strict", "fast"])
def test_documents_see_only_themselves(backend: Backend) -> None:
    """Ids of which one in four ends a document, on whatever device there is."""
    trials, sequences, context = 2, 2, 24
    qkv = normal(trials * sequences, context, 3, 3, 8)
    ids = torch.randint(4, (trials, sequences, context), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    ends = (ids == 1).flatten(0, 1)
    documents = torch.cat([torch.zeros_like(ends[:, :1]), ends[:, :-1]], 1).cumsum(1)
    assert documents.max() > 2
    results = []
    for dtype in (torch.float32, torch.float64):
        leaf = qkv.to(dtype).requires_grad_()
        results.append(with_gradient(plain(leaf, 0.25, documents), leaf, 1))
    leaf = qkv.requires_grad_()
    mask = document_mask(ids, 1, torch.float32)
    heads = attention(*leaf.unbind(2), scale=0.25, num_trials=trials, mask_NSS=mask, backend=backend)
    for name, *result in zip(("heads", "dqkv"), with_gradient(heads, leaf, 1), *results, strict=True):
        assert_near(*result, name=name)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        pytest.param(
            torch.bfloat16,
            marks=[pytest.mark.gpu, pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a CUDA device")],
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("context", [32, 64])
def test_bits_of_a_trial_do_not_depend_on_its_stack(context: int, dtype: torch.dtype) -> None:
    sequences = 4
    qkv = normal(3 * sequences, context, 3, 2, 32, dtype=dtype)
    dheads = normal(3 * sequences, context, 2, 32, seed=1, dtype=dtype)

    def run(first: int, last: int) -> tuple[Tensor, Tensor]:
        rows = slice(first * sequences, last * sequences)
        leaf = qkv[rows].clone().requires_grad_()
        heads = attention(*leaf.unbind(2), scale=0.1, num_trials=last - first, backend=STRICT)
        return heads, torch.autograd.grad(heads, leaf, dheads[rows])[0]

    torch.use_deterministic_algorithms(True)
    try:
        together = run(0, 3)
        for trial in range(3):
            for got, whole in zip(run(trial, trial + 1), together, strict=True):
                assert torch.equal(got, whole[trial * sequences : (trial + 1) * sequences])
    finally:
        torch.use_deterministic_algorithms(False)
