"""The look: ids, colors and sizes of an SVG are what a page that inlines it counts on."""

from __future__ import annotations

import re
from io import BytesIO
from xml.etree import ElementTree

import matplotlib
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.transforms import BboxBase

from hpxfer.figures import style

SVG = "{http://www.w3.org/2000/svg}"
WHITE, BLACK = "#ffffff", "#15181c"


def simple(title: str = "a title", label: str = "a line") -> Figure:
    with style.look():
        figure, (axes,) = style.panels(title, 1)
        axes.plot([0.123456, 1.0], [0.5, 2.654321], color=style.ramp(1)[0], marker="o", label=label)
        axes.legend()
    return figure


def contrast(first: str, other: str) -> float:
    """Return the contrast ratio of WCAG 2."""

    def light(color: str) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    low, high = sorted((light(first), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_an_svg_is_one_element_without_sheets_and_with_text_as_text() -> None:
    svg = style.to_svg(simple(), "a")
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    assert not list(root.iter(f"{SVG}style"))
    assert not list(root.iter(f"{SVG}metadata"))
    assert {"a title", "a line"} <= {text.text for text in root.iter(f"{SVG}text")}


def test_ink_is_the_only_neutral_color() -> None:
    svg = style.to_svg(simple(), "a")
    assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) - {style.INK} == set(style.ramp(1))
    root = ElementTree.fromstring(svg)
    assert all(style.INK in text.get("style", "") for text in root.iter(f"{SVG}text"))


def test_ids_of_two_figures_on_a_page_differ() -> None:
    first, other = (set(re.findall(r'\bid="([^"]*)"', style.to_svg(simple(), salt))) for salt in ("a", "b"))
    assert first
    assert not first & other


def test_references_lead_to_ids() -> None:
    svg = style.to_svg(simple(), "a")
    ids = set(re.findall(r'\bid="([^"]*)"', svg))
    assert set(re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', svg))
    assert {first or other for first, other in re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', svg)} <= ids


def test_a_figure_is_laid_out_as_matplotlib_would_and_once_for_all_its_pictures() -> None:
    ours, theirs = simple("a title\nof two lines"), simple("a title\nof two lines")
    before = ours.axes[0].get_position().bounds
    with style.look():
        theirs.savefig(BytesIO(), format="svg")
    style.to_svg(ours, "a")
    laid_out = ours.axes[0].get_position().bounds
    assert laid_out == theirs.axes[0].get_position().bounds != before
    style.to_png(ours)
    assert ours.axes[0].get_position().bounds == laid_out


def test_places_are_rounded_and_texts_are_not() -> None:
    svg = style.to_svg(simple(label="1.23456"), "a")
    assert not re.search(r' d="[^"]*\d\.\d{3}', svg)
    assert ">1.23456<" in svg


def test_names_with_dollars_and_tags_stay_text() -> None:
    root = ElementTree.fromstring(style.to_svg(simple("$\\bad{$ <script>x</script>", "$a$"), "a"))
    assert "$\\bad{$ <script>x</script>" in {text.text for text in root.iter(f"{SVG}text")}
    assert not list(root.iter(f"{SVG}script"))


def test_the_user_s_settings_stay() -> None:
    before = dict(matplotlib.rcParams)
    style.to_png(simple())
    style.to_svg(simple(), "a")
    assert dict(matplotlib.rcParams) == before


def test_colors_are_seen_on_white_and_on_black() -> None:
    colors = [*style.ramp(7), *(color for color, _ in style.MARKS), *(color for color, _ in style.CONTROL_MARKS)]
    assert min(contrast(color, paper) for color in colors for paper in (WHITE, BLACK)) > 1.9


def test_scales_go_from_light_to_dark() -> None:
    light = [contrast(color, "#000000") for color in style.ramp(6)]
    assert light == sorted(light, reverse=True)
    assert len(set(style.ramp(6))) == 6


def test_a_scale_has_one_color_and_the_control_its_own() -> None:
    colors = style.scale_colors([64.0, 32.0, 64.0, 128.0])
    assert list(colors) == [32.0, 64.0, 128.0]
    few, many = style.marks(["a", "sp"]), style.marks(["a", "b", "c", "sp"])
    assert few["sp"] == many["sp"] == style.CONTROL_MARKS[0]
    assert len(set(many.values())) == 4


def test_text_on_cells_is_read() -> None:
    cells = [style.cell_color(share) for share in np.linspace(-0.5, 1.5, 21)]
    assert min(contrast(color, style.text_on(color)) for color in cells) > 3.5
    assert cells[0] == style.cell_color(0.0)
    assert cells[-1] == style.cell_color(1.0)


@given(num=st.integers(0, 2000))
def test_thinned_lines_keep_their_ends_and_make_nothing_up(num: int) -> None:
    steps = [float(i) for i in range(num)]
    x, y = style.thinned(steps, [step**2 for step in steps])
    assert len(x) == len(y) == min(num, style.MAX_POINTS)
    assert x[:1] == steps[:1]
    assert x[-1:] == steps[-1:]
    assert y == [step**2 for step in x]
    assert x == sorted(set(x))


def test_a_picture_does_not_depend_on_which_was_made_first() -> None:
    first, second = simple(), simple()
    svg, png = style.to_svg(first, "a"), style.to_png(first)
    assert (style.to_png(second), style.to_svg(second, "a")) == (png, svg)


def legend_of(labels: list[str]) -> tuple[BboxBase, BboxBase]:
    """Return the places of a legend with these entries, and of its figure, in pixels."""
    with style.look():
        figure, (axes,) = style.panels("a title", 1)
        handles = [axes.plot([0, 1], [0, 1], label=label)[0] for label in labels]
        style.legend_below(figure, handles, columns=5)
        style.lay_out(figure)
    (legend,) = figure.legends
    return legend.get_window_extent(), figure.bbox


@given(st.lists(st.integers(3, 40), min_size=1, max_size=9))
def test_a_legend_is_no_wider_than_its_figure(lengths: list[int]) -> None:
    legend, page = legend_of(["mssp-iii "[: length % 7] + "m" * length for length in lengths])
    assert legend.width <= page.width


def test_a_legend_takes_one_line_where_that_is_wide_enough() -> None:
    assert legend_of(["sp"] * 5)[0].height == legend_of(["sp"])[0].height
    assert legend_of(["m" * 40] * 5)[0].height > legend_of(["m" * 40])[0].height
