"""network_of: from the trials of one arm along a path of shapes to the infinite network that they approach.

A table is known by its numbers and never by its name, so that of a plug-in works as those of the papers do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpxfer.errors import HpxferError
from hpxfer.limit.against.constants import Constant, constants_of, roles_of
from hpxfer.limit.against.path import regime_of
from hpxfer.limit.against.refused import gate_of, has_bias, require_solvable
from hpxfer.limit.network import Network, Regime, Role, RouterBias, Style
from hpxfer.spec.mlp import LEARNED
from hpxfer.spec.ties import FIXED_BIAS_STD
from hpxfer.trial import Trial

# Constants of all shapes must agree to this relative error.
SAME = 1e-6
ConstantsOf = dict[Role, list[Constant]]


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
