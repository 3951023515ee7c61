"""Yardsticks: peaks of the machine, and the speed of its stock operators on a stack's products and attention.

Letters: K trials, T tokens per trial, D width, E experts, H hidden features, V vocabulary, N expert rows, G = K*E
groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hpxfer.bench.clock import Job, interleaved, median
from hpxfer.plan.speeds import Row
from hpxfer.scaling.shape import Shape
from hpxfer.trial import Setting

_SEED = 0
_PEAK_ROUNDS, _SIZE_ROUNDS = 9, 5
# Square float32 products on one core: the best of three sizes, because the best blocking differs between machines.
_CPU_PEAK_SIZES = (512, 1024, 1536)
_CUDA_PEAK_SIZE = 8192
_CUDA_COPY_BYTES = 4 * 2**30
_CPU_COPY_BYTES = 2**28


def normal(
    *size: int, device: torch.device, dtype: torch.dtype = torch.float32, grad: bool = False, std: float = 1.0
) -> Tensor:
    """Return normal numbers, the same in every run."""
    generator = torch.Generator(device).manual_seed(_SEED + sum(size))
    out = (std * torch.randn(size, generator=generator, device=device)).to(dtype)
    return out.requires_grad_(grad)


def matmul_peak(device: torch.device) -> float:
    """Return FLOP/s of a large square product of random numbers: float32 on a CPU, bf16 on a GPU."""
    size = matmul_size(device)
    times = interleaved({"matmul": matmul(size, device)}, rounds=_PEAK_ROUNDS, device=device)
    return 2 * size**3 / median(times, "matmul")


def matmul_size(device: torch.device) -> int:
    """Return the size of the square product that stands for the peak: on a CPU, the fastest of a few sizes."""
    if device.type == "cuda":
        return _CUDA_PEAK_SIZE
    jobs = {str(size): matmul(size, device) for size in _CPU_PEAK_SIZES}
    times = interleaved(jobs, rounds=_SIZE_ROUNDS, device=device)
    return max(_CPU_PEAK_SIZES, key=lambda size: size**3 / median(times, str(size)))


def matmul(size: int, device: torch.device) -> Job:
    """Return a job: one square product of random numbers, into memory that is allocated before."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    a, b = (normal(size, size, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    return Job(run=lambda: torch.mm(a, b, out=out))


def copy_peak(device: torch.device) -> float:
    """Return bytes/s of a large copy of random numbers. Reads and writes both count."""
    count = (_CUDA_COPY_BYTES if device.type == "cuda" else _CPU_COPY_BYTES) // 4
    source = normal(count, device=device)
    out = torch.empty_like(source)
    times = interleaved({"copy": Job(run=lambda: out.copy_(source))}, rounds=_PEAK_ROUNDS, device=device)
    return 8 * count / median(times, "copy")


def cpu_peak_row(peak: float) -> Row:
    """Return the row of the peak of one core, given in FLOP/s."""
    return Row(key="peak-cpu", what="float32 matmul peak, one thread", value=peak / 1e9, unit="GFLOP/s")


def cuda_peak_rows(peak: float, copy: float) -> tuple[Row, Row]:
    """Return the rows of a GPU's peaks, given in FLOP/s and bytes/s."""
    return (
        Row(key="peak-cuda", what="bf16 matmul peak, 8192^3", value=peak / 1e12, unit="TFLOP/s"),
        Row(key="copy-cuda", what="copy bandwidth, reads and writes", value=copy / 1e12, unit="TB/s"),
    )


def both_ways(run: Callable[[], Tensor], inputs: Sequence[Tensor]) -> Callable[[], object]:
    """Return a job: forward, and backward to the inputs from a fixed random gradient."""
    out = run()
    gradient = normal(*out.shape, device=out.device, dtype=out.dtype)
    return lambda: torch.autograd.grad(run(), inputs, gradient)


def products_and_attention(shape: Shape, setting: Setting, num_trials: int) -> Callable[[], object]:
    """Return a job: forward and backward of every product and attention of one step of a stack, and nothing else.

    Each operator is a stock operator and runs on its own inputs, which are made before. It is the time that a step
    would take if norms, activations, routing, loss and optimizer cost nothing and no operators were fused.
    """
    cpu = torch.device("cpu")
    tokens, dim, hidden = setting.batch_tokens, shape.width, shape.expert_width
    groups = num_trials * shape.num_experts
    rows = num_trials * tokens * shape.num_active
    ends = torch.arange(1, groups + 1, dtype=torch.int32) * (rows // groups)

    def product(inner: int, outer: int) -> Callable[[], object]:
        x = normal(num_trials, tokens, inner, device=cpu, grad=True)
        w = normal(num_trials, inner, outer, device=cpu, grad=True)
        return both_ways(lambda: torch.bmm(x, w), (x, w))

    def experts(inner: int, outer: int) -> Callable[[], object]:
        x = normal(rows, inner, device=cpu, grad=True)
        w = normal(groups, inner, outer, device=cpu, grad=True)
        return both_ways(lambda: F.grouped_mm(x, w, offs=ends), (x, w))

    heads = (num_trials * tokens // setting.context, shape.query_heads, setting.context, shape.head_dim)
    q, k, v = (normal(*heads, device=cpu, grad=True) for _ in range(3))
    attention = both_ways(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v))
    block = [*[product(dim, dim)] * 4, attention, product(dim, shape.num_experts), experts(dim, hidden)]
    jobs = [*[*block, experts(hidden, dim)] * shape.depth, product(dim, setting.vocab_size)]

    def run() -> None:
        for job in jobs:
            job()

    return run


def looped_experts(x_MD: Tensor, w_in: Tensor, w_out: Tensor, gate_M: Tensor, chosen_M: Tensor) -> Tensor:
    """Return the MoE layer of one trial as a loop over its experts, top-1."""
    out = torch.zeros_like(x_MD)
    for expert in range(w_in.shape[0]):
        token = (chosen_M == expert).nonzero().squeeze(1)
        out.index_add_(0, token, gate_M[token].unsqueeze(1) * (F.gelu(x_MD[token] @ w_in[expert]) @ w_out[expert]))
    return out


def grouped_experts(
    x_MD: Tensor, w_in_GDH: Tensor, w_out_GHD: Tensor, gate_M: Tensor, order_M: Tensor, back_M: Tensor, ends_G: Tensor
) -> Tensor:
    """Return the top-1 MoE layer from stock operators: gather, F.grouped_mm, GELU, F.grouped_mm, gate, gather back."""
    rows = F.gelu(F.grouped_mm(permuted(x_MD, order_M, back_M), w_in_GDH, offs=ends_G))
    down = F.grouped_mm(rows, w_out_GHD, offs=ends_G)
    return permuted(down, back_M, order_M) * gate_M.unsqueeze(1).to(down.dtype)


def permuted(x_MD: Tensor, index_M: Tensor, inverse_M: Tensor) -> Tensor:
    """Return x[index], whose gradient is a gather by the inverse permutation.

    The gradient of index_select itself adds rows into zeros, because an index may repeat. Nobody who tunes a MoE layer
    leaves that in.
    """
    y_MD: Tensor = _Permuted.apply(x_MD, index_M, inverse_M)  # type: ignore[no-untyped-call]
    return y_MD


class _Permuted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_MD: Tensor, index_M: Tensor, inverse_M: Tensor) -> Tensor:
        ctx.save_for_backward(inverse_M)
        return x_MD.index_select(0, index_M)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (inverse_M,) = ctx.saved_tensors
        return grads[0].index_select(0, inverse_M), None, None
