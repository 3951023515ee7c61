"""Recipe files: what is written loads to the same, and every fault is named with its line and its fix."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from laws import examples
from recipe_data import BASE, data, recipe, recipes

from hpxfer.errors import HpxferError
from hpxfer.recipe import Recipe, write_recipe
from hpxfer.scaling.evaluate import BaseInit, parameterization
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape
from hpxfer.spec.yaml_file import KeyPath, spell, write_yaml


@given(recipes())
@settings(max_examples=examples(25))
def test_what_is_dumped_loads_to_an_equal_recipe(made: Recipe) -> None:
    again = Recipe.parse(made.dump())
    assert again == made
    assert again.dump() == made.dump()


def test_a_recipe_gives_what_its_file_says() -> None:
    assert Recipe.parse(write_yaml(full())).file.provenance.seeds == (0, 1)
    assert recipe(hps__lr=0.5) != recipe()
    made = recipe()
    assert made.parameterization == parameterization("completep-moe")
    assert (made.optimizer, made.column) == ("adamw", "adam")
    assert made.base_shape == Shape(**BASE, batch_tokens=512, steps=200)
    assert made.init == BaseInit(embedding_std=0.5, position_std=0.25)
    assert made.hps == HPs(
        lr=2.0**-6,
        init_scale=1.5,
        residual_scale=0.7,
        weight_decay=0.1,
        eps=1e-12,
        multipliers=(("router.lr_mult", 0.25),),
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hpxfer_recipe": 3}, "<recipe>:1: hpxfer_recipe: must be 2, got 3; `hpxfer recipe write RESULTS`"),
        (
            {"family": "mamba"},
            "<recipe>:2: family: must be a model family that this hpxfer knows, gpt, mlp, dit, user, got 'mamba'",
        ),
        ({"model__gate": "softmx"}, "model.gate: unknown gate 'softmx'; did you mean 'softmax'?"),
        ({"optimizer": "adamx"}, "optimizer: unknown optimizer 'adamx'; did you mean 'adamw'?"),
        ({"parameterization": {"name": "completep_moe"}}, "unknown parameterization 'completep_moe'; did you mean"),
        ({"optimizer": "sgd"}, "parameterization: parameterization completep-moe: the source has no sgd column"),
        (
            {"parameterization": {"name": "completep", "conventions": {"depth_alpha": 2.0}}},
            "parameterization: parameterization completep: depth_alpha must be a number from 0.5 to 1",
        ),
        ({"base_shape": {"width": 32}}, "base_shape: the base: must give depth"),
        ({"base_shape": {name: BASE[name] for name in BASE if name != "head_dim"}}, "the base: must give head_dim"),
        ({"base_shape__wdith": 3}, "base_shape: the base: wdith: unknown key; did you mean 'width'?"),
        ({"base_shape__width": 32.5}, "base_shape.width: must be a valid integer, got 32.5"),
        ({"hps__lr": "fast"}, "hps.lr: must be a valid number, got 'fast'"),
        ({"hps__multipliers": {"ruoter.lr_mult": 1.0}}, "unknown role 'ruoter'; did you mean 'router'?"),
        ({"hps__multipliers": {"lr": 1.0}}, "hps.multipliers.lr: must be a dotted name"),
        ({"hps__betas": 0.9}, "hps.betas: unknown key; did you mean 'beta2'?"),
        ({"fitted__axes": {"width": {"verdict": "yes"}}}, "fitted.axes.width.verdict: must be 'transfers', 'stays'"),
        ({"fitted__axes": {"width": {}}}, "fitted.axes.width.range: must be given"),
        ({"colour": 1}, "colour: unknown key; legal: base_shape, family"),
        ({"provenance__seeds": []}, "provenance.seeds: "),
        ({"fitted__hp": "warmth"}, "fitted.value: unknown HP; "),
        ({"fitted__optimum_of_seeds": [0.0, 0.1]}, "fitted.optimum_of_seeds[0]: lr must be > 0, got 0"),
        (
            {"fitted__optimum_of_seeds": [0.2, 0.1]},
            "fitted.optimum_of_seeds: must be [lowest, highest], got [0.2, 0.1]",
        ),
        (
            {"training__schedule": {"decay": "constant", "warmup": 201}},
            "training.schedule.warmup: the warm-up must not be longer than the run of 200 steps, got 201",
        ),
        (
            {"training__schedule": {"decay": "wsd", "warmup": 100, "decay_length": 101}},
            "training.schedule.decay_length: warm-up and decay must fit in the run of 200 steps, got 100 + 101",
        ),
        ({"training__schedule": {"decay": "wsd"}}, "training.schedule.decay_length: must be given with decay wsd"),
    ],
)
def test_a_fault_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(HpxferError) as error:
        recipe(**changes)
    assert said in str(error.value)
    assert all(line.startswith("<recipe>:") for line in str(error.value).splitlines())


def numbers(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, float]]:
    """Yield the key path of every number in a recipe's data, and the number."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(inner, (*path, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def full() -> Any:
    """Return a recipe's data in which every number is given."""
    found = data(
        base_shape={**BASE, "batch_tokens": 512, "steps": 200, "num_shared": 1, "shared_width": 32, "dense_width": 64},
        training__schedule={"decay": "wsd", "warmup": 20, "decay_length": 50, "final_fraction": 0.1},
        training__gradient_clip=1.0,
    )
    search = {"kind": "random", "hps": ["lr"], "budget": 16, "num_trials": 16, "num_points": 8, "why": "the best"}
    found["provenance"]["search"] = search
    return found


# A loss may be negative under a model of the user's own, and the difference of two losses too. Infinity is a legal
# value of the convention.
ANY_SIGN = ("loss_nats", "largest_regret_nats", "router_init_exponent")
NUMBERS = [(path, value) for path, value in numbers(full()) if path[-1] not in ANY_SIGN]


def with_number(path: KeyPath, value: object) -> str:
    """Return a recipe's text with another number at a key path."""
    out = full()
    section = out
    for key in path[:-1]:
        section = section[key]
    section[path[-1]] = value
    return write_yaml(out)


@pytest.mark.parametrize(("path", "value"), NUMBERS, ids=lambda value: spell(value) if isinstance(value, tuple) else "")
def test_every_number_has_the_bounds_of_its_key_in_a_sweep_file(path: KeyPath, value: float) -> None:
    wrong: list[object] = [-1, math.inf, math.nan]
    if isinstance(value, int):
        wrong += [2**63, 10**100, 1.5]
    for number in [-1.0, *wrong] if isinstance(value, float) else wrong:
        with pytest.raises(HpxferError, match=r"^<recipe>:\d+: ") as error:
            Recipe.parse(with_number(path, number))
        assert str(path[0]) in str(error.value)


def test_all_faults_are_named_at_once_and_a_missing_key() -> None:
    with pytest.raises(HpxferError) as error:
        recipe(hps__lr=-1.0, base_shape__width=33)
    assert len(str(error.value).splitlines()) == 2
    incomplete = data()
    del incomplete["provenance"]["seeds"]
    with pytest.raises(HpxferError, match=r"<recipe>:\d+: provenance\.seeds: must be given"):
        Recipe.parse(write_yaml(incomplete))


@pytest.mark.parametrize("text", ["", "- 1\n", "name: a sweep\n"])
def test_what_is_no_recipe_is_refused(text: str) -> None:
    with pytest.raises(HpxferError, match="must be a recipe, a mapping with the key hpxfer_recipe"):
        Recipe.parse(text)


def test_a_written_recipe_loads_and_gives_way_to_a_newer_one(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    write_recipe(recipe(), path)
    assert Recipe.load(path) == recipe()
    write_recipe(recipe(hps__lr=0.5), path)
    assert Recipe.load(path) == recipe(hps__lr=0.5)
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]


@pytest.mark.parametrize("text", ["name: a sweep\n", "", "{", "\x00"])
def test_another_file_is_not_overwritten(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    with pytest.raises(
        HpxferError, match=r"must be a new file or an older recipe, got another file, or a damaged one; .* or remove it"
    ):
        write_recipe(recipe(), path)
    assert path.read_text() == text


def test_places_that_hold_no_recipe_and_take_none(tmp_path: Path) -> None:
    with pytest.raises(HpxferError, match=r"gone\.yaml: cannot be read"):
        Recipe.load(tmp_path / "gone.yaml")
    with pytest.raises(HpxferError, match="must be a new file or an older recipe, got a folder; choose a file in it"):
        write_recipe(recipe(), tmp_path)
    with pytest.raises(HpxferError, match="cannot be written: No such file or directory"):
        write_recipe(recipe(), tmp_path / "gone" / "recipe.yaml")


def test_a_recipe_names_the_plug_ins_of_its_sweep() -> None:
    """What a plug-in registers is not known without it; the recipe never imports the plug-in."""
    made = recipe(provenance__plugins=["mine.gates"])
    assert made.file.provenance.plugins == ("mine.gates",)
    assert Recipe.parse(made.dump()) == made
    assert "plugins" not in recipe().dump()
    with pytest.raises(HpxferError) as error:
        recipe(model__gate="mine", provenance__plugins=["mine.gates"])
    message = str(error.value)
    assert message.count("import the plug-in of the sweep first: mine.gates") == 1


def test_loading_and_writing_load_no_torch_and_nothing_of_training(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    write_recipe(recipe(), path)
    code = f"""
import sys
from hpxfer.recipe import Recipe, recipe_from_results, write_recipe
recipe = Recipe.load({str(path)!r})
write_recipe(recipe, {str(path)!r})
recipe.describe(recipe.base_shape)
print(sorted(name for name in sys.modules if name.split(".")[0] in ("torch", "ray", "triton", "matplotlib")
             or name.startswith(("hpxfer.train.trainer", "hpxfer.driver", "hpxfer.executors", "hpxfer.model.flat"))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
