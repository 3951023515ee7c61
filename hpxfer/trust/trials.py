"""The short trials that check a trainer. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape
from hpxfer.search.verdict_rules import rules_of
from hpxfer.spec import SweepSpec
from hpxfer.trial import Expansion, Trial, base_hps
from hpxfer.trial.setting import Setting
from hpxfer.verdict.shape_names import is_control

BASE, AGAIN, SEED, ARM, TWICE, LARGER = "base", "base-again", "other-seed", "other-arm", "twice-lr", "larger"
STEPS = 20


def check_trials(expansion: Expansion, steps: int = STEPS) -> dict[str, Trial]:
    """Return name -> trial: the base, the same again, with another seed, through another arm, at twice the LR, and the
    next larger shape.

    Each has at most so many steps, with its warm-up and decay shortened alike. A sweep with one arm has no other arm,
    and one without a larger shape of the same steps no larger one. Their ids are no ids of the sweep.
    """
    found = dict(_trials(expansion.parts[0]))
    return {name: _short(replace(trial, id=f"check-{name}"), steps) for name, trial in found.items()}


def _trials(expansion: Expansion) -> Iterator[tuple[str, Trial]]:
    spec = expansion.spec
    first, *others = sorted(expansion.choices, key=lambda choice: _is_control(expansion, choice))
    hps, seed, base = _middle(spec), spec.seeds[0], spec.base_shape

    def trial(choice: Parameterization, shape: Shape, hps: HPs, seed: int) -> Trial:
        # The trainer is told the arm at the base too, where the sweep trains one trial for all arms.
        return replace(expansion.trial(choice, shape, hps, seed), parameterization=choice)

    yield BASE, trial(first, base, hps, seed)
    yield AGAIN, trial(first, base, hps, seed)
    yield SEED, trial(first, base, hps, next((other for other in spec.seeds if other != seed), seed + 1))
    yield TWICE, trial(first, base, hps.with_value("lr", 2 * hps.lr), seed)
    # A table that changes the base itself, such as one that ties experts, is another model there.
    same = [choice for choice in others if choice.is_own or expansion.own_parameterization(choice, base) is None]
    if same and (first.is_own or expansion.own_parameterization(first, base) is None):
        yield ARM, trial(same[0], base, hps, seed)
    if (larger := _larger(expansion)) is not None:
        yield LARGER, trial(first, larger, hps, seed)


def _is_control(expansion: Expansion, choice: Parameterization) -> bool:
    return is_control(choice.label(), rules_of(expansion.spec).control)


def _middle(spec: SweepSpec) -> HPs:
    """Return the base HPs with the middle LR of the grid, twice of which should train as well."""
    hps = base_hps(spec)
    if "lr" not in spec.grid:
        return hps
    values = sorted(spec.grid["lr"].numbers())
    return hps.with_value("lr", values[(len(values) - 1) // 2])


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
    share = steps / setting.steps
    short: Setting = replace(
        setting,
        steps=steps,
        warmup_steps=_at_least_one(setting.warmup_steps, share),
        decay_steps=_at_least_one(setting.decay_steps, share),
        final_window_steps=_at_least_one(setting.final_window_steps, share),
    )
    shape, base = (replace(each, steps=min(each.steps, steps)) for each in (trial.shape, trial.base))
    return replace(trial, setting=short, shape=shape, base=base)


def _at_least_one(steps: int, share: float) -> int:
    return max(1, round(steps * share)) if steps else 0
