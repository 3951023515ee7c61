"""Errors to plant in a solver, which a comparison with finite networks has to find."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from hpxfer.limit.all_grow import _OfExperts
from hpxfer.limit.matrix import Lazy, Trained, Untied

# The matrices of regimes II and III, in the order in which their solvers make them.
MATRICES = ("router", "expert_in", "expert_out transposed")


def deaf(kind: type[Lazy], *, forward: bool) -> type[Lazy]:
    """Return a matrix whose fresh directions do not respond to what it did the other way."""

    class Deaf(kind):  # type: ignore[misc, valid-type]
        def _apply(self, known: Any, other: Any, x: Any, response: float, noise: float) -> Any:
            this = known is (self._known if forward else self._known_T)
            return super()._apply(known, other, x, 0.0 if this else response, noise)

    return Deaf


def no_response(patch: pytest.MonkeyPatch, module: ModuleType, matrix: str, *, forward: bool) -> None:
    """Leave one response of one matrix out."""
    nth(patch, module, "Lazy", MATRICES.index(matrix), deaf(Lazy, forward=forward))


def no_response_of_untied(patch: pytest.MonkeyPatch, module: ModuleType) -> None:
    """Give back what the transpose of untied experts is: their mean response, here left out."""

    class Silent(Untied):
        def transposed(self, y: Any) -> Any:
            return np.zeros((len(y), self._known.space.size))

    patch.setattr(module, "Untied", Silent)


def nth(patch: pytest.MonkeyPatch, module: ModuleType, name: str, place: int, other: Callable[..., Any]) -> None:
    """Let a module make another thing the (place + 1)-th time that it makes one by this name, in every solve.

    A solve makes as many in every call, and the count starts anew with `passes`.
    """
    made, real, passes = [0], getattr(module, name), module.passes

    def make(*args: Any, **kinds: Any) -> Any:
        made[0] += 1
        return (other if made[0] - 1 == place else real)(*args, **kinds)

    def counted(*args: Any, **kinds: Any) -> Any:
        made[0] = 0
        return passes(*args, **kinds)

    patch.setattr(module, name, make)
    patch.setattr(module, "passes", counted)


class StartAlone(Trained):
    """A matrix whose product forward forgets what training added."""

    def forward(self, x: Any) -> Any:
        return self._draw(self.lazy.forward, x, self._target)


class StartAloneTransposed(Trained):
    """A matrix whose transposed product forgets what training added."""

    def transposed(self, d: Any) -> Any:
        return self._draw(self.lazy.transposed, d, self._source)


class ExpertsStartAlone(_OfExperts):
    """The matrices of all experts in regime III, whose products forward forget what training added."""

    def forward(self, x: Any) -> Any:
        return np.repeat((self._std * self._draw.forward(x))[:, None], self._shape[0], axis=1)


class ExpertsStartAloneTransposed(_OfExperts):
    """The matrices of all experts in regime III, whose transposed products forget what training added."""

    def transposed(self, d: Any) -> Any:
        return self._std * self._draw.transposed(d.mean(axis=1))
