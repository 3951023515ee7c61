"""Checks of a sweep file that several searches share: budgets, counts, log scales, and multipliers given by name."""

from __future__ import annotations

from collections.abc import Iterator

from hpxfer.errors import shown
from hpxfer.search.values import names_in
from hpxfer.spec import KeyPath, Problem, SweepSpec, WhyNot, arm_budget, base_values, keyed_shapes, too_many_trials


def buys(spec: SweepSpec, points: int, what: str) -> Iterator[Problem]:
    """Yield a budget that does not buy the points that the search starts with."""
    budget, least = spec.search.budget, points * len(spec.seeds)
    if budget is not None and budget < least:
        seeds = f"{len(spec.seeds)} seeds counted"
        yield ("search", "budget"), f"must buy {what}: at least {least} trials per arm, {seeds}, got {budget}"


def countable(spec: SweepSpec, at: KeyPath) -> Iterator[Problem]:
    """Yield why a search whose trials are all known in advance has more of them than can be listed."""
    shapes = {shape for _, shape in keyed_shapes(spec)}
    if problem := too_many_trials(spec, arm_budget(spec), len(shapes)):
        yield at, problem


def on_log_scale(spec: SweepSpec) -> Iterator[Problem]:
    """Yield the HPs of the grid that have no log scale."""
    for name, values in spec.grid.items():
        if (least := min(values.numbers(), default=1.0)) <= 0:
            yield ("grid", name), f"must be above zero to be searched on a log scale, got {least:g}"


def varied_hps(spec: SweepSpec, multipliers: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the HPs of the grid, then those that `search.multipliers` names."""
    return tuple(dict.fromkeys([*spec.grid, *(name for entry in multipliers or () for name in names_in(entry))]))


def multiplier_problems(
    spec: SweepSpec, multipliers: tuple[str, ...] | None, why_not: WhyNot, *, dotted: bool
) -> Iterator[Problem]:
    """Yield the HPs of the grid other than lr, and what is wrong with `search.multipliers`.

    `dotted` allows constant multipliers only.
    """
    for name in spec.grid:
        if name != "lr":
            yield ("grid", name), f"{spec.search.kind} scans only lr beside its search.multipliers"
    seen: set[str] = set()
    for index, entry in enumerate(multipliers or ()):
        at: KeyPath = ("search", "multipliers", index)
        for name in names_in(entry):
            if name == "lr" or (dotted and "." not in name):
                held = "lr and init stay fixed" if dotted else "lr has its own stage"
                yield at, f"{held}: must be multipliers such as router.lr_mult, got {shown(name)}"
            elif why := why_not(name):
                yield at, f"{name}: {why}"
            elif name in ("beta1", "beta2"):
                yield at, f"{name} has no multiplicative scale; scan it in a grid"
            elif name in seen:
                yield at, f"{name} stands twice"
            elif base_values(spec).get(name, 1.0) <= 0:
                yield at, f"{name} must be above zero to be multiplied, got a base value of 0"
            seen.add(name)
