"""The built-in GPT as the plainest code: one trial, one sequence, one head, one token and one expert at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from hpxfer.scaling.shape import Shape
from hpxfer.trial import Setting

Layers = Mapping[str, tuple[Tensor, ...]]  # of one trial: one copy per block that has the parameter


@dataclass(frozen=True, kw_only=True)
class PlainGPT:
    """The model of one trial; `c` are its forward multipliers."""

    shape: Shape
    setting: Setting
    w: Layers
    c: Mapping[str, float]
    route_scale: float
    bias_LE: Tensor  # balances the load, one row per MoE layer
    noise_LE: Tensor  # b_t

    def losses(self, inputs_BS: Tensor, targets_BS: Tensor) -> Tensor:
        """Return the cross entropy of every token, [B*S]."""
        out = []
        for inputs, targets in self.documents(inputs_BS, targets_BS):
            x = self.c["embedding"] * self.w["embedding"][0][inputs]
            if self.setting.positions == "learned":
                x = x + self.w["position"][0][: len(inputs)]
            moe = dense = 0
            for block in range(self.shape.depth):
                x = x + self.c["attn_out"] * self.attention(block, self.norm("attn_norm", block, x))
                h = self.norm("ffn_norm", block, x)
                if self.is_moe(block):
                    x = x + torch.stack([self.moe(moe, token) for token in h])
                    moe += 1
                else:
                    x = x + torch.stack([self.c["dense_out"] * self.ffn("dense", dense, (), token) for token in h])
                    dense += 1
            h = self.norm("final_norm", 0, x)
            tied = self.setting.tied_embeddings
            logits = self.c["readout"] * (h @ (self.w["embedding"][0].T if tied else self.w["readout"][0]))
            for token, target in zip(logits, targets, strict=True):
                out.append(torch.log(torch.exp(token).sum()) - token[target])
        return torch.stack(out)

    def is_moe(self, block: int) -> bool:
        """Whether the block is the last of moe_every blocks, counted from dense_first."""
        past = block - self.setting.dense_first
        return (
            bool(self.shape.num_experts) and past >= 0 and past % self.setting.moe_every == self.setting.moe_every - 1
        )

    def norm(self, name: str, layer: int, x: Tensor, kind: str | None = None) -> Tensor:
        is_rms = (kind or self.setting.norm) == "rmsnorm"
        center = x if is_rms else x - x.mean(-1, keepdim=True)
        y = center / torch.sqrt((center**2).mean(-1, keepdim=True) + self.setting.norm_eps)
        if name in self.w:
            y = y * self.w[name][layer]
        return y + self.w[f"{name}_bias"][layer] if f"{name}_bias" in self.w else y

    def linear(self, name: str, layer: int, at: tuple[int, ...], x: Tensor) -> Tensor:
        """Return x @ w + b; `at` is the expert, if the tensor holds several."""
        y = x @ self.w[name][layer][at]
        return y + self.w[f"{name}_bias"][layer][at] if f"{name}_bias" in self.w else y

    def ffn(self, kind: str, layer: int, at: tuple[int, ...], h: Tensor) -> Tensor:
        up = self.linear(f"{kind}_in", layer, at, h)
        if self.setting.ffn == "swiglu":
            gate = self.linear(f"{kind}_gate", layer, at, h)
            return self.linear(f"{kind}_out", layer, at, gate / (1 + torch.exp(-gate)) * up)
        if self.setting.ffn == "relu":
            return self.linear(f"{kind}_out", layer, at, torch.where(up > 0, up, torch.zeros_like(up)))
        return self.linear(f"{kind}_out", layer, at, up * 0.5 * (1 + torch.erf(up / 2**0.5)))

    def documents(self, inputs_BS: Tensor, targets_BS: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the windows, or each document of a window as if nothing else were there."""
        for inputs, targets in zip(inputs_BS, targets_BS, strict=True):
            ends = [i + 1 for i, token in enumerate(inputs.tolist()) if token == self.setting.document_eos]
            bounds = sorted({0, *ends, len(inputs)})
            for low, high in pairwise(bounds):
                yield inputs[low:high], targets[low:high]

    def attention(self, layer: int, h_SD: Tensor) -> Tensor:
        q, k, v = (self.linear(name, layer, (), h_SD) for name in ("attn_q", "attn_k", "attn_v"))
        head_dim = self.shape.head_dim
        scale = head_dim if self.setting.attention_scale == "1/d_head" else head_dim**0.5
        if self.setting.qk_norm == "all":
            q, k = (self.norm(name, layer, x, self.setting.qk_norm_kind) for name, x in (("q_norm", q), ("k_norm", k)))
        heads = []
        for low in range(0, q.shape[1], head_dim):
            group = low // head_dim * k.shape[1] // q.shape[1] * head_dim  # where the head's keys begin
            query, key = q[:, low : low + head_dim], k[:, group : group + head_dim]
            if self.setting.qk_norm == "head":
                query, key = (
                    self.norm(name, layer, x, self.setting.qk_norm_kind)
                    for name, x in (("q_norm", query), ("k_norm", key))
                )
            if self.setting.positions == "rope":
                query, key = self.rotated(query), self.rotated(key)
            scores = query @ key.T / scale
            future = torch.ones_like(scores).triu(1).bool()
            weight = torch.exp(scores.masked_fill(future, -torch.inf))
            heads.append(weight / weight.sum(-1, keepdim=True) @ v[:, group : group + head_dim])
        out = torch.cat(heads, -1)
        if self.setting.attention_gate:
            out = out / (1 + torch.exp(-self.linear("attn_gate", layer, (), h_SD)))
        return self.linear("attn_out", layer, (), out)

    def rotated(self, x_SP: Tensor) -> Tensor:
        """Turn the pairs (i, i + half) of complex numbers by position * theta^(-2i/R)."""
        half = int(self.shape.head_dim * self.setting.rope_share) // 2
        pairs = torch.complex(x_SP[:, :half], x_SP[:, half : 2 * half])
        angles = [
            [position * self.setting.rope_theta ** (-i / half) for i in range(half)] for position in range(len(x_SP))
        ]
        turned = pairs * torch.exp(1j * torch.tensor(angles, dtype=x_SP.dtype))
        return torch.cat([turned.real, turned.imag, x_SP[:, 2 * half :]], -1)

    def moe(self, layer: int, h_D: Tensor) -> Tensor:
        logits = h_D @ self.w["router"][layer]
        if self.setting.learned_router_bias:
            logits = logits + self.w["router_logit_bias"][layer]
        logits = self.c["router"] * logits + self.noise_LE[layer]
        out = torch.zeros_like(h_D)
        for expert, gate in self.gates(layer, logits).items():
            out = out + self.c["expert_out"] * self.setting.route_scale * gate * self.ffn(
                "expert", layer, (expert,), h_D
            )
        for shared in range(self.shape.num_shared):
            gate = torch.tensor(1.0, dtype=h_D.dtype)
            if self.setting.shared_expert_gate:
                gate = 1 / (1 + torch.exp(-self.c["router"] * (h_D @ self.w["shared_router"][layer][:, shared])))
            out = out + self.c["shared_out"] * gate * self.ffn("shared", layer, (shared,), h_D)
        return out

    def gates(self, layer: int, logits_E: Tensor) -> dict[int, Tensor]:
        """Return active expert -> the weight of its output."""
        gates = 1 / (1 + torch.exp(-logits_E))
        if self.setting.gate in ("softmax", "normalized_softmax"):
            gates = torch.exp(logits_E) / torch.exp(logits_E).sum()
        if self.setting.gate == "softmax":
            gates = self.route_scale * gates
        active = self.active(gates + self.bias_LE[layer])
        if self.setting.gate.startswith("normalized"):
            gates = self.route_scale * gates / sum(gates[expert] for expert in active)
        return {expert: gates[expert] for expert in active}

    def active(self, scores_E: Tensor) -> list[int]:
        """Return the best experts of each group."""
        size = self.shape.num_experts // self.shape.num_groups
        if self.setting.top_groups:
            starts = range(0, self.shape.num_experts, size)
            best_two = {first: sum(sorted(scores_E[first : first + size].tolist())[-2:]) for first in starts}
            starts_of_best = sorted(starts, key=lambda first: -best_two[first])[: self.setting.top_groups]
            allowed = [first + index for first in starts_of_best for index in range(size)]
            return sorted(allowed, key=lambda expert: -float(scores_E[expert].detach()))[: self.shape.num_active]
        out: list[int] = []
        for first in range(0, self.shape.num_experts, size):
            best = sorted(range(first, first + size), key=lambda expert: -float(scores_E[expert].detach()))
            out += best[: self.shape.num_active // self.shape.num_groups]
        return out
