"""The experts in torch's own operations: the reading and writing of rows exactly, and the bits of a trial.

Their values and gradients against a loop are in test_experts.py, beside Triton's.
"""

from __future__ import annotations

import pytest
import torch
from expert_cases import Case, Leaves, by_kernels, gradients, with_gradients
from torch import Tensor
from triton_cases import DEVICE, normal

from hpxfer.kernels.backend import TORCH


@pytest.mark.parametrize("case", ["any", "1"])
@pytest.mark.parametrize("num_active", [1, 2, 3])
def test_every_slot_of_a_token_has_its_own_expert_and_gate(case: str, num_active: int) -> None:
    """Expert g adds g + 1 to nothing, in whole numbers, so that sums are exact in any order."""
    layer = Case(trials=2, tokens=7, num_experts=5, num_active=num_active, width=4, hidden=4, biases=True, experts=case)
    chosen, groups = layer.chosen(), 2 * layer.num_experts
    leaves = layer.leaves(torch.float32)
    values = {name: torch.zeros_like(tensor) for name, tensor in leaves._asdict().items() if tensor is not None}
    values["b_out"] += torch.arange(1, groups + 1, device=DEVICE).unsqueeze(1)
    values["gate"] += 2.0 ** torch.arange(num_active, device=DEVICE)
    leaves = with_gradients(Leaves(**dict.fromkeys(Leaves._fields) | values))
    found = gradients(by_kernels(leaves, chosen, layer.num_experts, TORCH), leaves, torch.ones(14, 4, device=DEVICE))
    number = chosen + 1 + layer.num_experts * torch.arange(2, device=DEVICE).view(-1, 1, 1)
    expected = (number * 2 ** torch.arange(num_active, device=DEVICE)).sum(-1).view(-1, 1).expand(-1, 4)
    assert torch.equal(found["y"], expected.float())
    assert torch.equal(found["gate"], 4.0 * number.view(-1, num_active))


@pytest.mark.parametrize("swiglu", [False, True])
@pytest.mark.parametrize(("num_active", "width"), [(1, 32), (2, 24)])
def test_bits_of_a_trial_do_not_depend_on_its_stack(num_active: int, width: int, swiglu: bool) -> None:
    case = Case(
        trials=4, tokens=32, num_experts=4, num_active=num_active, width=width, hidden=24, swiglu=swiglu, biases=True
    )
    chosen, whole = case.chosen(), case.leaves(torch.float32)
    dy = normal(4 * 32, width, seed=10)

    def run(low: int, high: int) -> dict[str, Tensor]:
        def part(given: Tensor | None) -> Tensor | None:
            return None if given is None else given.unflatten(0, (4, -1))[low:high].flatten(0, 1)

        leaves = with_gradients(Leaves(*(part(tensor) for tensor in whole)))
        y = by_kernels(leaves, chosen[low:high], case.num_experts, TORCH)
        return gradients(y, leaves, dy.unflatten(0, (4, -1))[low:high].flatten(0, 1))

    together = run(0, 4)
    for trial in range(4):
        for name, got in run(trial, trial + 1).items():
            assert torch.equal(got, together[name].unflatten(0, (4, -1))[trial]), name
