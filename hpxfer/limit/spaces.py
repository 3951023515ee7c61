"""Spaces: where vectors with infinitely many coordinates live.

The coordinates of such a vector are independent draws of one random variable. `Coefficients` holds a variable that is
linear in unit Gaussians, exactly, as its coefficients. `Sites` holds any variable, as its values at sampled sites.

A vector is a row. The inner product is the average over coordinates of the product of two vectors.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

from hpxfer.errors import HpxferError
from hpxfer.limit.given import Floats

MOST_DIMENSIONS = qmc.Sobol.MAXDIM


class Space(Protocol):
    """What a solver needs of a space. Rows of a space have `size` numbers."""

    @property
    def size(self) -> int: ...

    def inner(self, a: Floats, b: Floats) -> Floats:
        """Return the inner products [A, B] of rows [A, size] and [B, size]."""

    def fresh(self, count: int) -> Floats:
        """Return rows of independent unit Gaussians that are new to the space."""


def paired(space: Space, a: Floats, b: Floats) -> Floats:
    """Return the inner product of each row with its partner, [P]."""
    return np.array([space.inner(x[None], y[None]).item() for x, y in zip(a, b, strict=True)])


def sobol_gaussians(points: int, dimensions: int, rng: np.random.Generator) -> Floats:
    """Return the points of one scrambled Sobol sequence as unit Gaussians, [points, dimensions].

    `points` is a power of two, as the sequence is balanced there.
    """
    uniform = qmc.Sobol(dimensions, rng=rng).random_base2(points.bit_length() - 1)
    gaussians: Floats = ndtri(uniform + 2.0**-33)  # a point may be exactly zero
    return gaussians


class Coefficients:
    """Variables that are linear in unit Gaussians. No more than `most` Gaussians are ever drawn."""

    def __init__(self, most: int) -> None:
        self.size = most
        self._used = 0

    def inner(self, a: Floats, b: Floats) -> Floats:
        return a @ b.T

    def fresh(self, count: int) -> Floats:
        assert self._used + count <= self.size, "the bound on the Gaussians of a space is too low"
        rows = np.zeros((count, self.size))
        rows[np.arange(count), self._used + np.arange(count)] = 1.0
        self._used += count
        return rows


class Noise:
    """Unit Gaussians at the sites of one population, from one scrambled Sobol sequence.

    Two sequences side by side would not be independent. So all Gaussians of a population are dimensions of one
    sequence, whose number must be known before the first is taken. Over the sites, they are made orthogonal to each
    other, with mean 0 and variance 1 exactly.

    Raise HpxferError if a site needs more Gaussians than there are sites, or than a sequence has dimensions.
    """

    def __init__(self, sites: int, most: int, seed: int, population: int) -> None:
        if most > MOST_DIMENSIONS:
            raise HpxferError(
                f"T P: a site must need at most {MOST_DIMENSIONS} Gaussians, the dimensions of a Sobol sequence, got "
                f"{most}; take fewer steps or samples, or smaller experts"
            )
        if most >= sites:
            raise HpxferError(
                f"sites: must be more than the {most} Gaussians that each site needs, got {sites}; take more sites, "
                "fewer steps or samples"
            )
        gaussians = sobol_gaussians(sites, most, np.random.default_rng([seed, population]))
        columns, triangle = np.linalg.qr(np.column_stack([np.ones(sites), gaussians]))
        signs = np.sign(np.diag(triangle))
        self.sites = sites
        self._rows: Floats = np.ascontiguousarray((columns * signs).T[1:]) * math.sqrt(sites)
        self._used = 0

    def take(self, count: int) -> Floats:
        """Return the next Gaussians, [count, sites]."""
        assert self._used + count <= len(self._rows), "the bound on the Gaussians of a population is too low"
        self._used += count
        return self._rows[self._used - count : self._used]


class Sites:
    """Variables at the sites of a population. A vector may have several numbers at each site: `copies` of them."""

    def __init__(self, noise: Noise, copies: int = 1) -> None:
        self.copies = copies
        self.size = copies * noise.sites
        self._noise = noise

    def inner(self, a: Floats, b: Floats) -> Floats:
        return a @ b.T / self.size

    def fresh(self, count: int) -> Floats:
        return self._noise.take(count * self.copies).reshape(count, self.size)
