"""BatchLoader: the batches and the router noise of a stack, read for some steps at a time, once per seed.

A chunk has CHUNK_STEPS steps, or fewer where so many would have more than CHUNK_TOKENS.

On CUDA the next chunk travels to the device while this one is trained on: through pinned memory, on its own stream.

Letters: C steps of a chunk, U seeds, K trials, B sequences, S context, L MoE layers, E experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpxfer.data import Data
from hpxfer.model.draws import NOISE_STEPS, bias_std, fixed_bias, router_noise
from hpxfer.trial import Trial

CHUNK_STEPS, CHUNK_TOKENS = NOISE_STEPS, 2**20


@dataclass(frozen=True, kw_only=True)
class _Chunk:
    """The tensors of some steps. They are on the device once `arrived` has happened."""

    number: int
    tensors: tuple[Tensor, ...]
    arrived: torch.cuda.Event | None


class BatchLoader:
    """The batches and the router noise of the trials of a stack, by step."""

    def __init__(self, data: Data, trials: Sequence[Trial], device: torch.device, moe_blocks: Sequence[int]) -> None:
        self._data, self._device, self._moe_blocks = data, device, tuple(moe_blocks)
        self._steps = trials[0].setting.steps
        self._num_experts = trials[0].shape.num_experts
        self._seeds = sorted({trial.seed for trial in trials})
        of_step = len(self._seeds) * trials[0].setting.batch_tokens
        self._chunk_steps = max(1, min(CHUNK_STEPS, CHUNK_TOKENS // of_step))
        self._of_trial = torch.tensor([self._seeds.index(trial.seed) for trial in trials], device=device)
        # Products read samples without a copy per trial. A captured step is written into memory of its own.
        self._shares_samples = len(self._seeds) == 1 and trials[0].setting.num_inputs > 0 and device.type == "cpu"
        self._scheduled = trials[0].setting.mlp.router_bias != "fixed"
        stds = [bias_std(trial) for trial in trials]
        self._stds = torch.tensor(stds, device=device).view(1, -1, 1) if any(stds) and self._moe_blocks else None
        self._fixed = self._fixed_bias([trial.setting.ties == "fixed_bias" for trial in trials])
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._chunks: list[_Chunk] = []
        self._noise: _Chunk | None = None

    @property
    def has_noise(self) -> bool:
        """Whether something is added to the logits of a trial's routers."""
        return self._stds is not None or self._fixed is not None

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a step, [K, B, S] of tokens. Trials of one seed read the same data."""
        number, at = divmod(step, self._chunk_steps)
        inputs, targets = self._batches(number).tensors
        if self._shares_samples:
            rows = len(self._of_trial)
            own, wanted = inputs[at], targets[at]  # [1, ...]
            return own.expand(rows, *own.shape[1:]), wanted.expand(rows, *wanted.shape[1:])
        return inputs[at].index_select(0, self._of_trial), targets[at].index_select(0, self._of_trial)

    def noise(self, step: int) -> Tensor | None:
        """Return what is added to the routers' logits, [L, K, E], or None if no trial has such a thing.

        It is b_t of the router-bias schedule, plus the fixed bias.
        """
        if self._stds is None:
            return self._fixed
        number, at = divmod(step if self._scheduled else 0, NOISE_STEPS)  # a fixed bias is that of the first step
        if self._noise is None or self._noise.number != number:
            self._noise = self._send(number, [router_noise(self._seeds, self._moe_blocks, self._num_experts, number)])
            self._wait(self._noise)
        scheduled = self._noise.tensors[0][at].index_select(1, self._of_trial) * self._stds
        return scheduled if self._fixed is None else scheduled + self._fixed

    def _fixed_bias(self, has: Sequence[bool]) -> Tensor | None:
        """Return the fixed bias [L, K, E], zero in the trials without one, or None if no trial has one."""
        if not any(has) or not self._moe_blocks:
            return None
        bias_LUE = fixed_bias(self._seeds, self._moe_blocks, self._num_experts).to(self._device)
        return bias_LUE.index_select(1, self._of_trial) * torch.tensor(has, device=self._device).view(1, -1, 1)

    def _batches(self, number: int) -> _Chunk:
        """Return a chunk. On CUDA, start to send the next one."""
        found = next((chunk for chunk in self._chunks if chunk.number == number), None)
        if found is None or found is not self._chunks[0]:
            found = found or self._read(number)
            self._wait(found)
            self._chunks = [found]
            if self._stream is not None and (number + 1) * self._chunk_steps < self._steps:
                self._chunks.append(self._read(number + 1))
        return found

    def _read(self, number: int) -> _Chunk:
        first = number * self._chunk_steps
        count = min(self._chunk_steps, self._steps - first)  # the data may end where the run ends
        parts = [self._data.train_batches(seed, first, count) for seed in self._seeds]
        stacked = [torch.from_numpy(np.stack(arrays, axis=1)) for arrays in zip(*parts, strict=True)]
        return self._send(number, stacked)

    def _send(self, number: int, tensors: Sequence[Tensor]) -> _Chunk:
        if self._stream is None:
            return _Chunk(number=number, tensors=tuple(tensors), arrived=None)
        with torch.cuda.stream(self._stream):
            sent = tuple(tensor.pin_memory().to(self._device, non_blocking=True) for tensor in tensors)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record(self._stream)
        return _Chunk(number=number, tensors=sent, arrived=arrived)

    def _wait(self, chunk: _Chunk) -> None:
        """Let the device wait for a chunk, not the host. Its memory is kept until the device has used it."""
        if chunk.arrived is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(chunk.arrived)
            for tensor in chunk.tensors:
                tensor.record_stream(current)
