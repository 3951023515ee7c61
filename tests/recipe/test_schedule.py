"""A schedule that keeps the ratios between groups, and the ones that do not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hf_models import by_hand, mixtral_of_width

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.recipe import Recipe, check_lr_ratios, scheduler

PEAKS = ("embedding", "attn_q", "readout")


def optimizer(model: Any = None, **hps: float) -> torch.optim.Optimizer:
    model = mixtral_of_width(64) if model is None else model
    shape = hpxfer.shape_of(model)
    made = by_hand(hpxfer.shape_of(mixtral_of_width(32)), **hps)
    with made.attach(model, shape):
        groups = made.param_groups(model, hpxfer.roles(model), shape)
    assert len({group["lr"] for group in groups}) > 1, "the ratios must be something to keep"
    return torch.optim.AdamW(groups)


def ratios(adam: torch.optim.Optimizer) -> list[float]:
    return [group["lr"] / adam.param_groups[0]["lr"] for group in adam.param_groups]


def run(schedule: Any, adam: torch.optim.Optimizer, steps: int) -> list[list[float]]:
    """Return the LR of every group at every step."""
    out = []
    for _ in range(steps):
        out.append([group["lr"] for group in adam.param_groups])
        adam.step()
        schedule.step()
    return out


def test_the_shipped_schedule_multiplies_every_peak_by_the_same_factor() -> None:
    adam = optimizer()
    before, peaks = ratios(adam), [group["lr"] for group in adam.param_groups]

    def factor(step: int) -> float:
        return min(1.0, (step + 1) / 4) * (0.5 if step > 6 else 1.0)

    rates = run(Recipe.scheduler(adam, factor), adam, 9)
    for step, at in enumerate(rates):
        assert at == pytest.approx([peak * factor(step) for peak in peaks])
    assert ratios(adam) == pytest.approx(before)
    assert check_lr_ratios(adam) == pytest.approx(factor(9))


def test_one_lr_for_all_groups_breaks_the_ratios_and_the_check_says_so() -> None:
    adam = optimizer()
    before = ratios(adam)
    for group in adam.param_groups:
        group["lr"] = 1e-3  # what nanoGPT and many others do
    assert ratios(adam) != pytest.approx(before)
    with pytest.raises(HpxferError, match=r"must multiply the peak LR of all groups by one factor, got .*embedding"):
        Recipe.check_lr_ratios(adam)


@pytest.mark.parametrize(
    ("make", "keeps"),
    [
        (lambda adam: torch.optim.lr_scheduler.CosineAnnealingLR(adam, T_max=8), True),
        (lambda adam: torch.optim.lr_scheduler.CosineAnnealingLR(adam, T_max=8, eta_min=1e-3), False),
        (lambda adam: torch.optim.lr_scheduler.LinearLR(adam, start_factor=0.1, total_iters=4), True),
        (lambda adam: torch.optim.lr_scheduler.OneCycleLR(adam, max_lr=1e-3, total_steps=9), False),
    ],
    ids=["cosine", "cosine with a floor", "linear", "one cycle"],
)
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
def test_which_of_torchs_schedules_keep_them(make: Any, keeps: bool) -> None:
    adam = optimizer()
    before = ratios(adam)
    run(make(adam), adam, 5)
    assert all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(ratios(adam), before, strict=True)) == keeps
    if keeps:
        check_lr_ratios(adam)
    else:
        with pytest.raises(HpxferError, match="one factor"):
            check_lr_ratios(adam)


def test_a_caller_may_scale_all_groups_before_the_schedule_starts() -> None:
    adam = optimizer()
    for group in adam.param_groups:
        group["lr"] *= 2
    run(scheduler(adam, lambda step: 1.0), adam, 2)
    assert check_lr_ratios(adam) == pytest.approx(2.0)


def test_the_end_of_a_schedule_at_zero_is_no_fault() -> None:
    adam = optimizer()
    run(scheduler(adam, lambda step: 0.0), adam, 1)
    assert check_lr_ratios(adam) == 0.0


@pytest.mark.parametrize("call", [lambda adam: scheduler(adam, lambda step: 1.0), check_lr_ratios])
def test_an_optimizer_with_other_groups_is_refused(call: Any) -> None:
    other = torch.optim.AdamW(torch.nn.Linear(2, 2).parameters(), lr=1e-3)
    with pytest.raises(HpxferError, match=r"must have the groups of recipe\.param_groups, got others"):
        call(other)


def test_a_state_of_another_run_brings_its_own_lrs_and_the_check_says_so() -> None:
    model = mixtral_of_width(64)
    tuned_before, same = optimizer(model, lr=2.0**-6).state_dict(), optimizer(model).state_dict()
    adam = optimizer(model)
    adam.load_state_dict(same)
    assert check_lr_ratios(adam) == 1.0
    adam.load_state_dict(tuned_before)
    with pytest.raises(HpxferError, match=r"peak LRs must be those of recipe\.param_groups, got 0\.0\d+ in place of"):
        check_lr_ratios(adam)
    for group, own in zip(adam.param_groups, optimizer(model).param_groups, strict=True):
        group.update(lr=own["lr"], peak_lr=own["peak_lr"])
    assert check_lr_ratios(adam) == 1.0


def test_a_state_of_groups_in_another_order_is_found_by_its_tensors() -> None:
    model = mixtral_of_width(64)
    adam = optimizer(model)
    first, *rest = (dict(group) for group in adam.param_groups)
    adam.load_state_dict({**adam.state_dict(), "param_groups": _swapped(adam.state_dict()["param_groups"])})
    assert first["peak_lr"] != rest[0]["peak_lr"]
    with pytest.raises(HpxferError, match="in place of"):
        check_lr_ratios(adam)


def _swapped(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the groups with the numbers of the first two exchanged, as of a run that ordered them otherwise."""
    one, two, *others = groups
    return [{**two, "params": one["params"]}, {**one, "params": two["params"]}, *others]


@pytest.mark.parametrize("tensors", [False, True])
def test_the_lr_from_which_a_schedule_starts_counts_too(tensors: bool) -> None:
    adam = optimizer()
    for group in adam.param_groups:
        group["initial_lr"] = torch.tensor(1e-3) if tensors else 1e-3
    with pytest.raises(HpxferError, match="got for initial_lr"):
        check_lr_ratios(adam)
