"""Rates: how fast stacks train on this machine, in steady state.

On a CPU core these are stacks of 16 small trials of several widths, whose steps are timed alone. On a GPU the trainer
runs through its public entry point: it reports progress about once per second, after it has waited for the device. A
rate is the median over the intervals between reports, so compilation and capture are left out.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from hpxfer.bench.cases import Case, trials
from hpxfer.bench.clock import Job, interleaved, median, now, ratio
from hpxfer.errors import HpxferError
from hpxfer.executors import keep_memory
from hpxfer.kernels.orthogonal import STEPS, orthogonal
from hpxfer.model.cost import count_params, flops_per_token, optimizer_share
from hpxfer.plan import GPU_SHARE, Row, stack_bytes
from hpxfer.train.device import one_thread, setup_for
from hpxfer.train.step import TrainStep
from hpxfer.train.trainer import train
from hpxfer.trial import Ended, Stack

CPU_WIDTHS, CPU_TRIALS, CPU_ROUNDS = (32, 64, 128, 256), 16, 7
MUON_TOKENS = 4096  # of a step, as in the published sweeps of Muon
MIN_INTERVALS = 3
PEAK_SIZE, PEAK_ROUNDS = 8192, 9
# Enough for some ten reports. The host reads the losses once in 16 steps.
BASE_TOKENS, LARGE_STEPS, STACKED_STEPS, ALONE_STEPS = 2**24, 96, 256, 4096
BASE = Case(
    width=512,
    depth=8,
    head_dim=64,
    vocab_size=50304,
    context=1024,
    batch_tokens=32768,
    steps=BASE_TOKENS // 32768,
    precision="bfloat16",
)
# Expert ratio 3 gives 2.1B parameters at width 2048 with 16 layers.
LARGE = replace(BASE, width=2048, depth=16, expert_ratio=3, head_dim=128, batch_tokens=65536, steps=LARGE_STEPS)
# Bytes as tokens: at this width a large vocabulary would make it a benchmark of the readout.
SMALL = replace(BASE, width=128, depth=4, head_dim=32, vocab_size=256, context=256, batch_tokens=8192)

Mark = tuple[float, int]


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The speed of one case."""

    tokens_per_s: float
    flop_per_s: float
    params: int


def rows(device: torch.device) -> dict[str, Callable[[], Row | None]]:
    """Return key -> what measures this row, in order. None comes back from a case that does not fit the GPU."""
    if device.type == "cpu":
        return {
            **{f"width-{width}": functools.partial(cpu_row, width) for width in CPU_WIDTHS},
            **{f"muon-{width}": functools.partial(muon_row, width) for width in CPU_WIDTHS},
        }
    peak = functools.cache(lambda: matmul_peak(device))

    def peak_row() -> Row:
        return Row(key="peak-cuda", what="bf16 matmul peak, 8192^3", value=peak() / 1e12, unit="TFLOP/s")

    stacks = {f"stack-{size}": functools.partial(stack_row, size, device) for size in (1, 8, 64)}
    cases = {"base-32k": base_case(32768), "base-64k": base_case(65536), "large": LARGE}
    return {
        "peak-cuda": peak_row,
        **stacks,
        **{key: lambda key=key, case=case: alone_row(key, case, device, peak()) for key, case in cases.items()},  # type: ignore[misc]
    }


def cpu_row(width: int, rounds: int = CPU_ROUNDS) -> Row:
    """Return the speed of a stack on one core, with the time and the FLOPs of a token."""
    case = cpu_case(width)
    with one_thread(), TemporaryDirectory() as folder:
        keep_memory()  # as workers do
        stack = Stack(trials=trials(case, CPU_TRIALS, Path(folder)))
        job = Job(run=stacked_step(TrainStep(stack, setup_for("cpu"))), count=CPU_TRIALS * case.batch_tokens)
        seconds = median(interleaved({"stack": job}, rounds=rounds, device=torch.device("cpu")), "stack")
    flops = flops_per_token(stack.shape, stack.trials[0].setting)
    return Row(
        key=f"width-{width}",
        what=f"width {width}: a stack of {CPU_TRIALS} trials on one core",
        value=1e-6 / seconds,
        unit="M tokens/s",
        numbers={"us_per_token": 1e6 * seconds, "flop_per_token": flops},
    )


def muon_row(width: int, rounds: int = CPU_ROUNDS) -> Row:
    """Return the share of Muon in the step of one trial on one core, and how fast its steps multiply matrices.

    The rate is that of all Newton-Schulz steps of the experts' matrices, over that of one batched product of the same
    matrices.
    """
    case = replace(cpu_case(width), optimizer="muon", batch_tokens=MUON_TOKENS, steps=4 * rounds)
    with one_thread(), TemporaryDirectory() as folder:
        keep_memory()
        step = TrainStep(Stack(trials=trials(case, 1, Path(folder))), setup_for("cpu"))
        _, grads = step.state.forward_backward(0)
        u_EIO = torch.randn(case.num_experts, width, width)
        jobs = {
            "step": Job(run=stacked_step(step)),
            "optimizer": Job(run=lambda: step.state.optimizer.step(grads, 1.0, None)),
            "orthogonal": Job(run=lambda: orthogonal(u_EIO), count=3 * STEPS),  # three products in each of its steps
            "product": Job(run=lambda: torch.bmm(u_EIO, u_EIO)),
        }
        times = interleaved(jobs, rounds=rounds, device=torch.device("cpu"))
    (trial,) = step.state.stack.trials
    return Row(
        key=f"muon-{width}",
        what=f"width {width}: Muon's share of a step of {MUON_TOKENS} tokens on one core",
        value=1 / ratio(times, "step", "optimizer"),
        unit="of a step",
        numbers={
            "share_of_flops": optimizer_share(trial.shape, trial.setting),
            "rate_over_product": 1 / ratio(times, "orthogonal", "product"),
        },
    )


def cpu_case(width: int) -> Case:
    """Return the model and the run of the CPU rows at this width. It has more steps than any stack takes here."""
    return Case(width=width, depth=2, head_dim=32, vocab_size=128, context=64, batch_tokens=512, steps=4000)


def stacked_step(step: TrainStep) -> Callable[[], None]:
    """Return a job: one step of a stack, and reading its losses, as the trainer does after each step."""
    numbers = count()

    def job() -> None:
        number = next(numbers)
        step.update(*step.gradients(number))
        step.monitor.losses[number].tolist()
        step.monitor.ended.tolist()

    return job


def alone_row(key: str, case: Case, device: torch.device, peak: float) -> Row | None:
    """Return the rate of one trial, with its share of the GPU's peak."""
    found = rate_if_it_fits(case, device)
    return (
        None
        if found is None
        else Row(
            key=key,
            what=f"d {case.width}, {case.depth} layers, {case.batch_tokens // 1024}k tokens a step",
            value=found.tokens_per_s / 1e6,
            unit="M tokens/s",
            numbers={"mfu": found.flop_per_s / peak, "m_params": found.params / 1e6},
        )
    )


def stack_row(size: int, device: torch.device) -> Row | None:
    """Return the rate of a stack of small trials, with its tokens per step: the planner fills its stacks by it."""
    found = rate_if_it_fits(small_case(8192, size), device, size)
    return (
        None
        if found is None
        else Row(
            key=f"stack-{size}",
            what=f"d {SMALL.width}, {SMALL.depth} layers, 8k tokens a step: {size} at once",
            value=found.tokens_per_s / 1e6,
            unit="M tokens/s",
            numbers={"step_tokens": size * SMALL.batch_tokens},
        )
    )


def base_case(batch_tokens: int) -> Case:
    """Return the base trial with this many tokens per step."""
    return replace(BASE, batch_tokens=batch_tokens, steps=BASE_TOKENS // batch_tokens)


def small_case(batch_tokens: int, trials_at_once: int = 1) -> Case:
    """Return the small trial, with as many steps as a stack of this size needs for some ten reports."""
    steps = min(ALONE_STEPS, max(STACKED_STEPS, 2 * ALONE_STEPS // trials_at_once))
    return replace(SMALL, batch_tokens=batch_tokens, steps=steps * SMALL.batch_tokens // batch_tokens)


def rate_if_it_fits(case: Case, device: torch.device, num_trials: int = 1) -> Rate | None:
    """Return the speed of a stack. None if by the planner's model of memory it does not fit the GPU."""
    with TemporaryDirectory() as folder:
        (member,) = trials(replace(case, steps=1), 1, Path(folder))
    memory = torch.cuda.get_device_properties(device).total_memory
    fits = stack_bytes(member.shape, member.setting, num_trials, cuda=True) <= GPU_SHARE * memory
    return rate(case, device, num_trials=num_trials) if fits else None


def rate(case: Case, device: torch.device, *, num_trials: int = 1, determinism: str | None = None) -> Rate:
    """Return the speed of one stack: the median over the intervals between its reports."""
    torch.compiler.reset()  # each case compiles as in a process of its own, because torch gives up after a few shapes
    with TemporaryDirectory() as folder:
        members = trials(case, num_trials, Path(folder))
        tokens_per_s = steady(progress(Stack(trials=members), device, determinism))
    shape, setting = members[0].shape, members[0].setting
    return Rate(
        tokens_per_s=tokens_per_s,
        flop_per_s=tokens_per_s * flops_per_token(shape, setting),
        params=count_params(shape, setting).total,
    )


def progress(stack: Stack, device: torch.device, determinism: str | None) -> list[Mark]:
    """Return (seconds, tokens since the last report) of each report of a training. Raise HpxferError if it fails."""
    marks = []
    for event in train(stack, device.type, determinism=determinism):
        if isinstance(event, Ended):
            ends = {result.status for result in event.results}
            if ends != {"finished"}:
                raise HpxferError(f"the benchmark's trials must finish, got {sorted(ends)}; lower their LRs")
        else:
            marks.append((now(device), event.tokens))
    return marks


def steady(marks: Sequence[Mark]) -> float:
    """Return tokens/s: the median over the intervals between reports, without the start and the remainder at the
    end.
    """
    rates = [tokens / (at - before) for (before, _), (at, tokens) in itertools.pairwise(marks[:-1])]
    if len(rates) < MIN_INTERVALS:
        raise HpxferError(
            f"a rate needs {MIN_INTERVALS} intervals between reports of progress, got {len(rates)}; give more steps"
        )
    return statistics.median(rates)


def matmul(size: int, device: torch.device) -> Job:
    """Return a job: one square product of random numbers, bf16 on a GPU, into memory that is allocated before."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    generator = torch.Generator(device).manual_seed(size)
    a, b = (torch.randn(size, size, generator=generator, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return Job(run=lambda: torch.mm(a, b, out=out))


def matmul_peak(device: torch.device, size: int = PEAK_SIZE) -> float:
    """Return FLOP/s of a large square product."""
    times = interleaved({"matmul": matmul(size, device)}, rounds=PEAK_ROUNDS, device=device)
    return 2 * size**3 / median(times, "matmul")
