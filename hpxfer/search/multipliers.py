"""Multipliers: what the searches that tune them by name share. The line of lr comes first, and keeps its best LR."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Iterator

from hpxfer.errors import shown
from hpxfer.search.rounds import End, Losses, Round, mean
from hpxfer.search.values import at_exponent, bound_text, end_steps, exponent_of, names_in
from hpxfer.spec import SweepSpec
from hpxfer.spec.fields import Problem, WhyNot
from hpxfer.spec.sweep import base_values
from hpxfer.spec.yaml_file import KeyPath
from hpxfer.trial import base_hps
from hpxfer.verdict.tied import lowest_of


def best_lr(spec: SweepSpec, moves: int) -> Generator[Round, Losses, End]:
    """Return the HPs with the best LR of the grid's line, with a sentence about it. The HPs are None if all diverged.

    If the best LR lies on an edge, half of the line is added beyond that edge, at most `moves` times.
    """
    start, values = base_hps(spec), spec.grid["lr"].numbers()
    spelled = {exponent_of(value): value for value in values}
    low_step, high_step = end_steps(values)
    known: dict[float, float] = {}
    new, why = sorted(spelled), f"the line of lr, {len(values)} values"
    for move in range(moves + 1):
        points = tuple(start.with_value("lr", spelled.get(exponent, at_exponent(exponent))) for exponent in new)
        losses = yield Round(points=points, why=why)
        known.update(zip(new, map(mean, losses), strict=True))
        places = sorted(known)
        best = places[lowest_of([known[exponent] for exponent in places], places)]
        lost = known[best] == math.inf
        edge = "lowest" if lost or best == places[0] else "highest" if best == places[-1] else None
        text = "every lr diverged" if lost else f"the best lr 2^{best:g}"
        if edge is None or move == moves:
            break
        steps = range(1, max(1, len(values) // 2) + 1)
        new = [round(places[0] - k * low_step if edge == "lowest" else places[-1] + k * high_step, 10) for k in steps]
        why = f"{text} is the {edge}: moved, to 2^{new[-1]:g}"
    if lost:
        return End(why=text, best=None)
    best_hps = start.with_value("lr", spelled.get(best, at_exponent(best)))
    if edge is None:
        return End(why=text, best=best_hps)
    bound = bound_text("lr", best_hps.lr, is_highest=edge == "highest")
    return End(
        why=f"{text} is still the {edge} after {moves} moves: a bound, not an optimum", best=best_hps, bounds=(bound,)
    )


def line_rounds(spec: SweepSpec, moves: int) -> Counter[int]:
    """Return points -> the most rounds of that many points, for the line and each of its moves. None without lr."""
    if "lr" not in spec.grid:
        return Counter()
    size = len(spec.grid["lr"].numbers())
    return Counter([size]) + Counter({max(1, size // 2): moves})


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
