"""`torch`: a Python module with parameter groups by name for `torch.optim`, for any training loop.

The groups and the schedule need torch alone. Init and forward multipliers are calls of hpxfer, which the module makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpxfer.export.plan import Lack, Plan, other_lacks
from hpxfer.export.source import factor, header, literal, strings
from hpxfer.export.target import ExportTarget

GROUPS_OF = '''

def plain(name: str) -> str:
    """Return the name of a parameter without what torch.compile, DDP, FSDP and checkpoints put into it."""
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in ("module", "_orig_mod"):
        parts = parts[1:]
    return ".".join(part for part in parts if not part.startswith("_") or part == parts[-1])


def param_groups(model) -> list[dict]:
    """Return a parameter group per set of equal numbers. Raise ValueError unless each parameter is in one group."""
    parameters = {plain(name): tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    named = [name for group in GROUPS for name in group["names"]]
    if unknown := [name for name in parameters if name not in set(named)]:
        raise ValueError(f"GROUPS must hold every parameter, got none for {unknown}; export again with --names")
    if missing := [name for name in named if name not in parameters]:
        raise ValueError(f"the model must have every parameter of GROUPS, got none for {missing}")
    return [
        {**group, "params": [parameters[name] for name in group["names"]], "peak_lr": group["lr"]} for group in GROUPS
    ]


def prepare(model, sites=None, generator=None):
    """Attach the forward multipliers and initialize the model in place, by the recipe. Needs hpxfer.

    `sites` are pairs of a pattern of module names and a key of FORWARD; models of transformers need none. Call it on
    the whole model, before it is wrapped and before its optimizer is made. Return the handle of the hooks.
    """
    import hpxfer

    recipe = hpxfer.Recipe.parse(RECIPE)
    handle = recipe.attach(model, SHAPE, sites)
    recipe.init_(model, ROLES, SHAPE, generator=generator)
    return handle
'''

OPTIMIZER = '''

def optimizer(model):
    """Return the optimizer of the recipe. Call prepare(model) first."""
    import torch

    return torch.optim.{call}


def scheduler(optimizer):
    """Return the schedule as torch's LambdaLR, which keeps the ratios between groups. Call step() after each step."""
    import torch

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
'''


def body(plan: Plan) -> str:
    """Return the code that `torch` and `transformers` share, behind the docstring of the module."""
    found = plan.phases
    groups = []
    for group in plan.groups:
        numbers: dict[str, Any] = {"lr": group.lr, "weight_decay": group.weight_decay}
        if plan.betas is not None:
            numbers |= {"eps": group.eps, "betas": plan.betas}
        spelled = "".join(f"        {name!r}: {literal(value)},\n" for name, value in numbers.items())
        groups.append(f"    {{\n{spelled}        'names': [\n{strings(group.names, 12)}\n        ],\n    }},\n")
    names = [(row.name, row.role) for row in plan.rows]
    shape = plan.shape.dims()
    recipe = plan.recipe.dump().replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    adamw = f"AdamW(param_groups(model), lr={literal(plan.recipe.hps.lr)})"
    sgd = f"SGD(param_groups(model), lr={literal(plan.recipe.hps.lr)}, momentum={literal(plan.recipe.hps.momentum)})"
    code = OPTIMIZER.format(call=sgd if plan.betas is None else adamw)
    if found is None:  # made by hand, without a schedule
        code = code[: code.index("\n\ndef scheduler")]
    parts = [
        "\nimport math\n\n" if found is not None and found.decay == "cosine" else "\n",
        "GROUPS = [\n" + "".join(groups) + "]\n",
        "# Name -> role, and key -> forward multiplier, as absolute numbers.\n",
        "ROLES = {\n" + "".join(f"    {name!r}: {role!r},\n" for name, role in names) + "}\n",
        f"FORWARD = {plan.forward!r}\n",
        f"SHAPE = {shape!r}\n",
        f'RECIPE = """\\\n{recipe}"""\n',
        "\n\n" + factor(found) if found is not None else "",
        GROUPS_OF,
        code,
    ]
    return "".join(parts)


def files(plan: Plan, lacks: Sequence[Lack]) -> dict[str, str]:
    """Return the module."""
    text = header(
        plan,
        "torch: parameter groups by name, written by hpxfer.",
        "prepare(model), optimizer(model), then scheduler(optimizer). A schedule of yours must multiply the peak LR of "
        "all groups alike.",
        lacks,
    )
    return {"hpxfer_torch.py": text + body(plan)}


TORCH = ExportTarget(
    name="torch",
    doc="a Python module with parameter groups by name, for any loop with torch.optim",
    optimizers=("adamw", "sgd"),
    lacks=other_lacks,
    files=files,
)
