"""What a search reads where its section says nothing, and the budget of an arm that follows. Pure."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from hpxfer.scaling.hps import MULTIPLIERS
from hpxfer.scaling.roles import ROLES
from hpxfer.spec.blocks import gpt_roles
from hpxfer.spec.fields import GridValues
from hpxfer.spec.search import GridOfRatios
from hpxfer.spec.sweep import SweepSpec

FIXED = ("ones", "zeros")  # inits that no multiplier changes
# Trials that optuna is asked for together, all seeds counted: nearly as fast a trial as the fullest stack (see
# hpxfer.trial.stack), and of a budget of a few dozen still several batches to learn from.
BATCH_TRIALS = 8
DEFAULTS: dict[str, Any] = {
    "sequence": "sobol",
    "seed": 0,
    "sampler": "TPESampler",
    "sampler_args": {},
    "until_octaves": 0.5,  # a 0.25% basin is about one octave wide
    "max_octaves": 4.0,
    # arXiv 2601.20205, Appendix D.1, ended at 1/16 and 1/4.
    "values": GridValues(log2=(-4.0, 4.0), step=2.0),
    "values_of": {},
    "passes": 1,
    "noise": 2.0,
    # An optimum may be 10^6 away from all ones, so the broad grid reaches far and moves.
    "broad": GridOfRatios(points=3, ratio=16.0),
    "fine": GridOfRatios(points=5, ratio=4.0),
    "recenters": 2,
}


def setting(spec: SweepSpec, name: str) -> Any:
    """Return a key of the search section, or its default."""
    given = getattr(spec.search, name)
    return DEFAULTS[name] if given is None else given


def num_points(spec: SweepSpec) -> int:
    """Return the HP points of an arm of random search or optuna: as given, or as many as the budget buys."""
    search = spec.search
    return search.points if search.points is not None else (search.budget or 0) // len(spec.seeds)


def optuna_batch(spec: SweepSpec) -> int:
    """Return the HP points that optuna is asked for at once in an arm."""
    return spec.search.batch or max(1, BATCH_TRIALS // len(spec.seeds))


def grid_size(spec: SweepSpec) -> int:
    """Return the HP points of the grid."""
    sizes = [len(values.numbers()) for values in spec.grid.values()]
    return math.prod(sizes) if spec.product else sum(sizes)


def lr_line_size(spec: SweepSpec) -> int:
    """Return the most points of the LR line that coordinate and staged-grid start with, moved off its edges or not."""
    if "lr" not in spec.grid:
        return 0
    size = len(spec.grid["lr"].numbers())
    return size + int(setting(spec, "recenters")) * max(1, size // 2)


def widening(values: tuple[float, ...], max_octaves: float) -> int:
    """Return the most points by which refine widens a line, on both sides together."""
    return sum(math.floor(max_octaves / step + 1e-9) for step in widening_steps(values, max_octaves))


def widening_steps(values: tuple[float, ...], max_octaves: float) -> tuple[float, float]:
    """Return the steps by which refine widens a line below and above: a coarse line too is widened once."""
    low, high = (min(step, max_octaves or step) for step in end_steps(values))
    return low, high


def end_steps(values: tuple[float, ...]) -> tuple[float, float]:
    """Return the steps of a line at its lower and its upper end, in octaves; one octave if it has one value."""
    logs = [math.log2(value) for value in values]
    if len(logs) < 2:
        return 1.0, 1.0
    return logs[1] - logs[0], logs[-1] - logs[-2]


def halvings(values: tuple[float, ...], until_octaves: float) -> int:
    """Return the most rounds in which refine halves the step of a line."""
    logs = [math.log2(value) for value in values]
    widest = max((high - low for low, high in pairwise(logs)), default=1.0)
    return max(0, math.ceil(math.log2(2 * widest / until_octaves) - 1e-9))


def refine_size(spec: SweepSpec, name: str) -> int:
    """Return the most points of the line of one HP under refine."""
    values = spec.grid[name].numbers()
    more = widening(values, setting(spec, "max_octaves"))
    return len(values) + more + 2 * halvings(values, setting(spec, "until_octaves"))


def arm_budget(spec: SweepSpec) -> int:
    """Return the most trials of an arm, seeds counted: equal for all arms. The sweep has been checked."""
    search, seeds = spec.search, len(spec.seeds)
    match search.kind:
        case "grid":
            return grid_size(spec) * seeds
        case "random" | "optuna":
            return num_points(spec) * seeds
        case "refine":
            # Beside its own lines a shape may get the base's best value of each HP.
            natural = sum(refine_size(spec, name) for name in spec.grid) + len(spec.grid)
        case "coordinate":
            natural = coordinate_size(spec)
        case "staged-grid":
            natural = staged_size(spec, moves=setting(spec, "recenters"))
    return natural * seeds if search.budget is None else min(search.budget, natural * seeds)


def budget_text(spec: SweepSpec) -> str:
    """Return in words what every arm may have."""
    seeds = f"{len(spec.seeds)} seeds counted" if len(spec.seeds) > 1 else "of one seed"
    most = "" if spec.search.kind in ("grid", "random", "optuna") else "at most "
    place = " at the base" if spec.search.where == "base" else ""
    budget = arm_budget(spec)
    trials = "1 trial" if budget == 1 else f"{budget} trials"
    return f"search {spec.search.kind}{place}: {most}{trials} for each arm (parameterization and shape), {seeds}"


def ratios_of(spec: SweepSpec, entry: str) -> tuple[float, ...]:
    """Return the ratios that coordinate tries for an entry, 1 left out: by the entry, by its kind, or for all."""
    by_name = setting(spec, "values_of")
    kinds = {name.strip().partition(".")[2] for name in entry.split("+")}
    chosen = by_name.get(entry) or (by_name.get(kinds.pop()) if len(kinds) == 1 else None) or setting(spec, "values")
    return tuple(ratio for ratio in chosen.numbers() if ratio != 1.0)


def coordinate_size(spec: SweepSpec) -> int:
    """Return the most points of coordinate: the LR line or the start, then a round for each multiplier in each pass."""
    tried = sum(len(ratios_of(spec, entry)) for entry in coordinate_entries(spec))
    return max(1, lr_line_size(spec)) + int(setting(spec, "passes")) * tried


def coordinate_entries(spec: SweepSpec) -> tuple[str, ...]:
    """Return the multipliers that coordinate tunes, in its order: those given, else every one that the base has.

    By default the LR of a role comes before its init, and the roles come in the order of the network.
    """
    return spec.search.multipliers or _every_multiplier(spec)


def _every_multiplier(spec: SweepSpec) -> tuple[str, ...]:
    # The balancing rule moves the router's bias by a rate of its own.
    roles = [role for role in gpt_roles(spec.base_shape, spec.model) if role not in ("readout", "router_bias")]
    roles += [] if spec.model.tied_embeddings else ["readout"]
    return tuple(
        f"{role}.{kind}" for role in roles for kind in MULTIPLIERS if kind == "lr_mult" or ROLES[role] not in FIXED
    )


def staged_size(spec: SweepSpec, *, moves: int) -> int:
    """Return the points of staged-grid if each of its grids moves so many times."""
    dimensions = len(spec.search.multipliers or ())
    grids = sum(setting(spec, stage).points ** dimensions for stage in ("broad", "fine"))
    lr = lr_line_size(spec) if moves else len(spec.grid["lr"].numbers())
    return lr + (1 + moves) * int(grids)
