"""The shipped gates, and broken ones that the suite must refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from hpxfer.errors import HpxferError
from hpxfer.model.gates import GATES, Gate
from hpxfer.model.gates.probe import require_sound
from hpxfer.testing.gates import GateSuite

SIGMOID, SOFTMAX = GATES.get("sigmoid"), GATES.get("softmax")


class TestShippedGates(GateSuite):
    @pytest.fixture(params=GATES.names())
    def gate(self, request: pytest.FixtureRequest) -> Gate:
        return GATES.get(request.param)


def over_trials(logits: Tensor, scale: Tensor) -> Tensor:
    return logits.softmax(0)


def over_tokens(logits: Tensor, scale: Tensor) -> Tensor:
    return logits.softmax(1)


BROKEN = {
    "no formula": (replace(SIGMOID, formula=""), "test_has_a_name_and_a_formula"),
    "half precision": (replace(SIGMOID, scores=lambda x, _: x.bfloat16().sigmoid()), "test_shapes_and_dtypes"),
    "overflow": (replace(SIGMOID, scores=lambda x, _: x.exp()), "test_extreme_logits_give_finite_numbers"),
    "negative": (replace(SIGMOID, scores=lambda x, _: x.tanh()), "test_scores_and_weights_are_not_negative"),
    "falling": (replace(SIGMOID, scores=lambda x, _: (-x).sigmoid()), "test_a_larger_logit_has_no_smaller_score"),
    "claims a sum over the active": (
        replace(SIGMOID, sums_to_one_over="active"),
        "test_weights_sum_to_one_as_the_row_says",
    ),
    "hides its sum over all": (replace(SOFTMAX, sums_to_one_over=None), "test_weights_sum_to_one_as_the_row_says"),
    "forgets the route scale": (
        replace(SOFTMAX, scores=lambda x, _: x.softmax(-1)),
        "test_weights_sum_to_one_as_the_row_says",
    ),
    "reads other trials": (replace(SIGMOID, scores=over_trials), "test_a_trial_has_the_same_bits_in_any_stack"),
    "reads other tokens": (replace(SIGMOID, scores=over_tokens), "test_a_token_does_not_depend_on_the_others"),
    "a gradient of its own": (
        replace(SIGMOID, scores=lambda x, _: x.sigmoid() + (x - x.detach()).abs() - x + x.detach()),
        "test_gradients_are_those_of_the_weights",
    ),
    "another score in the kernel": (
        replace(SOFTMAX, score_in_kernel="softmax"),
        "test_the_kernel_chooses_by_the_scores",
    ),
    "no gradient": (
        replace(SIGMOID, name="stuck", scores=lambda x, _: x.detach().sigmoid()),
        "test_the_router_of_a_model_learns",
    ),
}


@pytest.mark.parametrize(("gate", "test"), BROKEN.values(), ids=BROKEN)
def test_a_broken_gate_is_refused(gate: Gate, test: str) -> None:
    suite: Any = GateSuite()
    with pytest.raises((AssertionError, RuntimeError)):
        getattr(suite, test)(gate)


def test_an_unknown_gate_is_named_with_the_nearest() -> None:
    with pytest.raises(HpxferError, match=r"model\.gate: unknown gate 'sigmod'; did you mean 'sigmoid'\?"):
        GATES.get("sigmod", "model.gate")


def test_a_gate_is_registered_once() -> None:
    with pytest.raises(HpxferError, match="gate 'sigmoid' is registered already"):
        GATES.register(SIGMOID)


@pytest.mark.parametrize(
    ("gate", "says"),
    [
        (
            replace(SOFTMAX, score_in_kernel="sofmax"),
            "must be None or one of sigmoid, softmax, scaled_softmax, got 'sofm",
        ),
        (replace(SOFTMAX, score_in_kernel="softmax"), "is 'softmax', but scores computes something else; leave"),
        (replace(SIGMOID, score_in_kernel="softmax"), "is 'softmax', but scores computes something else; leave"),
    ],
)
def test_a_score_in_the_kernel_that_is_another_is_refused(gate: Gate, says: str) -> None:
    with pytest.raises(HpxferError, match=f"gate {gate.name}: score_in_kernel {says}"):
        require_sound(gate)


@pytest.mark.parametrize("name", GATES.names())
def test_shipped_gates_are_sound(name: str) -> None:
    require_sound(GATES.get(name))
