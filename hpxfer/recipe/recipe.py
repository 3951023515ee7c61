"""Recipe: tuned base HPs, how they scale, and what they give a torch model of the user's own at another shape."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

from hpxfer.errors import HpxferError
from hpxfer.recipe.apply import Assigned, assign, make_groups
from hpxfer.recipe.attach import Attached, ByHandWarning, Sites, attach
from hpxfer.recipe.describe import description
from hpxfer.recipe.dimensions import check_dims, check_gate, shape_of
from hpxfer.recipe.explain import ModelExplanation, explained
from hpxfer.recipe.file import RecipeFile, dump_recipe, read_recipe
from hpxfer.recipe.initialize import initialize
from hpxfer.recipe.known_sites import known_sites
from hpxfer.recipe.make import made_by_hand
from hpxfer.recipe.match import Roles
from hpxfer.recipe.numbers import Base, Numbers
from hpxfer.recipe.proposed import roles as proposed_roles
from hpxfer.recipe.reach import OutOfRangeWarning, beyond, check_ancestor, check_embeddings
from hpxfer.recipe.schedule import check_lr_ratios, scheduler
from hpxfer.scaling.evaluate import Multipliers, Parameterization
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.resolve import BaseInit
from hpxfer.scaling.shape import Shape, shape_from_mapping
from hpxfer.scaling.table import Conventions, Optimizer
from hpxfer.spec.yaml_file import parse_yaml, read_yaml

if TYPE_CHECKING:
    import torch

    Model = TypeVar("Model", bound=torch.nn.Module)

Target = Shape | Mapping[str, int]


@final
@dataclass(frozen=True)
class Recipe:
    """Tuned base HPs and how they scale. `file` is what its YAML says.

    A target shape is a Shape, or a mapping of its dimensions. `roles` are name patterns with their role, in order, e.g.
    `{"*.attn.q.weight": "attn_q", "*norm*": "norm"}`, or what `hpxfer.roles(model)` proposes: the first that matches a
    dotted parameter name wins, `*`, `?` and `[...]` as in file names, `*` over dots too; names are those of the model
    before torch.compile, DDP or FSDP wrapped it. A tensor that holds several matrices has their roles joined by `+`.

    All methods that are given a target shape warn (OutOfRangeWarning; `describe` says it in its text) if it lies beyond
    what was measured, and raise HpxferError if the parameterization has no way to it from the base. All that are given
    a model raise HpxferError, before they touch it, if the target is not its shape as far as its tensors, or the config
    of a known model, show it; and all that are given roles, if a parameter has no role or a pattern is of no use.
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

    @classmethod
    def from_hps(
        cls,
        parameterization: str,
        base_shape: Target,
        hps: HPs | Mapping[str, float],
        *,
        optimizer: str = "adamw",
        conventions: Conventions | None = None,
        init: BaseInit | None = None,
        **model: Any,
    ) -> Recipe:
        """Return a recipe from base HPs that are known without a sweep of hpxfer; its provenance says so.

        `hps` gives at least `lr`; others by name as in a sweep, e.g. `{"lr": 1e-3, "router.lr_mult": 0.25}`. `init`
        says how the base model starts, by fan-in unless told otherwise. `model` says what the base model is: `gate`
        (sigmoid | softmax | normalized_sigmoid | normalized_softmax), `attention_scale` (1/d_head | 1/sqrt(d_head))
        and any other field of the recipe file's `model`. Raises HpxferError with a line for each broken rule.
        """
        base = as_shape(base_shape, "base_shape")
        init = init or BaseInit()
        return cls(
            made_by_hand(
                parameterization, base, hps, optimizer=optimizer, conventions=conventions or {}, init=init, model=model
            )
        )

    def dump(self) -> str:
        """Return YAML that loads to an equal recipe."""
        return dump_recipe(self.file)

    @property
    def parameterization(self) -> Parameterization:
        return self._base.choice

    @property
    def optimizer(self) -> str:
        """`adamw` or `sgd`."""
        return self.file.optimizer

    @property
    def column(self) -> Optimizer:
        """The optimizer's column in a table."""
        return self._base.column

    @property
    def base_shape(self) -> Shape:
        return self._base.shape

    @property
    def hps(self) -> HPs:
        """The base HPs, the tuned one among them."""
        return self._base.hps

    @property
    def init(self) -> BaseInit:
        """How the base model starts."""
        return self._base.init

    def multipliers(self, target_shape: Target) -> dict[str, Multipliers]:
        """Return role -> absolute init std, peak LR, eps, weight decay and forward multiplier at the target."""
        return self._at(target_shape).values

    def param_groups(self, model: torch.nn.Module, roles: Roles, target_shape: Target) -> list[dict[str, Any]]:
        """Return groups for `torch.optim.AdamW(groups)`, or `torch.optim.SGD(groups)` if the recipe is for sgd.

        One group for each set of equal numbers: `params`, `lr` and `peak_lr` (the peak: a schedule multiplies all
        groups alike, see `scheduler`), `weight_decay` (decoupled: times the LR), `eps` and `betas` (adamw only), and
        for the reader `names` and `roles`. Parameters that need no gradient are left out, and those of role
        router_bias: the balancing rule moves these, at `router_bias_lr`. Under FSDP2, call it after fully_shard.
        """
        at = self._at(target_shape)
        return make_groups(self._assigned(model, roles, at).parameters, at.values, at.betas)

    def init_(
        self, model: Model, roles: Roles, target_shape: Target, *, generator: torch.Generator | None = None
    ) -> Model:
        """Initialize every parameter in place, frozen ones too, and return the model.

        Normal numbers with the std of the role, ones for gains, zeros for biases and wherever the std is an exact 0.
        Buffers that a pattern gives the role router_bias are set to zero; other buffers are not touched. A std does
        not depend on how a tensor is laid out: transposed, or many experts in one. Where the parameterization ties
        experts at the start, all experts of a layer get the same draw. A sharded model (FSDP2) gets what the whole one
        would get; a model without memory (meta device) is refused.
        """
        at = self._at(target_shape)
        found = self._assigned(model, roles, at)
        tied = self.parameterization.structure().tied_experts
        tensors = [*found.parameters, *found.buffers]
        initialize(tensors, at.values, generator, shape=at.target, tied_experts=tied)
        return model

    def explain(
        self, model: torch.nn.Module, roles: Roles | None = None, target_shape: Target | None = None
    ) -> ModelExplanation:
        """Return what the recipe gives every tensor of the model: role, size, init std, peak LR, eps, weight decay.

        `str()` of it is a table, a line a tensor, `to_dict()` plain data. Without `roles` those of `hpxfer.roles` are
        taken, without a shape that of `hpxfer.shape_of`.
        """
        at = self._at(shape_of(model) if target_shape is None else target_shape)
        found = self._assigned(model, proposed_roles(model) if roles is None else roles, at)
        heading = f"{self.parameterization.label()}, {self.optimizer}: {self.base_shape.label()} -> {at.target.label()}"
        return explained([*found.parameters, *found.buffers], at.values, heading)

    def forward_multipliers(self, target_shape: Target) -> dict[str, float]:
        """Return what the forward pass must multiply, as absolute numbers, in training and in evaluation.

            attn_logits              the products q.k, before the softmax
            attn_out                 the output of attention, bias included, before it is added to the residual stream
            router                   the router's logits, if the parameterization scales them
            expert_out               the SUM of gate * expert output over the active experts, likewise; the base's
                                     1/num_active is in it, so do not average besides
            shared_out, dense_out    the output of such a layer, likewise, if base and target have it
            readout                  the logits
            route_scale              gates that sum to one; not there for a plain sigmoid gate

        `forward_sites()` says the same as data, with the gate of this recipe's base model, and `attach` does it. No
        multiplier belongs on a weight for good: init std and LR would change with it.
        """
        return self._at(target_shape).forward

    def forward_sites(self) -> dict[str, str]:
        """Return key of `forward_multipliers` -> what is multiplied by it."""
        return self._base.where()

    def attach(
        self,
        model: torch.nn.Module,
        target_shape: Target,
        sites: Sites | None = None,
        *,
        by_hand: Collection[str] = (),
    ) -> Attached:
        """Multiply the outputs of modules by the forward multipliers, by hooks, until the handle's `remove()`.

        `sites` are pairs of a pattern of module names and a key of `forward_multipliers`; for gpt2, llama, mixtral,
        qwen3_moe and olmoe of transformers they are known. A module's output, or the first of a tuple, is multiplied;
        for `router` its input is, and for `attn_logits` its attribute `scaling` is set. Keys that the model multiplies
        itself stand in `by_hand`. In training and in evaluation alike; before and after torch.compile, which is made to
        start over; a deep copy keeps its multipliers. The handle is a context manager as well.

        Warns (ByHandWarning) of what hooks cannot do. Raises HpxferError, with nothing attached, on a pattern without a
        module, a multiplier without a site, a model that has multipliers already, or other gates than the recipe's.
        """
        at = self._at(target_shape)
        numbers = at.forward
        check_dims(model, at.target)
        check_gate(model, self.file.model.gate)
        pairs = known_sites(model, set(numbers) - set(by_hand)) if sites is None else sites
        handle = attach(model, numbers, pairs, by_hand)
        for one in at.by_hand:
            warnings.warn(f"no hook does this, the model must: {one}", ByHandWarning, stacklevel=2)
        return handle

    @staticmethod
    def scheduler(
        optimizer: torch.optim.Optimizer, factor: Callable[[int], float]
    ) -> torch.optim.lr_scheduler.LambdaLR:
        """Return a schedule that keeps the ratios between groups; see `hpxfer.recipe.schedule.scheduler`."""
        return scheduler(optimizer, factor)

    @staticmethod
    def check_lr_ratios(optimizer: torch.optim.Optimizer) -> float:
        """Return the factor on the peak LR of all groups; raise HpxferError if it is not one factor."""
        return check_lr_ratios(optimizer)

    def router_bias_lr(self, target_shape: Target) -> float:
        """Return the rate of the balancing rule; no schedule multiplies it.

        After every step, bias -= rate * (load - num_active/num_experts), where load is the share of the step's tokens
        that the expert was chosen for. The bias is added to the gates to choose experts, and nowhere else.
        """
        return self._at(target_shape).router_bias_lr

    def describe(self, target_shape: Target) -> str:
        """Return as text what the recipe gives at the target: what to multiply and where, and every role's numbers."""
        at = Numbers(self._base, as_shape(target_shape))
        check_ancestor(self._base.rule, self.file.fitted, at.target)
        where = self.forward_sites()
        return description(
            self.file,
            at.target,
            values=at.values,
            forward=[(key, value, where[key]) for key, value in at.forward.items()],
            betas=at.betas,
            by_hand=at.by_hand,
            cautions=beyond(self._base.rule, self.file.fitted, at.target),
        )

    @property
    def _base(self) -> Base:
        return Base(self.file)

    def _assigned(self, model: torch.nn.Module, roles: Roles, at: Numbers) -> Assigned:
        check_dims(model, at.target)
        found = assign(model, roles, at.refused, at.target, at.values)
        check_embeddings(self._base.rule, found.tied_embeddings)
        return found

    def _at(self, given: Target) -> Numbers:
        """Return the numbers; warn, at the line that called the method that called this, if beyond the range."""
        target = as_shape(given)
        check_ancestor(self._base.rule, self.file.fitted, target)
        if found := beyond(self._base.rule, self.file.fitted, target):
            text = f"the target {target.label(schedule=True)} is beyond what was measured: {'; '.join(found)}"
            warnings.warn(text, OutOfRangeWarning, stacklevel=3)
        return Numbers(self._base, target)


def as_shape(given: Target, where: str = "target_shape") -> Shape:
    """Return the shape; raise HpxferError naming `where` if no model can have it."""
    if not isinstance(given, Shape | Mapping):
        raise HpxferError(f"{where}: must be a Shape or a mapping of its dimensions, got {given!r}")
    return shape_from_mapping(given.dims() if isinstance(given, Shape) else given, where)
