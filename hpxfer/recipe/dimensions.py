"""Dimensions: the dimensions of a model of `transformers`, out of its config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError
from hpxfer.recipe.known_models import ROLES_OF
from hpxfer.recipe.names import unwrapped
from hpxfer.recipe.proposed import kind_of
from hpxfer.scaling.shape import Shape, shape_from_mapping

if TYPE_CHECKING:
    import torch


def shape_of(model: torch.nn.Module | Any, *, batch_tokens: int = 0, steps: int = 0) -> Shape:
    """Return the shape of a model of transformers or of its config; batch and steps are not in there and may be given.

    Known are gpt2, llama, mixtral, qwen3_moe and olmoe. A shape does not say how wide attention is (heads x head_dim
    may differ from the width) nor how many heads have keys of their own: keep both in proportion to the width. Raises
    HpxferError for other models, and for dimensions that are no shape, e.g. a head_dim that does not divide the width.
    """
    config: Any = getattr(unwrapped(model), "config", None) if hasattr(model, "named_modules") else model
    kind = kind_of(config)
    if kind is None:
        got = getattr(config, "model_type", None) or type(model).__name__
        raise HpxferError(
            f"shape_of: must be a model whose config says what it is, {', '.join(ROLES_OF)}, got {got}; give its "
            "shape as a mapping, e.g. {'width': 512, 'depth': 8, ...}"
        )
    dims = {**_dims(kind, config), "batch_tokens": batch_tokens, "steps": steps}
    return shape_from_mapping(dims, f"the {kind} model")


def check_dims(model: torch.nn.Module, target: Shape) -> None:
    """Raise HpxferError if a known model's config says other dimensions than the target; no tensor shows them all."""
    config: Any = getattr(unwrapped(model), "config", None)
    kind = kind_of(config)
    own = _dims(kind, config) if kind else {}
    wrong = {name: value for name, value in own.items() if getattr(target, name) != value}
    if not target.dense_width:
        wrong.pop("dense_width", None)  # whoever put experts in the place of its FFNs left the config as it was
    if wrong:
        given = ", ".join(f"{name} {getattr(target, name)}" for name in wrong)
        said = ", ".join(f"{name} {value}" for name, value in wrong.items())
        raise HpxferError(
            f"target_shape: must be the shape of this {kind} model, whose config says {said}, got {given}; give "
            "hpxfer.shape_of(model)"
        )


def _dims(kind: str, config: Any) -> dict[str, int]:
    """Return what the config of a known model says of its shape."""
    return {
        "width": config.hidden_size,
        "depth": config.num_hidden_layers,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        **_ffn(kind, config),
    }


def gate_of(model: torch.nn.Module) -> str | None:
    """Return the name of the gate of a known MoE model, up to a constant factor, or None for any other model."""
    config: Any = getattr(unwrapped(model), "config", None)
    kind = kind_of(config)
    if kind == "mixtral":
        return "normalized_softmax"
    if kind in ("qwen3_moe", "olmoe"):
        return "normalized_softmax" if config.norm_topk_prob else "softmax"
    return None


def _ffn(kind: str, config: Any) -> dict[str, int]:
    """Return the dimensions of the FFNs."""
    if kind == "gpt2":
        return {"dense_width": config.n_inner or 4 * config.hidden_size}
    if kind == "llama":
        return {"dense_width": config.intermediate_size}
    out = {"num_active": config.num_experts_per_tok}
    if kind == "mixtral":
        return {**out, "num_experts": config.num_local_experts, "expert_width": config.intermediate_size}
    out["num_experts"] = config.num_experts
    if kind == "olmoe":
        return {**out, "expert_width": config.intermediate_size}
    step, only = config.decoder_sparse_step, config.mlp_only_layers or ()
    dense = [i for i in range(config.num_hidden_layers) if i in only or (i + 1) % step]
    if len(dense) == config.num_hidden_layers or not config.num_experts:
        return {"dense_width": config.intermediate_size}
    out["expert_width"] = config.moe_intermediate_size
    return {**out, "dense_width": config.intermediate_size} if dense else out


def check_gate(model: torch.nn.Module, gate: str) -> None:
    """Raise HpxferError if a known model's gates are of another size than those that the recipe was made for."""
    own = gate_of(model)
    if own is not None and own.partition("_")[0] != gate.partition("_")[0]:
        raise HpxferError(
            f"model: must have the gate of the recipe's base model, {gate}, got {own}: its gates are of another size; "
            f"take a recipe for such a gate (Recipe.from_hps(..., gate={own!r}), or a sweep with model.gate softmax or "
            "normalized_sigmoid), or write the gate into the model"
        )
