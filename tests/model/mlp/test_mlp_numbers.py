"""The MLP mixture's losses and gradients against autograd through a plain model, its gates, ranks, sizes and costs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from mlp_cases import Case, plain_losses, random_case, setting
from torch import Tensor

from hpxfer.model.cost import count_params
from hpxfer.model.mlp import block as block_module
from hpxfer.model.mlp import stack as stack_module
from hpxfer.model.mlp.block import gate
from hpxfer.model.mlp.layout import flops_per_sample, memory, outputs_of, parameters, roles
from hpxfer.model.mlp.stack import losses, ranks
from hpxfer.scaling.shape import Shape
from hpxfer.spec.model_section import guess_loss, has_top5, num_outputs

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


def deviation(case: Case) -> float:
    """Return the largest difference of a loss or a gradient from the plain model's, relative to the largest number.

    The gradients are those of a sum of the losses in which every sample has another weight.
    """
    plain = torch.stack([plain_losses(case, k) for k in range(TRIALS)])
    weights = torch.rand(plain.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    own, found = case.gradients(weights)
    pairs = [(own.losses_KT, plain.detach())]
    pairs += zip(found, torch.autograd.grad(plain, case.leaves, weights), strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs)


@given(
    options=OPTIONS, loss=st.sampled_from(sorted(LOSSES)), active=st.sampled_from([2, 4]), depth=st.sampled_from([1, 2])
)
@example(options={"gate": "normalized_softmax", "expert_matrices": 1}, loss="two classes", active=2, depth=1)
@example(options=SOFT, loss="cross entropy", active=4, depth=2)
@example(options={**SOFT, "gate": "sigmoid"}, loss="cross entropy", active=4, depth=2)
@example(options={**SOFT, "gate": "normalized_softmax"}, loss="cross entropy", active=4, depth=2)
def test_losses_and_gradients_are_those_of_the_plain_model(
    options: dict[str, Any], loss: str, active: int, depth: int
) -> None:
    assert deviation(case_of(options, loss, active=active, depth=depth)) < EXACT


def _straight_through(kind: str, gated: Any, scale: Tensor, grad: Tensor) -> Tensor:
    """Return gradients_of that flow to the logits of all experts, those that were left out too."""
    return grad * gated.scores * (1 - gated.scores)


def _without_mean(kind: str, gated: Any, scale: Tensor, grad: Tensor) -> Tensor:
    """Return gradients_of of a softmax without the term that is the same for all experts."""
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


def chosen(kind: str, logits: list[float], bias: torch.Tensor | None) -> list[int]:
    gated = gate(kind, torch.tensor([[logits]]), torch.ones(1, 1, 1), 2, bias, None)
    assert gated.active is not None
    found: list[int] = gated.active[0, 0].nonzero().flatten().tolist()
    return found


@pytest.mark.parametrize("kind", ["sigmoid", "softmax", "normalized_softmax"])
@pytest.mark.parametrize(
    ("logits", "largest"), [([20.0, 40.0, 60.0, 30.0], [1, 2]), ([-400.0, -300.0, -500.0, -200.0], [1, 3])]
)
def test_saturated_gates_choose_the_largest_logits(kind: str, logits: list[float], largest: list[int]) -> None:
    assert chosen(kind, logits, None) == largest


def test_a_choice_is_by_scores_where_a_rule_balances() -> None:
    """What the choice by logits mends: with a bias of zero the rounded scores of a sigmoid are equal."""
    assert chosen("sigmoid", [20.0, 40.0, 60.0, 30.0], torch.zeros(1, 4)) == [0, 1]
    bias = torch.tensor([[0.0, 0.0, 0.9, 0.9]])
    assert chosen("sigmoid", [0.5, 0.4, 0.0, -0.1], None) == [0, 1]
    assert chosen("sigmoid", [0.5, 0.4, 0.0, -0.1], bias) == [2, 3]


NAN = math.nan
SHAPE = Shape(width=8, depth=2, num_experts=4, num_active=2, expert_width=6)


@pytest.mark.parametrize(
    ("outputs", "target", "found"),
    [
        *(([3.0, 1.0, 2.0], 0, 0), ([1.0, 3.0, 2.0], 0, 2), ([2.0, 3.0, 1.0], 0, 1), ([3.0, 1.0, 2.0], 2, 1)),
        *(([0.0] * 7, 0, 6), ([1.0, 1.0, 0.0, 0.0], 0, 1)),  # equal outputs count as wrong
        *(([NAN, 0.0, 0.0], 0, 2), ([NAN, NAN, NAN], 0, 2), ([1.0, NAN, 0.0], 0, 1), ([1.0, math.inf, 0.0], 0, 1)),
        *(([2.0], 0, 0), ([-1.0], 0, 1), ([2.0], 1, 1), ([-1.0], 1, 0)),  # one output says two classes by its sign
        *(([0.0], 0, 1), ([-0.0], 0, 1), ([NAN], 0, 1)),
    ],
)
def test_a_rank_is_how_many_other_classes_score_as_high(outputs: list[float], target: int, found: int) -> None:
    assert ranks(torch.tensor([[outputs]]), torch.tensor([[target]])).tolist() == [[found]]


@pytest.mark.parametrize(
    ("loss", "classes", "targets", "outputs"),
    [
        *(("cross_entropy", 2, 0, 2), ("squared_error", 2, 0, 1)),
        *(("squared_error", 3, 0, 3), ("squared_error", 0, 4, 4)),
    ],
)
def test_outputs(loss: str, classes: int, targets: int, outputs: int) -> None:
    assert num_outputs(loss, classes, targets) == outputs  # type: ignore[arg-type]
    assert outputs_of(setting(loss=loss, classes=classes, targets=targets)) == outputs


def test_guesses_and_errors_among_five() -> None:
    zeros, y = torch.zeros(1, 3, 7), torch.tensor([[0, 3, 6]])
    assert losses("cross_entropy", zeros, y)[0][0].tolist() == pytest.approx([guess_loss("cross_entropy", 7)] * 3)
    assert losses("squared_error", zeros, y)[0].tolist() == [[guess_loss("squared_error", 7)] * 3]
    assert (has_top5(5), has_top5(6)) == (False, True)
    case = random_case(SHAPE, setting(classes=10), 2)
    found = case.output().ranks()
    assert found.shape == (2, 50)
    assert (found >= 5).sum() < (found >= 1).sum()
    assert random_case(SHAPE, setting(loss="squared_error", targets=3), 2).output().ranks is None


def test_equal_logits_choose_the_first_experts_and_a_trial_of_nan_leaves_its_neighbors_alone() -> None:
    case = random_case(SHAPE, setting(gate="normalized_softmax"), 2)
    for copy in (*case.weights["router"], case.noise_LKE):
        copy.data.zero_()
    output = case.output()
    assert output.load_LKE.tolist() == [[[50, 50, 0, 0]] * 2] * 2
    assert all(gradient.isfinite().all() for gradient in case.gradients(torch.ones_like(output.losses_KT))[1])
    case = random_case(SHAPE, setting(gate="softmax"), 3)
    alone = case.rows([0, 2]).output().losses_KT
    case.weights["router"][0].data[1] = math.nan
    output = case.output()
    assert output.losses_KT[1].isnan().all()
    assert torch.equal(output.losses_KT[[0, 2]], alone)
    assert (output.ranks()[1] > 0).all()


def test_sizes_and_costs() -> None:
    given = setting(classes=7, router_bias="learned", inputs=11)
    assert count_params(SHAPE, given).active == 11 * 8 + 8 * 7 + 2 * (8 * 4 + 4 + 2 * 2 * 6 * 8)
    products = 11 * 8 + 8 * 7 + 2 * (8 * 4 + 2 * 4 * 6 * 8)
    assert flops_per_sample(SHAPE, given) == 6 * products - 2 * 11 * 8  # nothing needs the gradient by a sample
    one = setting(classes=7, expert_matrices=1)
    assert "expert_in" not in {spec.name for spec in parameters(SHAPE, one)}
    assert set(roles(SHAPE, given)) - set(roles(SHAPE, one)) == {"expert_in"}
    # A block keeps its experts' features before and after the activation, and times the gates: float32, [B, E*H].
    shape = Shape(width=16, depth=3, num_experts=4, num_active=4, expert_width=8)
    assert memory(shape, setting(batch=50), False).parts["experts"] == 3 * 3 * 4 * 50 * 4 * 8
