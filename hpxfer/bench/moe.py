"""The latency of a MoE layer along capacity and granularity, beside a dense FFN of equal active width.

Both are the FFNs that the trainer runs, from the residual stream to what the branch adds to it: the sum and its norm,
the router and the dispatch of a MoE layer, the products, and the combination. Inputs, weights and routers are random,
so that the load is nearly balanced. Letters: T tokens, D width, E experts, H hidden features; K is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hpxfer.bench.clock import Job, Times, interleaved, median, ratio
from hpxfer.bench.goals import measured
from hpxfer.bench.moe_sizes import MoeSize, sizes
from hpxfer.bench.parts import Part
from hpxfer.bench.stock import both_ways, normal
from hpxfer.errors import HpxferError
from hpxfer.kernels.backend import Backend
from hpxfer.model.gates import GATES
from hpxfer.model.gpt.ffn import FFN
from hpxfer.model.gpt.linear import Local, Maps
from hpxfer.plan.speeds import Row
from hpxfer.train.device import one_thread, setup_for

ROUNDS = 15
GATE = "normalized_sigmoid"  # of 2605.23893


@dataclass(frozen=True, kw_only=True)
class FFNs:
    """A MoE layer and the dense FFN of equal active width, on one residual stream."""

    stream_KTD: Tensor
    branch_KTD: Tensor  # what the branch before adds
    balance_KE: Tensor
    moe: FFN
    dense: FFN
    moe_weights: Local
    dense_weights: Local

    def run_moe(self) -> Tensor:
        """Return what the MoE layer adds to the stream."""
        given = self.stream_KTD, self.branch_KTD, self.balance_KE
        return self.moe.moe(self.moe_weights, 0, *given, noise_KE=None, ties_K=None)[1]

    def run_dense(self) -> Tensor:
        """Return what the dense FFN adds to the stream."""
        _, h_KTD = self.dense.maps.added_norm(self.dense_weights, "ffn_norm", self.stream_KTD, self.branch_KTD)
        return self.dense.dense(self.dense_weights, 0, h_KTD)


def random_ffns(size: MoeSize, device: torch.device, dtype: torch.dtype, backend: Backend) -> FFNs:
    """Return both FFNs. Weights and stream have this dtype, and the router is float32."""
    hidden, experts, width = size.expert_width, size.num_experts, size.width
    one = torch.ones(1, device=device)
    maps = Maps(forward=dict.fromkeys(("router", "expert_out", "dense_out"), one), norm_kind="rmsnorm", backend=backend)

    def ffn(*, dense: bool) -> FFN:
        scale = one * size.num_active
        return FFN(shape=size.shape(dense=dense), gate=GATES.get(GATE), maps=maps, route_scale=scale)

    def weight(*dims: int, kind: torch.dtype = dtype) -> Tensor:
        return normal(1, *dims, device=device, dtype=kind, grad=True, std=dims[-2] ** -0.5)

    moe_weights = {
        "router": weight(width, experts, kind=torch.float32),
        "expert_in": weight(experts, width, hidden),
        "expert_gate": weight(experts, width, hidden),
        "expert_out": weight(experts, hidden, width),
    }
    active = size.num_active * hidden
    dense_weights = {
        "dense_in": weight(width, active),
        "dense_gate": weight(width, active),
        "dense_out": weight(active, width),
    }
    return FFNs(
        stream_KTD=normal(1, size.tokens, width, device=device, dtype=dtype, grad=True),
        branch_KTD=normal(1, size.tokens, width, device=device, dtype=dtype, std=0.5),
        balance_KE=torch.zeros(1, experts, device=device),
        moe=ffn(dense=False),
        dense=ffn(dense=True),
        moe_weights=moe_weights,
        dense_weights=dense_weights,
    )


def parts(device: torch.device, rounds: int = ROUNDS) -> list[Part]:
    """Return one part per layer of both axes: on a CPU in float32 on one thread, on a GPU in bfloat16."""

    def part(size: MoeSize) -> Part:
        def run() -> list[Row]:
            return [row_of(size, device, rounds)]

        return Part(keys=(size.key,), run=one_thread()(run) if device.type == "cpu" else run)

    return [part(size) for size in sizes("cuda" if device.type == "cuda" else "cpu")]


def row_of(size: MoeSize, device: torch.device, rounds: int) -> Row:
    """Return the latency of a MoE layer over that of the dense FFN, forward and backward; the times in milliseconds.

    Raises HpxferError if the GPU has too little memory for the layer.
    """
    try:
        times = interleaved(_jobs(size, device), rounds=rounds, device=device)
    except torch.OutOfMemoryError:
        raise HpxferError(
            f"--row {size.key}: must fit into the memory of the GPU, and does not; name other rows with --row"
        ) from None
    return latency(size, times)


def _jobs(size: MoeSize, device: torch.device) -> dict[str, Job]:
    """Return the jobs of a size. On a GPU each is a CUDA graph, as in a captured step."""
    cuda = device.type == "cuda"
    backend = setup_for(device.type, "fast" if cuda else None, "auto").backend
    ffns = random_ffns(size, device, torch.bfloat16 if cuda else torch.float32, backend)
    runs: dict[str, Callable[[], object]] = {
        "moe_forward": torch.no_grad()(ffns.run_moe),
        "dense_forward": torch.no_grad()(ffns.run_dense),
        "moe": both_ways(ffns.run_moe, (ffns.stream_KTD, *ffns.moe_weights.values())),
        "dense": both_ways(ffns.run_dense, (ffns.stream_KTD, *ffns.dense_weights.values())),
    }
    if cuda:
        from hpxfer.bench.kernels_cuda import graphed

        runs = {name: graphed(run) for name, run in runs.items()}
    return {name: Job(run=run) for name, run in runs.items()}


def latency(size: MoeSize, times: Times) -> Row:
    """Return the row of a size from the seconds of its jobs, round by round: medians, and ranges in brackets."""
    numbers = {}
    for name in times:
        numbers[f"{name}_ms"] = 1000 * median(times, name)
        numbers[f"{name}_low_ms"] = 1000 * min(times[name])
        numbers[f"{name}_high_ms"] = 1000 * max(times[name])
    forward = ratio(times, "moe_forward", "dense_forward")
    note = (
        f"{_spread(numbers, 'moe')} over {_spread(numbers, 'dense')}; forward alone {_spread(numbers, 'moe_forward')}, "
        f"{forward:.2f}x"
    )
    return measured(size.key, ratio(times, "moe", "dense"), note=note, numbers=numbers | {"forward_ratio": forward})


def _spread(numbers: dict[str, float], name: str) -> str:
    low, high = numbers[f"{name}_low_ms"], numbers[f"{name}_high_ms"]
    return f"{numbers[f'{name}_ms']:.1f} ms ({low:.1f} to {high:.1f})"
