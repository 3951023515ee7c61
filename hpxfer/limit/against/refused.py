"""What no limit is solved for, by the setting and the HPs of a trial. Each reason has a rule, a value and a fix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from hpxfer.errors import HpxferError, joined
from hpxfer.limit.network import Gate
from hpxfer.spec.mlp import LEARNED
from hpxfer.trial import Setting, Trial

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
