"""Layers of experts for tests, and the reference: a loop over the tokens and their experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from tolerances import assert_near
from torch import Tensor
from triton_cases import DEVICE, TRITON, normal

from hpxfer.kernels import experts_launch
from hpxfer.kernels.backend import Backend
from hpxfer.kernels.experts import experts
from hpxfer.kernels.routing import group_rows


class Leaves(NamedTuple):
    """The inputs and weights of a layer. None stands for a weight that the layer lacks."""

    x: Tensor
    w_in: Tensor
    w_gate: Tensor | None
    w_out: Tensor
    gate: Tensor
    b_in: Tensor | None
    b_gate: Tensor | None
    b_out: Tensor | None


@dataclass(frozen=True, kw_only=True)
class Case:
    """A layer: `experts` says which experts the tokens of a trial meet."""

    trials: int = 1
    tokens: int
    num_experts: int
    num_active: int = 1
    width: int = 24
    hidden: int = 40
    swiglu: bool = False
    biases: bool = False
    experts: str = "any"

    def chosen(self) -> Tensor:
        """Return [K, T, A] experts."""
        size = (self.trials, self.tokens, self.num_active)
        if self.experts == "any":
            scores = normal(self.trials, self.tokens, self.num_experts, seed=1)
            return scores.argsort(-1)[..., : self.num_active].contiguous()
        if self.experts == "each its own":
            return torch.arange(self.tokens, device=DEVICE).view(1, -1, 1).expand(size).contiguous()
        # One expert of all tokens, and the others empty.
        return torch.full(size, int(self.experts), device=DEVICE)

    def leaves(self, dtype: torch.dtype) -> Leaves:
        """Return inputs and weights of size one in `dtype`, float32 gates."""
        groups, rows = self.trials * self.num_experts, self.trials * self.tokens
        into, hidden, width = (groups, self.width, self.hidden), (groups, self.hidden), (groups, self.width)
        return Leaves(
            x=normal(rows, self.width, seed=2, dtype=dtype),
            w_in=(normal(*into, seed=3) / self.width**0.5).to(dtype),
            w_gate=(normal(*into, seed=4) / self.width**0.5).to(dtype) if self.swiglu else None,
            w_out=(normal(groups, self.hidden, self.width, seed=5) / self.hidden**0.5).to(dtype),
            gate=normal(rows, self.num_active, seed=6),
            b_in=normal(*hidden, seed=7, dtype=dtype) if self.biases else None,
            b_gate=normal(*hidden, seed=8, dtype=dtype) if self.swiglu and self.biases else None,
            b_out=normal(*width, seed=9, dtype=dtype) if self.biases else None,
        )


CASES = {
    "top-1": Case(tokens=20, num_experts=3),
    "top-2 of three trials, SwiGLU and biases": Case(
        trials=3, tokens=7, num_experts=4, num_active=2, width=40, hidden=24, swiglu=True, biases=True
    ),
    "one expert has all": Case(trials=2, tokens=19, num_experts=3, experts="1", biases=True),
    "a token an expert": Case(trials=2, tokens=4, num_experts=4, experts="each its own", width=8, hidden=8),
    "one token": Case(tokens=1, num_experts=2, width=8, hidden=8, swiglu=True),
    "sums in parts": Case(tokens=130, num_experts=1, width=8, hidden=8),
}


def by_loop(leaves: Leaves, chosen_KTA: Tensor, num_experts: int) -> Tensor:
    """Return y [M, D] of plain products, one token and expert at a time."""
    x, w_in, w_gate, w_out, gate, b_in, b_gate, b_out = leaves
    tokens = chosen_KTA.shape[1]
    out = []
    for trial, chosen_TA in enumerate(chosen_KTA.tolist()):
        for token, chosen_A in enumerate(chosen_TA, start=trial * tokens):
            y = torch.zeros_like(x[token])
            for slot, expert in enumerate(chosen_A):
                g = trial * num_experts + expert
                u = x[token] @ w_in[g] + (0 if b_in is None else b_in[g])
                v = None if w_gate is None else x[token] @ w_gate[g] + (0 if b_gate is None else b_gate[g])
                h = F.gelu(u) if v is None else F.silu(v) * u
                y = y + gate[token, slot].to(x.dtype) * (h @ w_out[g] + (0 if b_out is None else b_out[g]))
            out.append(y)
    return torch.stack(out)


def by_kernels(leaves: Leaves, chosen_KTA: Tensor, num_experts: int, backend: Backend) -> Tensor:
    """Return y [M, D] of `experts`."""
    x, w_in, w_gate, w_out, gate, b_in, b_gate, b_out = leaves
    groups = group_rows(chosen_KTA, num_experts, backend)
    biases = {"b_in": b_in, "b_gate": b_gate, "b_out": b_out}
    return experts(x, w_in, w_gate, w_out, gate, groups, chosen_KTA.shape[2], **biases, backend=backend)


def with_gradients(leaves: Leaves) -> Leaves:
    """Return fresh leaves of the same values."""
    return Leaves(*(None if leaf is None else leaf.detach().clone().requires_grad_() for leaf in leaves))


def gradients(y: Tensor, leaves: Leaves, dy: Tensor) -> dict[str, Tensor]:
    """Return y and the gradient of every leaf that is not None, by name."""
    there = {name: tensor for name, tensor in leaves._asdict().items() if tensor is not None}
    found = torch.autograd.grad(y, list(there.values()), dy)
    return {"y": y.detach(), **dict(zip(there, found, strict=True))}


def assert_right(case: Case, dtype: torch.dtype, backend: Backend) -> dict[str, Tensor]:
    """Compare y and all gradients with a loop's in the same dtype and in float64, and return them."""
    chosen, dy = case.chosen(), normal(case.trials * case.tokens, case.width, seed=10)

    def run(to: torch.dtype | None) -> dict[str, Tensor]:
        leaves = case.leaves(dtype)
        if to is not None:
            leaves = Leaves(*(None if leaf is None else leaf.to(to) for leaf in leaves))
        leaves = with_gradients(leaves)
        if to is None:
            return gradients(by_kernels(leaves, chosen, case.num_experts, backend), leaves, dy.to(dtype))
        return gradients(by_loop(leaves, chosen, case.num_experts), leaves, dy.to(dtype).to(to))

    mine, own, exact = run(None), run(dtype), run(torch.float64)
    for name in exact:
        assert mine[name].dtype == (torch.float32 if name == "gate" else dtype), name
        assert_near(mine[name], own[name], exact[name], name)
    return mine


def use_products(monkeypatch: pytest.MonkeyPatch, products: str) -> Backend:
    """Let every entry of the table name these products, and return the backend that may use them."""
    find = experts_launch.find_config
    monkeypatch.setattr(experts_launch, "find_config", lambda *shape: replace(find(*shape), products=products))
    return replace(TRITON, strict=products == "triton")
