"""The LR line that coordinate and staged-grid start with. What they tune afterwards keeps its best LR."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator

from hpxfer.search.rounds import End, Losses, Round, mean
from hpxfer.search.values import at_exponent, bound_text, exponent_of
from hpxfer.spec import SweepSpec
from hpxfer.trial import base_hps
from hpxfer.verdict.tied import lowest_of

ABOUT = "lr"  # of its rounds


def best_lr(spec: SweepSpec, moves: int) -> Generator[Round, Losses, End]:
    """Return the HPs with the best LR of the grid's line, with a sentence about it. The HPs are None if all diverged.

    If the best LR lies on an edge, half of the line is added beyond that edge, at most `moves` times.
    """
    start = base_hps(spec)
    values = spec.grid["lr"].numbers()
    spelled = {exponent_of(value): value for value in values}
    low_step, high_step = end_steps(values)
    known: dict[float, float] = {}
    new, why = sorted(spelled), f"the line of lr, {len(values)} values"
    for move in range(moves + 1):
        points = tuple(start.with_value("lr", spelled.get(exponent, at_exponent(exponent))) for exponent in new)
        losses = yield Round(points=points, why=why, about=ABOUT)
        known.update(zip(new, map(mean, losses), strict=True))
        low, high = min(known), max(known)
        places = sorted(known)
        best = places[lowest_of([known[exponent] for exponent in places], places)]
        lost = known[best] == float("inf")
        edge = "lowest" if lost or best == low else "highest" if best == high else None
        text = "every lr diverged" if lost else f"the best lr 2^{best:g}"
        if edge is None or move == moves:
            break
        steps = range(1, max(1, len(values) // 2) + 1)
        new = [round(low - k * low_step if edge == "lowest" else high + k * high_step, 10) for k in steps]
        why = f"{text} is the {edge}: moved, to 2^{new[-1]:g}"
    if lost:
        return End(why=text, best=None)
    summary = text if edge is None else f"{text} is still the {edge} after {moves} moves: a bound, not an optimum"
    value = spelled.get(best, at_exponent(best))
    bounds = () if edge is None else (bound_text("lr", value, is_highest=edge == "highest"),)
    return End(why=summary, best=start.with_value("lr", value), bounds=bounds)


def line_size(spec: SweepSpec, moves: int) -> int:
    """Return the most points of the line, or 0 if the grid has no lr."""
    if "lr" not in spec.grid:
        return 0
    size = len(spec.grid["lr"].numbers())
    return size + moves * max(1, size // 2)


def line_rounds(spec: SweepSpec, moves: int) -> Counter[int]:
    """Return points -> rounds of that many points, for the line and each of its moves."""
    size = len(spec.grid["lr"].numbers())
    return Counter([size]) + Counter({max(1, size // 2): moves})


def end_steps(values: tuple[float, ...]) -> tuple[float, float]:
    """Return the steps of a line at its lower and its upper end in octaves, or one octave if it has one value."""
    logs = [math.log2(value) for value in values]
    if len(logs) < 2:
        return 1.0, 1.0
    return logs[1] - logs[0], logs[-1] - logs[-2]
