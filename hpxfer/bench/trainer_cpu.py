"""The trainer on a CPU: stacks of 1, 8 and 16 trials against the plain way, on one thread each, in turns in one run.

Whole steps are timed in steady state: batch, forward, backward, update, balancing rule, and reading the losses. Starts,
curves and validation are timed by `hpxfer bench sweep`.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from hpxfer.bench.cases import Case, trials
from hpxfer.bench.clock import Job, Times, interleaved, median, ratio
from hpxfer.bench.goals import WIDTHS, measured
from hpxfer.bench.parts import Part
from hpxfer.bench.plain import PlainRun
from hpxfer.bench.plain_mixtral import PlainMixtralRun
from hpxfer.bench.shares import shares_text, step_shares
from hpxfer.bench.stock import cpu_peak_row, matmul, matmul_peak, matmul_size, products_and_attention
from hpxfer.model.cost import flops_per_token
from hpxfer.plan.speeds import Row
from hpxfer.train.device import one_thread, setup_for
from hpxfer.train.step import TrainStep
from hpxfer.trial import Trial
from hpxfer.trial.stack import Stack

SIZES = (1, 8, 16)
MOST = max(SIZES)
ROUNDS = 7
PROFILED_STEPS = 3
# More steps than any stack takes here: a run is one epoch.
STEPS = 4000
# How often each round repeats its work: short steps need more repeats for a steady clock.
_REPEATS = {32: 4, 64: 2}
_CPU, _PEAK = torch.device("cpu"), "peak"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The times of one width per trial and step, and the profile of its largest stack."""

    times: Times
    peak: float  # FLOP/s of a square product in the same rounds
    flops: float  # per trial and step
    shares: dict[str, float]


def parts(widths: tuple[int, ...] = WIDTHS, rounds: int = ROUNDS) -> list[Part]:
    """Return one part per width (the speed over the plain way, and the share of the peak), one per width of a small
    Mixtral beside it, and the peak.
    """
    peaks: list[float] = []
    size = functools.cache(lambda: matmul_size(_CPU))

    def rows(width: int) -> tuple[Row, Row]:
        with one_thread(), TemporaryDirectory() as folder:
            found = measure(cpu_case(width), Path(folder), rounds, size(), _REPEATS.get(width, 1))
        peaks.append(found.peak)
        return rows_of(width, found)

    def peak() -> list[Row]:
        with one_thread():
            return [cpu_peak_row(statistics.median(peaks) if peaks else matmul_peak(_CPU))]

    def part(width: int) -> Part:
        return Part(keys=(f"ratio-{width}", f"share-{width}"), run=lambda: rows(width))

    def mixtral(width: int) -> Part:
        return Part(keys=(f"mixtral-{width}",), run=lambda: [mixtral_row(width, rounds)])

    return [*map(part, widths), *map(mixtral, widths), Part(keys=("peak-cpu",), run=peak)]


def mixtral_row(width: int, rounds: int) -> Row:
    """Return the row of the small Mixtral of a width: trials/s over its plain way, beside the nanoGPT in turns."""
    cases = {"nanogpt": cpu_case(width), "mixtral": mixtral_case(width)}
    with one_thread(), TemporaryDirectory() as folder:
        times = beside(cases, Path(folder), rounds, _REPEATS.get(width, 1))
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
            jobs[f"{name}_{way}"] = Job(run=_repeated(run, repeats), count=MOST * repeats)
    return interleaved(jobs, rounds=rounds, device=_CPU)


def rows_of(width: int, found: Measured) -> tuple[Row, Row]:
    """Return the two rows of a width: trials/s over the plain way, and FLOP/s over the peak."""
    ms = {name: 1000 * median(found.times, name) for name in found.times}
    stacked, alone = f"stacked_{MOST}", "products_and_attention"
    steps = {name: value for name, value in ms.items() if name not in (alone, _PEAK)}
    ratios = measured(
        f"ratio-{width}",
        ratio(found.times, "plain", stacked),
        note="ms a trial-step: " + ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in steps.items()),
        numbers={f"{name}_ms": value for name, value in steps.items()}
        | {f"ratio_at_{size}": ratio(found.times, "plain", f"stacked_{size}") for size in SIZES},
    )
    limit = found.flops / (found.peak * ms[alone] / 1000)
    shares = measured(
        f"share-{width}",
        found.flops / (found.peak * ms[stacked] / 1000),
        note=f"products and attention alone, stock operators, reach {limit:.2f}; {shares_text(found.shares)}",
        numbers={"products_and_attention_alone": limit, "peak_gflop_per_s": found.peak / 1e9, **found.shares},
    )
    return ratios, shares


def measure(case: Case, folder: Path, rounds: int, peak_size: int, repeats: int = 1) -> Measured:
    """Return the times of one width. A round takes `repeats` steps of MOST trials in each way, and one square
    product.
    """
    members = trials(case, MOST, folder)
    shape, setting = members[0].shape, members[0].setting
    jobs = {"plain": Job(run=_repeated(plain_steps(members), repeats), count=MOST * repeats)}
    steps = {size: TrainStep(Stack(trials=members[:size]), setup_for("cpu")) for size in SIZES}
    for size, step in steps.items():
        again = repeats * MOST // size
        jobs[f"stacked_{size}"] = Job(run=_repeated(stacked_step(step), again), count=MOST * repeats)
    alone = _repeated(products_and_attention(shape, setting, MOST), repeats)
    jobs["products_and_attention"] = Job(run=alone, count=MOST * repeats)
    jobs[_PEAK] = matmul(peak_size, _CPU)
    times = interleaved(jobs, rounds=rounds, device=_CPU)
    return Measured(
        times=times,
        peak=2 * peak_size**3 / median(times, _PEAK),
        flops=flops_per_token(shape, setting) * setting.batch_tokens,
        shares=_profiled(steps[MOST]),
    )


def cpu_case(width: int) -> Case:
    """Return the model and the run of the CPU rows at this width."""
    return Case(width=width, depth=2, head_dim=32, vocab_size=128, context=64, batch_tokens=512, steps=STEPS)


def mixtral_case(width: int) -> Case:
    """Return the small Mixtral of this width: eight experts of half the width, of which two are active, and four heads
    of queries for one of keys.
    """
    heads = max(4, width // 32)
    mixtral = replace(cpu_case(width), like="mixtral", head_dim=width // heads, kv_heads=heads // 4)
    return replace(mixtral, num_experts=8, num_active=2, expert_ratio=0.5)


def _repeated(run: Callable[[], object], times: int) -> Callable[[], None]:
    def job() -> None:
        for _ in range(times):
            run()

    return job


def plain_steps(members: tuple[Trial, ...]) -> Callable[[], None]:
    """Return a job: MOST steps of one trial in the plain way, on its own batches."""
    state = TrainStep(Stack(trials=members[:1]), setup_for("cpu")).state
    is_mixtral = members[0].setting.norm == "rmsnorm"
    run = PlainMixtralRun(members[0], state) if is_mixtral else PlainRun(members[0], state)
    numbers = count()

    def job() -> None:
        for _ in range(MOST):
            run.step(state.data.train_batch(members[0].seed, next(numbers)))

    return job


def stacked_step(step: TrainStep) -> Callable[[], None]:
    """Return a job: one step of a stack, and reading its losses, as the trainer does after each step."""
    numbers = count()

    def job() -> None:
        number = next(numbers)
        step.update(*step.gradients(number))
        step.monitor.losses[number].tolist()
        step.monitor.ended.tolist()

    return job


def _profiled(step: TrainStep) -> dict[str, float]:
    """Return the shares of the time of a stack's steps. They start from the stack's present state."""
    numbers, last = count(), list[Any]()

    def forward_backward() -> None:
        last[:] = step.gradients(next(numbers))

    return step_shares(forward_backward, lambda: step.update(*last), PROFILED_STEPS)
