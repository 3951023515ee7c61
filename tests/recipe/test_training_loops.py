"""A schedule keeps the ratios between groups, and the same tensors get the same numbers whatever wraps the model."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hf_models import by_hand, logits, mixtral_of_width, tokens
from refusals import refused
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import hpxfer
from hpxfer.recipe import Recipe, check_lr_ratios, scheduler
from hpxfer.recipe.modules import plain_names, unwrapped


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
    refused(r"must multiply the peak LR of all groups by one factor, got .*embedding", Recipe.check_lr_ratios, adam)


@pytest.mark.parametrize(("scaled_before", "factor"), [(2.0, 1.0), (1.0, 0.0)])
def test_a_common_factor_before_and_the_end_at_zero_are_no_fault(scaled_before: float, factor: float) -> None:
    adam = optimizer()
    for group in adam.param_groups:
        group["lr"] *= scaled_before
    run(scheduler(adam, lambda step: factor), adam, 2)
    assert check_lr_ratios(adam) == pytest.approx(scaled_before * factor)
    assert check_lr_ratios(torch.optim.Adam(own_groups(weight_decay=0.0))) == 1.0, "without decay it is AdamW"


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
    ("made", "said"),
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
def test_what_is_not_the_optimizer_of_the_recipe_is_refused(made: Any, said: str) -> None:
    refused(said, check_lr_ratios, made())
    if "got others" in said:
        refused(said, scheduler, made(), lambda step: 1.0)


@pytest.mark.parametrize(
    ("made", "keeps"),
    [
        (lambda adam: torch.optim.lr_scheduler.CosineAnnealingLR(adam, T_max=8), True),
        (lambda adam: torch.optim.lr_scheduler.CosineAnnealingLR(adam, T_max=8, eta_min=1e-3), False),
        (lambda adam: torch.optim.lr_scheduler.LinearLR(adam, start_factor=0.1, total_iters=4), True),
        (lambda adam: torch.optim.lr_scheduler.OneCycleLR(adam, max_lr=1e-3, total_steps=9), False),
    ],
    ids=["cosine", "cosine with a floor", "linear", "one cycle"],
)
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
def test_which_of_torchs_schedules_keep_them(made: Any, keeps: bool) -> None:
    adam = optimizer()
    before = ratios(adam)
    run(made(adam), adam, 5)
    assert all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(ratios(adam), before, strict=True)) == keeps
    if keeps:
        check_lr_ratios(adam)
    else:
        refused("one factor", check_lr_ratios, adam)


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
        refused(rf"must be those of recipe\.param_groups, .*{said}", call, adam)


@pytest.mark.parametrize("make_before", [True, False])
def test_what_the_message_advises_restores_all_numbers_and_the_start_of_the_schedule(make_before: bool) -> None:
    model = mixtral_of_width(64)
    before = optimizer(model, lr=2.0**-6, weight_decay=0.5, eps=1e-8)
    scheduler(before, lambda step: 0.5)
    state, new = before.state_dict(), own_groups(model, weight_decay=0.1)
    adam = torch.optim.AdamW(own_groups(model, weight_decay=0.1))
    schedule = scheduler(adam, lambda step: 0.25) if make_before else None
    adam.load_state_dict(state)
    refused(r"call group\.update\(own, initial_lr=own\['lr'\]\)", check_lr_ratios, adam)
    for group, own in zip(adam.param_groups, new, strict=True):
        group.update(own, initial_lr=own["lr"])
    schedule = schedule or scheduler(adam, lambda step: 0.25)
    adam.step()
    schedule.step()
    assert check_lr_ratios(adam) == 0.25
    for group, own in zip(adam.param_groups, new, strict=True):
        assert group["lr"] == own["lr"] / 4
        assert all(group[key] == own[key] for key in ("peak_lr", "weight_decay", "eps", "betas"))


WIDTH = 64


@pytest.fixture
def _group(tmp_path: Path) -> Iterator[None]:
    """One process that talks to itself."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def mixtral() -> nn.Module:
    return mixtral_of_width(WIDTH)


def tuned() -> Recipe:
    return by_hand(hpxfer.shape_of(mixtral_of_width(32)), weight_decay=0.1)


as_compiled = partial(torch.compile, backend="eager")


def as_sharded(module: Any) -> nn.Module:
    mesh = init_device_mesh("cpu", (1,))
    for layer in module.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def as_compiled_parallel(module: nn.Module) -> nn.Module:
    return as_compiled(DistributedDataParallel(module))


def as_compiled_blocks(module: Any) -> nn.Module:
    for i, layer in enumerate(module.model.layers):
        module.model.layers[i] = as_compiled(layer)
    return module


def as_pickled(module: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(module))


WRAPPERS = {
    "compiled": as_compiled,
    "compiled blocks": as_compiled_blocks,
    "compiled parallel": as_compiled_parallel,
    "parallel": DistributedDataParallel,
    "sharded": as_sharded,
    "copy": copy.deepcopy,
    "pickled": as_pickled,
}


SLOW = ("compiled blocks", "compiled parallel")  # the compiled model and the parallel one are of the fast tests


def summary(module: nn.Module) -> list[tuple[Any, ...]]:
    """Return all numbers of every group, and the names in it."""
    with tuned().attach(module, hpxfer.shape_of(module)):
        groups = tuned().param_groups(module, hpxfer.roles(module), hpxfer.shape_of(module))
    assert {id(tensor) for group in groups for tensor in group["params"]} == {
        id(tensor) for tensor in module.parameters()
    }
    numbers = ("lr", "weight_decay", "eps", "betas", "names", "roles")
    return [tuple(group[name] for name in numbers) for group in groups]


def draw(module: nn.Module) -> dict[str, torch.Tensor]:
    """Initialize from a fixed seed and return the whole tensors by their plain names."""
    shape = hpxfer.shape_of(module)
    with tuned().attach(module, shape):
        tuned().init_(module, hpxfer.roles(module), shape, generator=torch.Generator().manual_seed(11))
    plain = plain_names(module)
    whole = {plain(name): tensor.detach() for name, tensor in module.named_parameters()}
    return {name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for name, tensor in whole.items()}


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize(
    "wrap", [pytest.param(wrap, id=name, marks=[pytest.mark.slow] * (name in SLOW)) for name, wrap in WRAPPERS.items()]
)
def test_a_wrapped_model_gets_the_numbers_of_the_bare_one(wrap: Any) -> None:
    bare, wrapped = mixtral(), wrap(mixtral())
    assert summary(wrapped) == summary(bare)
    assert str(hpxfer.roles(wrapped)) == str(hpxfer.roles(bare))
    assert tuned().explain(wrapped).to_dict() == tuned().explain(bare).to_dict()
    shape = hpxfer.shape_of(wrapped)
    with pytest.warns(hpxfer.recipe.UnattachedWarning, match="this .*MixtralForCausalLM does not multiply by"):
        tuned().param_groups(wrapped, hpxfer.roles(wrapped), shape)
    expected, drawn = draw(bare), draw(wrapped)
    assert drawn.keys() == expected.keys()
    assert all(torch.equal(drawn[name], tensor) for name, tensor in expected.items())


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize("wrap", [pytest.param(as_compiled, marks=pytest.mark.slow), as_sharded, as_pickled])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch.compile's
def test_a_wrapped_model_trains_as_the_bare_one(wrap: Any) -> None:
    """With attached multipliers, two steps of AdamW."""

    def losses(module: Any) -> list[float]:
        draw(module)
        shape, out = hpxfer.shape_of(module), []
        with tuned().attach(module, shape):
            optimizer = torch.optim.AdamW(tuned().param_groups(module, hpxfer.roles(module), shape), foreach=False)
            for _ in range(3):
                loss = nn.functional.cross_entropy(module(tokens()).logits.flatten(0, 1), tokens().flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                out.append(loss.item())
        return out

    expected = losses(mixtral())
    assert losses(wrap(mixtral())) == pytest.approx(expected, rel=1e-6)
    assert expected[-1] < expected[0] - 0.01


@pytest.mark.slow
@pytest.mark.usefixtures("_group")
def test_a_compiled_model_may_be_attached_to_before_and_after() -> None:
    bare = mixtral().eval()
    shape = hpxfer.shape_of(bare)
    with tuned().attach(bare, shape):
        expected = logits(bare)
    for wrap in (as_compiled, as_compiled_blocks):
        wrapped = wrap(mixtral()).eval()
        logits(wrapped)  # compiled now
        with tuned().attach(wrapped, shape):
            torch.testing.assert_close(logits(wrapped), expected)


def test_a_state_goes_from_model_to_model() -> None:
    """Nothing hangs on tensors: a state loaded into a fresh model gives the same groups, and the optimizer's fits."""
    first, second = mixtral(), mixtral()
    shape = hpxfer.shape_of(first)
    draw(first)
    second.load_state_dict(first.state_dict())
    assert all(vars(tensor) == {} for tensor in first.parameters())
    assert summary(second) == summary(first)
    for module in (first, second):
        tuned().attach(module, shape)
    optimizers = [
        torch.optim.AdamW(tuned().param_groups(wrapped, hpxfer.roles(wrapped), shape)) for wrapped in (first, second)
    ]
    first(tokens()).logits.square().mean().backward()
    optimizers[0].step()
    state = pickle.loads(pickle.dumps(optimizers[0].state_dict()))
    optimizers[1].load_state_dict(state)
    pairs = zip(optimizers[0].param_groups, optimizers[1].param_groups, strict=True)
    assert all(group["names"] == other["names"] and group["lr"] == other["lr"] for group, other in pairs)


class Module(nn.Module):
    """A model whose own names look like those of wrappers."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(4, 4, bias=False)
        self.modular = nn.Linear(4, 4, bias=False)
        self.do = nn.ModuleDict({"_orig_model": nn.Linear(4, 4, bias=False)})


@pytest.mark.usefixtures("_group")
def test_names_lose_whole_wrapper_components_and_no_letters_beside_them() -> None:
    """The letters of `module.` and `_orig_mod.` occur in real names; `str.strip` of them would eat into these."""
    names = ["module.weight", "modular.weight", "do._orig_model.weight"]
    for wrap in (lambda module: module, as_compiled, DistributedDataParallel, as_compiled_parallel):
        wrapped = wrap(Module())
        plain = plain_names(wrapped)
        assert [plain(name) for name, _ in wrapped.named_parameters()] == names
        assert type(unwrapped(wrapped)) is Module
