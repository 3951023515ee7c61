"""A GPT with a mixture of experts as a user of hpxfer would have it: plain torch, a loop over experts, no hpxfer."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Dims = Any  # what has the dimensions that the model reads, such as an hpxfer Shape
# Name pattern -> role, for `OwnGPT(...)` with and without tied embeddings.
ROLES = {
    "token_embedding.weight": "embedding",
    "position_embedding.weight": "position",
    "blocks.*.norm*.weight": "norm",
    "norm.weight": "final_norm",
    "*.attention.query.weight": "attn_q",
    "*.attention.key.weight": "attn_k",
    "*.attention.value.weight": "attn_v",
    "*.attention.out.weight": "attn_out",
    "*.moe.router.weight": "router",
    "*.moe.router_bias": "router_bias",
    "*.up.weight": "expert_in",
    "*.down.weight": "expert_out",
    "head.weight": "readout",
}
# The same for `OwnGPT(..., biases=True)`.
ROLES_WITH_BIASES = {**ROLES, "*.bias": "hidden_bias"}
# The same for every option at once; `roles_of` leaves out what a model does not have.
ALL_ROLES = {pattern: role for pattern, role in ROLES_WITH_BIASES.items() if not role.startswith("expert_")} | {
    f"*.{place}{layer}.weight": f"{kind}_{part}"
    for kind, place in (("expert", "experts.*."), ("shared", "shared.*."), ("dense", "dense."))
    for layer, part in (("up", "in"), ("gate", "gate"), ("down", "out"))
}


class Attention(nn.Module):
    def __init__(self, width: int, head_dim: int, scale: float, biases: bool) -> None:
        super().__init__()
        self.head_dim, self.scale = head_dim, scale
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=biases) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def heads(y: torch.Tensor) -> torch.Tensor:
            return y.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

        q, k, v = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        return self.out(y.transpose(1, 2).flatten(2))


class FFN(nn.Module):
    """A dense FFN, or one expert: down(gelu(up(x))), or with a gate down(silu(gate(x)) * up(x))."""

    def __init__(self, width: int, hidden: int, *, swiglu: bool, biases: bool) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=biases)
        self.gate = nn.Linear(width, hidden, bias=biases) if swiglu else None
        self.down = nn.Linear(hidden, width, bias=biases)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up = self.up(x)
        return self.down(F.gelu(up) if self.gate is None else F.silu(self.gate(x)) * up)


class MoE(nn.Module):
    """Routed and shared experts, each sum times its forward multiplier."""

    router_bias: torch.Tensor

    def __init__(self, shape: Dims, multipliers: Mapping[str, float], gate: str, swiglu: bool, biases: bool) -> None:
        super().__init__()
        self.num_active, self.num_groups, self.gate = shape.num_active, shape.num_groups, gate
        self.multipliers = dict(multipliers)
        self.router = nn.Linear(shape.width, shape.num_experts, bias=False)

        def experts(count: int, hidden: int) -> nn.ModuleList:
            return nn.ModuleList(FFN(shape.width, hidden, swiglu=swiglu, biases=biases) for _ in range(count))

        self.experts = experts(shape.num_experts, shape.expert_width)
        self.shared = experts(shape.num_shared, shape.shared_width)
        self.register_buffer("router_bias", torch.zeros(shape.num_experts))
        self.load = torch.zeros(shape.num_experts)  # share of the last batch's tokens that chose each expert

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        # A table without a factor for the router's logits leaves them as they are.
        gates, active = self.route(self.multipliers.get("router", 1.0) * self.router(tokens))
        self.load = active.mean(0)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            mine = active[:, number].nonzero().squeeze(1)
            out = out.index_add(0, mine, gates[mine, number].unsqueeze(1) * expert(tokens[mine]))
        out = self.multipliers["expert_out"] * out
        for expert in self.shared:
            out = out + self.multipliers["shared_out"] * expert(tokens)
        return out.view_as(x)

    def route(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gates of all experts, and 1 where an expert is active."""
        scale = 1.0 if self.gate == "sigmoid" else self.multipliers["route_scale"]
        gates = scale * logits.softmax(-1) if self.gate == "softmax" else torch.sigmoid(logits)
        scores = (gates.detach() + self.router_bias).unflatten(-1, (self.num_groups, -1))
        chosen = scores.topk(self.num_active // self.num_groups).indices
        active = torch.zeros_like(scores).scatter(-1, chosen, 1.0).flatten(-2)
        if self.gate == "normalized_sigmoid":
            gates = scale * gates / (active * gates).sum(-1, keepdim=True)
        if self.gate == "sigmoid":  # a fixed factor on the gates, if the base has one
            gates = self.multipliers.get("route_scale", 1.0) * gates
        return gates, active

    @torch.no_grad()
    def balance(self, rate: float) -> None:
        """Move the router bias against the load of the last batch."""
        self.router_bias -= rate * (self.load - self.num_active / len(self.experts))


class Block(nn.Module):
    """Attention, then a MoE layer or a dense FFN."""

    def __init__(
        self, shape: Dims, multipliers: Mapping[str, float], gate: str, *, moe: bool, swiglu: bool, biases: bool
    ) -> None:
        super().__init__()
        self.multipliers = dict(multipliers)
        self.norm1 = nn.LayerNorm(shape.width, bias=biases)
        self.attention = Attention(shape.width, shape.head_dim, multipliers["attn_logits"], biases)
        self.norm2 = nn.LayerNorm(shape.width, bias=biases)
        self.moe = MoE(shape, multipliers, gate, swiglu, biases) if moe else None
        self.dense = None if moe else FFN(shape.width, shape.dense_width, swiglu=swiglu, biases=biases)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.multipliers["attn_out"] * self.attention(self.norm1(x))
        if self.moe is not None:
            return x + self.moe(self.norm2(x))
        assert self.dense is not None
        return x + self.multipliers["dense_out"] * self.dense(self.norm2(x))


class OwnGPT(nn.Module):
    """`multipliers` is what `Recipe.forward_multipliers` returns."""

    def __init__(
        self,
        shape: Dims,
        vocab_size: int,
        context: int,
        multipliers: Mapping[str, float],
        *,
        biases: bool = False,
        tied: bool = False,
        gate: str = "sigmoid",
        swiglu: bool = False,
        moe_every: int = 1,
    ) -> None:
        super().__init__()
        self.embedding_multiplier = multipliers.get("embedding", 1.0)
        self.readout_multiplier = multipliers["readout"]
        self.token_embedding = nn.Embedding(vocab_size, shape.width)
        self.position_embedding = nn.Embedding(context, shape.width)
        moes = [shape.num_experts > 0 and block % moe_every == moe_every - 1 for block in range(shape.depth)]
        given = {"swiglu": swiglu, "biases": biases}
        self.blocks = nn.ModuleList(Block(shape, multipliers, gate, moe=moe, **given) for moe in moes)
        self.norm = nn.LayerNorm(shape.width, bias=biases)
        self.head = nn.Linear(shape.width, vocab_size, bias=False)
        if tied:
            self.head.weight = self.token_embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits [batch, context, vocab_size] of tokens [batch, context]."""
        x = self.embedding_multiplier * self.token_embedding(tokens) + self.position_embedding.weight
        for block in self.blocks:
            x = block(x)
        return self.readout_multiplier * self.head(self.norm(x))

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean cross entropy in nats."""
        return F.cross_entropy(self(inputs).flatten(0, 1), targets.flatten())

    def balance(self, rate: float) -> None:
        """Move every layer's router bias; call it after an optimizer step."""
        for block in self.blocks:
            if block.moe is not None:
                block.moe.balance(rate)


def roles_of(model: nn.Module) -> dict[str, str]:
    """Return name pattern -> role for an `OwnGPT` of any options."""
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    return {pattern: role for pattern, role in ALL_ROLES.items() if any(fnmatch(name, pattern) for name in names)}
