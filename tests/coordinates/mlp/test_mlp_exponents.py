"""The exponents that papers give for the family mlp, and runs that must leave them: of its own samples, and of sweeps.

MSSP's tables (3.5 to 3.7), and what Why Routers Freeze measures and proves of routers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from block_claims import SETTLES
from fixture_types import Patch
from mlp_runs import ZERO_READOUT, line, lines_of, misses, path_of, report, slope
from paper_claims import Claim, predict

from hpxfer.coordinates.checking import check
from hpxfer.coordinates.derive import SOURCE, STACKED
from hpxfer.coordinates.measure import Fit, fit
from hpxfer.coordinates.mlp import Options, Training, observe
from hpxfer.coordinates.report import AxisReport
from hpxfer.errors import HpxferError
from hpxfer.scaling.evaluate import Parameterization, parameterization, ratios
from hpxfer.scaling.monomial import ONE, experts, width
from hpxfer.scaling.table import Conventions, Row
from hpxfer.scaling.tables import PARAMETERIZATIONS
from hpxfer.spec import parse_sweep

# Pieces by two updates or more, and single numbers: the source's own 0.25, and the interval may be wider than the rule.
NOISY = ("cross", "h3: D", "dW3 dW4", "A5.2", "A6.2", "E.", "dQ")
ONE_NUMBER = (("readout", "init"), ("readout", "effective0"))
NOISY_TOLERANCE = 0.25
# Pieces by the random readout average over samples.
EIGHT_SAMPLES: dict[str, Any] = {"options": Options(samples=8), "training": Training(lr=4.0, eps=0.1)}


def is_noisy(found: Fit) -> bool:
    return any(name in found.quantity for name in NOISY) or (found.role, found.quantity) in ONE_NUMBER


def right(lines: tuple[Fit, ...], *, at_least: int) -> None:
    """Assert that nothing misses, that all but the noisy pieces are decided, and that `at_least` lines are ok."""
    assert not misses(lines), report(misses(lines))
    unclear = [found for found in lines if found.verdict == "unclear"]
    undecided = [
        found
        for found in unclear
        if not is_noisy(found) or found.slope is None or abs(found.slope - (found.predicted or 0.0)) > NOISY_TOLERANCE
    ]
    assert not undecided, report(undecided)
    assert sum(found.verdict == "ok" for found in lines) >= at_least


@pytest.mark.slow
def test_mup_ii() -> None:
    lines = lines_of("mup-ii", "sgd", widths=(), num_seeds=16, **EIGHT_SAMPLES)
    right(lines, at_least=140)
    assert abs(slope(lines, "expert_in", "df/dh1: E.2", 1) + 3) < 0.25  # not the -5/2 of the print


@pytest.mark.slow
def test_mup_iii() -> None:
    """Pieces only: the sums are between two exponents at these widths (MSSP Q.6)."""
    lines = lines_of("mup-iii", "sgd", num_seeds=16, **EIGHT_SAMPLES)
    right(lines, at_least=80)
    assert abs(slope(lines, "expert_out", "cross", 1) + 0.5) < 0.15  # not the -3/2 of the print
    assert line(lines, "expert_out", "h3", 1).verdict == "no prediction"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "at_least"), [("mssp-i", 75), ("mssp-ii", 95), ("mssp-iii", 85)])
def test_mssp_under_sgd(name: str, at_least: int) -> None:
    # From one draw of all experts, a narrow model that happens to map one of four samples far decides a seed.
    more: dict[str, Any] = {"options": Options(samples=8), "training": Training(lr=2.0), "num_seeds": 16}
    lines = lines_of(name, "sgd", ZERO_READOUT, widths=(), **(more if name == "mssp-iii" else {}))
    right(lines, at_least=at_least)
    for quantity in ("h3: A1", "h3: A2.1", "h3: A2.2", "h3: A3"):
        assert line(lines, "expert_out", quantity, 2).verdict == "ok", report(lines)
    assert line(lines, "expert_in", "effective", 1).verdict == "zero"  # nothing but the readout has moved


@pytest.mark.slow
@pytest.mark.parametrize(("name", "at_least"), [("mssp-ii", 150), ("mssp-iii", 145)])
def test_mssp_under_adam(name: str, at_least: int) -> None:
    seeds = 10 if name == "mssp-iii" else 12
    lines = lines_of(name, "adam", ZERO_READOUT, widths=(), num_seeds=seeds, steps=3)
    right(lines, at_least=at_least)
    assert abs(slope(lines, "expert_out", "gradient", 3) + 2) < 0.15
    expected = 0.5 if name == "mssp-ii" else 0.0  # per expert; the sum over them stays
    assert abs(slope(lines, "expert_out", "propagating", 3) - expected) < 0.15


@pytest.mark.first
@pytest.mark.parametrize("name", ["mup-i", "mssp-ii"])
def test_random_readout(name: str) -> None:
    lines = lines_of(name, "sgd", steps=2)
    assert not misses(lines), report(misses(lines))
    assert sum(found.verdict == "ok" for found in lines) >= 70


def test_nonlinear_experts_keep_the_exponents() -> None:
    lines = lines_of("mssp-ii", "sgd", ZERO_READOUT, options=Options(activation="gelu"), num_seeds=32)
    assert not misses(lines), report(misses(lines))
    assert line(lines, "expert_out", "h3: A3", 2).verdict == "ok"
    assert abs(slope(lines, "expert_out", "propagating", 2) - 0.5) < 0.15


@pytest.mark.slow
def test_tied_experts_are_no_remedy_in_ii_and_a_boost_is_none_in_iii(monkeypatch: Patch) -> None:
    """MSSP I.8. The boost is the remedy of regime II: experts' outputs start larger by experts^1/2."""

    def boosted(conventions: Conventions) -> tuple[Row, ...]:
        found = tied.rows["sgd"](conventions)
        boost = {"expert_out": experts**0.5}
        return tuple(replace(row, init_std=row.init_std * boost.get(row.role, ONE)) for row in found)

    untied, tied = (PARAMETERIZATIONS.get(name) for name in ("mssp-ii", "mssp-iii"))
    monkeypatch.setitem(PARAMETERIZATIONS._rows, "mssp-ii", replace(untied, tied_experts=True))
    monkeypatch.setitem(PARAMETERIZATIONS._rows, "mssp-iii", replace(tied, tied_experts=False, rows={"sgd": boosted}))
    lines = lines_of("mssp-ii", "sgd", ZERO_READOUT, num_seeds=8)
    assert line(lines, "expert_out", "h3: A1", 0).verdict == "miss"
    assert slope(lines, "expert_out", "h3: A1", 0) > 0.3
    assert slope(lines, "expert_out", "h3: A2.1", 2) > 0.3
    lines = lines_of("mssp-iii", "sgd", ZERO_READOUT, num_seeds=8)
    assert line(lines, "expert_in", "gradient", 1).verdict == "miss"
    assert abs(slope(lines, "expert_in", "gradient", 1) + 1.5) < 0.15  # width^1/2 too large


@pytest.mark.first
@pytest.mark.parametrize(
    ("name", "along"), [("mssp-i", "mssp-iii"), ("mssp-ii", "mssp-iii"), ("mssp-iii", "mssp-ii"), ("mup-i", "mup-ii")]
)
def test_the_wrong_regime_misses(name: str, along: str) -> None:
    zero = ZERO_READOUT if name.startswith("mssp") else None
    lines = lines_of(name, "sgd", zero, along=along, num_seeds=8)
    assert len(misses(lines)) >= 10, report(lines)


@pytest.mark.first
@pytest.mark.parametrize(("optimizer", "along"), [("sgd", "mup-i"), ("adam", "mup-ii")])
def test_sp_is_a_control_that_misses(optimizer: str, along: str) -> None:
    lines = lines_of("sp", optimizer, along=along, num_seeds=8, steps=1)
    missed = {(found.role, found.quantity) for found in misses(lines)}
    assert {("router", "effective"), ("expert_in", "effective"), ("router", "activation")} <= missed, report(lines)


# Routers. Propositions and remarks are those of Why Routers Freeze; what it leaves to the reader says `derived`.

WIDE = (64, 128, 256, 512)  # where narrower models have not come to their exponents
SOFTMAX = Options(expert_matrices=1, gate="normalized_softmax")
SIGMOID = Options(expert_matrices=1)
FAITHFUL = Training(lr=0.1, eps=0.1)
TINY_EPS = Training(lr=0.1, eps=1e-8)
ZERO_BOTH = {"router_init": "zero", "readout_init": "zero"}


def run(options: Options, optimizer: str, conventions: Any = None, **more: Any) -> tuple[Fit, ...]:
    return lines_of("mup-moe", optimizer, conventions, options=options, **more)


def divergence(optimizer: str, lr_exponent: float) -> tuple[Claim, ...]:
    """Return how the router of `sp` diverges in a single step for an LR ~ width^lr_exponent (Prop. 2, derived)."""
    first = lr_exponent - (0.5 if optimizer == "sgd" else 0.0)
    sizes = {
        ("embedding", "change"): first,
        ("router", "propagating"): first + 0.5,
        ("router", "effective"): lr_exponent + 1,
        ("router", "change"): lr_exponent + 1,
    }
    return tuple(
        Claim(quantity=quantity, role=role, size=width**power, source="Prop. 2", first=1, last=1)
        for (role, quantity), power in sizes.items()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "lr_exponent", "effective", "num_active"), [("sgd", 0.5, 1.5, 4), ("adam", 0.0, 1.0, 2)]
)
def test_sp_diverges_in_one_step(optimizer: Any, lr_exponent: float, effective: float, num_active: int) -> None:
    """Prop. 2, Remarks 17, 18: features move by order 1, logits by width^1/2 through W0, and by more through dW."""
    choice, path = parameterization("sp", {"lr_exponent": -lr_exponent}), path_of("sp", WIDE, num_active)
    training = Training(lr=0.1, eps=1e-8)
    found = observe(choice, optimizer, path, seeds=range(24), steps=1, options=SOFTMAX, training=training)
    at = [ratios(path[0], shape) for shape in path]
    claims = divergence(optimizer, lr_exponent)
    lines = fit(found, predict(claims, [float(width) for width in WIDE], at))
    assert not misses(lines), report(misses(lines))
    assert line(lines, "embedding", "change", 1).verdict == "ok"
    assert abs(slope(lines, "router", "propagating", 1) - 0.5) < 0.15
    assert abs(slope(lines, "router", "effective", 1) - effective) < 0.15
    assert abs(slope(lines, "router", "change", 1) - effective) < 0.15


def test_a_stable_lr_under_sp_is_lazy() -> None:
    """Derived: with an LR ~ 1/width the logits stay, and features move by width^-3/2 (SGD)."""
    lines = lines_of("sp", "sgd", {"lr_exponent": 1.0}, options=SOFTMAX, steps=1)
    assert abs(slope(lines, "embedding", "change", 1) + 1.5) < 0.15
    assert abs(slope(lines, "router", "effective", 1)) < 0.15


@pytest.mark.first
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_soft_softmax_freezes(optimizer: str) -> None:
    """Cor. 21, Remark 25: the router's gradient is the fluctuation width^-1/2, and so is what it learns."""
    lines = run(SOFTMAX, optimizer, steps=5, training=FAITHFUL if optimizer == "adam" else Training(lr=1.0, eps=1.0))
    assert not misses(lines), report(misses(lines))
    for step in (1, 3, 5):
        assert abs(slope(lines, "router", "effective", step) + 0.5) < 0.15
        assert abs(slope(lines, "router", "weight change", step) + 1.5) < 0.15
    assert abs(slope(lines, "router", "dL/dpsi", 0) + 0.5) < 0.15


def test_zero_router_and_readout_freeze_as_well() -> None:
    """Remark 26: updates of the router's weights ~ width^-3/2; exactly none before the readout has moved."""
    lines = run(SOFTMAX, "sgd", ZERO_BOTH, steps=5, num_seeds=24)
    assert not misses(lines), report(misses(lines))
    assert line(lines, "router", "logits", 0).verdict == line(lines, "router", "effective", 1).verdict == "zero"
    assert abs(slope(lines, "router", "weight change", 5) + 1.5) < 0.15
    assert abs(slope(lines, "router", "effective", 5) + 0.5) < 0.15


@pytest.mark.slow
def test_one_step_tells_no_gate_from_another() -> None:
    """Prop. 19: after one step all gates are at the fluctuation; after 20 (the source's count) sigmoid has learned."""
    lines = run(SIGMOID, "sgd", steps=SETTLES, num_seeds=8, widths=WIDE)
    assert not misses(lines), report(misses(lines))
    assert abs(slope(lines, "router", "effective", 1) + 0.5) < 0.15
    assert abs(slope(lines, "router", "effective", SETTLES)) < 0.15
    # Prop. 19: the same in every expert; what tells experts apart stays a fluctuation.
    assert slope(lines, "router", "spread of the change", SETTLES) < -0.35


@pytest.mark.slow
def test_top_k_learns_without_bias() -> None:
    """Prop. 4: the choice of experts breaks their symmetry, and logits move by order 1, apart."""
    lines = run(SOFTMAX, "sgd", steps=SETTLES, num_seeds=8, num_active=2)
    assert abs(slope(lines, "router", "effective", SETTLES)) < 0.15
    assert abs(slope(lines, "router", "spread of the change", SETTLES)) < 0.15


def test_a_tiny_eps_hides_the_freezing() -> None:
    """Derived: Adam turns the fluctuation into an update of order 1 unless its eps is as large as the gradient."""
    lines = run(SOFTMAX, "adam", steps=3, training=TINY_EPS)
    assert abs(slope(lines, "router", "effective", 3)) < 0.1
    assert line(lines, "router", "effective", 3).verdict == "miss"


def test_router_eps_of_one_half_is_benign() -> None:
    """Remark 27: eps ~ width^-1/2, as the router's gradient, gives updates of order 1 under soft softmax."""
    lines = run(SOFTMAX, "adam", {"router_eps_exponent": 0.5}, steps=3, training=FAITHFUL)
    assert line(lines, "router", "effective", 3).verdict == "ok", report(lines)
    assert line(lines, "router", "weight change", 3).verdict == "ok"


def test_router_bias_is_the_same_at_every_width() -> None:
    """Remark 22, Algorithm 1: logits of order 1 at the start, the same at all widths from a zero router."""
    conventions = {"router_bias_std": 1.0, "router_init": "zero"}
    lines = run(SOFTMAX, "sgd", conventions, steps=1)
    start = line(lines, "router", "logits", 0)
    assert len(set(start.magnitudes)) == 1
    assert start.magnitudes[0] > 0.5
    later = line(lines, "router", "logits", 1).magnitudes
    assert not math.isclose(later[0], start.magnitudes[0], rel_tol=0.01)  # another draw at every step
    fixed = run(replace(SOFTMAX, router_bias="fixed"), "sgd", {"router_init": "zero"}, steps=1)
    assert line(fixed, "router", "logits", 0).magnitudes == start.magnitudes
    assert line(fixed, "router", "logits", 1).magnitudes[-1] == pytest.approx(start.magnitudes[0], rel=0.05)


def test_ntp_is_lazy() -> None:
    lines = lines_of("ntp", "sgd", options=SOFTMAX, num_seeds=24)
    assert not misses(lines), report(misses(lines))
    assert abs(slope(lines, "embedding", "change", 1) + 0.5) < 0.1
    assert abs(slope(lines, "router", "effective", 1)) < 0.15


# Checks of sweeps: along a table's regime, in stacks, and what they refuse or do not predict.

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


def report_on(
    name: str,
    *,
    depth: int = 1,
    residual: str = "false",
    lr: float = 4.0,
    zero: bool = True,
    multiplier: str = "",
    seeds: int = 6,
    held_to: Parameterization | None = None,
) -> AxisReport:
    text = SWEEP.format(depth=depth, residual=residual, lr=lr)
    text += f"hps: {{multipliers: {{{multiplier}}}}}\n" if multiplier else ""
    choice = parameterization(name, ZERO_READOUT if zero else None)
    (axis,) = check(choice, sweep=parse_sweep(text, "a test"), seeds=seeds, steps=2, held_to=held_to).axes
    return axis


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "residual"), [(1, "false"), (2, "true")])
def test_mssp_passes_in_its_regime(depth: int, residual: str) -> None:
    found = report_on("mssp-ii", depth=depth, residual=residual, lr=4.0 * 4 ** (depth - 1))
    assert found.scale_name == "width"
    assert found.passed, [judged for judged in found.judged if judged.verdict == "miss"]
    assert {each.layer for each in found.fits} == ({None} if depth == 1 else {None, *range(depth)})
    (init,) = (judged for judged in found.judged if (judged.role, judged.quantity) == ("expert_out", "h3: A1"))
    assert init.verdict == "ok"


@pytest.mark.first
@pytest.mark.parametrize(("trained", "held_to"), [("mup-ii", "mssp-ii"), ("mssp-ii", "mup-ii"), ("mup-iii", "mssp-ii")])
def test_a_table_held_to_another_misses(trained: str, held_to: str) -> None:
    zero = ZERO_READOUT if held_to.startswith("mssp") else None
    found = report_on(trained, zero=zero is not None, held_to=parameterization(held_to, zero))
    assert ("h3: A1", 0) in {(each.quantity, each.step) for each in found.fits if each.verdict == "miss"}
    assert not found.passed


def test_of_a_stack_from_a_random_readout_no_gradient_is_derived() -> None:
    found = report_on("mssp-ii", depth=2, zero=False, lr=16.0, seeds=2)
    (judged,) = (each for each in found.judged if (each.role, each.quantity) == ("expert_in", "gradient"))
    assert judged.shown.source == STACKED


@pytest.mark.first
@pytest.mark.parametrize("name", ["mssp-ii", "mup-ii"])
def test_a_multiplier_of_zero_is_a_zero_readout(name: str) -> None:
    """As most published sweeps write it. Predictions for a random readout would call a right table wrong."""
    found = report_on(name, zero=False, multiplier="readout.init_mult: 0")
    assert not found.count("miss")
    assert found.passed


def test_a_multiplier_of_zero_is_a_zero_router() -> None:
    found = report_on("mssp-ii", zero=False, multiplier="router.init_mult: 0", seeds=2)
    (start,) = (each for each in found.fits if (each.role, each.quantity, each.step) == ("router", "activation", 0))
    assert start.verdict == "zero"
    assert start.source == SOURCE


def test_updates_that_float32_rounds_are_refused() -> None:
    with pytest.raises(HpxferError, match="which float32 rounds; take a larger lr"):
        report_on("mssp-ii", lr=1e-5)


def test_options_are_of_the_checks_own_model() -> None:
    with pytest.raises(HpxferError, match="give --architecture mlp and no sweep"):
        check("mup-i", options=Options(activation="relu"))
    found = check("mup-i", architecture="mlp", options=Options(gate="softmax"), seeds=2, steps=1).axes[0]
    assert any((each.role, each.quantity, each.verdict) == ("router", "gate", "ok") for each in found.judged)
