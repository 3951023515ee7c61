"""The state of a stack: where it starts, how it moves, what the trainer and a check share, and ties of routers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_trials import BASE, JOINT, numbers, trained, trial
from torch import Tensor

from hpxfer.model.draws import NOISE_STEPS, fixed_bias, router_noise, tie_keys
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.shape import Shape
from hpxfer.spec.model_section import Balance
from hpxfer.spec.ties import FIXED_BIAS_STD
from hpxfer.train.schedules import lr_factor
from hpxfer.train.state import TrainState
from hpxfer.trial import Setting, Trial
from hpxfer.trial.stack import Stack

CPU = torch.device("cpu")


def state(*trials: Trial) -> TrainState:
    return TrainState(Stack(trials=trials), CPU)


def heard(
    made: TrainState, step: int, batch: tuple[Tensor, Tensor] | None = None
) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """Return what a tap is shown of a step's forward pass: name -> input and output of every block."""
    found: dict[str, list[tuple[Tensor, Tensor]]] = {}
    made.forward(
        *(batch or made.batch(step)), step, tap=lambda name, _, x, y: found.setdefault(name, []).append((x, y))
    )
    return found


def with_conventions(given: Trial, name: str, **conventions: float | str) -> Trial:
    return replace(given, parameterization=parameterization(name, conventions))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("init_draw", ["generator", "counter"])
def test_a_state_starts_from_the_same_bits_on_a_gpu(setting: Setting, init_draw: str) -> None:
    drawn = replace(setting, init_draw=init_draw)
    stack = Stack(trials=(trial(drawn, JOINT, "completep-moe"), trial(drawn, JOINT, seed=3)))
    on_gpu = TrainState(stack, torch.device("cuda")).flat
    assert on_gpu.is_cuda
    assert torch.equal(on_gpu.cpu(), TrainState(stack, CPU).flat)


def test_a_state_is_drawn_and_moves_as_the_setting_says(setting: Setting) -> None:
    tested = trial(replace(setting, gradient_clip=0.5), JOINT, "completep-moe")
    made = state(tested)
    losses = []
    for step in range(setting.steps):
        output, grads = made.forward_backward(step)
        losses.append(float(output.losses_KT.detach().mean()))
        made.update(output, grads, lr_factor(tested.setting, step))
    (curve,) = (found for found in trained(tested)[0].curves if found.metric == "train_loss_nats")
    assert list(curve.values) == losses
    other = replace(setting, init_draw="counter")
    first, second = state(trial(setting, JOINT)), state(trial(other, JOINT))
    assert not torch.equal(first.flat, second.flat)
    assert torch.equal(second.initial(), second.flat)


def test_the_initial_parameters_can_be_had_again_and_stand_in_for_one_pass(setting: Setting) -> None:
    made = state(trial(setting, JOINT, "completep-moe"), trial(setting, JOINT, seed=3))
    before, batch = made.flat.clone(), made.batch(0)
    start = made.forward(*batch, 0).losses_KT
    made.update(*made.forward_backward(0))
    assert not torch.equal(made.flat, before)
    assert torch.equal(made.initial(), before)
    assert not torch.equal(made.forward(*batch, 0).losses_KT, start)
    made.router_bias.zero_()
    assert torch.equal(made.forward(*batch, 0, weights=made.layout.weights(made.initial())).losses_KT, start)
    found = heard(made, 0)
    made.forward(*batch, 0)
    assert len(found["router"]) == JOINT.depth, "a tap listens for one pass"


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


def test_without_a_rule_the_bias_stays_and_the_loads_of_the_step_before_are_those(setting: Setting) -> None:
    balance = Balance(bias="none", aux="switch", load="last_step")
    made = state(trial(replace(setting, balance=balance), JOINT, aux_weight=0.5, router_bias_lr=0.5))
    assert not made.last_load.any()
    output, grads = made.forward_backward(0)
    made.update(output, grads)
    assert torch.equal(made.last_load, output.load_LKE)
    assert not made.router_bias.any()


def test_a_loss_of_balance_brings_the_experts_nearer_to_it(setting: Setting) -> None:
    wild = replace(setting, balance=Balance(bias="none", aux="switch"), gate="normalized_softmax")
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
    setting, shape = replace(setting, moe_every=2, dense_first=0), replace(BASE, depth=3, dense_width=24)
    plain = with_conventions(trial(setting, shape, seed=5), "mup-moe")
    made = state(plain, with_conventions(plain, "mup-moe", router_bias_std=2.0))
    assert made.moe_blocks == (1,)
    for step in (0, 4, NOISE_STEPS + 1):
        found = heard(made, step, made.batch(0))
        logits, added = found["router"][0][1], found["gates"][0][0]
        drawn = 2.0 * router_noise([5], (1,), BASE.num_experts, step // NOISE_STEPS)[step % NOISE_STEPS]
        assert torch.equal(added[0], logits[0])
        assert torch.equal(added[1], logits[1] + drawn[0, 0])


def test_the_schedule_is_the_same_at_every_width(setting: Setting) -> None:
    """With a zero router, the logits are b_t alone; so they are equal at all widths, in training and evaluation."""
    gates: list[Tensor] = []
    for width in (16, 32):
        shape = replace(BASE, width=width, expert_width=width, depth=1)
        tested = with_conventions(trial(setting, shape, seed=2), "mup-moe", router_bias_std=1.0, router_init="zero")
        made = state(tested)
        for step in (0, 1, setting.steps):
            gates.append(heard(made, step, made.batch(0))["gates"][0][1])
    for narrow, wide in zip(gates[:3], gates[3:], strict=True):
        assert torch.equal(narrow, wide)
    assert not torch.equal(gates[0], gates[1])
    assert not torch.equal(gates[1], gates[2])


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
    for name, betas in (("complete-mue", [0.8, 0.9]), ("completep-moe", [0.9, 0.95])):
        assert state(with_conventions(tested, name)).optimizer._betas[:, 0].tolist() == pytest.approx(betas)


E4A2 = replace(BASE, num_active=2)
GROUPED = replace(BASE, num_experts=8, num_active=4, num_groups=2)


def of(setting: Setting, ties: str, shape: Shape = E4A2, name: str = "mssp-i", **changed: int | float) -> Trial:
    return trial(replace(setting, ties=ties), shape, name, **changed)


def routed(*trials: Trial, batch: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits and active experts [L, K, T, E] of the first step, and the load [L, K, E]."""
    made = state(*trials)
    logits, gates = (torch.stack(found) for found in zip(*heard(made, batch)["gates"], strict=True))
    return logits, gates != 0, made.load(made.forward(*made.batch(batch), batch))


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


def test_the_choice_among_equals_is_that_of_seed_and_step_at_every_width(setting: Setting) -> None:
    wide = replace(E4A2, width=32, expert_width=32)
    for ties in ("random", "fixed_bias"):
        narrow, other = (routed(of(setting, ties, shape, seed=3)) for shape in (E4A2, wide))
        assert all(torch.equal(mine, its) for mine, its in zip(narrow, other, strict=True))
    deep, setting = replace(E4A2, depth=3, dense_width=16), replace(setting, moe_every=2)
    for step in (0, 4):
        logits, _, _ = routed(of(setting, "index", deep), of(setting, "fixed_bias", deep, seed=5), batch=step)
        assert torch.equal(logits[0, 0], torch.zeros_like(logits[0, 0]))
        assert torch.equal(logits[0, 1], fixed_bias([5], (1,), 4)[0, 0].expand_as(logits[0, 1]))


def test_fixed_biases_and_keys_depend_on_seed_and_layer() -> None:
    drawn = fixed_bias([7, 8], (1, 3), 300)
    assert drawn.shape == (2, 2, 300)
    assert abs(float(drawn.std()) / FIXED_BIAS_STD - 1) < 5 * (2 * drawn.numel()) ** -0.5
    assert torch.equal(fixed_bias([8], (3,), 40)[0, 0], drawn[1, 1, :40])
    assert len({draws.numpy().tobytes() for draws in drawn.flatten(0, 1)}) == 4
    keys = tie_keys([1, 2, 2**62], (0, 2))
    assert (keys.dtype, keys.shape) == (torch.int32, (2, 3))
    assert keys.min() >= 0
    assert len(set(keys.flatten().tolist())) == 6
    assert torch.equal(tie_keys([2**62], (2,)), keys[1:, 2:])


@pytest.mark.first
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
