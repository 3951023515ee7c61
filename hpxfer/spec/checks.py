"""Rules that join several fields of a sweep. Each yields (key path, what is wrong)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice

from hpxfer.errors import MAX_LINES, HpxferError, nearest, shown
from hpxfer.host import storage_problem
from hpxfer.registry import rows_of
from hpxfer.scaling.evaluate import resolve_globals
from hpxfer.scaling.hps import HPs, check_hp_name, check_hp_value
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import tokens_problem
from hpxfer.spec.axes import entries
from hpxfer.spec.blocks import family_of, model_roles
from hpxfer.spec.check_keys import KeyedShape, cost_problems, data_problems, family_problems, model_problems
from hpxfer.spec.check_shapes import (
    axis_problems,
    base_problems,
    batch_problems,
    choices_of,
    keyed_shapes,
    parameterization_problems,
)
from hpxfer.spec.fields import GridValues, Problem, WhyNot, power_of_two
from hpxfer.spec.model_section import LEARNED, UserModel
from hpxfer.spec.schedule import Planned, schedule_problems
from hpxfer.spec.search import SearchSpec
from hpxfer.spec.sweep import HPsSpec, SweepSpec, base_values, under
from hpxfer.spec.yaml_file import KeyPath, spell

# Folders of results/ that hold something other than a sweep.
RESERVED_NAMES = ("published", "bench")


def problems(spec: SweepSpec) -> Iterator[Problem]:
    """Yield every broken rule."""
    if spec.name in RESERVED_NAMES:
        yield ("name",), f"{shown(spec.name)} is a folder of results/ with another use"
    if spec.storage is not None and (why := storage_problem(spec.storage)) is not None:
        yield ("storage",), why
    if spec.hps.recipe is not None and spec.hps.recipe.gives is None:
        yield ("hps", "recipe"), "is read by hpxfer.load_sweep alone"
        return
    # What follows looks at every shape, and reads every key.
    if found := list(size_problems(spec)) or list(family_problems(spec)):
        yield from found
        return
    broken = [*base_problems(spec), *length_problems(spec)]
    shapes = () if broken else keyed_shapes(spec)
    yield from broken
    yield from model_problems(spec, shapes)
    yield from rows_of("family").get(spec.model.family).problems(spec, shapes)
    yield from data_problems(spec)
    yield from _training(spec)
    yield from parameterization_problems(spec, shapes)
    yield from () if broken else axis_problems(spec)
    yield from cost_problems(spec, [shape for _, shape in shapes])
    yield from _betas(spec, shapes)
    roles = {role for _, shape in shapes for role in model_roles(shape, spec.model)}
    yield from (scanned := list(islice(chain(_hps(spec, roles), _grid(spec, roles)), MAX_LINES + 1)))
    if not broken and not scanned:
        yield from _arms(spec, shapes, roles)
    is_broken = bool(broken or scanned)
    yield from search_problems(spec, broken=is_broken, why_not=lambda name: _useless(spec, name, roles))


def _arms(spec: SweepSpec, shapes: Sequence[KeyedShape], roles: Collection[str]) -> Iterator[Problem]:
    """Yield what is wrong with the HPs and the balance of arms, also where they meet the rest of the sweep."""
    own = [(index, arm) for index, arm in enumerate(spec.parameterizations) if not arm.is_plain]
    found = list(_joint(spec, shapes, roles)) if own else []
    for index, arm in own:
        at, moved = ("parameterizations", index), under(spec, [arm])
        multipliers = {} if arm.hps is None else arm.hps.multipliers
        broken: list[Problem] = []
        if arm.balance is not None and isinstance(spec.model, UserModel):
            broken.append(((*at, "balance"), "has no effect in the family user"))
        for name, value in arm.given().items():
            key: KeyPath = (*at, "hps", *(("multipliers",) if name in multipliers else ()), name)
            broken += _given(moved, key, name, value, roles)
        yield from broken
        for path, text in () if broken else _joint(moved, shapes, roles):
            if (path, text) not in found:
                yield at, f"{spell(path)}: {text}"


def _joint(spec: SweepSpec, shapes: Sequence[KeyedShape], roles: Collection[str]) -> Iterator[Problem]:
    """Yield the rules that join base HPs with other keys, which every arm must keep."""
    yield from model_problems(spec, shapes)
    yield from _grid(spec, roles)
    yield from _betas(spec, shapes)
    yield from _balance(spec, roles)
    yield from search_problems(spec, broken=False, why_not=lambda name: _useless(spec, name, roles))


def _training(spec: SweepSpec) -> Iterator[Problem]:
    """Yield the broken rules of `training`, and of the parts of a batch that are computed at once."""
    training, batch, at = spec.training, spec.training.batch, "training"
    if (training.steps is None) == (training.tokens is None):
        yield (at,), "must give exactly one of steps and tokens"
    else:
        yield from (((at, key), problem) for key, problem in batch_problems(spec, batch))
        if training.tokens is not None and training.tokens % batch:
            yield (at, "tokens"), f"must be whole batches of {batch} tokens, got {training.tokens}"
        for index, (name, beta) in enumerate(zip(("beta1", "beta2"), training.betas, strict=True)):
            yield from _value((at, "betas", index), name, beta)
        yield from _value((at, "eps"), "eps", training.eps)
        yield from _value((at, "weight_decay"), "weight_decay", training.weight_decay)
        if (window := training.final_window_steps) is not None and window > spec.steps:
            yield (at, "final_window_steps"), f"must be at most the run's {spec.steps} steps, got {window}"
        for path, problem in schedule_problems(Planned(schedule=training.schedule, steps=spec.steps), spec.base_shape):
            yield (at, "schedule", *path), problem
    most, piece, at = spec.resources.micro_batch, training.piece, "resources"
    if most is not None and most % (piece or batch):
        unit = "tokens" if spec.resources.micro_batch_tokens else "samples"
        key = f"accumulation_{unit}"
        of = f"training.{key}" if piece else f"the batch, which is one piece without {key}"
        yield (at, f"micro_batch_{unit}"), f"must be a multiple of {of}, {piece or batch}, got {most}"
    ranks, lanes = spec.resources.ranks, training.accumulation_lanes
    if spec.trainer is None and lanes % ranks:
        yield (
            (at, "gpus_per_stack"),
            f"must divide training.accumulation_lanes, which is {lanes}, or be a share, got {ranks}",
        )
    elif spec.trainer is None and ranks > 1 and spec.early_stopping.asha is not None:
        why = f"must be at most 1 with early_stopping, which trains one process a trial, got {ranks}"
        yield (at, "gpus_per_stack"), why


def _betas(spec: SweepSpec, shapes: Sequence[KeyedShape]) -> Iterator[Problem]:
    """Yield the shapes at which a table moves a beta out of [0, 1), for the base's betas and the ends of the grid."""
    if "beta1" not in rows_of("optimizer").get(spec.training.optimizer).hps:
        return
    points = [HPs(lr=1.0, beta1=spec.training.betas[0], beta2=spec.training.betas[1])]
    for name in ("beta1", "beta2"):
        values = spec.grid.get(name)
        if values is not None and not any(True for _ in _grid_values(("grid", name), name, values)):
            points += [points[0].with_value(name, pick(values.numbers())) for pick in (min, max)]
    for choice in choices_of(spec):
        for at, shape in shapes:
            try:
                for hps in points:
                    resolve_globals(choice, spec.base_shape, shape, hps)
            except HpxferError as error:
                yield at, str(error)


def _hps(spec: SweepSpec, roles: Collection[str]) -> Iterator[Problem]:
    hps = spec.hps
    for name, value in hps:
        if name not in ("recipe", "multipliers") and value is not None:
            # Sweeps of dense models that give a rate of the bias were always legal.
            may = name != "router_bias_lr" or "router_bias" in roles
            given = may and value != HPsSpec.model_fields[name].default
            yield from _given(spec, ("hps", name), name, value, roles) if given else _value(("hps", name), name, value)
    yield from _balance(spec, roles)
    for name, value in hps.multipliers.items():
        yield from _given(spec, ("hps", "multipliers", name), name, value, roles)
    if hps.adamw_lr is None and "adamw_lr" in rows_of("optimizer").get(spec.training.optimizer).hps:
        yield (
            ("hps", "adamw_lr"),
            f"must be given with {spec.training.optimizer}, as AdamW moves what is no hidden matrix",
        )
    others = [name for name in spec.grid if name != "lr"]
    if hps.lr is None and any(map(_unknown_hp, spec.grid)):
        return  # one of them may be meant as lr
    if hps.lr is None and "lr" not in spec.grid:
        yield ("hps", "lr"), "must be given, because the grid does not scan lr"
    elif hps.lr is None and others and not spec.product and spec.search_row.tunes == "lines":
        yield ("hps", "lr"), f"must be given: the line of {others[0]} runs through it"


def _given(spec: SweepSpec, at: KeyPath, name: str, value: float, roles: Collection[str]) -> Iterator[Problem]:
    """Yield what is wrong with the value of an HP that a file gives, or that it has no effect."""
    if at[-2] == "multipliers" and "." not in name:
        yield at, "must be a dotted name, e.g. router.lr_mult"
        return
    broken = list(_value(at, name, value))
    yield from broken
    if not broken and (why := without_effect(spec, name, roles)):
        yield at, why


def _balance(spec: SweepSpec, roles: Collection[str]) -> Iterator[Problem]:
    """Yield that a balancing loss has no weight, where there are routers among `roles`."""
    weight, scanned = spec.hps.aux_weight, spec.grid.get("aux_weight")
    of_arms = any(arm.given().get("aux_weight") for arm in spec.parameterizations)
    # Only exponents of two, or a number above zero, give some trial a weight.
    is_scanned = scanned is not None and (scanned.values is None or any(scanned.values))
    if spec.model.balance.aux != "none" and "router" in roles and not (weight or is_scanned or of_arms):
        yield ("hps", "aux_weight"), f"must be given with model.balance.aux {spec.model.balance.aux}, got {weight:g}"


def roles_of(spec: SweepSpec) -> set[str]:
    """Return the roles of all models of a sweep, none if its shapes are broken."""
    if any(chain(size_problems(spec), base_problems(spec), length_problems(spec))):
        return set()
    return {role for _, shape in keyed_shapes(spec) for role in model_roles(shape, spec.model)}


def without_effect(spec: SweepSpec, name: str, roles: Collection[str]) -> str | None:
    """Return why an HP has no effect in this sweep, or None. Trials that differ in it would differ in nothing but ids.

    `roles` are those of all its models, none if its shapes are broken.
    """
    family, optimizer = family_of(spec.model), rows_of("optimizer").get(spec.training.optimizer)
    role, dot, kind = name.partition(".")
    why = None
    if name in ("aux_weight", "z_weight", "router_bias_lr", "router_bias.lr_mult"):
        balance, mlp = spec.model.balance, spec.model.mlp
        of_bias, is_learned = role.startswith("router_bias"), mlp is not None and mlp.router_bias in LEARNED
        if not of_bias and not family.regularizes:
            why = f"the family {family.name} has no loss of its routers"
        elif of_bias and balance.bias == "none" and not (dot and is_learned):
            why = "model.balance.bias is none; give it in the hps of an arm with a rule"
        elif not dot and roles and ("router_bias" if of_bias else "router") not in roles:
            why = "no shape of this sweep has experts"
        elif name == "aux_weight" and balance.aux == "none":
            why = "model.balance.aux is none; give it in the hps of an arm with a loss"
    if why is not None:
        return f"{name} has no effect: {why}"
    if not dot:
        unused = name in ("adamw_lr", "eps", "beta1", "beta2", "momentum") and name not in optimizer.hps
        return f"{name} has no effect under {optimizer.name}" if unused else None
    multiplies = kind == "forward_mult"
    there = [each for each in roles if each != "readout" or not spec.model.tied_embeddings]
    there = [each for each in family.forward_roles if each in roles] if multiplies else there
    if roles and role not in there:
        lacks = "multiplies no output" if multiplies else "has no tensor"
        return f"this model {lacks} of role {role}; {nearest(role, there)}"
    if kind == "init_mult" and ROLES[role] in ("ones", "zeros"):
        return f"{name} has no effect: the role starts at exact {ROLES[role]}"
    if kind == "init_mult" and dict(spec.model.base_init(spec.data.inputs).stds).get(role) == 0.0:
        return f"{name} has no effect: this model starts the role at exact zeros"
    return None


def _useless(spec: SweepSpec, name: str, roles: Collection[str]) -> str | None:
    """Return why an HP cannot be tuned at the base, or None."""
    if why := _unknown_hp(name) or without_effect(spec, name, roles):
        return why
    role = "router_bias" if name == "router_bias_lr" else name.partition(".")[0]
    if role not in roles or role in model_roles(spec.base_shape, spec.model):
        return None
    base = spec.base_shape.label()
    return f"the base {base} has no tensor of role {role}, so {name} has no optimum there that could transfer"


def _value(at: KeyPath, name: str, value: float) -> Iterator[Problem]:
    try:
        check_hp_name(name)
        check_hp_value(name, value)
    except HpxferError as error:
        yield at, str(error)
    if name == "adamw_lr" and value == 0:  # which elsewhere stands for an optimizer without it
        yield at, "adamw_lr must be > 0, got 0"


def _grid(spec: SweepSpec, roles: Collection[str]) -> Iterator[Problem]:
    if not spec.grid and spec.search_row.needs_grid:
        yield ("grid",), "must scan at least one HP"
    for name, values in spec.grid.items():
        at: KeyPath = ("grid", name)
        if why := _useless(spec, name, roles):
            yield at, why
        else:
            yield from _grid_values(at, name, values)
    yield from _product_without_base(spec)
    if spec.judge.hp is not None and spec.judge.hp not in spec.grid:
        yield ("judge", "hp"), f"must be an HP of the grid; {nearest(spec.judge.hp, spec.grid)}"
    if len(set(spec.seeds)) != len(spec.seeds):
        yield ("seeds",), f"a seed stands twice in {shown(list(spec.seeds))}"


def _unknown_hp(name: str) -> str | None:
    """Return why a name of the grid is that of no HP, or None."""
    try:
        check_hp_name(name)
    except HpxferError as error:
        return str(error)
    return None


def _product_without_base(spec: SweepSpec) -> Iterator[Problem]:
    """Yield the HPs whose base value the product lacks. The line of the judged HP runs through these values."""
    if not spec.product or spec.judged_hp not in spec.grid or spec.search_row.why_no_line(spec, spec.judged_hp):
        return
    base = base_values(spec)
    for name, values in spec.grid.items():
        if name == spec.judged_hp or any(True for _ in _grid_values(("grid", name), name, values)):
            continue
        known = base.get(name, None if name == "lr" else 1.0)
        if known is None or not any(math.isclose(known, value, rel_tol=1e-9) for value in values.numbers()):
            rule = f"a product must hold the base value of {name}, through which the line of {spec.judged_hp} runs"
            yield ("grid", name), f"{rule}, got {'none' if known is None else f'{known:g}'} as the base value"


def _grid_values(at: KeyPath, name: str, values: GridValues) -> Iterator[Problem]:
    if values.around is not None:
        rule = f"must be [low, high], in octaves from a base value of {name} above zero, in hps or by a recipe"
        yield (*at, "around"), f"{rule}, got {shown(list(values.around))} and no such value"
        return
    # The legal values of an HP form an interval, so it is enough to check the ends of exponents.
    key = "values" if values.log2 is None else "log2"
    given = values.values or tuple(map(power_of_two, values.log2 or ()))
    broken = [problem for index, value in enumerate(given) for problem in _value((*at, key, index), name, value)]
    if broken:
        yield from broken
        return
    numbers = values.numbers()
    if not numbers:
        yield at, "must hold at least one value"
    elif len(set(numbers)) != len(numbers):
        yield at, f"a value stands twice in {shown(list(numbers))}"


def search_problems(spec: SweepSpec, *, broken: bool, why_not: WhyNot) -> Iterator[Problem]:
    """Yield every broken rule of `search` and `early_stopping`. `broken` says whether the HPs that they scan are."""
    kind, asha, at = spec.search_row, spec.early_stopping.asha, ("early_stopping", "asha")
    own = [*SearchSpec.model_fields, *kind.settings.model_fields]
    unread = [name for name in spec.search.given if name not in own]
    yield from ((("search", name), f"unknown key; {nearest(name, own)}") for name in unread)
    is_product = spec.product and not kind.lists_trials
    if is_product:
        yield ("product",), f"is of the search grid, got {kind.name}"
    if asha is not None and not kind.can_stop_early:
        yield at, f"cannot be with search {spec.search.kind}, which decides by the loss at the end of every trial"
    if asha is not None and asha.grace_steps >= spec.steps:
        yield (*at, "grace_steps"), f"must be less than the run's {spec.steps} steps, got {asha.grace_steps}"
    if not unread and not is_product and not broken:
        yield from kind.problems(spec, why_not)


# Measured with `hpxfer plan` on one core of a two-core AMD EPYC, 2026-11: a plan takes 0.7 s, of which 0.6 s are
# imports, 1.5 ms more for each arm, and 6 us more for each trial that is listed.
MAX_ARMS = 500
MAX_TRIALS = 200_000


def size_problems(spec: SweepSpec) -> Iterator[Problem]:
    """Yield why a sweep has too many shapes and tables to look at each of them."""
    num_shapes = 1 + sum(1 for _ in entries(spec))
    num_tables = max(1, len(spec.parameterizations))
    if num_shapes * num_tables > MAX_ARMS:
        rule = f"must leave at most {MAX_ARMS} arms, which are shapes times parameterizations"
        yield ("axes",), f"{rule}, got {num_shapes} x {num_tables}; write several sweeps"


def length_problems(spec: SweepSpec) -> Iterator[Problem]:
    """Yield why a run at the base is too long, however the file gives its length."""
    training = spec.training
    if (training.steps is None) == (training.tokens is None):
        return
    if problem := tokens_problem(spec.steps, training.batch):
        yield ("training", "steps" if training.tokens is None else "tokens"), problem


def too_many_trials(spec: SweepSpec, num_trials: int, num_shapes: int) -> str | None:
    """Return why a sweep has too many trials to list them, or None. An arm has `num_trials`, seeds counted."""
    arms = len(spec.parameterizations) * (1 if spec.search.where == "base" else num_shapes)
    if arms * num_trials <= MAX_TRIALS:
        return None
    got = f"{arms * num_trials:.6g}: {arms} arms (a parameterization at a shape) with {num_trials:.6g} trials each"
    return f"must leave at most {MAX_TRIALS} trials in the sweep, got {got}, {len(spec.seeds)} seeds counted"
