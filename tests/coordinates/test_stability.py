"""What a good table does along an axis: it depends on the axis alone, and on no row."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hpxfer.coordinates.measure import Prediction
from hpxfer.coordinates.optimizer_rules import SPARSE
from hpxfer.coordinates.path_facts import PathFacts
from hpxfer.coordinates.stability import SHARES, stability
from hpxfer.scaling.monomial import SYMBOLS
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.table import Column

Found = Mapping[tuple[str, str], Prediction]


def good(
    optimizer: Column = "adam", *, zero_readout: bool = False, kappa_moves: bool = False, **exponents: float
) -> Found:
    symbols = {**dict.fromkeys((*SYMBOLS, "shared"), 0.0), **exponents}
    facts = PathFacts(
        symbols=symbols,
        kappa_moves=kappa_moves,
        moe=True,
        dense=False,
        shared=True,
        gated=False,
        gate_sums_over=None,
        tied_embeddings=False,
        decays=False,
    )
    return {(each.role, each.quantity): each for each in stability(facts, optimizer, zero_readout=zero_readout)}


def test_along_width_all_is_flat_and_outputs_may_vanish() -> None:
    found = good(width=1.0)
    assert {each.exponent for each in found.values()} == {0.0}
    assert found["attn_q", "effective"].bound == "equal"
    assert found["router", "effective"].bound == "equal"
    assert found["router", "activation"].bound == "at most"
    parts = {"stream", "gates", "moe", "dense", "attn_gate", "shared_router", "router_logit_bias"}
    assert {role for role, _ in found} <= {*ROLES, *parts}


def test_along_depth_the_sum_over_blocks_is_flat() -> None:
    found = good(depth=1.0)
    assert found["attn_out", "effective"].exponent == -1
    assert found["expert_out", "aggregate effective"].exponent == -1
    assert found["moe", "activation"].exponent == -0.5
    assert found["attn_q", "effective"].exponent == 0
    assert found["stream", "change"].exponent == 0


@pytest.mark.parametrize("role", ["router", "expert_in", "expert_out"])
def test_what_experts_learn_is_left_open_where_they_see_another_share_of_the_tokens(role: str) -> None:
    quantity = "aggregate effective" if role == "expert_out" else "effective"
    found = good(kappa_moves=True)[role, quantity]
    assert (found.exponent, found.source) == (None, SPARSE)
    assert good(shared=1.0)["shared_out", "effective"].source == SHARES


def test_with_sgd_experts_and_routers_may_start_slowly() -> None:
    assert good("sgd")["expert_in", "effective"].bound == "at most"
    assert good("sgd")["attn_q", "effective"].bound == "equal"


def test_behind_a_zero_readout_changes_count_from_the_second_update() -> None:
    found = good(zero_readout=True)
    assert found["attn_q", "effective"].first == 2
    assert found["stream", "change"].first == 2
    assert found["readout", "effective"].first == 1
