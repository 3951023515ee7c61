"""Routers against the scale, from hand-made lines."""

from __future__ import annotations

from dataclasses import replace

from looks import drawn_texts

from hpxfer.analysis.statistics.routers import (
    ABSOLUTE,
    ENTROPY,
    LOAD,
    MARGIN,
    MOVED,
    RELATIVE,
    UPDATE,
    RouterLine,
    RouterPoint,
)
from hpxfer.figures.routers import RoutersInfo, draw_routers, routers_info


def line(name: str, metric: str, means: tuple[float, ...], when: str = "end", se: float = 0.01) -> RouterLine:
    points = tuple(
        RouterPoint(
            shape=f"w{scale}",
            scale=float(scale),
            is_base=scale == 32,
            step=99,
            mean=mean,
            se=se,
            num_seeds=3,
            num_diverged=0,
            layers=(mean - 0.01, mean + 0.01),
        )
        for scale, mean in zip((32, 64, 128), means, strict=False)
    )
    return RouterLine(
        axis="width",
        parameterization=name,
        hp="lr",
        scale_name="width",
        metric=metric,
        when=when,
        unit="1",
        scales=tuple(point.scale for point in points),
        means=means,
        points=points,
    )


ENTROPIES = (line("sp", ENTROPY, (0.8, 0.6, 0.4)), line("mup", ENTROPY, (0.8, 0.81, 0.805)))


def info_of(*lines: RouterLine) -> RoutersInfo:
    info = routers_info(lines, "width")
    assert isinstance(info, RoutersInfo)
    return info


def test_the_title_says_what_is_seen() -> None:
    title = info_of(*ENTROPIES).title
    assert title == (
        "Router entropy as a share of log M at the end of training, from width 32 to 128: mup 0.8 and 0.81, no sure "
        "change, sp falls from 0.8 to 0.4"
    )
    one_seed = [replace(each, points=tuple(replace(p, se=None) for p in each.points)) for each in ENTROPIES]
    assert info_of(*one_seed).title.count("no sure change") == 2
    assert info_of(line("sp", LOAD, (0.5,))).title.endswith("in fair shares, at the end of training: sp 0.5")
    only_start = line("sp", ENTROPY, (1.0, 1.0), "start")
    assert info_of(only_start).title == "Routers along width"


def test_panels_and_their_data() -> None:
    update = replace(line("sp", RELATIVE, (0.1, 0.2, 0.4)), exponent=1.0, exponent_low=0.9, exponent_high=1.1)
    zero = line("mup", UPDATE, (0.1, 0.05, 0.02))
    info = info_of(*ENTROPIES, update, line("sp", UPDATE, (1.0, 1.0, 1.0)), zero)
    assert [(panel.metric, [each.parameterization for each in panel.lines]) for panel in info.panels] == [
        (ENTROPY, ["mup", "sp"]),
        (RELATIVE, ["sp"]),
        (UPDATE, ["mup"]),
    ]
    table = info.table()
    assert len(table) == 5 * 3 * 3, "a row for the mean and one for each of two layers"
    assert set(table["layer"].dropna()) == {0, 1}
    figure = draw_routers(info)
    figure.draw_without_rendering()  # a warning is an error
    texts = drawn_texts(figure)
    assert "sp: exponent +1.00 [+0.90, +1.10]" in texts


def test_a_margin_may_be_negative() -> None:
    """A balancing rule may choose against the logits."""
    margins = (-0.3, -0.2, -0.1)
    figure = draw_routers(info_of(line("sp", MARGIN, margins)))
    low, high = figure.axes[0].get_ylim()
    assert low < min(margins)
    assert max(margins) < high


def test_a_router_that_starts_at_zero_has_its_distance_in_absolute_numbers() -> None:
    moved = [line("sp", MOVED, (1.0, 2.0)), line("sp", ABSOLUTE, (0.1, 0.1)), line("mup", ABSOLUTE, (0.2, 0.1))]
    panels = info_of(*moved).panels
    assert [(panel.metric, [each.parameterization for each in panel.lines]) for panel in panels] == [
        (MOVED, ["sp"]),
        (ABSOLUTE, ["mup"]),
    ]


def test_no_router_no_figure() -> None:
    none = RouterLine(axis="width", parameterization="sp", hp="lr", scale_name="width", why_not="no shape has experts")
    assert routers_info([none], "width") == "no shape has experts"
