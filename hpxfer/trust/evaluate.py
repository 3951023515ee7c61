"""What short trials of a trainer report and what is expected of them, and the outcome of every check. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hpxfer.receipts import (
    Outcome,
    Repeat,
    arms_agree,
    base_repeats,
    common_factor,
    forward_factors,
    groups_match,
    hp_is_wired,
    init_matches,
    same_measure,
    schedule_keeps_ratios,
    seeds_differ,
    undecided_because,
)
from hpxfer.receipts.entries import ARMS, FORWARD, GROUPS, INIT, MEASURE, REPEAT, SCHEDULE, SEEDS, WIRED
from hpxfer.receipts.wired import init_digest
from hpxfer.recipe import Recipe
from hpxfer.scaling.roles import ROLES
from hpxfer.trainer.job import recipe_of
from hpxfer.trainer.lines import Groups, Point, merged, read_attempts
from hpxfer.trial import Trial
from hpxfer.trial.result import TrialResult
from hpxfer.trust.trials import AGAIN, ARM, BASE, LARGER, SEED, TWICE

Entries = list[dict[str, Any]]
_ROLE_OF = {"attn_logits": "attn_q", "route_scale": "router"}  # of a multiplier that is not named after its role


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A trial, its result, and its lines."""

    trial: Trial
    result: TrialResult
    points: tuple[Point, ...] = ()
    groups: tuple[Groups, ...] = ()
    outputs: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def read(cls, trial: Trial, result: TrialResult, runs: Path) -> Evidence:
        """Return the evidence in the folder of a trial."""
        attempts = read_attempts(runs / trial.id, trial_id=trial.id, steps=trial.setting.steps)
        return cls(
            trial=trial,
            result=result,
            points=merged(attempts),
            groups=tuple(line for each in attempts for line in each.groups),
            outputs=tuple(output for each in attempts for line in each.outputs for output in line.outputs),
        )

    @property
    def failure(self) -> str | None:
        """Why the trial has no result, in a line; None if it has one."""
        if self.result.status in ("finished", "diverged"):
            return None
        return (self.result.error or "").strip().partition("\n")[0] or "no reason is known"

    @property
    def loss(self) -> float:
        """The loss at the end: of the validation, or the last one reported. +inf if it diverged, NaN if it failed."""
        if self.result.status == "diverged":
            return math.inf
        if self.result.validation_loss_nats is not None:
            return self.result.validation_loss_nats
        return self.points[-1].loss if self.points and self.failure is None else math.nan

    @cached_property
    def receipts(self) -> dict[int, Entries]:
        """Step -> the entries of the last receipt of that step."""
        return {line.step: found for line in self.groups if (found := list(_entries(line.groups)))}

    @property
    def start(self) -> Entries:
        """The first receipt with statistics of the weights, or nothing."""
        found = ([*_entries(line.groups)] for line in self.groups if line.step == 0)
        return next((each for each in found if any(entry.get("std") is not None for entry in each)), [])

    @property
    def changes(self) -> tuple[int, Mapping[str, float]] | None:
        """The step of the first update whose changes were reported, and these; None without any."""
        return next(((line.step, line.changes) for line in self.groups if line.changes is not None), None)

    @property
    def of_seed(self) -> dict[str, Any]:
        """What a seed should decide, as far as it was reported: the initial weights, the first batch, the losses."""
        batch = next((line.batch for line in self.groups if line.batch is not None), None)
        losses = [point.loss for point in self.points]
        if self.result.validation_loss_nats is not None:
            losses.append(self.result.validation_loss_nats)
        return {"init": init_digest(self.start), "batch": batch, "loss": losses}

    @cached_property
    def expected(self) -> dict[str, dict[str, Any]] | None:
        """Role -> the numbers that the trial's recipe gives; None for an arm of the user's own."""
        if self._is_own:
            return None
        setting, found = self.trial.setting, self.trial.globals()
        betas = {"betas": (found.beta1, found.beta2)} if setting.optimizer == "adamw" else {}
        out = {role: {**asdict(numbers), **betas} for role, numbers in self.trial.resolved().items()}
        for role in out:
            if ROLES[role] == "ones":  # a gain starts at 1, or at 0 where the model multiplies by 1 + gain
                out[role]["init_std"] = None
        return out

    @cached_property
    def multipliers(self) -> dict[str, float] | None:
        """Key -> the forward multiplier that the recipe gives; None if there is no recipe.

        Those of roles that the receipts do not have are left out: the model has no such part.
        """
        found = None if self._is_own else recipe_of(self.trial)
        if found is None:
            return None
        every = Recipe.parse(found["text"]).forward_multipliers(found["shape"])
        spelled = [str(entry.get("role")) for entries in self.receipts.values() for entry in entries]
        roles = {role for each in spelled for role in each.partition("@")[0].split("+")}
        if roles <= {"None"}:
            return every
        return {key: by for key, by in every.items() if _ROLE_OF.get(key, key) in roles}

    @property
    def _is_own(self) -> bool:
        return self.trial.parameterization is not None and self.trial.parameterization.is_own


def _entries(groups: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield an entry per parameter. A group may list its `names`, with `roles` beside them or one `role` for all."""
    for group in groups:
        names, roles = group.get("names"), group.get("roles")
        if "name" in group or not isinstance(names, list):
            yield dict(group)
            continue
        of_each = roles if isinstance(roles, list) and len(roles) == len(names) else [group.get("role")] * len(names)
        for name, role in zip(names, of_each, strict=True):
            yield {**group, "name": name, "role": role}


NO_RECEIPT = (
    "the trainer writes no receipt; add trial.watch(model, optimizer, roles), or hpxfer.receipts.write_groups(...)"
)
NO_RECIPE = "an arm of your own has no recipe to compare with"


@dataclass(frozen=True, kw_only=True)
class Checks:
    """The outcome of every check, and what the seeds of a sweep do not show of the noise."""

    outcomes: tuple[Outcome, ...]
    extra_sd: float  # to be added to the noise of a loss, in its unit

    @property
    def undecided_because(self) -> str | None:
        """Why a verdict on losses of this trainer is `undecided` at best; None if it may be more."""
        return undecided_because(self.outcomes)

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(each.status != "failed" for each in self.outcomes)


def evaluate(found: Mapping[str, Evidence]) -> Checks:
    """Return the outcome of every check, from name -> evidence of the trials of `check_trials`."""
    repeat = _repeat(found)
    outcomes = (
        _groups(found),
        _schedule(found),
        _init(found),
        _forward(found),
        _seeds(found),
        repeat.outcome,
        _wired(found),
        _arms(found, repeat),
        _measure(found),
    )
    return Checks(outcomes=outcomes, extra_sd=repeat.extra_sd)


def _groups(found: Mapping[str, Evidence]) -> Outcome:
    base = found[BASE]

    def one(each: Evidence, wanted: Mapping[str, Mapping[str, Any]]) -> Iterator[Outcome]:
        for step, entries in each.receipts.items():
            # The schedule is the trainer's, so that the base says its factor. The larger shape must have the same one.
            factor = None
            if each is not base and base.expected is not None and step in base.receipts:
                factor = common_factor(base.receipts[step], base.expected)
            yield groups_match(entries, wanted, factor=factor)

    return _of_receipts(GROUPS, found, one)


def _schedule(found: Mapping[str, Evidence]) -> Outcome:
    def one(each: Evidence) -> Outcome:
        return schedule_keeps_ratios([{"step": step, "groups": groups} for step, groups in each.receipts.items()])

    if (lacking := _lacking(SCHEDULE, found)) is not None:
        return lacking
    return _worst(SCHEDULE, [(each, one(each)) for each in _shapes(found)])


def _init(found: Mapping[str, Evidence]) -> Outcome:
    return _of_receipts(INIT, found, lambda each, wanted: [init_matches(each.start, wanted)])


def _of_receipts(
    check: str,
    found: Mapping[str, Evidence],
    one: Callable[[Evidence, Mapping[str, Mapping[str, Any]]], Iterator[Outcome] | Sequence[Outcome]],
) -> Outcome:
    """Return the worst outcome of a check that compares the receipts of the base and the larger shape with a recipe."""
    if (lacking := _lacking(check, found)) is not None:
        return lacking
    outcomes = []
    for each in _shapes(found):
        if each.expected is None:
            return Outcome(check=check, status="not possible", reason=NO_RECIPE)
        outcomes += [(each, outcome) for outcome in one(each, each.expected)]
    return _worst(check, outcomes)


def _lacking(check: str, found: Mapping[str, Evidence]) -> Outcome | None:
    """Return the outcome if a trial failed or wrote no receipt, else None."""
    if (failed := _failed(check, found, LARGER)) is not None:
        return failed
    if not all(each.receipts for each in _shapes(found)):
        return Outcome(check=check, status="not possible", reason=NO_RECEIPT)
    return None


def _forward(found: Mapping[str, Evidence]) -> Outcome:
    if (failed := _failed(FORWARD, found, LARGER)) is not None:
        return failed
    outcomes = []
    for each in _shapes(found):
        if each.multipliers is None:
            label = each.trial.shape.label()
            no = f"no recipe can be read at {label}: name the dimensions that the parameterization needs in model.dims"
            reason = NO_RECIPE if each.expected is None else no
            return Outcome(check=FORWARD, status="not possible", reason=reason)
        outcomes.append((each, forward_factors(each.outputs, each.multipliers)))
    return _worst(FORWARD, outcomes)


def _seeds(found: Mapping[str, Evidence]) -> Outcome:
    return _failed(SEEDS, found, SEED) or seeds_differ(found[BASE].of_seed, found[SEED].of_seed)


def _repeat(found: Mapping[str, Evidence]) -> Repeat:
    if (failed := _failed(REPEAT, found, AGAIN)) is not None:
        return Repeat(outcome=failed, spread=None, extra_sd=0.0)
    base = found[BASE].loss
    return base_repeats([base, found[AGAIN].loss], [base, found[SEED].loss])


def _wired(found: Mapping[str, Evidence]) -> Outcome:
    if (failed := _failed(WIRED, found, TWICE)) is not None:
        return failed
    one, two = found[BASE].changes, found[TWICE].changes
    if one is None or two is None:
        no = NO_RECEIPT if not found[BASE].receipts else "no groups line has changes; write those of the first update"
        return Outcome(check=WIRED, status="not possible", reason=no)
    if one[0] != two[0]:
        reason = f"changes must be of one step, got {one[0]} and {two[0]}"
        return Outcome(check=WIRED, status="not possible", reason=reason)
    start = {str(each.get("name")): each for each in found[BASE].start}
    groups = [
        {**each, **{key: start.get(str(each.get("name")), {}).get(key) for key in ("std", "mean")}}
        for each in found[BASE].receipts.get(one[0], [])
    ]
    return hp_is_wired(one[1], two[1], groups)


def _arms(found: Mapping[str, Evidence], repeat: Repeat) -> Outcome:
    if ARM not in found:
        reason = "needs two arms that are one model at the base, got one"
        return Outcome(check=ARMS, status="not possible", reason=reason)
    losses = {_arm(found[name]): found[name].loss for name in (BASE, ARM)}
    return _failed(ARMS, found, ARM) or arms_agree(losses, spread=repeat.spread or 0.0)


def _arm(each: Evidence) -> str:
    choice = each.trial.parameterization
    return "sp" if choice is None else choice.label()


def _measure(found: Mapping[str, Evidence]) -> Outcome:
    runs = [
        {
            "name": name,
            "tokens": each.points[-1].metrics["tokens"],
            "steps": each.trial.setting.steps,
            "batch_tokens": each.trial.setting.batch_tokens,
        }
        for name, each in found.items()
        if each.trial.shape == found[BASE].trial.shape and each.points and "tokens" in each.points[-1].metrics
    ]
    if len(runs) < 2:
        reason = "no trial reports its tokens; add tokens=... (trained on so far) to trial.report of the last step"
        return Outcome(check=MEASURE, status="not possible", reason=reason)
    return same_measure(runs)


def _shapes(found: Mapping[str, Evidence]) -> list[Evidence]:
    """Return the base and the larger shape, if there is one."""
    return [found[name] for name in (BASE, LARGER) if name in found]


def _failed(check: str, found: Mapping[str, Evidence], name: str) -> Outcome | None:
    """Return the outcome if a trial that the check needs failed, else None."""
    for each in (BASE, name):
        if each in found and (why := found[each].failure) is not None:
            return Outcome(check=check, status="not possible", reason=f"the trial {each} failed: {why}")
    return None


def _worst(check: str, outcomes: Sequence[tuple[Evidence, Outcome]]) -> Outcome:
    """Return the worst of several outcomes, with the shape that it is about."""
    order = ("failed", "not possible", "passed")
    each, worst = min(outcomes, key=lambda pair: order.index(pair[1].status))
    if worst.status == "passed":
        return outcomes[-1][1]
    return replace(worst, check=check, reason=f"{each.trial.shape.label()}: {worst.reason}")
