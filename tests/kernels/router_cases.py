"""Inputs of the router, and what the plainest code makes of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from triton_cases import integers, normal

from hpxfer.kernels.backend import Backend
from hpxfer.kernels.norm import EPS, Kind
from hpxfer.kernels.router import SCORES, Routed, Score, router
from hpxfer.kernels.routing import BY_INDEX, choose_experts

NAMES = ("x", "y", "w", "gain", "bias", "noise")
OUTPUTS = ("stream", "h", "logits")


@dataclass(frozen=True, kw_only=True)
class RouterCase:
    """One call of the router. `given` are its tensors by NAMES."""

    given: dict[str, Tensor]
    balance: Tensor
    scale: Tensor
    grads: tuple[Tensor, ...]  # of OUTPUTS
    ties: Tensor | None = None
    score: Score | None = "sigmoid"
    num_active: int = 1
    num_groups: int = 1
    kind: Kind = "layernorm"
    left_out: frozenset[str] = field(default_factory=frozenset)

    def leaves(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        return {name: tensor.detach().to(dtype or tensor.dtype).requires_grad_() for name, tensor in self.given.items()}

    def run(self, backend: Backend) -> tuple[Routed, dict[str, Tensor]]:
        """Return what the router gives, and the gradients by name."""
        leaves = self.leaves()
        renamed = {"gain": "gain_KD", "bias": "bias_KD", "noise": "noise_KE"}
        options: dict[str, Any] = {renamed[name]: leaf for name, leaf in leaves.items() if name in renamed}
        routed = router(
            leaves["x"],
            leaves["y"],
            leaves["w"],
            **options,
            balance_KE=self.balance,
            score=self.score,
            scale_K=self.scale,
            ties_K=self.ties,
            num_active=self.num_active,
            num_groups=self.num_groups,
            kind=self.kind,
            backend=backend,
        )
        return routed, _gradients(routed[:3], leaves, self.grads)

    def plain(self, dtype: torch.dtype | None = None) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Return the outputs and gradients of torch's plain code in `dtype`, or where None in that of the inputs."""
        leaves = self.leaves(dtype)
        stream = leaves["x"] + leaves["y"]
        plain_norm = F.layer_norm if self.kind == "layernorm" else F.rms_norm
        h = plain_norm(stream, stream.shape[-1:], eps=EPS)
        if "gain" in leaves:
            h = h * leaves["gain"].to(h.dtype).unsqueeze(1)
        if "bias" in leaves:
            h = h + leaves["bias"].to(h.dtype).unsqueeze(1)
        logits = torch.bmm(h.to(leaves["w"].dtype), leaves["w"])
        if "noise" in leaves:
            logits = logits + leaves["noise"].unsqueeze(1)
        return (stream, h, logits), _gradients((stream, h, logits), leaves, self.grads)

    def chosen(self, logits: Tensor) -> Tensor:
        """Return the choice of the torch path."""
        assert self.score is not None
        scores = SCORES[self.score](logits.detach(), self.scale.view(-1, 1, 1))
        return choose_experts(scores, self.balance, self.num_active, self.num_groups, ties_K=self.ties)

    def trial(self, k: int) -> RouterCase:
        """Return one trial alone."""
        own = slice(k, k + 1)
        return replace(
            self,
            given={name: tensor[own] for name, tensor in self.given.items()},
            balance=self.balance[own],
            scale=self.scale[own],
            grads=tuple(grad[own] for grad in self.grads),
            ties=None if self.ties is None else self.ties[own],
        )


def router_case(
    trials: int = 2,
    tokens: int = 21,
    width: int = 40,
    num_experts: int = 5,
    *,
    dtype: torch.dtype = torch.float32,
    parts: tuple[str, ...] = (),
    ties: bool = False,
    **options: Any,
) -> RouterCase:
    """Return a case with random inputs. `parts` are those of gain, bias and noise that it has."""
    small = {"gain": (trials, width), "bias": (trials, width), "noise": (trials, num_experts)}
    given = {
        "x": 3 * normal(trials, tokens, width, dtype=dtype) + 1,
        "y": normal(trials, tokens, width, seed=1, dtype=dtype),
        "w": normal(trials, width, num_experts, seed=2) / width**0.5,
        **{part: normal(*small[part], seed=3) * 0.3 + (part == "gain") for part in parts},
    }
    sizes = ((trials, tokens, width), (trials, tokens, width), (trials, tokens, num_experts))
    dtypes = (dtype, dtype, torch.float32)
    keys = torch.where(integers(2, trials, seed=4) == 0, BY_INDEX, integers(2**31 - 1, trials, seed=5)).int()
    return RouterCase(
        given=given,
        balance=normal(trials, num_experts, seed=6) * 0.1,
        scale=normal(trials, seed=7).abs() + 0.5,
        grads=tuple(normal(*size, seed=8 + i, dtype=dtypes[i]) for i, size in enumerate(sizes)),
        ties=keys if ties else None,
        **options,
    )


def _gradients(outputs: tuple[Tensor, ...], leaves: dict[str, Tensor], grads: tuple[Tensor, ...]) -> dict[str, Tensor]:
    given = [grad.to(output.dtype) for grad, output in zip(grads, outputs, strict=True)]
    return dict(zip(leaves, torch.autograd.grad(outputs, list(leaves.values()), given), strict=True))
