"""A sample of wirings that are wrong in one number of one role: each is found by the name of its role."""

from __future__ import annotations

import pytest
from wrong_wirings import Wiring, missed, wrong_wirings

SAMPLE = list(wrong_wirings())[::7]


@pytest.mark.slow
@pytest.mark.parametrize("wiring", SAMPLE, ids=lambda wiring: f"{wiring.axis} {wiring.role} {wiring.number}")
def test_one_wrong_number_is_found(wiring: Wiring) -> None:
    assert wiring.role in missed(wiring.report(steps=2, seeds=2))


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["width", "depth"])
def test_the_right_wiring_raises_no_alarm(axis: str) -> None:
    assert missed(Wiring(axis=axis, first_seed=100).report(steps=3)) == set()
