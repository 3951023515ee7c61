"""Own constants: the numbers by which a model's forward pass multiplies by itself, beside what a recipe tells.

Granite's config multiplies each branch and divides the logits, DeepSeek's multiplies the gates, Gemma's sets the scale
of attention and caps the logits. They stand in configs, which may be nested, and in modules. Known names say where they
act. Others are known by how they are called.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hpxfer.recipe.forward_hooks import EXPERTS
from hpxfer.recipe.modules import plain_modules
from hpxfer.recipe.places import FOREIGN
from hpxfer.recipe.probe import SCALES

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
    r"|mup|_(alpha|beta)_factor$|^layernorm_.*_(alpha|beta)$|._temperature$|^scale_(emb|depth|width)|^clip_qkv$"
)
# What these words name is no factor of activations: sizes, positions, losses, inits, other inputs than text.
NO_FACTOR = re.compile(
    r"rope|rotary|position|^pos_|timescale|time_|init|loss|aux|coef|lora|noise|vision|image|audio|video|box|mask|mtp"
    r"|(dim|ffn|ff|hidden|intermediate|channel|head|kv|vocab|size)_(mult|scal)[a-z]*$"
    r"|contrastive|matching|sampling|upscal|rescale|floor_scale|^scale$|^scale_factor$|(^|_)lr(_|$)|grad|decay"
)
# By these the model multiplies by a factor that changes with the shape, at one and the same value in its config. muP's
# switches, and the numbers of its base, do so by the width.
BY_DEPTH = ("scale_depth", "scale_attn_by_inverse_layer_idx")
BY_WIDTH = re.compile(r"^dim_model_base$|mup.*base|base.*mup")
# What modules call the object with their options. Other objects lie in it, of which these are not the model's own.
HOLDERS = ("config", "cfg", "model_config", "args", "model_args", "params", "hparams", "opts", "options")
OF_OTHERS = re.compile(r"quant|generation|encoder|q_?former|resampler|perceiver|codec")
MOST_NESTED = 3
CLOSE = 1e-6


@dataclass(frozen=True, kw_only=True)
class OwnConstant:
    """A number or a switch that is not neutral. Without `keys` only its name says that it multiplies."""

    name: str
    value: Any
    keys: tuple[str, ...] = ()
    factor: float = 1.0
    follows: str | None = None  # the dimension of the shape with which the model's factor changes


def own_constants(model: torch.nn.Module | Any) -> tuple[OwnConstant, ...]:
    """Return the constants of a model, or of its config, that multiply in the forward pass by another number than 1.

    The factor on the embedding is not among them: `probe` finds it, and the embedding's numbers undo it.
    """
    found: list[OwnConstant] = []
    for config in _configs(model):
        constants = [_constant(name, value, config) for name, value in config.items()]
        found += [one for one in constants if one is not None and one not in found]
    # Modules repeat the numbers of their config, under its names or others.
    names, keys = {one.name for one in found}, {key for one in found for key in one.keys}
    for name, module in _in_modules(model):
        one = _constant(name, module[name], module)
        if one is not None and one not in found and name not in names and not keys & set(one.keys):
            found.append(one)
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

    A base that states the same number among its options has the constant too. Its factor may be another all the same.
    """
    constants, stated = own_constants(model), at.recipe.file.model.options or {}
    product, by_recipe = _by_key(constants), at.forward.get("attn_logits", 1.0)
    for one in constants:
        where = f", on {', '.join(one.keys)}" if one.keys else ""
        agrees = all(_agrees(key, product[key], at) for key in one.keys)
        if stated.get(one.name) == one.value:
            there, here = (getattr(shape, one.follows or "depth") for shape in (at.recipe.base_shape, at.target))
            if one.follows and there != here and not (one.keys and agrees):
                rule = f"the model multiplies by a factor of its own that changes with the {one.follows}"
                yield f"{one.name}: {rule}, {there} at the base, {here} in the target{where}"
            continue
        if one.keys == ATTENTION:
            if not any(_close(one.factor, scale) for scale in (at.target.head_dim**-0.5, by_recipe)):
                yield f"{one.name}: q.k times {by_recipe:.6g} by the recipe, {one.factor:.6g} in the target"
        elif not one.keys or not agrees:
            base = f"{at.recipe.file.fixed['route_scale']:g}" if one.keys == GATES else "none"
            yield f"{one.name}: {base} at the base, {_spell(one.value)} in the target{where}"


def _constant(name: str, value: Any, config: Mapping[str, Any]) -> OwnConstant | None:
    if name in SCALES or (name == "attn_scale" and "floor_scale" in config):  # of positions, in Llama 4
        return None
    if name == "scale_attn_weights" and value is False:
        return OwnConstant(name=name, value=value, keys=ATTENTION)
    follows = _follows(name, value)
    if value is True and follows:
        return OwnConstant(name=name, value=value, follows=follows)
    if name in KNOWN and _is_number(value) and value:
        keys, factor = KNOWN[name]
        by = factor(float(value), config)
        neutral = _close(by, 1.0) and keys != ATTENTION and not follows
        return None if neutral else OwnConstant(name=name, value=value, keys=keys, factor=by, follows=follows)
    if name in KNOWN or not PATTERN.search(name) or (NO_FACTOR.search(name) and "mup" not in name):
        return None
    values = value if isinstance(value, list | tuple) else [value]
    if not values or not all(_is_number(each) for each in values):
        return None
    caps = "cap" in name or "clip" in name  # a bound of 1 bounds, and one of 0 is none
    neutral = not any(values) if caps else all(float(each) == 1.0 for each in values)
    return None if neutral else OwnConstant(name=name, value=value, follows=follows)


def _follows(name: str, value: Any) -> str | None:
    """Return the dimension with which the factor of a constant changes while its value stays."""
    if name in BY_DEPTH:
        return "depth"
    return "width" if BY_WIDTH.search(name) or ("mup" in name and value is True) else None


def _configs(model: Any) -> Iterator[dict[str, Any]]:
    """Yield the options of each object that the modules of a model hold, or those of the config that is given."""
    if not hasattr(model, "named_modules"):
        yield _options(model)
        return
    seen = set[int]()
    for _, module in _own_modules(model):
        held = [getattr(module, name, None) for name in HOLDERS if name in vars(module) or hasattr(type(module), name)]
        for holder in held:
            if holder is not None and id(holder) not in seen:
                seen.add(id(holder))
                yield _options(holder)


def _in_modules(model: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each attribute of a module that a known name calls a factor, with all attributes of the module."""
    for path, module in _own_modules(model) if hasattr(model, "named_modules") else ():
        for name in sorted(vars(module).keys() & KNOWN.keys()):
            # The heads of low-rank attention have several sizes, and a scale that no shape says.
            if KNOWN[name][0] != ATTENTION or (_is_attention(path) and not hasattr(module, "kv_lora_rank")):
                yield name, vars(module)


def _own_modules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the modules of a model without those that read something else than the tokens so far."""
    for path, module in plain_modules(model).items():
        if not any(FOREIGN.fullmatch(part) for part in path.lower().split(".")):
            yield path, module


def _is_attention(path: str) -> bool:
    return any(word in path.rpartition(".")[2].lower() for word in ("attn", "attention"))


def _options(holder: Any, nested: int = MOST_NESTED) -> dict[str, Any]:
    """Return name -> value of a config and of what lies in it, without names that start with an underscore."""
    text = getattr(holder, "get_text_config", None)
    if callable(text):
        holder = text(decoder=True)
    values = dict(holder) if isinstance(holder, Mapping) else _attributes(holder)
    own = {name: value for name, value in values.items() if isinstance(name, str) and not name.startswith("_")}
    out: dict[str, Any] = {}
    for name, value in own.items():
        held = isinstance(value, Mapping) or (hasattr(value, "__dict__") and not callable(value))
        held = held and not isinstance(value, ModuleType)
        if nested and held and not NO_FACTOR.search(name) and not OF_OTHERS.search(name):
            out |= _options(value, nested - 1)
    return out | own


def _attributes(holder: Any) -> dict[str, Any]:
    """Return the attributes of an object or a class, those of its classes and slots included."""
    kinds = holder.__mro__ if isinstance(holder, type) else type(holder).__mro__
    out = {name: value for kind in reversed(kinds) for name, value in vars(kind).items()}
    slots = {name: getattr(holder, name, None) for name, value in out.items() if inspect.ismemberdescriptor(value)}
    return {**out, **slots, **getattr(holder, "__dict__", {})}


def _attention_scales(model: Any) -> set[float]:
    """Return the numbers `scaling` of the attention modules."""
    if not hasattr(model, "named_modules"):
        return set()
    return {
        float(scale)
        for name, module in plain_modules(model).items()
        if _is_attention(name) and isinstance(scale := getattr(module, "scaling", None), int | float)
    }


def _by_key(constants: tuple[OwnConstant, ...]) -> dict[str, float]:
    """Return key -> the product of the constants that act on it."""
    out: dict[str, float] = {}
    for one in constants:
        for key in one.keys:
            out[key] = out.get(key, 1.0) * one.factor
    return out


def _agrees(key: str, factor: float, at: Resolved) -> bool:
    """Return whether the recipe's number contains the factor: as a factor of its base, or as the whole number.

    Where the recipe has no such number, nothing is contradicted.
    """
    if key == "route_scale" and _close(factor, at.recipe.file.fixed[key]):
        return True
    names = EXPERTS if key == "experts" else (key,)
    is_known = key == "route_scale" or names[0] in at.forward
    return not is_known or _close(factor, math.prod(at.forward.get(name, 1.0) for name in names))


def _number(config: Mapping[str, Any], name: str) -> float:
    value = config.get(name)
    return float(value) if _is_number(value) and value else 1.0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=CLOSE)


def _spell(value: Any) -> str:
    return f"{value:.6g}" if _is_number(value) else str(value)
