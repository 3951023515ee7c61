"""Search: how a sweep chooses the HPs that it tries, and the budget that every arm gets.

An arm is a parameterization at a shape; tables that agree at the base share one arm there.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from hpxfer.spec.fields import Count, CountOrNone, Section, Seq, Values, into

Kind = Literal["grid", "random", "optuna", "refine", "coordinate", "staged-grid"]
KINDS = ("grid", "random", "optuna", "refine", "coordinate", "staged-grid")
# The searches that tune the base; what they find is for other shapes to be given.
OF_THE_BASE = ("coordinate", "staged-grid")
# What each kind reads beside kind, budget and at.
READS: dict[str, tuple[str, ...]] = {
    "grid": (),
    "random": ("points", "sequence", "seed"),
    "optuna": ("sampler", "sampler_args", "batch", "seed"),
    "refine": ("until_octaves", "max_octaves"),
    "coordinate": ("multipliers", "values", "values_of", "passes", "noise"),
    "staged-grid": ("multipliers", "broad", "fine", "recenters"),
}


class GridOfRatios(Section):
    """A grid around a center: so many points a dimension, each `ratio` times the last. An odd number has a center."""

    points: Annotated[int, Field(ge=3, le=101)]
    ratio: Annotated[float, Field(gt=1, le=1e6)]


class SearchSpec(Section):
    """How the HPs are chosen. What is left out takes the default of the kind, see `hpxfer.spec.search_defaults`."""

    kind: Kind = "grid"
    budget: Count | None = None  # trials an arm, seeds counted
    at: Literal["base", "all"] | None = None  # default: base for coordinate and staged-grid, all for the others
    points: Count | None = None  # random: HP points an arm, each with every seed; default: what the budget buys
    sequence: Literal["sobol", "uniform"] | None = None  # random
    seed: CountOrNone | None = None  # random, optuna: of the search itself
    sampler: str | None = None  # optuna: a class of optuna.samplers
    sampler_args: dict[str, Any] | None = None  # optuna: its keyword arguments
    batch: Count | None = None  # optuna: points asked at a time
    until_octaves: Annotated[float, Field(gt=0, le=100)] | None = None  # refine: the optimum's interval to reach
    max_octaves: Annotated[float, Field(ge=0, le=100)] | None = None  # refine: beyond either end of the first line
    # coordinate (in this order), staged-grid: HPs by name; those joined by + move together.
    multipliers: Seq[str] | None = None
    values: Values | None = None  # coordinate: ratios to the value that was kept so far
    values_of: dict[str, Values] | None = None  # coordinate: other ratios, by a multiplier or its kind, e.g. init_mult
    passes: Count | None = None  # coordinate
    noise: Annotated[float, Field(ge=0)] | None = None  # coordinate: standard errors that a change must win by
    broad: GridOfRatios | None = None  # staged-grid: the second stage
    fine: GridOfRatios | None = None  # staged-grid: the third
    recenters: CountOrNone | None = None  # staged-grid: times that a stage may move after a best on its edge

    @property
    def where(self) -> Literal["base", "all"]:
        """The shapes that are searched at."""
        return self.at or ("base" if self.kind in OF_THE_BASE else "all")


class AshaSpec(Section):
    """Asynchronous successive halving: at each rung only the best 1/reduction_factor of the trials go on."""

    grace_steps: Count  # of a trial before it may be stopped
    reduction_factor: Annotated[float, Field(gt=1, le=1000)] = 4.0


class EarlyStoppingSpec(Section):
    """Which trials stop before their end. Divergence always stops a trial; beside it nothing does by default."""

    asha: AshaSpec | None = None


def _none(value: Any) -> Any:
    """`early_stopping: none` is the default spelled out."""
    return {} if value == "none" or value is None else value


Search = Annotated[SearchSpec, BeforeValidator(into("kind", str))]
EarlyStopping = Annotated[EarlyStoppingSpec, BeforeValidator(_none)]
