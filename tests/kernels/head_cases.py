"""Queries or keys by heads: cases, and float64 code that rotates complex numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from triton_cases import DEVICE, normal

from hpxfer.kernels.backend import Backend
from hpxfer.kernels.heads import Scope, place_heads
from hpxfer.kernels.norm import Kind
from hpxfer.kernels.rope import rotation

THETA = 100.0


@dataclass(frozen=True, kw_only=True)
class HeadCase:
    scope: Scope = "none"
    kind: Kind = "rmsnorm"
    heads: int = 2
    head_dim: int = 16
    share: float | None = 1.0  # of the features that are rotated, or no rotation
    gain: bool = True
    bias: bool = False
    eps: float = 1e-5
    num_trials: int = 2
    context: int = 24
    sequences: int = 3

    def tensors(self, dtype: torch.dtype) -> list[Tensor | None]:
        """Return x, then the gain and the bias if the case has them."""
        size = self.heads * self.head_dim
        x = normal(self.num_trials, self.context * self.sequences, size, seed=1)
        x = x * torch.linspace(0.2, 3.0, size).to(DEVICE) + 0.5
        of_norm = size if self.scope == "all" else self.head_dim
        has = self.gain and self.scope != "none", self.bias and self.scope != "none"
        gain, bias = (1 + 0.3 * normal(self.num_trials, of_norm, seed=seed) for seed in (2, 3))
        return [x.to(dtype), gain if has[0] else None, bias if has[1] else None]

    def step(self, backend: Backend, dtype: torch.dtype) -> Callable[[], tuple[Tensor, ...]]:
        """Return what computes y and the gradients of what the case has. Its inputs are made now."""
        given = [None if one is None else one.requires_grad_() for one in self.tensors(dtype)]
        x, gain, bias = given
        assert x is not None
        beside = normal(*x.shape[:2], 32, seed=5).to(dtype)
        shape = (self.num_trials * self.sequences, self.context, self.heads, self.head_dim)
        dy = normal(*shape, seed=4).to(dtype)
        turned = self.share and rotation(self.context, self.head_dim, theta=THETA, share=self.share, device=DEVICE)

        def step() -> tuple[Tensor, ...]:
            longer = torch.cat([x, beside], -1)  # x is a part of longer rows
            y = place_heads(
                longer[..., : x.shape[-1]],
                gain,
                bias,
                turned or None,
                head_dim=self.head_dim,
                context=self.context,
                scope=self.scope,
                kind=self.kind,
                eps=self.eps,
                backend=backend,
            )
            assert y.shape == shape
            return y, *torch.autograd.grad(y, [one for one in given if one is not None], dy)

        return step

    def run(self, backend: Backend, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return y and the gradients of what the case has."""
        return self.step(backend, dtype)()

    def plain(self, dtype: torch.dtype, *, sign: float = 1.0) -> tuple[Tensor, ...]:
        """Return the same in float64. A negative sign turns the other way."""
        given = [None if one is None else one.double().requires_grad_() for one in self.tensors(dtype)]
        x, gain, bias = given
        assert x is not None
        shape = (self.num_trials, self.sequences * self.context, self.heads, self.head_dim)
        flat = x if self.scope == "all" else x.view(shape)
        if self.scope != "none":
            norm = F.rms_norm if self.kind == "rmsnorm" else F.layer_norm
            flat = norm(flat, flat.shape[-1:], eps=self.eps)
            for one, join in ((gain, torch.mul), (bias, torch.add)):
                if one is not None:
                    flat = join(flat, one.view(self.num_trials, *(1,) * (flat.ndim - 2), -1))
        y = flat.reshape(-1, self.context, self.heads, self.head_dim)
        if self.share:
            half = round(self.head_dim * self.share) // 2
            steps = torch.arange(half, dtype=torch.float64, device=DEVICE) / half
            angles = torch.arange(self.context, device=DEVICE).view(-1, 1, 1) * THETA**-steps
            first, second, rest = y.split([half, half, self.head_dim - 2 * half], -1)
            turned = torch.complex(first, second) * torch.exp(sign * 1j * angles)
            y = torch.cat([turned.real, turned.imag, rest], -1)
        dy = normal(*y.shape, seed=4).double()
        return y, *torch.autograd.grad(y, [one for one in given if one is not None], dy)
