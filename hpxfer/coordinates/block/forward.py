"""The forward pass of the block, split into the pieces that the papers name.

    h1 = W1 x      psi = Q h1 (+ b)      phi = gate(psi)      z_i = W2_i h1      a_i = act(z_i)      h3_i = W3_i a_i
    h3 = c sum_i phi_i h3_i              f = W4 h3

(MSSP A.1. With a single matrix per expert a_i = h1, Why Routers Freeze Def. 1.) Every map W x of a weight W = W0 + dW
and an input x = x0 + dx has four pieces: W0 x0 (init), W0 dx (propagating), dW x0 (effective) and dW dx (cross). The
pass computes the pieces and adds them up. The pieces are thus exact, and an exact zero stays zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hpxfer.coordinates.block.weights import Rules, Weights
from hpxfer.kernels.routing import choose_experts
from hpxfer.scaling.claims.block import Block
from hpxfer.scaling.shape import Shape


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """The output of a map in pieces. `effective` uses the initial input, as in the three-term split of the papers."""

    init: Tensor
    propagating: Tensor
    effective: Tensor
    cross: Tensor

    @property
    def change(self) -> Tensor:
        return self.propagating + self.effective + self.cross

    @property
    def effective_now(self) -> Tensor:
        """The update times the current input, as in the two-term split."""
        return self.effective + self.cross

    @property
    def total(self) -> Tensor:
        return self.init + self.change

    def named(self) -> dict[str, Tensor]:
        """Return name -> tensor, of the pieces and of their sums."""
        return {
            "init": self.init,
            "propagating": self.propagating,
            "effective0": self.effective,
            "cross": self.cross,
            "effective": self.effective_now,
            "change": self.change,
            "activation": self.total,
        }


@dataclass(frozen=True, kw_only=True)
class Forward:
    """All activations of a pass. `aggregate` splits c sum_i phi_i h3_i, with the current gates."""

    h1: Pieces  # [K, P, N]
    psi: Pieces  # [K, P, E], without the bias
    logits: Tensor  # [K, P, E]
    active: Tensor  # [K, P, E], 1 or 0
    phi: Tensor  # [K, P, E]
    hidden: Pieces | None  # z_i [K, P, E, H]; None with a single matrix per expert
    read: tuple[Tensor, Tensor]  # a_i at the start and its change, [K, P, E, H]
    expert: Pieces  # h3_i [K, P, E, N]
    aggregate: Pieces  # h3 [K, P, N]
    through_hidden: tuple[Tensor, Tensor] | None  # aggregate of W30 W20 dh1 and of W30 dW2 h1, [K, P, N]; linear only
    f: Pieces  # [K, P]


def forward(
    weights: Weights,
    rule: Rules,
    block: Block,
    shape: Shape,
    x: Tensor,
    bias: Tensor | None,
    first: Forward | None,
    ties: Tensor | None = None,
) -> Forward:
    """Return the pass of the current weights over x [P, D].

    `first` is the pass of the initial weights, and `ties` [K] are the keys of `choose_experts`.
    """
    num_seeds = weights.initial["readout"].shape[0]
    x = x.expand(num_seeds, -1, -1)
    h1 = _map(weights, rule, "embedding", x, torch.zeros_like(x))
    psi = _map(weights, rule, "router", h1.init, h1.change)
    logits = psi.total if bias is None else psi.total + bias
    active = top_k(logits, shape.num_active, ties)
    phi = gate(logits, active, block, rule)
    hidden = None
    start, moved = h1.init[:, :, None], h1.change[:, :, None]
    if block.experts == "two":
        hidden = _experts(weights.both("expert_in"), start, moved, rule.forward("expert_in"))
        start = act(hidden.init.contiguous(), block)  # in the layout of the total, for the same bits
        moved = hidden.change if block.activation == "linear" else act(hidden.total, block) - start
    expert = _experts(weights.both("expert_out"), start, moved)
    scale = rule.forward("expert_out")
    aggregate = Pieces(**{name: _sum(phi, getattr(expert, name), scale) for name in _PIECES})
    moved_h3 = _moved_aggregate(aggregate, first)
    through = None
    if hidden is not None and block.activation == "linear":
        through = _through_hidden(weights, hidden, phi, scale)
    start_h3 = aggregate.init if first is None else first.aggregate.total
    return Forward(
        h1=h1,
        psi=psi,
        logits=logits,
        active=active,
        phi=phi,
        hidden=hidden,
        read=(start, moved),
        expert=expert,
        aggregate=aggregate,
        through_hidden=through,
        f=_readout(weights, rule, start_h3, moved_h3),
    )


_PIECES = ("init", "propagating", "effective", "cross")


def _moved_aggregate(aggregate: Pieces, first: Forward | None) -> Tensor:
    """Return the change of h3: its own pieces, and its initial piece under the current gates."""
    if first is None:
        return torch.zeros_like(aggregate.init)
    return aggregate.change + (aggregate.init - first.aggregate.init)


def _map(weights: Weights, rule: Rules, role: str, start: Tensor, moved: Tensor) -> Pieces:
    """Return the pieces of a map that is not split by expert: W [K, O, I] on inputs [K, P, I]."""
    scale = rule.forward(role)
    return _pieces(weights.both(role), start, moved, lambda w, x: scale * torch.einsum("koi,kpi->kpo", w, x))


def _readout(weights: Weights, rule: Rules, start: Tensor, moved: Tensor) -> Pieces:
    scale = rule.forward("readout")
    return _pieces(weights.both("readout"), start, moved, lambda w, x: scale * torch.einsum("kn,kpn->kp", w, x))


def _experts(pair: tuple[Tensor, Tensor], start: Tensor, moved: Tensor, scale: float = 1.0) -> Pieces:
    """Return the pieces of a map of every expert: W [K, E, O, I] on inputs [K, P, E or 1, I]."""
    return _pieces(pair, start, moved, lambda w, x: scale * per_expert(w, x))


def _pieces(
    pair: tuple[Tensor, Tensor], start: Tensor, moved: Tensor, product: Callable[[Tensor, Tensor], Tensor]
) -> Pieces:
    """Return the four pieces. Both inputs are multiplied at once, so that each matrix is read from memory once."""
    inputs = torch.cat((start, moved), dim=1)
    init, propagating = product(pair[0], inputs).chunk(2, dim=1)
    effective, cross = product(pair[1], inputs).chunk(2, dim=1)
    return Pieces(init=init, propagating=propagating, effective=effective, cross=cross)


def per_expert(w: Tensor, x: Tensor) -> Tensor:
    """Return W_i x_i [K, P, E, O] for W [K, E, O, I] and x [K, P, E or 1, I]."""
    if x.shape[2] == 1:
        return torch.einsum("keoi,kpi->kpeo", w, x[:, :, 0])
    return torch.einsum("keoi,kpei->kpeo", w, x)


def _sum(phi: Tensor, outputs: Tensor, scale: float) -> Tensor:
    return scale * torch.einsum("kpe,kpen->kpn", phi, outputs)


def _through_hidden(weights: Weights, hidden: Pieces, phi: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return A2.1 and A2.2 of MSSP: the parts of h3 that pass through W30, of W20 dh1 and of dW2 h1_0."""
    columns = torch.cat((hidden.propagating, hidden.effective), dim=1)
    by_input, by_update = per_expert(weights.initial["expert_out"], columns).chunk(2, dim=1)
    return _sum(phi, by_input, scale), _sum(phi, by_update, scale)


def top_k(logits: Tensor, num_active: int, ties: Tensor | None = None) -> Tensor:
    """Return 1 for the num_active largest logits [K, P, E] and 0 for the others. `ties` are those of `forward`."""
    if num_active == logits.shape[-1]:
        return torch.ones_like(logits)
    chosen = choose_experts(logits, torch.zeros_like(logits[:, 0]), num_active, ties_K=ties)
    return torch.zeros_like(logits).scatter(-1, chosen, 1.0)


def gate(logits: Tensor, active: Tensor, block: Block, rule: Rules) -> Tensor:
    """Return phi: sigmoid where active, or route_scale * softmax over the active set (Why Routers Freeze, eq. 376)."""
    if block.gate == "sigmoid":
        return active * torch.sigmoid(logits)
    return rule.route_scale * torch.softmax(logits.masked_fill(active == 0, -torch.inf), dim=-1)


def gate_gradient(fwd: Forward, by_phi: Tensor, block: Block, rule: Rules) -> Tensor:
    """Turn a gradient by phi into one by the logits. No gradient flows through the choice of the experts."""
    if block.gate == "sigmoid":
        return by_phi * fwd.phi * (1 - torch.sigmoid(fwd.logits))
    share = fwd.phi / rule.route_scale
    return fwd.phi * (by_phi - (share * by_phi).sum(-1, keepdim=True))


def act(z: Tensor, block: Block) -> Tensor:
    """Return the input of the experts' output matrices."""
    return F.gelu(z) if block.activation == "gelu" else z


def act_slope(z: Tensor, block: Block) -> Tensor:
    """Return act'(z)."""
    if block.activation == "linear":
        return torch.ones_like(z)
    density = torch.exp(-0.5 * z * z) / (2 * torch.pi) ** 0.5
    slope: Tensor = torch.special.ndtr(z) + z * density
    return slope
