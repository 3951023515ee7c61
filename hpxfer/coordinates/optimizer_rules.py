"""What must hold of eps and weight decay along a path. This module knows no torch.

Adam is faithful if the eps of each role scales as its gradient does (MSSP, section 3; Why Routers Freeze, Table 2). An
eps that is too large beside the gradient freezes the role, and one that is too small changes what a tuned eps does.
LR times weight decay is the share that a step takes from a weight, and its inverse is the number of steps over which
the weights average (2601.20205, Table 1). By its convention or its source, a table may instead keep the number itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hpxfer.coordinates.measure import Bound, Prediction
from hpxfer.coordinates.path_facts import PathFacts
from hpxfer.coordinates.sizes import ZERO
from hpxfer.scaling.claims import GRADIENT_OVER_EPS, eps_by_convention
from hpxfer.scaling.claims.gpt import BIASES
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.monomial import SYMBOLS, WIDTHS
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.table import Column, Row

DECAY = "decay"
BELOW_EPS = "sqrt(v) < eps"
KEEPS_STEP = "eps scales as the gradient"
TAKES_AS_MUCH = "LR times weight decay stays"
SAME_NUMBER = "weight decay stays one number"
NO_DECAY = "the table has no weight decay here"
NOT_TOO_LARGE = "a random part of the gradient fades beside what training aligns; eps follows one of them"
SPARSE = "the share of active experts changes, and with it how much an expert learns from each batch"
TIED = "the embedding and the readout are one tensor, whose gradient has two parts"
NO_SOURCE = "the table's eps does not follow the gradients of FFNs as their number and size change"
# They change the fan-in of an FFN's output matrix, and with it the two parts of the gradient of what feeds it.
RATIOS = ("expert_ratio", "dense_ratio")
FFN = tuple(role for role in ROLES if role.startswith(("router", "expert", "shared", "dense")))
UP = ("expert_in", "expert_gate", "shared_in", "shared_gate", "dense_in", "dense_gate")
OUTPUT_LIKE = ("router", "readout")
COUNTS = tuple(name for name in SYMBOLS if name not in WIDTHS)


def eps_as_gradients(
    choice: Parameterization, gradients: Iterable[Prediction], rule: Iterable[Prediction]
) -> Iterator[Prediction]:
    """Yield for each claim on a gradient that its eps scales alike.

    Where the router's gradient has no power law, `rule` may still have a bound. Otherwise the reason stays. No source
    speaks of the gradients of biases, so that they follow `rule`.
    """
    by_role = {each.role: each for each in rule}
    bounds = {"router": by_role["router"]} if by_role["router"].bound != "equal" else {}
    yield by_role["hidden_bias"]
    for each in gradients:
        if each.quantity == "gradient":
            held = replace(each, quantity=GRADIENT_OVER_EPS)
            if why := _eps_by_convention(choice, each.role):
                yield replace(held, exponent=None, source=why, zero=False)
            elif each.exponent is not None:
                yield replace(held, exponent=0.0, source=KEEPS_STEP)
            else:
                yield held if each.zero else bounds.get(each.role, held)


def eps_rule(choice: Parameterization, facts: PathFacts, *, first: int = 0) -> Iterator[Prediction]:
    """Yield for each role how large its gradient is beside its eps under a good table, from the step `first` on."""
    for role in ROLES:
        bound: Bound = "equal"
        power, why = 0.0, _eps_by_convention(choice, role) or _not_known(role, choice, facts)
        faint = ("width", *RATIOS, "shared") if role == "router" else RATIOS if role in UP else ()
        if any(facts.symbols[name] for name in faint):
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
    for row in choice.rows(optimizer):
        power, why = _share(choice, row, optimizer, facts)
        zero = power == ZERO
        yield Prediction(
            quantity=DECAY, role=row.role, exponent=None if zero else round(power, 9) + 0.0, source=why, zero=zero
        )


def _share(choice: Parameterization, row: Row, optimizer: Column, facts: PathFacts) -> tuple[float, str]:
    """Return the exponent of LR times weight decay that a good table has in a row, and the reason."""
    lr, decay = facts.exponent(row.lr), facts.exponent(row.weight_decay)
    if ZERO in (lr, decay):
        return ZERO, NO_DECAY
    if _keeps_number(choice):
        # An output-like row may be written with a forward multiplier in place of a smaller init and LR. The decay of
        # the other form then keeps its number (abc symmetry).
        other = facts.exponent(row.forward) * (1 if optimizer == "adam" else 2) if row.role in OUTPUT_LIKE else 0.0
        legal, why = (lr, lr + other), SAME_NUMBER
    else:
        # Sources differ on whether the LR's factors of depth and counts stay in the share.
        legal, why = (0.0, facts.exponent(row.lr.only(COUNTS))), TAKES_AS_MUCH
    return min(legal, key=lambda power: abs(power - lr - decay)), why


def _eps_by_convention(choice: Parameterization, role: str) -> str | None:
    return eps_by_convention(dict(choice.conventions), role)


def _keeps_number(choice: Parameterization) -> bool:
    asked = dict(choice.conventions).get("weight_decay")
    return asked == "independent" or (asked != "coupled" and choice.table.constant_decay)
