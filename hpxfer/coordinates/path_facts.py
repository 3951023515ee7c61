"""What a derivation needs to know of a path and of the model on it, beside the rows of a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpxfer.coordinates.predict import SAME, exponent_of
from hpxfer.coordinates.sizes import ZERO
from hpxfer.scaling.coverage import sums_to_one_over
from hpxfer.scaling.evaluate import ratios
from hpxfer.scaling.monomial import Monomial
from hpxfer.scaling.shape import Shape


@dataclass(frozen=True, kw_only=True)
class PathFacts:
    """The facts of a path. Exponents are of the path's scale."""

    symbols: Mapping[str, float]
    """Ratio of a monomial, `attention_width`, or `shared`, the number of shared experts -> its exponent."""
    kappa_moves: bool  # the share of active experts changes
    moe: bool
    dense: bool
    shared: bool
    gated: bool  # the FFNs are SwiGLU
    gate_sums_over: str | None  # what the gates sum to one over: `active`, `all`, None or `unknown`
    tied_embeddings: bool
    decays: bool  # the weight decay is not 0

    def exponent(self, monomial: Monomial) -> float:
        """Return the exponent of a monomial along the path; that of an exact zero is -inf."""
        if not monomial.coefficient:
            return ZERO
        return math.fsum(power * self.symbols[name] for name, power in monomial.exponents)

    @property
    def layout_moves(self) -> bool:
        """Whether the number of experts or the size of FFNs changes beside the width."""
        return any(self.symbols[name] for name in ("experts", "active", "expert_ratio", "dense_ratio", "shared"))

    def ffns(self) -> Iterator[str]:
        """Yield the kinds of FFN that the model has."""
        there = {"expert": self.moe, "shared": self.shared, "dense": self.dense}
        yield from (kind for kind, is_there in there.items() if is_there)


def path_facts(
    base: Shape,
    path: Sequence[Shape],
    scales: Sequence[float],
    *,
    gate: str,
    gated: bool,
    tied_embeddings: bool,
    decays: bool,
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
        moe=path[0].num_experts > 0,
        dense=path[0].dense_width > 0,
        shared=path[0].num_shared > 0,
        gate_sums_over=sums_to_one_over(gate),
        gated=gated,
        tied_embeddings=tied_embeddings,
        decays=decays,
    )
