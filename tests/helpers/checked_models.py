"""Models that `hpxfer check --module` is tried on, in plain torch, and what a user writes to check them.

Each class is wired by the recipe unless a test says otherwise. Batches are small beside the smallest width.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hpxfer
from hpxfer.recipe import Recipe

VOCAB, CONTEXT = 64, 8
TOKENS = 16  # of a batch
GPT_BASE = {"width": 32, "depth": 2, "dense_width": 64, "head_dim": 16}
MLP_BASE = {"width": 32, "depth": 1, "dense_width": 32, "head_dim": 8}  # recipes ask for heads; the MLP has none
# Router and readout start small: at these widths a random start hides what training adds.
SMALL_READOUT = {"readout.init_mult": 2.0**-6}


class Block(nn.Module):
    """Causal attention and a GELU FFN, each with a LayerNorm before it."""

    def __init__(self, width: int, hidden: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({name: nn.Linear(width, width) for name in ("q", "k", "v", "out")})
        layers = {"fc_in": nn.Linear(width, hidden), "act": nn.GELU(), "fc_out": nn.Linear(hidden, width)}
        self.mlp = nn.Sequential(OrderedDict(layers))

    def forward(self, x: Tensor) -> Tensor:
        h = self.ln_1(x)
        q, k, v = (self.attn[name](h).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for name in ("q", "k", "v"))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn["out"](mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """A GPT as a course on torch has it: no multipliers, learned positions, a readout of its own."""

    def __init__(self, width: int, depth: int, hidden: int, head_dim: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, hidden, head_dim) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, VOCAB, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.lm_head(self.ln_f(x))
        return logits


class MLP(nn.Module):
    """Three layers for 12 numbers and 5 classes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(12, width), nn.Linear(width, width), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(torch.relu(self.middle(torch.relu(self.first(x)))))
        return logits


GPT_SITES = {"blocks.*.attn.out": "attn_out", "blocks.*.mlp": "dense_out", "lm_head": "readout"}
MLP_ROLES = {"first.weight": "embedding", "middle.weight": "dense_in", "last.weight": "readout"}
MLP_ROLES["*.bias"] = "hidden_bias"


def gpt(shape: Any) -> GPT:
    return GPT(shape.width, shape.depth, shape.dense_width, shape.head_dim)


def mlp(shape: Any) -> MLP:
    return MLP(shape.width)


def text(shape: Any) -> Tensor:
    """Return ids, [rows, CONTEXT + 1]."""
    return torch.randint(0, VOCAB, (TOKENS // CONTEXT, CONTEXT + 1))


def lm_loss(model: nn.Module, ids: Tensor) -> Tensor:
    """Return the cross entropy of the next token in nats, of a model of torch or of transformers."""
    out = model(ids[:, :-1])
    logits = out if isinstance(out, Tensor) else out.logits
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def samples(shape: Any) -> tuple[Tensor, Tensor]:
    return torch.randn(12, 12), torch.randint(0, 5, (12,))


def class_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def gpt_recipe(table: str = "completep", **hps: float) -> Recipe:
    """Return a recipe for the GPT, from HPs of no sweep."""
    values = {"lr": 2.0**-8, "eps": 1e-12, **SMALL_READOUT, **hps}
    given = {"attention_scale": "1/sqrt(d_head)", "init": hpxfer_init(), "tied_embeddings": False}
    return Recipe.from_hps(table, GPT_BASE, values, **given)


def mlp_recipe(table: str = "mup", **hps: float) -> Recipe:
    values = {"lr": 2.0**-6, "eps": 1e-12, **SMALL_READOUT, **hps}
    return Recipe.from_hps(table, MLP_BASE, values, attention_scale="1/sqrt(d_head)")


def hpxfer_init() -> Any:
    """Return the initialization of the base: embeddings of order 1, matrices by fan-in."""
    from hpxfer.scaling.evaluate import BaseInit

    return BaseInit(embedding_std=1.0, position_std=0.5)


def proposed(model: nn.Module) -> Any:
    return hpxfer.roles(model)
