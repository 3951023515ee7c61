"""What the tables predict of the built-in GPT.

A stable table keeps activations, changes and both parts of a change at one size; the claims below say so quantity by
quantity, with the exceptions of `families`. Some quantities are two parts of which one fades only slowly as the width
grows: no power law is claimed of them, and it is said why.

    activation, change      of what a part puts out; a map has the forward multiplier of its role, an expert has none
    effective, propagating  (W_t - W_0) x_t and W_0 (x_t - x_0), which add up to the change of a linear map
    aggregate ...           the gated sum of the experts, split by what their output matrices hold and read
    gradient                of the loss by a weight
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.monomial import ONE, ZERO, Monomial, depth, width
from hpxfer.scaling.predictions import Claim
from hpxfer.scaling.predictions.families import (
    ALIGNED,
    FADING,
    LAYOUT,
    ROUTER_PATHS,
    SMALL,
    TIED,
    TWO_PARTS,
    Family,
    family,
)
from hpxfer.scaling.table import Optimizer

STABLE = "stable, and maximal updates"
CONTROL = "flat, as features should be: the control, which must miss"
LAZY = "MSSP Table G.1: what is learned vanishes as width^-1/2"
GATES_MOVE = "the gates move by order 1, and with them all that follows the first MoE layer"
SLOW = "the first gradients are a fluctuation width^-1/2, and an SGD step is as small as they are"
SPARSE = "an expert learns from the tokens that choose it and is measured on all; how alike they are depends on kappa"
NO_SYMBOL = "no ratio says how many shared experts there are"

ATTENTION = ("attn_q", "attn_k", "attn_v")
UP = ("expert_in", "expert_gate", "shared_in", "shared_gate", "dense_in", "dense_gate")
EXPERTS = ("expert_in", "expert_gate")
DOWN = ("expert_out", "shared_out", "dense_out")
MOVED = ("change", "propagating")
# Exactly zero before the first update.
OF_A_CHANGE = ("change", "effective", "propagating", "aggregate effective", "aggregate propagating")


@dataclass(frozen=True, kw_only=True)
class _Hold:
    """A claim that is not made where one of these ratios moves, and why."""

    still: tuple[str, ...] = ()
    otherwise: str = ""


NO_HOLD = _Hold()
SLOW_STEPS = _Hold(still=("width", "kappa"), otherwise=SLOW)
SPARSE_STILL = _Hold(still=("kappa",), otherwise=SPARSE)


def claims(choice: Parameterization, optimizer: Optimizer) -> tuple[Claim, ...]:
    """Return what is claimed of a GPT under a table; nothing where nothing is known of the table."""
    conventions = dict(choice.conventions)
    if choice.name == "sp":
        return tuple(_control())
    if choice.name == "ntp":
        return tuple(_lazy(forward=conventions["readout"] == "forward"))
    found = family(choice.name, conventions)
    if found is None:
        return ()
    stable = _stable(found, conventions, optimizer)
    return tuple(_behind_a_zero_readout(stable) if conventions.get("readout_init") == "zero" else stable)


def _control() -> Iterator[Claim]:
    for role in ("embedding", "stream", "moe", "dense", "gates"):
        yield from _claims(("activation", "change"), role, ONE, CONTROL)
    for role in (*ATTENTION, "attn_out", *UP, *DOWN, "router"):
        yield from _claims(("activation", "effective", *MOVED), role, ONE, CONTROL)
    yield from _claims(("effective",), "readout", ONE, CONTROL)


def _lazy(*, forward: bool) -> Iterator[Claim]:
    """NTP: activations of order 1 that hardly move. The dense rows of MSSP, appendix G."""
    maps = (*ATTENTION, "attn_out", *UP, *DOWN)
    for role in ("embedding", *maps, "router", "readout"):
        yield Claim(quantity="activation", role=role, size=ONE, source=LAZY, last=0)
    yield from _claims(("change",), "embedding", SMALL, LAZY)
    for role in maps:
        yield from _claims(("effective",), role, SMALL, LAZY)
        yield from _claims(MOVED, role, None, GATES_MOVE)
    for role in (*maps, "embedding", "position", "norm", "hidden_bias", "final_norm"):
        yield from _claims(("gradient",), role, SMALL, LAZY)
    yield from _claims(("gradient",), "readout", SMALL if forward else ONE, LAZY)


def _stable(found: Family, conventions: Mapping[str, float | str], optimizer: Optimizer) -> Iterator[Claim]:
    alpha = float(conventions.get("depth_alpha", 1.0))
    branch, inner = depth**-alpha, depth ** (alpha - 1)  # multiplier of a branch; LR inside it
    for role in ("embedding", "stream", "final_norm"):
        yield from _claims(("activation", "change"), role, ONE, STABLE)
    for role in (*ATTENTION, *UP):
        yield from _claims(("activation", *MOVED), role, ONE, STABLE)
        learned = SPARSE_STILL if role in EXPERTS else NO_HOLD
        if optimizer == "sgd" and role in found.faint:
            learned = SLOW_STEPS
        yield from _claims(("effective",), role, inner, STABLE, learned)
    yield from _claims(("activation", *MOVED), "attn_out", branch, STABLE)
    yield from _claims(("effective",), "attn_out", branch * inner, STABLE)
    yield from _outputs(found, branch, inner)
    yield from _sums(found, branch, inner)
    yield from _router(found, inner, optimizer)
    yield from _readout(conventions)
    yield from _gradients(found, conventions, branch, inner)


def _outputs(found: Family, branch: Monomial, inner: Monomial) -> Iterator[Claim]:
    """What the FFNs put out: an expert without its multiplier, the others with theirs."""
    for role, start, update, still in (
        ("expert_out", found.start, found.update * inner, found.still),
        ("dense_out", branch, branch * inner, found.still),
        ("shared_out", branch, branch * inner, LAYOUT),
    ):
        there = _Hold(still=LAYOUT, otherwise=NO_SYMBOL) if role == "shared_out" else NO_HOLD
        yield from _claims(("activation",), role, start, found.source, there, last=0)
        learned = SPARSE_STILL if role == "expert_out" else there
        yield from _claims(("effective",), role, update, found.source, learned)
        yield from _claims(("activation", *MOVED), role, start, found.source, _Hold(still=still, otherwise=TWO_PARTS))


def _sums(found: Family, branch: Monomial, inner: Monomial) -> Iterator[Claim]:
    """The experts' gated sum, and what a block adds to the stream."""
    source, hold = found.source, _Hold(still=found.sum_still, otherwise=TWO_PARTS)
    yield from _claims(("aggregate init",), "expert_out", branch * found.sum_start, source)
    yield from _claims(("aggregate effective",), "expert_out", branch * inner * found.sum_update, source)
    yield from _claims(("aggregate propagating",), "expert_out", branch * found.sum_moved, source, hold)
    # One power law only where what was there and what is learned scale alike.
    alike = found.sum_start == found.sum_update == found.sum_moved
    moving = found.sum_still if alike else _names(found.sum_start)
    total = _Hold(still=(*moving, *_names(inner), "kappa"), otherwise=FADING)
    yield from _claims(("activation", "change"), "dense", branch, source, _Hold(still=found.still, otherwise=TWO_PARTS))
    if found.shared:
        yield from _claims(("activation",), "moe", branch, source, last=0)
    else:
        yield from _claims(("activation",), "moe", branch * found.sum_start, source, last=0)
    yield from _claims(("activation", "change"), "moe", branch, source, total)


def _router(found: Family, inner: Monomial, optimizer: Optimizer) -> Iterator[Claim]:
    source, size = found.source, ONE
    paths = _Hold(still=("width",), otherwise=ROUTER_PATHS) if found.logits == SMALL else NO_HOLD
    slow = SLOW_STEPS if optimizer == "sgd" else SPARSE_STILL
    yield from _claims(("activation",), "gates", ONE, source)
    yield from _claims(("effective",), "router", inner, source, slow)
    yield from _claims(("activation",), "router", found.logits, source, last=0)
    if found.logits == ZERO:  # nothing but what is learned
        yield from _claims(("propagating",), "router", ZERO, source)
        paths, size = slow, inner
    else:
        yield from _claims(("propagating",), "router", ONE, source, paths)
    yield from _claims(("activation", "change"), "router", size, source, paths)
    moved = _Hold(still=paths.still or ("kappa",), otherwise=paths.otherwise or SPARSE)
    yield from _claims(("change",), "gates", size, source, moved)


def _readout(conventions: Mapping[str, float | str]) -> Iterator[Claim]:
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


def _gradients(
    found: Family, conventions: Mapping[str, float | str], branch: Monomial, inner: Monomial
) -> Iterator[Claim]:
    """Gradients; where eps goes by role, those of the table's rows."""
    source = f"{found.source}, gradients"
    for role in ("embedding", "position", "final_norm"):
        yield from _claims(("gradient",), role, width**-1, source)
    forward = conventions.get("readout") == "forward"
    yield from _claims(("gradient",), "readout", width**-1 if forward else ONE, source)
    for role in (*ATTENTION, "attn_out", "norm", *UP, *DOWN, "router"):
        hold = _Hold(still=found.gradients_still.get(role, ()), otherwise=found.otherwise)
        if role == "router":  # what training aligns in the experts is smaller by `inner`
            why = ALIGNED if found.otherwise == ALIGNED else f"{ALIGNED}; and {found.otherwise}"
            hold = _Hold(still=(*hold.still, *_names(inner)), otherwise=why)
        yield from _claims(("gradient",), role, branch * found.gradients.get(role, width**-1), source, hold)


def _behind_a_zero_readout(claims: Iterable[Claim]) -> Iterator[Claim]:
    """Yield what is claimed where the readout starts from zero: no gradient reaches the rest before it has moved.

    So all else moves from the second update on (MSSP App. J). Before, nothing is claimed of a change, as weight decay
    and the balancing of experts move things without a gradient.
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
    """Yield a claim a quantity. What changes is claimed from the first update on."""
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
