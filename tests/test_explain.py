"""Explain: the numbers, the reasons beside them, and the forms that they are given in."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from hpxfer.errors import HpxferError
from hpxfer.explain import FIELDS, BaseValues, explain, list_parameterizations, parameterizations_to_dict
from hpxfer.hps import HPs
from hpxfer.scaling.evaluate import evaluate, parameterization
from hpxfer.scaling.resolve import BaseInit, resolve
from hpxfer.scaling.tables import TABLES
from hpxfer.shape import Shape

BASE = Shape(width=32, depth=2, num_experts=4, num_active=1, expert_width=32, head_dim=32)
TARGET = Shape(width=128, depth=4, num_experts=16, num_active=4, expert_width=256, head_dim=32)
MOE = parameterization("completep-moe")
VALUES = BaseValues(hps=HPs(lr=2**-6, weight_decay=0.1), init=BaseInit())


def line_of(table: str, start: str, *, nth: int = 0) -> str:
    return [line for line in table.splitlines() if line.startswith(start)][nth]


def test_to_dict_is_the_factors_of_every_role() -> None:
    got = explain(MOE, BASE, TARGET, "adam").to_dict()
    assert got == {
        "roles": {role: dataclasses.asdict(one) for role, one in evaluate(MOE, BASE, TARGET).items()},
        "parameterization": "completep-moe",
        "conventions": {"depth_alpha": 1.0, "router_init_exponent": 1.0},
        "optimizer": "adam",
        "base": BASE.dims(),
        "target": TARGET.dims(),
        "warnings": [],
    }
    assert got["roles"]["expert_out"] == {
        "init_std": 0.25,
        "lr": 0.125,
        "eps": 0.03125,
        "weight_decay": 8.0,
        "forward": 0.125,
    }


def test_to_dict_with_values() -> None:
    plain, got = (explain(MOE, BASE, TARGET, "adam", values=one).to_dict() for one in (None, VALUES))
    values = got.pop("values")
    assert got == plain
    for name, shape in (("base", BASE), ("target", TARGET)):
        resolved = resolve(MOE, BASE, shape, "adam", VALUES.hps, VALUES.init)
        assert values[name] == {role: dataclasses.asdict(one) for role, one in resolved.items()}
    assert values["base"]["attn_q"]["lr"] == 4 * values["target"]["attn_q"]["lr"] == 2**-6


@pytest.mark.parametrize("exponent", [1.0, "inf"])
def test_to_dict_is_strict_json(exponent: float | str) -> None:
    choice = parameterization("completep-moe", {"router_init_exponent": exponent})
    got = explain(choice, BASE, TARGET, "adam", values=VALUES).to_dict()
    assert json.loads(json.dumps(got, allow_nan=False)) == got


def test_table_shows_factor_monomial_and_source() -> None:
    lines = explain(MOE, BASE, TARGET, "adam").table().splitlines()
    assert lines[:3] == [
        "completep-moe (arXiv 2601.20205), adam",
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


def test_table_has_one_aligned_row_a_role() -> None:
    explanation = explain(MOE, BASE, TARGET, "adam")
    rows = explanation.table().split("\n\n")[1].splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["role", *explanation.factors]
    at = rows[0].index("source")
    assert all(row[at - 2 : at] == "  " and row[at] != " " for row in rows)


def test_table_without_values_has_none() -> None:
    assert "Values" not in explain(MOE, BASE, TARGET, "adam").table()


def test_table_shows_values_with_powers_of_two() -> None:
    table = explain(MOE, BASE, TARGET, "adam", values=VALUES).table()
    base, target = table.split("\n\n")[2:4]
    assert base.startswith("Values at the base\n")
    assert target.startswith("Values at the target\n")
    assert line_of(base, "attn_q").split() == ["attn_q", "0.176777", "0.015625", "(2^-6)", "1e-08", "0.1", "1"]
    assert line_of(target, "attn_q").split() == ["attn_q", "0.0883883", "0.00390625", "(2^-8)", "1.25e-09", "0.4", "1"]
    assert line_of(target, "router_bias").split()[1:4] == ["zeros", "0.01", "(2^-6.64)"]
    assert line_of(target, "norm").split()[1] == "ones"
    assert line_of(target, "dense_out").split()[1] == "-"  # no such tensor, no fan-in


def test_a_frozen_role_has_no_power_of_two() -> None:
    frozen = BaseValues(hps=HPs(lr=0.1).with_value("router.lr_mult", 0.0), init=BaseInit())
    table = explain(MOE, BASE, TARGET, "adam", values=frozen).table()
    assert line_of(table, "router ", nth=1).split()[2] == "0"


def test_warnings_stand_last() -> None:
    other = dataclasses.replace(TARGET, num_active=1)
    explanation = explain(MOE, BASE, other, "adam", values=VALUES)
    warning = "completep-moe holds kappa fixed: it goes from 0.25 to 0.0625; transfer is not expected"
    assert explanation.warnings == (warning,)
    assert explanation.to_dict()["warnings"] == [warning]
    assert explanation.table().splitlines()[-1] == f"warning: {warning}"
    assert "warning" not in explain(MOE, BASE, TARGET, "adam").table()


def test_conventions_are_named_and_followed() -> None:
    choice = parameterization("completep-moe", {"router_init_exponent": "inf"})
    explanation = explain(choice, BASE, TARGET, "adam")
    assert explanation.table().startswith("completep-moe[router_init_exponent=inf] (arXiv 2601.20205), adam\n")
    assert explanation.to_dict()["conventions"]["router_init_exponent"] == "inf"
    assert explanation.factors["router"].init_std == 0


def test_a_missing_column_is_refused() -> None:
    with pytest.raises(HpxferError, match="the source has no sgd column; it has: adam"):
        explain(MOE, BASE, TARGET, "sgd")


def test_factors_are_the_ratio_of_the_values() -> None:
    """Where the base value is not zero, target value over base value is the factor that is printed."""
    explanation = explain(MOE, BASE, TARGET, "adam", values=VALUES)
    assert explanation.base_values is not None
    assert explanation.target_values is not None
    for role, factors in explanation.factors.items():
        for name in FIELDS:
            base, target = (getattr(at[role], name) for at in (explanation.base_values, explanation.target_values))
            assert math.isclose(base * getattr(factors, name), target, rel_tol=1e-12) or base == 0, (role, name)


def test_list_names_everything_about_every_table() -> None:
    text = list_parameterizations()
    assert [block.split()[0] for block in text.split("\n\n")] == list(TABLES)
    moe = next(block for block in text.split("\n\n") if block.startswith("completep-moe "))
    assert moe.splitlines() == [
        "completep-moe (arXiv 2601.20205)",
        "  CompleteP with MoE layers: width, depth, expert count at fixed kappa, expert size.",
        "  axes:        width, depth, experts, active, expert_ratio, dense_width",
        "  fixed:       kappa, head_dim",
        "  optimizers:  adam",
        "  conventions:",
        "    depth_alpha = 1.0; legal: a number from 0.5 to 1",
        "        residual branches get depth^-alpha, the LR inside them depth^(alpha-1); 1 is CompleteP",
        "    router_init_exponent = 1.0; legal: 0.5 | 1.0 | inf",
        "        " + MOE.table.conventions["router_init_exponent"].doc,
    ]
    assert "  conventions: none" in text.split("\n\n")[0]


def test_list_as_json() -> None:
    got = parameterizations_to_dict()
    assert json.loads(json.dumps(got, allow_nan=False)) == got
    assert set(got) == set(TABLES)
    moe = got["completep-moe"]
    assert (moe["source"], moe["fixed"], moe["optimizers"]) == ("arXiv 2601.20205", ["kappa", "head_dim"], ["adam"])
    assert moe["conventions"]["router_init_exponent"]["legal"] == [0.5, 1.0, "inf"]
    assert moe["conventions"]["depth_alpha"]["legal"] == {"between": [0.5, 1.0]}
    assert {key: one["default"] for key, one in moe["conventions"].items()} == dict(MOE.conventions)
    assert got["sp"]["conventions"] == {}
