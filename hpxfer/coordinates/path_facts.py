"""What a derivation needs to know of a path and of the model on it, beside the rows of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpxfer.coordinates.networks import Network
from hpxfer.coordinates.sizes import ZERO
from hpxfer.scaling.coverage import sums_to_one_over
from hpxfer.scaling.evaluate import ratios
from hpxfer.scaling.monomial import Monomial
from hpxfer.scaling.shape import Shape

SAME = 1e-9


@dataclass(frozen=True, kw_only=True)
class PathFacts:
    """The facts of a path. Exponents are of the path's scale."""

    symbols: Mapping[str, float]
    """Ratio of a monomial, `attention_width`, or `shared`, the number of shared experts -> its exponent."""
    kappa_moves: bool  # the share of active experts changes
    network: Network
    gate_sums_over: str | None  # what the gates sum to one over: `active`, `all`, None or `unknown`
    tied_embeddings: bool
    decays: bool  # the weight decay is not 0
    zeros: tuple[str, ...] = ()  # roles that HPs start at zero

    def exponent(self, monomial: Monomial) -> float:
        """Return the exponent of a monomial along the path; that of an exact zero is -inf."""
        if not monomial.coefficient:
            return ZERO
        return math.fsum(power * self.symbols[name] for name, power in monomial.exponents)

    @property
    def layout_moves(self) -> bool:
        """Whether the number of experts or the size of FFNs changes beside the width."""
        return any(self.symbols[name] for name in ("experts", "active", "expert_ratio", "dense_ratio", "shared"))


def path_facts(
    base: Shape,
    path: Sequence[Shape],
    scales: Sequence[float],
    *,
    network: Network,
    gate: str,
    tied_embeddings: bool = False,
    decays: bool = False,
    zeros: tuple[str, ...] = (),
) -> PathFacts:
    """Return the facts of a path of shapes at `scales`."""
    at = [ratios(base, shape) for shape in path]
    symbols = {name: exponent_of([point[name] for point in at], scales) for name in at[0]}
    attention = [shape.attention_width for shape in path]  # 0 in a model without attention
    symbols["attention_width"] = exponent_of(attention, scales) if all(attention) else 0.0
    symbols["shared"] = exponent_of([max(shape.num_shared, 1) for shape in path], scales)
    kappa = [point["active"] / point["experts"] for point in at]
    return PathFacts(
        symbols=symbols,
        kappa_moves=max(kappa) > (1 + SAME) * min(kappa),
        network=network,
        gate_sums_over=sums_to_one_over(gate),
        tied_embeddings=tied_embeddings,
        decays=decays,
        zeros=zeros,
    )


def exponent_of(sizes: Sequence[float], scales: Sequence[float]) -> float:
    """Return the slope of log size on log scale, by least squares as the measured slope is."""
    slope = np.polyfit(np.log(scales), np.log(sizes), 1)[0]
    return round(float(slope), 9) + 0.0  # no -0
