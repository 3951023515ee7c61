"""A trial is a pure function of its spec: its bits do not depend on the stack, the slot or the neighbors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tiny_trials import BASE, JOINT, numbers, trained, trial

from hpxfer.shape import Shape
from hpxfer.trial import Setting, Trial

E8A2 = replace(BASE, num_experts=8, num_active=2)
CASES: dict[str, tuple[Shape, str, dict[str, Any]]] = {
    "sp": (BASE, "sp", {}),
    "completep-moe": (JOINT, "completep-moe", {}),
    "sgd": (E8A2, "sp", {"optimizer": "sgd"}),
    "tied": (replace(JOINT, depth=1), "completep-moe", {"tied_embeddings": True}),
    "gains and biases": (E8A2, "completep-moe", {"norm_gains": True, "biases": True}),
    "softmax": (E8A2, "sp", {"gate": "softmax"}),
    "E8A2, clipped": (E8A2, "completep-moe", {"gradient_clip": 0.3}),
    "context 32, three windows": (BASE, "sp", {"context": 32, "batch_tokens": 96, "validation_tokens": 96}),
    "cosine": (BASE, "sp", {"decay": "cosine", "final_fraction": 0.1}),
}


def made(setting: Setting, case: str) -> tuple[Trial, list[Trial]]:
    """Return a trial and its neighbors: other seeds, HPs and tables, one that is NaN at once and one that blows up."""
    shape, name, changes = CASES[case]
    setting = replace(setting, **changes)
    wild = trial(setting, shape, name, seed=3, init_scale=1e30)
    neighbors = [
        wild,
        trial(setting, shape, "sp", seed=1, lr=2.0**-9, residual_scale=0.5),
        trial(setting, shape, name, seed=2, beta1=0.5, eps=1e-4, weight_decay=0.0),
        trial(setting, shape, name, seed=2, lr=1e6),
        trial(setting, shape, "sp", seed=0, init_scale=0.3, router_bias_lr=0.1),
    ]
    return trial(setting, shape, name, seed=0), neighbors


@pytest.mark.parametrize("case", CASES)
def test_a_stacked_trial_has_the_bits_of_the_trial_alone(setting: Setting, case: str) -> None:
    mine, neighbors = made(setting, case)
    (alone,) = trained(mine)
    assert alone.status == "finished"
    assert len(alone.curves) > 3
    for before, after in ((1, 0), (0, 2), (3, 2)):
        stack = (*neighbors[:before], mine, *neighbors[len(neighbors) - after :])
        results = trained(*stack)
        assert numbers(results[before]) == numbers(alone), f"slot {before} of {len(stack)}"
    assert results[0].status == "diverged"  # beside it all the time


def test_neighbors_have_their_own_bits_too(setting: Setting) -> None:
    mine, neighbors = made(setting, "completep-moe")
    together = trained(mine, *neighbors)
    for one, result in zip((mine, *neighbors), together, strict=True):
        assert numbers(trained(one)[0]) == numbers(result)


def test_two_runs_are_equal(setting: Setting) -> None:
    one = trial(setting)
    assert numbers(trained(one)[0]) == numbers(trained(one)[0])


@pytest.mark.parametrize("change", [{"seed": 1}, {"lr": 2.0**-7}, {"init_scale": 1.01}, {"router_bias_lr": 0.02}])
def test_another_trial_has_other_bits(setting: Setting, change: dict[str, Any]) -> None:
    plain, other = trained(trial(setting), trial(setting, **change))
    assert plain.validation_loss_nats != other.validation_loss_nats


def test_parameterizations_agree_at_the_base_and_nowhere_else(setting: Setting) -> None:
    # Expert eps and the rest are the same there, so that the runs are, too.
    at_base = trained(trial(setting, BASE, "sp"), trial(setting, BASE, "completep-moe"))
    assert at_base[0].curves == at_base[1].curves
    joint = trained(trial(setting, JOINT, "sp"), trial(setting, JOINT, "completep-moe"))
    assert joint[0].curves != joint[1].curves
