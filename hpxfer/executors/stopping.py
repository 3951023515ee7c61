"""Stopping: the training steps at which early stopping compares trials."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Stopping:
    """Successive halving: of the trials at a rung, the best 1 / reduction_factor continue."""

    grace_steps: int  # training steps before the first rung
    reduction_factor: float  # between one rung and the next, in steps and in trials

    def rungs(self, steps: int) -> tuple[int, ...]:
        """Return the rungs of a run of this many steps, ascending, in steps done. The end of the run is no rung."""
        out = []
        at = float(self.grace_steps)
        while math.ceil(at) < steps:
            out.append(math.ceil(at))
            at *= self.reduction_factor
        return tuple(out)
