"""The tensors of a transformer's block: their roles and their sizes."""

from __future__ import annotations

from collections.abc import Sequence

from hpxfer.model.parameters import ParameterSpec
from hpxfer.scaling.shape import Shape
from hpxfer.spec import Options, dense_blocks, has_dense, moe_blocks
from hpxfer.trial import Setting

QKV = ("attn_q", "attn_k", "attn_v")
ATTENTION = (*QKV, "attn_out")


def ffn_roles(shape: Shape, options: Options) -> tuple[str, ...]:
    """Return the roles of the FFNs at `shape`, and `router_bias` where there are routers."""
    moe = bool(moe_blocks(shape, options))
    branches = {"expert": moe, "shared": moe and shape.num_shared > 0, "dense": has_dense(shape, options)}
    parts = ("in", "gate", "out") if options.ffn == "swiglu" else ("in", "out")
    of_branches = [f"{branch}_{part}" for branch, exists in branches.items() if exists for part in parts]
    return (*(("router", "router_bias") if moe else ()), *of_branches)


def ffns(shape: Shape, setting: Setting) -> list[ParameterSpec]:
    """Return the matrices of all FFNs, without routers."""
    moe, width = moe_blocks(shape, setting), shape.width
    return [
        *ffn_parameters("expert", setting, moe, (shape.num_experts,), width, shape.expert_width),
        *ffn_parameters("shared", setting, moe, (shape.num_shared,), width, shape.shared_width),
        *ffn_parameters("dense", setting, dense_blocks(shape, setting), (), width, shape.dense_width),
    ]


def attention_parameters(shape: Shape, setting: Setting) -> list[ParameterSpec]:
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


def router_parameters(shape: Shape, setting: Setting) -> list[ParameterSpec]:
    """Return the router, and the map that gates the shared experts: one number for each of them."""
    sizes = {"router": shape.num_experts, "shared_router": shape.num_shared if setting.shared_expert_gate else 0}
    blocks = moe_blocks(shape, setting)
    return [
        ParameterSpec(name=name, role="router", size=(shape.width, count), blocks=blocks)
        for name, count in sizes.items()
        if count
    ]


def qk_norm_parameters(shape: Shape, setting: Setting) -> list[ParameterSpec]:
    """Return the gains on queries and keys: the same for each head, or one for each feature of all heads."""
    if setting.qk_norm == "none":
        return []
    of_all = setting.qk_norm == "all"
    sizes = {
        "q_norm": shape.attention_width if of_all else shape.head_dim,
        "k_norm": shape.kv_width if of_all else shape.head_dim,
    }
    return [ParameterSpec(name=n, role="norm", size=(size,), blocks=range(shape.depth)) for n, size in sizes.items()]


def ffn_parameters(
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


def bias_of(spec: ParameterSpec) -> ParameterSpec:
    """Return the bias of a norm or a matrix: one number per output feature, separate for each expert."""
    size = spec.size if len(spec.size) == 1 else (*spec.size[:-2], spec.size[-1])
    return ParameterSpec(name=f"{spec.name}_bias", role="hidden_bias", size=size, blocks=spec.blocks)
