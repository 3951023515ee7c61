"""The short form of a report: at most twelve lines, the first of which says what to do; and the report as a frame."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from planted_lines import MOVES, STAYS, line, with_status

from hpxfer.analysis import TransferReport, report_line
from hpxfer.verdict.headline import headline


def report(frame: pd.DataFrame) -> TransferReport:
    return report_line(frame, sweep="planted", hp="lr")


def many(num_axes: int, labels: dict[str, str]) -> TransferReport:
    """Return a report on several axes, where each parameterization stays or moves."""
    planted = {label: (STAYS["completep-moe"] if how == "stays" else MOVES["sp"]) for label, how in labels.items()}
    return report(pd.concat([line(planted, axis=f"axis{number}") for number in range(num_axes)], ignore_index=True))


def test_the_summary_names_what_to_do_the_verdict_and_the_control() -> None:
    lines = report(line({**STAYS, **MOVES}, noise=1e-4)).summary().splitlines()
    assert lines[0].startswith("Use lr 2^-6 tuned at width 32 with completep-moe up to width 128: ")
    assert "With sp you would lose 0.19 nats at width 128." in lines[0]
    assert lines[1] == "Does lr transfer? Sweep planted, judged by validation loss."
    assert lines[2].startswith("  width | completep-moe: transfers (")
    assert lines[2].endswith("; control sp: drifts")


@pytest.mark.parametrize(
    ("frame", "start", "end"),
    [
        (line(MOVES), "Tune lr again at each width with sp: ", "would lose 0.19 nats at width 128."),
        (line(STAYS, seeds=1), "Whether lr 2^-6 tuned at width 32 holds with ", "add 3 seeds at every shape."),
        (
            line({"sp": lambda _: -10.0}),
            "Whether lr transfers with sp along width is undecided",
            "add HP values 2^-11, 2^-10 at width 32, width 64, width 128, beyond the lower edge of the grid.",
        ),
        (
            with_status(line(STAYS), "missing", scale=64.0),
            "Whether lr 2^-6 tuned at width 32 holds with completep-moe up to width 128 is undecided",
            "run the sweep again, as trials that it needs have no result.",
        ),
        (line(STAYS).iloc[:0], "No trial lies on a line of lr", "so nothing can be said about its transfer."),
    ],
)
def test_the_first_line_says_what_to_do(frame: pd.DataFrame, start: str, end: str) -> None:
    first = report(frame).summary().splitlines()[0]
    assert first.startswith(start)
    assert end in first
    assert report(frame).to_dict()["headline"] == report(frame).headline == first


def test_while_a_run_goes_on_nobody_is_told_to_run_it_again() -> None:
    findings = report(with_status(line(STAYS), "missing", scale=64.0)).findings
    text = headline("lr", findings, is_running=True)
    assert "To decide, wait for the run, as trials that it needs are still to come." in text
    assert "run the sweep again" not in text


def test_several_parameterizations_are_advised_apart() -> None:
    first = many(2, {"complete": "stays", "drifting": "moves"}).headline
    assert first.startswith("Use lr 2^-6 tuned at the base with complete up to axis0 128 and axis1 128: ")
    assert "Tune lr again along axis0 and axis1 with drifting: the one tuned at the base would lose up to" in first


@pytest.mark.slow
def test_no_summary_has_more_than_twelve_lines() -> None:
    lines = many(12, {"completep-moe": "stays", "sp": "moves"}).summary().splitlines()
    assert len(lines) == 12
    assert lines[-1] == "  and 3 more: 3 transfers"


@pytest.mark.slow
def test_a_run_that_is_left_out_is_named_in_the_summary() -> None:
    frame = line(STAYS, seeds=4)
    low = frame[(frame["scale"] == 64) & (frame["value"] == 2.0**-7)].index[0]
    frame.loc[low, "loss"] -= 0.25
    *_, last = report(frame).summary().splitlines()
    assert last.startswith(
        "  ! completep-moe: the run of width 64, HP 2^-7, seed 0 ends 0.25 nats below the other seeds"
    )
    many_arms = pd.concat([frame.assign(parameterization=name) for name in "abcdefghijklm"], ignore_index=True)
    lines = report(many_arms).summary().splitlines()
    assert len(lines) == 12
    assert lines[-1].endswith("; notes of this kind: 13")


def test_a_frame_has_one_row_per_axis_parameterization_and_shape() -> None:
    frame = report(with_status(line({**STAYS, **MOVES}, diverges_above=2.0), "missing", scale=64.0)).to_frame()
    assert frame.columns.is_unique
    assert len(frame) == 6
    assert frame["parameterization"].tolist() == ["completep-moe"] * 3 + ["sp"] * 3
    base = frame.iloc[0]
    assert (base["axis"], base["shape"], base["is_base"], base["hp"]) == ("width", "w32", True, "lr")
    assert (base["status"], base["on_edge"], base["transferred_value"]) == ("interior", False, 2.0**-6)
    assert base["low_log2"] < base["log2_value"] < base["high_log2"]
    assert base["regret_nats"] == 0.0
    assert (frame.loc[1, "status"], frame.loc[1, "num_missing"]) == ("none", 12)
    assert math.isnan(frame["log2_value"][1])
    assert frame.loc[5, "regret_nats"] == math.inf
    assert frame["num_seeds"].dtype == "int64"
    assert report(line(STAYS).iloc[:0]).to_frame().columns.tolist() == frame.columns.tolist()


def test_a_frame_marks_optima_at_the_edge_of_the_grid() -> None:
    frame = report(line({"sp": lambda _: -10.0})).to_frame()
    assert frame["status"].tolist() == ["lower_edge"] * 3
    assert frame["on_edge"].all()
