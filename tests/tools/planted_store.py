"""A store of a real sweep with planted losses, on which analyses and the report are tested and timed.

    validation loss = floor + (2^10 / parameters)^0.3 + curvature (log2 LR - optimum)^2 + noise of the seed
    training loss   = validation loss + 2.5 ((step + 1) / steps)^-0.3 - 2.5 + noise of the batch

The optimum moves along the width, by the planted number of octaves per doubling of each parameterization. A trial whose
LR is too many octaves above the optimum diverges halfway through the run.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from hpxfer.model.cost import count_params
from hpxfer.trial import Trial
from hpxfer.trial.result import Curve, Status, TrialResult

HEAD = 40  # steps that are logged one by one


@dataclass(frozen=True, kw_only=True)
class PlantedStore:
    """What is planted. Lengths are in octaves, losses in nats."""

    drift: Mapping[str, float] = field(default_factory=dict)  # parameterization -> octaves per doubling of the width
    middle: float = -6.3  # log2 of the best LR at the base
    curvature: float = 0.03
    floor: float = 1.8
    noise: float = 0.003  # standard deviation between seeds
    batch_noise: float = 0.05  # standard deviation of the training loss between batches
    cliff: float = math.inf  # above the optimum
    points: int = 96  # logged steps of the loss, about
    balance_points: int = 16
    kept: Callable[[Trial], bool] = lambda _: True  # whether a trial has a result


def planted_result(trial: Trial, plan: PlantedStore) -> TrialResult:
    """Return the result of one trial. The same trial has the same numbers every time."""
    label = trial.parameterization.name if trial.parameterization else ""
    doublings = math.log2(trial.shape.width / trial.base.width)
    away = math.log2(trial.hps.lr) - plan.middle - plan.drift.get(label, 0.0) * doublings
    rng = np.random.default_rng(int(hashlib.sha256(trial.id.encode()).hexdigest()[:12], 16))
    size = count_params(trial.shape, trial.setting).total
    loss = plan.floor + (2.0**10 / size) ** 0.3 + plan.curvature * away**2 + plan.noise * rng.standard_normal()
    diverged = away > plan.cliff
    steps = trial.setting.steps
    stop = steps // 2 if diverged else steps
    status: Status = "diverged" if diverged else "finished"
    return TrialResult(
        trial_id=trial.id,
        status=status,
        validation_loss_nats=None if diverged else loss,
        final_window_loss_nats=None if diverged else loss + 0.02,
        diverged_step=stop if diverged else None,
        last_finite_loss_nats=loss + 3 if diverged else None,
        curves=tuple(_curves(trial, plan, loss, away, stop)),
        wall_s=1.0,
        tokens_per_s=1e5,
        stack_size=8,
        device="cpu",
        finished_at="2026-01-01T00:00:00+00:00",
    )


def _curves(trial: Trial, plan: PlantedStore, loss: float, away: float, stop: int) -> Iterable[Curve]:
    steps = trial.setting.steps
    spaced = np.linspace(HEAD, steps - 1, max(2, plan.points - HEAD)).astype(int)
    at = np.unique(np.concatenate([np.arange(min(HEAD, steps)), spaced]))
    batch = np.random.default_rng(trial.seed).standard_normal(steps)[at]
    values = loss + 2.5 * (((at + 1) / steps) ** -0.3 - 1) + plan.batch_noise * batch
    kept = at < stop
    yield Curve(metric="train_loss_nats", steps=tuple(at[kept].tolist()), values=tuple(values[kept].tolist()))
    if not trial.shape.num_experts:
        return
    at = np.unique(np.linspace(0, steps - 1, plan.balance_points).astype(int))
    at = at[at < stop]
    for layer in range(trial.shape.depth):
        off = trial.shape.kappa * (0.2 + 0.1 * 2.0 ** min(away, 2.0) + 0.5 * np.exp(-at / steps * 5)) / (1 + layer)
        yield Curve(metric="load_deviation", layer=layer, steps=tuple(at.tolist()), values=tuple(off.tolist()))
