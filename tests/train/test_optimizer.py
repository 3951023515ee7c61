"""StackOptimizer against torch's optimizers, one trial at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from tiny_trials import HPS, SETTING
from tolerances import assert_near, is_near
from torch import Tensor

from hpxfer.model.flat import FlatLayout, Weights
from hpxfer.model.parameters import ParameterSpec
from hpxfer.scaling.evaluate import Multipliers
from hpxfer.scaling.hps import HPs
from hpxfer.train import optimizer
from hpxfer.train.optimizer import StackOptimizer, clip_gradients
from hpxfer.train.schedules import lr_factor

# Two roles, layers and a vector; `wide` is cut in pieces when a block is small.
NAMED = (
    ParameterSpec(name="wide", role="embedding", size=(9, 8)),
    ParameterSpec(name="block", role="router", size=(3, 8), blocks=(0, 1)),
    ParameterSpec(name="gain", role="norm", size=(8,)),
)
STEPS = 5
FACTORS = [lr_factor(replace(SETTING, steps=STEPS, decay="linear"), step) for step in range(STEPS)]
HP_SETS = (
    HPs(lr=0.1, beta1=0.9, beta2=0.95),
    HPs(lr=0.02, beta1=0.5, beta2=0.999),
    HPs(lr=0.003, beta1=0.0, beta2=0.0),
)
MOMENTUM = (0.9, 0.5, 0.0)
BETAS = [(hps.beta1, hps.beta2) for hps in HP_SETS]
ROLES = ("embedding", "router", "norm")


def resolved(trial: int) -> dict[str, Multipliers]:
    """Return numbers that differ by trial and by role; the last trial has none of weight decay."""
    return {
        role: Multipliers(
            init_std=1.0,
            lr=HP_SETS[trial].lr * (1 + row),
            eps=10.0 ** (-3 - trial - row),
            weight_decay=0.3 * row * (2 - trial),
            forward=1.0,
        )
        for row, role in enumerate(ROLES)
    }


def layout(num_trials: int = 3) -> FlatLayout:
    return FlatLayout(parameters=NAMED, num_trials=num_trials)


def normal(seed: int, num_trials: int = 3) -> Tensor:
    return torch.randn(layout(num_trials).numel, generator=torch.Generator().manual_seed(seed))


def made(
    flat: Tensor,
    name: str,
    betas: Sequence[tuple[float, float]] = BETAS,
    hps: Sequence[Mapping[str, Multipliers]] | None = None,
    momentum: Sequence[float] = MOMENTUM,
) -> StackOptimizer:
    """Return the optimizer of as many trials as there are betas, at its start. `momentum` is SGD with momentum."""
    has_momentum = name == "momentum"
    out = StackOptimizer(layout(len(betas)), flat, "sgd" if has_momentum else name, has_momentum=has_momentum)
    out.set_hps(betas, [resolved(k) for k in range(3)] if hps is None else hps, momentum if has_momentum else ())
    return out


def grads_at(step: int) -> Weights:
    """Return the gradients of a step; sizes differ widely over steps."""
    return layout().weights(normal(100 + step) * 10.0 ** (step - 2))


def stacked(
    name: str, *, clip: float | None = None, change: Callable[[int, Weights, StackOptimizer], None] | None = None
) -> Weights:
    """Return the parameters after STEPS steps; `change` may tamper with a step."""
    flat = normal(0)
    tested = made(flat, name)
    for step, factor in enumerate(FACTORS):
        grads = grads_at(step)
        if change is not None:
            change(step, grads, tested)
        tested.step(grads, factor, clip)
    return layout().weights(flat)


def by_torch(trial: int, name: str, dtype: torch.dtype, clip: float | None = None) -> dict[str, list[Tensor]]:
    """Return one trial's parameters after the same steps of a torch optimizer."""
    params = {key: [copy[trial].to(dtype) for copy in copies] for key, copies in layout().weights(normal(0)).items()}
    groups = []
    for tensor in NAMED:
        tested = resolved(trial)[tensor.role]
        group = {"params": params[tensor.name], "lr": tested.lr, "weight_decay": tested.weight_decay}
        if name == "adamw":
            group |= {"eps": tested.eps, "betas": BETAS[trial]}
        groups.append(group)
    if name == "adamw":
        made: torch.optim.Optimizer = torch.optim.AdamW(groups, foreach=False)
    else:
        made = torch.optim.SGD(groups, momentum=MOMENTUM[trial] if name == "momentum" else 0.0, foreach=False)
    peaks = [(group["lr"], group["weight_decay"]) for group in made.param_groups]
    flat_params = [copy for copies in params.values() for copy in copies]
    for step, factor in enumerate(FACTORS):
        for tested, grad in zip(flat_params, (c[trial] for cs in grads_at(step).values() for c in cs), strict=True):
            tested.grad = grad.to(dtype)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(flat_params, clip, foreach=False)
        for group, (lr, weight_decay) in zip(made.param_groups, peaks, strict=True):
            group["lr"] = lr * factor
            if name != "adamw":  # torch couples the decay into the gradient; ours is decoupled
                group["weight_decay"] = 0.0
                for tested in group["params"]:
                    tested.mul_(1 - lr * factor * weight_decay)
        made.step()
    return params


def compared(
    mine: Weights, trial: int, name: str, clip: float | None = None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (mine, torch's, exact) of every tensor."""
    own, exact = (by_torch(trial, name, dtype, clip) for dtype in (torch.float32, torch.float64))
    for key, copies in mine.items():
        for layer, copy in enumerate(copies):
            yield copy[trial], own[key][layer], exact[key][layer]


@pytest.fixture(params=[8, 64, 2**15], ids="blocks of {}".format)
def block_elements(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer, "BLOCK_ELEMENTS", request.param)


@pytest.mark.usefixtures("block_elements")
@pytest.mark.parametrize("clip", [None, 2.0])
@pytest.mark.parametrize("name", ["adamw", "sgd", "momentum"])
@pytest.mark.parametrize("trial", [0, 1, 2])
def test_every_trial_moves_as_under_torch(trial: int, name: str, clip: float | None) -> None:
    for item in compared(stacked(name, clip=clip), trial, name, clip):
        assert_near(*item)


@pytest.mark.parametrize("name", ["adamw", "sgd", "momentum"])
def test_another_trials_numbers_are_seen(name: str) -> None:
    mine = stacked(name)
    swapped = {key: tuple(copy.roll(1, 0) for copy in copies) for key, copies in mine.items()}
    assert not any(is_near(*item) for item in compared(swapped, 0, name))


@pytest.mark.parametrize("limit", [1e-2, 1e3, 1e9])
def test_clipping_is_torchs_for_every_trial(limit: float) -> None:
    # Large gradients: torch adds 1e-6 to the norm, which is lost in theirs.
    start = layout().weights(normal(1) * 1e4)
    mine = layout().weights(normal(1) * 1e4)
    clip_gradients(mine, limit)
    for trial in range(3):
        clipped = []
        for dtype in (torch.float32, torch.float64):
            params = [copy[trial].to(dtype) for copies in start.values() for copy in copies]
            for param in params:
                param.grad = param.clone()
            torch.nn.utils.clip_grad_norm_(params, limit, foreach=False)
            clipped.append(torch.cat([param.grad.flatten() for param in params if param.grad is not None]))
        got = torch.cat([copy[trial].flatten() for copies in mine.values() for copy in copies])
        assert_near(got, *clipped)
        if limit == 1e9:
            assert torch.equal(got, clipped[0])


def test_a_zero_gradient_stays_zero_under_clipping() -> None:
    zero = layout().weights(torch.zeros(layout().numel))
    clip_gradients(zero, 1.0)
    assert not any(copy.any() for copies in zero.values() for copy in copies)


@pytest.mark.parametrize("clip", [None, 2.0])
@pytest.mark.parametrize("name", ["adamw", "sgd", "momentum"])
def test_a_frozen_trial_stays_as_it_is_while_its_neighbors_move_on(name: str, clip: float | None) -> None:
    seen: list[Mapping[str, tuple[Tensor, ...]]] = []

    def freeze(step: int, grads: Weights, tested: StackOptimizer) -> None:
        if step == 2:
            tested.alive[1] = False
        if step == 3:
            for copies in grads.values():
                for copy in copies:
                    copy[1] = torch.nan

    free = stacked(name, clip=clip)
    mine = stacked(name, clip=clip, change=freeze)
    flat = normal(0)
    stopped = made(flat, name)
    for step in (0, 1):
        stopped.step(grads_at(step), FACTORS[step], clip)
    seen.append(layout().weights(flat))
    for key, copies in mine.items():
        for layer, copy in enumerate(copies):
            assert torch.equal(copy[1], seen[0][key][layer][1]), key
            assert torch.equal(copy[[0, 2]], free[key][layer][[0, 2]]), key
            assert not torch.equal(copy[1], free[key][layer][1]), key


@pytest.mark.parametrize("clip", [None, 2.0])
@pytest.mark.parametrize("name", ["adamw", "sgd", "momentum"])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, 1e30])
def test_a_broken_gradient_never_reaches_another_trial(name: str, clip: float | None, poison: float) -> None:
    def break_one(step: int, grads: Weights, _: StackOptimizer) -> None:
        if step == 1:
            grads["block"][1][1, 2, 3] = poison

    free, mine = stacked(name, clip=clip), stacked(name, clip=clip, change=break_one)
    assert not torch.equal(free["block"][1][1], mine["block"][1][1])
    for key, copies in mine.items():
        for layer, copy in enumerate(copies):
            assert torch.equal(copy[[0, 2]], free[key][layer][[0, 2]]), key


@pytest.mark.parametrize("name", ["adamw", "sgd", "momentum"])
def test_a_trial_has_the_same_bits_alone(name: str) -> None:
    together = stacked(name, clip=2.0)
    for trial in range(3):
        flat = torch.cat([c[trial].flatten() for copies in layout().weights(normal(0)).values() for c in copies])
        alone = made(flat, name, [BETAS[trial]], [resolved(trial)], MOMENTUM[trial : trial + 1])
        for step, factor in enumerate(FACTORS):
            grads = {
                key: tuple(copy[trial : trial + 1].clone() for copy in copies) for key, copies in grads_at(step).items()
            }
            alone.step(grads, factor, 2.0)
        for key, copies in layout(1).weights(flat).items():
            for layer, copy in enumerate(copies):
                assert torch.equal(copy[0], together[key][layer][trial]), key


def test_every_hp_of_a_trial_is_read() -> None:
    changed = {"lr": 0.3, "beta1": 0.5, "beta2": 0.5, "eps": 1.0, "weight_decay": 3.0}
    found = set()
    for name, value in ({"": 0.0} | changed).items():
        hps = replace(HPS, **{name: value}) if name else HPS
        entry = Multipliers(init_std=1.0, lr=hps.lr, eps=hps.eps, weight_decay=hps.weight_decay, forward=1.0)
        flat = normal(0, 1)
        tested = made(flat, "adamw", [(hps.beta1, hps.beta2)], [dict.fromkeys(ROLES, entry)])
        for seed in (1, 2):
            tested.step(layout(1).weights(normal(seed, 1)), 1.0, None)
        found.add(flat.numpy().tobytes())
    assert len(found) == 1 + len(changed)
