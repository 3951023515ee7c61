"""The plan as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hpxfer.host import aligned, spell_time
from hpxfer.plan.cautions import UNMEASURED, spell_bytes
from hpxfer.plan.packing import GPU_STEP_TOKENS
from hpxfer.plan.plan import Plan
from hpxfer.search import SEARCHES

# The text names the parts of a stack's memory that are at least this share of it. The JSON has all.
_SHOWN_SHARE = 0.01
_OF_TRAINER = ("shape", "trials", "done", "worker time")  # columns of a user's own trainer, whose model is not known


def plan_text(plan: Plan) -> str:
    """Return the plan as an aligned table, then lines of totals, time, memory and price."""
    rows = [
        {
            "shape": plan.label(row.shape),
            "trials": str(row.num_trials),
            "done": str(row.num_done),
            "stacks": str(row.num_stacks),
            "params": _big(row.params_total),
            "active": _big(row.params_active),
            plan.reads: _big(row.tokens),
            "FLOPs": f"{row.flops:.2g}",
            "memory": f"{row.stack_size} in {spell_bytes(row.stack_bytes)}" if row.num_stacks else "",
            "worker time": spell_time(row.worker_s),
        }
        for row in plan.shapes
    ]
    shown = [name for name in rows[0] if plan.knows_models or name in (*_OF_TRAINER, plan.reads)]
    table = aligned([shown, *([row[name] for name in shown] for row in rows)], right_from=1)
    starts = {
        "recipe": "",
        "preset": "",
        "balance": "",
        "schedules": "schedule of ",
        "data": "data of ",
        "optimizer": "",
    }
    notes = [f"{start}{line}" for name, start in starts.items() for line in plan.notes.get(name, ())]
    verdict = [] if plan.outlook is None else [plan.outlook.line()]
    active = plan.notes.get("active", ())
    return "\n".join([f"sweep {plan.sweep}", *notes, *table, *active, *_totals(plan), *verdict])


def _totals(plan: Plan) -> Iterator[str]:
    if plan.chosen is not None and (line := plan.chosen.line()):
        yield line
    if not plan.num_left:
        yield f"{plan.num_trials} trials, all done"
        return
    kind, known = SEARCHES.get(plan.search), plan.knows_models
    is_bound = plan.at_most and not kind.fixed_size
    at_most = f"search {plan.search}, it may end earlier: at most " if is_bound else ""
    if not kind.lists_trials:
        yield plan.budget
    yield (
        f"{at_most}{plan.num_trials} trials, {plan.num_done} done, {plan.num_left} to run"
        f"{f' in {plan.num_stacks} stacks' if known else ''}{' counted round by round' if at_most else ''}: "
        f"{_big(plan.tokens)} {plan.reads}{f', {plan.flops:.2g} FLOPs' if known else ''}"
    )
    hours, unit = (plan.gpu_hours, "GPU-hours") if plan.device.cuda else (plan.worker_hours, "worker hours")
    cost = f"{hours:.3g} {unit}" if hours >= 0.01 else f"under 0.01 {unit}"
    if plan.price is not None:
        cost += f", price {plan.price:.2f} at {plan.price_per_hour:g} per hour"
    several = "s" if plan.workers > 1 else ""
    if not known:
        gpus = next((row.gpu_share for row in plan.shapes), 0.0)
        each = f"{gpus:g} GPU{'s' if gpus > 1 else ''} each" if gpus else "CPUs"
        where = f"{plan.workers} trial{several} at once ({each})"
        about = f"about {spell_time(plan.wall_s)} with {where}, {cost}; {plan.rate_from}"
        yield f"time: {plan.rate_from}; {where}" if math.isnan(plan.wall_s) else about
        return
    if_full = ", if its rounds keep the workers busy" if is_bound else ""  # which wait for each other
    where = f"{plan.workers} {'GPU' if plan.fills_gpus else 'worker'}{several} ({_device(plan)})"
    yield f"about {spell_time(plan.wall_s)} of training on {where}, {cost}{if_full}; {plan.rate_from}"
    batches: dict[str, list[str]] = {}  # how stacks compute their batches, where that is out of the ordinary
    for row in plan.shapes:
        if row.num_stacks and (line := row.batch.line(plan.reads)):
            batches.setdefault(line, []).append(plan.label(row.shape))
    yield from (f"batch of {', '.join(labels)}: {line}" for line, labels in batches.items())
    yield _memory(plan)
    if plan.kept_bytes:
        yield f"weights: the results folder grows by {'up to ' if plan.at_most else ''}{spell_bytes(plan.kept_bytes)}"


def _device(plan: Plan) -> str:
    if not plan.device.cuda:
        return f"{plan.hardware}, one idle core each" if plan.hardware == "cpu" else plan.hardware
    shares = sorted({row.gpu_share for row in plan.shapes if row.num_stacks})
    spans = f"{shares[0]:g}" if len(shares) == 1 else f"{shares[0]:g} to {shares[-1]:g}"
    each = f"{spans} GPUs each" if shares[0] > 1 else f"{spans} of a GPU each"
    if not plan.fills_gpus:
        return f"{plan.hardware}, {each}"
    tokens = plan.device.step_tokens
    assumed = ", assumed" if tokens == GPU_STEP_TOKENS else ""
    return f"{plan.hardware}, stacks of {each}; {tokens:,} tokens a step fill one{assumed}"


def _memory(plan: Plan) -> str:
    """Return the memory that stacks need and what takes most of it, and the memory that there is."""
    row = max((row for row in plan.shapes if row.num_stacks), key=lambda row: row.stack_bytes)
    least = _SHOWN_SHARE * sum(row.memory_parts.values())  # no parts if the stack was measured
    parts = sorted((part for part in row.memory_parts.items() if part[1] >= least), key=lambda part: -part[1])
    largest = ", ".join(f"{name} {spell_bytes(count)}" for name, count in parts)
    each = "rank of a stack" if any(row.batch.ranks > 1 for row in plan.shapes) else "stack"
    text = f"memory: up to {spell_bytes(plan.stack_bytes)} per {each}"
    text += f" ({plan.label(row.shape)}: {largest})" if largest else ""
    if plan.device.cuda:
        of = plan.device.memory_bytes
        has = "the memory of the GPU is unknown" if of is None else f"{spell_bytes(of)} of a GPU"
        return f"{text}, {UNMEASURED}; {has}"
    text += f" by a model of it, {min(plan.workers, plan.num_stacks)} at once"
    return text if plan.device.host_bytes is None else f"{text}, of {spell_bytes(plan.device.host_bytes)}"


def _big(count: float) -> str:
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:g}"
