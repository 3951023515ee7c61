"""Early stopping: Ray Tune's ASHA says which trials fall behind. It compares the trials of an arm, and stops no stack
of several.

Which trials are stopped depends on which others had reported by then, so it differs from run to run. A learning rate
that is behind early on may win once the rate decays: see `hpxfer.spec.search`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import ASHAScheduler

from hpxfer.executors.executor import Stopping
from hpxfer.trial import Curve, Ended, Progress, Stack, TrialResult

_STEP, _LOSS = "step", "loss_nats"


class Halving:
    """ASHA of each arm, and the losses that running stacks reported at their rungs."""

    def __init__(self, stopping: Stopping) -> None:
        self._stopping = stopping
        self._arms: dict[Hashable, Any] = {}
        self._losses: defaultdict[str, dict[int, float]] = defaultdict(dict)  # stack id -> steps done -> loss

    def end_of(self, stack: Stack, progress: Progress) -> Ended | None:
        """Return the end of a stack whose trial has fallen behind, or None."""
        if len(progress.losses) != 1 or progress.step is None:
            return None
        losses, (loss,) = self._losses[stack.id], progress.losses
        losses[progress.step] = loss
        if not math.isfinite(loss):
            return None
        trial, asha = SimpleNamespace(trial_id=stack.id), self._asha(stack)
        asha.on_trial_add(None, trial)
        if asha.on_trial_result(None, trial, {_STEP: progress.step, _LOSS: loss}) != asha.STOP:
            return None
        curve = Curve(
            metric="train_loss_nats",
            steps=tuple(step - 1 for step in losses),  # curves count steps from 0
            values=tuple(losses.values()),
        )
        return Ended(
            results=(
                TrialResult(
                    trial_id=stack.trials[0].id,
                    status="stopped",
                    last_finite_loss_nats=loss,
                    curves=(curve,),
                    finished_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
                ),
            )
        )

    def _asha(self, stack: Stack) -> Any:
        arm, steps = self._stopping.arm(stack.trials[0]), stack.setting.steps
        if arm not in self._arms:
            self._arms[arm] = ASHAScheduler(
                time_attr=_STEP,
                metric=_LOSS,
                mode="min",
                max_t=steps,
                grace_period=min(self._stopping.grace_steps, steps),
                reduction_factor=self._stopping.reduction_factor,
                stop_last_trials=False,
            )
        return self._arms[arm]
