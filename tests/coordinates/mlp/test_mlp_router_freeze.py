"""What Why Routers Freeze measures and proves of routers, in blocks of one matrix an expert.

Propositions and remarks are the paper's; what it leaves to the reader says `derived`. Tolerances are 0.1 to 0.15.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from mlp_runs import line, lines_of, misses, path_of, report, slope

from hpxfer.coordinates.measure import Fit, fit
from hpxfer.coordinates.mlp import Options, Training, observe
from hpxfer.coordinates.predict import predict
from hpxfer.scaling.claims import Claim
from hpxfer.scaling.claims.block import SETTLES
from hpxfer.scaling.evaluate import parameterization, ratios
from hpxfer.scaling.monomial import width

WIDTHS = (32, 64, 128, 256)
WIDE = (64, 128, 256, 512)  # where narrower models have not come to their exponents
SOFTMAX = Options(expert_matrices=1, gate="normalized_softmax")
SIGMOID = Options(expert_matrices=1)
FAITHFUL = Training(lr=0.1, eps=0.1)
TINY_EPS = Training(lr=0.1, eps=1e-8)
ZERO_BOTH = {"router_init": "zero", "readout_init": "zero"}


def run(
    options: Options, optimizer: str, conventions: dict[str, object] | None = None, **more: object
) -> tuple[Fit, ...]:
    choice = parameterization("mup-moe", conventions)  # type: ignore[arg-type]
    path = path_of(choice, more.pop("widths", WIDTHS), num_active=more.pop("num_active", 0))  # type: ignore[arg-type]
    return lines_of(choice, optimizer, path, options=options, **more)  # type: ignore[arg-type]


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


@pytest.mark.first
@pytest.mark.parametrize(("optimizer", "lr_exponent", "effective"), [("sgd", 0.5, 1.5), ("adam", 0.0, 1.0)])
@pytest.mark.parametrize("num_active", [4, 2])
def test_sp_diverges_in_one_step(optimizer: str, lr_exponent: float, effective: float, num_active: int) -> None:
    """Prop. 2, Remarks 17, 18: features move by order 1, logits by width^1/2 through W0, and by more through dW."""
    choice = parameterization("sp", {"lr_exponent": -lr_exponent})
    path = path_of(choice, WIDE, num_active=num_active)
    training = Training(lr=0.1, eps=1e-8)
    found = observe(choice, optimizer, path, seeds=range(24), steps=1, options=SOFTMAX, training=training)  # type: ignore[arg-type]
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
    choice = parameterization("sp", {"lr_exponent": 1.0})
    lines = lines_of(choice, "sgd", path_of(choice, WIDTHS), options=SOFTMAX, steps=1)
    assert abs(slope(lines, "embedding", "change", 1) + 1.5) < 0.15
    assert abs(slope(lines, "router", "effective", 1)) < 0.15


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
    choice = parameterization("ntp")
    lines = lines_of(choice, "sgd", path_of(choice, WIDTHS), options=SOFTMAX, num_seeds=24)
    assert not misses(lines), report(misses(lines))
    assert abs(slope(lines, "embedding", "change", 1) + 0.5) < 0.1
    assert abs(slope(lines, "router", "effective", 1)) < 0.15
