"""The LR line that coordinate and staged-grid start with: what is tuned after it holds its best LR fixed."""

from __future__ import annotations

from collections.abc import Generator

from hpxfer.scaling.hps import HPs
from hpxfer.search.rounds import Losses, Round, mean
from hpxfer.search.values import at_exponent, exponent_of
from hpxfer.spec import SweepSpec
from hpxfer.spec.search_defaults import end_steps, setting
from hpxfer.trial import base_hps

ABOUT = "lr"  # of its rounds


def best_lr(spec: SweepSpec) -> Generator[Round, Losses, tuple[HPs | None, str]]:
    """Return the HPs with the best LR of the grid's line, and what to say of it; None if everything diverged.

    A best on an edge moves the line: half of it is added beyond, `recenters` times at most.
    """
    start, moves = base_hps(spec), setting(spec, "recenters")
    values = spec.grid["lr"].numbers()
    spelled = {exponent_of(value): value for value in values}
    low_step, high_step = end_steps(values)
    known: dict[float, float] = {}
    new, why = sorted(spelled), f"the line of lr, {len(values)} values"
    for move in range(moves + 1):
        points = tuple(start.with_value("lr", spelled.get(one, at_exponent(one))) for one in new)
        losses = yield Round(points=points, why=why, about=ABOUT)
        known.update(zip(new, map(mean, losses), strict=True))
        low, high = min(known), max(known)
        best = min(sorted(known), key=known.__getitem__)
        lost = known[best] == float("inf")
        edge = "lowest" if lost or best == low else "highest" if best == high else None
        text = "every lr diverged" if lost else f"the best lr 2^{best:g}"
        if edge is None or move == moves:
            break
        steps = range(1, max(1, len(values) // 2) + 1)
        new = [round(low - k * low_step if edge == "lowest" else high + k * high_step, 10) for k in steps]
        why = f"{text} is the {edge}: moved, to 2^{new[-1]:g}"
    if lost:
        return None, text
    said = text if edge is None else f"{text} is still the {edge} after {moves} moves: a bound, not an optimum"
    return start.with_value("lr", spelled.get(best, at_exponent(best))), said
