"""Setting: what fixes a trial's numbers beside its shape, HPs, seed and parameterization, and how a sweep gives it."""

from __future__ import annotations

from dataclasses import dataclass

from hpxfer.registry import registry
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.resolve import BaseInit
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Optimizer
from hpxfer.spec import SweepSpec
from hpxfer.spec.schedule import schedule_at

_INIT = BaseInit()


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What, beside shape, HPs, seed and parameterization, fixes a trial's numbers.

    All trials of a sweep share it, but for the batch and the steps, which are those of the trial's shape.

    A default is what an identity leaves out. It must never change, because every stored id relies on it: give a new
    option the default that stands for what was trained before it existed, and keep it. The sweep file may have another.
    """

    family: str
    context: int
    gate: str = "sigmoid"
    ffn: str = "gelu"  # experts, shared experts and dense FFNs alike
    moe_every: int = 1
    dense_first: int = 0
    attention_scale: str = "1/d_head"
    tied_embeddings: bool = True
    norm_gains: bool = True
    biases: bool = False
    init: BaseInit = _INIT
    data_source: str  # where this machine finds the data; the digest stands for it in the id
    data_digest: str
    tokenizer: str
    vocab_size: int
    batch_tokens: int
    steps: int
    optimizer: str = "adamw"
    decay: str = "constant"
    warmup_steps: int = 0
    decay_steps: int = 0
    final_fraction: float = 0.0
    final_window_steps: int
    validation_tokens: int
    gradient_clip: float | None = None
    precision: str = "float32"

    @property
    def column(self) -> Optimizer:
        """The optimizer's column in a table."""
        column: Optimizer = registry("optimizer").get(self.optimizer).column
        return column


@dataclass(frozen=True, kw_only=True)
class DataRef:
    """The data as a trial's identity sees it."""

    digest: str
    tokenizer: str
    vocab_size: int


def setting_of(spec: SweepSpec, data: DataRef, shape: Shape | None = None) -> Setting:
    """Return the setting of a checked sweep's trials at `shape`, by default the base shape."""
    model, training, at = spec.model, spec.training, shape or spec.base_shape
    schedule = schedule_at(spec, at.steps)
    decays = registry("schedule").get(training.schedule.decay).decay is not None
    return Setting(
        family=model.family,
        context=model.context,
        gate=model.gate,
        ffn=model.ffn,
        moe_every=model.moe_every,
        dense_first=model.dense_first,
        attention_scale=model.attention_scale,
        tied_embeddings=model.tied_embeddings,
        norm_gains=model.norm_gains,
        biases=model.biases,
        init=model.base_init(),
        data_source=spec.data.source,
        data_digest=data.digest,
        tokenizer=data.tokenizer,
        vocab_size=data.vocab_size,
        batch_tokens=at.batch_tokens,
        steps=at.steps,
        optimizer=training.optimizer,
        decay=training.schedule.decay,
        warmup_steps=schedule.warmup_steps,
        decay_steps=schedule.decay_steps,
        final_fraction=training.schedule.final_fraction if decays else 0.0,
        final_window_steps=schedule.final_window_steps,
        validation_tokens=training.validation_tokens,
        gradient_clip=training.gradient_clip,
        precision=spec.precision,
    )


def base_hps(spec: SweepSpec) -> HPs:
    """Return the HPs that every line of the grid runs through."""
    hps = spec.hps
    out = HPs(
        lr=hps.lr if hps.lr is not None else spec.grid["lr"].numbers()[0],
        init_scale=hps.init_scale,
        residual_scale=hps.residual_scale,
        weight_decay=spec.training.weight_decay,
        eps=spec.training.eps,
        beta1=spec.training.betas[0],
        beta2=spec.training.betas[1],
        router_bias_lr=hps.router_bias_lr,
    )
    for name, value in hps.multipliers.items():
        out = out.with_value(name, value)
    return out
