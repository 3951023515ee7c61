"""What is claimed of the built-in GPT: said of roles and quantities that exist, and in step with the tables' rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hpxfer.scaling.claims import Claim
from hpxfer.scaling.evaluate import Parameterization, parameterization, ratios
from hpxfer.scaling.monomial import ONE, ZERO, depth, experts, width
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column
from hpxfer.scaling.tables import PARAMETERIZATIONS

SHIPPED: list[tuple[str, Column]] = [
    (table.name, optimizer) for table in PARAMETERIZATIONS.rows() for optimizer in table.rows
]
QUANTITIES = {
    *("activation", "change", "effective", "propagating", "gradient", "weight change"),
    *("aggregate init", "aggregate effective", "aggregate propagating"),
}
BASE = Shape(width=32, depth=2, num_experts=4, num_active=2, expert_width=32, head_dim=8, dense_width=64)
WIDE = {"width": 64, "expert_width": 64, "dense_width": 128}
MORE = {"num_experts": 8, "num_active": 4}
# Axis or regime -> what moves.
MOVES: dict[str, dict[str, int]] = {
    "width": WIDE,
    "depth": {"depth": 8},
    "experts": MORE,
    "expert_ratio": {"expert_width": 128},
    "I": WIDE,
    "II": {**WIDE, **MORE, "expert_width": 32},
    "III": {**WIDE, **MORE},
}
PARTS = {"stream", "gates", "moe", "dense", "attn_gate"}


def of(found: Sequence[Claim], role: str, quantity: str) -> Claim:
    """Return the claim that counts after some steps."""
    return next(claim for claim in found if (claim.role, claim.quantity, claim.last) == (role, quantity, None))


def start(found: Sequence[Claim], role: str) -> Claim:
    return next(claim for claim in found if (claim.role, claim.quantity, claim.last) == (role, "activation", 0))


def choice(name: str, **conventions: float | str) -> Parameterization:
    return parameterization(name, conventions)


def test_every_shipped_table_has_claims() -> None:
    assert len({name for name, _ in SHIPPED}) >= 13
    assert all(choice(name).claims(optimizer) for name, optimizer in SHIPPED)


@pytest.mark.parametrize(("name", "optimizer"), SHIPPED)
def test_claims_speak_of_what_is_measured(name: str, optimizer: Column) -> None:
    for claim in choice(name).claims(optimizer):
        assert claim.role in ROLES.keys() | PARTS
        assert claim.quantity in QUANTITIES
        assert claim.source
        assert not claim.still or claim.otherwise, f"{claim} does not say why"


def test_nothing_is_claimed_of_a_table_without_claims() -> None:
    with PARAMETERIZATIONS.registered(replace(PARAMETERIZATIONS.get("sp"), name="my-own", claims=None)):
        assert choice("my-own").claims("adam") == ()


# Tables whose eps goes by the size of gradients, by their sources' own account.
BY_GRADIENT = [
    *("completep", "completep-moe", "mup-i", "mup-ii", "mup-iii", "mssp-i", "mssp-ii", "mssp-iii"),
    *("mup", "mup-moe", "complete-mue"),
]


@pytest.mark.parametrize("readout", ["forward", "init_lr"])
@pytest.mark.parametrize("name", BY_GRADIENT)
def test_gradients_are_claimed_as_eps_scales(name: str, readout: str) -> None:
    """Adam is faithful if eps scales as the gradient does (MSSP mu-3): along the table's own axes, where claimed."""
    found, table = choice(name, readout=readout), PARAMETERIZATIONS.get(name)
    of_role = {claimed.role: claimed for claimed in found.claims("adam") if claimed.quantity == "gradient"}
    along = [table.regime] if table.regime else [axis for axis in MOVES if table.covers(axis, "adam")]
    compared = 0
    for target in (replace(BASE, **MOVES[axis]) for axis in (*along, "depth") if axis in MOVES):
        at = ratios(BASE, target)
        if not table.covers("depth", "adam") and at["depth"] > 1:
            continue
        for row in found.rows("adam"):
            claim = of_role.get(row.role)
            if claim is None or claim.size is None or any(at[ratio] != 1 for ratio in claim.still):
                continue
            assert claim.size(at) == pytest.approx(row.eps(at)), f"{row.role} at {target.label()}"
            compared += 1
    assert compared >= 15


def test_the_exceptions_of_the_regimes() -> None:
    """MSSP Tables B.1 and 3.5: what the fixes are for."""
    two, three = (choice(f"mup-{regime}").claims("adam") for regime in ("ii", "iii"))
    fixed_two, fixed_three = (choice(f"mssp-{regime}").claims("adam") for regime in ("ii", "iii"))
    init = {name: of(found, "expert_out", "aggregate init").size for name, found in (("ii", two), ("iii", three))}
    assert init == {"ii": depth**-1 * experts**-0.5, "iii": depth**-1 * experts**-0.5}
    for found in (fixed_two, fixed_three):
        for part in ("init", "effective", "propagating"):
            claim = of(found, "expert_out", f"aggregate {part}")
            assert (claim.size, claim.still) == (depth**-1, ())
    for quantity in ("activation", "propagating"):
        assert of(fixed_two, "expert_out", quantity).size == experts**0.5
        assert of(fixed_three, "expert_out", quantity).size == ONE
    assert of(fixed_two, "expert_out", "effective").size == ONE


@pytest.mark.parametrize(
    ("name", "conventions", "size"),
    [
        ("completep-moe", {}, width**-0.5),
        ("completep-moe", {"router_init_exponent": 0.5}, ONE),
        ("completep-moe", {"router_init_exponent": "inf"}, ZERO),
        ("mup-moe", {}, width**-0.5),
        ("mup-moe", {"router_init": "zero"}, ZERO),
        ("mup-i", {}, width**-0.5),
        ("mssp-i", {}, ZERO),
        ("mssp-iii", {}, ONE),
        ("complete-mue", {}, ONE),
    ],
)
def test_how_routers_start(name: str, conventions: dict[str, float | str], size: object) -> None:
    found = choice(name, **conventions).claims("adam")
    assert start(found, "router").size == size
    propagating = of(found, "router", "propagating")
    assert propagating.size == (ZERO if size == ZERO else ONE)
    assert propagating.still == (("width",) if size == width**-0.5 else ())


def test_how_readouts_start() -> None:
    plain = choice("mssp-ii").claims("adam")
    zero = choice("mssp-ii", readout_init="zero").claims("adam")
    tied = choice("completep-moe", embeddings="tied").claims("adam")
    assert start(plain, "readout").size == width**-0.5
    assert start(zero, "readout").size == ZERO
    assert of(zero, "readout", "propagating").size == ZERO
    assert not [claim for claim in tied if (claim.role, claim.quantity) == ("readout", "activation")]


def test_depth_alpha_moves_branches_and_what_is_learned_in_them() -> None:
    half = choice("completep", depth_alpha=0.5).claims("adam")
    assert of(half, "attn_out", "activation").size == depth**-0.5
    assert of(half, "attn_q", "effective").size == depth**-0.5
    assert of(half, "attn_out", "effective").size == depth**-1


def test_the_control_is_held_to_flat_coordinates() -> None:
    found = choice("sp").claims("adam")
    assert {claim.size for claim in found} == {ONE}
    assert all("must miss" in claim.source for claim in found)
