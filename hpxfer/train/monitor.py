"""DivergenceMonitor: the losses of a stack, which trials are alive, and the LR factor. No step waits for the host.

    bad     a loss that is not finite, or above BLOW_UP * max(the trial's first loss, that of a model without knowledge)
    alive   until the first bad loss: the update of that step is not taken, and none after it

Letters: K trials, T tokens, N steps, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.sums import column_sums
from hpxfer.spec import guess_loss
from hpxfer.train.schedules import lr_factor
from hpxfer.train.snapshot import Snapshot, copy_trials
from hpxfer.trial import BLOW_UP, Setting


class DivergenceMonitor:
    """The losses of a stack so far and the trials that diverged. The optimizer reads `alive` [K], a shared tensor."""

    def __init__(self, setting: Setting, alive_K: Tensor, backend: Backend = TORCH) -> None:
        device = alive_K.device
        self._setting, self._backend = setting, backend
        self.alive = alive_K
        self.losses = torch.empty(setting.steps, len(alive_K), device=device)  # [N, K] float32
        self.ended = torch.empty(len(alive_K), dtype=torch.int64, device=device)  # [K] the first bad step, or N
        self._limit = torch.empty(len(alive_K), dtype=torch.float64, device=device)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        self._steps_N1 = torch.arange(setting.steps, device=device).unsqueeze(1)
        factors = [lr_factor(setting, step) for step in range(setting.steps)]
        self._factors = torch.tensor(factors, dtype=torch.float64, device=device)
        self.reset()

    def reset(self) -> None:
        """Go back to the first step of a run."""
        self.alive.fill_(True)
        self.losses.fill_(math.nan)
        self.ended.fill_(self._setting.steps)
        self._limit.fill_(math.inf)
        self._step.zero_()

    @property
    def limit(self) -> Tensor:
        """The loss above which a trial has blown up, [K] float64. It is inf before the first step."""
        return self._limit

    @property
    def step(self) -> Tensor:
        """The steps taken, [1] int64."""
        return self._step

    def resume(self, snapshot: Snapshot, rows: Sequence[int]) -> None:
        """Continue from the trials of a snapshot that `rows` names. A snapshot holds no losses."""
        pairs = ((self.alive, snapshot.alive), (self.ended, snapshot.ended), (self._limit, snapshot.limit))
        for own, stored in pairs:
            copy_trials(stored, 0, rows, own)
        self._step.copy_(snapshot.step)

    def record(self, losses_KT: Tensor) -> None:
        """Record the losses of a step, and end the trials whose loss is bad."""
        loss_K = mean_losses(losses_KT, self._backend)
        self._store(loss_K)
        exact_K = loss_K.double()
        unit_K = exact_K.clamp(min=guess_loss(self._setting.loss, self._setting.vocab_size))  # a NaN stays one
        torch.where(self._step == 0, BLOW_UP * unit_K, self._limit, out=self._limit)
        bad_K = self.bad(exact_K)
        torch.where(self.alive & bad_K, self._step, self.ended, out=self.ended)
        self.alive.logical_and_(~bad_K)

    def _store(self, loss_K: Tensor) -> None:
        if self._backend.is_triton:
            # Not index_copy_: in deterministic mode it may wait for the host, which is an error in a CUDA graph.
            torch.where(self._steps_N1 == self._step, loss_K, self.losses, out=self.losses)
        else:
            self.losses.index_copy_(0, self._step, loss_K.unsqueeze(0))

    def bad(self, losses_K: Tensor) -> Tensor:
        """Return [K] bool: whether a float64 loss is not finite or has blown up."""
        return ~(losses_K.isfinite() & (losses_K <= self._limit))

    def factor(self) -> Tensor:
        """Return the LR factor of this step, [1] float64."""
        return self._factors.index_select(0, self._step)

    def advance(self) -> None:
        """Go to the next step."""
        self._step += 1


def mean_losses(losses_KT: Tensor, backend: Backend = TORCH, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return [K]: the mean loss of every trial. Under a strict backend its bits do not depend on K."""
    if backend.is_triton and backend.strict:
        return (column_sums(losses_KT.unsqueeze(-1), backend).squeeze(-1) / losses_KT.shape[1]).to(dtype)
    return losses_KT.to(dtype).mean(1)
