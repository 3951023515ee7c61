"""JudgedLoss: the loss that a verdict is about, and its unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class JudgedLoss:
    """A loss by its name in `judge.loss`."""

    name: str = "validation"
    words: str = "validation loss"
    unit: str = "nats"  # or squared error, or that of a loss that others measured, e.g. bits per byte

    def column(self, name: str) -> str:
        """Return the name of a column of losses in data: `mean_nats` is `mean_squared_error` of a squared error."""
        if not name.endswith("_nats"):
            return name
        return f"{name.removesuffix('nats')}{self.unit.replace(' ', '_')}"

    def level(self, loss: float) -> str:
        """Return a loss with its unit: `3.1415 nats`."""
        return f"{loss:.4f} {self.unit}"

    def amount(self, difference: float) -> str:
        """Return a difference of losses with its unit: `0.017 nats`."""
        return f"{difference:.2g} {self.unit}"


NATS = JudgedLoss()
