"""What a check does not test along an axis, in one sentence each, so that nobody takes a pass for more than it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from hpxfer.coordinates.measure import Fit
from hpxfer.coordinates.optimizer_rules import DECAY, NOT_TOO_LARGE
from hpxfer.coordinates.own.numbers import FIRST_STEP, WEIGHT
from hpxfer.coordinates.stability import MAXIMAL, NO_BLOW_UP, SLOW_WITH_SGD
from hpxfer.scaling.claims import GRADIENT_OVER_EPS
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.monomial import ONE, ZERO
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.table import Column, Row

# Factor -> its name, and the quantities that show it.
SHOWN_BY: dict[str, tuple[str, tuple[str, ...]]] = {
    "init_std": ("init", ("activation", "aggregate init", WEIGHT)),
    "lr": ("LR", ("effective", "aggregate effective", "weight change", FIRST_STEP)),
    "eps": ("eps", (GRADIENT_OVER_EPS,)),
    "weight_decay": ("weight decay", (DECAY,)),
    "forward": ("multiplier", ("activation", "aggregate init")),
}
# What a good table is held to is the branch, and not the map that ends it.
BRANCH = {"expert_out": "moe", "shared_out": "moe", "dense_out": "dense"}
LOOKUPS = ("embedding", "position")
# What holds a slope on one side -> why the other side is open.
ONE_SIDED = {
    NOT_TOO_LARGE: "such an eps does little, and the gradient has two parts",
    NO_BLOW_UP: "a good table may start logits, gates and branches small",
}
SLOW = "under SGD a small first gradient alone makes learning start slowly"
SILENT = "nothing is predicted"
NOISY = "the slope is too noisy to tell; give more --seeds"
ABSENT = "the model of this check has no such tensor"
BALANCING = "the balancing rule moves it, and not the optimizer"
SCHEDULE = "betas, and the factors of batch and duration: no shape shows them"
# The family mlp has no more than inputs, a router, experts and a readout.
MLP = (
    SCHEDULE,
    "roles of a transformer that mlp lacks: positions, attention, gains, biases, shared experts and dense FFNs",
)


def not_tested(
    choice: Parameterization, optimizer: Column, fits: Iterable[Fit], there: Iterable[str], gate_sums_over: str | None
) -> tuple[str, ...]:
    """Return one sentence per reason for which factors of the table are not tested.

    `fits` are the slopes of the answer that judges the table, and `there` are the roles that the model has.
    """
    found: dict[tuple[str, str], list[Fit]] = {}
    for fit in fits:
        if fit.layer is None:
            found.setdefault((fit.role, fit.quantity), []).append(fit)
    reasons: dict[str, list[str]] = {}
    present = set(there)
    for row in choice.rows(optimizer):
        if row.role == "router_bias":
            reasons.setdefault(BALANCING, []).append(row.role)
        elif row.role not in present:
            reasons.setdefault(ABSENT, []).append(row.role)
        else:
            for what, why in _of_row(row, optimizer, found):
                reasons.setdefault(why, []).append(f"{what} of {row.role}")
    out = [f"{', '.join(names)}: {why}" for why, names in reasons.items()]
    if choice.table.route_scale != ONE and gate_sums_over is None and "router" in present:
        out.append("route scale: the gate of this check does not sum to one")
    return (*out, SCHEDULE)


def _of_row(row: Row, optimizer: Column, found: Mapping[tuple[str, str], list[Fit]]) -> Iterator[tuple[str, str]]:
    """Yield (factor, reason) of the factors of a role that no slope shows."""
    for factor, (what, quantities) in SHOWN_BY.items():
        if factor == "lr" and row.role in LOOKUPS:
            quantities = ("change", FIRST_STEP)
        if _does_nothing(row, factor, optimizer):
            continue
        seen = [fit for quantity in quantities for fit in found.get((row.role, quantity), ())]
        if factor in ("init_std", "forward") and not seen:
            seen = found.get((BRANCH.get(row.role, ""), "activation"), [])
        judged = [fit for fit in seen if fit.verdict in ("ok", "miss") or (fit.verdict == "zero" and fit.source)]
        if judged:
            if all(fit.source in ONE_SIDED for fit in judged):
                yield f"too small {what}", ONE_SIDED[judged[0].source or ""]
            elif factor == "lr" and optimizer == "sgd" and row.role in SLOW_WITH_SGD and judged[0].source == MAXIMAL:
                yield f"too small {what}", SLOW
        elif any(fit.verdict == "unclear" for fit in seen):
            yield what, NOISY
        else:
            yield what, next((fit.source for fit in seen if fit.source), SILENT)


def _does_nothing(row: Row, factor: str, optimizer: Column) -> bool:
    """Return whether a factor has no effect on a role in any model."""
    match factor:
        case "init_std":
            return ROLES[row.role] in ("ones", "zeros")
        case "eps":
            return optimizer != "adam"
        case "weight_decay":
            return row.weight_decay == ZERO
        case "forward":
            return row.forward == ONE
        case _:
            return False
