"""Lines: the cells of the sweep's grid by HP, axis and parameterization, their losses, and the doubt about each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from hpxfer.host import CONTROL, NATS, JudgedLoss, is_control
from hpxfer.model.cost import relative_cost
from hpxfer.scaling.shape import Shape
from hpxfer.search.protocol import Outcome
from hpxfer.search.stored import Searched
from hpxfer.store import shape_of_row
from hpxfer.trial import Cell, Expansion, Trial
from hpxfer.verdict import Finding, LossGrid, Rules, SeedLosses, ShapeLosses, Verdict, find, loss_grids

if TYPE_CHECKING:
    import pandas as pd

MIN_SEEDS = 2  # at every shape: one seed shows no noise


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """The finding on one line."""

    finding: Finding

    @property
    def verdict(self) -> Verdict:
        """The verdict. It is undecided while a shape has fewer than two seeds."""
        few = any(shape.num_seeds < MIN_SEEDS for shape in self.finding.shapes)
        return "undecided" if few else self.finding.verdict

    @property
    def chance(self) -> float:
        """The chance that the HP transfers. Where the finding has none, its verdict stands for it."""
        known = self.finding.transfer_chance
        return {"transfers": 1.0, "drifts": 0.0, "undecided": 0.5}[self.finding.verdict] if known is None else known

    @property
    def size(self) -> float:
        """The chance of being wrong if the likelier verdict were said now: 0.5 at most."""
        return min(self.chance, 1.0 - self.chance)

    @property
    def text(self) -> str:
        return f"it transfers with a chance of {self.chance:.4g}"

    def is_decided(self, error: float) -> bool:
        """Return whether the verdict is said, and wrong with no more than this chance."""
        return self.verdict != "undecided" and self.size <= error


def doubts(grids: Sequence[LossGrid], rules: Rules, judged: JudgedLoss = NATS) -> tuple[Doubt, ...]:
    """Return the doubt about each line, judged by these rules and by this loss."""
    return tuple(Doubt(finding=finding) for finding in find([replace(grid, judged=judged) for grid in grids], rules))


@dataclass(frozen=True, kw_only=True, eq=False)
class LineShape:
    """One shape of a line: HP value -> the trials of its seeds, in the order of the sweep's seeds."""

    name: str
    scale: float
    is_base: bool
    flops: float  # of one trial; of a user's own trainer, where they are not known, its tokens
    trials: Mapping[float, tuple[Trial, ...]]  # values ascend

    @cached_property
    def all_trials(self) -> tuple[Trial, ...]:
        return tuple(itertools.chain.from_iterable(self.trials.values()))


@dataclass(frozen=True, kw_only=True, eq=False)
class VerdictLine:
    """One HP along one axis, with one parameterization: what a verdict is about. `shapes` ascend by scale."""

    hp: str
    axis: str
    scale_name: str
    parameterization: str
    shapes: tuple[LineShape, ...]
    control: str | None = CONTROL  # the arm that the others are compared with

    @property
    def is_control(self) -> bool:
        return is_control(self.parameterization, self.control)

    @property
    def name(self) -> str:
        """Its name in decisions, e.g. `lr along width, completep-moe`."""
        return f"{self.hp} along {self.axis}, {self.parameterization}"

    @property
    def base(self) -> LineShape:
        return next(shape for shape in self.shapes if shape.is_base)

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """All its trials, shape by shape."""
        return tuple(trial for shape in self.shapes for trial in shape.all_trials)

    @cached_property
    def flops(self) -> float:
        """The FLOPs of all its trials."""
        return math.fsum(shape.flops * len(shape.all_trials) for shape in self.shapes)

    def spent(self, asked: Collection[str]) -> float:
        """Return the FLOPs of its trials among `asked`, as a share of those of all its trials."""
        flops = (shape.flops * sum(trial.id in asked for trial in shape.all_trials) for shape in self.shapes)
        return math.fsum(flops) / self.flops

    def grid(self, outcomes: Mapping[str, Outcome], asked: Collection[str]) -> LossGrid:
        """Return the losses of its trials among `asked`, whose outcomes are known."""
        rows = []
        for shape in self.shapes:
            found = {value: [trial for trial in of if trial.id in asked] for value, of in shape.trials.items()}
            if cells := tuple(_cell(value, trials, outcomes) for value, trials in found.items() if trials):
                names = {"axis": self.axis, "scale_name": self.scale_name, "parameterization": self.parameterization}
                at = {"scale": shape.scale, "shape": shape.name, "is_base": shape.is_base}
                rows.append(ShapeLosses(**names, **at, cells=cells))  # type: ignore[arg-type]
        return LossGrid(rows=tuple(rows))


def _cell(value: float, trials: list[Trial], outcomes: Mapping[str, Outcome]) -> SeedLosses:
    """Return a cell as a verdict reads it: +inf where a trial diverged, nothing where it ended without a number."""
    ended = {trial.seed: outcomes[trial.id] for trial in trials}
    losses = {seed: math.inf if of.status == "diverged" else of.loss for seed, of in ended.items()}
    known = {seed: loss for seed, loss in sorted(losses.items()) if loss is not None and not math.isnan(loss)}
    return SeedLosses(
        value=value,
        seeds=tuple(known),
        losses=tuple(known.values()),
        num_missing=len(trials) - len(known),
        trials=tuple(sorted((trial.seed, trial.id) for trial in trials)),
    )


def lines_of_grid(expansion: Expansion, control: str | None = CONTROL) -> tuple[VerdictLine, ...]:
    """Return every line of the sweep's grid, HP by HP and axis by axis, the control last on each axis."""
    found: dict[tuple[str, str, str, str], dict[Shape, list[Cell]]] = {}
    for cell in expansion.cells():
        key = (cell.line, cell.axis, cell.scale_name, cell.parameterization)
        found.setdefault(key, {}).setdefault(cell.trial.shape, []).append(cell)
    lines = [
        VerdictLine(
            **dict(zip(("hp", "axis", "scale_name", "parameterization"), key, strict=True)),
            shapes=tuple(sorted((_shape(expansion, cells) for cells in of.values()), key=lambda shape: shape.scale)),
            control=control,
        )
        for key, of in found.items()
    ]
    hps, axes = list(expansion.spec.grid), [axis.name for axis in expansion.axes]
    return tuple(sorted(lines, key=lambda line: (hps.index(line.hp), axes.index(line.axis), line.is_control)))


def _shape(expansion: Expansion, cells: Sequence[Cell]) -> LineShape:
    trials: dict[float, tuple[Trial, ...]] = {}
    for cell in cells:
        value = cell.trial.hps.get(cell.line)
        trials[value] = (*trials.get(value, ()), cell.trial)
    shape = cells[0].trial.shape
    return LineShape(
        name=cells[0].shape,
        scale=cells[0].scale,
        is_base=shape == expansion.spec.base_shape,
        flops=relative_cost(shape, expansion.setting_at(shape)),
        trials=dict(sorted(trials.items())),
    )


def all_flops(lines: Iterable[VerdictLine]) -> dict[str, float]:
    """Return trial id -> FLOPs of every trial of the lines. Lines share trials, each of which counts once."""
    return {trial.id: shape.flops for line in lines for shape in line.shapes for trial in shape.all_trials}


# The doubt over a whole sweep: how sure each verdict was while its trials came in.

PATH_LOOKS = 8  # at the trials of a sweep, at equal steps of FLOPs
MOST_DOUBT = 0.5  # where nothing is known


@dataclass(frozen=True, kw_only=True)
class DoubtLook:
    """The doubt about one verdict at one look."""

    axis: str
    parameterization: str
    share_of_grid_flops: float  # that was spent
    doubt: float
    verdict: Verdict | None = None  # at the last look; None while a shape has no trial


def doubt_looks(results: Searched, line: pd.DataFrame, rules: Rules) -> tuple[DoubtLook, ...]:
    """Return the looks at each verdict on the judged HP, path by path, in the order in which the trials ended.

    `line` is what the results have of that HP.
    """
    expansion, hp = results.expansion, results.spec.judged_hp
    cost = cache(lambda shape: relative_cost(shape, expansion.setting_at(shape)))
    trials = results.trials[results.trials["trial_id"].isin(line["trial_id"]) & (results.trials["status"] != "failed")]
    trials = trials.sort_values(["finished_at", "trial_id"])
    spent = list(itertools.accumulate(cost(shape_of_row(row)) for row in trials.to_dict("records")))
    if not spent:
        return ()
    grid = sum(all_flops(each for each in lines_of_grid(expansion) if each.hp == hp).values())
    paths = line.groupby(["axis", "parameterization"], sort=False)["shape"].agg(set)
    shapes: dict[Any, set[str]] = dict(zip(paths.index, paths, strict=True))
    found, shares = [], [step / PATH_LOOKS for step in range(1, PATH_LOOKS + 1)]
    for share in shares:
        ended = trials["trial_id"][[flops <= spent[-1] * share * (1 + 1e-9) for flops in spent]]
        rows = line[line["trial_id"].isin(ended)]
        grids = [
            grid
            for grid in (loss_grids(rows) if len(rows) else ())
            if {row.shape for row in grid.rows} == shapes[grid.key] and any(row.is_base for row in grid.rows)
        ]
        found.append({doubt.finding.key: doubt for doubt in doubts(grids, rules)} if grids else {})
    return tuple(
        DoubtLook(
            axis=key[0],
            parameterization=key[1],
            share_of_grid_flops=spent[-1] * share / grid,
            doubt=at[key].size if key in at else MOST_DOUBT,
            verdict=found[-1][key].verdict if key in found[-1] else None,
        )
        for key in shapes
        for share, at in zip(shares, found, strict=True)
    )
