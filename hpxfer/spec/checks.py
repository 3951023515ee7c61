"""Rules that join several fields of a sweep. Each yields (key path, what is wrong and how to mend it)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from hpxfer.errors import HpxferError, nearest
from hpxfer.hps import check_hp_name, check_hp_value
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.roles import ROLES
from hpxfer.shape import check_trainable
from hpxfer.spec.axes import DIMENSION, changes, moved
from hpxfer.spec.sweep import GridValues, SweepSpec, power_of_two
from hpxfer.spec.yaml_file import Path_

Problem = tuple[Path_, str]

MAX_POINTS = 10_000  # of one HP's range: more is a slip of the step

# Folders of results/ that hold something else than a sweep.
RESERVED_NAMES = ("published", "bench")
# Below a whole multiple of this, vectorized sigmoid and GELU treat the tail of a stack differently (measured, float32
# on AVX2): a stacked trial would not have the bits of the trial alone.
BATCH_TOKENS_MULTIPLE = 32


def problems(spec: SweepSpec) -> Iterator[Problem]:
    """Yield every broken rule."""
    yield from _name(spec)
    yield from _base(spec)
    yield from _data(spec)
    yield from _training(spec)
    yield from _parameterizations(spec)
    yield from _axes(spec)
    yield from _hps(spec)
    yield from _grid(spec)


def _name(spec: SweepSpec) -> Iterator[Problem]:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", spec.name):
        rule = "letters, digits, '.', '_' and '-', starting with a letter or digit"
        yield ("name",), f"must be {rule}, got {spec.name!r}"
    elif spec.name in RESERVED_NAMES:
        yield ("name",), f"{spec.name!r} is a folder of results/ with another use; choose another name"


def _base(spec: SweepSpec) -> Iterator[Problem]:
    base = spec.model.base
    at: Path_ = ("model", "base")
    if (base.expert_ratio is None) == (base.expert_width is None):
        yield at, "must give exactly one of expert_ratio and expert_width"
        return
    if base.expert_ratio is not None:
        wanted = base.expert_ratio * base.width
        if abs(wanted - round(wanted)) > 1e-9 or round(wanted) < 1:
            yield (*at, "expert_ratio"), f"expert_ratio * width must be a whole number, got {wanted:g}"
            return
    if problem := check_trainable(spec.base_shape):
        yield at, problem


def _data(spec: SweepSpec) -> Iterator[Problem]:
    data = spec.data
    kind, colon, rest = data.source.partition(":")
    at: Path_ = ("data", "source")
    if kind not in ("builtin", "text", "tokens") or not colon:
        yield at, f"must be builtin:stdlib, text:PATH-or-glob or tokens:GLOB, got {data.source!r}"
    elif kind == "builtin" and rest != "stdlib":
        yield at, f"unknown built-in data {rest!r}; legal: stdlib"
    elif not rest:
        yield at, f"must name a path after {kind}:, got {data.source!r}"
    elif kind != "tokens":
        if data.vocab_size is not None:
            yield ("data", "vocab_size"), f"only for tokens: data; {kind}: data has the vocabulary of its tokenizer"
        if data.tokenizer == "gpt2":
            yield ("data", "tokenizer"), f"{kind}: data is read as bytes; legal: ascii, bytes"
    elif data.vocab_size is not None and data.tokenizer is not None:
        yield ("data", "vocab_size"), "must give one of tokenizer and vocab_size, got both"
    elif data.tokenizer in ("ascii", "bytes"):
        yield ("data", "tokenizer"), f"tokens: data holds token ids; legal: gpt2, or vocab_size, got {data.tokenizer!r}"
    elif data.vocab_size is not None and data.vocab_size > 2**16:
        yield ("data", "vocab_size"), f"tokens: shards hold uint16, so at most {2**16}, got {data.vocab_size}"


def _training(spec: SweepSpec) -> Iterator[Problem]:
    training, context, at = spec.training, spec.model.context, ("training",)
    if (training.steps is None) == (training.tokens is None):
        yield at, "must give exactly one of steps and tokens"
        return
    if training.batch_tokens % BATCH_TOKENS_MULTIPLE:
        yield (*at, "batch_tokens"), f"must be a multiple of {BATCH_TOKENS_MULTIPLE}, got {training.batch_tokens}"
    if training.batch_tokens % context:
        yield (*at, "batch_tokens"), f"must be whole sequences of {context} tokens, got {training.batch_tokens}"
    if training.tokens is not None and training.tokens % training.batch_tokens:
        yield (*at, "tokens"), f"must be whole batches of {training.batch_tokens} tokens, got {training.tokens}"
    if training.validation_tokens % training.batch_tokens:
        yield (
            (*at, "validation_tokens"),
            f"must be whole batches of {training.batch_tokens} tokens, got {training.validation_tokens}",
        )
    if len(training.betas) != 2 or not all(0 <= beta < 1 for beta in training.betas):
        yield (*at, "betas"), f"must be two numbers in [0, 1), got {list(training.betas)}"
    if training.final_window_steps is not None and training.final_window_steps > spec.steps:
        yield (
            (*at, "final_window_steps"),
            f"must be at most the run's {spec.steps} steps, got {training.final_window_steps}",
        )
    yield from _schedule(spec)


def _schedule(spec: SweepSpec) -> Iterator[Problem]:
    schedule, at = spec.training.schedule, ("training", "schedule")
    if schedule.warmup_steps > spec.steps:
        yield (
            (*at, "warmup_steps"),
            f"the warm-up must not be longer than the run of {spec.steps} steps, got {schedule.warmup_steps}",
        )
    if (schedule.decay == "wsd") != (schedule.decay_steps is not None):
        given = "none" if schedule.decay_steps is None else str(schedule.decay_steps)
        yield (*at, "decay_steps"), f"must be given with decay wsd and only there, got {given} with {schedule.decay}"
    elif schedule.decay_steps is not None and schedule.warmup_steps + schedule.decay_steps > spec.steps:
        yield (
            (*at, "decay_steps"),
            f"warm-up and decay must fit in the run of {spec.steps} steps, got "
            f"{schedule.warmup_steps} + {schedule.decay_steps}",
        )


def _parameterizations(spec: SweepSpec) -> Iterator[Problem]:
    if not spec.parameterizations:
        yield ("parameterizations",), "must name at least one"
    labels: list[str] = []
    for index, one in enumerate(spec.parameterizations):
        at: Path_ = ("parameterizations", index)
        try:
            choice = parameterization(one.name, one.conventions)
            rows = choice.rows("sgd" if spec.training.optimizer == "sgd" else "adam")
        except HpxferError as error:
            yield at, str(error)
            continue
        missing = sorted(set(gpt_roles(spec)) - {row.role for row in rows})
        if missing:
            yield at, f"{one.name} has no rule for {', '.join(missing)}, which this model has"
        if choice.label() in labels:
            yield at, f"{choice.label()} stands twice; keep one"
        labels.append(choice.label())


def gpt_roles(spec: SweepSpec) -> tuple[str, ...]:
    """Return the roles of the built-in GPT with this sweep's options."""
    model = spec.model
    roles = ["embedding", "position", "attn_q", "attn_k", "attn_v", "attn_out"]
    roles += ["router", "router_bias", "expert_in", "expert_out", "readout"]
    roles += ["norm", "final_norm"] if model.norm_gains else []
    roles += ["hidden_bias"] if model.biases else []
    return tuple(roles)


def _axes(spec: SweepSpec) -> Iterator[Problem]:
    if not spec.axes:
        yield ("axes",), "must name at least one axis"
    if any(True for _ in _base(spec)):
        return
    base = spec.base_shape
    for name, axis in spec.axes.items():
        at: Path_ = ("axes", name)
        if (axis.values is None) == (axis.shapes is None):
            yield at, "must give exactly one of values and shapes"
        elif axis.values is not None and name not in DIMENSION:
            yield at, f"an axis of bare values must be named after a dimension; {nearest(name, DIMENSION)}"
        elif not (axis.values or axis.shapes):
            yield at, "must hold at least one shape"
        elif axis.num_active is not None and (name != "experts" or axis.values is None):
            yield (*at, "num_active"), "only for the values of the axis experts; in shapes, give it in each"
        else:
            try:
                steps = changes(name, axis)
            except HpxferError as error:
                yield at, str(error)
                continue
            for below, change in steps:
                try:
                    shape = moved(base, change)
                except HpxferError as error:
                    yield (*at, *below), str(error)
                    continue
                if shape.kappa != base.kappa and not axis.allow_kappa_change:
                    yield (
                        (*at, *below),
                        f"kappa = num_active/num_experts must stay {base.kappa:g}, got {shape.num_active}/"
                        f"{shape.num_experts}; transfer is not expected along such an axis, set "
                        f"allow_kappa_change: true on it to run it all the same",
                    )


def _hps(spec: SweepSpec) -> Iterator[Problem]:
    hps = spec.hps
    for name in ("lr", "init_scale", "residual_scale", "router_bias_lr"):
        value = getattr(hps, name)
        if value is not None:
            yield from _value(("hps", name), name, value)
    for name, value in hps.multipliers.items():
        at: Path_ = ("hps", "multipliers", name)
        if "." not in name:
            yield at, "must be a dotted name, e.g. router.lr_mult"
            continue
        broken = list(_value(at, name, value))
        yield from broken
        if not broken and (why := _without_effect(spec, name)):
            yield at, why
    others = [name for name in spec.grid if name != "lr"]
    if hps.lr is None and "lr" not in spec.grid:
        yield ("hps", "lr"), "must be given, because the grid does not scan lr"
    elif hps.lr is None and others and not spec.product:
        yield ("hps", "lr"), f"must be given: the line of {others[0]} runs through it"


def _without_effect(spec: SweepSpec, name: str) -> str | None:
    """Return why an HP can change nothing in this sweep, or None: its trials would differ by nothing but their ids."""
    role, dot, kind = name.partition(".")
    if not dot:
        adam_only = spec.training.optimizer == "sgd" and name in ("eps", "beta1", "beta2")
        return f"{name} has no effect under sgd; take it out" if adam_only else None
    roles = [one for one in gpt_roles(spec) if one != "readout" or not spec.model.tied_embeddings]
    if role not in roles:
        return f"this model has no tensor of role {role}; {nearest(role, roles)}"
    if kind == "init_mult" and ROLES[role] in ("ones", "zeros"):
        return f"{name} has no effect: the role starts at exact {ROLES[role]}; take it out"
    return None


def _value(at: Path_, name: str, value: float) -> Iterator[Problem]:
    try:
        check_hp_name(name)
        check_hp_value(name, value)
    except HpxferError as error:
        yield at, str(error)


def _grid(spec: SweepSpec) -> Iterator[Problem]:
    if not spec.grid:
        yield ("grid",), "must scan at least one HP"
    for name, values in spec.grid.items():
        at: Path_ = ("grid", name)
        try:
            check_hp_name(name)
        except HpxferError as error:
            yield at, str(error)
            continue
        if why := _without_effect(spec, name):
            yield at, why
            continue
        yield from _grid_values(at, name, values)
    yield from _product_without_base(spec)
    if spec.judge.hp is not None and spec.judge.hp not in spec.grid:
        yield ("judge", "hp"), f"must be an HP of the grid; {nearest(spec.judge.hp, spec.grid)}"
    if not spec.seeds:
        yield ("seeds",), "must hold at least one seed"
    elif len(set(spec.seeds)) != len(spec.seeds):
        yield ("seeds",), f"a seed stands twice in {list(spec.seeds)}"


def _product_without_base(spec: SweepSpec) -> Iterator[Problem]:
    """The judged HP's line runs through the base values of the others, which a product must therefore hold."""
    if not spec.product or spec.judged_hp not in spec.grid:
        return
    base = {"weight_decay": spec.training.weight_decay, "eps": spec.training.eps}
    base |= dict(zip(("beta1", "beta2"), spec.training.betas, strict=False))
    for name, values in spec.grid.items():
        if name == spec.judged_hp or any(True for _ in _grid_values(("grid", name), name, values)):
            continue
        known = base.get(name, spec.hps.multipliers.get(name, getattr(spec.hps, name, 1.0)))
        if known is None or not any(math.isclose(known, one, rel_tol=1e-9) for one in values.numbers()):
            got = "none" if known is None else f"{known:g}"
            yield (
                ("grid", name),
                f"a product must hold the base value of {name}, through which the line of the judged "
                f"{spec.judged_hp} runs, got {got} as the base value; add it here, or give {name} one of these",
            )


def _grid_values(at: Path_, name: str, values: GridValues) -> Iterator[Problem]:
    if (values.values is None) == (values.log2 is None):
        yield at, "must be a list of values, or {log2: [low, high]}"
        return
    if values.log2 is not None and (len(values.log2) != 2 or values.log2[0] > values.log2[1]):
        yield (*at, "log2"), f"must be [low, high] with low <= high, got {list(values.log2)}"
        return
    if values.log2 is not None and (values.log2[1] - values.log2[0]) / values.step >= MAX_POINTS:
        yield (*at, "step"), f"must leave at most {MAX_POINTS} values, got {values.step:g} over {list(values.log2)}"
        return
    if values.log2 is None:
        key, given = "values", values.values or ()
    else:
        # The legal values of an HP are one interval: the ends speak for what lies between them.
        key, given = "log2", tuple(power_of_two(exponent) for exponent in values.log2)
    broken = [problem for index, one in enumerate(given) for problem in _value((*at, key, index), name, one)]
    if broken:
        yield from broken
        return
    numbers = values.numbers()
    if not numbers:
        yield at, "must hold at least one value"
    elif len(set(numbers)) != len(numbers):
        yield at, f"a value stands twice in {list(numbers)}"
