"""Rules of a sweep's search and early stopping. Each yields (key path, what is wrong and how to mend it)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from hpxfer.errors import nearest
from hpxfer.scaling.hps import MULTIPLIERS
from hpxfer.spec.check_shapes import Problem
from hpxfer.spec.fields import GridValues
from hpxfer.spec.samplers import sampler_problems
from hpxfer.spec.search import KINDS, READS
from hpxfer.spec.search_defaults import (
    arm_budget,
    coordinate_entries,
    grid_size,
    ratios_of,
    setting,
    staged_size,
)
from hpxfer.spec.sweep import SweepSpec
from hpxfer.spec.yaml_file import Path_

MOST_POINTS = 10_000_000  # of a grid of multipliers: more is a slip of its points
MOST_TRIALS = 1_000_000  # of an arm whose trials are all known before: more is a slip, and more than can be listed
MOST_OCTAVES = 400  # beyond which numbers are not finite, and no optimum lies
# What decides at the end of a round cannot be told of a trial that was stopped on the way.
STOPPABLE = ("grid", "random", "optuna")
WhyNot = Callable[[str], str | None]  # why an HP cannot be tuned at the base


def search_problems(spec: SweepSpec, *, broken: bool, why_not: WhyNot) -> Iterator[Problem]:
    """Yield every broken rule of `search` and `early_stopping`; `broken`: whether what they scan is so itself."""
    kind = spec.search.kind
    found = list(_unread(spec))
    if kind != "grid" and spec.product:
        found.append((("product",), f"is of a grid search, got {kind}; take it out"))
    yield from found
    yield from _early_stopping(spec)
    if found or broken:
        return
    match kind:
        case "grid":
            yield from _grid(spec)
            yield from _countable(spec, ("grid",))
        case "random":
            yield from _random(spec)
        case "optuna":
            yield from _optuna(spec)
        case "refine":
            yield from _refine(spec)
        case "coordinate":
            yield from _coordinate(spec, why_not)
        case "staged-grid":
            yield from _staged(spec, why_not)


def _unread(spec: SweepSpec) -> Iterator[Problem]:
    search = spec.search
    for name in {key: None for keys in READS.values() for key in keys}:
        if getattr(search, name) is not None and name not in READS[search.kind]:
            readers = " and ".join(kind for kind in KINDS if name in READS[kind])
            yield ("search", name), f"is read by {readers}, not by {search.kind}; take it out"


def _early_stopping(spec: SweepSpec) -> Iterator[Problem]:
    asha = spec.early_stopping.asha
    if asha is None:
        return
    at: Path_ = ("early_stopping", "asha")
    if spec.search.kind not in STOPPABLE:
        yield at, f"cannot be with search {spec.search.kind}, which decides by the loss at the end of every trial"
    if asha.grace_steps >= spec.steps:
        yield (*at, "grace_steps"), f"must be less than the run's {spec.steps} steps, got {asha.grace_steps}"


def _least(spec: SweepSpec, points: int, what: str) -> Iterator[Problem]:
    """Yield a budget that does not buy what the search starts with."""
    budget, least = spec.search.budget, points * len(spec.seeds)
    if budget is not None and budget < least:
        text = f"must buy {what}: at least {least} trials an arm, {len(spec.seeds)} seeds counted, got {budget}"
        yield ("search", "budget"), f"{text}; raise it, or scan less"


def _grid(spec: SweepSpec) -> Iterator[Problem]:
    yield from _least(spec, grid_size(spec), "the whole grid")


def _random(spec: SweepSpec) -> Iterator[Problem]:
    if (spec.search.points is None) == (spec.search.budget is None):
        got = "none" if spec.search.points is None else "both"
        yield ("search",), f"random needs one of points and budget (trials an arm, seeds counted), got {got}"
        return
    yield from _least(spec, 1, "a point with every seed")
    yield from _countable(spec, ("search", "budget" if spec.search.points is None else "points"))
    if all(len(values.numbers()) == 1 for values in spec.grid.values()):
        yield ("grid",), "must have an HP with two ends to draw from, got one value each; give one of them two"
    yield from _box(spec)


def _optuna(spec: SweepSpec) -> Iterator[Problem]:
    if spec.search.budget is None:
        yield ("search", "budget"), "must be given with optuna: trials an arm, seeds counted"
        return
    yield from _least(spec, 1, "a point with every seed")
    yield from _countable(spec, ("search", "budget"))
    yield from _box(spec)
    yield from sampler_problems(setting(spec, "sampler"), setting(spec, "sampler_args"), len(spec.grid))


def _countable(spec: SweepSpec, at: Path_) -> Iterator[Problem]:
    number = arm_budget(spec)
    if number > MOST_TRIALS:
        yield at, f"must leave at most {MOST_TRIALS} trials for each arm, seeds counted, got {number:.4g}"


def _box(spec: SweepSpec) -> Iterator[Problem]:
    for name, values in spec.grid.items():
        yield from _above_zero(name, values)


def _above_zero(name: str, values: GridValues) -> Iterator[Problem]:
    if any(value <= 0 for value in values.numbers()):
        yield ("grid", name), f"must be above zero to be searched on a log scale, got {min(values.numbers()):g}"


def _refine(spec: SweepSpec) -> Iterator[Problem]:
    sizes = [len(values.numbers()) for values in spec.grid.values()]
    more = len(sizes) if spec.search.where == "all" else 0
    yield from _least(spec, sum(sizes) + more, "the first line of every HP and, beside it, the base's best value")
    yield from _box(spec)


def _coordinate(spec: SweepSpec, why_not: WhyNot) -> Iterator[Problem]:
    if len(spec.seeds) < 2:
        yield ("seeds",), "coordinate keeps a change that wins over seeds, so it needs at least 2, got 1"
    yield from _only_lr(spec)
    yield from _entries(spec, why_not, dotted=True)
    entries = coordinate_entries(spec)
    for name in spec.search.values_of or {}:
        if name not in entries and name not in MULTIPLIERS:
            yield ("search", "values_of", name), f"must be a multiplier of the search; {nearest(name, entries)}"
    for at, values in (
        (("search", "values"), spec.search.values),
        *((("search", "values_of", name), one) for name, one in (spec.search.values_of or {}).items()),
    ):
        if values is not None:
            yield from ((at, text) for text in _ratios(values))
    if entries:
        first = len(spec.grid["lr"].numbers()) if spec.grid else 1 + len(ratios_of(spec, entries[0]))
        yield from _least(spec, first, "its first round")


def _ratios(values: GridValues) -> Iterator[str]:
    if (values.values is None) == (values.log2 is None) or (values.log2 is not None and len(values.log2) != 2):
        yield "must be a list of ratios, or {log2: [low, high]}"
        return
    numbers = values.numbers()
    if not [ratio for ratio in numbers if ratio != 1.0]:
        yield f"must hold a ratio other than 1, got {list(numbers)}"
    if any(ratio <= 0 for ratio in numbers):
        yield f"a ratio must be above zero, got {min(numbers):g}"
    if len(set(numbers)) != len(numbers):
        yield f"a ratio stands twice in {list(numbers)}"


def _staged(spec: SweepSpec, why_not: WhyNot) -> Iterator[Problem]:
    at: Path_ = ("search", "multipliers")
    if not spec.search.multipliers:
        yield at, "must name the HPs of the grid with staged-grid, e.g. [init_scale, router.lr_mult]"
        return
    if "lr" not in spec.grid:
        yield ("grid", "lr"), "must be given with staged-grid, whose first stage is the line of lr"
        return
    yield from _only_lr(spec)
    yield from _above_zero("lr", spec.grid["lr"])
    yield from _entries(spec, why_not, dotted=False)
    too_large = False
    for stage in ("broad", "fine"):
        grid = setting(spec, stage)
        if grid.points % 2 == 0:
            yield ("search", stage, "points"), f"must be odd, so that the grid has a center, got {grid.points}"
        if grid.points ** len(spec.search.multipliers) > MOST_POINTS:
            too_large = True
            yield ("search", stage, "points"), f"must leave at most {MOST_POINTS} points in all the dimensions"
        if (1 + setting(spec, "recenters")) * (grid.points // 2) * math.log2(grid.ratio) > MOST_OCTAVES:
            yield ("search", stage), f"must stay within {MOST_OCTAVES} octaves of its center, its moves counted"
    if not too_large:
        yield from _least(spec, staged_size(spec, moves=0), "each of the three stages once")


def _only_lr(spec: SweepSpec) -> Iterator[Problem]:
    for name in spec.grid:
        if name != "lr":
            rule = f"{spec.search.kind} scans only lr beside its multipliers"
            yield ("grid", name), f"{rule}; take it out, or name it in search.multipliers"


def _entries(spec: SweepSpec, why_not: WhyNot, *, dotted: bool) -> Iterator[Problem]:
    """Yield what is wrong with the names of `search.multipliers`."""
    seen: set[str] = set()
    for index, entry in enumerate(spec.search.multipliers or ()):
        at: Path_ = ("search", "multipliers", index)
        for name in (part.strip() for part in entry.split("+")):
            if name == "lr" or (dotted and "." not in name):
                held = "lr and init stay fixed" if dotted else "lr has its own stage"
                yield at, f"{held}: must be multipliers such as router.lr_mult, got {name!r}"
            elif why := why_not(name):
                yield at, f"{name}: {why}"
            elif name in ("beta1", "beta2"):
                yield at, f"{name} has no multiplicative scale; scan it in a grid"
            elif name in seen:
                yield at, f"{name} stands twice"
            elif _base_value(spec, name) <= 0:
                yield at, f"{name} must be above zero to be multiplied, got a base value of 0; give it one in the file"
            seen.add(name)


def _base_value(spec: SweepSpec, name: str) -> float:
    if "." in name:
        return spec.hps.multipliers.get(name, 1.0)
    section = spec.training if name in ("weight_decay", "eps") else spec.hps
    return float(getattr(section, name))
