"""The choice of experts: by logits, or by scores where a rule balances the experts."""

from __future__ import annotations

import pytest
import torch

from hpxfer.model.mlp.gate import gate

ONE = torch.ones(1, 1, 1)


def chosen(kind: str, logits: list[float], bias: torch.Tensor | None) -> list[int]:
    gated = gate(kind, torch.tensor([[logits]]), ONE, 2, bias, None)
    assert gated.active is not None
    found: list[int] = gated.active[0, 0].nonzero().flatten().tolist()
    return found


@pytest.mark.parametrize("kind", ["sigmoid", "softmax", "normalized_softmax"])
@pytest.mark.parametrize(
    ("logits", "largest"), [([20.0, 40.0, 60.0, 30.0], [1, 2]), ([-400.0, -300.0, -500.0, -200.0], [1, 3])]
)
def test_saturated_gates_choose_the_largest_logits(kind: str, logits: list[float], largest: list[int]) -> None:
    assert chosen(kind, logits, None) == largest


def test_scores_that_are_rounded_alike_would_choose_by_index() -> None:
    """What the choice by logits mends: with a bias of zero the rounded scores of a sigmoid are equal."""
    assert chosen("sigmoid", [20.0, 40.0, 60.0, 30.0], torch.zeros(1, 4)) == [0, 1]


def test_a_balancing_rule_adds_its_bias_to_the_scores() -> None:
    bias = torch.tensor([[0.0, 0.0, 0.9, 0.9]])
    assert chosen("sigmoid", [0.5, 0.4, 0.0, -0.1], None) == [0, 1]
    assert chosen("sigmoid", [0.5, 0.4, 0.0, -0.1], bias) == [2, 3]


def test_equal_logits_go_to_the_lowest_index() -> None:
    assert chosen("sigmoid", [0.0] * 4, None) == [0, 1]
