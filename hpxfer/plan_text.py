"""The plan as text for a terminal."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table

from hpxfer.plan import Plan, ShapePlan


def plan_text(plan: Plan) -> str:
    """Return the plan as an aligned table with a line of totals."""
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("shape")
    for name in ("trials", "done", "stacks", "params", "active", "tokens", "FLOPs", "worker time"):
        table.add_column(name, justify="right")
    schedules = {(one.shape.batch_tokens, one.shape.steps) for one in plan.shapes}
    for one in plan.shapes:
        table.add_row(one.shape.label(schedule=len(schedules) > 1), *_cells(one))
    out = io.StringIO()
    Console(file=out, width=200, color_system=None).print(table)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return "\n".join([f"sweep {plan.sweep}", *lines, _totals(plan)])


def _cells(one: ShapePlan) -> tuple[str, ...]:
    return (
        str(one.num_trials),
        str(one.num_done),
        str(one.num_stacks),
        _big(one.params_total),
        _big(one.params_active),
        _big(one.tokens),
        f"{one.flops:.2g}",
        spell_time(one.worker_s),
    )


def _totals(plan: Plan) -> str:
    if not plan.num_left:
        return f"{plan.num_trials} trials, all done"
    tokens = _big(sum(one.tokens for one in plan.shapes))
    flops = sum(one.flops for one in plan.shapes)
    stacks = sum(one.num_stacks for one in plan.shapes)
    return (
        f"{plan.num_trials} trials, {plan.num_done} done, {plan.num_left} to run in {stacks} stacks: {tokens} tokens, "
        f"{flops:.2g} FLOPs, about {spell_time(plan.wall_s)} on {plan.workers} workers ({plan.rate_from})"
    )


def spell_time(seconds: float) -> str:
    """Return e.g. `45 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _big(count: float) -> str:
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:g}"
