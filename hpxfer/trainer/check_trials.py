"""The short trials that check a trainer, what they have reported, and the outcome of every check of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hpxfer.host import is_control
from hpxfer.receipts import checks
from hpxfer.receipts.checks import not_possible
from hpxfer.recipe import Recipe
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.muon import moves
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import Shape
from hpxfer.search import rules_of
from hpxfer.spec import SweepSpec
from hpxfer.store import Outcome, TrainerChecks
from hpxfer.trainer.job import recipe_of
from hpxfer.trainer.lines import merged, read_attempts
from hpxfer.trial import Expansion, Trial, TrialResult, base_hps

BASE, AGAIN, SEED, ARM, TWICE, LARGER = "base", "base-again", "other-seed", "other-arm", "twice-lr", "larger"
STEPS = 20


def check_trials(expansion: Expansion, steps: int = STEPS) -> dict[str, Trial]:
    """Return name -> trial: the base, the same again, with another seed, through another arm, at twice the LR, and the
    next larger shape.

    Each has at most so many steps, with its warm-up and decay shortened alike. A sweep with one arm has no other arm,
    and one without a larger shape of the same steps no larger one. Their ids are no ids of the sweep.
    """
    expansion = expansion.parts[0]
    spec, control = expansion.spec, rules_of(expansion.spec).control
    first, *others = sorted(expansion.choices, key=lambda choice: is_control(choice.label(), control))
    hps, seed, base = _middle(spec), spec.seeds[0], spec.base_shape

    def trial(choice: Parameterization, shape: Shape = base, hps: HPs = hps, seed: int = seed) -> Trial:
        # The trainer is told the arm at the base too, where the sweep trains one trial for all arms.
        return replace(expansion.trial(choice, shape, hps, seed), parameterization=choice)

    def is_the_base(choice: Parameterization) -> bool:
        """Return whether all arms are one model there. A table that ties experts, for example, is another one."""
        return choice.is_own or expansion.own_parameterization(choice, base) is None

    found = {
        BASE: trial(first),
        AGAIN: trial(first),
        SEED: trial(first, seed=next((other for other in spec.seeds if other != seed), seed + 1)),
        TWICE: trial(first, hps=hps.with_value("lr", 2 * hps.lr)),
    }
    same = [choice for choice in others if is_the_base(choice)]
    if same and is_the_base(first):
        found[ARM] = trial(same[0])
    if (larger := _larger(expansion)) is not None:
        found[LARGER] = trial(first, larger)
    return {name: _short(replace(each, id=f"check-{name}"), steps) for name, each in found.items()}


def _middle(spec: SweepSpec) -> HPs:
    """Return the base HPs with the middle LR of the grid, twice of which should train as well."""
    values = sorted(spec.grid["lr"].numbers()) if "lr" in spec.grid else []
    return base_hps(spec).with_value("lr", values[(len(values) - 1) // 2]) if values else base_hps(spec)


def _larger(expansion: Expansion) -> Shape | None:
    """Return the smallest shape above the base, of the first axis that has one with other dimensions."""
    base = expansion.spec.base_shape
    for axis in expansion.axes:
        scale = next((point.scale for point in axis.points if point.shape == base), 0.0)
        above = [point for point in axis.points if point.scale > scale and point.shape.own_dims != base.own_dims]
        if above:
            return min(above, key=lambda point: point.scale).shape
    return None


def _short(trial: Trial, steps: int) -> Trial:
    """Return a trial with at most so many steps, and with phases of its schedule that are shorter alike."""
    setting = trial.setting
    if setting.steps <= steps:
        return trial
    phases = {name: getattr(setting, name) for name in ("warmup_steps", "decay_steps", "final_window_steps")}
    shorter = {name: max(1, round(phase * steps / setting.steps)) for name, phase in phases.items() if phase}
    shape, base = (replace(each, steps=min(each.steps, steps)) for each in (trial.shape, trial.base))
    return replace(trial, setting=replace(setting, steps=steps, **shorter), shape=shape, base=base)


Entries = list[dict[str, Any]]
_ROLE_OF = {"attn_logits": "attn_q", "route_scale": "router"}  # of a multiplier that is not named after its role


class Evidence:
    """A trial, its result, what it has reported, and what its recipe expects."""

    def __init__(self, trial: Trial, result: TrialResult, runs: Path) -> None:
        attempts = read_attempts(runs / trial.id, trial_id=trial.id, steps=trial.setting.steps)
        groups = [line for each in attempts for line in each.groups]
        entries = [(line.step, list(_entries(line.groups))) for line in groups]
        self.trial, self.result, self.points = trial, result, merged(attempts)
        self.outputs = [output for each in attempts for line in each.outputs for output in line.outputs]
        self.receipts = {step: found for step, found in entries if found}  # step -> the last receipt of that step
        # The first receipt with statistics of the weights, or nothing.
        starts = (found for step, found in entries if step == 0)
        self.start = next((each for each in starts if any(entry.get("std") is not None for entry in each)), Entries())
        # The step of the first update whose changes were reported, and these.
        self.changes = next(((line.step, line.changes) for line in groups if line.changes is not None), None)
        self.batch = next((line.batch for line in groups if line.batch is not None), None)
        # Why the trial has no result, in a line; None if it has one.
        no_result = result.status not in ("finished", "diverged")
        self.failure = (result.error or "no reason is known").strip().partition("\n")[0] if no_result else None
        # The loss at the end: of the validation, or the last one reported. +inf if it diverged, NaN if it failed.
        last = self.points[-1].loss if self.points and self.failure is None else math.nan
        self.loss = last if result.validation_loss_nats is None else result.validation_loss_nats
        if result.status == "diverged":
            self.loss = math.inf

    @property
    def of_seed(self) -> dict[str, Any]:
        """What a seed should decide, as far as it was reported: the initial weights, the first batch, the losses."""
        validation = self.result.validation_loss_nats
        losses = [*(point.loss for point in self.points), *(() if validation is None else (validation,))]
        return {"init": checks.init_digest(self.start), "batch": self.batch, "loss": losses}

    @property
    def arm(self) -> str:
        """The arm that the trainer is told."""
        return "sp" if self.trial.parameterization is None else self.trial.parameterization.label()

    @cached_property
    def expected(self) -> dict[str, dict[str, Any]] | None:
        """Role -> the numbers that the trial's recipe gives; None for an arm of the user's own."""
        choice, setting, found = self.trial.parameterization, self.trial.setting, self.trial.globals()
        if choice is not None and choice.is_own:
            return None
        betas = {} if setting.column == "sgd" else {"betas": (found.beta1, found.beta2)}
        out = {role: {**asdict(numbers), **betas} for role, numbers in self.trial.resolved().items()}
        for role in out:
            if moves(setting.column, role):  # Muon reads neither eps nor betas
                out[role] |= {"eps": None, "betas": None}
            if ROLES[role] == "ones":  # a gain starts at 1, or at 0 where the model multiplies by 1 + gain
                out[role]["init_std"] = None
        return out

    def groups(self, base: Evidence) -> Iterator[Outcome]:
        """Yield the outcome of each receipt. The schedule is the trainer's, so that the base says its factor."""
        for step, entries in self.receipts.items():
            from_base = base.receipts.get(step) if self is not base else None
            factor = checks.common_factor(from_base, base.expected or {}) if from_base else None
            yield checks.groups_match(entries, self.expected or {}, factor=factor)

    def schedule(self) -> Outcome:
        return checks.schedule_keeps_ratios([{"step": step, "groups": of} for step, of in self.receipts.items()])

    def forward(self) -> Outcome:
        """Return the outcome for the multipliers of the recipe whose roles the receipts have."""
        if self.expected is None or (found := recipe_of(self.trial)) is None:
            no = "no recipe can be read: name the dimensions that the parameterization needs in model.dims"
            return not_possible(checks.FORWARD, no)
        every = Recipe.parse(found["text"]).forward_multipliers(found["shape"])
        spelled = [str(entry.get("role")) for entries in self.receipts.values() for entry in entries]
        roles = {role for each in spelled for role in each.partition("@")[0].split("+")}
        there = {key: by for key, by in every.items() if roles <= {"None"} or _ROLE_OF.get(key, key) in roles}
        return checks.forward_factors(self.outputs, there)

    def wired(self, twice: Evidence) -> Outcome:
        """Return whether the first update doubles at twice the LR."""
        one, two = self.changes, twice.changes
        if one is None or two is None:
            no = NO_RECEIPT if not self.receipts else "no groups line has changes; write those of the first update"
            return not_possible(checks.WIRED, no)
        if one[0] != two[0]:
            return not_possible(checks.WIRED, f"changes must be of one step, got {one[0]} and {two[0]}")
        start = {str(each.get("name")): each for each in self.start}
        of_start = [start.get(str(each.get("name")), {}) for each in self.receipts.get(one[0], [])]
        groups = [
            {**each, "std": first.get("std"), "mean": first.get("mean")}
            for each, first in zip(self.receipts.get(one[0], []), of_start, strict=True)
        ]
        return checks.hp_is_wired(one[1], two[1], groups)


def _entries(groups: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield an entry per parameter. A group may list its `names`, with `roles` beside them or one `role` for all."""
    for group in groups:
        names, roles = group.get("names"), group.get("roles")
        if "name" in group or not isinstance(names, list):
            yield dict(group)
            continue
        of_each = roles if isinstance(roles, list) and len(roles) == len(names) else [group.get("role")] * len(names)
        yield from ({**group, "name": name, "role": role} for name, role in zip(names, of_each, strict=True))


NO_RECEIPT = (
    "the trainer writes no receipt; add trial.watch(model, optimizer, roles), or hpxfer.receipts.write_groups(...)"
)
NO_RECIPE = "an arm of your own has no recipe to compare with"
ONE_ARM = "needs two arms that are one model at the base, got one"
NO_TOKENS = "no trial reports its tokens; add tokens=... (trained on so far) to trial.report of the last step"


def evaluate(found: Mapping[str, Evidence], code: str = "") -> TrainerChecks:
    """Return the outcome of every check, from name -> evidence of the trials of `check_trials`.

    `code` is that of the trainer, see `trainer_code`.
    """
    base, shapes = found[BASE], [found[name] for name in (BASE, LARGER) if name in found]
    losses = {name: each.loss for name, each in found.items()}
    repeat = checks.base_repeats([losses[BASE], losses[AGAIN]], [losses[BASE], losses[SEED]])
    runs = [
        {
            "name": name,
            "tokens": tokens,
            "steps": each.trial.setting.steps,
            "batch_tokens": each.trial.setting.batch_tokens,
        }
        for name, each in found.items()
        if each.trial.shape == base.trial.shape and each.points
        if (tokens := each.points[-1].metrics.get("tokens")) is not None
    ]

    def lacking(check: str, other: str, *needs: str) -> Outcome | None:
        """Return the outcome of a check that lacks something: one of its two trials, receipts, or a recipe."""
        for name in (BASE, other):
            if name in found and (why := found[name].failure) is not None:
                return not_possible(check, f"the trial {name} failed: {why}")
        if "receipts" in needs and not all(each.receipts for each in shapes):
            return not_possible(check, NO_RECEIPT)
        return not_possible(check, NO_RECIPE) if "recipe" in needs and base.expected is None else None

    def of_shapes(check: Callable[[Evidence], Iterable[Outcome]]) -> Outcome:
        """Return the worst outcome of the base and the larger shape, with the shape that it is about."""
        order = ("failed", "not possible", "passed")
        pairs = [(each, outcome) for each in shapes for outcome in check(each)]
        each, worst = min(pairs, key=lambda pair: order.index(pair[1].status))
        if worst.status == "passed":
            return pairs[-1][1]
        return worst.model_copy(update={"reason": f"{each.trial.shape.label()}: {worst.reason}"})

    def arms() -> Outcome:
        other = found.get(ARM)
        if other is None:
            return not_possible(checks.ARMS, ONE_ARM)
        return checks.arms_agree({base.arm: base.loss, other.arm: other.loss}, spread=repeat.spread or 0.0)

    # The check, the trial that it needs beside the base, what else it needs, and its outcome if all is there.
    rows: tuple[tuple[tuple[str, ...], Callable[[], Outcome]], ...] = (
        ((checks.GROUPS, LARGER, "receipts", "recipe"), lambda: of_shapes(lambda each: each.groups(base))),
        ((checks.SCHEDULE, LARGER, "receipts"), lambda: of_shapes(lambda each: [each.schedule()])),
        (
            (checks.INIT, LARGER, "receipts", "recipe"),
            lambda: of_shapes(lambda each: [checks.init_matches(each.start, each.expected or {})]),
        ),
        ((checks.FORWARD, LARGER, "recipe"), lambda: of_shapes(lambda each: [each.forward()])),
        ((checks.SEEDS, SEED), lambda: checks.seeds_differ(base.of_seed, found[SEED].of_seed)),
        ((checks.REPEAT, AGAIN), lambda: repeat.outcome),
        ((checks.WIRED, TWICE), lambda: base.wired(found[TWICE])),
        ((checks.ARMS, ARM), arms),
        (
            (checks.MEASURE, BASE),
            lambda: checks.same_measure(runs) if len(runs) > 1 else not_possible(checks.MEASURE, NO_TOKENS),
        ),
    )
    return TrainerChecks(
        code=code,
        steps=base.trial.setting.steps,
        outcomes=tuple(lacking(*needs) or outcome() for needs, outcome in rows),
        extra_sd=repeat.extra_sd,
    )
