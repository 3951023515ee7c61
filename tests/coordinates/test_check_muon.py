"""The check holds what the tables claim of Muon along every axis, and wrong LRs miss: its negative twins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sweep_text import edited

from hpxfer.coordinates.cases import own_axes, own_case
from hpxfer.coordinates.checking import check
from hpxfer.coordinates.derive import derive
from hpxfer.coordinates.measure import Prediction
from hpxfer.coordinates.networks import gpt_network
from hpxfer.coordinates.optimizer_rules import CROSSES, DECAY, GRADIENT_OVER_EPS, RANK, THIN
from hpxfer.coordinates.own.checking import check_module
from hpxfer.coordinates.path_facts import PathFacts, path_facts
from hpxfer.coordinates.report import AxisReport
from hpxfer.coordinates.stability import good_table
from hpxfer.errors import HpxferError
from hpxfer.recipe import Recipe
from hpxfer.scaling import Row, Table
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.muon import SCALES
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Conventions
from hpxfer.scaling.tables import PARAMETERIZATIONS
from hpxfer.spec import parse_sweep

COMPLETEP_MOE = PARAMETERIZATIONS.get("completep-moe")
WIDTHS, DEPTHS, NARROW = (16.0, 32.0, 64.0, 128.0), (2.0, 4.0, 8.0, 16.0), (0.25, 0.5, 0.75, 1.0)
POINTS = {"width": WIDTHS, "depth": DEPTHS}
ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_out")
MATRICES = (*ATTENTION, "expert_in", "expert_out")
SCALED = [f"muon[scale={scale}]" for scale in SCALES]
BASE = Shape(width=32, depth=2, dense_width=64, head_dim=16)
Register = Callable[[Table], None]


def checked(name: str, optimizer: str, axis: str, points: tuple[float, ...] | None = None) -> AxisReport:
    asked: dict[str, Any] = {"points": points or POINTS.get(axis), "seeds": 3, "steps": 2}
    return check(name, optimizer=optimizer, axes=[axis], **asked).axes[0]


def missed(report: AxisReport) -> set[str]:
    """Return the roles of which what they learn does not keep its size."""
    return {each.role for each in report.judged_stability if each.verdict == "miss" and "effective" in each.quantity}


@pytest.mark.first
@pytest.mark.parametrize(
    ("optimizer", "axis", "points"),
    [
        ("muon", "width", None),
        ("muon[scale=match_rms_adamw]", "depth", None),
        ("muon[scale=original]", "experts", None),
        ("muon[scale=match_rms_adamw]", "expert_ratio", None),
        ("muon[scale=original]", "expert_ratio", NARROW),
        ("muon[scale=match_rms_adamw,heads=split]", "width", None),
        ("muon[router=muon]", "width", None),
    ],
)
def test_a_good_table_passes(optimizer: str, axis: str, points: tuple[float, ...] | None) -> None:
    report = checked("completep-moe", optimizer, axis, points)
    assert report.passed
    exact = [each.shown for each in report.judged_stability if each.quantity == "effective" and each.role in MATRICES]
    assert all(abs(fit.slope - fit.predicted) < 0.12 for fit in exact if fit.least is None)  # type: ignore[operator]


# One scale for each table: tests/scaling/test_laws.py holds every table to all three.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("completep-moe", "muon[scale=match_rms_adamw]"),
        ("completep", "muon"),
        ("complete-mue", "muon[scale=original]"),
        ("mup-moe", "muon[scale=match_rms_adamw]"),
    ],
)
def test_every_table_passes_along_its_axes(name: str, optimizer: str) -> None:
    for axis in own_axes(parameterization(name), optimizer):
        assert checked(name, optimizer, axis).passed, axis


# Negative twins.


def planted(**factors: Any) -> Table:
    """Return completep-moe with other rows for Muon's matrices, which its scale does not change."""

    def rows(conventions: Conventions) -> tuple[Row, ...]:
        adam = {row.role: row for row in COMPLETEP_MOE.rows["adam"](conventions)}
        found = COMPLETEP_MOE.rows["muon"](conventions)
        own = {role: {name: getattr(adam[role], take) for name, take in factors.items()} for role in MATRICES}
        return tuple(Row(**{**vars(row), **own[row.role]}) if row.role in own else row for row in found)

    return replace(COMPLETEP_MOE, name="mine", rows={**COMPLETEP_MOE.rows, "muon": rows})


@pytest.mark.parametrize(
    ("optimizer", "axis", "points", "wrong"),
    [
        ("muon[scale=match_rms_adamw]", "width", None, set(MATRICES)),
        ("muon[scale=original]", "expert_ratio", None, {"expert_out"}),
        ("muon[scale=original]", "expert_ratio", NARROW, {"expert_in"}),
    ],
)
def test_an_lr_that_does_not_follow_the_scale_misses(
    register: Register, optimizer: str, axis: str, points: tuple[float, ...] | None, wrong: set[str]
) -> None:
    register(planted())
    report = checked("mine", optimizer, axis, points)
    assert (report.follows, report.stable) == (True, False)
    assert missed(report) == wrong


def test_the_lr_of_adamw_misses(register: Register) -> None:
    register(planted(lr="lr"))
    report = checked("mine", "muon", "width")
    assert (report.follows, missed(report)) == (True, set(MATRICES))
    shares = {each.role for each in report.judged_stability if (each.quantity, each.verdict) == (DECAY, "miss")}
    assert shares == set(MATRICES)


@pytest.mark.parametrize(
    ("optimizer", "axis", "wrong"),
    [("muon[scale=match_rms_adamw]", "width", {*MATRICES, "router", "readout"}), ("muon", "depth", {"expert_out"})],
)
def test_sp_is_followed_and_misses(optimizer: str, axis: str, wrong: set[str]) -> None:
    report = checked("sp", optimizer, axis)
    assert (report.follows, report.stable) == (True, False)
    assert missed(report) >= wrong


# What is derived.


def facts_of(optimizer: str, axis: str, points: tuple[float, ...] | None = None, name: str = "sp") -> PathFacts:
    dense = name == "completep"
    case = own_case(parameterization(name), optimizer, axis, points, dense=dense)
    path, scales = ([getattr(each, what) for each in case.axis.points] for what in ("shape", "scale"))
    network = gpt_network(path[-1], gated=False)
    return path_facts(case.spec.base_shape, path, scales, network=network, gate="sigmoid", optimizer=optimizer)


Found = dict[tuple[str, str], Prediction]


def derived(optimizer: str, axis: str, points: tuple[float, ...] | None = None, name: str = "completep-moe") -> Found:
    found = derive(parameterization(name), optimizer, facts_of(optimizer, axis, points, name))
    return {(each.role, each.quantity): each for each in found}


def ends(found: Prediction) -> tuple[float | None, float | None]:
    return found.least, found.exponent


@pytest.mark.parametrize("optimizer", SCALED)
def test_what_follows_from_the_rows_and_the_scale(optimizer: str) -> None:
    along = derived(optimizer, "width")
    assert {ends(along[role, "effective"]) for role in MATRICES} == {(None, 0.0)}
    assert {ends(along[role, "weight change"]) for role in MATRICES} == {(-1.0, -0.5)}
    assert along["attn_q", "weight change"].source == RANK
    along = derived(optimizer, "expert_ratio")
    assert [ends(along[role, "weight change"]) for role in ("expert_in", "expert_out")] == [(None, 0.0), (None, -1.0)]
    assert ends(derived(optimizer, "depth")["attn_out", "effective"]) == (None, -1.0)
    # Without the factor of the scale: one LR.
    grows = {"spectral": 0.0, "original": 0.5, "match_rms_adamw": 1.0}[optimizer[11:-1]]
    assert derived(optimizer, "expert_ratio", name="sp")["expert_out", "weight change"].exponent == grows - 1.0


def test_isotropic_tokens_give_an_interval_and_output_matrices_none() -> None:
    along = derived("muon[router=muon]", "width")
    assert (ends(along["router", "effective"]), along["router", "effective"].source) == ((-0.5, 0.0), THIN)
    along = derived("muon[heads=split]", "width")
    assert {ends(along[role, "effective"]) for role in ATTENTION} == {(-0.5, 0.0)}
    assert ends(derived("muon", "expert_ratio", NARROW)["expert_in", "effective"]) == (0.0, 0.5)


def test_a_path_through_square_matrices_predicts_nothing_of_them_and_says_why() -> None:
    optimizer, across = "muon[scale=original]", (0.5, 1.0, 2.0, 4.0)
    along = derived(optimizer, "expert_ratio", across)
    good = good_table(parameterization("completep-moe"), optimizer, facts_of(optimizer, "expert_ratio", across))
    silent = [each for each in (*along.values(), *good) if each.source == CROSSES]
    assert {each.role for each in silent} == {"expert_in", "expert_out"}
    assert {each.exponent for each in silent} == {None}
    assert {each.quantity for each in silent} == {"effective", "aggregate effective", "weight change"}
    assert CROSSES not in {each.source for each in derived(optimizer, "granularity", name="complete-mue").values()}


def test_only_the_roles_of_adamw_have_an_eps() -> None:
    found = {role for role, quantity in derived("muon", "width") if quantity == GRADIENT_OVER_EPS}
    assert found >= {"embedding", "norm", "router", "readout"}
    assert not found & set(MATRICES)
    assert "router" not in {role for role, what in derived("muon[router=muon]", "width") if what == GRADIENT_OVER_EPS}


@pytest.mark.parametrize("decay", ["coupled", "independent"])
@pytest.mark.parametrize("name", ["completep-moe", "completep", "complete-mue", "mup-moe"])
@pytest.mark.parametrize("optimizer", SCALED)
def test_weight_decay_keeps_the_share_of_adamw(name: str, optimizer: str, decay: str) -> None:
    choice = parameterization(name, {"weight_decay": decay})
    for axis in own_axes(choice, optimizer):
        facts = facts_of(optimizer, axis, name=name)
        rows, good = (
            {each.role: each.exponent for each in found if each.quantity == DECAY}
            for found in (derive(choice, optimizer, facts), good_table(choice, optimizer, facts))
        )
        assert {role: rows[role] for role in facts.muon} == {role: good[role] for role in facts.muon}


# What else can be checked.


def test_a_sweep_of_muon_and_the_family_mlp() -> None:
    given = ("  steps: 200", "  steps: 200\n  optimizer: muon"), ("hps:", "hps:\n  adamw_lr: 0.01")
    sweep = parse_sweep(edited(("num_active: 1", "num_active: 4"), ("lr: [0.01]", "lr: [0.04]"), *given))
    asked: dict[str, Any] = {"points": (32.0, 64.0, 96.0, 128.0), "seeds": 2, "steps": 1}
    report = check("completep-moe", sweep=sweep, **asked)
    assert (report.optimizer, report.axes[0].count("miss")) == ("muon", 0)
    with pytest.raises(HpxferError, match="the sweep trains with muon"):
        check("completep-moe", sweep=sweep, optimizer="muon[heads=split]")
    report = check("mup-moe", optimizer="muon", architecture="mlp", seeds=3, steps=1)
    assert report.passed
    assert "orthogonalizes matrices" in report.axes[0].limit.sentence  # type: ignore[union-attr]


def test_a_module_with_a_recipe_of_muon_is_refused() -> None:
    recipe = Recipe.from_hps("completep", BASE, {"lr": 0.04, "adamw_lr": 0.004}, optimizer="muon[heads=split]")
    with pytest.raises(HpxferError) as caught:
        check_module(refuses, refuses, refuses, recipe)
    assert str(caught.value) == (
        "a module must have a recipe of adam or sgd to be checked, got muon[heads=split]; its table is checked by "
        "hpxfer check --parameterization 'completep' --optimizer 'muon[heads=split]'"
    )


def refuses(*given: Any) -> Any:
    raise AssertionError("nothing is built")


@pytest.mark.parametrize(
    ("optimizer", "says"),
    [
        ("muon[scal=original]", "unknown option 'scal'; did you mean 'scale'"),
        ("muon[scale=keller]", "scale must be spectral | original | match_rms_adamw, got 'keller'"),
        ("muon", "parameterization mup: the source has no muon column"),
    ],
)
def test_what_muon_does_not_have_is_refused(optimizer: str, says: str) -> None:
    with pytest.raises(HpxferError) as caught:
        check("mup" if optimizer == "muon" else "sp", optimizer=optimizer)
    assert says in str(caught.value)
