"""A diffusion transformer as a user of hpxfer would have it: plain torch, with the names of the public DiT and SiT.

Its parts are chosen: positions that are a frozen parameter, a buffer or learned, experts, a gate of attention, biases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from own_model import MoE
from torch import nn

Dims = Any  # what has the dimensions that the model reads, such as an hpxfer Shape


class PatchEmbed(nn.Module):
    """Patches by a convolution whose steps are patches."""

    def __init__(self, patch: int, channels: int, width: int, *, bias: bool) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, width, kernel_size=patch, stride=patch, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class TimestepEmbedder(nn.Module):
    def __init__(self, width: int, frequencies: int, *, bias: bool) -> None:
        super().__init__()
        self.frequencies = frequencies
        self.mlp = nn.Sequential(
            nn.Linear(frequencies, width, bias=bias), nn.SiLU(), nn.Linear(width, width, bias=bias)
        )

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        half = self.frequencies // 2
        angles = 1000.0 * t[:, None] * powers(half).to(t)
        return self.mlp(torch.cat([angles.cos(), angles.sin()], dim=-1).to(self.mlp[0].weight.dtype))


class LabelEmbedder(nn.Module):
    """Classes, and one row more for none, as guidance without a classifier needs."""

    def __init__(self, classes: int, width: int, *, dropped: bool) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(classes + dropped, width)

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return self.embedding_table(y)


class Attention(nn.Module):
    def __init__(self, width: int, head_dim: int, *, bias: bool, scale: float, gate: bool) -> None:
        super().__init__()
        self.head_dim, self.scale = head_dim, scale
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.q_gate = nn.Linear(width, width, bias=False) if gate else None
        self.proj = nn.Linear(width, width, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, scale=self.scale).transpose(1, 2).flatten(2)
        return self.proj(y if self.q_gate is None else y * self.q_gate(x).sigmoid())


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int, *, bias: bool) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden, bias=bias), nn.Linear(hidden, width, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


def modulate(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class Block(nn.Module):
    def __init__(self, shape: Dims, multipliers: Mapping[str, float], *, bias: bool, gate: bool, swiglu: bool) -> None:
        super().__init__()
        self.multipliers, width = dict(multipliers), shape.width
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        scale = multipliers.get("attn_logits", shape.head_dim**-0.5)
        self.attn = Attention(width, shape.head_dim, bias=bias, scale=scale, gate=gate)
        if shape.num_experts:
            self.moe = MoE(shape, multipliers, "normalized_sigmoid", swiglu, bias)
        else:
            self.mlp = Mlp(width, shape.dense_width, bias=bias)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        s1, g1, a1, s2, g2, a2 = self.adaLN_modulation(c).chunk(6, dim=1)
        by = self.multipliers.get("attn_out", 1.0)
        x = x + a1.unsqueeze(1) * by * self.attn(modulate(self.norm1(x), s1, g1))
        h = modulate(self.norm2(x), s2, g2)
        y = self.moe(h) if hasattr(self, "moe") else self.multipliers.get("dense_out", 1.0) * self.mlp(h)
        return x + a2.unsqueeze(1) * y


class FinalLayer(nn.Module):
    def __init__(self, width: int, features: int, *, bias: bool, by: float) -> None:
        super().__init__()
        self.by = by
        self.norm_final = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.linear = nn.Linear(width, features, bias=bias)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        shift, scale = self.adaLN_modulation(c).chunk(2, dim=1)
        return self.by * self.linear(modulate(self.norm_final(x), shift, scale))


class OwnDiT(nn.Module):
    """`multipliers` is what `Recipe.forward_multipliers` returns, by default that of a model without a recipe.

    `positions` is `frozen` (a parameter that needs no gradient, as in DiT), `buffer` or `learned`.
    """

    def __init__(
        self,
        shape: Dims,
        *,
        side: int = 16,
        patch: int = 4,
        channels: int = 1,
        classes: int = 100,
        frequencies: int = 64,
        multipliers: Mapping[str, float] | None = None,
        biases: bool = True,
        gate: bool = False,
        swiglu: bool = False,
        positions: str = "frozen",
        dropped: bool = True,
    ) -> None:
        super().__init__()
        by, width = multipliers or {}, shape.width
        if shape.num_experts and not multipliers:
            by = {"expert_out": 1.0, "route_scale": 1.0, "shared_out": 1.0}
        self.side, self.patch, self.channels = side, patch, channels
        self.x_embedder = PatchEmbed(patch, channels, width, bias=biases)
        self.t_embedder = TimestepEmbedder(width, frequencies, bias=biases)
        self.y_embedder = LabelEmbedder(classes, width, dropped=dropped)
        places = sincos(side // patch, width).unsqueeze(0)
        if positions == "buffer":
            self.register_buffer("pos_embed", places)
        else:
            self.pos_embed = nn.Parameter(places, requires_grad=positions == "learned")
        options = {"bias": biases, "gate": gate, "swiglu": swiglu}
        self.blocks = nn.ModuleList(Block(shape, by, **options) for _ in range(shape.depth))
        self.final_layer = FinalLayer(width, channels * patch**2, bias=biases, by=by.get("readout", 1.0))

    def forward(self, z: torch.Tensor, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the velocity [B, S*P] of samples [B, c, side, side], patch by patch."""
        x = self.x_embedder(z) + self.pos_embed
        c = self.t_embedder(t) + self.y_embedder(y)
        for block in self.blocks:
            x = block(x, c)
        return self.final_layer(x, c).flatten(1)

    def balance(self, rate: float) -> None:
        """Move every layer's router bias; call it after an optimizer step."""
        for block in self.blocks:
            if hasattr(block, "moe"):
                block.moe.balance(rate)


def powers(count: int) -> torch.Tensor:
    return 10_000.0 ** -(torch.arange(count, dtype=torch.float64) / count)


def sincos(side: int, width: int) -> torch.Tensor:
    """Return the table of places [side * side, width]: of the column, then of the row."""
    angles = torch.arange(side, dtype=torch.float64)[:, None] * powers(width // 4)
    of_one = torch.cat([angles.sin(), angles.cos()], dim=1)
    grid = torch.arange(side * side)
    return torch.cat([of_one[grid % side], of_one[grid // side]], dim=1).float()
