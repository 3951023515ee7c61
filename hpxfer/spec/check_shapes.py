"""Rules on the shapes of a sweep: on its base, on the points of its axes, and on the rules its tables must have."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from hpxfer.errors import HpxferError, nearest
from hpxfer.registry import rows_of
from hpxfer.scaling.evaluate import Parameterization, parameterization
from hpxfer.scaling.shape import Shape, check_trainable
from hpxfer.spec.arms import arm_label
from hpxfer.spec.axes import DIMENSION, entries, shape_at
from hpxfer.spec.blocks import forward_problem, has_dense, model_roles, moe_blocks
from hpxfer.spec.check_keys import KeyedShape
from hpxfer.spec.fields import Problem
from hpxfer.spec.model_section import UserModel
from hpxfer.spec.own import own_scale
from hpxfer.spec.schedule import Planned, schedule_problems
from hpxfer.spec.sweep import AxisSpec, ShapeChange, SweepSpec
from hpxfer.spec.ties import ties_problem
from hpxfer.spec.yaml_file import KeyPath, spell

# Vectorized sigmoid and GELU treat the tail of a stack differently unless the tokens are a multiple of this (measured,
# float32 on AVX2). A stacked trial would then not have the same bits as the trial alone.
BATCH_TOKENS_MULTIPLE = 32
AT_BASE: KeyPath = ("model", "base")
# How a file runs shapes along an axis for which a table is not made.
HOW_TO_ALLOW = "allow_kappa_change: true in the axis runs it all the same"


def base_problems(spec: SweepSpec) -> Iterator[Problem]:
    """Yield every broken rule of the base shape. `check_keys` has looked at that of a user's own trainer."""
    model, shape = spec.model, spec.base_shape
    if isinstance(model, UserModel):
        return
    base = model.base
    missing = [name for name in ("num_experts", "num_active") if getattr(base, name) is None]
    may_lack = not rows_of("family").get(model.family).needs_experts
    is_moe = len(missing) < 2 or base.expert_ratio is not None or base.expert_width is not None
    if missing and (is_moe or not may_lack):
        dense = ", or nothing of them for a dense model" if may_lack else ""
        yield AT_BASE, f"must give {' and '.join(missing)} beside the rest of the experts{dense}"
        return
    broken: list[Problem] = []
    may_be_dense = hasattr(base, "dense_width") and has_dense(shape, model)
    for kind, wanted, of in (
        ("expert", is_moe, "num_experts"),
        ("shared", shape.num_shared > 0, "num_shared"),
        ("dense", may_be_dense, "a block without experts (moe_every, dense_first)"),
    ):
        ratio, width = (getattr(base, f"{kind}_{form}", None) for form in ("ratio", "width"))
        size = (ratio or 0.0) * base.width
        if wanted and (ratio is None) == (width is None):
            broken.append((AT_BASE, f"must give exactly one of {kind}_ratio and {kind}_width"))
        elif not wanted and (ratio is not None or width is not None):
            given = f"{kind}_width" if ratio is None else f"{kind}_ratio"
            broken.append((AT_BASE, f"{given} goes with {of}, got it without"))
        elif ratio is not None and (abs(size - round(size)) > 1e-9 or round(size) < 1):
            key = f"{kind}_ratio"
            broken.append(((*AT_BASE, key), f"{key} * width must be a whole number, got {size:g}"))
    yield from broken
    alone = replace(shape, batch_tokens=0, steps=0)  # `length_problems` looks at these
    multiple = rows_of("family").get(model.family).row_multiple
    if not broken and (problem := check_trainable(alone, multiple) or _no_moe_block(spec, shape)):
        yield AT_BASE, problem


def _no_moe_block(spec: SweepSpec, shape: Shape) -> str | None:
    if not shape.num_experts or isinstance(spec.model, UserModel) or moe_blocks(shape, spec.model):
        return None
    got = f"moe_every {spec.model.moe_every} and dense_first {spec.model.dense_first}"
    return f"at least one block must have experts, got none of {shape.depth} with {got}"


def keyed_shapes(spec: SweepSpec) -> tuple[KeyedShape, ...]:
    """Return the base shape and every shape of an axis that is legal, each with its key path. The base is legal."""
    legal = {name for name, axis in spec.axes.items() if _axis_problem(name, axis, spec) is None}
    out: list[KeyedShape] = [(AT_BASE, spec.base_shape)]
    for at, name, entry in entries(spec):
        with suppress(HpxferError):  # axis_problems reports it
            out += [(at, shape_at(spec, name, entry))] if name in legal else []
    return tuple(out)


def axis_problems(spec: SweepSpec) -> Iterator[Problem]:
    """Yield every broken rule of the axes. The base is legal."""
    if not spec.axes:
        yield ("axes",), "must name at least one axis"
    broken = {name: found for name, axis in spec.axes.items() if (found := _axis_problem(name, axis, spec))}
    yield from ((("axes", name, *path), problem) for name, (path, problem) in broken.items())
    # Shape -> its first place, with the schedule and the data there.
    first = {spec.base_shape: ("the base", spec.training.schedule, spec.data.source)}
    shapes: dict[str, dict[Shape, None]] = {name: {} for name in spec.axes if name not in broken}
    for at, name, entry in entries(spec):
        if name in broken:
            continue
        try:
            shape = shape_at(spec, name, entry)
        except HpxferError as error:
            yield at, str(error)
            continue
        shapes[name][shape] = None
        change = entry if isinstance(entry, ShapeChange) else ShapeChange()
        yield from (((*at, *path), problem) for path, problem in _point_problems(spec, spec.axes[name], shape, change))
        schedule, source = change.schedule or spec.training.schedule, (change.data or spec.data).source
        other, its_schedule, its_source = first.setdefault(shape, (spell(at), schedule, source))
        same = f"of {other}, which is the same shape {shape.label(schedule=True)}"
        if schedule != its_schedule:
            yield (*at, "schedule") if change.schedule else at, f"must be the schedule {same}"
        if source != its_source:
            yield at, f"must have the data {same}, got {source}"
    for name, path in shapes.items() if isinstance(spec.model, UserModel) else ():
        try:
            if path:  # which may be the base alone
                own_scale(name, spec.axes[name].scale, list({spec.base_shape: None, **path}))
        except HpxferError as error:
            yield ("axes", name), str(error)


def _axis_problem(name: str, axis: AxisSpec, spec: SweepSpec) -> Problem | None:
    """Return why the entries of an axis cannot be read, with the key path below the axis, or None."""
    own = spec.model.own
    legal = DIMENSION if own is None else [*own, "batch_tokens", "steps"]
    if (axis.values is None) == (axis.shapes is None):
        return (), "must give exactly one of values and shapes"
    if axis.values is not None and name not in legal:
        of = "dimension" if own is None else "key of model.own"
        return (), f"an axis of bare values must be named after a {of}; {nearest(name, legal)}"
    if not (axis.values or axis.shapes):
        return (), "must hold at least one shape"
    if axis.num_active is not None and (name != "experts" or axis.values is None or own is not None):
        return ("num_active",), "only for the values of the axis experts; in shapes, give it in each"
    return None


def _point_problems(spec: SweepSpec, axis: AxisSpec, shape: Shape, change: ShapeChange) -> Iterator[Problem]:
    """Yield what is wrong with the shape of a point. Key paths start at the point."""
    base, own = spec.base_shape, change.schedule
    if problem := _no_moe_block(spec, shape):
        yield (), problem
    if shape.batch_tokens != base.batch_tokens:
        yield from (((), f"{key} {problem}") for key, problem in batch_problems(spec, shape.batch_tokens))
    holding = [choice.name for choice in choices_of(spec) if "kappa" in choice.table.fixed]
    if shape.kappa != base.kappa and holding and not axis.allow_kappa_change:
        got = f"{shape.num_active}/{shape.num_experts}" if shape.num_experts else "1, as of any dense shape"
        rule = f"kappa = num_active/num_experts must stay {base.kappa:g} under {holding[0]}, got {got}"
        yield (), f"{rule}; transfer is not expected along such an axis; {HOW_TO_ALLOW}"
    if not spec.steps:
        return
    of_base = Planned(schedule=spec.training.schedule, steps=spec.steps)
    planned = Planned(schedule=own, steps=shape.steps) if own else of_base
    if shape.steps < (fewest := planned.shortest()):
        yield (), f"steps must be at least {fewest}, one for the warm-up and one for the decay, got {shape.steps}"
    elif own:
        yield from ((("schedule", *path), problem) for path, problem in schedule_problems(planned, shape))
    elif not any(True for _ in schedule_problems(of_base, base)):  # what the base breaks is reported there
        yield from (((), f"training.schedule.{path[0]}: {why}") for path, why in schedule_problems(planned, shape))


def batch_problems(spec: SweepSpec, batch: int) -> Iterator[tuple[str, str]]:
    """Yield (key of `training`, what is wrong) of a batch size. A user's own trainer takes any."""
    if spec.trainer is not None:
        return
    context, training = spec.model.context, spec.training
    unit = "tokens" if context else "samples"
    if context and batch % BATCH_TOKENS_MULTIPLE:
        yield "batch_tokens", f"must be a multiple of {BATCH_TOKENS_MULTIPLE}, got {batch}"
    if context and batch % context:
        yield "batch_tokens", f"must be whole sequences of {context} tokens, got {batch}"
    if training.validation % batch:
        yield f"validation_{unit}", f"must be whole batches of {batch} {unit}, got {training.validation}"
    piece, whole = training.piece or batch, math.lcm(BATCH_TOKENS_MULTIPLE, context or 1)
    lanes, pieces, key = training.accumulation_lanes, max(1, batch // piece), f"accumulation_{unit}"
    if training.accumulation_tokens and piece % whole:
        yield key, f"must be a multiple of {whole}: of 32 and of the context {context}, got {piece}"
    elif piece < batch and batch % piece:
        yield key, f"must divide the batch of {batch} {unit}, got {piece}"
    elif pieces % lanes:
        rule = f"must divide the pieces of a batch of {batch} {unit}, which are {pieces}"
        yield "accumulation_lanes", f"{rule}, got {lanes}"


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def choices_of(spec: SweepSpec) -> list[Parameterization]:
    """Return the parameterizations that exist. `parameterization_problems` reports the others."""
    out = []
    for chosen in spec.parameterizations:
        with suppress(HpxferError):
            out.append(parameterization(chosen.table, chosen.conventions))
    return out


def parameterization_problems(spec: SweepSpec, shapes: Sequence[KeyedShape]) -> Iterator[Problem]:
    """Yield every parameterization that does not exist, stands twice, or has no rule for a role of some model."""
    if not spec.parameterizations:
        yield ("parameterizations",), "must name at least one"
    if (wrong := ties_problem(spec)) is not None:
        yield ("model", "ties"), wrong
    labels: list[str] = []
    column = rows_of("optimizer").get(spec.training.optimizer).column
    for index, chosen in enumerate(spec.parameterizations):
        at: KeyPath = ("parameterizations", index)
        try:
            choice = parameterization(chosen.table, chosen.conventions)
            known = {row.role for row in choice.rows(column)}
        except HpxferError as error:
            yield at, str(error)
            continue
        lacking = ((where, shape, sorted(set(model_roles(shape, spec.model)) - known)) for where, shape in shapes)
        if found := next((each for each in lacking if each[2]), None):
            where, shape, missing = found
            model = "this model" if where == AT_BASE else f"the model {shape.label()} of axis {where[1]}"
            yield at, f"{chosen.table} has no rule for {', '.join(missing)}, which {model} has"
        elif shapes and (
            wrong := forward_problem(spec.model, choice, column, spec.base_shape, [shape for _, shape in shapes])
        ):
            yield at, wrong
        label = arm_label(choice.label(), chosen.name)
        if chosen.name is None and not chosen.is_plain:
            yield at, "must have a name with hps or balance of its own"
        elif label in labels:
            yield at, f"{label} stands twice; keep one"
        labels.append(label)
