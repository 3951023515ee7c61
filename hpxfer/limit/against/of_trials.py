"""network_of: from the trials of one arm along a path of shapes to the infinite network that they approach, or why not.

A table is known by its numbers and never by its name, so that of a plug-in works as those of the papers do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from hpxfer.errors import HpxferError, joined
from hpxfer.limit.against.measured import regime_of
from hpxfer.limit.network import Gate, Network, Regime, Role, RouterBias, Style
from hpxfer.scaling.evaluate import BaseInit, Multipliers, parameterization, resolve
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import UNIT, Shape
from hpxfer.spec import FIXED_BIAS_STD, LEARNED, MLP
from hpxfer.trial import Setting, Trial

# Constants: the numbers of a trial over those of a paper's table, role by role.
#
# The papers write absolute powers of the dimensions. Those are the factors of a table relative to a base of ones, with
# every HP at 1. What a trial's numbers have beyond them is a constant per role, if the trials approach a limit.


@dataclass(frozen=True, kw_only=True)
class Constant:
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
    out: dict[Role, Constant] = {}
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


# Constants of all shapes must agree to this relative error.
SAME = 1e-6


def network_of(trials: Sequence[Trial], where: str = "sweep") -> Network:
    """Return the network that trials approach: one trial per shape of a path, of one table and the same HPs.

    Raise HpxferError, which names `where`, if their numbers approach no limit that is solved.
    """
    path = sorted(trials, key=lambda trial: trial.shape.width)
    for trial in path:
        require_solvable(trial, where)
    _require_alike(path, where)
    regime = _regime(path, where)
    parameterization, constants = _matched(path, regime, where)
    first, shape = path[0], path[0].shape
    setting, options = first.setting, first.setting.mlp
    return Network(
        regime=regime,
        parameterization=parameterization,
        gate=gate_of(setting),
        activation=options.activation,
        input_activation=options.input_activation,
        aggregation=options.aggregation,
        inverse_temperature=options.inverse_temperature,
        num_experts=shape.num_experts if regime == "I" else None,
        num_active=shape.num_active if regime == "I" else None,
        expert_matrices=1 if options.expert_matrices == 1 else 2,
        active_share=1.0 if regime == "I" else shape.num_active / shape.num_experts,
        expert_ratio=1.0 if regime == "II" else shape.expert_width / shape.width,
        expert_width=shape.expert_width if regime == "II" else None,
        experts_per_width=1.0 if regime == "I" else shape.num_experts / shape.width,
        depth=shape.depth,
        router_bias=_router_bias(first),
        router_bias_std=_bias_std(first),
        init_mult={role: each.std for role, each in constants.items() if each.std != 1.0},
        lr_mult={role: each.rate for role, each in constants.items() if each.rate != 1.0},
    )


def _regime(path: Sequence[Trial], where: str) -> Regime:
    """Return the regime of a path. Raise HpxferError if its limit is not solved for a model with these options."""
    first, shape = path[0], path[0].shape
    setting, options = first.setting, first.setting.mlp
    grown = regime_of([trial.shape for trial in path], where)
    regime: Regime = "residual" if options.residual else grown
    if options.residual and grown != "III":
        raise HpxferError(
            f"{where}: model.mlp.residual: a residual network has a limit in regime III, where experts and expert width"
            f" grow with the width, got regime {grown}; take another axis, or residual: false"
        )
    if not options.residual and shape.depth != 1:
        raise HpxferError(f"{where}: depth must be 1 without a residual, got {shape.depth}: stacks are not solved")
    if regime in ("II", "III") and _router_bias(first) != "none":
        raise HpxferError(
            f"{where}: model.mlp.router_bias: a bias of the router is solved in regime I and in residual networks, got "
            f"regime {regime} and router_bias: {options.router_bias}, ties: {setting.ties}; write router_bias: none"
        )
    if regime == "I" and not has_bias(first) and shape.num_active < shape.num_experts:
        raise HpxferError(
            f"{where}: model.mlp.router_bias: without a bias the router's first choice is a draw of each finite network"
            f", so {shape.num_active} of {shape.num_experts} experts have no single limit; write router_bias: fixed"
        )
    return regime


def _require_alike(path: Sequence[Trial], where: str) -> None:
    """Raise HpxferError unless trials differ in nothing but their shape (and how ties are broken)."""
    first = path[0]
    for other in path[1:]:
        for name in vars(first.setting):
            one, two = getattr(first.setting, name), getattr(other.setting, name)
            if one != two and name not in ("ties", "batch_tokens", "steps", "final_window_steps"):
                raise HpxferError(f"{where}: {name} must be the same at every shape of the axis, got {one} and {two}")
        if first.hps != other.hps:
            raise HpxferError(f"{where}: the HPs must be the same at every shape, got {first.hps} and {other.hps}")
        if _structure(first) != _structure(other):
            raise HpxferError(
                f"{where}: experts must start from one draw at every shape of the axis or at none, got both; name the "
                "table of the larger shapes with `model.mlp.tied_experts: true`, or take another base"
            )


def _structure(trial: Trial) -> tuple[bool, float]:
    return trial.structure().tied_experts, trial.structure().router_bias_std


def _matched(path: Sequence[Trial], regime: Regime, where: str) -> tuple[Style, dict[Role, Constant]]:
    """Return the paper's table whose powers the trials follow, and their constants over it."""
    is_tied = path[0].structure().tied_experts
    if is_tied and regime != "III":
        raise HpxferError(
            f"{where}: model.mlp.tied_experts: experts that start from one draw are solved in regime III, got regime "
            f"{regime}; write tied_experts: false"
        )
    # In regime III only the draw differs. Elsewhere the tables differ in one std, and the trials' numbers decide.
    styles: tuple[Style, ...] = ("mssp", "mup")
    if regime in ("III", "residual"):
        styles = ("mssp",) if is_tied else ("mup",)
    numbers = "iii" if regime == "residual" else regime.lower()
    found = {style: [constants_of(trial, f"{style}-{numbers}") for trial in path] for style in styles}
    wrong = {}
    for style, rows in found.items():
        wrong[style] = [text for role in roles_of(path[0].setting.mlp) for text in changes(path, rows, role)]
        if not wrong[style]:
            return style, rows[0]
    nearest = min(styles, key=lambda style: len(wrong[style]))
    legal = " or ".join(f"{style}-{numbers}" for style in styles)
    raise HpxferError(
        f"{where}: the numbers of a table must approach a limit: those of {legal}, times constants that all shapes "
        f"share, got over those of {nearest}-{numbers}: {'; '.join(wrong[nearest])}; "
        "take an arm that follows the regime of the axis"
    )


def changes(path: Sequence[Trial], rows: Sequence[dict[Role, Constant]], role: Role) -> list[str]:
    """Return how the constants of a role change along the path, in words; nothing if they stay."""
    out = []
    for name, what in (("std", "init std"), ("rate", "LR")):
        values = [getattr(row[role], name) for row in rows]
        if not all(math.isfinite(value) and math.isclose(value, values[0], rel_tol=SAME) for value in values):
            ends = ((path[i].shape.width, values[i]) for i in (0, -1))
            out.append(f"{role} {what} " + " and ".join(f"{value:.4g} at width {width}" for width, value in ends))
    return out


def _router_bias(trial: Trial) -> RouterBias:
    """Return the kind of bias that is added to the logits. What several sources add is the kind that changes most."""
    kind = trial.setting.mlp.router_bias
    if kind in LEARNED:
        return "learned"
    if not has_bias(trial):
        return "none"
    drawn_anew = kind == "schedule" or trial.structure().router_bias_std > 0
    return "schedule" if drawn_anew else "fixed"


def _bias_std(trial: Trial) -> float:
    """Return the std of the bias over experts, from all that adds to it."""
    options = trial.setting.mlp
    own = options.router_bias_std if options.router_bias != "none" else 0.0
    tie = FIXED_BIAS_STD if trial.setting.ties == "fixed_bias" else 0.0
    return math.hypot(own, tie, trial.structure().router_bias_std) if has_bias(trial) else Network.router_bias_std


GATES: tuple[Gate, ...] = get_args(Gate)


def require_solvable(trial: Trial, where: str) -> None:
    """Raise HpxferError, with every reason, if the training of a trial has no limit that is solved."""
    if found := list(reasons(trial)):
        raise HpxferError(joined(f"{where}: {reason}" for reason in found))


def reasons(trial: Trial) -> Iterator[str]:
    """Yield why the limit of a trial's training is not solved."""
    setting, hps = trial.setting, trial.hps
    if setting.family != "mlp":
        yield f"model.family: limits are solved of the family mlp, got {setting.family}; `hpxfer check` checks features"
        return
    if setting.optimizer != "sgd":
        yield (
            f"training.optimizer: must be sgd, got {setting.optimizer}: an update of Adam divides entry by entry, so "
            "it is not of low rank and its limit is not solved; train with sgd"
        )
    if setting.gate not in GATES:
        yield f"model.gate: must be one of {', '.join(GATES)}, got {setting.gate}: no limit of it is derived"
    if hps.momentum:
        yield f"hps.momentum: must be 0, got {hps.momentum:g}: the limit is that of plain SGD; take it out"
    if hps.weight_decay:
        yield f"training.weight_decay: must be 0, got {hps.weight_decay:g}: the limit is that of plain SGD; take it out"
    if setting.gradient_clip is not None:
        got = f"{setting.gradient_clip:g}"
        yield f"training.gradient_clip: must be none, got {got}: the limit is that of plain SGD; take it out"
    if setting.precision != "float32":
        yield f"training.precision: must be float32, got {setting.precision}: rounding would pass for a deviation"
    yield from _of_choice(trial)


def gate_of(setting: Setting) -> Gate:
    """Return the gate of a setting for which nothing is refused."""
    return next(gate for gate in GATES if gate == setting.gate)


def has_bias(trial: Trial) -> bool:
    """Return whether something is added to the router's logits that is drawn alike at every width."""
    options = trial.setting.mlp
    own = options.router_bias != "none" and options.router_bias_std > 0
    return own or trial.structure().router_bias_std > 0 or trial.setting.ties == "fixed_bias"


def _of_choice(trial: Trial) -> Iterator[str]:
    """Yield what is wrong with how experts are chosen, where some are not active."""
    setting, shape = trial.setting, trial.shape
    if setting.mlp.router_bias in LEARNED and setting.mlp.router_bias_std and trial.structure().router_bias_std:
        yield "a learned router bias beside the table's own is not solved; keep one of the two"
    if shape.num_active == shape.num_experts:
        return
    if setting.balance.bias != "none" and trial.hps.router_bias_lr:
        yield (
            f"model.balance.bias: must be none, got {setting.balance.bias}: its limit depends on the loads of finitely "
            "many samples and is not solved; take it out"
        )
    if not has_bias(trial) and not trial.resolved()["router"].init_std:
        yield (
            f"model.ties: the router starts at zero and nothing tells its experts apart, so ties ({setting.ties}) "
            "decide which are active; a limit is solved once they have a bias: write model.mlp.router_bias: fixed"
        )
