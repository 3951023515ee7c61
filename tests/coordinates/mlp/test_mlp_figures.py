"""The figures of a check of the family mlp: what they show is tested as data, and their drawing for being written."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from mlp_runs import ZERO_READOUT

from hpxfer.coordinates.checking import check
from hpxfer.coordinates.mlp import Options
from hpxfer.coordinates.mlp.layers_figure import draw_layers, layers_info, shown_steps
from hpxfer.coordinates.mlp.papers_figure import Panel, papers_info
from hpxfer.coordinates.report import CheckReport
from hpxfer.coordinates.write import write_check
from hpxfer.scaling.evaluate import parameterization

# What the losses beside the limit are is not asked here, but that they are shown.
pytestmark = pytest.mark.usefixtures("few_seeds")
POINTS = (16, 32, 64, 128)


@cache
def mssp() -> CheckReport:
    choice = parameterization("mssp-ii", ZERO_READOUT)
    return check(choice, architecture="mlp", optimizer="sgd", points=POINTS, seeds=3, steps=3)


@cache
def one_matrix() -> CheckReport:
    options = Options(expert_matrices=1, gate="softmax", num_active=2)
    return check("mup-moe", architecture="mlp", optimizer="sgd", points=POINTS, seeds=3, steps=5, options=options)


def panels(report: CheckReport) -> dict[str, Panel]:
    return {panel.title: panel for row in papers_info(report, report.axes[0]).rows for panel in row}


def test_the_papers_layout_has_its_panels() -> None:
    info = papers_info(mssp(), mssp().axes[0])
    assert [len(row) for row in info.rows] == [4, 4, 3]
    assert tuple(info.scales) == ("16", "32", "64", "128")
    loss = panels(mssp())["training loss (probe)"]
    assert [line.label for line in loss.lines] == ["16", "32", "64", "128"]
    assert loss.lines[0].steps == (0, 1, 2, 3)
    sent = panels(mssp())["exponent: propagating update"]
    assert [line.label for line in sent.lines] == ["router", "expert in", "expert out"]
    assert (0.5, 2, 3) in sent.predicted  # single experts of mssp-ii grow (MSSP Q.4)


def test_a_line_is_missing_where_a_quantity_is_zero() -> None:
    """Behind a zero readout nothing but the readout moves in the first update."""
    by_label = {line.label: line for line in panels(mssp())["exponent: effective update"].lines}
    assert by_label["readout"].steps == (1, 2, 3)
    assert by_label["expert in"].steps == (2, 3)


def test_a_single_matrix_leaves_out_what_it_lacks() -> None:
    found = panels(one_matrix())
    assert "exponent: backward: pieces of df/dh1" not in found
    assert "expert in" not in {line.label for line in found["exponent: gradient"].lines}


def test_layers_have_slopes_at_the_last_step_and_guides_where_something_is_predicted() -> None:
    info = layers_info(mssp(), mssp().axes[0])
    assert shown_steps(20) == (1, 2, 4, 8, 16, 20)
    assert [name for name, _ in info.rows] == ["RMS of the change", "RMS"]
    names = [panel.title for panel in info.rows[0][1]]
    assert names == ["input features h1", "router logits", "gates", "single experts", "experts' sum h3", "output f"]
    features = info.rows[0][1][0]
    assert features.guide is not None
    assert 1 not in features.lines  # exact zeros have no place on a log axis
    draw_layers(info).draw_without_rendering()


@pytest.mark.slow
@pytest.mark.parametrize("made", [mssp, one_matrix])
def test_all_figures_are_written_and_equal_reports_give_equal_bytes(made: object, tmp_path: Path) -> None:
    assert callable(made)
    report = made()
    axis = report.axes[0].axis
    limit = ("-limit",) if report.axes[0].limit.compared else ()  # a router that chooses without a bias has none
    which = ("", "-papers", "-layers", *limit)
    names = [f"check-{axis}{each}.{kind}" for each in which for kind in ("png", "svg")]
    first, again = (write_check(report, tmp_path / folder) for folder in ("a", "b"))
    assert [path.name for path in first] == ["check.txt", "check.json", *names]
    assert [path.read_bytes() for path in first[2:]] == [path.read_bytes() for path in again[2:]]
