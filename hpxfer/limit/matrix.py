"""Vectors with infinitely many coordinates, and trained matrices between them: the initial draw and the updates.

The initial draw W is never stored. `Lazy` knows what W did to the directions that it met so far. Given that, what W
does to a new direction is Gaussian, with a mean that follows from what was met (Bolthausen's conditioning):

    W e  = sum over g of g <W'g, e> / k  + Z             e: a new unit direction of the inputs, Z fresh
    W'g  = sum over e of e k <g, W e>    + sqrt(k) Y     g: a new unit direction of the outputs, Y fresh

The sums are the response functions of dynamical mean-field theory. No derivative, kernel inverse or path integral is
needed. A direction that is not new needs no noise, so singular kernels are no special case.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

from hpxfer.errors import HpxferError
from hpxfer.limit.network import Floats

# A direction is new if it is longer than this, relative to the vector. Below it, rounding decides the direction.
NEW = 1e-11


class Rows:
    """Rows of numbers that grow, [count, size]."""

    def __init__(self, size: int) -> None:
        self._held: Floats = np.empty((0, size))
        self._count = 0

    @property
    def all(self) -> Floats:
        return self._held[: self._count]

    def add(self, rows: Floats) -> None:
        count = self._count + len(rows)
        if count > len(self._held):  # at least twice as many, so that few copies are made
            held = np.empty((max(count, 2 * self._count), rows.shape[1]))
            held[: self._count] = self.all
            self._held = held
        self._held[self._count : count] = rows
        self._count = count


class _Directions:
    """Orthonormal rows of a space, and what a matrix makes of each."""

    def __init__(self, space: Space, other: Space) -> None:
        self.space = space
        self.rows, self.images = Rows(space.size), Rows(other.size)

    def coefficients(self, x: Floats) -> Floats:
        """Return the coefficients [X, directions] of rows that lie in the span of the directions."""
        first, left = _project(self.space, x, self.rows.all)
        return first + _project(self.space, left, self.rows.all)[0]

    def new(self, x: Floats) -> Floats:
        """Return orthonormal rows that span what the directions leave of x."""
        known, lengths = self.rows.all, _lengths(self.space, x)
        if not np.isfinite(lengths).all():  # it would count as new, again and again
            raise HpxferError(
                "lr: features and gradients must stay below 1e154, where squares overflow, got larger ones; the LR is "
                "beyond the edge of stability, or samples are too large; take a smaller lr or smaller samples"
            )
        left = _left(self.space, _left(self.space, x, known), known)
        found = np.empty_like(x)
        count = 0
        for row, length in zip(left, lengths, strict=True):
            rest = _left(self.space, row[None], found[:count])
            size = _lengths(self.space, rest)[0]
            if size <= NEW * length:
                continue
            # A short rest has lost digits. So its direction is made orthogonal once more, to all others.
            rest = _left(self.space, _left(self.space, rest / size, known), found[:count])
            found[count] = rest[0] / _lengths(self.space, rest)[0]
            count += 1
        return found[:count]


def _project(space: Space, x: Floats, rows: Floats) -> tuple[Floats, Floats]:
    """Return the coefficients of x on orthonormal rows, and what they leave of x."""
    coefficients = space.inner(x, rows)
    return coefficients, x - coefficients @ rows


def _left(space: Space, x: Floats, rows: Floats) -> Floats:
    return _project(space, x, rows)[1]


def _lengths(space: Space, x: Floats) -> Floats:
    return np.sqrt(paired(space, x, x))


class Lazy:
    """A matrix whose entries are N(0, 1/n) for n columns and k n rows, both infinite."""

    def __init__(self, source: Space, target: Space, k: float) -> None:
        self.source, self.target, self.k = source, target, k
        self._known = _Directions(source, target)  # e, with W e
        self._known_T = _Directions(target, source)  # g, with W'g

    def forward(self, x: Floats) -> Floats:
        """Return W x of rows."""
        return self._apply(self._known, self._known_T, x, 1 / self.k, 1.0)

    def transposed(self, y: Floats) -> Floats:
        """Return W'y of rows."""
        return self._apply(self._known_T, self._known, y, self.k, math.sqrt(self.k))

    def _apply(self, known: _Directions, other: _Directions, x: Floats, response: float, noise: float) -> Floats:
        new = known.new(x)
        if len(new):
            mean = known.space.inner(new, other.images.all) @ other.rows.all
            known.rows.add(new)
            known.images.add(response * mean + noise * other.space.fresh(len(new)))
        return known.coefficients(x) @ known.images.all


class Untied(Lazy):
    """The average over infinitely many independent draws of such a matrix.

    What the draws share is a mean: `transposed` takes the average over them of a vector per draw. The noise of W'g and
    the response of W e to it are of the size of one draw among many, and vanish.
    """

    def forward(self, x: Floats) -> Floats:
        return self._apply(self._known, self._known_T, x, 0.0, 1.0)

    def transposed(self, y: Floats) -> Floats:
        known = self._known
        return self.k * (self._known_T.space.inner(y, known.images.all) @ known.rows.all)


class Draw(Protocol):
    """The initial draw W of a matrix, and its transpose."""

    source: Space
    target: Space
    k: float

    def forward(self, x: Floats) -> Floats: ...

    def transposed(self, y: Floats) -> Floats: ...


class Trained:
    """A matrix std W + dW, where training by SGD has added dW = -rate / n sum over past q of lr_q d_q x_q'.

    x_q is a past input, and d_q the gradient of the batch's mean loss by its output, up to the powers of n that the
    table's LR makes up for. What these powers leave, such as kappa or iota, is part of `rate`.
    """

    def __init__(self, lazy: Draw, *, std: float, rate: float) -> None:
        self.lazy, self.std, self.rate = lazy, std, rate
        self._source, self._target = lazy.source, lazy.target
        self._x, self._d = Rows(self._source.size), Rows(self._target.size)

    def forward(self, x: Floats) -> Floats:
        """Return the matrix times rows: std W x - rate sum lr_q <x, x_q> d_q."""
        return self._draw(self.lazy.forward, x, self._target) - self.rate * (
            self._source.inner(x, self._x.all) @ self._d.all
        )

    def transposed(self, d: Floats) -> Floats:
        """Return the transposed matrix times rows: std W'd - rate k sum lr_q <d, d_q> x_q."""
        return self._draw(self.lazy.transposed, d, self._source) - self.rate * self.lazy.k * (
            self._target.inner(d, self._d.all) @ self._x.all
        )

    def update(self, x: Floats, d: Floats, lr: float) -> None:
        """Add the update that inputs x and gradients d give at a learning rate."""
        self._x.add(x)
        self._d.add(lr * d)

    def _draw(self, apply: Callable[[Floats], Floats], x: Floats, space: Space) -> Floats:
        return self.std * apply(x) if self.std else np.zeros((len(x), space.size))


# Spaces: where vectors with infinitely many coordinates live.
#
# The coordinates of such a vector are independent draws of one random variable. `Coefficients` holds a variable that is
# linear in unit Gaussians, exactly, as its coefficients. `Sites` holds any variable, as its values at sampled sites.
#
# A vector is a row. The inner product is the average over coordinates of the product of two vectors.

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


def space(most: int, *, exact: bool, sites: int, seed: int, population: int) -> Space:
    """Return a space for at most so many Gaussians: exact coefficients, or a population of its own that is sampled."""
    return Coefficients(most) if exact else Sites(Noise(sites, most, seed, population))
