"""Presets: the models that people pre-train, by name. `model: {like: mixtral}` sets options of the model, nothing else.

A preset is what the config of this model in `transformers` 5 says by default. A released checkpoint may differ: that of
Qwen3-MoE, for example, normalizes the gates of the active experts (`gate: normalized_softmax`). What the file gives
wins. A trial's id follows from the options alone, so a sweep with a preset shares its trials with one that spells the
same options out. A stored sweep has all options spelled out, so it stays what it was if a preset ever changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticCustomError

from hpxfer.errors import nearest, shown


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The options of one model, and in words what it has beside them."""

    options: Mapping[str, Any]  # key of `model` -> value
    leaves_out: str  # what the real model has that the preset does not set; empty if nothing


_LLAMA: dict[str, Any] = {
    "norm": "rmsnorm",
    "norm_gains": True,
    "biases": False,
    "qkv_biases": False,
    "positions": "rope",
    "rope_theta": 10_000.0,
    "ffn": "swiglu",
    "attention_scale": "1/sqrt(d_head)",
    "tied_embeddings": False,
    "init": "constant",
    "matrix_std": 0.02,
    "embedding_std": 0.02,
}
_LOSS: dict[str, Any] = {"balance": {"bias": "none", "aux": "switch"}}
PRESETS: dict[str, Preset] = {
    "nanogpt": Preset(
        options={
            "norm": "layernorm",
            "norm_gains": True,
            "norm_eps": 1e-5,
            "positions": "learned",
            "ffn": "gelu",
            "biases": False,
            "attention_scale": "1/sqrt(d_head)",
            "tied_embeddings": True,
            "init": "constant",
            "matrix_std": 0.02,
            "embedding_std": 0.02,
            "position_std": 0.02,
        },
        leaves_out="the smaller init of the matrices that end a branch, 0.02/sqrt(2 * depth)",
    ),
    "mixtral": Preset(
        options={**_LLAMA, "norm_eps": 1e-5, "rope_theta": 1e6, "gate": "normalized_softmax", **_LOSS},
        leaves_out="4 query heads per kv head (base: kv_heads), and the weight of its balancing loss (hps: aux_weight)",
    ),
    "qwen3-moe": Preset(
        options={**_LLAMA, "norm_eps": 1e-6, "qk_norm": "head", "qk_norm_kind": "rmsnorm", "gate": "softmax", **_LOSS},
        leaves_out=(
            "8 query heads per kv head (base: kv_heads), the weight of its balancing loss (hps: aux_weight), and the "
            "normalized gates of the released models (gate: normalized_softmax)"
        ),
    ),
    "olmoe": Preset(
        options={**_LLAMA, "norm_eps": 1e-5, "qk_norm": "all", "qk_norm_kind": "rmsnorm", "gate": "softmax", **_LOSS},
        leaves_out="the weight of its balancing loss (hps: aux_weight), and the clipping of queries, keys and values",
    ),
    "glm4-moe": Preset(
        options={
            **_LLAMA,
            "norm_eps": 1e-5,
            "rope_share": 0.5,
            "gate": "normalized_sigmoid",
            "balance": {"bias": "sign", "aux": "none"},
        },
        leaves_out=(
            "12 query heads per kv head (base: kv_heads), its shared expert (base: num_shared: 1), its first dense "
            "block (dense_first: 1), its small balancing loss (balance: aux: sequence), and what the released models "
            "choose: norms of queries and keys (qk_norm: head), route_scale, qkv_biases; the layers that predict "
            "several tokens"
        ),
    ),
}
# (option, the options that only some of its values read, these values)
READ_WITH = (
    ("positions", ("rope_theta", "rope_share"), ("rope",)),
    ("positions", ("position_std",), ("learned",)),
    ("qk_norm", ("qk_norm_kind",), ("head", "all")),
)
_DEFAULTS = {"positions": "learned", "qk_norm": "none"}
# Real models that the options do not cover, and why.
REFUSED = {
    "deepseek-v3": "its attention has latent queries and keys; glm4-moe has its routing with ordinary attention",
    "deepseek-v2": "its attention has latent queries and keys; glm4-moe has its routing with ordinary attention",
    "kimi-k2": "its attention has latent queries and keys; glm4-moe has its routing with ordinary attention",
    "gpt-oss": "its attention has sinks and windows, and its experts clip SwiGLU; mixtral has the same gate",
    "llama4": "its gates multiply the inputs of the experts, and its attention looks at chunks; mixtral comes nearest",
    "qwen3-next": "three of four layers have linear attention; qwen3-moe with attention_gate comes nearest",
    "qwen2-moe": "write it as qwen3-moe with qk_norm: none, qkv_biases: true and shared_expert_gate: true",
    "granite-moe": "its multipliers are those of its config; take mixtral, and tables that scale by multipliers",
}


def resolved(model: Any) -> Any:
    """Return the section `model` of a file with the options of its preset where it gives none."""
    if not isinstance(model, dict) or (name := _spelled(model.get("like"))) not in PRESETS:
        return model
    given = PRESETS[name].options
    options = {"family": "gpt", **given, **model}
    if isinstance(of_file := model.get("balance"), dict) and "balance" in given:
        options["balance"] = {**given["balance"], **of_file}
    # Options that only another one reads go with it.
    without = {
        name
        for key, names, readers in READ_WITH
        for name in names
        if name not in model and options.get(key, _DEFAULTS[key]) not in readers
    }
    return {key: value for key, value in options.items() if key not in without}


def known(name: str) -> str:
    """Return the name of a preset as this module spells it. Raise PydanticCustomError if there is none."""
    key = _spelled(name)
    if key not in PRESETS:
        refused = f"no options make a model like {key}: {REFUSED[key]}" if key in REFUSED else None
        why = refused or f"unknown model {shown(name)}; {nearest(name, PRESETS)}"
        raise PydanticCustomError("unregistered", "{why}", {"why": why})
    return key


def _spelled(name: Any) -> str:
    return name.lower().replace("_", "-") if isinstance(name, str) else ""


def preset_lines(name: str | None, model: Any) -> tuple[str, ...]:
    """Return in words what the preset of a model sets, what the file has otherwise, and what neither has."""
    if name is None:
        return ()
    found = PRESETS[name]
    values = {key: (_spell(getattr(model, key)), _spell(value)) for key, value in found.options.items()}
    same = [f"{key} {own}" for key, (own, value) in values.items() if own == value]
    other = [f"{key} {own} instead of {value}" for key, (own, value) in values.items() if own != value]
    unlike = (f"unlike {name}: {', '.join(other)}",) if other else ()
    beside = (f"{name} also has {found.leaves_out}",) if found.leaves_out else ()
    return (f"like {name}: {', '.join(same)}", *unlike, *beside)


def _spell(value: Any) -> str:
    if isinstance(value, bool | str):
        return str(value).lower() if isinstance(value, bool) else value
    if isinstance(value, float):
        return f"{value:g}"
    parts = value if isinstance(value, dict) else {key: getattr(value, key) for key in ("bias", "aux")}
    return " and ".join(f"{key} {part}" for key, part in parts.items())
