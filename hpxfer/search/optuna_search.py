"""Optuna: any of its samplers, one study per arm, every arm with the same budget.

A study is asked for a batch of points at a time, so that stacks stay full, and told their losses when all have ended.
So the next points depend on losses and not on the order in which workers finished. The study lives in memory: a search
that is resumed asks a new study for the same batches again.

Stored points that the study would not ask for by itself, e.g. those of an earlier grid, are told to it before the first
batch that was never begun.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from hpxfer.scaling.hps import HPs
from hpxfer.search.checks import buys, countable, on_log_scale
from hpxfer.search.kinds import SearchKind, Stored
from hpxfer.search.protocol import Arm
from hpxfer.search.random_search import best_of, box_without_lines, num_points
from hpxfer.search.rounds import Points, Round, RoundSearch, lowest_point, mean, search_each_arm
from hpxfer.search.stored import is_in_box, stored_trials
from hpxfer.search.values import SeedLosses, ends_of_box, values_text
from hpxfer.search.verdict_rules import judged_by
from hpxfer.spec import CountOrNone, Problem, Section, SweepSpec, WhyNot, guess_loss
from hpxfer.trial import Expansion, base_hps

if TYPE_CHECKING:
    import pandas as pd

    from hpxfer.search.optuna_study import Study

# Trials per batch, all seeds counted. A stack of 8 is nearly as fast per trial as the largest one (see
# hpxfer.plan.packing), and a budget of a few dozen trials still has several batches to learn from.
BATCH_TRIALS = 8


class OptunaSettings(Section):
    """The keys of an optuna search."""

    sampler: str = "TPESampler"
    """optuna: a class of `optuna.samplers`, such as `TPE`, `GP` or `cma-es`."""
    sampler_args: dict[str, Any] = Field(default_factory=dict)
    """optuna: the keyword arguments of the sampler. They must be numbers, text, true, false or null."""
    batch: Annotated[int, Field(ge=1, le=500)] | None = None
    """optuna: the points that it is asked for at once. The default fills a batch of 8 trials, all seeds counted."""
    seed: CountOrNone = 0
    """random, random-pairs and optuna: the seed of the search itself."""


def batch_points(spec: SweepSpec) -> int:
    """Return the HP points that optuna is asked for at once in an arm."""
    return spec.search.settings(OptunaSettings).batch or max(1, BATCH_TRIALS // len(spec.seeds))


def optuna_search(expansion: Expansion, stored: Stored) -> RoundSearch:
    """Return the search of a box by a sampler of optuna, in every arm."""
    from hpxfer.search.optuna_study import sampler_name

    points = cache(lambda: _points_in_box(expansion, stored()))  # read when the search begins
    name = sampler_name(expansion.spec.search.settings(OptunaSettings).sampler)
    assert name is not None, "checked with the sweep"
    return search_each_arm(expansion, name, lambda arm: _points(arm.part, points().get(arm, [])))


def _points(expansion: Expansion, stored: Sequence[HPs]) -> Points:
    """Yield the rounds of one arm. They start from the `stored` points that would not be asked for otherwise."""
    spec, most = expansion.spec, num_points(expansion.spec)
    if len(stored) >= most:
        # The budget is spent, so no sampler is asked: a Gaussian process takes a second per ten points (2026-11, CPU).
        points = stored[:most]
        losses = yield Round(points=points, why=f"the store has {most} points, all that the budget buys")
        return best_of(spec, list(zip(points, losses, strict=True)))
    study, left, begun = study_of(expansion), dict.fromkeys(stored), frozenset(stored)
    known: list[tuple[HPs, SeedLosses]] = []
    while (room := most - len(known)) > 0:
        points = [base_hps(spec).with_values(params) for params in study.ask(min(batch_points(spec), room))]
        if left and begun.isdisjoint(points):
            # This batch was never begun, so no batch led to the stored points that are left.
            points = list(left)
            study = study.before_batch()
            study.give([{name: point.get(name) for name in spec.grid} for point in points])
        if not points:
            break
        best, before = lowest_point(known), "none finished"
        if best is not None:
            loss = judged_by(spec).level(mean(dict(known)[best]))
            before = f"the best is {values_text(spec.grid, best)} with {loss}"
        so_far = f"of {len(known)} before, {before}" if known else "the first"
        why = f"batch {len(study.told) + 1}: {len(points)} points; {so_far}"
        losses = yield Round(points=tuple(points), why=why, whole=False)
        study.tell(losses)
        known += zip(points, losses, strict=True)
        left = dict.fromkeys(point for point in left if point not in points)
    return best_of(spec, known)


def _points_in_box(expansion: Expansion, trials: pd.DataFrame) -> dict[Arm, list[HPs]]:
    """Return arm -> the stored points that the box could hold, whichever sweep asked for them."""
    spec, found = expansion.spec, dict[Arm, dict[HPs, str]]()
    ended = ("finished", "diverged") if spec.early_stopping.asha is None else ("finished", "diverged", "stopped")
    for arm, trial, row in stored_trials(expansion, trials):
        if row["status"] in ended and is_in_box(arm.spec, trial.hps):
            found.setdefault(arm, {})[trial.hps] = arm.trial(trial.hps, spec.seeds[0]).id
    return {arm: sorted(points, key=points.__getitem__) for arm, points in found.items()}


def study_of(expansion: Expansion) -> Study:
    """Return the study of an arm before it is asked for anything."""
    from hpxfer.search.optuna_study import ARGUMENTS, Study, sampler_name

    spec, settings = expansion.spec, expansion.spec.search.settings(OptunaSettings)
    name, ceiling = sampler_name(settings.sampler) or "", math.inf
    if spec.trainer is None:  # what a user's own trainer guesses is not known
        ceiling = guess_loss(expansion.setting.loss, expansion.data.vocab_size)
    return Study(ends_of_box(spec), name, {**ARGUMENTS.get(name, {}), **settings.sampler_args}, settings.seed, ceiling)


def _problems(spec: SweepSpec, why_not: WhyNot) -> Iterator[Problem]:
    if spec.search.budget is None:
        yield ("search", "budget"), "must be given with optuna: trials per arm, seeds counted"
        return
    from hpxfer.search.optuna_study import sampler_problems

    settings = spec.search.settings(OptunaSettings)
    yield from buys(spec, 1, "a point with every seed")
    yield from countable(spec, ("search", "budget"))
    yield from on_log_scale(spec)
    yield from sampler_problems(settings.sampler, settings.sampler_args, len(spec.grid))


def _rounds(spec: SweepSpec) -> Counter[int]:
    full, rest = divmod(num_points(spec), batch_points(spec))
    return Counter({batch_points(spec): full}) + Counter({rest: 1 if rest else 0})


OPTUNA = SearchKind(
    name="optuna",
    settings=OptunaSettings,
    problems=_problems,
    rounds=_rounds,
    make=optuna_search,
    why_no_line=box_without_lines,
    tunes="points",
    is_box=True,
    replays=False,
    can_stop_early=True,
)
