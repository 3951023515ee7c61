"""Doubts: how sure the verdict on each line is. Nothing else of a verdict search asks the estimator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpxfer.verdict.findings import Finding, Verdict
from hpxfer.verdict.loss import NATS, JudgedLoss
from hpxfer.verdict.loss_grid import LossGrid
from hpxfer.verdict.rules import Rules
from hpxfer.verdict.transfer import find

MIN_SEEDS = 2  # at every shape: one seed shows no noise


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """The finding on one line."""

    finding: Finding

    @property
    def verdict(self) -> Verdict:
        """The verdict. It is undecided while a shape has fewer than two seeds."""
        few = any(shape.num_seeds < MIN_SEEDS for shape in self.finding.shapes)
        return "undecided" if few else self.finding.verdict

    @property
    def chance(self) -> float:
        """The chance that the HP transfers. Where the finding has none, its verdict stands for it."""
        known = self.finding.transfer_chance
        return {"transfers": 1.0, "drifts": 0.0, "undecided": 0.5}[self.finding.verdict] if known is None else known

    @property
    def size(self) -> float:
        """The chance of being wrong if the likelier verdict were said now: 0.5 at most."""
        return min(self.chance, 1.0 - self.chance)

    def is_decided(self, error: float) -> bool:
        """Return whether the verdict is said, and wrong with no more than this chance."""
        return self.verdict != "undecided" and self.size <= error


def doubts(grids: Sequence[LossGrid], rules: Rules, judged: JudgedLoss = NATS) -> tuple[Doubt, ...]:
    """Return the doubt about each line, judged by these rules and by this loss."""
    own = [replace(grid, judged=judged) for grid in grids]
    return tuple(Doubt(finding=finding) for finding in find(own, rules))
