"""The backward pass of the family `mlp`, split as in MSSP App. J: by the matrices that a gradient passed through.

With the upstream gradient U of a block's sum, which is W4 in the last block, and u_i = W3_i^T U: df/dphi_i = c u_i.a_i,
df/dz_i = c phi_i act'(z_i) u_i, and df/dh1 = sum_i W2_i^T df/dz_i + Q^T df/dpsi. A matrix is split into its initial
value (0) and its update (d). The piece `W30 dW4` passed through the initial W3 and the update of W4. In the blocks
before the last, U before training and its change since take the places of W40 and dW4.

The model has several outputs, and f is one number: the output of the first class minus that of the second, of which
cross entropy of two classes is log(1 + exp(-y f)); or the first output of a squared error.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hpxfer.coordinates.mlp.forward import BlockForward, Forward, Split, per_expert
from hpxfer.model.mlp.elementwise import activate, activate_backward
from hpxfer.model.mlp.gate import gate_backward
from hpxfer.model.mlp.stack import MLPStack

START, UPDATE = "0", "d"
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
        own = _block(model, weights, block, fwd.blocks[block], upstream)
        out.append(own)
        start = own.by_h1 if first is None else first[block].by_h1
        upstream = {START: start, UPDATE: own.by_h1 - start}
    return tuple(reversed(out))


def _block(
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
