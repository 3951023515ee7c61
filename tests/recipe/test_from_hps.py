"""Recipes made by hand, files of version 1, and what either may and may not say."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from recipe_data import BASE, TARGET, recipe

from hpxfer.errors import HpxferError
from hpxfer.recipe import Recipe, write_recipe
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.resolve import BaseInit

HPS = {"lr": 0.01, "weight_decay": 0.1, "router.lr_mult": 0.25}


def test_base_hps_without_a_sweep_make_a_recipe() -> None:
    made = Recipe.from_hps("completep-moe", BASE, HPS, init=BaseInit(embedding_std=0.5), gate="softmax")
    assert made.hps == HPs(lr=0.01, weight_decay=0.1, multipliers=(("router.lr_mult", 0.25),))
    assert Recipe.from_hps("completep-moe", BASE, made.hps, init=made.init, gate="softmax") == made
    assert made.init.embedding_std == 0.5
    assert (made.file.fitted, made.file.training, made.file.provenance.sweep) == (None, None, None)
    assert made.file.provenance.made == "by hand"
    assert made.multipliers(TARGET)["router"].lr == pytest.approx(0.25 * 0.01 / 2)


def test_it_says_how_it_was_made_and_warns_of_no_range() -> None:
    made = Recipe.from_hps("completep-moe", BASE, HPS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.forward_multipliers({**TARGET, "width": 4096, "depth": 90, "expert_width": 4096})
    assert "made by hand, so that no sweep says how well it transfers" in made.describe(TARGET)
    assert "warning" not in made.describe(TARGET)


def test_its_file_loads_to_the_same(tmp_path: Path) -> None:
    made = Recipe.from_hps("sp", BASE, HPS, optimizer="sgd", conventions={})
    write_recipe(made, tmp_path / "recipe.yaml")
    assert Recipe.load(tmp_path / "recipe.yaml") == made
    assert made.dump().count("null") >= 5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hps": {"weight_decay": 0.1}}, "Recipe.from_hps: hps: must give lr, the base LR, got weight_decay"),
        (
            {"hps": {"lr": 0.1, "ruoter.lr_mult": 2}},
            "hps: ruoter.lr_mult: unknown role 'ruoter'; did you mean 'router'",
        ),
        ({"hps": {"lr": "fast"}}, "Recipe.from_hps: hps: lr: must be a number, got 'fast'"),
        ({"hps": {"lr": 0.1, "eps": None}}, "hps: eps: must be a number, got None"),
        ({"hps": None}, "hps: must be HPs or a mapping of name to number, got None"),
        ({"init": {"matrix_std": 1}}, "init: must be a hpxfer.scaling.resolve.BaseInit, got {'matrix_std': 1}"),
        ({"base_shape": None}, "base_shape: must be a Shape or a mapping of its dimensions, got None"),
        ({"hps": {"lr": -1.0}}, "hps.lr: lr must be > 0, got -1"),
        ({"parameterization": "completep_moe"}, "did you mean 'completep-moe'"),
        ({"conventions": {"depth_alfa": 1}}, "unknown convention 'depth_alfa'"),
        ({"optimizer": "sgd"}, "the source has no sgd column"),
        ({"optimizer": "lion"}, "optimizer: unknown optimizer 'lion'; legal: adamw, sgd"),
        (
            {"gate": "topk"},
            "model.gate: unknown gate 'topk'; legal: normalized_sigmoid, normalized_softmax, sigmoid, softmax",
        ),
        ({"gtae": "softmax"}, "model.gtae: unknown key; did you mean 'gate'"),
        ({"base_shape": {**BASE, "width": 33}}, "base_shape: width must be a multiple of head_dim"),
    ],
)
def test_a_fault_is_named(changes: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"parameterization": "completep-moe", "base_shape": BASE, "hps": HPS, **changes}
    with pytest.raises(HpxferError) as error:
        Recipe.from_hps(**given)
    assert said in str(error.value)


@pytest.mark.parametrize("part", ["training", "fitted", "provenance__sweep", "provenance__seeds"])
def test_a_sweeps_recipe_must_have_what_a_sweep_says(part: str) -> None:
    with pytest.raises(HpxferError, match="must be given: a sweep made this recipe"):
        recipe(**{part: None})


def test_a_recipe_by_hand_must_not_claim_a_sweep() -> None:
    with pytest.raises(HpxferError) as error:
        recipe(provenance__made="by hand")
    assert [line.split(": ")[1] for line in str(error.value).splitlines()] == [
        *("training", "fitted", "provenance.sweep", "provenance.data_digest", "provenance.tokenizer"),
        *("provenance.vocab_size", "provenance.num_trials", "provenance.seeds"),
    ]


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_either_spelling_of_the_optimizer_is_taken_and_one_is_written(name: str) -> None:
    made = Recipe.from_hps("completep-moe", BASE, {"lr": 0.1}, optimizer=name)
    assert (made.optimizer, made.column) == ("adamw", "adam")
    text = made.dump()
    assert "\noptimizer: adamw\n" in text
    assert Recipe.parse(text.replace("optimizer: adamw", f"optimizer: {name}")) == made
