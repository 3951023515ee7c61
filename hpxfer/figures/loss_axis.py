"""Axes over losses: an error is shown as accuracy, upside down, so that better is up as in any plot of accuracy."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from hpxfer.verdict.loss import JudgedLoss


def loss_label(judged: JudgedLoss, name: str | None = None) -> str:
    """Return the label of an axis over a loss: `loss (nats)`, or `top-5 accuracy (%)`."""
    return f"{name or judged.noun} ({judged.level_unit})"


def loss_axis(axes: Axes, judged: JudgedLoss, name: str | None = None) -> None:
    """Label the y-axis, whose limits are set and whose data are losses. An error gets the numbers of accuracy."""
    axes.set_ylabel(loss_label(judged, name))
    if judged.is_error:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda loss, _: f"{judged.percent(loss):.4g}"))
        axes.yaxis.set_inverted(True)


def axis_note(judged: JudgedLoss) -> str:
    """Return what a caption says of such an axis, with a space before it; empty for a loss."""
    if not judged.is_error:
        return ""
    return f" The axis shows {judged.noun}, which is 1 minus the error. The data of the figure are errors."
