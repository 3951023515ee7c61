"""Whether a table is good, whatever it says: features and their changes neither grow nor vanish along an axis.

This is the criterion of maximal updates (arXiv 2203.03466, section 2; with depth 2505.01618): every feature keeps its
size, every matrix changes what it puts out by an amount that keeps its size, and nothing blows up. Three rules say so:

    flat       size ~ scale^0: the features that blocks read and compute, and what each matrix inside them learns
    summed     size ~ depth^-1: what each block adds to the stream by what it has learned, so that their sum is flat
    at most    logits, gates and random branches may start small and vanish; they may not grow

Outputs are allowed to vanish because a stable router or readout starts from logits that do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hpxfer.coordinates.measure import Bound, Prediction
from hpxfer.coordinates.optimizer_rules import SPARSE
from hpxfer.coordinates.path_facts import PathFacts
from hpxfer.scaling.claims.gpt import BIASES
from hpxfer.scaling.table import Column

MAXIMAL = "features and their changes keep their size"
NO_BLOW_UP = "logits, gates and random branches do not grow"
SHARES = "routed and shared experts divide the update between them as their shares change"

READ = ("embedding", "position", "stream")
# Roles that multiply one feature each, or add to it: what they learn is the change of their weights.
VECTORS = ("norm", "final_norm", "hidden_bias", "router_logit_bias")
INSIDE = ("attn_q", "attn_k", "attn_v", "attn_gate")
UP = ("expert_in", "expert_gate", "shared_in", "shared_gate", "dense_in", "dense_gate")
OUTPUTS = ("router", "shared_router", "readout")
BRANCHES = ("attn_out", "moe", "dense")
# Under SGD the first updates of these are as small as the first gradients, which start at a fluctuation width^-1/2.
SLOW_WITH_SGD = ("router", "shared_router", "expert_in", "expert_gate", "expert_out")
# Quantities that need experts to learn from a fixed share of the tokens.
SPARSE_ROLES = ("router", "gates", "expert_in", "expert_gate", "expert_out")


def stability(facts: PathFacts, optimizer: Column, *, zero_readout: bool) -> tuple[Prediction, ...]:
    """Return the exponents that a good table has along a path. Behind a zero readout nothing moves in one update."""
    return tuple(_of(facts, optimizer, 2 if zero_readout else 1))


def _of(facts: PathFacts, optimizer: Column, moved: int) -> Iterator[Prediction]:
    depth = facts.symbols["depth"]
    for role in (*READ, *INSIDE, *UP):
        yield _flat("activation", role)
        yield _flat("change", role, first=moved)
    yield _flat("change", "final_norm", first=moved)
    for role in VECTORS:
        held = _flat("weight change", role, first=moved)
        slow = optimizer == "sgd" and role == "hidden_bias" and facts.layout_moves
        yield replace(held, exponent=None, source=BIASES) if slow else held
    for role in (*INSIDE, *UP, *OUTPUTS):
        yield _learned(facts, optimizer, "effective", role, 0.0, 1 if role == "readout" else moved)
    for role in ("attn_out", "dense_out"):
        yield _learned(facts, optimizer, "effective", role, -depth, moved)
    yield _learned(facts, optimizer, "aggregate effective", "expert_out", -depth, moved)
    yield _learned(facts, optimizer, "effective", "shared_out", -depth, moved)
    for role in OUTPUTS:
        yield _at_most("activation", role, 0.0)
        yield _at_most("change", role, 0.0)
    yield _at_most("change", "gates", 0.0)
    for role in BRANCHES:
        yield _at_most("activation", role, -depth / 2)
        yield _at_most("change", role, -depth)


def _flat(quantity: str, role: str, *, first: int = 0) -> Prediction:
    return Prediction(quantity=quantity, role=role, exponent=0.0, source=MAXIMAL, first=first)


def _at_most(quantity: str, role: str, exponent: float) -> Prediction:
    bound: Bound = "at most"
    return Prediction(quantity=quantity, role=role, exponent=exponent + 0.0, source=NO_BLOW_UP, bound=bound)


def _learned(facts: PathFacts, optimizer: Column, quantity: str, role: str, exponent: float, first: int) -> Prediction:
    """Return the rule for what a matrix has learned; none where experts see another share of the tokens."""
    why = None
    if facts.kappa_moves and role in SPARSE_ROLES:
        why = SPARSE
    if abs(facts.symbols["shared"]) > 0 and role in ("expert_out", "shared_out"):
        why = SHARES
    return Prediction(
        quantity=quantity,
        role=role,
        exponent=None if why else exponent + 0.0,
        source=why or MAXIMAL,
        first=first,
        bound="at most" if optimizer == "sgd" and role in SLOW_WITH_SGD else "equal",
    )
