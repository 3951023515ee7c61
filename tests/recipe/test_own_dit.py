"""A plain DiT under the recipe of a sweep is the stacked trainer's model: the same losses, at another shape.

Both start from the same weights and see the same samples, times and noise. The recipe is that of made-up results.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dit_cases import STEPS, Case, make_case
from own_dit import OwnDiT
from own_weights import own_weights
from recipe_data import multiplies
from tiny_trials import trained

import hpxfer
from hpxfer.data import open_data
from hpxfer.model.dit.flow import pictured
from hpxfer.model.dit.layout import parameters
from hpxfer.model.draws import draw
from hpxfer.model.flat import FlatLayout
from hpxfer.recipe import Recipe
from hpxfer.registry import rows_of
from hpxfer.train.schedules import lr_factor
from hpxfer.trial import Trial

# Relative, of a loss. Either model in float32 was within 1.2e-7 of float64 (2026-11). The least that one wrong row cost
# was 1.1e-3, that of the table of classes.
TOLERANCE = 1e-5
MISS = 50 * TOLERANCE

# No common name has the gate of attention.
GATE = {"*.attn.q_gate.weight": "attn_q"}


def stacked_losses(trial: Trial) -> np.ndarray:
    (curve,) = (found for found in trained(trial)[0].curves if found.metric.startswith("train_loss"))
    assert curve.steps == tuple(range(STEPS))
    return np.array(curve.values)


def initial_weights(trial: Trial) -> dict[str, torch.Tensor]:
    """Return the weights that the stacked trainer starts from, by the names of the own model."""
    layout = FlatLayout(parameters=parameters(trial.shape, trial.setting), num_trials=1)
    stds = {role: numbers.init_std for role, numbers in trial.resolved().items()}
    return own_weights(layout, layout.weights(draw(layout, [trial.seed], [stds])))


def own_losses(
    case: Case, *, dtype: torch.dtype = torch.float32, left_out: str | None = None, wrong: dict[str, str] | None = None
) -> np.ndarray:
    """Return the training loss of every step of the own model: an ordinary training loop."""
    recipe, setting, shape = case.recipe, case.trial.setting, case.trial.shape
    by = recipe.forward_multipliers(shape)
    if left_out is not None:
        by[left_out] = 1.0
    is_moe = case.kind == "moe"
    model = OwnDiT(shape, multipliers=by, biases=False, gate=is_moe, swiglu=is_moe, dropped=False).to(dtype)
    multiplies(model, recipe, shape)
    roles = hpxfer.roles(model, {**(GATE if is_moe else {}), **(wrong or {})})
    assert not roles.unmatched
    recipe.init_(model, roles, shape)
    missing, unexpected = model.load_state_dict(initial_weights(case.trial), strict=False)
    assert not unexpected
    assert all(name == "pos_embed" or "router_bias" in name for name in missing), missing
    optimizer = torch.optim.AdamW(recipe.param_groups(model, roles, shape))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr_factor(setting, step))
    losses, batches = [], open_data(setting)
    for step in range(STEPS):
        inputs, u = batches.train_batch(case.trial.seed, step)
        z, t, y = inputs[:, :-2], torch.from_numpy(inputs[:, -2]), torch.from_numpy(inputs[:, -1]).long()
        x = torch.from_numpy(pictured(z, (1, 16, 16), 4))
        loss = (model(x.to(dtype), t, y) - torch.from_numpy(u)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if is_moe:
            model.balance(recipe.router_bias_lr(shape))
        losses.append(loss.item())
    return np.array(losses)


def apart(losses: np.ndarray, others: np.ndarray) -> float:
    """Return the largest relative difference of two loss curves."""
    return float(np.abs(losses / others - 1).max())


@pytest.mark.parametrize("kind", ["dense", "moe"])
@pytest.mark.filterwarnings("ignore:the target")
def test_the_own_model_trains_as_the_stacked_one(kind: str) -> None:
    case = make_case(kind)
    exact = own_losses(case, dtype=torch.float64)
    assert apart(own_losses(case), exact) < TOLERANCE
    assert apart(stacked_losses(case.trial), exact) < TOLERANCE
    assert exact[-1] < 0.9 * exact[0], "the steps must have changed the model for them to be compared"
    values = case.recipe.multipliers(case.trial.shape)
    assert {role: numbers for role, numbers in case.trial.resolved().items() if role in values} == values


@pytest.mark.filterwarnings("ignore:the target", "ignore::hpxfer.recipe.UnattachedWarning")
@pytest.mark.parametrize("optimizer", ["muon", "muon[scale=original]"])
def test_muon_takes_a_modulation_as_one_matrix_as_the_stacked_one_does(optimizer: str) -> None:
    case = make_case("dense")
    shape, file = case.trial.shape, case.recipe.file
    hps = file.hps.model_copy(update={"adamw_lr": 0.01})
    recipe, model = Recipe(file.model_copy(update={"optimizer": optimizer, "hps": hps})), OwnDiT(shape, biases=False)
    groups = recipe.param_groups(model, hpxfer.roles(model), shape)
    own = {role: group["scale"][0] for group in groups if "scale" in group for role in group["roles"]}
    matrices = rows_of("optimizer").get(optimizer).matrices
    of_stack = {
        spec.role: matrices.scaled(spec)[1] for spec in parameters(shape, case.trial.setting) if spec.role in own
    }
    assert own == pytest.approx(of_stack)
    assert {"modulation", "final_modulation", "time_out"} <= own.keys()


@pytest.mark.filterwarnings("ignore:the target")
def test_the_own_model_misses_with_another_row_or_without_a_forward_multiplier() -> None:
    case = make_case("dense")
    right = own_losses(case)
    hidden = ("t_embedder.mlp.2.weight", "blocks.*.adaLN_modulation.1.weight", "final_layer.adaLN_modulation.1.weight")
    inputs = ("x_embedder.proj.weight", "t_embedder.mlp.0.weight", "y_embedder.*")
    for patterns, other in ((hidden, "label"), (inputs, "time_out")):
        for pattern in patterns:
            found = apart(own_losses(case, wrong={pattern: other}), right)
            assert found > MISS, (pattern, found)
    for key in ("attn_logits", "attn_out", "dense_out", "readout"):
        assert apart(own_losses(case, left_out=key), right) > MISS, key
