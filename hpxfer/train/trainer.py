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
from hpxfer.data import TokenData, open_data
from hpxfer.data.batches import Batch
from hpxfer.model.flat import Flat, Weights, draw, gradients, sums_of_squares
from hpxfer.model.gpt import GPT, forward_multipliers
from hpxfer.model.layout import tensors
from hpxfer.result import Curve, TrialResult
from hpxfer.stack import Stack
from hpxfer.train.event import Event, Progress
from hpxfer.train.log import Recorder, balance_steps, loss_curve, probe_steps, rms_by_role
from hpxfer.train.optimizer import StackOptimizer
from hpxfer.train.schedule import lr_factor

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
    """The state of one stack in training."""

    def __init__(self, stack: Stack, device: torch.device) -> None:
        self.stack, self.device = stack, device
        self.setting, self.num_trials = stack.setting, len(stack.trials)
        self.started = time.monotonic()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self.data: TokenData = open_data(self.setting)
        resolved = [trial.resolved() for trial in stack.trials]
        self.layout = Flat(tensors=tensors(stack.shape, self.setting), num_trials=self.num_trials)
        self.roles = {tensor.name: tensor.role for tensor in self.layout.tensors}
        stds = [{role: one.init_std for role, one in roles.items()} for roles in resolved]
        self.flat = draw(self.layout, [trial.seed for trial in stack.trials], stds).to(device)
        self.weights = self.layout.leaves(self.flat)
        self.model = GPT(
            shape=stack.shape,
            setting=self.setting,
            num_trials=self.num_trials,
            forward=forward_multipliers(resolved, device),
        )
        self.optimizer = StackOptimizer(
            self.layout, self.flat, self.setting.optimizer, [trial.hps for trial in stack.trials], resolved
        )
        self.bias_rate = torch.tensor([one["router_bias"].lr for one in resolved], device=device).view(1, -1, 1)
        self.router_bias = torch.zeros(stack.shape.depth, self.num_trials, stack.shape.num_experts, device=device)
        self.grad_out = torch.full(
            (self.num_trials, self.setting.batch_tokens), 1.0 / self.setting.batch_tokens, device=device
        )
        self.balance_at, self.probe_at = balance_steps(self.setting.steps), probe_steps(self.setting.steps)
        self.recorder = Recorder()
        self.losses = np.full((self.setting.steps, self.num_trials), np.nan)
        self.steps_taken = 0
        self.diverged: list[int | None] = [None] * self.num_trials

    def step(self, step: int) -> bool:
        """Take one optimizer step of every live trial; return whether any is left."""
        self.steps_taken = step + 1
        inputs, targets = self._batch(step)
        probe = step in self.balance_at
        output = self.model(self.weights, self.router_bias, inputs, targets, probe=probe)
        grads = gradients(output.losses_KT, self.weights, self.grad_out)
        self.losses[step] = output.losses_KT.detach().mean(1).cpu().numpy()
        self._mark_diverged(step)
        load_LKE = output.load_LKE.float() / self.setting.batch_tokens
        if probe:
            self._record_balance(step, load_LKE, output.entropy_LK)
        if step in self.probe_at:
            self._probed_update(step, grads)
        else:
            self.optimizer.step(grads, lr_factor(self.setting, step), self.setting.gradient_clip)
        # Loss-free balancing (2601.20205, section 3.1): the bias falls where the load is above kappa.
        self.router_bias -= self.bias_rate * (load_LKE - self.stack.shape.kappa)
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

    def _batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        by_seed = {seed: self.data.train_batch(seed, step) for seed in {trial.seed for trial in self.stack.trials}}
        return self._to_device([by_seed[trial.seed] for trial in self.stack.trials])

    def _to_device(self, batches: list[Batch]) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = (torch.from_numpy(np.stack(one)) for one in zip(*batches, strict=True))
        return inputs.to(self.device, non_blocking=True), targets.to(self.device, non_blocking=True)

    def _mark_diverged(self, step: int) -> None:
        """Freeze the trials whose loss at `step` is not finite or blew up."""
        for k in np.flatnonzero(self._is_bad(self.losses[step])):
            if self.diverged[k] is None:
                self.diverged[k] = step
        self.optimizer.freeze(torch.tensor([at is not None for at in self.diverged]))

    def _is_bad(self, losses_K: NDArray[np.float64]) -> NDArray[np.bool_]:
        limit = BLOW_UP * np.maximum(self.losses[0], math.log(self.setting.vocab_size))
        bad: NDArray[np.bool_] = ~(np.isfinite(losses_K) & (losses_K <= limit))
        return bad

    def _record_balance(self, step: int, load_LKE: torch.Tensor, entropy_LK: torch.Tensor | None) -> None:
        assert entropy_LK is not None
        deviation_LK = (load_LKE - self.stack.shape.kappa).abs().amax(-1)
        for layer in range(self.stack.shape.depth):
            self.recorder.add(step, "load_deviation", deviation_LK[layer].tolist(), layer=layer)
            self.recorder.add(step, "router_entropy_nats", entropy_LK[layer].tolist(), layer=layer)

    def _probed_update(self, step: int, grads: Weights) -> None:
        """Take the optimizer step and record the RMS of the (unclipped) gradient and of the update, by role."""
        before = self.flat.clone()
        self._record_rms(step, "grad_rms", grads)
        self.optimizer.step(grads, lr_factor(self.setting, step), self.setting.gradient_clip)
        self._record_rms(step, "update_rms", self.layout.weights(self.flat - before))

    def _record_rms(self, step: int, metric: str, weights: Weights) -> None:
        squares = sums_of_squares(weights, torch.float64)
        sums = {t.name: (t.numel * t.layers, squares[t.name].tolist()) for t in self.layout.tensors}
        for role, values in rms_by_role(sums, self.roles).items():
            self.recorder.add(step, metric, values, role=role)

    @torch.no_grad()
    def _validate(self) -> list[float]:
        """Return the mean loss of every trial on the held-out tail."""
        total = torch.zeros(self.num_trials, dtype=torch.float64)
        if all(at is not None for at in self.diverged):
            return [math.nan] * self.num_trials
        count = 0
        for batch in self.data.validation_batches():
            inputs, targets = self._to_device([batch] * self.num_trials)
            total += self.model(self.weights, self.router_bias, inputs, targets).losses_KT.double().mean(1).cpu()
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
