"""Explain: what a recipe gives every tensor of a model, a line each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hpxfer.recipe.apply import BALANCED, Named
from hpxfer.recipe.describe import aligned
from hpxfer.scaling.evaluate import Multipliers
from hpxfer.scaling.roles import ROLES

HEADER = ("tensor", "role", "size", "init std", "peak LR", "eps", "weight decay")


@dataclass(frozen=True, kw_only=True)
class TensorRow:
    """What one tensor gets. `init` is `ones`, `zeros` or a standard deviation; of what no optimizer moves, no LR."""

    name: str
    role: str  # joined by + if the tensor holds several matrices
    size: tuple[int, ...]
    init: float | str
    lr: float | None  # peak
    eps: float | None
    weight_decay: float | None
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelExplanation:
    """What a recipe gives a model: `str()` is a table, `to_dict()` the same as plain data."""

    rows: tuple[TensorRow, ...]
    heading: str

    def to_dict(self) -> list[dict[str, Any]]:
        """Return a mapping a tensor, in the model's order; sizes as lists, what there is not as None."""
        return [{**asdict(row), "size": list(row.size)} for row in self.rows]

    def __str__(self) -> str:
        notes = [f"  {row.name}: {row.note}" for row in self.rows if row.note]
        return "\n".join([self.heading, *aligned([HEADER, *map(_cells, self.rows)]), *notes])


def explained(named: Iterable[Named], values: Mapping[str, Multipliers], heading: str) -> ModelExplanation:
    """Return the explanation of a model whose tensors have these roles."""
    rows = tuple(_row(one, one.numbers(values)) for one in named)
    return ModelExplanation(rows=rows, heading=heading)


def _row(one: Named, at: Multipliers) -> TensorRow:
    kind = ROLES[one.roles[0]]
    init: float | str = "ones" if kind == "ones" else at.init_std or "zeros"
    moved = one.role != BALANCED and one.tensor.requires_grad
    note = None
    if one.role == BALANCED:
        note = f"moved by the balancing rule at {at.lr:g}, not by the optimizer"
    elif not one.tensor.requires_grad:
        note = "needs no gradient: in no group"
    elif one.tied:
        note = "embedding and readout in one tensor: the embedding's numbers"
    return TensorRow(
        name=one.name,
        role=one.role,
        size=tuple(one.tensor.shape),
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
    return (row.name, row.role, size, *(spell(one) for one in (row.init, row.lr, row.eps, row.weight_decay)))
