"""The training loop of one stack. A trial's numbers do not depend on what is stacked beside it.

The host queues steps and reads the losses every few steps; on a CPU after each step, where reading is free. After a
read, diverged trials leave the stack if that saves more time than it costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpxfer import __version__
from hpxfer.model.flat import Weights
from hpxfer.model.output import Output, router_entropies
from hpxfer.spec import TOP, has_top5
from hpxfer.train.checkpoint import Checkpoint, Checkpointer, how
from hpxfer.train.checkpoints import CheckpointSpec
from hpxfer.train.device import Setup, fits_memory, provenance, saves_time, setup_for, switched
from hpxfer.train.log import (
    Measured,
    Measures,
    MetricLog,
    balance_steps,
    error_steps,
    loss_curve,
    probe_steps,
    rms_by_role,
)
from hpxfer.train.monitor import mean_losses
from hpxfer.train.optimizer import sums_of_squares
from hpxfer.train.ranks import ALONE, Ranks, joined
from hpxfer.train.snapshot import Moment, Snapshot
from hpxfer.train.step import StepCache
from hpxfer.trial import Curve, Ended, Points, Progress, Stack, Team, TrialResult

Report = Progress | Ended

PROGRESS_S = 1.0
# Metric of a regularizer -> the HP that it is weighted by. Trials without the weight have no curve of it.
WEIGHT_OF = {"balance_loss": "aux_weight", "router_z_loss": "z_weight"}

_steps = StepCache()


def train(
    stack: Stack,
    device: str = "auto",
    *,
    determinism: str | None = None,
    kernels: str = "auto",
    checkpoints: CheckpointSpec | None = None,
    report_at: Collection[int] = (),
    points: bool = False,
    stop: Callable[[], bool] = lambda: False,
    keep: Callable[[Moment], object] | None = None,
    team: Team | None = None,
    curves: bool = True,
) -> Iterator[Report]:
    """Yield progress about every second and after the steps `report_at`, then the results of all trials of the stack.
    With `points`, progress carries the points of curves that are new.

    `keep` gets the trials that are alive after the last step, before the results. The tensors are the run's own.

    `stop` is asked after every read of the losses. Once it is true, the training writes a checkpoint and ends without
    results.

    `device` is auto (CUDA if there is one), cpu or cuda. `determinism` is strict, fast or None (the device's default).
    `kernels` is auto, torch or triton. `checkpoints` says where checkpoints are written and read. torch's global
    settings change for the length of the run.

    Without `curves` the results have none, and nothing is measured for them.

    `team` is the place of this process among those that train the stack together. All of them call this function with
    the same arguments. Rank 0 asks `stop`, writes checkpoints and calls `keep`. All have the same results.
    """
    setup = setup_for(device, determinism, kernels)
    with switched(setup):
        try:
            ranks = joined(team, setup.device, {"hpxfer": __version__, **how(setup)})
            checkpointer = Checkpointer(checkpoints, stack, setup, ranks)
            run = _Run(stack, setup, checkpointer.last(with_curves=curves), ranks, curves=curves)
            yield from _events(run, checkpointer, report_at, points, stop, keep)
        except BaseException:
            _steps.clear()
            raise


def _events(
    run: _Run,
    checkpointer: Checkpointer,
    report_at: Collection[int],
    points: bool,
    stop: Callable[[], bool],
    keep: Callable[[Moment], object] | None,
) -> Iterator[Report]:
    steps, tokens, ranks = run.setting.steps, run.setting.batch_tokens * run.num_trials, run.ranks
    reported, last_report = run.steps_read, time.monotonic()
    if reported:  # by an earlier run
        yield run.progress(reported * tokens, 0 if points else None)
    for step in range(reported, steps):
        run.step(step)
        asked = step + 1 in report_at
        if (step + 1) % run.setup.steps_per_read and step + 1 < steps and not asked:
            continue
        if not run.read():
            break
        if step + 1 < steps and ranks.agree(stop()):
            if checkpointer.is_on:
                checkpointer.save(run.checkpoint)
            return
        if asked or time.monotonic() - last_report >= PROGRESS_S:
            yield run.progress((step + 1 - reported) * tokens, reported if points else None)
            reported, last_report = step + 1, time.monotonic()
        if checkpointer.is_on and step + 1 < steps and ranks.agree(checkpointer.due):
            checkpointer.save(run.checkpoint)
    yield run.progress((steps - reported) * tokens)
    results = run.results()
    if keep is not None and (last := run.moment(results)).rows and ranks.is_first:
        keep(last)
    yield Ended(results=results)


class _Run:
    """One stack in training: its step and its results so far.

    `live` are the positions in the stack of those trials that the step still trains.
    """

    def __init__(
        self,
        stack: Stack,
        setup: Setup,
        past: Checkpoint | None = None,
        ranks: Ranks = ALONE,
        *,
        curves: bool = True,
    ) -> None:
        self.stack, self.setup, self.setting, self.ranks = stack, setup, stack.setting, ranks
        self.num_trials = len(stack.trials)
        self.started = time.monotonic()
        if setup.cuda:
            torch.cuda.reset_peak_memory_stats(setup.device)
        steps, self.has_curves = self.setting.steps, curves
        self.balance_at = balance_steps(steps) if curves else set()
        self.probe_at = probe_steps(steps) if curves else set()
        self.error_at = error_steps(steps, self.setting.final_window_steps) if curves else set()
        self.measures: Measures | None = None  # of the live trials; made anew when the stack shrinks
        self.log = MetricLog(self.num_trials)
        self.losses = np.full((self.setting.steps, self.num_trials), np.nan)
        self.ended = np.full(self.num_trials, self.setting.steps + 1)  # [K] the step of divergence, or a larger number
        self.live = list(range(self.num_trials))
        self.steps_queued = self.steps_read = self.trial_steps = self.resumes = 0
        self.earlier_s = 0.0  # spent by earlier runs
        if past is None:
            self.train_step = _steps.step_for(stack, setup, ranks=ranks)
            self.size_since, self.size_from = time.monotonic(), 0  # when, and from which step, the stack has this size
        else:
            self._resume(past)

    def _resume(self, past: Checkpoint) -> None:
        """Continue from a checkpoint that holds these trials, and possibly others."""
        index = [past.trials.index(trial.id) for trial in self.stack.trials]
        self.losses[: past.step] = past.losses[:, index]
        self.ended = past.ended[index]
        if self.has_curves:  # else this run would store curves with a hole, from which one with curves would go on
            self.log.resume(past.series, index)
        self.steps_queued = self.steps_read = past.step
        fraction = len(index) / len(past.trials)
        self.trial_steps, self.earlier_s = round(fraction * past.trial_steps), fraction * past.wall_s
        self.resumes = past.resumes + 1
        live = [k for k, position in enumerate(index) if position in past.live]
        self._continue(live, past.snapshot, [past.live.index(index[k]) for k in live])

    def checkpoint(self) -> Checkpoint:
        """Return the training between two steps. Call it after a read."""
        return Checkpoint(
            trials=tuple(trial.id for trial in self.stack.trials),
            live=tuple(self.live),
            snapshot=self.train_step.snapshot(),
            step=self.steps_read,
            trial_steps=self.trial_steps,
            wall_s=self.wall_s,
            resumes=self.resumes,
            ended=self.ended,
            losses=self.losses[: self.steps_read],
            series=self.log.series,
        )

    @property
    def wall_s(self) -> float:
        return self.earlier_s + time.monotonic() - self.started

    def progress(self, tokens: int, first: int | None = None) -> Progress:
        """Return a report of this many tokens since the last one, with the points of curves from step `first` on."""
        last = self.losses[self.steps_read - 1]
        losses = np.where(self.ended < self.steps_read, np.nan, last)
        points = None if first is None else self._points(first)
        return Progress(tokens=tokens, step=self.steps_read, losses=tuple(losses.tolist()), points=points)

    def _points(self, first: int) -> Points:
        curves = {trial.id: self._curves(k, first) for k, trial in enumerate(self.stack.trials)}
        return Points(first=first, stop=self.steps_read, curves=curves)

    def _curves(self, k: int, first: int = 0) -> tuple[Curve, ...]:
        """Return the curves of a trial from step `first` on, as far as they are read. They end where it diverged."""
        if not self.has_curves:
            return ()
        diverged = self._diverged(k)
        loss = loss_curve(self.losses[:, k], self.steps_read if diverged is None else diverged, first)
        return (*((loss,) if loss else ()), *self.log.curves(k, diverged, first))

    def _diverged(self, k: int) -> int | None:
        """Return the first step whose loss was bad, if there was one."""
        return int(self.ended[k]) if self.ended[k] <= self.setting.steps else None

    def step(self, step: int) -> None:
        """Queue one optimizer step of every live trial."""
        self.ranks.at(f"step {step}")
        output, grads = self.train_step.gradients(step)
        if step in self.balance_at:
            self._log_balance(step, output)
        if output.ranks is not None and step in self.error_at:
            for metric, wrong in self._wrong(output.ranks()).items():
                self.log.add(step, f"train_{metric}", wrong / self.setting.batch_tokens, self.live)
        if step in self.probe_at:
            self._probed_update(step, output, grads)
        else:
            self.train_step.update(output, grads)
        self.steps_queued = step + 1
        self.trial_steps += len(self.live)

    def read(self) -> bool:
        """Read losses and metrics from the device, and drop diverged trials. Return whether any trial is alive."""
        new = slice(self.steps_read, self.steps_queued)
        self.losses[new, self.live] = self.train_step.monitor.losses[new].double().cpu().numpy()
        self.log.fetch()
        self.steps_read = self.steps_queued
        ended = self.train_step.monitor.ended.cpu().numpy()
        alive = [row for row, step in enumerate(ended) if step >= self.setting.steps]
        for row, step in enumerate(ended):
            if step < self.setting.steps:
                self.ended[self.live[row]] = step
        steps_left = self.setting.steps - self.steps_queued
        if alive and steps_left and len(alive) < len(self.live) and self._should_compact(len(alive), steps_left):
            self._continue([self.live[row] for row in alive], self.train_step.snapshot(), alive)
        return bool(alive)

    def _should_compact(self, num_alive: int, steps_left: int) -> bool:
        step_s = (time.monotonic() - self.size_since) / (self.steps_queued - self.size_from)
        fraction = num_alive / len(self.live)
        saves = saves_time(1 - fraction, steps_left * step_s, self.train_step.build_s, self.setup)
        return self.ranks.agree(saves and fits_memory(fraction, self.setup))

    def _continue(self, live: list[int], snapshot: Snapshot, rows: list[int]) -> None:
        """Continue with these trials alone. They are the `rows` of a snapshot."""
        self.live, self.measures = live, None
        stack = replace(self.stack, trials=tuple(self.stack.trials[k] for k in live))
        self.train_step = _steps.step_for(stack, self.setup, reset=False, ranks=self.ranks)
        self.train_step.resume(snapshot, rows)
        self.size_since, self.size_from = time.monotonic(), self.steps_queued

    def _wrong(self, ranks_KT: Tensor) -> dict[str, Tensor]:
        """Return error -> the samples [K], float64, whose class is not the first, or not among the first five."""
        places = {"error": 1, **({"top5_error": TOP} if has_top5(self.setting.vocab_size) else {})}
        return {name: (ranks_KT >= place).sum(1).double() for name, place in places.items()}

    def results(self) -> tuple[TrialResult, ...]:
        """Validate the trials that are alive, and return the result of every trial."""
        validation = self._validate()
        wall_s = self.wall_s
        tokens_per_s = self.setting.batch_tokens * self.trial_steps / wall_s
        origin = provenance(self.setup)
        return tuple(
            TrialResult(
                **origin,
                **self._numbers(k, validation[k]),
                wall_s=wall_s,
                tokens_per_s=tokens_per_s,
                stack_size=self.num_trials,
                resumes=self.resumes,
            )
            for k in range(self.num_trials)
        )

    def moment(self, results: Sequence[TrialResult]) -> Moment:
        """Return the trials that are alive after the last read, with the results of all trials."""
        return Moment(
            snapshot=self.train_step.snapshot(),
            rows={
                self.stack.trials[k].id: row for row, k in enumerate(self.live) if self.ended[k] > self.setting.steps
            },
            results={result.trial_id: result for result in results},
        )

    def _log_balance(self, step: int, output: Output) -> None:
        state = self.train_step.state
        entropies = router_entropies(output, self.setup.backend)
        deviation_LKE = (state.load(output) - self.stack.shape.kappa).abs()
        for name, values in output.regularizers.items():
            rows = [row for row, k in enumerate(self.live) if self.stack.trials[k].hps.get(WEIGHT_OF[name])]
            blocks = state.moe_blocks if len(values) == len(state.moe_blocks) else (None,)
            for block, value in zip(blocks, values, strict=True):
                self.log.add(step, name, value[rows], [self.live[row] for row in rows], layer=block)
        for layer, block in enumerate(state.moe_blocks):
            self.log.add(step, "load_deviation", deviation_LKE[layer].amax(-1), self.live, layer=block)
            self.log.add(step, "router_entropy_nats", entropies[layer], self.live, layer=block)

    def _probed_update(self, step: int, output: Output, grads: Weights) -> None:
        """Update, and log the RMS of the gradient before clipping and of the update, by role, and the measures."""
        state = self.train_step.state
        grad_rms = self._log_rms(step, "grad_rms", grads)
        if self.measures is None and Measures.are_of(state):
            self.measures = Measures(state, step, one_by_one=self._sums_one_by_one)
        if self.measures is not None:
            self._log_measures(step, self.measures.before(step, grad_rms))
        before = state.copied()
        self.train_step.update(output, grads)
        before -= state.flat  # in place: the sign does not matter, a third copy of the parameters would
        self._log_rms(step, "update_rms", state.own(before))
        if self.measures is not None:
            self._log_measures(step, self.measures.after())

    def _log_measures(self, step: int, measured: Iterable[Measured]) -> None:
        for metric, values, layer, role in measured:
            self.log.add(step, metric, values, self.live, layer=layer, role=role)

    def _log_rms(self, step: int, metric: str, weights: Weights) -> dict[str, Tensor]:
        """Log and return role -> RMS [K]."""
        state = self.train_step.state
        counts = {spec.name: spec.numel * spec.layers for spec in state.layout.parameters}
        found = rms_by_role(self._squares(weights), counts, state.roles)
        for role, values in found.items():
            self.log.add(step, metric, values, self.live, role=role)
        return found

    @property
    def _sums_one_by_one(self) -> bool:
        """Whether trials are summed each for itself: a GPU orders the additions of a row by the number of rows."""
        return self.setup.cuda and self.setup.determinism == "strict"

    def _squares(self, weights: Weights) -> dict[str, Tensor]:
        """Return name -> [K] float64: the sum of squares of every trial's parameter."""
        if not self._sums_one_by_one:
            return sums_of_squares(weights, torch.float64, self.ranks)
        trials = (
            {name: tuple(copy[k : k + 1] for copy in copies) for name, copies in weights.items()}
            for k in range(len(self.live))
        )
        alone = [sums_of_squares(trial, torch.float64, self.ranks) for trial in trials]
        return {name: torch.cat([sums[name] for sums in alone]) for name in weights}

    @torch.no_grad()
    def _validate(self) -> list[dict[str, float]]:
        """Return the mean loss and the errors of every trial on the held-out data. A trial that the last update blew up
        ends here.
        """
        out: list[dict[str, float]] = [{} for _ in range(self.num_trials)]
        if all(self.ended < self.setting.steps):
            return out
        state, monitor = self.train_step.state, self.train_step.monitor
        total: Tensor = torch.zeros(len(self.live), dtype=torch.float64, device=self.setup.device)
        count = 0
        wrong: dict[str, Tensor] = {}
        for batch in state.data.validation_batches():
            losses_KT, ranks_KT = state.losses(batch)
            total += mean_losses(losses_KT, self.setup.backend, torch.float64)
            for name, here in ({} if ranks_KT is None else self._wrong(ranks_KT)).items():
                wrong[name] = wrong.get(name, 0.0) + here
            count += 1
        means = total / count
        shares = {name: (number / self.setting.validation_tokens).tolist() for name, number in wrong.items()}
        for row, (k, mean, bad) in enumerate(zip(self.live, means.tolist(), monitor.bad(means).tolist(), strict=True)):
            if bad and self.ended[k] > self.setting.steps:
                self.ended[k] = self.setting.steps
            errors = {f"validation_{name}": share[row] for name, share in shares.items()}
            out[k] = {"validation_loss_nats": mean, **errors}
        return out

    def _numbers(self, k: int, validation: dict[str, float]) -> dict[str, Any]:
        """Return the part of a trial's result that its spec determines."""
        diverged = self._diverged(k)
        losses = [float(loss) for loss in self.losses[:, k]]
        window = losses[-self.setting.final_window_steps :]
        return {
            "trial_id": self.stack.trials[k].id,
            "status": "finished" if diverged is None else "diverged",
            "final_window_loss_nats": float(np.mean(window)) if diverged is None else None,
            "validation_loss_nats": None,
            **(validation if diverged is None else {}),
            "diverged_step": diverged,
            "last_finite_loss_nats": losses[diverged - 1] if diverged else None,
            "curves": self._curves(k),
        }
