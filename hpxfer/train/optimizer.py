"""StackOptimizer: one optimizer step of a stack. Every trial and role has its own LR, weight decay, eps and betas.

    p <- (1 - lr * weight decay) * p - update          `hpxfer.train.optimizers` holds the update rules

Only exactly rounded operations (+, -, *, /, sqrt) touch the parameters. A trial's bits therefore do not depend on where
its elements fall in a vector register, that is, on the stack. On a CPU the work goes block by block to stay in the
cache, and where no trial of a role has weight decay, its factor of 1 is left out. With Triton kernels a block is a
whole copy of a parameter. The rule's kernel updates it in one pass, or `update` does if the rule has no kernel. Muon
takes whole matrices: batched products, whose bits do not depend on how many matrices there are.

Letters: R roles, K trials.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.sums import squares
from hpxfer.model.flat import FlatLayout, Weights
from hpxfer.scaling.evaluate import Multipliers
from hpxfer.train.optimizers import OPTIMIZERS
from hpxfer.train.ranks import ALONE, Ranks
from hpxfer.train.snapshot import Snapshot, copy_flat_trials, copy_trials


def sums_of_squares(weights: Weights, dtype: torch.dtype, ranks: Ranks = ALONE) -> dict[str, Tensor]:
    """Return name -> [K] sum of squares over all copies of a parameter. Of several ranks, each has some of the copies.

    Each copy is reduced by itself: one reduction over copies and elements at once would order its additions by K.
    """
    parts = iter(
        joined_sums(
            [copy.flatten(1).to(dtype).square().sum(-1) for copies in weights.values() for copy in copies], ranks
        )
    )
    return {name: functools.reduce(operator.add, [next(parts) for _ in copies]) for name, copies in weights.items()}


def joined_sums(parts: Sequence[Tensor], ranks: Ranks) -> list[Tensor]:
    """Return [K] of every copy, where an empty copy has zeros here and its sum on the rank that owns it.

    Adding zeros is exact in any order, so the bits are those of one process.
    """
    if ranks.world == 1:
        return list(parts)
    return list(ranks.sum_(torch.stack(list(parts))).unbind(0))


# Elements per block with torch kernels. Larger blocks leave the cache, smaller ones need more calls (about 30 us per
# block). Time of an update over that with 2**19, stacks of 16, one AMD EPYC core, 2026-11: 1.05 to 1.35 with 2**17 and
# 0.98 to 1.05 with 2**20 (GPT at widths 64 to 256 with Adam, MLP mixture at width 128 with SGD).
BLOCK_ELEMENTS = 2**19


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some trials and elements of one copy of a parameter: views of the flat storage, [trials, elements]."""

    name: str
    layer: int
    trials: slice
    elements: slice | None  # None: all elements of all trials
    parameters: Tensor
    moments: tuple[Tensor, ...]
    buffer: Tensor  # for the update; empty where a kernel needs none


class StackOptimizer:
    """The optimizer of one stack. `step` updates the flat parameter vector in place.

    `alive` [K] bool says which trials it updates. The others keep their exact bits, whatever their gradients hold.
    Call `set_hps` and `reset` before the first step. `has_momentum` says whether a trial has momentum. Of several
    ranks, each updates its own shard of the vector, and has gradients and moments of it alone.
    """

    def __init__(
        self,
        layout: FlatLayout,
        flat: Tensor,
        name: str,
        backend: Backend = TORCH,
        *,
        has_momentum: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        self._ranks = ranks
        low, high = ranks.bounds(layout)[ranks.rank : ranks.rank + 2]
        self._low, shard = low, flat[low:high]
        self._rule, self._layout, self._backend = OPTIMIZERS.get(name), layout, backend
        # Of what is updated as matrices: name -> the parameter, and what the rule needs to know of it.
        matrices = self._rule.matrices
        self._matrices = {
            spec.name: (spec, matrices.scaled(spec))
            for spec in layout.parameters
            if matrices is not None and spec.role in matrices.roles
        }
        self._roles = sorted({spec.role for spec in layout.parameters})
        self._role_index = {spec.name: self._roles.index(spec.role) for spec in layout.parameters}
        size, device = (len(self._roles), layout.num_trials), flat.device
        self.alive = torch.ones(layout.num_trials, dtype=torch.bool, device=device)
        # float64 until the factor of the step is applied.
        self._lr, self._weight_decay = (torch.zeros(size, dtype=torch.float64, device=device) for _ in range(2))
        self._eps = torch.zeros(*size, 1, device=device)
        self._betas = torch.zeros(2, layout.num_trials, dtype=torch.float64, device=device)
        self._beta_columns = torch.zeros(2, layout.num_trials, 1, device=device)
        self._momentum = torch.zeros(layout.num_trials, 1, device=device)
        self._decays: list[bool] = []  # by role: whether a trial has weight decay
        # Multiplied up step by step: pow may round by the position in a vector register.
        self._powers = torch.ones_like(self._betas)
        self._moments = tuple(torch.zeros_like(shard) for _ in range(self._rule.moments_of(has_momentum)))
        self._kernel = self._rule.kernel if backend.is_triton else None
        limit = flat.numel() if backend.is_triton else BLOCK_ELEMENTS
        parameters, *moments = (layout.part(vector, low) for vector in (shard, *self._moments))
        buffered = {name for name in parameters if self._kernel is None or name in self._matrices}
        self._blocks = _cut_blocks(parameters, moments, limit, buffered=buffered, whole=set(self._matrices))

    def set_hps(
        self,
        betas: Sequence[tuple[float, float]],
        resolved: Sequence[Mapping[str, Multipliers]],
        momentum: Sequence[float] = (),
    ) -> None:
        """Set the HPs of every trial, in place. Without `momentum` no trial has any."""
        rows = [[roles[role] for roles in resolved] for role in self._roles]
        for tensor, name in ((self._lr, "lr"), (self._weight_decay, "weight_decay"), (self._eps, "eps")):
            values = torch.tensor([[getattr(trial, name) for trial in row] for row in rows], dtype=torch.float64)
            tensor.copy_(values.view_as(tensor))
        self._betas.copy_(torch.tensor(betas, dtype=torch.float64).T)
        self._beta_columns.copy_(self._betas.unsqueeze(-1))
        self._momentum.copy_(torch.tensor(momentum or [0.0] * len(betas), dtype=torch.float64).unsqueeze(-1))
        self._decays = [any(trial.weight_decay for trial in row) for row in rows]

    def reset(self) -> None:
        """Go back to before the first step."""
        self.alive.fill_(True)
        self._powers.fill_(1.0)
        for moment in self._moments:
            moment.zero_()

    @property
    def powers(self) -> Tensor:
        """The betas to the number of steps taken, [2, K] float64."""
        return self._powers

    @property
    def moments(self) -> tuple[Tensor, ...]:
        """The moments of this rank's shard, in the layout of the parameters."""
        return self._moments

    def resume(self, snapshot: Snapshot, rows: Sequence[int]) -> None:
        """Continue from the trials of a snapshot that `rows` names. The HPs stay those of this optimizer.

        A stack without momentum keeps no moments, although it may go on from a stack in which other trials had some.
        """
        copy_trials(snapshot.alive, 0, rows, self.alive)
        copy_trials(snapshot.powers, 1, rows, self._powers)
        for own, stored in zip(self._moments, snapshot.moments, strict=bool(self._moments)):
            copy_flat_trials(snapshot.layout, stored, self._layout.part(own, self._low), rows)

    def step(self, grads: Weights, factor: float | Tensor, clip: float | None) -> None:
        """Update the parameters from `grads` at `factor` times the peak LR. Clip each trial's whole gradient norm.

        `grads` is used up: clipping scales it in place.
        """
        if clip is not None:
            clip_gradients(grads, clip, self._backend, self._ranks)
        lr_RK = self._lr * factor
        keep_RK = torch.where(self.alive, 1 - lr_RK * self._weight_decay, 1.0).float()
        numbers = self._rule.numbers(lr_RK, self._betas, self._powers.mul_(self._betas))
        numbers = {name: value.float().unsqueeze(-1) for name, value in {**numbers, "peak_lr": lr_RK}.items()}
        # Reading a flag on a CPU costs nothing, and spares a pass. With Triton kernels the step may be captured.
        dead = None if not self._backend.is_triton and bool(self.alive.all()) else (~self.alive).unsqueeze(1)
        of_roles = [(self._numbers_at(numbers, row), keep_RK[row].unsqueeze(-1)) for row in range(len(self._roles))]
        for block in self._blocks:
            row, g = self._role_index[block.name], grads[block.name][block.layer].flatten(1)
            at, keep = of_roles[row]
            if self._kernel is None or block.name in self._matrices:
                self._update_block(block, g, at, keep, dead)
            else:
                self._kernel(block.parameters, g, block.moments, at, keep_RK[row], self.alive)

    def eps(self) -> dict[str, Tensor]:
        """Return role -> eps [K] float32, nothing where the rule reads none."""
        if "eps" not in self._rule.hps:
            return {}
        return {role: self._eps[row].squeeze(-1) for row, role in enumerate(self._roles) if role in self._with_eps}

    @property
    def _with_eps(self) -> list[str]:
        """The roles whose update has an eps: those that are not updated as matrices."""
        matrices = {spec.role for spec, _ in self._matrices.values()}
        return [role for role in self._roles if role not in matrices]

    def below_eps(self) -> dict[str, Tensor]:
        """Return role -> the share [K] float64 of its elements whose gradients are below eps, after a step.

        It is that of all parameters in one process, and nothing where the rule reads no eps.
        """
        if self._rule.below_eps is None:
            return {}
        numbers = self._rule.numbers(self._lr, self._betas, self._powers)
        numbers = {name: value.float().unsqueeze(-1) for name, value in numbers.items()}
        counts = dict.fromkeys(self._with_eps, 0)
        below = {role: torch.zeros_like(self.alive, dtype=torch.int64) for role in counts}
        moments = [self._layout.weights(moment) for moment in self._moments]
        for spec in self._layout.parameters:
            if spec.role not in counts:
                continue
            at = self._numbers_at(numbers, self._role_index[spec.name])
            counts[spec.role] += spec.numel * spec.layers
            for copy in range(spec.layers):
                of_copy = tuple(moment[spec.name][copy].flatten(1) for moment in moments)
                below[spec.role] += self._rule.below_eps(of_copy, at).sum(1)
        return {role: below[role].double() / counts[role] for role in counts}

    def _numbers_at(self, numbers: Mapping[str, Tensor], row: int) -> dict[str, Tensor]:
        """Return the numbers of one role, [K, 1] float32 each."""
        beta1, beta2 = self._beta_columns
        shared = {"eps": self._eps[row], "beta1": beta1, "beta2": beta2, "momentum": self._momentum}
        return {**shared, **{name: value[row] if value.dim() == 3 else value for name, value in numbers.items()}}

    def _update_block(
        self, block: Block, g: Tensor, at: Mapping[str, Tensor], keep: Tensor, dead: Tensor | None
    ) -> None:
        """Update one block. The update of a dead trial is an exact zero, and its parameters are multiplied by 1.

        A captured step is replayed for other stacks, so with Triton kernels its operations depend on no HP.
        """
        out = block.buffer
        if block.elements is not None:
            g = g[block.trials, block.elements]
        if len(keep) != len(g):
            keep, at = keep[block.trials], {name: value[block.trials] for name, value in at.items()}
        if self._rule.matrices is not None and block.name in self._matrices:
            spec, known = self._matrices[block.name]
            self._rule.matrices.update(g, spec, block.moments[0], at, known, out)
        else:
            self._rule.update(g, block.moments, at, out)
        if dead is not None:
            out.masked_fill_(dead[block.trials], 0.0)
        if self._backend.is_triton or self._decays[self._role_index[block.name]]:
            block.parameters.mul_(keep)
        block.parameters.sub_(out)


def clip_gradients(grads: Weights, limit: float, backend: Backend = TORCH, ranks: Ranks = ALONE) -> None:
    """Scale each trial's gradient in place, so that its L2 norm over all parameters is at most `limit`."""
    if backend.is_triton:
        flat = [copy.flatten(1) for copies in grads.values() for copy in copies]
        parts = joined_sums([squares(rows) if rows.numel() else rows.sum(1) for rows in flat], ranks)
    else:
        parts = list(sums_of_squares(grads, torch.float32, ranks).values())
    norm = functools.reduce(operator.add, parts).sqrt()
    scale = (limit / norm).clamp(max=1.0).unsqueeze(1)
    for copies in grads.values():
        for copy in copies:
            copy.flatten(1).mul_(scale)


def _cut_blocks(
    weights: Weights,
    moment_views: Sequence[Weights],
    limit: int,
    *,
    buffered: Collection[str],
    whole: Collection[str],
) -> list[Block]:
    """Return blocks of at most `limit` elements: several whole trials, or pieces of one trial.

    Of the names in `whole` no trial is cut. Those in `buffered` share a buffer of the size of the largest block. Empty
    copies have no block.
    """
    limits = {name: max(limit, copies[0][:1].numel() if name in whole else 0) for name, copies in weights.items()}
    sizes = [min(limits[name], max(copy.numel() for copy in weights[name])) for name in buffered]
    buffer = next(iter(weights.values()))[0].new_empty(max(sizes, default=0))
    out = []
    for name, copies in weights.items():
        limit = limits[name]
        for layer, copy in enumerate(copies):
            rows = copy.flatten(1)
            if not rows.numel():
                continue
            height = max(1, limit // rows.shape[1])
            for row in range(0, rows.shape[0], height):
                for low in range(0, rows.shape[1], limit):
                    span = slice(row, row + height), slice(low, low + limit)
                    parameters = rows[span]
                    is_all = parameters.shape == rows.shape
                    own_buffer = buffer[: parameters.numel()].view(parameters.shape) if name in buffered else buffer[:0]
                    out.append(
                        Block(
                            name=name,
                            layer=layer,
                            trials=span[0],
                            elements=None if is_all else span[1],
                            parameters=parameters,
                            moments=tuple(views[name][layer].flatten(1)[span] for views in moment_views),
                            buffer=own_buffer,
                        )
                    )
    return out
