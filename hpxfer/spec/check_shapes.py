"""Rules on the shapes of a sweep: on its base, on the points of its axes, and on the rules its tables must have."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hpxfer.errors import HpxferError, nearest
from hpxfer.registry import rows_of
from hpxfer.scaling.evaluate import Parameterization, parameterization
from hpxfer.scaling.shape import Shape, check_trainable
from hpxfer.spec.arms import arm_label
from hpxfer.spec.axes import DIMENSION, entries, shape_at
from hpxfer.spec.blocks import forward_problem, has_dense, model_roles, moe_blocks
from hpxfer.spec.fields import Problem
from hpxfer.spec.model_section import ShapeSpec
from hpxfer.spec.own import own_scale
from hpxfer.spec.schedule import Planned, schedule_problems
from hpxfer.spec.sweep import AxisSpec, ScheduleSpec, ShapeChange, SweepSpec
from hpxfer.spec.ties import ties_problem
from hpxfer.spec.yaml_file import KeyPath, spell

KeyedShape = tuple[KeyPath, Shape]

# Vectorized sigmoid and GELU treat the tail of a stack differently unless the tokens are a multiple of this (measured,
# float32 on AVX2). A stacked trial would then not have the same bits as the trial alone.
BATCH_TOKENS_MULTIPLE = 32
AT_BASE: KeyPath = ("model", "base")
# How a file runs shapes along an axis for which a table is not made.
HOW_TO_ALLOW = "allow_kappa_change: true in the axis runs it all the same"


def base_problems(spec: SweepSpec) -> Iterator[Problem]:
    """Yield every broken rule of the base shape."""
    if spec.model.own is not None:
        return  # `hpxfer.spec.check_trainer` has looked at it
    base, shape = spec.model.base, spec.base_shape
    given = {name: getattr(base, name) is not None for name in ("num_experts", "num_active")}
    is_moe = any((*given.values(), base.expert_ratio is not None, base.expert_width is not None))
    if is_moe and not all(given.values()):
        missing = " and ".join(name for name, there in given.items() if not there)
        yield AT_BASE, f"must give {missing} beside the rest of the experts, or nothing of them for a dense model"
        return
    broken = [
        *_size_problems(base, "expert", is_moe, "num_experts"),
        *_size_problems(base, "shared", base.num_shared > 0, "num_shared"),
        *_size_problems(
            base, "dense", has_dense(shape, spec.model), "a block without experts (moe_every, dense_first)"
        ),
    ]
    yield from broken
    alone = replace(shape, batch_tokens=0, steps=0)  # `length_problems` looks at these
    if not broken and (problem := check_trainable(alone, _row_multiple(spec)) or _no_moe_block(spec, shape)):
        yield AT_BASE, problem


def _row_multiple(spec: SweepSpec) -> int:
    multiple: int = rows_of("family").get(spec.model.family).row_multiple
    return multiple


def _size_problems(base: ShapeSpec, kind: str, wanted: bool, of: str) -> Iterator[Problem]:
    """Yield what is wrong with a hidden size. It is `wanted` where the model has what `of` names."""
    names = f"{kind}_ratio", f"{kind}_width"
    ratio, width = (getattr(base, name) for name in names)
    num_given = (ratio is not None) + (width is not None)
    if wanted and num_given != 1:
        yield AT_BASE, f"must give exactly one of {names[0]} and {names[1]}"
    elif not wanted and num_given:
        yield AT_BASE, f"{names[0] if width is None else names[1]} goes with {of}, got it without; take it out"
    elif ratio is not None:
        size = ratio * base.width
        if abs(size - round(size)) > 1e-9 or round(size) < 1:
            yield (*AT_BASE, names[0]), f"{names[0]} * width must be a whole number, got {size:g}"


def _no_moe_block(spec: SweepSpec, shape: Shape) -> str | None:
    if not shape.num_experts or moe_blocks(shape, spec.model):
        return None
    return (
        f"at least one block must have experts, got none of {shape.depth} with moe_every {spec.model.moe_every} and "
        f"dense_first {spec.model.dense_first}; lower these, or take a larger depth"
    )


def keyed_shapes(spec: SweepSpec) -> tuple[KeyedShape, ...]:
    """Return the base shape and every shape of an axis that is legal, each with its key path. The base is legal."""
    out: list[KeyedShape] = [(AT_BASE, spec.base_shape)]
    for name, axis in spec.axes.items():
        if _axis_problem(name, axis, spec) is not None:
            continue
        for below, entry in entries(axis):
            try:
                out.append((("axes", name, *below), shape_at(spec, name, axis, entry)))
            except HpxferError:
                continue  # axis_problems reports it
    return tuple(out)


def axis_problems(spec: SweepSpec) -> Iterator[Problem]:
    """Yield every broken rule of the axes. The base is legal."""
    if not spec.axes:
        yield ("axes",), "must name at least one axis"
    choices = choices_of(spec)
    if spec.model.own is not None:
        yield from _own_scales(spec)
    schedules: dict[Shape, tuple[str, ScheduleSpec]] = {spec.base_shape: ("the base", spec.training.schedule)}
    data: dict[Shape, tuple[str, str]] = {spec.base_shape: ("the base", spec.data.source)}
    for name, axis in spec.axes.items():
        if problem := _axis_problem(name, axis, spec):
            yield ("axes", name, *problem[0]), problem[1]
            continue
        for below, entry in entries(axis):
            at: KeyPath = ("axes", name, *below)
            try:
                shape = shape_at(spec, name, axis, entry)
            except HpxferError as error:
                yield at, str(error)
                continue
            yield from ((at, problem) for problem in _point_problems(spec, axis, shape, choices))
            own = entry.schedule if isinstance(entry, ShapeChange) else None
            yield from (((*at, *path), problem) for path, problem in _schedule(spec, shape, own))
            other, its = schedules.setdefault(shape, (spell(at), own or spec.training.schedule))
            if (own or spec.training.schedule) != its:
                yield (
                    (*at, "schedule") if own else at,
                    f"must be the schedule of {other}, which is the same shape {shape.label(schedule=True)}; give this "
                    "point other steps, or both the same schedule",
                )
            source = entry.data.source if isinstance(entry, ShapeChange) and entry.data else spec.data.source
            other, its_source = data.setdefault(shape, (spell(at), source))
            if source != its_source:
                yield at, f"must have the data of {other}, which is the same shape, got {source}; give it other steps"


def _own_scales(spec: SweepSpec) -> Iterator[Problem]:
    """Yield the axes of a user's own shapes that cannot be measured by one number."""
    shapes: dict[str, list[Shape]] = {}
    for at, shape in keyed_shapes(spec)[1:]:
        shapes.setdefault(str(at[1]), [spec.base_shape]).append(shape)
    for name, found in shapes.items():
        try:
            own_scale(name, spec.axes[name].scale, list(dict.fromkeys(found)))
        except HpxferError as error:
            yield ("axes", name), str(error)


def _axis_problem(name: str, axis: AxisSpec, spec: SweepSpec) -> Problem | None:
    """Return why the entries of an axis cannot be read, with the key path below the axis, or None."""
    if (axis.values is None) == (axis.shapes is None):
        return (), "must give exactly one of values and shapes"
    legal = DIMENSION if spec.model.own is None else [*spec.model.own, "batch_tokens", "steps"]
    if axis.values is not None and name not in legal:
        of = "dimension" if spec.model.own is None else "key of model.own"
        return (), f"an axis of bare values must be named after a {of}; {nearest(name, legal)}"
    if not (axis.values or axis.shapes):
        return (), "must hold at least one shape"
    if axis.num_active is not None and (name != "experts" or axis.values is None or spec.model.own is not None):
        return ("num_active",), "only for the values of the axis experts; in shapes, give it in each"
    return None


def _point_problems(
    spec: SweepSpec, axis: AxisSpec, shape: Shape, choices: Sequence[Parameterization]
) -> Iterator[str]:
    base = spec.base_shape
    if spec.model.own is None and (problem := _no_moe_block(spec, shape)):
        yield problem
    if shape.batch_tokens != base.batch_tokens:
        yield from (f"{key} {problem}" for key, problem in batch_problems(spec, shape.batch_tokens))
    holding = [choice.name for choice in choices if "kappa" in choice.table.fixed]
    if shape.kappa != base.kappa and holding and not axis.allow_kappa_change:
        got = f"{shape.num_active}/{shape.num_experts}" if shape.num_experts else "1, as of any dense shape"
        yield (
            f"kappa = num_active/num_experts must stay {base.kappa:g} under {holding[0]}, got {got}; transfer is not "
            f"expected along such an axis; {HOW_TO_ALLOW}"
        )


def _schedule(spec: SweepSpec, shape: Shape, own: ScheduleSpec | None) -> Iterator[Problem]:
    """Yield what is wrong with the schedule of a point, which may have its `own`."""
    if not spec.steps:
        return
    planned = Planned(schedule=own or spec.training.schedule, steps=shape.steps if own else spec.steps)
    fewest = planned.shortest()
    if shape.steps < fewest:
        yield (), f"steps must be at least {fewest}, one for the warm-up and one for the decay, got {shape.steps}"
        return
    base = list(schedule_problems(Planned(schedule=spec.training.schedule, steps=spec.steps), spec.base_shape))
    for path, problem in schedule_problems(planned, shape):
        if own:
            yield ("schedule", *path), problem
        elif not base:  # what the base breaks is reported there
            yield (), f"training.schedule.{path[0]}: {problem}"


def batch_problems(spec: SweepSpec, batch_tokens: int) -> Iterator[tuple[str, str]]:
    """Yield (key of `training`, what is wrong) of a batch size. A user's own trainer takes any."""
    if spec.trainer is not None:
        return
    context, validation_tokens = spec.model.context or 1, spec.training.validation
    if rows_of("family").get(spec.model.family).data == "samples":
        if validation_tokens % batch_tokens:
            yield "validation_samples", f"must be whole batches of {batch_tokens} samples, got {validation_tokens}"
        return
    if batch_tokens % BATCH_TOKENS_MULTIPLE:
        yield "batch_tokens", f"must be a multiple of {BATCH_TOKENS_MULTIPLE}, got {batch_tokens}"
    if batch_tokens % context:
        yield "batch_tokens", f"must be whole sequences of {context} tokens, got {batch_tokens}"
    if validation_tokens % batch_tokens:
        yield "validation_tokens", f"must be whole batches of {batch_tokens} tokens, got {validation_tokens}"
    yield from _piece_problems(spec, batch_tokens)


def _piece_problems(spec: SweepSpec, batch_tokens: int) -> Iterator[tuple[str, str]]:
    """Yield (key of `training`, what is wrong) of the pieces of a batch. At the base, also of a piece itself."""
    tokens, lanes = spec.training.accumulation_tokens, spec.training.accumulation_lanes
    context = spec.model.context or 1
    whole = math.lcm(BATCH_TOKENS_MULTIPLE, context)
    if tokens is not None and tokens % whole:
        yield "accumulation_tokens", f"must be a multiple of {whole}: of 32 and of the context {context}, got {tokens}"
        return
    pieces = 1
    if tokens is not None and tokens < batch_tokens:
        if batch_tokens % tokens:
            yield "accumulation_tokens", f"must divide the batch of {batch_tokens} tokens, got {tokens}"
            return
        pieces = batch_tokens // tokens
    if pieces % lanes:
        yield (
            "accumulation_lanes",
            f"must divide the pieces of a batch of {batch_tokens} tokens, which are {pieces}, got {lanes}",
        )


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def choices_of(spec: SweepSpec) -> list[Parameterization]:
    """Return the parameterizations that exist. `parameterization_problems` reports the others."""
    out = []
    for chosen in spec.parameterizations:
        try:
            out.append(parameterization(chosen.table, chosen.conventions))
        except HpxferError:
            continue
    return out


def parameterization_problems(spec: SweepSpec, shapes: Sequence[KeyedShape]) -> Iterator[Problem]:
    """Yield every parameterization that does not exist, stands twice, or has no rule for a role of some model."""
    if not spec.parameterizations:
        yield ("parameterizations",), "must name at least one"
    if (wrong := ties_problem(spec)) is not None:
        yield ("model", "ties"), wrong
    labels: list[str] = []
    for index, chosen in enumerate(spec.parameterizations):
        at: KeyPath = ("parameterizations", index)
        try:
            choice = parameterization(chosen.table, chosen.conventions)
            column = rows_of("optimizer").get(spec.training.optimizer).column
            rows = choice.rows(column)
        except HpxferError as error:
            yield at, str(error)
            continue
        known = {row.role for row in rows}
        for where, shape in shapes:
            if missing := sorted(set(model_roles(shape, spec.model)) - known):
                model = "this model" if where == AT_BASE else f"the model {shape.label()} of axis {where[1]}"
                yield at, f"{chosen.table} has no rule for {', '.join(missing)}, which {model} has"
                break
        else:
            of_model = (shape for _, shape in shapes)
            if shapes and (wrong := forward_problem(spec.model, choice, column, spec.base_shape, of_model)):
                yield at, wrong
        label = arm_label(choice.label(), chosen.name)
        if chosen.name is None and not chosen.is_plain:
            yield at, "must have a name with hps or balance of its own"
        elif label in labels:
            yield at, f"{label} stands twice; keep one"
        labels.append(label)
