"""Train a user's model at one shape with one seed, and return the sizes that a coordinate check compares.

Beside the features these are sizes of tensors, which need no hook and show the init and the LR of stacked experts too:

    weight            W_0                          follows the init std
    first step        W_k+1 - W_k, at the first k with a gradient; under SGD per unit of it     follows the LR
    gradient, and gradient / eps                   by the eps that the optimizer holds
    decay             LR times weight decay, as the optimizer holds them
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpxfer.coordinates.optimizer_rules import DECAY, GRADIENT_OVER_EPS
from hpxfer.coordinates.own.numbers import DRAWN, FIRST_STEP, WEIGHT
from hpxfer.coordinates.own.parts import Held
from hpxfer.coordinates.own.probe import Key, Probe, Sizes
from hpxfer.coordinates.stability import VECTORS
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.table import Column

# (quantity, role, block) and the number of updates before -> size
Found = dict[tuple[Key, int], float]


@dataclass(frozen=True, kw_only=True)
class Training:
    """A model that is ready to train: its parameters with their roles, its optimizer, and its loss on one batch.

    All steps are made on the batch whose features are measured, as mup's coordinate check does: updates then add up.
    """

    model: nn.Module
    tensors: Sequence[Held]
    optimizer: torch.optim.Optimizer
    column: Column
    loss: Callable[[], Tensor]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed Python, numpy and torch while entered, and put back the states of before."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        reseed(seed)
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if on_gpu:
            torch.cuda.set_rng_state_all(on_gpu)


def reseed(seed: int) -> None:
    """Seed Python, numpy and torch, whatever a model drew before: how much it draws follows its width."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def observe(training: Training, steps: int) -> Found:
    """Return all sizes before training and after each of `steps` updates."""
    probe = Probe(training.model, training.tensors, training.loss)
    out: Found = {}
    learned: set[tuple[str, int | None]] = set()
    _keep(out, 0, _at_start(training))
    for step in range(steps + 1):
        sizes = Sizes()
        probe.sizes(sizes, first=step == 0)
        if step:
            _vectors(sizes, training.tensors, probe.start)
        training.optimizer.zero_grad()
        training.loss().backward()  # type: ignore[no-untyped-call]
        _gradients(sizes, training)
        _keep(out, step, sizes)
        if step < steps:
            moved = _first_steps(training, learned, training.optimizer.step)
            _keep(out, 1, moved)
    return out


def _keep(out: Found, step: int, sizes: Sizes) -> None:
    for key, value in sizes.items():
        out[key, step] = value


def _at_start(training: Training) -> Sizes:
    """Return the sizes of the weights before training, and the share that weight decay takes."""
    sizes, groups = Sizes(), held_groups(training.optimizer)
    for item in training.tensors:
        if ROLES[item.role] in DRAWN:
            sizes.add(WEIGHT, item, item.tensor)
        group = groups.get(id(item.tensor))
        if group is not None and group.get("weight_decay"):
            share = float(group["lr"]) * float(group["weight_decay"])
            for role in item.roles:
                sizes.add(DECAY, (role, None), torch.full(item.tensor.shape, share, dtype=torch.float64))
    return sizes


def _vectors(sizes: Sizes, tensors: Sequence[Held], start: dict[str, Tensor]) -> None:
    """Add what gains and biases have learned."""
    for item in inside(tensors):
        if item.role in VECTORS:
            sizes.add("weight change", item, item.tensor.detach() - start[item.name])


def inside(tensors: Sequence[Held]) -> Iterator[Held]:
    """Yield all but the biases of the final norm and of the readout: their gradients are not those inside of blocks."""
    outside = {item.owner for item in tensors if item.role in ("final_norm", "readout")}
    yield from (item for item in tensors if not (item.role == "hidden_bias" and item.owner in outside))


def _gradients(sizes: Sizes, training: Training) -> None:
    groups = held_groups(training.optimizer)
    for item in inside(training.tensors):
        gradient = _gradient(item)
        sizes.add("gradient", item, gradient)
        eps = groups.get(id(item.tensor), {}).get("eps")
        if training.column == "adam" and eps:
            sizes.add(GRADIENT_OVER_EPS, item, gradient, 1 / float(eps))


def _first_steps(training: Training, learned: set[tuple[str, int | None]], step: Callable[[], object]) -> Sizes:
    """Make an update. Return the change of the weights that had no gradient before."""
    now = {
        (item.role, item.layer)
        for item in training.tensors
        if (item.role, item.layer) not in learned and bool(_gradient(item).any())
    }
    asked = [item for item in training.tensors if (item.role, item.layer) in now]
    before = {item.name: item.tensor.detach().clone() for item in asked}
    gradients = {item.name: _gradient(item).clone() for item in asked}
    step()
    learned |= now
    changes, slopes = Sizes(), Sizes()
    for item in asked:
        changes.add(FIRST_STEP, item, item.tensor.detach() - before[item.name])
        slopes.add(FIRST_STEP, item, gradients[item.name])
    if training.column == "adam":
        return changes
    per_gradient, by = Sizes(), dict(slopes.items())
    for key, value in changes.items():
        per_gradient.add(FIRST_STEP, key[1:], torch.tensor([value / by[key]]))
    return per_gradient


def held_groups(optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Any]]:
    """Return the id of a tensor -> the group of the optimizer that holds it."""
    return {id(tensor): group for group in optimizer.param_groups for tensor in group["params"]}


def _gradient(item: Held) -> Tensor:
    return torch.zeros_like(item.tensor) if item.tensor.grad is None else item.tensor.grad.detach()
