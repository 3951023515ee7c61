"""Queries and keys by heads: torch and Triton against float64 code, and the bits of a trial in a stack."""

from __future__ import annotations

import pytest
import torch
from head_cases import THETA, HeadCase
from tolerances import assert_near, error
from triton_cases import BACKENDS, DEVICE, DTYPES, TRITON, normal

from hpxfer.kernels import heads
from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.heads import place_heads
from hpxfer.kernels.rope import rotation

CASES = [
    HeadCase(),
    HeadCase(share=0.5, head_dim=24, heads=3),
    HeadCase(scope="head"),
    HeadCase(scope="head", share=None, head_dim=20, heads=1),
    HeadCase(scope="head", kind="layernorm", bias=True, share=0.25),
    HeadCase(scope="head", gain=False, eps=0.3),
    HeadCase(scope="all", heads=3, head_dim=24, share=0.5),
    HeadCase(scope="all", kind="layernorm", bias=True, heads=4, head_dim=8),
    HeadCase(scope="all", gain=False, share=None),
]


@DTYPES
@BACKENDS
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(case: HeadCase, backend: Backend, dtype: torch.dtype) -> None:
    mine, own, exact = case.run(backend, dtype), case.run(TORCH, dtype), case.plain(dtype)
    for name, *tensor in zip(("y", "dx", "dgain", "dbias"), mine, own, exact, strict=False):
        assert_near(*tensor, name=name)
    wrong = case.plain(dtype, sign=-1.0)
    assert (error(mine[0], wrong[0]) > 0.1) == (case.share is not None)


@pytest.mark.parametrize("case", [HeadCase(scope="head", num_trials=3), HeadCase(scope="all", num_trials=3)], ids=str)
def test_bits_of_a_trial_do_not_depend_on_its_stack(case: HeadCase) -> None:
    together = case.run(TRITON, torch.float32)
    x, gain, _ = case.tensors(torch.float32)
    assert x is not None
    assert gain is not None
    leaf, own_gain = x[1:2].clone().requires_grad_(), gain[1:2].clone().requires_grad_()
    turned = rotation(case.context, case.head_dim, theta=THETA, share=1.0, device=DEVICE)
    longer = torch.cat([leaf, torch.zeros_like(leaf)], -1)[..., : leaf.shape[-1]]
    sizes = {"head_dim": case.head_dim, "context": case.context}
    y = place_heads(longer, own_gain, None, turned, **sizes, scope=case.scope, eps=case.eps, backend=TRITON)
    dy = normal(*together[0].shape, seed=4)[case.sequences : 2 * case.sequences]
    dx, dgain = torch.autograd.grad(y, [leaf, own_gain], dy)
    assert torch.equal(y, together[0][case.sequences : 2 * case.sequences])
    assert torch.equal(dx[0], together[1][1])
    assert torch.equal(dgain[0], together[2][1])


def test_the_ops_pass_opcheck() -> None:
    x, dy = normal(2, 24, 32, seed=1), normal(2, 24, 32, seed=2)
    gain, bias = normal(2, 16, seed=3), normal(2, 16, seed=4)
    cos, sin = rotation(24, 16, theta=THETA, share=0.5, device=DEVICE)
    for norms in ((None, None, 0), (gain, None, 1), (gain, bias, 1)):
        given = (*norms[:2], cos, sin, 16, 24, norms[2], bias is None, 1e-5)
        torch.library.opcheck(heads._place, (x.clone().requires_grad_(), *given))
        torch.library.opcheck(heads._gradients, (dy, x, *given))
