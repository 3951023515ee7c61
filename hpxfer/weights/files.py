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
from hpxfer.weights.trained import TrialWeights, parameters_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FORMAT = 1
_REMOVE = "remove it, and run the sweep in a new folder"
ROUTER_BIAS, UNTRAINED_BIAS = "router_bias", "untrained_bias"
OWN_FILE, FACTS_FILE = "model.safetensors", "hpxfer.json"
# The tokenizers of which hpxfer has all -> ids. An id is a byte. With `ascii`, a byte of 128 or more is `?`. Of others
# the data holds only ids.
BYTES = {"bytes": 256, "ascii": 128}


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


def write_tokenizer(name: str, context: int, out: Path) -> bool:
    """Write the files that `AutoTokenizer.from_pretrained` reads. Return False if hpxfer has no such tokenizer."""
    if name not in BYTES:
        return False
    spelled = byte_letters()[: BYTES[name]]
    unknown = "?" if name == "ascii" else None
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    file: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {letter: byte for byte, letter in enumerate(spelled)},
            "merges": [],
        },
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    for path, content in (("tokenizer.json", file), ("tokenizer_config.json", config)):
        (out / path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return True


def byte_letters() -> list[str]:
    """Return the letter that stands for each byte in the files of byte-level tokenizers.

    A byte that is a visible letter stands for itself. The others have the letters from U+0100 on, in order.
    """
    visible = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(hidden)) for byte in range(256)]
