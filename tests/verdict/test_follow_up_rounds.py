"""The rounds of a follow-up: judge, add exactly what is asked for, judge again, until the verdict is decided."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from planted_sweeps import cell_of

from hpxfer.verdict.findings import Finding
from hpxfer.verdict.lattice import MIN_GAP
from hpxfer.verdict.loss_grid import LossGrid, SeedLosses, ShapeLosses
from hpxfer.verdict.transfer import find
from hpxfer.verdict.what_to_add import asks_nothing

Truth = Callable[[float, float], float]  # (doublings of the scale, log2 HP) -> loss without noise, +inf if it diverges
OCTAVES = tuple(float(x) for x in range(-9, -3))


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep over a planted world. A cell keeps its losses in whichever sweep it is."""

    truth: Truth
    noise: float
    exponents: tuple[float, ...] = OCTAVES
    seeds: int = 3
    scales: tuple[float, ...] = (32.0, 64.0, 128.0)
    lost: Callable[[float, float], bool] = lambda doublings, exponent: False  # whether a cell never has a loss
    draw: int = 0

    @property
    def num_trials(self) -> int:
        return len(self.scales) * len(self.exponents) * self.seeds

    def cell(self, doublings: float, exponent: float) -> SeedLosses:
        value = 2.0**exponent
        if self.lost(doublings, exponent):
            return SeedLosses(value=value, seeds=(), losses=(), num_missing=self.seeds, num_lost=self.seeds)
        place = [self.draw, round(doublings * 8), round((exponent + 64) * 1024)]
        noise = [float(np.random.default_rng([*place, seed]).standard_normal()) for seed in range(self.seeds)]
        return cell_of(value, [self.truth(doublings, exponent) + self.noise * one for one in noise])

    def grid(self) -> LossGrid:
        rows: list[ShapeLosses] = []
        for scale in self.scales:
            doublings = math.log2(scale / self.scales[0])
            row = ShapeLosses(
                axis="width",
                scale_name="width",
                scale=scale,
                shape=f"w{scale:g}",
                is_base=not rows,
                parameterization="planted",
                cells=tuple(self.cell(doublings, x) for x in self.exponents),
            )
            rows.append(row)
        return LossGrid(rows=tuple(rows))

    def with_what_is_asked(self, finding: Finding) -> Sweep:
        """Return the sweep that the follow-up of this finding is. Everything that is asked for must be new."""
        exponents, seeds, scales = set(self.exponents), self.seeds, set(self.scales)
        for addition in finding.to_add:
            new = {math.log2(value) for value in addition.values}
            assert not new & set(self.exponents)
            exponents |= new
            assert addition.seeds is None or addition.seeds > self.seeds
            seeds = max(seeds, addition.seeds or 0)
            assert not set(addition.new_scales) & scales
            scales |= {max(addition.new_scales)} if addition.new_scales else set()
        return replace(self, exponents=tuple(sorted(exponents)), seeds=seeds, scales=tuple(sorted(scales)))


def rounds(sweep: Sweep, most: int) -> list[tuple[Sweep, Finding]]:
    """Return every sweep with its finding, until one is decided or nothing can be added; at most so many follow-ups."""
    out = [(sweep, find([sweep.grid()])[0])]
    while out[-1][1].verdict == "undecided" and len(out) <= most:
        more = out[-1][0].with_what_is_asked(out[-1][1])
        if more == out[-1][0]:
            break
        out.append((more, find([more.grid()])[0]))
    return out


def basin(at: Callable[[float], float] = lambda _: -6.2, curvature: float = 0.02) -> Truth:
    """Return parabolas with the optimum at log2 HP `at(doublings)`."""
    return lambda doublings, exponent: 3.0 - 0.1 * doublings + curvature * (exponent - at(doublings)) ** 2


def through(*losses: float) -> Truth:
    """Return basins through losses an octave apart from 2^-9 on, which go on rising beyond them."""
    steps = np.arange(len(losses)) - 9.0

    def truth(doublings: float, exponent: float) -> float:
        below, above = max(steps[0] - exponent, 0.0), max(exponent - steps[-1], 0.0)
        inside = float(np.interp(exponent, steps, losses))
        return inside + 0.15 * below**2 + 0.3 * above - 0.1 * doublings

    return truth


def cliff(doublings: float, exponent: float) -> float:
    return basin(lambda _: -5.6)(doublings, exponent) if exponent < -5.2 else math.inf


STAYS, DRIFTS = basin(), basin(lambda doublings: -6.2 - doublings)
WORLDS = {
    "steep edge": (Sweep(truth=through(3.00, 3.07, 3.60, 5.0, 5.4, 5.5), noise=0.005), 18),
    "edge": (Sweep(truth=through(3.00, 3.02, 3.10, 3.5, 5.0, 5.5), noise=0.005), 18),
    "one steep cell": (
        Sweep(truth=through(3.02, 3.00, 3.03, 3.19, 3.82), noise=0.005, seeds=2, exponents=OCTAVES[:5]),
        12,
    ),
    "below": (Sweep(truth=basin(lambda _: -9.8), noise=0.005), 36),
    "above": (Sweep(truth=basin(lambda _: -3.2), noise=0.005), 36),
    "one seed": (Sweep(truth=STAYS, noise=0.005, seeds=1), 45),
    "one shape": (Sweep(truth=STAYS, noise=0.005, scales=(32.0,)), 27),
    "one value": (Sweep(truth=STAYS, noise=0.005, exponents=(-6.0,)), 54),
    "narrow": (Sweep(truth=STAYS, noise=0.005, exponents=(-6.5, -6.0, -5.5)), 36),
    "drifts": (Sweep(truth=DRIFTS, noise=0.005), 36),
    "next to divergence": (Sweep(truth=cliff, noise=0.005), 27),
    "no loss above": (Sweep(truth=basin(lambda _: -5.0), noise=0.005, lost=lambda d, x: d == 2 and x > -4.2), 18),
}


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("draw", [0, 1])
def test_a_few_cells_decide_what_the_grid_is_to_blame_for(name: str, draw: int) -> None:
    """The limits are the trials that the follow-ups add, all shapes and seeds counted."""
    sweep, most = WORLDS[name]
    played = rounds(replace(sweep, draw=draw), 4)
    last, finding = played[-1]
    assert finding.verdict == ("drifts" if name == "drifts" else "transfers"), [f.reasons for _, f in played]
    assert last.num_trials - sweep.num_trials <= most
    if sweep.seeds > 1:
        # Noise is small, so that cells decide, and not seeds. Only the three values that grow from one may need seeds.
        assert last.seeds <= sweep.seeds + 2 * (name == "one value")


@pytest.mark.parametrize("draw", range(4))
def test_noise_is_met_with_seeds_in_few_rounds(draw: int) -> None:
    played = rounds(Sweep(truth=STAYS, noise=0.03, seeds=2, draw=draw), 6)
    assert played[-1][1].verdict == "transfers", [f.reasons for _, f in played]
    assert played[-1][0].num_trials <= 384  # 12 seeds of 7 values are needed, which are 252


@pytest.mark.parametrize("name", WORLDS)
def test_proposed_values_lie_on_the_grid_and_not_beside_another(name: str) -> None:
    for sweep, _ in rounds(WORLDS[name][0], 4):
        assert all((4 * exponent).is_integer() for exponent in sweep.exponents)
        gaps = np.diff(sweep.exponents)
        assert name == "next to divergence" or min(gaps, default=1.0) >= MIN_GAP / 2


@pytest.mark.parametrize("draw", range(3))
def test_a_world_without_a_basin_is_given_up(draw: int) -> None:
    played = rounds(Sweep(truth=basin(curvature=0.0), noise=0.01, draw=draw), 6)
    last, finding = played[-1]
    assert finding.verdict == "undecided"
    assert all(asks_nothing(addition) for addition in finding.to_add)
    assert len(played) <= 4
    assert all(addition.seeds is None for _, finding in played for addition in finding.to_add)
    assert last.num_trials <= 108  # twice the sweep
