"""The check's own model of the family `mlp`: its options, its samples and its HPs, at absolute sizes.

The papers write absolute powers of the dimensions. Those are the factors relative to a base shape of ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.scaling.evaluate import BaseInit, Parameterization
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.muon import MOMENTUM, muon_of
from hpxfer.scaling.shape import UNIT, Shape
from hpxfer.scaling.table import Column
from hpxfer.spec import MLP, Activation, Balance, RouterBias
from hpxfer.trial import Setting, Trial

Gate = Literal["sigmoid", "softmax", "normalized_softmax"]
# Two classes. Cross entropy is then log(1 + exp(-y f)) of the difference f of the two outputs, whose gradient stays of
# order 1, as the papers assume. That of a squared error would cross zero within a few steps.
CLASSES = 2


@dataclass(frozen=True, kw_only=True)
class Options:
    """The check's own model: one block, of MSSP (two matrices per expert) or of Why Routers Freeze (one)."""

    expert_matrices: Literal[1, 2] = 2
    gate: Gate = "sigmoid"
    activation: Activation = "linear"
    input_activation: Activation = "linear"
    router_bias: RouterBias = "none"
    num_active: int | None = None  # top-k; None: that of the shape
    inputs: int = 32  # features of a sample
    samples: int = 4


def options_of(
    gate: str | None, activation: str | None, matrices: int | None, top_k: int | None, bias: str | None
) -> Options | None:
    """Return the options that the command line names, or None if it names none."""
    legal = {"gate": get_args(Gate), "activation": get_args(Activation), "bias": get_args(RouterBias)}
    for name, given in (("gate", gate), ("activation", activation), ("bias", bias)):
        if given is not None and given not in legal[name]:
            raise HpxferError(f"--{name}: unknown {name} {shown(given)}; {nearest(given, legal[name])}")
    if matrices is not None and matrices not in (1, 2):
        raise HpxferError(f"--matrices: must be 1 or 2, got {matrices}")
    if top_k is not None and top_k < 1:
        raise HpxferError(f"--top-k: must be at least 1 active expert, got {top_k}")
    named: dict[str, Any] = {"gate": gate, "activation": activation, "expert_matrices": matrices, "num_active": top_k}
    chosen = {name: value for name, value in {**named, "router_bias": bias}.items() if value is not None}
    return Options(**chosen) if chosen else None


@dataclass(frozen=True, kw_only=True)
class Training:
    """The base HPs of a run. The table multiplies lr and eps."""

    lr: float
    eps: float = 0.1
    adamw_lr: float = 0.0  # under Muon


# This eps is as large as the gradients, so that the table's factor on eps has an effect (it is faithful, Why Routers
# Freeze, Def. 7). The LRs change features by a good part of their size, and f by a few units.
ADAM = Training(lr=0.1)
SGD = Training(lr=2.0)
# Where all dimensions grow, f learns faster. A larger LR would end its training before gradients show a slope.
SGD_III = Training(lr=1.0)


def default_training(choice: Parameterization, optimizer: Column) -> Training:
    """Return the base HPs at which a check trains its own model."""
    if optimizer == "adam":
        return ADAM
    if (muon := muon_of(optimizer)) is not None:
        # At the base all matrices are 1 x 1, where sqrt(out/in) is 1.
        return Training(lr=ADAM.lr / muon.factor(1.0, 1.0), adamw_lr=ADAM.lr)
    return SGD_III if choice.table.regime == "III" else SGD


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """Samples of length 1, whose classes take turns. Every step, width and seed has the same batch."""

    options: Options

    def train_batches(self, seed: int, first_step: int, num_steps: int) -> tuple[Any, Any]:
        """Return inputs float32 [steps, batch, inputs] and classes int64 [steps, batch]."""
        number = int.from_bytes(hashlib.blake2b(b"x", digest_size=8).digest(), "little") >> 1
        x = torch.randn(self.options.samples, self.options.inputs, generator=torch.Generator().manual_seed(number))
        x = (x / x.norm(dim=1, keepdim=True)).numpy()
        classes = np.arange(self.options.samples, dtype=np.int64) % CLASSES
        return np.stack([x] * num_steps), np.stack([classes] * num_steps)

    def validation_batches(self) -> Iterator[tuple[Any, Any]]:
        """Yield nothing: a check holds out no samples."""
        return iter(())


def own_trials(
    choice: Parameterization,
    optimizer: Column,
    shape: Shape,
    options: Options,
    training: Training,
    *,
    seeds: Sequence[int],
    steps: int,
) -> list[Trial]:
    """Return one trial per seed of the check's own model at a shape. Raise HpxferError if it cannot have this shape.

    f is a difference of two outputs whose weights get opposite gradients. So the readout starts smaller by 2^-1/2 and
    has half the LR: f then starts and moves as that of a single output.
    """
    shape = replace(shape, depth=1, head_dim=0, num_active=options.num_active or shape.num_active)
    _check_shape(shape, options)
    known = {row.role for row in choice.rows(optimizer)}
    needed = ("embedding", "router", *(("expert_in",) if options.expert_matrices == 2 else ()), "expert_out", "readout")
    if missing := [role for role in needed if role not in known]:
        raise HpxferError(
            f"parameterization {choice.name}: the family mlp needs the role {missing[0]}, for which it has no row; "
            "check it with --architecture gpt"
        )
    setting = Setting(
        family="mlp",
        context=1,
        gate=options.gate,
        mlp=MLP(
            input_activation=options.input_activation,
            activation=options.activation,
            expert_matrices=options.expert_matrices,
            aggregation="1/K" if options.gate == "sigmoid" else "none",
            router_bias=options.router_bias,
        ),
        init=BaseInit(embedding_std=1.0),  # the fan-in is a constant, and the samples have length 1
        data_source="",
        data_digest="",
        tokenizer="none",
        vocab_size=CLASSES,
        num_inputs=options.inputs,
        batch_tokens=options.samples,
        steps=steps + 1,  # the gradient after the last update is measured too
        optimizer="adamw" if optimizer == "adam" else optimizer,
        final_window_steps=1,
        validation_tokens=options.samples,
        balance=Balance(bias="none"),
        ties="random" if choice.zero_router(optimizer) and shape.num_active < shape.num_experts else "index",
    )
    hps = HPs(
        lr=training.lr,
        adamw_lr=training.adamw_lr,
        momentum=0.0 if muon_of(optimizer) is None else MOMENTUM,
        eps=training.eps,
        router_bias_lr=0.0,
        multipliers=(("readout.init_mult", 0.5**0.5), ("readout.lr_mult", 0.5)),
    )
    return [
        Trial(
            id=f"check {choice.label()} {shape.label()} seed {seed}",
            setting=setting,
            shape=shape,
            base=UNIT,
            parameterization=choice,
            hps=hps,
            seed=seed,
        )
        for seed in seeds
    ]


def _check_shape(shape: Shape, options: Options) -> None:
    """Raise HpxferError unless the check's own model can have this shape: one with routed experts only."""
    where = f"mlp: shape {shape.label()}"
    if not shape.num_experts:
        raise HpxferError(f"{where}: num_experts must be at least 1, got 0; a dense model is checked with gpt")
    for name in ("num_shared", "dense_width"):
        if getattr(shape, name):
            raise HpxferError(f"{where}: {name} must be 0, got {getattr(shape, name)}; check it with gpt")
    if shape.num_groups != 1:
        raise HpxferError(f"{where}: num_groups must be 1, got {shape.num_groups}; check it with gpt")
    if not 1 <= shape.num_active <= shape.num_experts:
        raise HpxferError(
            f"{where}: num_active must be from 1 to the {shape.num_experts} experts, got {shape.num_active}"
        )
    if options.expert_matrices == 1 and shape.expert_width != shape.width:
        raise HpxferError(
            f"{where}: expert_width must be the width {shape.width} where an expert is a single matrix, "
            f"got {shape.expert_width}"
        )
