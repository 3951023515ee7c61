"""The transfer: the HP that the base hands over, what it costs at every shape, and bases that arms and axes share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted_lines import STAYS, grid_of, line, with_status
from planted_parabolas import grid_at, parabolas
from there import there

from hpxfer.analysis import report_line
from hpxfer.verdict.estimate import estimate_all
from hpxfer.verdict.findings import Finding, Rules
from hpxfer.verdict.loss_grid import LossGrid, loss_grids
from hpxfer.verdict.shared_base import with_shared_bases
from hpxfer.verdict.transfer import find, finding_of

X = np.arange(-9.0, -3.0)


def grid(optima: Sequence[float], *, noise: float = 0.004, seeds: int = 3, luck: int = 0) -> LossGrid:
    """Return parabolas at shapes whose loss falls by 0.1 nats each."""
    return grid_at(parabolas(optima, noise, curvature=0.04, fall=0.1, seeds=seeds, luck=luck, x=X), X)


def along(found: LossGrid, axis: str) -> LossGrid:
    """Return the same losses along another axis."""
    return LossGrid(rows=tuple(replace(row, axis=axis, scale_name=axis) for row in found.rows))


def only(found: LossGrid, rules: Rules | None = None) -> Finding:
    (finding,) = find([found], rules or Rules())
    return finding


def mean_at(found: LossGrid, i: int, value: float | None) -> float:
    cell = there(found.rows[i].cell(value))
    return there(cell.mean)


@given(
    optima=st.lists(st.floats(-8.0, -5.0), min_size=2, max_size=4),
    noise=st.sampled_from((0.0, 0.004, 0.05)),
    luck=st.integers(0, 100),
)
def test_regrets_compare_measured_means_and_are_never_negative(optima: list[float], noise: float, luck: int) -> None:
    losses = grid(optima, noise=noise, luck=luck)
    found = only(losses)
    for i, shape in enumerate(found.shapes):
        assert shape.best_loss == pytest.approx(mean_at(losses, i, shape.best_value))
        assert shape.transferred_loss == pytest.approx(mean_at(losses, i, found.base_value))
        assert shape.regret_nats == pytest.approx((shape.transferred_loss or 0.0) - (shape.best_loss or 0.0))
        assert there(shape.regret_nats) >= 0
        assert shape.same_cell == (shape.best_value == found.base_value)
        assert not shape.same_cell or there(shape.regret_nats) == 0
        assert there(shape.regret_se_nats) >= 0.2 * noise  # the error of the comparison, also where both are one cell
        assert 0 <= there(shape.regret_low_nats) <= there(shape.regret_high_nats)
        lowest = min(cell.mean for cell in losses.rows[i].cells if cell.mean is not None)
        assert there(shape.lowest_loss) == pytest.approx(lowest, rel=1e-12)
    assert found.shapes[0].same_cell


@pytest.mark.parametrize("luck", range(3))
def test_axes_that_share_a_base_share_its_optimum_and_its_hp(luck: int) -> None:
    width, other = grid((-6.2, -6.2, -6.2), luck=luck), grid((-6.2, -6.6, -7.0), luck=luck + 50)
    depth = along(LossGrid(rows=(width.rows[0], *other.rows[1:])), "depth")
    one, two = find([width, depth])
    assert one.base_value == two.base_value
    assert one.shapes[0] == two.shapes[0]
    assert one.noise_nats == two.noise_nats
    assert one.shapes[1].optimum != two.shapes[1].optimum
    apart = along(other, "depth")
    assert find([width, apart])[1].shapes[0].optimum != one.shapes[0].optimum  # a base of its own


def test_the_order_of_grids_changes_no_finding_by_more_than_the_draws() -> None:
    width, depth = grid((-6.2, -6.2, -6.2)), along(grid((-6.2, -6.6, -7.0), luck=9), "depth")
    one, other = find([width, depth]), find([depth, width])[::-1]
    for a, b in zip(one, other, strict=True):
        assert (a.key, a.verdict, a.base_value) == (b.key, b.verdict, b.base_value)
        assert a.noise_nats == pytest.approx(b.noise_nats)
        for shape, same in zip(a.shapes, b.shapes, strict=True):
            assert shape.regret_nats == same.regret_nats
            assert shape.optimum.log2_value == pytest.approx(same.optimum.log2_value, abs=0.05)


def test_equal_losses_give_equal_findings() -> None:
    losses = grid((-6.2, -6.0, -5.9))
    assert only(losses) == only(losses)
    (estimates,) = estimate_all([losses])
    assert finding_of(estimates) == only(losses)


def refined(loss_at_6: float, loss_between: float) -> LossGrid:
    """Return a grid whose base has 2^-6.5 too, where the basin has its optimum, with these means there and at 2^-6."""
    mean_K = 3 + 0.04 * (X + 6.5) ** 2
    mean_K[X == -6.0] = loss_at_6
    jitter_K3 = 0.006 * np.random.default_rng(0).permuted(np.tile([-1.0, 0.0, 1.0], (X.size, 1)), axis=1)
    losses = (mean_K[:, None] + jitter_K3).tolist()
    whole = grid_of(losses, losses, log2_values=X.tolist())
    between = [loss_between - 0.006, loss_between + 0.006, loss_between]
    cell = grid_of([between], log2_values=[-6.5]).rows[0].cells[0]
    cells = tuple(sorted((*whole.rows[0].cells, cell), key=lambda found: found.value))
    return LossGrid(rows=(replace(whole.rows[0], cells=cells), whole.rows[1]))


def test_a_search_that_tried_other_values_at_each_shape_hands_over_one_that_all_have() -> None:
    """The best of the base is 2^-6.5, which the other shape lacks. Both have 2^-6, which measured lower by luck."""
    lucky = only(refined(loss_at_6=2.999, loss_between=3.003))
    assert lucky.shapes[0].optimum.grid_value == 2.0**-6.5
    assert lucky.base_value == lucky.shapes[0].lowest_value == 2.0**-6
    assert [shape.transferred for shape in lucky.shapes] == ["measured", "measured"]
    lower = only(refined(loss_at_6=3.01, loss_between=3.0))
    assert lower.base_value == lower.shapes[0].lowest_value == 2.0**-6.5
    assert [shape.transferred for shape in lower.shapes] == ["measured", "missing"]
    assert lower.verdict == "undecided"


def test_notes_name_odd_runs_and_misfits_and_count_missing_trials() -> None:
    frame = line(STAYS, seeds=3).assign(trial_id="t")
    frame.loc[(frame["value"] == 2.0**-7) & (frame["seed"] == 1) & (frame["scale"] == 64.0), "loss"] += 5.0
    frame = with_status(frame, "failed", scale=128.0, value=2.0**-9, seed=0)
    reasons = find(loss_grids(frame))[0].reasons
    named = "the run of width 64, HP 2^-7, seed 1 (t) ends 5 nats above the other seeds of its cell and is left out"
    assert any(why.startswith(named) for why in reasons)
    assert "1 of 54 trials have no result" in reasons
    rough = line(STAYS, seeds=3, noise=0.002)
    zigzag = np.where(np.log2(rough["value"]) % 2 == 0, 0.03, -0.03)
    rough["loss"] += np.where(rough["scale"] == 64.0, zigzag, 0.0)
    found = find(loss_grids(rough))[0]
    assert found.shapes[1].optimum.misfit is not None
    assert any("width 64: cells scatter about every basin" in why for why in found.reasons)
    assert not any("cells scatter" in why for why in find(loss_grids(line(STAYS, seeds=3, noise=0.01)))[0].reasons)


def test_curves_are_drawn_where_an_optimum_is_claimed() -> None:
    found = only(grid((-6.2, -6.2, -12.0), noise=0.002))
    for shape in found.shapes[:2]:
        values, fitted = zip(*shape.curve, strict=True)
        assert values[int(np.argmin(fitted))] == pytest.approx(shape.optimum.log2_value, abs=0.3)
        assert min(fitted) == pytest.approx(shape.best_loss, abs=0.02)
    assert found.shapes[2].optimum.kind == "lower_edge"
    assert found.shapes[2].curve == ()


def test_the_regret_is_also_a_share_of_what_an_octave_costs() -> None:
    found = only(grid((-6.0, -7.0, -8.0), noise=1e-3))
    top = found.shapes[-1]
    assert top.octave_nats == pytest.approx(0.04, rel=0.15)
    assert top.regret_octave_share == pytest.approx((top.regret_nats or 0.0) / (top.octave_nats or 1.0))
    assert top.regret_octave_share == pytest.approx(4.0, rel=0.15)  # two octaves off
    assert there(found.regret_trend).regret_nats_per_doubling > 0.04


BASE, CONTROL, OWN = "completep-moe", "sp", "mup"
ARMS = {
    BASE: lambda _: -6.45,
    CONTROL: lambda doublings: -6.45 - doublings,
    OWN: lambda doublings: -6.45 - 0.2 * doublings,
}

# Two arms of one base, whose seeds prefer 2^-5. Other shapes of the first arm make 2^-6 look better there.
FIRST = {
    32: "2.2157 2.2564 1.1509 1.1532 1.0276 1.0237 .9818 .9939 .9683 .9754 1.0251 1.0512",
    64: "2.2431 2.2126 1.1502 1.1383 1.0270 1.0099 .9820 .9766 1.0171 .9863 1.1235 1.0154",
    128: "2.2312 2.2540 1.1370 1.1409 1.0222 1.0166 1.0156 1.0078 .9985 1.0116 1.0896 1.2826",
}
SECOND = {
    32: FIRST[32],
    64: "1.2101 1.1972 1.0347 1.0255 .9979 .9915 1.0030 1.0121 1.0557 1.0687 1.3854 1.8447",
    128: "1.0392 1.0359 1.0163 1.0127 .9866 .9743 1.0291 1.0622 1.7289 2.7952 1.8363 2.4954",
}


def frame_of(arms: dict[str, dict[int, str]]) -> pd.DataFrame:
    """Return a line of arms, from losses by scale: two seeds at each value from 2^-9 to 2^-4."""
    planted = line({arm: lambda _: -6.0 for arm in arms})
    losses = [float(loss) for scales in arms.values() for scale in scales for loss in scales[scale].split()]
    return planted.assign(loss=losses)


def findings_on(frame: pd.DataFrame) -> dict[tuple[str, str], Finding]:
    return {finding.key: finding for finding in report_line(frame, sweep="planted", hp="lr").findings}


def handed_on(frame: pd.DataFrame) -> set[float | None]:
    return {finding.base_value for finding in findings_on(frame).values()}


def planted(*arms: str, luck: int, noise: float = 0.02, **more: object) -> pd.DataFrame:
    return line({arm: ARMS[arm] for arm in arms}, noise=noise, luck=luck, **more)  # type: ignore[arg-type]


def test_arms_of_one_base_hand_on_the_value_that_its_seeds_prefer() -> None:
    found = findings_on(frame_of({BASE: FIRST, CONTROL: SECOND}))
    assert {finding.base_value for finding in found.values()} == {2.0**-5}
    assert found["width", BASE].shapes[0] == found["width", CONTROL].shapes[0]
    assert found["width", BASE].shares_base == (CONTROL,)
    assert found["width", BASE].shapes[0].optimum.kind == "interior"  # two seeds tilt a row and do not bend it


@pytest.mark.parametrize("luck", range(6))
def test_an_arm_more_changes_no_value_and_arms_agree_on_the_base(luck: int) -> None:
    alone = handed_on(planted(BASE, luck=luck))
    assert len(alone) == 1
    assert handed_on(planted(BASE, CONTROL, luck=luck)) == alone
    every = findings_on(planted(BASE, CONTROL, OWN, luck=luck))
    assert {finding.base_value for finding in every.values()} == alone
    first, *others = (finding.shapes[0] for finding in every.values())
    for other in others:
        assert other.optimum == first.optimum
        assert other.best_loss == first.best_loss


@pytest.mark.parametrize("names", list(permutations(["a", "b", "c"]))[:3])
def test_names_of_arms_and_the_order_of_rows_play_no_part(names: tuple[str, ...]) -> None:
    frame = planted(BASE, CONTROL, OWN, luck=3)
    renamed = frame.replace({"parameterization": dict(zip((BASE, CONTROL, OWN), names, strict=True))})
    found = findings_on(renamed.sample(frac=1.0, random_state=1))
    (whole,) = handed_on(frame)
    base = findings_on(frame)["width", BASE].shapes[0].optimum.log2_value
    assert {finding.base_value for finding in found.values()} == {whole}
    for finding in found.values():
        assert finding.shapes[0].optimum.log2_value == pytest.approx(base, abs=0.02)


def test_a_base_that_an_arm_lacks_in_part_is_that_of_the_others() -> None:
    frame = planted(BASE, CONTROL, luck=2, seeds=3)
    of_control = (frame["parameterization"] == CONTROL) & frame["is_base"]
    lacking = frame[~(of_control & ((frame["seed"] == 2) | (frame["value"] == 2.0**-7)))]
    whole, found = findings_on(frame), findings_on(lacking)
    for key, finding in found.items():
        assert finding.base_value == whole[key].base_value
        assert finding.shapes[0].num_seeds == 3
        assert finding.shapes[0] == whole[key].shapes[0]


def test_arms_that_differ_at_the_base_have_their_own_value_and_say_so() -> None:
    frame = line({BASE: lambda _: -6.0, CONTROL: lambda doublings: -8.0 - doublings}, noise=0.002)
    found = findings_on(frame)
    assert (found["width", BASE].base_value, found["width", CONTROL].base_value) == (2.0**-6, 2.0**-8)
    assert found["width", BASE].shares_base == ()
    assert "width 32: the model of sp is another one there: it hands on 2^-8, not 2^-6" in found["width", BASE].reasons


def test_a_control_with_other_values_does_not_decide_what_is_handed_on() -> None:
    frame = frame_of({BASE: FIRST})
    expected = handed_on(frame)
    control = frame.assign(parameterization=CONTROL)
    for value in expected:
        control = control[control["is_base"] | (control["value"] != value)]
    assert handed_on(pd.concat([frame, control])) == expected


def shared(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Return whether two arms are found to have one base."""
    frame = pd.concat([one, other.assign(parameterization=CONTROL)])
    first, second = with_shared_bases(loss_grids(frame))
    return first.rows[0].cells == second.rows[0].cells


def test_which_trials_are_the_same() -> None:
    """Ids or three losses say so, and a single loss that differs refutes it. Losses that diverged say nothing."""
    frame = planted(BASE, luck=0)
    named = frame.assign(trial_id=[f"run {i}" for i in range(len(frame))])
    missing = named.assign(status="missing", loss=np.nan)
    other = frame.copy()
    other.loc[0, "loss"] += 1e-6
    assert shared(frame, frame)
    assert shared(named, named.assign(trial_id=named["trial_id"] + " again"))
    assert shared(missing, missing)
    assert not shared(frame, other)
    assert not shared(named, other.assign(trial_id=named["trial_id"]))
    few = frame[~frame["is_base"] | (frame["value"] == 2.0**-6)]
    assert len(few[few["is_base"]]) == 2
    assert not shared(frame, few)


def test_the_base_that_arms_share_counts_once_in_the_noise() -> None:
    frame = planted(BASE, luck=4)
    again = frame.assign(parameterization="again")
    twice = estimate_all(loss_grids(pd.concat([frame, again[again["is_base"]]])))
    once = estimate_all(loss_grids(frame))
    assert twice[0].noise == once[0].noise


def test_the_lowest_mean_is_named_where_another_value_is_expected_to_be_the_best() -> None:
    frame = line({BASE: lambda _: -6.2}, scales=(32.0, 64.0), noise=0.01, curvature=0.008, seeds=3)
    frame.loc[(frame["value"] == 2.0**-5) & frame["is_base"], "loss"] -= 0.01
    (finding,) = findings_on(frame).values()
    base = finding.shapes[0]
    assert (base.lowest_value, base.best_value) == (2.0**-5, 2.0**-6)
    gap = f"{there(base.best_loss) - there(base.lowest_loss):.2g}"
    (note,) = (reason for reason in finding.reasons if "has the lowest mean loss" in reason)
    assert note.startswith(f"width 32: 2^-5 has the lowest mean loss, by {gap} nats, but 2^-6 is expected")
