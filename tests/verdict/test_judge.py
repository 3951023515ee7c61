"""Verdicts on planted sweeps: each has its negative twin."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest
from planted_lines import GRID, MOVES, STAYS, Optima, line, with_status
from there import there

from hpxfer.analysis import Finding, report_line
from hpxfer.verdict.findings import Rules
from hpxfer.verdict.judge import NO_NOISE, judge
from hpxfer.verdict.loss_grid import loss_grids
from hpxfer.verdict.transfer import find
from hpxfer.verdict.words import verdict_line


def finding(frame: pd.DataFrame, label: str = "completep-moe") -> Finding:
    report = report_line(frame, sweep="planted", hp="lr")
    return next(found for found in report.findings if found.parameterization == label)


def reasons(found: Finding) -> str:
    return "\n".join(found.reasons)


def test_a_transferring_sweep_transfers_and_its_drifting_control_drifts() -> None:
    frame = line({**STAYS, **MOVES})
    ours, control = finding(frame), finding(frame, "sp")
    assert ours.verdict == "transfers"
    assert control.verdict == "drifts"
    assert "control sp drifts (worst shape width 128: loss given up 0.1" in reasons(ours)
    assert verdict_line(ours).startswith("completep-moe: transfers (")
    assert (there(ours.control).verdict, there(ours.control).worst_shape) == ("drifts", "w128")
    assert there(ours.control).worst_regret_nats == control.shapes[-1].regret_nats
    assert (ours.to_add, control.control, control.lacks_control) == ((), None, False)
    assert "control" not in reasons(control)
    assert "width 128: loss given up" in reasons(control)
    assert there(ours.drift).octaves_per_doubling == pytest.approx(0.0, abs=0.05)
    assert there(control.drift).octaves_per_doubling == pytest.approx(-1.0, abs=0.05)


def test_no_control_is_said_first() -> None:
    found = finding(line(STAYS))
    assert (found.verdict, found.control) == ("transfers", None)
    assert verdict_line(found).startswith("completep-moe: transfers, no control (")
    assert "no control (sp) in this sweep" in reasons(found)
    assert [more.parameterization for more in found.to_add] == ["sp"]


def test_a_control_that_was_not_run_is_said_first() -> None:
    frame = pd.concat(
        [line(STAYS), with_status(line(MOVES).query("not is_base"), "missing"), line(MOVES).query("is_base")]
    )
    found = finding(frame)
    assert verdict_line(found).startswith("completep-moe: transfers, control not measured (")
    assert (there(found.control).worst_shape, found.to_add) == (None, ())


def test_what_drifts_needs_no_control() -> None:
    found = finding(line({"completep-moe": MOVES["sp"]}))
    assert (found.verdict, found.to_add) == ("drifts", ())
    assert verdict_line(found).startswith("completep-moe: drifts (")
    assert "no control (sp)" in reasons(found)


def test_arms_of_a_name_have_their_own_control_or_else_the_plain_one() -> None:
    """With the tuned constants nothing moves. The control under the default constants is not beside them."""
    stays, moves = STAYS["completep-moe"], MOVES["sp"]
    frame = line({"completep-moe": stays, "sp": moves, "completep-moe (tuned)": stays, "sp (tuned)": stays})
    report = report_line(frame, sweep="planted", hp="lr")
    found = {finding.parameterization: finding for finding in report.findings}
    plain, tuned = found["completep-moe"], found["completep-moe (tuned)"]
    assert (there(plain.control).parameterization, there(plain.control).verdict) == ("sp", "drifts")
    assert (there(tuned.control).parameterization, there(tuned.control).verdict) == ("sp (tuned)", "transfers")
    assert "this axis does not tell them apart" in reasons(tuned)
    assert "this axis does not tell them apart" not in reasons(plain)
    assert [found[name].is_control for name in ("sp", "sp (tuned)")] == [True, True]
    assert "With sp you would lose" in report.headline
    assert "With sp (tuned) it transfers too" in report.headline
    alone = there(finding(line({"completep-moe (tuned)": stays, "sp": moves}), "completep-moe (tuned)").control)
    assert alone.parameterization == "sp"


def test_the_control_is_the_arm_that_the_rules_name() -> None:
    """`sp` is the control unless the rules name another arm. Then it is an arm as others are."""
    frame = line({"mine": STAYS["completep-moe"], "plain": MOVES["sp"], "sp": STAYS["completep-moe"]})
    report = report_line(frame, sweep="planted", hp="lr", rules=Rules(control="plain"))
    assert [(found.parameterization, found.is_control, found.verdict) for found in report.findings] == [
        ("mine", False, "transfers"),
        ("sp", False, "transfers"),
        ("plain", True, "drifts"),
    ]
    assert "With plain you would lose" in report.headline
    assert report.control == "plain"
    alone = report_line(line(STAYS), sweep="planted", hp="lr", rules=Rules(control="plain")).findings[0]
    assert [addition.parameterization for addition in alone.to_add] == ["plain"]


def test_losses_from_outside_transfer_beside_a_control_alone() -> None:
    """The draws are the same, so that nothing but the word differs."""
    frame = line({**STAYS, **MOVES})
    named, nameless = (
        report_line(frame, sweep="planted", hp="lr", rules=Rules(control=control, outside=True))
        for control in ("sp", None)
    )
    assert [found.verdict for found in named.findings] == ["transfers", "drifts"]
    assert [found.verdict for found in nameless.findings] == ["stays", "drifts"]
    assert [found.lacking for found in nameless.findings] == [("no control",), ("no control",)]
    assert nameless.findings[0].transfer_chance == named.findings[0].transfer_chance
    assert nameless.findings[0].to_add == ()


def test_axes_are_judged_apart() -> None:
    both = pd.concat([line({**STAYS, **MOVES}), line({**STAYS, "sp": STAYS["completep-moe"]}, axis="depth")])
    report = report_line(both, sweep="planted", hp="lr")
    assert [(found.axis, found.parameterization, found.verdict) for found in report.findings] == [
        ("depth", "completep-moe", "transfers"),
        ("depth", "sp", "transfers"),
        ("width", "completep-moe", "transfers"),
        ("width", "sp", "drifts"),
    ]
    assert "control sp transfers" in report.findings[0].reasons[-1]
    assert "control sp drifts" in report.findings[2].reasons[-1]


def test_regret_is_measured_on_the_grid_and_zero_at_the_base() -> None:
    control = finding(line(MOVES, noise=0.0, curvature=0.04), "sp")
    assert control.base_value == 2.0**-6
    base, middle, top = control.shapes
    assert base.regret_nats == 0.0
    # optima at -7.2 and -8.2, transferred -6, best on the grid -7 and -8
    assert middle.regret_nats == pytest.approx(0.04 * (1.2**2 - 0.2**2))
    assert top.regret_nats == pytest.approx(0.04 * (2.2**2 - 0.2**2))
    assert top.best_value == 2.0**-8
    assert top.regret_percent == pytest.approx(100 * 0.04 * (2.2**2 - 0.2**2) / there(top.best_loss))


def test_regret_in_units_of_the_seed_noise() -> None:
    control = finding(line(MOVES, noise=0.002, seeds=4), "sp")
    assert control.noise_nats == pytest.approx(0.002, rel=0.3)
    top = control.shapes[-1]
    of_its_own_noise = there(top.regret_nats) / control.noise_nats
    assert top.regret_noise_units == pytest.approx(of_its_own_noise, rel=0.3)
    assert top.regret_se_nats == pytest.approx(0.002 * math.sqrt(math.pi / 2 * (1 / 4 + 1 / 4)), rel=0.4)


@pytest.mark.parametrize(
    ("per_doubling", "verdict", "why"),
    [
        (0.1, "transfers", "to -0.1"),
        (0.35, "transfers", "octaves (95%): less than 1 octave"),
        (0.5, "undecided", "perhaps more than 1 octave"),
        (0.65, "drifts", "differ by 1 octave or more"),
    ],
)
def test_one_octave_over_the_scales_is_the_limit_of_a_move(per_doubling: float, verdict: str, why: str) -> None:
    """The basin is so flat that no regret tells."""
    optima: Optima = {"completep-moe": lambda doublings: -6.0 - per_doubling * doublings}
    ours = finding(line(optima, curvature=0.004, noise=2e-4, seeds=3))
    assert ours.verdict == verdict
    assert why in reasons(ours)
    assert "over the limit" not in reasons(ours)


def test_a_move_of_less_than_an_octave_drifts_if_it_costs_more_than_one_percent() -> None:
    optima: Optima = {"completep-moe": lambda doublings: -6.0 - 0.45 * doublings}
    ours = finding(line(optima, curvature=0.1, grid=[e / 2 for e in range(-17, -7)]))
    assert ours.verdict == "drifts"
    assert "over the limit" in reasons(ours)
    assert "octave or more" not in reasons(ours)


def believed(
    transfers: float, *, moved: float = 0.0, over: float = 0.0, se: float = 0.001, regret: float = 0.0
) -> Finding:
    """Return a finding in which the chances, and the regret at the largest shape with its error, are these."""
    found = finding(line(STAYS))
    top = replace(found.shapes[-1], over_chance=over, regret_nats=regret, regret_se_nats=se)
    found = replace(found, move_chance=moved, move_between=(32.0, 128.0))
    return replace(found, shapes=(*found.shapes[:-1], top), transfer_chance=transfers)


@pytest.mark.parametrize(
    ("found", "error", "verdict", "why"),
    [
        (believed(0.99), 0.02, "transfers", "within the limit"),
        (believed(0.97), 0.02, "undecided", "probability 97.0% that the HP transfers, 98% is needed"),
        (believed(0.97), 0.05, "transfers", "within the limit"),
        (believed(0.0, over=0.99, regret=0.05), 0.02, "drifts", "over the limit"),
        (believed(0.0, over=0.97, regret=0.05), 0.02, "undecided", "perhaps over the limit"),
        (believed(0.0, over=0.99, regret=0.05, se=0.03), 0.02, "undecided", "perhaps over the limit"),
        (believed(0.0, over=0.97, regret=0.05), 0.05, "drifts", "(probability 97.0%)"),
        (believed(0.0, moved=0.99), 0.02, "drifts", "differ by 1 octave or more (probability 99.0%)"),
        (believed(0.0, moved=0.97), 0.02, "undecided", "perhaps more than 1 octave"),
        (believed(0.0, moved=0.5, over=0.5), 0.02, "undecided", "perhaps over the limit"),
    ],
)
def test_a_verdict_is_said_once_it_is_hardly_wrong(found: Finding, error: float, verdict: str, why: str) -> None:
    """Two likely statements are no sure one. A regret within two errors was not measured, whatever the draws say."""
    said, reasons = judge(replace(found, error=error))
    assert said == verdict
    assert why in "\n".join(reasons)


def test_losses_that_scatter_about_every_basin_say_nothing_surely() -> None:
    sure = believed(0.0, moved=1.0)
    assert "(surely)" in "\n".join(judge(sure)[1])
    shapes = tuple(replace(shape, optimum=replace(shape.optimum, misfit=12.0)) for shape in sure.shapes)
    assert "(probability over 99.9%)" in "\n".join(judge(replace(sure, shapes=shapes))[1])


def test_what_does_not_transfer_says_why_it_is_not_called_drifts() -> None:
    why = "\n".join(judge(replace(believed(0.0001, moved=0.9, over=0.6, regret=0.05), verdict="undecided"))[1])
    assert "it does not" in why
    assert "it is not called drifts" in why
    assert "90.0% that two shapes differ by 1 octave or more" in why
    assert "60.0% that width 128 is over its limit" in why


def test_an_error_above_the_limit_leaves_the_verdict_open() -> None:
    """The limit does not grow with noise: an error as large as the limit leaves the verdict open."""
    limit = finding(line(STAYS)).shapes[-1].limit_nats or 0.0
    said, why = judge(believed(1.0, se=limit))
    assert said == "undecided"
    assert f"over the limit of {limit:.2g}" in "\n".join(why)
    assert judge(believed(1.0, se=0.49 * limit))[0] == "transfers"


def test_the_limit_is_a_share_of_the_loss_or_a_number_of_octaves() -> None:
    (grid,) = loss_grids(line(STAYS))
    by_loss, by_octaves = find([grid])[0], find([grid], Rules(loss=None, octaves=1.0))[0]
    for one, other in zip(by_loss.shapes, by_octaves.shapes, strict=True):
        assert one.limit_nats == pytest.approx(0.01 * (one.best_loss or 0.0))
        assert other.limit_nats == pytest.approx(0.04, rel=0.1)  # the curvature, which both have
        assert one.octave_nats == other.octave_nats == other.limit_nats


def test_a_share_of_a_loss_near_zero_points_to_the_limit_in_octaves() -> None:
    """A loss of 0.03 with the rises of a loss of 3: a hundredth of it is what a twelfth of an octave costs."""
    usual = line(STAYS)
    near_zero = usual.assign(loss=usual["loss"] - usual["loss"].min() + 0.03)
    assert "regret_limit" not in reasons(finding(usual))
    assert "the rule regret_limit may be octaves" in reasons(finding(near_zero))
    (grid,) = loss_grids(near_zero)
    assert "regret_limit" not in reasons(find([grid], Rules(loss=None, octaves=0.5))[0])


@pytest.mark.parametrize(("octaves", "verdict"), [(1.0, "transfers"), (0.25, "drifts")])
def test_the_octaves_of_the_limit_decide(octaves: float, verdict: str) -> None:
    """The transferred HP is 0.8 octaves from the optimum of the largest shape, the best of its grid 0.2."""
    optima: Optima = {"completep-moe": lambda doublings: -6.0 - 0.4 * doublings}
    frame = line(optima, grid=[e / 2 for e in range(-18, -7)], seeds=4, noise=0.001)
    assert find(loss_grids(frame), Rules(loss=None, octaves=octaves))[0].verdict == verdict


def test_one_seed_is_undecided_and_says_what_to_add() -> None:
    frame = line({**STAYS, **MOVES}, seeds=1)
    for label in ("completep-moe", "sp"):
        found = finding(frame, label)
        assert found.verdict == "undecided"
        assert found.reasons[0] == NO_NOISE
        assert (found.noise_nats, found.transfer_chance, found.move) == (None, None, None)
        assert all(shape.regret_se_nats is None for shape in found.shapes)
    assert finding(frame, "sp").shapes[-1].regret_nats == pytest.approx(0.19, abs=0.02)


@pytest.mark.parametrize(("planted", "edge"), [(-10.0, "lower"), (-3.0, "upper")])
def test_a_base_optimum_on_the_edge_is_undecided(planted: float, edge: str) -> None:
    ours = finding(line({"completep-moe": lambda _: planted}))
    assert ours.verdict == "undecided"
    assert f"the optimum is on the {edge} edge of the grid" in ours.reasons[0]
    assert ours.drift is not None
    assert ours.drift.bounds == ("width 32", "width 64", "width 128")
    assert (ours.drift.low, ours.drift.high) == (None, None)


def test_an_optimum_on_the_edge_at_another_shape_is_said_beside_the_verdict() -> None:
    """The best loss of an open basin may be lower than the lowest one measured: regret is a lower bound there."""
    short = [exponent for exponent in GRID if exponent >= -7]
    far = finding(line(MOVES, grid=short), "sp")
    assert [shape.optimum.kind for shape in far.shapes] == ["interior", "lower_edge", "lower_edge"]
    assert far.verdict == "drifts"
    assert far.drift is not None
    assert far.drift.low is None
    assert there(far.drift.high) < -0.3  # the optimum lies below the grid, so it has moved down at least
    near: Optima = {"completep-moe": lambda doublings: -6.2 - 0.2 * doublings}
    scales = (32.0, 64.0, 128.0, 256.0)
    ours = finding(line(near, grid=short, scales=scales, noise=2e-4, seeds=3))
    assert ours.shapes[-1].optimum.kind == "lower_edge"
    assert ours.verdict == "undecided"
    assert "HP value 2^-8 at width 128, width 256, beyond the lower edge of the grid" in reasons(ours)
    said, why = judge(replace(ours, transfer_chance=1.0, move_chance=0.0))
    assert said == "transfers"
    assert "width 256: the regret may be larger: the optimum is on the lower edge" in "\n".join(why)
    assert there(ours.drift).bounds == ("width 128", "width 256")
    assert "may be larger" not in reasons(finding(line(near, scales=scales)))


def test_divergence_at_the_transferred_hp_is_a_drift() -> None:
    control = finding(line(MOVES, diverges_above=2.0), "sp")
    top = control.shapes[-1]
    assert (top.transferred, top.transferred_loss, top.regret_nats) == ("diverged", math.inf, math.inf)
    assert top.regret_percent is None
    assert top.regret_se_nats is None
    assert control.verdict == "drifts"
    assert "width 128: diverges at the transferred HP" in control.reasons


def test_an_optimum_next_to_divergence_says_so() -> None:
    ours = finding(line(STAYS, diverges_above=0.9))
    assert {shape.optimum.kind for shape in ours.shapes} == {"at_divergence"}
    assert all(shape.edge_log2 == -6.0 for shape in ours.shapes)
    assert ours.verdict != "drifts"
    assert "the base optimum sits next to divergence: a finer grid would place it better" in ours.reasons
    said, why = judge(replace(ours, transfer_chance=1.0, move_chance=0.0))
    assert said == "transfers"
    assert "the loss was not seen to rise before it diverges, so the optimum may be that edge" in "\n".join(why)
    further = finding(line(STAYS, diverges_above=1.5))
    assert further.verdict == "transfers"
    assert "may be that edge" not in reasons(further)
    assert all(shape.edge_octaves == pytest.approx(1.2, abs=0.2) for shape in further.shapes)


def test_a_shape_where_everything_diverges_is_a_drift() -> None:
    ours = finding(with_status(line(STAYS), "diverged", scale=128.0))
    assert ours.verdict == "drifts"
    assert ours.shapes[-1].best_loss is None
    assert ours.shapes[-1].optimum.kind == "none"


@pytest.mark.parametrize("status", ["missing", "failed"])
def test_no_result_at_the_transferred_hp_cannot_transfer(status: str) -> None:
    ours = finding(with_status(line(STAYS), status, scale=64.0, value=2.0**-6))
    middle = ours.shapes[1]
    assert (middle.transferred, middle.transferred_loss, middle.regret_nats) == ("missing", None, None)
    assert ours.verdict == "undecided"
    assert "width 64: no result at the transferred HP" in ours.reasons
    assert "2 of 36 trials have no result" in ours.reasons


def test_a_shape_without_results_cannot_transfer_and_the_rest_is_still_said() -> None:
    assert finding(with_status(line(MOVES), "missing", scale=64.0), "sp").verdict == "drifts"
    ours = finding(with_status(line(STAYS), "missing", scale=128.0))
    assert ours.verdict == "undecided"
    assert "width 128: no results" in ours.reasons
    assert ours.shapes[1].regret_nats == 0.0
    assert there(ours.drift).left_out == ("width 128",)


def test_one_missing_seed_far_from_the_optimum_is_a_note() -> None:
    ours = finding(with_status(line(STAYS), "failed", scale=64.0, value=2.0**-9, seed=1))
    assert ours.verdict == "transfers"
    assert "1 of 36 trials have no result" in ours.reasons


def test_a_sweep_without_base_or_without_other_shapes_is_undecided() -> None:
    frame = line(STAYS)
    assert finding(frame[frame["is_base"]]).reasons[0] == "no shape beyond the base"
    headless = finding(frame[~frame["is_base"]])
    assert headless.reasons[0] == "the base shape has no results"
    assert headless.base_value is None
    unrun = finding(with_status(frame, "missing", is_base=True))
    assert unrun.verdict == "undecided"
    assert "0 HP values have a finite loss" in unrun.reasons[0]


def test_zero_is_compared_with_the_best_hp_of_each_shape() -> None:
    """The difference is over the seeds of both, with the noise of a seed that all cells tell."""
    frame = line(STAYS)
    frame.loc[frame["value"] == 2.0**-9, "value"] = 0.0
    ours = finding(frame)
    assert ours.verdict == "transfers"
    (said,) = [reason for reason in ours.reasons if reason.startswith("HP 0 has no place on a log2 axis")]
    start, *shapes = said.split("; its loss minus that of the best HP is ")[1].split(", ")
    loss = frame[(frame["shape"] == ours.shapes[0].shape) & frame["seed"].isin([0, 1, 2])].groupby("value")["loss"]
    number, error = start.removesuffix(f" nats at {ours.name(ours.shapes[0])}").split(" +- ")
    assert float(number) == pytest.approx(loss.mean()[0.0] - there(ours.shapes[0].best_loss), rel=0.05)
    assert 0 < float(error) < 0.1
    assert len(shapes) == len(ours.shapes) - 1
    frame.loc[(frame["value"] == 0.0) & (frame["scale"] == 32), "status"] = "diverged"
    assert any("is a divergence at width 32, " in reason for reason in finding(frame).reasons)
    frame.loc[frame["value"] == 0.0, ["loss", "status"]] = 1.0, "finished"
    assert finding(frame).verdict == "undecided"
