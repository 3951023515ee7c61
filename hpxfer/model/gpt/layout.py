"""Layout of the GPT: its parameters, their roles and their sizes."""

from __future__ import annotations

from collections.abc import Sequence

from hpxfer.model.parameters import ParameterSpec
from hpxfer.scaling.shape import Shape
from hpxfer.spec import Options, dense_blocks, has_dense, moe_blocks
from hpxfer.trial import Setting

# The roles that have a forward multiplier. The model applies each multiplier in exactly one place.
FORWARD_ROLES = ("embedding", "attn_out", "router", "expert_out", "shared_out", "dense_out", "readout")
QKV = ("attn_q", "attn_k", "attn_v")
_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_out")


def gpt_roles(shape: Shape, options: Options) -> tuple[str, ...]:
    """Return the roles of the GPT's parameters at `shape`, and `router_bias` where there are routers."""
    roles = ["embedding", *(["position"] if options.positions == "learned" else []), *_ATTENTION, "readout"]
    moe = bool(moe_blocks(shape, options))
    branches = {"expert": moe, "shared": moe and shape.num_shared > 0, "dense": has_dense(shape, options)}
    parts = ("in", "gate", "out") if options.ffn == "swiglu" else ("in", "out")
    roles += ["router", "router_bias"] if moe else []
    roles += [f"{branch}_{part}" for branch, exists in branches.items() if exists for part in parts]
    roles += ["norm", "final_norm"] if options.norm_gains else []
    roles += ["hidden_bias"] if options.biases or options.qkv_biases or (moe and options.learned_router_bias) else []
    return tuple(roles)


def gpt_parameters(shape: Shape, setting: Setting) -> tuple[ParameterSpec, ...]:
    """Return every trained parameter of one trial."""
    width, vocab = shape.width, setting.vocab_size
    every_block, moe, dense = range(shape.depth), moe_blocks(shape, setting), dense_blocks(shape, setting)
    attention = _attention(shape, setting)
    routers = _routers(shape, setting) if moe else []
    ffns = [
        *_ffn("expert", setting, moe, (shape.num_experts,), width, shape.expert_width),
        *_ffn("shared", setting, moe, (shape.num_shared,), width, shape.shared_width),
        *_ffn("dense", setting, dense, (), width, shape.dense_width),
    ]
    norms = [
        ParameterSpec(name=name, role="norm", size=(width,), blocks=every_block) for name in ("attn_norm", "ffn_norm")
    ]
    qk_norms = _qk_norms(shape, setting)
    final_norm = ParameterSpec(name="final_norm", role="final_norm", size=(width,))
    out = [ParameterSpec(name="embedding", role="embedding", size=(vocab, width))]
    if setting.positions == "learned":
        out += [ParameterSpec(name="position", role="position", size=(setting.context, width))]
    out += [*attention, *routers, *ffns]
    if setting.norm_gains:
        out += [*norms, *qk_norms, final_norm]
    if setting.biases:
        of_norms = (*norms, final_norm) if setting.norm == "layernorm" else ()
        of_qk_norms = qk_norms if setting.qk_norm_kind == "layernorm" else ()
        biased = [spec for spec in attention if spec.name != "attn_gate"]
        out += [_bias_of(spec) for spec in (*of_norms[:2], *of_qk_norms, *biased, *ffns, *of_norms[2:])]
    elif setting.qkv_biases:
        out += [_bias_of(spec) for spec in attention if spec.name in QKV]
    if moe and setting.learned_router_bias:
        out += [ParameterSpec(name="router_logit_bias", role="hidden_bias", size=(shape.num_experts,), blocks=moe)]
    if not setting.tied_embeddings:
        out += [ParameterSpec(name="readout", role="readout", size=(width, vocab))]
    return tuple(out)


def _attention(shape: Shape, setting: Setting) -> list[ParameterSpec]:
    """Return the matrices of attention. The gate of its output is a map like that of the queries."""
    width, heads, kv = shape.width, shape.attention_width, shape.kv_width
    sizes = {"attn_q": (width, heads), "attn_k": (width, kv), "attn_v": (width, kv), "attn_out": (heads, width)}
    roles = {name: name for name in sizes}
    if setting.attention_gate:
        sizes["attn_gate"], roles["attn_gate"] = (width, heads), "attn_q"
    count = {name: shape.key_heads if name in ("attn_k", "attn_v") else shape.query_heads for name in sizes}
    return [
        ParameterSpec(name=name, role=roles[name], size=size, blocks=range(shape.depth), heads=count[name])
        for name, size in sizes.items()
    ]


def _routers(shape: Shape, setting: Setting) -> list[ParameterSpec]:
    """Return the router, and the map that gates the shared experts: one number for each of them."""
    sizes = {"router": shape.num_experts, "shared_router": shape.num_shared if setting.shared_expert_gate else 0}
    blocks = moe_blocks(shape, setting)
    return [
        ParameterSpec(name=name, role="router", size=(shape.width, count), blocks=blocks)
        for name, count in sizes.items()
        if count
    ]


def _qk_norms(shape: Shape, setting: Setting) -> list[ParameterSpec]:
    """Return the gains on queries and keys: the same for each head, or one for each feature of all heads."""
    if setting.qk_norm == "none":
        return []
    of_all = setting.qk_norm == "all"
    sizes = {
        "q_norm": shape.attention_width if of_all else shape.head_dim,
        "k_norm": shape.kv_width if of_all else shape.head_dim,
    }
    return [ParameterSpec(name=n, role="norm", size=(size,), blocks=range(shape.depth)) for n, size in sizes.items()]


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
