"""Planted laws: sweeps whose loss at every size is known, made without any part of the prediction.

    loss of a trial = law(scale) + basin(log2 HP - optimum of the size) + luck of the seed + noise of the trial

No law here is one of those that `recipe predict` fits: there is no single power above a floor and no straight line. The
best HP is chosen at the base from the noisy losses of a grid, and the truth is the noise-free loss of that HP.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpxfer.verdict.loss_grid import SeedLosses, ShapeLosses

Curve = Callable[[float], float]  # octaves above the smallest size -> loss in nats


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One sweep along one axis, and the truth at the size that is asked for."""

    family: str
    rows: tuple[ShapeLosses, ...]
    value: float  # the HP that the base transfers
    target: float  # the scale asked for
    beyond: float  # target over the largest measured scale; below 1 it lies between measured sizes
    truth: float  # the noise-free loss at the target, nats
    run: float  # the loss of one further run there
    gain: float  # of the last measured doubling, noise-free, nats


def _two_powers(rng: np.random.Generator) -> Curve:
    floor, fast, slow = rng.uniform(1, 2.5), rng.uniform(0.1, 0.6), rng.uniform(0.1, 0.8)
    a, b = rng.uniform(0.5, 1.8), rng.uniform(0.05, 0.3)
    return lambda x: floor + fast * 2 ** (-a * x) + slow * 2 ** (-b * x)


def _logistic(rng: np.random.Generator) -> Curve:
    floor, height, steep, middle = rng.uniform(1.5, 3), rng.uniform(0.2, 0.8), rng.uniform(0.3, 1.0), rng.uniform(-2, 3)
    return lambda x: floor + height / (1 + math.exp(steep * (x - middle)))


def _of_the_log(rng: np.random.Generator) -> Curve:
    floor, height, start, power = rng.uniform(1, 2.5), rng.uniform(0.5, 2), rng.uniform(1, 5), rng.uniform(0.5, 2)
    return lambda x: floor + height * (start / (start + x)) ** power


def _log_corrected(rng: np.random.Generator) -> Curve:
    floor, height, a, c = rng.uniform(1.5, 2.5), rng.uniform(0.2, 0.8), rng.uniform(0.3, 0.9), rng.uniform(0.1, 1.0)
    return lambda x: floor + height * 2 ** (-a * x) * (1 + c * math.log1p(x))


def _broken(rng: np.random.Generator) -> Curve:
    floor, height, first = rng.uniform(1, 2.5), rng.uniform(0.3, 0.9), rng.uniform(0.1, 0.5)
    then, at, soft = rng.uniform(-0.25, 0.6), rng.uniform(0, 5), rng.uniform(0.2, 1.5)
    return lambda x: floor + height * 2 ** (-first * x) * (1 + 2 ** ((x - at) / soft)) ** (-then * soft)


def _hill(rng: np.random.Generator) -> Curve:
    floor, height, power, at = rng.uniform(1, 2.5), rng.uniform(0.3, 1.2), rng.uniform(0.4, 1.3), rng.uniform(-2, 3)
    return lambda x: floor + height / (1 + 2 ** (power * (x - at)))


def _stretched(rng: np.random.Generator) -> Curve:
    floor, height, rate, power = rng.uniform(1, 2.5), rng.uniform(0.2, 1), rng.uniform(0.1, 0.6), rng.uniform(0.6, 1.3)
    return lambda x: floor + height * math.exp(-rate * (x + 0.5) ** power)


def _wavy(rng: np.random.Generator) -> Curve:
    floor, height, a = rng.uniform(1, 2.5), rng.uniform(0.2, 0.8), rng.uniform(0.1, 0.7)
    share, period, phase = rng.uniform(0.01, 0.04), rng.uniform(3, 8), rng.uniform(0, 2 * math.pi)
    return lambda x: floor + height * 2 ** (-a * x) * (1 + share * math.sin(2 * math.pi * x / period + phase))


FAMILIES: dict[str, Callable[[np.random.Generator], Curve]] = {
    "two powers": _two_powers,
    "logistic in the log": _logistic,
    "power of the log": _of_the_log,
    "power with a log": _log_corrected,
    "broken power": _broken,
    "Hill": _hill,
    "stretched exponential": _stretched,
    "wavy power": _wavy,
}
LATTICE = np.arange(-9.0, -2.0)  # log2 of the HP values


def planted(seed: int, draw: int = 0) -> Planted:
    """Return one planted sweep. Equal seeds and draws give equal sweeps; families take turns."""
    rng = np.random.default_rng([draw, seed])
    family = list(FAMILIES)[seed % len(FAMILIES)]
    law = FAMILIES[family](rng)
    octaves = np.cumsum([0.0, *rng.choice([1.0, 1.0, 2.0, 0.585], size=rng.integers(2, 6))])
    top = float(octaves[-1])
    between = rng.random() < 0.25
    at = float(rng.uniform(0.2, top - 0.2) if between else top + rng.uniform(math.log2(1.2), 1.0))
    bend, start = rng.uniform(0.01, 0.05), rng.uniform(-6.5, -5.5)
    drift = rng.normal(0, 0.08)  # octaves per doubling: an HP that transfers
    scatter = rng.normal(0, 0.08, octaves.size + 1)
    sd = 10 ** rng.uniform(-3.2, -2.0)
    growth, tail = rng.choice([-0.25, 0.0, 0.25]), rng.choice([3.0, 5.0, 50.0])
    num_seeds = int(rng.integers(2, 6))

    def clean(x: float, k: float, size: int) -> float:
        return law(x) + bend * (k - start - drift * x - scatter[size]) ** 2

    def trial(x: float, k: float, size: int) -> float:
        width = sd * 2 ** (growth * (x - top / 2)) * math.sqrt((tail - 2) / tail)
        return clean(x, k, size) + width * float(rng.standard_t(tail))

    losses = [[[trial(x, k, i) for _ in range(num_seeds)] for k in LATTICE] for i, x in enumerate(octaves)]
    best = int(np.argmin([np.mean(cell) for cell in losses[0]]))
    rows = tuple(_row(i, float(x), losses[i]) for i, x in enumerate(octaves))
    last = octaves.size
    truth = clean(at, LATTICE[best], last)
    return Planted(
        family=family,
        rows=rows,
        value=float(2.0 ** LATTICE[best]),
        target=32 * 2**at,
        beyond=2 ** (at - top),
        truth=truth,
        run=trial(at, LATTICE[best], last),
        gain=law(top - 1) - law(top),
    )


def _row(index: int, octaves: float, losses: list[list[float]]) -> ShapeLosses:
    return ShapeLosses(
        axis="width",
        scale_name="width",
        scale=32 * 2**octaves,
        shape=f"w{index}",
        is_base=index == 0,
        parameterization="planted",
        cells=tuple(
            SeedLosses(value=float(2.0**k), seeds=tuple(range(len(cell))), losses=tuple(cell), num_missing=0)
            for k, cell in zip(LATTICE, losses, strict=True)
        ),
    )
