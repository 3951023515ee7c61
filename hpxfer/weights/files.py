"""Files of weights: our own safetensors file, and a folder that `AutoModelForCausalLM.from_pretrained` loads."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from hpxfer.errors import HpxferError
from hpxfer.model.draws import untrained_bias
from hpxfer.spec import moe_blocks
from hpxfer.trial import LOCAL, Trial, canonical
from hpxfer.weights.folded import folded
from hpxfer.weights.homes import config_of
from hpxfer.weights.tokenizer import write_tokenizer
from hpxfer.weights.trained import TrialWeights, parameters_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FORMAT = 1
_REMOVE = "remove it, and run the sweep in a new folder"
ROUTER_BIAS, UNTRAINED_BIAS = "router_bias", "untrained_bias"
OWN_FILE, FACTS_FILE = "model.safetensors", "hpxfer.json"


def facts_of(trial: Trial) -> dict[str, Any]:
    """Return what a reader needs to compute the trial's model: its options, and the number of every role."""
    setting = {name: value for name, value in asdict(trial.setting).items() if name not in LOCAL}
    choice = trial.parameterization
    return {
        "hpxfer_weights": FORMAT,
        "trial_id": trial.id,
        "seed": trial.seed,
        "shape": trial.shape.dims(),
        "base": trial.base.dims(),
        "parameterization": None if choice is None else choice.label(),
        "setting": json.loads(canonical(setting)),
        "roles": {role: asdict(numbers) for role, numbers in trial.resolved().items()},
        "globals": asdict(trial.globals()),
    }


def write_own(weights: TrialWeights, path: Path, losses: Mapping[str, float] | None = None) -> None:
    """Write a safetensors file: `name.block` -> tensor, the router biases, and the facts and the losses as metadata."""
    tensors: dict[str, Tensor] = {}
    for spec in parameters_of(weights.trial):
        blocks = [f".{block}" for block in spec.blocks] or [""]
        copies = zip(blocks, weights.tensors[spec.name], strict=True)
        tensors |= {f"{spec.name}{block}": tensor.contiguous() for block, tensor in copies}
    tensors[ROUTER_BIAS] = weights.router_bias.contiguous()
    trial = weights.trial
    untrained = untrained_bias(trial, moe_blocks(trial.shape, trial.setting), trial.setting.steps)
    if untrained is not None:
        tensors[UNTRAINED_BIAS] = untrained.contiguous()
    save_file(tensors, path, metadata={"hpxfer": canonical({**facts_of(trial), "losses": losses})})


def read_facts(path: Path) -> dict[str, Any]:
    """Return the facts of a file of `write_own`. Raise HpxferError if it is none."""
    try:
        with safe_open(path, framework="pt") as file:
            facts: dict[str, Any] = json.loads((file.metadata() or {}).get("hpxfer", "{}"))
    except (SafetensorError, OSError, ValueError) as error:
        raise HpxferError(f"{path}: must be weights that hpxfer stored, got {error}; {_REMOVE}") from None
    return facts


def read_own(path: Path, trial: Trial) -> TrialWeights:
    """Return the weights of a trial from a file of `write_own`. Raise HpxferError if it holds others."""
    facts = read_facts(path)
    if facts.get("hpxfer_weights") != FORMAT or facts.get("trial_id") != trial.id:
        got = facts.get("trial_id") or "no trial"
        raise HpxferError(f"{path}: must hold the weights of trial {trial.id}, got {got}; {_REMOVE}")
    tensors = load_file(path)
    out = {}
    for spec in parameters_of(trial):
        names = [f"{spec.name}.{block}" for block in spec.blocks] or [spec.name]
        found = [tensors.get(name) for name in names]
        if any(tensor is None or tensor.shape != spec.size for tensor in found):
            raise HpxferError(f"{path}: must hold {spec.name} of {list(spec.size)}, got another file; {_REMOVE}")
        out[spec.name] = tuple(tensor for tensor in found if tensor is not None)
    bias, layers = tensors.get(ROUTER_BIAS), len(moe_blocks(trial.shape, trial.setting))
    if bias is None or bias.shape != (layers, trial.shape.num_experts):
        raise HpxferError(f"{path}: must hold {ROUTER_BIAS}, got another file; {_REMOVE}")
    return TrialWeights(trial=trial, tensors=out, router_bias=bias)


def transformers_model(weights: TrialWeights) -> PreTrainedModel:
    """Return the trial's model as a class of transformers. Raise HpxferError if there is none, or no transformers."""
    config, state = config_of(weights.trial), folded(weights)
    _require_transformers()
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():  # torch warns of the FFN without features that stands for no shared expert
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        make: Any = AutoModelForCausalLM.from_config
        model: PreTrainedModel = make(AutoConfig.for_model(**config), dtype=torch.float32)
    model.load_state_dict(state, strict=True)
    return model


def _require_transformers() -> None:
    if find_spec("transformers") is None:
        raise HpxferError("--format transformers needs transformers; pip install 'hpxfer[hf]', or --format safetensors")


def write_folder(weights: TrialWeights, out: Path, form: str) -> list[Path]:
    """Write a new folder with the weights of a trial in one of the forms, and return its files.

    Raises HpxferError if the folder is there and not empty: nothing is overwritten.
    """
    trial = weights.trial
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise HpxferError(f"--out: must be a new or empty folder, got {out}; name another")
    model = transformers_model(weights) if form == "transformers" else None
    out.mkdir(parents=True, exist_ok=True)
    if model is not None:
        model.save_pretrained(out)
        write_tokenizer(trial.setting.tokenizer, trial.setting.context, out)
    else:
        write_own(weights, out / OWN_FILE)
    facts = json.dumps(facts_of(trial), indent=1, sort_keys=True)
    (out / FACTS_FILE).write_text(facts + "\n", encoding="utf-8")
    return sorted(path for path in out.iterdir() if path.is_file())
