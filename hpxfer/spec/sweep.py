"""SweepSpec: what a sweep file may say. Field by field, with the default and the rule of each.

pydantic guards the types; rules that join several fields stand in `checks.py`, and both speak in key paths.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from hpxfer.scaling.resolve import BaseInit
from hpxfer.shape import Shape
from hpxfer.spec.fields import Count, CountOrNone, Number, Section, Seq, Values, into
from hpxfer.spec.search import EarlyStopping, EarlyStoppingSpec, Search, SearchSpec

Ratio = Annotated[float, Field(gt=0, le=1e6)]  # a hidden size in units of the width
MAX_SEEDS = 100_000


def _spelled_infinity(value: Any) -> Any:
    """YAML's `.inf` as conventions spell it."""
    if not isinstance(value, dict):
        return value
    return {key: "inf" if isinstance(one, float) and one == math.inf else one for key, one in value.items()}


class ShapeSpec(Section):
    """The base shape. Hidden sizes are given as a ratio to the width or as a width, one of the two.

    Without num_experts, num_active and an expert size it is a dense model. A dense size belongs to a model with at
    least one dense FFN, a shared size to num_shared.
    """

    width: Count
    depth: Count
    num_experts: Count | None = None
    num_active: Count | None = None
    head_dim: Count
    expert_ratio: Ratio | None = None
    expert_width: Count | None = None
    num_shared: CountOrNone = 0
    shared_ratio: Ratio | None = None  # of one shared expert, as is shared_width
    shared_width: Count | None = None
    num_groups: Count = 1
    dense_ratio: Ratio | None = None
    dense_width: Count | None = None


class ShapeChange(Section):
    """One point of an axis: what differs from the base.

    num_active follows num_experts, hidden sizes follow the width; batch_tokens and steps follow nothing.
    """

    width: Count | None = None
    depth: Count | None = None
    num_experts: Count | None = None
    num_active: Count | None = None
    expert_ratio: Ratio | None = None
    expert_width: Count | None = None
    num_shared: CountOrNone | None = None
    shared_ratio: Ratio | None = None
    shared_width: Count | None = None
    num_groups: Count | None = None
    dense_ratio: Ratio | None = None
    dense_width: Count | None = None
    batch_tokens: Count | None = None
    steps: Count | None = None


class ModelSpec(Section):
    """The base model. Options that the source paper leaves at nanoGPT's value default to it."""

    family: Literal["gpt"]
    base: ShapeSpec
    context: Count  # tokens
    gate: Literal["sigmoid", "softmax", "normalized_sigmoid"] = "sigmoid"
    ffn: Literal["gelu", "swiglu"] = "gelu"  # experts, shared experts and dense FFNs alike
    moe_every: Count = 1  # of the blocks from dense_first on, every so many-th has experts; the others a dense FFN
    dense_first: CountOrNone = 0  # blocks at the bottom that have a dense FFN
    attention_scale: Literal["1/d_head", "1/sqrt(d_head)"] = "1/d_head"
    tied_embeddings: bool = True
    norm_gains: bool = True
    biases: bool = False
    init: Literal["fan_in", "constant"] = "fan_in"
    matrix_std: Annotated[float, Field(gt=0)] = 0.02  # read if init is constant
    embedding_std: Annotated[float, Field(ge=0)] = 0.02
    position_std: Annotated[float, Field(ge=0)] = 0.02

    def base_init(self) -> BaseInit:
        return BaseInit(
            matrices=self.init,
            matrix_std=self.matrix_std if self.init == "constant" else BaseInit.matrix_std,
            embedding_std=self.embedding_std,
            position_std=self.position_std,
        )


class DataSpec(Section):
    """Where the tokens come from. A relative path starts at the sweep file's folder."""

    source: str  # builtin:stdlib | text:PATH-or-glob | tokens:GLOB
    tokenizer: Literal["ascii", "bytes", "gpt2"] | None = None  # ascii for builtin:, bytes for text:, gpt2 for tokens:
    vocab_size: Count | None = None  # tokens: of another tokenizer
    digest: str | None = None  # stands in where the data is not on this machine


class ScheduleSpec(Section):
    """LR over the run: linear warm-up, then the named decay to `final_fraction` of the peak."""

    decay: Literal["constant", "cosine", "linear", "wsd"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    decay_steps: Count | None = None  # wsd: the last steps, over which the LR falls linearly
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0


class TrainingSpec(Section):
    """How every trial is trained. One of steps and tokens."""

    batch_tokens: Count
    steps: Count | None = None
    tokens: Count | None = None
    optimizer: Literal["adamw", "sgd"] = "adamw"
    betas: Seq[float] = (0.9, 0.95)
    eps: Annotated[float, Field(gt=0)] = 1e-12  # 0 would divide 0 by 0 at the embedding of a token not yet seen
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    schedule: ScheduleSpec = ScheduleSpec()
    final_window_steps: Count | None = None  # default: the last tenth of the run
    validation_tokens: Count
    gradient_clip: Annotated[float, Field(gt=0)] | None = None  # L2 norm of a trial's whole gradient
    # strict: the same bits whatever is stacked beside a trial; default: strict on a CPU, fast on CUDA. On a CPU both
    # are the same code. Never part of a trial's identity.
    determinism: Literal["strict", "fast"] | None = None


class ParameterizationSpec(Section):
    """A table by name, with the conventions that differ from its defaults."""

    name: str
    conventions: Annotated[dict[str, float | str], BeforeValidator(_spelled_infinity)] = Field(default_factory=dict)


class AxisSpec(Section):
    """A path of shapes: `values` of what the axis is named after (see `axes.DIMENSION`), or whole `shapes`."""

    values: Seq[Annotated[float, Field(le=1e9)]] | None = None
    shapes: Seq[ShapeChange] | None = None
    num_active: Count | None = None  # axis `experts`: hold num_active here instead of holding kappa
    allow_kappa_change: bool = False


class HPsSpec(Section):
    """The base values that every line of the grid runs through. `lr` may be missing if it is the only one scanned."""

    lr: Number | None = None
    init_scale: Number = 1.0
    residual_scale: Number = 1.0
    router_bias_lr: Number = 0.01
    multipliers: dict[str, Number] = Field(default_factory=dict)  # by dotted name, e.g. router.lr_mult: 0.0625


class JudgeSpec(Section):
    """What transfers: the HP (the first of the grid by default) and the loss it is judged by."""

    hp: str | None = None
    loss: Literal["validation", "final_window"] = "validation"


def _auto(value: Any) -> Any:
    """`auto` is the default spelled out."""
    return None if value == "auto" else value


GpuShare = Annotated[Annotated[float, Field(gt=0, le=1)] | None, BeforeValidator(_auto)]


class ResourcesSpec(Section):
    """Where and how wide to run; never part of a trial's identity."""

    executor: Literal["ray", "local"] = "ray"
    workers: Count | None = None  # default: one a core, or one a GPU fraction
    stack_size: Count | None = None  # default: chosen by the planner
    device: Literal["auto", "cpu", "cuda"] = "auto"
    kernels: Literal["auto", "torch", "triton"] = "auto"  # auto: triton on CUDA, torch elsewhere
    cpus_per_stack: Annotated[float, Field(gt=0, le=4096)] = 1.0
    gpus_per_stack: GpuShare = None  # default, `auto`: 1, 1/2, 1/4 or 1/8, what memory and tokens of the stack need
    gpu_type: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] | None = None  # Ray's name, e.g. H100
    loggers: Seq[Literal["tensorboard", "wandb"]] = ()  # Ray's own, fed with every result
    checkpoint_s: Annotated[float, Field(ge=0, le=1e6)] = 120.0  # seconds between two of a stack; 0: none


Axis = Annotated[AxisSpec, BeforeValidator(lambda v: _axis(v))]
Choice = Annotated[ParameterizationSpec, BeforeValidator(into("name", str))]


def _axis(value: Any) -> Any:
    """A bare list is `values` if it holds numbers, `shapes` if it holds mappings."""
    if isinstance(value, list):
        return {"shapes" if any(isinstance(one, dict) for one in value) else "values": value}
    return value


def _seeds(value: Any) -> Any:
    """`seeds: 3` is seeds 0, 1, 2."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_SEEDS:
        return tuple(range(value))
    if not isinstance(value, list | tuple):
        raise ValueError(f"a count from 1 to {MAX_SEEDS}, or a list of seeds")
    return tuple(value)


class SweepSpec(Section):
    """One sweep file: one question about transfer."""

    name: str
    model: ModelSpec
    data: DataSpec
    training: TrainingSpec
    parameterizations: Seq[Choice]
    axes: dict[str, Axis]
    hps: HPsSpec = HPsSpec()
    grid: dict[str, Values] = Field(default_factory=dict)  # what is scanned, by HP
    product: bool = False  # every combination of the grid instead of one line an HP
    seeds: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**63)], ...], BeforeValidator(_seeds)] = (0,)
    judge: JudgeSpec = JudgeSpec()
    search: Search = SearchSpec()
    early_stopping: EarlyStopping = EarlyStoppingSpec()
    precision: Literal["float32", "bfloat16"] = "float32"
    resources: ResourcesSpec = ResourcesSpec()
    storage: str | None = None  # the folder or URI above the results; --results wins; never part of a trial's identity

    @property
    def base_shape(self) -> Shape:
        """The base with its batch and steps; what the file leaves out, or gives twice, is for `checks` to refuse."""
        base = self.model.base

        def size(ratio: float | None, width: int | None) -> int:
            return width or round((ratio or 0.0) * base.width)

        return Shape(
            width=base.width,
            depth=base.depth,
            num_experts=base.num_experts or 0,
            num_active=base.num_active or 0,
            expert_width=size(base.expert_ratio, base.expert_width),
            head_dim=base.head_dim,
            num_shared=base.num_shared,
            shared_width=size(base.shared_ratio, base.shared_width),
            num_groups=base.num_groups,
            dense_width=size(base.dense_ratio, base.dense_width),
            batch_tokens=self.training.batch_tokens,
            steps=self.steps,
        )

    @property
    def steps(self) -> int:
        return self.training.steps or (self.training.tokens or 0) // self.training.batch_tokens

    @property
    def final_window_steps(self) -> int:
        return self.training.final_window_steps or max(1, self.steps // 10)

    @property
    def stack_size(self) -> int | None:
        """The trials of a stack, None for the planner to choose: one where trials are stopped one by one."""
        return self.resources.stack_size if self.early_stopping.asha is None else 1

    @property
    def judged_hp(self) -> str:
        return self.judge.hp or next(iter(self.grid), "lr")
