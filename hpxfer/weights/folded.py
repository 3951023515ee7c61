"""Folded: the tensors of a trial as its home in `transformers` names and shapes them, with every factor inside.

A model of `transformers` has no forward multipliers. Each goes into the weight that it multiplies:

    attention scale    d_head^-1/2 there; what is left goes into the queries, or into their gain where they are normed
    attn_out           o_proj            router      the router        dense_out, shared_out    down_proj
    expert_out         down_proj, with 1/num_active of the base, and with the route scale of gates that sum to one
    readout            lm_head, or the gain of the last norm where the readout is tied to the embedding
    route_scale        the config of GLM has it; elsewhere down_proj

A norm without gains has gains of one there. Matrices are [out, in] there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hpxfer.registry import registry
from hpxfer.spec import moe_blocks
from hpxfer.trial import Trial
from hpxfer.weights.homes import home_of
from hpxfer.weights.trained import TrialWeights


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Rows of a tensor of the home, made from one tensor of ours. `own` None: a constant that the home needs."""

    own: str | None
    block: int = -1
    factor: float = 1.0
    form: str = "matrix"  # of FORMS
    size: tuple[int, ...] = ()  # of a constant


# Form -> ours as theirs.
FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "same": lambda w: w,
    "matrix": lambda w: w.T,
    "experts": lambda w_EIO: w_EIO.transpose(1, 2),
    # Several shared experts are one FFN with all their features there.
    "shared_in": lambda w_SDH: w_SDH.transpose(1, 2).flatten(0, 1),
    "shared_out": lambda w_SHD: w_SHD.flatten(0, 1).T,
}
Pieces = dict[str, tuple[Piece, ...]]


def pieces_of(trial: Trial) -> Pieces:
    """Return name in the home's state dict -> the pieces that are joined along its rows.

    Raises HpxferError if no class holds the model.
    """
    home, shape, setting = home_of(trial), trial.shape, trial.setting
    forward = {role: values.forward for role, values in trial.resolved().items()}
    gate = registry("gate").get(setting.gate)
    routed = forward.get("expert_out", 1.0) * (trial.globals().route_scale if gate.sums_to_one_over else 1.0)
    if home.model_type != "glm4_moe":
        routed *= setting.route_scale
    own_scale = 1.0 / shape.head_dim if setting.attention_scale == "1/d_head" else shape.head_dim**-0.5
    queries = own_scale * shape.head_dim**0.5
    out: Pieces = {"model.embed_tokens.weight": (Piece(own="embedding", form="same"),)}
    moe = frozenset(moe_blocks(shape, setting))
    biases = setting.qkv_biases or home.model_type == "qwen2_moe"
    for block in range(shape.depth):
        at = f"model.layers.{block}."
        out[f"{at}input_layernorm.weight"] = (_gain(trial, "attn_norm", block, shape.width),)
        out[f"{at}post_attention_layernorm.weight"] = (_gain(trial, "ffn_norm", block, shape.width),)
        normed = setting.qk_norm != "none"
        factors = {"q": 1.0 if normed else queries, "k": 1.0, "v": 1.0}
        for name, factor in factors.items():
            out[f"{at}self_attn.{name}_proj.weight"] = (Piece(own=f"attn_{name}", block=block, factor=factor),)
            if setting.qkv_biases:
                bias = Piece(own=f"attn_{name}_bias", block=block, factor=factor, form="same")
                out[f"{at}self_attn.{name}_proj.bias"] = (bias,)
        out[f"{at}self_attn.o_proj.weight"] = (Piece(own="attn_out", block=block, factor=forward["attn_out"]),)
        if biases and home.model_type in ("qwen3_moe", "olmoe", "llama", "qwen3"):
            out[f"{at}self_attn.o_proj.bias"] = (Piece(own=None, factor=0.0, size=(shape.width,)),)
        if normed:
            for name, factor in (("q", queries), ("k", 1.0)):
                size = {"head": shape.head_dim, "all": shape.attention_width if name == "q" else shape.kv_width}
                gain = replace(_gain(trial, f"{name}_norm", block, size[setting.qk_norm]), factor=factor)
                out[f"{at}self_attn.{name}_norm.weight"] = (gain,)
        parts = _moe(trial, block, forward, routed) if block in moe else _ffn("dense", "matrix", block, forward, "")
        out |= {f"{at}mlp.{name}": pieces for name, pieces in parts}
    last = _gain(trial, "final_norm", -1, shape.width)
    if setting.tied_embeddings:
        last = replace(last, factor=forward["readout"])
        out["lm_head.weight"] = out["model.embed_tokens.weight"]
    else:
        out["lm_head.weight"] = (Piece(own="readout", factor=forward["readout"]),)
    out["model.norm.weight"] = (last,)
    return out


def _gain(trial: Trial, name: str, block: int, size: int) -> Piece:
    if trial.setting.norm_gains:
        return Piece(own=name, block=block, form="same")
    return Piece(own=None, factor=1.0, size=(size,))


def _moe(trial: Trial, block: int, forward: dict[str, float], routed: float) -> Iterator[tuple[str, tuple[Piece, ...]]]:
    shape, setting = trial.shape, trial.setting
    yield "gate.weight", (Piece(own="router", block=block, factor=forward["router"]),)
    both = (Piece(own=f"expert_{name}", block=block, form="experts") for name in ("gate", "in"))
    yield "experts.gate_up_proj", tuple(both)
    yield "experts.down_proj", (Piece(own="expert_out", block=block, factor=routed, form="experts"),)
    if shape.num_shared:
        name = "shared_expert" if setting.shared_expert_gate else "shared_experts"
        yield from _ffn("shared", "shared", block, forward, f"{name}.")
        if setting.shared_expert_gate:
            yield "shared_expert_gate.weight", (Piece(own="shared_router", block=block, factor=forward["router"]),)
    elif home_of(trial).shared == "plain":  # an FFN without features
        for name, size in (("gate", (0, shape.width)), ("up", (0, shape.width)), ("down", (shape.width, 0))):
            yield f"shared_experts.{name}_proj.weight", (Piece(own=None, size=size),)


def _ffn(
    kind: str, form: str, block: int, forward: dict[str, float], at: str
) -> Iterator[tuple[str, tuple[Piece, ...]]]:
    into, out = ("matrix", "matrix") if form == "matrix" else (f"{form}_in", f"{form}_out")
    for name, own in (("gate", "gate"), ("up", "in")):
        yield f"{at}{name}_proj.weight", (Piece(own=f"{kind}_{own}", block=block, form=into),)
    last = Piece(own=f"{kind}_out", block=block, factor=forward[f"{kind}_out"], form=out)
    yield f"{at}down_proj.weight", (last,)


def folded(weights: TrialWeights) -> dict[str, Tensor]:
    """Return the state dict of the trial's home, float32. Raises HpxferError if no class holds the model."""
    trial = weights.trial
    out = {name: _joined(weights, pieces) for name, pieces in pieces_of(trial).items()}
    if home_of(trial).has_router_bias:
        for layer, block in enumerate(moe_blocks(trial.shape, trial.setting)):
            out[f"model.layers.{block}.mlp.gate.e_score_correction_bias"] = weights.router_bias[layer].clone()
    return out


def _joined(weights: TrialWeights, pieces: tuple[Piece, ...]) -> Tensor:
    made = [_made(weights, piece) for piece in pieces]
    return torch.cat(made, 1 if pieces[0].form == "experts" else 0).contiguous()


def _made(weights: TrialWeights, piece: Piece) -> Tensor:
    if piece.own is None:
        return torch.full(piece.size, piece.factor)
    tensor = weights.tensors[piece.own][0] if piece.block < 0 else weights.of_block(piece.own, piece.block)
    assert tensor is not None, piece
    made = FORMS[piece.form](tensor)
    return made if piece.factor == 1 else made * piece.factor
