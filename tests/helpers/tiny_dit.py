"""Tiny diffusion transformers: the text of a sweep, and its trials."""

from __future__ import annotations

import yaml

from hpxfer.testing.families import expanded
from hpxfer.trial import Trial

MODEL = {
    "family": "dit",
    "gate": "normalized_sigmoid",
    "ffn": "swiglu",
    "attention_gate": True,
    "base": {"width": 16, "depth": 2, "num_experts": 4, "num_active": 2, "expert_ratio": 1, "head_dim": 8},
    "dit": {"patch": 4},
}
RANDOM = {"adaln_init": "random", "readout_init": "random"}
SWEEP = {
    "name": "tiny",
    "data": {"source": "builtin:shapes"},
    "training": {"batch_samples": 32, "steps": 6, "validation_samples": 64},
    "parameterizations": ["complete-mue"],
    "axes": {"width": [16, 32]},
    "grid": {"lr": {"log2": [-7, -6]}},
    "seeds": 2,
}


def text(*, base: dict | None = None, dit: dict | None = None, model: dict | None = None, **sections: dict) -> str:
    """Return the text of a sweep. Model, data and training are changed by keys."""
    of_model = {**MODEL, **(model or {})}
    of_model["base"] = {**MODEL["base"], **(base or {})} if not (base or {}).get("dense_ratio") else base
    of_model["dit"] = {**MODEL["dit"], **(dit or {})}
    out = {**SWEEP, "model": of_model}
    for name, given in sections.items():
        out[name] = {**SWEEP[name], **given} if name in ("data", "training") else given
    return yaml.safe_dump(out, sort_keys=False)


def trials(**changes: dict) -> list[Trial]:
    """Return the trials of a sweep, those of the base first."""
    return list(expanded(text(**changes)).trials())
