"""The budget of a search: how many trials an arm may have. An arm is a parameterization at a shape."""

from __future__ import annotations

from hpxfer.spec.sweep import SweepSpec


def arm_budget(spec: SweepSpec) -> int:
    """Return the most trials of an arm, seeds counted: equal for all arms. The sweep has been checked."""
    most = int(spec.search_row.size(spec)) * len(spec.seeds)
    return most if spec.search.budget is None else min(spec.search.budget, most)


def budget_text(spec: SweepSpec) -> str:
    """Return in words what every arm may have."""
    seeds = f"{len(spec.seeds)} seeds counted" if len(spec.seeds) > 1 else "of one seed"
    most = "" if spec.search_row.fixed_size else "at most "
    where = " at the base" if spec.search.where == "base" else ""
    budget = arm_budget(spec)
    trials = "1 trial" if budget == 1 else f"{budget} trials"
    more = spec.search_row.also_limited(spec)
    also = f"; {more}" if more else ""
    return f"search {spec.search.kind}{where}: {most}{trials} for each arm (parameterization and shape), {seeds}{also}"
