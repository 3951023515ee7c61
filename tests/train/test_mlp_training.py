"""Whole trainings of the MLP mixture: they learn, and a trial has the same numbers in every stack."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_trials import numbers, trained

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


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of samples that lie around one point per class."""
    rng = np.random.default_rng(0)
    y = rng.integers(CLASSES, size=900)
    x = rng.standard_normal((CLASSES, 13), dtype=np.float32)[y] + 0.5 * rng.standard_normal((900, 13), dtype=np.float32)
    path = tmp_path_factory.mktemp("samples") / "blobs.npz"
    np.savez(path, x_train=x, y_train=y)
    return path


def trial(path: Path, case: str, *, lr: float = 0.25, seed: int = 0) -> Trial:
    changes, optimizer = CASES[case]
    dims = {name: value for name, value in changes.items() if name != "model"}
    base = {"width": 16, "depth": 1, "num_experts": 4, "num_active": 4, "expert_width": 8, **dims}
    sweep = {
        "name": "s",
        "model": {"family": "mlp", "base": base, **changes.get("model", {})},
        "data": {"source": f"npz:{path}"},
        "training": {"batch_samples": 50, "validation_samples": 100, "steps": STEPS, "optimizer": optimizer},
        "parameterizations": ["sp"],
        "axes": {"width": [16]},
        "grid": {"lr": [lr]},
    }
    spec = parse_sweep(write_yaml(sweep), "s")
    return Trial(
        id=f"{case} {lr} {seed}",
        setting=setting_of(spec, data_ref(spec.data)),
        shape=spec.base_shape,
        base=spec.base_shape,
        parameterization=None,
        hps=HPs(lr=lr if optimizer == "sgd" else lr / 20, router_bias_lr=0.01),
        seed=seed,
    )


@pytest.mark.parametrize("case", CASES)
def test_a_trial_has_the_same_numbers_alone_among_its_seed_and_among_others(samples: Path, case: str) -> None:
    one = trial(samples, case)
    mates = [replace(one, id=f"mate {k}", hps=replace(one.hps, lr=one.hps.lr * (k + 2))) for k in range(3)]
    others = [trial(samples, case, seed=seed) for seed in (1, 2)]
    wild = replace(one, id="wild", hps=replace(one.hps, lr=1e30))
    (alone,) = trained(one)
    assert alone.status == "finished"
    of_seed = trained(*mates, one)[-1]
    mixed = trained(others[0], one, wild, others[1])[1]
    assert numbers(of_seed) == numbers(mixed) == numbers(alone)


def test_a_model_learns_classes_that_lie_apart(samples: Path) -> None:
    (result,) = trained(trial(samples, "sgd", lr=2.0))
    assert result.validation_error is not None
    assert result.validation_top5_error is not None
    assert result.validation_top5_error <= result.validation_error < 1 - 1.5 / CLASSES
    curve = next(curve for curve in result.curves if curve.metric == "train_error")
    assert curve.values[0] > curve.values[-1]


def test_a_diverged_trial_has_no_error(samples: Path) -> None:
    (result,) = trained(trial(samples, "sgd", lr=1e30))
    assert (result.status, result.validation_error, result.validation_top5_error) == ("diverged", None, None)
