"""Rows of a table, and the ordered sum that is their gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tolerances import assert_near
from torch import Tensor
from triton_cases import BACKENDS, DEVICE, DTYPES, TRITON, integers, normal

from hpxfer.kernels import embedding
from hpxfer.kernels.backend import Backend
from hpxfer.kernels.embedding import embed

IDS = {
    "every id once": [[0, 1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0]],
    "one id": [[3] * 7, [6] * 7],
    "most one id": [[2, 2, 5, 2, 2, 2, 2], [0, 0, 0, 0, 0, 0, 1]],
    "a few": [[1, 1, 1, 4, 4, 4, 4], [0, 6, 0, 6, 0, 6, 3]],
}


def naive(table_KVD: Tensor, ids_KT: Tensor) -> Tensor:
    return torch.stack([F.embedding(ids, table) for ids, table in zip(ids_KT, table_KVD, strict=True)])


def results(function: object, table_KVD: Tensor, ids_KT: Tensor, grad_KTD: Tensor, *more: object) -> tuple[Tensor, ...]:
    """Return the rows, and the gradient of the table."""
    leaf = table_KVD.clone().requires_grad_()
    y = function(leaf, ids_KT, *more)  # type: ignore[operator]
    return y.detach(), *torch.autograd.grad(y, leaf, grad_KTD.to(y.dtype))


@pytest.fixture(params=[2, 4, 64], ids="pieces of {}".format)
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(embedding, "PIECE", request.param)
    monkeypatch.setattr(embedding, "BLOCK_T", 2)
    return int(request.param)


@pytest.mark.usefixtures("piece")
@BACKENDS
@DTYPES
@pytest.mark.parametrize("case", IDS)
def test_rows_and_gradient_are_torchs(case: str, dtype: torch.dtype, backend: Backend) -> None:
    ids = torch.tensor(IDS[case], device=DEVICE)
    table, grad = normal(2, 7, 5, dtype=dtype), normal(2, 7, 5, seed=1, dtype=dtype)
    mine = results(embed, table, ids, grad, backend)
    own, exact = results(naive, table, ids, grad), results(naive, table.double(), ids, grad)
    assert torch.equal(mine[0], own[0])
    assert mine[1].dtype == dtype
    assert_near(mine[1], own[1], exact[1])


@given(tokens=st.integers(1, 24), num_ids=st.integers(1, 6), num_trials=st.integers(1, 3), seed=st.integers(0, 10**6))
def test_any_ids_in_any_pieces(tokens: int, num_ids: int, num_trials: int, seed: int) -> None:
    # Small whole numbers: float32 sums are exact in any order, so equality is the tolerance.
    ids = integers(num_ids, num_trials, tokens, seed=seed)
    grad = (integers(17, num_trials, tokens, 2, seed=seed + 1) - 8).float()
    table = torch.zeros(num_trials, num_ids, 2, device=DEVICE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedding, "PIECE", 1 + seed % 5)
        patch.setattr(embedding, "BLOCK_T", 2)
        mine = results(embed, table, ids, grad, TRITON)
    assert torch.equal(mine[1], results(naive, table, ids, grad)[1])


@pytest.mark.usefixtures("piece")
@BACKENDS
def test_a_trial_has_the_same_bits_alone(backend: Backend) -> None:
    tokens, num_ids = 23, 3
    ids = integers(num_ids, 3, tokens)
    ids[0, :-1] = 1  # neighbors of other loads
    table, grad = normal(3, num_ids, 5), 10.0 ** normal(3, tokens, 5, seed=1)  # many sizes, so that the order shows
    together = results(embed, table, ids, grad, backend)
    for trial in range(3):
        own = slice(trial, trial + 1)
        alone = results(embed, table[own], ids[own], grad[own], backend)
        for mine, other in zip(alone, together, strict=True):
            assert torch.equal(mine[0], other[trial])


@BACKENDS
def test_a_broken_trial_breaks_no_other(backend: Backend) -> None:
    ids = integers(4, 3, 9)
    grad = normal(3, 9, 5)
    broken = grad.clone()
    broken[1] = torch.nan
    table = normal(3, 4, 5)
    (_, before), (_, after) = (results(embed, table, ids, tensor, backend) for tensor in (grad, broken))
    assert after[1].isnan().any()
    assert torch.equal(after[[0, 2]], before[[0, 2]])


@BACKENDS
@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64], ids=str)
def test_ids_of_any_integer_and_gradients_of_any_strides(ids_dtype: torch.dtype, backend: Backend) -> None:
    ids, table = integers(7, 2, 9), normal(2, 7, 6)
    grad = normal(6, 9, 1, seed=1).permute(2, 1, 0).expand(2, -1, -1)
    mine = results(embed, table, ids.to(ids_dtype), grad, backend)
    own, exact = results(naive, table, ids, grad), results(naive, table.double(), ids, grad)
    assert_near(mine[1], own[1], exact[1])


@DTYPES
def test_the_ops_pass_opcheck(dtype: torch.dtype) -> None:
    table, ids = normal(2, 4, 3, dtype=dtype).requires_grad_(), integers(4, 2, 5)
    torch.library.opcheck(embedding._embed, (table, ids))
    torch.library.opcheck(embedding._embed_backward, (normal(2, 5, 3, dtype=dtype), ids, 4, torch.float32))


def test_what_does_not_fit_is_refused() -> None:
    table, ids = torch.zeros(2, 4, 3), torch.zeros(2, 5, dtype=torch.int64)
    for tensor, other in ((table[0], ids), (table, ids[0]), (table, ids[:1])):
        with pytest.raises(AssertionError, match=r"got|but"):
            embed(tensor, other)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_half_of_many_tokens_are_one_id() -> None:
    ids = integers(50304, 2, 32768)
    ids[:, ::2] = 11
    table, grad = normal(2, 50304, 512), normal(2, 32768, 512, seed=1)
    mine = results(embed, table, ids, grad, TRITON)
    own, exact = results(naive, table, ids, grad), results(naive, table.double(), ids, grad)
    assert_near(mine[1], own[1], exact[1])
    alone = results(embed, table[1:], ids[1:], grad[1:], TRITON)
    assert torch.equal(alone[1][0], mine[1][1])
