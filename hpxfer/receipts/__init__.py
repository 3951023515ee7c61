"""Receipts: what a training's optimizer really holds, and what such reports say of how far its results can be trusted.

`receipt` and `write_groups` run inside a training and import torch late. All checks are pure functions of plain data.
"""

from hpxfer.receipts.checks import (
    Repeat,
    arms_agree,
    base_repeats,
    common_factor,
    forward_factors,
    groups_match,
    hp_is_wired,
    init_matches,
    same_measure,
    schedule_keeps_ratios,
    seeds_differ,
)
from hpxfer.receipts.receipt import changes_since, receipt, weights_of, write_groups
from hpxfer.store.trainer_checks import Outcome

__all__ = [
    "Outcome",
    "Repeat",
    "arms_agree",
    "base_repeats",
    "changes_since",
    "common_factor",
    "forward_factors",
    "groups_match",
    "hp_is_wired",
    "init_matches",
    "receipt",
    "same_measure",
    "schedule_keeps_ratios",
    "seeds_differ",
    "weights_of",
    "write_groups",
]
