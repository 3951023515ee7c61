"""CPU benchmarks of the layers of a stack: its experts, its cross entropy, and a MoE layer along two axes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from cpu_steps import MOST, Parts, peak_row, peak_size
from goals import MOE_SIZES, measured, ms_of
from products import CPU, both_ways, dense, looped, normal, own, random_layer, stock

from hpxfer.bench.clock import Job, interleaved, median, ratio
from hpxfer.bench.rates import CPU_WIDTHS, matmul_peak
from hpxfer.kernels.backend import TORCH
from hpxfer.kernels.cross_entropy import cross_entropy_rows_
from hpxfer.model.ffn import FFN
from hpxfer.model.gates import GATES
from hpxfer.model.linear import Maps
from hpxfer.plan.hardware import Row
from hpxfer.scaling.shape import Shape
from hpxfer.train.device import one_thread

KERNEL_ROUNDS, MOE_ROUNDS = 9, 15


def kernel_parts() -> Parts:
    """Return the parts of the kernels' table."""
    threaded = one_thread()
    return {
        **{(f"experts-{w}",): threaded(lambda w=w: [experts_row(w)]) for w in CPU_WIDTHS},
        ("cross-entropy-cpu",): threaded(lambda: [cross_entropy_row()]),
        ("peak-cpu",): peak_row,
    }


def experts_row(width: int, rounds: int = KERNEL_ROUNDS, num_trials: int = MOST) -> Row:
    """Return the speed of the op over a loop over experts, with the times of the other ways."""
    layer, peak = random_layer(num_trials, 512, width, 4), matmul_peak(CPU, peak_size())
    runs = {
        "own": both_ways(lambda: own(layer, TORCH), layer.leaves),
        "loop": both_ways(lambda: looped(layer), layer.leaves),
        "grouped_mm": both_ways(stock(layer), layer.leaves),
        "dense": dense(layer),
    }
    times = interleaved({name: Job(run=run) for name, run in runs.items()}, rounds=rounds, device=CPU)
    of_peak = layer.flops / median(times, "own") / peak
    return measured(
        f"experts-{width}",
        ratio(times, "loop", "own"),
        note=f"{1000 * median(times, 'own'):.2f} ms, {of_peak:.2f} of the matmul peak, "
        f"{ratio(times, 'grouped_mm', 'own'):.2f} times an F.grouped_mm layer, "
        f"{ratio(times, 'dense', 'own'):.2f} of a dense FFN of equal FLOPs",
        numbers=ms_of(times) | {"of_peak": of_peak},
    )


def cross_entropy_row(rounds: int = KERNEL_ROUNDS) -> Row:
    """Return the speed of the in-place losses over F.cross_entropy and its backward pass."""
    logits = normal(MOST * 512, 128)
    targets = torch.arange(len(logits)) % 128
    leaf, scratch = logits.clone().requires_grad_(), torch.empty_like(logits)
    losses = lambda: torch.autograd.grad(F.cross_entropy(leaf, targets, reduction="sum"), leaf)  # noqa: E731
    jobs = {
        "own": Job(prepare=lambda: scratch.copy_(logits), run=lambda: cross_entropy_rows_(scratch, targets)),
        "stock": Job(run=losses),
    }
    times = interleaved(jobs, rounds=rounds, device=CPU)
    what = f"cross entropy and its gradient over F.cross_entropy, {len(logits)} x 128"
    return Row(key="cross-entropy-cpu", what=what, value=ratio(times, "stock", "own"), unit="x", numbers=ms_of(times))


def moe_parts() -> Parts:
    """Return one part per MoE layer of both axes."""
    threaded = one_thread()
    return {(key,): threaded(lambda key=key: [moe_row(key)]) for key in MOE_SIZES}


def moe_row(key: str, rounds: int = MOE_ROUNDS, tokens: int = 1024, width: int = 256) -> Row:
    """Return the latency of a MoE layer over that of the dense FFN of equal active width, forward and backward.

    Both are the FFNs that the trainer runs, from the residual stream to what the branch adds to it.
    """
    _, count, active = MOE_SIZES[key]
    times, numbers = interleaved(moe_jobs(tokens, width, count, active), rounds=rounds, device=CPU), {}
    for name, found in times.items():
        parts = {"": median(times, name), "low_": min(found), "high_": max(found)}
        numbers |= {f"{name}_{part}ms": 1000 * value for part, value in parts.items()}

    def spread(name: str) -> str:
        low, high = numbers[f"{name}_low_ms"], numbers[f"{name}_high_ms"]
        return f"{numbers[f'{name}_ms']:.1f} ms ({low:.1f} to {high:.1f})"

    forward = ratio(times, "moe_forward", "dense_forward")
    note = f"{spread('moe')} over {spread('dense')}; forward alone {spread('moe_forward')}, {forward:.2f}x"
    return measured(key, ratio(times, "moe", "dense"), note=note, numbers=numbers | {"forward_ratio": forward})


def moe_jobs(tokens: int, width: int, count: int, active: int) -> dict[str, Job]:
    """Return the jobs of a MoE layer and of its dense FFN, on one residual stream, with random weights."""
    hidden, one = 4 * width // active, torch.ones(1)
    maps = Maps(forward=dict.fromkeys(("router", "expert_out", "dense_out"), one), norm_kind="rmsnorm", backend=TORCH)
    dims = {"width": width, "depth": 1, "head_dim": width}
    sparse = Shape(**dims, num_experts=count, num_active=active, expert_width=hidden)
    moe, dense_ffn = (
        FFN(shape=shape, gate=GATES.get("normalized_sigmoid"), maps=maps, route_scale=one * active)
        for shape in (sparse, Shape(**dims, dense_width=active * hidden))
    )
    stream, branch = normal(1, tokens, width, grad=True), normal(1, tokens, width, std=0.5)

    def matrices(kind: str, groups: tuple[int, ...], outer: int) -> dict[str, torch.Tensor]:
        sizes = {f"{kind}_in": (width, outer), f"{kind}_gate": (width, outer), f"{kind}_out": (outer, width)}
        return {name: normal(1, *groups, *size, grad=True, std=size[0] ** -0.5) for name, size in sizes.items()}

    weights = {"router": normal(1, width, count, grad=True, std=width**-0.5), **matrices("expert", (count,), hidden)}
    dense_weights, norm = matrices("dense", (), active * hidden), {"ffn_norm": torch.ones(1, width)}
    balance_KE = torch.zeros(1, count)

    def run_moe() -> torch.Tensor:
        return moe.moe(weights | norm, 0, stream, branch, balance_KE, noise_KE=None, ties_K=None)[1]

    def run_dense() -> torch.Tensor:
        _, h_KTD = maps.added_norm(dense_weights | norm, "ffn_norm", stream, branch)
        return dense_ffn.dense(dense_weights | norm, 0, h_KTD)

    return {
        "moe_forward": Job(run=torch.no_grad()(run_moe)),
        "dense_forward": Job(run=torch.no_grad()(run_dense)),
        "moe": Job(run=both_ways(run_moe, (stream, *weights.values()))),
        "dense": Job(run=both_ways(run_dense, (stream, *dense_weights.values()))),
    }
