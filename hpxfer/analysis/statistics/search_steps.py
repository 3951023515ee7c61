"""The steps of a coordinate search: the gain of each change of a multiplier, and which changes were kept."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpxfer.analysis.statistics.inputs import Inputs
from hpxfer.analysis.statistics.statistic import Statistic
from hpxfer.search.coordinate import CoordinateSettings, decisions_of
from hpxfer.search.kinds import kind_of
from hpxfer.search.replay import replayed


@dataclass(frozen=True, kw_only=True)
class CoordinateStep:
    """One ratio that was tried. `gain_nats` is over the multipliers kept before; None if either diverged."""

    parameterization: str
    shape: str
    step: int  # from 1
    multiplier: str
    ratio: float
    gain_nats: float | None
    se_nats: float | None
    diverged: bool
    kept: bool
    needed: float  # how many standard errors a change must gain to be kept


def coordinate_steps(inputs: Inputs) -> tuple[CoordinateStep, ...]:
    """Return every ratio of every step, in the order tried; () for another search."""
    results = inputs.results
    if kind_of(results.spec).shows != "steps":
        return ()
    noise = results.spec.search.settings(CoordinateSettings).noise
    out = []
    for played in replayed(results):
        for number, step in enumerate(decisions_of(played, results.spec), start=1):
            for at, (ratio, change) in enumerate(zip(step.ratios, step.gains, strict=True)):
                out.append(
                    CoordinateStep(
                        parameterization=" = ".join(played.strategy.arm.labels),
                        shape=played.strategy.arm.shape.label(),
                        step=number,
                        multiplier=step.entry,
                        ratio=ratio,
                        gain_nats=change.mean if math.isfinite(change.mean) else None,
                        se_nats=change.error if math.isfinite(change.error) else None,
                        diverged=change.mean == -math.inf,
                        kept=at == step.kept,
                        needed=noise,
                    )
                )
    return tuple(out)


SEARCH_STEPS = Statistic(
    name="search_steps",
    title="Constant multipliers, one after the other",
    note="Each ratio's gain over what was kept before, paired over seeds, with its standard error (arXiv 2601.20205, "
    "Appendix D.1).",
    compute=coordinate_steps,
)
