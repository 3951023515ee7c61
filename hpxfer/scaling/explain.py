"""Explain: the init std, LR, eps, weight decay and forward multiplier of every role at a shape, and their sources.

This module is pure. It takes a table and two shapes; `hpxfer.prediction.explain` reads them from sweeps and recipes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.host import aligned
from hpxfer.registry import registry
from hpxfer.scaling.coverage import ModelFacts, coverage_notes, coverage_warnings, gate_warnings
from hpxfer.scaling.evaluate import (
    BaseInit,
    Globals,
    GlobalValues,
    Multipliers,
    Parameterization,
    evaluate,
    evaluate_globals,
    resolve,
    resolve_globals,
)
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.monomial import ONE, ZERO
from hpxfer.scaling.muon import by, muon_of
from hpxfer.scaling.numbers import OF_ROLE, number_lines, numbers_of
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import FACTORS, Column, Convention, MuonRow, Row, Table
from hpxfer.scaling.tables import PARAMETERIZATIONS

# Column of a table -> the optimizer that people name, where the two differ.
OPTIMIZERS: dict[Column, str] = {"adam": "adamw"}


_SCALE_OF_ALL = "init_scale multiplies the init std of embedding and position too"


@dataclass(frozen=True, kw_only=True)
class BaseValues:
    """What a sweep or a recipe adds to a table: the base HPs and how the base model starts."""

    hps: HPs
    init: BaseInit
    route_scale: float = 1.0  # the fixed factor of the base model on the weights of its routed experts


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The factors of every role at `target` relative to `base`, the rows that they come from, and warnings."""

    choice: Parameterization
    optimizer: Column
    base: Shape
    target: Shape
    rows: tuple[Row, ...]
    factors: Mapping[str, Multipliers]
    globals: Globals
    warnings: tuple[str, ...]
    notes: tuple[str, ...] = ()  # what the reader should know, though the source covers it
    # Absolute numbers at `base` and `target`, those of the roles and those of none; empty if only the table is known.
    values: Mapping[str, Mapping[str, Multipliers]] = field(default_factory=dict)
    global_values: Mapping[str, GlobalValues] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as JSON-ready data. `roles` maps each role to its factors relative to the base."""
        out: dict[str, Any] = {
            "parameterization": self.choice.name,
            "conventions": dict(self.choice.conventions),
            "optimizer": OPTIMIZERS.get(self.optimizer, self.optimizer),
            "base": self.base.dims(),
            "target": self.target.dims(),
            "roles": _plain(self.factors),
            "globals": asdict(self.globals),
            "structure": asdict(self.choice.structure()),
            "warnings": list(self.warnings),
        }
        if self.notes:
            out["notes"] = list(self.notes)
        if self.values:
            out["values"] = {at: _plain(roles) for at, roles in self.values.items()}
            out["global_values"] = _plain(self.global_values)
        return out

    def table(self) -> str:
        """Return the explanation as aligned text: factors with their monomials, absolute values, and warnings."""
        parts = [
            [
                f"{self.choice.label()} ({self.choice.table.source}), {OPTIMIZERS.get(self.optimizer, self.optimizer)}",
                f"base    {_spell_shape(self.base, self.target, 'target')}",
                f"target  {_spell_shape(self.target, self.base, 'base')}",
            ],
            [
                "Factors, target over base",
                *aligned([("role", *FACTORS, "source"), *map(self._factor_cells, self.rows)]),
                *self._global_lines(),
            ],
        ]
        for at, values in self.values.items():
            lines = number_lines(
                [numbers_of(row.role, values[row.role], by=by(self.optimizer, row.role)) for row in self.rows], OF_ROLE
            )
            of_none = self.global_values[at]
            last = f"betas {of_none.beta1:.6g}, {of_none.beta2:.6g}; route scale {of_none.route_scale:g}"
            parts.append([f"Values at the {at}", *lines, last])
        if said := [*(f"warning: {warning}" for warning in self.warnings), *(f"note: {note}" for note in self.notes)]:
            parts.append(said)
        return "\n\n".join("\n".join(part) for part in parts)

    def _global_lines(self) -> list[str]:
        """Return what belongs to no role, and sentences on what changes apart from numbers."""
        table, factors, structure = self.choice.table, self.globals, self.choice.structure()
        out = [f"route scale (gates that sum to one): {_factor_cell(factors.route_scale, str(table.route_scale))}"]
        if self.optimizer != "sgd":
            beta = _factor_cell(factors.one_minus_beta, str(table.one_minus_beta))
            out.append(f"1 - beta1 and 1 - beta2: {beta}")
        if (muon := muon_of(self.optimizer)) is not None:
            out.append(
                f"Muon moves {', '.join(row.role for row in self.rows if row.role in muon.roles)} by LR times "
                f"{muon.formula}; AdamW moves the others at adamw_lr"
            )
        if structure.tied_experts:
            out.append("init: all experts of a layer start from the same draw, and train on their own")
        if std := structure.router_bias_std:
            out.append(
                f"router: at every step normal numbers of std {std:g} are added to the logits, the same at every width"
            )
        return out

    def _factor_cells(self, row: Row) -> tuple[str, ...]:
        factors = self.factors[row.role]
        cells = {name: _factor_cell(getattr(factors, name), str(getattr(row, name))) for name in FACTORS}
        muon = muon_of(self.optimizer)
        if isinstance(row, MuonRow) and muon is not None:  # s is no monomial
            for name, beyond in zip(("lr", "weight_decay"), muon.beyond_text(row.role), strict=True):
                monomial = getattr(row, name)
                if beyond and monomial != ZERO:
                    text = beyond if monomial == ONE else f"{monomial} {beyond}"
                    cells[name] = f"{getattr(factors, name):.6g} ({text})"
        if by(self.optimizer, row.role) == "muon":
            cells["eps"] = "-"
        return (row.role, *cells.values(), row.source)


def explain(
    choice: Parameterization,
    base: Shape,
    target: Shape,
    optimizer: Column = "adam",
    *,
    values: BaseValues | None = None,
    facts: ModelFacts | None = None,
    roles: Collection[str] | None = None,
) -> Explanation:
    """Return the factors that `choice` gives every role at `target`. With `values` it has absolute numbers too.

    `facts` are what a shape does not say about the model; some warnings need them. `roles` are those that the model
    has, by default all of the table. Raise HpxferError if a beta leaves [0, 1).
    """
    gate = None if facts is None else facts.gate
    scaled = values is not None and values.init.scale_of == "all"
    shapes = {} if values is None else {"base": base, "target": target}

    def of_model(found: Mapping[str, Multipliers]) -> Mapping[str, Multipliers]:
        return {role: factors for role, factors in found.items() if roles is None or role in roles}

    def globals_at(shape: Shape, values: BaseValues) -> GlobalValues:
        found = resolve_globals(choice, base, shape, values.hps)
        tables = found.route_scale if gate is None or registry("gate").get(gate).sums_to_one_over else 1.0
        return replace(found, route_scale=tables * values.route_scale)

    return Explanation(
        choice=choice,
        optimizer=optimizer,
        base=base,
        target=target,
        rows=tuple(row for row in choice.rows(optimizer) if roles is None or row.role in roles),
        factors=of_model(evaluate(choice, base, target, optimizer)),
        globals=evaluate_globals(choice, base, target),
        warnings=(*coverage_warnings(choice, base, target, facts, optimizer), *gate_warnings(target, gate)),
        notes=(*coverage_notes(choice, base, target, facts, optimizer), *((_SCALE_OF_ALL,) if scaled else ())),
        values={
            at: of_model(resolve(choice, base, shape, optimizer, values.hps, values.init))
            for at, shape in shapes.items()
            if values is not None
        },
        global_values={at: globals_at(shape, values) for at, shape in shapes.items() if values is not None},
    )


def require_covered(found: Explanation) -> None:
    """Raise HpxferError, with one line per warning, unless the source covers everything up to the target."""
    if found.warnings:
        raise HpxferError(
            "\n".join(f"not covered by {found.choice.table.source}: {warning}" for warning in found.warnings)
        )


def list_parameterizations() -> str:
    """Return every parameterization with its source and scope, and the meaning of each convention, as text."""
    conventions = {key: known for table in PARAMETERIZATIONS.rows() for key, known in table.conventions.items()}
    spelled = (f"  {key}: {convention.spell()}\n      {convention.doc}" for key, convention in conventions.items())
    return "\n\n".join([*map(_table_text, PARAMETERIZATIONS.rows()), "\n".join(["Conventions", *spelled])])


def parameterizations_to_dict() -> dict[str, Any]:
    """Return every parameterization as JSON-ready data: name -> source, axes, fixed, optimizers, conventions, doc."""
    return {
        table.name: {
            "source": table.source,
            "axes": list(table.axes),
            "adam_axes": list(table.adam_axes),
            "fixed": list(_fixed(table)),
            "regime": table.regime,
            "optimizers": [OPTIMIZERS.get(column, column) for column in table.rows],
            "conventions": {key: _convention_to_dict(convention) for key, convention in table.conventions.items()},
            "doc": table.doc,
        }
        for table in PARAMETERIZATIONS.rows()
    }


def _table_text(table: Table) -> str:
    defaults = ", ".join(f"{key}={convention.default}" for key, convention in table.conventions.items())
    adam = f"; for adamw also {', '.join(table.adam_axes)}" if table.adam_axes else ""
    return "\n".join(
        [
            f"{table.name} ({table.source})",
            f"  {table.doc}",
            f"  axes:        {', '.join(table.axes)}{adam}",
            f"  fixed:       {', '.join(_fixed(table))}",
            f"  optimizers:  {', '.join(OPTIMIZERS.get(column, column) for column in table.rows)}",
            f"  conventions: {defaults or 'none'}",
        ]
    )


def _fixed(table: Table) -> tuple[str, ...]:
    """Return what must not change along an axis. Every table holds the head dimension."""
    return (*table.fixed, "head_dim")


def _convention_to_dict(convention: Convention) -> dict[str, Any]:
    legal = convention.legal
    spelled: Any = {"between": list(legal[1:])} if legal[0] == "between" else list(legal)
    return {"default": convention.default, "legal": spelled, "doc": convention.doc}


def _plain(found: Mapping[str, Multipliers] | Mapping[str, GlobalValues]) -> dict[str, dict[str, float]]:
    return {name: asdict(numbers) for name, numbers in found.items()}


def _spell_shape(shape: Shape, other: Shape, name: str) -> str:
    dims = ", ".join(f"{name} {value}" for name, value in shape.dims().items())
    return dims + (f" (batch_tokens and steps as at the {name})" if other.tokens and not shape.tokens else "")


def _factor_cell(factor: float, monomial: str) -> str:
    """Return e.g. `0.25 (width^-1)`. A constant has no monomial beside it."""
    return monomial if monomial in ("0", "1") else f"{factor:.6g} ({monomial})"
