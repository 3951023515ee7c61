"""Twenty steps of our trainer are twenty steps of transformers' model under `recipe.param_groups`, AdamW or Muon."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hf_cases import BASE, CASES, MODERN, drawn
from tiny_trials import text_setting, trial

import hpxfer
from hpxfer.recipe import Recipe
from hpxfer.scaling.hps import HPs
from hpxfer.spec.model_section import Balance
from hpxfer.train.state import TrainState
from hpxfer.trial import Trial
from hpxfer.trial.stack import Stack
from hpxfer.weights.files import transformers_model
from hpxfer.weights.folded import pieces_of
from hpxfer.weights.trained import TrialWeights

STEPS, TOLERANCE = 20, 1e-4
HPS = HPs(lr=2.0**-6, eps=1e-8, weight_decay=0.1, beta1=0.9, beta2=0.95)
# Class -> table. Only complete-mue says something of shared experts.
KINDS = {"mixtral": "completep-moe", "qwen3_moe": "completep-moe", "olmoe": "completep-moe", "glm4_moe": "complete-mue"}
Groups = list[dict[str, Any]]
OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {"adamw": torch.optim.AdamW, "muon": hpxfer.Muon}
AWAY = {"width": 32, "depth": 3, "num_experts": 8, "num_active": 4, "expert_width": 48}


def case(kind: str, away: bool, folder: Any, optimizer: str) -> Trial:
    _, base, _, options, _ = CASES[kind]
    changes = {**MODERN, **options, "vocab_size": 128, "balance": Balance(bias="none"), "route_scale": 1.0}
    setting = replace(text_setting(folder), **changes, steps=STEPS, warmup_steps=0, optimizer=optimizer)
    at_base = replace(BASE, **base)
    grown = {"shared_width": 2 * at_base.shared_width, "kv_heads": 2 * at_base.kv_heads}
    shape = replace(at_base, **AWAY, **grown) if away else at_base
    hps = replace(HPS, adamw_lr=2.0**-7, momentum=0.95) if optimizer.startswith("muon") else HPS
    return replace(trial(setting, shape, KINDS[kind], seed=1, hps=hps), base=at_base)


def recipe_of(given: Trial) -> Recipe:
    assert given.parameterization is not None
    setting = given.setting
    facts = {"gate": setting.gate, "attention_scale": setting.attention_scale}
    return Recipe.from_hps(given.parameterization.name, given.base, given.hps, optimizer=setting.optimizer, **facts)


def unmultiplied(weights: TrialWeights) -> torch.nn.Module:
    """Return the model of transformers with the weights as they are trained: the recipe multiplies, not the weights."""
    model = transformers_model(weights)
    state = model.state_dict()
    for name, pieces in pieces_of(weights.trial).items():
        for factor in {piece.factor for piece in pieces if piece.own is not None and piece.factor}:
            state[name].div_(factor)
    return model


def ours(given: Trial) -> list[float]:
    state = TrainState(Stack(trials=(given,)), torch.device("cpu"))
    losses = []
    for step in range(STEPS):
        output, grads = state.forward_backward(step)
        losses.append(output.losses_KT.mean().item())
        state.update(output, grads)
    return losses


def theirs(given: Trial, model: torch.nn.Module, groups: Groups) -> list[float]:
    state = TrainState(Stack(trials=(given,)), torch.device("cpu"))  # for its batches
    optimizer = OPTIMIZERS[given.setting.optimizer.partition("[")[0]](groups)
    losses = []
    for step in range(STEPS):
        inputs, targets = state.batch(step)
        loss = F.cross_entropy(model(inputs[0]).logits.flatten(0, 1), targets[0].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# Negative twins: one LR for all tensors, and gate and input of an expert as one matrix.
TWINS: dict[str, Callable[[Groups], Groups]] = {
    "adamw": lambda groups: [{**group, "lr": HPS.lr} for group in groups],
    "muon": lambda groups: [
        {**group, "scale": group["scale"][:1], "parts": ()} if "scale" in group else group for group in groups
    ],
}


@pytest.mark.parametrize(
    ("kind", "away", "optimizer"),
    [
        *((kind, away, "adamw") for kind in KINDS for away in (False, True)),
        ("mixtral", True, "muon"),
        pytest.param("mixtral", True, "muon[scale=match_rms_adamw]", marks=pytest.mark.slow),
        pytest.param("qwen3_moe", True, "muon[scale=original,heads=split,router=muon]", marks=pytest.mark.slow),
        pytest.param("glm4_moe", True, "muon", marks=pytest.mark.slow),
    ],
)
def test_the_losses_of_twenty_steps(kind: str, away: bool, optimizer: str, tmp_path: Any) -> None:
    """Gate and input of all experts are one tensor of transformers, and two of our trainer."""
    given = case(kind, away, tmp_path, optimizer)
    made, mine = recipe_of(given), ours(given)
    assert mine[-1] < mine[0] - 0.1
    model = unmultiplied(drawn(given))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with made.attach(model, given.shape):
        groups = made.param_groups(model, hpxfer.roles(model), given.shape)
        assert theirs(given, model, groups) == pytest.approx(mine, abs=TOLERANCE)
        if kind == "mixtral" and away and (twin := TWINS.get(optimizer)):
            model.load_state_dict(before)
            wrong = theirs(given, model, twin(groups))
            least = {"adamw": 100, "muon": 10}[optimizer] * TOLERANCE
            assert max(abs(a - b) for a, b in zip(wrong, mine, strict=True)) > least
