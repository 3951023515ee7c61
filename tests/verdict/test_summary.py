"""The short form of a report: at most twelve lines, the last of which says what to do; and the report as a frame."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from planted_lines import MOVES, STAYS, line, with_status

from hpxfer.analysis import TransferReport, report_line


def report(frame: pd.DataFrame) -> TransferReport:
    return report_line(frame, sweep="planted", hp="lr", loss="validation")


def many(num_axes: int, labels: dict[str, str]) -> TransferReport:
    """Return a report on several axes, where each parameterization stays or moves."""
    planted = {label: (STAYS["completep-moe"] if how == "stays" else MOVES["sp"]) for label, how in labels.items()}
    return report(pd.concat([line(planted, axis=f"axis{number}") for number in range(num_axes)], ignore_index=True))


def test_the_summary_names_the_verdict_the_control_and_what_to_do() -> None:
    lines = report(line({**STAYS, **MOVES}, noise=1e-4)).summary().splitlines()
    assert lines == [
        "Does lr transfer? Sweep planted, judged by validation loss.",
        "  width | completep-moe: transfers (regret 0 at every shape); control sp: drifts",
        "Use lr 2^-6 from the base at every width up to 128.",
    ]


@pytest.mark.parametrize(
    ("frame", "advice"),
    [
        (line(MOVES), "Tune lr at each scale along width, as its optimum moves."),
        (line(STAYS, seeds=1), "To decide along width, add 3 seeds at every shape."),
        (
            line({"sp": lambda _: -10.0}),
            "To decide along width, run the sweep that `hpxfer report --write-followup` writes.",
        ),
        (
            with_status(line(STAYS), "missing", scale=64.0),
            "To decide along width, run the sweep again, as trials that it needs have no result.",
        ),
        (line(STAYS).iloc[:0], "No trial lies on a line of lr, so nothing can be said about its transfer."),
    ],
)
def test_the_last_line_says_what_to_do(frame: pd.DataFrame, advice: str) -> None:
    assert report(frame).summary().splitlines()[-1] == advice


def test_several_parameterizations_are_advised_apart() -> None:
    last = many(2, {"complete": "stays", "drifting": "moves"}).summary().splitlines()[-1]
    assert last == (
        "Use lr 2^-6 from the base at every axis0 up to 128 and axis1 up to 128 under complete; "
        "tune lr at each scale along axis0 and axis1, as its optimum moves under drifting."
    )


def test_no_summary_has_more_than_twelve_lines() -> None:
    lines = many(12, {"completep-moe": "stays", "sp": "moves"}).summary().splitlines()
    assert len(lines) == 12
    assert lines[-2] == "  and 3 more: 3 transfers"


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
