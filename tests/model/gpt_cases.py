"""Models with every option, two trials each, and what the plainest code makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from plain_gpt import PlainGPT
from tiny_trials import BASE, JOINT, SETTING, random_like, trial
from torch import Tensor

from hpxfer.model.draws import draw
from hpxfer.model.flat import FlatLayout, Weights, gradients
from hpxfer.model.gpt.forward import GPTForward, build_gpt
from hpxfer.model.gpt.layout import gpt_parameters
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape
from hpxfer.spec.blocks import moe_blocks

SMALL = replace(SETTING, context=8, batch_tokens=32, vocab_size=40)
RESIDUAL = HPs(lr=1.0, residual_scale=0.7, multipliers=(("embedding.forward_mult", 2.0),))
CPU = torch.device("cpu")

TWO = replace(JOINT, depth=2)
GROUPED = replace(TWO, num_groups=2)
SHARED = replace(TWO, num_shared=3, shared_width=24)
# A dense block, then one with routed and shared experts, then both again.
MIXED = replace(SHARED, depth=4, num_groups=2, dense_width=40)
DENSE = Shape(width=32, depth=2, head_dim=8, dense_width=48)
MODERN: dict[str, Any] = {"norm": "rmsnorm", "norm_eps": 1e-3, "positions": "rope", "rope_theta": 50.0, "ffn": "swiglu"}
CASES: dict[str, tuple[Shape, dict[str, Any], str]] = {
    "base": (BASE, {}, "sp"),
    "joint": (JOINT, {}, "completep-moe"),
    "tied": (TWO, {"tied_embeddings": True}, "completep-moe"),
    "gains and biases": (TWO, {"norm_gains": True, "biases": True}, "completep-moe"),
    "softmax": (TWO, {"gate": "softmax"}, "sp"),
    "1/sqrt(d_head)": (BASE, {"attention_scale": "1/sqrt(d_head)"}, "sp"),
    "normalized": (TWO, {"gate": "normalized_sigmoid"}, "completep-moe"),
    "normalized, one active": (BASE, {"gate": "normalized_sigmoid"}, "sp"),
    "softmax in groups": (GROUPED, {"gate": "softmax"}, "completep-moe"),
    "normalized in groups": (GROUPED, {"gate": "normalized_sigmoid"}, "sp"),
    "swiglu": (TWO, {"ffn": "swiglu", "biases": True}, "completep-moe"),
    "shared": (SHARED, {"biases": True}, "complete-mue"),
    "one shared, swiglu": (replace(SHARED, num_shared=1), {"ffn": "swiglu"}, "complete-mue"),
    "dense": (DENSE, {"biases": True, "norm_gains": True}, "completep"),
    "dense, swiglu": (DENSE, {"ffn": "swiglu"}, "complete-mue"),
    "dense first": (replace(MIXED, depth=3), {"dense_first": 2}, "complete-mue"),
    "mixed": (
        MIXED,
        {"moe_every": 2, "ffn": "swiglu", "gate": "normalized_sigmoid", "biases": True, "norm_gains": True},
        "complete-mue",
    ),
    "rmsnorm, rope, grouped heads": (
        replace(TWO, num_heads=6, kv_heads=2),
        {**MODERN, "gate": "normalized_softmax", "norm_gains": True},
        "completep-moe",
    ),
    "norms of heads": (
        replace(TWO, kv_heads=2),
        {**MODERN, "qk_norm": "head", "norm_gains": True, "rope_share": 0.5, "qkv_biases": True},
        "mup-moe",
    ),
    "norms of all heads": (
        replace(JOINT, kv_heads=4),
        {"qk_norm": "all", "norm": "rmsnorm", "norm_gains": True, "positions": "none", "biases": True},
        "completep-moe",
    ),
    "layer norms of queries": (
        TWO,
        {"qk_norm": "head", "qk_norm_kind": "layernorm", "norm_gains": True, "biases": True, "norm_eps": 0.5},
        "sp",
    ),
    "gated attention, relu": (
        replace(TWO, num_heads=2),
        {"attention_gate": True, "ffn": "relu", "biases": True, "route_scale": 2.5, "learned_router_bias": True},
        "completep-moe",
    ),
    "the best groups": (
        replace(TWO, num_experts=12, num_active=3, num_groups=4),
        {"top_groups": 2, "gate": "normalized_sigmoid"},
        "completep-moe",
    ),
    "documents": (TWO, {"document_eos": 3, "vocab_size": 8}, "completep-moe"),
    "documents, rope": (
        replace(TWO, kv_heads=2),
        {**MODERN, "document_eos": 0, "vocab_size": 5, "tied_embeddings": True},
        "complete-mue",
    ),
    "gated shared experts": (
        replace(MIXED, kv_heads=1, num_shared=2),
        {**MODERN, "moe_every": 2, "shared_expert_gate": True, "biases": True, "learned_router_bias": True},
        "complete-mue",
    ),
}


class Case:
    """Two trials of unlike seeds and residual scales.

    Gains, biases, balancing biases, b_t, route scales and the router's and the readout's multipliers are random.
    """

    def __init__(self, shape: Shape, changes: Mapping[str, Any], name: str) -> None:
        self.shape, self.setting = shape, replace(SMALL, **changes)
        trials = [
            trial(self.setting, shape, name, seed=k, hps=replace(RESIDUAL, residual_scale=0.7 + k)) for k in (0, 1)
        ]
        made = build_gpt(trials, CPU)
        forward = {role: c * torch.tensor([1.25, 0.75]) for role, c in made.forward.items()}
        self.model = replace(made, forward=forward, route_scale=made.route_scale * torch.tensor([1.5, 0.5]))
        self.layout = FlatLayout(parameters=gpt_parameters(shape, self.setting), num_trials=2)
        stds = [{role: values.init_std for role, values in member.resolved().items()} for member in trials]
        self.weights = self.layout.leaves(draw(self.layout, (0, 1), stds))
        for seed, copy in enumerate(
            c for n, copies in self.weights.items() if "norm" in n or "bias" in n for c in copies
        ):
            copy.detach().add_(random_like(copy, seed, 0.3))
        layers = torch.zeros(len(moe_blocks(shape, self.setting)), 2, shape.num_experts)
        self.bias_LKE, self.noise_LKE = random_like(layers, 1, 0.2), random_like(layers, 4, 0.5)
        generator = torch.Generator().manual_seed(2)
        size = (2, 2, self.setting.batch_tokens // self.setting.context, self.setting.context)
        self.inputs, self.targets = torch.randint(self.setting.vocab_size, size, generator=generator)
        self.grad_KT = random_like(torch.zeros(2, self.setting.batch_tokens), 3)

    def losses(self, model: GPTForward | None = None, *, noise: bool = True) -> Tensor:
        """Return losses [K, T] of the code under test."""
        given = self.noise_LKE if noise else None
        return (model or self.model)(self.weights, self.bias_LKE, self.inputs, self.targets, noise_LKE=given).losses_KT

    def plain(self, dtype: torch.dtype) -> tuple[Tensor, Weights]:
        """Return losses and gradients of the reference."""
        weights = {
            name: tuple(c.detach().to(dtype).requires_grad_() for c in copies) for name, copies in self.weights.items()
        }
        trials = [
            PlainGPT(
                shape=self.shape,
                setting=self.setting,
                w={name: tuple(copy[k] for copy in copies) for name, copies in weights.items()},
                c={role: float(c[k]) for role, c in self.model.forward.items()},
                route_scale=float(self.model.route_scale[k]),
                bias_LE=self.bias_LKE[:, k].to(dtype),
                noise_LE=self.noise_LKE[:, k].to(dtype),
            )
            for k in (0, 1)
        ]
        losses = torch.stack([member.losses(self.inputs[k], self.targets[k]) for k, member in enumerate(trials)])
        return losses, gradients(losses, weights, self.grad_KT.to(dtype))
