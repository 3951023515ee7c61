"""Seeds that never change a loss leave verdicts undecided; a tie by chance does not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from planted_lines import STAYS, line

from hpxfer.verdict.report import TransferReport, report_line
from hpxfer.verdict.rules import Rules

RULES = Rules(seeds_differ=True)


def judged(frame: pd.DataFrame, rules: Rules = RULES) -> TransferReport:
    return report_line(frame, sweep="planted", hp="lr", rules=rules)


def same_at(frame: pd.DataFrame, cells: pd.Series) -> pd.DataFrame:
    """Return the line with the losses of the first seed for all seeds of some cells."""
    out = frame.copy()
    keys = ["axis", "parameterization", "scale", "value"]
    first = out.groupby(keys)["loss"].transform("first")
    out.loc[cells, "loss"] = first[cells]
    return out


@pytest.fixture(scope="module")
def plain() -> pd.DataFrame:
    return line(STAYS)


def test_seeds_that_differ_are_judged(plain: pd.DataFrame) -> None:
    (finding,) = judged(plain).findings
    assert (finding.verdict, finding.doubts) == ("transfers", ())


def test_a_shape_whose_seeds_are_ignored_is_refused(plain: pd.DataFrame) -> None:
    largest = plain["scale"] == plain["scale"].max()
    report = judged(same_at(plain, largest))
    (finding,) = report.findings
    assert finding.verdict == "undecided"
    assert "ignores its seed" in finding.reasons[0]
    assert finding.transfer_chance is None
    assert "mend the trainer first" in report.headline
    assert "is undecided" in report.headline
    # Without the rule, as for the built-in trainer, equal losses say nothing against the trainer.
    assert judged(same_at(plain, largest), Rules()).findings[0].doubts == ()


def test_a_tie_by_chance_says_nothing(plain: pd.DataFrame) -> None:
    one = (plain["scale"] == plain["scale"].max()) & (plain["value"] == plain["value"].max())
    assert judged(same_at(plain, one)).findings[0].doubts == ()


def test_noise_beyond_seeds_is_added_to_that_of_seeds(plain: pd.DataFrame) -> None:
    (finding,), (wider,) = judged(plain).findings, judged(plain, Rules(extra_sd=0.01)).findings
    assert finding.noise_nats is not None
    assert wider.noise_nats == pytest.approx(np.hypot(finding.noise_nats, 0.01))


def test_doubts_of_the_rules_come_first_in_every_verdict(plain: pd.DataFrame) -> None:
    report = judged(plain, Rules(doubts=("seeds: two seeds have the same loss",)))
    (finding,) = report.findings
    assert (finding.verdict, finding.reasons[0]) == ("undecided", "seeds: two seeds have the same loss")
    assert report.to_dict()["findings"][0]["verdict"] == "undecided"
