"""Rules on how large a sweep may be: what can be planned in about a second, and what arithmetic keeps exact."""

from __future__ import annotations

from collections.abc import Iterator

from hpxfer.scaling.shape import tokens_problem
from hpxfer.spec.axes import entries
from hpxfer.spec.problem import Problem
from hpxfer.spec.sweep import SweepSpec

# Measured with `hpxfer plan` on one core of a two-core AMD EPYC, 2026-11: a plan takes 0.7 s, of which 0.6 s are
# imports, 1.5 ms more for each arm, and 6 us more for each trial that is listed.
MAX_ARMS = 500
MAX_TRIALS = 200_000


def size_problems(spec: SweepSpec) -> Iterator[Problem]:
    """Yield why a sweep has too many shapes and tables to look at each of them."""
    num_shapes = 1 + sum(len(list(entries(axis))) for axis in spec.axes.values())
    num_tables = max(1, len(spec.parameterizations))
    if num_shapes * num_tables > MAX_ARMS:
        yield (
            ("axes",),
            f"must leave at most {MAX_ARMS} arms, which are shapes times parameterizations, got {num_shapes} x "
            f"{num_tables}; leave some out, or write several sweeps",
        )


def length_problems(spec: SweepSpec) -> Iterator[Problem]:
    """Yield why a run at the base is too long, however the file gives its length."""
    training = spec.training
    if (training.steps is None) == (training.tokens is None):
        return
    if problem := tokens_problem(spec.steps, training.batch):
        yield ("training", "steps" if training.tokens is None else "tokens"), problem


def too_many_trials(spec: SweepSpec, num_trials: int, num_shapes: int) -> str | None:
    """Return why a sweep has too many trials to list them, or None. An arm has `num_trials`, seeds counted."""
    arms = len(spec.parameterizations) * (1 if spec.search.where == "base" else num_shapes)
    if arms * num_trials <= MAX_TRIALS:
        return None
    return (
        f"must leave at most {MAX_TRIALS} trials in the sweep, got {arms * num_trials:.6g}: {arms} arms (a "
        f"parameterization at a shape) with {num_trials:.6g} trials each, {len(spec.seeds)} seeds counted; scan less, "
        "or write several sweeps"
    )
