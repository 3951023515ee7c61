"""Cautions about memory: where the stacks of a plan will not fit, or fit only if an unmeasured estimate is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpxfer.plan.packing import WORKER_BYTES
from hpxfer.plan.plan import Plan, ShapePlan
from hpxfer.spec.sweep import ResourcesSpec

UNMEASURED = "by a model of memory that was never measured on a GPU"


def memory_cautions(plan: Plan, resources: ResourcesSpec) -> Iterator[str]:
    """Yield what the user should know about memory before a run: per kind of caution, the shape that is worst off."""
    if left := [row for row in plan.shapes if row.num_stacks]:
        device, workers = plan.device, plan.workers
        # the bytes that a stack may need, whatever size was asked for
        room = device.room(resources.gpus_per_stack or 1.0) if device.cuda else device.most(workers)
        yield from _too_large(plan, left, room)
        if resources.stack_size is not None:
            yield from _clamped(plan, left, room, resources.stack_size)
        if not device.cuda and device.host_bytes is not None:
            yield from _crowded(plan, left, device.host_bytes)


def _too_large(plan: Plan, left: Sequence[ShapePlan], room: float) -> Iterator[str]:
    """Yield the shapes of which a single trial is too large."""
    over = [row for row in left if row.stack_size == 1 and row.stack_bytes > room]
    if not over:
        return
    cuda, worst = plan.device.cuda, max(over, key=lambda row: row.stack_bytes)
    where = "a stack's share of the GPU" if cuda else f"each of {plan.workers} workers"
    fix = "a larger GPU or share of it" if cuda else "fewer resources.workers"
    more = f" and {len(over) - 1} other shapes" if len(over) > 1 else ""
    yield (
        f"memory: one trial of {plan.label(worst.shape)}{more} needs {spell_bytes(worst.stack_bytes)}, {where} has "
        f"{spell_bytes(room)}{', ' + UNMEASURED if cuda else ''}: expect it to fail; give {fix}, fewer batch_tokens, "
        "or leave the shape out"
    )


def _clamped(plan: Plan, left: Sequence[ShapePlan], room: float, asked: int) -> Iterator[str]:
    """Yield the shapes of which fewer trials are stacked than asked for, unless a round of a search simply has no
    more.
    """
    over = [row for row in left if asked * row.stack_bytes > room * row.stack_size]
    smaller = [row for row in over if row.num_stacks > -(-row.num_stacks * row.stack_size // asked)]
    if smaller:
        least = min(smaller, key=lambda row: row.stack_size)
        yield (
            f"resources.stack_size: {asked} trials of {plan.label(least.shape)} do not fit into memory, stacks of "
            f"{least.stack_size} are made"
        )


def _crowded(plan: Plan, left: Sequence[ShapePlan], host_bytes: int) -> Iterator[str]:
    """Yield a caution if the workers of a machine together need more memory than it has."""
    busy = min(plan.workers, sum(row.num_stacks for row in left))
    need = busy * (WORKER_BYTES + max(row.stack_bytes for row in left))
    if need > host_bytes:
        yield (
            f"memory: {busy} workers need up to {spell_bytes(need)}, there are {spell_bytes(host_bytes)}; give fewer "
            "resources.workers"
        )


def spell_bytes(count: float) -> str:
    """Return a size as text, e.g. `300 MiB` or `1.5 GiB`."""
    return f"{count / 2**20:.0f} MiB" if count < 2**30 else f"{count / 2**30:.3g} GiB"
