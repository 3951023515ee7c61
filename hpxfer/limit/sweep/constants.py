"""Constants: the numbers of a trial over those of a paper's table, role by role.

The papers write absolute powers of the dimensions. Those are the factors of a table relative to a base of ones, with
every HP at 1. What a trial's numbers have beyond them is a constant per role, if the trials approach a limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hpxfer.limit.network import Role
from hpxfer.scaling.evaluate import BaseInit, Multipliers, parameterization, resolve
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import UNIT, Shape
from hpxfer.spec import LEARNED, MLP
from hpxfer.trial import Trial


class Constant(NamedTuple):
    """What a role has beyond the table: factors on its initial std and on its LR."""

    std: float
    rate: float


def roles_of(options: MLP) -> tuple[Role, ...]:
    """Return the roles that a model of the family trains."""
    learned: tuple[Role, ...] = ("router_bias",) if options.router_bias in LEARNED else ()
    inner: tuple[Role, ...] = () if options.expert_matrices == 1 else ("expert_in",)
    return ("embedding", "router", *learned, *inner, "expert_out", "readout")


def constants_of(trial: Trial, table: str) -> dict[Role, Constant]:
    """Return the constants of a trial of the family `mlp` over the SGD column of `table`.

    The LR of a trial is its base LR times its factor, and only the factor is compared. Forward multipliers fold into
    the matrices: y = m W x with std s and LR r is y = W x with std m s and LR m^2 r. A constant is infinite where the
    trial has a number and the table has zero.
    """
    numbers, reference = trial.resolved(), _reference(table, trial.shape, trial.setting.num_inputs)
    beyond = _multipliers(trial, numbers, reference)
    out = {}
    for role in roles_of(trial.setting.mlp):
        own, ref, factor = numbers[role], reference[role], beyond.get(role, 1.0)
        out[role] = Constant(
            # A learned bias starts at the same draw everywhere, which the limit is given.
            std=1.0 if role == "router_bias" else _over(factor * own.init_std, ref.init_std),
            rate=_over(factor**2 * own.lr / trial.hps.lr, ref.lr),
        )
    return out


def _reference(table: str, shape: Shape, inputs: int) -> dict[str, Multipliers]:
    """Return the paper's numbers at a shape. The input layer starts at inputs^-1/2."""
    init = BaseInit(embedding_std=inputs**-0.5)
    # A bias of the router counts as trained: a limit knows no balancing rule, which has a rate of its own.
    return resolve(parameterization(table), UNIT, shape, "sgd", HPs(lr=1.0), init, learned_bias_std=1.0)


def _multipliers(
    trial: Trial, numbers: Mapping[str, Multipliers], reference: Mapping[str, Multipliers]
) -> dict[Role, float]:
    """Return the forward multipliers beyond the paper's, each at the matrix that it folds into.

    The factor of an expert's output folds into its last matrix. An activation behind a single matrix is in between, so
    the factor goes on to the readout, which no activation separates from it.
    """
    options, shape = trial.setting.mlp, trial.shape
    out: dict[Role, float] = {
        "embedding": numbers["embedding"].forward / reference["embedding"].forward,
        "router": numbers["router"].forward / reference["router"].forward,
        "readout": numbers["readout"].forward / reference["readout"].forward,
    }
    # The table averages over the active experts. A gate that sums to one undoes that by its route scale.
    branch = numbers["expert_out"].forward / reference["expert_out"].forward
    if options.aggregation == "none":
        branch *= trial.globals().route_scale / shape.num_active
    if options.expert_matrices == 1 and options.activation != "linear":
        out["readout"] *= branch
    else:
        out["expert_out"] = branch
    return out


def _over(own: float, table: float) -> float:
    """Return own / table, which is 1 where both are zero."""
    if table:
        return own / table
    return float("inf") if own else 1.0
