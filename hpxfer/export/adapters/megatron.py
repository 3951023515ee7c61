"""Megatron-LM: optimizer overrides, launch arguments and model settings, written by hpxfer.

Call install() before pretrain() and pass launch_args. transformer_config holds fields of TransformerConfig;
core_transformer_config_from_args takes them from the parsed args, on which you set them as attributes. Leave --use-
mup out: it would scale again. The globs hold with and without Megatron's wrappers.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from megatron.core.optimizer import ParamKey

launch_args: list[str] = []
transformer_config: dict[str, Any] = {}
# Roles, globs of parameter names, and their numbers. A parameter matches the globs of one group.
GROUPS: list[dict[str, Any]] = []

config_overrides = {ParamKey(name=tuple(group["names"])): group["numbers"] for group in GROUPS}


def check_names(names: Iterable[str]) -> None:
    """Raise ValueError unless each trained parameter matches one entry of config_overrides, and each glob has one."""
    names, used = list(names), set[str]()
    for name in names:
        hits = [key for key in config_overrides if any(fnmatchcase(name, glob) for glob in key.name)]
        if len(hits) != 1:
            raise ValueError(f"{name}: must match one entry of config_overrides, got {len(hits)}")
        used.update(glob for glob in hits[0].name if fnmatchcase(name, glob))
    unused = [glob for key in config_overrides for glob in key.name if glob not in used]
    if unused:
        raise ValueError(f"every glob must match a parameter, got none for {unused}")


def install() -> None:
    """Replace Megatron's get_megatron_optimizer_config by one that returns config_overrides. Call before pretrain()."""
    from megatron.training import training

    original = training.get_megatron_optimizer_config

    def get_megatron_optimizer_config(args: Any) -> tuple[Any, dict[Any, dict[str, float]]]:
        if getattr(args, "use_mup", False) or getattr(args, "scaling_recipe", None) not in (None, "none"):
            raise ValueError("these overrides scale by themselves: leave --use-mup and --scaling-recipe out")
        if getattr(args, "decoupled_lr", None) is not None:
            raise ValueError("these overrides have an LR for every parameter: leave --decoupled-lr out")
        config, _ = original(args)
        return config, config_overrides

    training.get_megatron_optimizer_config = get_megatron_optimizer_config
