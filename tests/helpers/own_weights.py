"""The weights of a stacked transformer by their names in the own model, where matrices are [out, in]."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hpxfer.model.flat import FlatLayout, Weights

# Tensor of the stacked model -> module of the own one.
OUTSIDE = {"embedding": "token_embedding", "position": "position_embedding", "final_norm": "norm", "readout": "head"}
INSIDE = {
    "router": "moe.router",
    "attn_norm": "norm1",
    "ffn_norm": "norm2",
    "attn_out": "attention.out",
    "attn_q": "attention.query",
    "attn_k": "attention.key",
    "attn_v": "attention.value",
}
# The same for a diffusion transformer, whose queries, keys and values are one tensor.
OUTSIDE |= {
    "patch_in": "x_embedder.proj",
    "time_in": "t_embedder.mlp.0",
    "time_out": "t_embedder.mlp.2",
    "label": "y_embedder.embedding_table",
    "final_modulation": "final_layer.adaLN_modulation.1",
}
IN_DIT = {
    "modulation": "adaLN_modulation.1",
    "attn_out": "attn.proj",
    "attn_gate": "attn.q_gate",
    "dense_in": "mlp.fc1",
    "dense_out": "mlp.fc2",
}
QKV = ("attn_q", "attn_k", "attn_v")
PARTS = {"in": "up", "gate": "gate", "out": "down"}


def own_weights(layout: FlatLayout, weights: Weights) -> dict[str, Tensor]:
    """Return the first trial's tensors as a state dict of the own model."""
    out: dict[str, Tensor] = {}
    is_dit = any(tensor.name == "patch_in" for tensor in layout.parameters)
    for tensor in layout.parameters:
        base = tensor.name.removesuffix("_bias")
        kind = "weight" if base == tensor.name else "bias"
        for copy, block in enumerate(tensor.blocks or (None,)):
            for name, part in _places(base, block, weights[tensor.name][copy][0].detach(), is_dit=is_dit):
                is_matrix = part.ndim == 2 and base not in ("embedding", "position", "label")
                out[f"{name}.{kind}"] = part.T if is_matrix else part
                if base == "patch_in":
                    side = math.isqrt(len(part))
                    out[f"{name}.{kind}"] = part.T.reshape(-1, 1, side, side)
    if is_dit:
        blocks = {name.partition(".attn.")[0] for name in out if ".attn." in name}
        for block in blocks:
            out[f"{block}.attn.qkv.weight"] = torch.cat([out.pop(f"{block}.attn.{part}.weight") for part in QKV])
    return out


def _places(base: str, block: int | None, value: Tensor, *, is_dit: bool) -> list[tuple[str, Tensor]]:
    """Return module name -> its part of a tensor."""
    if block is None:
        return [("final_layer.linear" if is_dit and base == "readout" else OUTSIDE[base], value)]
    if is_dit and base in (*IN_DIT, *QKV):
        return [(f"blocks.{block}.{IN_DIT.get(base, f'attn.{base}')}", value)]
    if base in INSIDE:
        return [(f"blocks.{block}.{INSIDE[base]}", value)]
    kind, _, part = base.partition("_")
    if kind == "dense":
        return [(f"blocks.{block}.dense.{PARTS[part]}", value)]
    folder = "experts" if kind == "expert" else "shared"
    return [(f"blocks.{block}.moe.{folder}.{number}.{PARTS[part]}", tensor) for number, tensor in enumerate(value)]
