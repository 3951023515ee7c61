"""The MoE layer's yardsticks compute what the project's op computes, and cost what is said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from bench_cases import TINY
from tolerances import assert_near
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from hpxfer.bench.cases import trials
from hpxfer.bench.layer import Layer, dense, looped, own, own_by, random_layer, stock
from hpxfer.bench.stock import both_ways, copy_peak, matmul_peak, normal, permuted, products_and_attention
from hpxfer.kernels.backend import TORCH

CPU = torch.device("cpu")


def made(num_trials: int, tokens: int = 40) -> Layer:
    return random_layer(num_trials, tokens, 16, 24, 4, CPU, torch.float32)


def in_float64(layer: Layer) -> Layer:
    x, w_in, w_out, gate = (leaf.detach().double().requires_grad_() for leaf in layer.leaves)
    return replace(layer, x_MD=x, w_in_GDH=w_in, w_out_GHD=w_out, gate_M=gate)


@pytest.mark.parametrize("num_trials", [1, 3])
def test_all_ways_agree(num_trials: int) -> None:
    layer = made(num_trials)
    exact = in_float64(layer)
    gradient = normal(*layer.x_MD.shape, device=CPU)
    wanted = [looped(exact)]
    wanted += torch.autograd.grad(wanted[0], exact.leaves, gradient.double())
    plain = [looped(layer)]
    plain += torch.autograd.grad(plain[0], layer.leaves, gradient)
    for name, way in (("own", lambda layer: own(layer, TORCH)), ("stock", stock)):
        got = [way(layer)]
        got += torch.autograd.grad(got[0], layer.leaves, gradient)
        for index, (a, b, c) in enumerate(zip(got, plain, wanted, strict=True)):
            assert_near(a, b, c, f"{name}, result {index}")


@pytest.mark.parametrize("products", ["triton", "library"])
def test_the_op_runs_by_either_choice_of_products(products: Literal["triton", "library"]) -> None:
    layer = made(2)
    run = own_by(layer, products)
    assert run is not None
    y, grads = run()  # type: ignore[misc]
    dy = normal(*layer.x_MD.shape, device=CPU)
    plain = own(layer, TORCH)
    exact_layer = in_float64(layer)
    exact = looped(exact_layer)
    assert_near(y, plain, exact, "y")
    got = (grads.x, grads.weights.w_in, grads.weights.w_out, grads.gate.squeeze(1))
    wanted = torch.autograd.grad(plain, layer.leaves, dy), torch.autograd.grad(exact, exact_layer.leaves, dy.double())
    for a, b, c in zip(got, *wanted, strict=True):
        assert_near(a, b, c)


def test_a_layer_that_the_library_does_not_take_has_no_such_job() -> None:
    layer = random_layer(1, 8, 6, 8, 2, CPU, torch.float32)
    assert own_by(layer, "library") is None


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the name of every operator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


def test_the_stock_layer_moves_rows_by_gathers_alone() -> None:
    """An index_add is slower, and nobody needs it where an index is a permutation: it flattered the project's op."""
    layer = made(2)
    with Operators() as found:
        both_ways(lambda: stock(layer), layer.leaves)()
    assert "aten::index_select" in found.names
    assert not [name for name in found.names if "index_add" in name or "index_put" in name or "scatter" in name]


def test_the_gradient_of_a_permutation_is_exact() -> None:
    index = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    x = normal(7, 3, device=CPU, dtype=torch.float64, grad=True)
    dy = normal(7, 3, device=CPU, dtype=torch.float64)
    got, wanted = permuted(x, index, index.argsort()), x.index_select(0, index)
    assert torch.equal(got, wanted)
    assert torch.equal(*(torch.autograd.grad(y, x, dy)[0] for y in (got, wanted)))


def test_random_routing_uses_every_expert() -> None:
    assert made(3, tokens=64).groups.load.min() > 0


def test_a_dense_ffn_has_the_layers_flops() -> None:
    layer = made(2)
    job = dense(layer)
    with FlopCounterMode(display=False) as counter:
        job()
    assert counter.get_total_flops() == layer.flops


def test_the_products_of_a_step_are_those_of_its_model(tmp_path: Path) -> None:
    (member,) = trials(TINY, 1, tmp_path)
    shape, setting, num_trials = member.shape, member.setting, 2
    job = products_and_attention(shape, setting, num_trials)
    with FlopCounterMode(display=False) as counter:
        job()
    flops = {str(name): count for name, count in counter.get_flop_counts()["Global"].items()}
    dim = shape.width
    weights = shape.depth * (4 * dim * dim + dim * shape.num_experts) + dim * setting.vocab_size
    assert flops["aten.bmm"] == 6 * weights * num_trials * setting.batch_tokens


def test_peaks_are_plausible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpxfer.bench.stock._CPU_PEAK_SIZES", (64, 256))
    monkeypatch.setattr("hpxfer.bench.stock._CPU_COPY_BYTES", 2**22)
    assert 1e8 < matmul_peak(CPU) < 1e13
    assert 1e8 < copy_peak(CPU) < 1e13
