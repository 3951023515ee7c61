"""Stability maps, surfaces, pairs of HPs, loss against parameters and experts against their size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from looks import drawn_texts, plain, unlabeled
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from there import of, there

from hpxfer.analysis import Found
from hpxfer.analysis.statistics.experts_size import EXPERTS_SIZE
from hpxfer.analysis.statistics.scaling_fit import LOSS_FITS, LOSSES_BY_SIZE, Count
from hpxfer.analysis.statistics.stability import STABILITY
from hpxfer.analysis.statistics.statistic import frame_of
from hpxfer.analysis.statistics.surface import PAIR_CELLS, SURFACES
from hpxfer.figures.cells import cell_edges
from hpxfer.figures.chart import Block, draw
from hpxfer.figures.experts_size import experts_size_block
from hpxfer.figures.parameters import parameters_block, short
from hpxfer.figures.stability import stability_block
from hpxfer.figures.surface import CONTOURS, MOST_PANELS, pair_names, pairs_block, surface_block

VALUES = (0.0, 0.125, 0.25, 0.5)
LOSSES = ((5.0, 2.0, 2.5, None), (5.0, 1.5, 1.625, None))
SHARES = ((0.0, 0.0, 0.0, 1.0), (0.0, 0.0, 0.25, None))
CALM = ((0.0,) * 4, (0.0,) * 4)


def stability(
    name: str = "completep-moe",
    *,
    losses: Sequence[Sequence[float | None]] = LOSSES,
    shares: Sequence[Sequence[float | None]] = SHARES,
    distance: float | None = 0.75,
    scales: tuple[float, float] = (32.0, 64.0),
    scale_name: str = "width",
) -> list[dict[str, Any]]:
    """Return the cells of one arm at two shapes, of which the first has an optimum."""
    of = {"axis": "width", "parameterization": name, "hp": "lr", "scale_name": scale_name, "all_diverge": False}
    return [
        {
            **of,
            "shape": f"w{32 * (i + 1)}",
            "scale": scales[i],
            "value": value,
            "loss_nats": losses[i][k],
            "diverged_share": shares[i][k],
            "optimum_log2": (-2.75, None)[i],
            "distance_octaves": (distance, None)[i],
            "edge_octaves_per_doubling": -1.0,
        }
        for i in range(2)
        for k, value in enumerate(VALUES)
    ]


MAP = stability()


def shown(*maps: list[dict[str, Any]]) -> Block:
    found = Found(frame=frame_of((row for cells in maps for row in cells), STABILITY.columns))
    return of(Block, stability_block(found, "width", "lr"))


def test_cells_hold_the_rise_over_the_best_of_their_scale() -> None:
    table = there(shown(MAP).drawn)
    assert table["x"].to_list() == [-3.0, -2.0, -1.0] * 2  # an HP of 0 has no log, and is no part of the rise
    assert table["rise_nats"].fillna(-1).to_list() == [0.0, 0.5, -1, 0.0, 0.125, -1]
    assert table["diverged_share"].fillna(-1).to_list() == [0.0, 0.0, 1.0, 0.0, 0.25, -1]


def test_the_title_tells_how_far_divergence_is() -> None:
    assert shown(MAP).title.endswith("completep-moe at least 0.75")
    assert shown(stability(distance=None)).title.endswith("completep-moe unknown (no optimum there)")
    calm = stability(shares=CALM, distance=None)
    assert shown(calm).title == "No seed diverged along width at any lr of the grid"
    assert shown(calm, stability("sp", distance=None)).title.endswith(
        "completep-moe never diverged, sp unknown (no optimum there)"
    )


def test_what_diverged_and_what_is_missing_are_told_apart() -> None:
    texts = drawn_texts(draw(shown(MAP)))
    assert {"diverged", "no result", "optimum", "25%", "width", "log2 lr (octaves)"} <= texts
    whole = stability(shares=CALM, losses=((5.0, 2.0, 2.5, 3.0),) * 2)
    texts = drawn_texts(draw(shown(whole)))
    assert not {"diverged", "no result"} & texts
    assert not unlabeled(draw(shown(whole)))


def test_the_best_cell_of_a_row_is_dark_and_the_worst_light() -> None:
    figure = draw(shown(MAP))
    filled = [
        patch.get_facecolor() for patch in figure.axes[0].patches if isinstance(patch, Rectangle) and patch.get_fill()
    ]
    light = [0.299 * red + 0.587 * green + 0.114 * blue for red, green, blue, _ in filled]
    assert len(light) == 4
    assert light[0] == light[2] == min(light)
    assert light[1] == max(light)


@pytest.mark.parametrize(
    ("x", "edges"),
    [((3.0,), [2.5, 3.5]), ((0.0, 1.0), [-0.5, 0.5, 1.5]), ((0.0, 1.0, 3.0), [-0.5, 0.5, 2.0, 4.0])],
)
def test_cells_meet_halfway(x: tuple[float, ...], edges: list[float]) -> None:
    assert cell_edges(x) == edges


Pairs = tuple[Found, Found]  # the surfaces, and their cells


def surface(
    tilt: float,
    *,
    shape: str = "w32 d2",
    is_base: bool = True,
    name: str = "a",
    names: tuple[str, str] = ("lr", "eps"),
    has_lowest: bool = True,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the row and the cells of a bowl whose axis is tilted; its last corner diverged."""
    labels = {"parameterization": name, "first": names[0], "second": names[1], "shape": shape, "is_base": is_base}
    cells = [
        {**labels, "log2_first": u, "log2_second": v, "fitted_nats": 2 + 0.1 * (u + tilt * v) ** 2 + 0.05 * v * v}
        for u, v in itertools.product((-2, -1, 0, 1, 2), (-1, 0, 1))
    ]
    cells = [{**cell, "loss_nats": cell["fitted_nats"], "rise_nats": cell["fitted_nats"] - 2} for cell in cells]
    cells[-1] |= {"loss_nats": None, "rise_nats": None}
    lowest = {"lowest_log2_first": 0.0, "lowest_log2_second": 0.0, "loss_nats": 2.0} if has_lowest else {}
    of = {"interaction": -tilt, "interaction_low": -tilt, "interaction_high": -tilt, **lowest}
    return {**labels, **of}, cells


def found_of(*every: tuple[dict[str, Any], list[dict[str, Any]]]) -> Pairs:
    rows, cells = [row for row, _ in every], [cell for _, of_surface in every for cell in of_surface]
    return Found(frame=frame_of(rows, SURFACES.columns)), Found(frame=frame_of(cells, PAIR_CELLS.columns))


def shown_surface(*every: tuple[dict[str, Any], list[dict[str, Any]]]) -> Block:
    return of(Block, surface_block(*found_of(*every), "lr", "eps"))


def test_the_title_tells_the_interaction_at_the_base() -> None:
    info = shown_surface(surface(0.25, shape="w64 d2", is_base=False), surface(0.5))
    assert plain(info.title).startswith("Octaves that the best lr moves per octave of eps: a at the base -0.50")
    assert "w64" not in info.title
    flat = shown_surface(surface(0.0))
    assert "a at the base -0.00" in plain(flat.title) or "a at the base +0.00" in plain(flat.title)


def test_the_base_comes_first_and_sizes_follow_as_numbers() -> None:
    every = [surface(0.5, shape=f"w{width} d2", is_base=width == 64) for width in (256, 1024, 32, 64)]
    titles = [axes.get_title() for axes in draw(shown_surface(*every)).axes]
    assert titles == ["w64 d2 (base), a", "w32 d2, a", "w256 d2, a", "w1024 d2, a"]


def test_the_drawing_of_a_surface_shows_contours_only_around_a_lowest_point() -> None:
    def count(figure: Figure) -> int:
        return len(figure.axes[0].collections)

    figures = [draw(shown_surface(found)) for found in (surface(0.5), surface(0.5, has_lowest=False))]
    assert [count(figure) for figure in figures] == [2, 0]
    assert {"log2 lr (octaves)", "log2 eps (octaves)", "diverged", "w32 d2 (base), a"} <= drawn_texts(figures[0])
    assert not unlabeled(figures[0])


def test_contours_are_those_of_the_fitted_quadratic() -> None:
    """The level lines of a bowl without a tilt are ellipses about its lowest point, whose half axes are known."""
    line = draw(shown_surface(surface(0.0))).axes[0].collections[0]
    outer = max((path.vertices for path in line.get_paths() if len(path)), key=lambda at: np.abs(at).max())
    rise = CONTOURS[-1] * 2.0
    assert np.abs(outer[:, 0]).max() == pytest.approx(math.sqrt(rise / 0.1), rel=0.02)


def test_pairs_at_the_base_one_panel_each_with_numbers() -> None:
    every = [surface(0.5), surface(0.5, names=("lr", "init_scale")), surface(0.5, is_base=False, shape="w64")]
    _, cells = found_of(*every)
    info = of(Block, pairs_block(cells, "a"))
    pairs = info.frame[["first", "second"]].drop_duplicates().itertuples(index=False, name=None)
    assert list(pairs) == [("lr", "eps"), ("lr", "init_scale")]
    assert info.title == "a at the base is best at lr 2^0 with eps 2^0; lr 2^0 with init_scale 2^0"
    texts = drawn_texts(draw(info))
    assert {"best", "lr and eps", "log2 init_scale (octaves)", "diverged"} <= texts
    assert len(info.table()) == 30
    _, more = found_of(*every, surface(0.1, name="sp"), surface(0.1, name="b"))
    assert pair_names(more) == ("a", "b", "sp")
    assert isinstance(pairs_block(found_of(every[2])[1], "a"), str)


def test_too_many_surfaces_are_counted() -> None:
    info = shown_surface(*[surface(0.5, shape=f"w{width}", is_base=False) for width in range(MOST_PANELS + 2)])
    assert info.frame["shape"].nunique() == MOST_PANELS
    assert info.caption.endswith("2 more surfaces are not shown.")


SIZES = (2.0**14, 2.0**16, 2.0**18)


Lines = tuple[list[dict[str, Any]], list[dict[str, Any]]]  # the row of a fit, and its points


def fit(name: str, count: Count, *, slope: float | None = -0.125, num: int = 3, law: bool = False) -> Lines:
    """Return the row and the points of a line, and those of a law between them. Without a slope there is no line."""
    of = {"count": count, "parameterization": name}
    step = -0.125 if slope is None else slope
    points = [
        {
            **of,
            "axis": "width",
            "shape": f"s{i}",
            "params": size,
            "loss_nats": 3 + step * 2 * i,
            "se_nats": 0.01,
            "line_nats": None if slope is None else 3 + step * 2 * i,
            "power_law_nats": 1 + (2.0**14 / size) ** 0.5 if law else None,
        }
        for i, size in enumerate(SIZES[:num])
    ]
    bent = [{**of, "params": size, "power_law_nats": 1 + (2.0**14 / size) ** 0.5} for size in (2.0**15, 2.0**17)]
    row = {**of, "hp": "lr", "value": 0.125, "slope": slope, "slope_low": slope, "slope_high": slope, "r2": 1.0}
    return [] if slope is None else [row], [*points, *(bent if law else ())]


def parameters(*every: Lines, unknown: tuple[tuple[str, str], ...] = ()) -> Block | str:
    rows, points = ([row for each in every for row in each[part]] for part in (0, 1))
    found = Found(frame=frame_of(rows, LOSS_FITS.columns), unknown=unknown)
    return parameters_block(found, Found(frame=frame_of(points, LOSSES_BY_SIZE.columns)))


def drawn_parameters(*every: Lines) -> Block:
    return of(Block, parameters(*every))


def test_a_panel_a_count_the_control_last() -> None:
    info = drawn_parameters(fit("sp", "active"), fit("a", "active"), fit("a", "total"))
    panels = info.frame[["count", "parameterization"]].drop_duplicates().itertuples(index=False, name=None)
    assert list(panels) == [("total", "a"), ("active", "a"), ("active", "sp")]


def test_the_title_tells_the_slope_over_active_parameters_and_how_well_it_fits() -> None:
    title = plain(drawn_parameters(fit("a", "active"), fit("a", "total", slope=-0.5)).title)
    assert title.startswith("Nats per doubling of active parameters: a -0.125")
    assert "(R2 1.00)" in title
    assert "-0.5" not in title


def test_a_line_is_drawn_where_there_is_one_and_a_law_where_it_holds() -> None:
    both = draw(drawn_parameters(fit("a", "active", law=True)))
    assert {"line in the log", "saturating power law", "parameters, active (log scale)", "a R2 1.00"} <= drawn_texts(
        both
    )
    assert "saturating power law" not in drawn_texts(draw(drawn_parameters(fit("a", "active"))))
    assert not unlabeled(both)
    dotted = [line for line in both.axes[0].lines if line.get_linestyle() == ":"]
    assert [len(line.get_xdata()) for line in dotted] == [5], "a law bends between shapes"


def test_a_line_is_drawn_no_further_than_its_own_shapes() -> None:
    (axes,) = draw(drawn_parameters(fit("a", "active"), fit("sp", "active", num=2))).axes
    dashed = [tuple(line.get_xdata()) for line in axes.lines if line.get_linestyle() == "--"]
    assert dashed == [SIZES, SIZES[:2]]


def test_one_size_has_points_but_no_line() -> None:
    """Alone it is no figure; beside a way to count by which sizes differ, it is drawn, and the title tells of those."""
    bare = fit("a", "active", slope=None, num=1)
    assert parameters(bare, unknown=(("a lr active", "one size"),)) == "one size"
    info = drawn_parameters(bare, fit("a", "total"))
    assert info.title.startswith("Nats per doubling of total parameters: a ")
    draw(info).draw_without_rendering()


@pytest.mark.parametrize(
    ("number", "text"), [(950, "950"), (20_000, "20k"), (1_200_000, "1.2M"), (2.5e9, "2.5B"), (999_999, "1e+03k")]
)
def test_counts_are_short(number: float, text: str) -> None:
    assert short(number) == text


def group(name: str, number: int = 0, slope: float | None = -0.25) -> list[dict[str, Any]]:
    of = {"parameterization": name, "hp": "lr", "group": number, "width": 32, "depth": 2, "expert_features": 128}
    ends = {"slope_nats_per_doubling": slope, "slope_low": -0.5, "slope_high": 0.0}
    return [
        {
            **of,
            **ends,
            "active_features": 32,
            "shape": f"E{experts}",
            "num_experts": experts,
            "num_active": experts // 4,
            "expert_width": 128 // experts,
            "loss_nats": 3 - 0.25 * i,
            "se_nats": 0.01,
            "num_seeds": 2,
        }
        for i, experts in enumerate((4, 8, 16))
    ]


def experts(*groups: list[dict[str, Any]]) -> Block:
    found = Found(frame=frame_of((row for each in groups for row in each), EXPERTS_SIZE.columns))
    return of(Block, experts_size_block(found))


def test_experts_against_size_tell_the_slope_and_the_widths() -> None:
    info = experts(group("sp", slope=None), group("a"))
    assert list(dict.fromkeys(info.frame["parameterization"])) == ["a", "sp"]
    assert plain(info.title) == "Nats per doubling of experts at equal parameters: a -0.250 [-0.500, +0.000]"
    two = experts(group("a"), group("a", 1, -0.125), group("sp", slope=None))
    assert plain(two.title).endswith(": a -0.250 [-0.500, +0.000], -0.125 [-0.500, +0.000]")
    texts = drawn_texts(draw(info))
    assert {"32", "16", "8", "experts (log scale)", "loss (nats)", "w32 d2, 32 of 128 features"} <= texts
    assert not unlabeled(draw(info))
    assert info.table()["expert_width"].to_list() == [32, 16, 8] * 2


def test_groups_of_one_layout_are_lines_of_their_own() -> None:
    """They may differ in what the legend does not say, such as the number of steps."""
    (axes,) = draw(experts(group("a"), group("a", 1))).axes
    assert [len(line.get_xdata()) for line in axes.lines] == [3, 3]


@pytest.mark.parametrize("scale_name", ["rank", "text", "measured", "row", "x", "axis"])
def test_a_scale_of_any_name_changes_no_cell(scale_name: str) -> None:
    named = draw(shown(stability(scale_name=scale_name))).axes[0]
    assert named.get_ylabel() == scale_name
    assert len(named.patches) == len(draw(shown(MAP)).axes[0].patches)


def test_shapes_of_one_scale_have_rows_of_their_own() -> None:
    twins = shown(stability(scales=(32.0, 32.0)))
    assert len(twins.table()) == 6
    assert [text.get_text() for text in draw(twins).axes[0].get_yticklabels()] == ["32", "32"]
