"""The tool that measures what Why Routers Freeze says: a true claim is seen, its opposite is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from router_claim_list import EXPERTS, Claim, Run, claims
from router_claims import claims_table, measured

WIDTHS, SEEDS = (16, 32, 64, 128), 8
MUP = Run(table="mup-moe", lr=2.0, steps=1)
START = Claim(id="P7", says="logits start at zero", run=MUP, quantity="logits", step=0, exponent=-0.5)


def test_the_start_of_the_logits_is_seen_and_another_exponent_is_not() -> None:
    true, false = measured([START, replace(START, exponent=0.5)], WIDTHS, SEEDS)
    assert true.verdict == "seen"
    assert false.verdict == "not seen"


def test_a_fall_is_seen_by_ranks_and_a_rise_is_not() -> None:
    falling = replace(START, exponent=None)
    rising = Claim(
        id="P1",
        says="logits diverge",
        run=Run(table="sp", lr_exponent=-0.5, lr=0.3, steps=1),
        quantity="change",
        step=1,
        exponent=None,
    )
    assert [seen.verdict for seen in measured([falling, rising], WIDTHS, SEEDS)] == ["seen", "not seen"]


def test_a_zero_router_starts_at_zero_and_has_no_slope_there() -> None:
    [seen] = measured([replace(START, run=replace(MUP, zero=True))], WIDTHS[:3], 2)
    assert seen.sizes == (0.0, 0.0, 0.0)
    assert (seen.dropped, seen.slope, seen.verdict) == (3, None, "unclear")
    assert "3 widths with zeros left out" in claims_table([seen.to_dict()])


@pytest.mark.parametrize("claim", list(claims()), ids=lambda claim: f"{claim.id} {claim.quantity} {claim.run.label()}")
def test_every_claim_is_measured_by_its_run(claim: Claim) -> None:
    short = replace(claim.run, steps=min(claim.run.steps, 1))
    [seen] = measured([replace(claim, run=short, step=min(claim.step, 1))], (8, 16, 32), 1)
    assert len(seen.sizes) == 3
    assert claim.run.active in (2, EXPERTS)
