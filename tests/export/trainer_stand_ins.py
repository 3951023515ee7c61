"""Stand-ins for what exported modules import of other trainers, written from the published signatures and rules.

Each module is executed against them. They share no code with hpxfer's export.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

Numbers = dict[str, Any]


def executed(text: str, name: str, modules: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the names that a module defines, executed while these modules stand for those of its trainer."""
    with standing_in(modules):
        names: dict[str, Any] = {"__name__": name}
        exec(compile(text, name, "exec"), names)
    return names


@contextmanager
def standing_in(modules: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Put modules with these attributes, and the packages around them, into sys.modules for the length of a block."""
    with pytest.MonkeyPatch.context() as patch:
        for path, attributes in modules.items():
            parts = path.split(".")
            for at in range(1, len(parts) + 1):
                name = ".".join(parts[:at])
                if name not in modules:
                    patch.setitem(sys.modules, name, ModuleType(name))
            made = ModuleType(path)
            made.__dict__.update(attributes)
            patch.setitem(sys.modules, path, made)
        yield


@dataclass(frozen=True)
class ParamKey:
    """Megatron-LM's key: names are globs, of which any must match (megatron/core/optimizer/optimizer_config.py)."""

    name: tuple[str, ...] = ()

    def matches(self, name: str) -> bool:
        return any(fnmatch(name, glob) for glob in self.name)


def megatron_groups(overrides: Mapping[ParamKey, Numbers], names: Sequence[str]) -> dict[str, Numbers]:
    """Return name -> numbers, as Megatron-LM merges all keys that match. A conflict raises (0044db1)."""
    out = {}
    for name in names:
        merged: Numbers = {}
        for key, override in overrides.items():
            if key.matches(name):
                for what, value in override.items():
                    if merged.setdefault(what, value) != value:
                        raise ValueError(f"Conflicting overrides for {what} of {name}")
        out[name] = merged
    return out


def megatron_lr(group: Numbers, step: int, *, warmup: int, steps: int, style: str, init_lr: float) -> float:
    """Return the LR of a group: warm-up from `init_lr`, then down to its floor (optimizer_param_scheduler.py)."""
    if warmup and step <= warmup:
        return float(init_lr + (group["max_lr"] - init_lr) * step / warmup)
    if style == "constant":
        return float(group["max_lr"])
    ratio = (step - warmup) / (steps - warmup)
    coefficient = 1 - ratio if style == "linear" else 0.5 * (math.cos(math.pi * ratio) + 1)
    return float(group["min_lr"] + coefficient * (group["max_lr"] - group["min_lr"]))


@dataclass
class OptimGroupOverride:
    """OLMo-core's override (src/olmo_core/optim/config.py)."""

    params: list[str]
    opts: Numbers


def olmo_groups(overrides: Sequence[OptimGroupOverride], names: Sequence[str]) -> dict[str, Numbers]:
    """Return name -> numbers: a glob takes from the names that are left, and one without a name raises (c131889)."""
    left, out = list(names), {}
    for override in overrides:
        for pattern in override.params:
            hits = [name for name in left if fnmatch(name, pattern)]
            if not hits:
                raise ValueError(f"pattern {pattern!r} does not match any parameters")
            for name in hits:
                left.remove(name)
                out[name] = override.opts
    return {**out, **{name: {} for name in left}}


@dataclass(kw_only=True)
class ParamGroupConfig:
    """torchtitan's group (torchtitan/components/optimizer.py)."""

    pattern: str
    optimizer_name: str
    optimizer_kwargs: Numbers = field(default_factory=dict)


@dataclass(kw_only=True)
class Container:
    """The Config of torchtitan's OptimizersContainer."""

    param_groups: list[ParamGroupConfig]


@dataclass(kw_only=True)
class LRSchedulers:
    """The Config of torchtitan's LRSchedulersContainer."""

    warmup_steps: int
    decay_ratio: float | None
    decay_type: str
    min_lr_factor: float


def titan_groups(groups: Sequence[ParamGroupConfig], names: Sequence[str]) -> dict[str, Numbers]:
    """Return name -> numbers: the first pattern that is found in a name wins; dead patterns and gaps raise."""
    out: dict[str, Numbers] = {}
    for group in groups:
        hits = [name for name in names if name not in out and re.search(group.pattern, name)]
        if not hits:
            raise ValueError(f"pattern {group.pattern!r} matched no parameters")
        out |= dict.fromkeys(hits, group.optimizer_kwargs)
    if gaps := [name for name in names if name not in out]:
        raise AssertionError(f"Parameter mismatch: {gaps}")
    return out


# The part of torchtitan's model configs that its exports fill in, from its published fields.


@dataclass
class Module:
    """A module's config of torchtitan: `param_init` maps a parameter to the function that starts it."""

    param_init: dict[str, Any] | None = None


@dataclass
class Fused:
    wqkv: Module = field(default_factory=Module)


@dataclass
class Separate:
    """Its modules wk and wv are both made of wkv."""

    wq: Module = field(default_factory=Module)
    wkv: Module = field(default_factory=Module)


@dataclass
class Attention:
    qkv_linear: Fused | Separate = field(default_factory=Fused)
    wo: Module = field(default_factory=Module)


@dataclass
class Router:
    gate: Module = field(default_factory=Module)


@dataclass
class Routed:
    inner_experts: Module = field(default_factory=Module)


@dataclass
class Moe:
    router: Router = field(default_factory=Router)
    routed_experts: Routed = field(default_factory=Routed)


@dataclass
class Block:
    attention: Attention = field(default_factory=Attention)
    attention_norm: Module = field(default_factory=Module)
    moe: Moe | None = field(default_factory=Moe)


@dataclass
class Decoder:
    """As torchtitan/models/qwen3/__init__.py of version 0.3.0 has it: a list of layers, and modules by their names."""

    tok_embeddings: Module = field(default_factory=Module)
    norm: Module = field(default_factory=Module)
    lm_head: Module = field(default_factory=Module)
    layers: list[Block] = field(default_factory=lambda: [Block() for _ in range(3)])


MEGATRON = {"megatron.core.optimizer": {"ParamKey": ParamKey}}
TITAN = {
    "torchtitan.components.optimizer": {
        "OptimizersContainer": SimpleNamespace(Config=Container),
        "ParamGroupConfig": ParamGroupConfig,
    },
    "torchtitan.components.lr_scheduler": {"LRSchedulersContainer": SimpleNamespace(Config=LRSchedulers)},
}


def olmo_modules() -> dict[str, dict[str, Any]]:
    """Return olmo_core.optim, whose configs keep what they are made with."""

    def config(name: str) -> Any:
        return lambda **kwargs: SimpleNamespace(kind=name, **kwargs)

    names = ("AdamWConfig", "ConstantWithWarmup", "LinearWithWarmup", "CosWithWarmup", "WSD")
    return {"olmo_core.optim": {"OptimGroupOverride": OptimGroupOverride, **{name: config(name) for name in names}}}
