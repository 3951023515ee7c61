"""Figures of a sweep: what is shown is decided as data (`*_info`), then drawn (`draw_*`). matplotlib, never pyplot."""

from hpxfer.figures.drawn import Drawn
from hpxfer.figures.everything import all_figures
from hpxfer.figures.transfer import Panel, TransferInfo, transfer_info
from hpxfer.figures.transfer_draw import draw_transfer, save_transfer

__all__ = ["Drawn", "Panel", "TransferInfo", "all_figures", "draw_transfer", "save_transfer", "transfer_info"]
