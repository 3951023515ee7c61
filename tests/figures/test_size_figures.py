"""Loss against parameters and experts against their size, from hand-made analyses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from looks import drawn_texts, plain, unlabeled

from hpxfer.analysis.statistics.experts_size import EqualSize, ExpertsAgainstSize, SizePoint
from hpxfer.analysis.statistics.scaling_fit import Count, FitPoint, LossFit, PowerLaw
from hpxfer.figures.experts_size import ExpertsSizeInfo, draw_experts_size, experts_size_info
from hpxfer.figures.parameters import ParametersInfo, draw_parameters, fitted, parameters_info, short

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


def shown(fits: list[LossFit], laws: list[PowerLaw] | None = None) -> ParametersInfo:
    info = parameters_info(fits, laws or [])
    assert isinstance(info, ParametersInfo)
    return info


def test_a_panel_a_count_the_control_last() -> None:
    info = shown([fit("sp", "active"), fit("a", "active"), fit("a", "total")])
    assert [panel.count for panel in info.panels] == ["total", "active"]
    assert [fit_.parameterization for fit_ in info.panels[1].fits] == ["a", "sp"]


def test_the_title_tells_the_slope_over_active_parameters_and_how_well_it_fits() -> None:
    title = plain(shown([fit("a", "active"), fit("a", "total", slope=-0.5)]).title)
    assert title.startswith("Nats per doubling of active parameters: a -0.125")
    assert "(R2 1.00)" in title
    assert "-0.5" not in title


def test_the_table_holds_the_fitted_losses() -> None:
    table = shown([fit("a", "active")], [law("a", "active")]).table()
    assert table["line_nats"].to_list() == pytest.approx([3.0, 2.75, 2.5])
    assert table["power_law_nats"].to_list() == pytest.approx([2.0, 1.5, 1.25])
    assert table["loss_nats"].to_list() == [3.0, 2.75, 2.5]


def test_a_line_is_drawn_where_there_is_one_and_a_law_where_it_holds() -> None:
    both = draw_parameters(shown([fit("a", "active")], [law("a", "active")]))
    assert {"line in the log", "saturating power law", "parameters, active (log scale)", "a R2 1.00"} <= drawn_texts(
        both
    )
    other = draw_parameters(shown([fit("a", "active")], [law("a", "total")]))
    assert "saturating power law" not in drawn_texts(other)
    assert not unlabeled(both)


def test_a_line_is_drawn_no_further_than_its_own_shapes() -> None:
    short_one = replace(fit("sp", "active"), points=fit("sp", "active").points[:2])
    (axes,) = draw_parameters(shown([fit("a", "active"), short_one])).axes
    dashed = [tuple(line.get_xdata()) for line in axes.lines if line.get_linestyle() == "--"]
    assert dashed == [(SIZES[0], SIZES[2]), (SIZES[0], SIZES[1])]


def test_one_size_has_points_but_no_line() -> None:
    """Alone it is no figure; beside a way to count by which sizes differ, it is drawn, and the title tells of those."""
    points = fit("a", "active").points[:1]
    bare = LossFit(parameterization="a", hp="lr", value=None, count="active", points=points, why_not="one size")
    assert fitted(bare, 1e6) is None
    assert parameters_info([bare], []) == "one size"
    info = shown([bare, fit("a", "total")])
    assert info.title.startswith("Nats per doubling of total parameters: a ")
    draw_parameters(info).draw_without_rendering()


def test_without_points_the_reason_is_kept() -> None:
    nothing = LossFit(parameterization="a", hp="lr", value=None, count="active", why_not="no HP was transferred")
    assert parameters_info([nothing], []) == "no HP was transferred"
    assert isinstance(parameters_info([], []), str)


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
    info = experts_size_info(found)
    assert isinstance(info, ExpertsSizeInfo)
    assert [panel.parameterization for panel in info.panels] == ["a", "sp"]
    assert plain(info.title) == "Nats per doubling of experts at equal parameters: a -0.250 [-0.500, +0.000]"
    two = experts_size_info([replace(found[1], groups=(group(), group(-0.125))), found[0]])
    assert isinstance(two, ExpertsSizeInfo)
    assert plain(two.title).endswith(": a -0.250 [-0.500, +0.000], -0.125 [-0.500, +0.000]")
    texts = drawn_texts(draw_experts_size(info))
    assert {"32", "16", "8", "experts (log scale)", "loss (nats)", "w32 d2, 32 of 128 features"} <= texts
    assert not unlabeled(draw_experts_size(info))
    assert info.table()["expert_width"].to_list() == [32, 16, 8] * 2


def test_no_group_no_figure() -> None:
    nothing = ExpertsAgainstSize(parameterization="a", hp="lr", why_not="no two shapes trade experts for size")
    assert experts_size_info([nothing]) == "no two shapes trade experts for size"
