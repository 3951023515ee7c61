"""The model of a stack's memory, of the family that measures its routers."""

from __future__ import annotations

import pytest
from allocations import allocated_peak

from hpxfer.data import data_ref
from hpxfer.plan.footprint import footprint
from hpxfer.scaling.hps import HPs
from hpxfer.spec import parse_sweep
from hpxfer.spec.yaml_file import write_yaml
from hpxfer.train.trainer import train
from hpxfer.trial import Trial, setting_of
from hpxfer.trial.stack import Stack

# Trials, width, experts, active, expert width, depth, batch, optimizer; and what holds most.
CASES: dict[str, tuple[tuple[int, int, int, int, int, int, int, str], str]] = {
    "of the search": ((8, 128, 8, 8, 16, 1, 50, "sgd"), "probe"),
    "top-2, adam": ((4, 256, 8, 2, 16, 1, 50, "adamw"), "probe"),
    "deep, many samples": ((2, 64, 4, 4, 64, 6, 256, "adamw"), "block"),
    "mostly routers": ((2, 512, 64, 2, 4, 1, 32, "sgd"), "probe"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_model_is_within_a_tenth_of_what_training_allocates(name: str) -> None:
    (count, width, experts, active, hidden, depth, batch, optimizer), moment = CASES[name]
    base = {"width": width, "depth": depth, "num_experts": experts, "num_active": active, "expert_width": hidden}
    sweep = {
        "name": "s",
        "model": {"family": "mlp", "base": base},
        "data": {"source": "builtin:teacher/polynomial"},
        "training": {"batch_samples": batch, "validation_samples": batch, "steps": 3, "optimizer": optimizer},
        "parameterizations": ["sp"],
        "axes": {"width": [width]},
        "grid": {"lr": [0.01]},
    }
    sweep["model"]["mlp"] = {"loss": "squared_error"}
    spec = parse_sweep(write_yaml(sweep), "s")
    setting, shape = setting_of(spec, data_ref(spec.data)), spec.base_shape
    hps = HPs(lr=0.01, momentum=0.5 if optimizer == "sgd" else 0.0)
    trials = tuple(
        Trial(id=str(k), setting=setting, shape=shape, base=shape, parameterization=None, hps=hps, seed=0)
        for k in range(count)
    )
    found = footprint(shape, setting, count, cuda=False)
    assert found.moment == moment
    assert found.total == pytest.approx(allocated_peak(lambda: list(train(Stack(trials=trials), "cpu"))), rel=0.1)
    assert found.parts["measures of routers"] > 0
