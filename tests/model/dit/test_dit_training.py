"""Short trainings of the diffusion transformer: loads, what it reads of the condition, and what it draws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from sweep_text import edited
from torch import Tensor

from hpxfer.model.dit.flow import FlowData, patched, pictured
from hpxfer.model.dit.sample import draw_samples, euler, first_noise
from hpxfer.testing.families import expanded
from hpxfer.train.state import TrainState
from hpxfer.trial import Stack
from hpxfer.weights.trained import weights_of

SWEEP = """\
name: flow
model:
  family: dit
  gate: normalized_sigmoid
  ffn: swiglu
  base: {width: 32, depth: 2, num_experts: 4, num_active: 2, expert_ratio: 0.5, head_dim: 16}
  balance: {bias: sign}
  dit: {patch: 4}
data: {source: "builtin:shapes"}
training:
  batch_samples: 32
  steps: 300
  validation_samples: 512
  betas: [0.95, 0.95]
  eps: 1.0e-8
  weight_decay: 0.01
parameterizations: [complete-mue]
axes: {width: [64]}
hps: {router_bias_lr: 0.01}
grid: {lr: [0.015625]}
seeds: 1
"""
RANDOM = ("dit: {patch: 4}", "dit: {patch: 4, adaln_init: random, readout_init: random}")
WITHOUT = (RANDOM[0], RANDOM[1].replace("}", ", classes_used: false}"))
STEPS = 50
TIME, CLASS = -2, -1  # the columns of a batch
CPU = torch.device("cpu")


def started(*edits: tuple[str, str]) -> TrainState:
    return TrainState(Stack(trials=(next(expanded(edited(*edits, text=SWEEP)).trials()),)), CPU)


@pytest.fixture(scope="module")
def trained() -> TrainState:
    torch.set_num_threads(1)
    state, steps = started(), 300
    for step in range(steps):
        state.update(*state.forward_backward(step), min(1, (step + 1) / 30, (steps - step) / 60))
    return state


def loss(state: TrainState, *permuted: int) -> float:
    """Return the validation loss with these columns of each batch taken from the sample before."""
    found = []
    for inputs, targets in state.data.validation_batches():
        for column in permuted:
            inputs[:, column] = np.roll(inputs[:, column], 1)
        found.append(state.losses((inputs, targets))[0].mean().item())
    return float(np.mean(found))


def drawn(state: TrainState, classes: Sequence[int], sign: float = 1.0) -> Tensor:
    """Return samples of a state, or, with the sign -1, what follows the velocity the wrong way."""
    assert isinstance(state.data, FlowData)
    noise = first_noise(len(classes), int(np.prod(state.data.shape)))
    model = state.model
    return euler(
        lambda z: sign * model.velocity(state.weights, state.router_bias, z, None),  # type: ignore[attr-defined]
        noise,
        torch.tensor([classes]),
        STEPS,
    )


def test_a_load_is_a_share_of_the_tokens_of_all_samples(trained: TrainState) -> None:
    """A load of samples in place of tokens is far above its share for each expert, so that no rule balances it."""
    output = trained.forward(*trained.batch(0), 0)
    assert trained.load(output).sum(-1).flatten().tolist() == [2.0, 2.0]
    moved = trained.router_bias.flatten()
    assert moved.min() < 0 < moved.max(), "the rule raises a bias where the load is low"


def test_the_velocity_depends_on_time_and_class(trained: TrainState) -> None:
    at_place = loss(trained)
    assert loss(trained, TIME) > 1.2 * at_place
    assert loss(trained, CLASS) > 1.001 * at_place


def test_a_class_is_read_only_where_it_is_used() -> None:
    with_class, without = started(RANDOM), started(WITHOUT)
    assert loss(without, CLASS) == loss(without)
    assert loss(without, TIME) != loss(without)
    assert loss(with_class, CLASS) != loss(with_class)


def test_samples_have_the_variance_of_the_data_and_those_of_the_wrong_sign_do_not(trained: TrainState) -> None:
    assert isinstance(trained.data, FlowData)
    x, classes = next(trained.data.samples.validation_batches())
    right, wrong = (float(drawn(trained, classes.tolist(), sign).var()) / x.var() for sign in (1.0, -1.0))
    assert 0.8 < right < 1.2
    assert wrong > 2


def test_the_weights_of_a_trial_draw_what_its_state_draws(trained: TrainState) -> None:
    trial = trained.stack.trials[0]
    weights = weights_of(trial, 0, trained.layout, trained.flat, trained.router_bias)
    held_out, found = draw_samples(trial, weights.tensors, weights.router_bias, trained.data, 4, STEPS)
    x, classes = next(trained.data.samples.validation_batches())  # type: ignore[attr-defined]
    assert np.array_equal(held_out.reshape(4, -1), x[:4])
    expected = pictured(drawn(trained, classes[:4].tolist())[0].numpy(), (1, 16, 16), 4)
    assert np.array_equal(found, expected)


def test_patches_lie_row_by_row_and_go_back_to_pictures() -> None:
    shape = 3, 8, 8
    x = np.arange(2 * 3 * 64, dtype=np.float32).reshape(2, *shape)
    first = patched(x.reshape(2, -1), shape, 4)
    last = patched(x.transpose(0, 2, 3, 1).reshape(2, -1), shape, 4, channels_last=True)
    assert np.array_equal(first, last)
    assert np.array_equal(first.reshape(2, 4, 3, 4, 4)[:, 1], x[:, :, :4, 4:]), "the second patch is to the right"
    assert np.array_equal(pictured(first, shape, 4), x)
