"""Sweeps and recipes that name any table with any conventions come back from their text as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from sweep_text import SWEEP
from table_cases import COLUMNS, conventions

from hpxfer.recipe import Recipe
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.table import Column
from hpxfer.spec import dump_sweep, parse_sweep
from hpxfer.spec.recipe_file import TablePart
from hpxfer.spec.yaml_file import parse_yaml, write_yaml
from hpxfer.trial import DataRef, Expansion

PUBLISHED = Path(__file__).parents[2] / "results" / "published" / "quickstart" / "recipe.yaml"
# completep is for dense models.
DENSE_BASE = {"width": 32, "depth": 2, "dense_ratio": 4, "head_dim": 32}
every_column = pytest.mark.parametrize(("name", "optimizer"), COLUMNS)
few = settings(max_examples=examples(3))


@every_column
@few
@given(data=st.data())
def test_sweeps(name: str, optimizer: Column, data: st.DataObject) -> None:
    chosen = data.draw(conventions(name))
    text = parse_yaml(SWEEP, "s.yaml").data
    text["parameterizations"] = [{"table": name, "conventions": chosen}]
    text["training"]["optimizer"] = "sgd" if optimizer == "sgd" else "adamw"
    if name == "completep":
        text["model"]["base"] = DENSE_BASE
        del text["hps"]["router_bias_lr"]
        text["hps"]["init_scale"] = 1.0
    spec = parse_sweep(write_yaml(text))
    assert parse_sweep(dump_sweep(spec)) == spec
    expansion = Expansion(spec, DataRef(digest="d", tokenizer="ascii", vocab_size=128))
    again = Expansion(parse_sweep(dump_sweep(spec)), DataRef(digest="d", tokenizer="ascii", vocab_size=128))
    assert expansion.choices == (parameterization(name, chosen),)
    assert [trial.id for trial in expansion.trials()] == [trial.id for trial in again.trials()]


@every_column
@few
@given(data=st.data())
def test_recipes(name: str, optimizer: Column, data: st.DataObject) -> None:
    chosen = data.draw(conventions(name))
    file = Recipe.load(PUBLISHED).file.model_copy(
        update={
            "parameterization": TablePart(name=name, conventions=chosen),
            "optimizer": "sgd" if optimizer == "sgd" else "adamw",
        }
    )
    recipe = Recipe(file)
    again = Recipe.parse(recipe.dump())
    assert again == recipe
    assert again.parameterization == parameterization(name, chosen)
