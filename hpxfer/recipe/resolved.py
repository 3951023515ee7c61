"""Resolved: what a recipe gives at a target shape, role by role, and whether that was measured. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from hpxfer.errors import HpxferError, shown
from hpxfer.recipe.assign import BALANCED
from hpxfer.recipe.facts import is_mlp, own_options, own_roles
from hpxfer.registry import registry, rows_of
from hpxfer.scaling.coverage import ModelFacts, coverage_warnings
from hpxfer.scaling.evaluate import GlobalValues, Multipliers, resolve, resolve_globals
from hpxfer.scaling.monomial import ONE
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import Shape, check_attention

if TYPE_CHECKING:
    from hpxfer.recipe.file import FittedPart
    from hpxfer.recipe.recipe import Recipe

BRANCH = "before it is added to the residual stream, its bias included"


def forward_sites(gate: str, route_scale: float = 1.0) -> dict[str, str]:
    """Return key of a forward multiplier -> what is multiplied by it, for a model with this gate.

    `route_scale` is the fixed factor that the base model has on the weights of its routed experts.
    """
    row = registry("gate").get(gate, "model.gate")
    sites = {
        "embedding": "the rows of the embedding, before positions are added to them",
        "attn_logits": "the products q.k before the softmax: `scale` of F.scaled_dot_product_attention",
        "attn_out": f"the output of attention, {BRANCH}",
        "router": "the router's logits, or its input if the router has no bias",
        "expert_out": (
            f"the SUM of gate * expert output over the active experts, {BRANCH}; gate = {row.formula}; the number "
            "contains the base's 1/num_active, so that the model must not average as well"
        ),
        "shared_out": f"the SUM of the shared experts' outputs, {BRANCH}",
        "dense_out": f"the output of a dense FFN, {BRANCH}",
        "readout": "the logits",
    }
    if row.sums_to_one_over is None:
        sites["expert_out"] += "; the gates must not be normalized"
    else:
        sites["route_scale"] = f"the gates, which sum to one over {row.sums_to_one_over} experts before it"
    if route_scale != 1.0:
        contained = f"the number contains the base's route_scale {route_scale:g}"
        sites["route_scale"] = f"{sites.get('route_scale', 'the gates of the active experts')}; {contained}"
    return sites


def mlp_sites(expert_out: str) -> dict[str, str]:
    """Return the sites of a mixture of MLPs. `expert_out` is the text of that of a transformer."""
    return {
        "embedding": "what the input layer gives, before its activation",
        "router": "the router's logits, before any bias",
        "inverse_temperature": "the router's logits, after any bias and before the gate",
        "expert_out": expert_out.replace(BRANCH, "before a residual is added"),
        "readout": "the outputs",
    }


# Layers that some models lack: the start of their roles' names -> the dimension that a model with them has.
OPTIONAL = {"dense": "dense_width", "shared": "num_shared", "expert": "num_experts", "router": "num_experts"}


def refused(recipe: Recipe, target: Shape | None = None) -> dict[str, str]:
    """Return role -> why it has no numbers: at any target, or at this one if it is given."""
    rules, choice, family = recipe.rows, recipe.parameterization, recipe.file.family
    out = dict.fromkeys(ROLES.keys() - rules, f"{choice.name} has no rule for it; it has: {', '.join(rules)}")
    if (own := own_roles(recipe.file)) is not None:
        out |= dict.fromkeys(ROLES.keys() - own, f"models of the family {family} have no such tensor")
    for role in rules:
        kind = role.partition("_")[0]
        dim = OPTIONAL.get(kind)
        # The numbers of experts can follow from a base without them. Those of a dense FFN need one at the base.
        if kind == "dense" and not recipe.base_shape.dense_width:
            out.setdefault(role, "the recipe's base_shape has no dense_width, from which its numbers follow")
        if dim and target and not getattr(target, dim):
            out.setdefault(role, f"the target shape has no {dim}, from which its numbers follow; give it there")
    return out


def sites_of(recipe: Recipe) -> dict[str, str]:
    """Return key -> what is multiplied by it, for all forward multipliers that the recipe can have."""
    rows, without = recipe.rows, refused(recipe)
    # Most recipes multiply neither of them. Then there is no such multiplier.
    plain = {
        role
        for role in ("embedding", "router")
        if role in rows and rows[role].forward == ONE and recipe.hps.get(f"{role}.forward_mult") == 1.0
    }
    fixed, options = recipe.file.fixed, recipe.file.model.options or {}
    out = forward_sites(recipe.file.model.gate, fixed["route_scale"])
    if options.get("loss") == "velocity":
        out["readout"] = "the velocity that the readout gives"
    if options.get("shared_expert_gate"):
        out["router"] += ", and those of the gates of shared experts"
    if is_mlp(recipe.file):
        texts = mlp_sites(out["expert_out"])
        if fixed["inverse_temperature"] == 1.0:
            del texts["inverse_temperature"]
        out = {**texts, **{key: out[key] for key in ("route_scale",) if key in out}}
    return {key: text for key, text in out.items() if key not in without and key not in plain}


@dataclass(frozen=True)
class Resolved:
    """What a recipe gives at one target shape."""

    recipe: Recipe
    target: Shape

    @cached_property
    def refused(self) -> dict[str, str]:
        """Role -> why it has no numbers at this target."""
        return refused(self.recipe, self.target)

    @cached_property
    def sites(self) -> dict[str, str]:
        """Key -> what is multiplied by it, for all forward multipliers that the recipe can have."""
        return sites_of(self.recipe)

    @cached_property
    def values(self) -> dict[str, Multipliers]:
        """Role -> absolute numbers, for the roles that the target can have."""
        of = self.recipe
        values = resolve(of.parameterization, of.base_shape, self.target, of.column, of.hps, of.init)
        return {role: numbers for role, numbers in values.items() if role not in self.refused}

    @cached_property
    def globals(self) -> GlobalValues:
        of = self.recipe
        return resolve_globals(of.parameterization, of.base_shape, self.target, of.hps)

    @property
    def betas(self) -> tuple[float, float] | None:
        """The betas at the target, or None if the optimizer has none."""
        has_betas = "beta1" in rows_of("optimizer").get(self.recipe.optimizer).hps
        return (self.globals.beta1, self.globals.beta2) if has_betas else None

    @property
    def forward(self) -> dict[str, float]:
        """Key -> absolute forward multiplier, in the order of the sites."""
        model = self.recipe.file.model
        known = {key: self.values[key].forward for key in self.sites if key in self.values}
        if self.target.head_dim:  # a family without attention has no heads
            by_size = model.attention_scale == "1/d_head"
            known["attn_logits"] = 1.0 / self.target.head_dim if by_size else float(self.target.head_dim**-0.5)
        if self.target.num_experts:
            known |= self.recipe.file.fixed
            # Tables scale gates that sum to one.
            if registry("gate").get(model.gate, "model.gate").sums_to_one_over is not None:
                known["route_scale"] *= self.globals.route_scale
        # The tables' number is that of an average over the active ones.
        if own_options(self.recipe.file).get("mlp", {}).get("aggregation") == "1/M":
            known["expert_out"] *= self.target.kappa
        return {key: known[key] for key in self.sites if key in known}

    @property
    def router_bias_lr(self) -> float:
        if BALANCED not in self.values:
            name = self.recipe.parameterization.name
            raise HpxferError(f"{name} has no rule for {BALANCED}, or the target has no router")
        if self.recipe.file.model.bias_rule == "none":
            raise HpxferError(
                "the base was trained without a bias that balances the experts (model.balance: bias none), got a "
                "question for its rate; train the target without one too"
            )
        return self.values[BALANCED].lr

    @property
    def by_hand(self) -> tuple[str, ...]:
        """What the parameterization needs and no call of a recipe can do, one sentence each."""
        std = self.recipe.parameterization.structure().router_bias_std
        if not std or not self.target.num_experts:
            return ()
        return (
            f"before the gates, in each training step t, add b_t ~ N(0, {std:g}^2) to the router's logits, one number "
            "per expert; use the same draws at each width, and in evaluation the draw of the last step",
        )


# Whether a target follows from the base and lies within what was measured.

# The dimensions whose fitted range a recipe holds. Hidden sizes are ratios, because they follow the width.
MODEL_DIMS = (
    *("width", "depth", "num_experts", "num_active", "expert_ratio"),
    *("num_shared", "shared_ratio", "num_groups", "dense_ratio", "head_dim"),
)
SCHEDULE_DIMS = ("batch_tokens", "steps")
DIMS = (*MODEL_DIMS, *SCHEDULE_DIMS)
SAME = 1e-9


class OutOfRangeWarning(UserWarning):
    """The target lies outside the range that the recipe was fitted on, or its HP is not known to transfer there."""


def not_covered(recipe: Recipe, target: Shape) -> tuple[list[str], list[str]]:
    """Return what the table's source does not cover: of the changes from base to target shape, and of all else.

    Batch and duration are not part of a model's shape, and belong to the second list.
    """
    base, bare = (replace(shape, batch_tokens=0, steps=0) for shape in (recipe.base_shape, target))
    unchanged = _not_covered(recipe, bare, bare)
    changes = [warning for warning in _not_covered(recipe, base, bare) if warning not in unchanged]
    others = _not_covered(recipe, recipe.base_shape, target)
    return changes, [warning for warning in others if warning not in changes]


def _not_covered(recipe: Recipe, base: Shape, target: Shape, tied: bool | None = None) -> list[str]:
    """Return the warnings. Whether embeddings are tied is a fact of the user's model, and not of the base."""
    made = recipe.file.provenance.made == "by a sweep"
    facts = ModelFacts(gate=recipe.file.model.gate, heads_are_known=made, tied_embeddings=tied)
    return coverage_warnings(recipe.parameterization, base, target, facts, recipe.column)


def dim(shape: Shape, name: str) -> float:
    """Return one of DIMS. It is 0 where the shape has no such part or does not give it."""
    return shape.shared_width / (shape.width or 1) if name == "shared_ratio" else float(getattr(shape, name))


def check_covered(recipe: Recipe, target: Shape) -> None:
    """Raise HpxferError if neither the table's source nor the recipe's sweep covers the changes from base to target.

    A sweep may measure changes that its table's source does not cover. `out_of_range` warns about these.
    """
    choice, base = recipe.parameterization, recipe.base_shape
    if problem := check_attention(base, target):
        raise HpxferError(f"target_shape: {problem}")
    changes, _ = not_covered(recipe, target)
    if changes and not _was_measured(base, recipe.file.fitted, target):
        raise HpxferError(
            f"target_shape: must be a shape that {choice.label()} leads to from the recipe's base {base.label()}, "
            f"got {target.label()}: {'; '.join(changes)}; take a base that differs from the target in "
            f"{', '.join(choice.table.axes)} only, or a parameterization that covers the rest"
        )


def out_of_range(recipe: Recipe, target: Shape) -> list[str]:
    """Return in words how `target` lies outside the fitted range and outside what the parameterization covers."""
    base, fitted, out = recipe.base_shape, recipe.file.fitted, []
    moved = _moved(base, target)
    for name, value in moved.items() if fitted else ():
        low, high = _range(base, fitted, name)
        if value and not _inside(value, low, high):  # 0 means that there is no such layer
            where = f"from {low:g} to {high:g}" if low != high else f"at {low:g} only" if low else "without it"
            out.append(f"{name} {value:g}: fitted {where}")
    for axis_name, axis in fitted.axes.items() if fitted else ():
        if fitted and axis.verdict != "transfers" and moved.keys() & axis.dims.keys():
            out.append(f"{fitted.hp} along the axis {axis_name}: the verdict is {shown(axis.verdict)}")
    changes, others = not_covered(recipe, target)
    return [*out, *changes, *others]


def _moved(base: Shape, target: Shape) -> dict[str, float]:
    """Return the dimensions in which the target differs from the base, as far as both give them."""
    out = {}
    for name in DIMS:
        old, new = dim(base, name), dim(target, name)
        unknown = name in SCHEDULE_DIMS and not (old and new)
        if not unknown and abs(new - old) > SAME * old:
            out[name] = new
    return out


def _range(base: Shape, fitted: FittedPart | None, name: str) -> tuple[float, float]:
    ends = [end for axis in (fitted.axes.values() if fitted else ()) for end in axis.dims.get(name, ())]
    return min([dim(base, name), *ends]), max([dim(base, name), *ends])


def _was_measured(base: Shape, fitted: FittedPart | None, target: Shape) -> bool:
    """Return whether each dimension of the model that differs stays within the range of the recipe's sweep."""
    moved = _moved(base, target)
    return all(_inside(moved[name], *_range(base, fitted, name)) for name in MODEL_DIMS if name in moved)


def _inside(value: float, low: float, high: float) -> bool:
    return low * (1 - SAME) <= value <= high * (1 + SAME)


def check_embeddings(recipe: Recipe, tied: bool | None) -> None:
    """Raise HpxferError if the conventions do not suit a model whose embeddings are tied, or are not tied."""
    base = recipe.base_shape
    unknown = _not_covered(recipe, base, base)
    if wrong := [warning for warning in _not_covered(recipe, base, base, tied) if warning not in unknown]:
        raise HpxferError("\n".join(f"roles: {warning}" for warning in wrong))
