"""A short training of the diffusion transformer: its loads are fair."""

from __future__ import annotations

import pytest
import torch
from sweep_text import edited

from hpxfer.testing.families import expanded
from hpxfer.train.state import TrainState
from hpxfer.trial import Stack

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


def test_a_load_is_a_share_of_the_tokens_of_all_samples(trained: TrainState) -> None:
    """A load of samples in place of tokens is far above its share for each expert, so that no rule balances it."""
    output = trained.forward(*trained.batch(0), 0)
    assert trained.load(output).sum(-1).flatten().tolist() == [2.0, 2.0]
    moved = trained.router_bias.flatten()
    assert moved.min() < 0 < moved.max(), "the rule raises a bias where the load is low"
