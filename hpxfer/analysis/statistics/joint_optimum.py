"""The optimum of two HPs that a search refined together: its region, or the ridge that it slides along."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hpxfer.analysis.statistics.statistic import Statistic
from hpxfer.scaling.shape import Shape
from hpxfer.search.bowl import Bowl
from hpxfer.search.compare import gain, pooled
from hpxfer.search.kinds import kind_of
from hpxfer.search.plane import NUM_NEAR, Plane, Point
from hpxfer.search.plane_look import Look, ridge_text
from hpxfer.search.quadratic import Floats, Quadratic
from hpxfer.search.refine_product import plane_of, strategy_name
from hpxfer.search.replay import replayed
from hpxfer.search.rounds import ArmHistory, mean
from hpxfer.search.verdict_rules import judged_by, rules_of
from hpxfer.verdict.loss import NATS, JudgedLoss
from hpxfer.verdict.rules import Rules

if TYPE_CHECKING:
    from hpxfer.results import Results

NOT_KNOWN = "the points do not determine a surface yet: six that finished are needed, not all on two lines"


@dataclass(frozen=True, kw_only=True)
class JointPoint:
    """A point of the plane, with the round that asked for it."""

    log2_first: float
    log2_second: float
    loss: float | None  # nats, mean over seeds; None where a seed diverged
    round: int  # from 1


@dataclass(frozen=True, kw_only=True)
class JointSurface:
    """The fitted surface: loss = sum of coefficients times (1, u, v, u^2, u v, v^2) about the center, in octaves."""

    center: tuple[float, ...]
    coefficients: tuple[float, ...]
    curvatures: tuple[float, ...]  # nats per octave squared, across and along the flat direction
    curvature_se: tuple[float, ...]
    flat: tuple[float, ...]  # unit vector of the direction in which the loss bends least
    covariance: tuple[float, ...] | None  # of the lowest point, octaves squared: aa, ab, bb
    reach: float  # standard errors to the edge of its 95% region
    noise_nats: float  # of a point's mean over seeds
    tolerance: float  # the share of a rise by which the basin differs from the surface
    misfit_nats: float  # beyond both

    def at(self, x: Floats) -> Floats:
        """Return the fitted losses in nats at points (..., 2) in octaves."""
        u, v = x[..., 0] - self.center[0], x[..., 1] - self.center[1]
        a, b, c, d, e, f = self.coefficients
        return np.asarray(a + b * u + c * v + d * u * u + e * u * v + f * v * v)


@dataclass(frozen=True, kw_only=True)
class JointOptimum:
    """The optimum of two HPs in one arm. Ends of intervals are joint: the region of both HPs has 95%."""

    first: str
    second: str
    parameterization: str
    shape: str
    is_base: bool
    best_first: float | None = None  # the measured point that the search ends with
    best_second: float | None = None
    best_nats: float | None = None  # its mean loss over seeds
    form: str = ""  # bowl | ridge | unknown
    log2_first: float | None = None  # the lowest point of the surface
    log2_second: float | None = None
    half_first: float | None = None  # half the width of its 95% region, octaves. None: not known
    half_second: float | None = None
    ridge: str = ""  # its direction in words
    ridge_slope: float | None = None  # octaves of the first HP per octave of the second; None if it stays
    ridge_octaves: float | None = None  # the length along which the loss stays within the regret limit
    ridge_is_longer: bool | None = None  # whether the measured box ends before the ridge
    ridge_ends: tuple[tuple[float, float], ...] = ()  # log2 of both HPs, at its two ends
    bound: str = ""  # the sides at which the loss still falls: no optimum is claimed
    limit_nats: float | None = None  # the regret that counts as none
    regret_nats: float | None = None  # what the base's best point gives up here
    regret_se_nats: float | None = None
    num_points: int = 0
    num_diverged: int = 0
    has_ended: bool = False
    surface: JointSurface | None = None
    points: tuple[JointPoint, ...] = ()
    judged: JudgedLoss = NATS
    why_not: str | None = None

    @property
    def finding(self) -> str:
        """The optimum or the ridge, in words."""
        where = f"{self.parameterization} at {self.shape}"
        return f"{where}: {self.why_not if self.best_first is None else self._found()}"

    @property
    def sentence(self) -> str:
        """What was found, in one sentence."""
        if self.best_first is None or self.best_second is None:
            return self.finding
        best = f"best measured {self.first} {self.best_first:.4g}, {self.second} {self.best_second:.4g}"
        regret = "" if self.regret_nats is None else f"; the base's best point gives up {self.given_up()}"
        return f"{self.finding}; {best}{regret}{'' if self.has_ended else '; the search has not ended'}"

    def given_up(self, sign: str = " ± ", *, unit: bool = True) -> str:
        """Return what the base's best point gives up here, with one standard error."""
        error = "" if self.regret_se_nats is None else f"{sign}{self.judged.number(self.regret_se_nats)}"
        return f"{self.judged.number(self.regret_nats or 0.0)}{error}" + (f" {self.judged.unit}" if unit else "")

    def _found(self) -> str:
        if self.form == "ridge":
            more = "at least " if self.ridge_is_longer else ""
            return f"a ridge of {more}{self.ridge_octaves:.1f} octaves, {self.ridge}"
        if self.bound:
            return f"a bound, the loss still falls towards {self.bound}"
        if self.log2_first is None or self.log2_second is None or self.half_first is None or self.half_second is None:
            return "no sure optimum yet"
        parts = ((self.first, self.log2_first, self.half_first), (self.second, self.log2_second, self.half_second))
        return "optimum " + ", ".join(f"{name} 2^({at:.2f} ± {half:.2f})" for name, at, half in parts)


def joint_optimum(
    played: ArmHistory,
    start: Plane,
    rules: Rules,
    shape: str,
    moved: ArmHistory | None,
    judged: JudgedLoss = NATS,
) -> JointOptimum:
    """Return the optimum of one arm from its rounds. `moved` holds the base's best point here."""
    plane = start.with_rounds(played.rounds)
    points = tuple(_points(played, start))
    found = JointOptimum(
        first=plane.hps[0],
        second=plane.hps[1],
        parameterization=" = ".join(played.strategy.arm.labels),
        shape=shape,
        is_base=played.strategy.arm.is_base,
        num_points=len(points),
        num_diverged=sum(point.loss is None for point in points),
        has_ended=played.end is not None,
        points=points,
        judged=judged,
    )
    look = Look.at(plane)
    if look.best is None:
        return replace(found, why_not="every point diverged" if points else "no round has ended")
    losses = dict(plane.finished)
    hps = plane.hps_at(look.best)
    found = replace(
        found,
        best_first=hps.get(plane.hps[0]),
        best_second=hps.get(plane.hps[1]),
        best_nats=mean(losses[look.best]),
        **_regret(plane, look.best, moved),
    )
    if look.surface is None or look.bowl is None:
        return replace(found, why_not=NOT_KNOWN)
    return replace(found, **_of_surface(look, look.surface, look.bowl, rules, judged))


def _points(played: ArmHistory, plane: Plane) -> Iterator[JointPoint]:
    for number, ended in enumerate(played.rounds, start=1):
        for hps, losses in zip(ended.round.points, ended.losses, strict=True):
            (a, b), loss = plane.point_of(hps), mean(losses)
            yield JointPoint(log2_first=a, log2_second=b, loss=loss if math.isfinite(loss) else None, round=number)


def _regret(plane: Plane, best: Point, moved: ArmHistory | None) -> dict[str, Any]:
    """Return what the base's best point gives up over the best one here, paired over seeds, not below zero."""
    if moved is None or not moved.rounds:
        return {}
    losses, known = moved.rounds[0].losses[0], dict(plane.finished)
    if not math.isfinite(mean(losses)):
        return {}
    near = sorted(known, key=lambda point: math.dist(point, best))[1 : NUM_NEAR + 1]
    (found,) = pooled([gain(losses, known[best])], [gain(known[point], known[best]) for point in near])
    return {
        "regret_nats": max(found.mean, 0.0),
        "regret_se_nats": None if math.isnan(found.error) else found.error,
    }


def _of_surface(look: Look, surface: Quadratic, bowl: Bowl, rules: Rules, judged: JudgedLoss) -> dict[str, Any]:
    limit = _limit(surface, bowl, rules, judged)
    out: dict[str, Any] = {
        "form": bowl.form,
        "bound": ", ".join(f"{look.plane.hps[side]} {'below' if sign < 0 else 'above'}" for side, sign in look.sides),
        "limit_nats": limit,
        "surface": _surface(surface, bowl),
    }
    if bowl.at is not None and bowl.form != "unknown" and not look.sides:
        out |= {"log2_first": float(bowl.at[0]), "log2_second": float(bowl.at[1])}
        if bowl.covariance is not None:
            half_first, half_second = (bowl.reach * math.sqrt(float(bowl.covariance[i, i])) for i in range(2))
            out |= {"half_first": half_first, "half_second": half_second}
    if bowl.form == "ridge":
        out |= _ridge(look.plane, surface, bowl, limit)
    return out


def _limit(surface: Quadratic, bowl: Bowl, rules: Rules, judged: JudgedLoss) -> float:
    """Return the regret that counts as none: a share of the loss, or the cost of octaves across the flat direction."""
    if rules.loss is not None:
        return rules.loss * judged.basin_depth(surface.lowest_nats)
    assert rules.octaves is not None
    return bowl.curvatures[0] * rules.octaves**2 / 2


def _ridge(plane: Plane, surface: Quadratic, bowl: Bowl, limit: float) -> dict[str, Any]:
    """Return the direction of the ridge, and its stretch in the box where the surface stays within the limit."""
    lowest = plane.lowest()
    assert lowest is not None
    middle = _on_ridge(surface, bowl, np.array(lowest))
    ends, is_longer = [], False
    for sign in (-1.0, 1.0):
        along = sign * bowl.flat
        to_side = _to_side(middle, along, plane)
        slope, bend = float(surface.slope(middle) @ along), bowl.curvatures[1]
        length = _until(slope, bend, limit)
        is_longer |= length > to_side
        ends.append(middle + min(length, to_side) * along)
    first, second = (float(part) for part in bowl.flat)
    return {
        "ridge": ridge_text(plane.hps, bowl),
        "ridge_slope": first / second if abs(second) > 1e-9 else None,
        "ridge_octaves": float(np.linalg.norm(ends[1] - ends[0])),
        "ridge_is_longer": bool(is_longer),
        "ridge_ends": tuple((float(end[0]), float(end[1])) for end in ends),
    }


def _on_ridge(surface: Quadratic, bowl: Bowl, point: Floats) -> Floats:
    """Return the point of the ridge next to a point: the lowest one across the flat direction."""
    return np.asarray(point - float(surface.slope(point) @ bowl.steep) / bowl.curvatures[0] * bowl.steep)


def _to_side(start: Floats, along: Floats, plane: Plane) -> float:
    """Return the distance from a point to the side of the box in a direction; 0 from outside."""
    out = math.inf
    for at, step, low, high in zip(start, along, plane.low, plane.high, strict=True):
        if abs(step) > 1e-9:
            out = min(out, float(((high if step > 0 else low) - at) / step))
    return max(out, 0.0)


def _until(slope: float, bend: float, limit: float) -> float:
    """Return how far slope t + bend t^2 / 2 stays below a limit above its lowest value; +inf if it always does."""
    if bend <= 0:
        return math.inf if slope <= 0 else limit / slope
    lowest = -slope / bend
    return max(0.0, lowest + math.sqrt(2 * limit / bend))


def _surface(surface: Quadratic, bowl: Bowl) -> JointSurface:
    spread = bowl.covariance
    return JointSurface(
        center=tuple(surface.center.tolist()),
        coefficients=tuple(surface.coefficients.tolist()),
        curvatures=bowl.curvatures,
        curvature_se=bowl.curvature_errors,
        flat=tuple(bowl.flat.tolist()),
        covariance=None if spread is None else (float(spread[0, 0]), float(spread[0, 1]), float(spread[1, 1])),
        reach=bowl.reach,
        noise_nats=surface.noise_nats,
        tolerance=surface.tolerance,
        misfit_nats=surface.misfit_nats,
    )


def joint_optima(results: Results) -> list[JointOptimum]:
    """Return the optimum of every arm, the base first; [] of a sweep that refines no two HPs together."""
    spec = results.spec
    if kind_of(spec).shows != "contours":
        return []
    played = replayed(results)
    axes = results.expansion.axes
    names: Mapping[Shape, str] = {point.shape: axis.label(point.shape) for axis in axes for point in axis.points}
    arms = results.expansion.arms
    own = [history for history in played if history.strategy.name == strategy_name(spec)]
    moved = {history.strategy.arm: history for history in played if history.strategy.name != strategy_name(spec)}
    return [
        joint_optimum(
            history,
            plane_of(arms[history.strategy.arm.labels[0]][0].spec),
            rules_of(spec),
            names[history.strategy.arm.shape],
            moved.get(history.strategy.arm),
            judged_by(spec),
        )
        for history in own
    ]


JOINT_OPTIMA = Statistic(
    name="joint_optima",
    title="Two HPs refined together",
    note="The best point was measured. The lowest point is that of the fitted surface, with half the width of its 95% "
    "region in octaves. On a ridge the loss bends less than a tenth as much along one direction as across it, so that "
    "the two HPs may move together: along the ridge the loss stays within the regret limit for so many octaves. Where "
    "the loss still falls at a side, the optimum is a bound. Regret is what the base's best point gives up.",
    compute=lambda inputs: joint_optima(inputs.results),
)
