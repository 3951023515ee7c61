"""Tiny models of transformers, made here, and of its version 4, whose names are rebuilt here."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn

from hpxfer import Recipe

IDS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
COMMON: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
    **IDS,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MOE = {**COMMON, "num_experts_per_tok": 2}
BIASES = {"attention_bias": True, "mlp_bias": True}
GPT2 = {"vocab_size": 48, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, **IDS}
QWEN = {"num_experts": 4, "moe_intermediate_size": 16, "head_dim": 8, "mlp_only_layers": [0]}
PLAIN_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
SHARED = {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24}
LINEAR = {f"linear_num_{part}_heads": 2 for part in ("key", "value")}
LINEAR |= {f"linear_{part}_head_dim": 8 for part in ("key", "value")}
NEXT = {**SHARED, **LINEAR, "head_dim": 8, "layer_types": ["linear_attention", "full_attention"]}
ROUTED = {"n_routed_experts": 4, "moe_intermediate_size": 16, "n_shared_experts": 1, "first_k_dense_replace": 1}
ROUTED |= {"n_group": 1, "topk_group": 1}
MLA = {"q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
MLA |= {**ROUTED, "routed_scaling_factor": 1.0}
GLM = {**ROUTED, "head_dim": 8, "use_qk_norm": True, "attention_bias": True}
ATTENTION = "1/sqrt(d_head)"  # of all these models


HEAD = {"head_dim": 8}
# `config.model_type` -> class and what makes it small.
CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", GPT2),
    "llama": ("Llama", {**COMMON, **BIASES}),
    "granite": ("Granite", COMMON),
    "gemma": ("Gemma", {**COMMON, **HEAD}),
    "gemma3": ("Gemma3", {**COMMON, **HEAD, "query_pre_attn_scalar": 8}),
    "qwen3": ("Qwen3", {**COMMON, **HEAD, "num_attention_heads": 8}),
    "mixtral": ("Mixtral", {**MOE, "num_local_experts": 4}),
    "olmoe": ("Olmoe", {**MOE, "num_experts": 4}),
    "gpt_oss": ("GptOss", {**MOE, **HEAD, **PLAIN_ROPE, "num_local_experts": 4}),
    "qwen3_moe": ("Qwen3Moe", {**MOE, **QWEN}),
    "qwen3_next": ("Qwen3Next", {**MOE, **NEXT}),
    "qwen2_moe": ("Qwen2Moe", {**MOE, **SHARED}),
    "deepseek_v3": ("DeepseekV3", {**MOE, **MLA}),
    "glm4_moe": ("Glm4Moe", {**MOE, **GLM}),
}


def make(kind: str, **changes: Any) -> nn.Module:
    """Return a new model of this `config.model_type`, at one drawn state."""
    torch.manual_seed(7)
    name, options = CLASSES[kind]
    config = getattr(transformers, f"{name}{'Text' if kind == 'gemma3' else ''}Config")(**{**options, **changes})
    model: nn.Module = getattr(transformers, f"{name}{'LMHeadModel' if kind == 'gpt2' else 'ForCausalLM'}")(config)
    return model


def mixtral_of_width(width: int, **changes: Any) -> nn.Module:
    """Return a Mixtral whose heads keep their size and whose experts are as wide as the model."""
    heads = {"num_attention_heads": width // 16, "num_key_value_heads": width // 16, "head_dim": 16}
    return make("mixtral", hidden_size=width, intermediate_size=width, **{**heads, **changes})


def by_hand(base: Any, table: str = "completep-moe", gate: str = "normalized_softmax", **hps: float) -> Recipe:
    """Return a recipe for such models, from HPs of no sweep."""
    values = {"lr": 2.0**-8, "eps": 1e-12, **hps}
    return Recipe.from_hps(table, base, values, gate=gate, attention_scale=ATTENTION)


def tokens(batch: int = 2, length: int = 9, vocab: int = 48) -> torch.Tensor:
    """Return token ids [batch, length], always the same."""
    return torch.randint(0, vocab, (batch, length), generator=torch.Generator().manual_seed(5))


def logits(model: nn.Module, ids: torch.Tensor | None = None) -> torch.Tensor:
    """Return the logits of a model of transformers, detached."""
    with torch.no_grad():
        return model(tokens() if ids is None else ids).logits


class Experts4(nn.Module):
    """The names of a MoE layer of transformers 4: a module an expert."""

    def __init__(self, names: tuple[str, str, str], num_experts: int, width: int, hidden: int) -> None:
        super().__init__()
        gate, up, down = names
        self.gate = nn.Linear(width, num_experts, bias=False)
        self.experts = nn.ModuleList(
            nn.ModuleDict(
                {
                    gate: nn.Linear(width, hidden, bias=False),
                    up: nn.Linear(width, hidden, bias=False),
                    down: nn.Linear(hidden, width, bias=False),
                }
            )
            for _ in range(num_experts)
        )


def with_layout_of_4(model: nn.Module) -> nn.Module:
    """Turn the MoE layers of a model into those of transformers 4. It cannot run, but has the names."""
    kind, config = model.config.model_type, model.config
    hidden = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
    names = ("w1", "w3", "w2") if kind == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    for layer in model.model.layers:
        if hasattr(layer.mlp, "experts"):
            moe = Experts4(names, 4, config.hidden_size, hidden)
            del layer.mlp
            layer.add_module("block_sparse_moe" if kind == "mixtral" else "mlp", moe)
    return model
