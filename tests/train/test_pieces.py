"""Pieces: how many are computed at once, what is stacked and what is computed again change no bit of a trial."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_trials import BASE, JOINT, numbers, trial
from yardsticks import PlainRun

from hpxfer.scaling.evaluate import parameterization
from hpxfer.spec.balance import Balance
from hpxfer.train.state import TrainState
from hpxfer.train.trainer import train
from hpxfer.trial import Setting, Trial
from hpxfer.trial.events import Ended
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack

CPU = torch.device("cpu")


def cut(setting: Setting, tokens: int = 32, lanes: int = 1, batch_tokens: int = 256, **changed: Any) -> Setting:
    """Return a setting whose batch of 256 tokens has 8 pieces."""
    pieces = {"accumulation_tokens": tokens, "accumulation_lanes": lanes, "batch_tokens": batch_tokens}
    return replace(setting, validation_tokens=batch_tokens, **pieces, **changed)


def trained(*trials: Trial, pieces: int = 1, recompute: bool = False) -> tuple[TrialResult, ...]:
    *_, ended = train(Stack(trials=trials, pieces=pieces, recompute=recompute), "cpu")
    assert isinstance(ended, Ended)
    return ended.results


def random_ties(given: Trial) -> Trial:
    # The routers start at zero, so every choice of the first step is a tie.
    table = parameterization("mssp-i")
    return replace(given, parameterization=table, setting=replace(given.setting, ties="random"))


MODERN = {
    "norm": "rmsnorm",
    "norm_gains": True,
    "ffn": "swiglu",
    "positions": "rope",
    "qk_norm": "head",
    "gate": "normalized_softmax",
    "biases": True,
    "tied_embeddings": True,
}
AUX = Balance(bias="sign", aux="switch")
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "modern": MODERN,
    "half the blocks dense": {"moe_every": 2},
    "dense": {"ffn": "swiglu"},
    "bfloat16": {"precision": "bfloat16"},
    "clipped": {"gradient_clip": 0.01},
    "switch": {"balance": AUX},
    "transformers": {"balance": replace(AUX, aux="transformers")},
    "sequence": {"balance": replace(AUX, aux="sequence")},
    "last step": {"balance": replace(AUX, load="last_step")},
    "of pieces": {"balance": replace(AUX, load="piece")},
}


def made(setting: Setting, name: str, lanes: int = 1) -> Trial:
    """Return a trial of a case."""
    own = cut(setting, lanes=lanes, steps=3, **CASES[name])
    shape = replace(JOINT, dense_width=64) if "moe_every" in CASES[name] else JOINT
    if name == "dense":
        shape = replace(JOINT, num_experts=0, num_active=0, expert_width=0, dense_width=64)
    weighted = {"aux_weight": 0.05, "z_weight": 0.01} if "balance" in CASES[name] else {}
    return trial(own, shape, "completep-moe", seed=3, **weighted)


@pytest.mark.first
@pytest.mark.parametrize("name", CASES)
def test_micro_batches_stacks_and_recomputation_change_no_bit(setting: Setting, name: str) -> None:
    given = made(setting, name, lanes=2)
    other = replace(made(setting, name, lanes=2), id="other", seed=5)
    alone = numbers(trained(given)[0])
    assert alone["status"] == "finished"
    # Two pieces with recomputation are left out here: the stack below trains the same trial in that way.
    for pieces, again in ((1, True), (2, False), (4, False), (4, True)):
        assert numbers(trained(given, pieces=pieces, recompute=again)[0]) == alone, (pieces, again)
    assert numbers(trained(other, given, pieces=2, recompute=True)[1]) == alone


def test_one_piece_is_recomputed_with_equal_bits(setting: Setting) -> None:
    for name in ("plain", "modern", "switch"):
        given = made(setting, name)
        whole = replace(given, setting=replace(given.setting, accumulation_tokens=None))
        assert numbers(trained(whole, recompute=True)[0]) == numbers(trained(whole)[0]), name


def test_ties_at_random_are_broken_alike_in_any_micro_batch(setting: Setting) -> None:
    given = random_ties(trial(cut(setting), JOINT))
    alone = numbers(trained(given)[0])
    assert numbers(trained(given, pieces=4)[0]) == alone
    by_index = replace(given, setting=replace(given.setting, ties="index"))
    assert numbers(trained(by_index, given, pieces=2)[1]) == alone
    assert numbers(trained(by_index)[0]) != alone


def test_ties_number_the_tokens_of_a_batch_on_and_on(setting: Setting) -> None:
    """With an equal load of all pieces, two pieces of a batch would choose alike if their tokens had equal numbers."""
    given = random_ties(trial(cut(setting, tokens=128), JOINT))
    whole = replace(given, setting=replace(given.setting, accumulation_tokens=None))
    cut_up, at_once = (TrainState(Stack(trials=(one,)), CPU).forward_backward(0)[0] for one in (given, whole))
    assert torch.equal(cut_up.load_LKE, at_once.load_LKE)


def test_the_number_of_lanes_and_of_pieces_is_part_of_the_numbers(setting: Setting) -> None:
    """Sums in another order have other bits, which is why both are part of a trial's identity."""
    grads = []
    for tokens, lanes in ((32, 1), (32, 2), (32, 4), (64, 1), (256, 1)):
        given = trial(cut(setting, tokens, lanes), JOINT)
        grads.append(TrainState(Stack(trials=(given,)), CPU).forward_backward(0)[1]["expert_in"][0].clone())
    for index, one in enumerate(grads):
        for other in grads[:index]:
            assert not torch.equal(one, other)
            assert (one - other).abs().max() < 1e-5 * one.abs().max()


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("bfloat16", "clipped", "of pieces")])
def test_the_gradients_are_those_of_the_whole_batch(setting: Setting, name: str) -> None:
    given = made(setting, name)
    whole = replace(given, setting=replace(given.setting, accumulation_tokens=None))
    for step in (0, 1):
        outputs = []
        for one in (given, whole):
            state = TrainState(Stack(trials=(one,)), CPU)
            for earlier in range(step):
                state.update(*state.forward_backward(earlier))
            outputs.append(state.forward_backward(step))
        (output, grads), (expected, right) = outputs
        assert torch.equal(output.load_LKE, expected.load_LKE)
        torch.testing.assert_close(output.losses_KT, expected.losses_KT, rtol=1e-5, atol=1e-6)
        assert output.regularizers.keys() == expected.regularizers.keys()
        for metric, values in expected.regularizers.items():
            for mine, its in zip(output.regularizers[metric], values, strict=True):
                torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-7)
        for key, copies in right.items():
            for mine, its in zip(grads[key], copies, strict=True):
                torch.testing.assert_close(mine, its, rtol=1e-4, atol=2e-6 * float(its.abs().max()), msg=key)


def test_a_balancing_loss_over_pieces_is_another_one(setting: Setting) -> None:
    """The negative twin of the test above: with the loads of each piece, the gradients are not those of the batch."""
    given = made(setting, "of pieces")
    whole = replace(given, setting=replace(given.setting, accumulation_tokens=None))
    mine, its = (
        TrainState(Stack(trials=(one,)), CPU).forward_backward(0)[1]["router"][0].clone() for one in (given, whole)
    )
    assert (mine - its).abs().max() > 1e-3 * its.abs().max()


def test_a_plain_torch_loop_over_whole_batches_has_the_same_losses(setting: Setting) -> None:
    """The judge is a nanoGPT in plain torch with torch's own AdamW, which knows no pieces."""
    given = trial(cut(setting, lanes=2), BASE, seed=4)
    state = TrainState(Stack(trials=(given,), pieces=2, recompute=True), CPU)
    run = PlainRun(given, state)
    for step in range(given.setting.steps):
        output, grads = state.forward_backward(step)
        loss = run.step(state.data.train_batch(given.seed, step))
        assert float(output.losses_KT.mean()) == pytest.approx(loss, rel=2e-6), step
        state.update(output, grads)
