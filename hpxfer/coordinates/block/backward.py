"""The backward pass of the block, split as in MSSP App. J: by the matrices that a gradient passed through.

With the upstream gradient W4 and u_i = W3_i^T W4: df/dphi_i = c u_i.a_i, df/dz_i = c phi_i act'(z_i) u_i, and
df/dh1 = sum_i W2_i^T df/dz_i + Q^T df/dpsi. A matrix is split into its initial value (0) and its update (d). The piece
`W30 dW4` passed through the initial W3 and the update of W4.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hpxfer.coordinates.block.forward import Forward, act_slope, gate_gradient
from hpxfer.coordinates.block.weights import Rules, Weights
from hpxfer.scaling.claims.block import Block

START, UPDATE = "0", "d"
# The names in MSSP J for a gradient through (W2, W3). The suffix .1 is for W40, .2 for dW4.
WAYS = {(START, START): "A4", (START, UPDATE): "A5", (UPDATE, START): "A6", (UPDATE, UPDATE): "E"}
READOUT_SUFFIX = {START: ".1", UPDATE: ".2"}


def name_of(role: str, which: str) -> str:
    """Return the name in the papers of a matrix or of its update, e.g. `W30` or `dW3`."""
    matrix = {"router": "Q", "expert_in": "W2", "expert_out": "W3", "readout": "W4"}[role]
    return f"{matrix}0" if which == START else f"d{matrix}"


@dataclass(frozen=True, kw_only=True)
class Backward:
    """Gradients of f by every activation. The values of a dictionary add up to the whole gradient."""

    by_h3: dict[str, Tensor]  # w4 -> [K, N], the same for every sample
    by_expert: Tensor  # h3_i, [K, P, E, N]
    by_phi: dict[tuple[str, str], Tensor]  # (w3, w4) -> [K, P, E]
    by_read: dict[tuple[str, str], Tensor]  # (w3, w4) -> z_i, or the expert's own input: [K, P, E, H]
    by_psi: dict[tuple[str, str], Tensor]  # (w3, w4) -> logits, [K, P, E]
    by_h1_experts: dict[tuple[str, str, str], Tensor]  # (w2, w3, w4) -> [K, P, N]; w2 is "0" with one matrix
    by_h1_router: dict[tuple[str, str, str], Tensor]  # (q, w3, w4) -> [K, P, N]

    @property
    def by_h1(self) -> Tensor:
        return total(self.by_h1_experts) + total(self.by_h1_router)


def total(pieces: dict[tuple[str, str], Tensor] | dict[tuple[str, str, str], Tensor] | dict[str, Tensor]) -> Tensor:
    """Return the sum of the pieces."""
    return torch.stack(list(pieces.values())).sum(0)


def backward(weights: Weights, rule: Rules, block: Block, fwd: Forward) -> Backward:
    """Return the gradients of f by all activations at the current weights."""
    scale, readout = rule.forward("expert_out"), rule.forward("readout")
    by_h3 = {which: readout * w for which, w in zip((START, UPDATE), weights.both("readout"), strict=True)}
    upstreams = torch.stack(list(by_h3.values()), dim=1)[:, None]  # [K, 1, 2, N]
    reads = fwd.read[0] + fwd.read[1]
    slope = act_slope(fwd.hidden.total, block) if fwd.hidden is not None else torch.ones_like(reads)
    by_phi, by_read, by_psi = {}, {}, {}
    for which, w3 in zip((START, UPDATE), weights.both("expert_out"), strict=True):
        for last, u in zip(by_h3, (scale * (upstreams @ w3))[:, None].unbind(3), strict=True):
            by_phi[which, last] = (u * reads).sum(-1)
            by_read[which, last] = fwd.phi[..., None] * u * slope
            by_psi[which, last] = gate_gradient(fwd, by_phi[which, last], block, rule)
    return Backward(
        by_h3=by_h3,
        by_expert=scale * fwd.phi[..., None] * total(by_h3)[:, None, None],
        by_phi=by_phi,
        by_read=by_read,
        by_psi=by_psi,
        by_h1_experts=_to_h1_experts(weights, rule, by_read),
        by_h1_router=_to_h1_router(weights, rule, by_psi),
    )


def _to_h1_experts(
    weights: Weights, rule: Rules, by_read: dict[tuple[str, str], Tensor]
) -> dict[tuple[str, str, str], Tensor]:
    if "expert_in" not in weights.initial:
        return {(START, *key): piece.sum(2) for key, piece in by_read.items()}
    return _through(weights, rule, "expert_in", by_read, "kehn,kpeh->kpn")


def _to_h1_router(
    weights: Weights, rule: Rules, by_psi: dict[tuple[str, str], Tensor]
) -> dict[tuple[str, str, str], Tensor]:
    return _through(weights, rule, "router", by_psi, "ken,kpe->kpn")


def _through(
    weights: Weights, rule: Rules, role: str, pieces: dict[tuple[str, str], Tensor], product: str
) -> dict[tuple[str, str, str], Tensor]:
    """Return the pieces multiplied by the transpose of the role's initial matrix, and by that of its update."""
    columns = torch.cat(list(pieces.values()), dim=1)
    out = {}
    for first, w in zip((START, UPDATE), weights.both(role), strict=True):
        parts = (rule.forward(role) * torch.einsum(product, w, columns)).chunk(len(pieces), dim=1)
        out.update({(first, *key): part for key, part in zip(pieces, parts, strict=True)})
    return out


def gradients(
    rule: Rules, block: Block, fwd: Forward, back: Backward, x: Tensor, y: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """Return role -> gradient of the loss by the weight, and chi = dL/df [K, P] of every sample.

    The loss is the mean over samples of log(1 + exp(-y f)). Its chi stays of order 1, as the papers assume. The chi
    of a squared error would cross zero within a few steps, and all gradients with it.
    """
    chi = -y * torch.sigmoid(-y * fwd.f.total)
    by_f = chi / y.shape[0]
    h1 = fwd.h1.total
    reads = fwd.read[0] + fwd.read[1]
    passed = fwd.phi * by_f[..., None] * rule.forward("expert_out")
    spread = reads.expand(-1, -1, fwd.phi.shape[2], -1)
    by_psi = total(back.by_psi) * by_f[..., None]
    out = {
        "embedding": rule.forward("embedding") * torch.einsum("kp,kpn,pd->knd", by_f, back.by_h1, x),
        "router": rule.forward("router") * torch.einsum("kpe,kpn->ken", by_psi, h1),
        "expert_out": total(back.by_h3)[:, None, :, None] * torch.einsum("kpe,kpeh->keh", passed, spread)[:, :, None],
        "readout": rule.forward("readout") * torch.einsum("kp,kpn->kn", by_f, fwd.aggregate.total),
    }
    if block.experts == "two":
        by_hidden = total(back.by_read) * by_f[..., None, None]
        out["expert_in"] = rule.forward("expert_in") * torch.einsum("kpeh,kpn->kehn", by_hidden, h1)
    return out, chi
