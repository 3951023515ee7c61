"""ParameterSpec: the name, the role and the size of one trained parameter. It needs no torch, so planning uses it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ParameterSpec:
    """One named parameter of a model. It has a copy in each of `blocks`, or one copy outside the blocks if empty.

    Matrices are [in, out]. Those of experts are [experts, in, out].
    """

    name: str
    role: str
    size: tuple[int, ...]
    blocks: Sequence[int] = ()

    @property
    def layers(self) -> int:
        """The number of copies."""
        return len(self.blocks) or 1

    @property
    def numel(self) -> int:
        """The elements of one copy."""
        return math.prod(self.size)
