"""Explain: what a recipe gives each tensor of a model, one line per tensor. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hpxfer.host import aligned
from hpxfer.recipe.assign import BALANCED, RoleTensor
from hpxfer.recipe.fitted_range import TunedOn
from hpxfer.scaling.evaluate import Multipliers
from hpxfer.scaling.roles import ROLES

HEADER = ("tensor", "role", "size", "init std", "peak LR", "eps", "weight decay")


@dataclass(frozen=True, kw_only=True)
class TensorRow:
    """What one tensor gets. A tensor that the optimizer does not update has no LR, eps and weight decay."""

    name: str
    role: str  # joined by + if the tensor holds several matrices
    size: tuple[int, ...]
    init: float | str  # a standard deviation, `ones` or `zeros`
    lr: float | None  # peak
    eps: float | None
    weight_decay: float | None
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelExplanation:
    """What a recipe gives a model. `str()` is a table, and `to_dict()` holds the same as plain data."""

    rows: tuple[TensorRow, ...]
    heading: str
    tuned_on: TunedOn

    def to_dict(self) -> list[dict[str, Any]]:
        """Return one mapping per tensor, in the model's order, with sizes as lists and None for what is missing."""
        return [{**asdict(row), "size": list(row.size)} for row in self.rows]

    def __str__(self) -> str:
        notes = [f"  {row.name}: {row.note}" for row in self.rows if row.note]
        table = tensor_lines(self.rows)
        # The warning says what differs, together with what cannot be seen.
        other = [] if self.tuned_on.different else [f"  {note}" for note in self.tuned_on.notes()]
        return "\n".join([self.heading, *(f"  {line}" for line in table), *notes, *other])


def explained(
    tensors: Iterable[RoleTensor], values: Mapping[str, Multipliers], heading: str, tuned_on: TunedOn
) -> ModelExplanation:
    """Return the explanation of a model whose tensors have these roles."""
    rows = tuple(_row(item, item.numbers(values)) for item in tensors)
    return ModelExplanation(rows=rows, heading=heading, tuned_on=tuned_on)


def tensor_lines(rows: Iterable[TensorRow]) -> list[str]:
    """Return a table as aligned lines: the header, then one line per tensor."""
    return aligned([HEADER, *map(_cells, rows)])


def _row(item: RoleTensor, at: Multipliers) -> TensorRow:
    kind = ROLES[item.roles[0]]
    init: float | str = "ones" if kind == "ones" else at.init_std or "zeros"
    of_one_plus = item.gain is not None and item.gain.offset == 1.0
    if of_one_plus:
        init = "zeros"
    moved = item.role != BALANCED and item.tensor.requires_grad
    note = "a gain of 1 + w" if of_one_plus else item.own.note
    if item.role == BALANCED:
        note = f"updated by the balancing rule at {at.lr:g}, not by the optimizer"
    elif not item.tensor.requires_grad:
        note = "needs no gradient, so that it is in no group"
    elif item.tied:
        note = "embedding and readout are one tensor, with the embedding's numbers"
    return TensorRow(
        name=item.name,
        role=item.role,
        size=tuple(item.tensor.shape),
        init=init,
        lr=at.lr if moved else None,
        eps=at.eps if moved else None,
        weight_decay=at.weight_decay if moved else None,
        note=note,
    )


def _cells(row: TensorRow) -> tuple[str, ...]:
    def spell(value: float | str | None) -> str:
        return "-" if value is None else value if isinstance(value, str) else f"{value:.6g}"

    size = "x".join(map(str, row.size))
    return (row.name, row.role, size, *(spell(value) for value in (row.init, row.lr, row.eps, row.weight_decay)))
