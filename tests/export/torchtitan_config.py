"""The part of torchtitan's model configs that its exports fill in, from its published fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


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
