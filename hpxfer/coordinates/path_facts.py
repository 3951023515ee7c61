"""What a derivation needs to know of a path and of the model on it, beside the rows of a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hpxfer.coordinates.networks import Network
from hpxfer.coordinates.sizes import ZERO
from hpxfer.scaling.coverage import sums_to_one_over
from hpxfer.scaling.evaluate import ratios, reference
from hpxfer.scaling.monomial import Monomial
from hpxfer.scaling.muon import muon_of
from hpxfer.scaling.roles import fan_in_dim
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column, MuonRow, Row

SAME = 1e-9


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """The exponents of a matrix that Muon orthogonalizes by itself, of `in` to `out` features."""

    scale: float  # of Muon's factor s
    beyond: float  # of what divides the LR of a row: s over sqrt(out/in), see `Muon.beyond`
    gain: float  # of sqrt(in/out): what a semi-orthogonal matrix makes of the RMS of inputs that align with it
    entries: float  # of 1/sqrt(max(in, out)): the RMS of its entries at full rank
    rank: float  # of sqrt(min(in, out)): by how much less they are where the batch bounds the gradient's rank
    thin: float  # by how much less it may make of inputs that do not align
    crosses: bool  # the path has shapes with in < out and shapes with in > out


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
    muon: Mapping[str, Matrix] = field(default_factory=dict)  # role that Muon moves -> its matrix

    def factor(self, row: Row, name: str) -> float:
        """Return the exponent of a factor of a row. LR and decay of Muon are those under its scale."""
        exponent = self.exponent(row.monomials()[name])
        beyond = self.muon[row.role].beyond if isinstance(row, MuonRow) and row.role in self.muon else 0.0
        return exponent + {"lr": -beyond, "weight_decay": beyond}.get(name, 0.0)

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
    optimizer: Column = "adam",
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
        muon=_matrices(optimizer, network, base, path, scales),
    )


def _matrices(
    optimizer: Column, network: Network, base: Shape, path: Sequence[Shape], scales: Sequence[float]
) -> dict[str, Matrix]:
    """Return role -> its matrix, of the network's roles that Muon moves.

    Isotropic inputs keep their RMS where in > out, and so gain less than sqrt(in/out). What output matrices read was
    measured to align with their updates: they gain in full. Split heads of such a matrix add up, at least at random.
    """
    muon, out = muon_of(optimizer), {}
    for role in () if muon is None else muon.roles:
        if muon is None or not any(each.role == role for each in network.maps):
            continue
        shapes = [reference(shape) for shape in path]
        sizes = [muon.size(role, shape) for shape in shapes]
        beyond = [muon.beyond(role, reference(base), shape) for shape in shapes]
        heads = [getattr(shape, fan_in_dim(role)) / size[0] for shape, size in zip(shapes, sizes, strict=True)]
        summed = exponent_of(heads, scales)

        def along(value: Callable[[float, float], float], sizes: Sequence[tuple[float, float]] = sizes) -> float:
            return exponent_of([value(*size) for size in sizes], scales)

        out[role] = Matrix(
            scale=along(muon.factor),
            beyond=exponent_of(beyond, scales),
            gain=along(lambda i, o: math.sqrt(i / o)) + summed,
            entries=along(lambda i, o: max(i, o) ** -0.5),
            rank=along(lambda i, o: math.sqrt(min(i, o))),
            thin=summed / 2 if role.endswith("_out") else along(lambda i, o: math.sqrt(max(1.0, i / o))),
            crosses=any(i < o for i, o in sizes) and any(i > o for i, o in sizes),
        )
    return out


def exponent_of(sizes: Sequence[float], scales: Sequence[float]) -> float:
    """Return the slope of log size on log scale, by least squares as the measured slope is."""
    slope = np.polyfit(np.log(scales), np.log(sizes), 1)[0]
    return round(float(slope), 9) + 0.0  # no -0
