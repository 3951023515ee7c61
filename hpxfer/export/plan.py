"""Plan: all that an export of one recipe at one shape says, and what a target lacks, before a target spells it."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hpxfer.errors import HpxferError, cut
from hpxfer.export.names import Named, stand_in
from hpxfer.recipe import (
    AT,
    EXPERTS,
    OtherModelWarning,
    OutOfRangeWarning,
    Proposal,
    Recipe,
    RecipeFile,
    Resolved,
    Roles,
    check_covered,
    match_roles,
    out_of_range,
    pairs_of_roles,
    roles_of_names,
    spelled,
)
from hpxfer.scaling.numbers import TensorNumbers
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import Shape
from hpxfer.spec import Planned, Run, whole_steps

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Phases:
    """Linear warm-up, then the decay. `decay` is the name of a schedule of hpxfer, e.g. `cosine`."""

    decay: str
    steps: int
    batch_tokens: int
    warmup_steps: int
    decay_steps: int  # the last steps, in which a `wsd` decays; 0 for others
    final_fraction: float  # of the peak LR, at the last step


def phases(recipe: RecipeFile, target: Shape) -> Phases | None:
    """Return the schedule at the target, or None if the recipe was made by hand and has none.

    A target without batch_tokens and steps is trained as the base was.
    """
    if (training := recipe.training) is None:
        return None
    run: Run = target if target.steps else training
    planned = Planned(schedule=training.schedule, steps=training.steps)
    decay_steps = whole_steps(planned.exact("decay_length", run))
    warmup_steps = min(whole_steps(planned.exact("warmup", run)), run.steps - min(decay_steps, 1))
    return Phases(
        decay=training.schedule.decay,
        steps=run.steps,
        batch_tokens=run.batch_tokens,
        warmup_steps=warmup_steps,
        decay_steps=min(decay_steps, run.steps - warmup_steps),
        final_fraction=training.schedule.final_fraction,
    )


def gated(recipe: Recipe) -> bool:
    """Return whether the FFNs have a gate matrix. One that is not known is taken to be a SwiGLU."""
    return recipe.file.model.ffn in ("swiglu", None)


def gated_roles(kind: str, *, has_gate: bool) -> str:
    """Return the role of a tensor that holds the input matrices of an FFN, e.g. `dense_in+dense_gate`."""
    return f"{kind}_in+{kind}_gate" if has_gate else f"{kind}_in"


def model_names(
    shape: Shape,
    layer: str,
    *,
    start: Sequence[str],
    common: Sequence[str],
    dense: Sequence[str],
    experts: Sequence[str] = (),
    shared: Sequence[str] = (),
    end: Sequence[str],
) -> list[Named]:
    """Return the parameters of a trainer's own model, whose roles follow from their names and sizes from their roles.

    `layer` is what stands before the names of a layer, e.g. `layers.{}.`. Each layer has the common names and those of
    its FFNs. Of a shape with dense FFNs and experts, the first layer has a dense FFN.
    """
    out = [*start]
    for at in range(shape.depth):
        is_dense = not shape.num_experts or (bool(shape.dense_width) and at == 0)
        ffns = dense if is_dense else [*experts, *(shared if shape.num_shared else ())]
        out += [layer.format(at) + name for name in (*common, *ffns)]
    return [Named(name=name) for name in (*out, *end)]


def numbered_roles(ffns: Iterable[tuple[str, str]], ends: Sequence[str]) -> Pairs:
    """Return the roles of FFNs whose w1 is the gate, w3 the other input and w2 the output.

    `ffns` are pairs of a pattern and a kind of FFN, and `ends` what may follow the number.
    """
    parts = (("w1", "gate"), ("w2", "out"), ("w3", "in"))
    return tuple(
        (f"{where}.{name}{end}", f"{kind}_{part}") for where, kind in ffns for name, part in parts for end in ends
    )


MOST_NAMES = 600  # characters of the names in one message
SAME = 1e-9


@dataclass(frozen=True, kw_only=True)
class Group:
    """Parameters with equal LR, eps, weight decay and scales. What Muon moves has no eps, and alone has scales."""

    names: tuple[str, ...]
    roles: tuple[str, ...]
    lr: float
    eps: float | None
    weight_decay: float
    scale: tuple[float, ...] = ()

    @property
    def numbers(self) -> dict[str, Any]:
        """The numbers as torch.optim calls them."""
        if self.scale:
            return {"lr": self.lr, "scale": self.scale, "weight_decay": self.weight_decay}
        return {"lr": self.lr, "eps": self.eps, "weight_decay": self.weight_decay}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a recipe gives a model of this shape, parameter by parameter.

    `rows` has one row per parameter, and none if the model's names are not known. `sizes_known` says whether the sizes
    in the rows are the user's.
    """

    recipe: Recipe
    shape: Shape
    rows: tuple[TensorNumbers, ...]
    sizes_known: bool
    cautions: tuple[str, ...]

    @cached_property
    def resolved(self) -> Resolved:
        return Resolved(self.recipe, self.shape)

    @property
    def forward(self) -> dict[str, float]:
        """Key -> absolute forward multiplier, as `Recipe.forward_multipliers` gives them."""
        return self.resolved.forward

    @property
    def common_attention(self) -> tuple[str, ...]:
        """`attn_logits` if its factor is 1/sqrt(head_dim), which every trainer multiplies by, else nothing."""
        scale = self.forward.get("attn_logits")
        same = scale is not None and abs(scale * self.shape.head_dim**0.5 - 1) < SAME
        return ("attn_logits",) if same else ()

    @property
    def betas(self) -> tuple[float, float] | None:
        return self.resolved.betas

    @property
    def phases(self) -> Phases | None:
        return phases(self.recipe.file, self.shape)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the recipe as hpxfer writes it."""
        return hashlib.sha256(self.recipe.dump().encode()).hexdigest()

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The groups of what the optimizer trains, in the order of the model's parameters."""
        found: dict[tuple[float, float | None, float, tuple[float, ...]], list[TensorNumbers]] = {}
        for row in self.rows:
            if row.lr is not None and row.weight_decay is not None:
                found.setdefault((row.lr, row.eps, row.weight_decay, row.scale), []).append(row)
        return tuple(
            Group(
                names=tuple(row.name for row in rows),
                roles=tuple(dict.fromkeys(role for row in rows for role in row.role.split("+"))),
                lr=lr,
                eps=eps,
                weight_decay=weight_decay,
                scale=scale,
            )
            for (lr, eps, weight_decay, scale), rows in found.items()
        )


def make_plan(recipe: Recipe, shape: Shape, parameters: Sequence[Named] | None, known: Pairs, where: str) -> Plan:
    """Return the plan. `known` are a target's own pairs of name pattern and role, and `where` names the parameters.

    A role that a name carries wins over the patterns among the names, these win over the pairs, and the pairs over what
    `hpxfer.roles` knows. A list of names shows
    too little of the model to say in what it differs from the base's. Raises HpxferError if a parameter has no role, if
    a size is not that of its role at this shape, or if the table does not cover the target.
    """
    extra = [(one.name, one.role or "") for one in parameters or () if one.is_pattern]
    parameters = None if parameters is None else [one for one in parameters if not one.is_pattern]
    check_covered(recipe, shape)
    beyond = out_of_range(recipe, shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutOfRangeWarning)
        warnings.simplefilter("ignore", OtherModelWarning)
        role_of = {} if parameters is None else _role_of(parameters, extra, known, where)
        rows = () if parameters is None else _rows(recipe, shape, parameters, role_of, known)
    label = shape.label(schedule=bool(shape.steps))
    cautions = [f"the target {label} is beyond what was measured: {'; '.join(beyond)}"] if beyond else []
    guesses = {(one.role, one.guess): name for name, one in reversed(role_of.items()) if one.guess}
    cautions += [f"{name} is taken for {role} {why}" for (role, why), name in reversed(guesses.items())]
    return Plan(
        recipe=recipe,
        shape=shape,
        rows=rows,
        sizes_known=parameters is not None and all(one.size is not None for one in parameters),
        cautions=tuple(cautions),
    )


def _rows(
    recipe: Recipe, shape: Shape, parameters: Sequence[Named], role_of: Mapping[str, Proposal], known: Pairs
) -> tuple[TensorNumbers, ...]:
    names = {name: one.role for name, one in role_of.items()}
    # A pattern may match a tensor that cannot have its role. So an unknown size is that of the role that the name says.
    by_name = roles_of_names({one.name: one.size for one in parameters}, (), known, "names")
    without = {one.name for one in parameters if one.role is None and AT not in names[one.name]}
    sized = names | {name: by_name[name].role for name in without & by_name.keys()}
    pairs = pairs_of_roles(names)
    # Checked before the model is made, whose sizes follow from the roles.
    match_roles([one.name for one in parameters], [], pairs, Resolved(recipe, shape).refused)
    return recipe.explain(stand_in(parameters, names, sized, shape), pairs, shape).rows


def _role_of(parameters: Sequence[Named], extra: Roles, known: Pairs, where: str) -> dict[str, Proposal]:
    """Return name -> role. Raise HpxferError, which lists the names, if some have none."""
    given = {one.name: Proposal(role=one.role) for one in parameters if one.role is not None}
    by_name = {**roles_of_names({one.name: one.size for one in parameters}, extra, known, where), **given}
    if without := [one.name for one in parameters if one.name not in by_name]:
        raise HpxferError(
            f"{where}: every parameter must have a role, got none for {cut(', '.join(spelled(without)), MOST_NAMES)}; "
            "write the role behind the name in the file of --names, e.g. 'layers.0.wq.weight 64x64 attn_q', or behind "
            "a pattern, e.g. '*.wq.weight attn_q'"
        )
    return {one.name: by_name[one.name] for one in parameters}


@dataclass(frozen=True, kw_only=True)
class Lack:
    """One thing that a target cannot hold."""

    what: str  # e.g. `forward multiplier readout 0.25`
    call: str  # what does it, as code or in words


def forward_lacks(
    plan: Plan, sites: Mapping[str, str], held: Collection[str] = (), by_model: Mapping[str, str] | None = None
) -> list[Lack]:
    """Return the forward multipliers other than 1 that the target does not hold.

    `sites` maps a key to the pattern of the module that a hook multiplies, `held` are the keys that the target's own
    settings hold, and `by_model` maps a key that no hook can multiply there to what the user does.
    """
    numbers = {key: number for key, number in plan.forward.items() if key not in held}
    ones = [key for key, number in numbers.items() if math.isclose(number, 1.0, rel_tol=SAME)]
    experts = math.prod(numbers.get(key, 1.0) for key in EXPERTS)
    if math.isclose(experts, 1.0, rel_tol=SAME):
        ones += [key for key in EXPERTS if key in numbers and key not in ones]
    open_keys = [key for key in numbers if key not in ones]
    by_model = {key: call for key, call in (by_model or {}).items() if key in open_keys}
    hooked = [key for key in open_keys if key not in by_model]
    pairs = ", ".join(f"({sites[key]!r}, {key!r})" for key in hooked if key in sites)
    by_hand = [key for key in plan.forward if key not in hooked or key not in sites]
    by_call: dict[str, list[str]] = {}
    for key in open_keys:
        if key in by_model:
            call = by_model[key]
        elif key in sites:
            call = f"recipe.attach(model, shape, sites=[{pairs}], by_hand={by_hand!r})"
        else:
            call = f"multiply in the model: {plan.resolved.sites[key]}"
        by_call.setdefault(call, []).append(f"{key} {numbers[key]:.6g}")
    return [
        Lack(what=f"forward {'multiplier' if len(keys) == 1 else 'multipliers'} {', '.join(keys)}", call=call)
        for call, keys in by_call.items()
    ]


def init_lacks(plan: Plan, native: Mapping[str, float | None]) -> list[Lack]:
    """Return a lack if the target's own initialization gives a parameter another std than the recipe.

    `native` maps each name to the std that the target gives it, or None if it has no setting for it. Gains that start
    at one and biases that start at zero do so everywhere.
    """
    wrong = [
        row
        for row in plan.rows
        if ROLES[row.role.split("+")[0]] not in ("ones", "zeros")
        and not _same_std(native.get(row.name), 0.0 if isinstance(row.init, str) else row.init)
    ]
    lacks = []
    if wrong:
        roles = list(dict.fromkeys(role for row in wrong for role in row.role.split("+")))
        lacks.append(
            Lack(
                what=f"the init std of {', '.join(roles)}",
                call="recipe.init_(model, hpxfer.export.read_roles('hpxfer.json'), shape), on the whole model",
            )
        )
    if plan.recipe.parameterization.structure().tied_experts:
        lacks.append(
            Lack(
                what="the same draw for all experts of a layer at the start",
                call="recipe.init_(model, hpxfer.export.read_roles('hpxfer.json'), shape)",
            )
        )
    return lacks


def other_lacks(plan: Plan) -> list[Lack]:
    """Return what neither a target nor hpxfer can do: rules of a table that the model itself must follow."""
    return [Lack(what="a rule of the table", call=sentence) for sentence in plan.resolved.by_hand]


def _same_std(native: float | None, wanted: float) -> bool:
    return native is not None and math.isclose(native, wanted, rel_tol=1e-6, abs_tol=1e-15)
