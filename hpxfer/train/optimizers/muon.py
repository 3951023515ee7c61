"""Muon: matrices step along the nearest semi-orthogonal matrix to their momentum, all other tensors by AdamW.

m <- momentum m + (1 - momentum) g        u = (1 - momentum) g + momentum m          (Nesterov; KellerJordan/Muon)
update = lr s X(u)                        X by five Newton-Schulz steps, see `hpxfer.kernels.orthogonal`

The scale s is a function of the matrix's sizes: see `hpxfer.scaling.muon`. Matrices are orthogonalized one by one: each
expert's, and each head's where the option `heads` says so. A matrix whose whole gradient is exactly zero, such as that
of an expert without tokens, takes no step and keeps its momentum. Its update would have full size however small the
momentum has become, where Adam's m / sqrt(v) fades.

Letters: K trials, N matrices of a trial, I features in, O features out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hpxfer.errors import HpxferError
from hpxfer.scaling.muon import NAME, Muon
from hpxfer.train.optimizers.adamw import ADAMW
from hpxfer.train.optimizers.row import MatrixRule, Numbers, Optimizer

if TYPE_CHECKING:
    from torch import Tensor

    from hpxfer.model.parameters import ParameterSpec


def muon(options: Muon) -> Optimizer:
    """Return the row of Muon with these options."""

    def scaled(spec: ParameterSpec) -> tuple[int, float]:
        """Return the heads of a parameter that are orthogonalized apart, and the scale of each matrix."""
        if len(spec.size) < 2:
            raise HpxferError(
                f"optimizer {options.label}: what has the role {spec.role} must be a matrix, got {spec.name} of size "
                f"{'x'.join(map(str, spec.size))}"
            )
        heads = spec.heads if options.heads == "split" else 1
        fan_in, fan_out = spec.size[-2:]
        if spec.role == "attn_out":
            return heads, options.factor(fan_in / heads, fan_out)
        return heads, options.factor(fan_in, fan_out / heads)

    def flops(spec: ParameterSpec) -> float:
        heads, _ = scaled(spec)
        fan_in, fan_out = spec.size[-2:]
        cut = (fan_in // heads, fan_out) if spec.role == "attn_out" else (fan_in, fan_out // heads)
        low, high = min(cut), max(cut)
        count = spec.numel * spec.layers / (low * high)
        return count * 5 * (4 * low * low * high + 2 * low**3)  # five times X X^T, A A, and the product with X

    return replace(
        ADAMW,
        name=options.label,
        column=options.label,
        hps=(*ADAMW.hps, "momentum", "adamw_lr"),
        matrices=MatrixRule(roles=options.roles, scaled=scaled, flops=flops, update=_update),
    )


def _update(g: Tensor, spec: ParameterSpec, m: Tensor, at: Numbers, scaled: tuple[int, float], out: Tensor) -> None:
    import torch

    from hpxfer.kernels.orthogonal import orthogonal

    heads, scale = scaled
    trials, (fan_in, fan_out) = len(g), spec.size[-2:]
    matrices_KNIO = trials, -1, fan_in, fan_out
    g, m, out = g.view(matrices_KNIO), m.view(matrices_KNIO), out.view(matrices_KNIO)
    lr, momentum = (at[name].view(trials, 1, 1, 1) for name in ("peak_lr", "momentum"))
    moves = (g != 0).flatten(2).any(2).view(trials, -1, 1, 1)
    fresh = g * (1 - momentum)
    m.copy_((m * momentum).add_(fresh).where(moves, m))
    u = (m * momentum).add_(fresh)
    dtype = torch.bfloat16 if u.is_cuda else torch.float32  # as references do on GPUs; the state stays float32
    x = _joined(orthogonal(_split(u, heads, spec.role), dtype), u.shape, heads, spec.role)
    out.copy_(x.mul_(lr * scale).masked_fill_(~moves, 0.0))


def _split(u_KNIO: Tensor, heads: int, role: str) -> Tensor:
    """Return the matrices as [K N heads, I, O]. The heads lie in the columns, or in the rows of `attn_out`."""
    *_, fan_in, fan_out = u_KNIO.shape
    if heads == 1 or role == "attn_out":
        return u_KNIO.reshape(-1, fan_in // heads, fan_out)
    return u_KNIO.reshape(-1, fan_in, heads, fan_out // heads).transpose(1, 2).reshape(-1, fan_in, fan_out // heads)


def _joined(x: Tensor, size: tuple[int, ...], heads: int, role: str) -> Tensor:
    """Return the matrices of `_split` as [K, N, I, O] again."""
    *_, fan_in, fan_out = size
    if heads == 1 or role == "attn_out":
        return x.reshape(size)
    return x.view(-1, heads, fan_in, fan_out // heads).transpose(1, 2).reshape(size)


MUON = muon(Muon())
assert MUON.name == NAME
