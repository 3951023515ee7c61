"""The model under torch.compile: one graph, and the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from gpt_cases import CASES, Case

from hpxfer.model.flat import gradients


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler, of torch
@pytest.mark.parametrize("name", ["joint", "mixed", "tied"])
def test_the_whole_forward_pass_is_one_graph(name: str) -> None:
    """It runs in bfloat16, because torch's traced grouped product takes no float32."""
    made = Case(*CASES[name])
    model = replace(made.model, setting=replace(made.setting, precision="bfloat16"))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    results = []
    for forward in (compiled, model):
        losses = forward(made.weights, made.bias_LKE, made.inputs, made.targets, noise_LKE=made.noise_LKE).losses_KT
        results.append((losses, gradients(losses, made.weights, made.grad_KT)))
    (losses, grads), (expected, expected_grads) = results
    assert torch.equal(losses, expected)
    for tensor, copies in grads.items():
        for got, own in zip(copies, expected_grads[tensor], strict=True):
            assert torch.equal(got, own), tensor
