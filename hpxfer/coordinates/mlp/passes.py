"""Both passes of the family `mlp`, split into the pieces that the papers name.

    h1 = act(W1 x)                              per block: psi = Q h1 (+ b)       phi = gate(psi)
    z_i = W2_i h1      a_i = act(z_i)           h3_i = W3_i a_i      h3 = [h1 +] c sum_i phi_i h3_i        f = W4 h3

(MSSP A.1. With one matrix per expert h3_i = act(W3_i h1), Why Routers Freeze Def. 1.) Every map W x of a weight
W = W0 + dW and an input x = x0 + dx has four pieces: W0 x0 (init), W0 dx (propagating), dW x0 (effective) and dW dx
(cross). All are products. So what has not moved is exactly zero, and a small piece keeps its digits beside a large one.

The weights are those of the trainer, in float32, and dW is the difference of two of them. It is exact. What an update
lost when it was rounded into a weight is about 2^-25 of that weight. So `observe` refuses updates that are not far
larger (`LEAST_CHANGE`).

Letters: K trials, P samples of the probe, D inputs, N width, E experts, H hidden features of an expert, C outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hpxfer.model.flat import Weights
from hpxfer.model.mlp.block import Gated, activate, activate_backward, gate, gate_backward
from hpxfer.model.mlp.stack import MLPStack

START, UPDATE = "0", "d"
# The backward pass of the family `mlp`, split as in MSSP App. J: by the matrices that a gradient passed through.
#
# With the upstream gradient U of a block's sum, which is W4 in the last block, and u_i = W3_i^T U: df/dphi_i = c
# u_i.a_i, df/dz_i = c phi_i act'(z_i) u_i, and df/dh1 = sum_i W2_i^T df/dz_i + Q^T df/dpsi. A matrix is split into its
# initial value (0) and its update (d). The piece `W30 dW4` passed through the initial W3 and the update of W4. In the
# blocks before the last, U before training and its change since take the places of W40 and dW4.
#
# The model has several outputs, and f is one number: the output of the first class minus that of the second, of which
# cross entropy of two classes is log(1 + exp(-y f)); or the first output of a squared error.

WHOLE = ""  # both parts together, where an activation stands behind them
# The names in MSSP J for a gradient through (W2, W3). The suffix .1 is for W40, .2 for dW4.
WAYS = {(START, START): "A4", (START, UPDATE): "A5", (UPDATE, START): "A6", (UPDATE, UPDATE): "E"}
READOUT_SUFFIX = {START: ".1", UPDATE: ".2"}

BACK_ONE = "kehn,kpen->kpeh"  # W3^T u
BACK_TWO = "kehn,kpeh->kpn"  # sum_i W2_i^T g_i


def name_of(role: str, which: str) -> str:
    """Return the name in the papers of a matrix or of its update, e.g. `W30` or `dW3`."""
    matrix = {"router": "Q", "expert_in": "W2", "expert_out": "W3", "readout": "W4"}[role]
    return {START: f"{matrix}0", UPDATE: f"d{matrix}", WHOLE: matrix}[which]


@dataclass(frozen=True, kw_only=True)
class BlockBackward:
    """Gradients of f by the activations of a block. The values of a dictionary add up to the whole gradient."""

    by_h3: dict[str, Tensor]  # w4 -> [K, P or 1, N]
    by_expert: Tensor  # what an expert gives, [K, P, E, N]
    by_phi: dict[tuple[str, str], Tensor]  # (w3, w4) -> [K, P, E]
    by_read: dict[tuple[str, str], Tensor]  # (w3, w4) -> z_i, or the expert's own input: [K, P, E, H]
    by_psi: dict[tuple[str, str], Tensor]  # (w3, w4) -> logits, [K, P, E]
    by_h1_experts: dict[tuple[str, str, str], Tensor]  # (w2, w3, w4) -> [K, P, N]; w2 is "0" with one matrix
    by_h1_router: dict[tuple[str, str, str], Tensor]  # (q, w3, w4) -> [K, P, N]
    by_h1: Tensor  # [K, P, N]


def total(pieces: dict[tuple[str, str], Tensor] | dict[tuple[str, str, str], Tensor] | dict[str, Tensor]) -> Tensor:
    """Return the sum of the pieces."""
    return torch.stack(list(pieces.values())).sum(0)


def direction(model: MLPStack, num_outputs: int) -> Tensor:
    """Return the weights [C] of the outputs in f."""
    out = torch.zeros(num_outputs)
    out[0] = 1.0
    if model.setting.mlp.loss == "cross_entropy":
        out[1] = -1.0
    return out


def backward(
    model: MLPStack, weights: Split, fwd: Forward, first: tuple[BlockBackward, ...] | None
) -> tuple[BlockBackward, ...]:
    """Return the gradients of f by all activations at the current weights. `first` are those before training."""
    scale = model.forward["readout"].view(-1, 1)
    pair = weights.both("readout")
    along = direction(model, pair[0].shape[-1])
    upstream = {which: (scale * (w @ along)).unsqueeze(1) for which, w in zip((START, UPDATE), pair, strict=True)}
    out: list[BlockBackward] = []
    for block in reversed(range(model.shape.depth)):
        own = _block_backward(model, weights, block, fwd.blocks[block], upstream)
        out.append(own)
        start = own.by_h1 if first is None else first[block].by_h1
        upstream = {START: start, UPDATE: own.by_h1 - start}
    return tuple(reversed(out))


def _block_backward(
    model: MLPStack, weights: Split, block: int, fwd: BlockForward, upstream: dict[str, Tensor]
) -> BlockBackward:
    options = model.setting.mlp
    # What an expert with one matrix gives is behind its activation.
    is_behind = options.expert_matrices == 1 and options.activation != "linear"
    scale = model.forward["expert_out"].view(-1, 1, 1, 1)
    routed = model.route_scale.view(-1, 1, 1)
    phi = fwd.phi.unsqueeze(-1)
    by_phi: dict[tuple[str, str], Tensor] = {}
    by_read: dict[tuple[str, str], Tensor] = {}
    for last, u in upstream.items():
        by_given = scale * u.unsqueeze(2)
        if is_behind:
            by_phi[WHOLE, last] = (by_given * fwd.given.total).sum(-1)
            by_given = _through(options.activation, by_given, fwd.expert.total)
        for which, w3 in zip((START, UPDATE), weights.both("expert_out", block), strict=True):
            back = per_expert(BACK_ONE, w3, by_given)
            if not is_behind:
                by_phi[which, last] = (back * fwd.read.total).sum(-1)
            if fwd.hidden is not None:
                back = _through(options.activation, back, fwd.hidden.total)
            by_read[which, last] = phi * back
    by_psi = {
        key: options.inverse_temperature * gate_backward(model.setting.gate, fwd.gated, routed, piece)
        for key, piece in by_phi.items()
    }
    by_experts = _to_h1_experts(weights, block, by_read)
    by_router = _to_h1_router(model, weights, block, by_psi)
    by_h1 = total(by_experts) + total(by_router)
    return BlockBackward(
        by_h3=upstream,
        by_expert=scale * phi * total(upstream).unsqueeze(2),
        by_phi=by_phi,
        by_read=by_read,
        by_psi=by_psi,
        by_h1_experts=by_experts,
        by_h1_router=by_router,
        by_h1=by_h1 + total(upstream) if options.residual else by_h1,
    )


def _through(kind: str, grad: Tensor, z: Tensor) -> Tensor:
    """Return the gradient by z, given the one by activation(z)."""
    if kind == "linear":
        return grad
    at = z.contiguous()
    return activate_backward(kind, grad.expand_as(at).contiguous(), at, activate(kind, at))  # type: ignore[arg-type]


def _to_h1_experts(
    weights: Split, block: int, by_read: dict[tuple[str, str], Tensor]
) -> dict[tuple[str, str, str], Tensor]:
    if "expert_in" not in weights.initial:
        return {(START, *key): piece.sum(2) for key, piece in by_read.items()}
    return _multiplied(weights.both("expert_in", block), by_read, BACK_TWO)


def _to_h1_router(
    model: MLPStack, weights: Split, block: int, by_psi: dict[tuple[str, str], Tensor]
) -> dict[tuple[str, str, str], Tensor]:
    scale = model.forward["router"].view(-1, 1, 1)
    scaled = {key: scale * piece for key, piece in by_psi.items()}
    return _multiplied(weights.both("router", block), scaled, "kne,kpe->kpn")


def _multiplied(
    pair: tuple[Tensor, Tensor], pieces: dict[tuple[str, str], Tensor], product: str
) -> dict[tuple[str, str, str], Tensor]:
    """Return the pieces multiplied by the transpose of the initial matrix, and by that of its update."""
    columns = torch.cat(list(pieces.values()), dim=1)
    out = {}
    for which, w in zip((START, UPDATE), pair, strict=True):
        parts = torch.einsum(product, w, columns).chunk(len(pieces), dim=1)
        out.update({(which, *key): part for key, part in zip(pieces, parts, strict=True)})
    return out


TWO, ONE = "kehn,kpen->kpeh", "kehn,kpeh->kpen"  # the products of expert_in and of expert_out


@dataclass(frozen=True, kw_only=True)
class Split:
    """The weights of a stack, split into their initial values and what training added."""

    initial: Weights
    change: Weights

    def both(self, name: str, block: int = 0) -> tuple[Tensor, Tensor]:
        return self.initial[name][block], self.change[name][block]


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
class Moved:
    """Features before training, and what has changed since."""

    start: Tensor
    change: Tensor

    @property
    def total(self) -> Tensor:
        return self.start + self.change


@dataclass(frozen=True, kw_only=True)
class BlockForward:
    """The activations of one block."""

    h: Moved  # [K, P, N], its input
    psi: Pieces  # [K, P, E], without a bias
    logits: Tensor  # [K, P, E], as the gate gets them but for the inverse temperature
    gated: Gated
    phi_change: Tensor  # of the gates since the start, [K, P, E]
    hidden: Pieces | None  # z_i [K, P, E, H]; None with a single matrix per expert
    read: Moved  # what W3 reads: a_i [K, P, E, H], or h1 [K, P, 1, N]
    expert: Pieces  # W3_i a_i, or W3_i h1 before its activation, [K, P, E, N]
    given: Moved  # what an expert gives to the sum, [K, P, E, N]
    aggregate: Moved  # [K, P, N], the gated sum
    # Name in MSSP -> part of the sum under the current gates, [K, P, N]. Behind an activation there is only A1.
    parts: dict[str, Tensor]

    @property
    def phi(self) -> Tensor:
        return self.gated.weights


@dataclass(frozen=True, kw_only=True)
class Forward:
    """All activations of a pass."""

    h: Moved  # [K, P, N], the features of the input layer
    inner: Tensor  # the same before the activation
    blocks: tuple[BlockForward, ...]
    outputs: Pieces  # [K, P, C]


def forward(
    model: MLPStack,
    weights: Split,
    inputs_KPD: Tensor,
    balance_LKE: Tensor,
    noise_LKE: Tensor | None,
    first: Forward | None,
) -> Forward:
    """Return the pass of the current weights. `first` is the pass of the initial weights.

    `balance` and `noise` are the router biases: the first enters the choice of experts only, the second the logits.
    """
    options = model.setting.mlp
    inner = _map(model, weights, "input", "embedding", Moved(start=inputs_KPD, change=torch.zeros_like(inputs_KPD)))
    features = h = activated(options.input_activation, inner)
    blocks = []
    for block in range(model.shape.depth):
        noise = None if noise_LKE is None else noise_LKE[block]
        before = None if first is None else first.blocks[block]
        own = _block(model, weights, block, h, model.balancing(balance_LKE, block), noise, before)
        blocks.append(own)
        h = added(h, own.aggregate) if options.residual else own.aggregate
    return Forward(
        h=features,
        inner=inner.total,
        blocks=tuple(blocks),
        outputs=_map(model, weights, "readout", "readout", h),
    )


def _block(
    model: MLPStack,
    weights: Split,
    block: int,
    h: Moved,
    balance_KE: Tensor | None,
    noise_KE: Tensor | None,
    first: BlockForward | None,
) -> BlockForward:
    options, setting = model.setting.mlp, model.setting
    psi = _map(model, weights, "router", "router", h, block)
    logits = psi.total
    if "router_logit_bias" in weights.initial:
        logits = logits + sum(weights.both("router_logit_bias", block)).unsqueeze(1)  # type: ignore[union-attr]
    if noise_KE is not None:
        logits = logits + noise_KE.unsqueeze(1)
    ties = None if model.ties is None else model.ties[block]
    tempered = logits * options.inverse_temperature
    scale = model.route_scale.view(-1, 1, 1)
    gated = gate(setting.gate, tempered, scale, model.shape.num_active, balance_KE, ties)
    hidden = None
    read = Moved(start=h.start.unsqueeze(2), change=h.change.unsqueeze(2))
    if options.expert_matrices == 2:
        hidden = _experts(weights.both("expert_in", block), read, TWO)
        read = activated(options.activation, hidden)
    expert = _experts(weights.both("expert_out", block), read, ONE)
    given = Moved(start=expert.init, change=expert.change)
    factor = model.forward["expert_out"].view(-1, 1, 1)

    def summed(outputs: Tensor) -> Tensor:
        return factor * torch.einsum("kpe,kpen->kpn", gated.weights, outputs)

    if options.expert_matrices == 1 and options.activation != "linear":
        given = activated(options.activation, expert)
        parts = {"A1": summed(given.start)}
        learned = summed(given.change)
    else:
        parts = {name: summed(piece) for name, piece in _parts(expert).items()}
        learned = parts["A2"] + parts["A3"] + parts["D"]
    if hidden is not None and options.activation == "linear":
        # A2.1 and A2.2 of MSSP pass through W30: of W20 dh1 and of dW2 h1_0.
        w30 = weights.initial["expert_out"][block]
        for name, piece in (("A2.1", hidden.propagating), ("A2.2", hidden.effective)):
            parts[name] = summed(per_expert(ONE, w30, piece))
    start = parts["A1"] if first is None else first.aggregate.start
    # The sum moves by its own pieces, and by its initial piece under the current gates.
    moved = torch.zeros_like(start) if first is None else learned + (parts["A1"] - start)
    return BlockForward(
        h=h,
        psi=psi,
        logits=logits,
        gated=gated,
        phi_change=torch.zeros_like(gated.weights) if first is None else gated.weights - first.gated.weights,
        hidden=hidden,
        read=read,
        expert=expert,
        given=given,
        aggregate=Moved(start=start, change=moved),
        parts=parts,
    )


def added(one: Moved, other: Moved) -> Moved:
    """Return the sum of two features."""
    return Moved(start=one.start + other.start, change=one.change + other.change)


def activated(kind: str, pieces: Pieces) -> Moved:
    """Return the activation of a map, before training and its change."""
    if kind == "linear":
        return Moved(start=pieces.init, change=pieces.change)
    # Contiguous, as the total is: the bits of an activation depend on the layout.
    start = activate(kind, pieces.init.contiguous())  # type: ignore[arg-type]
    return Moved(start=start, change=activate(kind, pieces.total.contiguous()) - start)  # type: ignore[arg-type]


def per_expert(product: str, w: Tensor, x: Tensor) -> Tensor:
    """Return the product of every expert's matrix with x [K, P, E, I], or with x [K, P, 1, I] that all of them read."""
    if x.shape[2] == 1 and w.shape[1] != 1:
        left, right = product.split("->")
        w_at, x_at = left.split(",")
        return torch.einsum(f"{w_at},{x_at.replace('e', '')}->{right}", w, x[:, :, 0])
    return torch.einsum(product, w, x)


def _parts(expert: Pieces) -> dict[str, Tensor]:
    return {"A1": expert.init, "A2": expert.propagating, "A3": expert.effective, "D": expert.cross}


def _map(model: MLPStack, weights: Split, name: str, role: str, x: Moved, block: int = 0) -> Pieces:
    """Return the pieces of a map that is not split by expert: W [K, I, O] on inputs [K, P, I]."""
    scale = model.forward[role].view(-1, 1, 1)
    return _pieces(weights.both(name, block), x, lambda w, inputs: scale * torch.bmm(inputs, w))


def _experts(pair: tuple[Tensor, Tensor], x: Moved, product: str) -> Pieces:
    """Return the pieces of a map of every expert: W [K, E, H, N] on inputs [K, P, E or 1, I]."""
    return _pieces(pair, x, lambda w, inputs: per_expert(product, w, inputs))


def _pieces(pair: tuple[Tensor, Tensor], x: Moved, product: Callable[[Tensor, Tensor], Tensor]) -> Pieces:
    """Return the four pieces. Both inputs are multiplied at once, so that each matrix is read from memory once."""
    inputs = torch.cat((x.start, x.change), dim=1)
    init, propagating = product(pair[0], inputs).chunk(2, dim=1)
    effective, cross = product(pair[1], inputs).chunk(2, dim=1)
    return Pieces(init=init, propagating=propagating, effective=effective, cross=cross)
