"""The steps of a coordinate search: what each change of a multiplier gained, and which were kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpxfer.search.coordinate import CoordinateSettings, decisions_of
from hpxfer.search.kinds import kind_of
from hpxfer.search.replay import replayed

if TYPE_CHECKING:
    from hpxfer.analysis.gather import Stored


@dataclass(frozen=True, kw_only=True)
class CoordinateStep:
    """One ratio that was tried. `gain_nats` is over what was kept before: None if either diverged."""

    parameterization: str
    shape: str
    step: int  # from 1
    multiplier: str
    ratio: float
    gain_nats: float | None
    se_nats: float | None
    diverged: bool
    kept: bool
    needed: float  # standard errors that a change must win by
    why_not: None = None


def coordinate_steps(results: Stored) -> tuple[CoordinateStep, ...]:
    """Return every ratio of every step, in the order tried; () for another search."""
    if kind_of(results.spec).shows != "steps":
        return ()
    noise = results.spec.search.settings(CoordinateSettings).noise
    out = []
    for played in replayed(results):
        for number, step in enumerate(decisions_of(played, results.spec), start=1):
            for at, (ratio, one) in enumerate(zip(step.ratios, step.gains, strict=True)):
                out.append(
                    CoordinateStep(
                        parameterization=" = ".join(played.track.arm.labels),
                        shape=played.track.arm.shape.label(),
                        step=number,
                        multiplier=step.entry,
                        ratio=ratio,
                        gain_nats=one.mean if math.isfinite(one.mean) else None,
                        se_nats=one.error if math.isfinite(one.error) else None,
                        diverged=one.mean == -math.inf,
                        kept=at == step.kept,
                        needed=noise,
                    )
                )
    return tuple(out)
