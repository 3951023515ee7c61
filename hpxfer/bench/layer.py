"""One MoE layer forward and backward, in three ways: the project's op, F.grouped_mm, and a loop over experts.

Letters: K trials, T tokens, M = K*T, D width, H hidden features, E experts, G = K*E groups of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from hpxfer.bench.stock import both_ways, grouped_experts, looped_experts, normal
from hpxfer.kernels import experts_library
from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.experts import backward, experts, forward
from hpxfer.kernels.experts_launch import Rows, Weights, layer_for
from hpxfer.kernels.routing import Groups, choose_experts, group_rows


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer of K trials, top-1, with random inputs, weights and routing."""

    x_MD: Tensor
    w_in_GDH: Tensor
    w_out_GHD: Tensor
    gate_M: Tensor  # float32
    chosen_KT: Tensor
    groups: Groups
    order_M: Tensor  # int64, the token of every sorted row
    back_M: Tensor  # int64, the sorted row of every token

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        return self.x_MD, self.w_in_GDH, self.w_out_GHD, self.gate_M

    @property
    def flops(self) -> float:
        """FLOPs of one forward and backward: two products per row, in three passes."""
        return 12.0 * self.x_MD.shape[0] * self.x_MD.shape[1] * self.w_in_GDH.shape[2]


def random_layer(
    num_trials: int,
    tokens: int,
    width: int,
    hidden: int,
    num_experts: int,
    device: torch.device,
    dtype: torch.dtype,
    backend: Backend = TORCH,
) -> Layer:
    """Return a layer whose tokens choose their experts by random gates, so that the load is nearly balanced."""
    gates_KTE = torch.sigmoid(normal(num_trials, tokens, num_experts, device=device))
    chosen_KTA = choose_experts(gates_KTE, torch.zeros(num_trials, num_experts, device=device), 1)
    groups, num_groups = group_rows(chosen_KTA, num_experts, backend=backend), num_trials * num_experts
    return Layer(
        x_MD=normal(num_trials * tokens, width, device=device, dtype=dtype, grad=True),
        w_in_GDH=normal(num_groups, width, hidden, device=device, dtype=dtype, grad=True, std=width**-0.5),
        w_out_GHD=normal(num_groups, hidden, width, device=device, dtype=dtype, grad=True, std=hidden**-0.5),
        gate_M=gates_KTE.gather(-1, chosen_KTA).flatten().requires_grad_(),
        chosen_KT=chosen_KTA.squeeze(-1),
        groups=groups,
        order_M=groups.token.long(),
        back_M=groups.row.long(),
    )


def own(layer: Layer, backend: Backend) -> Tensor:
    """Return [M, D] by the project's op."""
    gate_MA = layer.gate_M.unsqueeze(1)
    return experts(layer.x_MD, layer.w_in_GDH, None, layer.w_out_GHD, gate_MA, layer.groups, 1, backend=backend)


def own_by(layer: Layer, products: Literal["triton", "library"]) -> Callable[[], object] | None:
    """Return a job: the project's op in Triton, forward and backward, by these products whatever the table chooses.

    None if the library does not take this layer on this device.
    """
    x_MD, w_in_GDH, w_out_GHD, gate_M = (leaf.detach() for leaf in layer.leaves)
    weights, gate_MA = Weights(w_in_GDH, None, w_out_GHD, None, None, None), gate_M.unsqueeze(1)
    if products == "library" and not experts_library.can_run(x_MD, weights):
        return None
    rows = Rows(*(index.to(torch.int32) for index in (layer.groups.token, layer.groups.slot, layer.groups.ends)))
    dy_MD = normal(*x_MD.shape, device=x_MD.device, dtype=x_MD.dtype)

    def run() -> object:
        made = layer_for(x_MD, weights, rows, 1, len(w_in_GDH), "gelu")
        made = replace(made, config=replace(made.config, products=products))
        y_MD, u_NH, v_NH = forward(made, x_MD, weights, gate_MA)
        return y_MD, backward(made, x_MD, weights, gate_MA, u_NH, v_NH, dy_MD)

    return run


def stock(layer: Layer) -> Tensor:
    """Return [M, D] by F.grouped_mm and stock operators."""
    weights = layer.w_in_GDH, layer.w_out_GHD
    return grouped_experts(layer.x_MD, *weights, layer.gate_M, layer.order_M, layer.back_M, layer.groups.ends)


def looped(layer: Layer) -> Tensor:
    """Return [M, D] by a loop over trials and experts."""
    num_trials = layer.chosen_KT.shape[0]
    num_experts = layer.w_in_GDH.shape[0] // num_trials
    parts = []
    for k, x in enumerate(layer.x_MD.view(num_trials, -1, layer.x_MD.shape[1])):
        own_experts = slice(k * num_experts, (k + 1) * num_experts)
        gate = layer.gate_M.view(num_trials, -1)[k]
        w_in, w_out = layer.w_in_GDH[own_experts], layer.w_out_GHD[own_experts]
        parts.append(looped_experts(x, w_in, w_out, gate, layer.chosen_KT[k]))
    return torch.cat(parts)


def dense(layer: Layer) -> Callable[[], object]:
    """Return a job: a dense FFN of equal FLOPs, forward and backward, that sends each trial's tokens through its
    first expert.
    """
    num_trials = layer.chosen_KT.shape[0]
    num_experts = layer.w_in_GDH.shape[0] // num_trials
    x = layer.x_MD.detach().view(num_trials, -1, layer.x_MD.shape[1]).requires_grad_()
    w_in, w_out = (
        weight.detach()[::num_experts].contiguous().requires_grad_() for weight in (layer.w_in_GDH, layer.w_out_GHD)
    )
    return both_ways(lambda: torch.bmm(F.gelu(torch.bmm(x, w_in)), w_out), (x, w_in, w_out))
