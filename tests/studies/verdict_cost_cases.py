"""Sweeps on which the cost of a verdict is measured: their lines, the outcomes of their whole grids, and the truth.

A planted world is the arm that is judged. Its control has the same base, and its optimum moves by 0, 0.5 or 1 octave
per doubling. A trial costs what a trial of the quickstart costs at that width. The truth of published results is not
known.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
from foreign_worlds import Curves, World, WorldSweep, draw_losses
from world_basins import Floats
from world_truth import true_verdict, truth_of

from hpxfer.host import CONTROL
from hpxfer.model.cost import train_flops
from hpxfer.results import load_results
from hpxfer.search.protocol import Outcome
from hpxfer.search.stored import outcomes_of
from hpxfer.search.verdict_lines import LineShape, VerdictLine, lines_of_grid
from hpxfer.spec import load_sweep
from hpxfer.spec.sweep import SweepSpec
from hpxfer.trial import DataRef, Expansion, Trial
from hpxfer.verdict.findings import Finding

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ("quickstart", "transfer")
CONTROL_DRIFTS = (0.0, -0.5, -1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Arm:
    """One parameterization of a planted sweep. `loss_IKS` holds the losses on its grid."""

    label: str
    world: World
    curves: Curves
    loss_IKS: Floats
    luck: tuple[int, ...]  # the random seed of losses off the grid

    def loss(self, shape: int, x: float, seed: int) -> float:
        """Return a loss, +inf if the trial diverged or has no result. Off the grid its noise is normal."""
        on_grid = [k for k, at in enumerate(self.world.x) if abs(at - x) < 1e-9]
        if on_grid:
            loss = float(self.loss_IKS[shape, on_grid[0], seed])
            return math.inf if math.isnan(loss) else loss
        rng = np.random.default_rng([*self.luck, shape, round(1024 * (x + 64)), seed])
        return float(self.curves(np.array([x]))[shape, 0] + self.world.noise.sd * rng.standard_normal())


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One sweep: the line that is judged, then its control."""

    name: str
    seed: int
    lines: tuple[VerdictLine, ...]
    outcomes: Mapping[str, Outcome]
    sweep: WorldSweep | None = None  # if it is planted
    arms: tuple[Arm, ...] = ()  # if it is planted

    def truly_transfers(self, finding: Finding) -> bool | None:
        """Return whether the HP that a finding on the judged line transfers does so, if the truth is known."""
        if self.sweep is None:
            return None
        return true_verdict(self.sweep, truth_of(self.sweep), finding.base_value).transfers


@dataclass(frozen=True)
class PlantedTrial:
    """What a search reads of a trial."""

    id: str
    seed: int
    parameterization: str | None
    shape: float


def world_case(world: World, seed: int, draw: int = 0) -> Case:
    """Return a sweep of a world, with its control."""
    sweep = world.draw(seed, draw)
    rng = np.random.default_rng([draw, seed, zlib.crc32(world.name.encode())])
    drift = float(rng.choice(CONTROL_DRIFTS))
    planted_I = sweep.curves.planted_I[0] + drift * np.arange(world.num_shapes)
    curves = replace(sweep.curves, planted_I=planted_I)
    control_IKS = draw_losses(world, curves, rng)
    control_IKS[0] = sweep.loss_IKS[0]
    arms = tuple(
        Arm(label=label, world=world, curves=own, loss_IKS=loss_IKS, luck=(draw, seed, number))
        for number, (label, own, loss_IKS) in enumerate(
            (("world", sweep.curves, sweep.loss_IKS), (CONTROL, curves, control_IKS))
        )
    )
    outcomes: dict[str, Outcome] = {}
    lines = tuple(_planted_line(arm, outcomes) for arm in arms)
    return Case(name=world.name, seed=seed, lines=lines, outcomes=outcomes, sweep=sweep, arms=arms)


def _planted_line(arm: Arm, outcomes: dict[str, Outcome]) -> VerdictLine:
    shapes, world = [], arm.world
    for i, flops in enumerate(planted_flops(world.num_shapes)):
        own = arm.label if i else None
        trials = {
            2.0**x: tuple(
                PlantedTrial(id=f"{own} {i} {k} {s}", seed=s, parameterization=own, shape=float(i))
                for s in range(world.seeds)
            )
            for k, x in enumerate(world.x)
        }
        for k, of_value in enumerate(trials.values()):
            for trial in of_value:
                loss = float(arm.loss_IKS[i, k, trial.seed])
                outcomes[trial.id] = Outcome("diverged") if math.isinf(loss) else Outcome("finished", loss)
        scale = 32.0 * 2.0**i
        shapes.append(
            LineShape(
                name=f"width{scale:g}",
                scale=scale,
                is_base=i == 0,
                flops=flops,
                trials=cast(Mapping[float, tuple[Trial, ...]], trials),
            )
        )
    return VerdictLine(hp="lr", axis="width", scale_name="width", parameterization=arm.label, shapes=tuple(shapes))


@cache
def planted_flops(num_shapes: int) -> tuple[float, ...]:
    """Return the FLOPs of one trial of the quickstart at each of so many widths."""
    spec = load_sweep(ROOT / "sweeps" / "quickstart.yaml")
    setting = Expansion(spec, DataRef(digest="planted", tokenizer="ascii", vocab_size=128)).setting
    base = spec.base_shape
    widths = [replace(base, width=base.width * 2**i, expert_width=base.expert_width * 2**i) for i in range(num_shapes)]
    return tuple(train_flops(shape, setting) for shape in widths)


def published_cases(name: str) -> Iterator[Case]:
    """Yield a sweep per HP and axis of published results, once with each seed as the first one."""
    results = load_results(ROOT / "results" / "published" / name)
    outcomes = outcomes_of(results.trials, results.spec.judge.loss)
    for number in range(len(results.spec.seeds)):
        seeds = (*results.spec.seeds[number:], *results.spec.seeds[:number])
        spec: SweepSpec = results.spec.model_copy(update={"seeds": seeds})
        expansion = Expansion(spec, results.expansion.data, results.trainer_version)
        lines = lines_of_grid(expansion)
        for hp, axis in dict.fromkeys((line.hp, line.axis) for line in lines):
            own = tuple(line for line in lines if (line.hp, line.axis) == (hp, axis))
            yield Case(name=f"{name}: {hp} along {axis}", seed=number, lines=own, outcomes=outcomes)
