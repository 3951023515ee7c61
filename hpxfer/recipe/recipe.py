"""Recipe: tuned base HPs, how they scale, and what they give a user's own torch model at another shape."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

import hpxfer
from hpxfer.errors import HpxferError, shown
from hpxfer.recipe import schedule
from hpxfer.recipe.assign import Assigned, assign, make_groups
from hpxfer.recipe.counted import check_counts, seen_in
from hpxfer.recipe.explain import ModelExplanation, description, of_muon, row_of
from hpxfer.recipe.facts import OtherModelWarning, TunedOn, compared
from hpxfer.recipe.file import (
    OF_A_SWEEP,
    RECIPE_VERSION,
    VERSION_KEY,
    ModelPart,
    RecipeFile,
    dump_recipe,
    read_recipe,
)
from hpxfer.recipe.forward_hooks import Attached, ByHandWarning, Sites, UnattachedWarning, attach, unattached
from hpxfer.recipe.initialize import initialize
from hpxfer.recipe.known_models import check_dims, check_gate, known_model, known_sites, shape_of
from hpxfer.recipe.match import Roles
from hpxfer.recipe.modules import warn_once
from hpxfer.recipe.own_constants import differences, left_to_multiply
from hpxfer.recipe.propose_roles import roles as proposed_roles
from hpxfer.recipe.resolved import (
    OutOfRangeWarning,
    Resolved,
    check_covered,
    check_embeddings,
    out_of_range,
    sites_of,
)
from hpxfer.registry import rows_of
from hpxfer.scaling.evaluate import BaseInit, Multipliers, Parameterization
from hpxfer.scaling.evaluate import parameterization as parameterization_of
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.muon import MOMENTUM, kind_of, muon_of
from hpxfer.scaling.muon import NAME as MUON
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import Shape, shape_from_mapping
from hpxfer.scaling.table import Column, Conventions, Row
from hpxfer.spec import YamlFile, parse_yaml, read_yaml

if TYPE_CHECKING:
    import torch

    Model = TypeVar("Model", bound=torch.nn.Module)

Target = Shape | Mapping[str, int]


@final
@dataclass(frozen=True)
class Recipe:
    """Tuned base HPs and how they scale. `file` holds the contents of the YAML file.

    A target shape is a Shape, or a mapping of its dimensions. `roles` are ordered pairs of name pattern and role, e.g.
    `{"*.attn.q.weight": "attn_q", "*norm*": "norm"}`, or a proposal of `hpxfer.roles(model)`. The first pattern that
    matches a dotted parameter name wins. `*`, `?` and `[...]` match as in file names, and `*` matches dots too. Names
    are those of the model before torch.compile, DDP or FSDP wrapped it. A tensor that holds several matrices has their
    roles joined by `+`. A matrix whose fan-in is not the width carries the fan-in of the base, e.g. `attn_q@128`.

    Methods with a target shape warn (OutOfRangeWarning; `describe` puts it into its text) if the target lies beyond
    what was measured, and raise HpxferError if the parameterization does not cover the changes from the base. Methods
    with a model raise HpxferError, before they change it, if its tensors, or the config of a known model, show another
    shape than the target, or gates of another size than the recipe's. Methods with roles raise HpxferError if a
    parameter has no role or a pattern is not used.

    >>> recipe = hpxfer.Recipe.load("results/published/quickstart/recipe.yaml")
    >>> recipe.parameterization.name, recipe.hps.lr
    ('completep-moe', 0.015625)
    >>> target = {"width": 128, "depth": 2, "num_experts": 4, "num_active": 1, "expert_width": 128, "head_dim": 32}
    >>> recipe.multipliers(target)["expert_in"].lr  # a quarter, as the width is four times that of the base
    0.00390625
    """

    file: RecipeFile

    @classmethod
    def load(cls, path: str | Path) -> Recipe:
        """Return the recipe in a YAML file. Raise HpxferError, with one line per broken rule, if it holds none."""
        return cls(read_recipe(read_yaml(path)))

    @classmethod
    def parse(cls, text: str, name: str = "<recipe>") -> Recipe:
        """Return the recipe in `text`. Messages name it by `name`."""
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
        """Return a recipe from base HPs that are known without a sweep of hpxfer. Its provenance says so.

        `hps` gives at least `lr`, and others by their names in a sweep, e.g. `{"lr": 1e-3, "router.lr_mult": 0.25}`.
        With the optimizer `muon`, or with its options as in `muon[scale=original]`, it gives `adamw_lr` too.
        `init` is the initialization of the base model, by default by fan-in. `model` gives fields of the recipe file's
        `model`: the `gate` (sigmoid, softmax, normalized_sigmoid, normalized_softmax, or one of a plug-in), the
        `attention_scale` (1/d_head or 1/sqrt(d_head)) and others, such as `norm`, `positions`, `attention_ratio` and
        `embedding_scale`. Raises HpxferError with one line per broken rule.
        """
        where, base = "Recipe.from_hps", as_shape(base_shape, "base_shape")
        choice = parameterization_of(parameterization, conventions)
        if not isinstance(init, BaseInit | None):
            raise HpxferError(f"{where}: init: must be a hpxfer.scaling.evaluate.BaseInit, got {shown(init)}")
        if not isinstance(hps, HPs | Mapping):
            raise HpxferError(f"{where}: hps: must be HPs or a mapping of name to number, got {shown(hps)}")
        data = {
            VERSION_KEY: RECIPE_VERSION,
            "family": "gpt",
            "parameterization": {"name": choice.name, "conventions": dict(choice.conventions)},
            "optimizer": optimizer,
            "base_shape": base.dims(),
            "hps": asdict(hps) | {"multipliers": dict(hps.multipliers)}
            if isinstance(hps, HPs)
            else _sections(hps, optimizer),
            "init": asdict(init or BaseInit()),
            # Each recipe must know these two of its base model. The rest may stay unknown.
            "model": dict.fromkeys(ModelPart.model_fields) | {"gate": "sigmoid", "attention_scale": "1/d_head"} | model,
            "training": None,
            "fitted": None,
            "provenance": {
                "made": "by hand",
                **dict.fromkeys(OF_A_SWEEP),
                "measured": None,
                "hpxfer": hpxfer.__version__,
                "versions": {},
            },
        }
        return cls(read_recipe(YamlFile(name=where, data=data, lines={})))

    def dump(self) -> str:
        """Return YAML that loads to an equal recipe."""
        return dump_recipe(self.file)

    @cached_property
    def parameterization(self) -> Parameterization:
        """The table by which the recipe scales, with its conventions."""
        return parameterization_of(self.file.parameterization.name, self.file.parameterization.conventions)

    @property
    def optimizer(self) -> str:
        """The name of the optimizer, e.g. `adamw`."""
        return self.file.optimizer

    @property
    def column(self) -> Column:
        """The optimizer's column in a table."""
        column: Column = rows_of("optimizer").get(self.optimizer, "optimizer").column
        return column

    @cached_property
    def rows(self) -> dict[str, Row]:
        """Role -> its row of the table."""
        return {row.role: row for row in self.parameterization.rows(self.column)}

    @cached_property
    def base_shape(self) -> Shape:
        """The shape at which the HPs were tuned."""
        return shape_from_mapping(self.file.base, "base_shape")

    @cached_property
    def hps(self) -> HPs:
        """The base HPs, with the tuned HP."""
        hps = HPs(**self.file.hps.model_dump(exclude={"multipliers"}))
        for name, value in self.file.hps.multipliers.items():
            hps = hps.with_value(name, value)
        return hps

    @property
    def init(self) -> BaseInit:
        """The initialization of the base model."""
        return self.file.init.base_init()

    def multipliers(self, target_shape: Target) -> dict[str, Multipliers]:
        """Return role -> absolute init std, peak LR, eps, weight decay and forward multiplier at the target."""
        return self._at(target_shape).values

    def param_groups(self, model: torch.nn.Module, roles: Roles, target_shape: Target) -> list[dict[str, Any]]:
        """Return groups for `torch.optim.AdamW(groups)`, or for `torch.optim.SGD` or `hpxfer.Muon`, as the recipe says.

        There is one group per set of equal numbers. It holds `params`, `lr` and `peak_lr` (both the peak: a schedule
        multiplies all groups alike, see `scheduler`), `weight_decay` (decoupled: times the LR), `eps` and `betas`
        (adamw only), and for the reader `names` and `roles`. Parameters that need no gradient are left out. A parameter
        of role router_bias must need none: the balancing rule updates it at `router_bias_lr`. Under FSDP2, call this
        after fully_shard.

        A group that Muon moves has no eps, and None as betas, on which AdamW stops. It has `momentum`, the `scale` s of
        each matrix in one of its tensors and, if these are several, the slices (start, stop, step) that they are in
        `parts`, along `axis`. Its LR is that before the scale. `hpxfer.torch_muon(groups)` makes groups for
        `torch.optim.Muon` of them.
        """
        at = self._at(target_shape)
        found = self._assigned(model, roles, at)
        self._warn_unattached(model, at)
        warn_once(model, self._tuned_on(model, found, at).warning(), OtherModelWarning)
        groups = make_groups(found.parameters, at.betas, self.hps.momentum)
        schedule.remember(groups)
        return groups

    def init_(
        self, model: Model, roles: Roles, target_shape: Target, *, generator: torch.Generator | None = None
    ) -> Model:
        """Initialize each parameter in place, frozen ones but for a table of positions too, and return the model.

        Matrices get normal numbers with the std of their role, and biases get zeros, as do matrices with a std of 0.
        Gains become 1: the tensor of a norm that multiplies by 1 + w gets zeros. Buffers with the role router_bias get
        zeros, and other buffers are not changed. A std does not depend on the layout of a tensor, such as transposed,
        or many experts in one. If the parameterization ties experts at the start, all experts of a layer get the same
        draw. A sharded model (FSDP2) gets the same numbers as the whole one. A model without memory (meta device) is
        refused.
        """
        at = self._at(target_shape)
        found = self._assigned(model, roles, at)
        self._warn_unattached(model, at)
        tied = self.parameterization.structure().tied_experts
        initialize(found.tensors, generator, shape=at.target, tied_experts=tied)
        return model

    def explain(
        self, model: torch.nn.Module, roles: Roles | None = None, target_shape: Target | None = None
    ) -> ModelExplanation:
        """Return what the recipe gives each tensor of the model: role, size, init std, peak LR, eps, weight decay.

        `str()` of it is a table with one line per tensor, and `to_dict()` gives plain data. Warns (OtherModelWarning),
        as `param_groups` does, if the model differs from the one that the recipe was tuned on, and says how. The
        default roles are those of `hpxfer.roles`, and the default shape is that of `hpxfer.shape_of`.
        """
        at = self._at(shape_of(model) if target_shape is None else target_shape)
        found = self._assigned(model, proposed_roles(model) if roles is None else roles, at)
        heading = f"{self.parameterization.label()}, {self.optimizer}: {self.base_shape.label()} -> {at.target.label()}"
        if (muon := muon_of(self.column)) is not None:
            heading = f"{heading}\n{of_muon(muon, self.hps.momentum)}"
        tuned_on = self._tuned_on(model, found, at)
        warn_once(model, tuned_on.warning(), OtherModelWarning)
        return ModelExplanation(rows=tuple(map(row_of, found.tensors)), heading=heading, tuned_on=tuned_on)

    def forward_multipliers(self, target_shape: Target) -> dict[str, float]:
        """Return the factors that the forward pass must multiply by, as absolute numbers, in training and evaluation.

            embedding                the rows of the embedding, if the recipe scales them
            attn_logits              the products q.k, before the softmax
            attn_out                 the output of attention, bias included, before it is added to the residual stream
            router                   the router's logits, if the recipe scales them
            expert_out               the SUM of gate * expert output over the active experts, before it is added to the
                                     residual stream; the number contains the base's 1/num_active: do not average too
            shared_out, dense_out    the output of such layers, before it is added, if base and target have them
            readout                  the logits
            route_scale              the gates, if they sum to one or the base has a factor on them
            inverse_temperature      the router's logits behind their bias, if the base of the family mlp has it

        `forward_sites()` gives this list as data, for the gate of the recipe's base model, and `attach` multiplies. A
        model that multiplies by itself says so by `attach(model, shape, by_hand=[...])`. Do not multiply a weight
        itself: its init std and its LR would change with it.
        """
        return self._at(target_shape).forward

    def forward_sites(self) -> dict[str, str]:
        """Return key of `forward_multipliers` -> what is multiplied by it."""
        return sites_of(self)

    def attach(
        self,
        model: torch.nn.Module,
        target_shape: Target,
        sites: Sites | None = None,
        *,
        by_hand: Collection[str] = (),
    ) -> Attached:
        """Attach hooks that multiply by the forward multipliers. Return their handle, whose `remove()` removes them.

        `sites` are pairs of a pattern of module names and a key of `forward_multipliers`. They are known for gpt2,
        llama, mixtral, qwen3_moe, olmoe and gpt_oss of transformers. A hook multiplies a module's output, or the first
        of a tuple. For `router` it multiplies the input, and for `attn_logits` the module's attribute `scaling` is set.
        `by_hand` lists the keys whose multiplication your code of the model contains: nothing else tells `init_` and
        `param_groups` that it does. What a config multiplies as the recipe says, such as DeepSeek's
        `routed_scaling_factor`, is not multiplied again. Hooks work in training and in evaluation, before
        and after torch.compile (which starts over), and a deep copy of the model keeps them. The handle is a context
        manager too. Attach before `init_` and `param_groups`, which warn of a model without its multipliers.

        Warns (ByHandWarning) of what hooks cannot do. Raises HpxferError, and attaches nothing, for a pattern that
        matches no module, a multiplier without a site, two sites that would multiply one output, a model that has
        multipliers already, or gates of another size than the recipe's.
        """
        at = self._at(target_shape)
        numbers = left_to_multiply(model, at)
        check_dims(model, at.target)
        check_gate(model, self.file.model.gate)
        left = {key for key, by in numbers.items() if by != 1.0 and key not in by_hand}
        if sites is None:
            sites = known_sites(model, set(numbers) - set(by_hand)) if left or known_model(model) else ()
        handle = attach(model, numbers, sites, by_hand)
        for sentence in at.by_hand:
            warnings.warn(f"no hook does this, so that the model must: {sentence}", ByHandWarning, stacklevel=2)
        return handle

    scheduler = staticmethod(schedule.scheduler)
    check_lr_ratios = staticmethod(schedule.check_lr_ratios)

    def router_bias_lr(self, target_shape: Target) -> float:
        """Return the rate of the balancing rule, which no schedule multiplies.

        After each step, bias -= rate * (load - num_active/num_experts), where load is the fraction of the step's tokens
        that chose the expert. The bias is added to the gates when experts are chosen, and nowhere else.
        """
        return self._at(target_shape).router_bias_lr

    def describe(self, target_shape: Target) -> str:
        """Return as text what the recipe gives at the target: the forward multipliers, and the numbers of each role."""
        target = as_shape(target_shape)
        check_covered(self, target)
        return description(Resolved(self, target), out_of_range(self, target))

    def _assigned(self, model: torch.nn.Module, roles: Roles, at: Resolved) -> Assigned:
        check_dims(model, at.target)
        check_gate(model, self.file.model.gate)
        found = assign(model, roles, at)
        check_counts(model, found, at.target)
        check_embeddings(self, found.tied_embeddings)
        return found

    def _tuned_on(self, model: torch.nn.Module, found: Assigned, at: Resolved) -> TunedOn:
        inputs = [one for one in found.parameters if ROLES[one.roles[0]] == "input" and one.own.note]
        constants = [*differences(model, at), *(f"{one.name}: {one.own.note}" for one in inputs)]
        return compared(self.file, at.target, seen_in(model, found), constants)

    def _warn_unattached(self, model: torch.nn.Module, at: Resolved) -> None:
        """Warn, at the line that called the method that called this one, if the model lacks its multipliers."""
        why = unattached(model, at.target, left_to_multiply(model, at))
        warn_once(model, why, UnattachedWarning, stacklevel=4)

    def _at(self, given: Target) -> Resolved:
        """Return the numbers. Warn beyond the range, at the line that called the method that called this one."""
        target = as_shape(given)
        check_covered(self, target)
        if found := out_of_range(self, target):
            name = target.label(schedule=bool(target.batch_tokens or target.steps))
            text = f"the target {name} is beyond what was measured: {'; '.join(found)}"
            warnings.warn(text, OutOfRangeWarning, stacklevel=3)
        return Resolved(self, target)


def as_shape(given: Target, where: str = "target_shape") -> Shape:
    """Return the shape. Raise HpxferError, which names `where`, if no model can have it."""
    if not isinstance(given, Shape | Mapping):
        raise HpxferError(f"{where}: must be a Shape or a mapping of its dimensions, got {shown(given)}")
    return shape_from_mapping(given.dims() if isinstance(given, Shape) else given, where)


def _sections(hps: Mapping[str, float], optimizer: str) -> dict[str, Any]:
    """Return HPs by name as a recipe file has them: with defaults, and those of roles by themselves."""
    given = {name: float(value) if hasattr(value, "__float__") else value for name, value in sorted(hps.items())}
    scalars = {name: value for name, value in given.items() if "." not in name}
    multipliers = {name: value for name, value in given.items() if "." in name and value != 1.0}
    defaults = {one.name: one.default for one in fields(HPs) if one.default is not MISSING}
    if kind_of(str(optimizer)) == MUON:
        defaults["momentum"] = MOMENTUM
    return {**defaults, **scalars, "multipliers": multipliers}
