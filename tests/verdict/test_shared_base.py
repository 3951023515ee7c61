"""One base: arms and axes with the same trials at the base share its basin and hand on one HP value."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from planted_lines import line
from there import there

from hpxfer.analysis import report_line
from hpxfer.verdict.estimate import estimate_all
from hpxfer.verdict.findings import Finding
from hpxfer.verdict.loss_grid import loss_grids
from hpxfer.verdict.shared_base import with_shared_bases

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


def test_an_arm_under_a_second_name_has_the_same_findings() -> None:
    frame = planted(BASE, luck=1)
    twice = findings_on(pd.concat([frame, frame.assign(parameterization="again")]))
    one, other = twice["width", BASE], twice["width", "again"]
    assert (one.base_value, one.verdict) == (other.base_value, other.verdict)
    assert one.shapes[0] == other.shapes[0]


def test_a_base_that_an_arm_lacks_in_part_is_that_of_the_others() -> None:
    frame = planted(BASE, CONTROL, luck=2, seeds=3)
    of_control = (frame["parameterization"] == CONTROL) & frame["is_base"]
    lacking = frame[~(of_control & ((frame["seed"] == 2) | (frame["value"] == 2.0**-7)))]
    whole, found = findings_on(frame), findings_on(lacking)
    for key, finding in found.items():
        assert finding.base_value == whole[key].base_value
        assert finding.shapes[0].num_seeds == 3
        assert finding.shapes[0] == whole[key].shapes[0]


def test_axes_of_one_base_hand_on_one_value() -> None:
    wide = planted(BASE, luck=5)
    deep = line({BASE: lambda doublings: -6.45 + 0.4 * doublings}, noise=0.02, luck=5, axis="depth", scales=(2.0, 8.0))
    deep.loc[deep["is_base"], "loss"] = wide.loc[wide["is_base"], "loss"].to_numpy()
    found = findings_on(pd.concat([wide, deep]))
    width, depth = found["width", BASE], found["depth", BASE]
    assert width.base_value == depth.base_value
    assert width.shapes[0].optimum == depth.shapes[0].optimum
    assert width.shares_base == ()


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
