"""Every trial of a sweep, small enough for a page: columns with each distinct value once, compressed by gzip.

Values that trials share are written once. The seeds of one (parameterization, shape, HPs) share their resolved
multipliers, and all trials of a sweep may share a setting.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from hpxfer.results import MISSING, Results
from hpxfer.search import judged_by
from hpxfer.spec import keyed_shapes, model_roles
from hpxfer.store import ERROR_COLUMNS, LOSSES

DIGITS = 7  # of losses and rates. HPs are written in full
ERROR_CHARACTERS = 2000
BASE = "any (base)"  # the parameterization of trials at the base, where all parameterizations agree
NOT_IN_SWEEP = "not in sweep.yaml"
MEASURED = ("last_finite_loss_nats", "tokens_per_s", "wall_s")
COUNTS = ("params_total", "params_active", "diverged_step", "stack_size", "trainer_version", "batch_tokens", "steps")
# Columns that the page shows for a single trial.
NAMES = ("parameterization", "optimizer", "precision", "device", "determinism", "backend", "finished_at")
SHARED = ("resolved", "setting", "conventions", "base_shape", "multipliers", "versions")


@dataclass(frozen=True, kw_only=True)
class TrialData:
    """The trials of one sweep, packed. `left_out` says what is missing from it, and where to find that."""

    num_trials: int
    packed: str  # base64 of gzip of JSON, empty if nothing fits
    left_out: str = ""


def trial_data(results: Results, most_characters: int) -> TrialData:
    """Return every trial, missing ones included, in at most so many characters. Equal results give equal text.

    Where they do not fit, the multipliers and settings are left out, and then the whole table.
    """
    data = _columns(results)
    num = len(data["columns"]["trial_id"])
    whole = packed_trials(data, most_characters, where := "trials.parquet holds them")
    if whole.packed:
        return whole
    data["shared"] = {name: [] for name in data["shared"]}
    less = packed_trials(data, most_characters, where)
    if not less.packed:
        return less
    text = f"the resolved multipliers and settings of {num} trials, as the page would grow too large; {where}"
    return replace(less, left_out=text)


def packed_trials(data: dict[str, Any], most_characters: int, where: str) -> TrialData:
    """Return trials packed, or only that they are left out if they do not fit. `where` says what else holds them."""
    num, packed = len(data["columns"]["trial_id"]), _pack(data)
    if len(packed) <= most_characters:
        return TrialData(num_trials=num, packed=packed)
    text = f"the table of {num} trials, as the page would grow too large; {where}"
    return TrialData(num_trials=num, packed="", left_out=text)


def _columns(results: Results) -> dict[str, Any]:
    rows = _grid_trials(results).merge(results.trials, how="outer", on="trial_id", suffixes=("", "_stored"))
    rows["status"] = rows["status"].astype(object).fillna(MISSING)
    rows["axes"] = rows["axes"].fillna(NOT_IN_SWEEP)
    rows["label"] = rows["label"].fillna(rows["parameterization"]).fillna(BASE)
    for hp in results.spec.grid:
        if f"{hp}_stored" in rows:
            rows[hp] = rows[hp].fillna(rows[f"{hp}_stored"])
    rows = rows.sort_values(["label", "params_total", *results.spec.grid, "seed", "trial_id"], kind="stable")
    columns: dict[str, Any] = {"trial_id": rows["trial_id"].tolist()}
    columns |= {name: distinct(rows[name]) for name in ("label", "axes", "shape", "status", *NAMES)}
    columns |= {name: distinct(rows[name]) for name in (*results.spec.grid, "seed", *COUNTS)}
    losses = _losses(results, rows)
    columns |= {name: rounded(values) for name, (_, values) in losses.items()}
    columns |= {name: rounded(rows[name]) for name in MEASURED}
    columns["error"] = distinct(rows["error"].map(_cut, na_action="ignore"))
    shared = {name: _parsed(rows[name]) for name in SHARED}
    shared["resolved"] = _of_model(shared["resolved"], _roles(results))
    shown = [[heading, name] for name, (heading, _) in losses.items()]
    return {"grid": list(results.spec.grid), "losses": shown, "columns": columns, "shared": shared}


def _losses(results: Results, rows: pd.DataFrame) -> dict[str, tuple[str, pd.Series]]:
    """Return the losses that trials have, and what is shown of errors: key -> heading, and what the page shows."""
    out = {}
    for row in LOSSES:
        judged = judged_by(results.spec, row.name)
        out[judged.column(row.column)] = (f"{row.heading}, {judged.unit}", rows[row.column].astype(float))
    for column, heading in ERROR_COLUMNS.items():
        if not rows[column].isna().all():
            name = f"{column.replace('error', 'accuracy')}_percent"
            out[name] = (f"{heading}, %", 100 * (1 - rows[column].astype(float)))
    return out


def _roles(results: Results) -> frozenset[str]:
    """Return the roles that the sweep's models have at any shape."""
    spec = results.spec
    return frozenset(role for _, shape in keyed_shapes(spec) for role in model_roles(shape, spec.model))


def _of_model(resolved: dict[str, list[Any]], roles: frozenset[str]) -> dict[str, list[Any]]:
    """Return resolved multipliers without the roles that no model of the sweep has: a table has rows for all roles."""
    values = [
        {**value, "roles": {role: of_role for role, of_role in value["roles"].items() if role in roles}}
        for value in resolved["values"]
    ]
    return {**resolved, "values": values}


def _grid_trials(results: Results) -> pd.DataFrame:
    """Return one row per trial of the grid, with its axes and the label of its parameterization."""
    grid = list(results.spec.grid)
    cells = results.cells[["trial_id", "axis", "shape", "parameterization", "seed", *grid]]
    first = cells.drop_duplicates("trial_id").set_index("trial_id")
    axes = cells[["trial_id", "axis"]].drop_duplicates().sort_values("axis", kind="stable")
    labels = cells[["trial_id", "parameterization"]].drop_duplicates("trial_id").set_index("trial_id")
    shared = cells.groupby("trial_id", sort=False)["parameterization"].nunique() > 1
    out = first.drop(columns=["axis", "parameterization"])
    axes_of: dict[str, list[str]] = {}
    for trial_id, axis in zip(axes["trial_id"], axes["axis"], strict=True):
        axes_of.setdefault(trial_id, []).append(axis)
    out["axes"] = [", ".join(axes_of[trial_id]) for trial_id in out.index]
    out["label"] = labels["parameterization"].where(~shared, BASE)
    return out.reset_index()


def distinct(values: pd.Series) -> dict[str, list[Any]]:
    """Return the distinct values of a column, and for each row the index of its value (-1: none)."""
    codes, distinct = pd.factorize(values.astype(object), use_na_sentinel=True)
    return {"values": [_plain(value) for value in distinct], "at": codes.tolist()}


def _parsed(values: pd.Series) -> dict[str, list[Any]]:
    """Return the distinct values of a column of JSON, parsed, and for each row the index of its value."""
    found = distinct(values)
    return {"values": [json.loads(text) for text in found["values"]], "at": found["at"]}


def rounded(values: pd.Series) -> list[float | None]:
    return [None if value != value else float(f"{value:.{DIGITS}g}") for value in _floats(values)]


def _floats(values: Iterable[Any]) -> Sequence[float]:
    return pd.to_numeric(pd.Series(list(values)), errors="coerce").astype(float).tolist()


def _plain(value: Hashable) -> Any:
    """Return a value as JSON holds it. A column with gaps holds whole numbers as floats: they become int again."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value.item() if hasattr(value, "item") else value


def _cut(text: str) -> str:
    return text if len(text) <= ERROR_CHARACTERS else text[:ERROR_CHARACTERS] + " ... (cut; trials.parquet holds it)"


def _pack(data: dict[str, Any]) -> str:
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=9, mtime=0)).decode()
