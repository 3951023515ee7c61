"""Known models: one row per architecture of `transformers`, and the shape and gate that its config says.

The roles of their tensors follow from the names, see `hpxfer.recipe.roles_by_place`. In a pattern, `*` matches dots
too, and the first match wins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, cast

from hpxfer.errors import HpxferError
from hpxfer.recipe.modules import class_of, plain_modules, unwrapped
from hpxfer.registry import registry
from hpxfer.scaling.shape import Shape, heads_of, shape_from_mapping

if TYPE_CHECKING:
    import torch


# A shape may leave out heads that follow from its width. These properties give them all the same.
HEADS = {"num_heads": "query_heads", "kv_heads": "key_heads"}


def shape_of(model: torch.nn.Module | Any, *, batch_tokens: int = 0, steps: int = 0) -> Shape:
    """Return the shape of a model of transformers, or of its config. The config knows no batch and no steps: give them.

    Known architectures are gpt2, llama, mistral, qwen3, mixtral, qwen3_moe, olmoe, glm4_moe and gpt_oss. Keep the heads
    of keys and values in proportion to the width. Raises HpxferError for other models, and for dimensions that are no
    shape.

    >>> config = transformers.MixtralConfig(hidden_size=64, num_attention_heads=4, num_key_value_heads=2)
    >>> hpxfer.shape_of(config).num_experts
    8
    """
    row, config = known_model(model), config_of(model)
    if row is None:
        got = getattr(config, "model_type", None) or type(model).__name__
        raise HpxferError(
            f"shape_of: must be a model whose config says what it is, {', '.join(KNOWN_MODELS)}, got {got}; give its "
            "shape as a mapping, e.g. {'width': 512, 'depth': 8, ...}"
        )
    dims = {**row.dims(config), "batch_tokens": batch_tokens, "steps": steps}
    return shape_from_mapping(dims, f"the {row.name} model")


def check_dims(model: torch.nn.Module, target: Shape) -> None:
    """Raise HpxferError if the config of a known model gives other dimensions than the target.

    The tensors alone do not show all dimensions.
    """
    row = known_model(model)
    if row is None:
        return
    dims: dict[str, Any] = {**row.dims(config_of(model))}
    own, given = ({name: getattr(shape, HEADS.get(name, name)) for name in dims} for shape in (Shape(**dims), target))
    wrong = {name: own[name] for name in dims if own[name] != given[name]}
    for name in ("num_heads", "kv_heads"):
        if not getattr(target, name):  # it does not say
            wrong.pop(name, None)
    if not target.dense_width:
        wrong.pop("dense_width", None)  # users who replace FFNs by experts leave the config as it was
    if wrong:
        said, got = (", ".join(f"{name} {each[name]}" for name in wrong) for each in (own, given))
        raise HpxferError(
            f"target_shape: must be the shape of this {row.name} model, whose config says {said}, got {got}; give "
            "hpxfer.shape_of(model)"
        )


def check_gate(model: torch.nn.Module, gate: str) -> None:
    """Raise HpxferError if the gates of a known model have another size than those of the recipe's base model."""
    own = known_gate(model)
    if own is None:
        return
    gates = registry("gate")
    if gates.get(own).sums_to_one_over != gates.get(gate, "model.gate").sums_to_one_over:
        raise HpxferError(
            f"model: must have the gate of the recipe's base model, {gate}, got {own}, which is what this "
            f"{config_of(model).model_type} computes and whose gates have another size; take a recipe for {own} "
            f"(Recipe.from_hps(..., gate={own!r}), or a sweep with model.gate: {own}), or write the gate into the model"
        )


Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """What recipes know of one architecture."""

    name: str  # config.model_type
    roles: Pairs = ()  # (pattern, role) of tensors whose names leave their roles open
    sites: Pairs  # (pattern of module names, key of a forward multiplier)
    ffn: Callable[[Any], dict[str, int]]  # config -> dimensions of the FFNs

    def dims(self, config: Any) -> dict[str, int]:
        """Return the dimensions of a model with this config."""
        width, heads = config.hidden_size, config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or width // heads
        return {
            "width": width,
            "depth": config.num_hidden_layers,
            "head_dim": head_dim,
            **heads_of(width, head_dim, heads, getattr(config, "num_key_value_heads", None)),
            **self.ffn(config),
        }


# Of every row, before and behind its own.
_ATTN_SITES: Pairs = (("*layers.*.self_attn", "attn_logits"), ("*layers.*.self_attn", "attn_out"))
_END_SITES: Pairs = (("*embed_tokens", "embedding"), ("*wte", "embedding"), ("*lm_head", "readout"))
_DENSE_SITE: Pairs = (("*layers.*.mlp", "dense_out"),)
# These models have no shared experts, so that the factor on the gates may multiply the layer's output instead.
_MOE_SITES: Pairs = (
    ("*layers.*.mlp.gate", "router"),
    ("*layers.*.block_sparse_moe.gate", "router"),
    ("*layers.*.mlp.router", "router"),
    *((f"*layers.*.{name}", key) for name in ("mlp", "block_sparse_moe") for key in ("expert_out", "route_scale")),
)
# Beside shared experts it multiplies the output of the routed ones, which is a module of its own in transformers 5.
_HYBRID_SITES: Pairs = (
    ("*layers.*.mlp.gate", "router"),
    ("*layers.*.mlp.experts", "expert_out"),
    ("*layers.*.mlp.experts", "route_scale"),
    ("*layers.*.mlp.shared_experts", "shared_out"),
)
_KEYS_OF_EXPERTS = ("expert_out", "route_scale")


def _softmax_gate(config: Any) -> str:
    return "normalized_softmax" if config.norm_topk_prob else "softmax"


def _sigmoid_gate(config: Any) -> str:
    return "normalized_sigmoid" if config.norm_topk_prob else "sigmoid"


def _experts(config: Any, num_experts: int, expert_width: int) -> dict[str, int]:
    return {"num_active": config.num_experts_per_tok, "num_experts": num_experts, "expert_width": expert_width}


def _glm4_moe_ffn(config: Any) -> dict[str, int]:
    if config.first_k_dense_replace >= config.num_hidden_layers:
        return {"dense_width": config.intermediate_size}
    out = _experts(config, config.n_routed_experts, config.moe_intermediate_size)
    out["num_groups"] = config.n_group
    if config.n_shared_experts:
        out |= {"num_shared": config.n_shared_experts, "shared_width": config.moe_intermediate_size}
    return {**out, "dense_width": config.intermediate_size} if config.first_k_dense_replace else out


def _qwen3_moe_ffn(config: Any) -> dict[str, int]:
    step, only = config.decoder_sparse_step, config.mlp_only_layers or ()
    dense = [i for i in range(config.num_hidden_layers) if i in only or (i + 1) % step]
    if len(dense) == config.num_hidden_layers or not config.num_experts:
        return {"dense_width": config.intermediate_size}
    out = _experts(config, config.num_experts, config.moe_intermediate_size)
    return {**out, "dense_width": config.intermediate_size} if dense else out


_ROWS = (
    KnownModel(
        name="gpt2",
        sites=(("*h.*.attn", "attn_logits"), ("*h.*.attn", "attn_out"), ("*h.*.mlp", "dense_out")),
        ffn=lambda config: {"dense_width": config.n_inner or 4 * config.hidden_size},
    ),
    *(
        KnownModel(
            name=name,
            sites=_DENSE_SITE,
            ffn=lambda config: {"dense_width": config.intermediate_size},
        )
        for name in ("llama", "mistral", "qwen3")
    ),
    KnownModel(
        name="mixtral",
        sites=_MOE_SITES,
        ffn=lambda config: _experts(config, config.num_local_experts, config.intermediate_size),
    ),
    KnownModel(
        name="qwen3_moe",
        sites=(*_MOE_SITES, *_DENSE_SITE),
        ffn=_qwen3_moe_ffn,
    ),
    KnownModel(
        name="olmoe",
        sites=_MOE_SITES,
        ffn=lambda config: _experts(config, config.num_experts, config.intermediate_size),
    ),
    KnownModel(
        name="glm4_moe",
        sites=(*_HYBRID_SITES, *_DENSE_SITE),
        ffn=_glm4_moe_ffn,
    ),
    KnownModel(
        name="gpt_oss",
        roles=(("*.mlp.router.bias", "hidden_bias"),),  # an optimizer trains it, and it is added to logits of order one
        sites=_MOE_SITES,
        ffn=lambda config: _experts(config, config.num_local_experts, config.intermediate_size),
    ),
)
KNOWN_MODELS = {row.name: row for row in _ROWS}
# The gates of architectures, up to a constant factor, as the routers of transformers 5.23 compute them.
_GATES: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "qwen3_next", "olmoe"), _softmax_gate),
    **dict.fromkeys(("deepseek_v3", "dots1", "glm4_moe", "lfm2_moe"), _sigmoid_gate),
    **dict.fromkeys(("deepseek_v2", "jamba"), lambda config: "softmax"),
    **dict.fromkeys(
        (
            *("granitemoe", "granitemoeshared", "granitemoehybrid", "ernie4_5_moe", "hunyuan_v1_moe", "minimax"),
            *("mixtral", "gpt_oss"),
        ),
        lambda config: "normalized_softmax",
    ),
    "minimax_m2": lambda config: "normalized_sigmoid",
}


# Class of a diffusion transformer of diffusers -> why no recipe can serve it.
_REFUSED = {
    "DiTTransformer2DModel": "each of its blocks has an embedder of times and classes of its own",
    "PixArtTransformer2DModel": "it reads text by cross-attention",
    "SD3Transformer2DModel": "its attention joins the tokens of text and image",
}


def why_refused(model: torch.nn.Module) -> str | None:
    """Return why a model of this class has tensors that no role is for, or None."""
    name = class_of(unwrapped(model)).__name__
    why = _REFUSED.get(name)
    return why and f"{name}: {why}, for which tables have no rows"


def config_of(model: torch.nn.Module | Any) -> Any:
    """Return the config of a model, under its wrappers, or the config itself if that is given. It may be None.

    A module of any library around the model, such as one with the loss, is a wrapper if it adds no parameters.
    """
    if not hasattr(model, "named_modules"):
        return model
    configs, at = list[Any](), cast("torch.nn.Module | None", unwrapped(model))
    while at is not None:
        configs += [config] if (config := getattr(at, "config", None)) is not None else []
        trained = [child for child in at.children() if next(child.parameters(), None) is not None]
        at = trained[0] if len(trained) == 1 and not at._parameters else None
    named = (config for config in configs if isinstance(getattr(config, "model_type", None), str))
    return next(named, configs[0] if configs else None)


def known_model(model: torch.nn.Module | Any) -> KnownModel | None:
    """Return the row of a model or of its config, or None if its architecture is not known."""
    name = getattr(config_of(model), "model_type", None)
    return KNOWN_MODELS.get(name) if isinstance(name, str) else None


def known_gate(model: torch.nn.Module | Any) -> str | None:
    """Return the name of the gate that a model or its config computes, or None if it is not known or has no experts."""
    config = config_of(model)
    name = getattr(config, "model_type", None)
    return _GATES[name](config) if isinstance(name, str) and name in _GATES else None


def known_sites(model: torch.nn.Module, keys: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Return (module, key) of each site of a known model that has one of `keys`, in the model's order.

    Raises HpxferError for a model that is not known, and for attention whose scale differs between layers.
    """
    row = known_model(model)
    if row is None:
        raise HpxferError(
            f"attach: the sites must be given for a model that is none of {', '.join(KNOWN_MODELS)}, got "
            f"{class_of(unwrapped(model)).__name__}; e.g. sites=[('*.attention', 'attn_out'), ('head', 'readout')]"
        )
    if getattr(config_of(model), "scale_attn_by_inverse_layer_idx", False):
        raise HpxferError(
            "attach: attention must scale alike in all layers, got scale_attn_by_inverse_layer_idx true; switch it off"
        )
    found = {
        (id(module), key): name  # a shared module has several names
        for name, module in plain_modules(model).items()
        for pattern, key in (*_ATTN_SITES, *row.sites, *_END_SITES)
        if key in keys and fnmatchcase(name, pattern) and _has_site(name, module, key)
    }
    return tuple((name, key) for (_, key), name in found.items())


def _has_site(name: str, module: torch.nn.Module, key: str) -> bool:
    """Return whether a module that may be a MoE layer or a dense FFN is the one that the key is about."""
    if name.endswith(".experts"):
        return True
    has_experts = any(name == "experts" for name, _ in module.named_children())
    return has_experts if key in _KEYS_OF_EXPERTS else not has_experts if key == "dense_out" else True
