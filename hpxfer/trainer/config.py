"""Config: what config.json says of a trial, and what stands in the placeholders of a command. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.recipe import Recipe
from hpxfer.scaling.hps import SCALARS
from hpxfer.scaling.shape import Shape
from hpxfer.spec.trainer_section import TrainerSpec
from hpxfer.trial import Trial


def config_of(
    trial: Trial, trainer: TrainerSpec, *, sweep: str, gpus: int, nodes: int, multipliers: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the part of config.json that the trial decides.

    `gpus` are those of one node. `multipliers` are those that the sweep names.
    """
    setting = trial.setting
    own = trial.parameterization is not None and trial.parameterization.is_own
    return {
        "sweep": sweep,
        "arm": None if trial.parameterization is None else trial.parameterization.label(),
        "shape": trial.shape.own_dims,
        "base_shape": trial.base.own_dims,
        "dims": _dims(trial.shape),
        "hps": {**{name: trial.hps.get(name) for name in multipliers}, **hps_of(trial)},
        "args": json.loads(setting.trainer).get("args", {}),
        "seed": trial.seed,
        "steps": setting.steps,
        "batch_tokens": setting.batch_tokens,
        "final_window_steps": setting.final_window_steps,
        "data": setting.data_source.partition(":")[2],
        "schedule": {
            "decay": setting.decay,
            "warmup_steps": setting.warmup_steps,
            "decay_steps": setting.decay_steps,
            "final_fraction": setting.final_fraction,
        },
        "optimizer": setting.optimizer,
        "betas": [trial.globals().beta1, trial.globals().beta2],
        "roles": None if own else {role: asdict(numbers) for role, numbers in trial.resolved().items()},
        "recipe": None if own else recipe_of(trial),
        "gpus": gpus,
        "nodes": nodes,
        "function": trainer.function,
        "code_dir": trainer.folder,
    }


def hps_of(trial: Trial) -> dict[str, float]:
    """Return HP -> its base value, with multipliers that are not 1 by dotted name."""
    return {**{name: trial.hps.get(name) for name in SCALARS}, **dict(trial.hps.multipliers)}


def recipe_of(trial: Trial) -> dict[str, Any] | None:
    """Return the text of the trial's recipe and the dimensions that it is read at.

    It is None if `model.dims` names too few dimensions of the shape for a recipe. Roles are known all the same.
    """
    choice, setting = trial.parameterization, trial.setting
    try:
        recipe = Recipe.from_hps(
            "sp" if choice is None else choice.name,
            _dims(trial.base),
            hps_of(trial),
            optimizer=setting.optimizer,
            conventions=None if choice is None else dict(choice.conventions),
            init=setting.init,
            gate=setting.gate,
            attention_scale=setting.attention_scale,
        )
        recipe.multipliers(_dims(trial.shape))
    except HpxferError:
        return None
    return {"text": recipe.dump(), "shape": _dims(trial.shape)}


def placeholders(trial: Trial, config: Mapping[str, Any], **values: object) -> dict[str, object]:
    """Return name -> value of every placeholder of a command. `values` are those of the run, such as `gpus`."""
    return {
        **{f"shape.{name}": value for name, value in config["shape"].items()},
        **{f"hp.{name}": value for name, value in config["hps"].items()},
        **{f"arg.{name}": value for name, value in config["args"].items()},
        "seed": trial.seed,
        "steps": trial.setting.steps,
        **values,
    }


def _dims(shape: Shape) -> dict[str, int]:
    """Return the dimensions that tables know, by their names in a Shape."""
    return {name: int(value) for name, value in shape.dims().items() if name != "own" and value}
