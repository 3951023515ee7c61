"""Stability maps, surfaces, pairs of HPs, loss against parameters and experts against their size."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from looks import drawn_texts, plain, unlabeled
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from there import of

from hpxfer.analysis.statistics.experts_size import EqualSize, ExpertsAgainstSize, SizePoint
from hpxfer.analysis.statistics.scaling_fit import Count, FitPoint, LossFit, PowerLaw
from hpxfer.analysis.statistics.stability import StabilityMap
from hpxfer.analysis.statistics.surface import Surface, fit_surface
from hpxfer.figures.cells import cell_edges
from hpxfer.figures.chart import Block, draw
from hpxfer.figures.experts_size import experts_size_block
from hpxfer.figures.parameters import fitted, parameters_block, short
from hpxfer.figures.stability import stability_block
from hpxfer.figures.surface import MOST_PANELS, cells_of, pair_names, pairs_block, surface_block

MAP = StabilityMap(
    axis="width",
    scale_name="width",
    parameterization="completep-moe",
    hp="lr",
    shapes=("w32", "w64"),
    scales=(32.0, 64.0),
    values=(0.0, 0.125, 0.25, 0.5),
    diverged_share=((0.0, 0.0, 0.0, 1.0), (0.0, 0.0, 0.25, None)),
    losses=((5.0, 2.0, 2.5, None), (5.0, 1.5, 1.625, None)),
    edges_log2=(-2.0, -3.0),
    all_diverge=(False, False),
    optima_log2=(-2.75, None),
    distance_octaves=(0.75, None),
    edge_octaves_per_doubling=-1.0,
)


def shown(*maps: StabilityMap) -> Block:
    return of(Block, stability_block(maps, "width", "lr"))


def test_cells_hold_the_rise_over_the_best_of_their_scale() -> None:
    table = shown(MAP).table()
    assert table["log2_lr"].to_list() == [-3.0, -2.0, -1.0] * 2  # an HP of 0 has no log, and is no part of the rise
    assert table["rise_nats"].fillna(-1).to_list() == [0.0, 0.5, -1, 0.0, 0.125, -1]
    assert table["diverged_share"].fillna(-1).to_list() == [0.0, 0.0, 1.0, 0.0, 0.25, -1]


def test_the_title_tells_how_far_divergence_is() -> None:
    assert shown(MAP).title.endswith("completep-moe at least 0.75")
    unknown = replace(MAP, distance_octaves=(None, None))
    assert shown(unknown).title.endswith("completep-moe unknown (no optimum there)")
    calm = replace(MAP, diverged_share=((0.0,) * 4, (0.0,) * 4), distance_octaves=(None, None))
    assert shown(calm).title == "No seed diverged along width at any lr of the grid"
    assert shown(calm, replace(unknown, parameterization="sp")).title.endswith(
        "completep-moe never diverged, sp unknown (no optimum there)"
    )


def test_what_diverged_and_what_is_missing_are_told_apart() -> None:
    texts = drawn_texts(draw(shown(MAP)))
    assert {"diverged", "no result", "optimum", "25%", "width", "log2 lr (octaves)"} <= texts
    whole = replace(MAP, diverged_share=((0.0,) * 4, (0.0,) * 4), losses=((5.0, 2.0, 2.5, 3.0),) * 2)
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


def surface(
    tilt: float, *, shape: str = "w32 d2", is_base: bool = True, name: str = "a", names: tuple[str, str] = ("lr", "eps")
) -> Surface:
    """Return the surface of a bowl whose axis is tilted; its last corner diverged."""
    cells = list(itertools.product((-2, -1, 0, 1, 2), (-1, 0, 1)))
    losses = [2 + 0.1 * (u + tilt * v) ** 2 + 0.05 * v * v for u, v in cells]
    losses[-1] = float("inf")
    first, second = zip(*((2.0**u, 2.0**v) for u, v in cells), strict=True)
    found = fit_surface(first, second, losses)
    return replace(found, first=names[0], second=names[1], shape=shape, is_base=is_base, parameterization=name)


def test_the_title_tells_the_interaction_at_the_base() -> None:
    info = of(Block, surface_block([surface(0.25, shape="w64 d2", is_base=False), surface(0.5)], "lr", "eps"))
    assert plain(info.title).startswith("Octaves that the best lr moves per octave of eps: a at the base -0.50")
    assert "w64" not in info.title
    flat = of(Block, surface_block([surface(0.0)], "lr", "eps"))
    assert "a at the base -0.00" in plain(flat.title) or "a at the base +0.00" in plain(flat.title)


def test_the_base_comes_first_and_sizes_follow_as_numbers() -> None:
    every = [surface(0.5, shape=f"w{width} d2", is_base=width == 64) for width in (256, 1024, 32, 64)]
    info = of(Block, surface_block(every, "lr", "eps"))
    titles = [axes.get_title() for axes in draw(info).axes]
    assert titles == ["w64 d2 (base), a", "w32 d2, a", "w256 d2, a", "w1024 d2, a"]


def test_cells_rise_over_the_best_and_a_diverged_one_has_no_number() -> None:
    rises = [rise for *_, rise in cells_of(surface(0.0))]
    assert rises[7] == 0
    assert rises[0] == pytest.approx(0.45)
    assert rises[-1] is None
    info = of(Block, surface_block([surface(0.0)], "lr", "eps"))
    table = info.table()
    assert table["loss_nats"].isna().to_list() == [False] * 14 + [True]
    assert table["fitted_nats"].to_list() == pytest.approx([*table["loss_nats"].to_list()[:14], 2.45])


def test_the_drawing_of_a_surface_shows_contours_only_around_a_lowest_point() -> None:
    def count(figure: Figure) -> int:
        return len(figure.axes[0].collections)

    bowl, hill = surface(0.5), surface(0.5)
    hill = replace(hill, loss=None, log2_values=None, why_no_optimum="the lowest point is off the grid")
    figures = [draw(info) for found in (bowl, hill) if isinstance(info := surface_block([found], "lr", "eps"), Block)]
    assert [count(figure) for figure in figures] == [2, 0]
    assert {"log2 lr (octaves)", "log2 eps (octaves)", "diverged", "w32 d2 (base), a"} <= drawn_texts(figures[0])
    assert not unlabeled(figures[0])


def test_pairs_at_the_base_one_panel_each_with_numbers() -> None:
    every = [surface(0.5), surface(0.5, names=("lr", "init_scale")), surface(0.5, is_base=False, shape="w64")]
    info = of(Block, pairs_block(every, "a"))
    pairs = info.frame[["first", "second"]].drop_duplicates().itertuples(index=False, name=None)
    assert list(pairs) == [("lr", "eps"), ("lr", "init_scale")]
    assert info.title == "a at the base is best at lr 2^0 with eps 2^0; lr 2^0 with init_scale 2^0"
    texts = drawn_texts(draw(info))
    assert {"best", "lr and eps", "log2 init_scale (octaves)", "diverged"} <= texts
    assert len(info.table()) == 30
    assert pair_names([*every, surface(0.1, name="sp"), surface(0.1, name="b")]) == ("a", "b", "sp")
    assert isinstance(pairs_block(every[2:], "a"), str)


def test_too_many_surfaces_are_counted() -> None:
    every = [surface(0.5, shape=f"w{width}", is_base=False) for width in range(MOST_PANELS + 2)]
    info = of(Block, surface_block(every, "lr", "eps"))
    assert info.frame["shape"].nunique() == MOST_PANELS
    assert info.caption.endswith("2 more surfaces are not shown.")


SIZES = (2.0**14, 2.0**16, 2.0**18)


def fit(name: str, count: Count, *, slope: float = -0.125) -> LossFit:
    points = [
        FitPoint(shape=f"s{i}", axis="width", params=size, loss=3 + slope * 2 * i, se=0.01, num_seeds=3)
        for i, size in enumerate(SIZES)
    ]
    return LossFit(
        parameterization=name,
        hp="lr",
        value=0.125,
        count=count,
        points=tuple(points),
        slope=slope,
        slope_low=slope,
        slope_high=slope,
        intercept=3 - 14 * slope,
        r2=1.0,
    )


def law(name: str, count: Count) -> PowerLaw:
    return PowerLaw(
        parameterization=name,
        hp="lr",
        value=0.125,
        count=count,
        points=fit(name, count).points,
        floor=1.0,
        log2_scale=14.0,
        exponent=0.5,
    )


def parameters(fits: list[LossFit], laws: list[PowerLaw] | None = None) -> Block:
    return of(Block, parameters_block(fits, laws or []))


def test_a_panel_a_count_the_control_last() -> None:
    info = parameters([fit("sp", "active"), fit("a", "active"), fit("a", "total")])
    panels = info.frame[["count", "parameterization"]].drop_duplicates().itertuples(index=False, name=None)
    assert list(panels) == [("total", "a"), ("active", "a"), ("active", "sp")]


def test_the_title_tells_the_slope_over_active_parameters_and_how_well_it_fits() -> None:
    title = plain(parameters([fit("a", "active"), fit("a", "total", slope=-0.5)]).title)
    assert title.startswith("Nats per doubling of active parameters: a -0.125")
    assert "(R2 1.00)" in title
    assert "-0.5" not in title


def test_the_table_holds_the_fitted_losses() -> None:
    table = parameters([fit("a", "active")], [law("a", "active")]).table()
    assert table["line_nats"].to_list() == pytest.approx([3.0, 2.75, 2.5])
    assert table["power_law_nats"].to_list() == pytest.approx([2.0, 1.5, 1.25])
    assert table["loss_nats"].to_list() == [3.0, 2.75, 2.5]


def test_a_line_is_drawn_where_there_is_one_and_a_law_where_it_holds() -> None:
    both = draw(parameters([fit("a", "active")], [law("a", "active")]))
    assert {"line in the log", "saturating power law", "parameters, active (log scale)", "a R2 1.00"} <= drawn_texts(
        both
    )
    other = draw(parameters([fit("a", "active")], [law("a", "total")]))
    assert "saturating power law" not in drawn_texts(other)
    assert not unlabeled(both)


def test_a_line_is_drawn_no_further_than_its_own_shapes() -> None:
    short_one = replace(fit("sp", "active"), points=fit("sp", "active").points[:2])
    (axes,) = draw(parameters([fit("a", "active"), short_one])).axes
    dashed = [tuple(line.get_xdata()) for line in axes.lines if line.get_linestyle() == "--"]
    assert dashed == [SIZES, SIZES[:2]]


def test_one_size_has_points_but_no_line() -> None:
    """Alone it is no figure; beside a way to count by which sizes differ, it is drawn, and the title tells of those."""
    points = fit("a", "active").points[:1]
    bare = LossFit(parameterization="a", hp="lr", value=None, count="active", points=points, why_not="one size")
    assert fitted(bare, 1e6) is None
    assert parameters_block([bare], []) == "one size"
    info = parameters([bare, fit("a", "total")])
    assert info.title.startswith("Nats per doubling of total parameters: a ")
    draw(info).draw_without_rendering()


@pytest.mark.parametrize(
    ("number", "text"), [(950, "950"), (20_000, "20k"), (1_200_000, "1.2M"), (2.5e9, "2.5B"), (999_999, "1e+03k")]
)
def test_counts_are_short(number: float, text: str) -> None:
    assert short(number) == text


def group(slope: float | None = -0.25) -> EqualSize:
    points = tuple(
        SizePoint(
            shape=f"E{experts}",
            num_experts=experts,
            num_active=experts // 4,
            expert_width=128 // experts,
            loss=3 - 0.25 * i,
            se=0.01,
            num_seeds=2,
        )
        for i, experts in enumerate((4, 8, 16))
    )
    return EqualSize(
        width=32, depth=2, expert_features=128, active_features=32, points=points, slope=slope, low=-0.5, high=0.0
    )


def test_experts_against_size_tell_the_slope_and_the_widths() -> None:
    found = [
        ExpertsAgainstSize(parameterization="sp", hp="lr", groups=(group(None),)),
        ExpertsAgainstSize(parameterization="a", hp="lr", groups=(group(),)),
        ExpertsAgainstSize(parameterization="b", hp="lr", why_not="nothing"),
    ]
    info = of(Block, experts_size_block(found))
    assert list(dict.fromkeys(info.frame["parameterization"])) == ["a", "sp"]
    assert plain(info.title) == "Nats per doubling of experts at equal parameters: a -0.250 [-0.500, +0.000]"
    two = of(Block, experts_size_block([replace(found[1], groups=(group(), group(-0.125))), found[0]]))
    assert plain(two.title).endswith(": a -0.250 [-0.500, +0.000], -0.125 [-0.500, +0.000]")
    texts = drawn_texts(draw(info))
    assert {"32", "16", "8", "experts (log scale)", "loss (nats)", "w32 d2, 32 of 128 features"} <= texts
    assert not unlabeled(draw(info))
    assert info.table()["expert_width"].to_list() == [32, 16, 8] * 2


def test_groups_of_one_layout_are_lines_of_their_own() -> None:
    """They may differ in what the legend does not say, such as the number of steps."""
    twice = ExpertsAgainstSize(parameterization="a", hp="lr", groups=(group(), group()))
    (axes,) = draw(of(Block, experts_size_block([twice]))).axes
    assert [len(line.get_xdata()) for line in axes.lines] == [3, 3]


@pytest.mark.parametrize("scale_name", ["rank", "text", "measured", "row", "x", "axis"])
def test_a_scale_of_any_name_changes_no_cell(scale_name: str) -> None:
    found = shown(replace(MAP, scale_name=scale_name))
    assert list(found.table().columns)[2] == scale_name
    assert len(draw(found).axes[0].patches) == len(draw(shown(MAP)).axes[0].patches)


def test_shapes_of_one_scale_have_rows_of_their_own() -> None:
    twins = shown(replace(MAP, scales=(32.0, 32.0)))
    assert len(twins.table()) == 6
    assert [text.get_text() for text in draw(twins).axes[0].get_yticklabels()] == ["32", "32"]
