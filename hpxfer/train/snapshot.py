"""Snapshot: all that the next steps of a stack depend on, beside its trials. Compaction and checkpoints use it.

Letters: K trials, L MoE layers, E experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hpxfer.model.flat import Flat


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """Where a stack stands between two steps. The tensors may be the run's own: the next step moves them."""

    layout: Flat  # of parameters and moments
    parameters: Tensor
    moments: tuple[Tensor, ...]  # m and v; none for SGD
    powers: Tensor  # [2, K] float64, the betas to the number of steps
    alive: Tensor  # [K] bool
    ended: Tensor  # [K] int64, the step at which a trial diverged, or the number of steps
    limit: Tensor  # [K] float64, the loss above which a trial has blown up
    step: Tensor  # [1] int64
    router_bias: Tensor  # [L, K, E]


def keep(source: Tensor, dim: int, kept: Sequence[int], out: Tensor) -> None:
    """Write the trials of `source` that are kept, on any device, to `out`."""
    out.copy_(source.index_select(dim, _rows(source, kept)))


def keep_flat(source: Flat, flat: Tensor, target: Flat, out: Tensor, kept: Sequence[int]) -> None:
    """Write the trials of `flat` that are kept to `out`, a vector of the layout `target`."""
    rows = _rows(flat, kept)
    theirs, mine = source.weights(flat), target.weights(out)
    for name, copies in mine.items():
        for layer, copy in enumerate(copies):
            copy.copy_(theirs[name][layer].index_select(0, rows))


def _rows(source: Tensor, kept: Sequence[int]) -> Tensor:
    return torch.tensor(kept, dtype=torch.int64, device=source.device)
