"""CPU benchmarks of steps: stacks against the plain ways.

Whole steps are timed in steady state, on one thread, in turns in one run: batch, forward, backward, update, balancing
rule, and reading the losses. The rows of the whole machine are wall times of processes that take turns: one worker with
a stack per core against the plain way with one thread or with as many as there are cores, of which the faster counts.
Nothing else should run meanwhile.
"""

from __future__ import annotations

import functools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from goals import measured
from products import CPU, cpu_peak_size, products_and_attention
from shares import shares_text, step_shares
from yardsticks import PlainMLPRun, PlainRun

from hpxfer.bench.cases import Case, trials
from hpxfer.bench.clock import Job, Times, interleaved, median, ratio
from hpxfer.bench.rates import CPU_WIDTHS, cpu_case, matmul, matmul_peak, stacked_step
from hpxfer.data import SampleData, data_ref
from hpxfer.executors.worker import keep_memory
from hpxfer.host.machine import num_cpus
from hpxfer.model.cost import flops_per_token
from hpxfer.plan.speeds import Row
from hpxfer.scaling.hps import HPs
from hpxfer.spec import parse_sweep
from hpxfer.spec.yaml_file import write_yaml
from hpxfer.train.device import one_thread, setup_for
from hpxfer.train.step import TrainStep
from hpxfer.trial import Trial, setting_of
from hpxfer.trial.stack import Stack

Parts = dict[tuple[str, ...], Callable[[], Sequence[Row]]]
SIZES, MOST = (1, 8, 16), 16
STEPS_ROUNDS, SAMPLE_ROUNDS = 7, 15
_REPEATS = {32: 4, 64: 2}  # of the work of a round: short steps need more for a steady clock


def repeated(run: Callable[[], object], times: int) -> Callable[[], None]:
    def job() -> None:
        for _ in range(times):
            run()

    return job


@functools.cache
def peak_size() -> int:
    return cpu_peak_size()


def peak_row() -> list[Row]:
    """Return the row of the peak of one core."""
    with one_thread():
        peak = matmul_peak(CPU, peak_size())
    return [Row(key="peak-cpu", what="float32 matmul peak, one thread", value=peak / 1e9, unit="GFLOP/s")]


def trainer_parts() -> Parts:
    """Return the parts of the trainer's table: what is measured together -> its rows."""
    threaded = one_thread()
    return {
        **{(f"machine-{w}",): lambda w=w: [machine_row(w)] for w in CPU_WIDTHS},
        **{(f"ratio-{w}", f"share-{w}"): threaded(lambda w=w: step_rows(w)) for w in CPU_WIDTHS},
        **{(f"mixtral-{w}",): threaded(lambda w=w: [mixtral_row(w)]) for w in CPU_WIDTHS},
        ("peak-cpu",): peak_row,
        ("samples-128", "samples-list-128", "samples-share-128"): threaded(lambda: sample_rows(128)),
        ("samples-32",): threaded(lambda: sample_rows(32)),
    }


def step_rows(width: int, rounds: int = STEPS_ROUNDS, case: Case | None = None) -> list[Row]:
    """Return the two rows of a width: trials/s over the plain way, and FLOP/s over the peak of the same rounds."""
    with TemporaryDirectory() as folder:
        times, flops, shares = measure(case or cpu_case(width), Path(folder), rounds, _REPEATS.get(width, 1))
    ms = {name: 1000 * median(times, name) for name in times}
    peak = 2 * peak_size() ** 3 / median(times, "peak")
    steps = {name: value for name, value in ms.items() if name not in ("products_and_attention", "peak")}
    limit, reached = (flops / (peak * ms[name] / 1000) for name in ("products_and_attention", f"stacked_{MOST}"))
    over_plain = measured(
        f"ratio-{width}",
        ratio(times, "plain", f"stacked_{MOST}"),
        note="ms a trial-step: " + ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in steps.items()),
        numbers={f"{name}_ms": value for name, value in steps.items()}
        | {f"ratio_at_{size}": ratio(times, "plain", f"stacked_{size}") for size in SIZES},
    )
    note = f"products and attention alone, stock operators, reach {limit:.2f}; {shares_text(shares)}"
    numbers = {"products_and_attention_alone": limit, "peak_gflop_per_s": peak / 1e9, **shares}
    return [over_plain, measured(f"share-{width}", reached, note=note, numbers=numbers)]


def measure(case: Case, folder: Path, rounds: int, repeats: int) -> tuple[Times, float, dict[str, float]]:
    """Return times per trial and step, FLOPs of one, and the profile of the largest stack.

    A round takes `repeats` steps of MOST trials in each way, and one square product.
    """
    members, work = trials(case, MOST, folder), MOST * repeats
    shape, setting = members[0].shape, members[0].setting
    jobs = {"plain": Job(run=repeated(plain_steps(members), repeats), count=work)}
    steps = {size: TrainStep(Stack(trials=members[:size]), setup_for("cpu")) for size in SIZES}
    for size, step in steps.items():
        jobs[f"stacked_{size}"] = Job(run=repeated(stacked_step(step), work // size), count=work)
    alone = repeated(products_and_attention(shape, setting, MOST), repeats)
    jobs |= {"products_and_attention": Job(run=alone, count=work), "peak": matmul(peak_size(), CPU)}
    times = interleaved(jobs, rounds=rounds, device=CPU)
    return times, flops_per_token(shape, setting) * setting.batch_tokens, profiled(steps[MOST])


def profiled(step: TrainStep) -> dict[str, float]:
    """Return the shares of the time of a stack's steps. They start from the stack's present state."""
    numbers, last = count(), list[Any]()

    def forward_backward() -> None:
        last[:] = step.gradients(next(numbers))

    return step_shares(forward_backward, lambda: step.update(*last), steps=3)


def mixtral_case(width: int) -> Case:
    """Return the small Mixtral of this width: eight experts of half the width, of which two are active, and four heads
    of queries for one of keys.
    """
    heads = max(4, width // 32)
    mixtral = replace(cpu_case(width), like="mixtral", head_dim=width // heads, kv_heads=heads // 4)
    return replace(mixtral, num_experts=8, num_active=2, expert_ratio=0.5)


def mixtral_row(width: int) -> Row:
    """Return the row of the small Mixtral of a width: trials/s over its plain way, beside the nanoGPT in turns."""
    cases = {"nanogpt": cpu_case(width), "mixtral": mixtral_case(width)}
    with TemporaryDirectory() as folder:
        times = beside(cases, Path(folder), STEPS_ROUNDS, _REPEATS.get(width, 1))
    ms = {name: 1000 * median(times, name) for name in times}
    ratios = {name: ratio(times, f"{name}_plain", f"{name}_stacked") for name in cases}
    return measured(
        f"mixtral-{width}",
        ratios["mixtral"],
        note=f"the nanoGPT in the same rounds {ratios['nanogpt']:.2f}; ms a trial-step: "
        + ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in ms.items()),
        numbers={f"{name}_ms": value for name, value in ms.items()} | {"nanogpt_ratio": ratios["nanogpt"]},
    )


def beside(cases: Mapping[str, Case], folder: Path, rounds: int, repeats: int = 1) -> Times:
    """Return the times of each case, in the plain way and in a stack of MOST trials, in turns."""
    jobs = {}
    for name, case in cases.items():
        members = trials(case, MOST, folder)
        stack = stacked_step(TrainStep(Stack(trials=members), setup_for("cpu")))
        for way, run in (("plain", plain_steps(members)), ("stacked", stack)):
            jobs[f"{name}_{way}"] = Job(run=repeated(run, repeats), count=MOST * repeats)
    return interleaved(jobs, rounds=rounds, device=CPU)


def plain_steps(members: tuple[Trial, ...]) -> Callable[[], None]:
    """Return a job: MOST steps of one trial in the plain way, on its own batches."""
    state = TrainStep(Stack(trials=members[:1]), setup_for("cpu")).state
    run, numbers = PlainRun(members[0], state), count()
    return repeated(lambda: run.step(state.data.train_batch(members[0].seed, next(numbers))), MOST)


def machine_row(width: int, rounds: int = 5) -> Row:
    """Return trials/s of the whole machine over the plain way. Its workers are started for it."""
    cores = num_cpus()
    with TemporaryDirectory() as folder, _workers([*[0] * cores, 1, cores], width, Path(folder)) as pipes:
        stacked, plain, repeats = pipes[:cores], pipes[cores:], {32: 16, 64: 8, 128: 4}.get(width, 2)
        fewer = max(1, repeats // 4)  # the plain way takes longer, and its threads much longer on a busy machine
        times = []
        for _ in range(rounds):
            ours = _seconds(stacked, repeats) / (MOST * repeats * cores)
            times.append([ours, *(_seconds([pipe], fewer) / (MOST * fewer) for pipe in plain)])
    ms = [1000 * statistics.median(column) for column in zip(*times, strict=True)]
    return measured(
        f"machine-{width}",
        min(statistics.median(line[plainly] / line[0] for line in times) for plainly in (1, 2)),
        note=f"ms of the machine a trial-step: plain {ms[1]:.2f}, plain on {cores} threads {ms[2]:.2f}, "
        f"{cores} workers with stacks of {MOST} {ms[0]:.2f}",
        numbers={"stacked_ms": ms[0], "plain_ms": ms[1], "plain_threads_ms": ms[2], "workers": cores},
    )


def _seconds(pipes: list[Connection], repeats: int) -> float:
    """Return the wall time until all of these workers have done their round."""
    began = time.perf_counter()
    for pipe in pipes:
        pipe.send(repeats)
    for pipe in pipes:
        pipe.recv()
    return time.perf_counter() - began


@contextmanager
def _workers(threads: Sequence[int], width: int, folder: Path) -> Iterator[list[Connection]]:
    """Start one process per number of threads of the plain way; 0 is a stack. Their pipes close at the end, so that
    they exit.
    """
    spawn = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for number, way in enumerate(threads):
        own_end, worker_end = spawn.Pipe()
        process = spawn.Process(target=_serve, args=(worker_end, way, width, folder / str(number)), daemon=True)
        process.start()
        worker_end.close()
        pipes.append(own_end)
        processes.append(process)
    try:
        for pipe in pipes:
            pipe.recv()  # the worker is ready and warm
        yield pipes
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join()


def _serve(pipe: Connection, threads: int, width: int, folder: Path) -> None:
    """Make the job of a width and run it as often as asked, until the pipe closes."""
    torch.set_num_threads(threads or 1)
    folder.mkdir()
    members = trials(cpu_case(width), MOST, folder)
    if threads:
        job = plain_steps(members)
    else:
        keep_memory()  # as workers do
        job = stacked_step(TrainStep(Stack(trials=members), setup_for("cpu")))
    job()
    pipe.send(None)
    try:
        while True:
            repeated(job, pipe.recv())()
            pipe.send(None)
    except EOFError:
        return


@dataclass(frozen=True, kw_only=True)
class SampleCase:
    """A MLP mixture and its batches of 50 samples. All experts, of 16 features each, are active."""

    width: int
    num_experts: int
    inputs: int
    classes: int
    repeats: int = 2

    @property
    def flops(self) -> int:
        """The FLOPs of a trial-step. Nothing needs the gradient by a sample."""
        block = self.num_experts * self.width * (1 + 2 * 16)
        products = self.inputs * self.width + block + self.width * self.classes
        return 2 * 50 * (3 * products - self.inputs * self.width)


SAMPLES = {
    128: SampleCase(width=128, num_experts=8, inputs=256, classes=100),
    32: SampleCase(width=32, num_experts=4, inputs=64, classes=10, repeats=8),
}


def sample_rows(width: int, rounds: int = SAMPLE_ROUNDS) -> list[Row]:
    """Return the rows of the MLP mixture: trials/s over each plain way, and FLOP/s over the peak."""
    keep_memory()  # as workers do
    case = SAMPLES[width]
    times = measure_samples(case, rounds)
    ms = {name: 1000 * median(times, name) for name in ("stacked", "batched", "listed")}
    note = "ms a trial-step: " + ", ".join(f"{name} {value:.3f}" for name, value in ms.items())
    numbers = {f"{name}_ms": value for name, value in ms.items()}
    out = [measured(f"samples-{width}", ratio(times, "batched", "stacked"), note=note, numbers=numbers)]
    if width != 128:
        return out
    peak = 2 * peak_size() ** 3 / median(times, "peak")
    share = case.flops / peak * ratio(times, "peak", "stacked") / median(times, "peak")
    return [
        *out,
        measured(f"samples-list-{width}", ratio(times, "listed", "stacked"), note=note, numbers=numbers),
        measured(f"samples-share-{width}", share, numbers={"peak_gflop_per_s": peak / 1e9, **numbers}),
    ]


def measure_samples(case: SampleCase, rounds: int) -> Times:
    """Return the times of a trial-step in each way, and of one square product, in turns."""
    with TemporaryDirectory() as folder:
        step = TrainStep(Stack(trials=sample_trials(case, MOST, Path(folder))), setup_for("cpu"))
    data, work = step.state.data, MOST * case.repeats
    assert isinstance(data, SampleData)
    jobs = {"stacked": Job(run=repeated(stacked_step(step), case.repeats), count=work)}
    jobs["peak"] = matmul(peak_size(), CPU)
    for name in ("batched", "listed"):
        run = PlainMLPRun(step.state.stack.trials[0], step.state, listed=name == "listed")
        jobs[name] = Job(run=_sample_steps(run, data, work), count=work)
    return interleaved(jobs, rounds=rounds, device=CPU)


def sample_trials(case: SampleCase, num_trials: int, folder: Path, steps: int = 4000) -> tuple[Trial, ...]:
    """Return trials of one seed, which differ in LR, on random samples. Random classes teach nothing, and a diverging
    trial would leave the stack.
    """
    path, generator = folder / f"samples-{case.inputs}-{case.classes}.npz", np.random.default_rng(0)
    x = generator.standard_normal((5000, case.inputs), dtype=np.float32)
    np.savez(path, x_train=x, y_train=generator.integers(case.classes, size=5000))
    base = {"width": case.width, "num_experts": case.num_experts, "expert_width": 16}
    sweep = {
        "name": "hpxfer-bench",
        "model": {"family": "mlp", "base": {**base, "depth": 1, "num_active": case.num_experts}},
        "data": {"source": f"npz:{path}", "epochs": steps},
        "training": {"batch_samples": 50, "steps": steps, "validation_samples": 50, "optimizer": "sgd"},
        "parameterizations": ["sp"],
        "axes": {"width": [case.width]},
        "grid": {"lr": [0.01]},
    }
    spec = parse_sweep(write_yaml(sweep), "bench")
    shape = {"shape": spec.base_shape, "base": spec.base_shape, "parameterization": None}
    setting = setting_of(spec, data_ref(spec.data))
    return tuple(
        Trial(id=f"bench-{k}", setting=setting, hps=HPs(lr=0.01 * (1 + k / num_trials)), seed=0, **shape)
        for k in range(num_trials)
    )


def _sample_steps(run: PlainMLPRun, data: SampleData, steps: int) -> Callable[[], None]:
    """Return a job: some steps of one trial in a plain way."""
    firsts = count(step=steps)

    def job() -> None:
        batches = data.train_batches(0, next(firsts), steps)
        for inputs, targets in zip(*map(torch.from_numpy, batches), strict=True):
            run.step(inputs, targets)

    return job
