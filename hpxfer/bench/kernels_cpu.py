"""Kernels on a CPU: the experts of a stack against a loop over experts, stock operators and a dense FFN."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F

from hpxfer.bench.clock import Job, interleaved, median, ratio
from hpxfer.bench.goals import WIDTHS, measured
from hpxfer.bench.layer import dense, looped, own, random_layer, stock
from hpxfer.bench.parts import Part
from hpxfer.bench.stock import both_ways, cpu_peak_row, matmul_peak, normal
from hpxfer.kernels.backend import TORCH
from hpxfer.kernels.cross_entropy import cross_entropy_rows_
from hpxfer.plan.speeds import Row
from hpxfer.train.device import one_thread

TRIALS, TOKENS, EXPERTS, VOCAB = 16, 512, 4, 128
ROUNDS = 9
_CPU = torch.device("cpu")


def parts(widths: tuple[int, ...] = WIDTHS, rounds: int = ROUNDS, num_trials: int = TRIALS) -> list[Part]:
    """Return one part per width for the experts, one for the cross entropy, and the peak."""

    @functools.cache
    def peak() -> float:
        return matmul_peak(_CPU)

    def part(key: str, row: Callable[[], Row]) -> Part:
        return Part(keys=(key,), run=one_thread()(lambda: [row()]))

    return [
        *(part(f"experts-{w}", lambda w=w: experts_row(w, rounds, num_trials, peak())) for w in widths),  # type: ignore[misc]
        part("cross-entropy-cpu", lambda: cross_entropy_row(rounds, num_trials)),
        part("peak-cpu", lambda: cpu_peak_row(peak())),
    ]


def experts_row(width: int, rounds: int, num_trials: int, peak: float) -> Row:
    """Return the speed of the op over a loop over experts, with the times of the other ways."""
    layer = random_layer(num_trials, TOKENS, width, width, EXPERTS, _CPU, torch.float32)
    jobs = {
        "own": Job(run=both_ways(lambda: own(layer, TORCH), layer.leaves)),
        "loop": Job(run=both_ways(lambda: looped(layer), layer.leaves)),
        "grouped_mm": Job(run=both_ways(lambda: stock(layer), layer.leaves)),
        "dense": Job(run=dense(layer)),
    }
    times = interleaved(jobs, rounds=rounds, device=_CPU)
    seconds = median(times, "own")
    return measured(
        f"experts-{width}",
        ratio(times, "loop", "own"),
        note=(
            f"{1000 * seconds:.2f} ms, {layer.flops / seconds / peak:.2f} of the matmul peak, "
            f"{ratio(times, 'grouped_mm', 'own'):.2f} times an F.grouped_mm layer, "
            f"{ratio(times, 'dense', 'own'):.2f} of a dense FFN of equal FLOPs"
        ),
        numbers={f"{name}_ms": 1000 * median(times, name) for name in jobs} | {"of_peak": layer.flops / seconds / peak},
    )


def cross_entropy_row(rounds: int, num_trials: int) -> Row:
    """Return the speed of the in-place losses over F.cross_entropy and its backward pass."""
    logits = normal(num_trials * TOKENS, VOCAB, device=_CPU)
    targets = torch.arange(len(logits)) % VOCAB
    leaf, scratch = logits.clone().requires_grad_(), torch.empty_like(logits)

    def stock_losses() -> object:
        return torch.autograd.grad(F.cross_entropy(leaf, targets, reduction="sum"), leaf)

    jobs = {
        "own": Job(prepare=lambda: scratch.copy_(logits), run=lambda: cross_entropy_rows_(scratch, targets)),
        "stock": Job(run=stock_losses),
    }
    times = interleaved(jobs, rounds=rounds, device=_CPU)
    return Row(
        key="cross-entropy-cpu",
        what=f"cross entropy and its gradient over F.cross_entropy, {len(logits)} x {VOCAB}",
        value=ratio(times, "stock", "own"),
        unit="x",
        numbers={f"{name}_ms": 1000 * median(times, name) for name in jobs},
    )
