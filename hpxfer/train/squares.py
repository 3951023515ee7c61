"""Sums of squares of gradients and updates, by parameter and trial. Letters: K trials, C copies."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from hpxfer.model.flat import Weights
from hpxfer.train.ranks import ALONE, Ranks


def sums_of_squares(weights: Weights, dtype: torch.dtype, ranks: Ranks = ALONE) -> dict[str, Tensor]:
    """Return name -> [K] sum of squares over all copies of a parameter. Of several ranks, each has some of the copies.

    Each copy is reduced by itself: one reduction over copies and elements at once would order its additions by K.
    """
    parts = iter(
        joined_sums(
            [copy.flatten(1).to(dtype).square().sum(-1) for copies in weights.values() for copy in copies], ranks
        )
    )
    return {name: functools.reduce(operator.add, [next(parts) for _ in copies]) for name, copies in weights.items()}


def joined_sums(parts: Sequence[Tensor], ranks: Ranks) -> list[Tensor]:
    """Return [K] of every copy, where an empty copy has zeros here and its sum on the rank that owns it.

    Adding zeros is exact in any order, so the bits are those of one process.
    """
    if ranks.world == 1:
        return list(parts)
    return list(ranks.sum_(torch.stack(list(parts))).unbind(0))
