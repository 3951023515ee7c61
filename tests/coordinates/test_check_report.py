"""What a report says of made-up fits."""

from __future__ import annotations

import json
from dataclasses import replace

from made_fits import FIT, report


def test_a_quantity_is_as_bad_as_its_worst_step() -> None:
    (judged,) = report(FIT, replace(FIT, step=2, verdict="miss"), replace(FIT, step=3)).axes[0].judged
    assert (judged.verdict, judged.step, judged.shown.step) == ("miss", 2, 3)
    (judged,) = report(FIT, replace(FIT, step=2, verdict="unclear")).axes[0].judged
    assert judged.verdict == "unclear"


def test_what_is_shown_is_the_last_step_with_a_prediction() -> None:
    early = replace(FIT, step=0, slope=-0.5, predicted=-0.5)
    (judged,) = report(early, replace(FIT, predicted=None, verdict="no prediction")).axes[0].judged
    assert (judged.verdict, judged.shown.step) == ("ok", 0)


def test_single_layers_are_not_judged() -> None:
    axis = report(FIT, replace(FIT, layer=1, verdict="miss")).axes[0]
    assert [judged.verdict for judged in axis.judged] == ["ok"]


def test_passing_needs_something_that_is_ok() -> None:
    nothing = replace(FIT, verdict="no prediction", predicted=None)
    assert report(FIT).passed
    assert report(FIT, replace(FIT, role="moe", verdict="unclear")).passed
    assert not report(nothing).passed
    assert not report(replace(FIT, verdict="unclear")).passed
    assert not report(FIT, replace(FIT, role="moe", verdict="miss")).passed


def test_only_what_missed_has_failed() -> None:
    nothing = replace(FIT, verdict="no prediction", predicted=None)
    unclear = replace(FIT, verdict="unclear")
    assert "nothing is predicted, so nothing was checked" in report(nothing).table()
    assert "not shown" in report(nothing, unclear).table()
    assert "FAILED" not in report(nothing).table() + report(unclear).table()
    assert "FAILED" in report(nothing, replace(FIT, verdict="miss")).table()


def test_the_table_says_it_all() -> None:
    missed = replace(FIT, role="expert_in", slope=0.5, low=0.4, high=0.6, verdict="miss")
    zero = replace(
        FIT, role="expert_out", slope=None, low=None, high=None, predicted=None, verdict="zero", magnitudes=(0.0, 0.0)
    )
    wild = replace(FIT, role="moe", slope=None, low=None, high=None, verdict="miss", magnitudes=(1.0, float("nan")))
    unknown = replace(FIT, role="stream", predicted=None, verdict="no prediction", source="two parts")
    text = report(FIT, missed, zero, wild, unknown).table()
    rows = {line.split("  ")[0]: " ".join(line.split()) for line in text.splitlines()}
    assert rows["router"] == "router change 1 +0.01 -0.02 .. +0.04 +0.00 ok 0.5 0.51"
    assert rows["expert_in"] == "expert_in change 1 +0.50 +0.40 .. +0.60 +0.00 miss 0.5 0.51"
    assert rows["expert_out"] == "expert_out change 1 0 zero 0 0"
    assert rows["moe"] == "moe change 1 diverged +0.00 miss 1 nan"
    assert "warning: careful" in text
    assert "stream change: two parts" in text
    assert text.endswith("width: FAILED (2 miss, 1 ok, 1 no prediction, 1 zero)")


def test_the_data_is_json_and_numbers_that_are_none_are_null() -> None:
    data = report(FIT, replace(FIT, layer=0, magnitudes=(1.0, float("inf")))).to_dict()
    parsed = json.loads(json.dumps(data, allow_nan=False))
    assert parsed["axes"][0]["lines"][1]["magnitudes"] == [1.0, None]
    assert parsed["passed"] is True
    assert "lines" not in report(FIT).to_dict(lines=False)["axes"][0]
    assert parsed["axes"][0]["judged"][0]["shown"]["slope"] == 0.01
