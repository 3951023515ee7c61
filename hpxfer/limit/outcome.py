"""Limit: what was solved, as series over the updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpxfer.limit.selection import Selection

# What every solver measures at each forward pass, with its meaning.
SERIES = {
    "loss": "mean loss of the batch",
    "gate_mean": "mean weight of an expert, over experts and samples",
    "gate_variance": "variance of the weights over experts, mean over samples",
    "logit_mean": "mean of the router's logits, over experts and samples",
    "logit_variance": "variance of the logits over experts, mean over samples",
    "h1_rms": "RMS of the features that the router reads",
    "h3_rms": "RMS of what the experts give after aggregation",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Pass:
    """What one solve gives at one forward pass: the outputs f [P, C], and a number per name of SERIES."""

    outputs: NDArray[np.float64]
    numbers: Mapping[str, float]
    margin: float | None = None
    """Of top-K in regime I: the least gap, over samples, from the last chosen logit to the next."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """A number per forward pass, mean over the solver's seeds, and the standard error of that mean.

    The error is exactly zero where nothing was sampled. It is None where one seed was solved, which shows no error.
    """

    mean: NDArray[np.float64]  # [T + 1]
    error: NDArray[np.float64] | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Limit:
    """The limit of a network's training: numbers after 0 to T updates."""

    series: Mapping[str, Series]
    outputs: tuple[NDArray[np.float64], ...]  # [P, C] per pass
    output_errors: tuple[NDArray[np.float64], ...] | None
    margins: tuple[float, ...] | None
    is_exact: bool
    """Whether nothing was sampled."""
    num_sites: int
    num_seeds: int
    selection: Selection | None = None
    """Of top-K in regime I without a bias, where the active experts are drawn: their distribution over seeds."""
    cautions: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the limit as JSON has it."""
        return {
            "exact": self.is_exact,
            "sites": self.num_sites,
            "seeds": self.num_seeds,
            "cautions": list(self.cautions),
            "series": {
                name: {"mean": each.mean.tolist(), "error": None if each.error is None else each.error.tolist()}
                for name, each in self.series.items()
            },
            "outputs": [each.tolist() for each in self.outputs],
            "output_errors": None if self.output_errors is None else [each.tolist() for each in self.output_errors],
            "selection": None if self.selection is None else self.selection.to_dict(),
            "margins": None if self.margins is None else list(self.margins),
        }
