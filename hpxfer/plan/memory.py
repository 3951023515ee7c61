"""Memory of a plan: shapes that do not fit, and cautions where stacks may fit only if an estimate is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpxfer.errors import HpxferError
from hpxfer.plan.plan import Plan, ShapePlan
from hpxfer.spec.resources_section import ResourcesSpec

UNMEASURED = "by a model of memory that was never measured on a GPU"
SURE_EXCESS = 2.0  # the excess above which even an unmeasured model is believed


def memory_cautions(plan: Plan, resources: ResourcesSpec) -> Iterator[str]:
    """Yield what the user should know about memory before a run: per kind of caution, the shape that is worst off."""
    if left := [row for row in plan.shapes if row.num_stacks and not row.shape.own]:
        room = room_of(plan, resources)
        refused = {row.shape for row in _refused(plan, room)}
        if over := [row for row in _too_large(plan, room) if row.shape not in refused]:
            worst = max(over, key=lambda row: row.stack_bytes)
            more = f" and {len(over) - 1} other shapes" if len(over) > 1 else ""
            yield f"{_need(plan, worst, room, more)}: expect it to fail; {_fix(plan)}"
        if resources.stack_size is not None:
            yield from _clamped(plan, left, room, resources.stack_size)


def unfit(plan: Plan, resources: ResourcesSpec) -> tuple[str, ...]:
    """Return one line for each shape of which not even a single trial fits into memory.

    On a GPU the model of memory was never measured. So a shape that no stored trial has measured counts as too large
    from SURE_EXCESS times the memory on. Below that it is a caution, and so is any excess over a GPU of unknown size.
    """
    room = room_of(plan, resources)
    return tuple(f"{_need(plan, row, room)}; {_fix(plan)}" for row in _refused(plan, room))


def require_fit(plan: Plan) -> None:
    """Raise HpxferError if the plan has shapes that do not fit into memory even alone."""
    if plan.unfit:
        raise HpxferError(
            "\n".join([*plan.unfit, "one trial of each shape must fit; --no-strict-memory tries to train all the same"])
        )


def room_of(plan: Plan, resources: ResourcesSpec) -> float:
    """Return the bytes that a stack may need, whatever size was asked for."""
    device = plan.device
    return device.room(resources.gpu_share or 1.0) if device.cuda else device.most(_at_once(plan) * resources.ranks)


def _at_once(plan: Plan) -> int:
    """Return how many stacks share the memory of the machine."""
    return max(1, min(plan.workers, sum(row.num_stacks for row in plan.shapes)))


def _too_large(plan: Plan, room: float, excess: float = 1.0) -> list[ShapePlan]:
    """Return the shapes of which a single trial needs more than `excess` times the room."""
    return [row for row in plan.shapes if row.num_stacks and row.stack_size == 1 and row.stack_bytes > excess * room]


def _refused(plan: Plan, room: float) -> list[ShapePlan]:
    device = plan.device
    if any(row.shape.own for row in plan.shapes):
        return []  # nothing is known of the memory of a user's own trainer
    if not device.cuda:
        return _too_large(plan, room)
    if device.memory_bytes is None:
        return []
    sure = {row.shape for row in _too_large(plan, room, SURE_EXCESS)}
    return [row for row in _too_large(plan, room) if row.is_measured or row.shape in sure]


def _need(plan: Plan, row: ShapePlan, room: float, more: str = "") -> str:
    """Return the rule that a shape breaks, and by how much."""
    cuda, busy = plan.device.cuda, _at_once(plan)
    where = f"each of {busy} workers" if busy > 1 else "a worker"
    if cuda:
        where = "a stack's share of the GPU" if row.gpu_share <= 1 else "each GPU"
    model = "" if not cuda or row.is_measured else f", {UNMEASURED}"
    return (
        f"memory: one trial of {plan.label(row.shape)}{more} needs {spell_bytes(row.stack_bytes)}, {where} has "
        f"{spell_bytes(room)}{model}"
    )


def _fix(plan: Plan) -> str:
    larger = "a larger GPU or share of it" if plan.device.cuda else "fewer resources.workers"
    return f"give {larger}, fewer batch_{plan.reads}, training.accumulation_tokens, or leave the shape out"


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


def spell_bytes(count: float) -> str:
    """Return a size as text, e.g. `300 MiB` or `1.5 GiB`."""
    for unit, size in (("PiB", 2**50), ("TiB", 2**40), ("GiB", 2**30)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 2**20:.0f} MiB"
