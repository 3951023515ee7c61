"""The worlds on which the verdict is measured, by group, and worlds that are drawn at random from the same pieces."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from foreign_worlds import Noise, World, values
from world_basins import (
    BasinKind,
    Kinked,
    Parabola,
    Plateau,
    Quartic,
    RandomExponential,
    Saturating,
    SlowLeft,
    TwoExponential,
)

TODAY = "parabolas, 5 widths"  # the worlds whose interval widths are compared over time
SIX = "6 values, 3 seeds"  # the usual sweep, for which most clear verdicts should be decided


def line(drift: float, shapes: int = 4) -> tuple[float, ...]:
    """Return offsets of optima that move by `drift` octaves per doubling."""
    return tuple(drift * i for i in range(shapes))


def _crossed(part: str, kinds: Mapping[str, Any], drifts: Sequence[float] = (0.0, 0.5), **more: Any) -> Iterator[World]:
    """Yield a world of every kind of a part, such as its basin, at every drift."""
    for name, kind in kinds.items():
        for drift in drifts:
            yield World(name=f"{name}, drift {drift:g}", offsets=line(drift), **{part: kind}, **more)


def _today() -> Iterator[World]:
    for drift in (0.0, 0.1, 0.25, 0.5, 1.0):
        for sd in (0.003, 0.01):
            for seeds in (2, 3, 5):
                yield World(
                    name=f"drift {drift:g}, noise {sd:g}, {seeds} seeds",
                    offsets=line(drift, 5),
                    base=-6.0,
                    centered=True,
                    noise=Noise(sd=sd),
                    seeds=seeds,
                )


def _parabolas() -> Iterator[World]:
    for drift in (0.0, 0.1, 0.25, 0.5, 1.0):
        yield World(name=f"drift {drift:g}", offsets=line(drift))


def _basins() -> Iterator[World]:
    kinds: dict[str, BasinKind] = {
        "steep left (p 3, q 1)": TwoExponential((3.0,), (1.0,)),
        "steep right (p 1, q 3)": TwoExponential((1.0,), (3.0,)),
        "very steep right (p 0.5, q 4)": TwoExponential((0.5,), (4.0,)),
        "very steep left (p 4, q 0.5)": TwoExponential((4.0,), (0.5,)),
        "p and q at random, equal for all shapes": RandomExponential(shared=True),
        "p and q at random per shape": RandomExponential(),
        "saturating at 0.3 nats": Saturating(0.3),
        "saturating at 0.1 nats": Saturating(0.1),
        "slow to the left": SlowLeft(),
        "plateau": Plateau(),
        "quartic": Quartic(),
    }
    yield from _crossed("basin", kinds)
    steep = Saturating(2.5, TwoExponential((1.0,), (3.0,)))
    yield World(name="optimum at 2^-8, wall of 2.5 nats", basin=steep, base=-8.0, curvature=(0.05,))
    yield World(name="optimum at 2^-9.2, wall of 2.5 nats", basin=steep, base=-9.2, curvature=(0.05,))
    yield World(name="optimum at 2^-8", base=-8.0)
    yield World(name="optimum at the upper edge", base=-3.3)
    yield World(name="optimum at the upper edge, drift 0.5", base=-3.3, offsets=line(0.5))
    yield World(
        name="base below the grid, drift +0.7", base=-9.3, curvature=(0.05,), offsets=line(0.7), either_sign=False
    )
    yield World(name="curvature 0.002", curvature=(0.002,))
    yield World(name="curvature 0.1", curvature=(0.1,))


def _cliffs() -> Iterator[World]:
    for octaves in (0.3, 0.6, 1.0, 1.5, 2.0):
        yield World(name=f"diverges {octaves:g} octaves above", cliff=octaves)
        yield World(name=f"soft cliff {octaves:g} octaves above", soft_cliff=octaves)
    yield World(name="diverges 0.6 octaves above, drift 0.5", cliff=0.6, offsets=line(0.5))
    yield World(name="diverges 1.5 octaves above, drift 0.5", cliff=1.5, offsets=line(0.5))
    yield World(name="soft cliff 0.6 octaves above, drift 0.5", soft_cliff=0.6, offsets=line(0.5))
    yield World(name="soft cliff 1.5 octaves above, drift 0.5", soft_cliff=1.5, offsets=line(0.5))
    yield World(name="seeds diverge from 0.5 to 1.5 octaves above", cliff=1.5, cliff_spread=1.0)
    yield World(name="steep right (p 1, q 3), diverges 1 octave above", basin=TwoExponential((1.0,), (3.0,)), cliff=1.0)


def _noise() -> Iterator[World]:
    kinds = {
        "noise doubles per octave above": Noise(growth=1.0),
        "noise correlated over the HP (0.8 an octave)": Noise(neighbors=0.8, sd=0.01),
        "smooth luck shared by shapes": Noise(sd=0.003, luck=0.02, luck_slope=0.006),
        "smooth luck of each shape": Noise(sd=0.003, luck=0.02, luck_slope=0.006, luck_shared=False),
        "10% of the trials end 0.3 nats higher": Noise(spikes=0.1),
        "1% of the trials end a billion nats higher": Noise(spikes=0.01, spike_nats=1e9),
        "Student's t, 3 degrees": Noise(tail=3.0, sd=0.01),
        "noise 0.02": Noise(sd=0.02),
        "noise 0.001": Noise(sd=0.001),
    }
    yield from _crossed("noise", kinds)
    loud = {"curvature 0.08, noise 0.035, 2 seeds": Noise(sd=0.035)}
    yield from _crossed("noise", loud, (0.25, 0.35, 0.5), curvature=(0.08,), seeds=2)
    yield World(name="smooth luck, 2 seeds", noise=Noise(sd=0.003, luck=0.02, luck_slope=0.006), seeds=2)


def _drifts() -> Iterator[World]:
    sharper = (0.003, 0.012, 0.014, 0.014, 0.014)
    for first in (-6.4, -6.3):
        yield World(
            name=f"first step moves, then stays: 2^{first:g}, 2^-5.1, 2^-5.1",
            offsets=(0.0, *(-5.1 - first,) * 4),
            base=first,
            base_spread=0.0,
            either_sign=False,
            curvature=sharper,
            noise=Noise(sd=0.004),
        )
    shapes = {
        "first step moves by 0.6, then stays": (0.0, 0.6, 0.6, 0.6),
        "first step moves by 1.5, then stays": (0.0, 1.5, 1.5, 1.5),
        "steps shrink: 0.4, 0.2, 0.1": (0.0, 0.4, 0.6, 0.7),
        "there and back by 0.6": (0.0, 0.6, 0.6, 0.0),
        "there and back by 1.5": (0.0, 1.5, 1.5, 0.0),
        "one shape jumps by 0.6": (0.0, 0.0, 0.6, 0.0),
        "one shape jumps by 1.5": (0.0, 0.0, 1.5, 0.0),
        "the largest shape jumps by 1.5": (0.0, 0.0, 0.0, 1.5),
    }
    for name, offsets in shapes.items():
        yield World(name=name, offsets=offsets)
    yield World(name="optima scatter by 0.2 octaves", scatter=0.2)
    yield from _crossed("curvature", {"basins sharpen fourfold": (0.02, 0.03, 0.05, 0.08)})
    yield from _crossed("curvature", {"basins flatten fourfold": (0.04, 0.03, 0.02, 0.01)})
    to_right = TwoExponential((3.0, 2.0, 1.0, 1.0), (1.0, 1.0, 2.0, 4.0))
    to_left = TwoExponential((1.0, 1.0, 2.0, 4.0), (3.0, 2.0, 1.0, 1.0))
    for side, basin in (("right", to_right), ("left", to_left)):
        for drift in (-0.4, 0.0, 0.4):
            name = f"the steep side turns to the {side}, drift {drift:+g}"
            yield World(name=name, basin=basin, offsets=line(drift), either_sign=False)


def _grids() -> Iterator[World]:
    sharp = {"curvature": (0.05,), "noise": Noise(sd=0.001), "seeds": 5}
    yield from _crossed("x", {"3 values at factor 4, noise 0.001": values(3, 2.0)}, **sharp)
    grids = {
        "3 values at factor 2": values(3),
        "4 values at factor 2": values(4, middle=-6.5),
        "4 values at factor 4": values(4, 2.0),
        "6 values at factor 4": values(6, 2.0),
        "9 values at factor 2": values(9),
    }
    yield from _crossed("x", grids)
    yield from _crossed("seeds", {"1 seed": 1, "2 seeds": 2, "5 seeds": 5})
    yield from _crossed("missing", {"10% of the trials missing": 0.1})
    for drift in (0.0, 0.5):
        yield World(name=f"2 widths, drift {drift:g}", offsets=line(drift, 2))
    to_right = TwoExponential((0.5,), (3.0,))
    yield World(name="5 values, 2 seeds, steep right (p 0.5, q 3)", basin=to_right, x=values(5, middle=-6.5), seeds=2)
    yield World(name="30% of the trials missing", missing=0.3)
    yield World(name="the two largest HP values have no result", missing_top=2)
    yield World(name="6 widths, drift 0.1", offsets=line(0.1, 6))


WRONG_SEEDS = (1, 2, 3, 4, 6)
WRONG = "one wrong run"


def _wrong() -> Iterator[World]:
    """Yield worlds with one wrong run, or with two that have each other's labels, beside drifts that they may hide."""
    kinds = {
        "0.05 to 0.2 nats too low": Noise(wrong_nats=(-0.2, -0.05)),
        "0.2 to 1 nats too low": Noise(wrong_nats=(-1.0, -0.2)),
        "0.05 to 0.2 nats too high": Noise(wrong_nats=(0.05, 0.2)),
        "0.2 to 1 nats too high": Noise(wrong_nats=(0.2, 1.0)),
        "two runs swapped": Noise(swapped=True),
    }
    for name, noise in kinds.items():
        for seeds in WRONG_SEEDS:
            for world in _crossed("noise", {f"{name}, {seeds} seeds": noise}, (0.0, 0.75), seeds=seeds, x=values(5)):
                yield replace(world, offsets=world.offsets[:3])
        loud = replace(noise, sd=0.015)
        yield World(name=f"{name}, noise 0.015", noise=loud)
        yield World(name=f"{name}, noise 0.015, 2 seeds", noise=loud, seeds=2)


def _dead() -> Iterator[World]:
    """Yield worlds in which training dies above the optimum and ends at a number, beside the twin that diverges."""
    for octaves in (0.6, 1.0, 1.5, 2.5):
        for drift in (0.0, 0.5):
            for nats, sd in ((math.inf, 0.0), (7.2, 0.1), (7.2, 0.02), (5.0, 0.4)):
                ends = "twin diverges" if nats == math.inf else f"ends at {nats:g} +- {sd:g},"
                name = f"{ends} {octaves:g} octaves above, drift {drift:g}"
                yield World(name=name, cliff=octaves, dead_nats=nats, dead_sd=sd, offsets=line(drift))


def _sizes() -> Iterator[World]:
    for largest in (15.0, 5.0, 2.0, 0.5, 0.2, 1 / 15):
        sd = 0.003 if largest > 1 else 0.003 / largest
        for seeds in (2, 3, 5):
            kind = {f"noise {sd:.2g} to {sd * largest:.2g}, {seeds} seeds": Noise(sd=sd, largest=largest)}
            yield from _crossed("noise", kind, (0.0, 0.35), seeds=seeds)


def _kinks() -> Iterator[World]:
    kinds: dict[str, BasinKind] = {
        "kinked": Kinked(),
        "kinked, 4 times as steep to the left": Kinked(4.0),
        "kinked, 4 times as steep to the right": Kinked(0.25),
        "skewed (p 0.3, q 6)": TwoExponential((0.3,), (6.0,)),
        "skewed (p 6, q 0.3)": TwoExponential((6.0,), (0.3,)),
    }
    yield from _crossed("basin", kinds)
    yield World(name="log-normal noise", noise=Noise(sd=0.01, log_normal=True))


def _six() -> Iterator[World]:
    basins: dict[str, BasinKind] = {
        "p and q at random per shape": RandomExponential(),
        "steep right (p 1, q 3)": TwoExponential((1.0,), (3.0,)),
        "slow to the left": SlowLeft(),
        "quartic": Quartic(),
    }
    noise = {
        "noise doubles per octave above": Noise(growth=1.0),
        "noise correlated over the HP": Noise(neighbors=0.8, sd=0.008),
        "smooth luck shared by shapes": Noise(sd=0.003, luck=0.02, luck_slope=0.004),
        "noise 0.01": Noise(sd=0.01),
    }
    drifts = {
        "first step moves by 1.5": (0.0, 1.5, 1.5, 1.5),
        "there and back by 0.6": (0.0, 0.6, 0.6, 0.0),
        "there and back by 1.5": (0.0, 1.5, 1.5, 0.0),
    }
    found = [*_parabolas(), *_crossed("basin", basins), *_crossed("noise", noise)]
    found += [World(name=name, offsets=offsets) for name, offsets in drifts.items()]
    found += [World(name="diverges 1 octave above", cliff=1.0), World(name="soft cliff 1 octave above", soft_cliff=1.0)]
    for world in found:
        yield replace(world, name=f"6 values: {world.name}", x=values(6, middle=-6.5))


GROUPS = {
    TODAY: _today,
    "parabolas, 4 widths": _parabolas,
    "basins": _basins,
    "cliffs": _cliffs,
    "noise": _noise,
    "drifts": _drifts,
    "grids": _grids,
    SIX: _six,
    WRONG: _wrong,
    "dead runs": _dead,
    "noise by size": _sizes,
    "kinks and skews": _kinks,
}
WORLDS = tuple(replace(world, group=group) for group, worlds in GROUPS.items() for world in worlds())

RANDOM_BASINS: dict[str, BasinKind] = {
    "parabola": Parabola(),
    "exponentials": RandomExponential(),
    "equal exponentials": RandomExponential(shared=True),
    "saturating": Saturating(0.4, RandomExponential(shared=True)),
    "slow left": SlowLeft(),
    "plateau": Plateau(),
    "quartic": Quartic(),
}
RANDOM_NOISE = {
    "noise 0.005": Noise(),
    "noise 0.015": Noise(sd=0.015),
    "growing noise": Noise(growth=0.7),
    "correlated noise": Noise(neighbors=0.7, sd=0.008),
    "smooth luck": Noise(sd=0.003, luck=0.02, luck_slope=0.005),
    "spikes": Noise(spikes=0.07),
    "heavy tails": Noise(tail=3.0, sd=0.008),
}
RANDOM_DRIFTS = {
    "stays": (0.0, 0.0, 0.0, 0.0),
    "drift": (0.0, 1.0, 2.0, 3.0),
    "first step": (0.0, 1.0, 1.0, 1.0),
    "there and back": (0.0, 1.0, 1.0, 0.0),
    "jump": (0.0, 0.0, 1.0, 0.0),
    "last step": (0.0, 0.0, 0.0, 1.0),
}
RANDOM_GRIDS = {
    "4 values at factor 4": values(4, 2.0),
    "4 values at factor 2": values(4, middle=-6.5),
    "6 values at factor 2": values(6, middle=-6.5),
    "7 values at factor 2": values(7),
    "9 values at factor 2": values(9),
}


def random_worlds(num: int, draw: int) -> tuple[World, ...]:
    """Return worlds that cross pieces of every kind at random. Equal numbers give equal worlds."""
    rng = np.random.default_rng([draw, num])
    return tuple(_random_world(rng, f"random {draw}.{i}") for i in range(num))


def _random_world(rng: np.random.Generator, name: str) -> World:
    basin, noise, drift, grid = (
        str(rng.choice(list(kinds))) for kinds in (RANDOM_BASINS, RANDOM_NOISE, RANDOM_DRIFTS, RANDOM_GRIDS)
    )
    moves = RANDOM_DRIFTS[drift]
    octaves = float(rng.choice((0.3, 0.6, 0.9, 1.4, 2.0)))  # the largest move
    curvature = round(float(np.exp(rng.uniform(math.log(0.008), math.log(0.08)))), 3)
    seeds = int(rng.choice((2, 3, 3, 5)))
    hard, soft = (
        float(rng.choice((0.6, 1.0, 1.5, 2.0))) if rng.uniform() < chance else math.inf for chance in (0.2, 0.1)
    )
    missing = 0.1 if rng.uniform() < 0.15 else 0.0
    spread = 0.4 if rng.uniform() < 0.25 else 0.0
    parts = [
        basin,
        f"curvature {curvature:g}" + (" differs" if spread else ""),
        grid,
        f"{seeds} seeds",
        noise,
        drift if drift == "stays" else f"{drift} {octaves:g}",
        *([f"diverges at {hard:g}"] if hard < math.inf else []),
        *([f"soft cliff at {soft:g}"] if soft < math.inf else []),
        *(["10% missing"] if missing else []),
    ]
    return World(
        name=f"{name}: {', '.join(parts)}",
        group="drawn at random",
        basin=RANDOM_BASINS[basin],
        curvature=(curvature,),
        curvature_spread=spread,
        offsets=tuple(octaves * move / max(moves) if max(moves) else 0.0 for move in moves),
        x=RANDOM_GRIDS[grid],
        seeds=seeds,
        noise=RANDOM_NOISE[noise],
        cliff=hard,
        soft_cliff=soft,
        missing=missing,
    )
