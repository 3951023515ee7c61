"""Train one stack: the only training loop. A trial's numbers do not depend on what is stacked beside it."""

from __future__ import annotations

import datetime
import json
import math
import platform
import resource
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

import hpxfer
from hpxfer.model.flat import Weights, sums_of_squares
from hpxfer.model.gpt import Output
from hpxfer.result import Curve, TrialResult
from hpxfer.stack import Stack
from hpxfer.train.event import Event, Progress
from hpxfer.train.log import Recorder, balance_steps, loss_curve, probe_steps, rms_by_role
from hpxfer.train.schedule import lr_factor
from hpxfer.train.state import State

# A loss above this many times the larger of the first loss and the uniform guess's ln(V) is a blow-up.
BLOW_UP = 4.0
PROGRESS_S = 1.0


def train(stack: Stack, device: str = "auto") -> Iterator[Event]:
    """Yield progress about every second, then the results of all trials of the stack.

    `device` is auto (CUDA if there is one), cpu or cuda. On a CPU one intra-op thread is used, as bitwise
    reproducibility needs, and the caller's setting is restored.
    """
    where = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    with _one_thread(where):
        run = _Run(stack, where)
        steps = stack.setting.steps
        reported, last_report = 0, time.monotonic()
        for step in range(steps):
            if not run.step(step):
                break
            if time.monotonic() - last_report >= PROGRESS_S:
                yield Progress(tokens=(step + 1 - reported) * stack.setting.batch_tokens * len(stack.trials))
                reported, last_report = step + 1, time.monotonic()
        yield Progress(tokens=(steps - reported) * stack.setting.batch_tokens * len(stack.trials))
        yield run.results()


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Run:
    """One stack in training: its state, and what is kept of it."""

    def __init__(self, stack: Stack, device: torch.device) -> None:
        self.stack, self.device = stack, device
        self.setting, self.num_trials = stack.setting, len(stack.trials)
        self.started = time.monotonic()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self.state = State(stack, device)
        self.balance_at, self.probe_at = balance_steps(self.setting.steps), probe_steps(self.setting.steps)
        self.recorder = Recorder()
        self.losses = np.full((self.setting.steps, self.num_trials), np.nan)
        self.steps_taken = 0
        self.diverged: list[int | None] = [None] * self.num_trials

    def step(self, step: int) -> bool:
        """Take one optimizer step of every live trial; return whether any is left."""
        self.steps_taken = step + 1
        probe = step in self.balance_at
        output, grads = self.state.forward_backward(step, probe=probe)
        self.losses[step] = output.losses_KT.detach().mean(1).cpu().numpy()
        self._mark_diverged(step)
        if probe:
            self._record_balance(step, output)
        if step in self.probe_at:
            self._probed_update(step, output, grads)
        else:
            self.state.update(output, grads, lr_factor(self.setting, step))
        return any(at is None for at in self.diverged)

    def results(self) -> tuple[TrialResult, ...]:
        """Return the result of every trial; validates the live ones first."""
        validation = self._validate()
        unfit = self._is_bad(np.array(validation))  # the last update blew up, which no training loss saw
        self.diverged = [
            self.setting.steps if at is None and bad else at for at, bad in zip(self.diverged, unfit, strict=True)
        ]
        wall_s = time.monotonic() - self.started
        tokens = self.setting.batch_tokens * self.steps_taken * self.num_trials
        return tuple(self._result(k, validation[k], wall_s, tokens / wall_s) for k in range(self.num_trials))

    def _mark_diverged(self, step: int) -> None:
        """Freeze the trials whose loss at `step` is not finite or blew up."""
        for k in np.flatnonzero(self._is_bad(self.losses[step])):
            if self.diverged[k] is None:
                self.diverged[k] = step
        self.state.optimizer.freeze(torch.tensor([at is not None for at in self.diverged]))

    def _is_bad(self, losses_K: NDArray[np.float64]) -> NDArray[np.bool_]:
        limit = BLOW_UP * np.maximum(self.losses[0], math.log(self.setting.vocab_size))
        bad: NDArray[np.bool_] = ~(np.isfinite(losses_K) & (losses_K <= limit))
        return bad

    def _record_balance(self, step: int, output: Output) -> None:
        assert output.entropy_LK is not None
        off_LKE = (self.state.load(output) - self.stack.shape.kappa).abs()
        for layer, block in enumerate(self.state.moe_blocks):
            self.recorder.add(step, "load_deviation", off_LKE[layer].amax(-1).tolist(), layer=block)
            self.recorder.add(step, "router_entropy_nats", output.entropy_LK[layer].tolist(), layer=block)

    def _probed_update(self, step: int, output: Output, grads: Weights) -> None:
        """Update, and record the RMS of the (unclipped) gradient and of the update, by role."""
        state = self.state
        before = state.flat.clone()
        self._record_rms(step, "grad_rms", grads)
        state.update(output, grads, lr_factor(self.setting, step))
        self._record_rms(step, "update_rms", state.layout.weights(state.flat - before))

    def _record_rms(self, step: int, metric: str, weights: Weights) -> None:
        squares = sums_of_squares(weights, torch.float64)
        sums = {t.name: (t.numel * t.layers, squares[t.name].tolist()) for t in self.state.layout.tensors}
        for role, values in rms_by_role(sums, self.state.roles).items():
            self.recorder.add(step, metric, values, role=role)

    @torch.no_grad()
    def _validate(self) -> list[float]:
        """Return the mean loss of every trial on the held-out tail."""
        total = torch.zeros(self.num_trials, dtype=torch.float64)
        if all(at is not None for at in self.diverged):
            return [math.nan] * self.num_trials
        count = 0
        for batch in self.state.data.validation_batches():
            inputs, targets = self.state.to_device([batch] * self.num_trials)
            output = self.state.forward(inputs, targets, self.setting.steps)
            total += output.losses_KT.double().mean(1).cpu()
            count += 1
        return [float(one) for one in total / count]

    def _result(self, k: int, validation: float, wall_s: float, tokens_per_s: float) -> TrialResult:
        at = self.diverged[k]
        losses = [float(one) for one in self.losses[:, k]]
        return TrialResult(
            trial_id=self.stack.trials[k].id,
            status="finished" if at is None else "diverged",
            final_window_loss_nats=float(np.mean(losses[-self.setting.final_window_steps :])) if at is None else None,
            validation_loss_nats=validation if at is None else None,
            diverged_step=at,
            last_finite_loss_nats=losses[at - 1] if at else None,
            curves=(*_present(loss_curve(losses, at)), *self.recorder.curves(k, at)),
            wall_s=wall_s,
            tokens_per_s=tokens_per_s,
            peak_bytes=_peak_bytes(self.device),
            stack_size=self.num_trials,
            device=torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
            host=socket.gethostname(),
            versions=json.dumps(
                {"hpxfer": hpxfer.__version__, "python": platform.python_version(), "torch": torch.__version__}
            ),
            finished_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        )


def _present(curve: Curve) -> tuple[Curve, ...]:
    return (curve,) if curve.steps else ()


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
