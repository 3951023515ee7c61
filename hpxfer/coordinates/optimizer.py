"""What the optimizer itself does to a role: how large eps is beside the gradient, and how much weight decay takes.

    gradient / eps    Adam divides by |gradient| + eps. It acts alike at every scale if the two keep their ratio
    sqrt(v) < eps     the share of the parameters for which eps is the larger part of what Adam divides by
    decay             the share of a weight that weight decay takes in one step. LR and decay scale it together

The decay is measured apart from training: all weights are 1, and the optimizer takes one step without a gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from hpxfer.coordinates.measure import Observation
from hpxfer.coordinates.optimizer_rules import BELOW_EPS, DECAY
from hpxfer.model.flat import FlatLayout
from hpxfer.model.parameters import ParameterSpec
from hpxfer.scaling.claims import GRADIENT_OVER_EPS
from hpxfer.train.optimizer import StackOptimizer
from hpxfer.train.optimizers import OPTIMIZERS
from hpxfer.train.state import TrainState
from hpxfer.trial import Trial


def gradients_over_eps(gradients: Iterable[Observation], trial: Trial) -> Iterator[Observation]:
    """Yield the observed gradients of a shape in units of the eps of their role; nothing without an eps."""
    if "eps" not in OPTIMIZERS.get(trial.setting.optimizer).hps:
        return
    roles = trial.resolved()
    for seen in gradients:
        values = tuple(value / roles[seen.role].eps for value in seen.values)
        yield replace(seen, quantity=GRADIENT_OVER_EPS, values=values)


def shares_below_eps(
    state: TrainState, step: int, *, is_single: bool
) -> Iterator[tuple[str, str, int | None, torch.Tensor]]:
    """Yield (name, role, block, share [K]) for each tensor after `step` updates: where sqrt(v) < eps in AdamW.

    v is the second moment with its bias correction. Of a single block, the block is None. A router bias is left out: a
    rule or plain SGD may move it.
    """
    if state.setting.optimizer != "adamw" or not step:
        return
    moments = state.layout.weights(state.moments()[1])
    beta2_K = torch.tensor([trial.globals().beta2 for trial in state.stack.trials], dtype=torch.float64)
    scale_K = (1 - beta2_K) / (1 - state.optimizer.powers[1])  # v is stored without the factor 1 - beta2
    for tensor in state.layout.parameters:
        if tensor.role == "router_bias":
            continue
        eps_K = torch.tensor([trial.resolved()[tensor.role].eps for trial in state.stack.trials], dtype=torch.float64)
        limit_K1 = (eps_K**2 / scale_K).unsqueeze(1)
        for block, v in zip(tensor.blocks or (None,), moments[tensor.name], strict=True):
            yield BELOW_EPS, tensor.role, None if is_single else block, (v.flatten(1) < limit_K1).double().mean(1)


def decays(trial: Trial, roles: Iterable[str], scale: float) -> Iterator[Observation]:
    """Yield the share that weight decay takes from each role in one step, at a decay of 1/lr of the base."""
    trial = replace(trial, hps=trial.hps.with_value("weight_decay", 1 / trial.hps.lr))
    layout = FlatLayout(
        parameters=tuple(ParameterSpec(name=role, role=role, size=(1,)) for role in roles), num_trials=1
    )
    flat, values = torch.ones(layout.numel), trial.globals()
    optimizer = StackOptimizer(layout, flat, trial.setting.optimizer)
    optimizer.set_hps([(values.beta1, values.beta2)], [trial.resolved()])
    optimizer.reset()
    optimizer.step(layout.weights(torch.zeros_like(flat)), 1.0, None)
    for name, (left,) in layout.weights(flat).items():
        taken = (1 - left.item(),)
        yield Observation(quantity=DECAY, role=name, layer=None, step=1, scale=scale, values=taken)
