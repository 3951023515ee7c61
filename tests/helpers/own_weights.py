"""The weights of a stacked GPT by their names in the own model, where matrices are [out, in]."""

from __future__ import annotations

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
PARTS = {"in": "up", "gate": "gate", "out": "down"}


def own_weights(layout: FlatLayout, weights: Weights) -> dict[str, Tensor]:
    """Return the first trial's tensors as a state dict of the own model."""
    out = {}
    for tensor in layout.parameters:
        base = tensor.name.removesuffix("_bias")
        kind = "weight" if base == tensor.name else "bias"
        for copy, block in enumerate(tensor.blocks or (None,)):
            for name, part in _places(base, block, weights[tensor.name][copy][0].detach()):
                is_matrix = part.ndim == 2 and base not in ("embedding", "position")
                out[f"{name}.{kind}"] = part.T if is_matrix else part
    return out


def _places(base: str, block: int | None, value: Tensor) -> list[tuple[str, Tensor]]:
    """Return module name -> its part of a tensor."""
    if block is None:
        return [(OUTSIDE[base], value)]
    if base in INSIDE:
        return [(f"blocks.{block}.{INSIDE[base]}", value)]
    kind, _, part = base.partition("_")
    if kind == "dense":
        return [(f"blocks.{block}.dense.{PARTS[part]}", value)]
    folder = "experts" if kind == "expert" else "shared"
    return [(f"blocks.{block}.moe.{folder}.{number}.{PARTS[part]}", tensor) for number, tensor in enumerate(value)]
