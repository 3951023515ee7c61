"""Train one stack: the only training loop. A trial's numbers do not depend on what is stacked beside it.

The host queues steps and looks at the losses every few of them: on a CPU after each, where looking is free. Diverged
trials then leave the stack, if that saves more than it costs.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpxfer.model.flat import Weights, sums_of_squares
from hpxfer.model.gpt import Output
from hpxfer.result import TrialResult
from hpxfer.stack import Stack
from hpxfer.train.checkpoint import Keeper, Standing
from hpxfer.train.checkpoints import CheckpointSpec
from hpxfer.train.compaction import fits, pays
from hpxfer.train.device import Setup, setup_for, switched
from hpxfer.train.event import Progress
from hpxfer.train.log import Recorder, balance_steps, loss_curve, probe_steps, rms_by_role
from hpxfer.train.provenance import provenance
from hpxfer.train.snapshot import Snapshot
from hpxfer.train.step import Kept
from hpxfer.train.watch import mean_losses

Report = Progress | tuple[TrialResult, ...]

PROGRESS_S = 1.0

_kept = Kept()


def train(
    stack: Stack,
    device: str = "auto",
    *,
    determinism: str | None = None,
    kernels: str = "auto",
    checkpoints: CheckpointSpec | None = None,
    report_at: Collection[int] = (),
) -> Iterator[Report]:
    """Yield progress about every second and after the steps `report_at`, then the results of all trials of the stack.

    `device` is auto (CUDA if there is one), cpu or cuda; `determinism` strict, fast or None (the device's default);
    `kernels` auto, torch or triton; `checkpoints` says where the training is kept and goes on from. torch's global
    settings are those of the run until it ends, then the caller's.
    """
    setup = setup_for(device, determinism, kernels)
    with switched(setup):
        try:
            keeper = Keeper(checkpoints, stack, setup)
            yield from _events(_Run(stack, setup, keeper.last()), keeper, report_at)
        except BaseException:
            _kept.clear()
            raise


def _events(run: _Run, keeper: Keeper, report_at: Collection[int]) -> Iterator[Report]:
    steps, tokens = run.setting.steps, run.setting.batch_tokens * run.num_trials
    reported, last_report = run.steps_taken, time.monotonic()
    if reported:  # of an earlier run
        yield run.progress(reported * tokens)
    for step in range(reported, steps):
        run.step(step)
        asked = step + 1 in report_at
        if (step + 1) % run.setup.look_steps and step + 1 < steps and not asked:
            continue
        if not run.look():
            break
        if asked or time.monotonic() - last_report >= PROGRESS_S:
            yield run.progress((step + 1 - reported) * tokens)
            reported, last_report = step + 1, time.monotonic()
        if keeper.due and step + 1 < steps:
            keeper.keep(run.standing)
    yield run.progress((steps - reported) * tokens)
    yield run.results()


class _Run:
    """One stack in training: its step, and what is kept of it. `slots` are the trials that the step still has."""

    def __init__(self, stack: Stack, setup: Setup, past: Standing | None = None) -> None:
        self.stack, self.setup, self.setting = stack, setup, stack.setting
        self.num_trials = len(stack.trials)
        self.started = time.monotonic()
        if setup.cuda:
            torch.cuda.reset_peak_memory_stats(setup.device)
        self.balance_at, self.probe_at = balance_steps(self.setting.steps), probe_steps(self.setting.steps)
        self.recorder = Recorder(self.num_trials)
        self.losses = np.full((self.setting.steps, self.num_trials), np.nan)
        self.ended = np.full(self.num_trials, self.setting.steps + 1)  # the step at which a trial diverged, or beyond
        self.slots = list(range(self.num_trials))
        self.steps_taken = self.steps_seen = self.trial_steps = self.resumes = 0
        self.spent_s = 0.0  # before this run
        if past is None:
            self.one = _kept.step_for(stack, setup)
            self.since, self.steps_before = time.monotonic(), 0  # when steps of this size began
        else:
            self._resume(past)

    def _resume(self, past: Standing) -> None:
        """Go on where a run of these trials, and maybe of others beside them, stood."""
        of = [past.trials.index(trial.id) for trial in self.stack.trials]
        self.losses[: past.step] = past.losses[:, of]
        self.ended = past.ended[of]
        self.recorder.resume(past.series, of)
        self.steps_taken = self.steps_seen = past.step
        share = len(of) / len(past.trials)
        self.trial_steps, self.spent_s = round(share * past.trial_steps), share * past.wall_s
        self.resumes = past.resumes + 1
        slots = [k for k, one in enumerate(of) if one in past.slots]
        self._go_on(slots, past.snapshot, [past.slots.index(of[k]) for k in slots])

    def standing(self) -> Standing:
        """Return where the training stands; to be called after a look."""
        return Standing(
            trials=tuple(trial.id for trial in self.stack.trials),
            slots=tuple(self.slots),
            snapshot=self.one.snapshot(),
            step=self.steps_seen,
            trial_steps=self.trial_steps,
            wall_s=self.wall_s,
            resumes=self.resumes,
            ended=self.ended,
            losses=self.losses[: self.steps_seen],
            series=self.recorder.series,
        )

    @property
    def wall_s(self) -> float:
        return self.spent_s + time.monotonic() - self.started

    def progress(self, tokens: int) -> Progress:
        """Return the report of so many tokens."""
        last = self.losses[self.steps_seen - 1]
        losses = np.where(self.ended < self.steps_seen, np.nan, last)
        return Progress(tokens=tokens, step=self.steps_seen, losses=tuple(losses.tolist()))

    def step(self, step: int) -> None:
        """Queue one optimizer step of every live trial."""
        probe = step in self.balance_at
        output, grads = self.one.gradients(step, probe=probe)
        if probe:
            self._record_balance(step, output)
        if step in self.probe_at:
            self._probed_update(step, output, grads)
        else:
            self.one.update(output, grads)
        self.steps_taken = step + 1
        self.trial_steps += len(self.slots)

    def look(self) -> bool:
        """Take over what the device has logged; let diverged trials leave. Return whether any is left."""
        new = slice(self.steps_seen, self.steps_taken)
        self.losses[new, self.slots] = self.one.watch.losses[new].double().cpu().numpy()
        self.recorder.fetch()
        self.steps_seen = self.steps_taken
        ended = self.one.watch.ended.cpu().numpy()
        alive = [slot for slot, at in enumerate(ended) if at >= self.setting.steps]
        for slot, at in enumerate(ended):
            if at < self.setting.steps:
                self.ended[self.slots[slot]] = at
        left = self.setting.steps - self.steps_taken
        if alive and left and len(alive) < len(self.slots) and self._worth_it(len(alive), left):
            self._compact(alive)
        return bool(alive)

    def _worth_it(self, alive: int, steps_left: int) -> bool:
        step_s = (time.monotonic() - self.since) / (self.steps_taken - self.steps_before)
        share = 1 - alive / len(self.slots)
        return pays(share, steps_left * step_s, self.one.made_s, self.setup) and fits(
            alive / len(self.slots), self.setup
        )

    def _compact(self, alive: list[int]) -> None:
        """Go on with a smaller stack of the trials that are alive."""
        self._go_on([self.slots[slot] for slot in alive], self.one.snapshot(), alive)

    def _go_on(self, slots: list[int], snapshot: Snapshot, rows: list[int]) -> None:
        """Go on with these trials, which are the rows of a snapshot."""
        self.slots = slots
        stack = Stack(trials=tuple(self.stack.trials[k] for k in slots))
        self.one = _kept.step_for(stack, self.setup, start=False)
        self.one.go_on(snapshot, rows)
        self.since, self.steps_before = time.monotonic(), self.steps_taken

    def results(self) -> tuple[TrialResult, ...]:
        """Return the result of every trial; validates the live ones first."""
        validation = self._validate()
        wall_s = self.wall_s
        tokens_per_s = self.setting.batch_tokens * self.trial_steps / wall_s
        where = provenance(self.setup)
        return tuple(
            TrialResult(
                **where,
                **self._numbers(k, validation[k]),
                wall_s=wall_s,
                tokens_per_s=tokens_per_s,
                stack_size=self.num_trials,
                resumes=self.resumes,
            )
            for k in range(self.num_trials)
        )

    def _record_balance(self, step: int, output: Output) -> None:
        assert output.entropy_LK is not None
        state = self.one.state
        off_LKE = (state.load(output) - self.stack.shape.kappa).abs()
        for layer, block in enumerate(state.moe_blocks):
            self.recorder.add(step, "load_deviation", off_LKE[layer].amax(-1), self.slots, layer=block)
            self.recorder.add(step, "router_entropy_nats", output.entropy_LK[layer].clone(), self.slots, layer=block)

    def _probed_update(self, step: int, output: Output, grads: Weights) -> None:
        """Update, and record the RMS of the (unclipped) gradient and of the update, by role."""
        state = self.one.state
        before = state.flat.clone()
        self._record_rms(step, "grad_rms", grads)
        self.one.update(output, grads)
        self._record_rms(step, "update_rms", state.layout.weights(state.flat - before))

    def _record_rms(self, step: int, metric: str, weights: Weights) -> None:
        state = self.one.state
        counts = {tensor.name: tensor.numel * tensor.layers for tensor in state.layout.tensors}
        for role, values in rms_by_role(self._squares(weights), counts, state.roles).items():
            self.recorder.add(step, metric, values, self.slots, role=role)

    def _squares(self, weights: Weights) -> dict[str, Tensor]:
        """Return name -> [K] float64, the sum of squares of every trial's tensor."""
        if not (self.setup.cuda and self.setup.determinism == "strict"):
            return sums_of_squares(weights, torch.float64)
        # A GPU orders the additions of a row by the number of rows: one trial at a time.
        trials = (
            {name: tuple(copy[k : k + 1] for copy in copies) for name, copies in weights.items()}
            for k in range(len(self.slots))
        )
        alone = [sums_of_squares(trial, torch.float64) for trial in trials]
        return {name: torch.cat([one[name] for one in alone]) for name in weights}

    @torch.no_grad()
    def _validate(self) -> list[float | None]:
        """Return the mean loss of every trial on the held-out tail; what the last update blew up ends at last."""
        out: list[float | None] = [None] * self.num_trials
        if all(self.ended < self.setting.steps):
            return out
        state, watch = self.one.state, self.one.watch
        total: Tensor = torch.zeros(len(self.slots), dtype=torch.float64, device=self.setup.device)
        count = 0
        for batch in state.data.validation_batches():
            losses_KT = state.forward(*state.for_all(batch), self.setting.steps).losses_KT
            total += mean_losses(losses_KT, self.setup.backend, torch.float64)
            count += 1
        means = total / count
        for k, mean, bad in zip(self.slots, means.tolist(), watch.bad(means).tolist(), strict=True):
            if bad and self.ended[k] > self.setting.steps:
                self.ended[k] = self.setting.steps
            out[k] = mean
        return out

    def _numbers(self, k: int, validation: float | None) -> dict[str, Any]:
        """Return what a trial's spec determines of its result."""
        at = int(self.ended[k]) if self.ended[k] <= self.setting.steps else None
        losses = [float(one) for one in self.losses[:, k]]
        curve = loss_curve(losses, at)
        window = losses[-self.setting.final_window_steps :]
        return {
            "trial_id": self.stack.trials[k].id,
            "status": "finished" if at is None else "diverged",
            "final_window_loss_nats": float(np.mean(window)) if at is None else None,
            "validation_loss_nats": validation if at is None else None,
            "diverged_step": at,
            "last_finite_loss_nats": losses[at - 1] if at else None,
            "curves": (*((curve,) if curve.steps else ()), *self.recorder.curves(k, at)),
        }
