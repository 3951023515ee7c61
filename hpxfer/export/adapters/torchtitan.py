"""torchtitan: a config function with optimizer, schedule and initialization, written by hpxfer.

In a config function of yours: return configure(Trainer.Config(...)), and name it with --module and --config.
torchtitan raises if a pattern matches no parameter of a part of a pipeline: with pipeline parallelism leave out the
patterns that a part does not have.
"""

from __future__ import annotations

import copy
import re
from functools import partial
from typing import Any

from torch import nn
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig

try:  # it has moved with version 0.3
    from torchtitan.components.optimizer import LRSchedulersContainer
except ImportError:
    from torchtitan.components.lr_scheduler import LRSchedulersContainer

# Name, with # for any whole number -> std of the normal numbers it starts with.
PARAM_INIT: dict[str, float] = {}
# Roles, names with # for any whole number, and their numbers. Each parameter matches one group.
GROUPS: list[dict[str, Any]] = []
SCHEDULE: dict[str, Any] | None = None  # None: the recipe has none

# Activation checkpointing and compile put modules such as _checkpoint_wrapped_module between the parts of a name.
WRAPPERS = r"(?:_\w+\.)*"


def at(*names: str) -> str:
    """Return the regex of whole names, in which # stands for any whole number."""
    parts = [[re.escape(part).replace(r"\#", "[0-9]+") for part in name.split(".")] for name in names]
    return "|".join("^" + WRAPPERS + (r"\." + WRAPPERS).join(of_name) + "$" for of_name in parts)


def optimizer() -> Any:
    """Return AdamW with the recipe's groups. Each parameter matches one pattern."""
    return OptimizersContainer.Config(
        param_groups=[
            ParamGroupConfig(
                pattern=at(*group["names"]), optimizer_name="AdamW", optimizer_kwargs=dict(group["numbers"])
            )
            for group in GROUPS
        ]
    )


def lr_scheduler() -> Any:
    """Return the schedule of the recipe, relative to the peak LR of each group, or None if the recipe has none."""
    if SCHEDULE is None:
        return None
    ratio = {"constant": 0.0, "wsd": SCHEDULE["decay_steps"] / SCHEDULE["steps"]}
    return LRSchedulersContainer.Config(
        warmup_steps=SCHEDULE["warmup_steps"],
        decay_ratio=ratio.get(SCHEDULE["decay"]),
        decay_type="cosine" if SCHEDULE["decay"] == "cosine" else "linear",
        min_lr_factor=SCHEDULE["final_fraction"],
    )


def set_param_init(model_config: Any, path: str = "", left: set[str] | None = None) -> None:
    """Set param_init on the config of every module whose parameters are in PARAM_INIT; raise if one has none."""
    whole = left is None
    left = set(PARAM_INIT) if left is None else left
    if isinstance(model_config, list | tuple):
        children = [(str(number), child) for number, child in enumerate(model_config)]
    elif hasattr(model_config, "__dataclass_fields__"):
        children = [(name, getattr(model_config, name)) for name in model_config.__dataclass_fields__]
        # One config, wkv, makes the modules wk and wv.
        paths = [path, path[:-3] + "wk", path[:-3] + "wv"] if path.endswith(".wkv") else [path]
        found = {
            pattern: pattern.rpartition(".")[2]
            for pattern in PARAM_INIT
            if path and any(re.search(at(pattern), each + "." + pattern.rpartition(".")[2]) for each in paths)
        }
        if len({(name, PARAM_INIT[pattern]) for pattern, name in found.items()}) > len(set(found.values())):
            raise ValueError(f"{path}: its modules share one config and must have one std, got {sorted(found)}")
        if found and "param_init" in model_config.__dataclass_fields__:
            own = {name: partial(nn.init.normal_, mean=0.0, std=PARAM_INIT[pattern]) for pattern, name in found.items()}
            model_config.param_init = {**(model_config.param_init or {}), **own}
            left -= set(found)
    else:
        return
    for name, child in children:
        set_param_init(child, path + "." + name if path else name, left)
    if whole and left:
        raise ValueError(f"no module config for {sorted(left)}: set their param_init by hand, from PARAM_INIT")


def configure(config: Any) -> Any:
    """Return the Trainer.Config with the recipe's optimizer, schedule and initialization."""
    config.optimizer = optimizer()
    config.model_spec = copy.deepcopy(config.model_spec)
    set_param_init(config.model_spec.model)
    if SCHEDULE is not None:
        config.lr_scheduler = lr_scheduler()
        config.training.steps = SCHEDULE["steps"]
    return config
