"""What a recipe tells to multiply is what the trained model multiplies, for every number that could scale it.

A sweep file is read, a trial of it is built, and its losses are compared with those of a user's own module that
multiplies by the numbers of the recipe of the same sweep, at the base and at the target.
"""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
import torch
from own_model import OwnGPT
from own_weights import own_weights
from recipe_data import data
from tiny_trials import random_like
from tolerances import is_near

from hpxfer.model.draws import draw
from hpxfer.model.flat import FlatLayout
from hpxfer.model.gpt.forward import build_gpt
from hpxfer.model.gpt.layout import FORWARD_ROLES, gpt_parameters
from hpxfer.recipe import Recipe
from hpxfer.recipe.facts import model_facts
from hpxfer.spec import parse_sweep
from hpxfer.spec.blocks import moe_blocks
from hpxfer.spec.model_section import GPTModel
from hpxfer.spec.yaml_file import write_yaml
from hpxfer.trial import DataRef, Expansion, Trial, base_hps

BASE = {"width": 16, "depth": 2, "num_experts": 4, "num_active": 2, "expert_ratio": 1.0, "head_dim": 8}
SHARED = {"num_shared": 2, "shared_ratio": 0.5, "dense_ratio": 2.0}
GATES = ("sigmoid", "softmax", "normalized_sigmoid")
# Numbers of the section `model` that change what is computed, and are no factor.
OTHER = {"rope_theta", "rope_share", "norm_eps", "matrix_std", "embedding_std", "position_std"}
FACTORS = {"route_scale"}
HPS = {"residual_scale": 0.3, **{f"{role}.forward_mult": 1.5 + k for k, role in enumerate(FORWARD_ROLES)}}


def swept(table: str, model: dict[str, Any], hps: dict[str, float]) -> tuple[Recipe, list[Trial]]:
    """Return the recipe of a sweep, without its results, and its trials at the base and at the target."""
    given = {"family": "gpt", "context": 8, "tied_embeddings": False, "embedding_std": 0.7, **model}
    given["base"] = {**BASE, **model.get("base", {})}
    multipliers = {name: value for name, value in hps.items() if "." in name}
    scalars = {name: value for name, value in hps.items() if "." not in name}
    sweep = {
        "name": "factors",
        "model": given,
        "data": {"source": "builtin:stdlib", "tokenizer": "ascii"},
        "training": {"batch_tokens": 32, "steps": 2, "validation_tokens": 32},
        "parameterizations": [table],
        "axes": {"width": [16, 32]},
        "hps": {"lr": 0.01, **scalars, "multipliers": multipliers},
        "grid": {"lr": [0.01]},
        "seeds": 1,
    }
    spec = parse_sweep(write_yaml(sweep))
    expansion = Expansion(spec, DataRef(digest="", vocab_size=40, num_inputs=0, tokenizer="ascii"))
    trials = list(expansion.trials())
    (choice,) = expansion.choices
    known = vars(base_hps(spec))
    made = data(
        parameterization={"name": choice.name, "conventions": dict(choice.conventions)},
        base_shape={**spec.base_shape.dims(), "batch_tokens": 32, "steps": 2},
        hps={**known, "multipliers": dict(known["multipliers"])},
        model=model_facts(spec, choice),
        fitted__axes={},
    )
    return Recipe.parse(write_yaml(made)), trials


def trained_and_told(
    made: Recipe, trial: Trial, without: str | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the losses of the trial, and those of the module in float32 and float64."""
    shape, setting = trial.shape, trial.setting
    layout = FlatLayout(parameters=gpt_parameters(shape, setting), num_trials=1)
    stds = {role: values.init_std for role, values in trial.resolved().items()}
    weights = layout.leaves(draw(layout, [0], [stds]))
    for seed, copy in enumerate(weights["router"]):
        copy.detach().add_(random_like(copy, seed, 0.3))
    bias = torch.zeros(len(moe_blocks(shape, setting)), 1, shape.num_experts)
    stack = build_gpt([trial], torch.device("cpu"))
    inputs = torch.randint(40, (1, 4, setting.context), generator=torch.Generator().manual_seed(2))
    targets = inputs.flip(-1)
    with torch.no_grad():
        trained = stack(weights, bias, inputs, targets).losses_KT[0]
    numbers = made.forward_multipliers(shape)
    if without is not None:
        numbers[without] = 1.0
    module = OwnGPT(shape, 40, setting.context, numbers, gate=setting.gate, moe_every=setting.moe_every)
    module.load_state_dict(own_weights(layout, weights), strict=False)
    found = []
    for dtype in (torch.float32, torch.float64):
        logits = module.to(dtype)(inputs[0]).flatten(0, 1)
        found.append(torch.nn.functional.cross_entropy(logits, targets.flatten(), reduction="none").detach())
    return trained, found[0], found[1]


@pytest.mark.filterwarnings("ignore::hpxfer.recipe.OutOfRangeWarning")
@pytest.mark.parametrize(
    ("gate", "table", "changes"),
    [
        ("sigmoid", "complete-mue", {"attention_scale": "1/sqrt(d_head)"}),
        *(("sigmoid", "sp", {"route_scale": 2.5}), ("softmax", "complete-mue", {"route_scale": 2.5})),
        *(("softmax", "sp", {}), ("normalized_sigmoid", "complete-mue", {})),
        ("normalized_sigmoid", "sp", {"route_scale": 2.5, "attention_scale": "1/sqrt(d_head)"}),
    ],
)
def test_the_trained_model_multiplies_by_the_numbers_of_its_recipe(
    gate: str, table: str, changes: dict[str, Any]
) -> None:
    model = {"base": SHARED, "moe_every": 2, "gate": gate, **changes}
    made, trials = swept(table, model, HPS)
    assert len({trial.shape for trial in trials}) == 2
    for trial in trials:
        assert is_near(*trained_and_told(made, trial))
    numbers = {key for key, number in made.forward_multipliers(trials[0].shape).items() if number != 1.0}
    assert numbers >= {"attn_logits", "attn_out", "router", "expert_out", "shared_out", "dense_out", "readout"}
    for number in numbers:
        assert not is_near(*trained_and_told(made, trials[0], without=number)), f"{number} must matter"


def test_each_number_of_the_section_model_is_a_factor_or_is_none() -> None:
    """Whoever adds a number to the section says here which it is."""
    hints = get_type_hints(GPTModel)
    assert {name for name, hint in hints.items() if hint is float} == FACTORS | OTHER


@pytest.mark.filterwarnings("ignore::hpxfer.recipe.OutOfRangeWarning")
@pytest.mark.parametrize("gate", GATES)
def test_a_fixed_factor_stands_in_the_product_at_the_base_and_at_the_target(gate: str) -> None:
    plain, trials = swept("complete-mue", {"gate": gate}, {})
    scaled, _ = swept("complete-mue", {"gate": gate, "route_scale": 2.5}, {})

    def product(made: Recipe, shape: Any) -> float:
        numbers = made.forward_multipliers(shape)
        return numbers["expert_out"] * numbers.get("route_scale", 1.0)

    for trial in trials:
        assert product(scaled, trial.shape) == pytest.approx(2.5 * product(plain, trial.shape))
        line = next(row for row in scaled.describe(trial.shape).splitlines() if row.startswith("  product "))
        assert float(line.split()[1]) == pytest.approx(product(scaled, trial.shape))
    assert ("route_scale" in plain.forward_multipliers(trials[0].shape)) == (gate != "sigmoid")
