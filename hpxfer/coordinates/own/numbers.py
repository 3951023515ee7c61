"""What a recipe predicts of the tensors themselves: the slopes of init and LR, from its own numbers at each shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hpxfer.coordinates.measure import Prediction
from hpxfer.coordinates.path_facts import exponent_of
from hpxfer.recipe import AT
from hpxfer.scaling.numbers import JOIN, TensorNumbers
from hpxfer.scaling.roles import ROLES

SOURCE = "the recipe's own numbers"
WEIGHT = "weight"
FIRST_STEP = "first step"
DRAWN = ("matrix", "embedding", "position")  # kinds of roles that start at random


def of_recipe(rows: Sequence[Sequence[TensorNumbers]], scales: Sequence[float]) -> Iterator[Prediction]:
    """Yield the exponents of init and LR of each role. `rows[i]` explain the model at `scales[i]`."""
    at = [
        {role: row for row in reversed(of_scale) for role in row.role.partition(AT)[0].split(JOIN)} for of_scale in rows
    ]
    for role in at[0]:
        if all(role in found for found in at):
            yield from _of_role(role, [found[role] for found in at], scales)


def _of_role(role: str, rows: Sequence[TensorNumbers], scales: Sequence[float]) -> Iterator[Prediction]:
    stds = [row.init if isinstance(row.init, float) else 0.0 for row in rows]
    if ROLES[role] in DRAWN:
        exponent = exponent_of(stds, scales) if all(stds) else None
        yield Prediction(quantity=WEIGHT, role=role, exponent=exponent, source=SOURCE, zero=exponent is None, last=0)
    rates = [row.lr or 0.0 for row in rows]
    if all(rates):
        yield Prediction(quantity=FIRST_STEP, role=role, exponent=exponent_of(rates, scales), source=SOURCE)


def moving(forward: Sequence[Mapping[str, float]], scales: Sequence[float]) -> tuple[str, ...]:
    """Return the keys of the forward multipliers that change along the path."""
    names = [key for key in forward[0] if all(key in at for at in forward)]
    return tuple(key for key in names if abs(exponent_of([at[key] for at in forward], scales)) > 1e-9)
