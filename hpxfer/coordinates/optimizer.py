"""What the optimizer itself does to a role: how large eps is beside the gradient, and how much weight decay takes.

    gradient / eps    Adam divides by |gradient| + eps. It acts alike at every scale if the two keep their ratio
    decay             the share of a weight that weight decay takes in one step. LR and decay scale it together

The decay is measured apart from training: all weights are 1, and the optimizer takes one step without a gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from hpxfer.coordinates.measure import Observation
from hpxfer.coordinates.optimizer_rules import DECAY, GRADIENT_OVER_EPS
from hpxfer.model.flat import FlatLayout
from hpxfer.model.parameters import ParameterSpec
from hpxfer.scaling.muon import moves
from hpxfer.train.optimizer import StackOptimizer
from hpxfer.train.optimizers import OPTIMIZERS
from hpxfer.trial import Trial


def gradients_over_eps(observations: Iterable[Observation], trial: Trial) -> Iterator[Observation]:
    """Yield the gradients among the observations in units of the eps of their role; nothing without an eps."""
    if "eps" not in OPTIMIZERS.get(trial.setting.optimizer).hps:
        return
    roles = trial.resolved()
    for seen in observations:
        if seen.quantity != "gradient" or seen.role == "router_bias":  # a rule moves that, or plain SGD
            continue
        if moves(trial.setting.optimizer, seen.role):  # Muon has no eps of its own
            continue
        values = tuple(value / roles[seen.role].eps for value in seen.values)
        yield replace(seen, quantity=GRADIENT_OVER_EPS, values=values)


def decays(trial: Trial, roles: Iterable[str], scale: float) -> Iterator[Observation]:
    """Yield the share that weight decay takes from each role in one step, at a decay of 1/lr of the base."""
    trial = replace(trial, hps=trial.hps.with_value("weight_decay", 1 / trial.hps.lr))
    layout = FlatLayout(
        parameters=tuple(ParameterSpec(name=role, role=role, size=(1, 1)) for role in roles), num_trials=1
    )
    flat, values = torch.ones(layout.numel), trial.globals()
    optimizer = StackOptimizer(layout, flat, trial.setting.optimizer)
    optimizer.set_hps([(values.beta1, values.beta2)], [trial.resolved()])
    optimizer.reset()
    optimizer.step(layout.weights(torch.zeros_like(flat)), 1.0, None)
    for name, (left,) in layout.weights(flat).items():
        taken = (1 - left.item(),)
        yield Observation(quantity=DECAY, role=name, layer=None, step=1, scale=scale, values=taken)
