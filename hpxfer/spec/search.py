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
    """A grid around a center, with equal steps on a log scale."""

    points: Annotated[int, Field(ge=3, le=101)]
    """Points per dimension. The number must be odd, so that the grid has a center."""
    ratio: Annotated[float, Field(gt=1, le=1e6)]
    """The factor from one point to the next."""


class SearchSpec(Section):
    """How the sweep chooses the HPs that it tries. An arm is a parameterization at a shape.

    A bare name is short for `{kind: NAME}`. Each kind reads its own keys and refuses the others.
    """

    kind: Kind = "grid"
    """The search. `grid` trains every cell of the grid. `docs/search.md` describes the others."""
    budget: Count | None = None
    """The most trials per arm, counted over all seeds. Every arm gets the same budget."""
    at: Literal["base", "all"] | None = None
    """The shapes that are searched. The default is `base` for coordinate and staged-grid, and `all` for the others."""
    points: Count | None = None
    """random: the HP points per arm. Each point is trained with every seed. The default is what the budget buys."""
    sequence: Literal["sobol", "uniform"] | None = None
    """random: how the points are drawn. The default is `sobol`."""
    seed: CountOrNone | None = None
    """random and optuna: the seed of the search itself. The default is 0."""
    sampler: str | None = None
    """optuna: a class of `optuna.samplers`, such as `TPE`, `GP` or `cma-es`. The default is TPESampler."""
    sampler_args: dict[str, Any] | None = None
    """optuna: the keyword arguments of the sampler. They must be numbers, text, true, false or null."""
    batch: Count | None = None
    """optuna: the points that it is asked for at once. The default fills a batch of 8 trials, all seeds counted."""
    until_octaves: Annotated[float, Field(gt=0, le=100)] | None = None
    """refine: the search ends when the optimum is known to this width, in octaves. The default is 0.5."""
    max_octaves: Annotated[float, Field(ge=0, le=100)] | None = None
    """refine: how far the line may be widened beyond either end, in octaves. The default is 4."""
    multipliers: Seq[str] | None = None
    """coordinate and staged-grid: the HPs to tune, by name. Names joined by `+` move together.

    coordinate tunes them in this order. Its default is every multiplier that the base has."""
    values: Values | None = None
    """coordinate: the ratios to try, relative to the value that was kept last. The default is 1/16 to 16 in steps of 4.
    """
    values_of: dict[str, Values] | None = None
    """coordinate: other ratios for one multiplier, or for a kind of multiplier such as `init_mult`."""
    passes: Count | None = None
    """coordinate: how often it goes through all multipliers. The default is 1."""
    noise: Annotated[float, Field(ge=0)] | None = None
    """coordinate: a change is kept if it wins by this many standard errors. The default is 2."""
    broad: GridOfRatios | None = None
    """staged-grid: the grid of the second stage. The default is 3 points at ratio 16."""
    fine: GridOfRatios | None = None
    """staged-grid: the grid of the third stage. The default is 5 points at ratio 4."""
    recenters: CountOrNone | None = None
    """staged-grid: how often a stage may move when its best point lies on its edge. The default is 2."""

    @property
    def where(self) -> Literal["base", "all"]:
        """The shapes that are searched at."""
        return self.at or ("base" if self.kind in OF_THE_BASE else "all")


class AshaSpec(Section):
    """Asynchronous successive halving: at each rung only the best 1/reduction_factor of the trials go on."""

    grace_steps: Count
    """The steps of a trial before it may be stopped. They must be fewer than the steps of the run."""
    reduction_factor: Annotated[float, Field(gt=1, le=1000)] = 4.0
    """The inverse of the fraction of trials that goes on at each rung."""


class EarlyStoppingSpec(Section):
    """Which trials stop before their end. Only divergence stops a trial by default. `none` spells out the default.

    Early stopping works with the searches grid, random and optuna.
    """

    asha: AshaSpec | None = None
    """Stop trials by asynchronous successive halving, through Ray Tune and without stacks."""


def _none(value: Any) -> Any:
    """`early_stopping: none` is the default spelled out."""
    return {} if value == "none" or value is None else value


Search = Annotated[SearchSpec, BeforeValidator(into("kind", str), json_schema_input_type=Kind | SearchSpec)]
EarlyStopping = Annotated[
    EarlyStoppingSpec, BeforeValidator(_none, json_schema_input_type=Literal["none"] | None | EarlyStoppingSpec)
]
