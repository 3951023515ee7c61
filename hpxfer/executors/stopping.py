"""Stopping: the training steps at which early stopping compares trials."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from hpxfer.trial import Trial


@dataclass(frozen=True)
class Stopping:
    """Successive halving: of the trials at a rung, the best 1 / reduction_factor continue."""

    grace_steps: int  # training steps before the first rung
    reduction_factor: float  # between one rung and the next, in steps and in trials
    varied: tuple[str, ...] = ()  # the HPs that the sweep's search varies

    def arm(self, trial: Trial) -> Hashable:
        """Return what trials must share to be compared: shape, table, and every HP that the search does not vary.

        So arms with HPs of their own are halved apart.
        """
        held = trial.hps
        for name in self.varied:
            held = held.with_value(name, 1.0 if "." in name else 0.0)
        return trial.shape, trial.parameterization, held

    def rungs(self, steps: int) -> tuple[int, ...]:
        """Return the rungs of a run of this many steps, ascending, in steps done. The end of the run is no rung."""
        out = []
        at = float(self.grace_steps)
        while math.ceil(at) < steps:
            out.append(math.ceil(at))
            at *= self.reduction_factor
        return tuple(out)
