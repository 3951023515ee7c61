"""A trial of the MLP mixture has the same bits in every stack, on one thread in float32, and so has a product."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mlp_cases import Case, random_case, setting
from torch import Tensor

from hpxfer.model.mlp import block
from hpxfer.model.mlp.block import product
from hpxfer.scaling.shape import Shape

TRIALS = 16
STACKS = [*([k] for k in (0, 1, 6, 15)), [0, 1, 2], [5, 2, 9], [13, 14, 15]]
# Samples, experts, width of an expert, inputs and classes. 50 samples are no multiple of a vector.
SIZES = {
    "50 samples, 8 experts": (50, 8, 16, 16, 100),
    "odd sizes": (7, 5, 3, 13, 7),
    "one sample": (1, 4, 8, 16, 10),
    "one expert": (33, 1, 5, 9, 2),
}
PAIRS = [*zip((27, 32, 48, 128), SIZES, strict=True), *zip((128, 48, 27, 32), SIZES, strict=True)]
KINDS: dict[str, dict[str, Any]] = {
    "sigmoid, gelu": {"gate": "sigmoid", "activation": "gelu", "input_activation": "gelu", "residual": True},
    "softmax, tanh": {"gate": "softmax", "activation": "tanh", "input_activation": "relu", "router_bias": "learned"},
    "top-k, relu": {"gate": "normalized_softmax", "activation": "relu", "input_activation": "tanh", "top": 2},
    "one matrix, gelu": {"gate": "sigmoid", "activation": "gelu", "input_activation": "linear", "expert_matrices": 1},
    "one matrix, top-k": {"gate": "softmax", "activation": "linear", "expert_matrices": 1, "top": 2},
}


def case_of(width: int, size: str, kind: str, loss: str = "cross_entropy") -> Case:
    batch, experts, hidden, inputs, classes = SIZES[size]
    options = dict(KINDS[kind])
    active = min(options.pop("top", experts), experts)
    expert_width = width if options.get("expert_matrices") == 1 else hidden
    shape = Shape(width=width, depth=2, num_experts=experts, num_active=active, expert_width=expert_width)
    given = setting(batch=batch, inputs=inputs, classes=classes, inverse_temperature=1.5, loss=loss, **options)
    return random_case(shape, given, TRIALS, std=0.2)


def bits(case: Case) -> list[Tensor]:
    """Return the losses, their means, the scores and all gradients of the mean losses, [K, ...] each."""
    losses = case.output().losses_KT
    output, grads = case.gradients(torch.full_like(losses, 1 / losses.shape[1]))
    assert torch.equal(output.losses_KT, losses)
    return [losses, losses.mean(1), *output.scores, *grads]


def differs(case: Case) -> bool:
    """Return whether a number of a trial depends on the stack that the trial is in."""
    whole = bits(case.rows(range(TRIALS)))
    return any(
        not torch.equal(alone, together[rows])
        for rows in STACKS
        for alone, together in zip(bits(case.rows(rows)), whole, strict=True)
    )


@pytest.mark.parametrize(("width", "size"), PAIRS)
def test_the_bits_of_a_trial_are_those_in_every_stack(width: int, size: str) -> None:
    for kind in KINDS:
        assert not differs(case_of(width, size, kind)), kind
    for kind in ("sigmoid, gelu", "top-k, relu"):
        assert not differs(case_of(width, size, kind, "squared_error")), kind


def test_without_padding_the_bits_of_functions_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block, "WHOLE", 1)
    if not any(differs(case_of(width, size, "sigmoid, gelu")) for width in (27, 128) for size in SIZES):
        pytest.skip("this machine computes the last numbers of a tensor as the others")


def test_without_padding_the_bits_of_products_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block, "ALIGNED", 1)
    if not any(differs(case_of(width, size, "top-k, relu")) for width in (27, 32) for size in SIZES):
        pytest.skip("this machine computes a product by the same code at every address")


NUMBERS = st.sampled_from([1, 2, 3, 5, 7, 8, 10, 16, 27, 50, 64])
ROWS = ([0], [1], [3], [15], [0, 1, 2], [13, 14, 15])


def _rows(x: Tensor, rows: list[int], transposed: bool) -> Tensor:
    """Return some trials in memory of their own, in the same order of numbers."""
    return x.mT[rows].contiguous().mT if transposed else x[rows].contiguous()


@given(x=NUMBERS, y=NUMBERS, z=NUMBERS, first=st.booleans(), second=st.booleans())
def test_a_product_has_the_same_bits_in_every_stack(x: int, y: int, z: int, first: bool, second: bool) -> None:
    generator = torch.Generator().manual_seed(x + 100 * y + 10_000 * z)
    a = _rows(torch.randn(16, x, y, generator=generator), list(range(16)), first)
    b = _rows(torch.randn(16, y, z, generator=generator), list(range(16)), second)
    whole = product(a, b)
    assert whole.shape == (16, x, z)
    assert whole.is_contiguous()
    torch.testing.assert_close(whole.double(), a.double() @ b.double(), rtol=1e-4, atol=1e-4)
    for rows in ROWS:
        assert torch.equal(product(_rows(a, rows, first), _rows(b, rows, second)), whole[rows])
