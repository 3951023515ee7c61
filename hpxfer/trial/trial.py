"""Trial: one training run, as a pure function of its spec."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hpxfer.scaling.evaluate import (
    GlobalValues,
    Multipliers,
    Parameterization,
    Structure,
    parameterization,
    resolve,
    resolve_globals,
)
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape
from hpxfer.trial.setting import Setting

# Raise it with every change of what the trainer computes. Stored trials of another version are not reused.
TRAINER_VERSION = 3


@dataclass(frozen=True, kw_only=True, slots=True)  # a sweep may plan 100,000 of them
class Trial:
    """One training run. At the base shape, `parameterization` is None unless its table differs there."""

    id: str
    setting: Setting
    shape: Shape
    base: Shape
    parameterization: Parameterization | None
    hps: HPs
    seed: int
    plugins: tuple[tuple[str, str], ...] = ()  # (kind:name, digest) of the plug-ins' rows that the trial uses

    def resolved(self) -> dict[str, Multipliers]:
        """Return role -> absolute init std, LR, eps, weight decay and forward multiplier."""
        known = self._choice, self.base, self.shape, self.setting.column, self.hps, self.setting.init
        return resolve(*known, learned_bias_std=self.setting.mlp.learned_bias_std)

    def globals(self) -> GlobalValues:
        """Return the absolute route scale and the betas. Raise HpxferError if a beta would leave [0, 1)."""
        return resolve_globals(self._choice, self.base, self.shape, self.hps)

    def structure(self) -> Structure:
        """Return what the parameterization changes beside numbers."""
        found = self._choice.structure()
        return replace(found, tied_experts=True) if self.setting.mlp.tied_experts else found

    @property
    def _choice(self) -> Parameterization:
        return self.parameterization or parameterization("sp")
