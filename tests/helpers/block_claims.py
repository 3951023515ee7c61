"""What papers claim of the two minimal MLP blocks, for which they derive their exponents.

The papers count in powers of the width, with all dimensions that grow in proportion to it; so do these claims. The rows
themselves are in `block_mssp` and `block_width`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal

import block_mssp
import block_width
from block_mssp import EPS, BlockRows
from paper_claims import Claim, predict

from hpxfer.coordinates.measure import Prediction
from hpxfer.coordinates.mlp import Options
from hpxfer.coordinates.optimizer_rules import GRADIENT_OVER_EPS, eps_by_convention
from hpxfer.scaling.evaluate import Parameterization, ratios
from hpxfer.scaling.monomial import ONE, ZERO, Monomial, width
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column

ROLES = ("embedding", "router", "expert_in", "expert_out", "readout")
CROSSOVER = "two parts; at widths that can be trained the one that vanishes is still the larger (MSSP Q.6)"
FOR_SGD = "derived for SGD"
OF_STABLE_INPUT = ("router", "expert_in")  # what they read has size 1 under every table with claims
SETTLES = 20  # updates after which a router that starts at a fluctuation is measured to follow what it has learned
# Sizes that two updates or more make: with a random readout their scalar products start at a fluctuation.
BY_UPDATES = ("cross", "h3: D", "dW3 dW4", "A5.2", "A6.2", "E.", "dQ")
BY_FIRST_READOUT = (
    *(("router", name) for name in ("effective0", "effective", "change", "activation", "gradient", "weight change")),
    *(("router", f"df/dh1: {name}") for name in ("router", "Q0", "Q0 W30 W40")),
    ("expert_out", "df/dphi"),
    ("expert_out", "df/dphi: W30 W40"),
)


@dataclass(frozen=True, kw_only=True)
class BlockClaims:
    """What a source says of the minimal MLP blocks, for which the papers derive their exponents."""

    rows: BlockRows  # of MSSP's block, which has two matrices per expert
    source: str
    readout: Literal["random", "zero", "any"] = "random"  # the start of the readout for which the rows are derived
    one_draw: bool = False  # few experts, or all from one draw: products of their matrices start at a fluctuation
    sgd_only: bool = False  # derived for SGD; under Adam only the sizes before training are claimed
    # With one matrix per expert: the same rows, those of Why Routers Freeze, or no claim.
    one_matrix: Literal["rows", "why routers freeze"] | None = None
    # Role -> exponent of the eps that the source's Adam has; it should be that of the gradient.
    eps: Mapping[str, str] = field(default_factory=dict)


_I = BlockClaims(rows=block_width.MUP_I, source="MSSP Table B.1, App. C", one_matrix="why routers freeze", eps=EPS["I"])
TABLES: Mapping[str, BlockClaims] = {
    "mup": _I,
    "mup-moe": _I,
    "completep-moe": replace(_I, one_matrix=None),
    "ntp": BlockClaims(rows=block_width.NTP, source="MSSP Table G.1", readout="any", one_matrix="rows"),
    "mup-i": _I,
    "mup-ii": BlockClaims(rows=block_mssp.MUP_II, source="MSSP J.3.2, Q.4", sgd_only=True, eps=EPS["II"]),
    "mup-iii": BlockClaims(rows=block_mssp.MUP_III, source="MSSP J.4.3, Q.4", sgd_only=True, eps=EPS["III"]),
    # Regime I has no signal-propagation table: its sizes are the desiderata, its gradients the eps of Table B.1.
    "mssp-i": BlockClaims(
        rows=block_width.MSSP_I, source="MSSP I.3, Table B.1", readout="zero", one_draw=True, eps=EPS["I"]
    ),
    "mssp-ii": BlockClaims(rows=block_mssp.MSSP_II, source="MSSP J.3.4, Q.4", readout="zero", eps=EPS["II"]),
    "mssp-iii": BlockClaims(
        rows=block_mssp.MSSP_III, source="MSSP J.4.5, Q.4", readout="zero", one_draw=True, eps=EPS["III"]
    ),
    "sp": BlockClaims(rows=block_width.FLAT, source="the control", readout="any", one_matrix="rows"),
}


@dataclass(frozen=True, kw_only=True)
class Block:
    """What claims depend on of a block of the family `mlp`: a router and experts between an input layer and a readout.

    With two matrices per expert it is the block of MSSP (1.2), with a single matrix that of Why Routers Freeze (1.1).
    """

    experts: Literal["two", "one"] = "two"  # matrices per expert
    gate: Literal["sigmoid", "softmax"] = "sigmoid"
    activation: Literal["linear", "relu", "gelu", "tanh"] = "linear"  # of the hidden features, or of the one matrix
    has_bias: bool = False  # the model adds a router bias, whatever the table says

    @property
    def roles(self) -> tuple[str, ...]:
        return ROLES if self.experts == "two" else tuple(role for role in ROLES if role != "expert_in")


def block_of(options: Options) -> Block:
    """Return the check's own model as far as claims depend on it."""
    return Block(
        experts="two" if options.expert_matrices == 2 else "one",
        gate="sigmoid" if options.gate == "sigmoid" else "softmax",
        activation=options.activation,
        has_bias=options.router_bias != "none",
    )


def predictions(
    choice: Parameterization, optimizer: Column, path: Sequence[Shape], block: Block | None = None
) -> tuple[Prediction, ...]:
    """Return what papers claim of a block along `path`, as powers of the width."""
    soft = all(shape.num_active == shape.num_experts for shape in path)
    found = claims(choice, optimizer, block or Block(), soft=soft)
    return predict(found, [float(shape.width) for shape in path], [ratios(path[0], shape) for shape in path])


def claims(choice: Parameterization, optimizer: Column, block: Block, *, soft: bool) -> tuple[Claim, ...]:
    """Return what is claimed of the block under a table, along the path of the table's own regime.

    `soft` says that all experts are active. Nothing is claimed where no paper derives anything, e.g. of a softmax gate
    over experts with two matrices. Along the path of another regime a table is held to the same claims, and misses
    them. An activation function between the matrices keeps the exponents (MSSP, assumption B2).
    """
    table = TABLES.get(choice.name)
    if table is None:
        return ()
    if choice.name == "sp":
        found = tuple(_from_rows(table.rows, table.source, first=1))
    elif block.experts == "one":
        found = tuple(_with_one_matrix(table, choice, optimizer, block, soft=soft))
    elif block.gate == "sigmoid" and soft:
        found = tuple(_with_two_matrices(table, choice, optimizer))
    else:
        return ()
    absent = ("h3: A2.1", "h3: A2.2") if block.activation != "linear" or block.experts == "one" else ()
    present = [claim for claim in found if claim.role in block.roles and claim.quantity not in absent]
    by_input = (
        replace(claim, quantity="effective / input")
        for claim in present
        if claim.quantity == "effective" and claim.role in OF_STABLE_INPUT and choice.name != "sp"
    )
    by_eps = _over_eps(table, choice, present) if optimizer == "adam" else ()
    return (*(_in_form(claim, choice, optimizer) for claim in present), *by_input, *by_eps)


def _over_eps(table: BlockClaims, choice: Parameterization, found: Iterable[Claim]) -> Iterator[Claim]:
    """Yield for each claim on a gradient how large it is beside the eps of the source.

    The two scale alike, except where the gradient starts at a fluctuation that eps does not follow. A forward
    multiplier changes both alike. The rows of the table itself are not read, so that a wrong eps misses.
    """
    conventions = dict(choice.conventions)
    for claim in found:
        if claim.quantity != "gradient" or claim.role not in table.eps:
            continue
        if why := eps_by_convention(choice, claim.role):
            yield replace(claim, quantity=GRADIENT_OVER_EPS, size=None, source=why)
            continue
        power = float(Fraction(table.eps[claim.role]))
        if claim.role == "router":
            power -= float(conventions.get("router_eps_exponent", 0.0))
        size = None if claim.size is None else claim.size * width**-power
        yield replace(claim, quantity=GRADIENT_OVER_EPS, size=size)


def _with_two_matrices(table: BlockClaims, choice: Parameterization, optimizer: Column) -> Iterator[Claim]:
    """Yield the claims on MSSP's block."""
    zero_readout = dict(choice.conventions).get("readout_init") == "zero"
    rows, source = table.rows, table.source
    if table.readout == "random" and (zero_readout or _zero_router(choice)):
        return
    if table.readout == "zero" and not zero_readout:
        rows = _random_readout(rows, one_draw=table.one_draw)
        source = f"derived for a random readout from {source}"
    if table.sgd_only and optimizer == "adam":
        rows = {role: {key: f"{row.split()[0]} ? ?" for key, row in own.items()} for role, own in rows.items()}
        yield from _from_rows(rows, source, reason=FOR_SGD)
    else:
        yield from _from_rows(rows, source)


def _with_one_matrix(
    table: BlockClaims, choice: Parameterization, optimizer: Column, block: Block, *, soft: bool
) -> Iterator[Claim]:
    """Yield the claims on the block of Why Routers Freeze."""
    conventions = dict(choice.conventions)
    if table.one_matrix == "rows":
        yield from _from_rows(table.rows, f"{table.source}, Why Routers Freeze by the chain rule")
    if table.one_matrix != "why routers freeze":
        return
    rows = block_width.one_matrix(
        soft_softmax=soft and block.gate == "softmax",
        zero_router=_zero_router(choice),
        zero_readout=conventions.get("readout_init") == "zero",
        benign=optimizer == "adam" and conventions.get("router_eps_exponent") == 0.5,
    )
    if choice.structure().router_bias_std or block.has_bias:
        rows = {**rows, "router": {"logits": "0 0 0"}}
    elif not (soft and block.gate == "softmax"):
        source = "Why Routers Freeze, Props. 4, 19: a sigmoid gate and top-k learn"
        yield Claim(quantity="effective", role="router", size=ONE, source=source, first=SETTLES)
    yield from _from_rows(rows, "Why Routers Freeze, Remarks 25-27, 32")


def _zero_router(choice: Parameterization) -> bool:
    conventions = dict(choice.conventions)
    return conventions.get("router_init") == "zero" or conventions.get("router_init_exponent") == "inf"


def _from_rows(rows: BlockRows, source: str, *, reason: str = CROSSOVER, first: int = 0) -> Iterator[Claim]:
    """Yield one claim per entry. The last column holds for all later steps."""
    for role, own in rows.items():
        for quantity, row in own.items():
            columns = row.split()
            for step, text in enumerate(columns):
                end = step if step < len(columns) - 1 else None
                if step >= first:
                    size = _size(text)
                    why = source if size is not None else reason
                    yield Claim(quantity=quantity, role=role, size=size, source=why, first=step, last=end)


def _size(text: str) -> Monomial | None:
    if text == "?":
        return None
    return ZERO if text == "zero" else width ** float(Fraction(text))


def _random_readout(rows: BlockRows, *, one_draw: bool) -> BlockRows:
    """Return the rows of MSSP for a random readout, derived from the rows for a zero readout.

    The paper does not print them. Each piece reaches its size once everything has moved; pieces through the initial
    readout then have the size of those through its update. Before that, products of scalars that start at width^-1/2
    interfere. With a single draw of the experts' matrices, or few experts, the router's gradient is such a product.
    """
    out: dict[str, dict[str, str]] = {}
    for role, own in rows.items():
        for quantity, row in own.items():
            start, _, late = row.split()
            sibling = quantity.replace("W40", "dW4") if "W40" in quantity else quantity.replace(".1", ".2")
            if sibling in own and sibling != quantity:
                late = own[sibling].split()[2]
            keeps = start != "zero" or late == "zero"
            by_chance = one_draw and (role, quantity) in BY_FIRST_READOUT
            late = "?" if by_chance or any(name in quantity for name in BY_UPDATES) else late
            out.setdefault(role, {})[quantity] = f"{start if keeps else '?'} ? {late}"
    out["readout"] |= {"init": "-1/2 -1/2 -1/2", "propagating": "? ? 0", "activation": "-1/2 ? 0"}
    return out


def _in_form(claim: Claim, choice: Parameterization, optimizer: Column) -> Claim:
    """Return a claim on a weight or its gradient behind a forward multiplier, by the chain rule."""
    if claim.quantity not in ("gradient", "weight change") or claim.role == "expert_out" or not claim.size:
        return claim
    forward = next(row for row in choice.rows(optimizer) if row.role == claim.role).forward
    if not claim.size.coefficient:
        return claim
    shift = forward if claim.quantity == "gradient" else forward**-1
    size = claim.size * shift
    return Claim(
        quantity=claim.quantity, role=claim.role, size=size, source=claim.source, first=claim.first, last=claim.last
    )
