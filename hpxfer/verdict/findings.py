"""What the analysis finds, per shape and per parameterization along one axis, and by which rules it is judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hpxfer.host import CONTROL, NATS, JudgedLoss, shape_label
from hpxfer.verdict.drift import Drift, Move, RegretTrend
from hpxfer.verdict.optimum import Optimum
from hpxfer.verdict.thresholds import ERROR_RATE, NUM_SE, REGRET_SHARE

# `stays`: all of `transfers` holds but what shows that it is a merit, such as a control; see `Rules.outside`.
Verdict = Literal["transfers", "stays", "drifts", "undecided"]
Transferred = Literal["measured", "diverged", "missing"]
Odd = Literal["apart", "disagrees", "dead"]
LIKELY = 0.5  # wide intervals make a transfer improbable too: a drift is seen if a single statement is likely


@dataclass(frozen=True, kw_only=True)
class Rules:
    """`error` bounds the chance of a wrong verdict. Exactly one of the two limits is given.

    `loss` is a share of the best loss, e.g. 0.01. `octaves` is the cost of so many octaves from a shape's own optimum.

    `outside` is for losses that another trainer measured. Nothing but the user says there which arm is the control and
    which shape the base. Without either no HP is said to transfer: the verdict is `stays`. A control that the user
    names stands beside all arms, whatever their name.

    `doubts` say why no loss of the trainer can be believed. With one of them, every verdict is `undecided`, with these
    reasons first. `seeds_differ` is for a trainer that may ignore its seed: exactly equal losses are such a doubt too.
    """

    error: float = ERROR_RATE
    loss: float | None = REGRET_SHARE
    octaves: float | None = None
    control: str | None = CONTROL  # the arm that the others are compared with; None: nobody named one
    outside: bool = False
    assumed_bases: tuple[str, ...] = ()  # the axes whose base nobody named, so that the smallest scale was taken
    doubts: tuple[str, ...] = ()
    seeds_differ: bool = False
    extra_sd: float = 0.0  # by how much runs of one seed differ, in the loss's unit; added to the noise of seeds


DEFAULT_RULES = Rules()


@dataclass(frozen=True, kw_only=True)
class ShapeFinding:
    """One shape: its own optimum, and the regret of the HP transferred from the base.

    Losses are in the unit of the finding's `judged` loss. The names of most numbers end in the usual one, nats.
    """

    shape: str
    scale: float
    is_base: bool
    optimum: Optimum
    best_value: float | None  # the best HP of the grid; no measured mean is lower by 2 standard errors
    best_loss: float | None  # its mean over seeds
    transferred: Transferred  # how the transferred HP did; `missing` also if the base has no HP to transfer
    transferred_loss: float | None  # +inf if it diverged
    regret_nats: float | None  # +inf if it diverged
    regret_percent: float | None  # of best_loss
    regret_noise_units: float | None  # in standard deviations of one seed
    regret_se_nats: float | None  # of the difference of two cell means, also where both are one cell
    num_seeds: int
    num_diverged: int  # trials
    num_missing: int  # trials without a loss: they failed, were not run, or are among `num_lost`
    num_lost: int = 0  # trials that finished without a loss, and are not run again
    width_quarter_octaves: float | None = None  # loss within 0.25% of its minimum; None: wider than the fit
    width_one_octaves: float | None = None  # loss within 1%
    edge_log2: float | None = None  # the largest HP at which all seeds are finite; None if none diverged, -inf if all
    edge_octaves: float | None = None  # from the optimum up to there
    same_cell: bool = False  # the transferred HP is the best one of this shape, so that nothing is compared
    regret_low_nats: float | None = None  # the ends of the 95% interval of the regret
    regret_high_nats: float | None = None
    over_chance: float | None = None  # the probability that the regret exceeds its limit
    limit_nats: float | None = None  # the largest regret that counts as none
    octave_nats: float | None = None  # what one octave from this shape's own optimum costs
    regret_octave_share: float | None = None  # the regret as a share of that
    lowest_value: float | None = None  # the HP with the lowest measured mean of those whose seeds agree
    lowest_loss: float | None = None  # that mean
    curve: tuple[tuple[float, float], ...] = ()  # (log2 HP, fitted loss), empty without a fit
    transferred_missing: int = 0  # trials of others (`Rules.outside`) without a loss at the transferred HP
    doubt_se: float = 0.0  # the part that comes from seeds of a cell that disagree, which a majority of them settles

    @property
    def noise_se(self) -> float | None:
        """The standard error of the regret without `doubt_se`."""
        whole = self.regret_se_nats
        return None if whole is None else math.sqrt(max(whole**2 - self.doubt_se**2, 0.0))

    @property
    def known_to_nats(self) -> float:
        """The error of the regret that an interval of 95% allows: NUM_SE standard errors, 0 without one."""
        return NUM_SE * (self.regret_se_nats or 0.0)

    @property
    def most_lost(self) -> float | None:
        """The upper end of the 95% interval of the regret, at least 0; None if the regret is not known."""
        if self.regret_nats is None:
            return None
        high = self.regret_high_nats
        return max(self.regret_nats + self.known_to_nats if high is None else high, 0.0)

    @property
    def was_over(self) -> bool:
        """Whether the regret was measured above its limit, by NUM_SE standard errors."""
        if self.regret_nats is None or self.limit_nats is None:
            return False
        return self.regret_nats - self.known_to_nats > self.limit_nats


@dataclass(frozen=True, kw_only=True)
class OddRun:
    """A run that is no draw of the noise of its cell (`odd_runs`).

    - `apart`: it is left out, as it lies far from the other seeds.
    - `disagrees`: its cell has no majority, and is in doubt.
    - `dead`: it ended with a number, and counts as diverged.
    """

    why: Odd
    shape: str  # its name within the axis, e.g. `width 64`
    value: float  # the HP
    seed: int
    run: str | None  # its id, or its row in a table; None if the losses name no run
    loss: float
    away_nats: float  # above the other seeds of its cell, without the level of its seed; if dead, above the lowest cell


@dataclass(frozen=True, kw_only=True)
class Addition:
    """What to run to decide an undecided verdict, or to have a control. `text` says it; a None is not asked for."""

    text: str
    seeds: int | None = None  # in all
    values: tuple[float, ...] = ()  # HPs to add to the grid
    scales: tuple[float, ...] = ()  # the shapes at which to add them, or to run them again
    new_scales: tuple[float, ...] = ()  # shapes to add
    parameterization: str | None = None  # to add, on the same grid

    @property
    def asks_nothing(self) -> bool:
        """Whether no trial helps, so that it only says why."""
        return not (self.seeds or self.values or self.new_scales or self.parameterization)


@dataclass(frozen=True, kw_only=True)
class Control:
    """How the control did along the same axis, which a verdict is compared with."""

    parameterization: str
    verdict: Verdict
    worst_shape: str | None  # beyond the base; None if no regret could be measured
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
    to_add: tuple[Addition, ...] = ()  # what an undecided verdict needs, and the control if there is none
    control: Control | None = None  # None if this axis has no control, or if this is the control
    move: Move | None = None  # None with fewer than two shapes whose optimum is known at all
    move_chance: float | None = None  # the probability that two optima differ by MOVE_OCTAVES or more
    move_between: tuple[float, float] | None = None  # the scales of the two for which that is the most probable
    transfer_chance: float | None = None  # the probability that the HP transfers; None without a noise floor
    judged: JudgedLoss = NATS
    is_control: bool = False  # whether others are compared with this parameterization
    lacking: tuple[str, ...] = ()  # why it may at best be said that the optimum stays, e.g. `no control`
    odd_runs: tuple[OddRun, ...] = ()
    rests_on: str | None = None  # the run without which a verdict would be said no more, so that none is
    doubts: tuple[str, ...] = ()  # why the losses cannot be believed, see `Rules.doubts`
    shares_base: tuple[str, ...] = ()  # the other arms whose trials at the base are the same, and so their HP value
    error: float = ERROR_RATE  # the chance of being wrong at which a verdict is said

    @property
    def key(self) -> tuple[str, str]:
        """Its axis and parameterization."""
        return self.axis, self.parameterization

    @property
    def lacks_control(self) -> bool:
        """Whether nothing shows if any optimum moves along this axis at all."""
        return self.control is None and not self.is_control

    def name(self, shape: ShapeFinding) -> str:
        """Return the name of a shape within this axis, e.g. `width 64`."""
        return shape_label(self.scale_name, shape.scale)

    @property
    def base(self) -> ShapeFinding | None:
        return next((shape for shape in self.shapes if shape.is_base), None)

    @property
    def others(self) -> tuple[ShapeFinding, ...]:
        """The shapes beyond the base."""
        return tuple(shape for shape in self.shapes if not shape.is_base)

    @property
    def num_seeds(self) -> int:
        return max((shape.num_seeds for shape in self.shapes), default=0)

    def is_over(self, shape: ShapeFinding) -> bool:
        """Return whether the regret of a shape alone shows a drift: it surely exceeds its limit, and was measured."""
        if shape.regret_nats == math.inf:
            return True
        if shape.over_chance is None or shape.over_chance < 1 - self.error:
            return False
        return (shape.regret_nats or 0.0) > shape.known_to_nats

    @property
    def over(self) -> tuple[ShapeFinding, ...]:
        """The shapes beyond the base whose regret shows a drift or was measured above its limit, the largest first."""
        found = [shape for shape in self.others if self.is_over(shape) or shape.was_over]
        return tuple(sorted(found, key=lambda shape: -(shape.regret_nats or 0.0)))

    @property
    def worst(self) -> ShapeFinding | None:
        """The shape beyond the base with the largest regret that could be measured."""
        known = [shape for shape in self.others if shape.regret_nats is not None]
        return max(known, key=lambda shape: shape.regret_nats or 0.0, default=None)

    @property
    def has_transferred(self) -> bool:
        """Whether the base has a best HP. It has none while a better one may lie where nothing was run."""
        return self.base is not None and self.base_value is not None and self.base.optimum.bracketed

    @property
    def refuted(self) -> bool:
        """Whether an HP surely does not transfer, although no single statement is sure enough for `drifts`.

        What is not measured yet, at the base or elsewhere, leaves that open.
        """
        if self.verdict != "undecided" or self.doubts or not self.has_transferred:
            return False
        if self.transfer_chance is None or any(shape.regret_nats is None for shape in self.shapes):
            return False
        likely = max(self.move_chance or 0.0, *(shape.over_chance or 0.0 for shape in self.shapes))
        return self.transfer_chance <= self.error and likely >= LIKELY


def compared(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings without those on controls, which stand beside the others; all if there are only controls."""
    return [finding for finding in findings if not finding.is_control] or list(findings)
