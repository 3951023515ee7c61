"""Classification errors against the scale: a line per arm, for the end of training and for held-out samples."""

from __future__ import annotations

from matplotlib.axes import Axes

from hpxfer.analysis import Found
from hpxfer.analysis.statistics.errors import said
from hpxfer.figures import style
from hpxfer.figures.chart import Block, Chart, Line, Look, draw
from hpxfer.figures.kinds import HPFigure
from hpxfer.figures.text import listed, rows_of, why_no_rows
from hpxfer.host import CONTROL

PANELS = {"train": "training, over the final window", "validation": "held-out samples"}


def errors_block(found: Found, axis: str, control: str | None = CONTROL) -> Block | str:
    """Return what the figure of one axis shows, or why there is none."""
    rows = rows_of(found, axis, control)
    known = set(rows.columns[rows.notna().any()])
    kind = next((kind for kind in ("top5_error", "error") if f"train_{kind}" in known), "error")
    shown = {f"{of}_{kind}": title for of, title in PANELS.items() if f"{of}_{kind}" in known}
    if not shown:
        return why_no_rows(found, axis, "no shape has errors")
    marks = style.marks(list(rows["parameterization"]), control)
    compared = set(rows["against"])
    looks: dict[str, Look] = {name: (*look, "--") if name in compared else look for name, look in marks.items()}
    scale, word = rows["scale_name"].iloc[0], kind.replace("top5_", "top-5 ")

    def finish(axes: Axes) -> None:
        style.set_axes(axes, scale, f"{word} (share of samples)")
        style.log2_scale_axis(axes, rows["scale"].to_list(), scale)

    charts = (
        Chart(
            x="scale",
            lines=(Line(y=name, se=f"{name}_se", marker="arm"),),
            color="parameterization",
            looks=looks,
            titles={None: title},
            x_log2=True,
            finish=lambda axes, *_: finish(axes),
        )
        for name, title in shown.items()
    )
    return Block(
        title=f"{word.capitalize()} along {axis} at the transferred {rows['hp'].iloc[0]}: {listed(list(said(rows)))}",
        caption="Errors of every shape at the HP transferred from the base, as means over seeds with two standard "
        "errors. A dashed line is the arm that others are compared with.",
        frame=rows,
        charts=tuple(charts),
    )


ERRORS = HPFigure(
    name="errors",
    question="Which arm makes fewer errors as the model grows?",
    infos=lambda given: {
        axis: errors_block(given.analysis.found("errors"), axis, given.analysis.control)
        for axis in given.axes
        if len(given.analysis.found("errors").frame)
    },
    draw=draw,
    judged_only=True,
)
