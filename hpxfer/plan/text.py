"""The plan as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hpxfer.host.output import aligned, spell_time
from hpxfer.plan.cautions import UNMEASURED, spell_bytes
from hpxfer.plan.packing import GPU_STEP_TOKENS
from hpxfer.plan.plan import Plan, ShapePlan
from hpxfer.search.kinds import SEARCHES

# The text names the parts of a stack's memory that are at least this share of it. The JSON has all.
_SHOWN_SHARE = 0.01
_COUNTS, _SIZES = ("shape", "trials", "done", "stacks", "params", "active"), ("FLOPs", "memory", "worker time")


def plan_text(plan: Plan) -> str:
    """Return the plan as an aligned table, then lines of totals, time, memory and price."""
    knows = _knows_models(plan)
    head = (*_COUNTS, plan.reads, *_SIZES) if knows else (*_COUNTS[:3], plan.reads, _SIZES[-1])
    rows = aligned([head, *(_cells(plan, row, knows) for row in plan.shapes)], right_from=1)
    said = [*plan.recipe, *plan.preset, *plan.balance]
    said += [*(f"schedule of {line}" for line in plan.schedules), *(f"data of {line}" for line in plan.data)]
    verdict = [] if plan.outlook is None else [plan.outlook.line()]
    return "\n".join([f"sweep {plan.sweep}", *said, *rows, *plan.active, *_totals(plan), *verdict])


def _knows_models(plan: Plan) -> bool:
    """Return whether parameters, FLOPs and memory are known: not of a user's own trainer."""
    return not any(row.shape.own for row in plan.shapes)


def _cells(plan: Plan, row: ShapePlan, knows: bool) -> tuple[str, ...]:
    counts = (plan.label(row.shape), str(row.num_trials), str(row.num_done))
    if not knows:
        return (*counts, _big(row.tokens), spell_time(row.worker_s))
    stack = f"{row.stack_size} in {spell_bytes(row.stack_bytes)}" if row.num_stacks else ""
    sizes = (_big(row.params_total), _big(row.params_active), _big(row.tokens), f"{row.flops:.2g}")
    return (*counts, str(row.num_stacks), *sizes, stack, spell_time(row.worker_s))


def _totals(plan: Plan) -> Iterator[str]:
    if plan.chosen is not None and (line := plan.chosen.line()):
        yield line
    if not plan.num_left:
        yield f"{plan.num_trials} trials, all done"
        return
    kind, known = SEARCHES.get(plan.search), _knows_models(plan)
    is_bound = plan.at_most and not kind.fixed_size
    at_most = f"search {plan.search}, it may end earlier: at most " if is_bound else ""
    if not kind.lists_trials:
        yield plan.budget
    yield (
        f"{at_most}{plan.num_trials} trials, {plan.num_done} done, {plan.num_left} to run"
        f"{f' in {plan.num_stacks} stacks' if known else ''}{' counted round by round' if at_most else ''}: "
        f"{_big(plan.tokens)} {plan.reads}{f', {plan.flops:.2g} FLOPs' if known else ''}"
    )
    if not known:
        yield from _own_totals(plan)
        return
    if_full = ", if its rounds keep the workers busy" if is_bound else ""  # which wait for each other
    yield (
        f"about {spell_time(plan.wall_s)} of training on {plan.workers} {'GPU' if plan.fills_gpus else 'worker'}"
        f"{'s' if plan.workers > 1 else ''} ({_device(plan)}), {_hours(plan)}{if_full}; {plan.rate_from}"
    )
    batches: dict[str, list[str]] = {}  # how stacks compute their batches, where that is out of the ordinary
    for row in plan.shapes:
        if row.num_stacks and (line := row.batch.line()):
            batches.setdefault(line, []).append(plan.label(row.shape))
    yield from (f"batch of {', '.join(labels)}: {line}" for line, labels in batches.items())
    yield _memory(plan)
    if plan.kept_bytes:
        yield f"weights: the results folder grows by {'up to ' if plan.at_most else ''}{spell_bytes(plan.kept_bytes)}"


def _own_totals(plan: Plan) -> Iterator[str]:
    """Yield how long the trials of a user's own trainer take, and on what."""
    gpus = next((row.gpu_share for row in plan.shapes), 0.0)
    each = f"{gpus:g} GPU{'s' if gpus > 1 else ''} each" if gpus else "CPUs"
    where = f"{plan.workers} trial{'s' if plan.workers > 1 else ''} at once ({each})"
    if math.isnan(plan.wall_s):
        yield f"time: {plan.rate_from}; {where}"
    else:
        yield f"about {spell_time(plan.wall_s)} with {where}, {_hours(plan)}; {plan.rate_from}"


def _device(plan: Plan) -> str:
    if not plan.device.cuda:
        return f"{plan.hardware}, one core each" if plan.hardware == "cpu" else plan.hardware
    shares = sorted({row.gpu_share for row in plan.shapes if row.num_stacks})
    spans = f"{shares[0]:g}" if len(shares) == 1 else f"{shares[0]:g} to {shares[-1]:g}"
    each = f"{spans} GPUs each" if shares[0] > 1 else f"{spans} of a GPU each"
    if not plan.fills_gpus:
        return f"{plan.hardware}, {each}"
    tokens = plan.device.step_tokens
    assumed = ", assumed" if tokens == GPU_STEP_TOKENS else ""
    return f"{plan.hardware}, stacks of {each}; {tokens:,} {plan.reads} a step fill one{assumed}"


def _hours(plan: Plan) -> str:
    """Return what is paid for: GPU-hours (on a CPU worker hours), and their price if one was given."""
    hours, unit = (plan.gpu_hours, "GPU-hours") if plan.device.cuda else (plan.worker_hours, "worker hours")
    text = f"{hours:.3g} {unit}" if hours >= 0.01 else f"under 0.01 {unit}"
    if plan.price is not None:
        text += f", price {plan.price:.2f} at {plan.price_per_hour:g} per hour"
    return text


def _memory(plan: Plan) -> str:
    """Return the memory that stacks need, the memory that there is, and whether the estimate was ever measured."""
    each = "rank of a stack" if any(row.batch.ranks > 1 for row in plan.shapes) else "stack"
    text = f"memory: up to {spell_bytes(plan.stack_bytes)} per {each}{_largest_parts(plan)}"
    if plan.device.cuda:
        of = plan.device.memory_bytes
        has = "the memory of the GPU is unknown" if of is None else f"{spell_bytes(of)} of a GPU"
        return f"{text}, {UNMEASURED}; {has}"
    workers = min(plan.workers, plan.num_stacks)
    text += f" by a model of it, {workers} at once"
    if plan.device.host_bytes is not None:
        text += f", of {spell_bytes(plan.device.host_bytes)}"
    return text


def _largest_parts(plan: Plan) -> str:
    """Return what takes most of the memory of the largest stack, if that stack was not measured."""
    row = max((row for row in plan.shapes if row.num_stacks), key=lambda row: row.stack_bytes)
    least = _SHOWN_SHARE * sum(row.memory_parts.values())
    parts = sorted((part for part in row.memory_parts.items() if part[1] >= least), key=lambda part: -part[1])
    text = ", ".join(f"{name} {spell_bytes(count)}" for name, count in parts)
    return f" ({plan.label(row.shape)}: {text})" if parts else ""


def _big(count: float) -> str:
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:g}"
