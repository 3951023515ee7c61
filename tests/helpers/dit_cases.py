"""A trial of the family dit at another shape than the base, and the recipe of made-up results of its sweep."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from made_results import made

from hpxfer.data import data_ref
from hpxfer.recipe import Recipe, recipe_of
from hpxfer.results import Results
from hpxfer.spec import parse_sweep
from hpxfer.spec.yaml_file import write_yaml
from hpxfer.store.rows import trials_table
from hpxfer.trial import Expansion, Trial

STEPS = 20
MOE = {"num_experts": 4, "num_active": 2, "expert_ratio": 0.5}
DENSE: dict[str, Any] = {"dense_ratio": 4}
TARGET_MOE = {"width": 64, "depth": 3, "num_experts": 8, "expert_ratio": 1}
TARGET_DENSE = {"width": 64, "depth": 3, "dense_ratio": 2}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A trial at the target, and the recipe of its sweep."""

    kind: str
    trial: Trial
    recipe: Recipe


@cache
def make_case(kind: str) -> Case:
    is_moe = kind == "moe"
    options = {"patch": 4, "adaln_init": "random", "readout_init": "random"}
    base = {"width": 32, "depth": 2, "head_dim": 16, **(MOE if is_moe else DENSE)}
    sweep = {
        "name": "own_dit",
        "model": {
            "family": "dit",
            "gate": "normalized_sigmoid",
            "ffn": "swiglu" if is_moe else "gelu",
            "base": base,
            "attention_gate": is_moe,
            "dit": options,
        },
        "data": {"source": "builtin:shapes"},
        "training": {
            "batch_samples": 8,
            "steps": STEPS,
            "validation_samples": 8,
            "eps": 1e-10,
            "weight_decay": 0.1,
            "betas": [0.95, 0.95],
            "schedule": {"decay": "linear", "warmup": 3},
        },
        "parameterizations": ["complete-mue"],
        "axes": {"joint": [TARGET_MOE if is_moe else TARGET_DENSE]},
        "hps": {"init_scale": 0.8, **({"router_bias_lr": 0.01} if is_moe else {})},
        "grid": {"lr": [2.0**-7, 2.0**-6, 2.0**-5]},
        "seeds": 1,
    }
    spec = parse_sweep(write_yaml(sweep))
    found = data_ref(spec.data)
    spec = spec.model_copy(update={"data": spec.data.model_copy(update={"digest": found.digest})})
    trials = list(Expansion(spec, found).trials())
    table = trials_table([made(trial) for trial in trials]).to_pandas()
    recipe = recipe_of(Results(folder=Path("results/own_dit"), spec=spec, trials=table, problems=()))
    (trial,) = (one for one in trials if one.shape.width == 64 and one.hps.lr == recipe.hps.lr)
    return Case(kind=kind, trial=trial, recipe=Recipe.parse(recipe.dump()))
