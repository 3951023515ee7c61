"""What refining two HPs finds, against a full grid of as many trials: `python tests/tools/plane_rates.py`.

Each world is searched again and again with new noise. The grid has as many points as the search may have, in the box
that the search starts in; its lowest mean wins, or the lowest point of the surface that a report fits to it.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from docs_markdown import table
from plane_worlds import WORLDS, PlaneWorld

from hpxfer.analysis.statistics.surface import fit_surface
from hpxfer.scaling.hps import HPs
from hpxfer.search.plane import Plane
from hpxfer.search.plane_look import Look
from hpxfer.search.refine_plane import refine_plane
from hpxfer.search.rounds import End, EndedRound, OutOfBudget

HPS = ("lr", "init_scale")
GIVEN = (tuple(2.0**k for k in range(-9, -3)), tuple(2.0**k for k in range(-2, 3)))
UNTIL, MAX_OCTAVES = 0.5, 4.0
LUCK = 2.0  # noises: by so much a seed shifts all its losses
TAIL = 2.5  # degrees of freedom of the heavy-tailed noise


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How the losses scatter, and what the search may spend."""

    noise: float  # nats, of a trial
    seeds: int = 2
    points: int = 25
    heavy: bool = False

    def losses(self, world: PlaneWorld, a: float, b: float, rng: np.random.Generator) -> tuple[float, ...]:
        """Return the losses of the seeds at a point, without their shared luck."""
        drawn = rng.standard_t(TAIL, self.seeds) if self.heavy else rng.standard_normal(self.seeds)
        return tuple((world.loss(a, b) + self.noise * drawn).tolist())


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one search found, and what the grid did."""

    regret: float
    points: int
    form: str
    covers: bool | None  # whether the region holds the true optimum; None without a region
    grid_regret: float
    fitted_regret: float


def search(world: PlaneWorld, setting: Setting, rng: np.random.Generator) -> tuple[End, list[EndedRound]]:
    """Return the end of a search and its rounds."""
    luck = LUCK * setting.noise * rng.standard_normal(setting.seeds)
    played, rounds = refine_plane(plane(), UNTIL, MAX_OCTAVES), list[EndedRound]()
    try:
        asked = next(played)
        while True:
            if sum(len(ended.round.points) for ended in rounds) + len(asked.points) > setting.points:
                played.throw(OutOfBudget(tuple(rounds)))
            found = []
            for hps in asked.points:
                losses = setting.losses(world, math.log2(hps.lr), math.log2(hps.init_scale), rng)
                found.append(tuple((np.array(losses) + luck).tolist()))
            rounds.append(EndedRound(round=asked, losses=found))
            asked = played.send(found)
    except StopIteration as stop:
        return stop.value, rounds


def plane() -> Plane:
    """Return the plane that every search starts from."""
    return Plane.of(HPS, HPs(lr=0.01), GIVEN)


def find(world: PlaneWorld, setting: Setting, seed: int) -> Found:
    """Return what a search and a grid find with the noise of a seed."""
    rng = np.random.default_rng([seed, 7])
    end, rounds = search(world, setting, rng)
    look = Look.at(plane().with_rounds(rounds))
    covers = None
    if look.bowl is not None and look.bowl.at is not None and look.bowl.covariance is not None:
        away = look.bowl.at - np.array(world.truth[1:])
        covers = bool(away @ np.linalg.solve(look.bowl.covariance, away) <= look.bowl.reach**2)
    grid_regret, fitted_regret = grid(world, setting, rng)
    return Found(
        regret=math.inf if end.best is None else world.regret(math.log2(end.best.lr), math.log2(end.best.init_scale)),
        points=sum(len(ended.round.points) for ended in rounds),
        form="unknown" if look.bowl is None else look.bowl.form,
        covers=covers,
        grid_regret=grid_regret,
        fitted_regret=fitted_regret,
    )


def grid(world: PlaneWorld, setting: Setting, rng: np.random.Generator) -> tuple[float, float]:
    """Return the regret of the lowest mean of a full grid, and that of the surface fitted to it."""
    rows = math.isqrt(setting.points)
    columns = setting.points // rows
    ends = [(math.log2(values[0]), math.log2(values[-1])) for values in GIVEN]
    cells = [
        (float(a), float(b), sum(losses) / len(losses))
        for a in np.linspace(*ends[0], columns)
        for b in np.linspace(*ends[1], rows)
        for losses in [setting.losses(world, float(a), float(b), rng)]
    ]
    a, b, _ = min(cells, key=lambda cell: cell[2])
    surface = fit_surface(
        [2 ** cell[0] for cell in cells], [2 ** cell[1] for cell in cells], [cell[2] for cell in cells]
    )
    fitted = surface.log2_values or (a, b)
    return world.regret(a, b), world.regret(*fitted)


def row_of(world: PlaneWorld, found: Sequence[Found]) -> list[str]:
    """Return the row of a world: regrets in thousandths of a nat, and shares of the searches."""

    def milli(values: Sequence[float]) -> str:
        return " / ".join(f"{1000 * float(np.quantile(values, at, method='higher')):.1f}" for at in (0.5, 0.9))

    covers = [one.covers for one in found if one.covers is not None]
    return [
        world.name,
        milli([one.regret for one in found]),
        milli([one.grid_regret for one in found]),
        milli([one.fitted_regret for one in found]),
        f"{np.mean([one.points for one in found]):.0f}",
        f"{np.mean([one.form == 'ridge' for one in found]):.0%}",
        f"{np.mean([one.form == 'unknown' for one in found]):.0%}",
        f"{np.mean(covers):.0%} of {len(covers)}" if covers and not world.is_ridge else "",
    ]


COLUMNS = ["world", "refine", "grid", "grid, fitted", "points", "ridge said", "open", "in the region"]


def rows(worlds: Sequence[PlaneWorld], setting: Setting, searches: int) -> Iterator[list[str]]:
    """Yield the row of each world."""
    for world in worlds:
        yield row_of(world, [find(world, setting, seed) for seed in range(searches)])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=100, help="per world")
    parser.add_argument("--noise", type=float, default=0.01, help="nats, the standard deviation of a trial")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--points", type=int, default=25, help="the most of a search, and those of the grid")
    parser.add_argument("--heavy", action="store_true", help=f"noise of Student's t with {TAIL:g} degrees of freedom")
    given = parser.parse_args()
    setting = Setting(noise=given.noise, seeds=given.seeds, points=given.points, heavy=given.heavy)
    sys.stdout.write(table(COLUMNS, list(rows(WORLDS, setting, given.searches))) + "\n")


if __name__ == "__main__":
    main()
