"""StackOptimizer against torch's optimizers, one trial at a time, and with Triton's kernels against torch's code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_trials import HPS, SETTING
from tolerances import assert_near, is_near
from torch import Tensor
from trainings import Operations

from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.model.flat import FlatLayout, Weights
from hpxfer.model.parameters import ParameterSpec
from hpxfer.scaling.evaluate import Multipliers
from hpxfer.scaling.hps import HPs
from hpxfer.train import optimizer
from hpxfer.train.optimizer import StackOptimizer, clip_gradients
from hpxfer.train.optimizers import OPTIMIZERS
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
RULES = ("adamw", "sgd", "momentum")
TRITON = Backend(name="triton", reason="a test", strict=True)
CPU, DEVICE = torch.device("cpu"), torch.device("cuda" if torch.cuda.is_available() else "cpu")
Change = Callable[[int, Weights, StackOptimizer], None]


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


def normal(seed: int, num_trials: int = 3, device: torch.device = CPU) -> Tensor:
    return torch.randn(layout(num_trials).numel, generator=torch.Generator().manual_seed(seed)).to(device)


def made(
    flat: Tensor,
    name: str,
    betas: Sequence[tuple[float, float]] = BETAS,
    hps: Sequence[Mapping[str, Multipliers]] | None = None,
    momentum: Sequence[float] = MOMENTUM,
    backend: Backend = TORCH,
) -> StackOptimizer:
    """Return the optimizer of as many trials as there are betas, at its start. `momentum` is SGD with momentum."""
    has_momentum = name == "momentum"
    out = StackOptimizer(layout(len(betas)), flat, "sgd" if has_momentum else name, backend, has_momentum=has_momentum)
    out.set_hps(betas, [resolved(k) for k in range(3)] if hps is None else hps, momentum if has_momentum else ())
    return out


def grads_at(step: int, device: torch.device = CPU) -> Weights:
    """Return the gradients of a step; sizes differ widely over steps."""
    return layout().weights(normal(100 + step, device=device) * 10.0 ** (step - 2))


def stacked(
    name: str,
    *,
    clip: float | None = None,
    change: Change | None = None,
    backend: Backend = TORCH,
    device: torch.device = CPU,
    times: float = 1.0,
) -> Weights:
    """Return the parameters after STEPS steps; `change` may tamper with a step, and all LRs are multiplied."""
    flat = normal(0, device=device)
    tested = made(flat, name, backend=backend)
    for step, factor in enumerate(FACTORS):
        grads = grads_at(step, device)
        if change is not None:
            change(step, grads, tested)
        tested.step(grads, times * factor, clip)
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
        judge: torch.optim.Optimizer = torch.optim.AdamW(groups, foreach=False)
    else:
        judge = torch.optim.SGD(groups, momentum=MOMENTUM[trial] if name == "momentum" else 0.0, foreach=False)
    peaks = [(group["lr"], group["weight_decay"]) for group in judge.param_groups]
    flat_params = [copy for copies in params.values() for copy in copies]
    for step, factor in enumerate(FACTORS):
        for tested, grad in zip(flat_params, (c[trial] for cs in grads_at(step).values() for c in cs), strict=True):
            tested.grad = grad.to(dtype)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(flat_params, clip, foreach=False)
        for group, (lr, weight_decay) in zip(judge.param_groups, peaks, strict=True):
            group["lr"] = lr * factor
            if name != "adamw":  # torch couples the decay into the gradient; ours is decoupled
                group["weight_decay"] = 0.0
                for tested in group["params"]:
                    tested.mul_(1 - lr * factor * weight_decay)
        judge.step()
    return params


def compared(
    mine: Weights, trial: int, name: str, clip: float | None = None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (mine, torch's, exact) of every tensor."""
    own, exact = (by_torch(trial, name, dtype, clip) for dtype in (torch.float32, torch.float64))
    for key, copies in mine.items():
        for layer, copy in enumerate(copies):
            yield copy[trial], own[key][layer], exact[key][layer]


def assert_same(mine: Weights, other: Weights, trials: Sequence[int]) -> None:
    """Check that these trials have the same bits."""
    for key, copies in mine.items():
        for copy, its in zip(copies, other[key], strict=True):
            assert torch.equal(copy[list(trials)], its[list(trials)]), key


@pytest.mark.parametrize("block", [8, 64, 2**15])
@pytest.mark.parametrize("name", RULES)
def test_every_trial_moves_as_under_torch(name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer, "BLOCK_ELEMENTS", block)
    for clip in (None, 2.0):
        mine = stacked(name, clip=clip)
        for trial in range(3):
            for item in compared(mine, trial, name, clip):
                assert_near(*item)
    swapped = {key: tuple(copy.roll(1, 0) for copy in copies) for key, copies in mine.items()}
    assert not any(is_near(*item) for item in compared(swapped, 0, name, clip)), "another trial's numbers are seen"


@pytest.mark.parametrize("limit", [1e-2, 1e3, 1e9])
def test_clipping_is_torchs_for_every_trial_and_leaves_zeros(limit: float) -> None:
    # Large gradients: torch adds 1e-6 to the norm, which is lost in theirs.
    start, mine = (layout().weights(normal(1) * 1e4) for _ in "ab")
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
    zero = layout().weights(torch.zeros(layout().numel))
    clip_gradients(zero, limit)
    assert not any(copy.any() for copies in zero.values() for copy in copies)


def freeze(step: int, grads: Weights, tested: StackOptimizer) -> None:
    """Let trial 1 end after two steps, after which its gradients are NaN."""
    if step == 2:
        tested.alive[1] = False
    if step == 3:
        for copies in grads.values():
            for copy in copies:
                copy[1] = torch.nan


@pytest.mark.parametrize("clip", [None, 2.0])
@pytest.mark.parametrize("name", RULES)
def test_a_frozen_trial_stays_as_it_is_while_its_neighbors_move_on(name: str, clip: float | None) -> None:
    free, mine = stacked(name, clip=clip), stacked(name, clip=clip, change=freeze)
    flat = normal(0)
    stopped = made(flat, name)
    for step in (0, 1):
        stopped.step(grads_at(step), FACTORS[step], clip)
    assert_same(mine, layout().weights(flat), [1])
    assert_same(mine, free, [0, 2])
    assert not torch.equal(mine["wide"][0][1], free["wide"][0][1])


@pytest.mark.parametrize("clip", [None, 2.0])
@pytest.mark.parametrize("name", RULES)
def test_a_broken_gradient_never_reaches_another_trial(name: str, clip: float | None) -> None:
    free = stacked(name, clip=clip)
    for poison in (torch.nan, torch.inf, 1e30):

        def break_one(step: int, grads: Weights, _: StackOptimizer, value: float = poison) -> None:
            if step == 1:
                grads["block"][1][1, 2, 3] = value

        mine = stacked(name, clip=clip, change=break_one)
        assert not torch.equal(free["block"][1][1], mine["block"][1][1])
        assert_same(mine, free, [0, 2])


@pytest.mark.parametrize("name", RULES)
def test_a_trial_has_the_same_bits_alone(name: str) -> None:
    together = stacked(name, clip=2.0)
    for trial in range(3):
        flat = torch.cat([c[trial].flatten() for copies in layout().weights(normal(0)).values() for c in copies])
        alone = made(flat, name, [BETAS[trial]], [resolved(trial)], MOMENTUM[trial : trial + 1])
        for step, factor in enumerate(FACTORS):
            own = {key: tuple(copy[trial : trial + 1].clone() for copy in cs) for key, cs in grads_at(step).items()}
            alone.step(own, factor, 2.0)
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


def of_triton(weight_decay: float, flat: Tensor) -> StackOptimizer:
    """Return AdamW with Triton's kernels, whose trials have the same HPs."""
    entry = Multipliers(init_std=1.0, lr=0.1, eps=1e-3, weight_decay=weight_decay, forward=1.0)
    return made(flat, "adamw", [(0.9, 0.95)] * 3, [dict.fromkeys(ROLES, entry)] * 3, backend=TRITON)


def operations(weight_decay: float, dead: bool) -> list[str]:
    """Return the operations of a step of AdamW with Triton kernels."""
    tested = of_triton(weight_decay, normal(0, device=DEVICE))
    tested.alive[1] = not dead
    grads = grads_at(1, DEVICE)
    with Operations() as seen:
        tested.step(grads, 1.0, 2.0)
    return seen.names


@pytest.fixture(params=["with a kernel", "without a kernel"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the rules a kernel or none, as a plug-in does that has no Triton code."""
    if request.param == "without a kernel":
        rules: dict[str, Any] = {name: replace(OPTIMIZERS.get(name), kernel=None) for name in ("adamw", "sgd")}
        monkeypatch.setattr(optimizer, "OPTIMIZERS", rules)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(
    ("kernel", "name", "clip"),
    [
        *(("with a kernel", "adamw", 2.0), ("with a kernel", "sgd", None), ("with a kernel", "momentum", None)),
        *(("without a kernel", "adamw", None), ("without a kernel", "momentum", 2.0)),
    ],
    indirect=["kernel"],
)
def test_triton_moves_as_torch_does(name: str, clip: float | None) -> None:
    mine, own, other = (
        torch.cat([copy.flatten() for copies in found.values() for copy in copies])
        for found in (
            stacked(name, clip=clip, change=freeze, backend=TRITON, device=DEVICE),
            *(stacked(name, clip=clip, change=freeze, device=DEVICE, times=times) for times in (1.0, 1.01)),
        )
    )
    assert_near(mine, own, own)
    assert not is_near(mine, other, other)


@pytest.mark.usefixtures("kernel")
def test_a_captured_step_serves_every_stack() -> None:
    """A CUDA graph replays the operations of the first stack. They may not depend on HPs or on who is alive."""
    first = operations(0.0, dead=False)
    assert first
    assert operations(0.3, dead=False) == first
    assert operations(0.0, dead=True) == first


@pytest.mark.usefixtures("kernel")
def test_a_block_of_triton_is_a_whole_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's blocks fit into a CPU's cache. On a GPU that would be many launches."""
    monkeypatch.setattr(optimizer, "BLOCK_ELEMENTS", 8)
    torchs, mine = (
        len(made(normal(0, device=DEVICE), "adamw", backend=backend)._blocks) for backend in (TORCH, TRITON)
    )
    assert (torchs, mine) == (3 * 9 + 2 * 3 * 3 + 3, 4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.usefixtures("kernel")
def test_a_replayed_step_has_the_bits_of_an_eager_one() -> None:
    """The graph was captured without weight decay, and the next stack has it."""
    flat, grads = normal(0, device=DEVICE), grads_at(1, DEVICE)
    tested = of_triton(0.0, flat)
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        tested.step(grads, 1.0, None)  # compiles what a capture may not
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tested.step(grads, 1.0, None)
    tested.reset()
    entry = Multipliers(init_std=1.0, lr=0.1, eps=1e-3, weight_decay=0.3, forward=1.0)
    tested.set_hps([(0.9, 0.95)] * 3, [dict.fromkeys(ROLES, entry)] * 3)
    flat.copy_(normal(0))
    graph.replay()
    eager = normal(0, device=DEVICE)
    of_triton(0.3, eager).step(grads, 1.0, None)
    assert torch.equal(flat, eager)
