"""Trainings that are cut off at given steps and continue, and trials of the family mlp in some of its forms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from tiny_trials import numbers
from torch.utils._python_dispatch import TorchDispatchMode

from hpxfer.data import data_ref
from hpxfer.scaling.hps import HPs
from hpxfer.spec import parse_sweep
from hpxfer.spec.yaml_file import write_yaml
from hpxfer.train import checkpoint
from hpxfer.train.checkpoints import Checkpoints, CheckpointSpec
from hpxfer.train.step import TrainStep
from hpxfer.train.trainer import train
from hpxfer.trial import Trial, setting_of
from hpxfer.trial.events import Ended, Progress
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack


def facts(results: Sequence[TrialResult]) -> list[dict[str, Any]]:
    """Return what the specs of the trials alone determine."""
    return list(map(numbers, results))


class Cut(BaseException):
    """Ends a training as the loss of its worker would, within the process of the test."""


def always(folder: Path) -> CheckpointSpec:
    """Return a spec with a checkpoint after every read of the losses, within `often`."""
    spec = Checkpoints(folder).start(0.0)
    assert spec is not None
    return spec


@contextmanager
def often() -> Iterator[None]:
    """Write a checkpoint after every read of the losses, however long writing takes."""
    with mock.patch.object(checkpoint, "WRITE_SHARE", float("inf")):
        yield


def run(
    trials: Sequence[Trial], spec: CheckpointSpec | None, until: int | None = None, **options: bool
) -> tuple[list[int], list[Progress], tuple[TrialResult, ...]]:
    """Return the steps taken, the progress and the results. There are none if `until` cuts the training off."""
    taken: list[int] = []
    plain = TrainStep.gradients

    def counted(self: TrainStep, step: int) -> Any:
        if step == until:
            raise Cut
        taken.append(step)
        return plain(self, step)

    progress: list[Progress] = []
    with mock.patch.object(TrainStep, "gradients", counted), often():
        try:
            for event in train(Stack(trials=tuple(trials)), "cpu", checkpoints=spec, **options):
                if isinstance(event, Ended):
                    return taken, progress, event.results
                assert isinstance(event, Progress)
                progress.append(event)
        except Cut:
            pass
    return taken, progress, ()


STEPS, CLASSES = 12, 7


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the names of the operations that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


FORMS: dict[str, tuple[dict[str, Any], str]] = {
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
    changes, optimizer = FORMS[case]
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
