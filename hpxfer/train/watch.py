"""Watch: the losses of a stack, who is alive, and the LR factor, all on the device: no step waits for the host.

    bad     a loss that is not finite, or above BLOW_UP * max(its trial's first loss, ln V)
    alive   until the first bad loss; that step's update is not taken, nor any after it

Letters: K trials, T tokens, N steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.sums import column_sums
from hpxfer.train.schedule import lr_factor
from hpxfer.train.snapshot import Snapshot, keep
from hpxfer.trial import Setting

# A loss above this many times the larger of the first loss and the uniform guess's ln(V) is a blow-up.
BLOW_UP = 4.0


class Watch:
    """What is known of a stack's run so far. `alive` [K] is shared with the optimizer, which reads it."""

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
        self.start()

    def start(self) -> None:
        """Go back to the first step of a run."""
        self.alive.fill_(True)
        self.losses.fill_(math.nan)
        self.ended.fill_(self._setting.steps)
        self._limit.fill_(math.inf)
        self._step.zero_()

    @property
    def limit(self) -> Tensor:
        """The loss above which a trial has blown up, [K] float64; inf before the first step."""
        return self._limit

    @property
    def step(self) -> Tensor:
        """The steps taken, [1] int64."""
        return self._step

    def follow(self, other: Snapshot, kept: Sequence[int]) -> None:
        """Go on where `other` stands, with those of its trials that are kept; what was logged stays there."""
        for mine, its in ((self.alive, other.alive), (self.ended, other.ended), (self._limit, other.limit)):
            keep(its, 0, kept, mine)
        self._step.copy_(other.step)

    def note(self, losses_KT: Tensor) -> None:
        """Log the losses of a step, and end the trials whose loss is bad."""
        loss_K = mean_losses(losses_KT, self._backend)
        self._log(loss_K)
        exact_K = loss_K.double()
        unit_K = exact_K.clamp(min=math.log(self._setting.vocab_size))  # a NaN stays one
        torch.where(self._step == 0, BLOW_UP * unit_K, self._limit, out=self._limit)
        bad_K = self.bad(exact_K)
        torch.where(self.alive & bad_K, self._step, self.ended, out=self.ended)
        self.alive.logical_and_(~bad_K)

    def _log(self, loss_K: Tensor) -> None:
        if self._backend.is_triton:
            # Not index_copy_: where torch is asked for determinism it may wait for the host, in a CUDA graph an error.
            torch.where(self._steps_N1 == self._step, loss_K, self.losses, out=self.losses)
        else:
            self.losses.index_copy_(0, self._step, loss_K.unsqueeze(0))

    def bad(self, losses_K: Tensor) -> Tensor:
        """Return [K] bool: which float64 losses are not finite or blew up."""
        return ~(losses_K.isfinite() & (losses_K <= self._limit))

    def factor(self) -> Tensor:
        """Return the LR factor of this step, [1] float64."""
        return self._factors.index_select(0, self._step)

    def advance(self) -> None:
        """Go to the next step."""
        self._step += 1


def mean_losses(losses_KT: Tensor, backend: Backend = TORCH, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return [K], the mean loss of every trial; its bits do not depend on K where the backend is strict."""
    if backend.is_triton and backend.strict:
        return (column_sums(losses_KT.unsqueeze(-1), backend).squeeze(-1) / losses_KT.shape[1]).to(dtype)
    return losses_KT.to(dtype).mean(1)
