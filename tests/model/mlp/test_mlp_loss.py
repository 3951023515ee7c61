"""Losses of samples, and which classes a model takes a sample for."""

from __future__ import annotations

import math

import pytest
import torch
from mlp_cases import random_case, setting
from torch import Tensor

from hpxfer.model.mlp.layout import active_params, flops_per_sample, outputs_of, parameters, roles
from hpxfer.model.mlp.loss import losses, ranks, wanted
from hpxfer.scaling.shape import Shape
from hpxfer.spec.mlp import guess_loss, has_top5, num_outputs

SHAPE = Shape(width=8, depth=2, num_experts=4, num_active=2, expert_width=6)


def ranks_of(*outputs: list[float], target: int = 0) -> list[int]:
    """Return the rank of the class `target` in each row of outputs."""
    f_KBC = torch.tensor([outputs])
    found: list[int] = ranks(f_KBC, torch.full(f_KBC.shape[:2], target))[0].tolist()
    return found


def test_a_rank_is_how_many_other_classes_score_as_high() -> None:
    rows = [3.0, 1.0, 2.0], [1.0, 3.0, 2.0], [2.0, 3.0, 1.0]
    assert ranks_of(*rows) == [0, 2, 1]
    assert ranks_of(*rows, target=2) == [1, 1, 2]


def test_equal_outputs_count_as_wrong() -> None:
    assert ranks_of([0.0] * 7, [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]) == [6, 1]
    assert ranks_of([0.0], [-0.0]) == [1, 1]


def test_nan_is_never_right() -> None:
    nan = math.nan
    assert ranks_of([nan, 0.0, 0.0], [nan, nan, nan], [1.0, nan, 0.0], [1.0, math.inf, 0.0]) == [2, 2, 1, 1]
    assert ranks_of([nan]) == [1]


def test_one_output_says_two_classes_by_its_sign() -> None:
    f_KBC = torch.tensor([[[2.0], [-1.0], [2.0], [-1.0]]])
    assert ranks(f_KBC, torch.tensor([[0, 1, 1, 0]])).tolist() == [[0, 0, 1, 1]]


def test_what_outputs_should_be() -> None:
    classes = torch.tensor([[0, 1]])
    assert wanted(classes, 1).tolist() == [[[1.0], [-1.0]]]
    assert wanted(classes, 3).tolist() == [[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]
    real = torch.tensor([[[0.5, -2.0]]])
    assert wanted(real, 2) is real


@pytest.mark.parametrize(
    ("loss", "classes", "targets", "outputs"),
    [
        ("cross_entropy", 2, 0, 2),
        ("cross_entropy", 10, 0, 10),
        ("squared_error", 2, 0, 1),
        ("squared_error", 3, 0, 3),
        ("squared_error", 0, 4, 4),
    ],
)
def test_outputs(loss: str, classes: int, targets: int, outputs: int) -> None:
    assert num_outputs(loss, classes, targets) == outputs  # type: ignore[arg-type]
    assert outputs_of(setting(loss=loss, classes=classes, targets=targets)) == outputs


def test_a_model_without_knowledge_has_the_loss_of_a_guess() -> None:
    zeros, y = torch.zeros(1, 3, 7), torch.tensor([[0, 3, 6]])
    assert losses("cross_entropy", zeros, y)[0][0].tolist() == pytest.approx([guess_loss("cross_entropy", 7)] * 3)
    assert losses("squared_error", zeros, y)[0].tolist() == [[guess_loss("squared_error", 7)] * 3]
    assert (has_top5(5), has_top5(6)) == (False, True)


def test_a_top5_error_lies_below_the_error() -> None:
    case = random_case(SHAPE, setting(classes=10), 2)
    found = _ranks(case.output().ranks)
    assert found.shape == (2, 50)
    assert (found >= 5).sum() < (found >= 1).sum()


def _ranks(given: object) -> Tensor:
    assert callable(given)
    found = given()
    assert isinstance(found, Tensor)
    return found


def test_real_targets_have_no_ranks() -> None:
    case = random_case(SHAPE, setting(loss="squared_error", targets=3), 2)
    assert case.output().ranks is None


def test_equal_logits_choose_the_first_experts_and_stay_finite() -> None:
    case = random_case(SHAPE, setting(gate="normalized_softmax"), 2)
    for copy in (*case.weights["router"], case.noise_LKE):
        copy.data.zero_()
    output = case.output()
    assert output.load_LKE.tolist() == [[[50, 50, 0, 0]] * 2] * 2
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(output.losses_KT.sum(), case.leaves))


def test_a_trial_of_nan_leaves_its_neighbors_alone() -> None:
    case = random_case(SHAPE, setting(gate="softmax"), 3)
    alone = case.rows([0, 2]).output().losses_KT
    case.weights["router"][0].data[1] = math.nan
    output = case.output()
    assert output.losses_KT[1].isnan().all()
    assert torch.equal(output.losses_KT[[0, 2]], alone)
    assert (_ranks(output.ranks)[1] > 0).all()


def test_sizes_and_costs() -> None:
    given = setting(classes=7, router_bias="learned", inputs=11)
    sizes = {spec.name: (spec.size, spec.layers) for spec in parameters(SHAPE, given)}
    assert sizes == {
        "input": ((11, 8), 1),
        "router": ((8, 4), 2),
        "router_logit_bias": ((4,), 2),
        "expert_in": ((4, 6, 8), 2),
        "expert_out": ((4, 6, 8), 2),
        "readout": ((8, 7), 1),
    }
    assert active_params(SHAPE, given) == 11 * 8 + 8 * 7 + 2 * (8 * 4 + 4 + 2 * 2 * 6 * 8)
    products = 11 * 8 + 8 * 7 + 2 * (8 * 4 + 2 * 4 * 6 * 8)
    assert flops_per_sample(SHAPE, given) == 6 * products - 2 * 11 * 8  # nothing needs the gradient by a sample
    one = setting(classes=7, expert_matrices=1)
    assert "expert_in" not in {spec.name for spec in parameters(SHAPE, one)}
    assert set(roles(SHAPE, given)) - set(roles(SHAPE, one)) == {"expert_in"}
