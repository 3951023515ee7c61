"""Receipts: what a trainer's optimizer really holds, and what such reports say of how far its results can be trusted.

`receipt` and `write_groups` run inside a training and import torch late. All checks are pure functions of plain data.
"""

from hpxfer.receipts.changes import changes_since, weights_of
from hpxfer.receipts.entries import Outcome, undecided_because
from hpxfer.receipts.forward import forward_factors
from hpxfer.receipts.groups import common_factor, groups_match, init_matches, schedule_keeps_ratios
from hpxfer.receipts.receipt import receipt, write_groups
from hpxfer.receipts.wired import Repeat, arms_agree, base_repeats, hp_is_wired, same_measure, seeds_differ

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
    "undecided_because",
    "weights_of",
    "write_groups",
]
