"""Trials that a class of transformers computes, with random gains and biases, and that class with their weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from tiny_trials import SETTING, random_like, trial
from torch import Tensor

from hpxfer.kernels.routing import BY_INDEX  # noqa: F401
from hpxfer.model.draws import draw
from hpxfer.model.flat import FlatLayout
from hpxfer.model.gpt.layout import gpt_parameters
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape
from hpxfer.spec import moe_blocks
from hpxfer.spec.model_section import Balance
from hpxfer.trial import Trial
from hpxfer.weights.files import transformers_model
from hpxfer.weights.trained import TrialWeights, parameters_of, weights_of

BASE = Shape(width=16, depth=2, head_dim=8, num_experts=4, num_active=2, expert_width=24)
MODERN: dict[str, Any] = {
    "norm": "rmsnorm",
    "norm_eps": 1e-6,
    "norm_gains": True,
    "positions": "rope",
    "rope_theta": 1e4,
    "ffn": "swiglu",
    "attention_scale": "1/sqrt(d_head)",
    "tied_embeddings": False,
    "vocab_size": 40,
    "balance": Balance(bias="none", aux="transformers"),
}
GLM = {**MODERN, "gate": "normalized_sigmoid", "rope_share": 0.5, "balance": Balance(bias="sign")}
DENSE: dict[str, Any] = {"num_experts": 0, "num_active": 0, "expert_width": 0, "dense_width": 40}
NORMALIZED, SOFT, ON_HEADS = {"gate": "normalized_softmax"}, {"gate": "softmax"}, {"qk_norm": "head"}
STEEP, BIASED, TIED = (
    {"attention_scale": "1/d_head"},
    {"qkv_biases": True},
    {"tied_embeddings": True, "norm_gains": False},
)
ONE_SHARED, HEADS, TWICE = (
    {"num_shared": 1, "shared_width": 24},
    {"num_heads": 4, "kv_heads": 2},
    {"num_heads": 8, "kv_heads": 4},
)
# Class, base, how the target differs, options, table.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "mixtral": ("mixtral", {}, {}, NORMALIZED, "sp"),
    "mixtral, away": (
        *("mixtral", {"kv_heads": 1}),
        {"width": 32, "depth": 3, "num_experts": 8, "num_active": 4, "expert_width": 40, "kv_heads": 2},
        *({**NORMALIZED, **STEEP, "route_scale": 1.5}, "completep-moe"),
    ),
    "mixtral, tied": ("mixtral", {}, {"width": 32, "expert_width": 48}, {**NORMALIZED, **TIED}, "completep-moe"),
    "qwen3_moe": ("qwen3_moe", {"kv_heads": 1}, {}, {**SOFT, **ON_HEADS}, "sp"),
    "qwen3_moe, away": (
        *("qwen3_moe", HEADS, {"width": 32, **TWICE, "depth": 3, "dense_width": 40}),
        *({**NORMALIZED, **ON_HEADS, **STEEP, **BIASED, "moe_every": 2}, "complete-mue"),
    ),
    "olmoe": ("olmoe", {}, {}, {**SOFT, "qk_norm": "all"}, "sp"),
    "olmoe, away": (
        *("olmoe", {}, {"width": 32, "num_experts": 8, "num_active": 4, "kv_heads": 2}),
        *({**SOFT, **STEEP, "qk_norm": "all"}, "mup-moe"),
    ),
    "qwen2_moe, away": (
        *("qwen2_moe", ONE_SHARED, {"width": 32, "expert_width": 48, "shared_width": 48}),
        *({**SOFT, **BIASED, **STEEP, "shared_expert_gate": True}, "complete-mue"),
    ),
    "glm4_moe": ("glm4_moe", ONE_SHARED, {}, {**GLM, "route_scale": 2.5}, "sp"),
    "glm4_moe, away": (
        *("glm4_moe", {"num_shared": 2, "shared_width": 24, "dense_width": 40}),
        {"width": 32, "depth": 3, "expert_width": 48, "shared_width": 48, "dense_width": 80},
        *({**GLM, **ON_HEADS, **BIASED, **STEEP, "dense_first": 1}, "complete-mue"),
    ),
    "glm4_moe, groups": (
        *("glm4_moe", {"num_experts": 12, "num_active": 3, "num_groups": 4, **ONE_SHARED}, {}),
        *({**GLM, "top_groups": 2}, "sp"),
    ),
    "llama, away": (
        *("llama", {**DENSE, "kv_heads": 1}, {"width": 32, "depth": 3, "dense_width": 80, "kv_heads": 2}),
        *({**STEEP, **BIASED}, "completep-moe"),
    ),
    "llama, tied": ("llama", DENSE, {"width": 32}, TIED, "mup-moe"),
    "qwen3, away": (
        *("qwen3", {**DENSE, **HEADS}, {"width": 32, **TWICE, "depth": 3}),
        *({**ON_HEADS, **STEEP}, "complete-mue"),
    ),
    "glm4_moe, no shared experts": ("glm4_moe", {}, {}, {**GLM, "gate": "sigmoid"}, "completep-moe"),
}


def drawn(trial: Trial) -> TrialWeights:
    """Return the initial weights of a trial."""
    layout = FlatLayout(parameters=parameters_of(trial), num_trials=1)
    stds = {role: values.init_std for role, values in trial.resolved().items()}
    flat = draw(layout, [trial.seed], [stds], [trial.structure().tied_experts], method=trial.setting.init_draw)
    layers = len(moe_blocks(trial.shape, trial.setting))
    return weights_of(trial, 0, layout, flat, torch.zeros(layers, 1, trial.shape.num_experts))


def weights_of_case(name: str, **changes: Any) -> TrialWeights:
    """Return weights as training might leave them: no gain is 1, and no bias 0."""
    _, base, target, options, table = CASES[name]
    setting = replace(SETTING, **{**MODERN, **options, **changes})
    at_base = replace(BASE, **base)
    hps = HPs(lr=2.0**-6, residual_scale=0.8, init_scale=2.0)
    made = drawn(replace(trial(setting, replace(at_base, **target), table, hps=hps, seed=3), base=at_base))
    tensors = {
        key: tuple(
            copy + random_like(copy, seed, 0.3) if "norm" in key or key.endswith("bias") else copy
            for seed, copy in enumerate(copies)
        )
        for key, copies in made.tensors.items()
    }
    has_bias = made.trial.setting.balance.bias != "none"
    bias = random_like(made.router_bias, 5, 0.2) if has_bias else made.router_bias
    return replace(made, tensors=tensors, router_bias=bias)


def hf_model(weights: TrialWeights) -> transformers.PreTrainedModel:
    """Return the model of transformers with these weights."""
    model = transformers_model(weights)
    model.set_attn_implementation("eager")
    return model


@dataclass(frozen=True, kw_only=True, eq=False)
class Stacked:
    """Our model of one trial with given weights."""

    weights: TrialWeights

    @property
    def trial(self) -> Trial:
        return self.weights.trial

    def leaves(self) -> dict[str, tuple[Tensor, ...]]:
        return {
            name: tuple(copy.unsqueeze(0).clone().requires_grad_() for copy in copies)
            for name, copies in self.weights.tensors.items()
        }

    def layout(self) -> FlatLayout:
        return FlatLayout(parameters=gpt_parameters(self.trial.shape, self.trial.setting), num_trials=1)


def tokens(trial: Trial) -> tuple[Tensor, Tensor]:
    """Return inputs and targets [1, B, S]."""
    setting = trial.setting
    size = (2, 1, setting.batch_tokens // setting.context, setting.context)
    inputs, targets = torch.randint(setting.vocab_size, size, generator=torch.Generator().manual_seed(4))
    return inputs, targets
