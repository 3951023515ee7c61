"""What a check is asked: the shapes along every table's axes, a user's sweep, how large it may be, and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fixture_types import Patch
from sweep_text import edited

from hpxfer.coordinates import cases, transformer
from hpxfer.coordinates.cases import mlp_path, own_axes, own_case, sweep_axes, sweep_case
from hpxfer.coordinates.checking import check
from hpxfer.errors import HpxferError
from hpxfer.scaling.evaluate import parameterization, ratios
from hpxfer.scaling.regimes import follows
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column
from hpxfer.scaling.tables import PARAMETERIZATIONS
from hpxfer.spec import SweepSpec, parse_sweep
from hpxfer.trial import Trial

CASES: list[tuple[str, Column, str]] = [
    (table.name, optimizer, axis)
    for table in PARAMETERIZATIONS.rows()
    for optimizer in table.rows
    for axis in own_axes(parameterization(table.name), optimizer)
]


def shapes(name: str, axis: str, points: tuple[float, ...] | None = None, optimizer: Column = "adam") -> list[Shape]:
    dense = name == "completep"
    case = own_case(parameterization(name), optimizer, axis, points, dense=dense)
    return [point.shape for point in case.axis.points]


@pytest.mark.parametrize(("name", "optimizer", "axis"), CASES)
def test_every_table_has_a_path_along_each_of_its_axes(name: str, optimizer: Column, axis: str) -> None:
    found = shapes(name, axis, optimizer=optimizer)
    assert len(found) >= 4
    assert len(set(found)) == len(found)
    base = found[0]
    if axis.startswith("regime"):
        assert all(follows(axis.removeprefix("regime-").upper(), ratios(base, shape)) for shape in found)
    elif axis != "groups":
        moving = {key for key, value in ratios(base, found[-1]).items() if value != 1}
        assert moving, f"nothing moves along {axis}"


def test_axes_are_those_of_the_model_s_shape() -> None:
    def axes(name: str, optimizer: Column = "adam") -> tuple[str, ...]:
        return own_axes(parameterization(name), optimizer)

    assert axes("completep-moe") == ("width", "depth", "experts", "expert_ratio")
    assert axes("mssp-ii") == ("regime-ii", "depth")
    assert axes("mssp-ii", "sgd") == ("regime-ii",)
    assert axes("ntp", "sgd") == ("width",)
    assert "batch" not in axes("complete-mue")
    assert own_axes(parameterization("completep-moe"), "adam", "mlp") == ("regime-i",)
    assert own_axes(parameterization("mup-iii"), "sgd", "mlp") == ("regime-iii",)


def test_the_model_is_the_one_that_the_table_is_for() -> None:
    """By what the table says, not by its name."""
    with PARAMETERIZATIONS.registered(replace(PARAMETERIZATIONS.get("complete-mue"), name="my-own")):
        tied_to = {"embeddings": "tied", "readout": "forward"}
        choices = (parameterization("my-own"), parameterization("mup"), parameterization("mup", tied_to))
        own, sigmoid, tied = (own_case(each, "adam", "width", None, dense=False).spec.model for each in choices)
    assert (own.gate, sigmoid.gate) == ("normalized_sigmoid", "sigmoid")
    assert (own.tied_embeddings, tied.tied_embeddings) == (False, True)


def test_points_replace_the_default_and_the_base_is_among_them() -> None:
    experts = shapes("completep-moe", "experts")
    assert [(shape.num_experts, shape.kappa) for shape in experts] == [(4 * 2**k, 1.0) for k in range(4)]
    assert [shape.width for shape in shapes("completep-moe", "width", (64.0, 96.0, 128.0))] == [32, 64, 96, 128]
    third = shapes("mup-iii", "regime-iii", (32.0, 64.0, 96.0, 128.0))
    assert [(shape.width, shape.expert_width, shape.num_experts, shape.num_active) for shape in third] == [
        (32 * k, 32 * k, 4 * k, 4 * k) for k in (1, 2, 3, 4)
    ]
    assert [shape.dense_ratio for shape in shapes("mup", "dense_ratio", (0.5, 1.0, 2.0, 4.0))] == [0.5, 1, 2, 4]
    case = own_case(parameterization("complete-mue"), "adam", "shared", None, dense=False)
    assert case.axis.scale_name == "num_shared"
    assert [point.scale for point in case.axis.points] == [1, 2, 4, 8]
    assert case.axis.points[0].shape == case.spec.base_shape
    assert replace(case.axis.points[-1].shape, num_shared=1) == case.spec.base_shape


@pytest.mark.parametrize(
    ("name", "axis", "points", "says"),
    [
        ("completep-moe", "batch", None, "no slope along it"),
        ("completep-moe", "widht", None, "did you mean 'width'?"),
        ("completep", "experts", None, "dense models; legal: width"),
        ("completep-moe", "width", (32.0, 64.0), "at least 4 shapes"),
        ("completep-moe", "width", (33.0, 64.0, 128.0, 256.0), "--axis width: width must be a multiple of head_dim"),
        ("completep-moe", "depth", (0.5, 4.0, 8.0, 16.0), "whole number"),
        ("mup-ii", "regime-ii", (32.0, 40.0, 64.0, 128.0), "multiple of"),
        ("mup-ii", "regime-ii", (32.0, 36.0, 64.0, 128.0), "num_experts must be a whole number, got 4.5"),
    ],
)
def test_what_no_model_can_follow_is_refused(name: str, axis: str, points: tuple[float, ...] | None, says: str) -> None:
    with pytest.raises(HpxferError, match="(?s)" + says.replace("?", r"\?")):
        shapes(name, axis, points)


def test_a_sweep_brings_its_own_model(smoke: SweepSpec) -> None:
    assert sweep_axes(smoke) == ("width",)
    case = sweep_case(smoke, "width", (32.0, 64.0, 96.0, 128.0))
    assert [point.shape.width for point in case.axis.points] == [32, 64, 96, 128]
    assert case.axis.points[0].shape == smoke.base_shape
    assert "names no base value: checked at 0.015625" in case.notes[0]  # the upper of the two in the middle
    named = smoke.model_copy(update={"hps": smoke.hps.model_copy(update={"lr": 0.5})})
    case = sweep_case(named, "depth", None)
    assert (case.hps.lr, case.notes) == (0.5, ())
    assert [point.shape.depth for point in case.axis.points] == [2, 4, 8, 16]
    with pytest.raises(HpxferError, match="at least 4 shapes, the base among them, got 2"):
        sweep_case(smoke, "width", None)


def test_mlp_has_paths_of_its_own() -> None:
    for axis in ("regime-i", "regime-ii", "regime-iii"):
        found = mlp_path(axis, None)
        assert all(follows(axis.removeprefix("regime-").upper(), ratios(found[0], shape)) for shape in found)
    assert [shape.width for shape in mlp_path("regime-i", (512.0, 64.0, 128.0, 256.0))] == [64, 128, 256, 512]
    with pytest.raises(HpxferError, match="along a regime, got 'width'"):
        mlp_path("width", None)
    with pytest.raises(HpxferError, match="at least 4 widths, got 1"):
        mlp_path("regime-i", (64.0,))
    with pytest.raises(HpxferError, match="width must be a whole number"):
        mlp_path("regime-i", (64.5, 65.0, 66.0, 67.0))


MLP = {"parameterization": "mssp-i", "architecture": "mlp"}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"seeds": 10**9, "axes": ["width"]}, "--seeds: must be from 1 to 1000, got 1000000000"),
        ({"seeds": 0}, "--seeds: must be from 1 to 1000, got 0"),
        ({"steps": 10**9, "axes": ["width"]}, "--steps: must be from 1 to 1000000, got 1000000000"),
        ({"steps": -1}, "--steps: must be from 1 to 1000000, got -1"),
        ({"steps": 100, "axes": ["width"]}, "must be below the 100 steps"),
        ({"points": range(1, 3000), "axes": ["width"]}, "--points: must be at most 100 values, got 2999"),
        ({"points": (32, 64, 128, 10**6), "axes": ["width"]}, "--points: w1000000 d2 E4A4 h1000000 with 6 s"),
        ({"points": (32, 64, 128, 256), "seeds": 1000, "axes": ["width"]}, "w128 d2 E4A4 h128 with 1000 "),
        ({**MLP, "points": (32, 64, 128, 10**6), "axes": ["regime-i"]}, "GiB, got 16 GiB"),
        ({"points": (32.0, 64.0)}, "must be values of one axis, got width, depth, experts, expert_ratio"),
        ({"architecture": "block"}, "unknown architecture 'block'"),
        ({"parameterization": "mup-i", "architecture": "dit"}, "got none for patch_in, time_in, time_out, label, "),
        ({"axes": ["batch"], "architecture": "dit"}, "no slope along it"),
        ({"optimizer": "sgd"}, "has no sgd column"),
        ({"axes": ["width"], "architecture": "mlp"}, "along a regime"),
        ({"parameterization": "mupp"}, "unknown parameterization 'mupp'"),
    ],
)  # fmt: skip
def test_bad_questions_are_refused_before_anything_trains(asked: dict[str, Any], says: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(cases, "host_bytes", lambda: 16 * 2**30)
    with pytest.raises(HpxferError) as caught:
        check(**{"parameterization": "completep-moe", **asked})
    assert says in str(caught.value)


def test_what_a_sweep_excludes_is_refused(smoke: SweepSpec) -> None:
    with pytest.raises(HpxferError, match="the sweep trains with adamw"):
        check("mup-moe", sweep=smoke, optimizer="sgd")
    with pytest.raises(HpxferError, match="the model of the sweep is of the family gpt"):
        check("mup-i", sweep=smoke, architecture="mlp")


class Seen(Exception):
    """Ends a check before anything is trained."""


@pytest.mark.parametrize(
    ("table", "ties", "expected"),
    [("mssp-i", None, "random"), ("mup-i", None, "index"), ("mssp-i", "index", "index")],
)
def test_a_zero_router_chooses_among_equal_experts_as_a_sweep_does(
    monkeypatch: Patch, table: str, ties: str | None, expected: str
) -> None:
    found: list[Trial] = []

    def observe(trials: list[Trial], **_: Any) -> None:
        found.extend(trials)
        raise Seen

    monkeypatch.setattr(transformer, "observe", observe)
    monkeypatch.setattr(cases, "host_bytes", lambda: None)  # where the memory is unknown nothing is refused for it
    given = [] if ties is None else [("context: 64", f"context: 64\n  ties: {ties}")]
    sweep = parse_sweep(edited(("[32, 64]", "[32, 64, 128, 256]"), *given))
    with pytest.raises(Seen):
        check(table, sweep=sweep)
    assert {trial.setting.ties for trial in found} == {expected}
