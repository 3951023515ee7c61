"""Whether a table is good, whatever it says: features and their changes neither grow nor vanish along an axis.

This is the criterion of maximal updates (arXiv 2203.03466, section 2; with depth 2505.01618): every feature keeps its
size, every matrix changes what it puts out by an amount that keeps its size, and nothing blows up. Three rules say so:

    flat       size ~ scale^0: the features that blocks read and compute, and what each matrix inside them learns
    summed     size ~ depth^-1: what each block adds to the stream by what it has learned, so that their sum is flat
    at most    logits, gates and random branches may start small and vanish; they may not grow

Outputs are allowed to vanish because a stable router or readout starts from logits that do. A table names what is
learned otherwise by its source's account (`Table.by_design`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hpxfer.coordinates.derive import fades
from hpxfer.coordinates.measure import Bound, Prediction
from hpxfer.coordinates.optimizer_rules import BIASES, SPARSE, TIED, decay_rule, eps_rule, of_muon
from hpxfer.coordinates.path_facts import PathFacts
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.monomial import ZERO
from hpxfer.scaling.table import Column

MAXIMAL = "features and their changes keep their size"
SLOW = "what is learned at first may be as small as the first gradients"
NO_BLOW_UP = "logits, gates and random branches do not grow"
SHARES = "routed and shared experts divide the update between them as their shares change"

READ = ("embedding", "position", "patch_in", "time_in", "label", "stream")
ROLE_OF = {"attn_gate": "attn_q", "shared_router": "router", "router_logit_bias": "hidden_bias"}  # of parts
# Roles that multiply one feature each, or add to it, and classes, of which a batch has few: what they learn is the
# change of their weights.
VECTORS = ("norm", "final_norm", "hidden_bias", "router_logit_bias", "final_bias", "label")
INSIDE = ("time_out", "modulation", "final_modulation", "attn_q", "attn_k", "attn_v", "attn_gate")
UP = ("expert_in", "expert_gate", "shared_in", "shared_gate", "dense_in", "dense_gate")
OUTPUTS = ("router", "shared_router", "readout")
BRANCHES = ("attn_out", "moe", "dense")
# Under SGD the first updates of these are as small as the first gradients, which start at a fluctuation width^-1/2. So
# are those of a router beside a large eps.
SLOW_WITH_SGD = ("router", "shared_router", "expert_in", "expert_gate", "expert_out")
# Quantities that need experts to learn from a fixed share of the tokens.
SPARSE_ROLES = ("router", "gates", "expert_in", "expert_gate", "expert_out")


def good_table(choice: Parameterization, optimizer: Column, facts: PathFacts) -> tuple[Prediction, ...]:
    """Return what a good table does along a path: to features and their changes, to eps and to weight decay."""
    starts = {row.role: row.init_std for row in choice.rows(optimizer)}
    # Behind a zero readout no gradient reaches the other roles before the first update. Behind zero gates none reaches
    # the branches before the gates have moved.
    late = sum(role in facts.zeros or starts.get(role) == ZERO for role in ("readout", "modulation"))
    features = stability(facts, optimizer, late=late)
    features = tuple(_as_designed(features, choice, facts))
    # Where the experts' random sum is all that a readout reads, and vanishes, so do the first gradients of all roles.
    faint = not facts.network.residual and fades(choice, optimizer, facts)
    if faint:
        features = tuple(replace(each, bound="at most", source=SLOW) if each.first else each for each in features)
    return (*features, *eps_rule(choice, facts, first=late, faint=faint), *decay_rule(choice, optimizer, facts))


def _as_designed(features: Iterable[Prediction], choice: Parameterization, facts: PathFacts) -> Iterator[Prediction]:
    """Yield the predictions, with the size that the table's source gives to what is learned."""
    exceptions = choice.table.by_design(dict(choice.conventions))
    for held in features:
        role = ROLE_OF.get(held.role, held.role)
        of = [each for each in exceptions if role in (each.changed if held.quantity == "change" else each.learned)]
        power = sum(facts.exponent(each.size) for each in of)
        if power and held.quantity != "activation" and held.exponent is not None:
            held = replace(held, exponent=held.exponent + power, source=of[0].source)
        yield held


def stability(facts: PathFacts, optimizer: Column, *, late: int = 0) -> tuple[Prediction, ...]:
    """Return the exponents that features have under a good table. What is learned is measured `late` updates later."""
    return tuple(_of(facts, optimizer, 1 + late))


def _of(facts: PathFacts, optimizer: Column, moved: int) -> Iterator[Prediction]:
    depth, normed = facts.symbols["depth"], facts.network.normed
    for role in (*READ, *INSIDE, *UP):
        yield _flat("activation", role, first=moved if role in facts.zeros else 0)
        yield _flat("change", role, first=moved)
    yield _flat("change", "final_norm", first=moved)
    for role in VECTORS:
        held = _flat("weight change", role, first=moved)
        slow = optimizer == "sgd" and role == "hidden_bias" and facts.layout_moves
        yield replace(held, exponent=None, source=BIASES) if slow else held
    for role in (*INSIDE, *UP, *OUTPUTS):
        yield _learned(facts, optimizer, "effective", role, 0.0, 1 if role == "readout" and normed else moved)
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
    if facts.tied_embeddings and role == "readout" and facts.symbols["width"]:
        why = TIED
    beside_eps = role == "router" and facts.network.large_eps and role not in facts.muon
    slow = role in SLOW_WITH_SGD if optimizer == "sgd" else beside_eps
    held = Prediction(
        quantity=quantity,
        role=role,
        exponent=None if why else exponent + 0.0,
        source=why or (SLOW if slow else MAXIMAL),
        first=first,
        bound="at most" if slow else "equal",
    )
    return of_muon(held, facts, ROLE_OF.get(role, role))
