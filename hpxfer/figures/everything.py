"""All figures of a sweep, and why those that are missing could not be drawn."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from matplotlib.figure import Figure

from hpxfer.analysis import TransferReport
from hpxfer.analysis.everything import Analysis
from hpxfer.analysis.gather import Stored, line_cells
from hpxfer.analysis.search_progress import search_progress
from hpxfer.figures.balance import balance_info, draw_balance
from hpxfer.figures.collapse import collapse_info, draw_collapse, normalized_info
from hpxfer.figures.drawn import Drawn, Info, drawn
from hpxfer.figures.experts_size import draw_experts_size, experts_size_info
from hpxfer.figures.optimum import draw_optimum, optimum_info
from hpxfer.figures.pairs import draw_pairs, pair_names, pairs_info
from hpxfer.figures.parameters import draw_parameters, parameters_info
from hpxfer.figures.regret import draw_regret, regret_info
from hpxfer.figures.search_best import draw_search_best, search_best_info
from hpxfer.figures.search_heatmaps import draw_heatmaps, heatmaps_info
from hpxfer.figures.search_refine import draw_refine, refine_info
from hpxfer.figures.search_steps import draw_search_steps, search_steps_info, steps_names
from hpxfer.figures.stability import draw_stability, stability_info
from hpxfer.figures.surface import draw_surface, surface_info
from hpxfer.figures.training import best_cells, draw_training, loss_curves, training_info
from hpxfer.figures.transfer import axis_transfer_info
from hpxfer.figures.transfer_draw import draw_transfer
from hpxfer.search.heatmaps import Heatmap, heatmaps
from hpxfer.search.replay import replayed
from hpxfer.search.staged_grid import STAGES

_UNFIT = re.compile(r"[^\w.+-]+")  # for a file name: axes are named by the user
Shown = TypeVar("Shown", bound=Info)


@dataclass(frozen=True, kw_only=True)
class _Album:
    """The figures so far."""

    salt: str
    figures: list[Drawn] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def add(self, name: str, info: Shown | str, draw: Callable[[Shown], Figure], *, aside: bool = False) -> None:
        """Draw a figure, or keep the reason why there is none. It stands `aside` if its HP is not judged."""
        name = _UNFIT.sub("_", name)
        if isinstance(info, str):
            self.missing.append(f"{name}: {info}")
        else:
            self.figures.append(drawn(name, info, draw(info), salt=self.salt, aside=aside))


def all_figures(results: Stored, analysis: Analysis) -> tuple[list[Drawn], list[str]]:
    """Return every figure that can be drawn, the judged HP's first, and `name: reason` for every other one."""
    album = _Album(salt=analysis.sweep)
    for report in analysis.reports:
        _add_report(album, results, analysis, report)
        if report.hp == analysis.hp:
            _add_curves(album, results, analysis, report)
    _add_pairs(album, analysis)
    if results.spec.search.kind != "grid":
        _add_search(album, results, analysis)
    album.add("loss-parameters", parameters_info(analysis.loss_fits, analysis.power_laws), draw_parameters)
    album.add("experts-size", experts_size_info(analysis.experts_size), draw_experts_size)
    return album.figures, album.missing


def _axes(report: TransferReport) -> list[str]:
    return list(dict.fromkeys(one.axis for one in report.findings))


def _add_report(album: _Album, results: Stored, analysis: Analysis, report: TransferReport) -> None:
    """Add what a report on one HP shows: losses, optima, regrets, divergence."""
    line, add = results.line(report.hp, report.loss), partial(album.add, aside=report.hp != analysis.hp)
    for axis in _axes(report):
        name = f"{report.hp}-{axis}"
        add(f"transfer-{name}", axis_transfer_info(report, line, axis), draw_transfer)
        add(f"optimum-{name}", optimum_info(report, axis), draw_optimum)
        add(f"regret-{name}", regret_info(report, axis), draw_regret)
        add(f"stability-{name}", stability_info(analysis.stability, axis, report.hp), draw_stability)


def _add_curves(album: _Album, results: Stored, analysis: Analysis, report: TransferReport) -> None:
    """Add what the curves over training show."""
    best = best_cells(report, line_cells(results, report.hp, report.loss))
    known = loss_curves(best, results.curves)
    for axis in _axes(report):
        album.add(f"training-{axis}", training_info(report, axis, best, known), draw_training)
        album.add(f"collapse-{axis}", collapse_info(analysis.collapse, axis), draw_collapse)
        album.add(f"normalized-collapse-{axis}", normalized_info(analysis.collapse, axis), draw_collapse)
        album.add(f"balance-{axis}", balance_info(analysis.balance, axis), draw_balance)


def _add_search(album: _Album, results: Stored, analysis: Analysis) -> None:
    """Add what a search shows: what it came to, and the steps by which it did."""
    kind = results.spec.search.kind
    album.add("search-best", search_best_info(search_progress(results), analysis.search_best, kind), draw_search_best)
    for label, shape in steps_names(analysis.search_steps):
        info = search_steps_info(analysis.search_steps, label, shape)
        album.add(f"search-steps-{label}-{shape}", info, draw_search_steps)
    if kind == "refine":
        played = replayed(results)
        for hp in results.spec.grid:
            album.add(f"search-refine-{hp}", refine_info(played, hp), draw_refine)
    if kind == "staged-grid":
        for one in replayed(results):
            by_stage: dict[str, list[Heatmap]] = {}
            for heatmap in heatmaps(one):
                by_stage.setdefault(heatmap.stage, []).append(heatmap)
            for stage in STAGES:
                name = f"search-heatmaps-{one.track.arm.name}-{stage}"
                album.add(name, heatmaps_info(by_stage.get(stage, ())), draw_heatmaps)


def _add_pairs(album: _Album, analysis: Analysis) -> None:
    """Add what pairs of HPs show."""
    surfaces = analysis.surfaces
    pairs = list(dict.fromkeys((one.first, one.second) for one in surfaces))
    if not pairs:
        album.missing.append("surface: the sweep scans fewer than two HPs")
    for first, second in pairs:
        album.add(f"surface-{first}-{second}", surface_info(surfaces, first, second), draw_surface)
    for name in pair_names(surfaces):
        album.add(f"pairs-{name}", pairs_info(surfaces, name), draw_pairs)
