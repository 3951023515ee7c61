"""Embedding: rows of a table for the ids of every trial.

    y[k, t] = table[k, id[k, t]]            backward: dtable[k, v] = sum over the t with id[k, t] = v of dy[k, t]

Triton's backward pass sums in an order that the ids of the trial fix: positions are sorted stably by (trial, id), and
each row of the table has its own program. One id may have half of the positions. Therefore a run longer than PIECE is
cut into pieces, which other programs sum first. There are no atomics, and nothing waits for the host.

Letters: K trials, T tokens, V table rows, D features, N = K*T.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hpxfer.kernels.backend import TORCH, Backend, launch
from hpxfer.kernels.sums import aligned

# Positions that one program sums, and the blocks that it reads (derived, not measured).
PIECE, BLOCK_T, BLOCK_D = 64, 8, 256


def embed(table_KVD: Tensor, ids_KT: Tensor, backend: Backend = TORCH) -> Tensor:
    """Return [K, T, D] in the dtype of the table. Its gradient is summed in float32. Ids are integers in [0, V)."""
    assert table_KVD.ndim == 3, f"the table must be [K, V, D], got {tuple(table_KVD.shape)}"
    assert ids_KT.ndim == 2, f"ids must be [K, T], got {tuple(ids_KT.shape)}"
    assert ids_KT.shape[0] == table_KVD.shape[0], f"{table_KVD.shape[0]} tables, but ids of {ids_KT.shape[0]} trials"
    if backend.is_triton:
        rows: Tensor = _embed(table_KVD, ids_KT)
        return rows
    return F.embedding(_flat(ids_KT, table_KVD.shape[1]), table_KVD.flatten(0, 1))


def _flat(ids_KT: Tensor, num_ids: int) -> Tensor:
    """Return the row of every position in the concatenated tables of all trials."""
    return ids_KT + torch.arange(ids_KT.shape[0], device=ids_KT.device).unsqueeze(1) * num_ids


@torch.library.custom_op("hpxfer::embed", mutates_args=())
def _embed(table_KVD: Tensor, ids_KT: Tensor) -> Tensor:
    return F.embedding(_flat(ids_KT, table_KVD.shape[1]), table_KVD.flatten(0, 1))


@_embed.register_fake
def _(table_KVD: Tensor, ids_KT: Tensor) -> Tensor:
    return table_KVD.new_empty(*ids_KT.shape, table_KVD.shape[2])


@torch.library.custom_op("hpxfer::embed_backward", mutates_args=())
def _embed_backward(grad_KTD: Tensor, ids_KT: Tensor, num_ids: int, dtype: torch.dtype) -> Tensor:
    from hpxfer.kernels.embedding_triton import long_pieces_kernel, table_rows_kernel

    num_trials, num_tokens, num_features = grad_KTD.shape
    count, rows = num_trials * num_tokens, num_trials * num_ids
    sorted_N, order_N = torch.sort(_flat(ids_KT, num_ids).flatten(), stable=True)
    starts = torch.searchsorted(sorted_N, torch.arange(rows + 1, device=sorted_N.device))
    windows = -(-count // PIECE)
    blocks = -(-num_features // BLOCK_D)
    pieces_SD = torch.empty(2 * windows, num_features, dtype=torch.float32, device=grad_KTD.device)
    out_KVD = torch.empty(num_trials, num_ids, num_features, dtype=dtype, device=grad_KTD.device)
    sizes = {"PIECE": PIECE, "BLOCK_T": BLOCK_T, "BLOCK_D": BLOCK_D, "num_warps": 4, "enable_fp_fusion": False}
    shared = (order_N, starts, num_features)
    grad_KTD = aligned(grad_KTD)
    launch(long_pieces_kernel, (2 * windows, blocks), grad_KTD, pieces_SD, sorted_N, *shared, count, **sizes)
    launch(table_rows_kernel, (rows, blocks), grad_KTD, out_KVD, pieces_SD, *shared, **sizes)
    return out_KVD


@_embed_backward.register_fake
def _(grad_KTD: Tensor, ids_KT: Tensor, num_ids: int, dtype: torch.dtype) -> Tensor:
    return grad_KTD.new_empty(grad_KTD.shape[0], num_ids, grad_KTD.shape[2], dtype=dtype)


def _keep_ids(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    table_KVD, ids_KT = inputs
    ctx.save_for_backward(ids_KT)
    ctx.num_ids, ctx.dtype = table_KVD.shape[1], table_KVD.dtype


def _backward(ctx: Any, grad_KTD: Tensor) -> tuple[Tensor, None]:
    (ids_KT,) = ctx.saved_tensors
    return _embed_backward(grad_KTD, ids_KT, ctx.num_ids, ctx.dtype), None


_embed.register_autograd(_backward, setup_context=_keep_ids)
