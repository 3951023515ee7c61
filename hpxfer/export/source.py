"""Source: the module of an adapter as the text of an export, with the numbers of a plan in it. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pprint import pformat
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.export.plan import Group, Lack, Plan

WIDTH = 118
# A schedule of a plug-in is known to hpxfer alone.
FORMS = ("constant", "linear", "wsd", "cosine")
FUTURE = "from __future__ import annotations\n"
OWN_PACKAGE = re.compile(r"^from hpxfer\.export\.adapters\b.*\n", re.MULTILINE)


def source(plan: Plan, lacks: Sequence[Lack], adapters: Sequence[str], values: Mapping[str, Any]) -> dict[str, str]:
    """Return the file of the last adapter, behind the code of the others, with these values for their names.

    It needs nothing of hpxfer. Its docstring is that of the adapter, with the recipe and the shape, and the lacks.
    """
    read = {name: files("hpxfer.export.adapters").joinpath(f"{name}.py").read_text("utf-8") for name in adapters}
    docs, codes = zip(*(text.split(FUTURE, 1) for text in read.values()), strict=True)
    text = OWN_PACKAGE.sub("", "\n\n".join(codes))
    for name, value in values.items():
        empty = re.compile(rf"^({name}: .+?) = .*$", re.MULTILINE)
        assert len(empty.findall(text)) == 1, f"an adapter must have one line for {name}"
        filled = pformat(value, width=WIDTH, sort_dicts=False)
        text = empty.sub(lambda found, filled=filled: f"{found[1]} = {filled}", text)  # type: ignore[misc]
    return {f"hpxfer_{adapters[-1]}.py": _docstring(plan, docs[-1], lacks) + FUTURE + text}


def _docstring(plan: Plan, of_adapter: str, lacks: Sequence[Lack]) -> str:
    recipe = plan.recipe
    what, how = of_adapter.strip().strip('"').strip().split("\n\n")
    origin = f"{recipe.parameterization.label()}, {recipe.optimizer}"
    lines = [
        *(what, "", f"Recipe: {origin}, {recipe.base_shape.label()} -> {plan.shape.label()}"),
        *(f"SHA-256 of the recipe: {plan.digest}", "", how),
    ]
    if lacks:
        lines += ["", "NOT in this file, so that the training script must do it (recipe and shape as in hpxfer.json):"]
        for lack in lacks:
            lines += textwrap.wrap(f"- {lack.what}: {lack.call}", WIDTH, subsequent_indent="  ", break_long_words=False)
    body = "\n".join(lines).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{body}\n"""\n\n'


def groups(
    plan: Plan,
    patterns: Callable[[list[tuple[str, ...]]], list[list[str]]],
    numbers: Callable[[Group], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return for each group of a plan its roles, the patterns of its names, and its numbers as a trainer has them."""
    made = patterns([group.names for group in plan.groups])
    return [
        {"roles": ", ".join(group.roles), "names": names, "numbers": numbers(group)}
        for group, names in zip(plan.groups, made, strict=True)
    ]


def schedule(plan: Plan) -> dict[str, Any] | None:
    """Return the schedule, or None without one. Raise HpxferError if no adapter knows its form."""
    if (found := plan.phases) is not None and found.decay not in FORMS:
        raise HpxferError(
            f"schedule: must be one of {', '.join(FORMS)} for an export, got {found.decay!r} of a plug-in; train with "
            "recipe.scheduler(optimizer, factor) and --to json"
        )
    return None if found is None else asdict(found)
