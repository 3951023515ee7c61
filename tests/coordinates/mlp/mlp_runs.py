"""Checks of the family mlp on its own samples that several tests look at, and what to ask of their lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from block_claims import block_of, predictions

from hpxfer.coordinates.cases import mlp_path
from hpxfer.coordinates.measure import Fit, fit
from hpxfer.coordinates.mlp import Options, observe
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.shape import Shape

ZERO_READOUT = {"readout_init": "zero"}
# Narrower than the command's: what must miss misses here too.
NARROW = (32, 64, 128, 256)


def path_of(name: str, widths: Sequence[int] = (), num_active: int = 0) -> tuple[Shape, ...]:
    """Return the path of the table's own regime, as the command takes it; of regime I where it has none."""
    regime = parameterization(name).table.regime or "I"
    path = mlp_path(f"regime-{regime.lower()}", widths or None)
    return tuple(replace(shape, num_active=num_active or shape.num_active) for shape in path)


def lines_of(
    name: str,
    optimizer: Any,
    conventions: Any = None,
    *,
    along: str = "",
    widths: Sequence[int] = NARROW,
    num_active: int = 0,
    options: Options | None = None,
    num_seeds: int = 12,
    steps: int = 2,
    **more: Any,
) -> tuple[Fit, ...]:
    """Return the lines of a run along the path of the table's own regime, or of that of the table `along`."""
    choice, path = parameterization(name, conventions), path_of(along or name, widths, num_active)
    options = options or Options()
    found = observe(choice, optimizer, path, seeds=range(num_seeds), steps=steps, options=options, **more)
    return fit(found, predictions(choice, optimizer, path, block_of(options)))


def line(lines: Sequence[Fit], role: str, quantity: str, step: int) -> Fit:
    return next(found for found in lines if (found.role, found.quantity, found.step) == (role, quantity, step))


def slope(lines: Sequence[Fit], role: str, quantity: str, step: int) -> float:
    found = line(lines, role, quantity, step).slope
    assert found is not None, f"{role} {quantity} at step {step} is zero or not finite"
    return found


def report(lines: Sequence[Fit]) -> str:
    return "\n".join(
        f"{found.verdict} {found.role} {found.quantity} t={found.step}: {found.slope} {found.predicted}"
        for found in lines
    )


def misses(lines: Sequence[Fit]) -> list[Fit]:
    return [found for found in lines if found.verdict == "miss"]
