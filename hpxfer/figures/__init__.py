"""Figures of a sweep: what a figure shows is decided as data, then drawn by one function. `transfer` has its own.

`kinds.FIGURES` lists the kinds of figures. Drawing needs matplotlib, and never pyplot.
"""

from hpxfer.figures.every_figure import DrawnFigure, all_figures, line_figures
from hpxfer.figures.kinds import Info
from hpxfer.figures.tau import taus_of
from hpxfer.figures.transfer import Panel, TransferInfo, draw_transfer, save_transfer, transfer_info

__all__ = [
    "DrawnFigure",
    "Info",
    "Panel",
    "TransferInfo",
    "all_figures",
    "draw_transfer",
    "line_figures",
    "save_transfer",
    "taus_of",
    "transfer_info",
]
