"""The MLP mixture on a CPU: a stack of 16 trials against two plain ways and a square product, in turns in one run.

Whole steps are timed in steady state, on random samples: batch, forward, backward, update, and reading the losses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from hpxfer.bench.clock import Job, Times, interleaved, median, ratio
from hpxfer.bench.goals import measured
from hpxfer.bench.parts import Part
from hpxfer.bench.plain_mlp import PlainMLPRun
from hpxfer.bench.stock import matmul, matmul_size
from hpxfer.data import SampleData, data_ref
from hpxfer.executors.worker import keep_memory
from hpxfer.plan.speeds import Row
from hpxfer.scaling.hps import HPs
from hpxfer.spec import parse_sweep
from hpxfer.spec.yaml_file import write_yaml
from hpxfer.train.device import one_thread, setup_for
from hpxfer.train.step import TrainStep
from hpxfer.trial import Trial, setting_of
from hpxfer.trial.stack import Stack

TRIALS = 16
ROUNDS = 15
STEPS = 4000  # more than any stack takes here
SAMPLES = 5000
LR = 0.01  # random classes teach nothing, and a diverging trial would leave the stack
_CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class SampleCase:
    """A model and its batches. All experts are active."""

    width: int
    num_experts: int
    expert_width: int = 16
    inputs: int
    classes: int
    batch: int = 50
    repeats: int = 2  # of the work of a round: short steps need more for a steady clock

    @property
    def flops(self) -> int:
        """The FLOPs of a trial-step. Nothing needs the gradient by a sample."""
        block = self.num_experts * self.width * (1 + 2 * self.expert_width)
        products = self.inputs * self.width + block + self.width * self.classes
        return 2 * self.batch * (3 * products - self.inputs * self.width)


CASES = {
    128: SampleCase(width=128, num_experts=8, inputs=256, classes=100),
    32: SampleCase(width=32, num_experts=4, inputs=64, classes=10, repeats=8),
}


def parts(rounds: int = ROUNDS) -> list[Part]:
    """Return the part of each width."""

    def part(width: int, keys: tuple[str, ...]) -> Part:
        @one_thread()
        def run() -> list[Row]:
            keep_memory()  # as workers do
            case, size = CASES[width], matmul_size(_CPU)
            return [row for row in rows_of(width, case, measure(case, rounds, size), size) if row.key in keys]

        return Part(keys=keys, run=run)

    return [part(128, ("samples-128", "samples-list-128", "samples-share-128")), part(32, ("samples-32",))]


def rows_of(width: int, case: SampleCase, times: Times, peak_size: int) -> list[Row]:
    """Return the rows of given times: trials/s over each plain way, and FLOP/s over the peak."""
    ms = {name: 1000 * median(times, name) for name in ("stacked", "batched", "listed")}
    note = "ms a trial-step: " + ", ".join(f"{name} {value:.3f}" for name, value in ms.items())
    numbers = {f"{name}_ms": value for name, value in ms.items()}
    out = [measured(f"samples-{width}", ratio(times, "batched", "stacked"), note=note, numbers=numbers)]
    if width != 128:
        return out
    peak = 2 * peak_size**3 / median(times, "peak")
    share = case.flops / peak * ratio(times, "peak", "stacked") / median(times, "peak")
    return [
        *out,
        measured(f"samples-list-{width}", ratio(times, "listed", "stacked"), note=note, numbers=numbers),
        measured(f"samples-share-{width}", share, numbers={"peak_gflop_per_s": peak / 1e9, **numbers}),
    ]


def measure(case: SampleCase, rounds: int, peak_size: int) -> Times:
    """Return the times of a trial-step in each way, and of one square product, in turns."""
    with TemporaryDirectory() as folder:
        step = TrainStep(Stack(trials=trials_of(case, TRIALS, Path(folder))), setup_for("cpu"))
    data = step.state.data
    assert isinstance(data, SampleData)
    work = TRIALS * case.repeats
    jobs = {"stacked": Job(run=_steps_of(step, case.repeats), count=work), "peak": matmul(peak_size, _CPU)}
    for name in ("batched", "listed"):
        run = PlainMLPRun(step.state.stack.trials[0], step.state, listed=name == "listed")
        jobs[name] = Job(run=_plain_steps(run, data, work), count=work)
    return interleaved(jobs, rounds=rounds, device=_CPU)


def trials_of(case: SampleCase, num_trials: int, folder: Path) -> tuple[Trial, ...]:
    """Return trials of one seed, which differ in LR. Their data is written to `folder`."""
    path = folder / f"samples-{case.inputs}-{case.classes}.npz"
    if not path.exists():
        generator = np.random.default_rng(0)
        x = generator.standard_normal((SAMPLES, case.inputs), dtype=np.float32)
        np.savez(path, x_train=x, y_train=generator.integers(case.classes, size=SAMPLES))
    base = {name: getattr(case, name) for name in ("width", "num_experts", "expert_width")}
    sweep = {
        "name": "hpxfer-bench",
        "model": {"family": "mlp", "base": {**base, "depth": 1, "num_active": case.num_experts}},
        "data": {"source": f"npz:{path}", "epochs": STEPS},
        "training": {
            "batch_samples": case.batch,
            "steps": STEPS,
            "validation_samples": case.batch,
            "optimizer": "sgd",
        },
        "parameterizations": ["sp"],
        "axes": {"width": [case.width]},
        "grid": {"lr": [LR]},
    }
    spec = parse_sweep(write_yaml(sweep), "bench")
    setting = setting_of(spec, data_ref(spec.data))
    return tuple(
        Trial(
            id=f"bench-{k}",
            setting=setting,
            shape=spec.base_shape,
            base=spec.base_shape,
            parameterization=None,
            hps=HPs(lr=LR * (1 + k / num_trials)),
            seed=0,
        )
        for k in range(num_trials)
    )


def _steps_of(step: TrainStep, repeats: int) -> Callable[[], None]:
    """Return a job: some steps of a stack, and reading their losses, as the trainer does after each step."""
    numbers = count()

    def job() -> None:
        for _ in range(repeats):
            number = next(numbers)
            step.update(*step.gradients(number))
            step.monitor.losses[number].tolist()
            step.monitor.ended.tolist()

    return job


def _plain_steps(run: PlainMLPRun, data: SampleData, steps: int) -> Callable[[], None]:
    """Return a job: some steps of one trial in a plain way."""
    firsts = count(step=steps)

    def job() -> None:
        batches = data.train_batches(0, next(firsts), steps)
        for inputs, targets in zip(*map(torch.from_numpy, batches), strict=True):
            run.step(inputs, targets)

    return job
