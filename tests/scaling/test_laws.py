"""Laws that hold for every table, optimizer, legal set of conventions and layout; sweeps and recipes that name them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from sweep_text import SWEEP

from hpxfer.recipe import Recipe
from hpxfer.recipe.file import TablePart
from hpxfer.scaling.evaluate import Multipliers, Parameterization, evaluate, parameterization, ratios
from hpxfer.scaling.monomial import WIDTHS, ZERO
from hpxfer.scaling.roles import CONDITIONED, HIDDEN
from hpxfer.scaling.shape import Shape, check_shape
from hpxfer.scaling.table import Column, Convention
from hpxfer.scaling.tables import PARAMETERIZATIONS
from hpxfer.spec import dump_sweep, parse_sweep
from hpxfer.spec.yaml_file import parse_yaml, write_yaml
from hpxfer.trial import DataRef, Expansion

COLUMNS: list[tuple[str, Column]] = [
    (table.name, optimizer) for table in PARAMETERIZATIONS.rows() for optimizer in table.rows
]
LAYOUTS = ("dense", "moe", "shared", "groups", "hybrid")
# Roles that start at exact zeros, and those that no weight decay touches.
ZERO_INIT = {"hidden_bias", "router_bias", "final_bias"}
NO_DECAY = {"position", "norm", "final_norm", "hidden_bias", "router_bias", "final_bias"}
WIDTH = st.integers(1, 16).map(lambda n: 8 * n)


@st.composite
def layouts(draw: st.DrawFn, layout: str | None = None) -> Shape:
    """Return a random legal shape with its schedule; a dense or a hybrid one has a dense FFN."""
    layout = layout or draw(st.sampled_from(LAYOUTS))
    dims: dict[str, Any] = {
        "width": draw(WIDTH),
        "depth": draw(st.integers(1, 64)),
        "head_dim": 8,
        "batch_tokens": 32 * draw(st.integers(1, 64)),
        "steps": draw(st.integers(1, 10_000)),
    }
    if layout != "dense":
        groups = draw(st.integers(2, 4)) if layout == "groups" else 1
        active = groups * draw(st.integers(1, 4))
        experts = active * draw(st.integers(1, 8))
        dims |= {"num_experts": experts, "num_active": active, "expert_width": draw(WIDTH), "num_groups": groups}
    if layout in ("shared", "hybrid"):
        dims |= {"num_shared": draw(st.integers(1, 3)), "shared_width": draw(WIDTH)}
    if layout in ("dense", "hybrid"):
        dims |= {"dense_width": draw(WIDTH)}
    shape = Shape(**dims)
    assert check_shape(shape) is None
    return shape


@st.composite
def choices(draw: st.DrawFn, name: str) -> Parameterization:
    """Return the named table with random legal conventions."""
    return parameterization(name, draw(conventions(name)))


@st.composite
def conventions(draw: st.DrawFn, name: str) -> dict[str, float | str]:
    """Return a random legal value of every convention of a table; tied embeddings leave some no choice."""
    out = {key: draw(_values(convention)) for key, convention in PARAMETERIZATIONS.get(name).conventions.items()}
    if out.get("embeddings") == "tied":
        out["readout"] = "forward"
        if "readout_init" in out:
            out["readout_init"] = "random"
    return out


def _values(convention: Convention) -> st.SearchStrategy[float | str]:
    if convention.legal[0] == "between":
        _, low, high = convention.legal
        return st.floats(float(low), float(high))
    return st.sampled_from(convention.legal)


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


@pytest.mark.parametrize("scale", ["spectral", "original", "match_rms_adamw"])
@pytest.mark.parametrize("name", [name for name, optimizer in COLUMNS if optimizer == "muon" and name != "sp"])
@few
@given(data=st.data())
def test_muon_follows_adamw_by_the_spectral_condition(name: str, scale: str, data: st.DataObject) -> None:
    """LR times s is AdamW's LR times sqrt(in out), a step decays as much, and nothing else differs."""
    scales = {
        "spectral": lambda fan_in, fan_out: math.sqrt(fan_out / fan_in),
        "original": lambda fan_in, fan_out: max(1.0, math.sqrt(fan_out / fan_in)),
        "match_rms_adamw": lambda fan_in, fan_out: 0.2 * math.sqrt(max(fan_in, fan_out)),
    }
    layout = data.draw(st.sampled_from(LAYOUTS))  # of both, so that each matrix has its counterpart
    choice, base, target = data.draw(choices(name)), data.draw(layouts(layout)), data.draw(layouts(layout))
    adam, muon = (evaluate(choice, base, target, column) for column in ("adam", f"muon[scale={scale},router=muon]"))
    assert evaluate(choice, base, target, "muon")["router"] == adam["router"] if "router" in adam else True

    def sizes(role: str, shape: Shape) -> tuple[int, int]:
        wide, kind = shape.width, role.partition("_")[0]
        if kind in ("attn", "router"):
            return wide, shape.num_experts if kind == "router" else wide
        if role in CONDITIONED:  # the outputs of a modulation are a multiple of the width
            return wide, {"modulation": 6, "final_modulation": 2}.get(role, 1) * wide
        hidden = getattr(shape, f"{kind}_width")
        return (hidden, wide) if role.endswith("_out") else (wide, hidden)

    for role, numbers in adam.items():
        if role not in HIDDEN:
            assert muon[role] == numbers, role
            continue
        (old_in, old_out), (new_in, new_out) = sizes(role, base), sizes(role, target)
        if 0 in (old_in, old_out, new_in, new_out):
            continue
        s = scales[scale](new_in, new_out) / scales[scale](old_in, old_out)
        assert close(muon[role].lr * s, numbers.lr * math.sqrt(new_in * new_out / (old_in * old_out))), role
        assert close(muon[role].lr * muon[role].weight_decay, numbers.lr * numbers.weight_decay), role
        assert (muon[role].init_std, muon[role].forward) == (numbers.init_std, numbers.forward), role


@every_column
@few
@given(data=st.data())
def test_independent_decay_and_global_eps_are_one_number(name: str, optimizer: Column, data: st.DataObject) -> None:
    known = PARAMETERIZATIONS.get(name).conventions
    asked = {key: value for key, value in (("weight_decay", "independent"), ("eps", "global")) if key in known}
    choice = parameterization(name, {**dict(data.draw(choices(name)).conventions), **asked})
    got = evaluate(choice, data.draw(layouts()), data.draw(layouts()), optimizer)
    if "weight_decay" in asked and optimizer != "muon":
        assert {numbers.weight_decay for role, numbers in got.items() if role not in NO_DECAY} == {1.0}
    if "eps" in asked:
        by_adamw = [numbers.eps for role, numbers in got.items() if optimizer != "muon" or role not in HIDDEN]
        assert len(set(by_adamw)) == 1


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
            parameterization(name, {**drawn, **plain, "embeddings": "untied", "readout": form}), base, target, optimizer
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
    step = numbers.lr * numbers.forward if optimizer != "sgd" else numbers.lr * numbers.forward**2
    eps = numbers.eps / numbers.forward if optimizer != "sgd" else 1.0
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
