"""CPU benchmarks of steps: stacks against the plain ways, in steady state, on one thread, in turns in one run.

A step is batch, forward, backward, update, balancing rule, and reading the losses. The rows of the whole machine are
wall times of processes that take turns: one worker with a stack per core against the plain way with one thread or with
as many as there are cores, of which the faster counts. Nothing else should run meanwhile.
"""

from __future__ import annotations

import functools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from goals import measured, ms_of
from products import CPU, cpu_peak_size, products_and_attention, repeated
from shares import shares_text, step_shares
from yardsticks import PlainMLPRun, PlainRun

from hpxfer.bench.cases import Case, trials
from hpxfer.bench.clock import Job, Times, interleaved, median, ratio
from hpxfer.bench.rates import CPU_WIDTHS, cpu_case, matmul, matmul_peak, stacked_step
from hpxfer.data import SampleData, data_ref
from hpxfer.executors.worker import keep_memory
from hpxfer.host.machine import num_cpus
from hpxfer.model.cost import flops_per_token
from hpxfer.plan.hardware import Row
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
peak_size = functools.cache(cpu_peak_size)


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


def ms_text(numbers: Mapping[str, float], digits: int = 2) -> str:
    parts = (f"{name.removesuffix('_ms').replace('_', ' ')} {value:.{digits}f}" for name, value in numbers.items())
    return "ms a trial-step: " + ", ".join(parts)


def step_rows(width: int, rounds: int = STEPS_ROUNDS, case: Case | None = None) -> list[Row]:
    """Return the two rows of a width: trials/s over the plain way, and FLOP/s over the peak of the same rounds."""
    with TemporaryDirectory() as folder:
        times, flops, shares = measure(case or cpu_case(width), Path(folder), rounds, _REPEATS.get(width, 1))
    peak = 2 * peak_size() ** 3 / median(times, "peak")
    limit, reached = (flops / peak / median(times, name) for name in ("products_and_attention", f"stacked_{MOST}"))
    ms = ms_of(times, "plain", *(f"stacked_{size}" for size in SIZES))
    numbers = ms | {f"ratio_at_{size}": ratio(times, "plain", f"stacked_{size}") for size in SIZES}
    over_plain = measured(f"ratio-{width}", numbers[f"ratio_at_{MOST}"], note=ms_text(ms), numbers=numbers)
    note = f"products and attention alone, stock operators, reach {limit:.2f}; {shares_text(shares)}"
    numbers = {"products_and_attention_alone": limit, "peak_gflop_per_s": peak / 1e9, **shares}
    return [over_plain, measured(f"share-{width}", reached, note=note, numbers=numbers)]


def measure(case: Case, folder: Path, rounds: int, repeats: int) -> tuple[Times, float, dict[str, float]]:
    """Return times per trial and step, FLOPs of one, and the profile of the largest stack.

    A round takes `repeats` steps of MOST trials in each way, and one square product.
    """
    members, work = trials(case, MOST, folder), MOST * repeats
    shape, setting = members[0].shape, members[0].setting
    steps = {size: TrainStep(Stack(trials=members[:size]), setup_for("cpu")) for size in SIZES}
    runs = {"plain": repeated(plain_steps(members), repeats)}
    runs |= {f"stacked_{size}": repeated(stacked_step(step), work // size) for size, step in steps.items()}
    runs["products_and_attention"] = repeated(products_and_attention(shape, setting, MOST), repeats)
    jobs = {name: Job(run=run, count=work) for name, run in runs.items()} | {"peak": matmul(peak_size(), CPU)}
    times = interleaved(jobs, rounds=rounds, device=CPU)
    numbers, last, step = count(), list[Any](), steps[MOST]

    def forward_backward() -> None:
        last[:] = step.gradients(next(numbers))

    shares = step_shares(forward_backward, lambda: step.update(*last), steps=3)
    return times, flops_per_token(shape, setting) * setting.batch_tokens, shares


def mixtral_case(width: int) -> Case:
    """Return the small Mixtral of this width: eight experts of half the width, of which two are active, and four heads
    of queries for one of keys.
    """
    heads = max(4, width // 32)
    mixtral = replace(cpu_case(width), like="mixtral", head_dim=width // heads, kv_heads=heads // 4)
    return replace(mixtral, num_experts=8, num_active=2, expert_ratio=0.5)


def mixtral_row(width: int) -> Row:
    """Return the row of the small Mixtral of a width: trials/s over its plain way, beside the nanoGPT in turns."""
    jobs, repeats = {}, _REPEATS.get(width, 1)
    with TemporaryDirectory() as folder:
        for name, case in (("nanogpt", cpu_case(width)), ("mixtral", mixtral_case(width))):
            members = trials(case, MOST, Path(folder))
            stack = stacked_step(TrainStep(Stack(trials=members), setup_for("cpu")))
            for way, run in (("plain", plain_steps(members)), ("stacked", stack)):
                jobs[f"{name}_{way}"] = Job(run=repeated(run, repeats), count=MOST * repeats)
        times = interleaved(jobs, rounds=STEPS_ROUNDS, device=CPU)
    own, other = (ratio(times, f"{name}_plain", f"{name}_stacked") for name in ("mixtral", "nanogpt"))
    note, ms = f"the nanoGPT in the same rounds {other:.2f}", ms_of(times)
    return measured(f"mixtral-{width}", own, note=f"{note}; {ms_text(ms)}", numbers=ms | {"nanogpt_ratio": other})


def plain_steps(members: tuple[Trial, ...]) -> Callable[[], None]:
    """Return a job: MOST steps of one trial in the plain way, on its own batches."""
    state = TrainStep(Stack(trials=members[:1]), setup_for("cpu")).state
    run, numbers = PlainRun(members[0], state), count()
    return repeated(lambda: run.step(state.data.train_batch(members[0].seed, next(numbers))), MOST)


def machine_row(width: int, rounds: int = 5) -> Row:
    """Return trials/s of the whole machine over the plain way. Its workers are started for it."""
    cores, times = num_cpus(), []
    repeats = {32: 16, 64: 8, 128: 4}.get(width, 2)
    fewer = max(1, repeats // 4)  # the plain way takes longer, and its threads much longer on a busy machine
    with TemporaryDirectory() as folder, ExitStack() as stack:
        spawn = {"max_workers": 1, "mp_context": multiprocessing.get_context("spawn"), "initializer": _make}
        workers = [
            stack.enter_context(ProcessPoolExecutor(**spawn, initargs=(threads, width, Path(folder, str(number)))))
            for number, threads in enumerate([*[0] * cores, 1, cores])
        ]
        _seconds(workers, 1)  # they are ready and warm
        for _ in range(rounds):
            ours = _seconds(workers[:cores], repeats) / (MOST * repeats * cores)
            times.append([ours, *(_seconds([plain], fewer) / (MOST * fewer) for plain in workers[cores:])])
    ms = [1000 * statistics.median(column) for column in zip(*times, strict=True)]
    return measured(
        f"machine-{width}",
        min(statistics.median(line[plainly] / line[0] for line in times) for plainly in (1, 2)),
        note=f"ms of the machine a trial-step: plain {ms[1]:.2f}, plain on {cores} threads {ms[2]:.2f}, "
        f"{cores} workers with stacks of {MOST} {ms[0]:.2f}",
        numbers={"stacked_ms": ms[0], "plain_ms": ms[1], "plain_threads_ms": ms[2], "workers": cores},
    )


def _seconds(workers: Sequence[ProcessPoolExecutor], repeats: int) -> float:
    """Return the wall time until all of these workers have done their round."""
    began = time.perf_counter()
    for ended in [worker.submit(_work, repeats) for worker in workers]:
        ended.result()
    return time.perf_counter() - began


def _make(threads: int, width: int, folder: Path) -> None:
    """Make the job of a width in a worker: so many threads of the plain way; 0 is a stack."""
    global _job
    torch.set_num_threads(threads or 1)
    folder.mkdir()
    members = trials(cpu_case(width), MOST, folder)
    if threads:
        _job = plain_steps(members)
    else:
        keep_memory()  # as workers do
        _job = stacked_step(TrainStep(Stack(trials=members), setup_for("cpu")))


def _work(repeats: int) -> None:
    repeated(_job, repeats)()


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
    numbers = ms_of(times, "stacked", "batched", "listed")
    given = {"note": ms_text(numbers, 3), "numbers": numbers}
    out = [measured(f"samples-{width}", ratio(times, "batched", "stacked"), **given)]
    if width != 128:
        return out
    peak = 2 * peak_size() ** 3 / median(times, "peak")
    share = case.flops / peak * ratio(times, "peak", "stacked") / median(times, "peak")
    return [
        *out,
        measured(f"samples-list-{width}", ratio(times, "listed", "stacked"), **given),
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

    def plain(run: PlainMLPRun, firsts: count[int]) -> None:
        for batch in zip(*map(torch.from_numpy, data.train_batches(0, next(firsts), work)), strict=True):
            run.step(*batch)

    for name in ("batched", "listed"):
        run = PlainMLPRun(step.state.stack.trials[0], step.state, listed=name == "listed")
        jobs[name] = Job(run=functools.partial(plain, run, count(step=work)), count=work)
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
    setting, hps = (
        setting_of(spec, data_ref(spec.data)),
        [HPs(lr=0.01 * (1 + k / num_trials)) for k in range(num_trials)],
    )
    return tuple(Trial(id=f"bench-{k}", setting=setting, hps=one, seed=0, **shape) for k, one in enumerate(hps))
