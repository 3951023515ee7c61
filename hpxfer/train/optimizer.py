"""AdamW and SGD over a stack: every trial and role has its own LR, weight decay, eps and betas.

Only exactly rounded operations (+, -, *, /, sqrt) touch the parameters, so that a trial's bits do not depend on where
its elements fall in a vector register, i.e. on the stack. Work goes block by block to stay in the cache.

    m <- beta1 m + g          v <- beta2 v + g^2          kept without their factors 1 - beta: two passes less
    p <- (1 - lr wd) p - lr (1 - beta1)/(1 - beta1^t) * m / (sqrt(v) * sqrt((1 - beta2)/(1 - beta2^t)) + eps)   (AdamW)
    p <- (1 - lr wd) p - lr g                                                                                   (SGD)

The decay is decoupled; where no trial of a role has any, its factor of 1 is left out.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hpxfer.kernels.adamw import adamw_, sgd_
from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.sums import squares
from hpxfer.model.flat import Flat, Weights, sums_of_squares
from hpxfer.scaling.evaluate import Multipliers
from hpxfer.train.snapshot import Snapshot, keep, keep_flat

# Elements a block: more cost more cache, less more calls (about 30 us a block; 2**15 took 1.3 times as long at width
# 256, two AMD EPYC cores, 2026-11).
CPU_BLOCK_ELEMENTS = 2**17
# A GPU wants few launches; the block bounds the buffer (derived, unmeasured here).
GPU_BLOCK_ELEMENTS = 2**26


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some trials and elements of one layer of a tensor: views of the flat storage, [trials, elements]."""

    tensor: str
    layer: int
    trials: slice
    elements: slice | None  # None for all elements of all trials
    parameters: Tensor
    moments: tuple[Tensor, ...]  # m and v; none for SGD
    buffer: Tensor


@dataclass(frozen=True, kw_only=True)
class Coefficients:
    """One step's numbers by role and trial, float32 [R, K, 1] or [K, 1], on the device."""

    lr: Tensor  # with the first moment's factor and bias correction in it
    keep: Tensor  # what weight decay leaves of a parameter
    scale: Tensor  # the second moment's


class StackOptimizer:
    """The optimizer of one stack. `step` updates the flat parameter vector in place.

    `alive` [K] bool says which trials it updates; the others keep their exact bits, whatever their gradients hold.
    Give it HPs with `take` and moments with `start`.
    """

    def __init__(self, layout: Flat, flat: Tensor, name: str, backend: Backend = TORCH) -> None:
        self._adam, self._layout, self._backend = name != "sgd", layout, backend
        self._roles = sorted({tensor.role for tensor in layout.tensors})
        self._row = {tensor.name: self._roles.index(tensor.role) for tensor in layout.tensors}
        size, device = (len(self._roles), layout.num_trials), flat.device
        self.alive = torch.ones(layout.num_trials, dtype=torch.bool, device=device)
        # float64 until a step's factor is in.
        self._lr, self._weight_decay = (torch.zeros(size, dtype=torch.float64, device=device) for _ in range(2))
        self._eps = torch.zeros(*size, 1, device=device)
        self._betas = torch.zeros(2, layout.num_trials, dtype=torch.float64, device=device)
        self._beta_columns = torch.zeros(2, layout.num_trials, 1, device=device)
        self._ones = torch.ones(layout.num_trials, device=device)
        self._decays: list[bool] = []  # by role: whether a trial has weight decay
        self._powers = torch.ones_like(self._betas)  # beta^t, multiplied up: pow may round by the place in a register
        self._moments = tuple(torch.zeros_like(flat) for _ in range(2)) if self._adam else ()
        self._pieces = (
            _whole(layout, flat, self._moments) if backend.is_triton else _blocks(layout, flat, self._moments)
        )

    def take(self, betas: Sequence[tuple[float, float]], resolved: Sequence[Mapping[str, Multipliers]]) -> None:
        """Set the HPs of every trial, in place."""
        rows = [[one[role] for one in resolved] for role in self._roles]
        for mine, name in ((self._lr, "lr"), (self._weight_decay, "weight_decay"), (self._eps, "eps")):
            values = torch.tensor([[getattr(one, name) for one in row] for row in rows], dtype=torch.float64)
            mine.copy_(values.view_as(mine))
        self._betas.copy_(torch.tensor(betas, dtype=torch.float64).T)
        self._beta_columns.copy_(self._betas.unsqueeze(-1))
        self._decays = [any(one.weight_decay for one in row) for row in rows]

    def start(self) -> None:
        """Go back to before the first step."""
        self.alive.fill_(True)
        self._powers.fill_(1.0)
        for one in self._moments:
            one.zero_()

    @property
    def powers(self) -> Tensor:
        """The betas to the number of steps taken, [2, K] float64."""
        return self._powers

    @property
    def moments(self) -> tuple[Tensor, ...]:
        """The vectors m and v in the layout of the parameters; none for SGD."""
        return self._moments

    def follow(self, other: Snapshot, kept: Sequence[int]) -> None:
        """Go on where `other` stands, with those of its trials that are kept; the HPs are this one's own."""
        keep(other.alive, 0, kept, self.alive)
        keep(other.powers, 1, kept, self._powers)
        for mine, its in zip(self._moments, other.moments, strict=True):
            keep_flat(other.layout, its, self._layout, mine, kept)

    def step(self, grads: Weights, factor: float | Tensor, clip: float | None) -> None:
        """Update the parameters from `grads` at `factor` times the peak LR; clip each trial's whole gradient norm.

        `grads` is used up: clipping scales it in place.
        """
        if clip is not None:
            clip_gradients(grads, clip, self._backend)
        at = self._coefficients(factor)
        if self._backend.is_triton:
            for piece in self._pieces:
                self._by_kernel(piece, grads[piece.tensor][piece.layer].flatten(1), at)
            return
        # A look at a CPU's memory costs nothing; a GPU masks always.
        dead = None if not self.alive.is_cuda and bool(self.alive.all()) else (~self.alive).unsqueeze(1)
        for piece in self._pieces:
            self._by_block(piece, grads[piece.tensor][piece.layer].flatten(1), at, dead)

    def _coefficients(self, factor: float | Tensor) -> Coefficients:
        lr = self._lr * factor
        keep = torch.where(self.alive, 1 - lr * self._weight_decay, 1.0)
        first, second = self._powers.mul_(self._betas)
        if self._adam:
            lr = lr * (1 - self._betas[0]) / (1 - first)
        scale = ((1 - self._betas[1]) / (1 - second)).sqrt()
        return Coefficients(
            lr=lr.float().unsqueeze(-1), keep=keep.float().unsqueeze(-1), scale=scale.float().unsqueeze(-1)
        )

    def _by_block(self, block: Block, g: Tensor, at: Coefficients, dead: Tensor | None) -> None:
        """Update one block; its trials' masked updates are exact zeros."""
        row, out = self._row[block.tensor], block.buffer
        if block.elements is not None:
            g = g[block.trials, block.elements]
        lr, keep, eps = at.lr[row], at.keep[row], self._eps[row]
        scale, (beta1, beta2) = at.scale, self._beta_columns
        if len(lr) != len(g):
            lr, keep, eps, scale, beta1, beta2 = (one[block.trials] for one in (lr, keep, eps, scale, beta1, beta2))
        if self._adam:
            m, v = block.moments
            m.mul_(beta1).add_(g)
            torch.mul(g, g, out=out)
            v.mul_(beta2).add_(out)
            torch.sqrt(v, out=out).mul_(scale).add_(eps)
            torch.div(m, out, out=out).mul_(lr)
        else:
            torch.mul(g, lr, out=out)
        if dead is not None:
            out.masked_fill_(dead[block.trials], 0.0)
        if self._decays[row]:
            block.parameters.mul_(keep)
        block.parameters.sub_(out)

    def _by_kernel(self, piece: Block, g: Tensor, at: Coefficients) -> None:
        """Update one layer of a tensor in one pass."""
        row = self._row[piece.tensor]
        lr_K, keep_K = at.lr[row].squeeze(-1), at.keep[row].squeeze(-1)
        if not self._adam:
            sgd_(piece.parameters, g, lr_K=lr_K, keep_K=keep_K, alive_K=self.alive, backend=self._backend)
            return
        beta1_K, beta2_K = self._beta_columns.squeeze(-1)
        adamw_(
            piece.parameters,
            g,
            *piece.moments,
            lr_K=lr_K,
            keep_K=keep_K,
            eps_K=self._eps[row].squeeze(-1),
            beta1_K=beta1_K,
            one_minus_beta1_K=self._ones,
            beta2_K=beta2_K,
            one_minus_beta2_K=self._ones,
            scale_K=at.scale.squeeze(-1),
            alive_K=self.alive,
            backend=self._backend,
        )


def clip_gradients(grads: Weights, limit: float, backend: Backend = TORCH) -> None:
    """Scale each trial's gradient in place so that its L2 norm over all tensors is at most `limit`."""
    if backend.is_triton:
        parts = [squares(copy.flatten(1), backend) for copies in grads.values() for copy in copies]
    else:
        parts = list(sums_of_squares(grads, torch.float32).values())
    norm = functools.reduce(operator.add, parts).sqrt()
    scale = (limit / norm).clamp(max=1.0).unsqueeze(1)
    for copies in grads.values():
        for copy in copies:
            copy.flatten(1).mul_(scale)


def _whole(layout: Flat, flat: Tensor, moments: Sequence[Tensor]) -> list[Block]:
    """Return a block for each layer of a tensor, without a buffer: a kernel needs none."""
    moment_views = [layout.weights(one) for one in moments]
    return [
        Block(
            tensor=name,
            layer=layer,
            trials=slice(None),
            elements=None,
            parameters=copy.flatten(1),
            moments=tuple(one[name][layer].flatten(1) for one in moment_views),
            buffer=flat[:0],
        )
        for name, copies in layout.weights(flat).items()
        for layer, copy in enumerate(copies)
    ]


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
                    whole = parameters.shape == rows.shape
                    out.append(
                        Block(
                            tensor=name,
                            layer=layer,
                            trials=span[0],
                            elements=None if whole else span[1],
                            parameters=parameters,
                            moments=tuple(one[name][layer].flatten(1)[span] for one in moment_views),
                            buffer=buffer[: parameters.numel()].view(parameters.shape),
                        )
                    )
    return out
