"""The command of a user's own trainer, before anything runs: something fills each of its placeholders."""

from __future__ import annotations

from hpxfer.scaling.hps import SCALARS
from hpxfer.spec import SweepSpec
from hpxfer.trainer.job import check


def scanned_multipliers(spec: SweepSpec) -> tuple[str, ...]:
    """Return the multipliers that a sweep names, in order. Each of its trials has a value of each, 1 by default."""
    names = {*spec.grid, *spec.hps.multipliers, *(name for arm in spec.parameterizations for name in arm.given())}
    return tuple(sorted(names - set(SCALARS)))


def require_command(spec: SweepSpec) -> None:
    """Raise HpxferError, with a line per mistake, if the command has a placeholder that some trial does not fill."""
    trainer = spec.trainer
    if trainer is None or trainer.command is None:
        return
    arms = [{*trainer.args, *arm.args} for arm in (trainer.arms or {}).values()] or [set(trainer.args)]
    args = sorted(set.intersection(*arms))
    check(trainer.command, list(spec.model.own or ()), [*SCALARS, *scanned_multipliers(spec)], args)
