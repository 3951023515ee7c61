"""Trials: one training run each, its identity, its result, and the stacks that train together."""

from hpxfer.trial.expansion import PRODUCT, Cell, Expansion, hp_points
from hpxfer.trial.setting import DataRef, Setting, base_hps, setting_of
from hpxfer.trial.trial import TRAINER_VERSION, Trial

__all__ = [
    "PRODUCT",
    "TRAINER_VERSION",
    "Cell",
    "DataRef",
    "Expansion",
    "Setting",
    "Trial",
    "base_hps",
    "hp_points",
    "setting_of",
]
