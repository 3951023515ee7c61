"""The trainer on a GPU, through its public entry point: tokens/s in steady state, against peaks of the same run.

The trainer reports progress about once per second, after it has waited for the device. A rate is the median over the
intervals between reports. What comes before the first report, compilation and capture, is left out. Logs and probes are
included.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from hpxfer.bench.cases import Case, trials
from hpxfer.bench.clock import now
from hpxfer.bench.goals import measured
from hpxfer.bench.parts import Part
from hpxfer.bench.stock import copy_peak, cuda_peak_rows, matmul_peak
from hpxfer.bench.sweep import CUDA_CASE
from hpxfer.errors import HpxferError
from hpxfer.model.cost import count_params, flops_per_token
from hpxfer.plan.speeds import Row
from hpxfer.train.trainer import train
from hpxfer.trial.events import Ended
from hpxfer.trial.stack import Stack

MIN_INTERVALS = 3
# Enough for some ten reports at the speed of the goals. The host reads the losses once in 16 steps.
BASE_TOKENS, LARGE_STEPS, STACKED_STEPS, ALONE_STEPS = 2**24, 96, 256, 4096
# Expert ratio 3 gives 2.1B parameters at width 2048 with 16 layers.
LARGE = replace(CUDA_CASE, width=2048, depth=16, expert_ratio=3, head_dim=128, batch_tokens=65536, steps=LARGE_STEPS)
# Bytes as tokens: at this width a large vocabulary would make it a benchmark of the readout.
SMALL = replace(CUDA_CASE, width=128, depth=4, head_dim=32, vocab_size=256, context=256, batch_tokens=8192)
SMALL_TRIALS = 64

Mark = tuple[float, int]


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The speed of one case."""

    tokens_per_s: float
    flop_per_s: float
    params: int


def parts(device: torch.device) -> list[Part]:
    """Return the parts of the GPU's trainer table, and the peaks of the run."""
    peaks = functools.cache(lambda: (matmul_peak(device), copy_peak(device)))

    def part(keys: tuple[str, ...], rows: Callable[[Path], Iterable[Row]]) -> Part:
        def run() -> Iterator[Row]:
            with TemporaryDirectory() as name:
                yield from rows(Path(name))

        return Part(keys=keys, run=run)

    def base(batch_tokens: int) -> Part:
        keys = tuple(f"{what}-{batch_tokens // 1024}k" for what in ("base", "twin"))
        return part(keys, lambda folder: base_rows(batch_tokens, folder, device, peaks()[0]))

    return [
        base(32768),
        base(65536),
        part(("large-mfu", "large-twin"), lambda folder: large_rows(folder, device, peaks()[0])),
        part(("stack-64",), lambda folder: [stack_row(8192, folder, device)]),
        part(("stack-64-2k",), lambda folder: [stack_row(2048, folder, device)]),
        part(("strict",), lambda folder: [strict_row(folder, device)]),
        Part(keys=("peak-cuda", "copy-cuda"), run=lambda: cuda_peak_rows(*peaks())),
    ]


def base_case(batch_tokens: int) -> Case:
    """Return the base trial with this many tokens per step."""
    return replace(CUDA_CASE, batch_tokens=batch_tokens, steps=BASE_TOKENS // batch_tokens)


def base_rows(batch_tokens: int, folder: Path, device: torch.device, peak: float) -> list[Row]:
    """Return the base trial's rate, and its ratio to the dense twin's."""
    case, label = base_case(batch_tokens), f"{batch_tokens // 1024}k"
    moe, twin = (rate(twin_case, folder, device) for twin_case in (case, replace(case, dense=True)))
    return [
        _row(f"base-{label}", moe.tokens_per_s / 1e6, moe, peak),
        _row(f"twin-{label}", moe.tokens_per_s / twin.tokens_per_s, twin, peak, "_of_the_twin"),
    ]


def large_rows(folder: Path, device: torch.device, peak: float) -> list[Row]:
    """Return the large trial's MFU, and its ratio to the dense twin's."""
    moe, twin = (rate(twin_case, folder, device) for twin_case in (LARGE, replace(LARGE, dense=True)))
    return [
        _row("large-mfu", moe.flop_per_s / peak, moe, peak),
        _row("large-twin", moe.tokens_per_s / twin.tokens_per_s, twin, peak, "_of_the_twin"),
    ]


def small_case(batch_tokens: int, trials_at_once: int = 1) -> Case:
    """Return the small trial, with as many steps as a stack of this size needs for some ten reports."""
    steps = min(ALONE_STEPS, max(STACKED_STEPS, 2 * ALONE_STEPS // trials_at_once))
    steps *= SMALL.batch_tokens // batch_tokens
    return replace(SMALL, batch_tokens=batch_tokens, steps=steps)


def stack_row(batch_tokens: int, folder: Path, device: torch.device) -> Row:
    """Return trials per hour, stacked and one at a time, both compiled and warm."""
    stacked = rate(small_case(batch_tokens, SMALL_TRIALS), folder, device, trials_at_once=SMALL_TRIALS)
    alone = rate(small_case(batch_tokens), folder, device)
    return measured(
        "stack-64" if batch_tokens == SMALL.batch_tokens else f"stack-64-{batch_tokens // 1024}k",
        stacked.tokens_per_s / alone.tokens_per_s,
        note=f"vocabulary {SMALL.vocab_size}, context {SMALL.context}",
        numbers={"stacked_tokens_per_s": stacked.tokens_per_s, "alone_tokens_per_s": alone.tokens_per_s},
    )


def strict_row(folder: Path, device: torch.device) -> Row:
    """Return the speed of strict determinism over that of fast."""
    rates = {how: rate(base_case(32768), folder, device, determinism=how) for how in ("fast", "strict")}
    numbers = {f"{how}_tokens_per_s": measured_rate.tokens_per_s for how, measured_rate in rates.items()}
    return measured("strict", rates["strict"].tokens_per_s / rates["fast"].tokens_per_s, numbers=numbers)


def rate(
    case: Case, folder: Path, device: torch.device, *, trials_at_once: int = 1, determinism: str | None = None
) -> Rate:
    """Return the speed of one stack: the median over the intervals between its reports."""
    torch.compiler.reset()  # each case compiles as in a process of its own, because torch gives up after a few shapes
    members = trials(case, trials_at_once, folder)
    marks = progress(Stack(trials=members), device, determinism)
    shape, setting = members[0].shape, members[0].setting
    tokens_per_s = steady(marks)
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


def _row(key: str, value: float, of: Rate, peak: float, whose: str = "") -> Row:
    numbers = {
        f"m_tokens_per_s{whose}": of.tokens_per_s / 1e6,
        f"mfu{whose}": of.flop_per_s / peak,
        f"m_params{whose}": of.params / 1e6,
    }
    return measured(key, value, numbers=numbers)
