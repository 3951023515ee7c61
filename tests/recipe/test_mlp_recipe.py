"""Recipes of the family mlp: its roles, its options and its samples alone, and the numbers that it trains with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from torch.nn.functional import gelu

from hpxfer.model.mlp.stack import build_mlp
from hpxfer.recipe import Recipe
from hpxfer.scaling.shape import Shape
from hpxfer.spec import load_sweep, parse_sweep
from hpxfer.spec.recipe_parts import model_facts, own_roles
from hpxfer.trial import DataRef, Expansion, Trial

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "results" / "published" / "mlp-search" / "recipe.yaml"
WIDER = Shape(width=256, depth=1, num_experts=16, num_active=16, expert_width=16)


def with_options(folder: Path, **options: object) -> Recipe:
    """Return the published recipe with other options of its model."""
    data = yaml.safe_load(PUBLISHED.read_text())
    data["model"]["options"] |= {f"mlp.{name}": value for name, value in options.items()}
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(data))
    return Recipe.load(path)


def test_a_new_recipe_records_the_options_that_the_family_reads() -> None:
    spec = load_sweep(ROOT / "sweeps" / "mlp" / "mlp_search.yaml")
    options = model_facts(spec, None)["options"]
    assert "mlp.activation" in options
    assert not {"norm", "positions", "qkv_biases", "rope_theta", "qk_norm"} & set(options)


def test_the_description_has_the_roles_of_the_model_and_counts_samples() -> None:
    text = Recipe.load(PUBLISHED).describe(WIDER)
    for absent in ("attn", "norm_", "final_norm", "position", "dense", "tokens in", "ids"):
        assert absent not in text.replace("batch_tokens", ""), absent
    assert "batch 50 samples, samples 50000 in 1000 steps" in text
    assert all(role in text for role in ("embedding", "router", "expert_in", "expert_out", "readout"))


@pytest.mark.parametrize(
    ("options", "roles"),
    [
        ({"expert_matrices": 1}, {"embedding", "router", "expert_out", "readout"}),
        ({"router_bias": "learned"}, {"embedding", "router", "router_bias", "expert_in", "expert_out", "readout"}),
        ({"router_bias": "fixed"}, {"embedding", "router", "expert_in", "expert_out", "readout"}),
    ],
)
def test_roles_follow_the_options(options: dict[str, object], roles: set[str], tmp_path: Path) -> None:
    assert own_roles(with_options(tmp_path, **options).file) == roles


def test_an_option_that_a_recipe_leaves_out_stands_at_its_default(tmp_path: Path) -> None:
    data = yaml.safe_load(PUBLISHED.read_text())
    data["model"]["options"] = {"mlp.expert_matrices": 1, "mlp.aggregation": None}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(data))
    recipe = Recipe.load(tmp_path / "recipe.yaml")
    assert own_roles(recipe.file) == {"embedding", "router", "expert_out", "readout"}
    assert "None" not in recipe.describe(WIDER)


def test_a_recipe_of_a_transformer_has_no_roles_of_its_own() -> None:
    assert own_roles(Recipe.load(ROOT / "results" / "published" / "quickstart" / "recipe.yaml").file) is None


@pytest.mark.filterwarnings("ignore::hpxfer.recipe.fitted_range.OutOfRangeWarning")
@pytest.mark.parametrize("aggregation", ["1/K", "1/M"])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
@torch.no_grad()
def test_a_model_of_plain_torch_that_follows_the_numbers_is_the_trained_one(
    aggregation: str, temperature: float, tmp_path: Path
) -> None:
    """With half of the experts active, so that the two averages differ."""
    sweep = (ROOT / "sweeps" / "mlp" / "mlp_search_onwards.yaml").read_text()
    options = f'activation: gelu, aggregation: "{aggregation}", inverse_temperature: {temperature}}}'
    text = sweep.replace("activation: gelu}", options)
    text = text.replace("num_active: 8", "num_active: 4").replace("../../results/published/mlp-search", str(tmp_path))
    data = yaml.safe_load(PUBLISHED.read_text())
    data["base_shape"]["num_active"] = 4
    data["model"]["options"] |= {"mlp.aggregation": aggregation, "mlp.inverse_temperature": temperature}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(data))
    recipe = Recipe.load(tmp_path / "recipe.yaml")
    target = Shape(width=256, depth=1, num_experts=16, num_active=8, expert_width=16)

    spec = parse_sweep(text, "a test")
    setting = Expansion(spec, DataRef(digest="", vocab_size=100, num_inputs=256, tokenizer="none")).setting
    trial = Trial(
        id="t",
        setting=setting,
        shape=target,
        base=recipe.base_shape,
        parameterization=recipe.parameterization,
        hps=recipe.hps,
        seed=0,
    )
    model = build_mlp([trial], torch.device("cpu"))
    draw = torch.Generator().manual_seed(0)
    sizes = {"input": (256, 256), "router": (256, 16), "expert_in": (16, 16, 256), "expert_out": (16, 16, 256)}
    w = {name: torch.randn(size, generator=draw) / 16 for name, size in {**sizes, "readout": (256, 100)}.items()}
    x, y = torch.randn(8, 256, generator=draw), torch.randint(100, (8,), generator=draw)
    ours = model(
        {name: (weight[None],) for name, weight in w.items()}, torch.zeros(1, 1, 16), x[None], y[None]
    ).losses_KT[0]

    numbers = recipe.forward_multipliers(target)
    assert numbers.keys() == recipe.forward_sites().keys()
    h = gelu(numbers.get("embedding", 1.0) * (x @ w["input"]))
    scores = torch.sigmoid(numbers.get("inverse_temperature", 1.0) * numbers.get("router", 1.0) * (h @ w["router"]))
    gates = torch.zeros_like(scores).scatter(1, (top := scores.topk(8)).indices, top.values)
    outs = torch.stack([gelu(h @ w["expert_in"][e].T) @ w["expert_out"][e] for e in range(16)], 1)
    total = numbers["expert_out"] * (gates[..., None] * outs).sum(1)
    outputs = numbers["readout"] * (total @ w["readout"])
    theirs = torch.nn.functional.cross_entropy(outputs, y, reduction="none")
    assert torch.allclose(ours, theirs, atol=1e-4)
    assert ("inverse_temperature" in numbers) == (temperature != 1.0)
