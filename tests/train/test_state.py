"""The state of a stack: where it starts, how it moves, and what the trainer and a check share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_trials import BASE, JOINT, trained, trial
from torch import Tensor

from hpxfer.model.draws import NOISE_STEPS, router_noise
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.shape import Shape
from hpxfer.spec.balance import Balance
from hpxfer.train.schedules import lr_factor
from hpxfer.train.state import TrainState
from hpxfer.trial import Setting, Trial
from hpxfer.trial.stack import Stack

CPU = torch.device("cpu")


def state(*trials: Trial) -> TrainState:
    return TrainState(Stack(trials=trials), CPU)


def with_conventions(given: Trial, name: str, **conventions: float | str) -> Trial:
    return replace(given, parameterization=parameterization(name, conventions))


def test_the_initial_parameters_can_be_had_again(setting: Setting) -> None:
    made = state(trial(setting, JOINT, "completep-moe"), trial(setting, JOINT, seed=3))
    before = made.flat.clone()
    output, grads = made.forward_backward(0)
    made.update(output, grads)
    assert not torch.equal(made.flat, before)
    assert torch.equal(made.initial(), before)


def test_the_setting_says_how_the_initial_parameters_are_drawn(setting: Setting) -> None:
    other = replace(setting, init_draw="counter")
    first, second = state(trial(setting, JOINT)), state(trial(other, JOINT))
    assert not torch.equal(first.flat, second.flat)
    assert torch.equal(second.initial(), second.flat)
    stacked = state(trial(other, JOINT, seed=3), trial(other, JOINT, "completep-moe"), trial(other, JOINT))
    for name, copies in second.weights.items():
        for copy, among in zip(copies, stacked.weights[name], strict=True):
            assert torch.equal(copy[0], among[2]), name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("init_draw", ["generator", "counter"])
def test_a_state_starts_from_the_same_bits_on_a_gpu(setting: Setting, init_draw: str) -> None:
    drawn = replace(setting, init_draw=init_draw)
    stack = Stack(trials=(trial(drawn, JOINT, "completep-moe"), trial(drawn, JOINT, seed=3)))
    on_gpu = TrainState(stack, torch.device("cuda")).flat
    assert on_gpu.is_cuda
    assert torch.equal(on_gpu.cpu(), TrainState(stack, CPU).flat)


def test_moves_of_a_state_are_those_of_a_training(setting: Setting) -> None:
    tested = trial(replace(setting, gradient_clip=0.5), JOINT, "completep-moe")
    made = state(tested)
    losses = []
    for step in range(setting.steps):
        output, grads = made.forward_backward(step)
        losses.append(float(output.losses_KT.detach().mean()))
        made.update(output, grads, lr_factor(tested.setting, step))
    (result,) = trained(tested)
    (curve,) = (found for found in result.curves if found.metric == "train_loss_nats")
    assert list(curve.values) == losses


def test_other_weights_stand_in(setting: Setting) -> None:
    made = state(trial(setting))
    inputs, targets = made.batch(0)
    start = made.forward(inputs, targets, 0).losses_KT
    output, grads = made.forward_backward(0)
    made.update(output, grads)
    assert not torch.equal(made.forward(inputs, targets, 0).losses_KT, start)
    old = made.layout.weights(made.initial())
    made.router_bias.zero_()
    assert torch.equal(made.forward(inputs, targets, 0, weights=old).losses_KT, start)


def test_a_tap_listens_for_one_pass(setting: Setting) -> None:
    heard: list[str] = []

    def tap(name: str, block: int, x: Tensor, y: Tensor) -> None:
        heard.append(name)

    made = state(trial(setting))
    inputs, targets = made.batch(0)
    made.forward(inputs, targets, 0, tap=tap)
    count = len(heard)
    made.forward(inputs, targets, 0)
    assert {"router", "readout"} <= set(heard)
    assert len(heard) == count


@pytest.mark.parametrize("groups", [1, 2])
def test_the_balancing_rule_moves_against_the_load(setting: Setting, groups: int) -> None:
    shape = replace(JOINT, num_groups=groups)
    made = state(trial(setting, shape), trial(setting, shape, router_bias_lr=0.5))
    output, grads = made.forward_backward(0)
    made.update(output, grads)
    load = made.load(output)
    assert load.sum(-1).flatten().tolist() == pytest.approx([shape.num_active] * 6)
    per_group = load.unflatten(-1, (groups, -1)).sum(-1)
    assert per_group.flatten().tolist() == pytest.approx([shape.num_active / groups] * (6 * groups))
    rate = torch.tensor([0.01, 0.5]).view(1, 2, 1)
    assert torch.equal(made.router_bias, -rate * (load - shape.kappa))


def test_the_rule_of_the_sign_takes_steps_of_one_size(setting: Setting) -> None:
    """Expert by expert: above the mean count the bias falls by the rate, below it rises, and at it it rests."""
    made = state(trial(replace(setting, balance=Balance(bias="sign")), JOINT, router_bias_lr=0.25))
    output, grads = made.forward_backward(0)
    made.update(output, grads)
    mean = setting.batch_tokens * JOINT.num_active / JOINT.num_experts
    expected = [
        [-0.25 if n > mean else 0.25 if n < mean else 0.0 for n in counts[0]] for counts in output.load_LKE.tolist()
    ]
    assert made.router_bias[:, 0].tolist() == expected
    assert {value for row in expected for value in row} >= {-0.25, 0.25}


def test_without_a_rule_the_bias_stays(setting: Setting) -> None:
    made = state(trial(replace(setting, balance=Balance(bias="none")), JOINT, router_bias_lr=0.5))
    made.update(*made.forward_backward(0))
    assert not made.router_bias.any()


def test_the_loads_of_the_step_before_are_those(setting: Setting) -> None:
    balance = Balance(bias="none", aux="switch", load="last_step")
    made = state(trial(replace(setting, balance=balance), JOINT, aux_weight=0.5))
    assert not made.last_load.any()
    output, grads = made.forward_backward(0)
    made.update(output, grads)
    assert torch.equal(made.last_load, output.load_LKE)


def test_a_loss_of_balance_brings_the_experts_nearer_to_it(setting: Setting) -> None:
    balance = Balance(bias="none", aux="switch")
    wild = replace(setting, balance=balance, gate="normalized_softmax")
    # Of one seed the effect depends on how a processor rounds. The mean over four falls to a fifth.
    trials = [
        trial(wild, JOINT, aux_weight=weight, lr=2.0**-6, init_scale=4.0, seed=seed)
        for weight in (0.0, 10.0)
        for seed in range(4)
    ]
    made = state(*trials)
    for step in range(30):
        output, grads = made.forward_backward(step % 6)
        made.update(output, grads)
    without, with_it = (made.load(output) - JOINT.kappa).abs().amax(-1).mean(0).view(2, 4).mean(1)
    assert with_it < 0.4 * without


def test_a_dense_model_has_no_router_bias(setting: Setting) -> None:
    dense = Shape(width=16, depth=2, head_dim=8, dense_width=48)
    made = state(trial(setting, dense, "completep"))
    assert made.moe_blocks == ()
    assert made.router_bias.numel() == 0
    output, grads = made.forward_backward(0)
    made.update(output, grads)
    assert made.load(output).numel() == 0


def test_the_schedule_adds_to_the_logits_what_the_step_draws(setting: Setting) -> None:
    shape = replace(BASE, depth=3)
    setting = replace(setting, moe_every=2, dense_first=0)
    shape = replace(shape, dense_width=24)
    plain = with_conventions(trial(setting, shape, seed=5), "mup-moe")
    made = state(plain, with_conventions(plain, "mup-moe", router_bias_std=2.0))
    assert made.moe_blocks == (1,)
    inputs, targets = made.batch(0)
    for step in (0, 4, NOISE_STEPS + 1):
        heard: dict[str, tuple[Tensor, Tensor]] = {}

        def tap(name: str, block: int, x: Tensor, y: Tensor, into: dict[str, tuple[Tensor, Tensor]] = heard) -> None:
            into[name] = x, y

        made.forward(inputs, targets, step, tap=tap)
        logits, added = heard["router"][1], heard["gates"][0]
        drawn = 2.0 * router_noise([5], (1,), BASE.num_experts, step // NOISE_STEPS)[step % NOISE_STEPS]
        assert torch.equal(added[0], logits[0])
        assert torch.equal(added[1], logits[1] + drawn[0, 0])


def test_the_schedule_is_the_same_at_every_width(setting: Setting) -> None:
    """With a zero router, the logits are b_t alone; so they are equal at all widths, in training and evaluation."""
    heard: list[Tensor] = []

    def tap(name: str, block: int, x: Tensor, y: Tensor) -> None:
        if name == "gates":
            heard.append(y)

    for width in (16, 32):
        shape = replace(BASE, width=width, expert_width=width, depth=1)
        tested = with_conventions(trial(setting, shape, seed=2), "mup-moe", router_bias_std=1.0, router_init="zero")
        made = state(tested)
        for step in (0, 1, setting.steps):
            made.forward(*made.batch(0), step, tap=tap)
    for narrow, wide in zip(heard[:3], heard[3:], strict=True):
        assert torch.equal(narrow, wide)
    assert not torch.equal(heard[0], heard[1])
    assert not torch.equal(heard[1], heard[2])


def test_evaluation_draws_at_the_last_step(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    plain = TrainState.noise

    def noted(self: TrainState, step: int) -> Any:
        asked.append(step)
        return plain(self, step)

    monkeypatch.setattr(TrainState, "noise", noted)
    trained(with_conventions(trial(setting), "mup-moe", router_bias_std=1.0))
    assert asked == [*range(setting.steps), setting.steps, setting.steps]  # two batches of validation


def test_experts_tied_at_the_start_part_later(setting: Setting) -> None:
    made = state(trial(setting, JOINT, "mssp-iii"), trial(setting, JOINT, "mup-iii"))
    spreads = []
    for _ in (0, 1):
        spreads.append([float(made.weights["expert_in"][0][k].detach().std(0).max()) for k in (0, 1)])
        output, grads = made.forward_backward(0)
        made.update(output, grads)
    assert spreads[0][0] == 0.0
    assert min(spreads[0][1], *spreads[1]) > 0.0


def test_betas_are_those_of_the_trials_shape(setting: Setting) -> None:
    """complete-mue: 1 - beta grows with the batch; a table without the rule keeps the base's betas."""
    setting = replace(setting, batch_tokens=128, validation_tokens=128)
    base = replace(BASE, batch_tokens=64, steps=6)
    shape = replace(base, batch_tokens=128, steps=3)
    tested = replace(trial(setting, shape, beta1=0.9, beta2=0.95), base=base)
    betas = {}
    for name in ("complete-mue", "completep-moe"):
        chosen = with_conventions(tested, name)
        betas[name] = chosen.globals()
        made, other = state(chosen), state(chosen)
        same = [(betas[name].beta1, betas[name].beta2)]
        assert made.optimizer._betas.T.tolist() == other.optimizer._betas.T.tolist() == [list(same[0])]
    assert betas["complete-mue"].beta1 == pytest.approx(0.8)
    assert betas["complete-mue"].beta2 == pytest.approx(0.9)
    assert (betas["completep-moe"].beta1, betas["completep-moe"].beta2) == (0.9, 0.95)
