"""Lines: the cells of the sweep's grid by HP, axis and parameterization, and their losses as far as they are known."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hpxfer.model.cost import relative_cost
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.shape import Shape
from hpxfer.search.protocol import Outcome
from hpxfer.trial import Cell, Expansion, Trial
from hpxfer.verdict.findings import Finding, Verdict
from hpxfer.verdict.loss_grid import NATS, JudgedLoss, LossGrid, SeedLosses, ShapeLosses
from hpxfer.verdict.rules import Rules
from hpxfer.verdict.shape_names import is_control
from hpxfer.verdict.thresholds import CONTROL
from hpxfer.verdict.transfer import find

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

    def is_decided(self, error: float) -> bool:
        """Return whether the verdict is said, and wrong with no more than this chance."""
        return self.verdict != "undecided" and self.size <= error


def doubts(grids: Sequence[LossGrid], rules: Rules, judged: JudgedLoss = NATS) -> tuple[Doubt, ...]:
    """Return the doubt about each line, judged by these rules and by this loss."""
    own = [replace(grid, judged=judged) for grid in grids]
    return tuple(Doubt(finding=finding) for finding in find(own, rules))


ArmKey = tuple[Parameterization | None, Shape]


def arm_of(trial: Trial) -> ArmKey:
    """Return the arm of a trial. Tables that agree at the base share one arm there."""
    return trial.parameterization, trial.shape


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
        return tuple(trial for of_value in self.trials.values() for trial in of_value)


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
    def flops(self) -> float:
        """The FLOPs of all its trials."""
        return math.fsum(shape.flops * len(shape.all_trials) for shape in self.shapes)

    def spent(self, asked: Collection[str]) -> float:
        """Return the FLOPs of its trials among `asked`, as a share of those of all its trials."""
        return (
            math.fsum(shape.flops * sum(trial.id in asked for trial in shape.all_trials) for shape in self.shapes)
            / self.flops
        )

    def grid(self, outcomes: Mapping[str, Outcome], asked: Collection[str]) -> LossGrid:
        """Return the losses of its trials among `asked`, whose outcomes are known."""
        rows = []
        for shape in self.shapes:
            cells = tuple(
                _cell(value, [trial for trial in trials if trial.id in asked], outcomes)
                for value, trials in shape.trials.items()
                if any(trial.id in asked for trial in trials)
            )
            if cells:
                rows.append(
                    ShapeLosses(
                        axis=self.axis,
                        scale_name=self.scale_name,
                        scale=shape.scale,
                        shape=shape.name,
                        is_base=shape.is_base,
                        parameterization=self.parameterization,
                        cells=cells,
                    )
                )
        return LossGrid(rows=tuple(rows))


def _cell(value: float, trials: list[Trial], outcomes: Mapping[str, Outcome]) -> SeedLosses:
    known = {trial.seed: loss for trial in trials if (loss := _loss(outcomes[trial.id])) is not None}
    seeds = tuple(sorted(known))
    return SeedLosses(
        value=value,
        seeds=seeds,
        losses=tuple(known[seed] for seed in seeds),
        num_missing=len(trials) - len(seeds),
        trials=tuple(sorted((trial.seed, trial.id) for trial in trials)),
    )


def _loss(outcome: Outcome) -> float | None:
    """Return the loss as a verdict reads it: +inf if the trial diverged, None if it ended without a number."""
    if outcome.status == "diverged":
        return math.inf
    return None if outcome.loss is None or math.isnan(outcome.loss) else outcome.loss


def lines_of_grid(expansion: Expansion, control: str | None = CONTROL) -> tuple[VerdictLine, ...]:
    """Return every line of the sweep's grid, HP by HP and axis by axis, the control last on each axis."""
    found: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in expansion.cells():
        found.setdefault((cell.line, cell.axis, cell.parameterization), []).append(cell)
    lines = [_line(expansion, cells, control) for cells in found.values()]
    hps, axes = list(expansion.spec.grid), [axis.name for axis in expansion.axes]
    return tuple(sorted(lines, key=lambda line: (hps.index(line.hp), axes.index(line.axis), line.is_control)))


def _line(expansion: Expansion, cells: list[Cell], control: str | None) -> VerdictLine:
    first = cells[0]
    return VerdictLine(
        hp=first.line,
        axis=first.axis,
        scale_name=first.scale_name,
        parameterization=first.parameterization,
        shapes=tuple(sorted(_shapes(expansion, cells), key=lambda shape: shape.scale)),
        control=control,
    )


def _shapes(expansion: Expansion, cells: list[Cell]) -> Iterator[LineShape]:
    of_shape: dict[Shape, list[Cell]] = {}
    for cell in cells:
        of_shape.setdefault(cell.trial.shape, []).append(cell)
    for shape, members in of_shape.items():
        trials: dict[float, list[Trial]] = {}
        for cell in members:
            trials.setdefault(cell.trial.hps.get(cell.line), []).append(cell.trial)
        yield LineShape(
            name=members[0].shape,
            scale=members[0].scale,
            is_base=shape == expansion.spec.base_shape,
            flops=relative_cost(shape, expansion.setting_at(shape)),
            trials={value: tuple(trials[value]) for value in sorted(trials)},
        )


def all_flops(lines: Iterable[VerdictLine]) -> dict[str, float]:
    """Return trial id -> FLOPs of every trial of the lines. Lines share trials, each of which counts once."""
    return {trial.id: shape.flops for line in lines for shape in line.shapes for trial in shape.all_trials}
