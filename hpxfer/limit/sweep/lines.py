"""The lines of a sweep: the trials of an arm along an axis at one value of the judged HP, and what they measured."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.limit.network import Floats
from hpxfer.results import Results
from hpxfer.search import cells_of
from hpxfer.trial import Trial

LOSS_CURVE = "train_loss_nats"
SPREAD_CURVE = "router_logit_spread"


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """The trials of one arm along one axis at one value of the judged HP, which may be stored or not."""

    axis: str
    parameterization: str
    hp: str
    value: float
    trials: Mapping[tuple[float, int], Trial]  # (width, seed) -> trial
    statuses: Mapping[tuple[float, int], str]

    @cached_property
    def widths(self) -> tuple[float, ...]:
        return tuple(sorted({width for width, _ in self.trials}))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """The seeds whose trials finished at every width."""
        return tuple(seed for seed in self._all_seeds if all(self._status(w, seed) == "finished" for w in self.widths))

    @cached_property
    def _all_seeds(self) -> list[int]:
        return sorted({seed for _, seed in self.trials})

    def _status(self, width: float, seed: int) -> str:
        return self.statuses.get((width, seed), "missing")

    def without(self, seeds: Collection[int]) -> Line:
        """Return the line without these seeds."""
        return replace(self, trials={key: trial for key, trial in self.trials.items() if key[1] not in seeds})

    def left_out(self) -> Iterator[str]:
        """Yield what is missing at each width, in words."""
        for width in self.widths:
            for status, count in Counter(self._status(width, seed) for seed in self._all_seeds).items():
                if status != "finished":
                    yield f"{count} {status} at width {width:g}"

    def of_seeds(self) -> list[Trial]:
        """Return the trials of the smallest shape, one per seed."""
        return [self.trials[self.widths[0], seed] for seed in self.seeds]

    def of_widths(self) -> list[Trial]:
        """Return one trial per shape."""
        first = dict(sorted(self.trials, reverse=True))
        return [self.trials[width, first[width]] for width in self.widths]


def lines_of(
    results: Results, *, axis: str | None = None, arm: str | None = None, value: float | None = None
) -> list[Line]:
    """Return the lines of a sweep: of every arm along every axis, or of those that are named.

    Without a `value`, a line is taken at the value of the judged HP whose mean loss is lowest at its smallest shape:
    the value that would be transferred. Raise HpxferError if the sweep has no such line.
    """
    hp = results.spec.judged_hp
    if (why := results.why_no_line(hp)) is not None:
        raise HpxferError(f"{results.folder}: no line of {hp} can be compared with a limit: {why}")
    table = results.line(hp)
    table = _only(table, "axis", axis, results)
    table = _only(table, "parameterization", arm, results)
    known = {cell.trial.id: cell.trial for cell in cells_of(results.expansion, results.trials)}
    return [
        _line(results, hp, own, known, value)
        for _, own in table.groupby(["axis", "parameterization"], sort=False, observed=True)
    ]


def _only(table: pd.DataFrame, column: str, given: str | None, results: Results) -> pd.DataFrame:
    if given is None:
        return table
    names = list(dict.fromkeys(table[column]))
    if given not in names:
        raise HpxferError(f"{results.folder}: {column}: the sweep has no {shown(given)}; {nearest(given, names)}")
    return table[table[column] == given]


def _line(results: Results, hp: str, table: pd.DataFrame, known: Mapping[str, Trial], value: float | None) -> Line:
    axis, arm = str(table["axis"].iloc[0]), str(table["parameterization"].iloc[0])
    chosen = _value(results, table, hp, value)
    own = table[table["value"] == chosen]
    trials, statuses = {}, {}
    for row in own.itertuples():
        trial = known[str(row.trial_id)]
        key = float(trial.shape.width), trial.seed
        trials[key], statuses[key] = trial, str(row.status)
    shapes = {known[str(trial_id)].shape for trial_id in own["trial_id"]}
    if len(shapes) > len({shape.width for shape in shapes}):
        got = ", ".join(shape.label() for shape in sorted(shapes))
        raise HpxferError(
            f"{results.folder}: {arm} along {axis}: the width must grow from shape to shape, as a limit is that of an "
            f"infinite width, got {got}; name another axis"
        )
    return Line(axis=axis, parameterization=arm, hp=hp, value=chosen, trials=trials, statuses=statuses)


def _value(results: Results, table: pd.DataFrame, hp: str, given: float | None) -> float:
    where, values = f"{results.folder}: {hp}", sorted(set(table["value"]))
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


def curve_of(results: Results, line: Line, metric: str, passes: Sequence[int]) -> tuple[tuple[int, ...], Floats, int]:
    """Return the passes of `passes` that every trial of the line has logged, the values [J, S, passes], and how many
    passes only some of the trials have logged.

    A value that is not finite counts as not logged.
    """
    places = itertools.product(enumerate(line.widths), enumerate(line.seeds))
    ids = {line.trials[width, seed].id: (j, s) for (j, width), (s, seed) in places}
    curves = results.curves
    own = curves[(curves["metric"] == metric) & curves["trial_id"].isin(ids) & curves["step"].isin(passes)]
    own = own[np.isfinite(own["value"])]
    steps, counts = np.unique(own["step"].to_numpy(int), return_counts=True)
    whole = steps[counts == len(ids)].tolist()
    place = {step: t for t, step in enumerate(whole)}
    out = np.full((len(line.widths), len(line.seeds), len(whole)), np.nan)
    for trial, step, number in zip(own["trial_id"], own["step"], own["value"], strict=True):
        if step in place:
            out[(*ids[trial], place[step])] = number
    return tuple(whole), out, len(steps) - len(whole)


def held_out_of(results: Results, line: Line) -> Floats:
    """Return the loss on the held-out samples after the last update, [J, S]."""
    losses = results.trials.set_index("trial_id")["validation_loss_nats"]
    rows = [[losses[line.trials[width, seed].id] for seed in line.seeds] for width in line.widths]
    return np.array(rows, float)
