"""Two models as a user of the package `mup` writes them: every output-like layer, the router too, is a MuReadout."""

from __future__ import annotations

from collections.abc import Callable

import mup
from torch import nn

from hpxfer.scaling.shape import Shape

EXPERTS, CONTEXT, VOCAB, FEATURES, CLASSES = 4, 8, 24, 12, 6
Make = Callable[[Shape], nn.Module]


class MLP(nn.Module):
    """Input layer, one residual FFN with the biases of its output, readout."""

    roles = (
        ("first.weight", "embedding"),
        ("up.weight", "dense_in"),
        ("down.weight", "dense_out"),
        ("down.bias", "hidden_bias"),
        ("readout.weight", "readout"),
    )

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, shape.width, bias=False)
        self.up = nn.Linear(shape.width, shape.dense_width, bias=False)
        self.down = nn.Linear(shape.dense_width, shape.width)
        self.readout = mup.MuReadout(shape.width, CLASSES, bias=False)


class Expert(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.expert_width, bias=False)
        self.up = nn.Linear(shape.width, shape.expert_width, bias=False)
        self.down = nn.Linear(shape.expert_width, shape.width, bias=False)


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.width)
        self.query = nn.Linear(shape.width, shape.width, bias=False)
        self.key = nn.Linear(shape.width, shape.width, bias=False)
        self.value = nn.Linear(shape.width, shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width)
        self.router = mup.MuReadout(shape.width, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert(shape) for _ in range(EXPERTS))


class Transformer(nn.Module):
    """A transformer of MoE blocks, as far as its parameters go: the oracle reads these and calls single layers."""

    roles = (
        ("token.weight", "embedding"),
        ("position.weight", "position"),
        ("query.weight", "attn_q"),
        ("key.weight", "attn_k"),
        ("value.weight", "attn_v"),
        (".out.weight", "attn_out"),
        (".out.bias", "hidden_bias"),
        (".norm.weight", "norm"),
        (".norm.bias", "hidden_bias"),
        ("final.weight", "final_norm"),
        ("final.bias", "hidden_bias"),
        ("router.weight", "router"),
        ("gate.weight", "expert_gate"),
        ("up.weight", "expert_in"),
        ("down.weight", "expert_out"),
        ("readout.weight", "readout"),
    )

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCAB, shape.width)
        self.position = nn.Embedding(CONTEXT, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.depth))
        self.final = nn.LayerNorm(shape.width)
        self.readout = mup.MuReadout(shape.width, VOCAB, bias=False)


def role_of(model: MLP | Transformer, name: str) -> str:
    """Return the role of a parameter by the end of its name."""
    (role,) = [role for end, role in model.roles if f".{name}".endswith(end)]
    return role
