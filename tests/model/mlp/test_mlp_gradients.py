"""The backward pass by hand against torch's autograd through a plain model, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from mlp_cases import Case, random_case, setting
from plain_mlp import plain_losses
from torch import Tensor

from hpxfer.model.mlp import block as block_module
from hpxfer.model.mlp import stack as stack_module
from hpxfer.scaling.shape import Shape

EXACT = 1e-8
TRIALS = 2
ACTIVATIONS = ("linear", "relu", "gelu", "tanh")
GATES = ("sigmoid", "softmax", "normalized_softmax")
LOSSES = {
    "cross entropy": {"loss": "cross_entropy"},
    "two classes": {"loss": "squared_error", "classes": 2},
    "classes": {"loss": "squared_error", "classes": 5},
    "real": {"loss": "squared_error", "targets": 3},
}
OPTIONS = st.fixed_dictionaries(
    {
        "gate": st.sampled_from(GATES),
        "expert_matrices": st.sampled_from([1, 2]),
        "activation": st.sampled_from(ACTIVATIONS),
        "input_activation": st.sampled_from(ACTIVATIONS),
        "residual": st.booleans(),
        "router_bias": st.sampled_from(["none", "learned", "learned_sgd"]),
        "inverse_temperature": st.sampled_from([1.0, 1.5]),
    }
)
SOFT = {"gate": "softmax", "router_bias": "learned", "inverse_temperature": 1.5, "residual": True}


def case_of(options: dict[str, Any], loss: str = "cross entropy", *, active: int = 2, depth: int = 2) -> Case:
    hidden = 8 if options.get("expert_matrices") == 1 else 6
    shape = Shape(width=8, depth=depth, num_experts=4, num_active=active, expert_width=hidden)
    chosen = {"batch": 9, **options, **LOSSES[loss]}
    return random_case(shape, setting(**chosen), TRIALS, dtype=torch.float64)


def gradients(losses_KB: Tensor, case: Case) -> list[Tensor]:
    """Return the gradients of a sum of the losses in which every sample has another weight."""
    weights = torch.rand(losses_KB.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return list(torch.autograd.grad(losses_KB, case.leaves, weights))


def deviation(case: Case) -> float:
    """Return the largest difference of a loss or a gradient from the plain model's, relative to the largest number."""
    own = case.output().losses_KT
    plain = torch.stack([plain_losses(case, k) for k in range(TRIALS)])
    pairs = [(own.detach(), plain.detach()), *zip(gradients(own, case), gradients(plain, case), strict=True)]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs)


@given(
    options=OPTIONS, loss=st.sampled_from(sorted(LOSSES)), active=st.sampled_from([2, 4]), depth=st.sampled_from([1, 2])
)
@example(options={"gate": "normalized_softmax", "expert_matrices": 1}, loss="two classes", active=2, depth=1)
@example(options=SOFT, loss="cross entropy", active=4, depth=2)
def test_losses_and_gradients_are_those_of_the_plain_model(
    options: dict[str, Any], loss: str, active: int, depth: int
) -> None:
    assert deviation(case_of(options, loss, active=active, depth=depth)) < EXACT


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("active", [2, 4])
def test_every_gate_soft_and_top_k(gate: str, active: int) -> None:
    assert deviation(case_of({**SOFT, "gate": gate}, active=active)) < EXACT


def _straight_through(kind: str, gated: Any, scale: Tensor, grad: Tensor) -> Tensor:
    """Return gradients that flow to the logits of all experts, those that were left out too."""
    return grad * gated.scores * (1 - gated.scores)


def _without_mean(kind: str, gated: Any, scale: Tensor, grad: Tensor) -> Tensor:
    """Return gradients of a softmax without the term that is the same for all experts."""
    return gated.weights * grad


@pytest.mark.parametrize(
    ("gate", "wrong"),
    [("sigmoid", _straight_through), ("softmax", _without_mean), ("normalized_softmax", _without_mean)],
)
def test_a_wrong_gradient_of_the_gate_is_found(gate: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of({"gate": gate})
    assert deviation(case) < EXACT
    monkeypatch.setattr(block_module, "gate_backward", wrong)
    assert deviation(case) > 1e-3


def test_a_wrong_gradient_of_the_loss_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of({}, "real")
    monkeypatch.setattr(stack_module, "loss_backward", lambda kind, kept, targets, grad: kept * grad.unsqueeze(-1))
    assert deviation(case) > 1e-3  # the factor 2 is missing


def test_the_router_learns_from_active_experts_alone() -> None:
    case = case_of({"gate": "sigmoid"}, active=1, depth=1)
    output = case.output()
    (router,) = torch.autograd.grad(output.losses_KT.sum(), case.weights["router"])
    never = output.load_LKE[0] == 0
    case = case.rows([0])
    case.weights["router"][0].data[..., 0] = -1e3 * torch.ones_like(case.weights["router"][0].data[..., 0])
    case.noise_LKE[..., 0] = -1e6  # the first expert is chosen by no sample
    (router,) = torch.autograd.grad(case.output().losses_KT.sum(), case.weights["router"])
    assert not router[..., 0].any()
    assert router[..., 1:].any()
    assert never.shape == (TRIALS, 4)
