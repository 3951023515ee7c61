"""Trials of the family mlp on samples of a few classes, in some of the family's forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hpxfer.data import data_ref
from hpxfer.scaling.hps import HPs
from hpxfer.spec import parse_sweep
from hpxfer.spec.yaml_file import write_yaml
from hpxfer.trial import Trial, setting_of

STEPS, CLASSES = 12, 7
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "sgd": ({}, "sgd"),
    "adam, two blocks, residual": ({"model": {"mlp": {"residual": True, "activation": "relu"}}, "depth": 2}, "adamw"),
    "top-2, learned bias": ({"model": {"gate": "softmax", "mlp": {"router_bias": "learned"}}, "num_active": 2}, "sgd"),
    "bias by plain SGD": ({"model": {"mlp": {"router_bias": "learned_sgd"}}, "num_active": 2}, "adamw"),
    "schedule, one matrix": (
        {"model": {"mlp": {"router_bias": "schedule", "expert_matrices": 1}}, "expert_width": 16},
        "sgd",
    ),
    "squared error": ({"model": {"mlp": {"loss": "squared_error", "inverse_temperature": 2.0}}}, "sgd"),
}


def blobs(folder: Path) -> Path:
    """Return a file of samples that lie around one point per class."""
    rng = np.random.default_rng(0)
    y = rng.integers(CLASSES, size=900)
    x = rng.standard_normal((CLASSES, 13), dtype=np.float32)[y] + 0.5 * rng.standard_normal((900, 13), dtype=np.float32)
    path = folder / "blobs.npz"
    np.savez(path, x_train=x, y_train=y)
    return path


def mlp_trial(path: Path, case: str, *, lr: float = 0.25, seed: int = 0, width: int = 16, eps: float = 1e-8) -> Trial:
    changes, optimizer = CASES[case]
    dims = {name: value for name, value in changes.items() if name != "model"}
    base = {"width": width, "depth": 1, "num_experts": 4, "num_active": 4, "expert_width": 8, **dims}
    sweep = {
        "name": "s",
        "model": {"family": "mlp", "base": base, **changes.get("model", {})},
        "data": {"source": f"npz:{path}"},
        "training": {"batch_samples": 50, "validation_samples": 100, "steps": STEPS, "optimizer": optimizer},
        "parameterizations": ["sp"],
        "axes": {"width": [width]},
        "grid": {"lr": [lr]},
    }
    spec = parse_sweep(write_yaml(sweep), "s")
    return Trial(
        id=f"{case} {lr} {seed}",
        setting=setting_of(spec, data_ref(spec.data)),
        shape=spec.base_shape,
        base=spec.base_shape,
        parameterization=None,
        hps=HPs(lr=lr if optimizer == "sgd" else lr / 20, router_bias_lr=0.01, eps=eps),
        seed=seed,
    )
