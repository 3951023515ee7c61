"""Explain: which init std, LR, eps, weight decay and forward multiplier every role gets at a shape, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from hpxfer.hps import HPs
from hpxfer.scaling.evaluate import Multipliers, Parameterization, coverage_warnings, evaluate
from hpxfer.scaling.resolve import BaseInit, resolve
from hpxfer.scaling.roles import ROLES, fan_in_dim
from hpxfer.scaling.table import Convention, Optimizer, Row, Table
from hpxfer.scaling.tables import TABLES
from hpxfer.shape import Shape

FIELDS = tuple(f.name for f in fields(Multipliers))


@dataclass(frozen=True, kw_only=True)
class BaseValues:
    """What a sweep or a recipe knows beyond a table: the base HPs and how the base model starts."""

    hps: HPs
    init: BaseInit


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Every role's factors at `target` relative to `base`, the rows that they follow from, and what to beware of."""

    choice: Parameterization
    optimizer: Optimizer
    base: Shape
    target: Shape
    rows: tuple[Row, ...]
    factors: Mapping[str, Multipliers]
    warnings: tuple[str, ...]
    base_values: Mapping[str, Multipliers] | None = None  # absolute; None where only the table is known
    target_values: Mapping[str, Multipliers] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as JSON-ready data: `roles` holds role -> the five factors."""
        out: dict[str, Any] = {
            "parameterization": self.choice.name,
            "conventions": dict(self.choice.conventions),
            "optimizer": self.optimizer,
            "base": self.base.dims(),
            "target": self.target.dims(),
            "roles": _plain(self.factors),
            "warnings": list(self.warnings),
        }
        if self.base_values is not None and self.target_values is not None:
            out["values"] = {"base": _plain(self.base_values), "target": _plain(self.target_values)}
        return out

    def table(self) -> str:
        """Return the explanation as aligned text: factors and monomials, then absolute values, then warnings."""
        parts = [
            [
                f"{self.choice.label()} ({self.choice.table.source}), {self.optimizer}",
                f"base    {_spell_shape(self.base)}",
                f"target  {_spell_shape(self.target)}",
            ],
            [
                "Factors, target over base",
                *_aligned([("role", *FIELDS, "source"), *map(self._factor_cells, self.rows)]),
            ],
        ]
        for title, values in (("base", self.base_values), ("target", self.target_values)):
            if values is not None:
                cells = [_value_cells(row.role, values[row.role], self.base) for row in self.rows]
                parts.append([f"Values at the {title}", *_aligned([("role", *FIELDS), *cells])])
        if self.warnings:
            parts.append([f"warning: {one}" for one in self.warnings])
        return "\n\n".join("\n".join(part) for part in parts)

    def _factor_cells(self, row: Row) -> tuple[str, ...]:
        factors = self.factors[row.role]
        cells = (_factor_cell(getattr(factors, name), str(getattr(row, name))) for name in FIELDS)
        return (row.role, *cells, row.source)


def explain(
    choice: Parameterization,
    base: Shape,
    target: Shape,
    optimizer: Optimizer = "adam",
    *,
    values: BaseValues | None = None,
) -> Explanation:
    """Return what `choice` gives every role at `target`; with `values`, absolute numbers at both shapes too."""

    def at(shape: Shape) -> Mapping[str, Multipliers] | None:
        return None if values is None else resolve(choice, base, shape, optimizer, values.hps, values.init)

    return Explanation(
        choice=choice,
        optimizer=optimizer,
        base=base,
        target=target,
        rows=choice.rows(optimizer),
        factors=evaluate(choice, base, target, optimizer),
        warnings=tuple(coverage_warnings(choice, base, target)),
        base_values=at(base),
        target_values=at(target),
    )


def list_parameterizations() -> str:
    """Return every parameterization with its source, scope and conventions, as text."""
    return "\n\n".join(_table_text(table) for table in TABLES.values())


def parameterizations_to_dict() -> dict[str, Any]:
    """Return the same as JSON-ready data: name -> source, axes, fixed, optimizers, conventions, doc."""
    return {
        name: {
            "source": table.source,
            "axes": list(table.axes),
            "fixed": list(_fixed(table)),
            "optimizers": list(table.rows),
            "conventions": {key: _convention_to_dict(one) for key, one in table.conventions.items()},
            "doc": table.doc,
        }
        for name, table in TABLES.items()
    }


def _table_text(table: Table) -> str:
    conventions = [
        f"    {key} = {one.default}; legal: {one.spell()}\n        {one.doc}" for key, one in table.conventions.items()
    ]
    return "\n".join(
        [
            f"{table.name} ({table.source})",
            f"  {table.doc}",
            f"  axes:        {', '.join(table.axes)}",
            f"  fixed:       {', '.join(_fixed(table))}",
            f"  optimizers:  {', '.join(table.rows)}",
            "  conventions:" + ("" if conventions else " none"),
            *conventions,
        ]
    )


def _fixed(table: Table) -> tuple[str, ...]:
    """Return what must not change along an axis. The head dimension is held by every table."""
    return (*table.fixed, "head_dim")


def _convention_to_dict(convention: Convention) -> dict[str, Any]:
    legal = convention.legal
    spelled: Any = {"between": list(legal[1:])} if legal[0] == "between" else list(legal)
    return {"default": convention.default, "legal": spelled, "doc": convention.doc}


def _plain(roles: Mapping[str, Multipliers]) -> dict[str, dict[str, float]]:
    return {role: asdict(one) for role, one in roles.items()}


def _spell_shape(shape: Shape) -> str:
    return ", ".join(f"{name} {value}" for name, value in shape.dims().items())


def _factor_cell(factor: float, monomial: str) -> str:
    """Return e.g. `0.25 (width^-1)`; a constant stands alone."""
    return monomial if monomial in ("0", "1") else f"{factor:.6g} ({monomial})"


def _value_cells(role: str, values: Multipliers, base: Shape) -> tuple[str, ...]:
    cells = {name: f"{getattr(values, name):.6g}" for name in FIELDS}
    if ROLES[role] in ("ones", "zeros"):
        cells["init_std"] = ROLES[role]  # an exact start, not a draw
    elif not getattr(base, fan_in_dim(role)):
        cells["init_std"] = "-"  # the base model has no such tensor, so no fan-in
    if values.lr > 0:
        cells["lr"] += f" (2^{round(math.log2(values.lr), 2):g})"
    return (role, *cells.values())


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return one line a row, every column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
