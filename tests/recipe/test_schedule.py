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


def own_groups(model: Any = None, **hps: float) -> list[dict[str, Any]]:
    model = mixtral_of_width(64) if model is None else model
    shape = hpxfer.shape_of(model)
    made = by_hand(hpxfer.shape_of(mixtral_of_width(32)), **hps)
    with made.attach(model, shape):
        groups = made.param_groups(model, hpxfer.roles(model), shape)
    assert len({group["lr"] for group in groups}) > 1, "the ratios must be something to keep"
    return groups


def optimizer(model: Any = None, **hps: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(own_groups(model, **hps))


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
    for group in adam.param_groups:
        group["lr"] = 1e-3  # what nanoGPT and many others do
    with pytest.raises(HpxferError, match=r"must multiply the peak LR of all groups by one factor, got .*embedding"):
        Recipe.check_lr_ratios(adam)


@pytest.mark.parametrize(("scaled_before", "factor"), [(2.0, 1.0), (1.0, 0.0)])
def test_a_common_factor_before_and_the_end_at_zero_are_no_fault(scaled_before: float, factor: float) -> None:
    adam = optimizer()
    for group in adam.param_groups:
        group["lr"] *= scaled_before
    run(scheduler(adam, lambda step: factor), adam, 2)
    assert check_lr_ratios(adam) == pytest.approx(scaled_before * factor)


def swapped() -> torch.optim.Optimizer:
    """Return an optimizer that loaded a state whose first two groups have each other's numbers."""
    adam = optimizer()
    one, two, *others = adam.state_dict()["param_groups"]
    assert one["peak_lr"] != two["peak_lr"]
    groups = [{**two, "params": one["params"]}, {**one, "params": two["params"]}, *others]
    adam.load_state_dict({**adam.state_dict(), "param_groups": groups})
    return adam


def with_initial_lr(value: Any) -> torch.optim.Optimizer:
    adam = optimizer()
    for group in adam.param_groups:
        group["initial_lr"] = value
    return adam


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: torch.optim.AdamW(torch.nn.Linear(2, 2).parameters()), "must have the groups of recipe.* got others"),
        (lambda: torch.optim.SGD(own_groups(weight_decay=0.1)), "must be that of the recipe, AdamW, .*, got SGD"),
        (lambda: torch.optim.Adam(own_groups(weight_decay=0.1)), "must be that of the recipe, AdamW, .*, got Adam"),
        (
            lambda: scheduler(optimizer(), lambda step: 1.0),
            "must be one of torch.*, got LambdaLR, which has no param_gr",
        ),
        (swapped, "in place of"),
        (lambda: with_initial_lr(torch.tensor(1e-3)), "got for initial_lr"),
    ],
)
def test_what_is_not_the_optimizer_of_the_recipe_is_refused(make: Any, said: str) -> None:
    with pytest.raises(HpxferError, match=said):
        check_lr_ratios(make())
    if "got others" in said:
        with pytest.raises(HpxferError, match=said):
            scheduler(make(), lambda step: 1.0)


def test_adam_without_weight_decay_is_adamw() -> None:
    assert check_lr_ratios(torch.optim.Adam(own_groups(weight_decay=0.0))) == 1.0


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


@pytest.mark.parametrize(
    ("hps", "said"),
    [
        *(({"lr": 2.0**-6}, r"got peak_lr 0\.0\d+ in place of"), ({"weight_decay": 0.5}, "weight_decay 0.5 in")),
        *(({"eps": 1e-8}, "eps 5e-09 in"), ({"beta1": 0.8}, "beta1 0.8 in")),
    ],
    ids=str,
)
def test_a_state_of_another_run_brings_its_own_numbers_and_the_check_says_so(hps: dict[str, float], said: str) -> None:
    model = mixtral_of_width(64)
    same, other = (optimizer(model, **{"weight_decay": 0.1, **each}).state_dict() for each in ({}, hps))
    adam = optimizer(model, weight_decay=0.1)
    adam.load_state_dict(same)
    assert check_lr_ratios(adam) == 1.0
    adam.load_state_dict(other)
    for call in (check_lr_ratios, lambda adam: scheduler(adam, lambda step: 1.0)):
        with pytest.raises(HpxferError, match=rf"must be those of recipe\.param_groups, .*{said}"):
            call(adam)


@pytest.mark.parametrize("make_before", [True, False])
def test_what_the_message_advises_restores_all_numbers_and_the_start_of_the_schedule(make_before: bool) -> None:
    model = mixtral_of_width(64)
    before = optimizer(model, lr=2.0**-6, weight_decay=0.5, eps=1e-8)
    scheduler(before, lambda step: 0.5)
    state, new = before.state_dict(), own_groups(model, weight_decay=0.1)
    adam = torch.optim.AdamW(own_groups(model, weight_decay=0.1))
    schedule = scheduler(adam, lambda step: 0.25) if make_before else None
    adam.load_state_dict(state)
    with pytest.raises(HpxferError, match=r"call group\.update\(own, initial_lr=own\['lr'\]\)"):
        check_lr_ratios(adam)
    for group, own in zip(adam.param_groups, new, strict=True):
        group.update(own, initial_lr=own["lr"])
    schedule = schedule or scheduler(adam, lambda step: 0.25)
    adam.step()
    schedule.step()
    assert check_lr_ratios(adam) == 0.25
    for group, own in zip(adam.param_groups, new, strict=True):
        assert group["lr"] == own["lr"] / 4
        assert all(group[key] == own[key] for key in ("peak_lr", "weight_decay", "eps", "betas"))
