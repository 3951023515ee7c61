"""The lines of a sweep: the trials of an arm along an axis at one value of the judged HP, and what they measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.limit.network import Floats
from hpxfer.results import MISSING, Results
from hpxfer.search import cells_of
from hpxfer.trial import Trial

# What may grow from shape to shape. The first one that differs at every shape is the size of a line.
SIZES = ("width", "num_experts", "expert_width")


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """The trials of one arm along one axis at one value of the judged HP."""

    axis: str
    parameterization: str
    where: str
    hp: str
    value: float
    trials: Mapping[str, Trial]  # id -> trial
    size: str  # of SIZES
    ids: pd.DataFrame  # seed x size, of the seeds that finished at every size
    path: Sequence[Trial]  # one per size
    left_out: tuple[str, ...]  # what is missing, in words

    @property
    def name(self) -> str:
        return f"{self.parameterization} along {self.axis}"


def lines_of(results: Results, axis: str | None, arm: str | None, value: float | None) -> list[Line]:
    """Return the lines of every arm along every axis, or of those that are named.

    Raise HpxferError if the sweep has no such line.
    """
    hp = results.spec.judged_hp
    if (why := results.why_no_line(hp)) is not None:
        raise HpxferError(f"{results.folder}: no line of {hp} can be compared with a limit: {why}")
    table = results.line(hp)
    for column, given in (("axis", axis), ("parameterization", arm)):
        if given is not None and given not in (names := list(dict.fromkeys(table[column]))):
            raise HpxferError(f"{results.folder}: {column}: the sweep has no {shown(given)}; {nearest(given, names)}")
        table = table if given is None else table[table[column] == given]
    known = {cell.trial.id: cell.trial for cell in cells_of(results.expansion, results.trials)}
    groups = table.groupby(["axis", "parameterization"], sort=False, observed=True)
    return [_line(results, rows, known, _value(results, rows, value)) for _, rows in groups]


def _line(results: Results, table: pd.DataFrame, known: Mapping[str, Trial], value: float) -> Line:
    axis, arm = str(table["axis"].iloc[0]), str(table["parameterization"].iloc[0])
    where = f"{results.folder}: {arm} along {axis}"
    rows = table[table["value"] == value]
    shapes = {known[each].shape for each in rows["trial_id"]}
    size = next((name for name in SIZES if len({getattr(shape, name) for shape in shapes}) == len(shapes)), None)
    if size is None:
        got = ", ".join(shape.label() for shape in sorted(shapes))
        raise HpxferError(
            f"{where}: the width, the experts or the expert width must grow from shape to shape, got {got}; name "
            "another axis"
        )
    rows = rows.assign(size=[getattr(known[each].shape, size) for each in rows["trial_id"]])
    rows = rows.drop_duplicates(["seed", "size"])
    status, ids = (rows.pivot(index="seed", columns="size", values=name) for name in ("status", "trial_id"))
    status = status.fillna(MISSING)
    lacking = [(at, name, count) for at in status for name, count in status[at].value_counts().items()]
    return Line(
        axis=axis,
        parameterization=arm,
        where=where,
        hp=results.spec.judged_hp,
        value=value,
        trials=known,
        size=size,
        ids=ids[(status == "finished").all(axis=1)],
        path=[known[ids[at].dropna().iloc[0]] for at in ids],
        left_out=tuple(f"{count} {name} at {size} {at}" for at, name, count in lacking if name != "finished"),
    )


def _value(results: Results, table: pd.DataFrame, given: float | None) -> float:
    """Return the value of the judged HP at which a line is taken.

    Without a given one it is the value whose mean loss is lowest at the smallest shape, which would be transferred.
    """
    where, values = f"{results.folder}: {results.spec.judged_hp}", sorted(set(table["value"]))
    if given is not None:
        near = [value for value in values if np.isclose(value, given, rtol=1e-9, atol=0)]
        if not near:
            legal = ", ".join(f"{value:g}" for value in values)
            raise HpxferError(f"{where}: must be a value that the sweep scans, got {given:g}; legal: {legal}")
        return float(near[0])
    if len(values) == 1:
        return float(values[0])
    losses = table[table["scale"] == table["scale"].min()].groupby("value")["loss"].agg(["mean", "count"])
    whole = losses[losses["count"] == losses["count"].max()]["mean"].dropna()
    if whole.empty:
        raise HpxferError(
            f"{where}: no trial of the smallest shape has a loss yet, by which the value to compare is chosen; run the "
            "sweep, or name a value"
        )
    return float(whole.idxmin())


def curve_of(
    results: Results, line: Line, metric: str, passes: Sequence[int], *, power: int = 1
) -> tuple[list[int], Floats, int]:
    """Return the passes of `passes` that every trial of the line has logged, the values [J, S, passes], and how many
    passes only some of the trials have logged.

    A value is the mean over layers of `power` of what is logged. One that is not finite counts as not logged.
    """
    ids, curves = line.ids.T.to_numpy(), results.curves
    own = curves[(curves["metric"] == metric) & curves["trial_id"].isin(ids.ravel()) & curves["step"].isin(passes)]
    own = own[np.isfinite(own["value"])].astype({"trial_id": str})
    means = (own["value"] ** power).groupby([own["trial_id"], own["step"]], observed=True).mean()
    by_step = means.unstack("step").reindex(ids.ravel())
    whole = by_step.dropna(axis="columns")
    return whole.columns.tolist(), whole.to_numpy(float).reshape(*ids.shape, -1), by_step.shape[1] - whole.shape[1]
