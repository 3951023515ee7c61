"""Source: the parts that the Python files of several targets share, as text. Pure."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.export.plan import Lack, Phases, Plan

WIDTH = 118
# The schedules whose form a text can hold. A registered one is known to hpxfer alone.
FORMS = {
    "constant": "decayed = 1.0",
    "linear": "decayed = 1.0 - done",
    "wsd": "decayed = 1.0 - done",
    "cosine": "decayed = 0.5 * (1.0 + math.cos(math.pi * done))",
}


def header(plan: Plan, what: str, how: str, lacks: Sequence[Lack]) -> str:
    """Return the docstring of a module: what it is, of which recipe and shape, how to use it, and what it lacks."""
    recipe = plan.recipe
    lines = [
        what,
        "",
        f"Recipe: {recipe.parameterization.label()}, {recipe.optimizer}, "
        f"{recipe.base_shape.label()} -> {plan.shape.label()}",
        f"SHA-256 of the recipe: {plan.digest}",
        "",
        *textwrap.wrap(how, WIDTH),
    ]
    if lacks:
        lines += ["", "NOT in this file, so that the training script must do it (recipe and shape as in hpxfer.json):"]
        for lack in lacks:
            lines += textwrap.wrap(f"- {lack.what}: {lack.call}", WIDTH, subsequent_indent="  ", break_long_words=False)
    body = "\n".join(lines).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{body}\n"""\n'


def literal(value: Any) -> str:
    """Return Python code of plain data. Numbers keep every bit."""
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f"float('{value}')"
    return repr(value)


def assigned(name: str, values: Mapping[str, Any]) -> str:
    """Return `name = {...}` with one entry per line."""
    lines = [f"    {key!r}: {literal(value)}," for key, value in values.items()]
    return "\n".join([f"{name} = {{", *lines, "}"]) + "\n"


def strings(values: Iterable[str], indent: int) -> str:
    """Return the entries of a list or tuple of texts, one per line."""
    return "\n".join(f"{' ' * indent}{json.dumps(value)}," for value in values)


def require_form(found: Phases | None) -> Phases | None:
    """Return the schedule. Raise HpxferError if no text can hold its form."""
    if found is not None and found.decay not in FORMS:
        raise HpxferError(
            f"schedule: must be one of {', '.join(FORMS)} for an export, got {found.decay!r} of a plug-in; train with "
            "recipe.scheduler(optimizer, factor) and --to json"
        )
    return found


def factor(found: Phases | None) -> str:
    """Return the code of `factor(step)`, the factor on every peak LR, or of nothing if no schedule is known."""
    if (plan := require_form(found)) is None:
        return ""
    start = plan.steps - plan.decay_steps if plan.decay == "wsd" else plan.warmup_steps
    head = [
        "def factor(step: int) -> float:",
        '    """Return the factor on the peak LR of every group at `step`, counted from 0."""',
    ]
    if plan.warmup_steps:
        head += [f"    if step < {plan.warmup_steps}:", f"        return (step + 1) / {plan.warmup_steps}"]
    if plan.decay == "constant":
        return "\n".join([*head, "    return 1.0"]) + "\n"
    return (
        "\n".join(
            [
                *head,
                f"    if step < {start}:",
                "        return 1.0",
                f"    done = min(1.0, (step - {start} + 1) / {plan.steps - start})",
                f"    {FORMS[plan.decay]}",
                f"    return {literal(plan.final_fraction)} + (1.0 - {literal(plan.final_fraction)}) * decayed",
            ]
        )
        + "\n"
    )
