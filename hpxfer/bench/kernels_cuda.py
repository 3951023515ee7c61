"""Kernels on a GPU: the Triton MoE layer against a layer of F.grouped_mm, and the row-wise kernels against a copy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

import torch

from hpxfer.bench.clock import Job, interleaved, median, ratio
from hpxfer.bench.goals import measured
from hpxfer.bench.layer import own, own_by, random_layer, stock
from hpxfer.bench.parts import Part
from hpxfer.bench.stock import both_ways, copy_peak, cuda_peak_rows, matmul_peak, normal
from hpxfer.kernels.adamw import adamw_
from hpxfer.kernels.backend import Backend
from hpxfer.kernels.cross_entropy import cross_entropy_rows_
from hpxfer.kernels.routing import choose_experts, group_rows
from hpxfer.plan.speeds import Row
from hpxfer.train.device import setup_for

TOKENS, EXPERTS = 65536, 4
LAYER_WIDTHS = (512, 1024, 2048)
LOSS_ROWS, VOCAB = 16384, 50304
ADAM_TRIALS, ADAM_ELEMENTS = 64, 2**21
ADAM_BYTES = 28  # float32: it reads parameter, gradient and both moments, and writes all but the gradient
ROUNDS = 15
_WARM_UP = 3


def parts(device: torch.device) -> list[Part]:
    """Return the parts: the layer at each width, the row-wise kernels, routing, and the peaks."""
    backend = setup_for(device.type, "fast", "triton").backend
    peaks = functools.cache(lambda: (matmul_peak(device), copy_peak(device)))

    def layer(width: int) -> Part:
        keys = (f"layer-{width}", *([f"rate-{width}"] if width == max(LAYER_WIDTHS) else []))
        return Part(keys=keys, run=lambda: layer_rows(width, device, backend, peaks()[0]))

    return [
        *map(layer, LAYER_WIDTHS),
        Part(keys=("cross-entropy",), run=lambda: [cross_entropy_row(device, backend, peaks()[1])]),
        Part(keys=("adamw",), run=lambda: [adamw_row(device, peaks()[1])]),
        Part(keys=("routing",), run=lambda: [routing_row(device, backend)]),
        Part(keys=("peak-cuda", "copy-cuda"), run=lambda: cuda_peak_rows(*peaks())),
    ]


def layer_rows(width: int, device: torch.device, backend: Backend, peak: float) -> list[Row]:
    """Return the speed over the F.grouped_mm layer, and the rate. All run as CUDA graphs, as in a captured step.

    The numbers say beside them how fast the op is by each choice of products, whatever the table chooses.
    """
    layer = random_layer(1, TOKENS, width, width, EXPERTS, device, torch.bfloat16, backend)
    jobs = {
        "own": Job(run=graphed(both_ways(lambda: own(layer, backend), layer.leaves))),
        "grouped_mm": Job(run=graphed(both_ways(lambda: stock(layer), layer.leaves))),
    }
    ways: tuple[Literal["triton", "library"], ...] = ("triton", "library")
    for products in ways:
        if (run := own_by(layer, products)) is not None:
            jobs[f"by_{products}"] = Job(run=graphed(run))
    times = interleaved(jobs, rounds=ROUNDS, device=device)
    rates = {name: layer.flops / median(times, name) for name in jobs}
    numbers = {f"{name}_ms": 1000 * median(times, name) for name in jobs}
    numbers |= {f"{name}_tflop_per_s": rate / 1e12 for name, rate in rates.items()}
    found = [measured(f"layer-{width}", ratio(times, "grouped_mm", "own"), numbers=numbers)]
    if width == max(LAYER_WIDTHS):
        note = f"{rates['own'] / peak:.2f} of the matmul peak of this run"
        found += [measured(f"rate-{width}", rates["own"] / 1e12, note=note)]
    return found


def cross_entropy_row(device: torch.device, backend: Backend, copy: float) -> Row:
    """Return the bandwidth of the in-place losses, with one read and one write per logit, over that of a copy."""
    logits = normal(LOSS_ROWS, VOCAB, device=device, dtype=torch.bfloat16)
    targets = torch.randint(VOCAB, (LOSS_ROWS,), device=device)
    scratch = torch.empty_like(logits)
    job = Job(prepare=lambda: scratch.copy_(logits), run=lambda: cross_entropy_rows_(scratch, targets, backend=backend))
    return _bandwidth_row("cross-entropy", job, 2 * 2 * logits.numel(), device, copy)


def adamw_row(device: torch.device, copy: float) -> Row:
    """Return the bandwidth of one fused AdamW pass over that of a copy."""
    p, g, m = (normal(ADAM_TRIALS, ADAM_ELEMENTS, device=device) for _ in range(3))
    v = normal(ADAM_TRIALS, ADAM_ELEMENTS, device=device).square()

    def column(value: float) -> torch.Tensor:
        return torch.full((ADAM_TRIALS,), value, device=device)

    numbers = {
        "lr_K": column(1e-6),
        "keep_K": column(1 - 1e-7),
        "eps_K": column(1e-8),
        "beta1_K": column(0.9),
        "beta2_K": column(0.95),
        "scale_K": column(1.0),
        "alive_K": torch.ones(ADAM_TRIALS, dtype=torch.bool, device=device),
    }
    job = Job(run=lambda: adamw_(p, g, m, v, **numbers))
    return _bandwidth_row("adamw", job, ADAM_BYTES * p.numel(), device, copy)


def routing_row(device: torch.device, backend: Backend) -> Row:
    """Return the microseconds of choosing experts and sorting rows, during which the host reads nothing."""
    gates = torch.sigmoid(normal(1, TOKENS, EXPERTS, device=device))
    bias = torch.zeros(1, EXPERTS, device=device)

    def route() -> object:
        return group_rows(choose_experts(gates, bias, 1, 1, backend=backend), EXPERTS, backend=backend)

    times = interleaved({"routing": Job(run=graphed(route))}, rounds=ROUNDS, device=device)
    return measured("routing", 1e6 * median(times, "routing"))


def graphed(run: Callable[[], object]) -> Callable[[], object]:
    """Return the replay of `run` as a CUDA graph, which times the device and not Python's launches."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay(_: object = run) -> None:  # holds what `run` reads: a graph does not, and would read freed memory
        graph.replay()

    return replay


def _bandwidth_row(key: str, job: Job, num_bytes: int, device: torch.device, copy: float) -> Row:
    seconds = median(interleaved({key: job}, rounds=ROUNDS, device=device), key)
    numbers = {"ms": 1000 * seconds, "tb_per_s": num_bytes / seconds / 1e12}
    return measured(key, num_bytes / seconds / copy, numbers=numbers)
