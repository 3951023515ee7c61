"""What must hold of eps and weight decay along a path. This module knows no torch.

Adam is faithful if the eps of each role scales as its gradient does (MSSP, section 3; Why Routers Freeze, Table 2). An
eps that is too large beside the gradient freezes the role, and one that is too small changes what a tuned eps does.
LR times weight decay is the share that a step takes from a weight, and its inverse is the number of steps over which
the weights average (2601.20205, Table 1). By its convention or its source, a table may instead keep the number itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hpxfer.coordinates.measure import Bound, Prediction
from hpxfer.coordinates.path_facts import SAME, PathFacts
from hpxfer.coordinates.sizes import ZERO
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.monomial import SYMBOLS, WIDTHS
from hpxfer.scaling.roles import HIDDEN, ROLES
from hpxfer.scaling.table import Column, Row

DECAY = "decay"
GRADIENT_OVER_EPS = "gradient / eps"
BELOW_EPS = "sqrt(v) < eps"
KEEPS_STEP = "eps scales as the gradient"
TAKES_AS_MUCH = "LR times weight decay stays"
SAME_NUMBER = "weight decay stays one number"
NO_DECAY = "the table has no weight decay here"
NOT_TOO_LARGE = "a random part of the gradient fades beside what training aligns; eps follows one of them"
SPARSE = "the share of active experts changes, and with it how much an expert learns from each batch"
TIED = "the embedding and the readout are one tensor, whose gradient has two parts"
BIASES = "the gradients of the biases of experts and of attention scale differently"
ONE_EPS = "the convention eps=global asks for one factor for all roles"
BASE_EPS = "the convention eps=hidden keeps the base's eps outside hidden matrices"
THIN = "Muon makes less of tokens that do not align, by up to sqrt(out/in), or the root of split heads that add up"
RANK = "Muon's entries are smaller, by up to the root of min(in, out), where the batch bounds the gradient's rank"
CROSSES = "the path crosses in = out of a matrix of Muon, where exponents change; take --points on one side"
NO_SOURCE = "the table's eps does not follow the gradients of FFNs as their number and size change"
# They change the fan-in of an FFN's output matrix, and with it the two parts of the gradient of what feeds it.
RATIOS = ("expert_ratio", "dense_ratio")
FFN = tuple(role for role in ROLES if role.startswith(("router", "expert", "shared", "dense")))
UP = ("expert_in", "expert_gate", "shared_in", "shared_gate", "dense_in", "dense_gate")
OUTPUT_LIKE = ("router", "readout")
COUNTS = tuple(name for name in SYMBOLS if name not in WIDTHS)


def eps_rule(
    choice: Parameterization, facts: PathFacts, *, first: int = 0, faint: bool = False
) -> Iterator[Prediction]:
    """Yield for each role how large its gradient is beside its eps under a good table, from the step `first` on.

    Where all gradients start `faint`, they may be as small beside it as a fluctuation.
    """
    for role in (role for role in ROLES if role not in facts.muon):
        bound: Bound = "equal"
        power, why = 0.0, eps_by_convention(choice, role) or _not_known(role, choice, facts)
        two_parts = ("width", *RATIOS, "shared") if role == "router" else RATIOS if role in UP else ()
        if faint or any(facts.symbols[name] for name in two_parts):
            power, bound = -0.5, "at least"
        yield Prediction(
            quantity=GRADIENT_OVER_EPS,
            role=role,
            exponent=None if why else power,
            source=why or (KEEPS_STEP if bound == "equal" else NOT_TOO_LARGE),
            first=first,
            bound=bound,
        )


def _not_known(role: str, choice: Parameterization, facts: PathFacts) -> str | None:
    """Return why no power law of a role's gradient is known, or None."""
    moves = facts.layout_moves
    if moves and role == "hidden_bias":
        return BIASES
    if moves and role in FFN and not choice.table.eps_by_layout:
        return NO_SOURCE
    if facts.kappa_moves and (role == "router" or role.startswith("expert")):
        return SPARSE
    return TIED if facts.tied_embeddings and role in ("embedding", "position") else None


def decay_rule(choice: Parameterization, optimizer: Column, facts: PathFacts) -> Iterator[Prediction]:
    """Yield how the share that weight decay takes in one step scales under a good table, for each role."""
    adam = {row.role: row for row in choice.rows("adam")} if facts.muon else {}
    for row in choice.rows(optimizer):
        power, why = _share(choice, row, adam.get(row.role, row), optimizer, facts)
        zero = power == ZERO
        yield Prediction(
            quantity=DECAY, role=row.role, exponent=None if zero else round(power, 9) + 0.0, source=why, zero=zero
        )


def _share(choice: Parameterization, row: Row, adam: Row, optimizer: Column, facts: PathFacts) -> tuple[float, str]:
    """Return the exponent of LR times weight decay that a good table has in a row, and the reason.

    Under Muon a matrix keeps the share that a step under AdamW takes, by the row `adam`.
    """
    share = facts.factor(row, "lr") + facts.factor(row, "weight_decay")
    if share == ZERO:
        return ZERO, NO_DECAY
    lr, row = facts.exponent(adam.lr), adam
    if _keeps_number(choice):
        # An output-like row may be written with a forward multiplier in place of a smaller init and LR. The decay of
        # the other form then keeps its number (abc symmetry).
        other = facts.exponent(row.forward) * (2 if optimizer == "sgd" else 1) if row.role in OUTPUT_LIKE else 0.0
        legal, why = (lr, lr + other), SAME_NUMBER
    else:
        # Sources differ on whether the LR's factors of depth and counts stay in the share.
        legal, why = (0.0, facts.exponent(row.lr.only(COUNTS))), TAKES_AS_MUCH
    return min(legal, key=lambda power: abs(power - share)), why


def of_muon(held: Prediction, facts: PathFacts, role: str | None = None) -> Prediction:
    """Return what is predicted of what a matrix of a role has learned, or of its size, as far as Muon moves it."""
    matrix = facts.muon.get(role or held.role)
    if matrix is None or held.exponent is None:
        return held
    if matrix.crosses:
        return replace(held, exponent=None, source=CROSSES)
    of_size = held.quantity == "weight change"
    less = matrix.rank if of_size else matrix.thin
    if abs(less) < SAME:
        return held
    ends = held.exponent, held.exponent - less
    return replace(held, exponent=max(ends), least=min(ends), source=RANK if of_size else THIN)


def eps_by_convention(choice: Parameterization, role: str) -> str | None:
    """Return why the eps of a role does not follow its gradient: a convention asks for another one. None: it does."""
    asked = dict(choice.conventions).get("eps")
    if asked == "global":
        return ONE_EPS
    return BASE_EPS if asked == "hidden" and role not in HIDDEN else None


def _keeps_number(choice: Parameterization) -> bool:
    asked = dict(choice.conventions).get("weight_decay")
    return asked == "independent" or (asked != "coupled" and choice.table.constant_decay)
