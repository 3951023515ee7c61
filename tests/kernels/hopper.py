"""Compile Triton kernels for sm_90 on a machine without a GPU. Run by test_hopper: prints what it found as JSON.

Triton's interpreter runs Python and checks no types; its compiler refuses much of what the interpreter runs. Here every
launch compiles its kernel, with the options and the specializations that its arguments ask for, and does not run it:
results are garbage.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from compiled import MOST_SPILL_BYTES, compiling, fault_of
from torch import Tensor

from hpxfer.kernels import configs, experts_launch, grouped_launch
from hpxfer.kernels.adamw import adamw_, momentum_, sgd_
from hpxfer.kernels.backend import Backend
from hpxfer.kernels.cross_entropy import cross_entropy_rows_
from hpxfer.kernels.embedding import embed
from hpxfer.kernels.experts import experts
from hpxfer.kernels.heads import place_heads
from hpxfer.kernels.norm import added_norm
from hpxfer.kernels.product import batched_product
from hpxfer.kernels.rope import rotation
from hpxfer.kernels.router import router
from hpxfer.kernels.routing import Groups, choose_experts, group_rows
from hpxfer.kernels.sums import column_sums, squares

STRICT = Backend(name="triton", reason="a test", strict=True)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def cross_entropy(dtype: torch.dtype) -> None:
    for columns in (67, 50304):
        targets = torch.zeros(4, dtype=torch.int64)
        cross_entropy_rows_(torch.zeros(4, columns, dtype=dtype), targets, backend=STRICT)


def optimizers(dtype: torch.dtype) -> None:
    tested, alive = torch.ones(3), torch.ones(3, dtype=torch.bool)
    names = ("eps", "beta1", "beta2", "scale")
    numbers: dict[str, Any] = {f"{name}_K": tested for name in names}
    shared: dict[str, Any] = {"lr_K": tested, "keep_K": tested, "alive_K": alive}
    for elements in (1024, 1001):
        p, m, v = torch.zeros(3, 3, elements).unbind()
        adamw_(p, p.to(dtype), m, v, **shared, **numbers)
        sgd_(p, p.to(dtype), **shared)
        momentum_(p, p.to(dtype), p, momentum_K=shared["lr_K"], **shared)


def sums(dtype: torch.dtype) -> None:
    for columns in (64, 5):
        column_sums(torch.zeros(3, 700, columns, dtype=dtype), STRICT)
        squares(torch.zeros(3, 10_000 * columns, dtype=dtype))


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


def routers(dtype: torch.dtype) -> None:
    """Compile with noise and ties, then without: a trial runs the same code beside trials that have them."""
    sizes = ((512, 4), (2048, 64), (8192, 256), (520, 5)) if dtype == torch.bfloat16 else ((512, 4), (100, 40))
    for width, num_experts in sizes:
        x: Tensor = torch.zeros(1, 1100, width, dtype=dtype, requires_grad=True)
        w, noise = (torch.zeros(1, rows, num_experts, requires_grad=True) for rows in (width, 1))
        options: dict[str, Any] = {"balance_KE": torch.zeros(1, num_experts), "scale_K": torch.ones(1)}
        options |= {"score": "scaled_softmax", "num_active": 2, "backend": STRICT}
        routed = router(x, x.detach(), w, noise_KE=noise[:, 0], ties_K=torch.zeros(1, dtype=torch.int32), **options)
        (routed.stream.float().sum() + routed.h.float().sum() + routed.logits.sum()).backward()
        router(x, x.detach(), w, **options)


def rms_routers(dtype: torch.dtype) -> None:
    for width, num_experts in ((512, 4), (2048, 64)) if dtype == torch.bfloat16 else ((520, 5),):
        x: Tensor = torch.zeros(1, 1100, width, dtype=dtype, requires_grad=True)
        w: Tensor = torch.zeros(1, width, num_experts, requires_grad=True)
        options: dict[str, Any] = {"balance_KE": torch.zeros(1, num_experts), "scale_K": torch.ones(1)}
        options |= {"score": "softmax", "num_active": 2, "kind": "rmsnorm", "eps": 1e-6, "backend": STRICT}
        routed = router(x, x.detach(), w, **options)
        (routed.stream.float().sum() + routed.h.float().sum() + routed.logits.sum()).backward()


def norms(dtype: torch.dtype) -> None:
    for width in (32, 8192) if dtype == torch.bfloat16 else (520,):
        x: Tensor = torch.zeros(2, 300, width, dtype=dtype, requires_grad=True)
        gain: Tensor = torch.ones(2, width, requires_grad=True)
        for y, own_gain in ((x.detach(), gain), (None, gain), (x.detach(), None)):
            total, h = added_norm(x, y, own_gain, None, STRICT, kind="rmsnorm")
            (total.float().sum() + h.float().sum()).backward()


def heads(dtype: torch.dtype) -> None:
    """Compile the norms and rotations of the presets, and what else the options allow."""
    context = 64
    for head_dim in (64, 128) if dtype == torch.bfloat16 else (20,):
        longer: Tensor = torch.zeros(2, 2 * context, 6 * head_dim, dtype=dtype, requires_grad=True)
        gains = {"none": None, "head": torch.ones(2, head_dim), "all": torch.ones(2, 4 * head_dim)}
        for scope, share, kind in (
            *(("none", 1.0, "rmsnorm"), ("head", 1.0, "rmsnorm"), ("all", 1.0, "rmsnorm"), ("head", 0.5, "rmsnorm")),
            *(("all", 1.0, "layernorm"), ("head", 0.0, "layernorm")),
        ):
            turned = rotation(context, head_dim, theta=1e4, share=share, device=longer.device) if share else None
            gain = gains[scope]
            gain = gain if gain is None else gain.requires_grad_()
            bias = gain if kind == "layernorm" else None
            sizes: dict[str, Any] = {"head_dim": head_dim, "context": context, "scope": scope, "kind": kind}
            y = place_heads(longer[..., : 4 * head_dim], gain, bias, turned, **sizes, backend=STRICT)
            y.float().sum().backward()


def product(dtype: torch.dtype) -> None:
    x, w = torch.zeros(2, 50, 64, dtype=dtype), torch.zeros(2, 64, 20, requires_grad=True)
    batched_product(x, w, STRICT).float().sum().backward()


def expert_layers(dtype: torch.dtype) -> None:
    # The table's products are compiled without biases and with one active expert.
    if dtype == torch.bfloat16:
        _experts(dtype, 2, 512, gated=False, biases=True)
    if dtype == torch.float32:
        _experts(dtype, 2, 40, gated=True, biases=True)


def library_layers(dtype: torch.dtype) -> None:
    if dtype != torch.bfloat16:
        return
    find = experts_launch.find_config
    experts_launch.find_config = lambda *shape: replace(find(*shape), products="library")
    _experts(dtype, 1, 512, gated=False, biases=False, backend=replace(STRICT, strict=False))
    _experts(dtype, 2, 520, gated=True, biases=True, backend=replace(STRICT, strict=False))
    experts_launch.find_config = find


def _experts(
    dtype: torch.dtype, num_active: int, size: int, *, gated: bool, biases: bool, backend: Backend = STRICT
) -> None:
    tokens, num_groups = 1024, 4
    rows = tokens * num_active
    ends = (torch.arange(1, num_groups + 1) * (rows // num_groups)).to(torch.int32)
    index = torch.arange(rows, dtype=torch.int32)
    groups = Groups(index // num_active, index, index, ends, torch.zeros(1, num_groups, dtype=torch.int64))
    x, gate = torch.zeros(tokens, size, dtype=dtype), torch.zeros(tokens, num_active, requires_grad=True)
    w_in, w_gate, w_out = (torch.zeros(num_groups, size, size, requires_grad=True) for _ in range(3))
    b_in, b_out = (torch.zeros(num_groups, size, requires_grad=True) if biases else None for _ in range(2))
    y = experts(
        x, w_in, w_gate if gated else None, w_out, gate, groups, num_active, b_in=b_in, b_out=b_out, backend=backend
    )
    y.float().sum().backward()


CASES: dict[str, tuple[Callable[[torch.dtype], None], set[str]]] = {
    "cross_entropy": (cross_entropy, {"cross_entropy_rows_kernel"}),
    "optimizers": (optimizers, {"adamw_kernel", "sgd_kernel", "momentum_kernel"}),
    "sums": (sums, {"column_sums_kernel", "squares_kernel"}),
    "embedding": (embedding, {"long_pieces_kernel", "table_rows_kernel"}),
    "routing": (routing, {"choose", "count_pairs", "place_blocks", "place_pairs"}),
    "routers": (routers, {"route", "stream_gradient", "weight_gradient", "column_sums_kernel"}),
    "rms_routers": (rms_routers, {"route", "stream_gradient", "weight_gradient", "column_sums_kernel"}),
    "norms": (norms, {"add_rms_norm", "rms_norm_gradient", "rms_gain_gradient", "column_sums_kernel"}),
    "heads": (heads, {"heads_forward", "heads_gradients", "column_sums_kernel"}),
    "product": (product, {"map_tiles", "rows_product", "matrix_gradient"}),
    "expert_layers": (
        expert_layers,
        {"map_tiles", "rows_product", "matrix_gradient", "sum_parts", "up", "hidden_gradient", "gate_gradient"}
        | {"bias_gradient", "sum_slots"},
    ),
    "library_layers": (
        library_layers,
        {"map_tiles", "gather_rows", "activate", "hidden_rows", "gate_gradient", "place_rows", "cast_matrices"}
        | {"bias_gradient", "sum_slots", "sum_parts"},
    ),
}


def failures() -> dict[str, str]:
    """Return the traceback of every case that does not compile, or not to the kernels that it names."""
    found = {}
    configs.architecture = lambda device: "sm90"
    with compiling() as facts:
        for name, (case, kernels) in CASES.items():
            facts.clear()
            try:
                for dtype in DTYPES:
                    case(dtype)
                compiled = {one.kernel for one in facts}
                assert compiled == kernels, compiled
                assert all(one.shared_bytes <= one.most_shared_bytes for one in facts), facts
                if name in ("routers", "rms_routers", "norms", "heads", "library_layers"):
                    spilling = [one.row() for one in facts if one.spill_bytes > MOST_SPILL_BYTES]
                    assert not spilling, spilling
                if name == "routers":
                    assert len({id(one) for one in facts if one.kernel == "route"}) == 8  # one per size and dtype
            except Exception:
                found[name] = traceback.format_exc()
    return found


def planted() -> dict[str, list[str]]:
    """Return what is found in products that are known to be bad, and in those of other numbers of columns."""
    config = configs.table()["sm90"][2]
    cases = {
        "needs 256 registers": (512, replace(config.product, n=256, warps=4, registers=None)),
        "one stage": (512, replace(config.product, stages=1)),
        **{str(columns): (columns, config.product) for columns in (264, 260, 257)},
    }
    found = {}
    with compiling() as facts:
        tiles = grouped_launch.tiles_of(torch.full((1,), 1024, dtype=torch.int32), 1024, config.m)
        for name, (columns, blocks) in cases.items():
            facts.clear()
            x, w = torch.zeros(1024, 136, dtype=torch.bfloat16), torch.zeros(1, 136, columns, dtype=torch.bfloat16)
            grouped_launch.product(x, w, tiles, blocks)
            found[name] = [fault for one in facts if (fault := fault_of(one))]
    return found


if __name__ == "__main__":
    from compile_facts import rows

    print(json.dumps({"failures": failures(), "planted": planted(), "products": rows()}))  # noqa: T201
