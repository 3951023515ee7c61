"""Staged grid: the LR, then a broad grid of multipliers, then a fine one around its best; MSSP's P.1.2.

A best on the edge of a grid moves its center there along the dimensions that are on the edge, `recenters` times at most
and as long as the budget lasts. Points that grids share are trained once.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpxfer.scaling.hps import HPs
from hpxfer.search import lr_line
from hpxfer.search.arms import arms_of
from hpxfer.search.rounds import End, Losses, OutOfBudget, Round, RoundSearch, Strategy, Track, mean
from hpxfer.search.values import GridAround, names_in, scaled
from hpxfer.spec import SweepSpec
from hpxfer.spec.search_defaults import arm_budget, setting, staged_size
from hpxfer.trial import Expansion

STAGES = ("broad", "fine")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Which grid a round is."""

    name: str  # broad | fine
    move: int  # how often it had moved


@dataclass(frozen=True, kw_only=True)
class _Found:
    hps: HPs
    edges: tuple[str, ...]  # the entries on whose edge it lies
    why: str


def staged_grid(spec: SweepSpec) -> Strategy:
    """Return the strategy of one arm."""
    best, said = yield from lr_line.best_lr(spec)
    if best is None:
        return End(why=said, best=None)
    entries: tuple[str, ...] = spec.search.multipliers or ()
    for name in STAGES:
        grid, move = setting(spec, name), 0
        around = GridAround(best, entries, grid.points, float(grid.ratio))
        while True:
            why = f"{said}: {name} grid, {grid.points}^{len(entries)} points at ratio {grid.ratio:g}"
            try:
                losses = yield Round(points=around, why=why, about=Stage(name=name, move=move))
            except OutOfBudget:
                return End(why=f"{said}: ends before the {name} grid{' moves' if move else ''}", best=best)
            found = _best(around, losses)
            if found is None:
                return End(why=f"{said}: every point of the {name} grid diverged", best=best)
            best, said = found.hps, found.why
            if not found.edges:
                break
            if move == setting(spec, "recenters"):
                said += f", on its edge in {', '.join(found.edges)} after {move} moves: a bound there, not an optimum"
                break
            move += 1
            said += f", on its edge in {', '.join(found.edges)}, so it moves"
            around = GridAround(_moved(around, found), entries, around.points, around.ratio)
    return End(why=said, best=best)


def _best(grid: GridAround, losses: Losses) -> _Found | None:
    means = [mean(one) for one in losses]
    lowest = min(means)
    if lowest == float("inf"):
        return None
    # Of equals the one closest to the center: a dimension that changes nothing is no reason to move.
    equal = [at for at, value in enumerate(means) if value == lowest]
    at = min(equal, key=lambda one: sum(map(abs, grid.steps(one))))
    steps, hps = grid.steps(at), grid[at]
    edges = tuple(entry for entry, step in zip(grid.entries, steps, strict=True) if abs(step) == grid.points // 2)
    values = ", ".join(f"{entry} {hps.get(names_in(entry)[0]):.4g}" for entry in grid.entries)
    return _Found(hps=hps, edges=edges, why=f"best at {values} ({means[at]:.4f} nats)")


def _moved(grid: GridAround, found: _Found) -> HPs:
    """Return the center that the edges of the best ask for."""
    center = grid.center
    for entry in found.edges:
        name = names_in(entry)[0]
        center = scaled(center, names_in(entry), found.hps.get(name) / center.get(name))
    return center


def staged_search(expansion: Expansion) -> RoundSearch:
    """Return the staged grid in every arm, by default in those of the base."""
    spec = expansion.spec
    seeds, budget = len(spec.seeds), None if spec.search.budget is None else arm_budget(spec)
    most = staged_size(spec, moves=setting(spec, "recenters")) * seeds

    def start(_: End | None) -> Strategy:
        return staged_grid(spec)

    return RoundSearch(
        expansion,
        [Track(arm=arm, name="staged grid", start=start, budget=budget, most=most) for arm in arms_of(expansion)],
    )
