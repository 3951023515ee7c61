"""What sources claim of the built-in GPT: builders of the claims that stand beside the tables.

A stable table keeps activations, changes and both parts of a change at one size. `stable` says so quantity by
quantity, with the exceptions that a table names in `Stable`. Some quantities are a sum of two parts, of which one fades
only slowly as the width grows. No power law is claimed of them, and the claim gives the reason.

    activation, change      of what a part puts out; a map has the forward multiplier of its role, an expert has none
    effective, propagating  (W_t - W_0) x_t and W_0 (x_t - x_0), which add up to the change of a linear map
    aggregate ...           the gated sum of the experts, split by what their output matrices hold and read
    gradient                of the loss by a weight
    weight change           of gains and biases, which multiply or move one feature each

Sizes are per coordinate, RMS, in the ratios to the base. Sources: MSSP (HiLD 2026), sections 3 and 4, Tables B.1, B.2;
Why Routers Freeze (HiLD 2026), section 3, Tables 1, 2; 2601.20205, Table 1; 2605.23893, Table 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hpxfer.scaling.claims import Claim
from hpxfer.scaling.monomial import ONE, ZERO, Monomial, depth, width
from hpxfer.scaling.table import Claims, Column, Conventions

SMALL = width**-0.5

FLAT = "flat, as features should be: the control, which must miss"
STABLE = "stable, and maximal updates"
LAZY = "MSSP Table G.1: what is learned vanishes as width^-1/2"
GATES_MOVE = "the gates move by order 1, and with them all that follows the first MoE layer"
SLOW = "the first gradients are a fluctuation width^-1/2, and an SGD step is as small as they are"
SPARSE = "an expert learns from the tokens that choose it and is measured on all; how alike they are depends on kappa"
NO_SYMBOL = "no ratio says how many shared experts there are"
ALIGNED = "in part a fluctuation width^-1/2 below the part that training aligns (Why Routers Freeze, Remark 26)"
FADING = "two parts: what the random start puts there, which fades with size, and what is learned"
ROUTER_PATHS = "two paths: through the router's own gradient of order 1, through the experts' width^-1/2 (MSSP App. C)"
TWO_PARTS = (
    "two parts: one that is random in every expert, and one that all hidden features share, which grows by more but is "
    "far smaller at sizes like these"
)
BIASES = "the gradients of the biases of experts and of attention scale differently"
TIED = "two parts: by the gradient of what is embedded, a fluctuation width^-1/2 in what is read out, and by its own"

ATTENTION = ("attn_q", "attn_k", "attn_v")
# A map whose tensor has the role of another: what it reads and makes has the size of a query.
GATE_OF_ATTENTION = "attn_gate"
UP = ("expert_in", "expert_gate", "shared_in", "shared_gate", "dense_in", "dense_gate")
EXPERTS = ("expert_in", "expert_gate")
DOWN = ("expert_out", "shared_out", "dense_out")
MOVED = ("change", "propagating")
# Exactly zero before the first update.
OF_A_CHANGE = ("change", "effective", "propagating", "aggregate effective", "aggregate propagating", "weight change")


@dataclass(frozen=True, kw_only=True)
class Stable:
    """The claims in which one stable table differs from the others.

    Sizes of the MoE layer are without the depth factor that every residual branch has.
    """

    source: str
    # The router's logits before training: of order 1, of order width^-1/2, or exactly zero.
    logits: Monomial = ONE
    # The output of a single expert, without gate and multiplier: by W_0, and by what training adds to W.
    start: Monomial = ONE
    update: Monomial = ONE
    # The gated sum of the experts, by W_0 a_0, (W - W_0) a and W_0 (a - a_0).
    sum_start: Monomial = ONE
    sum_update: Monomial = ONE
    sum_moved: Monomial = ONE
    # Where one of these ratios changes, nothing is claimed of W_0 (a - a_0) of a single expert and of the sum.
    still: tuple[str, ...] = ()
    sum_still: tuple[str, ...] = ()
    # Role -> gradient, where it differs from width^-1; and role -> ratios that must not change for the claim.
    gradients: Mapping[str, Monomial] = field(default_factory=dict)
    gradients_still: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    otherwise: str = ALIGNED
    # Roles whose first gradient is mainly a part that fades as width^-1/2, so that SGD steps are as small.
    faint: tuple[str, ...] = ()
    shared: bool = False  # the sum of shared and routed experts starts at one size, whatever their shares


# An FFN of another ratio to the width, at the fan-in init of its output matrix.
RATIOS = ("expert_ratio", "dense_ratio")
# What describes the layout of a MoE layer.
LAYOUT = ("experts", "active", "active_width", *RATIOS)


def of_experts(
    router: Monomial | tuple[str, ...], up: Monomial | tuple[str, ...], down: Monomial | tuple[str, ...]
) -> dict[str, Any]:
    """Return role -> value: of the router, of the matrices that read the stream, and of the output matrix."""
    return {"router": router, "expert_in": up, "expert_gate": up, "expert_out": down}


@dataclass(frozen=True, kw_only=True)
class _Hold:
    """The ratios that must not change for a claim to be made, and the reason."""

    still: tuple[str, ...] = ()
    otherwise: str = ""


NO_HOLD = _Hold()
SLOW_STEPS = _Hold(still=("width", "kappa"), otherwise=SLOW)
SPARSE_STILL = _Hold(still=("kappa",), otherwise=SPARSE)


def stable(table: Stable) -> Claims:
    """Return the claims of a table under which features and their changes keep their size."""

    def claims(conventions: Conventions, optimizer: Column) -> Iterator[Claim]:
        found = _stable(_under(table, conventions), conventions, optimizer)
        return _behind_a_zero_readout(found) if conventions.get("readout_init") == "zero" else found

    return claims


def lazy(conventions: Conventions, optimizer: Column) -> Iterator[Claim]:
    """Yield the claims of NTP: activations of order 1 that hardly change. The dense rows are MSSP's, appendix G."""
    maps = (*ATTENTION, "attn_out", *UP, *DOWN)
    for role in ("embedding", "position", *maps, "router", "readout"):
        yield Claim(quantity="activation", role=role, size=ONE, source=LAZY, last=0)
    for role in ("embedding", "position"):
        yield from _claims(("change",), role, SMALL, LAZY)
    for role in ("norm", "hidden_bias", "final_norm"):
        yield from _claims(("weight change",), role, SMALL, LAZY)
    for role in maps:
        yield from _claims(("effective",), role, SMALL, LAZY)
        yield from _claims(MOVED, role, None, GATES_MOVE)
    for role in (*maps, "embedding", "position", "norm", "hidden_bias", "final_norm"):
        yield from _claims(("gradient",), role, SMALL, LAZY)
    yield from _claims(("gradient",), "readout", SMALL if conventions["readout"] == "forward" else ONE, LAZY)


def flat(conventions: Conventions, optimizer: Column) -> Iterator[Claim]:
    """Yield the claims that a control is held to and must miss: every feature keeps its size."""
    for role in ("embedding", "position", "stream", "moe", "dense", "gates"):
        yield from _claims(("activation", "change"), role, ONE, FLAT)
    for role in ("norm", "hidden_bias", "final_norm"):
        yield from _claims(("weight change",), role, ONE, FLAT)
    for role in (*ATTENTION, GATE_OF_ATTENTION, "attn_out", *UP, *DOWN, "router"):
        yield from _claims(("activation", "effective", *MOVED), role, ONE, FLAT)
    yield from _claims(("effective",), "readout", ONE, FLAT)


def _under(table: Stable, conventions: Conventions) -> Stable:
    """Return the table's exceptions under its conventions: they decide how the router starts."""
    exponent = conventions.get("router_init_exponent")
    if exponent == "inf" or conventions.get("router_init") == "zero":
        return replace(table, logits=ZERO)
    return table if exponent is None else replace(table, logits=width ** (0.5 - float(exponent)))


def _stable(table: Stable, conventions: Conventions, optimizer: Column) -> Iterator[Claim]:
    alpha = float(conventions.get("depth_alpha", 1.0))
    branch, inner = depth**-alpha, depth ** (alpha - 1)  # multiplier of a branch; LR inside it
    for role in ("embedding", "position", "stream", "final_norm"):
        yield from _claims(("activation", "change"), role, ONE, STABLE)
    gains = ONE if conventions.get("depth_lr") == "matrices" else inner
    biases = _Hold(still=LAYOUT, otherwise=BIASES) if optimizer == "sgd" else NO_HOLD
    for role, size, hold in (("norm", gains, NO_HOLD), ("hidden_bias", gains, biases), ("final_norm", ONE, NO_HOLD)):
        yield from _claims(("weight change",), role, size, STABLE, hold)
    for role in (*ATTENTION, GATE_OF_ATTENTION, *UP):
        yield from _claims(("activation", *MOVED), role, ONE, STABLE)
        learned = SPARSE_STILL if role in EXPERTS else NO_HOLD
        if optimizer == "sgd" and role in table.faint:
            learned = SLOW_STEPS
        yield from _claims(("effective",), role, inner, STABLE, learned)
    yield from _claims(("activation", *MOVED), "attn_out", branch, STABLE)
    yield from _claims(("effective",), "attn_out", branch * inner, STABLE)
    yield from _outputs(table, branch, inner)
    yield from _sums(table, branch, inner)
    yield from _router(table, inner, optimizer)
    yield from _readout(conventions)
    yield from _gradients(table, conventions, branch, inner)


def _outputs(table: Stable, branch: Monomial, inner: Monomial) -> Iterator[Claim]:
    """Yield the claims on the outputs of FFNs: of an expert without its multiplier, of the others with theirs."""
    for role, start, update, still in (
        ("expert_out", table.start, table.update * inner, table.still),
        ("dense_out", branch, branch * inner, table.still),
        ("shared_out", branch, branch * inner, LAYOUT),
    ):
        there = _Hold(still=LAYOUT, otherwise=NO_SYMBOL) if role == "shared_out" else NO_HOLD
        yield from _claims(("activation",), role, start, table.source, there, last=0)
        learned = SPARSE_STILL if role == "expert_out" else there
        yield from _claims(("effective",), role, update, table.source, learned)
        yield from _claims(("activation", *MOVED), role, start, table.source, _Hold(still=still, otherwise=TWO_PARTS))


def _sums(table: Stable, branch: Monomial, inner: Monomial) -> Iterator[Claim]:
    """Yield the claims on the gated sum of the experts, and on what a block adds to the stream."""
    source, hold = table.source, _Hold(still=table.sum_still, otherwise=TWO_PARTS)
    yield from _claims(("aggregate init",), "expert_out", branch * table.sum_start, source)
    yield from _claims(("aggregate effective",), "expert_out", branch * inner * table.sum_update, source)
    yield from _claims(("aggregate propagating",), "expert_out", branch * table.sum_moved, source, hold)
    # A single power law holds only where the random start and what is learned scale alike.
    alike = table.sum_start == table.sum_update == table.sum_moved
    moving = table.sum_still if alike else _names(table.sum_start)
    total = _Hold(still=(*moving, *_names(inner), "kappa"), otherwise=FADING)
    yield from _claims(("activation", "change"), "dense", branch, source, _Hold(still=table.still, otherwise=TWO_PARTS))
    if table.shared:
        yield from _claims(("activation",), "moe", branch, source, last=0)
    else:
        yield from _claims(("activation",), "moe", branch * table.sum_start, source, last=0)
    yield from _claims(("activation", "change"), "moe", branch, source, total)


def _router(table: Stable, inner: Monomial, optimizer: Column) -> Iterator[Claim]:
    source, size = table.source, ONE
    paths = _Hold(still=("width",), otherwise=ROUTER_PATHS) if table.logits == SMALL else NO_HOLD
    slow = SLOW_STEPS if optimizer == "sgd" else SPARSE_STILL
    yield from _claims(("activation",), "gates", ONE, source)
    yield from _claims(("effective",), "router", inner, source, slow)
    yield from _claims(("activation",), "router", table.logits, source, last=0)
    if table.logits == ZERO:  # nothing but what is learned
        yield from _claims(("propagating",), "router", ZERO, source)
        paths, size = slow, inner
    else:
        yield from _claims(("propagating",), "router", ONE, source, paths)
    yield from _claims(("activation", "change"), "router", size, source, paths)
    moved = _Hold(still=paths.still or ("kappa",), otherwise=paths.otherwise or SPARSE)
    yield from _claims(("change",), "gates", size, source, moved)


def _readout(conventions: Conventions) -> Iterator[Claim]:
    tied = conventions.get("embeddings") == "tied"
    hold = _Hold(still=("width",), otherwise=TIED) if tied else NO_HOLD
    yield from _claims(("effective",), "readout", ONE, STABLE, hold)
    if tied:
        return
    if conventions.get("readout_init") == "zero":
        yield from _claims(("activation",), "readout", ZERO, STABLE, last=0)
        yield from _claims(("activation", "change"), "readout", ONE, STABLE)
        yield from _claims(("propagating",), "readout", ZERO, STABLE)
        return
    fading = _Hold(still=("width",), otherwise=FADING)
    yield from _claims(("activation",), "readout", SMALL, STABLE, last=0)
    yield from _claims(("activation", *MOVED), "readout", ONE, STABLE, fading)


def _gradients(table: Stable, conventions: Conventions, branch: Monomial, inner: Monomial) -> Iterator[Claim]:
    """Yield the claims on gradients. Where eps is set per role, they equal the eps of the table's rows."""
    source = f"{table.source}, gradients"
    for role in ("embedding", "position", "final_norm"):
        yield from _claims(("gradient",), role, width**-1, source)
    forward = conventions.get("readout") == "forward"
    yield from _claims(("gradient",), "readout", width**-1 if forward else ONE, source)
    for role in (*ATTENTION, "attn_out", "norm", *UP, *DOWN, "router"):
        hold = _Hold(still=table.gradients_still.get(role, ()), otherwise=table.otherwise)
        if role == "router":  # what training aligns in the experts is smaller by `inner`
            why = ALIGNED if table.otherwise == ALIGNED else f"{ALIGNED}; and {table.otherwise}"
            hold = _Hold(still=(*hold.still, *_names(inner)), otherwise=why)
        yield from _claims(("gradient",), role, branch * table.gradients.get(role, width**-1), source, hold)


def _behind_a_zero_readout(claims: Iterable[Claim]) -> Iterator[Claim]:
    """Yield the claims for a readout that starts from zero.

    No gradient reaches the other roles before the readout has changed, so they change from the second update on (MSSP
    App. J). Nothing is claimed of an earlier change: weight decay and the balancing of experts need no gradient.
    """
    for claim in claims:
        if claim.role == "readout" or claim.last == 0:
            yield claim
        elif claim.quantity == "gradient":
            yield replace(claim, size=ZERO, last=0, still=())
            yield replace(claim, first=1)
        else:
            late = claim.quantity in OF_A_CHANGE or (claim.role, claim.quantity) == ("router", "activation")
            yield replace(claim, first=2) if late else claim


def _names(size: Monomial) -> tuple[str, ...]:
    """Return the ratios that a size depends on."""
    return tuple(name for name, _ in size.exponents)


def _claims(
    quantities: tuple[str, ...],
    role: str,
    size: Monomial | None,
    source: str,
    hold: _Hold = NO_HOLD,
    *,
    last: int | None = None,
) -> Iterator[Claim]:
    """Yield one claim per quantity. Claims on changes start with the first update."""
    for quantity in quantities:
        yield Claim(
            quantity=quantity,
            role=role,
            size=size,
            source=source,
            first=1 if quantity in OF_A_CHANGE else 0,
            last=last,
            still=hold.still,
            otherwise=hold.otherwise,
        )
