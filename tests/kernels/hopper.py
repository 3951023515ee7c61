"""Compile Triton kernels for sm_90 on a machine without a GPU. Run by test_hopper: prints what fails, by case.

Triton's interpreter runs Python and checks no types; its compiler refuses much of what the interpreter runs. Here every
launch compiles its kernel, with the options and the specializations that its arguments ask for, and does not run it:
results are garbage.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hpxfer.kernels import configs
from hpxfer.kernels.adamw import adamw_, sgd_
from hpxfer.kernels.backend import Backend
from hpxfer.kernels.cross_entropy import cross_entropy_rows_
from hpxfer.kernels.embedding import embed
from hpxfer.kernels.experts import experts
from hpxfer.kernels.product import batched_product
from hpxfer.kernels.routing import Groups, choose_experts, group_rows
from hpxfer.kernels.sums import column_sums, squares

STRICT = Backend(name="triton", reason="a test", strict=True)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# The shared memory of an H100 or H200 that one program may use.
SHARED_BYTES = 227 * 1024
compiled: list[str] = []


def compile_only() -> None:
    """Let every launch of a Triton kernel in this process only compile for sm_90."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    class Hopper:
        def get_current_target(self) -> Any:
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: Any = None) -> int:
            return 0

    original = JITFunction.run

    def run(self: Any, *args: Any, warmup: bool, **options: Any) -> Any:
        kernel = original(self, *args, warmup=True, **options)
        assert "cubin" in kernel.asm
        assert kernel.metadata.shared <= SHARED_BYTES, (self.__name__, kernel.metadata.shared)
        compiled.append(self.__name__)
        return kernel

    driver.set_active(Hopper())
    configs.architecture = lambda device: "sm90"
    JITFunction.run = run


def cross_entropy(dtype: torch.dtype) -> None:
    for columns in (67, 50304):
        targets = torch.zeros(4, dtype=torch.int64)
        cross_entropy_rows_(torch.zeros(4, columns, dtype=dtype), targets, backend=STRICT)


def optimizers(dtype: torch.dtype) -> None:
    tested, alive = torch.ones(3), torch.ones(3, dtype=torch.bool)
    names = ("eps", "beta1", "one_minus_beta1", "beta2", "one_minus_beta2", "scale")
    numbers: dict[str, Any] = {f"{name}_K": tested for name in names}
    shared: dict[str, Any] = {"lr_K": tested, "keep_K": tested, "alive_K": alive, "backend": STRICT}
    for elements in (1024, 1001):
        p, m, v = torch.zeros(3, 3, elements).unbind()
        adamw_(p, p.to(dtype), m, v, **shared, **numbers)
        sgd_(p, p.to(dtype), **shared)


def sums(dtype: torch.dtype) -> None:
    for columns in (64, 5):
        column_sums(torch.zeros(3, 700, columns, dtype=dtype), STRICT)
        squares(torch.zeros(3, 10_000 * columns, dtype=dtype), STRICT)


def embedding(dtype: torch.dtype) -> None:
    for features in (64, 5):
        table: Tensor = torch.zeros(3, 50, features, dtype=dtype, requires_grad=True)
        embed(table, torch.zeros(3, 100, dtype=torch.int64), STRICT).float().sum().backward()


def routing(dtype: torch.dtype) -> None:
    for num_experts, num_active in ((4, 1), (12, 6)):
        gates, bias = torch.zeros(2, 50, num_experts, dtype=dtype), torch.zeros(2, num_experts)
        for ties in (None, torch.zeros(2, dtype=torch.int32)):
            choose_experts(gates, bias, num_active, 1, STRICT, ties)
        group_rows(torch.zeros(2, 50, num_active, dtype=torch.int64), num_experts, STRICT)


def product(dtype: torch.dtype) -> None:
    for rows, size in ((64, 512), (50, 20)):
        x, w = torch.zeros(2, rows, 64, dtype=dtype), torch.zeros(2, 64, size, requires_grad=True)
        batched_product(x, w, STRICT).float().sum().backward()


def expert_layers(dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16:
        _experts(dtype, 1, 512, gated=True, biases=False)
        _experts(dtype, 2, 512, gated=False, biases=True)
    if dtype == torch.float32:
        _experts(dtype, 2, 40, gated=True, biases=True)


def _experts(dtype: torch.dtype, num_active: int, size: int, *, gated: bool, biases: bool) -> None:
    tokens, num_groups = 1024, 4
    rows = tokens * num_active
    ends = (torch.arange(1, num_groups + 1) * (rows // num_groups)).to(torch.int32)
    index = torch.arange(rows, dtype=torch.int32)
    groups = Groups(index // num_active, index, index, ends, torch.zeros(1, num_groups, dtype=torch.int64))
    x, gate = torch.zeros(tokens, size, dtype=dtype), torch.zeros(tokens, num_active, requires_grad=True)
    w_in, w_gate, w_out = (torch.zeros(num_groups, size, size, requires_grad=True) for _ in range(3))
    b_in, b_out = (torch.zeros(num_groups, size, requires_grad=True) if biases else None for _ in range(2))
    y = experts(
        x, w_in, w_gate if gated else None, w_out, gate, groups, num_active, b_in=b_in, b_out=b_out, backend=STRICT
    )
    y.float().sum().backward()


CASES: dict[str, tuple[Callable[[torch.dtype], None], set[str]]] = {
    "cross_entropy": (cross_entropy, {"cross_entropy_rows_kernel"}),
    "optimizers": (optimizers, {"adamw_kernel", "sgd_kernel"}),
    "sums": (sums, {"column_sums_kernel", "squares_kernel"}),
    "embedding": (embedding, {"long_pieces_kernel", "table_rows_kernel"}),
    "routing": (routing, {"choose", "count_pairs", "place_blocks", "place_pairs"}),
    "product": (product, {"map_tiles", "rows_product", "matrix_gradient"}),
    "expert_layers": (
        expert_layers,
        {"map_tiles", "rows_product", "matrix_gradient", "sum_parts", "up", "hidden_gradient", "gate_gradient"}
        | {"bias_gradient", "sum_slots"},
    ),
}

if __name__ == "__main__":
    compile_only()
    for name, (case, kernels) in CASES.items():
        compiled.clear()
        try:
            for one_dtype in DTYPES:
                case(one_dtype)
            assert set(compiled) == kernels, compiled
        except Exception:
            print(name, traceback.format_exc())  # noqa: T201
