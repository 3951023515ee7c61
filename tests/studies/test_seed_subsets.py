"""The study of subsets of seeds, on one published sweep."""

from __future__ import annotations

import pytest
import seed_subsets
from seed_subsets import PUBLISHED, rows_of

from hpxfer.results import load_results


@pytest.mark.slow
def test_two_seeds_of_the_quickstart_decide_some_verdicts_and_none_is_the_opposite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results = load_results(PUBLISHED / "quickstart")
    monkeypatch.setattr(seed_subsets, "SIZES", (2,))
    rows = {row["arm"]: row for row in rows_of("quickstart", results)}
    assert {arm: (row["all seeds"], row["subsets"], row["the opposite"]) for arm, row in rows.items()} == {
        "completep-moe": ("transfers", 15, 0),
        "sp": ("drifts", 15, 0),
    }
    assert rows["sp"]["decided"] == 15
    # A verdict that two seeds contradict is counted.
    said = {2: "drifts", 6: "transfers"}
    monkeypatch.setattr(seed_subsets, "verdicts", lambda _, seeds: {("sp", "width"): said[len(seeds)]})
    (row,) = rows_of("quickstart", results)
    assert (row["decided"], row["the opposite"]) == (15, 15)
