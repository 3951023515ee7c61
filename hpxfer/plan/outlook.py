"""The outlook of a sweep: whether its losses can end in a verdict, and how many seeds that will probably take.

The verdict's own rules answer both. They judge planted losses on the cells of the sweep: the same basin at each shape,
with hardly any noise. What is undecided even then lacks a shape, a value or a seed, and the verdict says which. How
many seeds real noise asks for is what the verdict would ask for at that noise. Where the verdict on stored trials asks
for seeds already, it is that number: close to a limit it takes more than noise alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hpxfer.host import NATS, is_control
from hpxfer.search import Outcome, judged_by, kind_of, rules_of
from hpxfer.verdict import (
    COLUMNS,
    Finding,
    LossGrid,
    Rules,
    SeedLosses,
    ShapeLosses,
    compared,
    find,
    loss_grids,
    seeds_at_noise,
    seeds_needed,
)

if TYPE_CHECKING:
    from hpxfer.spec import Axis, SweepSpec
    from hpxfer.trial import Expansion

# The standard deviation of one seed as a share of the loss, in the published sweeps of the family gpt: half of the 19
# sweeps lie in this range, and all between 0.002 and 0.0134 (results/published, 2026-11-26).
PUBLISHED_NOISE = (0.007, 0.012)
OCTAVE_SHARE = 0.02  # of the loss: what an octave costs in the planted basins, about the median of those sweeps
MOST_SHAPES = 8  # about so many are planted beside the base: as all have one basin, more of them say no more
MOST_SEEDS = 16  # that are planted: with hardly any noise more of them say no more
QUIET = 1e-4  # the planted noise, as a share of the loss
MOST_SAID = 999  # seeds: so close to a limit the number means nothing any more


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What may be expected of the verdict of a sweep before it has run."""

    num_seeds: int  # that the sweep has
    why_not: str | None = None  # why it cannot end in a verdict
    to_add: tuple[str, ...] = ()  # what would mend that
    at_best: str | None = None  # what a verdict cannot say, as there is no control
    noise: tuple[float, float] | None = None  # of one seed, as a share of the loss; None: nothing is known of it
    noise_from: str = ""
    seeds_needed: tuple[int, int] | None = None  # at that noise, for a verdict that a regret is within its limit

    def line(self) -> str:
        """Return the outlook in one line."""
        why_not = self.why_not and f"this sweep cannot end in one: {self.why_not}"
        to_add = f"add {', and '.join(self.to_add)}" if self.to_add else ""
        parts = [part for part in (why_not, to_add, self._seeds(), self.at_best) if part]
        return f"verdict: {'; '.join(parts) or 'how many seeds it takes is known once a cell has two'}"

    def _seeds(self) -> str:
        if self.seeds_needed is None or self.noise is None:
            return ""
        low, high = self.seeds_needed
        mine = f"{self.num_seeds} seed{'' if self.num_seeds == 1 else 's'}"
        verb = "will probably not" if self.num_seeds < low else "will probably" if self.num_seeds >= high else "may"
        said = "" if self.why_not is not None else f"{mine} {verb} decide: "
        count = f"{low}" if low == high else f"{low} to {high}"
        noise = " to ".join(dict.fromkeys(f"{share:.1%}" for share in self.noise))
        return f"{said}about {count} seeds are needed at a seed noise of {noise} of the loss, {self.noise_from}"


def outlook(expansion: Expansion, outcomes: Mapping[str, Outcome]) -> Outlook | None:
    """Return the outlook of a sweep, given the outcomes of the trials that are stored. None if it judges no HP."""
    spec, rules = expansion.spec, rules_of(expansion.spec)
    hp, num_seeds = spec.judged_hp, len(spec.seeds)
    if hp not in spec.grid or spec.has_fixed_hps:
        return None
    if (why := kind_of(spec).why_no_line(spec, hp)) is not None:
        return Outlook(num_seeds=num_seeds, why_not=why)
    planted = find([_planted(spec, axis, num_seeds) for axis in expansion.axes], rules)
    lacking = {finding.axis: finding for finding in planted if finding.verdict == "undecided"}
    why_not = next((finding.reasons[0] for finding in lacking.values()), None)
    if lacking and len(lacking) < len(planted):
        why_not = f"along {', '.join(lacking)}: {why_not}"
    several = planted if num_seeds > 1 else find([_planted(spec, axis, 2) for axis in expansion.axes], rules)
    at_noise = max((seeds_at_noise(finding) / (finding.noise_nats or 1.0) ** 2 for finding in several), default=0.0)
    stored = _stored(expansion, outcomes, rules)
    noise, noise_from = _noise(expansion, stored)
    if noise is None or rules.loss is None or at_noise <= 0:
        noise, noise_from = None, ""
    counts = [at_noise * share**2 for share in noise or ()]
    asking = [
        each for each in compared(stored) if each.verdict == "undecided" and any(one.seeds for one in each.to_add)
    ]
    if counts and asking:
        at_limit = max(seeds_needed(finding, rules) for finding in asking)
        noise_from += ", which lie close to a limit" if at_limit > counts[0] + 1 else ""
        counts = [min(at_limit, MOST_SAID)]
    seeds = [max(math.ceil(count), 2) for count in counts]
    asked = (one for finding in lacking.values() for one in finding.to_add if not one.asks_nothing)
    at_best = None
    if not any(is_control(label, rules.control) for label in expansion.arms):
        at_best = f"no arm is the control {rules.control}, so it can at best be `transfers, no control`"
        if rules.control is None:
            at_best = "no arm is named as the control, so it can at best say that the optimum did not move"
    return Outlook(
        num_seeds=num_seeds,
        why_not=why_not,
        # The number of seeds that noise asks for is said, and no other.
        to_add=tuple(dict.fromkeys(one.text for one in asked if not (one.seeds and seeds))),
        at_best=at_best,
        noise=noise,
        noise_from=noise_from,
        seeds_needed=(seeds[0], seeds[-1]) if seeds else None,
    )


def _planted(spec: SweepSpec, axis: Axis, num_seeds: int) -> LossGrid:
    """Return an axis of the sweep with the same basin at each shape, whose optimum is the middle value of the grid.

    The mean of a cell lies on the basin, and its seeds scatter by the planted noise.
    """
    exponents = sorted(math.log2(value) for value in spec.grid[spec.judged_hp].numbers() if value > 0)
    best = exponents[len(exponents) // 2] if exponents else 0.0
    base = [point for point in axis.points if point.shape == spec.base_shape]
    others = [point for point in axis.points if point.shape != spec.base_shape and spec.search.where != "base"]
    rng, seeds = np.random.default_rng(0), tuple(range(min(num_seeds, MOST_SEEDS)))

    def cell(exponent: float) -> SeedLosses:
        luck = rng.standard_normal(len(seeds))
        luck = (luck - luck.mean()) / luck.std(ddof=1) if len(seeds) > 1 else np.zeros(1)
        losses = 1 + OCTAVE_SHARE * (exponent - best) ** 2 + QUIET * luck
        return SeedLosses(value=2.0**exponent, seeds=seeds, losses=tuple(losses.tolist()), num_missing=0)

    rows = [
        ShapeLosses(
            axis=axis.name,
            scale_name=axis.scale_name,
            scale=point.scale,
            shape=axis.label(point.shape),
            is_base=point.shape == spec.base_shape,
            parameterization="planted",
            cells=tuple(map(cell, exponents)),
        )
        for point in base + others[:: max(1, len(others) // MOST_SHAPES)]
    ]
    return LossGrid(rows=tuple(rows))


def _noise(expansion: Expansion, stored: Sequence[Finding]) -> tuple[tuple[float, float] | None, str]:
    """Return the noise of one seed as a share of the loss: of the stored trials, else of the published sweeps."""
    noise = stored[0].noise_nats if stored else None
    best = [loss for finding in stored for shape in finding.shapes if (loss := shape.lowest_loss or 0.0) > 0]
    if noise is not None and best:
        return (noise / min(best),) * 2, "that of the stored trials"
    if expansion.spec.model.family != "gpt" or judged_by(expansion.spec).unit != NATS.unit:
        return None, ""
    return PUBLISHED_NOISE, "as half of the published sweeps have"


def _stored(expansion: Expansion, outcomes: Mapping[str, Outcome], rules: Rules) -> tuple[Finding, ...]:
    """Return the findings on the stored trials of the line of the judged HP, as the report would have them."""
    rows, hp = [], expansion.spec.judged_hp
    for cell in expansion.cells() if outcomes else ():
        found = outcomes.get(cell.trial.id) if cell.line == hp else None
        if found is not None and found.status in ("finished", "diverged"):
            trial = cell.trial
            where = (cell.axis, cell.scale_name, cell.scale, cell.shape, trial.shape == trial.base)
            of_trial = (cell.parameterization, trial.hps.get(hp), trial.seed)
            rows.append((*where, *of_trial, found.loss, found.status))
    if not rows:
        return ()
    import pandas as pd

    line = pd.DataFrame(rows, columns=list(COLUMNS))
    line = line.drop_duplicates(["axis", "parameterization", "shape", "value", "seed"])
    return find(loss_grids(line, judged_by(expansion.spec)), rules)
