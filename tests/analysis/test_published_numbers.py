"""Published optima, planted as basins and run through the whole analysis: the published drifts come out."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from planted_lines import line

from hpxfer.analysis import Finding, report_line

STEP_AT_THE_END = {128.0: 9.77e-4, 256.0: 9.77e-4, 512.0: 9.77e-4, 1024.0: 9.77e-4, 2048.0: 1.95e-3}
EVEN = {width: 9.77e-4 * 2 ** (0.2 * k) for k, width in enumerate(STEP_AT_THE_END)}
TWO_OCTAVES_DOWN = {32.0: 2.0**-9, 256.0: 2.0**-11}


def finding(optima: Mapping[float, float], noise: float = 1e-4) -> Finding:
    scales = tuple(optima)

    def log2_optimum(doublings: float) -> float:
        return math.log2(optima[scales[0] * 2.0**doublings])

    frame = line({"sp": log2_optimum}, scales=scales, grid=range(-14, -5), noise=noise, seeds=3)
    return report_line(frame, sweep="published", hp="lr").findings[0]


@pytest.mark.parametrize(("optima", "slope"), [(STEP_AT_THE_END, 0.20), (TWO_OCTAVES_DOWN, -0.67)])
def test_a_published_drift_comes_out_of_the_whole_analysis(optima: Mapping[float, float], slope: float) -> None:
    found = finding(optima)
    assert found.drift is not None
    assert found.drift.octaves_per_doubling == pytest.approx(slope, abs=0.006)
    assert [shape.optimum.log2_value for shape in found.shapes] == pytest.approx(
        [math.log2(lr) for lr in optima.values()], abs=0.02
    )


def test_one_step_of_five_shapes_is_no_line_and_an_even_drift_is_one() -> None:
    """Four equal optima and one an octave off lie on no straight line: the drift says so, its steps say where."""
    step, even = finding(STEP_AT_THE_END).drift, finding(EVEN).drift
    assert step is not None
    assert even is not None
    assert (step.is_line, even.is_line) == (False, True)
    assert [(part.low or 0.0) < 0 < (part.high or 0.0) for part in step.steps] == [True, True, True, False]
    assert step.steps[-1].octaves == pytest.approx(1.0, abs=0.02)
    assert [part.octaves for part in even.steps] == pytest.approx([0.2] * 4, abs=0.03)  # a basin may have a kink


def test_two_octaves_are_a_drift() -> None:
    assert finding(TWO_OCTAVES_DOWN).verdict == "drifts"
