"""What Why Routers Freeze says: a true claim is seen, its opposite is not, and every claim is measured by its run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from router_claim_list import Claim, Run, claims
from router_claims import claims_table, measured

WIDTHS, SEEDS = (16, 32, 64, 128), 8
MUP = Run(table="mup-moe", lr=2.0, steps=1)
START = Claim(id="P7", says="logits start at zero", run=MUP, quantity="logits", step=0, exponent=-0.5)


def test_a_slope_or_a_fall_is_seen_and_its_opposite_is_not() -> None:
    rises = Run(table="sp", lr_exponent=-0.5, lr=0.3, steps=1)
    rising = Claim(id="P1", says="logits diverge", run=rises, quantity="change", step=1, exponent=None)
    asked = [START, replace(START, exponent=0.5), replace(START, exponent=None), rising]
    found = {repr(seen.claim): seen.verdict for seen in measured(asked, WIDTHS, SEEDS)}
    assert [found[repr(claim)] for claim in asked] == ["seen", "not seen", "seen", "not seen"]


def test_a_zero_router_starts_at_zero_and_has_no_slope_there() -> None:
    [seen] = measured([replace(START, run=replace(MUP, zero=True))], WIDTHS[:3], 2)
    assert (seen.sizes, seen.dropped, seen.slope, seen.verdict) == ((0.0, 0.0, 0.0), 3, None, "unclear")
    assert "3 widths with zeros left out" in claims_table([seen.to_dict()])


@pytest.mark.slow
def test_every_claim_is_measured_by_its_run() -> None:
    short = [
        replace(claim, run=replace(claim.run, steps=min(claim.run.steps, 1)), step=min(claim.step, 1))
        for claim in claims()
    ]
    assert [len(seen.sizes) for seen in measured(short, (8, 16, 32), 1)] == [3] * len(short)
