"""The shape and the gate of a model of `transformers`, from its config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError
from hpxfer.recipe.known_models import KNOWN_MODELS, config_of, known_gate, known_model
from hpxfer.registry import registry
from hpxfer.scaling.shape import Shape, shape_from_mapping

if TYPE_CHECKING:
    import torch

# A shape may leave out heads that follow from its width. These properties give them all the same.
HEADS = {"num_heads": "query_heads", "kv_heads": "key_heads"}


def shape_of(model: torch.nn.Module | Any, *, batch_tokens: int = 0, steps: int = 0) -> Shape:
    """Return the shape of a model of transformers, or of its config. The config knows no batch and no steps: give them.

    Known architectures are gpt2, llama, mistral, qwen3, mixtral, qwen3_moe, olmoe, glm4_moe and gpt_oss. Keep the heads
    of keys and values in proportion to the width. Raises HpxferError for other models, and for dimensions that are no
    shape.
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
