"""Layout of the GPT: its parameters, their roles and their sizes."""

from __future__ import annotations

from hpxfer.model.parameters import ParameterSpec
from hpxfer.model.transformer.layout import (
    ATTENTION,
    QKV,
    attention_parameters,
    bias_of,
    ffn_roles,
    ffns,
    qk_norm_parameters,
    router_parameters,
)
from hpxfer.scaling.shape import Shape
from hpxfer.spec import Options, moe_blocks
from hpxfer.trial import Setting

# The roles that have a forward multiplier. The model applies each multiplier in exactly one place.
FORWARD_ROLES = ("embedding", "attn_out", "router", "expert_out", "shared_out", "dense_out", "readout")


def gpt_roles(shape: Shape, options: Options) -> tuple[str, ...]:
    """Return the roles of the GPT's parameters at `shape`, and `router_bias` where there are routers."""
    roles = ["embedding", *(["position"] if options.positions == "learned" else []), *ATTENTION, "readout"]
    moe = bool(moe_blocks(shape, options))
    roles += ffn_roles(shape, options)
    roles += ["norm", "final_norm"] if options.norm_gains else []
    roles += ["hidden_bias"] if options.biases or options.qkv_biases or (moe and options.learned_router_bias) else []
    return tuple(roles)


def gpt_parameters(shape: Shape, setting: Setting) -> tuple[ParameterSpec, ...]:
    """Return every trained parameter of one trial."""
    width, vocab = shape.width, setting.vocab_size
    every_block, moe = range(shape.depth), moe_blocks(shape, setting)
    attention, of_ffns = attention_parameters(shape, setting), ffns(shape, setting)
    routers = router_parameters(shape, setting) if moe else []
    norms = [
        ParameterSpec(name=name, role="norm", size=(width,), blocks=every_block) for name in ("attn_norm", "ffn_norm")
    ]
    qk_norms = qk_norm_parameters(shape, setting)
    final_norm = ParameterSpec(name="final_norm", role="final_norm", size=(width,))
    out = [ParameterSpec(name="embedding", role="embedding", size=(vocab, width))]
    if setting.positions == "learned":
        out += [ParameterSpec(name="position", role="position", size=(setting.context, width))]
    out += [*attention, *routers, *of_ffns]
    if setting.norm_gains:
        out += [*norms, *qk_norms, final_norm]
    if setting.biases:
        of_norms = (*norms, final_norm) if setting.norm == "layernorm" else ()
        of_qk_norms = qk_norms if setting.qk_norm_kind == "layernorm" else ()
        biased = [spec for spec in attention if spec.name != "attn_gate"]
        out += [bias_of(spec) for spec in (*of_norms[:2], *of_qk_norms, *biased, *of_ffns, *of_norms[2:])]
    elif setting.qkv_biases:
        out += [bias_of(spec) for spec in attention if spec.name in QKV]
    if moe and setting.learned_router_bias:
        out += [ParameterSpec(name="router_logit_bias", role="hidden_bias", size=(shape.num_experts,), blocks=moe)]
    if not setting.tied_embeddings:
        out += [ParameterSpec(name="readout", role="readout", size=(width, vocab))]
    return tuple(out)
