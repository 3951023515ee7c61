"""Cautions: what the author of a sweep should know before it runs, and which shapes do not fit in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.model.cost import active_without_embeddings
from hpxfer.plan.plan import Plan, ShapePlan
from hpxfer.scaling.coverage import control_notes, coverage_warnings, gate_warnings
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.shape import Shape, check_shape
from hpxfer.spec import HPsSpec, ResourcesSpec, SweepSpec, TrainingSpec, base_values
from hpxfer.trial import Expansion

CROSSING = (
    "early_stopping: asha: rankings of learning rates cross during decay: one whose loss is high early on is often the "
    "best at the end, and ASHA may stop it. The optimum that is left may be too low; take early_stopping out to know"
)


def cautions(expansion: Expansion) -> tuple[str, ...]:
    """Return the cautions of a sweep: of early stopping, of base values beside the grid, of its model, and of each
    table at the base and along each axis.
    """
    spec = expansion.spec
    out = [*([] if spec.early_stopping.asha is None else [CROSSING]), *base_point_cautions(expansion)]
    if gates := [text for shape in expansion.shapes for text in gate_warnings(shape, expansion.setting.gate)]:
        more = len(gates) - 1
        out.append(gates[0] + (f"; and at {more} more shape{'s' if more > 1 else ''}" if more else ""))
    takes_recipe = spec.base_shape.own and not all(choice.is_own for choice in expansion.choices)
    if takes_recipe and (problem := check_shape(replace(spec.base_shape, own=""))) is not None:
        out.append(
            f"model.dims: names too few dimensions for a recipe: {problem}; config.json has the numbers of roles only, "
            "and a dimension that is not named counts as one that never changes"
        )
    for choice in expansion.choices:
        at_base = _of_table(expansion, choice, spec.base_shape)
        out += at_base
        for axis in expansion.axes:
            # Of warnings that differ only in numbers, the last one of the axis is kept.
            along = (text for point in axis.points for text in _of_table(expansion, choice, point.shape))
            if found := {text.partition(":")[0]: text for text in along if text not in at_base}:
                out.append(f"{choice.label()} along {axis.name}: {'; '.join(found.values())}")
    return tuple(dict.fromkeys(out))


def _of_table(expansion: Expansion, choice: Parameterization, shape: Shape) -> list[str]:
    given = (choice, expansion.spec.base_shape, shape, expansion.facts(choice, shape), expansion.setting.column)
    return [*coverage_warnings(*given), *control_notes(*given)]


# Base points: cautions about base values that their own grid does not have.
#
# The grid of lr and the grid of init_scale are two lines, which meet where both HPs have their base values. With
# `hps.lr: 0.0156` beside the grid point 2^-6 = 0.015625 they meet nowhere, and the sweep trains both values.

_BETAS = ("beta1", "beta2")  # which stand in one list


def base_point_cautions(expansion: Expansion) -> Iterator[str]:
    """Yield a caution for each base value that is no point of its grid: where it lies, or that it has no effect.

    Arms are named where they move the base value.
    """
    arms: dict[str, str] = {}
    for part in expansion.parts:
        for caution in _of_part(part.spec):
            arms.setdefault(caution, "" if part.name is None else f"arm {part.name}: ")
    yield from (f"{of_arm}{caution}" for caution, of_arm in arms.items())


def _of_part(spec: SweepSpec) -> Iterator[str]:
    if spec.search_row.is_box or any(spec.search_row.why_no_line(spec, name) for name in spec.grid):
        return
    for name, values in spec.grid.items():
        base, points = base_values(spec).get(name, 1.0), values.numbers()
        there = any(math.isclose(base, point, rel_tol=1e-9) for point in points) if spec.product else base in points
        if there or (name == "lr" and spec.hps.lr is None):
            continue
        near = min(points, key=lambda point: abs(point - base))
        key, default = _key_and_default(name)
        where = f"{key}: {base!r} is no point of grid.{name}, of which the nearest is {near!r}"
        if others := [other for other in spec.grid if other != name]:
            how = "cannot be read" if spec.product else f"meet that of {name} nowhere"
            yield f"{where}; the lines of {' and '.join(others)} run through it, and {how}"
        elif spec.search_row.tunes == "lines" and base != default:
            yield f"{where}; no other line runs through it, so it has no effect"


def _key_and_default(name: str) -> tuple[str, Any]:
    """Return the key of the sweep file that holds the base value of an HP, and its default: of lr, None."""
    if "." in name:
        return f"hps.multipliers.{name}", 1.0
    if name in _BETAS:
        index = _BETAS.index(name)
        return f"training.betas[{index}]", TrainingSpec.model_fields["betas"].default[index]
    of_training = name in TrainingSpec.model_fields
    fields = TrainingSpec.model_fields if of_training else HPsSpec.model_fields
    return f"{'training' if of_training else 'hps'}.{name}", fields[name].default


UNMEASURED = "by a model of memory that was never measured on a GPU"
SURE_EXCESS = 2.0  # the excess above which even an unmeasured model is believed


def memory_lines(plan: Plan, resources: ResourcesSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what the user should know about memory before a run, and one line for each shape of which not even a
    single trial fits.

    On a GPU the model of memory was never measured. So a shape that no stored trial has measured counts as too large
    from SURE_EXCESS times the memory on. Below that it is a caution, and so is any excess over a GPU of unknown size.
    """
    device, left = plan.device, [row for row in plan.shapes if row.num_stacks]
    if not plan.knows_models:
        return (), ()
    busy = max(1, min(plan.workers, sum(row.num_stacks for row in left)))
    room = device.room(resources.gpu_share or 1.0) if device.cuda else device.most(busy * resources.ranks)

    def need(row: ShapePlan, more: str = "") -> str:
        where = f"each of {busy} workers" if busy > 1 else "a worker"
        if device.cuda:
            where = "a stack's share of the GPU" if row.gpu_share <= 1 else "each GPU"
        model = "" if not device.cuda or row.is_measured else f", {UNMEASURED}"
        needs = f"memory: one trial of {plan.label(row.shape)}{more} needs {spell_bytes(row.stack_bytes)}"
        return f"{needs}, {where} has {spell_bytes(room)}{model}"

    larger = "a larger GPU or share of it" if device.cuda else "fewer resources.workers"
    fix = f"give {larger}, fewer batch_{plan.reads}, training.accumulation_{plan.reads}, or leave the shape out"
    over = [row for row in left if row.stack_size == 1 and row.stack_bytes > room]
    sure = [row for row in over if not device.cuda or row.is_measured or row.stack_bytes > SURE_EXCESS * room]
    if device.cuda and device.memory_bytes is None:
        sure = []
    out = []
    if unsure := [row for row in over if row not in sure]:
        worst = max(unsure, key=lambda row: row.stack_bytes)
        more = f" and {len(unsure) - 1} other shapes" if len(unsure) > 1 else ""
        out.append(f"{need(worst, more)}: expect it to fail; {fix}")
    if (asked := resources.stack_size) is not None:
        # Fewer trials are stacked than asked for, unless a round of a search simply has no more.
        cut = [row for row in left if asked * row.stack_bytes > room * row.stack_size]
        cut = [row for row in cut if row.num_stacks > -(-row.num_stacks * row.stack_size // asked)]
        if cut:
            least = min(cut, key=lambda row: row.stack_size)
            do_not_fit = f"{asked} trials of {plan.label(least.shape)} do not fit into memory"
            out.append(f"resources.stack_size: {do_not_fit}, stacks of {least.stack_size} are made")
    return tuple(out), tuple(f"{need(row)}; {fix}" for row in sure)


def require_fit(plan: Plan) -> None:
    """Raise HpxferError if the plan has shapes that do not fit into memory even alone."""
    if plan.unfit:
        raise HpxferError(
            "\n".join([*plan.unfit, "one trial of each shape must fit; --no-strict-memory tries to train all the same"])
        )


def spell_bytes(count: float) -> str:
    """Return a size as text, e.g. `300 MiB` or `1.5 GiB`."""
    for unit, size in (("PiB", 2**50), ("TiB", 2**40), ("GiB", 2**30)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 2**20:.0f} MiB"


def active_lines(expansion: Expansion) -> tuple[str, ...]:
    """Return one line per dense shape: the active parameters of the MoE shapes that are nearest to it.

    Embeddings and the readout are left out, as they grow with the vocabulary alone. A sweep without a dense shape, or
    without experts, has no line.
    """
    counts = {
        shape.label(): (bool(shape.num_experts), active_without_embeddings(shape, expansion.setting_at(shape)))
        for shape in expansion.shapes
    }
    dense = {label: count for label, (is_moe, count) in counts.items() if not is_moe and count > 0}
    lines: dict[str, list[str]] = {}
    for label, (is_moe, count) in counts.items():
        if is_moe and dense and count > 0:
            nearest = min(dense, key=lambda other: abs(math.log(count / dense[other])))
            lines.setdefault(nearest, []).append(f"{label} {count / dense[nearest]:.3g}")
    return tuple(
        f"active parameters without embeddings, relative to the dense {label} ({dense[label]:,}): {', '.join(ratios)}"
        for label, ratios in lines.items()
    )
