"""The one evaluator: a table and two shapes in, the factors of every role out. Nothing here knows a table's name."""

from __future__ import annotations

from dataclasses import dataclass

from hpxfer.errors import HpxferError, nearest
from hpxfer.scaling.table import Conventions, Optimizer, Row, Table
from hpxfer.scaling.tables import TABLES
from hpxfer.shape import Shape


@dataclass(frozen=True, kw_only=True)
class Multipliers:
    """The five numbers of one role: factors relative to the base, or absolute values once resolved."""

    init_std: float
    lr: float
    eps: float
    weight_decay: float
    forward: float


@dataclass(frozen=True, kw_only=True)
class Parameterization:
    """A table and the conventions chosen for it, all of them spelled out. Made by `parameterization`."""

    name: str
    conventions: tuple[tuple[str, float | str], ...] = ()

    @property
    def table(self) -> Table:
        return TABLES[self.name]

    def label(self) -> str:
        """Return the name, with the conventions that are not the default."""
        known = self.table.conventions
        changed = [f"{key}={value}" for key, value in self.conventions if value != known[key].default]
        return self.name + (f"[{','.join(changed)}]" if changed else "")

    def rows(self, optimizer: Optimizer) -> tuple[Row, ...]:
        """Return the rows of the optimizer's column; raise HpxferError if the source has none."""
        column = self.table.rows.get(optimizer)
        if column is None:
            legal = ", ".join(self.table.rows)
            raise HpxferError(f"parameterization {self.name}: the source has no {optimizer} column; it has: {legal}")
        return column(dict(self.conventions))


def parameterization(name: str, conventions: Conventions | None = None) -> Parameterization:
    """Return the named parameterization with every convention filled in; raise HpxferError on an unknown one."""
    if name not in TABLES:
        raise HpxferError(f"unknown parameterization {name!r}; {nearest(name, TABLES)}")
    known = TABLES[name].conventions
    chosen = {key: one.default for key, one in known.items()}
    for key, given in (conventions or {}).items():
        if key not in known:
            fix = nearest(key, known) if known else "it has none"
            raise HpxferError(f"parameterization {name}: unknown convention {key!r}; {fix}")
        value = "inf" if given == float("inf") else given
        if not known[key].allows(value):
            raise HpxferError(f"parameterization {name}: {key} must be {known[key].spell()}, got {given!r}")
        chosen[key] = float(value) if isinstance(value, int) else value
    return Parameterization(name=name, conventions=tuple(sorted(chosen.items())))


def ratios(base: Shape, target: Shape) -> dict[str, float]:
    """Return target/base of every quantity that a monomial may hold; 1 where neither shape has it."""

    def over(name: str) -> float:
        new, old = getattr(target, name), getattr(base, name)
        return new / old if new and old else 1.0

    return {
        "width": over("width"),
        "depth": over("depth"),
        "experts": over("num_experts"),
        "active": over("num_active"),
        "expert_width": over("expert_width"),
        "expert_ratio": over("expert_width") / over("width"),
        "dense_width": over("dense_width"),
        "shared_width": over("shared_width"),
    }


def evaluate(
    choice: Parameterization, base: Shape, target: Shape, optimizer: Optimizer = "adam"
) -> dict[str, Multipliers]:
    """Return role -> factors of `target` relative to `base`."""
    at = ratios(base, target)
    return {
        row.role: Multipliers(
            init_std=row.init_std(at),
            lr=row.lr(at),
            eps=row.eps(at),
            weight_decay=row.weight_decay(at),
            forward=row.forward(at),
        )
        for row in choice.rows(optimizer)
    }


def coverage_warnings(choice: Parameterization, base: Shape, target: Shape) -> list[str]:
    """Return what takes `target` outside what the table's source covers."""
    table = choice.table
    out = []
    at = ratios(base, target)
    for name in ("width", "depth", "experts", "active", "expert_ratio", "dense_width", "shared_width"):
        if abs(at[name] - 1) > 1e-12 and name not in table.axes:
            out.append(f"{table.name} does not cover {name}: it changes by a factor of {at[name]:g}")
    for name in table.fixed:
        old, new = getattr(base, name), getattr(target, name)
        if abs(new / old - 1) > 1e-12:
            out.append(f"{table.name} holds {name} fixed: it goes from {old:g} to {new:g}; transfer is not expected")
    if base.head_dim != target.head_dim:
        out.append(f"{table.name} holds head_dim fixed: it goes from {base.head_dim} to {target.head_dim}")
    return out
