"""ParameterSpec and Memory: what a model says of itself for planning. They need no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Samples on which trials measure their routers, at most: `hpxfer.train.log`.
PROBE_SAMPLES = 64


@dataclass(frozen=True, kw_only=True)
class ParameterSpec:
    """One named parameter of a model. It has a copy in each of `blocks`, or one copy outside the blocks if empty.

    Matrices are [in, out]. Those of experts are [experts, in, out]. The `heads` of attention lie side by side in the
    columns of a matrix, or in the rows of the output's.
    """

    name: str
    role: str
    size: tuple[int, ...]
    blocks: Sequence[int] = ()
    heads: int = 1

    @property
    def layers(self) -> int:
        """The number of copies."""
        return len(self.blocks) or 1

    @property
    def numel(self) -> int:
        """The elements of one copy."""
        return math.prod(self.size)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The bytes that one trial needs beside its parameters, gradients, moments and logits."""

    parts: Mapping[str, int]
    """What the blocks keep for the backward pass, by part of the model."""
    passing: int = 0
    """What the backward pass of a block holds for a moment beside it, at most."""
    ends: int = 0
    """What is kept outside of the blocks. The backward pass lets it go, and the logits, before it comes to a block."""
    head_passing: int = 0
    """What the backward pass of the head holds for a moment beside all."""
    first: int = 0
    """What the first block still keeps, and what passes through it, while the last gradients are computed."""
    block: int = 0
    """What the block keeps that keeps most, as a part of `parts`. 0 where the family cannot compute blocks again."""
    between: int = 0
    """What is kept of all blocks where the backward pass computes each block again."""
    measured: int = 0
    """What a trial that measures its routers keeps over its whole training."""
    measuring: int = 0
    """What the measures hold for a moment beside that."""
