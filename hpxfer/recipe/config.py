"""What a recipe gives each tensor of a model of `transformers`, from its config.json alone."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError, cut
from hpxfer.host import read_text
from hpxfer.recipe.explain import ModelExplanation
from hpxfer.recipe.known_models import KNOWN_MODELS, known_model
from hpxfer.recipe.propose_roles import roles
from hpxfer.recipe.recipe import Recipe
from hpxfer.scaling.shape import MAX_DEPTH, Shape

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
