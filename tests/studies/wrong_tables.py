"""Wrong tables that `hpxfer check` should find: `python tests/studies/wrong_tables.py`.

A wrong table differs from one of hpxfer in a single factor, or in one kind of factor of several roles. Each is checked
twice: by its own rows and by what a good table does, as a user would meet it; and held to the table that it should be.
The correct tables go through the same two checks, which must find nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from record import head, keep

from hpxfer.coordinates import checking
from hpxfer.coordinates.cases import own_axes, own_case
from hpxfer.model.gpt.layout import FORWARD_ROLES
from hpxfer.scaling import Row, Table, register_parameterization
from hpxfer.scaling.evaluate import Parameterization, parameterization, ratios
from hpxfer.scaling.monomial import ONE, ZERO, Monomial, ratio
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.table import Column
from hpxfer.scaling.tables import PARAMETERIZATIONS
from hpxfer.spec.blocks import model_roles
from hpxfer.trial import Trial

Route = Literal["own", "held"]
# The ratio by which a factor is made wrong along an axis, where the axis moves more than one or has another name.
SYMBOL = {
    "regime-i": "width",
    "regime-ii": "width",
    "regime-iii": "width",
    "granularity": "experts",
    "shared": "active_width",
    "groups": "width",
}
POWERS = (-1.0, -0.5, 0.5, 1.0)
EPS_POWERS = (-1.0, 1.0)
VECTORS = ("norm", "final_norm", "hidden_bias")


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """A wrong table: the factors that replace those of some roles."""

    kind: str  # e.g. `lr`, or `eps of all roles`
    name: str  # e.g. `router lr * width^-0.5`
    factors: tuple[tuple[str, str, Monomial], ...]  # role, name of the factor, its wrong value

    def rows(self, rows: Sequence[Row]) -> tuple[Row, ...]:
        """Return the rows with the wrong factors."""
        changed: dict[str, dict[str, Any]] = {}
        for role, factor, value in self.factors:
            changed.setdefault(role, {})[factor] = value
        return tuple(replace(row, **changed.get(row.role, {})) for row in rows)


def wrong_tables(choice: Parameterization, optimizer: Column, axis: str) -> Iterator[Wrong]:
    """Yield the wrong tables along an axis. Factors that do nothing in the model of the check are left out."""
    symbol = ratio(SYMBOL.get(axis, axis))
    dense = not any(row.role == "router" for row in choice.rows(optimizer))
    case = own_case(choice, optimizer, axis, None, dense=dense)
    shape = case.axis.points[-1].shape
    there = set(model_roles(shape, case.spec.model)) - {"router_bias"}
    moving = {name for name, value in ratios(case.spec.base_shape, shape).items() if value != 1}
    rows = [row for row in choice.rows(optimizer) if row.role in there]
    for row in rows:
        yield from _of_role(row, optimizer, symbol, moving)
    lookups = [row for row in rows if row.role in ("embedding", "position")]
    for power in POWERS:
        yield _several("lr of both embeddings", [(row, "lr", row.lr * symbol**power) for row in lookups])
        vectors = [(row, "lr", row.lr * symbol**power) for row in rows if row.role in VECTORS]
        yield _several("lr of all gains and biases", vectors)
    decayed = [row for row in rows if row.weight_decay != ZERO]
    still = [(row, "weight_decay", ONE) for row in decayed if set(dict(row.weight_decay.exponents)) & moving]
    if still:
        yield _several("constant weight decay of all roles", still)
    if optimizer == "adam":
        yield _several("eps of all roles", [(row, "eps", row.eps * symbol) for row in rows])
        if constant := [(row, "eps", ONE) for row in rows if set(dict(row.eps.exponents)) & moving]:
            yield _several("constant eps of all roles", constant)


def _of_role(row: Row, optimizer: Column, symbol: Monomial, moving: set[str]) -> Iterator[Wrong]:
    kinds: dict[str, tuple[float, ...]] = {"lr": POWERS}
    if ROLES[row.role] not in ("ones", "zeros") and row.init_std != ZERO:
        kinds["init_std"] = POWERS
    if row.role in FORWARD_ROLES:
        kinds["forward"] = POWERS
    if row.weight_decay != ZERO:
        kinds["weight_decay"] = POWERS
    if optimizer == "adam":
        kinds["eps"] = EPS_POWERS
    for kind, powers in kinds.items():
        for power in powers:
            yield _several(kind, [(row, kind, getattr(row, kind) * symbol**power)])
    for kind in kinds.keys() & {"eps", "weight_decay"}:
        if set(dict(getattr(row, kind).exponents)) & moving:
            yield _several(f"constant {kind}", [(row, kind, ONE)])


def _several(kind: str, wrong: Sequence[tuple[Row, str, Monomial]]) -> Wrong:
    name = "; ".join(f"{row.role} {factor} {value}" for row, factor, value in wrong)
    return Wrong(kind=kind, name=name, factors=tuple((row.role, factor, value) for row, factor, value in wrong))


def passes(table: Table, optimizer: Column, axis: str, wrong: Wrong | None, route: Route, *, seeds: int) -> bool:
    """Return whether the check passes a table, with the wrong factors in it, along an axis."""

    def column(conventions: Any) -> tuple[Row, ...]:
        rows = table.rows[optimizer](conventions)
        return rows if wrong is None else wrong.rows(rows)

    register_parameterization(replace(table, name="wrong-table", rows={optimizer: column}))
    try:
        choice = parameterization("wrong-table")
        held_to = table.name if route == "held" else None
        return checking.check(choice, axes=[axis], optimizer=optimizer, held_to=held_to, seeds=seeds).passed
    finally:
        PARAMETERIZATIONS.remove("wrong-table")


@contextmanager
def other_seeds(offset: int) -> Iterator[None]:
    """Let the check train with other seeds: those from `offset` on."""
    plain = checking._Check._trials

    def shifted(self: Any, *given: Any) -> list[Trial]:
        return [replace(trial, seed=trial.seed + offset) for trial in plain(self, *given)]

    checking._Check._trials = shifted  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        checking._Check._trials = plain  # type: ignore[method-assign]


def columns(names: Sequence[str]) -> Iterator[tuple[Table, Column, str]]:
    """Yield the columns and axes of the named tables, or of all but the control."""
    for table in PARAMETERIZATIONS.rows():
        if table.name in names or not (names or table.name == "sp"):
            for optimizer in table.rows:
                for axis in own_axes(parameterization(table.name), optimizer):
                    yield table, optimizer, axis


def main(arguments: Sequence[str] | None = None) -> int:
    """Check wrong tables, and print how many are found per kind, and which are not."""
    parser = argparse.ArgumentParser(prog="python tests/studies/wrong_tables.py", description=main.__doc__)
    parser.add_argument("--table", nargs="*", default=[], help="names of tables; default: all but sp")
    parser.add_argument("--axis", nargs="*", default=[], help="axes; default: all of the table")
    parser.add_argument("--optimizer", nargs="*", default=["adam", "sgd"])
    parser.add_argument("--route", nargs="*", default=["own", "held"], choices=["own", "held"])
    parser.add_argument("--kind", nargs="*", default=[], help="kinds of wrong tables, e.g. lr; default: all")
    parser.add_argument("--sample", type=int, help="draw this many wrong tables per axis")
    parser.add_argument("--correct", type=int, default=0, help="check the correct tables too, with this many seed sets")
    parser.add_argument("--seeds", type=int, default=checking.SEEDS)
    parser.add_argument("--output", type=Path, help="append the counts to wrong_tables.jsonl in this folder")
    asked = sys.argv[1:] if arguments is None else arguments
    given = parser.parse_args(asked)
    rows: list[dict[str, Any]] = []
    started = time.time()
    for table, optimizer, axis in columns(given.table):
        if (given.axis and axis not in given.axis) or optimizer not in given.optimizer:
            continue
        for route in given.route:
            rows.append(_counted(table, optimizer, axis, route, given))
            sys.stdout.write(_line(rows[-1]) + "\n")
            sys.stdout.flush()
    entry = {**head("wrong_tables", asked, "torch"), "wall_s": round(time.time() - started, 1), "rows": rows}
    keep(entry, given.output, "wrong_tables")
    return 0


def _counted(table: Table, optimizer: Column, axis: str, route: Route, given: argparse.Namespace) -> dict[str, Any]:
    """Return how many wrong tables were checked and found per kind, the names of those passed, and false alarms."""
    every = [
        each
        for each in wrong_tables(parameterization(table.name), optimizer, axis)
        if not given.kind or each.kind in given.kind
    ]
    if given.sample is not None and given.sample < len(every):
        rng = np.random.default_rng(sum(map(ord, f"{table.name} {optimizer} {axis}")))
        every = [every[i] for i in sorted(rng.choice(len(every), given.sample, replace=False))]
    kinds: dict[str, list[int]] = {}
    passed = []
    for wrong in every:
        found = not passes(table, optimizer, axis, wrong, route, seeds=given.seeds)
        counts = kinds.setdefault(wrong.kind, [0, 0])
        counts[0] += found
        counts[1] += 1
        if not found:
            passed.append(wrong.name)
    alarms = 0
    for draw in range(given.correct):
        with other_seeds(draw * given.seeds):
            alarms += not passes(table, optimizer, axis, None, route, seeds=given.seeds)
    where = {"table": table.name, "optimizer": optimizer, "axis": axis, "route": route, "seeds": given.seeds}
    return {**where, "found_of": kinds, "passed": passed, "correct": given.correct, "false_alarms": alarms}


def _line(row: dict[str, Any]) -> str:
    found, asked = (sum(counts[i] for counts in row["found_of"].values()) for i in (0, 1))
    where = " ".join(row[name] for name in ("table", "optimizer", "axis", "route"))
    out = f"{where}: {found} of {asked} found, {row['false_alarms']} false alarms of {row['correct']}"
    return "\n".join([out, *(f"    passed: {name}" for name in row["passed"])])


if __name__ == "__main__":
    raise SystemExit(main())
