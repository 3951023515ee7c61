"""SweepSpec: what a sweep file may say, key by key, with the default and the rule of each.

The text below a field documents its key. `hpxfer schema` and `docs/sweep-file.md` are made from it. pydantic checks the
types. `checks.py` checks the rules that join several keys. The sections `model`, `data`, `training`, `trainer`,
`parameterizations` and `resources` have files of their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from hpxfer.scaling.shape import Shape
from hpxfer.spec.arms import Arm, ParameterizationSpec
from hpxfer.spec.data_section import DataSpec, PointData
from hpxfer.spec.fields import (
    WHOLE,
    Count,
    CountOrNone,
    Number,
    Registered,
    Section,
    Seq,
    Values,
    into,
    whole,
    with_momentum,
)
from hpxfer.spec.model_section import Depth, ModelSpec, Ratio
from hpxfer.spec.own import OwnDims, TrainerSpec, with_trainer
from hpxfer.spec.resources_section import ResourcesSpec
from hpxfer.spec.search import EarlyStopping, EarlyStoppingSpec, Search, SearchSpec
from hpxfer.spec.training_section import ScheduleSpec, TrainingSpec

MAX_SEEDS = 100_000


class ShapeChange(Section):
    """One point of an axis: what differs from the base.

    What is left out follows the base: num_active follows num_experts, so that kappa stays. Hidden sizes and num_heads
    follow the width, and kv_heads follow the heads, so that their ratios stay. batch_tokens and steps follow nothing.
    """

    width: Count | None = None
    """The model's width."""
    depth: Depth | None = None
    """The number of blocks."""
    num_heads: Count | None = None
    """Attention heads."""
    kv_heads: Count | None = None
    """Heads of keys and values."""
    num_experts: CountOrNone | None = None
    """Routed experts per MoE layer. 0 makes the point dense. Its FFN is as wide as what a token uses of the base's
    experts, unless dense_width or dense_ratio says otherwise: the active parameters are equal but for the router."""
    num_active: Count | None = None
    """Routed experts per token."""
    expert_ratio: Ratio | None = None
    """The hidden size of an expert, in units of the width."""
    expert_width: Count | None = None
    """The hidden size of an expert."""
    num_shared: CountOrNone | None = None
    """Shared experts per MoE layer."""
    shared_ratio: Ratio | None = None
    """The hidden size of one shared expert, in units of the width."""
    shared_width: Count | None = None
    """The hidden size of one shared expert."""
    num_groups: Count | None = None
    """The groups that the experts are split into."""
    dense_ratio: Ratio | None = None
    """The hidden size of a dense FFN, in units of the width."""
    dense_width: Count | None = None
    """The hidden size of a dense FFN."""
    own: OwnDims | None = None
    """What differs from `model.own`, in the words of your own trainer. Goes with the family `user`, in place of the
    keys above."""
    batch_tokens: Count | None = None
    """Tokens per optimizer step, in a family that reads tokens."""
    batch_samples: Count | None = None
    """Samples per optimizer step, in a family that reads samples."""
    steps: Count | None = None
    """Optimizer steps. Warm-up and decay in steps keep their share of the run."""
    schedule: ScheduleSpec | None = None
    """The learning rate over the runs of this shape. It replaces the sweep's schedule whole, so what it leaves out has
    its default. Its lengths in steps are steps of these runs. Points of one shape must agree on the schedule."""
    data: Annotated[PointData, BeforeValidator(into("source", str), json_schema_input_type=str | PointData)] | None = (
        None
    )
    """Other training data for the runs of this shape, e.g. more of it for a long run. It needs data.validation, so that
    the losses of all shapes are those of the same tokens. Points of one shape must agree on the data."""


class AxisSpec(Section):
    """A path of shapes from the base. Give `values` or `shapes`, not both.

    A bare list is short for `values` if it holds numbers, and for `shapes` if it holds mappings. Under a table that
    holds kappa, every shape must have the base's kappa.
    """

    values: Seq[Annotated[float, Field(le=1e9)]] | None = None
    """Values of the dimension that the axis is named after; in the family `user`, of that key of `model.own`."""
    shapes: Seq[ShapeChange] | None = None
    """Whole shapes, each given by what differs from the base. The name of the axis is free."""
    scale: str | None = None
    """Family `user` only: the number that drift is measured along, a key of `model.own`, or batch_tokens, steps or
    tokens. The default is the key that the axis is named after, or the only number that differs between all shapes."""
    num_active: Count | None = None
    """Axis `experts` with values only: hold num_active at this number instead of holding kappa."""
    allow_kappa_change: bool = False
    """Allow shapes of another kappa under a table that holds kappa. Transfer is not expected there."""


class RecipeRef(Section):
    """A recipe that a sweep starts from. A bare path is short for `{file: PATH}`. A run fills in the rest."""

    file: str
    """The recipe's file. A relative path starts at the folder of the sweep file."""
    digest: str | None = None
    """The hash of the file. If it is given, another recipe is refused."""
    origin: str | None = None
    """The sweep that made the recipe. Written by a run."""
    gives: Seq[str] | None = None
    """What comes from the recipe. Written by a run, and then the file is not read again."""
    left_out: Seq[str] | None = None
    """What the recipe has and the model of the sweep does not use. Written by a run."""
    doubts: Seq[str] | None = None
    """Why the recipe's value may not be the best, and axes along which it does not transfer. Written by a run."""
    instead: Seq[str] | None = None
    """What the sweep has otherwise than the recipe. Written by a run."""

    def lines(self) -> tuple[str, ...]:
        """Return in words what comes from the recipe, and what does not."""
        origin = "; ".join([str(self.origin), *(self.doubts or ())])
        out = [f"recipe {self.file} ({origin}) gives {'; '.join(self.gives or ()) or 'nothing'}"]
        if self.left_out:
            out.append(f"left out of the recipe: {'; '.join(self.left_out)}")
        if self.instead:
            out.append(f"otherwise than the recipe: {'; '.join(self.instead)}")
        return tuple(out)


class HPsSpec(Section):
    """The base values of the HPs. Every line of the grid runs through them."""

    recipe: Annotated[RecipeRef, BeforeValidator(into("file", str), json_schema_input_type=str | RecipeRef)] | None = (
        None
    )
    """A recipe.yaml, whose base HPs, initialization, optimizer, base shape and parameterization the sweep takes over
    where this file gives none. `hpxfer plan` prints what comes from it, and what does not."""
    lr: Number | None = None
    """The learning rate. It may be left out if it is the only HP in the grid. Under Muon, that of its matrices."""
    adamw_lr: Number | None = None
    """Under Muon, and given there: the learning rate of what AdamW moves, all but hidden matrices, and the router."""
    init_scale: Number = 1.0
    """The factor of the init std of every matrix."""
    residual_scale: Number = 1.0
    """The factor of every residual branch."""
    momentum: Number = 0.0
    """The momentum of SGD, as torch's without dampening, or of Muon, as Nesterov's, with 0.95 as its default."""
    router_bias_lr: Number = 0.01
    """The rate of the rule that balances the experts through the router bias."""
    aux_weight: Number = 0.0
    """The weight of the loss that balances the experts."""
    z_weight: Number = 0.0
    """The weight of the router's z-loss."""
    multipliers: dict[str, Number] = Field(default_factory=dict)
    """Constant multipliers of one role, by dotted name: `router.lr_mult: 0.0625`, `expert_out.init_mult: 2`, or
    `embedding.forward_mult: 4`, which multiplies what the role gives in the forward pass."""


class RegretLimit(Section):
    """The largest regret that counts as none. Give one of the two.

    A regret is what a shape loses with the HP transferred from the base, compared with its own best HP.
    """

    loss: Annotated[float, Field(gt=0, le=1)] | None = None
    """The limit as a share of the shape's best loss: 0.01 is 1%."""
    octaves: Annotated[float, Field(gt=0, le=10)] | None = None
    """The limit as the cost of so many octaves: what an HP loses that lies this far from the shape's own optimum."""

    @model_validator(mode="after")
    def _is_one(self) -> RegretLimit:
        if (self.loss is None) == (self.octaves is None):
            raise ValueError("one of {loss: x} and {octaves: x}")
        return self


class JudgeSpec(Section):
    """What the verdict is about, and which regret counts as none."""

    hp: str | None = None
    """The HP that is judged, one of the grid. The default is the first of the grid."""
    loss: Literal["validation", "final_window"] = "validation"
    """The loss on the held-out tokens, or the training loss over the final window."""
    about: Seq[Annotated[str, Registered("statistic")]] | None = None
    """The statistics that a report opens with, by name, e.g. `[routers]`. A verdict on the HP follows them. A sweep in
    which every HP has one value has no verdict, and opens with `[gains, experts_size]`."""
    regret_limit: RegretLimit = RegretLimit(loss=0.01)
    """The largest regret that counts as none. The default is `{loss: 0.01}`, 1% of the shape's best loss."""


def _axis(value: Any) -> Any:
    """Read a bare list as `values` if it holds numbers, and as `shapes` if it holds mappings."""
    if isinstance(value, list):
        return {"shapes" if any(isinstance(entry, dict) for entry in value) else "values": value}
    return value


def _seeds(value: Any) -> Any:
    """Read `seeds: 3` as the seeds 0, 1 and 2."""
    value = whole(value)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_SEEDS:
        return tuple(range(value))
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"a count from 1 to {MAX_SEEDS}, or a list of seeds")
    return tuple(value)


def _name(name: str) -> str:
    """Refuse a name that cannot be that of a folder, and a part of the name of a job."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ValueError("at most 100 letters, digits, '.', '_' and '-', starting with a letter or digit")
    return name


AxisField = Annotated[
    AxisSpec, BeforeValidator(_axis, json_schema_input_type=list[float] | list[ShapeChange] | AxisSpec)
]
Seed = Annotated[int, Field(ge=0, lt=2**63), WHOLE]
Seeds = Annotated[
    tuple[Seed, ...],
    BeforeValidator(_seeds, json_schema_input_type=Annotated[int, Field(ge=1, le=MAX_SEEDS)] | list[Seed]),
]


class PluginSpec(Section):
    """Python code of yours that registers rows. A bare name is short for `{name: NAME}`. A run fills in the rest."""

    name: str
    """A module such as `mypackage.gates`, or a file such as `./gates.py`. A relative file starts at the sweep's folder.
    """
    digest: str | None = None
    """The hash of the file, or the version that the file sets. Written by a run."""
    registers: dict[str, Seq[str]] | None = None
    """The names of the rows that the plug-in registers, by kind. Written by a run."""


Plugin = Annotated[PluginSpec, BeforeValidator(into("name", str), json_schema_input_type=str | PluginSpec)]


class SweepSpec(Section):
    """One sweep file: one question about transfer."""

    name: Annotated[str, AfterValidator(_name)]
    """The name of the results folder: letters, digits, `.`, `_` and `-`. It is unique among your sweeps."""
    model: ModelSpec
    """The base model."""
    trainer: TrainerSpec | None = None
    """Your own trainer, in place of the built-in one. Goes with `model.family: user`."""
    data: DataSpec
    """The tokens. Your own trainer reads its own data: it gives the name as `trainer.data`, and no `data`."""
    training: TrainingSpec
    """How every trial is trained."""
    parameterizations: Seq[Arm]
    """The arms to compare: tables, which may have base HPs and a balance of their own: `[completep-moe, sp, {table:
    completep-moe, name: tuned, hps: {multipliers: {router.lr_mult: 0.0625}}}]`. `sp` beside another table is its
    control. Left out where `trainer.arms` stands for it."""
    axes: dict[str, AxisField]
    """Paths of shapes by name. The base is a shape of every path."""
    hps: HPsSpec = HPsSpec()
    """The base values of the HPs."""
    grid: dict[str, Values] = Field(default_factory=dict)
    """What is scanned, by HP: `lr`, `init_scale`, `residual_scale`, `router_bias_lr`, `aux_weight`, `z_weight`,
    `weight_decay`, `eps`, `beta1`, `beta2`, `momentum`, or a dotted multiplier."""
    product: bool = False
    """Scan every combination of the grid. By default each HP is one line through the base values of the others."""
    seeds: Seeds = (0, 1, 2, 3)
    """A count, or a list of seeds. A seed decides init and data order. A verdict needs at least two, and the quickstart
    needs the four of the default: with fewer, its losses are known less well than the limit of a regret asks for."""
    judge: JudgeSpec = JudgeSpec()
    """The HP and the loss that the verdict is about."""
    search: Search = SearchSpec()
    """How the HPs are chosen."""
    early_stopping: EarlyStopping = EarlyStoppingSpec()
    """Which trials stop before their end."""
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    """The precision of compute. Master weights, optimizer state, router and loss are float32. auto is bfloat16 on CUDA
    and float32 elsewhere. It is decided once, from the device that will train, and is part of the trials' ids. A
    results folder goes on with the precision that it began with."""
    resources: ResourcesSpec = ResourcesSpec()
    """Where and how wide to run."""
    plugins: Seq[Plugin] | None = None
    """Code that registers rows which the sweep names, e.g. a parameterization. It is imported before the sweep is
    checked, and by every worker. The digest of its file is part of the identity of the trials that use it."""
    storage: str | None = None
    """The folder or URI above the results. `--results` wins over it. Never part of a trial's identity."""

    @model_validator(mode="before")
    @classmethod
    def _of_trainer(cls, given: Any) -> Any:
        return with_momentum(with_trainer(given))

    @property
    def base_shape(self) -> Shape:
        """The base with its batch and steps. `checks` refuses what the file leaves out or gives twice."""
        return self.model.shape(self.training.batch, self.steps)

    @property
    def steps(self) -> int:
        return self.training.steps or (self.training.tokens or 0) // self.training.batch

    @property
    def final_window_steps(self) -> int:
        return self.training.final_window_steps or max(1, self.steps // 10)

    @property
    def stack_size(self) -> int | None:
        """The trials per stack: 1 if trials may stop early or a user's trainer runs, None if the planner chooses."""
        if self.trainer is not None or self.early_stopping.asha is not None:
            return 1
        return self.resources.stack_size

    @property
    def search_row(self) -> Any:
        """The row of the search: a `hpxfer.search.kinds.SearchKind`."""
        return self.search.row

    @property
    def judged_hp(self) -> str:
        return self.judge.hp or next(iter(self.grid), "lr")

    @property
    def has_fixed_hps(self) -> bool:
        """Whether every HP of the grid has one value: the question is what a larger shape gains, not transfer."""
        one_value = all(len(values.numbers()) == 1 for values in self.grid.values())
        return self.search.kind == "grid" and bool(self.grid) and one_value


def base_values(spec: SweepSpec) -> dict[str, float]:
    """Return HP -> its base value, multipliers by dotted name. `lr` is missing where only the grid gives it."""
    scalars = {name: value for name, value in spec.hps if name not in ("recipe", "multipliers") and value is not None}
    of_training = {"weight_decay": spec.training.weight_decay, "eps": spec.training.eps}
    betas = zip(("beta1", "beta2"), spec.training.betas, strict=False)  # `checks` refuses any other number of betas
    return {**scalars, **of_training, **dict(betas), **spec.hps.multipliers}


def parts_of(spec: SweepSpec) -> tuple[tuple[str | None, SweepSpec], ...]:
    """Return (name, the sweep under them) of the arms that share a name, HPs and balance, in order.

    A sweep of plain tables is its own only part.
    """
    if all(arm.is_plain for arm in spec.parameterizations):
        return ((None, spec),)
    parts: list[list[ParameterizationSpec]] = []
    for arm in spec.parameterizations:
        part = next((part for part in parts if part[0].own == arm.own), None)
        if part is None:
            parts.append(part := [])
        part.append(arm)
    return tuple((part[0].name, under(spec, part)) for part in parts)


def under(spec: SweepSpec, arms: Sequence[ParameterizationSpec]) -> SweepSpec:
    """Return the sweep of arms that share HPs and balance, as one of plain tables with these as its own."""
    given, model, balance = arms[0].given(), spec.model, arms[0].balance
    if balance is not None:
        model = model.model_copy(update={"balance": balance})
        if balance.aux == "none":
            given = {"aux_weight": 0.0, **given}
    of_training: dict[str, Any] = {name: given.pop(name) for name in ("weight_decay", "eps") if name in given}
    betas = zip(("beta1", "beta2"), spec.training.betas, strict=False)
    of_training["betas"] = tuple(given.pop(name, beta) for name, beta in betas)
    multipliers = {**spec.hps.multipliers, **{name: value for name, value in given.items() if "." in name}}
    scalars = {name: value for name, value in given.items() if "." not in name}
    plain = {"name": None, "hps": None, "balance": None}
    return spec.model_copy(
        update={
            "parameterizations": tuple(arm.model_copy(update=plain) for arm in arms),
            "model": model,
            "hps": spec.hps.model_copy(update={**scalars, "multipliers": multipliers}),
            "training": spec.training.model_copy(update=of_training),
        }
    )
