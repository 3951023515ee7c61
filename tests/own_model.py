"""A GPT with a mixture of experts as a user of hpxfer would have it: plain torch, a loop over experts, no hpxfer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn


class Dims(Protocol):
    """The dimensions that the model reads; an hpxfer Shape has them."""

    width: int
    depth: int
    num_experts: int
    num_active: int
    expert_width: int
    head_dim: int


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


class Attention(nn.Module):
    def __init__(self, width: int, head_dim: int, scale: float, biases: bool) -> None:
        super().__init__()
        self.head_dim, self.scale = head_dim, scale
        self.query = nn.Linear(width, width, bias=biases)
        self.key = nn.Linear(width, width, bias=biases)
        self.value = nn.Linear(width, width, bias=biases)
        self.out = nn.Linear(width, width, bias=biases)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def heads(y: torch.Tensor) -> torch.Tensor:
            return y.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

        q, k, v = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        return self.out(y.transpose(1, 2).flatten(2))


class Expert(nn.Module):
    def __init__(self, width: int, hidden: int, biases: bool) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=biases)
        self.down = nn.Linear(hidden, width, bias=biases)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class MoE(nn.Module):
    router_bias: torch.Tensor

    def __init__(self, shape: Dims, biases: bool) -> None:
        super().__init__()
        self.num_active = shape.num_active
        self.router = nn.Linear(shape.width, shape.num_experts, bias=False)
        self.experts = nn.ModuleList(Expert(shape.width, shape.expert_width, biases) for _ in range(shape.num_experts))
        self.register_buffer("router_bias", torch.zeros(shape.num_experts))
        self.load = torch.zeros(shape.num_experts)  # share of the last batch's tokens that chose each expert

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        gates = torch.sigmoid(self.router(tokens))
        chosen = (gates.detach() + self.router_bias).topk(self.num_active).indices
        active = torch.zeros_like(gates).scatter(1, chosen, 1.0)
        self.load = active.mean(0)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            mine = active[:, number].nonzero().squeeze(1)
            out = out.index_add(0, mine, gates[mine, number].unsqueeze(1) * expert(tokens[mine]))
        return out.view_as(x)

    @torch.no_grad()
    def balance(self, rate: float) -> None:
        """Move the router bias against the load of the last batch."""
        self.router_bias -= rate * (self.load - self.num_active / len(self.experts))


class Block(nn.Module):
    def __init__(self, shape: Dims, multipliers: Mapping[str, float], biases: bool) -> None:
        super().__init__()
        self.multipliers = dict(multipliers)
        self.norm1 = nn.LayerNorm(shape.width, bias=biases)
        self.attention = Attention(shape.width, shape.head_dim, multipliers["attn_logits"], biases)
        self.norm2 = nn.LayerNorm(shape.width, bias=biases)
        self.moe = MoE(shape, biases)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.multipliers["attn_out"] * self.attention(self.norm1(x))
        return x + self.multipliers["expert_out"] * self.moe(self.norm2(x))


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
    ) -> None:
        super().__init__()
        self.readout_multiplier = multipliers["readout"]
        self.token_embedding = nn.Embedding(vocab_size, shape.width)
        self.position_embedding = nn.Embedding(context, shape.width)
        self.blocks = nn.ModuleList(Block(shape, multipliers, biases) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(shape.width, bias=biases)
        self.head = nn.Linear(shape.width, vocab_size, bias=False)
        if tied:
            self.head.weight = self.token_embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits [batch, context, vocab_size] of tokens [batch, context]."""
        x = self.token_embedding(tokens) + self.position_embedding.weight
        for block in self.blocks:
            x = block(x)
        return self.readout_multiplier * self.head(self.norm(x))

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean cross entropy in nats."""
        return F.cross_entropy(self(inputs).flatten(0, 1), targets.flatten())

    def balance(self, rate: float) -> None:
        """Move every layer's router bias; call it after an optimizer step."""
        for block in self.blocks:
            block.moe.balance(rate)
