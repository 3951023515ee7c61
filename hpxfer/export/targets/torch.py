"""`torch`: a Python module with parameter groups by name for `torch.optim`, for any training loop.

The groups and the schedule need torch alone. Init and forward multipliers are calls of hpxfer, which the module makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpxfer.export.plan import Lack, Plan, other_lacks
from hpxfer.export.source import schedule, source
from hpxfer.export.targets import ExportTarget
from hpxfer.scaling.muon import NAME as MUON
from hpxfer.scaling.muon import kind_of


def values(plan: Plan) -> dict[str, Any]:
    """Return the values of the adapter for torch, which `transformers` has too."""
    hps, is_sgd = plan.recipe.hps, plan.betas is None
    more = {} if is_sgd else {"betas": plan.betas}
    groups = [{**group.numbers, **({} if group.scale else more), "names": list(group.names)} for group in plan.groups]
    if kind_of(plan.recipe.optimizer) == MUON:
        chosen, arguments = "hpxfer.Muon", {}
    else:
        chosen = "SGD" if is_sgd else "AdamW"
        arguments = {"lr": hps.lr, "momentum": hps.momentum} if is_sgd else {"lr": hps.lr}
    if is_sgd:
        groups = [{key: value for key, value in group.items() if key != "eps"} for group in groups]
    return {
        "GROUPS": groups,
        "ROLES": {row.name: row.role for row in plan.rows},
        "FORWARD": plan.forward,
        "SHAPE": plan.shape.dims(),
        "SCHEDULE": schedule(plan),
        "OPTIMIZER": chosen,
        "ARGUMENTS": arguments,
        "RECIPE": plan.recipe.dump(),
    }


def files(plan: Plan, lacks: Sequence[Lack]) -> dict[str, str]:
    """Return the module."""
    return source(plan, lacks, ["torch"], values(plan))


TORCH = ExportTarget(
    name="torch",
    doc="a Python module with parameter groups by name, for any loop with torch.optim",
    optimizers=("adamw", "sgd", MUON),
    lacks=other_lacks,
    files=files,
)
