"""From a store to what the estimators read: the rows of a line with their trials, curves by trial, shapes by name."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpxfer.analysis.cube import Floats
from hpxfer.analysis.findings import Finding
from hpxfer.analysis.report import Results
from hpxfer.scaling.shape import Shape
from hpxfer.spec.axes import paths
from hpxfer.trial import PRODUCT, Expansion, base_hps

if TYPE_CHECKING:
    from hpxfer.spec import SweepSpec

LOSS_COLUMNS = {"validation": "validation_loss_nats", "final_window": "final_window_loss_nats"}
NO_BASE_VALUE = "no HP was transferred: the base has no optimum"


class Stored(Results, Protocol):
    """What all analyses read. Columns: `hpxfer.results.Results`."""

    @property
    def cells(self) -> pd.DataFrame: ...

    @property
    def trials(self) -> pd.DataFrame: ...

    @property
    def curves(self) -> pd.DataFrame: ...

    @property
    def expansion(self) -> Expansion: ...


@dataclass(frozen=True, kw_only=True)
class Run:
    """One trial at the transferred HP, as the analyses beside the verdict see it."""

    trial_id: str
    seed: int
    loss: float  # nats: +inf if it diverged
    diverged_step: int | None


@dataclass(frozen=True, kw_only=True)
class Place:
    """One shape on one axis under one parameterization, with its runs at the transferred HP; no run, no result."""

    axis: str
    scale_name: str
    scale: float
    shape: str
    is_base: bool
    parameterization: str
    runs: tuple[Run, ...]

    @property
    def losses(self) -> dict[int, float]:
        """The loss of each seed that has a result."""
        return {run.seed: run.loss for run in self.runs}

    @property
    def mean(self) -> float | None:
        """The mean loss over seeds; None without a result or where a seed diverged."""
        losses = list(self.losses.values())
        return float(np.mean(losses)) if losses and all(map(math.isfinite, losses)) else None


def line_cells(results: Stored, hp: str, loss: str, *, beside: str | None = None) -> pd.DataFrame:
    """Return the cells that scan `hp`, as `Results.line` does, with `value`, `loss` and what is known of their trial.

    A loss is nats, +inf if the trial diverged, NaN without a result. The HP `beside` is scanned too, in a product.
    """
    cells, spec = results.cells, results.spec
    rows = cells["line"].isin([hp, PRODUCT])
    if spec.product:
        base = base_hps(spec)
        for other in spec.grid:
            if other not in (hp, beside):
                rows &= np.isclose(cells[other], base.get(other), rtol=1e-9, atol=0.0)
    found = cells[rows].rename(columns={hp: "value", LOSS_COLUMNS[loss]: "loss"})
    measured = found["loss"].where(found["status"] == "finished")
    return found.assign(loss=measured.mask(found["status"] == "diverged", math.inf)).reset_index(drop=True)


def places(cells: pd.DataFrame, value_of: Mapping[tuple[str, str], float]) -> tuple[Place, ...]:
    """Return every place of `value_of`, (axis, parameterization) -> HP, by axis, parameterization and scale."""
    out = []
    key: Any
    for key, rows in cells.groupby(["axis", "parameterization", "scale", "shape"], sort=True):
        axis, label, scale, shape = key
        if (axis, label) not in value_of:
            continue
        kept = rows[(rows["value"] == value_of[axis, label]) & ~rows["loss"].isna()]
        out.append(
            Place(
                axis=str(axis),
                scale_name=str(rows["scale_name"].iloc[0]),
                scale=float(scale),
                shape=str(shape),
                is_base=bool(rows["is_base"].iloc[0]),
                parameterization=str(label),
                runs=tuple(
                    Run(
                        trial_id=str(trial_id),
                        seed=int(seed),
                        loss=float(loss),
                        diverged_step=None if pd.isna(step) else int(step),
                    )
                    for trial_id, seed, loss, step in zip(
                        *(kept[name] for name in ("trial_id", "seed", "loss", "diverged_step")), strict=True
                    )
                ),
            )
        )
    return tuple(out)


def one_value(findings: Collection[Finding], parameterization: str) -> float | None:
    """Return the HP that most axes of a parameterization transferred, the lower one of equals; None without one."""
    values = [one.base_value for one in findings if one.parameterization == parameterization and one.base_value]
    return min(set(values), key=lambda value: (-values.count(value), value), default=None)


def shapes_of(spec: SweepSpec) -> dict[tuple[str, str], Shape]:
    """Return (axis, name of a shape) -> the shape."""
    return {(path.name, path.label(point.shape)): point.shape for path in paths(spec) for point in path.points}


def distinct(every: Collection[Place], shapes: Mapping[tuple[str, str], Shape]) -> list[tuple[Place, Shape]]:
    """Return the places of one parameterization, each shape once: the base is on every axis."""
    first: dict[Shape, Place] = {}
    for place in every:
        first.setdefault(shapes[place.axis, place.shape], place)
    return [(place, shape) for shape, place in first.items()]


def series(
    curves: pd.DataFrame, metric: str, trial_ids: Collection[str]
) -> dict[str, tuple[NDArray[np.int64], Floats]]:
    """Return trial_id -> (steps ascending, values) of a metric; of its layers the largest value counts."""
    kept = curves[(curves["metric"] == metric).to_numpy() & curves["trial_id"].isin(trial_ids).to_numpy()]
    code_R, names = pd.factorize(kept["trial_id"])
    step_R, value_R = kept["step"].to_numpy(np.int64), kept["value"].to_numpy(float)
    if not step_R.size:
        return {}
    order = np.lexsort((step_R, code_R))
    code_R, step_R, value_R = np.asarray(code_R)[order], step_R[order], value_R[order]
    first_R = np.concatenate([[True], (np.diff(code_R) != 0) | (np.diff(step_R) != 0)])
    start = np.flatnonzero(first_R)
    most, code, step = np.maximum.reduceat(value_R, start), code_R[start], step_R[start]
    cuts = np.flatnonzero(np.diff(code)) + 1
    parts = zip(np.split(code, cuts), np.split(step, cuts), np.split(most, cuts), strict=True)
    return {str(names[codes[0]]): (steps, values) for codes, steps, values in parts}


def params_of(trials: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return trial_id -> parameters by the way they are counted, see `scaling_fit.COUNTS`.

    Without embedding: without the tables of tokens and positions and an untied readout, which grow with vocabulary and
    context and not with the network.
    """
    out = {}
    columns = ("trial_id", "params_total", "params_active", "width", "vocab_size", "context", "setting")
    for trial_id, total, active, width, vocabulary, context, setting in zip(
        *(trials[name] for name in columns), strict=True
    ):
        tables = 1 if '"tied_embeddings":true' in setting or json.loads(setting).get("tied_embeddings") else 2
        embedding = float(width * (tables * vocabulary + context))
        out[str(trial_id)] = {
            "total": float(total),
            "active": float(active),
            "total without embedding": float(total) - embedding,
            "active without embedding": float(active) - embedding,
        }
    return out
