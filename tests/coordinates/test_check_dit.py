"""The check of the family dit: tables pass along their axes, and what breaks the rows of the condition misses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from hpxfer.coordinates.cases import own_case
from hpxfer.coordinates.checking import check
from hpxfer.coordinates.derive import derive
from hpxfer.coordinates.networks import dit_network
from hpxfer.coordinates.path_facts import path_facts
from hpxfer.coordinates.report import AxisReport
from hpxfer.scaling import Row, Table
from hpxfer.scaling.evaluate import Parameterization, parameterization
from hpxfer.scaling.monomial import ONE, depth, width
from hpxfer.scaling.roles import CONDITIONED
from hpxfer.scaling.table import Conventions
from hpxfer.scaling.tables import PARAMETERIZATIONS
from hpxfer.spec import parse_sweep

POINTS = {"width": (32.0, 64.0, 96.0, 128.0), "depth": (2.0, 4.0, 6.0, 8.0)}
Register = Callable[[Table], None]
Rows = Mapping[str, Mapping[str, Any]]


def checked(name: str | Parameterization, axis: str, **asked: Any) -> AxisReport:
    given: dict[str, Any] = {"points": POINTS.get(axis), "seeds": 3, "steps": 4, "architecture": "dit", **asked}
    return check(name, axes=[axis], **given).axes[0]


def missed(report: AxisReport) -> set[tuple[str, str]]:
    """Return what does not keep its size. A wrong table is followed all the same."""
    assert not report.count("miss"), [each for each in report.judged if each.verdict == "miss"]
    return {(each.role, each.quantity) for each in report.judged_stability if each.verdict == "miss"}


def slope(report: AxisReport, role: str, quantity: str) -> float:
    found = {(each.role, each.quantity): each.shown.slope for each in report.judged_stability}[role, quantity]
    assert found is not None
    return found


def changed(table: str, rows: Rows) -> Table:
    """Return a table in which some rows differ."""
    plain = PARAMETERIZATIONS.get(table)

    def column(conventions: Conventions) -> tuple[Row, ...]:
        return tuple(replace(row, **rows.get(row.role, {})) for row in plain.rows["adam"](conventions))

    return replace(plain, name="mine", rows={"adam": column})


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        ("complete-mue", "width"),
        *(
            pytest.param("complete-mue", axis, marks=pytest.mark.slow)
            for axis in ("depth", "active", "experts", "expert_ratio", "granularity", "shared", "groups", "dense_ratio")
        ),
        *(
            pytest.param("completep-moe", axis, marks=pytest.mark.slow)
            for axis in ("width", "depth", "experts", "expert_ratio")
        ),
        *(pytest.param("completep", axis, marks=pytest.mark.slow) for axis in ("width", "depth")),
        pytest.param("mup-moe", "width", marks=pytest.mark.slow),
    ],
)
def test_a_table_passes_along_its_axis(name: str, axis: str) -> None:
    found = checked(name, axis)
    assert not missed(found)
    assert found.passed
    assert found.warnings == ()
    assert {each.role for each in found.judged if each.verdict == "ok"} >= CONDITIONED.keys()
    learned = [each for each in found.judged_stability if each.quantity == "effective" and each.role in CONDITIONED]
    assert all(abs(each.shown.slope or 0.0) < 0.15 for each in learned)


def test_below_alpha_one_modulations_learn_less_along_depth_by_design() -> None:
    lazy = parameterization("completep", {"depth_alpha": 0.5})
    found = checked(lazy, "depth")
    assert not missed(found)
    assert slope(found, "modulation", "effective") == pytest.approx(-0.5, abs=0.15)


# Negative twins.

NO_LR = {"modulation": {"lr": ONE}}
NO_COUNT: Rows = {"expert_out": {"forward": depth**-1, "init_std": width**-0.5}}
NO_FORWARD: Rows = {"expert_out": {"forward": depth**-1}}


@pytest.mark.parametrize(
    ("name", "rows", "axis", "wrong"),
    [
        ("complete-mue", NO_LR, "width", {("modulation", "effective"): 0.7}),
        pytest.param(
            *("complete-mue", NO_COUNT, "active"),
            {("moe", "activation"): 0.4, ("stream", "change"): 0.25},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("complete-mue", NO_FORWARD, "expert_ratio"),
            {("moe", "activation"): 0.8, ("expert_out", "aggregate effective"): 0.7, ("stream", "change"): 0.4},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("sp", {}, "width"),
            {
                (role, "effective"): 0.4
                for role in ("time_out", "modulation", "final_modulation", "attn_q", "expert_in")
            },
            marks=pytest.mark.slow,
        ),
        pytest.param("sp", {}, "depth", {("stream", "change"): 0.5}, marks=pytest.mark.slow),
    ],
)
def test_what_is_wrong_misses(
    register: Register, name: str, rows: Rows, axis: str, wrong: dict[tuple[str, str], float]
) -> None:
    register(changed(name, rows))
    found = checked("mine", axis)
    assert not found.passed
    assert wrong.keys() <= missed(found)
    assert all(slope(found, *at) > least for at, least in wrong.items())


WRONG: dict[str, tuple[Rows, set[tuple[str, str]]]] = {
    "width": (
        {
            "patch_in": {"eps": ONE},
            "time_in": {"lr": width**-0.5},
            "label": {"lr": width**-0.5},
            "time_out": {"weight_decay": width},
            "final_modulation": {"eps": ONE},
            "final_bias": {"lr": width**-1},
        },
        {
            ("patch_in", "gradient / eps"),
            ("time_in", "change"),
            ("label", "weight change"),
            ("time_out", "decay"),
            ("final_modulation", "gradient / eps"),
            ("final_bias", "weight change"),
        },
    ),
    "depth": (
        {"modulation": {"eps": width**-1}, "time_out": {"eps": width**-1 * depth**-1}},
        {("modulation", "gradient / eps"), ("time_out", "gradient / eps")},
    ),
}


@pytest.mark.parametrize("axis", ["width", pytest.param("depth", marks=pytest.mark.slow)])
def test_wrong_rows_of_the_condition_are_seen(register: Register, axis: str) -> None:
    rows, seen = WRONG[axis]
    register(changed("complete-mue", rows))
    wrong = missed(checked("mine", axis))
    assert seen <= wrong
    # The condition moves by less than it should, and so does what reads it.
    assert {quantity for _, quantity in wrong - seen} <= {"change", "decay"}


# What the rows imply.

MODEL: dict[str, Any] = {"gated": False, "learned_positions": False, "classes": True}


@pytest.mark.parametrize("name", ["complete-mue", "completep-moe"])
@pytest.mark.parametrize("zeros", [(), ("modulation", "final_modulation"), ("readout",)])
@pytest.mark.parametrize(("axis", "inside", "outside"), [("width", -1.0, -1.0), ("depth", -1.0, 0.0)])
def test_gradients_have_the_exponents_that_eps_has(
    name: str, axis: str, inside: float, outside: float, zeros: tuple[str, ...]
) -> None:
    choice = parameterization(name)
    case = own_case(choice, "adam", axis, None, dense=False, architecture="dit")
    shapes, scales = [point.shape for point in case.axis.points], [point.scale for point in case.axis.points]
    network = dit_network(shapes[-1], **MODEL)
    facts = path_facts(shapes[0], shapes, scales, network=network, gate=case.spec.model.gate, zeros=zeros)
    found = {(each.role, each.quantity): each for each in derive(choice, "adam", facts)}
    wanted = dict.fromkeys(CONDITIONED, outside) | {"modulation": inside, "hidden_bias": inside}
    nothing = wanted.keys() if "readout" in zeros else {"time_in", "time_out", "label"} if zeros else set()
    for role, exponent in wanted.items():
        gradient, over_eps = found[role, "gradient"], found[role, "gradient / eps"]
        assert gradient.zero == over_eps.zero == (role in nothing), role
        if role not in nothing:
            assert (gradient.exponent, over_eps.exponent) == (exponent, 0.0), role


ZERO_SWEEP = """\
name: zero
model:
  family: dit
  base: {width: 32, depth: 2, num_experts: 4, num_active: 4, expert_ratio: 1, head_dim: 16}
  gate: normalized_sigmoid
  dit: {patch: 4, adaln_init: zero, readout_init: random}
data: {source: "builtin:shapes"}
training: {batch_samples: 8, steps: 100, validation_samples: 16, eps: 1.0e-10}
parameterizations: [complete-mue]
axes: {width: [32, 64, 96, 128]}
hps: {multipliers: {readout.init_mult: 0.25}}
grid: {lr: [0.001]}
"""


def test_zero_modulations_are_right_at_the_start_and_delay_what_branches_learn() -> None:
    found = check("complete-mue", sweep=parse_sweep(ZERO_SWEEP), seeds=2, steps=4).axes[0]
    assert not missed(found)
    by_step = {(fit.role, fit.quantity, fit.step): fit for fit in found.fits if fit.layer is None}
    for at in (("modulation", "activation", 0), ("attn_v", "gradient", 0), ("attn_v", "effective", 1)):
        assert by_step[at].verdict == "zero", at
    assert by_step["modulation", "gradient", 0].verdict != "zero"
    judged = {(each.role, each.quantity): each.shown.step for each in found.judged_stability}
    assert judged["modulation", "activation"] == 4
    first = min(
        fit.step for fit in found.stability if (fit.role, fit.quantity) == ("attn_v", "effective") and fit.source
    )
    assert first == 2
