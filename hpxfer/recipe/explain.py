"""Explain: what a recipe gives a model, tensor by tensor, or the roles at a shape, as frames and as text."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError, cut
from hpxfer.host import read_text
from hpxfer.recipe.assign import BALANCED, RoleTensor
from hpxfer.recipe.facts import TunedOn, stated
from hpxfer.recipe.forward_hooks import EXPERTS
from hpxfer.recipe.known_models import KNOWN_MODELS, known_model
from hpxfer.recipe.propose_roles import roles
from hpxfer.scaling.muon import Muon, by, muon_of
from hpxfer.scaling.numbers import TensorNumbers, number_lines, numbers_of
from hpxfer.scaling.shape import MAX_DEPTH, Shape

if TYPE_CHECKING:
    from hpxfer.recipe.file import RecipeFile
    from hpxfer.recipe.recipe import Recipe
    from hpxfer.recipe.resolved import Resolved


@dataclass(frozen=True, kw_only=True)
class ModelExplanation:
    """What a recipe gives a model. `str()` is a table, and `to_dict()` holds the same as plain data."""

    rows: tuple[TensorNumbers, ...]
    heading: str
    tuned_on: TunedOn

    def to_dict(self) -> list[dict[str, Any]]:
        """Return one mapping per tensor, in the model's order, with sizes as lists and None for what is missing."""
        return [row.to_dict() for row in self.rows]

    def __str__(self) -> str:
        notes = [f"  {row.name}: {row.note}" for row in self.rows if row.note]
        # The warning says what differs, together with what cannot be seen.
        other = [] if self.tuned_on.different else [f"  {note}" for note in self.tuned_on.notes()]
        return "\n".join([self.heading, *(f"  {line}" for line in number_lines(self.rows)), *notes, *other])


def row_of(item: RoleTensor) -> TensorNumbers:
    """Return what a tensor of a model gets."""
    size, notes = tuple(item.tensor.shape), [item.own.note] if item.own.note else []
    if item.matrices is not None and len(set(item.matrices.sizes)) > 1:
        notes.append(f"its matrices: {item.matrices.text}")
    scale = () if item.matrices is None else item.matrices.scales
    note = "; ".join(notes) or None
    row = numbers_of(item.role, item.numbers, by=item.by, name=item.name, size=size, scale=scale, note=note)
    if item.gain is not None and item.gain.offset == 1.0:
        row = replace(row, init="zeros", note="a gain of 1 + w")
    if item.role == BALANCED:
        note = f"updated by the balancing rule at {item.numbers.lr:g}, not by the optimizer"
    elif item.is_fixed:
        row, note = replace(row, init="kept"), "a fixed table, which is neither initialized nor trained"
    elif not item.tensor.requires_grad:
        note = "needs no gradient, so that it is in no group"
    else:
        tied = "embedding and readout are one tensor, with the embedding's numbers"
        return replace(row, note=tied) if item.tied else row
    return replace(row, lr=None, scale=(), eps=None, weight_decay=None, note=note)


def of_muon(muon: Muon, momentum: float) -> str:
    """Return in one line what Muon does with the numbers of its tensors."""
    return (
        f"  muon: W <- (1 - LR * weight decay) W - LR s X(u), s = {muon.formula}, momentum {momentum:g}; "
        "torch.optim.Muon takes X in bfloat16 whatever the model's precision"
    )


def description(at: Resolved, cautions: Sequence[str]) -> str:
    """Return as text what a recipe gives at a shape: the forward multipliers, and the numbers of each role."""
    recipe, target, sites = at.recipe.file, at.target, at.sites
    forward = [(key, value, sites[key]) for key, value in at.forward.items()]
    column = at.recipe.column
    rows = [numbers_of(role, numbers, by=by(column, role)) for role, numbers in at.values.items() if role != BALANCED]
    lines = number_lines(rows, ("role", "by", "init", "lr", "eps", "weight_decay"))
    parts = [
        [
            f"{recipe.parameterization.name}, {recipe.optimizer}, {_origin(recipe)}",
            f"target {_spell(target.dims())}{_schedule(recipe, target)}",
            f"base   {_spell(recipe.base_shape)}",
            f"tuned on: {', '.join(f'{name} {value}' for name, value in stated(recipe).items())}",
        ],
        [
            "Multiply in the forward pass",
            *(f"  {key:<11}  {value:<12.6g}  {where}" for key, value, where in [*forward, *_product(forward)]),
        ],
        ["Optimizer and initialization", *(f"  {line}" for line in lines)],
    ]
    if at.betas is not None:
        parts[-1].append(f"  betas {at.betas[0]:.6g}, {at.betas[1]:.6g}")
    if (muon := muon_of(column)) is not None:
        parts[-1].append(of_muon(muon, recipe.hps.momentum))
    rule = recipe.model.bias_rule
    if BALANCED in at.values and rule != "none":
        above = f"load - {target.kappa:g}"
        step = f"sign({above})" if rule == "sign" else f"({above})"
        text = f"bias -= {at.values[BALANCED].lr:g} * {step} after every step, outside the optimizer"
        parts.append([f"Router bias: {text}"])
    parts += [[f"By hand: {sentence}"] for sentence in at.by_hand]
    if cautions:
        parts.append([f"warning: {caution}" for caution in cautions])
    return "\n\n".join("\n".join(part) for part in parts)


def _product(forward: Sequence[tuple[str, float, str]]) -> list[tuple[str, float, str]]:
    """Return the product of the numbers that multiply the routed experts, where there are two of them."""
    numbers = [value for key, value, _ in forward if key in EXPERTS]
    where = f"{' x '.join(reversed(EXPERTS))}: what the routed experts get in all"
    return [("product", math.prod(numbers), where)] if len(numbers) > 1 else []


def _schedule(recipe: RecipeFile, target: Shape) -> str:
    """Return that a target without batch and steps gets those of the base."""
    return " (batch_tokens and steps as at the base)" if recipe.base_shape.get("steps") and not target.steps else ""


def _origin(recipe: RecipeFile) -> str:
    if recipe.fitted is None:
        return "made by hand, so that no sweep says how well it transfers"
    search = recipe.provenance.search
    by = f" with {search.kind} over {', '.join(search.hps)}, {search.num_trials} trials" if search else ""
    return f"tuned by the sweep {recipe.provenance.sweep}{by}: {recipe.fitted.hp} {recipe.fitted.value:g}"


def _spell(parts: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in parts.items())


# What configs call the number of layers. A model is made layer by layer, though without memory.
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
NO_NAMES = "\n--names FILE gives roles, one pattern and its role per line, e.g. '*.kv_b_proj.weight attn_k+attn_v@512'"
WORDS = 120  # characters of what transformers says


def explain_config(
    recipe: Recipe, config: Path, shape: Shape | None, extra: Sequence[tuple[str, str]]
) -> tuple[ModelExplanation, list[str]]:
    """Return the explanation of a model at a shape, by default the config's own, and the warnings.

    Patterns of names with a role in `extra` come before what the names say.
    """
    model = _model(config)
    if shape is None and known_model(model) is None:
        raise HpxferError(
            f"--target: must be given for {model.config.model_type}, whose config does not say its shape to hpxfer, as "
            f"those of {', '.join(KNOWN_MODELS)} do, got none; give a JSON file with the shape"
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        proposed = roles(model, extra)
        try:
            found = recipe.explain(model, proposed, shape)
        except HpxferError as error:
            of_roles = any(word in str(error) for word in ("pattern", "fan-in"))
            raise HpxferError(f"{error}{NO_NAMES if of_roles and not extra else ''}") from None
    told = [str(one.message) for one in caught if type(one.message).__module__.startswith("hpxfer.")]
    return found, [*proposed.guesses, *told]


def _model(path: Path) -> Any:
    """Return the model of a config, without memory for its tensors. Nothing is downloaded."""
    rule = f"{path}: must be the config.json of a causal language model of transformers"
    try:
        data = json.loads(read_text(path))
    except OSError as error:
        raise HpxferError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise HpxferError(f"{rule}, got no JSON: {error}") from None
    kind = data.get("model_type") if isinstance(data, dict) else None
    if not isinstance(kind, str):
        raise HpxferError(f"{rule}, got no model_type; a file with a shape is given by --target")
    for name in LAYERS:
        if isinstance(data.get(name), int) and data[name] > MAX_DEPTH:
            raise HpxferError(f"{path}: {name}: must be at most {MAX_DEPTH}, got {data[name]}")
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError:
        raise HpxferError("--model: needs transformers, got none; pip install 'hpxfer[hf]'") from None
    model_of_config: Any = AutoModelForCausalLM  # without types
    try:
        made = AutoConfig.for_model(kind, **{name: value for name, value in data.items() if name != "model_type"})
        with torch.device("meta"):
            return model_of_config.from_config(made, trust_remote_code=False)
    except Exception as error:  # transformers raises what it likes at a config that it does not know
        why = f"{type(error).__name__}: {cut(str(error), WORDS)}"
        raise HpxferError(f"{rule}, got one that transformers refuses: {why}") from None
