"""Layout of the GPT: its parameters, their roles and their sizes."""

from __future__ import annotations

from collections.abc import Sequence

from hpxfer.model.parameters import ParameterSpec
from hpxfer.scaling.shape import Shape
from hpxfer.spec.blocks import Options, dense_blocks, has_dense, moe_blocks
from hpxfer.trial import Setting

# The roles that have a forward multiplier. The model applies each multiplier in exactly one place.
FORWARD_ROLES = ("attn_out", "router", "expert_out", "shared_out", "dense_out", "readout")
_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_out")


def gpt_roles(shape: Shape, options: Options) -> tuple[str, ...]:
    """Return the roles of the GPT's parameters at `shape`, and `router_bias` where there are routers."""
    roles = ["embedding", "position", *_ATTENTION, "readout"]
    moe = bool(moe_blocks(shape, options))
    branches = {"expert": moe, "shared": moe and shape.num_shared > 0, "dense": has_dense(shape, options)}
    parts = ("in", "gate", "out") if options.ffn == "swiglu" else ("in", "out")
    roles += ["router", "router_bias"] if moe else []
    roles += [f"{branch}_{part}" for branch, exists in branches.items() if exists for part in parts]
    roles += ["norm", "final_norm"] if options.norm_gains else []
    roles += ["hidden_bias"] if options.biases else []
    return tuple(roles)


def gpt_parameters(shape: Shape, setting: Setting) -> tuple[ParameterSpec, ...]:
    """Return every trained parameter of one trial."""
    width, vocab = shape.width, setting.vocab_size
    every_block, moe, dense = range(shape.depth), moe_blocks(shape, setting), dense_blocks(shape, setting)
    linear = [ParameterSpec(name=name, role=name, size=(width, width), blocks=every_block) for name in _ATTENTION]
    router = [ParameterSpec(name="router", role="router", size=(width, shape.num_experts), blocks=moe)] if moe else []
    ffns = [
        *_ffn("expert", setting, moe, (shape.num_experts,), width, shape.expert_width),
        *_ffn("shared", setting, moe, (shape.num_shared,), width, shape.shared_width),
        *_ffn("dense", setting, dense, (), width, shape.dense_width),
    ]
    norms = [
        ParameterSpec(name=name, role="norm", size=(width,), blocks=every_block) for name in ("attn_norm", "ffn_norm")
    ]
    final_norm = ParameterSpec(name="final_norm", role="final_norm", size=(width,))
    out = [
        ParameterSpec(name="embedding", role="embedding", size=(vocab, width)),
        ParameterSpec(name="position", role="position", size=(setting.context, width)),
        *(*linear, *router, *ffns),
    ]
    if setting.norm_gains:
        out += [*norms, final_norm]
    if setting.biases:
        out += [_bias_of(spec) for spec in (*norms, *linear, *ffns, final_norm)]
    if not setting.tied_embeddings:
        out += [ParameterSpec(name="readout", role="readout", size=(width, vocab))]
    return tuple(out)


def _ffn(
    branch: str, setting: Setting, blocks: Sequence[int], count: tuple[int, ...], width: int, hidden: int
) -> list[ParameterSpec]:
    """Return the matrices of one kind of FFN, with `count` in front of their sizes; none if no block has this kind."""
    if not blocks or 0 in count:
        return []
    parts = ("in", "gate", "out") if setting.ffn == "swiglu" else ("in", "out")
    sizes = {"in": (width, hidden), "gate": (width, hidden), "out": (hidden, width)}
    return [
        ParameterSpec(name=f"{branch}_{part}", role=f"{branch}_{part}", size=(*count, *sizes[part]), blocks=blocks)
        for part in parts
    ]


def _bias_of(spec: ParameterSpec) -> ParameterSpec:
    """Return the bias of a norm or a matrix: one number per output feature, separate for each expert."""
    size = spec.size if len(spec.size) == 1 else (*spec.size[:-2], spec.size[-1])
    return ParameterSpec(name=f"{spec.name}_bias", role="hidden_bias", size=size, blocks=spec.blocks)
