"""Memory of a transformer, counted from its layout.

It is what the forward pass keeps for the backward pass, and what the backward pass holds beside it. The counts follow
the code, operation by operation. On a CPU torch's own operations run. On CUDA the Triton operations keep less: no
gathered rows, no weights in another precision for the experts, no copy of the stream for the router. They count what
uncompiled code keeps. torch.compile may keep less.

Letters: D width, H hidden features, A active experts, E experts, S shared experts. Per token unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hpxfer.model.parameters import Memory, ParameterSpec
from hpxfer.model.transformer.layout import QKV
from hpxfer.scaling.shape import Shape
from hpxfer.spec import moe_blocks
from hpxfer.trial import Setting

LOOKUPS = ("embedding", "position", "label")
_INDEX = 8  # bytes of torch's own indices
_FLOAT = 4


def number_bytes(setting: Setting) -> int:
    """Return the bytes of a number in the precision of compute."""
    return 2 if setting.precision == "bfloat16" else _FLOAT


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What differs between families, in bytes per token unless said otherwise."""

    tokens: int  # of a batch
    norm: int
    ends: int  # kept outside of the blocks
    head: int  # held by the backward pass of the head
    fused_norm: int | None = None  # of the norm that is one operation with the router on CUDA; None: it is `norm`
    of_attention: int = 0  # kept beside the tensors of attention
    of_ffn: int = 0  # kept beside those of an FFN
    passing: int = 0  # held by the backward pass of a branch beside its own
    everywhere: int = 0  # kept once, of the whole batch
    outside: int = 0  # weights outside of the blocks in another form, beside those that the layout shows


def blocks_memory(
    shape: Shape, setting: Setting, cuda: bool, specs: Sequence[ParameterSpec], scaled: Collection[str], parts: Parts
) -> Memory:
    """Return the memory of one trial beside its state and logits. `scaled` are the roles with a forward multiplier."""
    size, tokens = number_bytes(setting), parts.tokens
    num_moe = len(moe_blocks(shape, setting))
    num_dense = shape.depth - num_moe
    attention = _attention(shape, setting, size, cuda, parts.norm) + parts.of_attention
    moe, moe_passing = _moe(shape, setting, size, cuda, parts.norm, parts.fused_norm)
    dense, dense_passing = _dense(shape, setting, size, parts.norm)
    moe, dense = moe + parts.of_ffn, dense + parts.of_ffn
    last = (moe_passing, moe) if num_moe and shape.depth - 1 in moe_blocks(shape, setting) else (dense_passing, dense)
    of_blocks, outside = _weights(specs, scaled, size, cuda)
    outside += parts.outside
    kept_of_block = [
        attention + (moe if block in moe_blocks(shape, setting) else dense) for block in range(shape.depth)
    ]
    # A branch's gradients, or those of attention once the branch after it has let its own go.
    passing = max(last[0], _attention_passing(shape, size) - last[1]) + parts.passing
    return Memory(
        parts={
            "of the whole batch": parts.everywhere,
            "attention": tokens * shape.depth * attention,
            "experts": tokens * num_moe * moe,
            "dense FFN": tokens * num_dense * dense,
            "weights in another form": of_blocks + outside,
        },
        ends=tokens * parts.ends,
        passing=tokens * passing + _expert_gradients(specs),
        first=tokens * (attention + _attention_passing(shape, size)),
        head_passing=tokens * parts.head,
        block=tokens * max(kept_of_block) + of_blocks // shape.depth,
        between=tokens * _between(shape, setting, size, num_moe) + outside + parts.everywhere,
    )


def _between(shape: Shape, setting: Setting, size: int, num_moe: int) -> int:
    """Return the bytes per token that are kept of all blocks if the backward pass computes each block again.

    The residual stream and what the branch before adds to it, and the scores of the routers. A loss of the routers also
    keeps their logits.
    """
    scores = _FLOAT * shape.num_experts * (1 if setting.balance.aux == "none" else 2)
    return (2 * shape.depth - 1) * size * shape.width + num_moe * scores


def _expert_gradients(specs: Sequence[ParameterSpec]) -> int:
    """Return the bytes of the gradients of one block's experts, which are there before the gradient of their input."""
    return sum(_FLOAT * spec.numel for spec in specs if spec.name.startswith("expert"))


def norm_bytes(width: int, setting: Setting, size: int, cuda: bool, *, gains: bool) -> int:
    """Return the bytes of a norm: its output, which a product keeps, before and after the gain, and its deviation.

    A layer norm also keeps its input and its mean. The RMS norm of CUDA keeps its input, and nothing before the gain.
    """
    if cuda and setting.norm == "rmsnorm":
        return size * width * 2 + _FLOAT
    tensors = (2 if gains else 1) + (setting.norm == "layernorm")
    return size * width * tensors + (2 if setting.norm == "layernorm" else 1) * _FLOAT


def _attention(shape: Shape, setting: Setting, size: int, cuda: bool, norm: int) -> int:
    """Return the bytes of a block's attention: its `norm`, queries, keys and values, the heads and their scales."""
    heads, kv = shape.attention_width, shape.kv_width
    grouped, rotated, normed = kv < heads, setting.positions == "rope", setting.qk_norm != "none"
    centered = normed and setting.qk_norm_kind == "layernorm"
    features = heads  # what attention returns
    # The one product of queries, keys and values stays as long as any of them is a part of it, or it is normed anew.
    again = normed if cuda else centered and setting.qk_norm == "all"
    if not (grouped and (rotated or normed)) or again:
        features += heads + 2 * kv + (heads if setting.attention_gate else 0)
    if centered and setting.qk_norm == "head" and not cuda:
        features += heads + kv
    # The norm of queries and keys before and after its gain, and what the rotation makes of it. On CUDA it is all one.
    made = int(normed or rotated) if cuda else normed + (rotated or (normed and setting.norm_gains))
    features += made * (heads + kv) - (kv if grouped and made else 0)
    features += 2 * heads if grouped else 0  # keys and values, repeated for the heads of their group
    features += 2 * heads if setting.attention_gate else 0  # the gate, and its product with the heads
    return norm + size * features + _FLOAT * shape.query_heads


def _attention_passing(shape: Shape, size: int) -> int:
    """Return the gradients of stream and heads, and those of queries, keys and values before and after they join."""
    heads, kv = shape.attention_width, shape.kv_width
    return size * (shape.width + heads + (heads + 2 * heads) + (heads + 2 * kv))


def _moe(shape: Shape, setting: Setting, size: int, cuda: bool, norm: int, fused: int | None) -> tuple[int, int]:
    """Return (kept, passing) of a MoE block's branch."""
    width, hidden, active, experts = shape.width, shape.expert_width, shape.num_active, shape.num_experts
    gated = setting.ffn == "swiglu"
    scores = 2 * _FLOAT * experts  # logits and scores
    if setting.gate != "sigmoid":
        scores += _FLOAT * (experts if setting.gate == "softmax" else 2 * active)
    shared, shared_passing = _features(shape.num_shared * shape.shared_width, setting, size)
    if setting.shared_expert_gate:  # the hidden features before and after the gate
        shared += size * shape.num_shared * shape.shared_width + 2 * _FLOAT * shape.num_shared
    if cuda:
        norm = norm if fused is None else fused
        indices = active * (_INDEX + 5 * 4)  # chosen experts; token, slot and row
        kept = norm + scores + indices + 2 * _FLOAT * active + active * size * hidden * (2 if gated else 1)
        slots = active * (size if active == 1 else _FLOAT) * width
        rows = active * size * hidden * (3 if gated else 2)
        return kept + shared, 2 * size * width + max(rows + slots, shared_passing)
    copy = _FLOAT * width if size < _FLOAT else 0  # the float32 stream of the router
    rows = active * size * (width + hidden * (3 if gated else 2))
    indices = active * 4 * _INDEX
    kept = norm + copy + scores + indices + active * 4 * _FLOAT + rows
    passing = size * width + active * size * (3 * width + hidden * (4 if gated else 2))
    return kept + shared, max(passing, size * width + shared_passing)


def _dense(shape: Shape, setting: Setting, size: int, norm: int) -> tuple[int, int]:
    """Return (kept, passing) of a dense block's branch."""
    kept, passing = _features(shape.dense_width, setting, size)
    return norm + kept, 2 * size * shape.width + passing


def _features(hidden: int, setting: Setting, size: int) -> tuple[int, int]:
    """Return (kept, passing) of the hidden features of an FFN whose operations torch differentiates one by one."""
    # Each operation lets go what it kept, so only what is new beside it counts. Relu keeps its output alone, which the
    # product keeps too: beside it are the gradients of its output and of its input.
    kept, passing = {"swiglu": (4, 2), "gelu": (2, 1), "relu": (1, 2)}[setting.ffn]
    return size * hidden * kept, size * hidden * passing


def _weights(specs: Sequence[ParameterSpec], scaled: Collection[str], size: int, cuda: bool) -> tuple[int, int]:
    """Return the bytes of the matrices of all blocks, and of those outside, that products read in another form.

    Queries, keys and values are joined. A role with a forward multiplier is scaled. All are rounded in bfloat16, but
    those of routers, and in Triton those of experts, which the operation rounds and lets go.
    """
    total = outside = 0
    for spec in specs:
        count = spec.numel * spec.layers
        if len(spec.size) < 2 or spec.name in LOOKUPS or spec.name.endswith("_bias"):
            continue
        if not spec.blocks and spec.role != "readout":
            outside += size * count if size < _FLOAT else 0
        elif spec.role == "readout":
            outside += size * count
        elif spec.role == "router":
            total += _FLOAT * count
        elif spec.role.startswith("expert"):
            total += size * count if size < _FLOAT and not cuda else 0
        elif size < _FLOAT or spec.name in (*QKV, "attn_gate") or spec.role in scaled or spec.role.startswith("shared"):
            total += size * count
    return total, outside
