"""Resolved: the absolute numbers that a recipe gives at a target shape, role by role, and as text. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.recipe.assign import BALANCED
from hpxfer.recipe.facts import OWN, is_mlp, own_roles
from hpxfer.recipe.file import FIXED_FACTORS, RecipeFile
from hpxfer.recipe.fitted_range import Rule
from hpxfer.registry import registry, rows_of
from hpxfer.scaling.coverage import ModelFacts
from hpxfer.scaling.evaluate import (
    BaseInit,
    GlobalValues,
    Multipliers,
    Parameterization,
    parameterization,
    resolve,
    resolve_globals,
)
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.monomial import ONE
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import Shape, shape_from_mapping
from hpxfer.scaling.table import Column, Row

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


def attention_scale(rule: str, head_dim: int) -> float:
    """Return the factor on q.k under the base model's rule."""
    return 1.0 / head_dim if rule == "1/d_head" else float(head_dim**-0.5)


# Layers that some models lack: the start of their roles' names -> the dimension that a model with them has.
OPTIONAL = {"dense": "dense_width", "shared": "num_shared", "expert": "num_experts", "router": "num_experts"}


@dataclass(frozen=True)
class Base:
    """The base of a recipe: its file as the objects that the evaluator needs."""

    file: RecipeFile

    @cached_property
    def choice(self) -> Parameterization:
        return parameterization(self.file.parameterization.name, self.file.parameterization.conventions)

    @property
    def column(self) -> Column:
        column: Column = self.optimizer.column
        return column

    @property
    def optimizer(self) -> Any:
        """The row of the optimizer."""
        return rows_of("optimizer").get(self.file.optimizer, "optimizer")

    @cached_property
    def rows(self) -> dict[str, Row]:
        """Role -> its row of the table."""
        return {row.role: row for row in self.choice.rows(self.column)}

    @cached_property
    def shape(self) -> Shape:
        return shape_from_mapping(self.file.base, "base_shape")

    @cached_property
    def hps(self) -> HPs:
        hps = HPs(**self.file.hps.model_dump(exclude={"multipliers"}))
        for name, value in self.file.hps.multipliers.items():
            hps = hps.with_value(name, value)
        return hps

    @property
    def init(self) -> BaseInit:
        return BaseInit(**self.file.init.model_dump())

    @property
    def rule(self) -> Rule:
        """How the recipe scales. Whether embeddings are tied is a fact of the user's model, and not of the base."""
        made = self.file.provenance.made == "by a sweep"
        facts = ModelFacts(gate=self.file.model.gate, heads_are_known=made)
        return Rule(choice=self.choice, optimizer=self.column, base=self.shape, facts=facts)

    def refused(self, target: Shape | None = None) -> dict[str, str]:
        """Return role -> why it has no numbers: at any target, or at this one if it is given."""
        rules = self.rows
        why = f"{self.choice.name} has no rule for it; it has: {', '.join(rules)}"
        out = {role: why for role in ROLES if role not in rules}
        if (own := own_roles(self.file)) is not None:
            out |= {
                role: f"models of the family {self.file.family} have no such tensor"
                for role in ROLES
                if role not in own
            }
        for role in rules:
            kind = role.partition("_")[0]
            dim = OPTIONAL.get(kind)
            # The numbers of experts can follow from a base without them. Those of a dense FFN need one at the base.
            if kind == "dense" and not self.shape.dense_width:
                out.setdefault(role, "the recipe's base_shape has no dense_width, from which its numbers follow")
            if dim and target and not getattr(target, dim):
                out.setdefault(role, f"the target shape has no {dim}, from which its numbers follow; give it there")
        return out

    @property
    def fixed(self) -> dict[str, float]:
        """Key -> the factor that the base model has at every shape, whatever the table says. A model may have none."""
        options = self.file.model.options or {}
        return {name.removeprefix(OWN): float(options.get(name) or 1.0) for name in FIXED_FACTORS}

    @property
    def gates_sum(self) -> bool:
        """Whether the gates sum to one, so that tables scale them."""
        return registry("gate").get(self.file.model.gate, "model.gate").sums_to_one_over is not None

    def sites(self) -> dict[str, str]:
        """Return key -> what is multiplied by it, for all forward multipliers that the recipe can have."""
        rows, refused = self.rows, self.refused()
        # Most recipes multiply neither of them. Then there is no such multiplier.
        plain = {
            role
            for role in ("embedding", "router")
            if role in rows and rows[role].forward == ONE and self.hps.get(f"{role}.forward_mult") == 1.0
        }
        fixed, options = self.fixed, self.file.model.options or {}
        out = forward_sites(self.file.model.gate, fixed["route_scale"])
        if options.get("shared_expert_gate"):
            out["router"] += ", and those of the gates of shared experts"
        if is_mlp(self.file):
            texts = mlp_sites(out["expert_out"])
            if fixed["inverse_temperature"] == 1.0:
                del texts["inverse_temperature"]
            out = {**texts, **{key: out[key] for key in ("route_scale",) if key in out}}
        return {key: text for key, text in out.items() if key not in refused and key not in plain}


@dataclass(frozen=True)
class Resolved:
    """What a recipe gives at one target shape."""

    base: Base
    target: Shape

    @cached_property
    def refused(self) -> dict[str, str]:
        """Role -> why it has no numbers at this target."""
        return self.base.refused(self.target)

    @cached_property
    def values(self) -> dict[str, Multipliers]:
        """Role -> absolute numbers, for the roles that the target can have."""
        base = self.base
        values = resolve(base.choice, base.shape, self.target, base.column, base.hps, base.init)
        return {role: numbers for role, numbers in values.items() if role not in self.refused}

    @cached_property
    def globals(self) -> GlobalValues:
        return resolve_globals(self.base.choice, self.base.shape, self.target, self.base.hps)

    @property
    def betas(self) -> tuple[float, float] | None:
        """The betas at the target, or None if the optimizer has none."""
        has_betas = "beta1" in self.base.optimizer.hps
        return (self.globals.beta1, self.globals.beta2) if has_betas else None

    @property
    def forward(self) -> dict[str, float]:
        """Key -> absolute forward multiplier, in the order of the sites."""
        sites = self.base.sites()
        known = {key: self.values[key].forward for key in sites if key in self.values}
        if self.target.head_dim:  # a family without attention has no heads
            known["attn_logits"] = attention_scale(self.base.file.model.attention_scale, self.target.head_dim)
        fixed, options = self.base.fixed, self.base.file.model.options or {}
        if self.target.num_experts:
            fixed["route_scale"] *= self.globals.route_scale if self.base.gates_sum else 1.0
            known |= fixed
        if options.get(f"{OWN}aggregation") == "1/M":  # the tables' number is that of an average over the active ones
            known["expert_out"] *= self.target.kappa
        return {key: known[key] for key in sites if key in known}

    @property
    def router_bias_lr(self) -> float:
        if BALANCED not in self.values:
            raise HpxferError(f"{self.base.choice.name} has no rule for {BALANCED}, or the target has no router")
        if self.base.file.model.bias_rule == "none":
            raise HpxferError(
                "the base was trained without a bias that balances the experts (model.balance: bias none), got a "
                "question for its rate; train the target without one too"
            )
        return self.values[BALANCED].lr

    @property
    def by_hand(self) -> tuple[str, ...]:
        """What the parameterization needs and no call of a recipe can do, one sentence each."""
        std = self.base.choice.structure().router_bias_std
        if not std or not self.target.num_experts:
            return ()
        return (
            f"before the gates, in each training step t, add b_t ~ N(0, {std:g}^2) to the router's logits, one number "
            "per expert; use the same draws at each width, and in evaluation the draw of the last step",
        )
