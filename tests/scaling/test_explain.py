"""Explain: the numbers, the reasons beside them, and the forms that they are given in."""

from __future__ import annotations

import dataclasses
import json

import pytest

from hpxfer.errors import HpxferError
from hpxfer.scaling.coverage import ModelFacts
from hpxfer.scaling.evaluate import BaseInit, evaluate, parameterization, resolve
from hpxfer.scaling.explain import (
    BaseValues,
    explain,
    list_parameterizations,
    parameterizations_to_dict,
    require_covered,
)
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.tables import PARAMETERIZATIONS

BASE = Shape(width=32, depth=2, num_experts=4, num_active=1, expert_width=32, head_dim=32)
TARGET = Shape(width=128, depth=4, num_experts=16, num_active=4, expert_width=256, head_dim=32)
DENSE = Shape(width=32, depth=2, head_dim=32, dense_width=128)
HYBRID = dataclasses.replace(
    DENSE, width=64, num_experts=8, num_active=2, expert_width=64, num_shared=1, shared_width=64
)
MOE = parameterization("completep-moe")
VALUES = BaseValues(hps=HPs(lr=2**-6, weight_decay=0.1), init=BaseInit())


def line_of(table: str, start: str, *, nth: int = 0) -> str:
    return [line for line in table.splitlines() if line.startswith(start)][nth]


def test_a_schedule_that_one_shape_does_not_name_is_the_other_s() -> None:
    run = dataclasses.replace(TARGET, batch_tokens=64, steps=10)
    same = "(batch_tokens and steps as at the "
    assert line_of(explain(MOE, run, TARGET).table(), "target").endswith(f"head_dim 32 {same}base)")
    assert line_of(explain(MOE, TARGET, run).table(), "base").endswith(f"head_dim 32 {same}target)")
    assert same not in explain(MOE, run, run).table() + explain(MOE, TARGET, TARGET).table()


def test_to_dict_is_the_factors_of_every_role() -> None:
    got = explain(MOE, BASE, TARGET, "adam").to_dict()
    assert got == {
        "roles": {role: dataclasses.asdict(numbers) for role, numbers in evaluate(MOE, BASE, TARGET).items()},
        "parameterization": "completep-moe",
        "conventions": dict(MOE.conventions),
        "optimizer": "adamw",
        "base": BASE.dims(),
        "target": TARGET.dims(),
        "globals": {"route_scale": 4.0, "one_minus_beta": 1.0},
        "structure": {"tied_experts": False, "router_bias_std": 0.0},
        "warnings": [],
    }
    expert_out = {"init_std": 0.25, "lr": 0.125, "eps": 0.03125, "weight_decay": 8.0, "forward": 0.125}
    assert got["roles"]["expert_out"] == expert_out


def test_to_dict_with_values() -> None:
    plain, got = (explain(MOE, BASE, TARGET, "adam", values=values).to_dict() for values in (None, VALUES))
    values, global_values = got.pop("values"), got.pop("global_values")
    assert got == plain
    assert global_values == {
        "base": {"route_scale": 1.0, "beta1": 0.9, "beta2": 0.95},
        "target": {"route_scale": 4.0, "beta1": 0.9, "beta2": 0.95},
    }
    for name, shape in (("base", BASE), ("target", TARGET)):
        resolved = resolve(MOE, BASE, shape, "adam", VALUES.hps, VALUES.init)
        assert values[name] == {role: dataclasses.asdict(numbers) for role, numbers in resolved.items()}
    assert values["base"]["attn_q"]["lr"] == 4 * values["target"]["attn_q"]["lr"] == 2**-6


def test_table_shows_factor_monomial_and_source() -> None:
    lines = explain(MOE, BASE, TARGET, "adam").table().splitlines()
    assert lines[:3] == [
        "completep-moe (arXiv 2601.20205), adamw",
        "base    width 32, depth 2, num_experts 4, num_active 1, expert_width 32, head_dim 32",
        "target  width 128, depth 4, num_experts 16, num_active 4, expert_width 256, head_dim 32",
    ]
    cells = [cell.strip() for cell in line_of("\n".join(lines), "expert_out").split("  ") if cell.strip()]
    assert cells == [
        "expert_out",
        "0.25 (width^-0.5 expert_ratio^-1)",
        "0.125 (width^-1 expert_ratio^-1)",
        "0.03125 (width^-1 experts^-1 depth^-1)",
        "8 (width expert_ratio)",
        "0.125 (depth^-1 active^-1)",
        "2601.20205 Table 1; eps from measured gradient sizes",
    ]
    assert line_of("\n".join(lines), "hidden_bias").split()[1:3] == ["0", "1"]  # a constant stands alone
    explanation = explain(MOE, BASE, TARGET, "adam")
    rows = explanation.table().split("\n\n")[1].splitlines()[1 : 2 + len(explanation.factors)]
    assert [row.split()[0] for row in rows] == ["role", *explanation.factors]  # aligned, one a role
    at = rows[0].index("source")
    assert all(row[at - 2 : at] == "  " and row[at] != " " for row in rows)


def test_table_shows_values_with_powers_of_two() -> None:
    assert "Values" not in explain(MOE, BASE, TARGET, "adam").table()
    table = explain(MOE, BASE, TARGET, "adam", values=VALUES).table()
    base, target = table.split("\n\n")[2:4]
    assert base.startswith("Values at the base\n")
    assert target.startswith("Values at the target\n")
    assert line_of(base, "attn_q").split() == ["attn_q", "0.176777", "0.015625", "(2^-6)", "1e-08", "0.1", "1"]
    assert line_of(target, "attn_q").split() == ["attn_q", "0.0883883", "0.00390625", "(2^-8)", "1.25e-09", "0.4", "1"]
    assert line_of(target, "router_bias").split()[1:4] == ["zeros", "0.01", "(2^-6.64)"]
    assert line_of(target, "norm").split()[1] == "ones"
    frozen = BaseValues(hps=HPs(lr=0.1).with_value("router.lr_mult", 0.0), init=BaseInit())
    table = explain(MOE, BASE, TARGET, "adam", values=frozen).table()
    assert line_of(table, "router ", nth=1).split()[2] == "0"


def test_warnings_stand_last() -> None:
    other = dataclasses.replace(TARGET, num_active=1)
    explanation = explain(MOE, BASE, other, "adam", values=VALUES)
    warning = (
        "completep-moe holds kappa fixed: it goes from 0.25 to 0.0625; with another share of active experts transfer "
        "is not expected (2601.20205 Fig. 10)"
    )
    assert explanation.warnings == (warning,)
    assert explanation.to_dict()["warnings"] == [warning]
    assert explanation.table().splitlines()[-1] == f"warning: {warning}"
    assert "warning" not in explain(MOE, BASE, TARGET, "adam").table()


def test_conventions_are_named_and_followed() -> None:
    choice = parameterization("completep-moe", {"router_init_exponent": "inf"})
    explanation = explain(choice, BASE, TARGET, "adam")
    assert explanation.table().startswith("completep-moe[router_init_exponent=inf] (arXiv 2601.20205), adamw\n")
    assert explanation.to_dict()["conventions"]["router_init_exponent"] == "inf"
    assert explanation.factors["router"].init_std == 0
    assert json.loads(json.dumps(explanation.to_dict(), allow_nan=False)) == explanation.to_dict()


def test_the_lines_below_the_factors_are_what_belongs_to_no_role() -> None:
    schedule = {"batch_tokens": 64, "steps": 100}
    base = dataclasses.replace(BASE, **schedule)
    target = dataclasses.replace(base, num_experts=16, num_active=4, steps=400)
    mue = parameterization("complete-mue")
    table = explain(mue, base, target, values=VALUES).table()
    assert line_of(table, "route scale") == "route scale (gates that sum to one): 4 (active)"
    assert line_of(table, "1 - beta1") == "1 - beta1 and 1 - beta2: 0.25 (batch duration^-1)"
    assert line_of(table, "betas") == "betas 0.9, 0.95; route scale 1"
    assert line_of(table, "betas", nth=1) == "betas 0.975, 0.9875; route scale 4"
    sgd = explain(parameterization("mup"), BASE, TARGET, "sgd").table()
    assert not any(line.startswith("1 - beta1") for line in sgd.splitlines())


def test_structure_is_said_in_words() -> None:
    tied = explain(parameterization("mssp-iii"), BASE, BASE)
    assert "init: all experts of a layer start from the same draw, and train on their own" in tied.table()
    noise = explain(parameterization("mup-moe", {"router_bias_std": 0.5}), BASE, BASE)
    said = "router: at every step normal numbers of std 0.5 are added to the logits, the same at every width"
    assert said in noise.table()
    assert noise.to_dict()["structure"] == {"tied_experts": False, "router_bias_std": 0.5}
    plain = explain(parameterization("mup-moe"), BASE, BASE).table()
    assert "start from the same draw" not in plain
    assert "are added to the logits" not in plain


@pytest.mark.parametrize("name", list(PARAMETERIZATIONS))
def test_every_table_can_be_explained_at_every_layout(name: str) -> None:
    choice = parameterization(name)
    for base in (BASE, DENSE, HYBRID):
        for target in (TARGET, DENSE, HYBRID):
            for optimizer in choice.table.rows:
                found = explain(choice, base, target, optimizer, values=VALUES)
                assert json.loads(json.dumps(found.to_dict(), allow_nan=False)) == found.to_dict()
                assert found.table().splitlines()[0].startswith(f"{name} (")


def test_a_dense_base_and_a_hybrid_target() -> None:
    """What the base lacks is held against its dense FFN."""
    explanation = explain(parameterization("complete-mue"), DENSE, HYBRID, values=VALUES)
    assert explanation.warnings == ()
    table = explanation.table()
    assert table.splitlines()[1:3] == [
        "base    width 32, depth 2, head_dim 32, dense_width 128",
        "target  width 64, depth 2, num_experts 8, num_active 2, expert_width 64, head_dim 32, num_shared 1, "
        "shared_width 64, dense_width 128",
    ]
    # H_act / width: 192/64 at the target, 128/32 at the base; dense 128/64 of 128/32; fan-in 128 at the base.
    assert line_of(table, "expert_out").split()[1] == f"{(3 / 4) ** 0.5 * 0.5**0.5:.6g}"
    assert line_of(table, "dense_out").split()[1] == f"{(2 / 4) ** 0.5 * 0.5**0.5:.6g}"
    assert (
        line_of(table, "expert_out", nth=1).split()[1] == line_of(table, "dense_out", nth=1).split()[1] == "0.0883883"
    )


def test_the_gate_and_the_embeddings_are_taken_into_account() -> None:
    mue = parameterization("complete-mue")
    said = explain(mue, DENSE, TARGET, facts=ModelFacts(gate="sigmoid")).warnings
    assert [warning.partition(",")[0] for warning in said] == [
        "complete-mue's gate sums to one over the active experts"
    ]
    (constant,) = explain(mue, BASE, BASE, facts=ModelFacts(gate="normalized_sigmoid")).warnings
    assert constant.endswith("the gate is constant, the router does not learn")
    tied = explain(parameterization("mup-moe"), BASE, BASE, facts=ModelFacts(tied_embeddings=True)).warnings
    assert [warning.rpartition("; ")[2] for warning in tied] == ["set readout: forward"]


def test_strict_refuses_what_is_warned_of() -> None:
    require_covered(explain(MOE, BASE, TARGET))
    found = explain(MOE, BASE, dataclasses.replace(TARGET, num_active=1, head_dim=64))
    with pytest.raises(HpxferError) as caught:
        require_covered(found)
    lines = str(caught.value).splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["not covered by arXiv 2601.20205"] * 2
    assert [line.partition(": ")[2] for line in lines] == list(found.warnings)


def test_list_names_everything_about_every_table() -> None:
    *tables, conventions = list_parameterizations().split("\n\n")
    assert [block.split()[0] for block in tables] == list(PARAMETERIZATIONS)
    moe = next(block for block in tables if block.startswith("completep-moe "))
    assert moe.splitlines() == [
        "completep-moe (arXiv 2601.20205)",
        "  CompleteP with MoE layers: width, depth, expert count at fixed kappa, expert size.",
        "  axes:        width, depth, experts, active, expert_ratio",
        "  fixed:       kappa, head_dim",
        "  optimizers:  adamw, muon",
        "  conventions: depth_alpha=1.0, depth_lr=block, readout=forward, embeddings=untied, weight_decay=source, "
        "eps=per_role, router_init_exponent=1.0, expert_out_init=source",
    ]
    assert tables[0].splitlines()[-1] == "  conventions: lr_exponent=0.0"
    assert "  axes:        width, experts, active; for adamw also depth" in list_parameterizations().splitlines()
    for table in PARAMETERIZATIONS.rows():
        block = next(block for block in tables if block.startswith(f"{table.name} ("))
        assert table.source in block
        assert all(axis in block for axis in (*table.axes, *table.adam_axes))
    lines = conventions.splitlines()
    assert lines[0] == "Conventions"
    at = lines.index("  router_init_exponent: 0.5 | 1.0 | inf")
    assert lines[at + 1] == "      " + MOE.table.conventions["router_init_exponent"].doc


def test_a_convention_is_the_same_in_every_table_that_has_it() -> None:
    """But for its default: the list spells each once."""
    seen: dict[str, set[tuple[object, str]]] = {}
    for table in PARAMETERIZATIONS.rows():
        for key, convention in table.conventions.items():
            seen.setdefault(key, set()).add((convention.legal, convention.doc))
    assert {key: len(forms) for key, forms in seen.items()} == dict.fromkeys(seen, 1)


def test_list_as_json() -> None:
    got = parameterizations_to_dict()
    assert json.loads(json.dumps(got, allow_nan=False)) == got
    assert set(got) == set(PARAMETERIZATIONS)
    moe = got["completep-moe"]
    assert (moe["source"], moe["fixed"], moe["optimizers"]) == (
        "arXiv 2601.20205",
        ["kappa", "head_dim"],
        ["adamw", "muon"],
    )
    assert moe["conventions"]["router_init_exponent"]["legal"] == [0.5, 1.0, "inf"]
    assert moe["conventions"]["depth_alpha"]["legal"] == {"between": [0.5, 1.0]}
    assert {key: convention["default"] for key, convention in moe["conventions"].items()} == dict(MOE.conventions)
    assert got["sp"]["conventions"]["lr_exponent"]["legal"] == {"between": [-2.0, 2.0]}


def test_it_says_that_init_scale_multiplies_embeddings_too() -> None:
    everything = BaseValues(hps=VALUES.hps, init=BaseInit(scale_of="all"))
    note = "init_scale multiplies the init std of embedding and position too"
    assert note in explain(MOE, HYBRID, HYBRID, values=everything).notes
    assert note not in explain(MOE, HYBRID, HYBRID, values=VALUES).notes
