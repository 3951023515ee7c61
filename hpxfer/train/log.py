"""The metrics of a run: the steps at which they are logged, what they measure, and the curves that they become."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpxfer.model.families import ShowsRouters
from hpxfer.model.parameters import PROBE_SAMPLES
from hpxfer.model.router_measures import RouterView, expert_difference, rms, router_measures
from hpxfer.train.state import TrainState
from hpxfer.trial import Curve

LOSS_HEAD = 100  # the loss of each of the first steps, where curves of different shapes should collapse
LOSS_POINTS = 256  # the losses of all later steps
BALANCE_POINTS = 64
PROBE_POINTS = 8  # of gradient and update RMS

Key = tuple[str, int | None, str | None]  # metric, layer, role
# The steps of a metric, and the values of all trials at each of them.
Series = dict[Key, tuple[list[int], list[list[float]]]]


def spaced(first: int, stop: int, points: int) -> list[int]:
    """Return at most `points` evenly spaced steps of [first, stop), both ends included."""
    count = stop - first
    if count <= points:
        return list(range(first, stop))
    return sorted({first + round(k * (count - 1) / (points - 1)) for k in range(points)})


@lru_cache(maxsize=64)  # every trial of a stack asks, at every report
def loss_steps(steps: int) -> tuple[int, ...]:
    """Return the steps whose training loss is logged, ascending."""
    head = min(steps, LOSS_HEAD)
    return (*range(head), *spaced(head, steps, LOSS_POINTS))


def error_steps(steps: int, window: int) -> set[int]:
    """Return the steps at which the error of a batch of samples is logged.

    These are those of the loss, and of the final `window`, over which it is averaged, the last LOSS_HEAD steps.
    """
    return {*loss_steps(steps), *range(max(0, steps - min(window, LOSS_HEAD)), steps)}


def balance_steps(steps: int) -> set[int]:
    """Return the steps at which load deviation and router entropy are logged."""
    return set(spaced(0, steps, BALANCE_POINTS))


def probe_steps(steps: int) -> set[int]:
    """Return the few steps at which gradient and update RMS are logged, in even ratios from first to last."""
    last = steps - 1
    ratio = (last + 1) ** (1 / max(1, PROBE_POINTS - 1))
    return {min(last, math.ceil(ratio**k) - 1) for k in range(PROBE_POINTS)} | {last}


class MetricLog:
    """Collects (metric, layer, role) -> values of all K trials by step, and returns the curves of each trial.

    What is added stays on its device until `fetch`, so that no step waits for it.
    """

    def __init__(self, num_trials: int) -> None:
        self._num_trials = num_trials
        self._series: Series = {}
        self._waiting: list[tuple[Key, int, Tensor, tuple[int, ...]]] = []

    def add(
        self,
        step: int,
        metric: str,
        values: Tensor,
        trials: Sequence[int],
        *,
        layer: int | None = None,
        role: str | None = None,
    ) -> None:
        """Add one value for each of these trials. The other trials get none."""
        self._waiting.append(((metric, layer, role), step, values, tuple(trials)))

    def fetch(self) -> None:
        """Copy to the host what has been added."""
        for key, step, values, trials in self._waiting:
            row = [math.nan] * self._num_trials
            for trial, value in zip(trials, values.tolist(), strict=True):
                row[trial] = value
            steps, rows = self._series.setdefault(key, ([], []))
            steps.append(step)
            rows.append(row)
        self._waiting.clear()

    @property
    def series(self) -> Series:
        """The metrics that have been fetched."""
        return self._series

    def resume(self, series: Series, trials: Sequence[int]) -> None:
        """Continue from the metrics of an earlier run, whose trials `trials` are those of this log."""
        for key, (steps, rows) in series.items():
            self._series[key] = list(steps), [[row[trial] for trial in trials] for row in rows]

    def curves(self, trial: int, before: int | None, first: int = 0) -> tuple[Curve, ...]:
        """Return the finite values of one trial as curves: from step `first`, and before step `before`, where it
        diverged.
        """
        out = []
        for (metric, layer, role), (steps, rows) in self._series.items():
            part = slice(bisect_left(steps, first), None if before is None else bisect_left(steps, before))
            kept = [
                (step, row[trial])
                for step, row in zip(steps[part], rows[part], strict=True)
                if math.isfinite(row[trial])
            ]
            if kept:
                at, values = zip(*kept, strict=True)
                out.append(Curve(metric=metric, layer=layer, role=role, steps=at, values=values))
        return tuple(out)


def loss_curve(losses_N: NDArray[np.float64], stop: int, first: int = 0) -> Curve | None:
    """Return the logged part of a trial's training loss, [N] of all N steps: from step `first`, and before `stop`."""
    logged = loss_steps(len(losses_N))
    steps = logged[bisect_left(logged, first) : bisect_left(logged, stop)]
    if not steps:
        return None
    return Curve(metric="train_loss_nats", steps=steps, values=tuple(losses_N[list(steps)].tolist()))


def rms_by_role(
    squares: Mapping[str, Tensor], counts: Mapping[str, int], roles: Mapping[str, str]
) -> dict[str, Tensor]:
    """Return role -> RMS [K]. The mappings are by parameter: sum of squares [K], elements per trial, and role."""
    by_role: dict[str, tuple[int, Tensor]] = {}
    for name, sum_K in squares.items():
        count, total = by_role.get(roles[name], (0, torch.zeros_like(sum_K)))
        by_role[roles[name]] = (count + counts[name], total + sum_K)
    return {role: (total / count).sqrt() for role, (count, total) in by_role.items()}


# Measures: what trials log at a few steps, beside gradient and update, if their family shows its routers.
#
#     of routers        what `router_measures` names, by layer, on PROBE_SAMPLES fixed samples
#     of weights        how experts of a layer differ, how large the routers are, and how far they are from their start
#     of the optimizer  the gradient over its eps, and the share of elements whose gradient is below it, by role
#
# Everything but that share is measured before the update of the step. The samples are the same at every width, seed and
# step. The starting point of a trial is drawn again where a run goes on from a checkpoint, so no checkpoint holds it.
#
# Letters: K trials, L blocks.

# No trial of a sweep uses this seed.
PROBE_SEED = 2**62
EXPERTS = ("expert_in", "expert_out")


def probe_samples(data: Any) -> tuple[Any, Any]:
    """Return the samples on which routers are measured: inputs and targets. `data` are those of a family of samples."""
    inputs, targets = (part[0][:PROBE_SAMPLES] for part in data.train_batches(PROBE_SEED, 0, 1))
    return inputs, targets


class Measured(NamedTuple):
    """One number per trial."""

    metric: str
    values: Tensor  # [K]
    layer: int | None = None
    role: str | None = None


class Measures:
    """The measures of one stack. `step` says where the state is; 0 is the start.

    `one_by_one` measures the trials each for itself, on devices whose sums depend on the number of rows.
    """

    def __init__(self, state: TrainState, step: int, *, one_by_one: bool = False) -> None:
        model = state.model
        assert isinstance(model, ShowsRouters), "this family does not show its routers"
        self._state, self._model, self._one_by_one = state, model, one_by_one
        self._inputs, _ = state.for_all(probe_samples(state.data))
        start = state.flat if step == 0 else state.initial()
        self._first = self._views(start, torch.zeros_like(state.router_bias), 0)
        self._start = self._routers(start).clone()

    @staticmethod
    def are_of(state: TrainState) -> bool:
        """Return whether the trials of a stack have these measures."""
        return isinstance(state.model, ShowsRouters) and state.ranks.world == 1

    @torch.no_grad()
    def before(self, step: int, grad_rms: Mapping[str, Tensor]) -> Iterator[Measured]:
        """Yield what there is to see before the update of a step. `grad_rms` are role -> [K]."""
        state = self._state
        now = self._views(state.flat, state.router_bias, step)
        for layer, seen, first in zip(state.moe_blocks, now, self._first, strict=True):
            for name, values in self._measured(seen, first).items():
                yield Measured(f"router_{name}", values, layer=layer)
        for name, copies in state.layout.weights(state.flat).items():
            if state.roles[name] in EXPERTS and state.stack.shape.num_experts > 1:
                for layer, copy in zip(state.moe_blocks, copies, strict=True):
                    yield Measured("expert_difference", self._each(expert_difference, copy), layer, state.roles[name])
        routers = self._routers(state.flat)
        yield Measured("weight_rms", self._each(rms, routers), role="router")
        yield Measured("moved_rms", self._each(rms, routers - self._start), role="router")
        for role, eps in self._of_optimizer(state.optimizer.eps()).items():
            yield Measured("grad_over_eps", grad_rms[role] / eps, role=role)

    @torch.no_grad()
    def after(self) -> Iterator[Measured]:
        """Yield what there is to see after the update."""
        for role, share in self._of_optimizer(self._state.optimizer.below_eps()).items():
            yield Measured("below_eps_share", share, role=role)

    def _views(self, flat: Tensor, router_bias: Tensor, step: int) -> tuple[RouterView, ...]:
        weights, noise = self._state.layout.weights(flat), self._state.noise(step)
        return self._model.router_views(weights, router_bias, self._inputs, noise_LKE=noise)

    def _routers(self, flat: Tensor) -> Tensor:
        """Return the numbers [K, ...] of all routers of every trial."""
        weights, roles = self._state.layout.weights(flat), self._state.roles
        return torch.cat(
            [copy.flatten(1) for name, copies in weights.items() if roles[name] == "router" for copy in copies], 1
        )

    def _measured(self, now: RouterView, first: RouterView) -> dict[str, Tensor]:
        if not self._one_by_one:
            return router_measures(now, first)
        alone = [router_measures(_row(now, k), _row(first, k)) for k in range(self._state.num_trials)]
        return {name: torch.cat([measures[name] for measures in alone]) for name in alone[0]}

    def _each(self, measure: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Return measure(x) of x [K, ...]."""
        return torch.cat([measure(x[k : k + 1]) for k in range(len(x))]) if self._one_by_one else measure(x)

    def _of_optimizer(self, by_role: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return those roles that the optimizer trains. A router bias may have a step of its own."""
        return {role: value for role, value in by_role.items() if role not in self._state.plain_roles}


def _row(view: RouterView, k: int) -> RouterView:
    """Return what is seen of one trial."""
    row = slice(k, k + 1)
    return replace(
        view,
        logits_KPE=view.logits_KPE[row],
        weights_KPE=view.weights_KPE[row],
        scores_KPE=view.scores_KPE[row],
        active_KPE=None if view.active_KPE is None else view.active_KPE[row],
    )
