"""Snapshot: the tensors that the next steps of a stack depend on. Compaction and checkpoints use it.

Letters: K trials, L MoE layers, E experts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hpxfer.model.flat import FlatLayout, Weights
from hpxfer.trial import TrialResult


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """The tensors of a stack between two steps. They may be the run's own, which the next step changes."""

    layout: FlatLayout  # of parameters and moments
    parameters: Tensor
    moments: tuple[Tensor, ...]  # of the optimizer: m and v of AdamW, m of SGD with momentum
    powers: Tensor  # [2, K] float64, the betas to the number of steps
    alive: Tensor  # [K] bool
    ended: Tensor  # [K] int64, the step at which a trial diverged, or the number of steps
    limit: Tensor  # [K] float64, the loss above which a trial has blown up
    step: Tensor  # [1] int64
    router_bias: Tensor  # [L, K, E]
    last_load: Tensor  # int64, [L, K, E], or [0, K, E] where nothing takes loads from the step before


@dataclass(frozen=True, kw_only=True, eq=False)
class Moment:
    """The trials of a stack that are alive after the last step."""

    snapshot: Snapshot
    rows: Mapping[str, int]  # trial id -> row of the snapshot
    results: Mapping[str, TrialResult]  # trial id -> result, of all trials


def copy_trials(source: Tensor, dim: int, rows: Sequence[int], out: Tensor) -> None:
    """Write those trials of `source` that `rows` names to `out`, on any device. `dim` is the trial axis."""
    out.copy_(source.index_select(dim, _index(source, rows)))


def copy_flat_trials(source: FlatLayout, flat: Tensor, out: Weights, rows: Sequence[int]) -> None:
    """Write those trials of `flat`, a vector of the layout `source`, that `rows` names to the copies `out`.

    A copy of `out` that is empty stays so.
    """
    index, stored = _index(flat, rows), source.weights(flat)
    for name, copies in out.items():
        for layer, copy in enumerate(copies):
            if copy.numel():
                copy.copy_(stored[name][layer].index_select(0, index))


def _index(source: Tensor, rows: Sequence[int]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64, device=source.device)
