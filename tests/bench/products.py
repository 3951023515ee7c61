"""Stock products: peaks of the machine, and the MoE layer of a stack by hpxfer's op, F.grouped_mm and a loop.

Letters: K trials, T tokens per trial, M = K*T, D width, E experts, H hidden features, G = K*E groups of rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hpxfer.bench.clock import Job, interleaved, median
from hpxfer.bench.rates import matmul
from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.experts import experts
from hpxfer.kernels.routing import Groups, choose_experts, group_rows
from hpxfer.scaling.shape import Shape
from hpxfer.trial import Setting

CPU = torch.device("cpu")
# Square float32 products on one core: the best of three sizes, because the best blocking differs between machines.
CPU_PEAK_SIZES = (512, 1024, 1536)


def normal(
    *size: int, device: torch.device = CPU, dtype: torch.dtype = torch.float32, grad: bool = False, std: float = 1.0
) -> Tensor:
    """Return normal numbers, the same in every run."""
    generator = torch.Generator(device).manual_seed(sum(size))
    return (std * torch.randn(size, generator=generator, device=device)).to(dtype).requires_grad_(grad)


def repeated(run: Callable[[], object], times: int) -> Callable[[], None]:
    def job() -> None:
        for _ in range(times):
            run()

    return job


def cpu_peak_size() -> int:
    """Return the size of the square product that stands for the peak of a core: the fastest of a few."""
    jobs = {str(size): matmul(size, CPU) for size in CPU_PEAK_SIZES}
    times = interleaved(jobs, rounds=5, device=CPU)
    return max(CPU_PEAK_SIZES, key=lambda size: size**3 / median(times, str(size)))


def copy_peak(device: torch.device, num_bytes: int = 2**32) -> float:
    """Return bytes/s of a large copy of random numbers. Reads and writes both count."""
    source = normal(num_bytes // 4, device=device)
    out = torch.empty_like(source)
    times = interleaved({"copy": Job(run=lambda: out.copy_(source))}, rounds=9, device=device)
    return 2 * num_bytes / median(times, "copy")


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
    tokens, dim, hidden = setting.batch_tokens, shape.width, shape.expert_width
    groups, rows = num_trials * shape.num_experts, num_trials * tokens * shape.num_active
    ends = torch.arange(1, groups + 1, dtype=torch.int32) * (rows // groups)

    def op(run: Callable[..., Tensor], *sizes: tuple[int, ...]) -> Callable[[], object]:
        inputs = [normal(*size, grad=True) for size in sizes]
        return both_ways(lambda: run(*inputs), inputs)

    def product(inner: int, outer: int) -> Callable[[], object]:
        return op(torch.bmm, (num_trials, tokens, inner), (num_trials, inner, outer))

    def grouped(inner: int, outer: int) -> Callable[[], object]:
        return op(functools.partial(F.grouped_mm, offs=ends), (rows, inner), (groups, inner, outer))

    heads = (num_trials * tokens // setting.context, shape.query_heads, setting.context, shape.head_dim)
    attention = op(functools.partial(F.scaled_dot_product_attention, is_causal=True), heads, heads, heads)
    block = [*[product(dim, dim)] * 4, attention, product(dim, shape.num_experts), grouped(dim, hidden)]
    jobs = [*[*block, grouped(hidden, dim)] * shape.depth, product(dim, setting.vocab_size)]
    return lambda: [job() for job in jobs]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer of K trials, top-1, with random inputs, weights and routing."""

    x_MD: Tensor
    w_in_GDH: Tensor
    w_out_GHD: Tensor
    gate_M: Tensor  # float32
    chosen_KT: Tensor
    groups: Groups

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        return self.x_MD, self.w_in_GDH, self.w_out_GHD, self.gate_M

    @property
    def flops(self) -> float:
        """FLOPs of one forward and backward: two products per row, in three passes."""
        return 12.0 * self.x_MD.shape[0] * self.x_MD.shape[1] * self.w_in_GDH.shape[2]


def random_layer(
    num_trials: int,
    tokens: int,
    width: int,
    num_experts: int,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
    backend: Backend = TORCH,
) -> Layer:
    """Return a layer whose tokens choose their experts by random gates, so that the load is nearly balanced."""
    gates_KTE = torch.sigmoid(normal(num_trials, tokens, num_experts, device=device))
    chosen_KTA = choose_experts(gates_KTE, torch.zeros(num_trials, num_experts, device=device), 1)
    given: dict[str, Any] = {"device": device, "dtype": dtype, "grad": True}
    w_in, w_out = (normal(num_trials * num_experts, width, width, std=width**-0.5, **given) for _ in range(2))
    return Layer(
        x_MD=normal(num_trials * tokens, width, **given),
        w_in_GDH=w_in,
        w_out_GHD=w_out,
        gate_M=gates_KTE.gather(-1, chosen_KTA).flatten().requires_grad_(),
        chosen_KT=chosen_KTA.squeeze(-1),
        groups=group_rows(chosen_KTA, num_experts, backend=backend),
    )


def own(layer: Layer, backend: Backend) -> Tensor:
    """Return [M, D] by the project's op."""
    gate_MA = layer.gate_M.unsqueeze(1)
    return experts(layer.x_MD, layer.w_in_GDH, None, layer.w_out_GHD, gate_MA, layer.groups, 1, backend=backend)


def stock(layer: Layer) -> Callable[[], Tensor]:
    """Return what gives [M, D] by stock operators: gather, F.grouped_mm, GELU, F.grouped_mm, gate, gather back."""
    order_M, back_M, ends_G = layer.groups.token.long(), layer.groups.row.long(), layer.groups.ends

    def run() -> Tensor:
        rows = F.gelu(F.grouped_mm(permuted(layer.x_MD, order_M, back_M), layer.w_in_GDH, offs=ends_G))
        down = F.grouped_mm(rows, layer.w_out_GHD, offs=ends_G)
        return permuted(down, back_M, order_M) * layer.gate_M.unsqueeze(1).to(down.dtype)

    return run


def looped(layer: Layer) -> Tensor:
    """Return [M, D] by a loop over trials and experts."""
    num_trials, num_experts = len(layer.chosen_KT), len(layer.w_in_GDH) // len(layer.chosen_KT)
    parts = []
    for k, (x, gate) in enumerate(zip(layer.x_MD.chunk(num_trials), layer.gate_M.chunk(num_trials), strict=True)):
        out = torch.zeros_like(x)
        for expert in range(num_experts):
            token, group = (layer.chosen_KT[k] == expert).nonzero().squeeze(1), k * num_experts + expert
            h = F.gelu(x[token] @ layer.w_in_GDH[group]) @ layer.w_out_GHD[group]
            out.index_add_(0, token, gate[token].unsqueeze(1) * h)
        parts.append(out)
    return torch.cat(parts)


def dense(layer: Layer) -> Callable[[], object]:
    """Return a job: a dense FFN of equal FLOPs, forward and backward: each trial's tokens through its first expert."""
    num_trials = len(layer.chosen_KT)
    x = layer.x_MD.detach().view(num_trials, -1, layer.x_MD.shape[1]).requires_grad_()
    firsts = (weight.detach()[:: len(weight) // num_trials] for weight in (layer.w_in_GDH, layer.w_out_GHD))
    w_in, w_out = (weight.contiguous().requires_grad_() for weight in firsts)
    return both_ways(lambda: torch.bmm(F.gelu(torch.bmm(x, w_in)), w_out), (x, w_in, w_out))


def permuted(x_MD: Tensor, index_M: Tensor, inverse_M: Tensor) -> Tensor:
    """Return x[index], whose gradient is a gather by the inverse permutation.

    The gradient of index_select itself adds rows into zeros, because an index may repeat. Nobody who tunes a MoE layer
    leaves that in.
    """
    return _Permuted.apply(x_MD, index_M, inverse_M)


class _Permuted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_MD: Tensor, index_M: Tensor, inverse_M: Tensor) -> Tensor:
        ctx.save_for_backward(inverse_M)
        return x_MD.index_select(0, index_M)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (inverse_M,) = ctx.saved_tensors
        return grads[0].index_select(0, inverse_M), None, None
