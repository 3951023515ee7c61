"""Measures: what trials log at a few steps, beside gradient and update, if their family shows its routers.

    of routers        what `router_measures` names, by layer, on PROBE_SAMPLES fixed samples
    of weights        how experts of a layer differ, how large the routers are, and how far they are from their start
    of the optimizer  the gradient over its eps, and the share of elements whose gradient is below it, by role

Everything but that share is measured before the update of the step. The samples are the same at every width, seed and
step. The starting point of a trial is drawn again where a run goes on from a checkpoint, so no checkpoint holds it.

Letters: K trials, L blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hpxfer.model.families import ShowsRouters
from hpxfer.model.parameters import PROBE_SAMPLES
from hpxfer.model.router_measures import RouterView, expert_difference, rms, router_measures
from hpxfer.train.state import TrainState

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
