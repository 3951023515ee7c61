"""Tables pass along their own axes, and what breaks them misses: theory as a test, with its negative twins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import torch

from hpxfer.coordinates.checking import check
from hpxfer.coordinates.mlp import against_limit
from hpxfer.coordinates.report import AxisReport, Judged
from hpxfer.errors import HpxferError
from hpxfer.scaling.evaluate import Parameterization, parameterization
from hpxfer.scaling.monomial import ONE, expert_ratio, expert_width, experts, width
from hpxfer.scaling.table import Column, Conventions, Row, Table
from hpxfer.scaling.tables import PARAMETERIZATIONS
from hpxfer.spec import SweepSpec

Twin = Callable[..., Parameterization]
# Four times the base in place of eight: the widest model is what takes time.
JOINT = (32.0, 64.0, 96.0, 128.0)


@pytest.fixture
def twin() -> Iterator[Twin]:
    """Yield a maker of parameterizations that differ from a table in one role's row or in tying, for one test."""
    made = ExitStack()

    def make(name: str, role: str = "", *, tied: bool | None = None, **row: Any) -> Parameterization:
        table = PARAMETERIZATIONS.get(name)

        def column(optimizer: Column) -> Any:
            def rows(conventions: Conventions) -> tuple[Row, ...]:
                found = table.rows[optimizer](conventions)
                return tuple(replace(old, **row) if old.role == role else old for old in found)

            return rows

        changed: Table = replace(
            table,
            name=f"{name}-twin",
            rows={optimizer: column(optimizer) for optimizer in table.rows},
            tied_experts=table.tied_experts if tied is None else tied,
            claims=None,
        )
        made.enter_context(PARAMETERIZATIONS.registered(changed))
        return parameterization(changed.name)

    with made:
        yield make


def checked(
    choice: Parameterization | str,
    axis: str,
    *,
    held_to: str | None = None,
    points: tuple[float, ...] | None = None,
    optimizer: Column = "adam",
) -> AxisReport:
    """Return a cheap check along one axis, held to the claims of the table `held_to`."""
    made = parameterization(choice) if isinstance(choice, str) else choice
    known = parameterization(held_to).claims(optimizer) if held_to else None
    report = check(made, axes=[axis], points=points, seeds=3, steps=2, optimizer=optimizer, claims=known)
    return report.axes[0]


def missed(found: AxisReport) -> dict[tuple[str, str], Judged]:
    return {(judged.role, judged.quantity): judged for judged in found.judged if judged.verdict == "miss"}


@pytest.mark.first
@pytest.mark.parametrize(
    ("name", "axis", "points"),
    [
        ("completep-moe", "width", None),
        ("completep-moe", "depth", None),
        ("completep-moe", "experts", None),
        ("completep-moe", "expert_ratio", None),
        ("completep", "depth", None),
        ("complete-mue", "granularity", None),
        ("complete-mue", "shared", None),
        ("complete-mue", "active", None),
        ("complete-mue", "dense_ratio", None),
        ("mup", "expert_width", None),
        ("mup-ii", "regime-ii", JOINT),
        ("mup-iii", "regime-iii", JOINT),
        ("mssp-i", "regime-i", None),
        ("mssp-ii", "regime-ii", JOINT),
        ("mssp-iii", "regime-iii", JOINT),
    ],
)
def test_a_table_passes_along_its_own_axis(name: str, axis: str, points: tuple[float, ...] | None) -> None:
    found = checked(name, axis, points=points)
    assert not missed(found), missed(found)
    assert found.passed
    assert found.warnings == ()
    assert found.count("ok") > 25


@pytest.mark.parametrize("name", ["mup-moe", "ntp"])
def test_a_table_passes_with_sgd(name: str) -> None:
    found = checked(name, "width", optimizer="sgd")
    assert found.passed, missed(found)


def test_sp_misses_on_width() -> None:
    found = missed(checked("sp", "width"))
    for role in ("attn_q", "attn_v", "expert_in", "expert_out", "router"):
        slope = found[role, "effective"].shown.slope
        assert slope is not None
        assert slope > 0.5
    assert ("stream", "change") in found


def test_a_router_left_at_sp_misses(twin: Twin) -> None:
    sp = twin("completep-moe", "router", init_std=width**-0.5, lr=ONE, eps=ONE)
    found = missed(checked(sp, "width", held_to="completep-moe"))
    assert set(found) == {("router", "activation"), ("router", "effective"), ("router", "decay")}
    slope = found["router", "effective"].shown.slope
    assert slope is not None
    assert slope > 0.5


def test_a_fan_in_init_of_the_experts_output_misses_along_expert_ratio(twin: Twin) -> None:
    fan_in = twin("completep-moe", "expert_out", init_std=width**-0.5 * expert_ratio**-0.5)
    found = missed(checked(fan_in, "expert_ratio", held_to="completep-moe"))
    assert {("expert_out", "activation"), ("expert_out", "aggregate init"), ("expert_in", "gradient")} <= set(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mup-i", "mssp-i"])
def test_regime_i_misses_on_the_path_of_regime_iii(name: str) -> None:
    found = checked(name, "regime-iii", points=JOINT)
    assert {("expert_out", "aggregate init"), ("expert_in", "gradient")} <= set(missed(found))
    assert any(f"use {name}ii" in warning for warning in found.warnings)


@pytest.mark.slow
def test_the_two_fixes_are_not_interchangeable(twin: Twin) -> None:
    """MSSP I.8: tying does not do in regime II what the larger init does, nor the other way round."""
    tying = checked(twin("mup-ii", tied=True), "regime-ii", held_to="mssp-ii", points=JOINT)
    assert ("expert_in", "gradient") in missed(tying)
    boost = twin("mup-iii", "expert_out", init_std=experts**0.5 * expert_width**-0.5)
    found = missed(checked(boost, "regime-iii", held_to="mssp-iii", points=JOINT))
    assert {("expert_out", "propagating"), ("expert_in", "gradient")} <= set(found)
    slope = found["expert_in", "gradient"].shown.slope
    assert slope == pytest.approx(-1.5, abs=0.15)  # sqrt(width) too large


def test_untied_experts_miss_what_regime_iii_ties_them_for() -> None:
    found = missed(checked("mup-iii", "regime-iii", held_to="mssp-iii", points=JOINT))
    assert {("expert_out", "aggregate init"), ("expert_out", "aggregate propagating")} <= set(found)


def test_the_shape_heuristic_overshoots_with_sgd_where_the_hidden_size_grows_alone() -> None:
    """LR fan-out/fan-in meets a gradient expert_width^-1/2, as W_out^T sums the width and not the hidden features."""
    found = missed(checked("mup", "expert_width", optimizer="sgd"))
    slope = found["expert_in", "effective"].shown.slope
    assert slope is not None
    assert 0.3 < slope < 0.65
    assert not missed(checked("mup", "expert_width"))


def test_a_missing_multiplier_misses(twin: Twin) -> None:
    plain = twin("completep-moe", "attn_out", forward=ONE)
    assert ("attn_out", "activation") in missed(checked(plain, "depth", held_to="completep-moe"))


@pytest.mark.slow
def test_a_zero_router_is_shown_as_zero() -> None:
    found = {(judged.role, judged.quantity): judged for judged in checked("mssp-i", "regime-i").judged}
    assert found["router", "propagating"].verdict == "zero"
    random = {
        (judged.role, judged.quantity): judged for judged in checked("mup-i", "regime-i", held_to="mssp-i").judged
    }
    assert random["router", "propagating"].verdict == "miss"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "conventions", "axis", "points"),
    [
        ("mssp-ii", {"readout_init": "zero"}, "regime-ii", JOINT),
        ("mssp-iii", {"readout_init": "zero"}, "regime-iii", JOINT),
        ("mup-moe", {"readout_init": "zero", "router_init": "zero"}, "width", None),
        ("completep-moe", {"depth_alpha": 0.5}, "depth", None),
        ("completep-moe", {"depth_alpha": 0.5, "router_init_exponent": "inf"}, "depth", None),
        ("completep-moe", {"embeddings": "tied"}, "width", None),
        ("completep-moe", {"expert_out_init": "fan_in"}, "expert_ratio", None),
    ],
)
def test_a_table_passes_under_its_conventions(
    name: str, conventions: Conventions, axis: str, points: tuple[float, ...] | None
) -> None:
    found = checked(parameterization(name, conventions), axis, points=points)
    assert not missed(found), missed(found)
    assert found.passed
    assert found.warnings == ()


@pytest.mark.slow
def test_nothing_learns_behind_a_zero_readout_before_it_has_moved() -> None:
    zero = parameterization("mup-moe", {"readout_init": "zero"})
    (axis,) = check(zero, axes=["width"], seeds=2, steps=2).axes
    start = {
        fitted.role: fitted
        for fitted in axis.fits
        if fitted.quantity == "gradient" and (fitted.layer, fitted.step) == (None, 0)
    }
    assert {role for role, fitted in start.items() if fitted.verdict == "zero"} == start.keys() - {"readout"}
    random = check("mup-moe", axes=["width"], seeds=2, steps=2, claims=zero.claims("adam")).axes[0]
    assert {("expert_in", "gradient"), ("readout", "activation"), ("readout", "propagating")} <= set(missed(random))


def test_another_exponent_of_depth_misses() -> None:
    half = parameterization("completep-moe", {"depth_alpha": 0.5}).claims("adam")
    found = missed(check("completep-moe", axes=["depth"], seeds=2, steps=1, claims=half).axes[0])
    assert {("attn_out", "activation"), ("router", "effective"), ("expert_in", "effective")} <= set(found)


def test_a_table_without_claims_passes_nothing(twin: Twin) -> None:
    (found,) = check(twin("mup"), axes=["experts"], seeds=3, steps=2, claims=()).axes
    assert found.count("no prediction") + found.count("zero") == len(found.judged)
    assert not found.passed


def test_a_check_is_a_function_of_what_it_is_asked() -> None:
    first, second = (check("completep", axes=["depth"], points=(4, 8, 12, 16), seeds=2, steps=1) for _ in range(2))
    assert first == second
    assert first.axes[0].fits


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    check("completep", axes=["dense_ratio"], seeds=1, steps=1)
    assert torch.get_num_threads() == before


def test_a_sweep_is_checked_with_its_model(smoke: SweepSpec) -> None:
    report = check("completep-moe", sweep=smoke, points=(32, 64, 96, 128), seeds=2, steps=1)
    (axis,) = report.axes
    assert axis.shapes == ("w32 d2 E4A1 h32", "w64 d2 E4A1 h64", "w96 d2 E4A1 h96", "w128 d2 E4A1 h128")
    assert any("scans lr" in warning for warning in axis.warnings)
    assert report.optimizer == "adam"


@pytest.mark.slow
def test_mlp_is_checked_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    # A right table agrees with its limit with a quarter of the seeds too, as in test_check_limit.py.
    monkeypatch.setattr(against_limit, "SEEDS", dict.fromkeys(against_limit.SEEDS, 48))
    monkeypatch.setattr(against_limit, "SITES", 2048)
    report = check("mssp-ii", architecture="mlp", optimizer="sgd", seeds=4, steps=2)
    assert report.architecture == "mlp"
    assert report.passed, missed(report.axes[0])
    other = check("mup-i", architecture="mlp", optimizer="sgd", axes=["regime-iii"], seeds=4, steps=2)
    assert not other.passed


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"steps": 0}, "must be from 1 to"),
        ({"seeds": 0}, "must be from 1 to"),
        ({"architecture": "block"}, "unknown architecture 'block'"),
        ({"points": (32.0, 64.0)}, "must be values of one axis, got width, depth, experts, expert_ratio"),
        ({"optimizer": "sgd"}, "has no sgd column"),
        ({"axes": ["width"], "steps": 100}, "must be below the 100 steps"),
        ({"axes": ["width"], "architecture": "mlp"}, "along a regime"),
    ],
)
def test_bad_questions_are_refused(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(HpxferError, match=says):
        check("completep-moe", **asked)


def test_what_a_sweep_excludes_is_refused(smoke: SweepSpec) -> None:
    with pytest.raises(HpxferError, match="the sweep trains with adamw"):
        check("mup-moe", sweep=smoke, optimizer="sgd")
    with pytest.raises(HpxferError, match="the model of the sweep is of the family gpt"):
        check("mup-i", sweep=smoke, architecture="mlp")
    with pytest.raises(HpxferError, match="unknown parameterization 'mupp'"):
        check("mupp")


def test_init_of_the_experts_output_by_fan_in_misses_what_the_source_claims_and_the_other_way_round() -> None:
    fan_in, source = parameterization("completep-moe", {"expert_out_init": "fan_in"}), parameterization("completep-moe")
    for trained, held_to in ((fan_in, source), (source, fan_in)):
        found = check(trained, axes=["expert_ratio"], seeds=2, steps=1, claims=held_to.claims("adam")).axes[0]
        assert {("expert_out", "activation"), ("expert_out", "aggregate init")} <= set(missed(found))
