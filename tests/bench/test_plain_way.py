"""The plain way is the same training as the stacked trainer's: equal losses, step after step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bench_cases import TINY
from tolerances import same_run

from hpxfer.bench.cases import trials
from hpxfer.bench.plain import Block, PlainRun
from hpxfer.bench.plain_mixtral import PlainMixtralRun
from hpxfer.train.state import TrainState
from hpxfer.trial import Trial
from hpxfer.trial.stack import Stack

STEPS = 6
MIXTRAL = replace(TINY, like="mixtral", num_experts=8, num_active=2, kv_heads=1)


@pytest.fixture
def members(tmp_path: Path) -> tuple[Trial, ...]:
    """Three trials, quick enough that their weights move and their loads are balanced.

    Their eps is of the gradients' size: far below it, Adam makes whole steps of gradients that are rounding alone.
    """
    moved = {"lr": 2.0**-4, "eps": 2.0**-8, "router_bias_lr": 0.05}
    return tuple(replace(trial, hps=replace(trial.hps, **moved)) for trial in trials(TINY, 3, tmp_path))


def stacked_losses(members: tuple[Trial, ...], member: int) -> tuple[list[float], TrainState]:
    """Return one trial's losses in the stack, and the state after them."""
    state = TrainState(Stack(trials=members), torch.device("cpu"))
    out = []
    for step in range(STEPS):
        output, grads = state.forward_backward(step)
        out.append(float(output.losses_KT.detach()[member].mean()))
        state.update(output, grads)
    return out, state


def plain_losses(run: PlainRun | PlainMixtralRun, state: TrainState, seed: int) -> list[float]:
    return [run.step(state.data.train_batch(seed, step)) for step in range(STEPS)]


@pytest.mark.parametrize("member", [0, 2])
def test_losses_are_those_of_the_stacked_trainer(members: tuple[Trial, ...], member: int) -> None:
    fresh = TrainState(Stack(trials=members), torch.device("cpu"))
    run = PlainRun(members[member], fresh, member)
    plain = plain_losses(run, fresh, members[member].seed)
    stacked, state = stacked_losses(members, member)
    assert all(same_run(a, b, torch.float32) for a, b in zip(plain, stacked, strict=True)), (plain, stacked)
    biases = torch.stack([block.moe.bias for block in run.model.blocks if isinstance(block, Block)])
    torch.testing.assert_close(biases, state.router_bias[:, member])
    assert biases.abs().max() > 0


@pytest.mark.parametrize("part", ["blocks.1.moe.router", "blocks.0.attention.qkv", "position", "readout"])
def test_the_comparison_sees_a_weight_that_differs(members: tuple[Trial, ...], part: str) -> None:
    state = TrainState(Stack(trials=members[:1]), torch.device("cpu"))
    run = PlainRun(members[0], state)
    with torch.no_grad():
        weight = run.model.get_submodule(part).weight
        assert isinstance(weight, torch.Tensor)
        weight.mul_(1.1)
    plain, (stacked, _) = plain_losses(run, state, 0), stacked_losses(members[:1], 0)
    assert not all(same_run(a, b, torch.float32) for a, b in zip(plain, stacked, strict=True))


def mixtrals(folder: Path) -> tuple[Trial, ...]:
    """Return two trials whose balancing loss counts."""
    moved = {"lr": 2.0**-5, "eps": 2.0**-8, "aux_weight": 0.5}
    return tuple(replace(trial, hps=replace(trial.hps, **moved)) for trial in trials(MIXTRAL, 2, folder))


def test_losses_of_the_plain_mixtral_are_those_of_the_stacked_trainer(tmp_path: Path) -> None:
    members = mixtrals(tmp_path)
    fresh = TrainState(Stack(trials=members), torch.device("cpu"))
    plain = plain_losses(PlainMixtralRun(members[1], fresh, 1), fresh, members[1].seed)
    stacked, _ = stacked_losses(members, 1)
    assert all(same_run(a, b, torch.float32) for a, b in zip(plain, stacked, strict=True)), (plain, stacked)


@pytest.mark.parametrize("part", ["blocks.1.moe.router", "blocks.0.attention.qkv", "blocks.0.moe_norm", "balance"])
def test_the_comparison_sees_a_part_of_the_mixtral_that_differs(part: str, tmp_path: Path) -> None:
    members = mixtrals(tmp_path)[:1]
    state = TrainState(Stack(trials=members), torch.device("cpu"))
    run = PlainMixtralRun(members[0], state)
    if part == "balance":
        run.aux_weight = 0.0
    else:
        weight = run.model.get_submodule(part).weight
        assert isinstance(weight, torch.Tensor)
        weight.data.mul_(1.1)
    plain, (stacked, _) = plain_losses(run, state, 0), stacked_losses(members, 0)
    assert not all(same_run(a, b, torch.float32) for a, b in zip(plain, stacked, strict=True))
