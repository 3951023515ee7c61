"""What is said: the headline and its phrases, the summary, the frame, and the unit of the loss."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from docs_parts import thresholds_markdown
from planted_lines import MOVES, STAYS, line, with_status

from hpxfer.analysis import TransferReport, report_line
from hpxfer.host import NATS, JudgedLoss, hp_text, is_control
from hpxfer.verdict.drift import Drift, Step
from hpxfer.verdict.findings import Addition, Control, Finding, Move, ShapeFinding, Verdict
from hpxfer.verdict.optimum import Optimum
from hpxfer.verdict.summary import headline
from hpxfer.verdict.words import (
    chance_text,
    conclusion,
    drift_text,
    misfit_text,
    move_text,
    regret_number_text,
    regret_text,
    verdict_line,
)

SEEDS = Addition(text="3 seeds at every shape", seeds=3)


def shape(scale: float, regret: float | None, **given: Any) -> ShapeFinding:
    """Return a shape with a regret whose standard error is 0.004 nats; the base is width 32."""
    values: dict[str, Any] = {
        "shape": f"w{scale:g}",
        "scale": scale,
        "is_base": scale == 32,
        "optimum": Optimum(kind="interior", log2_value=-6.0, grid_value=2.0**-6, low_log2=-6.2, high_log2=-5.8),
        "best_value": 2.0**-6,
        "best_loss": 2.5,
        "transferred": "measured",
        "transferred_loss": 2.5,
        "regret_nats": regret,
        "regret_percent": None if regret is None or math.isinf(regret) else 100 * regret / 2.5,
        "regret_noise_units": None,
        "regret_se_nats": None if scale == 32 else 0.004,
        "num_seeds": 3,
        "num_diverged": 0,
        "num_missing": 0,
        "over_chance": None if regret is None else float(regret > 0.025),
        **given,
    }
    return ShapeFinding(**values)


def finding(
    verdict: Verdict, worst: float | None, *, name: str = "completep-moe", axis: str = "width", **given: Any
) -> Finding:
    """Return a finding on widths 32 and 128 with this regret at width 128."""
    values: dict[str, Any] = {
        "axis": axis,
        "scale_name": axis,
        "is_control": is_control(name),
        "parameterization": name,
        "base_value": 2.0**-6,
        "shapes": (shape(32.0, 0.0), shape(128.0, worst)),
        "drift": None,
        "noise_nats": 0.005,
        "verdict": verdict,
        "reasons": (),
        "move": Move(octaves=0.1, low=-0.2, high=0.3, scales=(32.0, 128.0), is_line=True),
        "transfer_chance": 0.996,
        **given,
    }
    return Finding(**values)


MINE = finding("transfers", 0.012)
SP = finding("drifts", 0.13, name="sp")


def test_a_transfer_says_what_to_use_what_it_costs_and_what_the_control_would_cost() -> None:
    assert headline("lr", [MINE, SP]) == (
        "Use lr 2^-6 tuned at width 32 with completep-moe up to width 128: at most 0.02 nats lost. "
        "With sp you would lose 0.13 nats at width 128."
    )


@pytest.mark.parametrize(
    ("control", "said"),
    [
        (finding("drifts", math.inf, name="sp"), "With sp training would diverge at width 128."),
        (finding("drifts", -0.001, name="sp"), "With sp between width 32 and 128 the optimum moves by -0.20 to +0.30"),
        (finding("transfers", 0.0, name="sp"), "With sp it transfers too, so that nothing tells the two apart there."),
        (finding("undecided", 0.01, name="sp"), "With sp it is undecided."),
    ],
)
def test_the_control_has_its_own_sentence(control: Finding, said: str) -> None:
    assert f" nats lost. {said}" in headline("lr", [MINE, control])


def test_controls_alone_are_judged_like_the_others_and_without_one_that_is_said() -> None:
    assert headline("lr", [SP]).startswith("Tune lr again at each width with sp: ")
    assert headline("lr", []) == "No trial lies on a line of lr, so nothing can be said about its transfer."
    assert headline("lr", [MINE]).endswith("No control shows whether any optimum moves along this axis.")
    assert "control" not in headline("lr", [finding("drifts", 0.1)])


def test_the_interval_of_the_loss_given_up_is_its_bound() -> None:
    wide = replace(MINE, shapes=(MINE.shapes[0], shape(128.0, 0.001, regret_high_nats=0.031)))
    assert "at most 0.031 nats lost" in headline("lr", [wide])
    lucky = replace(MINE, shapes=(MINE.shapes[0], shape(128.0, -0.02)))
    assert "no loss measured" in headline("lr", [lucky])
    assert "-0.0" not in headline("lr", [lucky])


@pytest.mark.parametrize(
    ("worst", "said"),
    [
        (0.13, "the one tuned at width 32 would lose 0.13 nats at width 128."),
        (math.inf, "the one tuned at width 32 diverges at width 128."),
        (-0.001, "between width 32 and 128 the optimum moves by -0.20 to +0.30 octaves (95%)."),
    ],
)
def test_a_drift_says_what_transferring_would_cost(worst: float, said: str) -> None:
    assert headline("lr", [finding("drifts", worst)]) == f"Tune lr again at each width with completep-moe: {said}"


def test_a_drift_by_the_move_alone_names_the_move_and_no_loss() -> None:
    """A regret within its limit is no reason."""
    small = finding("drifts", 0.0097, move=Move(octaves=3.0, low=2.7, high=3.2, scales=(32.0, 128.0), is_line=True))
    for text in (headline("lr", [small]), verdict_line(small)):
        assert "between width 32 and 128 the optimum moves by +2.70 to +3.20 octaves (95%)" in text
        assert "0.0097" not in text


def test_what_surely_does_not_transfer_is_called_so_although_no_single_statement_is_sure() -> None:
    open_ = finding("undecided", 0.02, transfer_chance=0.0002, move_chance=0.9, to_add=(SEEDS,))
    assert headline("lr", [open_]) == (
        "lr 2^-6 tuned at width 32 does not transfer with completep-moe along width (probability that it does: under "
        "0.1%), although no single statement on how it drifts is sure. To say how, add 3 seeds at every shape."
    )
    assert verdict_line(open_).startswith("completep-moe: does not transfer, undecided how (")
    wide = replace(open_, move_chance=0.3)  # wide intervals alone make a transfer improbable
    assert headline("lr", [wide]).startswith("Whether lr 2^-6 tuned at width 32 holds ")


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.0**-6, "2^-6"), (2.0**-6.5, "2^-6.5"), (0.0003, "0.0003 (2^-11.7)"), (0.01, "0.01 (2^-6.64)"), (None, "-")],
)
def test_an_hp_is_written_as_in_its_grid(value: float | None, text: str) -> None:
    assert hp_text(value) == text


def test_an_undecided_verdict_says_what_would_decide_it() -> None:
    open_ = finding("undecided", 0.02, transfer_chance=0.72, to_add=(SEEDS,))
    assert headline("lr", [open_]) == (
        "Whether lr 2^-6 tuned at width 32 holds with completep-moe up to width 128 is undecided (probability "
        "72.0% that it transfers). To decide, add 3 seeds at every shape."
    )


def test_nothing_to_transfer_names_no_hp() -> None:
    edge = Optimum(kind="upper_edge", log2_value=-4.0, grid_value=2.0**-4, open_because="the optimum is on the edge")
    open_ = finding("undecided", 0.02, shapes=(shape(32.0, 0.0, optimum=edge), shape(128.0, 0.02)), to_add=(SEEDS,))
    assert not open_.has_transferred
    assert "2^" not in headline("lr", [open_])


def test_several_axes_and_parameterizations_are_said_apart() -> None:
    both = [MINE, finding("transfers", 0.03, axis="depth"), finding("drifts", 0.2, name="mup", axis="depth")]
    controls = [SP, finding("transfers", 0.0, name="sp", axis="depth")]
    assert headline("lr", [*both, *controls]) == (
        "Use lr 2^-6 tuned at the base with completep-moe up to width 128 and depth 128: at most 0.038 nats lost. "
        "Tune lr again at each depth with mup: the one tuned at depth 32 would lose 0.2 nats at depth 128. "
        "With sp you would lose 0.13 nats at width 128; it transfers too along depth, so that nothing tells the two "
        "apart there."
    )


def test_findings_without_the_new_numbers_have_a_headline() -> None:
    for verdict in ("transfers", "drifts", "undecided"):
        old = finding(verdict, None, move=None, transfer_chance=None, noise_nats=None, base_value=None)
        assert headline("lr", [old])
        assert verdict_line(old).startswith(f"completep-moe: {verdict}")


@pytest.mark.parametrize(
    ("found", "nats", "words"),
    [
        (shape(32.0, 0.0), "same grid cell", "loss given up: none measured (same grid cell)"),
        (shape(128.0, 0.0), "none +- 0.004", "loss given up: none measured (same grid cell, +- 0.004 nats)"),
        (shape(128.0, -0.0068), "none +- 0.004", "loss given up: none measured (+- 0.004 nats)"),
        (shape(128.0, 0.13), "0.13 +- 0.004", "loss given up 0.13 +- 0.004 nats (5.2% of the loss)"),
        (shape(128.0, math.inf), "diverges", "diverges at the transferred HP"),
        (shape(128.0, None), "-", "loss given up unknown"),
    ],
)
def test_a_regret_is_a_loss_given_up_and_never_negative(found: ShapeFinding, nats: str, words: str) -> None:
    assert (regret_number_text(found), regret_text(found, NATS)) == (nats, words)
    of_octave = {0.2: "20% of what one octave costs", 3.43: "3.4 times what one octave costs"}
    for share, said in of_octave.items():
        assert said in regret_text(shape(128.0, 0.01, regret_octave_share=share), NATS)


def test_a_move_names_its_ends_octaves_and_confidence() -> None:
    assert move_text(MINE) == "between width 32 and 128 the optimum moves by -0.20 to +0.30 octaves (95%)"
    beyond = replace(MINE, move=Move(octaves=2.0, low=1.2, high=None, scales=(32.0, 128.0), is_line=True))
    assert "moves up by 1.20 octaves or more (95%)" in str(move_text(beyond))
    below = replace(MINE, move=Move(octaves=-2.0, low=None, high=-1.2, scales=(32.0, 128.0), is_line=True))
    assert "moves down by 1.20 octaves or more (95%)" in str(move_text(below))
    unknown = Move(octaves=0.0, low=None, high=None, scales=(32.0, 128.0), is_line=True)
    assert move_text(replace(MINE, move=unknown)) is None


@pytest.mark.parametrize(
    ("chance", "text"),
    [(0.9961, "99.6%"), (0.9999, "over 99.9%"), (0.0001, "under 0.1%"), (0.5, "50.0%"), (None, None)],
)
def test_a_probability_is_never_certain(chance: float | None, text: str | None) -> None:
    assert chance_text(replace(MINE, transfer_chance=chance)) == text
    assert chance_text(replace(MINE, transfer_chance=chance, shapes=MINE.shapes[:1])) is None


def test_a_misfit_is_printed_and_a_fit_that_is_good_is_not() -> None:
    assert misfit_text(Optimum(kind="interior", misfit=2.31)) == "2.3 times"
    assert misfit_text(Optimum(kind="interior", misfit=1.0)) == ""
    assert misfit_text(Optimum(kind="interior")) == ""


def test_the_line_of_a_verdict_ends_with_what_it_rests_on() -> None:
    assert verdict_line(MINE) == "completep-moe: transfers, no control (at most 0.02 nats lost)"
    control = Control(parameterization="sp", verdict="drifts", worst_shape="w128", worst_regret_nats=0.13)
    assert verdict_line(replace(MINE, control=control)) == "completep-moe: transfers (at most 0.02 nats lost)"
    assert verdict_line(SP) == "sp: drifts (0.13 +- 0.004 nats lost at width 128)"
    assert conclusion(finding("undecided", -0.01, transfer_chance=0.965)) == "probability 96.5% that it transfers"
    assert conclusion(finding("undecided", -0.01, transfer_chance=0.9999)) == "the limit is not known"
    noisy = (MINE.shapes[0], shape(128.0, -0.01, regret_se_nats=0.02, limit_nats=0.025))
    assert conclusion(finding("undecided", None, shapes=noisy)) == "loss given up known to +- 0.04 nats, limit 0.025"


def test_a_drift_has_its_interval_and_optima_off_a_line_their_steps() -> None:
    line = Drift(octaves_per_doubling=-0.75, se=0.1, num_shapes=3, low=None, high=-0.41, bounds=("w256",))
    assert drift_text(replace(MINE, drift=line)) == (
        "-0.75 [open, -0.41] octaves per doubling of width (3 shapes, bounds at w256)"
    )
    steps = (
        Step(start=32.0, stop=64.0, octaves=1.3, low=1.0, high=1.6),
        Step(start=64.0, stop=128.0, octaves=0.0, low=-0.2, high=0.2),
    )
    assert drift_text(replace(MINE, drift=replace(line, is_line=False, steps=steps))) == (
        "not a line; in octaves, by width: +1.30 [+1.00, +1.60] from 32 to 64, +0.00 [-0.20, +0.20] from 64 to 128"
    )
    assert drift_text(MINE).startswith("unknown")
    assert drift_text(replace(MINE, drift=replace(line, high=None))) == "unknown: of w256 only bounds are known"


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
    assert report(line({"sp": lambda _: -10.0})).to_frame()["on_edge"].all()
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


SQUARED = JudgedLoss(unit="squared error")


def test_losses_and_columns_of_data_name_the_unit() -> None:
    assert (NATS.level(3.14159), NATS.amount(0.0171)) == ("3.1416 nats", "0.017 nats")
    assert (SQUARED.level(0.5), SQUARED.amount(0.0171)) == ("0.5000 squared error", "0.017 squared error")
    assert (NATS.column("mean_nats"), SQUARED.column("mean_nats")) == ("mean_nats", "mean_squared_error")
    assert SQUARED.column("log2_lr") == "log2_lr"


def test_every_threshold_has_a_reason_of_its_own() -> None:
    rows = thresholds_markdown(Path()).splitlines()[2:]
    reasons = [row.split(" | ", 2)[2] for row in rows]
    assert len(rows) > 10
    assert all(len(reason) > 10 for reason in reasons)
    assert len(set(reasons)) == len(reasons)
