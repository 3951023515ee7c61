"""Recipe: tuned base HPs, how they scale, and what they give a torch model of the user's own at another shape."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

from hpxfer.errors import HpxferError
from hpxfer.hps import HPs
from hpxfer.recipe import sites
from hpxfer.recipe.apply import BALANCED, Named, assign, initialize, make_groups
from hpxfer.recipe.describe import description
from hpxfer.recipe.file import RecipeFile, dump_recipe, read_recipe
from hpxfer.recipe.match import Roles
from hpxfer.recipe.reach import OutOfRangeWarning, beyond
from hpxfer.scaling.evaluate import Multipliers, Parameterization, parameterization
from hpxfer.scaling.resolve import BaseInit, resolve
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.table import Optimizer
from hpxfer.shape import Shape, shape_from_mapping
from hpxfer.spec.yaml_file import parse_yaml, read_yaml

if TYPE_CHECKING:
    import torch

    Model = TypeVar("Model", bound=torch.nn.Module)

Target = Shape | Mapping[str, int]
# Layers that not every model has, by the start of their roles' names, and the dimension that then must be given.
OPTIONAL = {"dense": "dense_width", "shared": "shared_width"}


@final
@dataclass(frozen=True)
class Recipe:
    """Tuned base HPs and how they scale. `file` is what its YAML says.

    A target shape is a Shape, or a mapping of its dimensions. `roles` are name patterns with their role, in order, e.g.
    `{"*.attn.q.weight": "attn_q", "*norm*": "norm"}`: the first that matches a dotted parameter name wins, `*`, `?`
    and `[...]` as in file names, `*` over dots too. All methods that are given a target shape warn
    (OutOfRangeWarning) if it lies beyond what was measured; all that are given a model raise HpxferError, before they
    touch it, if a parameter has no role or a pattern is of no use.
    """

    file: RecipeFile

    @classmethod
    def load(cls, path: str | Path) -> Recipe:
        """Return the recipe in a YAML file; raise HpxferError, a line for each broken rule, if it is none."""
        return cls(read_recipe(read_yaml(path)))

    @classmethod
    def parse(cls, text: str, name: str = "<recipe>") -> Recipe:
        """Return the recipe in `text`; `name` stands for the file in messages."""
        return cls(read_recipe(parse_yaml(text, name)))

    def dump(self) -> str:
        """Return YAML that loads to an equal recipe."""
        return dump_recipe(self.file)

    @property
    def parameterization(self) -> Parameterization:
        return parameterization(self.file.parameterization.name, self.file.parameterization.conventions)

    @property
    def optimizer(self) -> str:
        """`adamw` or `sgd`."""
        return self.file.optimizer

    @property
    def column(self) -> Optimizer:
        """The optimizer's column in a table."""
        return "sgd" if self.optimizer == "sgd" else "adam"

    @property
    def base_shape(self) -> Shape:
        return shape_from_mapping(self.file.base_shape, "base_shape")

    @property
    def hps(self) -> HPs:
        """The base HPs, the tuned one among them."""
        scalars = self.file.hps.model_dump(exclude={"multipliers"})
        hps = HPs(**scalars)
        for name, value in self.file.hps.multipliers.items():
            hps = hps.with_value(name, value)
        return hps

    @property
    def init(self) -> BaseInit:
        """How the base model starts."""
        return BaseInit(**self.file.init.model_dump())

    def multipliers(self, target_shape: Target) -> dict[str, Multipliers]:
        """Return role -> absolute init std, peak LR, eps, weight decay and forward multiplier at the target."""
        return self._values(self._target(target_shape))

    def param_groups(self, model: torch.nn.Module, roles: Roles, target_shape: Target) -> list[dict[str, Any]]:
        """Return groups for `torch.optim.AdamW(groups)`, or `torch.optim.SGD(groups)` if the recipe is for sgd.

        One group for each set of equal numbers: `params`, `lr` (the peak: a schedule multiplies all groups alike),
        `weight_decay` (decoupled: multiplied by the LR), `eps` and `betas` (adamw only), and for the reader `names` and
        `roles`. Parameters that need no gradient are left out, and those of role router_bias: the balancing rule
        moves these, at `router_bias_lr`.
        """
        target = self._target(target_shape)
        named, _ = self._assigned(model, roles, target)
        betas = None if self.optimizer == "sgd" else (self.hps.beta1, self.hps.beta2)
        return make_groups(named, self._values(target), betas)

    def init_(
        self, model: Model, roles: Roles, target_shape: Target, *, generator: torch.Generator | None = None
    ) -> Model:
        """Initialize every parameter in place, frozen ones too, and return the model.

        Normal numbers with the std of the role, ones for gains, zeros for biases and wherever the std is an exact 0.
        Buffers that a pattern gives the role router_bias are set to zero; other buffers are not touched. A std does
        not depend on how a tensor is laid out: transposed, or many experts in one.
        """
        target = self._target(target_shape)
        named, buffers = self._assigned(model, roles, target)
        initialize([*named, *buffers], self._values(target), generator)
        return model

    def forward_multipliers(self, target_shape: Target) -> dict[str, float]:
        """Return what the forward pass must multiply, as absolute numbers, in training and in evaluation.

            attn_logits              the products q.k, before the softmax
            attn_out                 the output of attention, bias included, before it is added to the residual stream
            expert_out               the SUM of gate * expert output over the active experts, likewise; the base's
                                     1/num_active is in it, so do not average and do not normalize the gates
            shared_out, dense_out    the output of such a layer, likewise, if base and target have it
            readout                  the logits

        `forward_sites()` says the same as data, with the gate of this recipe's base model. No multiplier belongs on a
        weight for good: init std and LR would change with it.
        """
        return self._forward(self._target(target_shape))

    def forward_sites(self) -> dict[str, str]:
        """Return key of `forward_multipliers` -> what is multiplied by it."""
        return {key: text for key, text in sites.sites(self.file.model.gate).items() if key not in self._refused()}

    def router_bias_lr(self, target_shape: Target) -> float:
        """Return the rate of the balancing rule; no schedule multiplies it.

        After every step, bias -= rate * (load - num_active/num_experts), where load is the share of the step's tokens
        that the expert was chosen for. The bias is added to the gates to choose experts, and nowhere else.
        """
        values = self._values(self._target(target_shape))
        if BALANCED not in values:
            raise HpxferError(f"{self.parameterization.name} has no rule for {BALANCED}; its models have no router")
        return values[BALANCED].lr

    def describe(self, target_shape: Target) -> str:
        """Return as text what the recipe gives at the target: what to multiply and where, and every role's numbers."""
        target = as_shape(target_shape)
        where = self.forward_sites()
        forward = [(key, value, where[key]) for key, value in self._forward(target).items()]
        return description(
            self.file, target, values=self._values(target), forward=forward, cautions=self._beyond(target)
        )

    def _values(self, target: Shape) -> dict[str, Multipliers]:
        refused = self._refused(target)
        values = resolve(self.parameterization, self.base_shape, target, self.column, self.hps, self.init)
        return {role: one for role, one in values.items() if role not in refused}

    def _forward(self, target: Shape) -> dict[str, float]:
        values = self._values(target)
        forward = {key: values[key].forward for key in self.forward_sites() if key in values}
        return {"attn_logits": sites.attention_scale(self.file.model.attention_scale, target.head_dim), **forward}

    def _refused(self, target: Shape | None = None) -> dict[str, str]:
        """Return role -> why the recipe has no numbers for it."""
        choice, base = self.parameterization, self.base_shape
        rules = [row.role for row in choice.rows(self.column)]
        why = f"{choice.name} has no rule for it; it has: {', '.join(rules)}"
        out = {role: why for role in ROLES if role not in rules}
        for role in rules:
            dim = OPTIONAL.get(role.partition("_")[0])
            for which, shape in (("recipe's base_shape", base), ("target shape", target)):
                if dim and shape and not getattr(shape, dim):
                    out.setdefault(role, f"the {which} has no {dim}, which its numbers follow from; give it there")
        return out

    def _assigned(
        self, model: torch.nn.Module, roles: Roles, target: Shape
    ) -> tuple[tuple[Named, ...], tuple[Named, ...]]:
        return assign(model, roles, self._refused(target), target.width)

    def _beyond(self, target: Shape) -> list[str]:
        return beyond(self.file.fitted, self.parameterization, self.base_shape, target)

    def _target(self, given: Target) -> Shape:
        """Return the target; warn, at the line that called the method that called this, if it is beyond the range."""
        target = as_shape(given)
        if found := self._beyond(target):
            text = f"the target {target.label()} is beyond what was measured: {'; '.join(found)}"
            warnings.warn(text, OutOfRangeWarning, stacklevel=3)
        return target


def as_shape(given: Target) -> Shape:
    """Return the target shape; raise HpxferError if no model can have it."""
    return shape_from_mapping(given.dims() if isinstance(given, Shape) else given, "target_shape")
