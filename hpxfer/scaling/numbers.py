"""Numbers: what each tensor gets at a shape, as one frame and its text. Pure.

`hpxfer.scaling.evaluate` makes the numbers of the roles from a table and two shapes, and the trainer reads these. Here
each tensor has a row: of a role as a whole, of a family's layout, or of a user's own model. Explanations, recipes,
predictions, exports and checks read the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hpxfer.host import aligned
from hpxfer.scaling.evaluate import Multipliers
from hpxfer.scaling.roles import ROLES

JOIN = "+"  # between the roles of the matrices in one tensor
# Column of the frame -> its name in a text.
COLUMNS = {
    "name": "tensor",
    "role": "role",
    "by": "by",
    "size": "size",
    "init": "init std",
    "lr": "peak LR",
    "scale": "s",
    "log2_lr": "",
    "eps": "eps",
    "weight_decay": "weight decay",
    "forward": "forward",
    "note": "",
}
OF_TENSOR = ("name", "role", "by", "size", "init", "lr", "scale", "eps", "weight_decay")
OF_ROLE = ("role", "by", "init", "lr", "log2_lr", "eps", "weight_decay", "forward")


@dataclass(frozen=True, kw_only=True)
class TensorNumbers:
    """What one tensor gets. A tensor that the optimizer does not update has no LR, eps and weight decay.

    A matrix that Muon moves has no eps, and its LR is that before the scale s of its size.
    """

    name: str = ""  # of a role as a whole, none
    role: str  # joined by + if the tensor holds several matrices
    by: str = ""  # under Muon, which of its two parts moves it: muon or adamw
    size: tuple[int, ...] = ()
    init: float | str  # a standard deviation, `ones` or `zeros`
    lr: float | None  # peak
    scale: tuple[float, ...] = ()  # s of what Muon moves: one number, or one of each matrix in the tensor
    eps: float | None
    weight_decay: float | None
    forward: float = 1.0  # what the forward pass multiplies by
    note: str | None = None

    @property
    def log2_lr(self) -> str:
        return f"(2^{round(math.log2(self.lr), 2):g})" if self.lr else ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data without the forward multiplier, which belongs to a place in the model and to no tensor."""
        left_out = {"forward", *(() if self.by else ("by", "scale"))}
        lists = {"size": list(self.size), **({"scale": list(self.scale)} if self.by else {})}
        return {name: value for name, value in asdict(self).items() if name not in left_out} | lists


def numbers_of(
    role: str,
    at: Multipliers,
    *,
    by: str = "",
    name: str = "",
    size: tuple[int, ...] = (),
    scale: tuple[float, ...] = (),
    note: str | None = None,
) -> TensorNumbers:
    """Return the row of a tensor whose role has these absolute numbers. `by` is as `hpxfer.scaling.muon.by` has it."""
    return TensorNumbers(
        name=name,
        role=role,
        by=by,
        size=size,
        init="ones" if ROLES[role.split(JOIN)[0]] == "ones" else at.init_std or "zeros",
        lr=at.lr,
        scale=scale[:1] if len(set(scale)) == 1 else scale,
        eps=None if by == "muon" else at.eps,
        weight_decay=at.weight_decay,
        forward=at.forward,
        note=note,
    )


def number_lines(rows: Iterable[TensorNumbers], columns: Sequence[str] = OF_TENSOR) -> list[str]:
    """Return the columns of the frame as aligned lines: the header, then one line per row.

    The columns `by` and `scale` are left out where there is one optimizer, and where no scale is known.
    """
    rows = list(rows)
    columns = [name for name in columns if name not in ("by", "scale") or any(getattr(row, name) for row in rows)]
    return aligned([[COLUMNS[name] for name in columns], *([_cell(row, name) for name in columns] for row in rows)])


def _cell(row: TensorNumbers, name: str) -> str:
    value = getattr(row, name)
    if name == "scale":
        return ", ".join(f"{scale:.6g}" for scale in value) or "-"
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    if value is None:
        return "" if name == "note" else "-"
    return value if isinstance(value, str) else f"{value:.6g}"
