"""Known models: name pattern -> role for models of `transformers`, and common spellings for others. Data.

The names are those of transformers 5 (experts as stacked tensors [E, out, in], gate and up in one) and 4 (a module an
expert). `*` also matches dots; the first match wins. Patterns that match nothing in a model are left out for it.
"""

from __future__ import annotations

Pairs = tuple[tuple[str, str], ...]

QKV = "attn_q+attn_k+attn_v"
# Gains on queries and keys stand inside the blocks.
_LLAMA: Pairs = (
    ("*embed_tokens.weight", "embedding"),
    ("*layers.*.self_attn.q_norm.weight", "norm"),
    ("*layers.*.self_attn.k_norm.weight", "norm"),
    ("*layers.*.input_layernorm.weight", "norm"),
    ("*layers.*.post_attention_layernorm.weight", "norm"),
    ("norm.weight", "final_norm"),
    ("model.norm.weight", "final_norm"),
    ("*.self_attn.q_proj.weight", "attn_q"),
    ("*.self_attn.k_proj.weight", "attn_k"),
    ("*.self_attn.v_proj.weight", "attn_v"),
    ("*.self_attn.o_proj.weight", "attn_out"),
    ("*.self_attn.?_proj.bias", "hidden_bias"),
    ("lm_head.weight", "readout"),
)
_DENSE: Pairs = (
    ("*.mlp.gate_proj.weight", "dense_gate"),
    ("*.mlp.up_proj.weight", "dense_in"),
    ("*.mlp.down_proj.weight", "dense_out"),
    ("*.mlp.*_proj.bias", "hidden_bias"),
)
_EXPERTS: Pairs = (
    ("*.gate.e_score_correction_bias", "router_bias"),
    ("*.mlp.gate.weight", "router"),
    ("*.experts.gate_up_proj", "expert_in+expert_gate"),
    ("*.experts.down_proj", "expert_out"),
    ("*.experts.*.gate_proj.weight", "expert_gate"),
    ("*.experts.*.up_proj.weight", "expert_in"),
    ("*.experts.*.down_proj.weight", "expert_out"),
)
_MIXTRAL_4: Pairs = (
    ("*.block_sparse_moe.gate.weight", "router"),
    ("*.experts.*.w1.weight", "expert_gate"),
    ("*.experts.*.w2.weight", "expert_out"),
    ("*.experts.*.w3.weight", "expert_in"),
)
_GPT2: Pairs = (
    ("*wte.weight", "embedding"),
    ("*wpe.weight", "position"),
    ("*h.*.ln_1.weight", "norm"),
    ("*h.*.ln_2.weight", "norm"),
    ("*ln_f.weight", "final_norm"),
    ("*.attn.c_attn.weight", QKV),
    ("*.attn.c_proj.weight", "attn_out"),
    ("*.mlp.c_fc.weight", "dense_in"),
    ("*.mlp.c_proj.weight", "dense_out"),
    ("*.ln_?.bias", "hidden_bias"),
    ("ln_f.bias", "hidden_bias"),
    ("*.c_*.bias", "hidden_bias"),
    ("lm_head.weight", "readout"),
)

# config.model_type -> pairs
ROLES_OF: dict[str, Pairs] = {
    "gpt2": _GPT2,
    "llama": (*_LLAMA, *_DENSE),
    "mixtral": (*_MIXTRAL_4, *_EXPERTS, *_LLAMA),
    "qwen3_moe": (*_EXPERTS, *_DENSE, *_LLAMA),
    "olmoe": (*_EXPERTS, *_LLAMA),
}

_ATTN_SITES: Pairs = (("*layers.*.self_attn", "attn_logits"), ("*layers.*.self_attn", "attn_out"))
_HEAD: Pairs = (("lm_head", "readout"),)
_GATE: Pairs = (("*layers.*.mlp.gate", "router"), ("*layers.*.block_sparse_moe.gate", "router"))
_MOE: Pairs = tuple(
    (f"*layers.*.{name}", key) for name in ("mlp", "block_sparse_moe") for key in ("expert_out", "route_scale")
)
# config.model_type -> pairs of module pattern and forward multiplier. Where a module may be a MoE layer or a dense FFN,
# the one that it is counts. None of these models has shared experts, so that what multiplies the gates multiplies the
# layer's output as well.
SITES_OF: dict[str, Pairs] = {
    "gpt2": (("*h.*.attn", "attn_logits"), ("*h.*.attn", "attn_out"), ("*h.*.mlp", "dense_out"), *_HEAD),
    "llama": (*_ATTN_SITES, ("*layers.*.mlp", "dense_out"), *_HEAD),
    "mixtral": (*_ATTN_SITES, *_GATE, *_MOE, *_HEAD),
    "qwen3_moe": (*_ATTN_SITES, *_GATE, *_MOE, ("*layers.*.mlp", "dense_out"), *_HEAD),
    "olmoe": (*_ATTN_SITES, *_GATE, *_MOE, *_HEAD),
}

# What tensors of other models are often called. Routers before FFNs, shared experts before experts.
COMMON: Pairs = (
    *((f"*{name}.weight", "embedding") for name in ("wte", "embed_tokens", "tok_embeddings", "embed_in")),
    *((f"*{name}.weight", "embedding") for name in ("token_embedding", "token_embeddings", "tok_emb", "embedder")),
    *((f"*{name}.weight", "position") for name in ("wpe", "embed_positions", "position_embedding", "pos_emb")),
    *((f"*{name}.weight", "position") for name in ("position_embeddings", "pos_embedding")),
    *((f"*{name}", "router_bias") for name in ("e_score_correction_bias", ".router_bias", ".expert_bias")),
    *((f"{model}norm.weight", "final_norm") for model in ("", "model.", "transformer.")),
    *((f"{model}ln_f.weight", "final_norm") for model in ("", "model.", "transformer.")),
    *((f"*{name}.weight", "final_norm") for name in ("final_norm", "final_layernorm", "final_layer_norm")),
    *((f"*.{name}.weight", "norm") for name in ("*norm", "*norm?", "*norm_?", "ln?", "ln_?")),
    *((f"*{name}.bias", "hidden_bias") for name in ("norm", "norm?", "norm_?", "ln?", "ln_?")),
    *((f"*{name}.weight", QKV) for name in ("c_attn", ".qkv", "qkv_proj", "query_key_value", "Wqkv")),
    *((f"*.{name}.weight", "attn_q") for name in ("q_proj", "wq", "query", "to_q", "q")),
    *((f"*.{name}.weight", "attn_k") for name in ("k_proj", "wk", "key", "to_k", "k")),
    *((f"*.{name}.weight", "attn_v") for name in ("v_proj", "wv", "value", "to_v", "v")),
    *((f"*.{name}.weight", "attn_out") for name in ("o_proj", "wo", "to_out", "*attn.out_proj", "*attn.c_proj")),
    *((f"*.{name}.weight", "attn_out") for name in ("*attn.out", "*attention.out", "*attention.dense", "*attn.proj")),
    *((f"*.{name}.weight", "router") for name in ("router", "router.layer", "router.gate", "gate.wg")),
)
IN_FFN: dict[str, tuple[str, ...]] = {
    "gate": ("gate_proj", "w_gate", "gate"),
    "in": ("up_proj", "w_up", "up", "c_fc", "fc1", "w_in", "fc_in"),
    "out": ("down_proj", "w_down", "down", "c_proj", "fc2", "w_out", "fc_out"),
}
# w1 is what goes through the activation: the gate where there is a w3, the only way in where there is none.
NUMBERED = {True: {"w1": "gate", "w3": "in", "w2": "out"}, False: {"w1": "in", "w2": "out"}}
# Modules that hold an FFN, by kind; the dense one is what the others are not.
FFNS: Pairs = (("*.shared*", "shared"), ("*experts*", "expert"), ("*", "dense"))
HEADS: Pairs = tuple(
    (pattern, "readout")
    for name in ("lm_head", "head", "output", "unembed", "readout", "embed_out")
    for pattern in (f"{name}.weight", f"*.{name}.weight")
)
