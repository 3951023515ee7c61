"""Roles by place: names of public models with the roles that their forward passes give them, and laws of all names."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import partial

import pytest
import torch
import transformers
from torch import nn

import hpxfer
from hpxfer.recipe.roles_by_place import Sizes, proposals

KV = "attn_k+attn_v"
# Name, size and true role of each tensor, `-` where nothing tells. A role behind a slash is
# what the name alone, without the size, may say; that of a guess ends with `?`.
MODELS = {
    "nanoGPT": """
        transformer.wte.weight 50x64 embedding | transformer.wpe.weight 16x64 position
        transformer.h.0.ln_1.weight 64 norm | transformer.h.0.attn.c_attn.weight 192x64 attn_q+attn_k+attn_v
        transformer.h.0.attn.c_proj.weight 64x64 attn_out | transformer.h.0.attn.c_proj.bias 64 hidden_bias
        transformer.h.0.mlp.c_fc.weight 256x64 dense_in | transformer.h.0.mlp.c_proj.weight 64x256 dense_out
        transformer.ln_f.weight 64 final_norm | transformer.ln_f.bias 64 hidden_bias | lm_head.weight 50x64 readout""",
    "OLMo-core MoE": """
        embeddings.weight 50x64 embedding | blocks.0.attention_norm.weight 64 norm
        blocks.0.attention.w_q.weight 64x64 attn_q | blocks.0.attention.w_k.weight 64x64 attn_k
        blocks.0.attention.w_v.weight 64x64 attn_v | blocks.0.attention.w_out.weight 64x64 attn_out
        blocks.0.feed_forward_norm.weight 64 norm | blocks.0.feed_forward_moe.router.weight 256 router
        blocks.0.feed_forward_moe.experts.mlp.w1 128x64 expert_gate?
        blocks.0.feed_forward_moe.experts.mlp.w2 128x64 expert_out?
        blocks.0.feed_forward_moe.experts.mlp.w3 128x64 expert_in?
        blocks.0.feed_forward_moe.shared_mlp.w1.weight 32x64 shared_gate/?
        blocks.0.feed_forward_moe.shared_mlp.w2.weight 64x32 shared_out/?
        blocks.0.feed_forward_moe.shared_mlp.w3.weight 32x64 shared_in/? | lm_head.norm.weight 64 final_norm?
        lm_head.w_out.weight 50x64 readout""",
    "torchtitan, DeepSeek-V3": """
        tok_embeddings.weight 50x64 embedding | layers.0.attention.wq_a.weight 16x64 attn_q
        layers.0.attention.q_norm.weight 16 norm | layers.0.attention.wq_b.weight 64x16 attn_q
        layers.0.attention.wkv_a.weight 20x64 attn_k+attn_v | layers.0.attention.wkv_b.weight 64x16 attn_k+attn_v
        layers.0.attention.wo.weight 64x64 attn_out | layers.0.moe.experts.w1 4x32x64 expert_gate/?
        layers.0.moe.experts.w2 4x64x32 expert_out/? | layers.0.moe.experts.w3 4x32x64 expert_in/?
        layers.0.moe.router.gate.weight 4x64 router | layers.0.moe.expert_bias 4 router_bias
        layers.0.ffn_norm.weight 64 norm | norm.weight 64 final_norm | output.weight 50x64 readout""",
    "Megatron-LM": """
        embedding.word_embeddings.weight 50x64 embedding
        decoder.layers.0.self_attention.linear_qkv.layer_norm_weight 64 norm
        decoder.layers.0.self_attention.linear_qkv.weight 96x64 attn_q+attn_k+attn_v
        decoder.layers.0.self_attention.linear_proj.weight 64x64 attn_out
        decoder.layers.0.mlp.router.weight 4x64 router
        decoder.layers.0.mlp.experts.linear_fc1.weight0 64x64 expert_in+expert_gate/-
        decoder.layers.0.mlp.experts.linear_fc1.weight1 64x64 expert_in+expert_gate/-
        decoder.layers.0.mlp.experts.linear_fc2.weight0 64x32 expert_out
        decoder.layers.0.mlp.experts.linear_fc2.weight1 64x32 expert_out
        decoder.layers.0.mlp.shared_experts.linear_fc1.weight 32x64 shared_in/-
        decoder.layers.0.mlp.shared_experts.linear_fc2.weight 64x32 shared_out
        decoder.layers.0.mlp.shared_experts.gate_weight 1x64 router | decoder.final_layernorm.weight 64 final_norm
        output_layer.weight 50x64 readout | mtp.layers.0.eh_proj.weight 64x128 -
        mtp.layers.0.transformer_layer.self_attention.linear_proj.weight 64x64 -
        mtp.layers.0.final_layernorm.weight 64 -""",
    "dMoE of MegaBlocks in DBRX": """
        transformer.wte.weight 50x64 embedding | transformer.blocks.0.norm_attn_norm.norm_1.weight 64 norm
        transformer.blocks.0.norm_attn_norm.attn.Wqkv.weight 96x64 attn_q+attn_k+attn_v
        transformer.blocks.0.norm_attn_norm.attn.out_proj.weight 64x64 attn_out
        transformer.blocks.0.ffn.router.layer.weight 4x64 router
        transformer.blocks.0.ffn.experts.mlp.w1 128x64 expert_gate
        transformer.blocks.0.ffn.experts.mlp.v1 128x64 expert_in
        transformer.blocks.0.ffn.experts.mlp.w2 128x64 expert_out | transformer.norm_f.weight 64 final_norm
        lm_head.weight 50x64 readout""",
    "gpt-oss as it was published": """
        embedding.weight 50x64 embedding | block.0.attn.norm.scale 64 norm | block.0.attn.sinks 4 hidden_bias
        block.0.attn.qkv.weight 96x64 attn_q+attn_k+attn_v | block.0.attn.out.weight 64x64 attn_out
        block.0.mlp.norm.scale 64 norm | block.0.mlp.gate.weight 4x64 - | block.0.mlp.mlp1_weight 4x64x64 -
        block.0.mlp.mlp2_weight 4x64x32 - | norm.scale 64 final_norm | unembedding.weight 50x64 readout""",
    "T5, encoder and decoder": """
        shared.weight 50x64 embedding | encoder.block.0.layer.0.SelfAttention.q.weight 64x64 -
        encoder.block.0.layer.0.SelfAttention.k.weight 64x64 - | encoder.block.0.layer.0.SelfAttention.v.weight 64x64 -
        encoder.final_layer_norm.weight 64 - | decoder.block.0.layer.0.SelfAttention.q.weight 64x64 attn_q
        decoder.block.0.layer.0.SelfAttention.k.weight 64x64 attn_k
        decoder.block.0.layer.0.SelfAttention.v.weight 64x64 attn_v
        decoder.block.0.layer.0.SelfAttention.o.weight 64x64 attn_out
        decoder.block.0.layer.1.EncDecAttention.o.weight 64x64 - | decoder.final_layer_norm.weight 64 final_norm
        lm_head.weight 50x64 readout""",
    "MLPs whose words stand for something else than usual": """
        transformer.h.0.mlp.w1.weight 32x64 - | transformer.h.0.mlp.w2.weight 32x64 -
        transformer.h.0.mlp.c_proj.weight 64x32 - | transformer.h.1.mlp.fc_1.weight 32x64 -
        transformer.h.1.mlp.fc_2.weight 32x64 - | transformer.h.1.mlp.proj.weight 64x32 -
        transformer.h.2.mlp.w1.weight 32x64 -/dense_gate? | transformer.h.2.mlp.w2.weight 32x64 -/dense_out?
        transformer.h.2.mlp.w3.weight 64x32 -/dense_in? | transformer.h.3.mlp.fc1.weight 64x64 dense_in+dense_gate/-
        transformer.h.3.mlp.fc2.weight 64x32 dense_out | transformer.h.4.mlp.fc1.weight 32x64 dense_in/-
        transformer.h.4.mlp.fc2.weight 64x32 dense_out""",
    "what is no FFN and no attention": """
        model.layers.0.self_attn.q_proj.weight 64x64 attn_q | model.layers.0.self_attn.k_proj.weight 64x64 attn_k
        model.layers.0.self_attn.v_proj.weight 64x64 attn_v | model.layers.0.self_attn.o_proj.weight 64x64 attn_out
        model.layers.0.self_attn.gate_proj.weight 64x64 - | model.layers.0.self_attn.indexer.wk.weight 64x64 -
        model.layers.0.self_attn.q_proj.lora_A.default.weight 4x64 - | model.layers.0.cross_attn.q_proj.weight 64x64 -
        model.layers.0.adapter.down_proj.weight 4x64 - | model.layers.0.input_layernorm.mlp.fc1.weight 4x64 -
        model.layers.0.mixer.out_proj.weight 64x64 - | model.layers.0.time_mix.dense.weight 64x64 -
        model.layers.1.attention.key.weight 64x64 - | model.layers.1.attention.value.weight 64x64 -
        model.layers.1.attention.receptance.weight 64x64 - | model.layers.1.attention.output.weight 64x64 -
        model.layers.9.shared_head.norm.weight 64 - | model.layers.9.shared_head.head.weight 50x64 -
        model.vision_tower.layers.0.self_attn.q_proj.weight 64x64 - | model.vision_embed_tokens.weight 64x64 -
        model.w_out.weight 64x64 - | model.norm.weight 64 final_norm""",
}
# Names of norms outside the blocks -> their roles.
NORMS = {
    "model.norm": {"model.norm": "final_norm"},
    "transformer.out_norm": {"transformer.out_norm": "final_norm"},
    "rwkv.ln_out": {"rwkv.ln_out": "final_norm"},
    "encoder.output_layernorm": {"encoder.output_layernorm": "final_norm?"},
    "beside that of the embeddings": {"bloom.word_embeddings_layernorm": "-", "bloom.ln_f": "final_norm"},
    "at the embeddings alone": {"decoder.layernorm_embedding": "-"},
    "LFM2, where the name says otherwise": {"model.embedding_norm": "-"},
    "Gemma 4": {"model.per_layer_projection_norm": "-", "model.norm": "final_norm"},
    "ModernBERT, where two could be the last": {"model.final_norm": "-", "lm_head.norm": "-"},
}
# Settings that make an architecture of transformers small.
TINY = {
    "vocab_size": 50,
    "kv_lora_rank": 16,
    "q_lora_rank": 12,
    "layer_types": ["full_attention"] * 2,
    **dict.fromkeys(("hidden_size", "d_model"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("num_attention_heads", "n_heads", "qk_rope_head_dim"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "num_key_value_heads", "num_experts_per_tok"), 2),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "first_k_dense_replace", "num_dense_layers"), 1),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
}
# The roles in a block, and of what is around it, as the forward passes read the tensors: last words of a name -> role.
KINDS = {
    "afmoe": {"self_attn.gate_proj": "-", "mlp.expert_bias": "router_bias", "mlp.router.gate": "router"},
    "deepseek_v3": {"q_b_proj": "attn_q", "kv_b_proj": KV, "shared_experts.up_proj": "shared_in", "mlp.gate": "router"},
    "gpt_neox": {"attention.dense": "attn_out", "dense_h_to_4h": "dense_in", "gpt_neox.final_layer_norm": "final_norm"},
    "opt": {"layers.#.final_layer_norm": "norm", "decoder.final_layer_norm": "final_norm", "fc2": "dense_out"},
    "mpt": {"attn.out_proj": "attn_out", "norm_f": "final_norm", "norm_1": "norm"},
    "qwen2_moe": {
        "shared_expert_gate": "router",
        "shared_expert.down_proj": "shared_out",
        "experts.down_proj": "expert_out",
    },
    "jetmoe": {"mlp.input_linear": "expert_in+expert_gate", "experts.input_linear": "-", "kv_proj": "-"},
    "recurrent_gemma": {"temporal_block.linear_out": "-", "mlp_block.down_proj": "dense_out"},
    "phi": {"self_attn.dense": "attn_out", "model.final_layernorm": "final_norm", "mlp.fc1": "dense_in"},
    "mamba": {"mixer.out_proj": "-", "mixer.in_proj": "-", "layers.#.norm": "norm", "norm_f": "final_norm"},
}
PREFIXES = ("model", "module", "_orig_mod", "language_model", "base_model.model", "_fsdp_wrapped_module", "self.model")


def table(text: str) -> tuple[dict[str, tuple[int, ...]], dict[str, str], dict[str, str]]:
    """Return name -> size, name -> role by size, and name -> role by the name alone."""
    sizes, roles, alone = {}, {}, {}
    for entry in re.split(r"[|\n]", text.strip()):
        name, size, given = entry.split()
        role, slash, other = given.partition("/")
        sizes[name] = tuple(map(int, size.split("x")))
        roles[name], alone[name] = role, role if not slash else f"{role}?" if other == "?" else other
    return sizes, roles, alone


def spelled(sizes: Sizes) -> dict[str, str]:
    """Return name -> role, with a question mark behind a guess, and `-` for none."""
    found = proposals(sizes)
    return {name: f"{found[name].role}{'?' if found[name].guess else ''}" if name in found else "-" for name in sizes}


@pytest.mark.parametrize(
    ("name", "size", "role"),
    [
        *(("scale", (64,), "-"), ("scale", None, "-"), ("weight", (64,), "-"), ("weight", (8,), "-")),
        *(("weight", (8, 64), "router"), ("weight", (8 * 64,), "router"), ("weight", None, "router")),
    ],
)
def test_a_router_is_a_matrix_or_flat_and_its_gain_is_none(name: str, size: tuple[int, ...] | None, role: str) -> None:
    sizes = {"embed_tokens.weight": (50, 64), f"layers.0.router.{name}": size, "layers.0.experts.0.w1": (16, 64)}
    assert spelled(sizes)[f"layers.0.router.{name}"] == role


@pytest.mark.parametrize(
    ("stack", "mark"),
    [("tower.layers", "?"), ("depth_decoder.layers", "?"), ("resampler.layers", "-"), ("qformer.encoder.layer", "-")],
)
def test_other_blocks_than_the_main_ones_are_a_guess_or_have_no_role(stack: str, mark: str) -> None:
    names = [f"mlp.{name}_proj.weight" for name in ("up", "down")]
    main = [f"model.layers.{layer}.{name}" for layer in (0, 1) for name in names]
    vision = [f"vision_tower.layers.{layer}.{name}" for layer in range(9) for name in names]
    other = [f"{stack}.0.{name}" for name in names]
    found = spelled(dict.fromkeys([*vision, *other, *main]))
    assert [found[name] for name in main] == ["dense_in", "dense_out"] * 2
    assert [found[name] for name in other] == (["dense_in?", "dense_out?"] if mark == "?" else ["-", "-"])
    # An embedding says more than the number of tensors.
    more = [f"{stack}.{layer}.{name}" for layer in range(4) for name in names]
    found = spelled(dict.fromkeys([*more, *main, "model.embed_tokens.weight"]))
    assert found[main[0]] == "dense_in"
    assert found[more[0]] == ("dense_in?" if mark == "?" else "-")


def test_a_second_embedding_or_readout_is_a_guess() -> None:
    names = ("embed_tokens", "emb", "shared", "lm_head", "output")
    found = spelled(dict.fromkeys([*(f"{name}.weight" for name in names), "layers.0.mlp.up_proj.weight"]))
    assert list(found.values())[:5] == ["embedding", "embedding?", "embedding", "readout", "readout?"]


@pytest.mark.parametrize("norms", NORMS.values(), ids=NORMS)
def test_the_final_norm_is_the_one_outside_the_blocks(norms: dict[str, str]) -> None:
    lists = {name.partition(".")[0] for name in norms if not name.startswith("lm_head")}
    inside = {f"{stem}.layers.{layer}.final_layer_norm.weight": (8,) for stem in lists for layer in (0, 1)}
    found = spelled({**inside, **{f"{name}.weight": (8,) for name in norms}})
    assert {name.removesuffix(".weight"): role for name, role in found.items() if name not in inside} == norms
    assert {found[name] for name in inside} == {"norm"}


@pytest.mark.parametrize("kind", KINDS)
def test_models_of_transformers_have_the_roles_of_their_forward_passes(kind: str) -> None:
    known = transformers.AutoConfig.for_model(kind).to_dict()
    config = transformers.AutoConfig.for_model(kind, **{key: value for key, value in TINY.items() if key in known})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    found = spelled({name: tuple(tensor.shape) for name, tensor in model.named_parameters()})
    for words, role in KINDS[kind].items():
        ends = re.compile(rf"(.*\.)?{re.escape(words)}(\.weight)?".replace(r"\#", "[0-9]+"))
        names = [name for name in found if ends.fullmatch(name)]
        assert {found[name] for name in names} == {role}, words


@pytest.mark.parametrize("text", MODELS.values(), ids=MODELS)
def test_a_name_counts_in_its_place_without_sizes_under_a_prefix_and_in_any_list_of_blocks(text: str) -> None:
    sizes, roles, alone = table(text)
    assert spelled(sizes) == roles
    assert spelled(dict.fromkeys(sizes)) == alone
    for prefix in PREFIXES:
        inside = spelled({f"{prefix}.{name}": size for name, size in sizes.items()})
        assert {name: inside[f"{prefix}.{name}"] for name in sizes} == roles
    for listed in ("layers", "blocks", "h", "stages"):
        named = {re.sub(r"(^|\.)(layers|blocks?|h)\.(\d+)\.", rf"\1{listed}.\3.", name): name for name in sizes}
        other = spelled({new: sizes[name] for new, name in named.items()})
        assert {named[new]: role for new, role in other.items()} == roles


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("names", [("moe.up_e", "moe.down_e"), ("sparse.A", "sparse.B"), ("experts.x", "experts.y")])
def test_stacked_experts_are_known_by_their_sizes(names: tuple[str, str], turned: bool) -> None:
    around = {"wte.weight": (50, 16), **{f"layers.{i}.{names[0].split('.')[0]}.router.weight": (4, 16) for i in (0, 1)}}

    def roles(*sizes: tuple[int, ...]) -> list[str]:
        made = {f"layers.{i}.{name}": size for i in (0, 1) for name, size in zip(names, sizes, strict=True)}
        sized = {name: (size[0], *size[:0:-1]) if turned else size for name, size in made.items()}
        found = spelled({**around, **sized})
        assert all(found[f"layers.0.{name}"] == found[f"layers.1.{name}"] for name in names)
        return [found[f"layers.0.{name}"] for name in names]

    assert roles((4, 16, 24), (4, 24, 16)) == ["expert_in?", "expert_out?"]
    assert roles((4, 16, 48), (4, 24, 16)) == ["expert_in+expert_gate?", "expert_out?"]
    assert roles((4, 24, 16), (4, 16, 48)) == ["expert_out?", "expert_in+expert_gate?"]
    assert roles((4, 16, 16), (4, 16, 16)) == ["-", "-"], "either could be the input"
    beside_others = roles((5, 16, 24), (5, 24, 16))
    assert beside_others == (["-", "-"] if "sparse" in names[0] else ["expert_in?", "expert_out?"])


def test_a_proposal_says_what_it_guesses_and_its_patterns_match_nothing_that_has_no_role() -> None:
    """A norm in an adapter has the name of the block's own: `layers.*.norm.weight` would catch it."""
    blocks = nn.ModuleList(_block() for _ in range(12))
    model = nn.ModuleDict({"layers": blocks, "head": nn.ModuleDict({"norm": nn.LayerNorm(8, bias=False)})})
    proposed = hpxfer.roles(model)
    assert "head.norm.weight is taken for final_norm by its place, as the only norm outside the blocks" in str(proposed)
    names = [name for name, _ in model.named_parameters()]
    assert set(proposed.unmatched) == {name for name in names if ".adapter." in name}
    found = {name: next((role for glob, role in proposed if fnmatchcase(name, glob)), "-") for name in names}
    assert found == spelled(dict.fromkeys(names)) | {"head.norm.weight": "final_norm"}
    assert sum(len(match.names) == 12 for match in proposed.matches) == 5


def _block() -> nn.Module:
    linear = partial(nn.Linear, 8, 8, bias=False)
    norm = partial(nn.LayerNorm, 8, bias=False)
    attn, mlp = nn.ModuleDict({f"{name}_proj": linear() for name in "qkvo"}), nn.ModuleDict({"down_proj": linear()})
    adapter = nn.ModuleDict({"norm": norm(), "down_proj": linear()})
    return nn.ModuleDict({"attn": attn, "norm": norm(), "adapter": adapter, "mlp": mlp})
