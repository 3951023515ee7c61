"""AdamW and SGD over a stack: every trial and role has its own LR, weight decay, eps and betas.

Only exactly rounded operations (+, -, *, /, sqrt) touch the parameters, so that a trial's bits do not depend on where
its elements fall in a vector register, i.e. on the stack. Work goes block by block to stay in the cache.

    m <- beta1 m + (1 - beta1) g          v <- beta2 v + (1 - beta2) g^2
    p <- (1 - lr wd) p - lr/(1 - beta1^t) * m / (sqrt(v)/sqrt(1 - beta2^t) + eps)        (AdamW, decoupled decay)
    p <- (1 - lr wd) p - lr g                                                            (SGD)
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hpxfer.model.flat import Flat, Weights, sums_of_squares
from hpxfer.scaling.evaluate import Multipliers

# Elements a block: parameters, gradient and both moments of one block fit in a core's L2 cache.
CPU_BLOCK_ELEMENTS = 2**15
# A GPU wants few launches; the block bounds the buffer (derived, unmeasured here).
GPU_BLOCK_ELEMENTS = 2**26


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some trials and elements of one layer of a tensor: views of the flat storage, [trials, elements]."""

    tensor: str
    layer: int
    trials: slice
    elements: slice
    parameters: Tensor
    moments: tuple[Tensor, ...]  # m and v; none for SGD
    buffer: Tensor


@dataclass(frozen=True, kw_only=True)
class Coefficients:
    """One step's numbers by role and trial, [R, K, 1] or [K, 1], on the device."""

    lr: Tensor  # with the first bias correction in it
    keep: Tensor  # what weight decay leaves of a parameter
    eps: Tensor
    betas: tuple[Tensor, ...]  # beta1, 1 - beta1, beta2, 1 - beta2
    scale: Tensor  # 1 / sqrt(1 - beta2^t)


class StackOptimizer:
    """The optimizer of one stack. `step` updates the flat parameter vector in place."""

    def __init__(
        self,
        layout: Flat,
        flat: Tensor,
        name: str,
        betas: Sequence[tuple[float, float]],
        resolved: Sequence[Mapping[str, Multipliers]],
    ) -> None:
        self._adam = name != "sgd"
        self._device = flat.device
        roles = sorted({tensor.role for tensor in layout.tensors})
        self._row = {tensor.name: roles.index(tensor.role) for tensor in layout.tensors}
        # [R, K], float64 until a step's factor is in.
        self._lr = torch.tensor([[one[role].lr for one in resolved] for role in roles], dtype=torch.float64)
        self._weight_decay = torch.tensor(
            [[one[role].weight_decay for one in resolved] for role in roles], dtype=torch.float64
        )
        self._eps = self._column([[one[role].eps for one in resolved] for role in roles])
        self._betas = list(betas)
        columns = zip(*((b1, 1 - b1, b2, 1 - b2) for b1, b2 in self._betas), strict=True)
        self._beta_columns = tuple(self._column(one) for one in columns)
        self._alive = torch.ones(layout.num_trials, dtype=torch.bool)
        moments = (torch.zeros_like(flat), torch.zeros_like(flat)) if self._adam else ()
        self._blocks = _blocks(layout, flat, moments)
        self._t = 0

    def freeze(self, trials: Tensor) -> None:
        """Stop updating the trials that the [K] bool mask names; the others go on untouched."""
        self._alive &= ~trials

    def step(self, grads: Weights, factor: float, clip: float | None) -> None:
        """Update the parameters from `grads` at `factor` times the peak LR; clip each trial's whole gradient norm.

        `grads` is used up: clipping scales it in place.
        """
        self._t += 1
        if clip is not None:
            clip_gradients(grads, clip)
        at = self._coefficients(factor)
        dead = None if bool(self._alive.all()) else (~self._alive).to(self._device).unsqueeze(1)
        for block in self._blocks:
            row, trials, out = self._row[block.tensor], block.trials, block.buffer
            g = grads[block.tensor][block.layer].flatten(1)[trials, block.elements]
            if self._adam:
                _adam_direction(block, g, at, row)
                out.mul_(at.lr[row, trials])
            else:
                torch.mul(g, at.lr[row, trials], out=out)
            if dead is not None:
                out.masked_fill_(dead[trials], 0.0)
            block.parameters.mul_(at.keep[row, trials]).sub_(out)

    def _coefficients(self, factor: float) -> Coefficients:
        lr = self._lr * factor
        keep = torch.where(self._alive, 1 - lr * self._weight_decay, 1.0)
        # Python's powers: a vectorized one may round differently in a register and in its remainder.
        if self._adam:
            lr = lr / torch.tensor([1 - beta1**self._t for beta1, _ in self._betas], dtype=torch.float64)
        return Coefficients(
            lr=self._column(lr),
            keep=self._column(keep),
            eps=self._eps,
            betas=self._beta_columns,
            scale=self._column([(1 - beta2**self._t) ** -0.5 for _, beta2 in self._betas]),
        )

    def _column(self, values: Tensor | Sequence[float] | Sequence[Sequence[float]]) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float64).float().unsqueeze(-1).to(self._device)


def clip_gradients(grads: Weights, limit: float) -> None:
    """Scale each trial's gradient in place so that its L2 norm over all tensors is at most `limit`."""
    norm = functools.reduce(operator.add, sums_of_squares(grads, torch.float32).values()).sqrt()
    scale = (limit / norm).clamp(max=1.0).unsqueeze(1)
    for copies in grads.values():
        for copy in copies:
            copy.flatten(1).mul_(scale)


def _adam_direction(block: Block, g: Tensor, at: Coefficients, row: int) -> None:
    """Update the moments and write m / (sqrt(v) * scale + eps) to the block's buffer."""
    out, (m, v) = block.buffer, block.moments
    beta1, one_minus_beta1, beta2, one_minus_beta2 = (one[block.trials] for one in at.betas)
    torch.mul(g, one_minus_beta1, out=out)
    m.mul_(beta1).add_(out)
    torch.mul(g, g, out=out)
    v.mul_(beta2).add_(out.mul_(one_minus_beta2))
    torch.sqrt(v, out=out)
    out.mul_(at.scale[block.trials]).add_(at.eps[row, block.trials])
    torch.div(m, out, out=out)


def _blocks(layout: Flat, flat: Tensor, moments: Sequence[Tensor]) -> list[Block]:
    """Return blocks of at most so many elements: several whole trials, or pieces of one."""
    most = GPU_BLOCK_ELEMENTS if flat.is_cuda else CPU_BLOCK_ELEMENTS
    buffer = torch.empty(min(most, flat.numel()), dtype=flat.dtype, device=flat.device)
    views, moment_views = layout.weights(flat), [layout.weights(one) for one in moments]
    out = []
    for name, copies in views.items():
        for layer, copy in enumerate(copies):
            rows = copy.flatten(1)
            height = max(1, most // rows.shape[1])
            for row in range(0, rows.shape[0], height):
                for low in range(0, rows.shape[1], most):
                    span = slice(row, row + height), slice(low, low + most)
                    parameters = rows[span]
                    out.append(
                        Block(
                            tensor=name,
                            layer=layer,
                            trials=span[0],
                            elements=span[1],
                            parameters=parameters,
                            moments=tuple(one[name][layer].flatten(1)[span] for one in moment_views),
                            buffer=buffer[: parameters.numel()].view(parameters.shape),
                        )
                    )
    return out
