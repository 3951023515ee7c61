"""Checks of sweeps of the family mlp: along a table's regime, in stacks, and what they refuse or do not predict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpxfer.coordinates.checking import check
from hpxfer.coordinates.mlp import Options
from hpxfer.coordinates.report import AxisReport
from hpxfer.errors import HpxferError
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.tables import PARAMETERIZATIONS
from hpxfer.spec import parse_sweep

SWEEP = """\
name: mlp
model:
  family: mlp
  base: {{width: 32, depth: {depth}, num_experts: 16, num_active: 16, expert_width: 4}}
  mlp: {{activation: linear, residual: {residual}}}
data: {{source: "builtin:teacher/network"}}
training: {{batch_samples: 32, steps: 20, validation_samples: 64, optimizer: sgd}}
parameterizations: [mssp-ii, mup-ii]
axes:
  width:
    shapes:
      - {{width: 64, num_experts: 32, num_active: 32, expert_width: 4}}
      - {{width: 128, num_experts: 64, num_active: 64, expert_width: 4}}
      - {{width: 256, num_experts: 128, num_active: 128, expert_width: 4}}
grid: {{lr: [{lr}]}}
"""
ZERO_READOUT = {"readout_init": "zero"}


def report_on(name: str, *, depth: int = 1, residual: str = "false", lr: float = 4.0, zero: bool = True) -> AxisReport:
    spec = parse_sweep(SWEEP.format(depth=depth, residual=residual, lr=lr), "a test")
    choice = parameterization(name, ZERO_READOUT if zero else None)
    (axis,) = check(choice, sweep=spec, seeds=6, steps=2).axes
    return axis


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "residual"), [(1, "false"), (2, "true")])
def test_mssp_passes_in_its_regime(depth: int, residual: str) -> None:
    found = report_on("mssp-ii", depth=depth, residual=residual, lr=4.0 * 4 ** (depth - 1))
    assert found.scale_name == "width"
    assert found.passed, [judged for judged in found.judged if judged.verdict == "miss"]
    assert {fit.layer for fit in found.fits} == ({None} if depth == 1 else {None, *range(depth)})
    (init,) = (judged for judged in found.judged if (judged.role, judged.quantity) == ("expert_out", "h3: A1"))
    assert init.verdict == "ok"


def test_a_sum_of_independent_experts_fades_as_mup_says() -> None:
    found = report_on("mup-ii", zero=False)
    (start,) = (fit for fit in found.fits if (fit.role, fit.quantity, fit.step) == ("expert_out", "h3: A1", 0))
    assert start.slope == pytest.approx(-0.5, abs=0.1)
    assert start.verdict == "ok"


@pytest.mark.first
@pytest.mark.parametrize(
    ("trained", "claimed", "missed"),
    [("mup-ii", "mssp-ii", ("h3: A1", 0)), ("mssp-ii", "mup-ii", ("h3: A1", 0)), ("mup-iii", "mssp-ii", ("h3: A1", 0))],
)
def test_a_table_held_to_the_claims_of_another_misses(
    trained: str, claimed: str, missed: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that are trained are those of one table, and the claims are those of the other."""
    table = PARAMETERIZATIONS.get(trained)
    monkeypatch.setitem(
        PARAMETERIZATIONS._rows,
        claimed,
        replace(PARAMETERIZATIONS.get(claimed), rows=table.rows, tied_experts=table.tied_experts),
    )
    found = report_on(claimed, zero=claimed.startswith("mssp"))
    misses = {(fit.quantity, fit.step) for fit in found.fits if fit.verdict == "miss"}
    assert missed in misses
    assert not found.passed
    assert len({step for _, step in misses}) >= 2  # and not at the start alone


def test_a_stack_from_a_random_readout_has_no_predictions() -> None:
    found = report_on("mup-ii", depth=2, zero=False, lr=16.0)
    assert any("readout_init=zero has claims on stacks" in warning for warning in found.warnings)
    assert not found.count("ok")


@pytest.mark.parametrize(
    ("name", "says"), [("mssp-ii", None), ("mup-ii", "no source derives it of mup-ii[readout_init=zero]")]
)
def test_a_multiplier_of_zero_is_a_zero_readout(name: str, says: str | None) -> None:
    """As most published sweeps write it. The claims on a random readout would call a right table wrong."""
    text = SWEEP.format(depth=1, residual="false", lr=4.0) + "hps: {multipliers: {readout.init_mult: 0}}\n"
    (found,) = check(parameterization(name), sweep=parse_sweep(text, "a test"), seeds=6, steps=2).axes
    assert not found.count("miss")
    if says is None:
        assert found.passed
    else:
        assert any(says in warning for warning in found.warnings)


def test_a_zero_router_that_no_source_treats_has_no_predictions() -> None:
    text = SWEEP.format(depth=1, residual="false", lr=4.0) + "hps: {multipliers: {router.init_mult: 0}}\n"
    (found,) = check(parameterization("mssp-ii"), sweep=parse_sweep(text, "a test"), seeds=2, steps=2).axes
    assert any(
        "starts the router at zero, which the source of mssp-ii does not treat" in each for each in found.warnings
    )


def test_updates_that_float32_rounds_are_refused() -> None:
    with pytest.raises(HpxferError, match="which float32 rounds; take a larger lr"):
        report_on("mssp-ii", lr=1e-5)


def test_options_are_of_the_checks_own_model() -> None:
    with pytest.raises(HpxferError, match="give --architecture mlp and no sweep"):
        check("mup-i", options=Options(activation="relu"))
    found = check("mup-i", architecture="mlp", options=Options(gate="softmax"), seeds=2, steps=1).axes[0]
    assert any("nothing is predicted" in warning for warning in found.warnings)
