"""The stacked GPT-MoE: K trials of one shape in one forward pass. K = 1 runs this code too; there is no other.

    x = embedding[token] + position
    x <- x + c_attn * attention(norm(x))                     q.k / d_head, causal
    x <- x + c_moe * sum_{i active} g_i(h) * E_i(h)          h = norm(x), g = sigmoid(router(h)), E = down(gelu(up(h)))
    logits = c_out * readout(norm(x))

(arXiv 2601.20205, section 3.1.) The active experts are the num_active largest g_i + b_i; b_i selects only. The c are
the forward multipliers of `scaling.resolve`: c_moe holds the base's 1/num_active. A softmax gate is g = num_active *
softmax(router(h)), so that the average of the block is the usual convex combination.

Letters: K trials, B sequences, S context, T = B*S tokens, D width, H heads, E experts, A active experts, V vocabulary,
L layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from hpxfer.kernels.dispatch import combine, dispatch
from hpxfer.kernels.grouped import grouped_product
from hpxfer.kernels.routing import choose_experts, group_rows
from hpxfer.model.flat import Weights
from hpxfer.scaling.evaluate import Multipliers
from hpxfer.shape import Shape
from hpxfer.trial import Setting

# The roles whose forward multiplier the model applies, each in one place below.
FORWARD_ROLES = ("attn_out", "expert_out", "readout")
ABSENT_ROLES = ("dense_out", "shared_out")  # no such branch here, so their multiplier meets nothing

COMPUTE_DTYPE = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a forward pass gives. Losses are cross entropy in nats."""

    losses_KT: torch.Tensor  # float32
    load_LKE: torch.Tensor  # int64, tokens routed to every expert
    entropy_LK: torch.Tensor | None  # float32, mean entropy of the normalized gates in nats, if probed


@dataclass(frozen=True, kw_only=True)
class GPT:
    """The forward pass of a stack; holds no weights."""

    shape: Shape
    setting: Setting
    num_trials: int
    forward: Mapping[str, torch.Tensor]  # role -> [K] float32, for FORWARD_ROLES

    def __call__(
        self,
        weights: Weights,
        router_bias_LKE: torch.Tensor,
        inputs_KBS: torch.Tensor,
        targets_KBS: torch.Tensor,
        *,
        probe: bool = False,
    ) -> Output:
        """Return per-token losses, expert loads and, if `probe`, router entropies."""
        x_KTD = self._embed(weights, inputs_KBS)
        loads, entropies = [], []
        for layer in range(self.shape.depth):
            x_KTD = x_KTD + self._attention(weights, layer, self._norm(weights, "attn_norm", layer, x_KTD))
            hidden_KTD = self._norm(weights, "moe_norm", layer, x_KTD)
            y_KTD, load_KE, gates_KTE = self._moe(weights, layer, hidden_KTD, router_bias_LKE[layer])
            x_KTD = x_KTD + y_KTD
            loads.append(load_KE)
            if probe:
                entropies.append(_entropy(gates_KTE.detach()))
        losses_KT = self._losses(weights, self._norm(weights, "final_norm", 0, x_KTD), targets_KBS)
        return Output(
            losses_KT=losses_KT, load_LKE=torch.stack(loads), entropy_LK=torch.stack(entropies) if probe else None
        )

    def _embed(self, weights: Weights, inputs_KBS: torch.Tensor) -> torch.Tensor:
        (table_KVD,), (position_KSD,) = weights["embedding"], weights["position"]
        first = torch.arange(self.num_trials, device=inputs_KBS.device).view(-1, 1, 1) * self.setting.vocab_size
        x_KBSD = F.embedding(inputs_KBS + first, table_KVD.flatten(0, 1)) + position_KSD.unsqueeze(1)
        return x_KBSD.flatten(1, 2).to(COMPUTE_DTYPE[self.setting.precision])

    def _norm(self, weights: Weights, name: str, layer: int, x_KTD: torch.Tensor) -> torch.Tensor:
        out = F.layer_norm(x_KTD, x_KTD.shape[-1:])
        if name in weights:
            out = out * weights[name][layer].unsqueeze(1).to(out.dtype)
        if f"{name}_bias" in weights:
            out = out + weights[f"{name}_bias"][layer].unsqueeze(1).to(out.dtype)
        return out

    def _linear(self, weights: Weights, name: str, layer: int, x_KTI: torch.Tensor) -> torch.Tensor:
        """Return x @ w (+ bias), times the forward multiplier of the role where it has one."""
        scale = self.forward[name].view(-1, 1, 1) if name in FORWARD_ROLES else None
        weight = weights[name][layer]
        # The multiplier goes on the weight: it is smaller than the activation.
        y = torch.bmm(x_KTI, (weight if scale is None else weight * scale).to(x_KTI.dtype))
        if f"{name}_bias" in weights:
            bias = weights[f"{name}_bias"][layer].unsqueeze(1)
            y = y + (bias if scale is None else bias * scale).to(y.dtype)
        return y

    def _attention(self, weights: Weights, layer: int, h_KTD: torch.Tensor) -> torch.Tensor:
        num_trials, tokens, dim = h_KTD.shape
        head_dim = self.shape.head_dim
        split = (num_trials * tokens // self.setting.context, self.setting.context, self.shape.num_heads, head_dim)
        q, k, v = (
            self._linear(weights, name, layer, h_KTD).view(split).transpose(1, 2)
            for name in ("attn_q", "attn_k", "attn_v")
        )
        scale = 1.0 / head_dim if self.setting.attention_scale == "1/d_head" else head_dim**-0.5
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        return self._linear(weights, "attn_out", layer, y.transpose(1, 2).reshape(num_trials, tokens, dim))

    def _moe(
        self, weights: Weights, layer: int, h_KTD: torch.Tensor, bias_KE: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the branch's output, the load of every expert and all gates [K, T, E]."""
        num_active, num_experts = self.shape.num_active, self.shape.num_experts
        # Router logits and gates in float32 whatever the precision of the rest.
        logits_KTE = torch.bmm(h_KTD.float(), weights["router"][layer])
        if self.setting.gate == "sigmoid":
            gates_KTE = torch.sigmoid(logits_KTE)
        else:
            gates_KTE = num_active * torch.softmax(logits_KTE, dim=-1)
        chosen_KTA = choose_experts(gates_KTE, bias_KE, num_active)
        groups = group_rows(chosen_KTA, num_experts)
        x_ND = dispatch(h_KTD.flatten(0, 1), groups, num_active)
        group_of_N = None
        if "expert_in_bias" in weights:
            group_of_N = torch.repeat_interleave(groups.load.flatten(), output_size=x_ND.shape[0])
        up_NH = F.gelu(self._expert(weights, "expert_in", layer, x_ND, groups.ends, group_of_N))
        down_ND = self._expert(weights, "expert_out", layer, up_NH, groups.ends, group_of_N)
        # One place for the branch's multiplier: the gates, the smallest tensor on its path.
        gate_KTA = gates_KTE.gather(-1, chosen_KTA) * self.forward["expert_out"].view(-1, 1, 1)
        gate_N = dispatch(gate_KTA.view(-1, 1), groups._replace(token=groups.slot), 1)
        y_MD = combine(down_ND * gate_N.to(down_ND.dtype), groups, num_active)
        return y_MD.view_as(h_KTD), groups.load, gates_KTE

    def _expert(
        self,
        weights: Weights,
        name: str,
        layer: int,
        x_NI: torch.Tensor,
        ends: torch.Tensor,
        group_of_N: torch.Tensor | None,
    ) -> torch.Tensor:
        y_NO = grouped_product(x_NI, weights[name][layer].flatten(0, 1).to(x_NI.dtype), ends)
        if group_of_N is not None:
            bias_GO = weights[f"{name}_bias"][layer].flatten(0, 1).to(y_NO.dtype)
            y_NO = y_NO + bias_GO.index_select(0, group_of_N)
        return y_NO

    def _losses(self, weights: Weights, h_KTD: torch.Tensor, targets_KBS: torch.Tensor) -> torch.Tensor:
        if self.setting.tied_embeddings:
            table_KDV = weights["embedding"][0].transpose(1, 2) * self.forward["readout"].view(-1, 1, 1)
            logits_KTV = torch.bmm(h_KTD, table_KDV.to(h_KTD.dtype))
        else:
            logits_KTV = self._linear(weights, "readout", 0, h_KTD)
        losses = F.cross_entropy(logits_KTV.flatten(0, 1).float(), targets_KBS.flatten(), reduction="none")
        return losses.view(self.num_trials, -1)


def forward_multipliers(resolved: Sequence[Mapping[str, Multipliers]], device: torch.device) -> dict[str, torch.Tensor]:
    """Return role -> [K] forward multipliers of a stack; asserts that no other role of the model has one."""
    for roles in resolved:
        others = {role for role, one in roles.items() if one.forward != 1.0}.difference(FORWARD_ROLES, ABSENT_ROLES)
        assert not others, f"the built-in GPT applies no forward multiplier to {sorted(others)}"
    return {
        role: torch.tensor([roles[role].forward for roles in resolved], dtype=torch.float32, device=device)
        for role in FORWARD_ROLES
    }


def _entropy(gates_KTE: torch.Tensor) -> torch.Tensor:
    p = gates_KTE / gates_KTE.sum(-1, keepdim=True)
    entropy: torch.Tensor = torch.special.entr(p).sum(-1).mean(1)
    return entropy
