"""Recipes made by hand, those of the family mlp, and how far a recipe reaches."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from own_model import ROLES, OwnGPT
from recipe_data import BASE, TARGET, data, multiplies, recipe
from refusals import refused
from torch.nn.functional import gelu

from hpxfer.errors import HpxferError
from hpxfer.model.mlp.stack import build_mlp
from hpxfer.recipe import OutOfRangeWarning, Recipe, write_recipe
from hpxfer.recipe.facts import model_facts, own_roles
from hpxfer.recipe.start import load_sweep
from hpxfer.scaling.evaluate import BaseInit
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.roles import CONDITIONED
from hpxfer.scaling.shape import Shape
from hpxfer.trial import DataRef, Expansion, Trial

HPS = {"lr": 0.01, "weight_decay": 0.1, "router.lr_mult": 0.25}


def test_base_hps_without_a_sweep_make_a_recipe_that_warns_of_no_range() -> None:
    made = Recipe.from_hps("completep-moe", BASE, HPS, init=BaseInit(embedding_std=0.5), gate="softmax")
    assert made.hps == HPs(lr=0.01, weight_decay=0.1, multipliers=(("router.lr_mult", 0.25),))
    assert Recipe.from_hps("completep-moe", BASE, made.hps, init=made.init, gate="softmax") == made
    assert made.init.embedding_std == 0.5
    assert (made.file.fitted, made.file.training, made.file.provenance.sweep) == (None, None, None)
    assert made.file.provenance.made == "by hand"
    assert made.multipliers(TARGET)["router"].lr == pytest.approx(0.25 * 0.01 / 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.forward_multipliers({**TARGET, "width": 4096, "depth": 90, "expert_width": 4096})
    assert "made by hand, so that no sweep says how well it transfers" in made.describe(TARGET)
    assert "warning" not in made.describe(TARGET)


def test_its_file_loads_to_the_same_with_either_spelling_of_the_optimizer(tmp_path: Path) -> None:
    facts = {"norm": "rmsnorm", "positions": "rope", "attention_ratio": 2.0}
    for optimizer in ("sgd", "adam", "adamw"):
        made = Recipe.from_hps("sp", BASE, HPS, optimizer=optimizer, conventions={}, **facts)
        write_recipe(made, tmp_path / "recipe.yaml")
        again = Recipe.load(tmp_path / "recipe.yaml")
        assert again == made
        assert (again.file.model.norm, again.file.model.attention_ratio) == ("rmsnorm", 2.0)
    text = made.dump()
    assert (made.optimizer, made.column) == ("adamw", "adam")
    assert "\noptimizer: adamw\n" in text
    assert Recipe.parse(text.replace("optimizer: adamw", "optimizer: adam")) == made


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"norm": "batchnorm"}, "norm"),
        ({"hps": {"weight_decay": 0.1}}, "Recipe.from_hps: hps.lr: must be given"),
        (
            {"hps": {"lr": 0.1, "ruoter.lr_mult": 2}},
            "hps.multipliers.ruoter.lr_mult: unknown role 'ruoter'; did you mean 'router'",
        ),
        ({"hps": {"lr": "fast"}}, "Recipe.from_hps: hps.lr: must be a valid number, got 'fast'"),
        ({"hps": {"lr": 0.1, "eps": None}}, "hps.eps: must be a valid number, got null"),
        ({"hps": None}, "hps: must be HPs or a mapping of name to number, got None"),
        ({"init": {"matrix_std": 1}}, "init: must be a hpxfer.scaling.evaluate.BaseInit, got {'matrix_std': 1}"),
        ({"base_shape": None}, "base_shape: must be a Shape or a mapping of its dimensions, got None"),
        ({"hps": {"lr": -1.0}}, "hps.lr: lr must be > 0, got -1"),
        ({"parameterization": "completep_moe"}, "did you mean 'completep-moe'"),
        ({"conventions": {"depth_alfa": 1}}, "unknown convention 'depth_alfa'"),
        ({"optimizer": "sgd"}, "the source has no sgd column"),
        ({"optimizer": "lion"}, "optimizer: unknown optimizer 'lion'; did you mean 'muon'"),
        ({"gtae": "softmax"}, "model.gtae: unknown key; did you mean 'gate'"),
        ({"base_shape": {**BASE, "width": 33}}, "base_shape: width must be a multiple of head_dim"),
    ],
)
def test_a_fault_is_named(changes: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"parameterization": "completep-moe", "base_shape": BASE, "hps": HPS, **changes}
    with pytest.raises(HpxferError) as error:
        Recipe.from_hps(**given)
    assert said in str(error.value)


def test_a_sweeps_recipe_must_have_what_a_sweep_says_and_one_by_hand_must_not_claim_it() -> None:
    for part in ("training", "fitted", "provenance__sweep", "provenance__seeds"):
        refused("must be given: a sweep made this recipe", recipe, **{part: None})
    with pytest.raises(HpxferError) as error:
        recipe(provenance__made="by hand")
    assert [line.split(": ")[1] for line in str(error.value).splitlines()] == [
        *("training", "fitted", "provenance.sweep", "provenance.data_digest", "provenance.tokenizer"),
        *("provenance.vocab_size", "provenance.num_trials", "provenance.seeds"),
    ]


ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "results" / "published" / "mlp-search" / "recipe.yaml"
WIDER = Shape(width=256, depth=1, num_experts=16, num_active=16, expert_width=16)


@pytest.mark.parametrize(
    ("options", "roles"),
    [
        ({"mlp.expert_matrices": 1, "mlp.aggregation": None}, {"router", "expert_out"}),  # the rest at its default
        ({"mlp.router_bias": "learned"}, {"router", "router_bias", "expert_in", "expert_out"}),
        ({"mlp.router_bias": "fixed"}, {"router", "expert_in", "expert_out"}),
    ],
)
def test_roles_follow_the_options_of_the_family_mlp(options: dict[str, object], roles: set[str]) -> None:
    data = yaml.safe_load(PUBLISHED.read_text())
    data["model"]["options"] = options if None in options.values() else data["model"]["options"] | options
    made = Recipe.parse(yaml.safe_dump(data))
    assert own_roles(made.file) == {"embedding", "readout", *roles}
    assert "None" not in made.describe(WIDER)


def test_a_recipe_of_the_family_mlp_has_its_own_options_and_roles_and_counts_samples() -> None:
    options = model_facts(load_sweep(ROOT / "sweeps" / "mlp" / "mlp_search.yaml"), None)["options"]
    assert "mlp.activation" in options
    assert not {"norm", "positions", "qkv_biases", "rope_theta", "qk_norm"} & set(options)
    of_gpt = own_roles(Recipe.load(ROOT / "results" / "published" / "quickstart" / "recipe.yaml").file)
    assert of_gpt is not None
    assert not of_gpt & set(CONDITIONED)
    text = Recipe.load(PUBLISHED).describe(WIDER)
    for absent in ("attn", "norm_", "final_norm", "position", "dense", "tokens in", "ids"):
        assert absent not in text.replace("batch_tokens", ""), absent
    assert "batch 50 samples, samples 50000 in 1000 steps" in text
    assert all(role in text for role in ("embedding", "router", "expert_in", "expert_out", "readout"))


@pytest.mark.filterwarnings("ignore::hpxfer.recipe.OutOfRangeWarning")
@pytest.mark.parametrize(("aggregation", "temperature"), [("1/K", 0.3), ("1/M", 1.0)])
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

    (tmp_path / "sweep.yaml").write_text(text)
    spec = load_sweep(tmp_path / "sweep.yaml")
    setting = Expansion(spec, DataRef(digest="", vocab_size=100, num_inputs=256, tokenizer="none")).setting
    given = {"base": recipe.base_shape, "parameterization": recipe.parameterization, "hps": recipe.hps}
    trial = Trial(id="t", setting=setting, shape=target, seed=0, **given)
    model = build_mlp([trial], torch.device("cpu"))
    draw = torch.Generator().manual_seed(0)
    sizes = {"input": (256, 256), "router": (256, 16), "expert_in": (16, 16, 256), "expert_out": (16, 16, 256)}
    w = {name: torch.randn(size, generator=draw) / 16 for name, size in {**sizes, "readout": (256, 100)}.items()}
    x, y = torch.randn(8, 256, generator=draw), torch.randint(100, (8,), generator=draw)
    stacked = {name: (weight[None],) for name, weight in w.items()}
    ours = model(stacked, torch.zeros(1, 1, 16), x[None], y[None]).losses_KT[0]

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


def said(made: Recipe, **changes: int) -> str:
    """Return what is warned of at the base with `changes`, or nothing."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made.forward_multipliers({**BASE, **changes})
    return "".join(str(made.message) for made in caught)


def with_axes(**axes: Any) -> Recipe:
    joint = data()["fitted"]["axes"]["joint"]
    return recipe(fitted__axes={name: {**joint, **axis} for name, axis in axes.items()})


@given(st.sampled_from((32, 64, 96, 128)), st.integers(2, 4), st.integers(1, 4), st.sampled_from((1, 2)))
@settings(max_examples=examples(20))
def test_nothing_is_said_inside_the_range(width: int, depth: int, active: int, ratio: int) -> None:
    shape = {"width": width, "depth": depth, "num_active": active, "num_experts": 4 * active}
    assert said(recipe(), **shape, expert_width=ratio * width) == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"width": 256, "expert_width": 256}, "width 256: fitted from 32 to 128"),
        ({"depth": 1}, "depth 1: fitted from 2 to 4"),
        ({"num_experts": 32, "num_active": 8}, "num_experts 32: fitted from 4 to 16; num_active 8: fitted from 1 to 4"),
        ({"expert_width": 128}, "expert_ratio 4: fitted from 1 to 2"),
        ({"num_active": 2}, "completep-moe holds kappa fixed"),
        ({"batch_tokens": 1024, "steps": 200}, "batch_tokens 1024: fitted at 512 only"),
        ({"batch_tokens": 512, "steps": 400}, "completep-moe does not cover duration: it changes by a factor of 2"),
    ],
)
def test_a_step_too_far_is_said(changes: dict[str, int], why: str) -> None:
    assert why in said(recipe(), **changes)


def test_the_ranges_and_verdicts_of_all_axes_count() -> None:
    """A dimension that no axis moved is known at the base alone; what one went through is no matter of the table."""
    wide = {"dims": {"width": [32.0, 128.0]}}
    made = with_axes(width=wide)
    assert said(made, width=128, expert_width=128) == ""
    assert "depth 3: fitted at 2 only" in said(made, depth=3)
    made = with_axes(a={"dims": {"depth": [2.0, 4.0]}}, b={"dims": {"depth": [2.0, 8.0]}})
    assert said(made, depth=8) == ""
    assert "depth 9: fitted from 2 to 8" in said(made, depth=9)
    for verdict in ("drifts", "undecided"):
        made = with_axes(width={**wide, "verdict": verdict}, depth={"dims": {"depth": [2.0, 4.0]}})
        assert f"lr along the axis width: the verdict is '{verdict}'" in said(made, width=64, expert_width=64)
        assert said(made, depth=4) == ""
    made = with_axes(active={"dims": {"num_active": [1.0, 2.0]}})
    assert "completep-moe holds kappa fixed" in said(made, num_active=2)
    refused("holds kappa fixed", made.forward_multipliers, {**BASE, "num_active": 4})


def test_the_warning_points_at_the_line_of_the_user() -> None:
    far, made = {**TARGET, "depth": 99}, recipe()
    deep = {**BASE, "depth": 99}
    with pytest.warns(OutOfRangeWarning):
        model = multiplies(OwnGPT(Shape(**deep), 8, 8, made.forward_multipliers(BASE)), made, deep)
    for call in (
        lambda: made.forward_multipliers(far),
        lambda: made.multipliers(far),
        lambda: made.router_bias_lr(far),
        lambda: made.param_groups(model, ROLES, deep),
        lambda: made.init_(model, ROLES, deep),
    ):
        with pytest.warns(OutOfRangeWarning, match="is beyond what was measured: depth 99") as caught:
            call()
        assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("hand", {"num_active": 2}, "completep-moe holds kappa fixed: it goes from 0.25 to 0.5"),
        ("fitted", {"head_dim": 32}, "completep-moe holds head_dim fixed: it goes from 16 to 32"),
        ("fitted", {"dense_width": 64}, "the target has dense FFNs and the base has none to compare them with"),
        ("fitted", {"num_shared": 1, "shared_width": 32}, "completep-moe does not cover shared"),
        ("fitted", {"num_active": 2, "expert_width": 256}, "completep-moe holds kappa fixed"),
        ("mup-moe", {"depth": 4}, "mup-moe does not cover depth"),
        ("mup-moe", {"num_experts": 8, "num_active": 2}, "mup-moe holds num_experts fixed"),
    ],
)
def test_a_target_that_the_table_does_not_lead_to_is_refused(name: str, changes: dict[str, int], why: str) -> None:
    table = "mup-moe" if name == "mup-moe" else "completep-moe"
    made = recipe() if name == "fitted" else Recipe.from_hps(table, BASE, {"lr": 0.1})
    rule = rf"target_shape: must be a shape that (.|\n)* leads to (.|\n)*{why}"
    for call in (made.forward_multipliers, made.multipliers, made.describe, made.router_bias_lr):
        with pytest.raises(HpxferError, match=rule) as said:
            call({**BASE, **changes})
        assert "from the recipe's base w32" in str(said.value)
    bare = {name: value for name, value in TARGET.items() if name != "head_dim"}
    refused(r"^target_shape: must give head_dim, as the base does \(16\), got none", recipe().describe, bare)


def test_smaller_targets_and_those_that_train_longer_have_the_base_as_ancestor() -> None:
    made = Recipe.from_hps("completep-moe", {**TARGET, "batch_tokens": 64, "steps": 10}, {"lr": 0.1})
    assert made.forward_multipliers(BASE)["readout"] == 2.0
    with pytest.warns(OutOfRangeWarning, match="completep-moe does not cover duration"):
        made.multipliers({**BASE, "batch_tokens": 64, "steps": 20})
    base = {**BASE, "batch_tokens": 64, "steps": 10}
    made = Recipe.from_hps("complete-mue", base, {"lr": 0.1}, gate="normalized_sigmoid")
    model = OwnGPT(made.base_shape, 8, 8, {**made.forward_multipliers(BASE), "shared_out": 1.0, "dense_out": 1.0})
    multiplies(model, made, BASE)
    (group, *_) = made.param_groups(model, ROLES, {**base, "steps": 40})
    assert group["betas"] == pytest.approx((1 - 0.1 / 4, 1 - 0.05 / 4))
    assert made.multipliers({**base, "steps": 40})["embedding"].lr == pytest.approx(0.05)
