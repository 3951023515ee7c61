"""Role words: what tensors are called in each place of a model (`hpxfer.recipe.places`), as tables of word -> role."""

from __future__ import annotations

from collections.abc import Mapping

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
