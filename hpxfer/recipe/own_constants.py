"""Own constants: the numbers of a model's config by which its forward pass multiplies, beside what a recipe tells.

Granite's config multiplies each branch and divides the logits, DeepSeek's multiplies the gates, Gemma's sets the scale
of attention and caps the logits. Known names say where they act. Others are known by how they are called.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hpxfer.recipe.forward_sites import EXPERTS
from hpxfer.recipe.known_models import config_of
from hpxfer.recipe.probe import SCALES
from hpxfer.recipe.wrappers import plain_modules, unwrapped

if TYPE_CHECKING:
    import torch

    from hpxfer.recipe.resolved import Resolved

Factor = Callable[[float, Any], float]  # (value, config) -> what the forward pass multiplies by
BRANCHES = ("attn_out", "experts", "shared_out", "dense_out")  # `experts` is expert_out times route_scale
GATES, READOUT, ATTENTION = ("route_scale",), ("readout",), ("attn_logits",)


def _itself(value: float, config: Any) -> float:
    return value


def _divides(value: float, config: Any) -> float:
    return 1.0 / value


# Attribute -> the keys that it multiplies, and by what. The rows follow the classes of transformers 5.23, and MiniCPM
# and Grok, whose code comes with their weights.
KNOWN: dict[str, tuple[tuple[str, ...], Factor]] = {
    **dict.fromkeys(("residual_multiplier", "residual_scale", "resid_scale"), (BRANCHES, _itself)),
    "scale_depth": (BRANCHES, lambda value, config: value * _number(config, "num_hidden_layers") ** -0.5),
    "attention_out_multiplier": (("attn_out",), _itself),
    **dict.fromkeys(("logit_scale", "lm_head_multiplier", "output_multiplier_scale"), (READOUT, _itself)),
    **dict.fromkeys(("logits_scaling", "logits_mup_width_multiplier"), (READOUT, _divides)),
    "dim_model_base": (READOUT, lambda value, config: value / _number(config, "hidden_size")),
    **dict.fromkeys(
        (
            *("routed_scaling_factor", "moe_routed_scaling_factor", "router_scaling_factor"),
            *("moe_router_scaling_factor", "moe_router_topk_scaling_factor", "route_scale"),
        ),
        (GATES, _itself),
    ),
    **dict.fromkeys(("attention_multiplier", "softmax_scale", "attention_scale", "attn_scale"), (ATTENTION, _itself)),
    "query_pre_attn_scalar": (ATTENTION, lambda value, config: value**-0.5),
}
# Other names that say that they multiply, or that they bound what is multiplied.
PATTERN = re.compile(
    r"(^|_)(multipliers?|scale|scales|scaling|scaling_factor|scale_factor|softcap|softcapping|soft_cap|logit_cap)$"
    r"|mup|_(alpha|beta)_factor$|^layernorm_.*_(alpha|beta)$|._temperature$|^scale_(emb|depth|width)"
)
# What these words name is no factor of activations: sizes, positions, losses, inits, other inputs than text.
NO_FACTOR = re.compile(
    r"rope|rotary|position|^pos_|timescale|time_|init|loss|aux|coef|lora|noise|vision|image|audio|video|box|mask|mtp"
    r"|(dim|ffn|ff|hidden|intermediate|channel|head|kv|vocab|size)_(mult|scal)[a-z]*$"
    r"|contrastive|matching|sampling|upscal|rescale|floor_scale|^scale$|^scale_factor$"
)
HOLDERS = ("config", "cfg", "args", "params")  # what models call the object with their options
CLOSE = 1e-6


@dataclass(frozen=True, kw_only=True)
class OwnConstant:
    """A number of a config that is not neutral. Without `keys` only its name says that it multiplies."""

    name: str
    value: Any
    keys: tuple[str, ...] = ()
    factor: float = 1.0


def own_constants(model: torch.nn.Module | Any) -> tuple[OwnConstant, ...]:
    """Return the constants of a model, or of its config, that multiply in the forward pass by another number than 1.

    The factor on the embedding is not among them: `probe` finds it, and the embedding's numbers undo it.
    """
    config = _options(model)
    found = [constant for name, value in config.items() if (constant := _constant(name, value, config)) is not None]
    if not (scales := _attention_scales(model)):
        return tuple(found)
    # The modules say what the config has become: `attach` may have set them.
    return tuple(
        replace(one, factor=scale) if one.keys == ATTENTION else one
        for one in found
        for scale in (sorted(scales) if one.keys == ATTENTION else (1.0,))
    )


def left_to_multiply(model: torch.nn.Module, at: Resolved) -> dict[str, float]:
    """Return the forward multipliers without what the model multiplies by itself, as its config says.

    A number of the config that contradicts the recipe's is not taken out. `differences` names it.
    """
    out = dict(at.forward)
    for key, factor in _by_key(own_constants(model)).items():
        name = "expert_out" if key == "experts" else key
        if name in out and key not in ATTENTION and _agrees(key, factor, at):
            out[name] /= factor
    return out


def differences(model: torch.nn.Module, at: Resolved) -> Iterator[str]:
    """Yield one sentence per constant of the model that neither the recipe's base nor the recipe's numbers have.

    A base that states the same number among its options has the constant too.
    """
    constants, stated = own_constants(model), at.base.file.model.options or {}
    product, by_recipe = _by_key(constants), at.forward.get("attn_logits", 1.0)
    for one in constants:
        if stated.get(one.name) == one.value:
            continue
        if one.keys == ATTENTION:
            if not any(_close(one.factor, scale) for scale in (at.target.head_dim**-0.5, by_recipe)):
                yield f"{one.name}: q.k times {by_recipe:.6g} by the recipe, {one.factor:.6g} in the target"
        elif not one.keys or not all(_agrees(key, product[key], at) for key in one.keys if _has(key, at)):
            base = f"{at.base.fixed['route_scale']:g}" if one.keys == GATES else "none"
            where = f", on {', '.join(key for key in one.keys)}" if one.keys else ""
            yield f"{one.name}: {base} at the base, {_spell(one.value)} in the target{where}"


def _constant(name: str, value: Any, config: Mapping[str, Any]) -> OwnConstant | None:
    if name in SCALES or (name == "attn_scale" and "floor_scale" in config):  # of positions, in Llama 4
        return None
    if name == "scale_attn_weights" and value is False:
        return OwnConstant(name=name, value=value, keys=ATTENTION)
    if name in KNOWN and _is_number(value) and value:
        keys, factor = KNOWN[name]
        by = factor(float(value), config)
        neutral = _close(by, 1.0) and keys != ATTENTION
        return None if neutral else OwnConstant(name=name, value=value, keys=keys, factor=by)
    if name in KNOWN or not PATTERN.search(name) or (NO_FACTOR.search(name) and "mup" not in name):
        return None
    values = value if isinstance(value, list | tuple) else [value]
    if not values or not all(_is_number(each) for each in values):
        return None
    caps = "cap" in name  # a bound of 1 bounds, and one of 0 is none
    neutral = not any(values) if caps else all(float(each) == 1.0 for each in values)
    return None if neutral else OwnConstant(name=name, value=value)


def _options(model: Any) -> dict[str, Any]:
    """Return name -> value of a model's config, without names that start with an underscore."""
    if not hasattr(model, "named_modules"):
        holder = config_of(model)
    else:
        inner = unwrapped(model)
        holder = next((found for name in HOLDERS if (found := getattr(inner, name, None)) is not None), None)
    text = getattr(holder, "get_text_config", None)
    if callable(text):
        holder = text(decoder=True)
    values = holder if isinstance(holder, Mapping) else getattr(holder, "__dict__", {})
    return {name: value for name, value in values.items() if isinstance(name, str) and not name.startswith("_")}


def _attention_scales(model: Any) -> set[float]:
    """Return the numbers `scaling` of the attention modules."""
    if not hasattr(model, "named_modules"):
        return set()
    return {
        float(scale)
        for name, module in plain_modules(model).items()
        if "attn" in name.rpartition(".")[2].lower() or "attention" in name.rpartition(".")[2].lower()
        if isinstance(scale := getattr(module, "scaling", None), int | float)
    }


def _by_key(constants: tuple[OwnConstant, ...]) -> dict[str, float]:
    """Return key -> the product of the constants that act on it."""
    out: dict[str, float] = {}
    for one in constants:
        for key in one.keys:
            out[key] = out.get(key, 1.0) * one.factor
    return out


def _agrees(key: str, factor: float, at: Resolved) -> bool:
    """Return whether the recipe's number contains the factor: as a factor of its base, or as the whole number."""
    if key == "route_scale" and _close(factor, at.base.fixed[key]):
        return True
    names = EXPERTS if key == "experts" else (key,)
    return _has(key, at) and _close(factor, math.prod(at.forward.get(name, 1.0) for name in names))


def _has(key: str, at: Resolved) -> bool:
    return key == "route_scale" or ("expert_out" if key == "experts" else key) in at.forward


def _number(config: Mapping[str, Any], name: str) -> float:
    value = config.get(name)
    return float(value) if _is_number(value) and value else 1.0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=CLOSE)


def _spell(value: Any) -> str:
    return f"{value:.6g}" if _is_number(value) else str(value)
