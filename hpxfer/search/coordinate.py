"""Coordinate: constant multipliers one after the other, as arXiv 2601.20205, Appendix D.1, tuned its base model.

LR and init stay fixed. A change is kept only if it beats what was kept so far by more than the noise: the mean over the
seeds of the paired difference, by `noise` of its standard errors. The next multiplier starts from what was kept.

Of four ratios that change nothing the luckiest passes two standard errors in 15% of the rounds with two seeds, in 8%
with three and in 5% with five (180 planted rounds each): such a change costs little, more seeds or noise avoid it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpxfer.scaling.hps import HPs
from hpxfer.search import lr_line
from hpxfer.search.arms import arms_of
from hpxfer.search.compare import Gain, gain, pooled
from hpxfer.search.rounds import End, Losses, OutOfBudget, Played, Round, RoundSearch, Strategy, Track
from hpxfer.search.values import names_in, scaled
from hpxfer.spec import SweepSpec
from hpxfer.spec.search_defaults import arm_budget, coordinate_entries, coordinate_size, ratios_of, setting
from hpxfer.trial import Expansion, base_hps


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What one round of coordinate asks."""

    entry: str  # as the sweep names it
    number: int  # the pass, from 1
    ratios: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one round decided. `gains` are over what was kept before, in the order of `ratios`."""

    entry: str
    number: int
    before: HPs
    ratios: tuple[float, ...]
    gains: tuple[Gain, ...]
    kept: int | None  # index of the ratio; None if nothing won by more than the noise

    @property
    def best(self) -> int | None:
        """The index of the largest gain; None if everything diverged."""
        told = [at for at, one in enumerate(self.gains) if one.mean == one.mean]
        return max(told, key=lambda at: self.gains[at].mean, default=None)

    def text(self) -> str:
        if self.best is None:
            return f"{self.entry}: everything diverged, kept as it was"
        one, ratio = self.gains[self.best], self.ratios[self.best]
        won = f"the best ratio {ratio:g} gains {one.mean:.4g} +- {one.error:.2g} nats"
        return f"{self.entry}: {won}: {'kept' if self.kept is not None else 'not more than the noise, rejected'}"


def decide(asked: Asked, points: tuple[HPs, ...], losses: Losses, noise: float) -> Step:
    """Return what a round decides. The first of its points is what was kept before."""
    found = [gain(losses[0], one) for one in losses[1:]]
    found = pooled(found, found)
    step = Step(
        entry=asked.entry,
        number=asked.number,
        before=points[0],
        ratios=asked.ratios,
        gains=tuple(found),
        kept=None,
    )
    best = step.best
    if best is None or not found[best].beats(noise):
        return step
    return Step(**{**vars(step), "kept": best})


def coordinate(spec: SweepSpec) -> Strategy:
    """Return the strategy of one arm."""
    noise, kept, said = setting(spec, "noise"), base_hps(spec), ""
    if "lr" in spec.grid:
        found, said = yield from lr_line.best_lr(spec)
        if found is None:
            return End(why=said, best=None)
        kept, said = found, f"{said}; "
    try:
        for number in range(1, setting(spec, "passes") + 1):
            before = kept
            for entry in coordinate_entries(spec):
                asked = Asked(entry=entry, number=number, ratios=ratios_of(spec, entry))
                points = (kept, *(scaled(kept, names_in(entry), ratio) for ratio in asked.ratios))
                spelled = ", ".join(f"{ratio:g}" for ratio in asked.ratios)
                losses = yield Round(points=points, why=f"{said}{entry} times {spelled}", about=asked)
                step = decide(asked, points, losses, noise)
                said = f"{step.text()}; "
                kept = kept if step.kept is None else points[1 + step.kept]
            if kept == before:
                break  # another pass would ask the same again
    except OutOfBudget:
        pass
    changed = [f"{name} {value:g}" for name, value in kept.multipliers]
    return End(why=f"{said}multipliers: {', '.join(changed) or 'all 1'}", best=kept)


def steps_of(played: Played, noise: float) -> Iterator[Step]:
    """Yield what each round of a track of coordinate decided."""
    for turn in played.turns:
        if isinstance(turn.round.about, Asked):
            yield decide(turn.round.about, tuple(turn.round.points), turn.losses, noise)


def coordinate_search(expansion: Expansion) -> RoundSearch:
    """Return coordinate in every arm, by default in those of the base."""
    spec = expansion.spec
    seeds, budget = len(spec.seeds), None if spec.search.budget is None else arm_budget(spec)

    def start(_: End | None) -> Strategy:
        return coordinate(spec)

    return RoundSearch(
        expansion,
        [
            Track(arm=arm, name="coordinate", start=start, budget=budget, most=coordinate_size(spec) * seeds)
            for arm in arms_of(expansion)
        ],
    )
