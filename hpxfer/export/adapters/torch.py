"""torch: parameter groups by name, written by hpxfer.

prepare(model), optimizer(model), then scheduler(optimizer). A schedule of yours must multiply the peak LR of all
groups alike.
"""

from __future__ import annotations

import math
from typing import Any

GROUPS: list[dict[str, Any]] = []  # numbers of a group for torch.optim, and the names of its parameters
ROLES: dict[str, str] = {}  # name of a parameter -> role
FORWARD: dict[str, float] = {}  # key -> forward multiplier, an absolute number
SHAPE: dict[str, Any] = {}
SCHEDULE: dict[str, Any] | None = None  # None: the recipe has none
OPTIMIZER: str = "AdamW"
ARGUMENTS: dict[str, float] = {}
RECIPE: str = ""


def factor(step: int) -> float:
    """Return the factor on the peak LR of every group at `step`, counted from 0."""
    if SCHEDULE is None:
        raise ValueError("the recipe has no schedule: give one of yours, which multiplies all groups alike")
    warmup, steps, decay, end = (SCHEDULE[key] for key in ("warmup_steps", "steps", "decay", "final_fraction"))
    if step < warmup:
        return float((step + 1) / warmup)
    start = steps - SCHEDULE["decay_steps"] if decay == "wsd" else warmup
    if decay == "constant" or step < start:
        return 1.0
    done = min(1.0, (step - start + 1) / (steps - start))
    decayed = 0.5 * (1.0 + math.cos(math.pi * done)) if decay == "cosine" else 1.0 - done
    return float(end + (1.0 - end) * decayed)


def plain(name: str) -> str:
    """Return the name of a parameter without what torch.compile, DDP, FSDP and checkpoints put into it."""
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in ("module", "_orig_mod"):
        parts = parts[1:]
    return ".".join(part for part in parts if not part.startswith("_") or part == parts[-1])


def param_groups(model: Any) -> list[dict[str, Any]]:
    """Return a parameter group per set of equal numbers. Raise ValueError unless each parameter is in one group.

    Those of Muon are made by hpxfer, which sees in the model how a tensor splits into matrices.
    """
    parameters = {plain(name): tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    named = [name for group in GROUPS for name in group["names"]]
    if unknown := [name for name in parameters if name not in set(named)]:
        raise ValueError(f"GROUPS must hold every parameter, got none for {unknown}; export again with --names")
    if missing := [name for name in named if name not in parameters]:
        raise ValueError(f"the model must have every parameter of GROUPS, got none for {missing}")
    if OPTIMIZER == "hpxfer.Muon":
        import hpxfer

        return hpxfer.Recipe.parse(RECIPE).param_groups(model, ROLES, SHAPE)
    return [
        {**group, "params": [parameters[name] for name in group["names"]], "peak_lr": group["lr"]} for group in GROUPS
    ]


def prepare(model: Any, sites: Any = None, generator: Any = None) -> Any:
    """Attach the forward multipliers and initialize the model in place, by the recipe. Needs hpxfer.

    `sites` are pairs of a pattern of module names and a key of FORWARD; models of transformers need none. Call it on
    the whole model, before it is wrapped and before its optimizer is made. Return the handle of the hooks.
    """
    import hpxfer

    recipe = hpxfer.Recipe.parse(RECIPE)
    handle = recipe.attach(model, SHAPE, sites)
    recipe.init_(model, ROLES, SHAPE, generator=generator)
    return handle


def optimizer(model: Any) -> Any:
    """Return the optimizer of the recipe. Call prepare(model) first."""
    import torch

    if OPTIMIZER == "hpxfer.Muon":
        import hpxfer

        return hpxfer.Muon(param_groups(model))
    return getattr(torch.optim, OPTIMIZER)(param_groups(model), **ARGUMENTS)


def scheduler(optimizer: Any) -> Any:
    """Return the schedule as torch's LambdaLR, which keeps the ratios between groups. Call step() after each step."""
    import torch

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
