"""Rules that join several fields of a sweep. Each yields (key path, what is wrong and how to fix it)."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice

from hpxfer.errors import MAX_LINES, HpxferError, cut, nearest, shown
from hpxfer.registry import rows_of
from hpxfer.scaling.evaluate import resolve_globals
from hpxfer.scaling.hps import POSITIVE, HPs, check_hp_name, check_hp_value
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import tokens_problem
from hpxfer.spec.arms import arm_problems
from hpxfer.spec.axes import entries
from hpxfer.spec.base_values import base_values
from hpxfer.spec.blocks import model_roles
from hpxfer.spec.check_model import family_problems, model_problems
from hpxfer.spec.check_shapes import (
    KeyedShape,
    axis_problems,
    base_problems,
    batch_problems,
    choices_of,
    divisors,
    keyed_shapes,
    parameterization_problems,
)
from hpxfer.spec.check_trainer import cost_problems
from hpxfer.spec.data import data_problems
from hpxfer.spec.fields import GridValues, Problem, WhyNot, power_of_two
from hpxfer.spec.model_section import LEARNED
from hpxfer.spec.schedule import Planned, schedule_problems
from hpxfer.spec.search import SearchSpec
from hpxfer.spec.sweep import HPsSpec, SweepSpec
from hpxfer.spec.yaml_file import KeyPath
from hpxfer.storage.uri import storage_problem

MAX_NAME = 100  # characters. A sweep's name is the name of its folder, and part of the name of a job

# Folders of results/ that hold something other than a sweep.
RESERVED_NAMES = ("published", "bench")


def problems(spec: SweepSpec) -> Iterator[Problem]:
    """Yield every broken rule."""
    yield from _name(spec)
    if spec.storage is not None and (why := storage_problem(spec.storage)) is not None:
        yield ("storage",), why
    if too_large := list(size_problems(spec)):
        yield from too_large  # what follows looks at every shape
        return
    if wrong_keys := list(family_problems(spec)):
        yield from wrong_keys  # what follows reads them
        return
    broken_base = [*base_problems(spec), *length_problems(spec)]
    shapes = () if broken_base else keyed_shapes(spec)
    yield from broken_base
    yield from model_problems(spec, shapes)
    yield from rows_of("family").get(spec.model.family).problems(spec, shapes)
    yield from data_problems(spec)
    yield from _training(spec)
    yield from _micro_batch(spec)
    yield from _ranks(spec)
    yield from parameterization_problems(spec, shapes)
    yield from () if broken_base else axis_problems(spec)
    yield from cost_problems(spec, [shape for _, shape in shapes])
    yield from _betas(spec, shapes)
    roles = {role for _, shape in shapes for role in model_roles(shape, spec.model)}
    scanned = chain(_hps(spec, roles), _grid(spec, roles))
    broken = [*broken_base, *islice(scanned, MAX_LINES + 1)]
    yield from broken[len(broken_base) :]

    def joint(under: SweepSpec) -> Iterator[Problem]:
        """Yield the rules that join base HPs with other keys, which every arm must keep."""
        yield from model_problems(under, shapes)
        yield from _grid(under, roles)
        yield from _betas(under, shapes)
        yield from _balance(under, roles)
        yield from _product_without_base(under)
        yield from search_problems(under, broken=False, why_not=lambda name: _useless(under, name, roles))

    if not broken:
        yield from arm_problems(spec, lambda under, name: without_effect(under, name, roles), joint)
    yield from search_problems(spec, broken=bool(broken), why_not=lambda name: _useless(spec, name, roles))


def _name(spec: SweepSpec) -> Iterator[Problem]:
    if len(spec.name) > MAX_NAME:
        yield ("name",), f"must have at most {MAX_NAME} characters, got {len(spec.name)}"
    elif not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", spec.name):
        rule = "letters, digits, '.', '_' and '-', starting with a letter or digit"
        yield ("name",), f"must be {rule}, got {shown(spec.name)}"
    elif spec.name in RESERVED_NAMES:
        yield ("name",), f"{shown(spec.name)} is a folder of results/ with another use; choose another name"


def _training(spec: SweepSpec) -> Iterator[Problem]:
    training, at = spec.training, ("training",)
    if (training.steps is None) == (training.tokens is None):
        yield at, "must give exactly one of steps and tokens"
        return
    yield from (((*at, key), problem) for key, problem in batch_problems(spec, training.batch))
    if training.tokens is not None and training.tokens % training.batch:
        yield (*at, "tokens"), f"must be whole batches of {training.batch} tokens, got {training.tokens}"
    if not _betas_are_legal(spec):
        yield (*at, "betas"), f"must be two numbers in [0, 1), got {shown(list(training.betas))}"
    else:
        for index, (name, beta) in enumerate(zip(("beta1", "beta2"), training.betas, strict=True)):
            yield from _value((*at, "betas", index), name, beta)
    for name, value in (("eps", training.eps), ("weight_decay", training.weight_decay)):
        yield from _value((*at, name), name, value)
    if training.final_window_steps is not None and training.final_window_steps > spec.steps:
        yield (
            (*at, "final_window_steps"),
            f"must be at most the run's {spec.steps} steps, got {training.final_window_steps}",
        )
    for path, problem in schedule_problems(Planned(schedule=training.schedule, steps=spec.steps), spec.base_shape):
        yield (*at, "schedule", *path), problem


def _micro_batch(spec: SweepSpec) -> Iterator[Problem]:
    tokens, piece = spec.resources.micro_batch_tokens, spec.training.accumulation_tokens
    if tokens is None or tokens % (piece or spec.training.batch) == 0:
        return
    at: KeyPath = ("resources", "micro_batch_tokens")
    if piece is not None:
        yield at, f"must be a multiple of training.accumulation_tokens, which is {piece}, got {tokens}"
    else:
        yield (
            at,
            f"needs training.accumulation_tokens, the tokens of a piece; without it a batch is one piece, got {tokens}",
        )


def _ranks(spec: SweepSpec) -> Iterator[Problem]:
    """Yield that the lanes cannot be shared evenly, or that trials may stop early."""
    if spec.trainer is not None:
        return
    ranks, lanes, at = spec.resources.ranks, spec.training.accumulation_lanes, ("resources", "gpus_per_stack")
    if lanes % ranks:
        legal = ", ".join(map(str, divisors(lanes)[:12]))
        yield (
            at,
            f"must divide training.accumulation_lanes, which is {lanes}, or be a share, got {ranks}; legal: {legal}",
        )
    elif ranks > 1 and spec.early_stopping.asha is not None:
        yield at, f"must be at most 1 with early_stopping, which trains one process a trial, got {ranks}"


def _betas_are_legal(spec: SweepSpec) -> bool:
    return len(spec.training.betas) == 2 and all(0 <= beta < 1 for beta in spec.training.betas)


def _betas(spec: SweepSpec, shapes: Sequence[KeyedShape]) -> Iterator[Problem]:
    """Yield the shapes at which a table moves a beta out of [0, 1), for the base's betas and the ends of the grid."""
    if "beta1" not in rows_of("optimizer").get(spec.training.optimizer).hps or not _betas_are_legal(spec):
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
    for name in ("lr", "init_scale", "residual_scale", "momentum", "router_bias_lr", "aux_weight", "z_weight"):
        value = getattr(hps, name)
        if value is None:
            continue
        broken = list(_value(("hps", name), name, value))
        yield from broken
        # Sweeps of dense models that give a rate of the bias were always legal.
        given = value != HPsSpec.model_fields[name].default and (name != "router_bias_lr" or "router_bias" in roles)
        if not broken and given and (why := without_effect(spec, name, roles)):
            yield ("hps", name), why
    yield from _balance(spec, roles)
    for name, value in hps.multipliers.items():
        at: KeyPath = ("hps", "multipliers", name)
        if "." not in name:
            yield at, "must be a dotted name, e.g. router.lr_mult"
            continue
        broken = list(_value(at, name, value))
        yield from broken
        if not broken and (why := without_effect(spec, name, roles)):
            yield at, why
    others = [name for name in spec.grid if name != "lr"]
    if hps.lr is None and any(map(_unknown_hp, spec.grid)):
        return  # one of them may be meant as lr
    if hps.lr is None and "lr" not in spec.grid:
        yield ("hps", "lr"), "must be given, because the grid does not scan lr"
    elif hps.lr is None and others and not spec.product and not spec.search_row.is_box:
        yield ("hps", "lr"), f"must be given: the line of {others[0]} runs through it"


def _balance(spec: SweepSpec, roles: Collection[str]) -> Iterator[Problem]:
    """Yield that a balancing loss has no weight, where there are routers among `roles`."""
    weight, scanned = spec.hps.aux_weight, spec.grid.get("aux_weight")
    of_arms = any(arm.given().get("aux_weight") for arm in spec.parameterizations)
    # Only exponents of two, or a number above zero, give some trial a weight.
    is_scanned = scanned is not None and (scanned.values is None or any(scanned.values))
    if spec.model.balance.aux != "none" and "router" in roles and not (weight or is_scanned or of_arms):
        yield (
            ("hps", "aux_weight"),
            f"must be given with model.balance.aux {spec.model.balance.aux}, got {weight:g}; e.g. 0.01",
        )


def roles_of(spec: SweepSpec) -> set[str]:
    """Return the roles of all models of a sweep, none if its shapes are broken."""
    if any(chain(size_problems(spec), base_problems(spec), length_problems(spec))):
        return set()
    return {role for _, shape in keyed_shapes(spec) for role in model_roles(shape, spec.model)}


def without_effect(spec: SweepSpec, name: str, roles: Collection[str]) -> str | None:
    """Return why an HP has no effect in this sweep, or None. Trials that differ in it would differ in nothing but ids.

    `roles` are those of all its models, none if its shapes are broken.
    """
    role, dot, kind = name.partition(".")
    if why := _unused_balance(spec, name, roles):
        return why
    if not dot:
        if name == "router_bias_lr" and roles and "router_bias" not in roles:
            return "router_bias_lr has no effect: no shape of this sweep has experts; take it out"
        optimizer = rows_of("optimizer").get(spec.training.optimizer)
        unused = name in ("eps", "beta1", "beta2", "momentum") and name not in optimizer.hps
        return f"{name} has no effect under {optimizer.name}; take it out" if unused else None
    if kind == "forward_mult":
        multiplied = rows_of("family").get(spec.model.family).forward_roles
        there = [each for each in multiplied if each in roles]
        if roles and role not in there:
            return f"this model multiplies no output of role {role}; {nearest(role, there)}"
        return None
    there = [each for each in roles if each != "readout" or not spec.model.tied_embeddings]
    if roles and role not in there:
        return f"this model has no tensor of role {role}; {nearest(role, there)}"
    if kind == "init_mult" and ROLES[role] in ("ones", "zeros"):
        return f"{name} has no effect: the role starts at exact {ROLES[role]}; take it out"
    return None


def _unused_balance(spec: SweepSpec, name: str, roles: Collection[str]) -> str | None:
    """Return why an HP of the experts' balance is not read, or None."""
    balance, mlp = spec.model.balance, spec.model.mlp
    if name in ("aux_weight", "z_weight") and not rows_of("family").get(spec.model.family).regularizes:
        return f"{name} has no effect: the family {spec.model.family} has no loss of its routers; take it out"
    if name == "router_bias.lr_mult" and mlp is not None and mlp.router_bias in LEARNED:
        return None
    if name in ("aux_weight", "z_weight") and roles and "router" not in roles:
        return f"{name} has no effect: no shape of this sweep has experts; take it out"
    if name == "aux_weight" and balance.aux == "none":
        return (
            "aux_weight has no effect: model.balance.aux is none; name a loss there, e.g. switch, give it in the hps "
            "of an arm with a loss, or take it out"
        )
    if name in ("router_bias_lr", "router_bias.lr_mult") and balance.bias == "none":
        return (
            f"{name} has no effect: model.balance.bias is none; name a rule there, give it in the hps of an arm with a "
            "rule, or take it out"
        )
    return None


def _useless(spec: SweepSpec, name: str, roles: Collection[str]) -> str | None:
    """Return why a search cannot tune an HP at the base, or None."""
    try:
        check_hp_name(name)
    except HpxferError as error:
        return str(error)
    return without_effect(spec, name, roles) or _nothing_to_tune(spec, name, roles)


def _nothing_to_tune(spec: SweepSpec, name: str, roles: Collection[str]) -> str | None:
    """Return why an HP cannot be tuned at the base although larger models of the sweep have it, or None."""
    role = "router_bias" if name == "router_bias_lr" else name.partition(".")[0]
    if role not in roles or role in model_roles(spec.base_shape, spec.model):
        return None
    return (
        f"the base {spec.base_shape.label()} has no tensor of role {role}, so {name} has no optimum there that could "
        "transfer; give it one value in hps, or take a base that has the role"
    )


def _value(at: KeyPath, name: str, value: float) -> Iterator[Problem]:
    try:
        check_hp_name(name)
        check_hp_value(name, value)
    except HpxferError as error:
        is_exponent = at[0] == "hps" and name in POSITIVE and value < 0
        yield at, str(error) + (f"; 2^{value:g} is written as {{log2: {value:g}}}" if is_exponent else "")


def _grid(spec: SweepSpec, roles: Collection[str]) -> Iterator[Problem]:
    if not spec.grid and spec.search_row.needs_grid:
        yield ("grid",), "must scan at least one HP"
    for name, values in spec.grid.items():
        at: KeyPath = ("grid", name)
        if unknown := _unknown_hp(name):
            yield at, unknown
            continue
        if why := without_effect(spec, name, roles) or _nothing_to_tune(spec, name, roles):
            yield at, why
            continue
        yield from _grid_values(at, name, values)
    yield from _product_without_base(spec)
    if spec.judge.hp is not None and spec.judge.hp not in spec.grid:
        yield ("judge", "hp"), f"must be an HP of the grid; {nearest(spec.judge.hp, spec.grid)}"
    limit = spec.judge.regret_limit
    if (limit.loss is None) == (limit.octaves is None):
        got = "neither" if limit.loss is None else "both"
        yield ("judge", "regret_limit"), f"must have one of loss and octaves, got {got}; write e.g. {{loss: 0.01}}"
    if not spec.seeds:
        yield ("seeds",), "must hold at least one seed"
    elif len(set(spec.seeds)) != len(spec.seeds):
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
            got = "none" if known is None else f"{known:g}"
            yield (
                ("grid", name),
                f"a product must hold the base value of {name}, through which the line of the judged "
                f"{spec.judged_hp} runs, got {got} as the base value; add it here, or give {name} one of these",
            )


def _grid_values(at: KeyPath, name: str, values: GridValues) -> Iterator[Problem]:
    if sum(form is not None for form in (values.values, values.log2, values.around)) != 1:
        yield at, "must be a list of values, or one of {log2: [low, high]} and {around: [low, high]}"
        return
    for key, ends in (("log2", values.log2), ("around", values.around)):
        if ends is not None and (len(ends) != 2 or ends[0] > ends[1]):
            yield (*at, key), f"must be [low, high] with low <= high, got {shown(list(ends))}"
            return
    if values.around is not None:
        rule = f"must be [low, high], in octaves from a base value of {name} above zero, in hps or by a recipe"
        yield (*at, "around"), f"{rule}, got {shown(list(values.around))} and no such value"
        return
    if values.log2 is None:
        key, given = "values", values.values or ()
    else:
        # The legal values of an HP form an interval, so it is enough to check the ends.
        key, given = "log2", tuple(power_of_two(exponent) for exponent in values.log2)
    are_whole = all(value == round(value) for value in given if math.isfinite(value))
    if key == "values" and name in POSITIVE and given and min(given) < 0 and are_whole:
        got, exponents = ", ".join(f"{value:g}" for value in given), f"{{log2: [{min(given):g}, {max(given):g}]}}"
        yield at, f"{name} must be > 0, got [{cut(got)}]; exponents of two are written as {exponents}"
        return
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
    kind = spec.search_row
    found = list(_unread(spec.search))
    if spec.product and not kind.lists_trials:
        found.append((("product",), f"is of the search grid, got {kind.name}; take it out"))
    yield from found
    yield from _early_stopping(spec)
    if not found and not broken:
        yield from kind.problems(spec, why_not)


def _unread(search: SearchSpec) -> Iterator[Problem]:
    """Yield the keys that the kind does not read."""
    own = [*SearchSpec.model_fields, *search.row.settings.model_fields]
    for name in search.given:
        if name not in own:
            yield ("search", name), f"unknown key; {nearest(name, own)}"


def _early_stopping(spec: SweepSpec) -> Iterator[Problem]:
    asha = spec.early_stopping.asha
    if asha is None:
        return
    at: KeyPath = ("early_stopping", "asha")
    if not spec.search_row.can_stop_early:
        yield at, f"cannot be with search {spec.search.kind}, which decides by the loss at the end of every trial"
    if asha.grace_steps >= spec.steps:
        yield (*at, "grace_steps"), f"must be less than the run's {spec.steps} steps, got {asha.grace_steps}"


# Measured with `hpxfer plan` on one core of a two-core AMD EPYC, 2026-11: a plan takes 0.7 s, of which 0.6 s are
# imports, 1.5 ms more for each arm, and 6 us more for each trial that is listed.
MAX_ARMS = 500
MAX_TRIALS = 200_000


def size_problems(spec: SweepSpec) -> Iterator[Problem]:
    """Yield why a sweep has too many shapes and tables to look at each of them."""
    num_shapes = 1 + sum(len(list(entries(axis))) for axis in spec.axes.values())
    num_tables = max(1, len(spec.parameterizations))
    if num_shapes * num_tables > MAX_ARMS:
        yield (
            ("axes",),
            f"must leave at most {MAX_ARMS} arms, which are shapes times parameterizations, got {num_shapes} x "
            f"{num_tables}; leave some out, or write several sweeps",
        )


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
    return (
        f"must leave at most {MAX_TRIALS} trials in the sweep, got {arms * num_trials:.6g}: {arms} arms (a "
        f"parameterization at a shape) with {num_trials:.6g} trials each, {len(spec.seeds)} seeds counted; scan less, "
        "or write several sweeps"
    )
