"""Places: where a tensor lies in a model, by its dotted name, and what tensors are called in each place. Pure.

A word such as `gate_proj`, `w_out` or `dense` means one thing in an FFN and another in attention, in an adapter or in
a vision tower. So a name is read from the block downwards, and a word counts only where its whole path is understood.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["outside", "block", "attention", "dense", "moe", "router", "expert", "shared", "other", "foreign"]

# Parts of a name that wrappers put there, such as _orig_mod of torch.compile, `module` of DDP and `base_layer` of peft.
WRAPPER = re.compile(r"_.*|module|base_layer")
BLOCKS = frozenset({"layers", "layer", "blocks", "block", "h"})
NORM = re.compile(r"(.*_)?((layer|rms)_?)?norm(_.*|\d*)|(.*_)?layernorm(_.*|\d*)|(.*_)?ln(_.*|\d*)")
ATTENTION = re.compile(r"((self|causal|masked|multi_?head|grouped_query|local|global)_?)*(attn|attention|mha)\d?")
# With these torch and others name attention to another sequence.
NOT_ATTENTION = frozenset({"multihead_attn"})
DENSE = re.compile(r"(dense_)?(mlp|ffn|ff|ffw|feed_?forward)(_block|_layer)?s?|dense")
MOE = re.compile(r"(.*_)?d?moe(_.*)?|sparse_mlp|mixture_of_experts")
EXPERTS = re.compile(r"((routed|local|inner|deepspeed|grouped|sparse|output)_)*experts?(_?\d+)?")
SHARED = re.compile(r"shared(_(experts?|mlp|ffn|moe))?(_?\d+)?")
# A norm of DBRX and an attention in one module: no place of its own.
SAME_PLACE = frozenset({"norm_attn_norm"})
WITHIN_ATTENTION = frozenset({"self", "output", "qkv_linear"})
ROUTER_MODULES = frozenset({"gate", "router", "gating"})
# Parts of a model that read something else than the tokens so far, or that train beside it.
FOREIGN = re.compile(
    r"(.*_)?(vision|visual|vit|image|img|audio|speech|video|cross|crossattention|mtp|lora|adapters?|projector"
    r"|resampler|perceiver|q_?former|codec|draft|eagle|medusa|teacher)(_.*)?"
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a tensor lies, and what it is called there."""

    kind: Kind
    block: str  # the path of its block, with its number; empty outside of blocks
    holder: str  # the path of the module in which `word` stands
    branch: str  # the path of the outermost module of its kind of place, such as the attention of a block
    word: str  # in small letters: `wq` of `layers.0.attention.wq.weight`
    is_bias: bool
    is_main: bool = True  # outside all blocks, or in those beside an embedding, or in those with most tensors
    path: tuple[str, ...] = ()  # outside the blocks: the modules around `word`, below those that hold the blocks too


def places_of(names: Collection[str]) -> dict[str, Place]:
    """Return name -> its place, for all parameters of a model together."""
    cut = {name: _words(name) for name in names}
    at = {name: _block_at(holder) for name, (holder, _, _, _) in cut.items()}
    if not any(end is not None for end in at.values()):  # one block alone, without a number
        at = {name: _around_part(holder) for name, (holder, _, _, _) in cut.items()}
    stem_of = {name: _stem(cut[name][0], end) for name, end in at.items() if end is not None}
    stems = set(stem_of.values())
    two = any("decoder" in part for stem in stems for part in stem)
    foreign = {
        name
        for name, (holder, word, _, _) in cut.items()
        if any(FOREIGN.fullmatch(part) for part in (*holder, word)) or (two and "encoder" in holder)
    }
    own = Counter(stem for name, stem in stem_of.items() if name not in foreign)
    embeds = {path for name, (path, word, _, _) in cut.items() if OUTSIDE.get(word) == "embedding" and at[name] is None}
    main = max(own, key=lambda stem: (stem in embeds, own[stem]), default=())
    out = {}
    kind: Kind
    for name, (holder, word, is_bias, in_list) in cut.items():
        end = at[name]
        if end is None:
            path, kind, depth = _below(holder, stems), "other" if in_list else "outside", 0
        else:
            path = ()
            kind, depth = _inside(holder[end:])
        if name in foreign:
            kind = "foreign"
        block, branch, module = (".".join(holder[:to]) for to in (end or 0, (end or 0) + depth, len(holder)))
        out[name] = Place(
            kind=kind,
            block=block,
            branch=branch,
            holder=module,
            word=word,
            is_bias=is_bias,
            is_main=stem_of.get(name, main) == main,
            path=path,
        )
    return out


def _words(name: str) -> tuple[tuple[str, ...], str, bool, bool]:
    """Return (path, word, whether the tensor is a bias, whether the word is a list of which this is an entry)."""
    parts = [part.lower() for part in name.split(".") if not WRAPPER.fullmatch(part)] or [name.lower()]
    *path, leaf = parts
    is_bias = False
    if found := re.fullmatch(r"(weight|kernel|scale|gamma)\d*|(bias|beta)\d*", leaf):
        is_bias = found[2] is not None
        if path and EXPERTS.fullmatch(path[-1]) and leaf[-1].isdecimal():  # Megatron's experts.weight1
            return tuple(path), leaf, is_bias, False
        at = next((at for at in range(len(path) - 1, -1, -1) if not path[at].isdecimal()), None)
        return ((), leaf, is_bias, True) if at is None else (tuple(path[:at]), path[at], is_bias, at + 1 < len(path))
    if found := re.fullmatch(r"(.+)_(weight|bias)", leaf):
        # A norm that a linear layer of Transformer Engine holds lies where that layer lies.
        norm = NORM.fullmatch(found[1]) and path
        return tuple(path[:-1] if norm else path), found[1], found[2] == "bias", False
    # torchtitan spells the dimensions of stacked experts: w1_EFD.
    return tuple(path), re.sub(r"_[A-Z]+$", "", name.split(".")[-1]).lower(), is_bias, False


def _block_at(path: tuple[str, ...]) -> int | None:
    """Return how many parts of a path lead to its block, or None if it leads into none."""
    for at, part in enumerate(path):
        if part in BLOCKS:
            return at + 2 if path[at + 1 : at + 2] and path[at + 1].isdecimal() else at + 1
        if _is_part(part):
            return None  # what follows numbers experts
        if part.isdecimal():
            return at + 1
    return None


def _around_part(path: tuple[str, ...]) -> int | None:
    """Return how many parts of a path lead to the first attention, FFN or experts in it, or None if it has none."""
    return next((at for at, part in enumerate(path) if _is_part(part)), None)


def _is_part(part: str) -> bool:
    return any(pattern.fullmatch(part) for pattern in (ATTENTION, DENSE, MOE, EXPERTS, SHARED))


def _stem(path: tuple[str, ...], end: int) -> tuple[str, ...]:
    """Return the modules around the list of blocks."""
    if not end or not (path[end - 1].isdecimal() or path[end - 1] in BLOCKS):
        return path[:end]
    return path[: max(end - 2, 0) if path[end - 1].isdecimal() else end - 1]


def _below(path: tuple[str, ...], stems: Collection[tuple[str, ...]]) -> tuple[str, ...]:
    """Return what is left of a path without the modules around it that hold blocks too."""
    shared = 0
    for stem in stems:
        same = 0
        while same < min(len(stem), len(path)) and stem[same] == path[same]:
            same += 1
        shared = max(shared, same)
    return path[shared:]


def _inside(path: tuple[str, ...]) -> tuple[Kind, int]:
    """Return the kind of place to which a path leads from a block, and how many parts lead to the first such place."""
    kind: Kind = "block"
    depth = 0
    for at, part in enumerate(path):
        before = kind
        if not (part.isdecimal() or part in SAME_PLACE):
            kind = _step(kind, part)
        if kind != before or (part.isdecimal() and depth == at):  # one of several side by side
            depth = at + 1
    return kind, depth


def _step(kind: Kind, part: str) -> Kind:
    """Return the kind of place one module further in."""
    if kind in ("block", "other", "dense", "moe"):
        if SHARED.fullmatch(part):
            return "shared"
        if EXPERTS.fullmatch(part):
            return "expert"
        if part in ROUTER_MODULES:
            return "router"
        if MOE.fullmatch(part):
            return "moe"
        if DENSE.fullmatch(part):
            return "moe" if kind == "moe" else "dense"
    if kind in ("block", "other"):
        if ATTENTION.fullmatch(part) and part not in NOT_ATTENTION:
            return "attention"
        return "foreign" if NORM.fullmatch(part) else "other"
    if kind == "attention" and (part in WITHIN_ATTENTION or ATTENTION.fullmatch(part)):
        return kind
    if kind in ("expert", "shared") and (EXPERTS.fullmatch(part) or DENSE.fullmatch(part)):
        return kind
    return "foreign"


# What tensors are called in each place.
Words = Mapping[str, str]

QKV = "attn_q+attn_k+attn_v"
KV = "attn_k+attn_v"
# The kinds of matrices in an FFN, whatever FFN it is.
IN, GATE, OUT, FUSED = "in", "gate", "out", "in+gate"


def _table(*rows: tuple[str, str]) -> Words:
    """Return word -> role, from rows of a role and its words."""
    return {word: role for role, words in rows for word in words.split()}


OUTSIDE = _table(
    ("embedding", "wte embed_tokens tok_embeddings tok_embedding token_embedding token_embeddings tok_emb token_emb"),
    (
        "embedding",
        "tokens_embed embedder embed_in word_embeddings word_embedding embeddings embedding embed emb shared",
    ),
    ("position", "wpe embed_positions position_embedding position_embeddings positions_embed pos_embedding pos_emb"),
    ("position", "pos_embed"),
    ("readout", "lm_head head output output_layer unembed unembedding readout embed_out output_projection proj_out"),
)
# Modules that may be around these words.
EMBEDDINGS = frozenset({"embeddings", "embedding", "embed"})
HEADS = frozenset({"lm_head", "head", "output_layer", "cls", "predictions"})
IN_HEAD = frozenset({"w_out", "decoder", "linear", "proj", "out"})
AT_THE_END = HEADS | {"transform"}
FINAL_NORMS = _table(
    ("final_norm", "norm layer_norm layernorm rmsnorm rms_norm ln ln_f lnf ln_final ln_out norm_f norm_out norm_final"),
    ("final_norm", "final_norm final_layernorm final_layer_norm final_ln out_norm output_norm"),
)

IN_ATTENTION = _table(
    ("attn_q", "q_proj wq w_q query q to_q linear_q q_lin c_q query_proj"),
    ("attn_k", "k_proj wk w_k key k to_k linear_k k_lin c_k key_proj"),
    ("attn_v", "v_proj wv w_v value v to_v linear_v v_lin c_v value_proj"),
    ("attn_out", "o_proj wo w_o o out_proj c_proj dense to_out out output w_out proj linear_proj out_lin attn_out"),
    # Low-rank attention (MLA). The second matrices read the low rank: a recipe asks for their fan-in at the base.
    ("attn_q", "q_a_proj q_b_proj wq_a wq_b linear_q_down_proj linear_q_up_proj"),
    (KV, "kv_a_proj_with_mqa kv_a_proj kv_b_proj wkv_a wkv_b kv_proj wkv linear_kv_down_proj linear_kv_up_proj"),
    (QKV, "c_attn qkv qkv_proj query_key_value wqkv attn_qkv linear_qkv w_pack"),
)
# Those that mean the same without a module of attention around them.
IN_BLOCK = _table(
    ("attn_q", "q_proj wq w_q"),
    ("attn_k", "k_proj wk w_k"),
    ("attn_v", "v_proj wv w_v"),
    ("attn_out", "o_proj wo w_o attn_out"),
    (QKV, "qkv_proj wqkv c_attn att_proj"),
)

# Their tensor holds one matrix or, as that of a SwiGLU may, two. Only the sizes say.
EITHER = _table(
    (IN, "fc1 fc_1 linear_fc1 input_linear lin1 linear1 linear_1 dense_h_to_4h wi ff_in ff_proj in_proj weight1")
)
IN_FFN: Words = {
    **EITHER,
    **_table(
        (IN, "up_proj w_up up c_fc w_in fc_in linear_in proj_up wi_1 fc fc_up"),
        (GATE, "gate_proj w_gate gate linear_gate fc_gate proj_up_gate wi_0"),
        (OUT, "down_proj w_down down c_proj w_out fc_out out linear_out proj_down wo out_proj ff_out proj"),
        (OUT, "fc2 fc_2 linear_fc2 output_linear lin2 linear2 linear_2 dense_4h_to_h weight2"),
        (FUSED, "gate_up_proj up_gate_proj gate_up"),
    ),
}
# Those of an FFN that lies in the block without a module around it.
FFN_IN_BLOCK = _table(
    (IN, "up_proj w_up fc1 linear1 ff_proj"),
    (GATE, "gate_proj w_gate"),
    (OUT, "down_proj w_down fc2 linear2 ff_out"),
)
# Numbers say nothing by themselves: those beside them decide.
NUMBERED: tuple[Words, ...] = (
    {"w1": IN, "w2": OUT},
    {"w1": GATE, "w2": OUT, "w3": IN},
    {"w1": GATE, "w2": OUT, "v1": IN},
    {"w12": FUSED, "w3": OUT},
    {"w13": FUSED, "w2": OUT},
)
NUMBERS = frozenset(word for row in NUMBERED for word in row)

ROUTERS = frozenset({"router", "gate", "gating", "wg"})
IN_ROUTER = frozenset({"layer", "gate", "wg", "linear", "proj", "classifier"})
# The gate of a shared expert reads the width and gives one number.
SHARED_GATES = frozenset({"shared_expert_gate", "shared_experts_gate"})
ROUTER_BIASES = frozenset({"e_score_correction_bias", "router_bias", "expert_bias"})
