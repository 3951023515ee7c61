"""What the analysis says: findings per shape, per parameterization, and the report that holds them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hpxfer.analysis import text
from hpxfer.analysis.drift import Drift
from hpxfer.analysis.optimum import Optimum
from hpxfer.analysis.regret import RegretTrend
from hpxfer.analysis.thresholds import CONTROL

Verdict = Literal["transfers", "drifts", "undecided"]
Transferred = Literal["measured", "diverged", "missing"]


@dataclass(frozen=True, kw_only=True)
class ShapeFinding:
    """One shape: its own optimum, and what the HP transferred from the base costs there. Losses are in nats."""

    shape: str
    scale: float
    is_base: bool
    optimum: Optimum
    best_value: float | None  # the HP on the grid with the lowest fitted loss: a lucky median is not followed
    best_loss: float | None
    transferred: Transferred  # how the transferred HP did here; `missing`: no result, or nothing to transfer
    transferred_loss: float | None  # +inf if it diverged
    regret_nats: float | None  # +inf if it diverged
    regret_percent: float | None  # of best_loss
    regret_noise_units: float | None  # in standard deviations of one seed
    regret_se_nats: float | None  # from the differences of HPs within seeds: see `noise.paired_noise`
    num_seeds: int
    num_diverged: int  # trials
    num_missing: int  # trials that failed or were not run
    width_quarter_octaves: float | None = None  # within 0.25% of the lowest fitted loss; None: wider than was measured
    width_one_octaves: float | None = None  # within 1%
    edge_log2: float | None = None  # the largest HP at which all seeds are finite; None if none diverged, -inf if all
    edge_octaves: float | None = None  # from the optimum up to there


@dataclass(frozen=True, kw_only=True)
class Addition:
    """What to run to decide an undecided verdict, or to have a control. `text` says it; None is not asked for."""

    text: str
    seeds: int | None = None  # in all
    values: tuple[float, ...] = ()  # HPs to add to the grid
    scales: tuple[float, ...] = ()  # shapes at which to add them, or to run them again
    new_scales: tuple[float, ...] = ()  # shapes to add
    parameterization: str | None = None  # to add, on the same grid


@dataclass(frozen=True, kw_only=True)
class Control:
    """How the control did along the same axis: what a verdict is held against."""

    parameterization: str
    verdict: Verdict
    worst_shape: str | None  # beyond the base; None: no regret could be measured
    worst_regret_nats: float | None  # there; +inf if it diverged at its transferred HP


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One parameterization along one axis. `base_value` is the HP that is transferred: the base's best on the grid."""

    axis: str
    scale_name: str
    parameterization: str
    base_value: float | None
    shapes: tuple[ShapeFinding, ...]
    drift: Drift | None
    noise_nats: float | None  # standard deviation of one seed's loss
    verdict: Verdict
    reasons: tuple[str, ...]
    regret_trend: RegretTrend | None = None
    to_add: tuple[Addition, ...] = ()  # what an undecided verdict needs, and the control where there is none
    control: Control | None = None  # None: there is none along this axis, or this is the control

    @property
    def is_control(self) -> bool:
        """Whether this is the parameterization that all others are held against."""
        return self.parameterization == CONTROL

    @property
    def lacks_control(self) -> bool:
        """Whether nothing tells if this axis would show a drift at all."""
        return self.control is None and not self.is_control

    def name(self, shape: ShapeFinding) -> str:
        """Return a shape as reasons speak of it, e.g. `width 64`."""
        return f"{self.scale_name} {text.scale_text(shape.scale)}"

    @property
    def worst(self) -> ShapeFinding | None:
        """The shape beyond the base with the largest regret that could be measured."""
        known = [shape for shape in self.shapes if not shape.is_base and shape.regret_nats is not None]
        return max(known, key=lambda shape: shape.regret_nats or 0.0, default=None)


@dataclass(frozen=True, kw_only=True)
class TransferReport:
    """Does one HP transfer? A finding for every axis and parameterization of a sweep."""

    sweep: str
    hp: str
    loss: str  # the loss it is judged by: validation | final_window
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data. None stands for what is missing and for +inf, which `transferred` tells apart."""
        out: dict[str, Any] = json_ready(asdict(self))
        return out

    def summary(self) -> str:
        """Return the report as plain text, for a terminal."""
        return text.summary(self)


def json_ready(value: Any) -> Any:
    """Return data with lists for tuples and None for numbers that JSON has no word for."""
    match value:
        case dict():
            return {key: json_ready(one) for key, one in value.items()}
        case list() | tuple():
            return [json_ready(one) for one in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value
