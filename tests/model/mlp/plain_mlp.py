"""The MLP mixture of one trial as the papers write it: a loop over blocks and experts, for torch's own autograd."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from mlp_cases import Case
from torch import Tensor

FUNCTIONS = {"linear": lambda x: x, "relu": torch.relu, "gelu": F.gelu, "tanh": torch.tanh}


def plain_losses(case: Case, k: int) -> Tensor:
    """Return the losses [B] of trial `k`."""
    weights, options = case.weights, case.setting.mlp
    factor = {role: values[k] for role, values in case.forward.items()}
    act = FUNCTIONS[options.activation]
    h = FUNCTIONS[options.input_activation](factor["embedding"] * case.inputs[k] @ weights["input"][0][k])
    for block in range(case.shape.depth):
        logits = h @ weights["router"][block][k] * factor["router"] + case.noise_LKE[block, k]
        if "router_logit_bias" in weights:
            logits = logits + weights["router_logit_bias"][block][k]
        phi = gates(case, logits * options.inverse_temperature, case.route_scale[k])
        out = torch.zeros_like(h)
        for expert in range(case.shape.num_experts):
            inner = h
            if options.expert_matrices == 2:
                inner = act(h @ weights["expert_in"][block][k][expert].T)
            y = inner @ weights["expert_out"][block][k][expert]
            out = out + phi[:, expert : expert + 1] * (y if options.expert_matrices == 2 else act(y))
        out = out * factor["expert_out"]
        h = h + out if options.residual else out
    f = h @ weights["readout"][0][k] * factor["readout"]
    return sample_losses(options.loss, f, case.targets[k])


def gates(case: Case, logits: Tensor, scale: Tensor) -> Tensor:
    """Return the weights [B, E] of the experts, zero for those that are not active."""
    kind = case.setting.gate
    scores = logits.sigmoid() if kind == "sigmoid" else logits.softmax(-1)
    active = torch.zeros_like(scores).scatter(-1, scores.topk(case.shape.num_active, -1).indices, 1.0)
    if kind == "normalized_softmax":
        return scale * logits.masked_fill(active == 0, -torch.inf).softmax(-1)
    return scores * active * (1 if kind == "sigmoid" else scale)


def sample_losses(kind: str, f: Tensor, y: Tensor) -> Tensor:
    """Return the losses [B] of outputs [B, C]."""
    if kind == "cross_entropy":
        return F.cross_entropy(f, y, reduction="none")
    if y.is_floating_point():
        wanted = y
    elif f.shape[-1] == 1:
        wanted = torch.where(y == 0, 1.0, -1.0).unsqueeze(1)
    else:
        wanted = F.one_hot(y, f.shape[-1])
    return ((f - wanted) ** 2).sum(-1)
