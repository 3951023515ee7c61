"""Laws that hold for every table, optimizer, legal set of conventions and layout; sweeps and recipes that name them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from sweep_text import SWEEP
from table_cases import COLUMNS, NO_DECAY, ZERO_INIT, choices, conventions, layouts

from hpxfer.recipe import Recipe
from hpxfer.scaling.evaluate import Multipliers, evaluate, parameterization, ratios
from hpxfer.scaling.monomial import WIDTHS, ZERO
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column
from hpxfer.scaling.tables import PARAMETERIZATIONS
from hpxfer.spec import dump_sweep, parse_sweep
from hpxfer.spec.recipe_file import TablePart
from hpxfer.spec.yaml_file import parse_yaml, write_yaml
from hpxfer.trial import DataRef, Expansion

# There are many columns, and each draws its own shapes.
few = settings(max_examples=examples(10))
every_column = pytest.mark.parametrize(("name", "optimizer"), COLUMNS)


def close(left: float, other: float) -> bool:
    return math.isclose(left, other, rel_tol=1e-9)


def test_only_mssp_three_ties_experts_and_only_mssp_one_is_zero_by_itself() -> None:
    assert [name for name in PARAMETERIZATIONS if parameterization(name).structure().tied_experts] == ["mssp-iii"]
    zero = [
        (name, row.role)
        for name, optimizer in COLUMNS
        for row in parameterization(name).rows(optimizer)
        if row.init_std == ZERO and row.role not in ZERO_INIT
    ]
    assert set(zero) == {("mssp-i", "router")}
    assert all(parameterization(name).structure().router_bias_std == 0 for name in PARAMETERIZATIONS)


@every_column
@few
@given(data=st.data())
def test_coupled_decay_keeps_what_is_not_width(name: str, optimizer: Column, data: st.DataObject) -> None:
    if "weight_decay" not in PARAMETERIZATIONS.get(name).conventions:
        return
    chosen = data.draw(choices(name))
    choice = parameterization(name, {**dict(chosen.conventions), "weight_decay": "coupled"})
    base, target = data.draw(layouts()), data.draw(layouts())
    at = ratios(base, target)
    still = {**at, **dict.fromkeys(WIDTHS, 1.0)}
    got = evaluate(choice, base, target, optimizer)
    for row in choice.rows(optimizer):
        if row.role not in NO_DECAY:
            assert close(got[row.role].lr * got[row.role].weight_decay, row.lr(still)), row.role


@every_column
@few
@given(data=st.data())
def test_independent_decay_and_global_eps_are_one_number(name: str, optimizer: Column, data: st.DataObject) -> None:
    known = PARAMETERIZATIONS.get(name).conventions
    asked = {key: value for key, value in (("weight_decay", "independent"), ("eps", "global")) if key in known}
    choice = parameterization(name, {**dict(data.draw(choices(name)).conventions), **asked})
    got = evaluate(choice, data.draw(layouts()), data.draw(layouts()), optimizer)
    if "weight_decay" in asked:
        assert {numbers.weight_decay for role, numbers in got.items() if role not in NO_DECAY} == {1.0}
    if "eps" in asked:
        assert len({numbers.eps for numbers in got.values()}) == 1


@pytest.mark.parametrize("name", [name for name in PARAMETERIZATIONS if name != "sp"])
def test_neither_is_the_default(name: str) -> None:
    """The twin: by default both differ between roles, but for what a source does not say."""
    base = Shape(width=16, depth=2, num_experts=4, num_active=1, expert_width=16, head_dim=8)
    target = dataclasses.replace(base, width=64, depth=4, expert_width=64)
    got = evaluate(parameterization(name), base, target, next(iter(PARAMETERIZATIONS.get(name).rows)))
    decays = {numbers.weight_decay for role, numbers in got.items() if role not in NO_DECAY}
    assert (len(decays) == 1) == (name in ("complete-mue", "mup-moe"))
    assert (len({numbers.eps for numbers in got.values()}) == 1) == (name == "ntp")


@every_column
@few
@given(data=st.data())
def test_the_forms_of_the_readout_are_one_map(name: str, optimizer: Column, data: st.DataObject) -> None:
    """By the abc symmetry: what is fed forward, its step, eps against gradient and decay are the same product."""
    if "readout" not in PARAMETERIZATIONS.get(name).conventions:
        return
    drawn = dict(data.draw(choices(name)).conventions)
    plain = {key: value for key, value in (("eps", "per_role"), ("weight_decay", "source")) if key in drawn}
    base, target = data.draw(layouts()), data.draw(layouts())
    forward, init_lr = (
        evaluate(
            parameterization(name, {**drawn, **plain, "embeddings": "untied", "readout": form}),
            base,
            target,
            optimizer,
        )
        for form in ("forward", "init_lr")
    )
    for role, numbers in forward.items():
        for ours, its in zip(_invariants(numbers, optimizer), _invariants(init_lr[role], optimizer), strict=True):
            assert close(ours, its), role
    width = target.width / base.width
    assert (forward["readout"] == init_lr["readout"]) == (width == 1)
    assert init_lr["readout"].forward == 1


def _invariants(numbers: Multipliers, optimizer: Column) -> tuple[float, ...]:
    step = numbers.lr * numbers.forward if optimizer == "adam" else numbers.lr * numbers.forward**2
    eps = numbers.eps / numbers.forward if optimizer == "adam" else 1.0
    return numbers.init_std * numbers.forward, step, eps, numbers.lr * numbers.weight_decay


@every_column
@few
@given(data=st.data())
def test_a_tied_readout_is_the_embedding_but_for_a_factor(name: str, optimizer: Column, data: st.DataObject) -> None:
    if "embeddings" not in PARAMETERIZATIONS.get(name).conventions:
        return
    drawn = dict(data.draw(choices(name)).conventions)
    drawn |= {"embeddings": "tied", "readout": "forward"} | (
        {"readout_init": "random"} if "readout_init" in drawn else {}
    )
    base, target = data.draw(layouts()), data.draw(layouts())
    tied = evaluate(parameterization(name, drawn), base, target, optimizer)
    untied = evaluate(parameterization(name, {**drawn, "embeddings": "untied"}), base, target, optimizer)
    assert tied["readout"] == dataclasses.replace(tied["embedding"], forward=untied["readout"].forward)
    assert {**tied, "readout": None} == {**untied, "readout": None}


PUBLISHED = Path(__file__).parents[2] / "results" / "published" / "quickstart" / "recipe.yaml"
# completep is for dense models.
DENSE_BASE = {"width": 32, "depth": 2, "dense_ratio": 4, "head_dim": 32}
fewer = settings(max_examples=examples(3))


@every_column
@fewer
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
@fewer
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
