"""Measures of the family mlp in a check, against numbers that are computed in another way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mlp_runs import ZERO_READOUT

from hpxfer.coordinates.checking import check
from hpxfer.coordinates.mlp import Options
from hpxfer.coordinates.report import AxisReport
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.monomial import width
from hpxfer.scaling.tables import PARAMETERIZATIONS

POINTS, STEPS = (16, 32, 64, 128), 3


def axis_of(name: str, options: Options, **more: Any) -> AxisReport:
    given = {"seeds": 3, "steps": STEPS, "points": POINTS, "optimizer": "sgd", **more}
    (axis,) = check(
        parameterization(name, given.pop("conventions", None)), architecture="mlp", options=options, **given
    ).axes
    return axis


def by_step(axis: AxisReport, measure: str, role: str = "router") -> dict[int, tuple[float, ...]]:
    return {found.step: found.values for found in axis.measures if (found.measure, found.role) == (measure, role)}


def test_a_router_that_starts_at_zero_is_undecided_and_its_update_has_no_ratio_to_nothing() -> None:
    found = axis_of("mssp-i", Options(), conventions=ZERO_READOUT)
    assert by_step(found, "entropy_of_all")[0] == pytest.approx([1.0] * 4)
    assert by_step(found, "concentration_high")[0] == pytest.approx([1.0] * 4)
    assert by_step(found, "logit_rms")[0] == (0.0, 0.0, 0.0, 0.0)
    assert 1 not in by_step(found, "update / now")  # nothing but the readout has moved, and zero over zero is no ratio
    first = found.measures
    assert not [each for each in first if each.measure.startswith("margin")]  # all experts are active


def test_losses_and_accuracy_are_those_of_the_probe() -> None:
    found = axis_of("mup-i", Options(samples=4))
    losses = by_step(found, "loss", "probe")
    assert np.all(np.array(losses[0]) > np.array(losses[STEPS]))
    assert all(0 <= value <= 1 for values in by_step(found, "accuracy", "probe").values() for value in values)


def test_top_k_adds_margins_ties_and_changed_experts() -> None:
    found = axis_of("mup-moe", Options(expert_matrices=1, gate="softmax", num_active=2))
    assert by_step(found, "tied_share")[0] == (0.0, 0.0, 0.0, 0.0)
    assert set(by_step(found, "changed_share")) == {1, 2, 3}
    assert all(value > 0 for value in by_step(found, "margin_median")[0])
    low, median = (by_step(found, name)[0] for name in ("margin_low", "margin_median"))
    assert all(a <= b for a, b in zip(low, median, strict=True))


def test_updates_over_the_start_fall_with_the_nominal_std() -> None:
    """A zero start has no norm of its own: the one that the table would draw takes its place."""
    found = axis_of("mup-moe", Options(expert_matrices=1, gate="softmax"), conventions={"router_init": "zero"})
    update, over = by_step(found, "update"), by_step(found, "update / start")
    experts = 4
    for step in (2, 3):
        ratio = np.array(update[step]) / np.array(over[step])
        norms = [np.sqrt(size * experts) / size for size in POINTS]  # std 1/N, Why Routers Freeze, Table 1
        assert ratio == pytest.approx(norms, rel=1e-5)


def test_an_eps_that_does_not_follow_the_gradients_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    def misses() -> set[tuple[str, str]]:
        found = axis_of("mup-i", Options(), optimizer="adam", points=(32, 64, 128, 256), seeds=8, steps=3)
        return {(line.role, line.quantity) for line in found.fits if line.verdict == "miss"}

    assert not {quantity for _, quantity in misses() if quantity == "gradient / eps"}
    table = PARAMETERIZATIONS.get("mup-i")
    rows = table.rows["adam"]

    def wrong(conventions: Any) -> Any:
        return tuple(replace(row, eps=row.eps * width) if row.role == "expert_in" else row for row in rows(conventions))

    monkeypatch.setitem(PARAMETERIZATIONS._rows, "mup-i", replace(table, rows={**table.rows, "adam": wrong}))
    assert ("expert_in", "gradient / eps") in misses()
