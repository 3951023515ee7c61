"""Homes: the models of `transformers` that hold a trial's model, and which of its options stand in the way of each.

A home computes the same function of the tokens, once the numbers that its config cannot say are folded into the weights
(`hpxfer.weights.folded`). The names of the classes are those of `config.model_type`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.scaling.shape import Shape
from hpxfer.spec import dense_blocks, moe_blocks
from hpxfer.trial import Setting, Trial

_SOFTMAX, _SIGMOID = ("softmax", "normalized_softmax"), ("sigmoid", "normalized_sigmoid")


@dataclass(frozen=True, kw_only=True)
class Home:
    """One architecture."""

    model_type: str
    options: Mapping[str, tuple[Any, ...]]  # key of the model -> the values that it can hold
    config: Callable[[Shape, Setting], dict[str, Any]]  # what its config has beside what all have
    has_experts: bool = True  # or all blocks have a dense FFN
    dense_first: bool = False  # the lowest blocks may have a dense FFN
    dense_anywhere: bool = False  # any block may
    shared: str = "none"  # shared experts: none, plain, or gated
    has_router_bias: bool = False  # the bias that balances the choice
    has_groups: bool = False  # groups of experts, of which a token uses the best

    def obstacles(self, trial: Trial) -> Iterator[str]:
        """Yield in words what this architecture does not have."""
        setting, shape = trial.setting, trial.shape
        for key, legal in {**_COMMON, **self.options}.items():
            if (value := getattr(setting, key)) not in legal:
                spelled = " or ".join(str(one).lower() if isinstance(one, bool) else str(one) for one in legal)
                yield f"{key} is {str(value).lower() if isinstance(value, bool) else value}, not {spelled}"
        if not self.has_experts:
            return
        dense = dense_blocks(shape, setting)
        if dense and not (self.dense_anywhere or (self.dense_first and setting.moe_every == 1)):
            yield f"{len(dense)} blocks have a dense FFN"
        if shape.num_groups > 1 and not (self.has_groups and setting.top_groups):
            yield "num_groups is above 1" + (", without top_groups" if self.has_groups else "")
        yield from self._shared(shape, setting)
        if trial.structure().router_bias_std or setting.ties == "fixed_bias":
            yield "numbers are added to the router's logits"
        if not self.has_router_bias and setting.balance.bias != "none" and trial.resolved()["router_bias"].lr:
            yield "a trained bias chooses the experts (model.balance: bias none, or router_bias_lr 0)"

    def _shared(self, shape: Shape, setting: Setting) -> Iterator[str]:
        if self.shared == "none" and shape.num_shared:
            yield "there are shared experts"
        elif self.shared == "plain" and shape.num_shared:
            if setting.shared_expert_gate:
                yield "shared experts have a gate"
            if shape.num_shared * shape.shared_width % shape.expert_width:
                yield "the shared features are no multiple of expert_width"
        elif self.shared == "gated" and (shape.num_shared != 1 or not setting.shared_expert_gate):
            yield "there is no single shared expert with a gate"


_COMMON: dict[str, tuple[Any, ...]] = {
    "family": ("gpt",),
    "norm": ("rmsnorm",),
    "positions": ("rope",),
    "ffn": ("swiglu",),
    "biases": (False,),
    "attention_gate": (False,),
    "learned_router_bias": (False,),
}
_NO_QK: dict[str, tuple[Any, ...]] = {"qk_norm": ("none",)}
_PLAIN: dict[str, tuple[Any, ...]] = {"rope_share": (1.0,), "shared_expert_gate": (False,)}


def _qwen(shape: Shape, setting: Setting) -> dict[str, Any]:
    dense = list(dense_blocks(shape, setting))
    return {
        "num_experts": shape.num_experts,
        "moe_intermediate_size": shape.expert_width,
        "intermediate_size": shape.dense_width or shape.expert_width,
        "norm_topk_prob": setting.gate == "normalized_softmax",
        "mlp_only_layers": dense,
        "decoder_sparse_step": 1,
    }


def _dense(shape: Shape, setting: Setting) -> dict[str, Any]:
    return {"intermediate_size": shape.dense_width, "attention_bias": setting.qkv_biases}


def _rotary_factor(head_dim: int, share: float) -> float:
    """Return the share as a number whose product with head_dim, cut to a whole number, is the rotated features."""
    features = round(head_dim * share)
    return share if int(head_dim * share) == features else math.nextafter(features / head_dim, 1.0)


def _glm(shape: Shape, setting: Setting) -> dict[str, Any]:
    return {
        "n_routed_experts": shape.num_experts,
        "n_shared_experts": shape.num_shared * shape.shared_width // shape.expert_width,
        "moe_intermediate_size": shape.expert_width,
        "intermediate_size": shape.dense_width or shape.expert_width,
        "first_k_dense_replace": moe_blocks(shape, setting).start,
        "norm_topk_prob": setting.gate == "normalized_sigmoid",
        "routed_scaling_factor": setting.route_scale,
        "n_group": shape.num_groups,
        "topk_group": setting.top_groups or 1,
        "use_qk_norm": setting.qk_norm == "head",
        "attention_bias": setting.qkv_biases,
    }


HOMES = (
    Home(
        model_type="mixtral",
        options={**_NO_QK, **_PLAIN, "gate": ("normalized_softmax",), "qkv_biases": (False,)},
        config=lambda shape, setting: {
            "num_local_experts": shape.num_experts,
            "intermediate_size": shape.expert_width,
        },
    ),
    Home(
        model_type="qwen3_moe",
        options={**_PLAIN, "qk_norm": ("head",), "qk_norm_kind": ("rmsnorm",), "gate": _SOFTMAX},
        config=lambda shape, setting: {**_qwen(shape, setting), "attention_bias": setting.qkv_biases},
        dense_first=True,
        dense_anywhere=True,
    ),
    Home(
        model_type="olmoe",
        options={**_PLAIN, "qk_norm": ("all",), "qk_norm_kind": ("rmsnorm",), "gate": _SOFTMAX},
        config=lambda shape, setting: {
            "num_experts": shape.num_experts,
            "intermediate_size": shape.expert_width,
            "norm_topk_prob": setting.gate == "normalized_softmax",
            "attention_bias": setting.qkv_biases,
            "clip_qkv": None,
        },
    ),
    Home(
        model_type="qwen2_moe",
        options={**_NO_QK, "rope_share": (1.0,), "gate": _SOFTMAX},
        config=lambda shape, setting: {
            **_qwen(shape, setting),
            "shared_expert_intermediate_size": shape.shared_width,
            "qkv_bias": setting.qkv_biases,
        },
        dense_first=True,
        dense_anywhere=True,
        shared="gated",
    ),
    Home(
        model_type="glm4_moe",
        options={"qk_norm": ("none", "head"), "qk_norm_kind": ("rmsnorm",), "gate": _SIGMOID},
        config=_glm,
        dense_first=True,
        shared="plain",
        has_router_bias=True,
        has_groups=True,
    ),
    Home(
        model_type="llama",
        options={**_NO_QK, "rope_share": (1.0,)},
        config=_dense,
        has_experts=False,
    ),
    Home(
        model_type="qwen3",
        options={"rope_share": (1.0,), "qk_norm": ("head",), "qk_norm_kind": ("rmsnorm",)},
        config=_dense,
        has_experts=False,
    ),
)


def home_of(trial: Trial) -> Home:
    """Return the architecture that holds a trial's model. Raise HpxferError with what stands in the way of each."""
    in_the_way = {}
    for home in HOMES:
        if home.has_experts != bool(trial.shape.num_experts):
            continue
        found = list(home.obstacles(trial))
        if not found:
            return home
        in_the_way[home.model_type] = found
    nearest = sorted(in_the_way.items(), key=lambda home: len(home[1]))
    lines = [f"  {name}: {', '.join(found)}" for name, found in nearest]
    everywhere = [one for one in next(iter(in_the_way.values())) if all(one in found for found in in_the_way.values())]
    rule = f"; no class that hpxfer knows does, as {', '.join(everywhere)}" if everywhere else ""
    raise HpxferError(
        "\n".join(
            [
                f"trial {trial.id}: must be a model that a class of transformers computes{rule}; take --format "
                "safetensors, or train a model without what stands in the way of a class, the nearest one first:",
                *lines,
            ]
        )
    )


def config_of(trial: Trial) -> dict[str, Any]:
    """Return the config of the trial's home as a mapping, `model_type` included."""
    home, shape, setting = home_of(trial), trial.shape, trial.setting
    return {
        "model_type": home.model_type,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.depth,
        "num_attention_heads": shape.query_heads,
        "num_key_value_heads": shape.key_heads,
        "head_dim": shape.head_dim,
        "vocab_size": setting.vocab_size,
        "max_position_embeddings": setting.context,
        "rms_norm_eps": setting.norm_eps,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": setting.rope_theta,
            **(
                {"partial_rotary_factor": _rotary_factor(shape.head_dim, setting.rope_share)}
                if home.model_type == "glm4_moe"
                else {}
            ),
        },
        "hidden_act": "silu",
        "tie_word_embeddings": setting.tied_embeddings,
        "initializer_range": 0.02,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        **({"num_experts_per_tok": shape.num_active} if shape.num_experts else {}),
        **home.config(shape, setting),
    }
