"""Own bases: what tells the base models of two arms apart, in words, and where it is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpxfer import load_results
from hpxfer.analysis import transfer_report
from hpxfer.analysis.own_bases import difference_at_base

PUBLISHED = Path(__file__).parents[2] / "results" / "published"


@pytest.mark.parametrize(
    ("sweep", "arms", "said"),
    [
        ("regime-iii", ("mssp-iii", "mup-iii"), "tied_experts True against False"),
        ("transfer", ("completep-moe", "sp"), None),
    ],
)
def test_what_tells_two_arms_apart_at_the_base(sweep: str, arms: tuple[str, str], said: str | None) -> None:
    assert difference_at_base(load_results(PUBLISHED / sweep), *arms) == said


def test_from_a_larger_base_tables_differ_and_the_reports_say_how() -> None:
    results = load_results(PUBLISHED / "transfer").from_base("w64")
    found = {finding.parameterization: finding for finding in transfer_report(results).findings}
    mine, control = found["completep-moe"], found["sp"]
    assert mine.shares_base == ()
    assert mine.base_value != control.base_value
    (reason,) = (reason for reason in mine.reasons if "the model of sp is another one there" in reason)
    assert "init_std" in reason
    assert reason.endswith("more): it hands on 2^-7, not 2^-6")
