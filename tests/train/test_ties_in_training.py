"""Ties in training: a zero router shares the tokens from the first step on if a random order decides between equals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_trials import BASE, numbers, trained, trial
from torch import Tensor

from hpxfer.model.draws import fixed_bias, tie_keys
from hpxfer.scaling.shape import Shape
from hpxfer.spec.ties import FIXED_BIAS_STD
from hpxfer.train.state import TrainState
from hpxfer.trial import Setting, Trial
from hpxfer.trial.stack import Stack

E4A2 = replace(BASE, num_active=2)
GROUPED = replace(BASE, num_experts=8, num_active=4, num_groups=2)


def of(setting: Setting, ties: str, shape: Shape = E4A2, name: str = "mssp-i", **changed: int | float) -> Trial:
    return trial(replace(setting, ties=ties), shape, name, **changed)


def routed(*trials: Trial, batch: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits and active experts [L, K, T, E] of the first step, and the load [L, K, E]."""
    state, heard = TrainState(Stack(trials=trials), torch.device("cpu")), []

    def tap(name: str, block: int, x: Tensor, y: Tensor) -> None:
        if name == "gates":
            heard.append((x, y != 0))

    output = state.forward(*state.batch(batch), batch, tap=tap)
    logits, active = (torch.stack(found) for found in zip(*heard, strict=True))
    return logits, active, state.load(output)


@pytest.mark.parametrize("shape", [E4A2, GROUPED])
def test_a_zero_router_shares_the_tokens_at_random_and_not_by_index(setting: Setting, shape: Shape) -> None:
    setting = replace(setting, batch_tokens=256, validation_tokens=256)
    ties = ("random", "index", "fixed_bias")
    _, active, load = routed(*(of(setting, each, shape) for each in ties))
    assert torch.equal(active.sum(-1), torch.full(active.shape[:-1], shape.num_active))
    in_groups = active.view(*active.shape[:-1], shape.num_groups, -1).sum(-1)
    assert (in_groups == shape.num_active // shape.num_groups).all()
    deviation = (load - shape.kappa).abs().amax(-1).amax(0)
    random, by_index, by_bias = deviation.tolist()
    assert random < 5 * (shape.kappa * (1 - shape.kappa) / 256) ** 0.5  # 5 sigma of a fair draw
    assert by_index == max(shape.kappa, 1 - shape.kappa)  # every token goes to the same experts
    assert by_bias == by_index  # the bias is that of no token
    assert not torch.equal(active[0, 0], active[1, 0])  # each layer has an order of its own
    assert not torch.equal(active[0, 2], active[1, 2])


def test_the_choice_among_equals_is_the_same_at_every_width(setting: Setting) -> None:
    wide = replace(E4A2, width=32, expert_width=32)
    for ties in ("random", "fixed_bias"):
        narrow, other = (routed(of(setting, ties, shape, seed=3)) for shape in (E4A2, wide))
        assert all(torch.equal(mine, its) for mine, its in zip(narrow, other, strict=True))


def test_the_fixed_bias_is_added_to_the_logits_at_every_step(setting: Setting) -> None:
    deep = replace(E4A2, depth=3)
    setting = replace(setting, moe_every=2)
    deep = replace(deep, dense_width=16)
    for step in (0, 4):
        logits, _, _ = routed(of(setting, "index", deep), of(setting, "fixed_bias", deep, seed=5), batch=step)
        assert torch.equal(logits[0, 0], torch.zeros_like(logits[0, 0]))
        assert torch.equal(logits[0, 1], fixed_bias([5], (1,), 4)[0, 0].expand_as(logits[0, 1]))


def test_more_experts_have_the_same_first_biases() -> None:
    drawn = fixed_bias([7, 8], (1, 3), 300)
    assert drawn.shape == (2, 2, 300)
    assert abs(float(drawn.std()) / FIXED_BIAS_STD - 1) < 5 * (2 * drawn.numel()) ** -0.5
    assert torch.equal(fixed_bias([8], (3,), 40)[0, 0], drawn[1, 1, :40])
    assert len({draws.numpy().tobytes() for draws in drawn.flatten(0, 1)}) == 4


def test_each_seed_and_layer_has_a_key() -> None:
    keys = tie_keys([1, 2, 2**62], (0, 2))
    assert (keys.dtype, keys.shape) == (torch.int32, (2, 3))
    assert keys.min() >= 0
    assert len(set(keys.flatten().tolist())) == 6
    assert torch.equal(tie_keys([2**62], (2,)), keys[1:, 2:])


@pytest.mark.parametrize("shape", [E4A2, GROUPED])
def test_without_ties_a_random_order_has_the_bits_of_the_index(setting: Setting, shape: Shape) -> None:
    by_index, random = (of(setting, ties, shape, "sp") for ties in ("index", "random"))
    assert numbers(trained(by_index)[0]) == numbers(trained(random)[0])


def test_ties_of_every_kind_share_a_stack(setting: Setting) -> None:
    setting = replace(setting, steps=8)
    stack = [of(setting, ties, seed=k % 2) for k, ties in enumerate(("random", "index", "fixed_bias", "random"))]
    stack = [replace(member, id=f"{member.id} {k}") for k, member in enumerate([*stack, of(setting, "index")])]
    together = trained(*stack)
    for member, result in zip(stack, together, strict=True):
        assert numbers(trained(member)[0]) == numbers(result), member.setting.ties
    losses = [result.validation_loss_nats for result in together]
    assert len(set(losses)) == len(losses)  # each is a model of its own
