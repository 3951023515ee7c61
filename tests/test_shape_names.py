"""How a user spells a shape, and which shapes statements name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from planted_lines import line

from hpxfer.analysis import report_line
from hpxfer.errors import HpxferError
from hpxfer.figures.optimum import optimum_block, regret_block
from hpxfer.figures.transfer import transfer_info
from hpxfer.results import AxisShape, find_shape
from hpxfer.verdict.findings import Finding
from hpxfer.verdict.report import TransferReport
from hpxfer.verdict.words import move_text

SHAPES = [
    AxisShape(axis=axis, scale_name=scale_name, scale=scale, shape=shape)
    for axis, scale_name, scale, shape in (
        ("width", "width", 32.0, "w32 d2 E4A1 h32"),
        ("width", "width", 64.0, "w64 d2 E4A1 h64"),
        ("experts", "num_experts", 4.0, "w32 d2 E4A1 h32"),
        ("experts", "num_experts", 8.0, "w32 d2 E8A2 h32"),
        ("expert_ratio", "expert_ratio", 8.0, "w32 d2 E4A1 h256"),
        ("joint", "hidden weights", 327680.0, "w64 d4 E8A2 h64"),
    )
]


@pytest.mark.parametrize(
    ("spelled", "shape"),
    [
        ("w64", "w64 d2 E4A1 h64"),
        ("width 64", "w64 d2 E4A1 h64"),
        ("width=64", "w64 d2 E4A1 h64"),
        ("Width64", "w64 d2 E4A1 h64"),
        ("w64 d2 E4A1 h64", "w64 d2 E4A1 h64"),
        ("W64D4E8A2H64", "w64 d4 E8A2 h64"),
        ("num_experts 8", "w32 d2 E8A2 h32"),
        ("experts 8", "w32 d2 E8A2 h32"),
        ("expert_ratio=8", "w32 d2 E4A1 h256"),
        ("joint 327680", "w64 d4 E8A2 h64"),
        ("hidden weights 327680", "w64 d4 E8A2 h64"),
    ],
)
def test_every_spelling_finds_its_shape(spelled: str, shape: str) -> None:
    assert find_shape(SHAPES, spelled, "--base").shape == shape


def test_each_name_that_the_message_lists_works() -> None:
    with pytest.raises(HpxferError) as error:
        find_shape(SHAPES, "w96", "--base")
    assert str(error.value) == (
        "--base: must be a shape of the sweep, got 'w96'; the shapes are width 32, width 64, num_experts 4, "
        "num_experts 8, expert_ratio 8, w64 d4 E8A2 h64"
    )
    listed = str(error.value).partition("the shapes are ")[2].split(", ")
    found = {find_shape(SHAPES, name, "--base").shape for name in listed}
    assert found == {shape.shape for shape in SHAPES}
    with pytest.raises(HpxferError, match="got 'e8', which names several; give w32 d2 E8A2 h32 or w32 d2 E4A1 h256"):
        find_shape(SHAPES, "e8", "--base")
    of_one_scale = [
        replace(SHAPES[0], axis="moe", scale=scale, shape=shape) for scale, shape in enumerate(("D", "E", "F"))
    ]
    of_one_scale[2] = replace(of_one_scale[2], scale=1)
    with pytest.raises(HpxferError, match=r"the shapes are width 0, E, F$"):
        find_shape(of_one_scale, "w96", "--base")


SCALES = (32.0, 64.0, 128.0, 256.0)
PACES = {"stays": 0.0, "slow": -0.4, "fast": -1.2}
Spoil = Callable[[pd.DataFrame], pd.DataFrame]


def flat(rows: pd.DataFrame) -> pd.DataFrame:
    luck = np.random.default_rng(3).standard_normal(len(rows))
    return rows.assign(loss=2.9 + 0.003 * luck)


def diverged(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(loss=np.nan, status="diverged")


def empty(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(loss=np.nan, status="missing")


def beyond(rows: pd.DataFrame) -> pd.DataFrame:
    """The optimum lies far below the grid."""
    return rows.assign(loss=2.5 + 0.05 * (np.log2(rows["value"]) + 14.0) ** 2 + 0.001 * rows["seed"])


def spoiled(pace: str, spoil: Spoil, *scales: float) -> pd.DataFrame:
    """Return a line of an arm and a control with the same trials at the base, some shapes of the arm spoiled."""
    optima = {"arm": lambda doublings: -6.2 + PACES[pace] * doublings, "sp": lambda doublings: -6.2 - doublings}
    frame = line(optima, scales=SCALES, seeds=3)
    hit = frame["scale"].isin(scales) & ((frame["parameterization"] == "arm") | frame["is_base"])
    return pd.concat([frame[~hit], *(spoil(rows) for _, rows in frame[hit].groupby(["scale", "parameterization"]))])


def report_on(frame: pd.DataFrame) -> tuple[TransferReport, Finding]:
    report = report_line(frame, sweep="planted", hp="lr")
    return report, next(finding for finding in report.findings if finding.parameterization == "arm")


@pytest.mark.first
@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("spoil", [flat, diverged, empty, beyond])
@pytest.mark.parametrize("scales", [(32.0,), (128.0,), (256.0,), (32.0, 256.0), (64.0, 128.0, 256.0)])
def test_a_move_names_shapes_with_an_optimum_and_no_others(pace: str, spoil: Spoil, scales: tuple[float, ...]) -> None:
    report, finding = report_on(spoiled(pace, spoil, *scales))
    known = [shape.scale for shape in finding.shapes if shape.optimum.kind != "none"]
    if finding.move is not None:
        assert list(finding.move.scales) == known
        assert set(finding.move_between or ()) <= set(known)
    for reason in (*finding.reasons, move_text(finding) or ""):
        if ends := re.search(r"between width (\d+) and (\d+)( \(without ([\d, ]+)\))? the optimum moves", reason):
            assert [float(end) for end in ends.groups()[:2]] == [known[0], known[-1]]
            between = [scale for scale in SCALES if known[0] < scale < known[-1] and scale not in known]
            assert ([float(scale) for scale in ends[4].split(", ")] if ends[4] else []) == between
        for pair in re.findall(r"the optima at width (\d+) and (\d+)", reason):
            assert {float(scale) for scale in pair} <= set(known)
    lacking = [shape for shape in finding.shapes if not shape.optimum.inside]
    assert {shape.scale for shape in lacking} >= set(scales)
    for shape in lacking:
        said = [reason for reason in finding.reasons if str(shape.optimum.open_because) in reason]
        named = "at the base" if shape.is_base else finding.name(shape)
        if finding.verdict != "drifts" or not shape.is_base:
            assert any(named in reason for reason in said), (finding.verdict, finding.reasons)
    assert any(finding.name(lacking[0]) in text for text in (report.to_text(), str(report.to_dict())))


def test_figures_name_the_shapes_without_an_optimum_and_where_most_is_lost() -> None:
    frame = spoiled("fast", flat, 256.0)
    report, _ = report_on(frame)
    for info in (optimum_block(report, "width"), transfer_info(report, frame)):
        assert not isinstance(info, str)
        assert "No optimum lies inside the grid with" in info.caption
        assert "arm at width 256" in info.caption
    regrets = regret_block(report, "width")
    assert not isinstance(regrets, str)
    assert re.search(r"arm up to \S+ nats at width \d+, sp up to \S+ nats at width 256", regrets.title)


def test_the_headline_says_that_a_control_has_a_value_of_its_own() -> None:
    report, _ = report_on(line({"arm": lambda _: -6.2, "sp": lambda doublings: -7.2 - doublings}, seeds=3))
    assert "With sp at its own 2^-7 you would lose" in report.headline
    third = line({"arm": lambda _: -7.2, "other": lambda _: -6.2, "sp": lambda doublings: -7.2 - doublings}, seeds=3)
    assert "With sp you would lose" in report_on(third)[0].headline
